//! The one error at the engine's edge: what failed, whose move it is, and what to do next.

use std::io;
use std::path::PathBuf;

use ringfence_jail::launch::LaunchError;
use ringfence_jail::plan::PlanError;
use ringfence_model::limits::Limit;

use crate::changes::ChangesError;
use crate::client::ClientError;
use crate::durable::DurableError;
use crate::git::GitError;
use crate::home::HomeError;
use crate::ids::IdError;
use crate::journal::JournalError;
use crate::lock::LockError;
use crate::sandbox::SandboxError;
use crate::store::{RecoverError, StoreError};

/// Whose move it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The caller's: the request is wrong.
    Invalid,
    /// The caller's: it is not there.
    NotFound,
    /// The caller's: the state moved on.
    Conflict,
    /// A rule said no.
    Denied,
    /// The operator's: something needed is missing.
    Unavailable,
    /// Ours.
    Internal,
}

impl ErrorKind {
    /// The exit code of a command that failed so.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Invalid | Self::NotFound | Self::Conflict => 2,
            Self::Denied => 3,
            Self::Unavailable => 4,
            Self::Internal => 70,
        }
    }
}

/// What failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Home(#[from] HomeError),
    #[error(transparent)]
    Id(#[from] IdError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Recover(#[from] RecoverError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Durable(#[from] DurableError),
    #[error(transparent)]
    Git(#[from] GitError),
    #[error(transparent)]
    Changes(#[from] ChangesError),
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("there is no folder `{}`", .0.display())]
    NoFolder(PathBuf),
    #[error("cannot open the folder `{}`", path.display())]
    OpenFolder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the folder `{}` holds Ringfence's own state `{}`", folder.display(), home.display())]
    FolderHoldsHome { folder: PathBuf, home: PathBuf },
    #[error("`{pattern}` is not a pattern")]
    ParsePattern {
        pattern: String,
        #[source]
        source: globset::Error,
    },
    #[error("cannot make the workspace: {what} `{}`", path.display())]
    MakeWorkspace {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the limit `{}` is {grade} on this host and `--require-hard` was given", limit.as_str())]
    LimitNotHard { limit: Limit, grade: &'static str },
    #[error("{bytes} bytes of memory are too little: at least 16M")]
    TooLittleMemory { bytes: u64 },
    #[error("`{0}` hides nothing in the folder")]
    HidesNothing(String),
    #[error("there is nothing to run")]
    NoCommand,
    #[error("`{0}` is not a name of an environment variable")]
    BadVariable(String),
    #[error("run `{0}` is still running")]
    StillRunning(String),
    #[error("cannot read `{}`", path.display())]
    ReadFile {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot write `{}`", path.display())]
    WriteFile {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot print")]
    Print(#[source] io::Error),
    #[error("run `{run}` has no {what}")]
    NotKept { run: String, what: &'static str },
    #[error("cannot wait for the sandbox")]
    Wait(#[source] io::Error),
}

impl Error {
    /// Whose move it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoFolder(_) | Self::NotKept { .. } => ErrorKind::NotFound,
            Self::Store(error) => store_kind(error),
            Self::Lock(LockError::Held { .. }) | Self::StillRunning(_) => ErrorKind::Conflict,
            Self::FolderHoldsHome { .. }
            | Self::ParsePattern { .. }
            | Self::TooLittleMemory { .. }
            | Self::HidesNothing(_)
            | Self::NoCommand
            | Self::BadVariable(_)
            | Self::OpenFolder { .. }
            | Self::Sandbox(SandboxError::Launch(LaunchError::Plan(PlanError::OccupiedPath(_)))) => {
                ErrorKind::Invalid
            }
            Self::LimitNotHard { .. } => ErrorKind::Denied,
            Self::Home(_)
            | Self::Sandbox(_)
            | Self::MakeWorkspace { .. }
            | Self::Durable(_)
            | Self::Journal(_)
            | Self::WriteFile { .. }
            | Self::Changes(ChangesError::WritePatch { .. })
            | Self::Recover(_) => ErrorKind::Unavailable,
            _ => ErrorKind::Internal,
        }
    }

    /// What to do next, in one sentence.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NoCommand => "say what to run after `--`, or `--shell` for a shell",
            Self::TooLittleMemory { .. } => "sizes are in bytes unless a unit follows: `512M`",
            Self::NoFolder(_) => "give an existing folder with `--repo`",
            Self::FolderHoldsHome { .. } => {
                "set `RINGFENCE_HOME` to a directory outside of the folder"
            }
            Self::LimitNotHard { .. } => {
                "`ringfence doctor` shows how each limit is held here; `none` switches one off (`--disk none`), and without `--require-hard` it is watched"
            }
            Self::StillRunning(_) => "wait for it, or stop the `ringfence run` that drives it",
            Self::Sandbox(SandboxError::Launch(
                LaunchError::MakeNamespaces(_)
                | LaunchError::MapIds(_)
                | LaunchError::SetUp { .. }
                | LaunchError::IdmapMount { .. },
            )) => "`ringfence doctor` says what is missing on this host and how to get it",
            Self::Sandbox(SandboxError::NotProven { .. }) => {
                "nothing was run; please report this with the output of `ringfence doctor --json`"
            }
            _ => {
                let mut source: Option<&dyn std::error::Error> = Some(self);
                while let Some(error) = source {
                    let io = error.downcast_ref::<io::Error>();
                    let sql = error.downcast_ref::<rusqlite::Error>();
                    if io.is_some_and(|io| io.kind() == io::ErrorKind::StorageFull)
                        || sql.and_then(rusqlite::Error::sqlite_error_code)
                            == Some(rusqlite::ErrorCode::DiskFull)
                    {
                        return Some("the disk is full; `ringfence rm` removes runs that are not needed any more".to_owned());
                    }
                    source = error.source();
                }
                return None;
            }
        };
        Some(hint.to_owned())
    }
}

fn store_kind(error: &StoreError) -> ErrorKind {
    match error {
        StoreError::NotFound { .. } | StoreError::NoRuns => ErrorKind::NotFound,
        StoreError::Ambiguous { .. } | StoreError::CheckName { .. } => ErrorKind::Invalid,
        StoreError::NameTaken { .. } | StoreError::NotRunning { .. } => ErrorKind::Conflict,
        _ => ErrorKind::Unavailable,
    }
}
