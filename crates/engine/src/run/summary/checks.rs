//! The section on checks.
//!
//! HOSTILE: what a check printed is not on the page. Names of tests that failed are, in code spans.

use ringfence_model::check::{CheckReport, Checks, Tree};

use super::{FEW, code, plain};

/// A line for each check, what failed in it, and what else is to say.
pub(super) fn lines(checks: &Checks) -> Vec<String> {
    let mut lines = Vec::new();
    for report in &checks.reports {
        lines.push(format!("{}: {}", code(&report.command), report.words()));
        lines.extend(failing(report));
        let notes = report.notes.iter();
        lines.extend(notes.map(|note| format!("{}: {}", code(&report.command), plain(note))));
    }
    for path in checks.touched.iter().take(FEW) {
        lines.push(format!("part of the exam, and changed: {}", code(path)));
    }
    let more = checks.touched.len().saturating_sub(FEW) as u64 + checks.touched_more;
    if more > 0 {
        lines.push(format!("part of the exam, and changed: {more} more"));
    }
    lines.extend(checks.notes.iter().map(|note| plain(note)));
    lines
}

/// Names of tests that failed, as the runner told them.
fn failing(report: &CheckReport) -> Option<String> {
    let ran = report.last(Tree::Exam).filter(|ran| !ran.passed());
    let ran = ran.or(report.last(Tree::Patched))?;
    let counts = ran.counts.as_ref().filter(|_| !ran.passed())?;
    let names: Vec<String> = counts.failing.iter().take(FEW).map(code).collect();
    let more = counts.failing.len().saturating_sub(FEW) as u64 + counts.failing_more;
    let more = match more {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!names.is_empty()).then(|| format!("failed by its own words: {}{more}", names.join(", ")))
}
