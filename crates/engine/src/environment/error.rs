//! Why there is no environment.

use std::io;
use std::path::PathBuf;

use crate::changes::ChangesError;
use crate::error::ErrorKind;
use crate::layers::LayersError;
use crate::lock::LockError;

#[derive(Debug, thiserror::Error)]
pub enum EnvironmentError {
    #[error("`{0}`, of which the setup's key is made, is not in the folder")]
    NoKeyFile(String),
    #[error("cannot read `{path}`, of which the setup's key is made")]
    ReadKeyFile {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("cannot look at the folder `{path}`")]
    Folder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the setup {ending}; nothing of it is kept{}", shown(.tail))]
    Failed {
        ending: String,
        /// The end of its output. HOSTILE: as the setup wrote it, without what is no text.
        tail: String,
        log: PathBuf,
    },
    #[error("a setup that is root needs an image of its own to be root of")]
    RootWithoutImage,
    #[error("cannot {what} `{path}`")]
    Make {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot read what the setup made")]
    Read(#[source] io::Error),
    #[error("there is no environment `{0}`")]
    Unknown(String),
    #[error("`{0}` begins the key of more than one environment")]
    Ambiguous(String),
    #[error("the environment `{0}` is in use")]
    InUse(String),
    #[error("the folder `{folder}` of this environment comes to another key now")]
    Changed { folder: PathBuf },
    #[error("only a setup of a folder can be made again")]
    NoFolder,
    #[error(transparent)]
    Layers(#[from] LayersError),
    #[error(transparent)]
    Remove(#[from] ChangesError),
    #[error(transparent)]
    Lock(#[from] LockError),
}

fn shown(tail: &str) -> String {
    match tail.trim_end() {
        "" => String::new(),
        tail => format!("\n{tail}"),
    }
}

impl EnvironmentError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoKeyFile(_) | Self::ReadKeyFile { .. } | Self::RootWithoutImage => {
                ErrorKind::Invalid
            }
            Self::Unknown(_) => ErrorKind::NotFound,
            Self::Ambiguous(_) | Self::NoFolder => ErrorKind::Invalid,
            Self::InUse(_) | Self::Changed { .. } => ErrorKind::Conflict,
            Self::Failed { .. } => ErrorKind::Unavailable,
            _ => ErrorKind::Internal,
        }
    }

    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoKeyFile(_) => {
                "`key` of `[environment]` names files of the folder, from its top".to_owned()
            }
            Self::Failed { log, .. } => format!(
                "all of its output is in `{}`; it reaches only what `network` of `[environment]` in \
                 your policy or `--setup-network` allows",
                log.display()
            ),
            Self::RootWithoutImage => "name an `image`, or leave out `root`".to_owned(),
            Self::Unknown(_) => "`ringfence environment list` lists them".to_owned(),
            Self::Ambiguous(_) => "give more of the key".to_owned(),
            Self::InUse(_) => {
                "it goes when the runs and sandboxes that stand on it are removed".to_owned()
            }
            Self::Changed { .. } => {
                "give the options that it was made with (`--policy`, `--image`, `--setup-network`), or run something in the folder first and verify what that made"
                    .to_owned()
            }
            _ => return None,
        })
    }
}
