//! What is done again, and what is said of it.

use ringfence_model::check::{CheckReport, CheckVerdict, Examined, Execution, Ran, Tree};
use ringfence_model::outcome::Outcome;

/// Whether results of earlier executions count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fresh {
    /// They do, where files, check and everything around are the same.
    Kept,
    /// All is done now. What was known before and differs makes a check flaky.
    Again,
}

/// Trees on which a check must run once more: those where it failed, if it passed on the other side.
/// A test that fails by chance shows it there.
pub(super) fn wanted(executions: &[Execution], examined: Examined) -> Vec<Tree> {
    let only = |tree: Tree| -> Option<&Ran> {
        let mut own = executions.iter().filter(|own| own.tree == tree);
        let first = own.next();
        // More than one: it was done again already.
        first.filter(|_| own.next().is_none()).map(|own| &own.ran)
    };
    let mut sides = vec![Tree::Patched];
    if examined == Examined::BothWays {
        sides.push(Tree::Exam);
    }
    let Some(base) = only(Tree::Base) else {
        return Vec::new();
    };
    let mut again = Vec::new();
    for side in sides {
        match only(side) {
            Some(ran) if base.passed() && !ran.passed() => again.push(side),
            Some(ran) if !base.passed() && ran.passed() && !again.contains(&Tree::Base) => {
                again.push(Tree::Base);
            }
            _ => {}
        }
    }
    again
}

/// What is said where a check did not end by itself.
const BOUNDS: [(Outcome, &str); 5] = [
    (
        Outcome::TimedOut,
        "it was stopped at its bound of time, which is that of the run (`--timeout`)",
    ),
    (
        Outcome::OutputLimit,
        "it printed more than a check may, and was stopped",
    ),
    (
        Outcome::OutOfMemory,
        "it was stopped at its bound of memory, which is that of the run (`--memory`)",
    ),
    (
        Outcome::JournalFull,
        "it asked for the network more often than the journal can hold, and was stopped",
    ),
    (Outcome::RuntimeLost, "its sandbox went away under it"),
];

/// For a person.
pub(super) fn notes(report: &CheckReport, cancelled: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if report.verdict == CheckVerdict::NotRun && cancelled {
        notes.push("it was stopped by you".to_owned());
    }
    if report.verdict == CheckVerdict::Flaky || report.exam == Some(CheckVerdict::Flaky) {
        notes.push("it ended differently on the same files, and proves nothing".to_owned());
    }
    let outcomes = report.executions.iter().map(|own| own.ran.outcome);
    for (outcome, what) in BOUNDS {
        if outcomes.clone().any(|own| own == outcome) {
            notes.push(what.to_owned());
        }
    }
    if report.passes_own_exam_only() {
        notes.push("it passes with the agent's own tests or settings only".to_owned());
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn executions(list: &[(Tree, i32)]) -> Vec<Execution> {
        let ran = |code| Ran {
            outcome: Outcome::Exited,
            exit_code: Some(code),
            signal: None,
            duration_ms: 0,
            output_bytes: 0,
            log_sha256: String::new(),
            stdout_tail: String::new(),
            stderr_tail: String::new(),
            counts: None,
            leftovers: 0,
            cached: false,
        };
        let one = |(tree, code): &(Tree, i32)| Execution {
            tree: *tree,
            ran: ran(*code),
        };
        list.iter().map(one).collect()
    }

    #[test]
    fn what_failed_where_the_other_side_passed_is_done_once_more() {
        use Tree::{Base, Exam, Patched};
        for (found, expected) in [
            (vec![(Base, 0), (Patched, 0)], vec![]),
            (vec![(Base, 1), (Patched, 1)], vec![]),
            (vec![(Base, 0), (Patched, 1)], vec![Patched]),
            (vec![(Base, 1), (Patched, 0)], vec![Base]),
            (vec![(Base, 0), (Patched, 1), (Patched, 1)], vec![]),
            (vec![(Base, 1), (Patched, 0), (Base, 1)], vec![]),
            (vec![(Base, 0), (Patched, 0), (Exam, 1)], vec![Exam]),
            (vec![(Base, 1), (Patched, 0), (Exam, 0)], vec![Base]),
            (vec![(Patched, 1)], vec![]),
        ] {
            let wanted = wanted(&executions(&found), Examined::BothWays);
            assert_eq!(wanted, expected, "{found:?}");
        }
    }
}
