//! What came of a run: for machines (`result.json`, `--json`) and for people (`summary.md`).

use std::fmt::Write as _;
use std::path::PathBuf;

use ringfence_model::ByteText;
use ringfence_model::attribution::Attribution;
use ringfence_model::changes::{Change, ChangeKind, Omitted, WhyOmitted};
use ringfence_model::limits::{Graded, HumanBytes, Limit};
use ringfence_model::outcome::{Outcome, RunStatus};
use ringfence_model::wire::{Leftover, Wall};
use serde::{Deserialize, Serialize};

use crate::client::Stream;
use crate::ids::RunId;
use crate::output::Spool;
use crate::store::{FinishedRun, bundle_path};

/// BOUND: lines of a list in the summary; the whole list is in the result.
const LISTED: usize = 20;

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
    pub(super) fn to_json(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec_pretty(self).expect("plain data always serialises");
        json.push(b'\n');
        json
    }

    pub(super) fn finished(&self, ended_us: i64) -> FinishedRun {
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
            detail: serde_json::Map::new(),
        }
    }

    /// How the command ended, in words.
    pub fn ending(&self) -> String {
        match (self.outcome, self.exit_code, self.signal) {
            (Outcome::NotStarted, ..) => match &self.not_started {
                Some(why) => format!("was not started: {why}"),
                None => "was not started".to_owned(),
            },
            (Outcome::Exited, Some(code), _) => format!("exited with {code}"),
            (Outcome::Signaled, _, Some(signal)) => format!("died by signal {signal}"),
            (outcome, ..) => in_words(outcome).to_owned(),
        }
    }

    /// `summary.md`, for a person.
    pub fn summary(&self) -> String {
        let mut text = String::new();
        let argv: Vec<String> = self.argv.iter().map(ByteText::to_text).collect();
        let _ = writeln!(text, "# Run {}\n", self.run);
        let _ = writeln!(text, "- command: `{}`", argv.join(" ").replace('`', "'"));
        let _ = writeln!(text, "- folder: `{}`", self.folder);
        let _ = writeln!(
            text,
            "- status: {}; the command {} after {}",
            self.status.as_str(),
            self.ending(),
            Seconds(self.duration_ms)
        );
        let _ = writeln!(
            text,
            "- changed files: {}, +{} −{} lines",
            self.changed_files.len(),
            self.insertions,
            self.deletions
        );
        let _ = writeln!(
            text,
            "- before the start, {} things that must fail were tried from inside, and failed",
            self.probes
        );
        section(
            &mut text,
            "Changed files",
            self.changes.iter().map(line),
            self.changes.len(),
        );
        if let Some(evidence) = &self.evidence {
            section(
                &mut text,
                "Changed, and no write that was observed explains it: the evidence is incomplete",
                evidence.unexplained.iter().map(|path| format!("`{path}`")),
                usize::try_from(evidence.unexplained_count).unwrap_or(usize::MAX),
            );
        }
        section(
            &mut text,
            "Left behind",
            self.omitted.iter().map(|o| {
                format!(
                    "`{}`: {} ({}, {} files)",
                    o.path,
                    why(o.why),
                    HumanBytes(o.size),
                    o.files
                )
            }),
            self.omitted.len(),
        );
        section(
            &mut text,
            "Limits met",
            self.limit_hits
                .iter()
                .map(|(limit, detail)| format!("{}: {detail}", limit.as_str())),
            self.limit_hits.len(),
        );
        section(
            &mut text,
            "Left running at the end, and ended",
            self.leftovers
                .iter()
                .map(|l| format!("{}: `{}`", l.pid, l.command)),
            self.leftovers.len(),
        );
        section(
            &mut text,
            "Notes",
            self.notes.iter().cloned(),
            self.notes.len(),
        );
        text
    }
}

fn section(text: &mut String, title: &str, lines: impl Iterator<Item = String>, count: usize) {
    if count == 0 {
        return;
    }
    let _ = writeln!(text, "\n## {title}\n");
    for line in lines.take(LISTED) {
        let _ = writeln!(text, "- {line}");
    }
    if count > LISTED {
        let _ = writeln!(text, "- … and {} more", count - LISTED);
    }
}

/// One change in one line.
fn line(change: &Change) -> String {
    match &change.kind {
        ChangeKind::Added => format!("added `{}`", change.path),
        ChangeKind::Modified => format!("modified `{}`", change.path),
        ChangeKind::Deleted => format!("deleted `{}`", change.path),
        ChangeKind::Renamed { from } => format!("renamed `{from}` to `{}`", change.path),
    }
}

/// How a command ended that did not end by itself.
fn in_words(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Exited | Outcome::Signaled => "ended",
        Outcome::NotStarted => "was not started",
        Outcome::TimedOut => "was stopped at its time limit",
        Outcome::OutOfMemory => "was stopped at its memory limit",
        Outcome::TooManyProcesses => "could start no more processes",
        Outcome::CpuLimit => "was stopped at its limit of processor time",
        Outcome::FileTooLarge => "met its limit of file size",
        Outcome::DiskFull => "was stopped at its disk limit, or the disk is full",
        Outcome::OutputLimit => "was stopped at its output limit",
        Outcome::JournalFull => "was stopped when its journal was full",
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
        WhyOmitted::Special => "a FIFO, socket or device",
        WhyOmitted::TooLarge => "too large for a patch",
        WhyOmitted::NotCarried => "git cannot carry it",
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
