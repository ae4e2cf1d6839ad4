//! Why a tar does not become a layer.

use std::io;

use ringfence_model::ByteText;

use crate::images::decode::Bomb;
use crate::images::tar::TarError;

/// Why a tar did not become a layer.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error(transparent)]
    Bomb(#[from] Bomb),
    #[error("it has more than {0} entries")]
    Entries(u64),
    #[error("the paths of its entries have more than {0} bytes")]
    Names(u64),
    #[error("all layers together have more than an image may have")]
    Together,
    #[error(transparent)]
    Tar(TarError),
    #[error("`{path}` is refused: {why}")]
    Refused { path: ByteText, why: &'static str },
    #[error("cannot make `{path}`")]
    Make {
        path: ByteText,
        #[source]
        source: io::Error,
    },
}

impl From<TarError> for UnpackError {
    fn from(error: TarError) -> Self {
        if let TarError::Read(source) = &error
            && let Some(bomb) = source
                .get_ref()
                .and_then(|inner| inner.downcast_ref::<Bomb>())
        {
            return Self::Bomb(*bomb);
        }
        Self::Tar(error)
    }
}

pub(super) fn refused(path: &[u8], why: &'static str) -> UnpackError {
    UnpackError::Refused {
        path: ByteText::from(path),
        why,
    }
}

pub(super) fn make(path: &[u8], errno: rustix::io::Errno) -> UnpackError {
    failed(path, errno.into())
}

pub(super) fn failed(path: &[u8], source: io::Error) -> UnpackError {
    UnpackError::Make {
        path: ByteText::from(path),
        source,
    }
}
