//! Why a patch is none, or does not fit.

use std::io;

use ringfence_model::ByteText;
use thiserror::Error;

use super::read::{Unreadable, Why};

#[derive(Debug, Error)]
pub enum PatchError {
    #[error("line {line} is not one of a patch of ours")]
    Unreadable { line: u64 },
    #[error("line {line} changes a submodule, which a patch of ours never does")]
    Submodule { line: u64 },
    #[error("the patch has {patch} files and the result {result}")]
    Count { patch: usize, result: usize },
    #[error("{0}")]
    Disagrees(String),
    #[error("`{path}`: {why}")]
    Path { path: ByteText, why: &'static str },
    #[error("`{path}`: its content is larger than a patch may carry")]
    TooLarge { path: ByteText },
    #[error("`{path}`: its binary content cannot be read")]
    Binary { path: ByteText },
    #[error("`{path}`: the patch does not fit its old content")]
    DoesNotFit { path: ByteText },
    #[error("`{path}`: its {which} content has another id")]
    OtherId { path: ByteText, which: &'static str },
    #[error("`{path}`: its old content is not at hand")]
    NeedsOld { path: ByteText },
    #[error("`{path}` is not what the patch was made of")]
    Moved { path: ByteText },
    #[error("cannot read `{path}` of the base")]
    ReadBase {
        path: ByteText,
        #[source]
        source: io::Error,
    },
    #[error("cannot write `{path}` into a layer")]
    WriteLayer {
        path: ByteText,
        #[source]
        source: io::Error,
    },
}

impl From<Unreadable> for PatchError {
    fn from(error: Unreadable) -> Self {
        let line = error.line;
        match error.why {
            Why::NotOurs => Self::Unreadable { line },
            Why::Submodule => Self::Submodule { line },
        }
    }
}
