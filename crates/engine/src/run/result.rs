//! What came of a run, for machines: `result.json`, `--json`.

use std::path::PathBuf;

use ringfence_model::ByteText;
use ringfence_model::agent::Usage;
use ringfence_model::attribution::Attribution;
use ringfence_model::bundle::EnvironmentFacts;
use ringfence_model::changes::{Change, Omitted, WhyOmitted};
use ringfence_model::check::Checks;
use ringfence_model::claim::Claim;
use ringfence_model::flag::Flag;
use ringfence_model::limits::{Graded, Limit};
use ringfence_model::outcome::{Outcome, RunStatus};
use ringfence_model::rounds::{Iteration, Looped};
use ringfence_model::wire::{Leftover, Wall};
use serde::{Deserialize, Serialize};

use super::observed::Observations;
use super::summary;
use crate::attend::Attended;
use crate::client::Stream;
use crate::commits::KeptCommits;
use crate::ids::RunId;
use crate::output::Spool;
use crate::store::{FinishedRun, bundle_path};

/// Where the store has the hash of the journal's last line, for as long as the run is known.
pub(crate) const JOURNAL_HEAD: &str = "journal_head";

/// Where the store has what came of the loop.
pub const ROUNDS: &str = "rounds";

/// Everything about a run that is over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunResult {
    pub run: RunId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub status: RunStatus,
    pub outcome: Outcome,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_started: Option<String>,
    pub argv: Vec<ByteText>,
    pub folder: ByteText,
    pub changed_files: Vec<ByteText>,
    pub changes: Vec<Change>,
    pub omitted: Vec<Omitted>,
    pub omitted_truncated: bool,
    pub insertions: u64,
    pub deletions: u64,
    pub patch: PathBuf,
    pub patch_sha256: String,
    pub bundle: PathBuf,
    /// The command's own time.
    pub duration_ms: u64,
    /// From the request to the packed result.
    pub total_ms: u64,
    pub cpu_ms: u64,
    pub peak_bytes: u64,
    pub stdout: OutputResult,
    pub stderr: OutputResult,
    pub leftovers: Vec<Leftover>,
    pub limits: Vec<Graded>,
    pub limit_hits: Vec<(Limit, String)>,
    pub wall: Wall,
    /// How many things were tried from inside before the start, all in vain.
    pub probes: usize,
    pub journal_head: String,
    /// Who wrote what changed. Absent from results of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Attribution>,
    pub notes: Vec<String>,
    /// For each of `changes`: lines added and removed. Shorter where the patch was too large to be
    /// read again.
    #[serde(default)]
    pub line_counts: Vec<(u64, u64)>,
    /// What the agent says, in its result file; nothing of it is taken for a fact.
    #[serde(default)]
    pub claimed: Option<Claim>,
    /// What was seen.
    #[serde(default)]
    pub observed: Observations,
    /// What came of the host's own checks. Absent where none was asked for.
    #[serde(default, skip_serializing_if = "Checks::is_none")]
    pub checks: Checks,
    /// What came of the loop. Absent where nobody asked for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<Looped>,
    /// What to look at, the worst first.
    #[serde(default)]
    pub flags: Vec<Flag>,
    /// What it stood on besides its folder.
    #[serde(default, skip_serializing_if = "EnvironmentFacts::is_plain")]
    pub environment: EnvironmentFacts,
    /// The commits that the agent made. Absent where there are none, or they could not be kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commits: Option<KeptCommits>,
    /// What the agent says that it used, where it was one by name; nothing of it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// One output stream: how much, and where all of it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OutputResult {
    pub bytes: u64,
    /// Head and tail, lossy where it is not text.
    pub head: String,
    pub tail: String,
    pub truncated: bool,
    pub file: PathBuf,
}

impl OutputResult {
    pub(super) fn of(spool: &Spool, stream: Stream, file: PathBuf) -> Self {
        let capture = spool.stream(stream);
        Self {
            bytes: capture.total(),
            head: String::from_utf8_lossy(capture.head()).into_owned(),
            tail: String::from_utf8_lossy(&capture.tail()).into_owned(),
            truncated: capture.is_truncated(),
            file,
        }
    }
}

impl RunResult {
    pub(crate) fn to_json(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec_pretty(self).expect("plain data always serialises");
        json.push(b'\n');
        json
    }

    pub(crate) fn finished(&self, ended_us: i64) -> FinishedRun {
        FinishedRun {
            status: self.status,
            outcome: Some(self.outcome),
            exit_code: self.exit_code,
            signal: self.signal,
            ended_us,
            duration_ms: self.duration_ms,
            changed_files: self.changed_files.len() as u64,
            insertions: self.insertions,
            deletions: self.deletions,
            bundle: Some(bundle_path(self.run)),
            detail: serde_json::Map::from_iter(
                [(JOURNAL_HEAD.to_owned(), self.journal_head.as_str().into())]
                    .into_iter()
                    .chain(self.rounds.as_ref().map(in_row)),
            ),
        }
    }

    /// How the command ended, in words.
    pub fn ending(&self) -> String {
        if let Some(last) = self.out_of_time() {
            let ended = ended(last.outcome, last.exit_code, last.signal);
            return format!("was not sent back because the time of the run was over; it {ended}");
        }
        match (self.outcome, &self.not_started) {
            (Outcome::NotStarted, Some(why)) => format!("was not started: {why}"),
            (outcome, _) => ended(outcome, self.exit_code, self.signal),
        }
    }

    /// The last iteration, where the time of the run was over after it and not during it: its checks
    /// took what was left, and nobody stopped the command.
    pub fn out_of_time(&self) -> Option<&Iteration> {
        let last = self.rounds.as_ref()?.iterations.last()?;
        let between = self.outcome == Outcome::TimedOut && last.outcome != Outcome::TimedOut;
        between.then_some(last)
    }

    /// `summary.md`, for a person.
    pub fn summary(&self) -> String {
        summary::write(self)
    }
}

/// What the store has of a loop: its outcome, and how many iterations it took.
fn in_row(looped: &Looped) -> (String, serde_json::Value) {
    let value = serde_json::json!({
        "outcome": looped.outcome,
        "iterations": looped.iterations.len(),
        "most": looped.most,
    });
    (ROUNDS.to_owned(), value)
}

/// How a setup ended, in words.
pub(crate) fn ending(attended: &Attended) -> String {
    ended(attended.outcome, attended.code, attended.signal)
}

fn ended(outcome: Outcome, code: Option<i32>, signal: Option<i32>) -> String {
    match (outcome, code, signal) {
        (Outcome::Exited, Some(code), _) => format!("exited with {code}"),
        (Outcome::Signaled, _, Some(signal)) => format!("died by signal {signal}"),
        (outcome, ..) => in_words(outcome).to_owned(),
    }
}

/// How a command ended that did not end by itself.
fn in_words(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Exited | Outcome::Signaled => "ended",
        Outcome::NotStarted => "was not started",
        Outcome::TimedOut => "was stopped at its time limit",
        Outcome::OutOfMemory => "was stopped at its memory limit",
        Outcome::TooManyProcesses => "met its limit of processes",
        Outcome::CpuLimit => "was stopped at its limit of processor time",
        Outcome::FileTooLarge => "met its limit of file size",
        Outcome::DiskFull => "was stopped at its disk limit, or the disk is full",
        Outcome::OutputLimit => "was stopped at its output limit",
        Outcome::JournalFull => "was stopped when its journal was full",
        Outcome::TurnEnded => "said that its turn was over, and was ended",
        Outcome::Cancelled => "was stopped by you",
        Outcome::RuntimeLost => "was lost with its sandbox",
    }
}

/// Why something stays behind, in words.
pub fn why(why: WhyOmitted) -> &'static str {
    match why {
        WhyOmitted::Ignored => "ignored",
        WhyOmitted::Hidden => "hidden",
        WhyOmitted::NotStaged => "the repository has a file there that was not staged",
        WhyOmitted::ReadOnly => "the policy lets nobody write there",
        WhyOmitted::NotExported => "the policy does not export it",
        WhyOmitted::Environment => "the setup made it",
        WhyOmitted::Secret => "it holds the value of a secret",
        WhyOmitted::Special => "a FIFO, socket or device",
        WhyOmitted::TooLarge => "too large for a patch",
        WhyOmitted::NotCarried => "git cannot carry it",
        WhyOmitted::GitDirectory => "would be a git directory",
        WhyOmitted::BaseMoved => "the folder changed there during the run",
        WhyOmitted::Unreadable => "not readable",
    }
}

/// A duration for a person.
#[derive(Clone, Copy, Debug)]
pub struct Seconds(pub u64);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            ms if ms < 1000 => write!(f, "{ms} ms"),
            ms if ms < 60_000 => write!(f, "{:.1} s", ms as f64 / 1000.0),
            ms => write!(f, "{} min {} s", ms / 60_000, ms / 1000 % 60),
        }
    }
}
