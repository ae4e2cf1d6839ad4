//! What the kernel showed of the processes inside: which programs ran, how they ended, and which
//! files they opened for writing.
//!
//! The guest collects these facts and sends them to the host; the host puts them into the journal.
//! No word of the agent is among them. A number of an exec is given by the guest, from 1, in the
//! order in which they were seen, for as long as a sandbox runs.

use serde::{Deserialize, Serialize};

use crate::ByteText;

/// One fact, as the guest sends it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "seen", rename_all = "snake_case")]
pub enum Observed {
    Program(Program),
    Exec(Exec),
    ExecFailed(ExecFailed),
    Exit(Exit),
    Write(Write),
    /// What a file held when somebody else than its last writer opened it for writing. The host
    /// compares versions to tell which exec made which line; it does not go into the journal.
    Version(Version),
    Refused(Refused),
}

/// A file that was executed. Each is told of once, after the first exec that names it, as soon as
/// it has been read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// What execs call it, from 1.
    pub program: u32,
    pub path: ByteText,
    pub size: u64,
    /// Absent where it could not be read, or changed while it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// A program that the kernel began to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    pub exec: u64,
    pub pid: i32,
    /// When the process began, in clock ticks since the machine did: with the pid, who it is.
    pub started: u64,
    /// The exec whose process, or a fork of it, became this one; absent for a command's first, and
    /// where the parent had ended before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<u64>,
    pub parent_pid: i32,
    /// The exec that this process was before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaces: Option<u64>,
    pub program: u32,
    /// The file that the kernel runs: for a script, its interpreter.
    pub exe: ByteText,
    /// What was asked for, where that is another name than `exe`: a script, a link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<ByteText>,
    pub argv: Vec<ByteText>,
    /// Where the list was cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argv_cut: Option<Cut>,
    pub cwd: ByteText,
    /// Read from the process as the kernel made it, before its first instruction. Otherwise (a
    /// debugger holds the process) it is what the process asked for.
    pub verified: bool,
}

/// The whole of something of which only a beginning is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    pub bytes: u64,
    /// Of the whole list, each argument followed by a zero byte.
    pub sha256: String,
}

/// An exec that the kernel refused. Looking a name up in `PATH` counts as one attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecFailed {
    /// The exec whose process tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<u64>,
    pub pid: i32,
    pub asked: ByteText,
    pub argv: Vec<ByteText>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argv_cut: Option<Cut>,
    pub cwd: ByteText,
    pub errno: i32,
}

/// The process of an exec ended. Neither code nor signal: how is not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    pub exec: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    pub duration_us: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_us: Option<u64>,
}

/// Something below the workspace was opened for writing, or its entry changed. The kernel was asked
/// for it; whether it agreed is not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// The exec whose process, or a fork of it, did it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec: Option<u64>,
    pub pid: i32,
    /// Relative to the workspace; links in it are followed as the kernel does.
    pub path: ByteText,
    #[serde(flatten)]
    pub what: Wrote,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Wrote {
    /// A file that was there was opened for writing.
    Opened,
    /// A file that was not there.
    Created,
    Truncated,
    /// `path` is the new name.
    Renamed {
        from: ByteText,
    },
    /// The two changed places.
    Exchanged {
        with: ByteText,
    },
    /// `path` is the new name of a file that has another.
    Linked {
        to: ByteText,
    },
    Symlinked,
    Removed,
    /// Its mode was changed, or an attribute, which may be a list of who has access.
    Mode,
    /// A FIFO, socket or device was made.
    MadeNode,
    /// One of these was asked for, and where cannot be told. `path` is the name as it was asked for,
    /// which may not be below the workspace.
    Unplaced,
}

/// What a file held between two writers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Relative to the workspace.
    pub path: ByteText,
    /// Who wrote it last before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec: Option<u64>,
    pub content: ByteText,
}

/// Something was not let through because it could not be observed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    pub pid: i32,
    pub operation: String,
    pub reason: String,
}
