//! How a run or an exec ended, and where a run is in its life.

use serde::{Deserialize, Serialize};

/// How the command ended. Each bound has its own outcome, so that none is a mystery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The command exited by itself.
    Exited,
    /// The command died by a signal that it was not sent by us.
    Signaled,
    /// The program was not found or could not be executed.
    NotStarted,
    TimedOut,
    OutOfMemory,
    TooManyProcesses,
    CpuLimit,
    FileTooLarge,
    DiskFull,
    OutputLimit,
    /// More happened than a journal may hold; nothing runs unrecorded.
    JournalFull,
    /// A command that stays had said that its turn was over, and was ended then.
    TurnEnded,
    /// Stopped by the user.
    Cancelled,
    /// The sandbox went away under the command.
    RuntimeLost,
}

impl Outcome {
    /// The word used in results, logs and on the terminal.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exited => "exited",
            Self::Signaled => "signaled",
            Self::NotStarted => "not_started",
            Self::TimedOut => "timed_out",
            Self::OutOfMemory => "out_of_memory",
            Self::TooManyProcesses => "too_many_processes",
            Self::CpuLimit => "cpu_limit",
            Self::FileTooLarge => "file_too_large",
            Self::DiskFull => "disk_full",
            Self::OutputLimit => "output_limit",
            Self::JournalFull => "journal_full",
            Self::TurnEnded => "turn_ended",
            Self::Cancelled => "cancelled",
            Self::RuntimeLost => "runtime_lost",
        }
    }
}

/// Where a run is in its life.
///
/// ```text
/// running ──▶ done        the command succeeded and the result is packed
///    │  └───▶ failed      the command or a bound failed it; the result is packed
///    │  └───▶ base_moved  as done or failed, but the folder moved under some changed paths
///    └──────▶ lost        the process that drove it died; its layer is kept
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    Running,
    Done,
    Failed,
    BaseMoved,
    Lost,
}

impl RunStatus {
    /// The word used in the store, in results and on the terminal.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::BaseMoved => "base_moved",
            Self::Lost => "lost",
        }
    }

    /// Reads the stored word back.
    pub fn parse(word: &str) -> Option<Self> {
        [
            Self::Running,
            Self::Done,
            Self::Failed,
            Self::BaseMoved,
            Self::Lost,
        ]
        .into_iter()
        .find(|status| status.as_str() == word)
    }
}
