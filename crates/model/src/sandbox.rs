//! Where a sandbox is in its life, and what is said to the process that keeps it.

use crate::policy::network::Rules;
use serde::{Deserialize, Serialize};

/// ```text
/// making ──▶ ready ──▶ running ──▶ stopped     by a word, idle for too long
///              ▲           │  └──▶ ready       nothing ran in it when its layer was sealed
///              │           └─────▶ lost        the execution died; the workspace is whole
///              └── (any of them, by the next exec or `resume`)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxState {
    /// Its row is there, its directory may not be.
    Making,
    /// A workspace without an execution.
    Ready,
    Running,
    Stopped,
    /// The execution went without being asked to.
    Lost,
    /// Past its time; waits for `gc`.
    Expired,
}

impl SandboxState {
    const ALL: [Self; 6] = [
        Self::Making,
        Self::Ready,
        Self::Running,
        Self::Stopped,
        Self::Lost,
        Self::Expired,
    ];

    /// The word used in the store and on the terminal.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Making => "making",
            Self::Ready => "ready",
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::Lost => "lost",
            Self::Expired => "expired",
        }
    }

    /// Reads the stored word back.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

/// Why an execution ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// By a word: `stop`.
    Asked,
    /// Nothing was asked of it for too long.
    Idle,
    /// Past its time.
    Expired,
    /// Nothing ran in it, and its layer was to be sealed.
    Sealed,
    /// Its workspace went back to an earlier state.
    RolledBack,
    /// Another execution took its place.
    Replaced,
    /// Its workspace was removed.
    Removed,
    /// What runs in the background wrote more than its bound.
    DiskFull,
    /// More happened in it than a journal may hold.
    JournalFull,
    /// The sandbox died under its keeper.
    Died,
}

impl EndReason {
    /// For a person.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Asked => "stopped",
            Self::Idle => "idle for too long",
            Self::Expired => "past its time",
            Self::Sealed => "sealed",
            Self::RolledBack => "rolled back",
            Self::Replaced => "replaced",
            Self::Removed => "removed",
            Self::DiskFull => "over its disk bound",
            Self::JournalFull => "its journal was full",
            Self::Died => "died",
        }
    }
}

/// The language of this version's keepers. A keeper outlives an update of the program: whoever
/// speaks another one is told so, and can still end it.
pub const PROTOCOL: u32 = 1;

/// What is asked of a keeper, on stream 0. All other streams go through to the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case")]
pub enum Call {
    /// First: who is asked for. Another incarnation than the named one refuses.
    Hello {
        protocol: u32,
        purpose: Purpose,
        incarnation: Option<u64>,
    },
    Describe,
    /// Everything inside stands still until `Thaw`, or until this connection closes.
    Freeze,
    Thaw,
    /// End the execution, and this keeper, if nothing runs in it.
    EndIfIdle,
    End {
        reason: EndReason,
    },
    /// These rules of the network from now on.
    Network {
        rules: Rules,
    },
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// To run or change something: the execution is in use while the connection lives.
    Work,
    /// To look or to rule.
    Rule,
}

/// What a keeper answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    Welcome {
        incarnation: u64,
    },
    /// Another incarnation than the one that was asked for.
    Other {
        incarnation: u64,
    },
    /// It speaks another language.
    OtherProtocol {
        protocol: u32,
    },
    Described(Described),
    Done,
    /// Everything goes on; so many threads had run meanwhile.
    Thawed {
        ran: u64,
    },
    /// The execution is over; so many processes ended with it.
    Ended {
        processes: u64,
    },
    /// Something runs in it.
    Busy,
    /// The new rules hold; so many connections were closed by them.
    Changed {
        closed: u64,
    },
    Failed {
        reason: String,
    },
}

/// What a keeper knows of its execution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Described {
    pub incarnation: u64,
    /// Commands under way.
    pub execs: u64,
    /// Processes inside, without our own.
    pub processes: u64,
    pub memory_bytes: u64,
    /// Refusals of the kernel since the start.
    pub memory_kills: u64,
    pub process_refusals: u64,
    pub idle_ms: u64,
}
