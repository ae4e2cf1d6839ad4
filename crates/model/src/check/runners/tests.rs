//! What real runners printed, and what others print to look like them.

use super::*;

fn counted_in(command: &str, stdout: &str, stderr: &str) -> Option<(String, u64, u64, u64)> {
    let counts = count(command, stdout.as_bytes(), stderr.as_bytes())?;
    Some((counts.runner, counts.passed, counts.failed, counts.skipped))
}

/// Recorded from the runners themselves, paths shortened.
#[test]
fn real_runners_are_read() {
    for (file, text, runner, numbers, failing) in [
        (
            "cargo",
            include_str!("golden/cargo.txt"),
            "cargo test",
            (2, 1, 1),
            &["bad"][..],
        ),
        (
            "nextest",
            include_str!("golden/nextest.txt"),
            "cargo nextest",
            (1, 1, 1),
            &["sample bad"],
        ),
        (
            "pytest",
            include_str!("golden/pytest.txt"),
            "pytest",
            (2, 3, 2),
            &[
                "test_a.py::test_sum",
                "test_a.py::T::test_v",
                "test_a.py::test_err",
            ],
        ),
        (
            "pytest -q",
            include_str!("golden/pytest-q.txt"),
            "pytest",
            (2, 3, 2),
            &[
                "test_a.py::test_sum",
                "test_a.py::T::test_v",
                "test_a.py::test_err",
            ],
        ),
        (
            "unittest",
            include_str!("golden/unittest.txt"),
            "unittest",
            (1, 1, 1),
            &["test_v (test_a.T.test_v)"],
        ),
        (
            "go",
            include_str!("golden/go.txt"),
            "go test",
            (1, 1, 1),
            &["TestBad", "TestBad/inner"],
        ),
        (
            "go -v",
            include_str!("golden/go-v.txt"),
            "go test",
            (2, 2, 1),
            &["TestBad", "TestBad/inner"],
        ),
        (
            "go -json",
            include_str!("golden/go-json.txt"),
            "go test -json",
            (2, 2, 1),
            &["sample TestBad/inner", "sample TestBad"],
        ),
        (
            "jest",
            include_str!("golden/jest.txt"),
            "jest",
            (1, 1, 1),
            &["sums › bad"],
        ),
        (
            "vitest",
            include_str!("golden/vitest.txt"),
            "vitest",
            (1, 1, 1),
            &["bad"],
        ),
        (
            "mocha",
            include_str!("golden/mocha.txt"),
            "mocha",
            (1, 2, 1),
            &["sums bad", "sums deep worse"],
        ),
        (
            "mocha tap",
            include_str!("golden/mocha-tap.txt"),
            "TAP",
            (1, 2, 1),
            &["sums bad", "sums deep worse"],
        ),
        (
            "node tap",
            include_str!("golden/node-tap.txt"),
            "TAP",
            (3, 1, 1),
            &["bad"],
        ),
        (
            "node spec",
            include_str!("golden/node-spec.txt"),
            "TAP",
            (3, 1, 1),
            &["bad"],
        ),
        (
            "node junit",
            include_str!("golden/node.xml"),
            "JUnit XML",
            (2, 1, 1),
            &["test bad"],
        ),
        (
            "pytest junit",
            include_str!("golden/pytest.xml"),
            "JUnit XML",
            (2, 3, 2),
            &["test_a test_sum", "test_a test_err", "test_a.T test_v"],
        ),
    ] {
        for (stdout, stderr) in [(text, ""), ("", text)] {
            let counts = count("make check", stdout.as_bytes(), stderr.as_bytes());
            let counts = counts.unwrap_or_else(|| panic!("{file} is not read"));
            let found = (counts.passed, counts.failed, counts.skipped);
            assert_eq!((&*counts.runner, found), (runner, numbers), "{file}");
            assert_eq!(counts.failing, failing, "{file}");
            assert_eq!(counts.from == From::Stdout, stderr.is_empty());
        }
    }
}

#[test]
fn packages_are_told_from_tests() {
    let plain = count("x", include_bytes!("golden/go.txt"), b"").unwrap();
    assert_eq!(plain.unit, Unit::Packages);
    let verbose = count("x", include_bytes!("golden/go-v.txt"), b"").unwrap();
    assert_eq!(verbose.unit, Unit::Tests);
}

#[test]
fn several_summaries_are_added_up_and_counted() {
    let text = "1 passed in 0.01s\nsomething\n1 failed, 2 passed in 0.02s\n";
    let counts = count("tox", text.as_bytes(), b"").unwrap();
    assert_eq!((counts.passed, counts.failed, counts.summaries), (3, 1, 2));
}

#[test]
fn what_the_command_names_counts_before_what_stands_last() {
    // A program under test that prints what another runner would.
    let text = "test result: FAILED. 1 passed; 3 failed; 0 ignored\n  100 passing (1ms)\n";
    let named = counted_in("cargo test", text, "");
    assert_eq!(named, Some(("cargo test".into(), 1, 3, 0)));
    let other = counted_in("./run-tests", text, "");
    assert_eq!(other, Some(("mocha".into(), 100, 0, 0)));
}

#[test]
fn words_that_are_no_summary_are_not_taken_for_one() {
    for text in [
        "",
        "ok",
        "ok 1 - name\n",
        "all 5 passed in time\n",
        "3 passed in a row\n",
        "test result: ok. many passed; 0 failed; 0 ignored\n",
        "test result: ok. 99999999999999999999 passed; 0 failed; 0 ignored\n",
        "Tests: 5 green, 5 total\n",
        "Ran 5 tests in 0.1s\n",
        "<testsuites><testcase name='a'>",
        "<testsuites></testsuite>",
        "<!DOCTYPE x [<!ENTITY a 'b'>]><testsuites></testsuites>",
        "<?xml version='1.0'?><!DOCTYPE x><testsuites><testcase name='a'/></testsuites>",
        "<?xml version='1.0'?><html><testcase name='a'/></html>",
    ] {
        assert_eq!(count("x", text.as_bytes(), b""), None, "{text}");
    }
}

#[test]
fn names_and_lines_are_bounded() {
    let mut text = String::new();
    for number in 0..200 {
        text += &format!("test t{number}_{} ... FAILED\n", "x".repeat(400));
    }
    text += "test result: FAILED. 0 passed; 200 failed; 0 ignored\n";
    let counts = count("x", text.as_bytes(), b"").unwrap();
    assert_eq!((counts.failing.len(), counts.failing_more), (NAMES, 150));
    assert!(
        counts
            .failing
            .iter()
            .all(|name| name.chars().count() <= NAME_CHARACTERS)
    );
    let deep = "<testsuite>".repeat(100_000);
    assert_eq!(count("x", deep.as_bytes(), b""), None);
}

#[test]
fn an_entity_is_not_expanded() {
    let text = "<testsuites><testcase name=\"a&lol;&amp;lt;\"><failure/></testcase></testsuites>";
    let counts = count("x", text.as_bytes(), b"").unwrap();
    assert_eq!(counts.failing, ["a&lol;&lt;"]);
}

proptest::proptest! {
    #[test]
    fn no_output_makes_it_panic(
        file in 0usize..6,
        at: proptest::sample::Index,
        cut: proptest::sample::Index,
        byte: u8,
    ) {
        let texts = [
            include_str!("golden/pytest.xml"),
            include_str!("golden/mocha.txt"),
            include_str!("golden/node-tap.txt"),
            include_str!("golden/vitest.txt"),
            include_str!("golden/go-json.txt"),
            include_str!("golden/nextest.txt"),
        ];
        let mut text = texts[file].as_bytes().to_vec();
        let at = at.index(text.len());
        text[at] = byte;
        let _ = count("x", &text, &text[cut.index(text.len())..]);
    }

    #[test]
    fn numbers_are_those_of_the_summary(passed in 0u64..1_000_000, failed in 0u64..1_000_000, skipped in 0u64..1000) {
        for text in [
            format!("test result: ok. {passed} passed; {failed} failed; {skipped} ignored; 0 measured\n"),
            format!("== {failed} failed, {passed} passed, {skipped} skipped in 1.00s ==\n"),
            format!("Tests:  {failed} failed, {skipped} skipped, {passed} passed, 9 total\n"),
            format!("   Tests  {failed} failed | {passed} passed | {skipped} skipped (9)\n"),
            format!("  {passed} passing (1ms)\n  {skipped} pending\n  {failed} failing\n"),
            format!("1..3\n# pass {passed}\n# fail {failed}\n# skipped {skipped}\n"),
        ] {
            let found = counted_in("x", &text, "");
            let found = found.map(|(_, passed, failed, skipped)| (passed, failed, skipped));
            proptest::prop_assert_eq!(found, Some((passed, failed, skipped)), "{}", text);
        }
    }
}

#[test]
fn a_runner_is_run_by_whole_words() {
    for command in [
        "pytest -q",
        "/usr/bin/python3 -m pytest -q tests",
        "cd a && venv/bin/pytest",
        "sh -c 'pytest -q'",
        "pip install pytest && pytest",
        "CI=1 timeout 60 cargo test --all",
        "go test ./...",
        "python3 -m unittest",
        "npx jest",
        "prove -r t",
    ] {
        assert!(runs_known(command), "{command}");
    }
    assert!(runs_known("python3 -mpytest -q"));
    for command in [
        "true",
        "grep -q prove notes",
        "test -e pytest",
        "pip install pytest",
        "python3 improve.py tape",
        "cargo build",
        "",
    ] {
        assert!(!runs_known(command), "{command}");
    }
}

#[test]
fn a_file_that_ends_before_its_first_test_is_no_test() {
    let tap = "TAP version 13\n# Subtest: /w/a.test.js\nok 1 - /w/a.test.js\n  ---\n  ...\n\
        1..1\n# tests 1\n# pass 1\n# fail 0\n";
    let spec = "✔ a.test.mjs (82.4ms)\n✔ two (1.2ms)\nℹ tests 2\nℹ pass 2\nℹ fail 0\n";
    // As older ones have it: what is in a file stands below it.
    let nested = "TAP version 13\n# Subtest: /w/a.test.js\n    # Subtest: one\n    ok 1 - one\n    1..1\n\
        ok 1 - /w/a.test.js\n1..1\n# tests 1\n# pass 1\n# fail 0\n";
    for (text, passed) in [(tap, 0), (spec, 1), (nested, 1)] {
        let counts = count("node --test", text.as_bytes(), b"").expect("it is told");
        assert_eq!(counts.passed, passed, "{text}");
    }
}
