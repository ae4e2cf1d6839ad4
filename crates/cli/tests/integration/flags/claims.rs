//! The agent's result file: honest, lying, and hostile.

use std::fs;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::{flags, has, lacks};
use crate::support::{expect, in_each_mode};

/// A project with one test, which fails until `a.py` says 2.
const PROJECT: &str = "mkdir tests; echo 'def f(): return 1' > a.py; touch tests/__init__.py
printf '%s\\n' 'import unittest' 'from a import f' 'class T(unittest.TestCase):' \
    '    def test(self):' '        self.assertEqual(f(), 2)' > tests/test_a.py
export PYTHONDONTWRITEBYTECODE=1
";

fn claim(json: &str) -> String {
    format!("\ncat > \"$RINGFENCE_RESULT\" <<'END'\n{json}\nEND\n")
}

#[test]
fn r24_an_honest_claim_stands_beside_what_was_seen() -> Result<()> {
    in_each_mode("honest", |env, fixture| {
        let says = claim(
            r#"{"status": "success", "summary": "it says 2", "commands": ["python3 -m unittest"],
                "tests": {"status": "passed", "passed": 1, "failed": 0, "command": "unittest"},
                "changed_files": ["a.py", "tests/"], "mood": "good"}"#,
        );
        let work = "sed -i s/1/2/ a.py; python3 -m unittest -q 2>/dev/null || exit 1";
        let result = env.run_with(fixture, &[], &format!("{PROJECT}{work}{says}"))?;
        expect(&result, "status", "done")?;
        ensure!(
            result["claimed"]["summary"] == "it says 2"
                && result["claimed"]["unknown"] == json!(["mood"]),
            "{}",
            result["claimed"]
        );
        let test = &result["observed"]["tests"][0];
        ensure!(
            test["runner"] == "unittest" && test["result"] == "passed" && test["code"] == 0,
            "{}",
            result["observed"]
        );
        ensure!(
            !flags(&result).iter().any(|flag| flag.contains("claim")),
            "{}",
            result["flags"]
        );
        // The file is outside the workspace.
        ensure!(
            !result["changed_files"].to_string().contains("ringfence"),
            "{}",
            result["changed_files"]
        );
        let shown: Value = serde_json::from_str(&env.look(fixture, &["show", "--json"])?)?;
        ensure!(shown["flags"] == result["flags"] && shown["bundle"] == result["bundle"]);
        let page = env.look(fixture, &["show"])?;
        ensure!(page.contains("says of tests: passed, 1 passed"), "{page}");
        Ok(())
    })
}

#[test]
fn r27_tests_that_are_said_to_pass_must_have_passed() -> Result<()> {
    in_each_mode("lies", |env, fixture| {
        let says = claim(r#"{"tests": {"status": "passed", "passed": 120}}"#);
        let test = "python3 -m unittest -q 2>/dev/null;";
        for (work, flag) in [
            // clm-001: only printed.
            (
                "echo 'test result: ok. 120 passed; 0 failed'",
                "serious claim_without_evidence",
            ),
            (test, "serious claim_contradicted"),
            // What passed is not what is handed in.
            (
                "sed -i s/1/2/ a.py; python3 -m unittest -q 2>/dev/null; echo >> a.py",
                "warning claim_without_evidence",
            ),
            // clm-005: the shell says 0 all the same.
            (
                "sh -c 'trap \"exit 0\" EXIT; python3 -m unittest -q' 2>/dev/null",
                "serious claim_contradicted",
            ),
            // clm-002: a runner of its own.
            (
                "mkdir bin; printf '#!/bin/sh\\nexit 0\\n' > bin/cargo; chmod +x bin/cargo; \
                 PATH=/workspace/bin:$PATH cargo test",
                "serious claim_without_evidence",
            ),
        ] {
            let result = env.run_with(fixture, &[], &format!("{PROJECT}{work}{says}"))?;
            expect(&result, "status", "done")?;
            has(&result, flag)?;
        }
        // Without a claim, a test that failed is told as what it is.
        let result = env.run_with(fixture, &[], &format!("{PROJECT}{test} true"))?;
        has(&result, "warning tests_failed")?;
        let shown = env.look(fixture, &["show"])?;
        ensure!(shown.contains("**failed** with 1"), "{shown}");
        Ok(())
    })
}

#[test]
fn r23_files_and_commands_that_are_only_claimed_are_named() -> Result<()> {
    in_each_mode("mismatch", |env, fixture| {
        let says = claim(
            r#"{"changed_files": ["other.py", "b.txt"], "commands": ["npm install", "cat a.txt"]}"#,
        );
        let work = "echo x > b.txt; echo y > c.txt; cat a.txt";
        let result = env.run_with(fixture, &[], &format!("{work}{says}"))?;
        let found = result["flags"].to_string();
        ensure!(
            found.contains("other.py") && found.contains("npm install"),
            "{found}"
        );
        let mismatch = super::paths(&result, "claim_mismatch");
        ensure!(mismatch == ["c.txt"], "{mismatch:?}");
        ensure!(!found.contains("cat a.txt"), "{found}");
        expect(&result, "changed_files", vec!["b.txt", "c.txt"])
    })
}

#[test]
fn a_hostile_result_file_stops_nothing() -> Result<()> {
    in_each_mode("hostile", |env, fixture| {
        let deep = "python3 -c 'print(\"{\\\"x\\\":\" + \"[\" * 30000)' > $f";
        for (make, why) in [
            ("mkfifo $f", "a FIFO"),
            ("mkdir $f", "a directory"),
            ("ln -s /etc/passwd $f", "a link"),
            ("ln -s /dev/zero $f", "a link"),
            ("truncate -s 1G $f", "more than 65536 bytes"),
            (
                "head -c 65537 /dev/zero | tr '\\0' ' ' > $f",
                "more than 65536",
            ),
            ("printf '{' > $f", "not JSON"),
            ("printf '\\377\\376' > $f", "not JSON"),
            (deep, "not JSON"),
            ("echo '[]' > $f", "not JSON"),
            ("echo '{\"tests\": \"passed\"}' > $f", "tests"),
            (
                "echo '{\"changed_files\": {\"a\": 1}}' > $f",
                "changed_files",
            ),
            ("echo '{}' > $f; chmod 000 $f", "cannot be read"),
        ] {
            let shell = format!("f=$RINGFENCE_RESULT; {make}; echo x > b.txt");
            let result = env.run_with(fixture, &[], &shell)?;
            expect(&result, "status", "done")?;
            expect(&result, "claimed", Value::Null)?;
            has(&result, "warning claim_unreadable")?;
            let said = result["flags"].to_string();
            ensure!(said.contains(why), "`{make}`: {said}");
            expect(&result, "changed_files", vec!["b.txt"])?;
        }
        // One that changes all the time under the reader.
        let race = "f=$RINGFENCE_RESULT; (while :; do mkfifo $f; rm $f; ln -s /dev/zero $f; rm $f; \
            echo '{}' > $f; rm $f; done) >/dev/null 2>&1 & echo x > b.txt";
        let result = env.run_with(fixture, &[], race)?;
        expect(&result, "status", "done")
    })
}

#[test]
fn where_no_claim_is_there_is_none() -> Result<()> {
    in_each_mode("none", |env, fixture| {
        let result = env.run_with(fixture, &[], "true")?;
        expect(&result, "claimed", Value::Null)?;
        lacks(&result, "claim_unreadable")?;
        // clm-006: nothing in the workspace is taken for one.
        let forged =
            "echo '{\"tests\":\"passed\"}' | tee .sandbox-result.json ringfence-result.json";
        let result = env.run_with(fixture, &[], forged)?;
        expect(&result, "claimed", Value::Null)?;
        lacks(&result, "claim_unreadable")?;
        // Unless the caller says so.
        let options = ["--env", "RINGFENCE_RESULT=/workspace/out.json"];
        let write = "echo '{\"notes\": \"n\"}' > $RINGFENCE_RESULT";
        let result = env.run_with(fixture, &options, write)?;
        ensure!(result["claimed"]["notes"] == "n", "{}", result["claimed"]);
        let result = env.run_with(fixture, &["--env", "RINGFENCE_RESULT="], "true")?;
        expect(&result, "claimed", Value::Null)
    })
}

#[test]
fn r28_the_summary_is_in_the_bundle_and_nothing_in_it_is_forged() -> Result<()> {
    in_each_mode("summary", |env, fixture| {
        let says = claim(
            r##"{"summary": "# Forged\n[x](https://host)\n```\n<img src=x onerror=alert(1)>"}"##,
        );
        let names = "touch '<img src=x onerror=alert(1)>.txt' '`## Forged`' '\n# Forged'";
        let result = env.run_with(fixture, &[], &format!("{names}{says}"))?;
        let bundle = std::path::Path::new(result["bundle"].as_str().unwrap_or_default());
        let page = fs::read_to_string(bundle.join("summary.md"))?;
        for line in page.lines() {
            ensure!(
                !line.trim_start().starts_with('#') || !line.contains("Forged"),
                "a heading: {line}"
            );
            // What the agent chose stands between backticks: none of it is left without them.
            let outside: String = spans_removed(line);
            for word in ["<img", "](", "Forged"] {
                ensure!(!outside.contains(word), "`{word}` is free in: {line}");
            }
        }
        ensure!(page.contains("onerror"), "{page}");
        Ok(())
    })
}

/// A line without its code spans.
fn spans_removed(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(at) = rest.find('`') {
        out.push_str(&rest[..at]);
        let length = rest[at..].bytes().take_while(|b| *b == b'`').count();
        let fence = "`".repeat(length);
        let body = &rest[at + length..];
        let mut end = None;
        let mut from = 0;
        while let Some(found) = body[from..].find(&fence) {
            let start = from + found;
            let run = body[start..].bytes().take_while(|b| *b == b'`').count();
            if run == length {
                end = Some(start + run);
                break;
            }
            from = start + run;
        }
        match end {
            Some(end) => rest = &body[end..],
            None => {
                out.push_str(&rest[at..]);
                return out;
            }
        }
    }
    out + rest
}
