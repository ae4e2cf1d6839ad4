//! Searches of small trees, and against `grep` on a larger one.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use ringfence_model::tools::{FailureKind, MAX_RESPONSE};
use serde_json::{Value, json};

use super::*;
use crate::testing::Bench;

fn places(bench: &Bench, request: Value) -> Vec<String> {
    let answer = bench.call(search, request).unwrap();
    let matches = answer.matches.iter();
    matches
        .map(|found| {
            format!(
                "{}:{}:{}:{}",
                found.path, found.line, found.column, found.text
            )
        })
        .collect()
}

#[test]
fn patterns_mean_what_ripgrep_means_by_them() {
    let bench = Bench::new();
    bench.file("a.txt", "Foo bar\nfoobar\r\nno\nfoo.bar");
    bench.file("b.rs", "fn foo() {\n    bar\n}\n");
    bench.file("sub/c.txt", "foo\n");
    bench.file(".hidden", "foo\n");
    bench.file("skip/x", "foo\n");
    bench.file(".gitignore", "skip\n");
    for (request, expected) in [
        (
            json!({"pattern": "foo"}),
            &[
                "a.txt:2:1:foobar",
                "a.txt:4:1:foo.bar",
                "b.rs:1:4:fn foo() {",
                "sub/c.txt:1:1:foo",
            ][..],
        ),
        (
            json!({"pattern": "o.b", "fixed": true}),
            &["a.txt:4:3:foo.bar"],
        ),
        (
            json!({"pattern": "foo b", "case": "insensitive"}),
            &["a.txt:1:1:Foo bar"],
        ),
        (json!({"pattern": "FOO", "case": "smart"}), &[]),
        (
            json!({"pattern": "FOO$", "case": "insensitive", "path": "sub"}),
            &["sub/c.txt:1:1:foo"],
        ),
        (
            json!({"pattern": "foo", "word": true, "globs": ["*.txt", "!sub"]}),
            &["a.txt:4:1:foo.bar"],
        ),
        (
            json!({"pattern": r"\{\n\s+bar", "multiline": true}),
            &["b.rs:1:10:fn foo() {\n    bar"],
        ),
        (
            json!({"pattern": "foo", "hidden": true, "ignored": "show", "globs": ["!*.*", "skip/x", ".hidden"]}),
            &[".hidden:1:1:foo", "skip/x:1:1:foo"],
        ),
        (
            json!({"pattern": "^foo", "path": "a.txt", "limit": 1}),
            &["a.txt:2:1:foobar"],
        ),
    ] {
        assert_eq!(places(&bench, request.clone()), expected, "{request}");
    }
    for (request, kind) in [
        (json!({"pattern": "("}), FailureKind::Invalid),
        (json!({"pattern": ""}), FailureKind::Invalid),
        (json!({"pattern": "a\\nb"}), FailureKind::Invalid),
        (json!({"pattern": "a", "limit": 5001}), FailureKind::Invalid),
        (json!({"pattern": "a", "context": 51}), FailureKind::Invalid),
        (
            json!({"pattern": "a", "globs": ["{"]}),
            FailureKind::Invalid,
        ),
        (
            json!({"pattern": "a", "path": "../outside"}),
            FailureKind::Denied,
        ),
        (json!({"pattern": "a", "path": "no"}), FailureKind::NotFound),
    ] {
        let failure = bench.call(search, request.clone()).unwrap_err();
        assert_eq!(failure.kind, kind, "{request}");
    }
}

#[test]
fn context_is_shared_by_neighbours() {
    let bench = Bench::new();
    bench.file("f", "1\nx2\n3\nx4\n5\n6\n7\nx8\n");
    let request = json!({"pattern": "x", "context": 2, "limit": 2});
    let answer = bench.call(search, request).unwrap();
    let around: Vec<_> = answer
        .matches
        .iter()
        .map(|found| (found.before.join(","), found.after.join(",")))
        .collect();
    let expected = [("1", "3,x4"), ("x2,3", "5,6")];
    assert_eq!(around, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
    assert!(answer.truncated);
    let request = json!({"pattern": "x8", "before": 1, "path": "f"});
    let answer = bench.call(search, request).unwrap();
    assert_eq!(answer.matches[0].before, ["7"]);
    assert!(answer.matches[0].after.is_empty() && !answer.truncated);
}

#[test]
fn what_is_not_text_or_not_inside_is_left_out() {
    let bench = Bench::new();
    bench.file("binary", b"\0secret");
    bench.file("latin", b"secret \xe9\n");
    fs::write(bench.outside("f"), "secret").unwrap();
    symlink("../outside/f", bench.path("link")).unwrap();
    symlink("../outside", bench.path("dir")).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, bench.path("fifo"), fifo, mode, 0).unwrap();
    assert_eq!(
        places(&bench, json!({"pattern": "secret"})),
        ["latin:1:1:secret \u{fffd}"]
    );
}

#[test]
fn an_answer_has_a_bound() {
    let bench = Bench::new();
    bench.file("long", format!("x{}\n", "ä".repeat(2_000)));
    let answer = bench.call(search, json!({"pattern": "x"})).unwrap();
    assert!(answer.matches[0].text.len() < 2_010);
    assert!(answer.matches[0].text.ends_with("ä…"));
    let line = format!("x{}\n", "\u{1}".repeat(1_900));
    bench.file("many", line.repeat(10_000));
    let request = json!({"pattern": "x", "limit": 5_000, "context": 50});
    let answer = bench.call(search, request).unwrap();
    assert!(answer.truncated);
    assert!(serde_json::to_vec(&answer).unwrap().len() < MAX_RESPONSE);
}

#[test]
fn the_same_lines_are_found_as_by_grep() {
    let bench = Bench::new();
    // Words in an order that repeats late.
    let words = [
        "alpha", "beta", "gamma", "delta", "alphabet", "Beta", "be ta",
    ];
    let mut number: usize = 7;
    for file in 0..40 {
        let mut content = String::new();
        for _ in 0..200 {
            number = (number * 1_103_515_245 + 12_345) % 2_147_483_648;
            content.push_str(words[(number >> 8) % words.len()]);
            content.push(if number.is_multiple_of(3) { ' ' } else { '\n' });
        }
        bench.file(&format!("d{}/f{file}", file % 7), content);
    }
    for pattern in ["alpha", "b.ta$", "^(alpha|gamma) ", "t b"] {
        let output = Command::new("grep")
            .args(["-rnE", pattern, "."])
            .current_dir(bench.path(""))
            .output()
            .expect("grep runs");
        let mut expected: Vec<String> = String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .map(|line| line.trim_start_matches("./").to_owned())
            .collect();
        expected.sort();
        let request = json!({"pattern": pattern, "limit": 5_000});
        let answer = bench.call(search, request).unwrap();
        let mut found: Vec<String> = answer
            .matches
            .iter()
            .map(|found| format!("{}:{}:{}", found.path, found.line, found.text))
            .collect();
        found.sort();
        assert!(!expected.is_empty());
        assert_eq!(found, expected, "{pattern}");
    }
}
