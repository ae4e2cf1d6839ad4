//! What came of putting a campaign's work on a branch.

use std::path::PathBuf;

use ringfence_model::ByteText;
use ringfence_model::check::{CheckReport, Checks};
use serde::Serialize;

use crate::apply::{Clash, Placed};
use crate::ids::RunId;

/// BOUND: paths and checks that one line names; all are in the JSON.
const NAMED: usize = 3;
/// BOUND: characters of a check's command in a line; a list of files may be in it.
const COMMAND: usize = 60;

/// What came of all of it.
#[derive(Clone, Debug, Serialize)]
pub struct Merged {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repository: Option<PathBuf>,
    /// The commit that it stands on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// The full name of the branch at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tree: Option<String>,
    /// Whether anything was made.
    pub made: bool,
    pub taken: Vec<TakenTask>,
    pub left_out: Vec<LeftTask>,
    /// The checks of all on all of it.
    pub last: Checks,
    pub notes: Vec<String>,
}

/// A task whose work is on the branch.
#[derive(Clone, Debug, Serialize)]
pub struct TakenTask {
    pub number: u32,
    pub task: String,
    pub run: RunId,
    pub placed: Placed,
    /// Files that were joined with what others made of them.
    pub merged: Vec<ByteText>,
    pub checks: Checks,
}

/// Why a task is not on the branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    NoBundle,
    Held,
    Rejected,
    /// Its bundle is not the one that was approved.
    Changed,
    NoChange,
    /// It is in the way of another one.
    Clash,
    /// Its patch cannot be used.
    Refused,
    /// A check does not hold on top of the others.
    Checks,
}

impl Reason {
    /// For a person.
    pub fn words(self) -> &'static str {
        match self {
            Self::NoBundle => "there is no bundle that can be used",
            Self::Held => "nobody has approved it",
            Self::Rejected => "it was rejected",
            Self::Changed => "it is not what was approved",
            Self::NoChange => "there is nothing to take",
            Self::Clash => "it does not fit on top of the others",
            Self::Refused => "its patch cannot be used",
            Self::Checks => "it does not pass on top of the others",
        }
    }
}

/// A task whose work is not on the branch.
#[derive(Clone, Debug, Serialize)]
pub struct LeftTask {
    pub number: u32,
    pub task: String,
    pub run: RunId,
    pub reason: Reason,
    pub why: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clashes: Vec<Clash>,
    pub checks: Checks,
}

/// Where it does not fit, in a line.
pub(super) fn clashes_in_words(clashes: &[Clash]) -> String {
    let one = |clash: &Clash| {
        let lines = match clash.lines {
            Some(lines) if lines.last < lines.first => format!(" before line {}", lines.first),
            Some(lines) if lines.first == lines.last => format!(" line {}", lines.first),
            Some(lines) => format!(" lines {} to {}", lines.first, lines.last),
            None => String::new(),
        };
        let with: Vec<String> = clash.with.iter().map(u32::to_string).collect();
        let with = match &with[..] {
            [] => String::new(),
            [one] => format!(", with task {one}"),
            all => format!(", with tasks {}", all.join(" and ")),
        };
        format!("`{}`{lines}: {}{with}", clash.path, clash.why)
    };
    let mut words: Vec<String> = clashes.iter().take(NAMED).map(one).collect();
    if clashes.len() > NAMED {
        words.push(format!("and {} more", clashes.len() - NAMED));
    }
    words.join("; ")
}

/// A command as it is told to a person: its beginning, where it is long.
pub fn short(command: &str) -> String {
    let mut shown: String = command.chars().take(COMMAND).collect();
    if shown.len() < command.len() {
        shown.push('…');
    }
    shown
}

/// Which checks do not hold, in a line.
pub(super) fn checks_in_words(failed: &[&CheckReport]) -> String {
    let one = |report: &&CheckReport| format!("`{}`: {}", short(&report.command), report.words());
    let mut words: Vec<String> = failed.iter().take(NAMED).map(one).collect();
    if failed.len() > NAMED {
        words.push(format!("and {} more", failed.len() - NAMED));
    }
    words.join("; ")
}

/// What a task changed of what checks are done with. Each was looked at by itself without those
/// changes of its own; at the end the checks do without those of all of them.
pub(super) fn exam_in_words(task: &TakenTask) -> Option<String> {
    let touched = &task.checks.touched;
    let named = touched.iter().take(NAMED);
    let mut paths: Vec<String> = named.map(|path| format!("`{}`", path.to_text())).collect();
    let more = touched.len().saturating_sub(NAMED) as u64 + task.checks.touched_more;
    if more > 0 {
        paths.push(format!("and {more} more"));
    }
    let number = task.number;
    (!paths.is_empty()).then(|| {
        let paths = paths.join(", ");
        format!("task {number} changed what checks are done with, which the checks at the end put back: {paths}")
    })
}
