//! What an agent is told of the iteration before: how its process ended, and what the checks that do
//! not hold printed.
//!
//! HOSTILE: what a check prints was chosen by the code under test. It is bounded, freed of whatever is
//! more than text, and each line of it has a mark, so that it is not taken for ours.

use std::fmt::Write as _;

use crate::check::{CheckReport, Ran, Tree};
use crate::outcome::Outcome;
use crate::text::misleads;

/// BOUND: bytes of feedback. An agent reads all of it at each start.
pub const MAX_BYTES: usize = 48 << 10;
/// BOUND: bytes of the end of each stream of a check.
pub const END_BYTES: usize = 6 << 10;

/// How the agent's process ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    /// From 1.
    pub iteration: u32,
    pub most: u32,
    pub outcome: Outcome,
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub changed_files: u64,
    /// Why checks did not run.
    pub notes: &'a [String],
}

/// A check that does not hold, with the end of what it printed.
#[derive(Clone, Debug)]
pub struct Failing<'a> {
    pub report: &'a CheckReport,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// The tree and the execution that show best why a check does not hold.
pub fn shown(report: &CheckReport) -> Option<(Tree, &Ran)> {
    let trees = [Tree::Patched, Tree::Exam, Tree::Base];
    trees.into_iter().find_map(|tree| {
        let executions = report.executions.iter().rev();
        let mut failed = executions.filter(|own| own.tree == tree && !own.ran.passed());
        failed.next().map(|own| (tree, &own.ran))
    })
}

/// The whole text.
pub fn write(ended: &Ended<'_>, failing: &[Failing<'_>]) -> String {
    let mut text = format!(
        "Iteration {} of {} has ended. ",
        ended.iteration, ended.most
    );
    let left = ended.most.saturating_sub(ended.iteration);
    let _ = writeln!(
        text,
        "This is the next one; {} to come after it. The files are as they were left.",
        match left {
            0 | 1 => "none is".to_owned(),
            2 => "1 is".to_owned(),
            left => format!("{} are", left - 1),
        }
    );
    let _ = writeln!(text, "\nYour process: {}.", agent(ended));
    let _ = writeln!(
        text,
        "Changed so far: {}.",
        match ended.changed_files {
            0 => "nothing".to_owned(),
            1 => "1 file".to_owned(),
            files => format!("{files} files"),
        }
    );
    for note in ended.notes {
        let _ = writeln!(text, "Note: {}", plain(note.as_bytes()).replace('\n', " "));
    }
    if failing.is_empty() {
        text.push_str("\nNo check fails.\n");
        return text;
    }
    let _ = writeln!(
        text,
        "\n{} not hold. Each ran in a clean copy of the base with your patch, \
         not in this sandbox. Lines that begin with `> ` are what it printed.",
        match failing.len() {
            1 => "1 check does".to_owned(),
            count => format!("{count} checks do"),
        }
    );
    for (at, one) in failing.iter().enumerate() {
        let part = section(at + 1, one);
        if text.len() + part.len() > MAX_BYTES {
            let _ = writeln!(text, "\n… and {} more.", failing.len() - at);
            break;
        }
        text.push_str(&part);
    }
    text
}

fn agent(ended: &Ended<'_>) -> String {
    match (ended.outcome, ended.code, ended.signal) {
        (Outcome::Exited, Some(0), _) => "ended with exit code 0".to_owned(),
        (Outcome::TurnEnded, ..) => "said that its turn was over".to_owned(),
        (Outcome::Exited, Some(code), _) => {
            format!("crashed or gave up: exit code {code}. What it had written until then is there")
        }
        (Outcome::Signaled, _, Some(signal)) => {
            format!("crashed: it died by signal {signal}. What it had written until then is there")
        }
        (outcome, ..) => format!(
            "was stopped ({}). What it had written until then is there",
            outcome.as_str().replace('_', " ")
        ),
    }
}

fn section(number: usize, failing: &Failing<'_>) -> String {
    let report = failing.report;
    let mut text = format!(
        "\n## Check {number}: {}\n\n",
        plain(report.command.as_bytes())
    );
    let _ = writeln!(text, "verdict: {}", verdict(report));
    for note in &report.notes {
        let _ = writeln!(text, "note: {}", plain(note.as_bytes()).replace('\n', " "));
    }
    if shown(report).is_some_and(|(tree, _)| tree == Tree::Exam) {
        text.push_str("It holds only with your own changes to its tests or settings.\n");
    }
    for (name, bytes) in [("output", &failing.stdout), ("errors", &failing.stderr)] {
        let printed = end(bytes);
        if printed.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\nThe end of its {name}:\n");
        for line in printed.lines() {
            let _ = writeln!(text, "> {line}");
        }
    }
    text
}

/// What came of it, with the exit codes.
fn verdict(report: &CheckReport) -> String {
    let mut parts = vec![report.verdict.as_str().replace('_', " ")];
    let sides = [
        (Tree::Base, "before"),
        (Tree::Patched, "now"),
        (Tree::Exam, "with the base's own tests and settings"),
    ];
    for (tree, when) in sides {
        parts.extend(
            report
                .last(tree)
                .map(|ran| format!("{} {when}", ran.ending())),
        );
    }
    parts.join("; ")
}

/// The end of a stream as text, from the beginning of a line where there is one.
fn end(bytes: &[u8]) -> String {
    let from = bytes.len().saturating_sub(END_BYTES);
    let mut cut = &bytes[from..];
    if from > 0
        && let Some(at) = cut.iter().position(|byte| *byte == b'\n')
        && at + 1 < cut.len()
    {
        cut = &cut[at + 1..];
    }
    let text = plain(cut);
    let text = text.trim_end();
    // BOUND: what stands for bad bytes is longer than they were.
    let mut from = text.len().saturating_sub(END_BYTES);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text[from..].to_owned()
}

/// Text and nothing else: sequences for terminals, control characters and what is not seen are gone.
pub fn plain(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes).replace("\r\n", "\n");
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => skip(&mut chars),
            '\r' => out.push('\n'),
            '\n' | '\t' => out.push(c),
            c if misleads(c) => {}
            c => out.push(c),
        }
    }
    out
}

/// The rest of a sequence for terminals.
fn skip(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    match chars.peek() {
        // A control sequence: parameters, then one letter.
        Some('[') => {
            chars.next();
            while let Some(c) = chars.peek().copied() {
                if !matches!(c, ' '..='~') {
                    return;
                }
                chars.next();
                if matches!(c, '@'..='~') {
                    return;
                }
            }
        }
        // A string, up to its end or that of the line.
        Some(']' | 'P' | '^' | '_' | 'X') => {
            while let Some(c) = chars.peek().copied() {
                if c == '\n' {
                    return;
                }
                chars.next();
                if c == '\u{7}' || c == '\u{9c}' {
                    return;
                }
                if c == '\u{1b}' {
                    chars.next_if_eq(&'\\');
                    return;
                }
            }
        }
        // Some have more before their letter.
        Some(' '..='~') => {
            while chars.next_if(|c| matches!(c, ' '..='/')).is_some() {}
            chars.next_if(|c| matches!(c, '0'..='~'));
        }
        _ => {}
    }
}
