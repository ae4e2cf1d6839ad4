//! Rows as they are written, and as they should not be.

use super::*;

fn read(text: &str) -> Result<Row, RowError> {
    row(text.as_bytes())
}

const OWN: &str = r#"{"id":"a","repo":"r","commit":"c","prompt":"do it","check":"make test"}"#;

#[test]
fn a_row_of_our_own_is_read() {
    let row = read(OWN).unwrap();
    assert_eq!(row.steps, [Step::Prompt("do it".to_owned())]);
    assert_eq!(row.checks, ["make test"]);
    let row = read(
        r#"{"id":"a","repo":"r","commit":"c","steps":["one",{"command":"ls"},{"prompt":"two"},
           {"command":["ls","-l"]}],"checks":["a","b"],"hidden_files":{"t/x":"y"},
           "tags":["t"],"limits":{"time":"5m","processes":64}}"#,
    )
    .unwrap();
    assert_eq!(row.steps.len(), 4);
    let line = ["/bin/sh", "-c", "ls"].map(str::to_owned).to_vec();
    assert_eq!(row.steps[1], Step::Command(line));
    assert_eq!(row.hidden.files["t/x"], "y");
    assert_eq!(row.limits[&Limit::Time], "5m");
}

#[test]
fn a_row_of_a_known_collection_is_read() {
    for lists in [
        r#""FAIL_TO_PASS":["t::a","t::b"],"PASS_TO_PASS":["t::b","t::c"]"#,
        r#""FAIL_TO_PASS":"[\"t::a\", \"t::b\"]","PASS_TO_PASS":"[\"t::b\",\"t::c\"]""#,
    ] {
        let text = format!(
            r#"{{"instance_id":"o__n-1","repo":"o/n","base_commit":"abc","problem_statement":"fix",
               "hints_text":"","version":"1.0","patch":"gold","test_patch":"tests",{lists}}}"#
        );
        let row = read(&text).unwrap();
        assert_eq!(row.tests, ["t::a", "t::b", "t::c"]);
        assert_eq!(
            (row.gold.as_deref(), row.hidden.patch.as_deref()),
            (Some("gold"), Some("tests"))
        );
    }
}

#[test]
fn what_is_no_row_is_told() {
    for (from, to, said) in [
        ("{", "[", "not JSON"),
        (OWN, "[]", "not a JSON object"),
        (r#""id":"a""#, r#""id":"a","id":"b""#, "twice"),
        (r#""id":"a","#, "", "no `id`"),
        (r#""id":"a""#, "\"id\":\"a\\u202eb\"", "`id` is not"),
        (r#""id":"a""#, r#""id":"a","typo":1"#, "`typo` is not known"),
        (r#""prompt":"do it""#, r#""steps":[]"#, "`steps` is not"),
        (
            r#""prompt":"do it""#,
            r#""steps":[{"promt":"x"}]"#,
            "`steps` is not",
        ),
        (
            r#""prompt":"do it""#,
            r#""prompt":"x","steps":["y"]"#,
            "both",
        ),
        (
            r#""check":"make test""#,
            r#""tags":["x"]"#,
            "nothing to decide",
        ),
        ("make test", "a\\nb", "cannot be used"),
        (
            r#""check":"make test""#,
            r#""tests":["--help"]"#,
            "no option",
        ),
        (
            r#""commit":"c""#,
            r#""commit":"c","limits":{"tme":"1"}"#,
            "limit `tme`",
        ),
        (
            r#""commit":"c""#,
            r#""commit":"c","limits":{"time":"soon"}"#,
            "limit `time`",
        ),
        (
            r#""commit":"c""#,
            r#""commit":"c","hidden_files":{"a":1}"#,
            "`hidden_files`",
        ),
    ] {
        let text = OWN.replacen(from, to, 1);
        assert_ne!(text, OWN, "{from}");
        let error = read(&text).unwrap_err().to_string();
        assert!(error.contains(said), "{text}: {error}");
    }
}

#[test]
fn tests_are_words_and_lines_have_a_bound() {
    let tests = ["a.py::t[x y]", "b'; rm -rf /"].map(str::to_owned);
    let lines = test_lines("pytest -q {tests}", &tests);
    assert_eq!(
        lines,
        [("pytest -q 'a.py::t[x y]' 'b'\\''; rm -rf /'".to_owned(), 2)]
    );
    let many: Vec<String> = (0..5000)
        .map(|n| format!("tests/test_{n}.py::{}", "x".repeat(60)))
        .collect();
    let lines = test_lines("pytest {tests}", &many);
    assert!(lines.len() > 1);
    assert!(lines.iter().all(|(line, _)| line.len() < 100_000));
    assert_eq!(lines.iter().map(|(_, count)| count).sum::<u64>(), 5000);
}

#[test]
fn a_repository_is_named_and_nothing_else() {
    for (template, repo, address_of) in [
        ("/srv/repos", "o/n", Some("/srv/repos/o/n")),
        ("/srv/repos/", "n", Some("/srv/repos/n")),
        (
            "https://git.example/{repo}.git",
            "o/n",
            Some("https://git.example/o/n.git"),
        ),
        ("/srv", "../n", None),
        ("/srv", "o/../../etc", None),
        ("/srv", "/etc", None),
        ("/srv", "-o/n", None),
        ("/srv", "o/n?x", None),
        ("/srv", "o/.git", None),
    ] {
        assert_eq!(address(template, repo).as_deref(), address_of, "{repo}");
    }
}
