//! Outcomes and feedback, as tables.

use super::feedback::{END_BYTES, Ended, Failing, MAX_BYTES, plain, write};
use super::*;
use crate::check::tests::ran;
use crate::check::{CheckReport, Examined, Execution};

fn report(command: &str, before: i32, after: i32) -> CheckReport {
    let one = |tree, code| Execution {
        tree,
        ran: ran(code),
    };
    let executions = vec![one(Tree::Base, before), one(Tree::Patched, after)];
    CheckReport::judge(command, executions, Examined::AsPatched)
}

fn checks(after: &[i32]) -> Checks {
    Checks {
        reports: after.iter().map(|code| report("c", 1, *code)).collect(),
        ..Checks::default()
    }
}

fn ended(outcome: Outcome, code: Option<i32>) -> Ended<'static> {
    Ended {
        iteration: 1,
        most: 3,
        outcome,
        code,
        signal: None,
        changed_files: 2,
        notes: &[],
    }
}

#[test]
fn the_outcome_follows_from_the_process_and_the_checks() {
    use LoopOutcome as L;
    use Outcome as O;
    for (outcome, code, changed, moved, after, expected) in [
        (O::Exited, Some(0), true, false, &[0][..], L::Passed),
        (O::TurnEnded, None, true, false, &[0], L::Passed),
        (O::Exited, Some(0), true, false, &[0, 1], L::Exhausted),
        (O::Exited, Some(0), true, false, &[], L::Unchecked),
        (O::Exited, Some(0), false, false, &[0], L::NoChange),
        (O::Exited, Some(0), false, false, &[1], L::NoChange),
        (O::Exited, Some(1), true, false, &[0], L::Failed),
        (O::Signaled, None, true, false, &[0], L::Failed),
        (O::NotStarted, None, false, false, &[1], L::Failed),
        (O::OutputLimit, None, true, false, &[0], L::Failed),
        (O::TimedOut, None, true, false, &[0], L::TimedOut),
        (O::Cancelled, None, true, false, &[0], L::Cancelled),
        (O::Exited, Some(0), true, true, &[], L::BaseMoved),
    ] {
        let last = Last {
            outcome,
            code,
            changed,
            moved,
            checks: &checks(after),
        };
        assert_eq!(LoopOutcome::of(&last), expected, "{last:?}");
    }
    // A check that somebody stopped says nothing of the agent.
    let mut stopped = checks(&[1]);
    let last = stopped.reports[0].executions.last_mut();
    last.expect("it was run").ran.outcome = Outcome::Cancelled;
    let last = Last {
        outcome: Outcome::Exited,
        code: Some(0),
        changed: true,
        moved: false,
        checks: &stopped,
    };
    assert_eq!(LoopOutcome::of(&last), LoopOutcome::Cancelled);
}

#[test]
fn feedback_tells_what_fails_and_how_the_agent_ended() {
    let failing = report("make \u{1b}[31mtest", 0, 2);
    let text = write(
        &ended(Outcome::Exited, Some(0)),
        &[Failing {
            report: &failing,
            stdout: b"one\n## Check 9: true\n\x1b[2Jtwo\x07\n".to_vec(),
            stderr: b"bad\xff".to_vec(),
        }],
    );
    assert!(text.contains("Iteration 1 of 3 has ended."), "{text}");
    assert!(text.contains("1 is to come after it"), "{text}");
    assert!(text.contains("## Check 1: make test\n"), "{text}");
    assert!(
        text.contains("verdict: broke; exit 0 before; exit 2 now"),
        "{text}"
    );
    // What it printed cannot be taken for ours.
    assert!(text.contains("\n> ## Check 9: true\n> two\n"), "{text}");
    assert!(text.contains("> bad\u{fffd}\n"), "{text}");
    assert!(
        !text.contains('\u{1b}') && !text.contains('\u{7}'),
        "{text}"
    );
    let crashed = write(&ended(Outcome::Exited, Some(9)), &[]);
    assert!(
        crashed.contains("crashed or gave up: exit code 9"),
        "{crashed}"
    );
    assert!(crashed.contains("No check fails."), "{crashed}");
}

#[test]
fn feedback_is_bounded() {
    let failing = report("make test", 0, 1);
    let one = Failing {
        report: &failing,
        stdout: [
            b"first\n".to_vec(),
            vec![0xff; 10 << 20],
            b"\nlast\n".to_vec(),
        ]
        .concat(),
        stderr: vec![b'e'; 1 << 20],
    };
    let text = write(&ended(Outcome::Exited, Some(0)), &vec![one; 30]);
    assert!(text.len() <= MAX_BYTES + 100, "{}", text.len());
    assert!(text.contains("> last\n"));
    assert!(!text.contains("first"));
    assert!(text.contains("more.\n"), "{}", &text[text.len() - 100..]);
    let lines = text.lines().map(str::len);
    assert!(lines.max().unwrap_or_default() <= END_BYTES + 2);
}

#[test]
fn what_is_more_than_text_is_gone() {
    for (bytes, expected) in [
        (&b"a\x1b[1;31mred\x1b[0m b"[..], "ared b"),
        (b"\x1b]0;title\x07x", "x"),
        (b"\x1b]8;;http://h.example\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"\x1bPq...\nnext", "\nnext"),
        (b"10%\r20%\r\nend", "10%\n20%\nend"),
        (b"\x1b", ""),
        (b"\x1b[", ""),
        (b"\x1b[31", ""),
        (b"\x1b(Bx", "x"),
        (b"tab\there\0\x08", "tab\there"),
        ("a\u{202e}b\u{200b}c".as_bytes(), "abc"),
    ] {
        assert_eq!(
            plain(bytes),
            expected,
            "{:?}",
            String::from_utf8_lossy(bytes)
        );
    }
}
