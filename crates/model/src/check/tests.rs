//! Verdicts, as tables.

use super::*;

pub(crate) fn ran(code: i32) -> Ran {
    Ran {
        outcome: Outcome::Exited,
        exit_code: Some(code),
        signal: None,
        duration_ms: 1,
        output_bytes: 0,
        log_sha256: String::new(),
        stdout_tail: String::new(),
        stderr_tail: String::new(),
        counts: None,
        leftovers: 0,
        cached: false,
    }
}

fn ended(outcome: Outcome) -> Ran {
    Ran {
        outcome,
        exit_code: None,
        ..ran(0)
    }
}

#[test]
fn a_verdict_follows_from_how_both_sides_ended() {
    use CheckVerdict::*;
    for (before, after, expected) in [
        (vec![ran(0)], vec![ran(0)], Passes),
        (vec![ran(1)], vec![ran(0)], Fixed),
        (vec![ran(0)], vec![ran(1)], Broke),
        (vec![ran(1)], vec![ran(2)], StillFailing),
        // A hang, a crash and a bound that was met are no pass, whatever the code.
        (vec![ran(0)], vec![ended(Outcome::TimedOut)], Broke),
        (vec![ended(Outcome::OutOfMemory)], vec![ran(0)], Fixed),
        (vec![ran(0)], vec![ended(Outcome::OutputLimit)], Broke),
        (
            vec![ended(Outcome::RuntimeLost)],
            vec![ran(1)],
            StillFailing,
        ),
        // The same files, another end.
        (vec![ran(0)], vec![ran(1), ran(0)], Flaky),
        (vec![ran(0)], vec![ran(0), ran(1)], Flaky),
        (vec![ran(1), ran(0)], vec![ran(0)], Flaky),
        (vec![ran(0)], vec![ran(1), ran(1)], Broke),
        (vec![], vec![ran(0)], NotRun),
        (vec![ran(0)], vec![], NotRun),
        (vec![ran(0)], vec![ended(Outcome::Cancelled)], NotRun),
        (
            vec![ran(0)],
            vec![ran(1), ended(Outcome::Cancelled)],
            NotRun,
        ),
    ] {
        let refs = |runs: &'_ [Ran]| runs.to_vec();
        let (before, after) = (refs(&before), refs(&after));
        let before: Vec<&Ran> = before.iter().collect();
        let after: Vec<&Ran> = after.iter().collect();
        assert_eq!(
            CheckVerdict::of(&before, &after),
            expected,
            "{before:?} {after:?}"
        );
    }
}

#[test]
fn what_passes_only_with_the_agents_exam_does_not_hold() {
    let executions = |exam| {
        let trees = [(Tree::Base, 1), (Tree::Patched, 0), (Tree::Exam, exam)];
        trees.map(|(tree, code)| Execution {
            tree,
            ran: ran(code),
        })
    };
    let own = CheckReport::judge("t", executions(1).to_vec(), Examined::BothWays);
    assert_eq!(own.verdict, CheckVerdict::Fixed);
    assert_eq!(own.exam, Some(CheckVerdict::StillFailing));
    assert!(own.passes_own_exam_only() && !own.holds());
    let both = CheckReport::judge("t", executions(0).to_vec(), Examined::BothWays);
    assert!(both.holds());
}

#[test]
fn an_exam_that_was_not_run_does_not_hold() {
    let executions = [(Tree::Base, 0), (Tree::Patched, 0)].map(|(tree, code)| Execution {
        tree,
        ran: ran(code),
    });
    let report = CheckReport::judge("t", executions.to_vec(), Examined::BothWays);
    assert_eq!(report.exam, Some(CheckVerdict::NotRun));
    assert!(!report.holds());
}

#[test]
fn numbers_at_odds_with_the_end_are_told_and_change_nothing() {
    let mut liar = ran(1);
    liar.counts = runners::count(
        "t",
        b"test result: ok. 100 passed; 0 failed; 0 ignored\n",
        b"",
    );
    assert!(liar.contradicts() && !liar.passed());
    let base = Execution {
        tree: Tree::Base,
        ran: ran(0),
    };
    let after = Execution {
        tree: Tree::Patched,
        ran: liar,
    };
    let report = CheckReport::judge("t", vec![base, after], Examined::AsPatched);
    assert_eq!(report.verdict, CheckVerdict::Broke);
    assert_eq!(report.notes.len(), 1);
}

#[test]
fn a_runner_that_falls_silent_is_not_believed() {
    let told = |code, text: &str| {
        let mut ran = ran(code);
        ran.counts = runners::count("pytest -q", text.as_bytes(), b"");
        ran
    };
    let judged = |trees: &[(Tree, Ran)], examined| {
        let executions = trees.iter().cloned();
        let executions = executions.map(|(tree, ran)| Execution { tree, ran });
        CheckReport::judge("pytest -q", executions.collect(), examined)
    };
    let before = (Tree::Base, told(1, "1 failed, 2 passed in 0.1s\n"));
    let patched = |text| (Tree::Patched, told(0, text));
    for (after, holds) in [("3 passed in 0.1s\n", true), ("", false), ("ok\n", false)] {
        let report = judged(&[before.clone(), patched(after)], Examined::AsPatched);
        assert_eq!(
            (report.holds(), report.notes.is_empty()),
            (holds, holds),
            "{after}"
        );
    }
    let exam = (Tree::Exam, told(0, ""));
    let all = [before, patched("3 passed in 0.1s\n"), exam];
    assert!(!judged(&all, Examined::BothWays).holds());
    // Who never told of any is believed by the exit code.
    let quiet = [(Tree::Base, told(1, "")), patched("")];
    assert!(judged(&quiet, Examined::AsPatched).holds());
}

#[test]
fn a_check_is_one_line_that_is_seen_as_it_is() {
    assert_eq!(command("pytest -q"), Ok(()));
    assert_eq!(command("  "), Err(CommandError::Empty));
    assert_eq!(command("a\nb"), Err(CommandError::Misleading));
    assert_eq!(command("a\u{202e}b"), Err(CommandError::Misleading));
    assert_eq!(command(&"x".repeat(5000)), Err(CommandError::TooLong));
}

#[test]
fn names_of_files_are_words_and_no_options() {
    let files = |names: &[&str]| -> Vec<ByteText> {
        names.iter().map(|name| ByteText::from(*name)).collect()
    };
    let cases = [
        (&["a.py", "b/c-d.py"][..], "lint a.py b/c-d.py"),
        (&["-rf"], "lint ./-rf"),
        (&["-x y"], "lint './-x y'"),
        (&["a b", "$(id)", "`id`;"], "lint 'a b' '$(id)' '`id`;'"),
        (&["it's"], r"lint 'it'\''s'"),
        (&["{files}"], "lint '{files}'"),
        (&["*", "~root"], "lint '*' '~root'"),
    ];
    for (names, expected) in cases {
        assert_eq!(
            for_files("lint {files}", &files(names)).as_deref(),
            Ok(expected)
        );
    }
    assert_eq!(
        for_files("make test", &files(&["a b"])).as_deref(),
        Ok("make test")
    );
    let refused = |name: &[u8]| for_files("lint {files}", &[ByteText::from(name)]);
    assert_eq!(refused(b"a\nb"), Err(CommandError::FileName));
    assert_eq!(refused(b"a\x1b[2J"), Err(CommandError::FileName));
    assert_eq!(refused(b"\xff"), Err(CommandError::FileName));
    assert_eq!(
        refused(&[b'a'; MAX_COMMAND_BYTES]),
        Err(CommandError::TooLong)
    );
}
