//! Why a patch is held, and when a rule of the host may approve it without a person.
//!
//! INVARIANT: a rule approves only kinds of change that [`routine`] lists, and of those only what each of its
//! conditions allows; never a patch with a serious
//! flag, never on evidence that is incomplete, and never where checks are wanted and there are none.
//! What is not known counts against it.

pub mod routine;

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::ByteText;
use crate::changes::{Change, ChangeKind, Omitted, WhyOmitted};
use crate::flag::{Flag, FlagKind, Severity};
use crate::outcome::RunStatus;
use crate::policy::glob::Globs;
use crate::policy::network::Origin;
use crate::policy::{Bound, Line};
use crate::verdict::{Hold, HoldKind};

/// BOUND: flags that are named; all are in the result.
const NAMED: usize = 3;

/// `[review]`, as far as it is about holding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// Absent: the usual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<Bound>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Bound>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Bound>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_approve: Option<AutoApprove>,
}

impl Holding {
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// Bounds where a policy says none.
#[derive(Clone, Copy, Debug)]
pub struct Usual {
    pub lines: u64,
    pub files: u64,
    pub bytes: u64,
}

/// BOUND: what a person reads with attention in one go: some hundreds of lines.
pub const USUAL: Usual = Usual {
    lines: 1000,
    files: 100,
    bytes: 1 << 20,
};

/// When a patch needs no person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutoApprove {
    pub checks: ChecksWanted,
    pub max_lines: u64,
    pub max_files: u64,
    pub flags: Tolerated,
    /// Patterns of paths that may change, of those that a rule may approve at all. `None`: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paths: Option<Vec<Line>>,
    pub from: Origin,
}

/// Which checks must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChecksWanted {
    /// There is one at least, and each holds.
    All,
    /// None need be there; one that does not hold counts all the same.
    None,
}

/// Which flags do not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tolerated {
    None,
    /// Those that are only good to know.
    Low,
}

impl fmt::Display for AutoApprove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let checks = match self.checks {
            ChecksWanted::All => "all",
            ChecksWanted::None => "none",
        };
        let flags = match self.flags {
            Tolerated::None => "none",
            Tolerated::Low => "low",
        };
        write!(
            f,
            "auto_approve = {{ checks = \"{checks}\", max_lines = {}, max_files = {}, flags = \"{flags}\"",
            self.max_lines, self.max_files
        )?;
        if let Some(paths) = &self.paths {
            let paths: Vec<String> = paths
                .iter()
                .map(|path| format!("{:?}", path.text))
                .collect();
            write!(f, ", paths = [{}]", paths.join(", "))?;
        }
        write!(f, " }} ({})", self.from)
    }
}

/// What is known of a run that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    pub status: RunStatus,
    pub lines: u64,
    pub bytes: u64,
    pub changes: &'a [Change],
    pub omitted: &'a [Omitted],
    /// Changed files that are programs by their content, or could not be looked at.
    pub programs: &'a [ByteText],
    /// How many paths change.
    pub files: u64,
    pub flags: &'a [Flag],
    pub checks: ChecksSeen,
    /// Every change is explained by a write that was observed.
    pub evidence_complete: bool,
}

/// What came of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksSeen {
    Absent,
    Hold,
    Fail,
}

/// Why a run is held, the gravest first. There is always a reason.
pub fn holds(holding: &Holding, ended: &Ended<'_>) -> Vec<Hold> {
    let mut holds = Vec::new();
    let mut add = |kind, detail: String| holds.push(Hold { kind, detail });
    let risky: Vec<&Flag> = ended.flags.iter().filter(|flag| is_risky(flag)).collect();
    if !risky.is_empty() {
        let named = risky.iter().take(NAMED);
        let named = named.map(|flag| format!("{} ({})", flag.kind.as_str(), flag.message));
        let mut named: Vec<String> = named.collect();
        if risky.len() > NAMED {
            named.push(format!("and {} more", risky.len() - NAMED));
        }
        add(HoldKind::Risky, named.join(", "));
    }
    let sizes = [
        ("lines", ended.lines, &holding.lines, USUAL.lines),
        ("files", ended.files, &holding.files, USUAL.files),
        ("bytes", ended.bytes, &holding.bytes, USUAL.bytes),
    ];
    for (what, has, bound, usual) in sizes {
        let most = bound.as_ref().map_or(Some(usual), |bound| bound.most);
        if let Some(most) = most.filter(|most| has > *most) {
            add(HoldKind::TooLarge, format!("{has} {what}, at most {most}"));
        }
    }
    match ended.status {
        RunStatus::Done => {}
        RunStatus::BaseMoved => {
            let detail = "the folder changed during the run, and some changes are left out";
            add(HoldKind::BaseMoved, detail.to_owned());
        }
        _ => add(
            HoldKind::Failed,
            "the command failed, or met a bound".to_owned(),
        ),
    }
    if ended.checks == ChecksSeen::Fail {
        add(HoldKind::Checks, "not all checks hold".to_owned());
    }
    if holds.is_empty() {
        let detail = match &holding.auto_approve {
            None => String::new(),
            Some(rule) => approve(rule, ended).err().unwrap_or_default(),
        };
        let kind = HoldKind::NotReviewed;
        holds.push(Hold { kind, detail });
    }
    holds
}

/// Flags of things that harm whoever takes the patch, even where they are only a warning.
fn is_risky(flag: &Flag) -> bool {
    let kinds = [
        FlagKind::RunsOnReview,
        FlagKind::LinkLeavesTree,
        FlagKind::ChecksWeakened,
        FlagKind::SecretAdded,
        FlagKind::CanaryAdded,
        FlagKind::HiddenText,
        FlagKind::MadeExecutable,
    ];
    flag.severity == Severity::Serious
        || (flag.severity == Severity::Warning && kinds.contains(&flag.kind))
}

/// Whether the host's rule approves; else why not. Gives the rule's own words.
pub fn auto_approve(holding: &Holding, ended: &Ended<'_>) -> Option<String> {
    let rule = holding.auto_approve.as_ref()?;
    let held = holds(holding, ended);
    let only_unread = held.iter().all(|hold| hold.kind == HoldKind::NotReviewed);
    (only_unread && approve(rule, ended).is_ok()).then(|| rule.to_string())
}

fn approve(rule: &AutoApprove, ended: &Ended<'_>) -> Result<(), String> {
    let no = |why: String| Err(format!("the rule of {} does not apply: {why}", rule.from));
    let worst = ended.flags.iter().map(|flag| flag.severity).max();
    match (worst, rule.flags) {
        (None, _) | (Some(Severity::Info), Tolerated::Low) => {}
        (Some(worst), _) => return no(format!("there are flags, the worst is {}", worst.as_str())),
    }
    if !ended.evidence_complete {
        return no("the evidence is incomplete".to_owned());
    }
    if ended.status != RunStatus::Done {
        return no("the run did not succeed".to_owned());
    }
    match (rule.checks, ended.checks) {
        (_, ChecksSeen::Fail) => return no("not all checks hold".to_owned()),
        (ChecksWanted::All, ChecksSeen::Absent) => return no("there were no checks".to_owned()),
        _ => {}
    }
    if ended.lines > rule.max_lines || ended.files > rule.max_files {
        let (lines, most) = (ended.lines, rule.max_lines);
        let (files, at_most) = (ended.files, rule.max_files);
        return no(format!(
            "{lines} lines, at most {most}; {files} files, at most {at_most}"
        ));
    }
    if let Some(why) = routine::why_not(ended.changes) {
        return no(why);
    }
    if let Some(path) = ended.programs.first() {
        return no(format!("`{path}` is a program, or cannot be looked at"));
    }
    // HOSTILE: who tries that has more in mind than what is left.
    let tried = |left: &&Omitted| matches!(left.why, WhyOmitted::GitDirectory | WhyOmitted::Secret);
    if let Some(left) = ended.omitted.iter().find(tried) {
        let path = &left.path;
        return no(match left.why {
            WhyOmitted::Secret => format!("`{path}` was left behind with a secret in it"),
            _ => format!("`{path}` was left behind: it would be a git directory"),
        });
    }
    if let Some(paths) = &rule.paths {
        let patterns: Vec<&str> = paths.iter().map(|line| line.text.as_str()).collect();
        let Ok(globs) = Globs::parse(&patterns) else {
            return no("its paths cannot be read".to_owned());
        };
        let outside =
            |path: &&ByteText| !globs.matches(Path::new(OsStr::from_bytes(path.as_bytes())));
        // A rename takes a file away that the rule may not be about.
        let touched = ended.changes.iter().flat_map(|change| match &change.kind {
            ChangeKind::Renamed { from } => vec![&change.path, from],
            _ => vec![&change.path],
        });
        if let Some(path) = touched.into_iter().find(outside) {
            return no(format!("`{path}` is not among its paths"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
