//! Why a preset has no hosts.

use std::io;
use std::path::PathBuf;

use crate::error::ErrorKind;

/// What a preset stands for cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum PresetError {
    #[error("there is no preset `{0}`")]
    Unknown(String),
    #[error("`preset:{preset}` has no hosts: nothing is configured, and `PATH` has no {client}")]
    NoClient {
        preset: &'static str,
        client: &'static str,
    },
    #[error("`preset:{preset}` has no hosts: nothing that is configured is on a network")]
    NoHosts { preset: &'static str },
    #[error("`preset:{preset}` has no hosts: `{command}` did not say which it asks")]
    OddAnswer {
        preset: &'static str,
        command: String,
    },
    #[error("`{command}` did not answer within {seconds} seconds")]
    Silent { command: String, seconds: u64 },
    #[error("`{command}` said more than {bytes} bytes")]
    TooMuch { command: String, bytes: usize },
    #[error("cannot ask `{command}`")]
    Ask {
        command: String,
        #[source]
        source: io::Error,
    },
    #[error("cannot read `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("`{}` is not a regular file", .0.display())]
    NotAFile(PathBuf),
    #[error("`{}` is larger than {bytes} bytes", path.display())]
    TooLarge { path: PathBuf, bytes: u64 },
    #[error("`{}` is not text", .0.display())]
    NotText(PathBuf),
    /// INVARIANT: says where, not what: such a file may hold passwords.
    #[error("`{}` cannot be understood (line {line})", path.display())]
    Parse { path: PathBuf, line: u32 },
}

impl PresetError {
    /// Whose move it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unknown(_) => ErrorKind::Invalid,
            _ => ErrorKind::Unavailable,
        }
    }

    /// What to do next.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Unknown(_) => "`ringfence policy presets` lists them",
            _ => {
                "instead of the preset, name the hosts in your own policy file: \
                 `allow = [\"GET,HEAD index.example\"]` under `[network]` for the agent, `network = […]` under `[environment]` for a setup"
            }
        }
    }
}
