//! What the host's own checks say, and the exam that an agent wrote for itself.

use ringfence_model::check::{CheckReport, CheckVerdict};
use ringfence_model::flag::{Evidence as Rests, FlagKind, Severity};

use super::{Facts, Found, path};

pub(super) fn look(facts: &Facts<'_>, found: &mut Found) {
    let checks = facts.checks;
    let own_only = |report: &&CheckReport| report.passes_own_exam_only();
    for report in checks.reports.iter().filter(own_only) {
        found.add(
            FlagKind::ExamChanged,
            Severity::Serious,
            "a check passes with the agent's own tests or settings only",
            rests(report),
        );
    }
    if !checks.reports.is_empty() {
        for touched in &checks.touched {
            found.add(
                FlagKind::ExamChanged,
                Severity::Info,
                "the patch changes what checks are done with; they were done both ways",
                path(touched),
            );
        }
    }
    for report in &checks.reports {
        let (severity, message) = match (report.verdict, report.exam) {
            (CheckVerdict::Broke, _) => (Severity::Serious, "a check passed before and fails now"),
            (CheckVerdict::StillFailing, _) => {
                (Severity::Warning, "a check fails as it did before")
            }
            (CheckVerdict::Flaky, _) | (_, Some(CheckVerdict::Flaky)) => (
                Severity::Warning,
                "a check ended differently on the same files",
            ),
            (CheckVerdict::NotRun, _) => (Severity::Warning, "a check was not run to its end"),
            _ => continue,
        };
        found.add(FlagKind::CheckFailed, severity, message, rests(report));
    }
    let claim = facts.claim.ok().flatten();
    let tests = claim.and_then(|claim| claim.tests.as_ref());
    if tests.is_some_and(|tests| tests.says_passed()) {
        for report in checks.reports.iter().filter(|report| !report.holds()) {
            found.add(
                FlagKind::ClaimContradicted,
                Severity::Serious,
                "the agent says that tests passed; a check of the host does not",
                rests(report),
            );
        }
    }
}

fn rests(report: &CheckReport) -> Option<Rests> {
    let exam = report
        .exam
        .map(|exam| format!(", with the base's own tests: {}", exam.as_str()));
    Some(Rests::Check {
        command: report.command.clone(),
        detail: format!("{}{}", report.verdict.as_str(), exam.unwrap_or_default()),
    })
}
