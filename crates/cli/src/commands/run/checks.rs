//! What checks came to, on the terminal.

use std::process::ExitCode;

use anstream::eprintln;
use ringfence_engine::run::RunResult;
use ringfence_model::check::{CheckReport, Checks, Tree};
use ringfence_model::outcome::RunStatus;
use ringfence_model::rounds::ended_well;

use crate::text::clean;

/// The exit code of a run whose command did what it should and whose checks do not hold.
pub const CHECKS_FAILED: u8 = 5;

/// How a run and its checks ended.
pub fn exit_code(result: &RunResult) -> ExitCode {
    let succeeded = match result.status {
        RunStatus::Done => true,
        RunStatus::BaseMoved => ended_well(result.outcome, result.exit_code),
        _ => false,
    };
    match (succeeded, result.checks.hold()) {
        (false, _) => ExitCode::FAILURE,
        (true, false) => ExitCode::from(CHECKS_FAILED),
        (true, true) => ExitCode::SUCCESS,
    }
}

/// What came of the loop, where there was one.
pub fn tell_rounds(result: &RunResult) {
    let Some(looped) = &result.rounds else {
        return;
    };
    let (took, most) = (looped.iterations.len(), looped.most);
    let outcome = looped.outcome.as_str().replace('_', " ");
    eprintln!("  loop: {outcome}, iteration {took} of at most {most}");
    for own in looped.iterations.iter().filter(|_| took > 1) {
        let (number, ending, standing) = (own.number, own.ending(), own.standing());
        eprintln!("    iteration {number}: {ending}; {standing}");
    }
    for note in &looped.notes {
        eprintln!("    note: {}", clean(note));
    }
}

/// A line for each check, and the end of what it printed where it does not hold.
pub fn tell(checks: &Checks, before: &str) {
    for report in &checks.reports {
        let sign = if report.holds() { "✓" } else { "✗" };
        eprintln!(
            "{before} {sign} {}: {}",
            clean(&report.command),
            report.words()
        );
        for note in &report.notes {
            eprintln!("{before}   note: {}", clean(note));
        }
        if !report.holds() {
            tell_end(report, before);
        }
    }
    for path in checks.touched.iter().take(5) {
        eprintln!(
            "{before} part of the exam, and changed: {}",
            clean(&path.to_text())
        );
    }
    for note in &checks.notes {
        eprintln!("{before} note: {}", clean(note));
    }
}

/// HOSTILE: each line of what a check printed has a mark before it, so that it is not taken for ours.
fn tell_end(report: &CheckReport, before: &str) {
    /// BOUND: lines on the terminal; the log has all of them.
    const LINES: usize = 8;
    let trees = [Tree::Patched, Tree::Exam, Tree::Base];
    let failed = trees.into_iter().find_map(|tree| {
        let ran = report.last(tree)?;
        (!ran.passed()).then_some((tree, ran))
    });
    let Some((tree, ran)) = failed else {
        return;
    };
    let printed = if ran.stdout_tail.trim().is_empty() {
        &ran.stderr_tail
    } else {
        &ran.stdout_tail
    };
    let lines: Vec<&str> = printed.trim_end().lines().collect();
    if lines.is_empty() {
        return;
    }
    eprintln!("{before}   the end of what it printed ({}):", tree.as_str());
    for line in &lines[lines.len().saturating_sub(LINES)..] {
        let short: String = line.chars().take(200).collect();
        eprintln!("{before}   │ {}", clean(&short));
    }
}
