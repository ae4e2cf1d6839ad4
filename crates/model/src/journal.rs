//! The journal: one closed enum of facts about a run, one JSON line each, chained by hash.
//!
//! Line `n` carries the SHA-256 of line `n - 1` as it stands in the file, so that a byte that was
//! flipped and a line that was dropped, added or swapped all break the chain. Whatever could end a
//! line early, in any reader's eyes, is escaped, so nothing an agent chooses can forge one.

mod chain;

use serde::{Deserialize, Serialize};

pub use chain::{Chain, ChainError, Lines};

use crate::ByteText;
use crate::check::Tree;
use crate::gate::Traffic;
use crate::limits::{Graded, Limit};
use crate::observed::{Exec, ExecFailed, Exit, Program, Refused, Write};
use crate::outcome::{Outcome, RunStatus};
use crate::sandbox::EndReason;

/// The hash that the first line names as its predecessor.
pub const GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// One line of a journal of runs, or of another chain of facts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line<E = Event> {
    pub sequence: u64,
    /// Microseconds since the epoch, by the host's clock.
    pub time_us: i64,
    /// SHA-256 (hex) of the line before, without its newline.
    pub previous: String,
    pub event: E,
}

/// What can happen. Later versions add to it and never change what is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Event {
    /// What was asked.
    Task {
        run: String,
        argv: Vec<ByteText>,
        folder: ByteText,
        version: String,
    },
    /// What the backend holds the sandbox to.
    Enforced {
        backend: String,
        identity: String,
        limits: Vec<Graded>,
        /// Absent where nothing but the usual is held, and in journals of earlier versions.
        #[serde(default, skip_serializing_if = "FilesHeld::is_plain")]
        files: FilesHeld,
        /// The digest of the image that is its root. Absent: the host's own system.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        image: Option<String>,
    },
    /// What the sandbox showed from inside before the agent started.
    Proof { probes: Vec<ProbeResult> },
    /// A command was given to the sandbox.
    Command { argv: Vec<ByteText> },
    /// A file that was executed for the first time.
    Program(Program),
    /// A program began to run.
    Exec(Exec),
    /// A program was asked for and not run.
    ExecFailed(ExecFailed),
    /// The process of an exec ended.
    Exit(Exit),
    /// A process opened something for writing, or changed an entry.
    Write(Write),
    /// Something was not let through.
    Denial(Refused),
    /// Something asked the gate for the network, and this came of it.
    Network(Traffic),
    /// The gate is gone before its sandbox: nothing can be reached any more.
    GateLost { detail: String },
    /// A bound was met.
    Limit { limit: Limit, detail: String },
    /// The command ended.
    CommandEnded {
        outcome: Outcome,
        code: Option<i32>,
        signal: Option<i32>,
        duration_ms: u64,
        leftovers: u64,
        /// What its processes used, where that is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        cpu_ms: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        peak_bytes: Option<u64>,
    },
    /// What changed was read from the layer.
    Seal {
        changed: u64,
        omitted: u64,
        patch_sha256: String,
    },
    /// A check of the host's began, in a sandbox of its own.
    CheckBegan {
        /// Its place in the list of checks, from 0.
        check: u64,
        tree: Tree,
        command: String,
    },
    /// It asked for the network, which is its own and not the run's, and this came of it.
    CheckNetwork {
        check: u64,
        tree: Tree,
        traffic: Traffic,
    },
    /// The gate of a check is gone before its sandbox.
    CheckGateLost {
        check: u64,
        tree: Tree,
        detail: String,
    },
    /// It ended, or an earlier execution on the same files was taken for it.
    CheckEnded {
        check: u64,
        tree: Tree,
        outcome: Outcome,
        code: Option<i32>,
        signal: Option<i32>,
        duration_ms: u64,
        /// Of all that it printed; see [`crate::check::Ran`].
        log_sha256: String,
        cached: bool,
    },
    /// The agent is started, or told to go on, within the run's one command.
    IterationBegan {
        /// From 1.
        iteration: u32,
        most: u32,
    },
    /// A check ran for the loop: before the agent (iteration 0), or on what an iteration left.
    IterationCheck {
        iteration: u32,
        check: u64,
        tree: Tree,
        outcome: Outcome,
        code: Option<i32>,
        signal: Option<i32>,
        duration_ms: u64,
        /// Of all that it printed; see [`crate::check::Ran`].
        log_sha256: String,
        cached: bool,
    },
    /// An iteration is over, and this is the patch of what it left.
    IterationEnded {
        iteration: u32,
        outcome: Outcome,
        code: Option<i32>,
        signal: Option<i32>,
        duration_ms: u64,
        changed: u64,
        patch_sha256: String,
    },
    /// An execution of a sandbox that lasts is over.
    ExecutionEnded { reason: EndReason, processes: u64 },
    /// The run is over.
    End { status: RunStatus },
}

/// What the kernel holds of the files, besides that nothing but the workspace, the home and
/// temporary files can be written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilesHeld {
    /// Parts of the workspace that may be written inside one that may not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writable: Vec<ByteText>,
    /// Parts of the workspace at which nothing can change; `.` is all of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub read_only: Vec<ByteText>,
    /// Paths of the host that are visible. What is written there is in no change set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<MountHeld>,
}

impl FilesHeld {
    /// Whether there is nothing to say.
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }
}

/// A path of the host that is visible inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MountHeld {
    pub host: ByteText,
    pub inside: ByteText,
    pub writable: bool,
}

/// CPU time and peak memory of a command, where there is a measure of them: whatever ran had
/// memory.
pub fn measured(cpu_ms: u64, peak_bytes: u64) -> (Option<u64>, Option<u64>) {
    let measured = peak_bytes > 0;
    (measured.then_some(cpu_ms), measured.then_some(peak_bytes))
}

fn yes() -> bool {
    true
}

fn is_true(flag: &bool) -> bool {
    *flag
}

/// One thing that was tried from inside, and whether the sandbox stood.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeResult {
    pub probe: String,
    pub held: bool,
    /// False: this backend is known not to hold it, which does no harm. It is written down as such.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub tried: bool,
    pub detail: String,
}

impl ProbeResult {
    /// What a backend may be known to show: pid 1 has no secret in its environment, and where its
    /// memory is says nothing of what is in it.
    pub const HARMLESS: [&str; 2] = ["read_pid1_environ", "read_pid1_maps"];

    /// Whether it was left out as harmless. Nothing else can be.
    pub fn is_left_out(&self) -> bool {
        !self.tried && Self::HARMLESS.contains(&self.probe.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_harmless_can_be_left_out_of_a_proof() {
        for (probe, tried, left_out) in [
            ("read_pid1_maps", false, true),
            ("read_pid1_maps", true, false),
            ("read_pid1_mem", false, false),
            ("read_host_canary", false, false),
        ] {
            let result = ProbeResult {
                probe: probe.to_owned(),
                held: false,
                tried,
                detail: String::new(),
            };
            assert_eq!(result.is_left_out(), left_out, "{probe} {tried}");
            let text = serde_json::to_string(&result).unwrap();
            assert_eq!(text.contains("tried"), !tried, "{text}");
            assert_eq!(serde_json::from_str::<ProbeResult>(&text).unwrap(), result);
        }
    }
}
