//! Flags: what a reviewer should look at before taking a patch, each with what it rests on.
//!
//! ```text
//!   change set ─┐
//!   patch       ├─▶ Facts ─▶ rules, one family in each file ─▶ Found ─▶ flags, worst first
//!   evidence    │
//!   claim ──────┘
//! ```
//!
//! Rules are plain functions over plain data. Some look at facts as a whole, some at each added or
//! removed line of the patch, which is read once from beginning to end.
//!
//! HOSTILE: paths, lines, arguments and claims were chosen by an agent. They appear in evidence and
//! never in a message, and a secret is never repeated.

mod checks;
mod claims;
mod executes;
mod failures;
mod gather;
mod hidden;
mod hooks;
mod names;
mod network;
mod programs;
mod recipes;
mod runners;
mod scan;
pub(crate) mod secrets;
mod settings;
mod shape;
mod weakened;

use std::collections::BTreeMap;
use std::io::{self, BufRead};

use ringfence_model::ByteText;
use ringfence_model::changes::{Change, Omitted};
use ringfence_model::check::Checks;
use ringfence_model::claim::{Claim, NoClaim};
use ringfence_model::flag::{Evidence as Rests, Flag, FlagKind, MAX_EVIDENCE, Severity};
use ringfence_model::paths;

use crate::evidence::Evidence;

pub use gather::{Gathered, gather};
pub use programs::{Known, of_the_machine};
pub use runners::{End, TestRun, test_runs};

/// BOUND: how far back it is looked who started a program; an agent can make chains of any length.
const LINEAGE: usize = 256;

/// All that the rules look at.
#[derive(Debug)]
pub struct Facts<'a> {
    pub changes: &'a [Change],
    pub omitted: &'a [Omitted],
    pub insertions: u64,
    pub deletions: u64,
    /// What was read of the folder and the layer beside the patch.
    pub gathered: &'a Gathered,
    pub evidence: &'a Evidence,
    pub claim: Result<Option<&'a Claim>, &'a NoClaim>,
    /// The command exited by itself, with 0.
    pub succeeded: bool,
    /// Programs that earlier runs on this folder started.
    pub known: &'a Known,
    /// Where the folder was inside.
    pub inside: &'a [u8],
    /// The folder's path below the top of its repository.
    pub prefix: &'a [u8],
    /// A text of the host that no sandbox can read.
    pub canary: Option<&'a [u8]>,
    /// What changed without an observed write that explains it.
    pub unexplained: &'a [ByteText],
    /// What the host's own checks came to.
    pub checks: &'a Checks,
}

/// Rules that look at everything at once.
const RULES: &[fn(&Facts<'_>, &mut Found)] = &[
    claims::look,
    checks::look,
    failures::look,
    programs::look,
    hooks::look,
    executes::look,
    recipes::look,
    names::look,
    shape::look,
    network::look,
];

/// What a look at a change set and its patch gives.
#[derive(Debug)]
pub struct Review {
    /// The worst first.
    pub flags: Vec<Flag>,
    /// Lines added and removed of each change, as far as the patch was read.
    pub lines: Vec<(u64, u64)>,
}

/// Finds all flags. The patch is the rendered change set.
pub fn review(facts: &Facts<'_>, patch: impl BufRead) -> io::Result<Review> {
    let mut found = Found::default();
    for rule in RULES {
        rule(facts, &mut found);
    }
    let mut weakened = weakened::Weakened::default();
    let secrets = secrets::Secrets::new(facts.canary);
    let lines = scan::read(patch, facts.changes, &mut found, |line, found| {
        weakened.line(line);
        secrets.line(line, found);
        hidden::line(line, found);
    })?;
    weakened.finish(facts.changes, &mut found);
    Ok(Review {
        flags: found.finish(),
        lines,
    })
}

/// Collects flags. What is the same but for its evidence is one flag.
#[derive(Debug, Default)]
struct Found {
    flags: BTreeMap<(FlagKind, Severity, String), (Vec<Rests>, u64)>,
}

impl Found {
    /// INVARIANT: `message` holds nothing that an agent chose, so that there are few of them.
    fn add(
        &mut self,
        kind: FlagKind,
        severity: Severity,
        message: impl Into<String>,
        evidence: Option<Rests>,
    ) {
        let key = (kind, severity, message.into());
        let (list, more) = self.flags.entry(key).or_default();
        match evidence {
            Some(evidence) if list.len() < MAX_EVIDENCE => list.push(evidence),
            Some(_) => *more += 1,
            None => {}
        }
    }

    fn finish(self) -> Vec<Flag> {
        let mut flags: Vec<Flag> = self
            .flags
            .into_iter()
            .map(|((kind, severity, message), (evidence, more))| Flag {
                kind,
                severity,
                message,
                evidence,
                more,
            })
            .collect();
        flags.sort_by_key(|flag| std::cmp::Reverse(flag.severity));
        flags
    }
}

/// Evidence: a changed path.
fn path(path: &ByteText) -> Option<Rests> {
    Some(Rests::Path {
        path: path.clone(),
        detail: None,
    })
}

/// Evidence: a changed path, and what of it.
fn path_with(path: &ByteText, detail: impl Into<String>) -> Option<Rests> {
    Some(Rests::Path {
        path: path.clone(),
        detail: Some(detail.into()),
    })
}

/// Evidence: a line of the patch.
fn line_of(line: &scan::Line<'_>, detail: Option<String>) -> Option<Rests> {
    Some(Rests::Line {
        path: line.change.path.clone(),
        line: line.number,
        patch_line: line.patch_line,
        detail,
    })
}

/// Evidence: a program that ran.
fn exec(ran: &crate::evidence::Ran, detail: Option<String>) -> Option<Rests> {
    /// BOUND: arguments of a program that are shown with a flag, and bytes of each.
    const SHOWN: usize = 12;
    const BYTES: usize = 200;
    let argv = ran.exec.argv.iter().take(SHOWN);
    Some(Rests::Exec {
        exec: ran.exec.exec,
        argv: argv
            .map(|word| ByteText::from(&word.0[..word.0.len().min(BYTES)]))
            .collect(),
        detail,
    })
}

#[cfg(test)]
mod tests;
