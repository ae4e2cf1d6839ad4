//! Checks: commands that a host runs on what a run leaves, in sandboxes of their own, and what is
//! said of them.
//!
//! ```text
//!            base            base + patch          base + patch, protected files of the base
//! check ──▶  before          after                 exam (only where the patch touches such files)
//!               └── verdict ───┘└───────── what passes must pass both ways ──────┘
//! ```
//!
//! INVARIANT: the exit code of the host's own run decides. Numbers that a runner prints are shown
//! and never believed: whoever writes the code under test can print any number.

pub mod protected;
pub mod runners;
pub mod scripts;
pub mod shadowing;

use serde::{Deserialize, Serialize};

use crate::ByteText;
use crate::outcome::Outcome;
pub use runners::{Counts, From, Unit};

/// BOUND: checks of one run. Each costs one sandbox for each tree.
pub const MAX_CHECKS: usize = 32;
/// BOUND: bytes of a check's line of shell; more belongs into a script of the repository.
pub const MAX_COMMAND_BYTES: usize = 4096;
/// BOUND: protected paths that are listed; the rest is counted.
pub const MAX_TOUCHED: usize = 100;

/// Why a text is no check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    #[error("a check is a command, and this one is empty")]
    Empty,
    #[error("a check has at most {MAX_COMMAND_BYTES} bytes; put it into a script")]
    TooLong,
    #[error("a check is one line without characters that are not shown as they are")]
    Misleading,
    #[error("a name of a file cannot be put into a line of shell")]
    FileName,
}

/// What stands for the files of a task in a check of a plan.
const FILES: &str = "{files}";

/// A check of a plan, for the files of one task.
///
/// HOSTILE: whoever made the files chose their names. Each is one word to the shell, and no option
/// to the command.
pub fn for_files(text: &str, files: &[ByteText]) -> Result<String, CommandError> {
    if !text.contains(FILES) {
        return Ok(text.to_owned());
    }
    let mut words = String::new();
    for path in files {
        let path = std::str::from_utf8(path.as_bytes()).map_err(|_| CommandError::FileName)?;
        if path.contains(crate::text::misleads) {
            return Err(CommandError::FileName);
        }
        let before = if path.starts_with('-') { "./" } else { "" };
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-./+".contains(c);
        if !words.is_empty() {
            words.push(' ');
        }
        if path.chars().all(plain) {
            words.push_str(&format!("{before}{path}"))
        } else {
            words.push_str(&format!("'{before}{}'", path.replace('\'', "'\\''")))
        }
    }
    let filled = text.replace(FILES, &words);
    command(&filled).map(|()| filled)
}

/// Looks at the text of a check.
pub fn command(text: &str) -> Result<(), CommandError> {
    if text.trim().is_empty() {
        return Err(CommandError::Empty);
    }
    if text.len() > MAX_COMMAND_BYTES {
        return Err(CommandError::TooLong);
    }
    if text.contains(|c| crate::text::misleads(c) && c != '\t') {
        Err(CommandError::Misleading)
    } else {
        Ok(())
    }
}

/// Which files a check ran on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tree {
    /// The folder as it was.
    Base,
    /// The folder with the patch.
    Patched,
    /// The folder with the patch, but for protected files, which are as they were.
    Exam,
}

impl Tree {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Patched => "patched",
            Self::Exam => "exam",
        }
    }
}

/// One execution of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ran {
    pub outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    pub duration_ms: u64,
    /// Of both streams.
    pub output_bytes: u64,
    /// SHA-256 (hex) of the log: all of standard output, then all of standard error.
    pub log_sha256: String,
    /// The end of each stream, lossy where it is not text.
    pub stdout_tail: String,
    pub stderr_tail: String,
    /// What the runner printed, where it is known. A hint: nothing follows from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<Counts>,
    /// Processes that were still running when the command had ended.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub leftovers: u64,
    /// An earlier execution on the same files gave this, and it was not done again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cached: bool,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Ran {
    /// Whether it passed: it ended by itself, with 0.
    pub fn passed(&self) -> bool {
        self.outcome == Outcome::Exited && self.exit_code == Some(0)
    }

    /// Whether what the runner printed is at odds with how it ended.
    pub fn contradicts(&self) -> bool {
        self.counts.as_ref().is_some_and(|counts| {
            let failed = counts.failed > 0;
            failed == self.passed() && (failed || counts.passed > 0)
        })
    }

    /// How it ended, in a few words.
    pub fn ending(&self) -> String {
        match (self.outcome, self.exit_code, self.signal) {
            (Outcome::Exited, Some(code), _) => format!("exit {code}"),
            (Outcome::Signaled, _, Some(signal)) => format!("signal {signal}"),
            (outcome, ..) => outcome.as_str().replace('_', " "),
        }
    }
}

/// What comes of a check before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckVerdict {
    /// It failed before and passes now.
    Fixed,
    /// It passed before and passes now.
    Passes,
    /// It failed before and still does.
    StillFailing,
    /// It passed before and fails now.
    Broke,
    /// It ended differently on the same files.
    Flaky,
    /// It was not run to an end of its own making.
    NotRun,
}

impl CheckVerdict {
    /// The word in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Passes => "passes",
            Self::StillFailing => "still_failing",
            Self::Broke => "broke",
            Self::Flaky => "flaky",
            Self::NotRun => "not_run",
        }
    }

    /// Whether the files pass. What is flaky does not.
    pub fn holds(self) -> bool {
        matches!(self, Self::Fixed | Self::Passes)
    }

    /// Of executions before and after, in order of time. None of one side: it was not run.
    pub fn of(before: &[&Ran], after: &[&Ran]) -> Self {
        let agree = |runs: &[&Ran]| {
            runs.windows(2)
                .all(|two| two[0].passed() == two[1].passed())
        };
        let cut = |ran: &&&Ran| ran.outcome == Outcome::Cancelled;
        if before.iter().chain(after).any(|ran| cut(&ran)) {
            return Self::NotRun;
        }
        let (Some(first), Some(last)) = (before.first(), after.first()) else {
            return Self::NotRun;
        };
        if !agree(before) || !agree(after) {
            return Self::Flaky;
        }
        match (first.passed(), last.passed()) {
            (true, true) => Self::Passes,
            (false, true) => Self::Fixed,
            (true, false) => Self::Broke,
            (false, false) => Self::StillFailing,
        }
    }
}

/// One execution, and on what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Execution {
    pub tree: Tree,
    pub ran: Ran,
}

/// What came of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    /// A line of shell.
    pub command: String,
    pub verdict: CheckVerdict,
    /// The verdict with protected files as they were. Absent where the patch touches none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exam: Option<CheckVerdict>,
    /// In order of time; more than one of a tree where it was done again.
    pub executions: Vec<Execution>,
    /// For a person: why something was not run, or not believed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl CheckReport {
    /// Judges executions. `examined`: the patch touches protected files.
    pub fn judge(command: &str, executions: Vec<Execution>, examined: Examined) -> Self {
        let of = |tree: Tree| -> Vec<&Ran> {
            let own = executions.iter().filter(|own| own.tree == tree);
            own.map(|own| &own.ran).collect()
        };
        let verdict = CheckVerdict::of(&of(Tree::Base), &of(Tree::Patched));
        let exam = (examined == Examined::BothWays)
            .then(|| CheckVerdict::of(&of(Tree::Base), &of(Tree::Exam)));
        let mut notes = Vec::new();
        if executions.iter().any(|own| own.ran.contradicts()) {
            notes.push(
                "what the runner printed is at odds with how it ended; the exit code counts"
                    .to_owned(),
            );
        }
        let mut report = Self {
            command: command.to_owned(),
            verdict,
            exam,
            executions,
            notes,
        };
        if report.fell_silent() {
            let why =
                "its runner told of tests before, and tells of none now: that is not believed";
            report.notes.push(why.to_owned());
        }
        report
    }

    /// Whether it passes on what a reviewer would take, and not only with the agent's own exam.
    pub fn holds(&self) -> bool {
        let passes = self.verdict.holds() && self.exam.is_none_or(CheckVerdict::holds);
        passes && !self.fell_silent()
    }

    /// Whether a runner told of tests before, and tells of none any more.
    ///
    /// HOSTILE: what is under test can end the runner with 0 before the first test.
    fn fell_silent(&self) -> bool {
        let tells = |tree: Tree| {
            let counts = self.last(tree).and_then(|ran| ran.counts.as_ref());
            counts.is_some_and(|counts| counts.all() > 0)
        };
        let silent = |tree: Tree| self.last(tree).is_some_and(Ran::passed) && !tells(tree);
        tells(Tree::Base) && (silent(Tree::Patched) || (self.exam.is_some() && silent(Tree::Exam)))
    }

    /// Whether it passes with protected files as the agent left them, and only so.
    pub fn passes_own_exam_only(&self) -> bool {
        self.verdict.holds() && self.exam.is_some_and(|exam| !exam.holds())
    }

    fn shrank(&self) -> bool {
        let told = |tree: Tree| self.last(tree)?.counts.as_ref().map(Counts::all);
        let Some(before) = told(Tree::Base) else {
            return false;
        };
        let fewer = |tree: Tree| told(tree).unwrap_or_default() < before;
        fewer(Tree::Patched) || (self.exam.is_some() && fewer(Tree::Exam))
    }

    /// What came of it, in words of our own.
    pub fn words(&self) -> String {
        let side = |tree: Tree, when: &str| {
            let ran = self.last(tree)?;
            let cached = if ran.cached { ", known already" } else { "" };
            Some(format!("{} {when}{cached}", ran.ending()))
        };
        let mut parts: Vec<String> = vec![self.verdict.as_str().replace('_', " ")];
        parts.extend(side(Tree::Base, "before"));
        parts.extend(side(Tree::Patched, "now"));
        if let Some(exam) = self.exam {
            let exam = exam.as_str().replace('_', " ");
            parts.push(format!("with the base's own tests and settings: {exam}"));
            parts.extend(side(Tree::Exam, "with those"));
        }
        let mut words = parts.join("; ");
        if let Some(counts) = self.last(Tree::Patched).and_then(|ran| ran.counts.as_ref()) {
            words = format!("{words}; {counts}");
        }
        words
    }

    /// The last execution on a tree.
    pub fn last(&self, tree: Tree) -> Option<&Ran> {
        let own = self.executions.iter().rev().find(|own| own.tree == tree);
        own.map(|own| &own.ran)
    }
}

/// Whether a patch is looked at with protected files of the base as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Examined {
    AsPatched,
    BothWays,
}

/// All checks of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checks {
    pub reports: Vec<CheckReport>,
    /// Protected paths that the patch touches; see [`MAX_TOUCHED`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub touched: Vec<ByteText>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub touched_more: u64,
    /// What else steers a check: programs of the host, variables, policy. One hash for all.
    pub environment: String,
    /// From the first sandbox to the last verdict.
    pub duration_ms: u64,
    /// For a person.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Checks {
    pub fn is_none(&self) -> bool {
        self.reports.is_empty()
    }

    /// Whether a runner told of fewer tests than before, or of none any more. That is a hint, and
    /// enough for no rule to vouch for it.
    pub fn shrank(&self) -> bool {
        self.reports.iter().any(CheckReport::shrank)
    }

    /// These, and of earlier ones those that were not done again.
    #[must_use]
    pub fn over(mut self, earlier: Self) -> Self {
        let again = |old: &CheckReport| self.reports.iter().any(|new| new.command == old.command);
        let kept: Vec<CheckReport> = earlier
            .reports
            .into_iter()
            .filter(|old| !again(old))
            .collect();
        self.reports.splice(0..0, kept);
        self
    }

    /// Whether each check holds.
    pub fn hold(&self) -> bool {
        self.reports.iter().all(CheckReport::holds)
    }

    /// Whether somebody stopped one before its end: what it would have said nobody knows.
    pub fn was_cancelled(&self) -> bool {
        let mut executions = self.reports.iter().flat_map(|report| &report.executions);
        executions.any(|own| own.ran.outcome == Outcome::Cancelled)
    }
}

#[cfg(test)]
pub(crate) mod tests;
