//! Checks of the host's own: verdicts, and the lies that agents and checks could tell.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::support::{Fixture, Sandboxed, in_each_mode, said};

/// The exit code of a run whose checks do not hold.
const CHECKS_FAILED: Option<i32> = Some(5);

fn report<'a>(result: &'a Value, command: &str) -> Result<&'a Value> {
    let reports = result["checks"]["reports"].as_array();
    let mut reports = reports.into_iter().flatten();
    reports
        .find(|report| report["command"] == command)
        .with_context(|| format!("no report of `{command}`: {}", result["checks"]))
}

fn verdict(result: &Value, command: &str) -> Result<String> {
    Ok(report(result, command)?["verdict"]
        .as_str()
        .unwrap_or_default()
        .to_owned())
}

fn has_flag(result: &Value, kind: &str, severity: &str) -> bool {
    let mut flags = result["flags"].as_array().into_iter().flatten();
    flags.any(|flag| flag["kind"] == kind && flag["severity"] == severity)
}

/// Files of the folder, as committed.
pub fn commit(env: &Sandboxed, fixture: &Fixture, files: &[(&str, &str)]) -> Result<()> {
    for (name, content) in files {
        if let Some((above, _)) = name.rsplit_once('/') {
            env.as_owner(fixture, &fixture.folder, &["mkdir", "-p", above])?;
        }
        env.put(fixture, name, content)?;
    }
    env.git(fixture, &fixture.folder, &["add", "-A"])?;
    env.git(fixture, &fixture.folder, &["commit", "-qm", "more"])?;
    Ok(())
}

#[test]
fn r31_a_check_is_fixed_broken_passing_or_failing() -> Result<()> {
    in_each_mode("verdicts", |env, fixture| {
        commit(env, fixture, &[("value", "1\n")])?;
        let options = [
            "--check",
            "grep -q 2 value",
            "--check",
            "grep -q 1 value",
            "--check",
            "true",
            "--check",
            "exit 7",
        ];
        let result = env.run_with(fixture, &options, "echo 2 > value")?;
        for (check, expected) in [
            ("grep -q 2 value", "fixed"),
            ("grep -q 1 value", "broke"),
            ("true", "passes"),
            ("exit 7", "still_failing"),
        ] {
            let found = verdict(&result, check)?;
            ensure!(
                found == expected,
                "{check}: {found}: {}",
                report(&result, check)?
            );
        }
        ensure!(
            has_flag(&result, "check_failed", "serious"),
            "{}",
            result["flags"]
        );
        // What broke was done again, to be sure.
        let broke = report(&result, "grep -q 1 value")?["executions"].as_array();
        let again = broke
            .into_iter()
            .flatten()
            .filter(|own| own["tree"] == "patched");
        ensure!(
            again.count() == 2,
            "{}",
            report(&result, "grep -q 1 value")?
        );
        let run = result["run"].as_str().context("no run")?;
        env.look(fixture, &["verify", run])?;
        let page = env.look(fixture, &["show", run])?;
        ensure!(
            page.contains("Checks of the host")
                && page.contains("fixed; exit 1 before; exit 0 now"),
            "{page}"
        );
        let told = env.look(fixture, &["audit", run])?;
        ensure!(
            told.contains("check 1 on base began: grep -q 2 value"),
            "{told}"
        );
        ensure!(fs::read(fixture.folder.join("value"))? == b"1\n");
        Ok(())
    })
}

#[test]
fn the_exit_code_says_that_a_check_does_not_hold() -> Result<()> {
    in_each_mode("code", |env, fixture| {
        commit(env, fixture, &[("value", "1\n")])?;
        for (check, shell, code) in [
            ("grep -q 2 value", "echo 2 > value", Some(0)),
            ("grep -q 1 value", "echo 2 > value", CHECKS_FAILED),
            ("grep -q 2 value", "echo 2 > value; exit 3", Some(1)),
        ] {
            let words = ["run", "--check", check, "--", "sh", "-c", shell];
            let output = env.call(fixture).finish(&words)?;
            ensure!(
                output.status.code() == code,
                "{check}, {shell}: {}",
                output.tail()
            );
        }
        Ok(())
    })
}

#[test]
fn clm_003_an_exam_that_the_agent_changed_is_taken_both_ways() -> Result<()> {
    in_each_mode("exam", |env, fixture| {
        commit(
            env,
            fixture,
            &[
                ("value", "1\n"),
                ("tests/value.sh", "grep -q 2 value\n"),
                ("tests/true.sh", "true\n"),
                (
                    "run-tests",
                    "for t in tests/*.sh; do sh $t || exit 1; done\n",
                ),
            ],
        )?;
        let check = "sh run-tests";
        for (lie, shell) in [
            ("edited", "echo true > tests/value.sh"),
            ("deleted", "rm tests/value.sh"),
            ("another examiner", "echo true > run-tests"),
            ("moved away", "mkdir attic; mv tests/value.sh attic/"),
            (
                "a link in its place",
                "mkdir other; echo true > other/a.sh; rm -r tests; ln -s other tests",
            ),
        ] {
            let result = env.run_with(fixture, &["--check", check], shell)?;
            let found = report(&result, check)?;
            ensure!(
                found["verdict"] == "fixed" && found["exam"] == "still_failing",
                "{lie}: {found}"
            );
            ensure!(
                has_flag(&result, "exam_changed", "serious"),
                "{lie}: {}",
                result["flags"]
            );
        }
        // Done honestly, with a test of its own beside.
        let honest = "echo 2 > value; echo 'grep -q 2 value' > tests/more.sh";
        let result = env.run_with(fixture, &["--check", check], honest)?;
        let found = report(&result, check)?;
        ensure!(
            found["verdict"] == "fixed" && found["exam"] == "fixed",
            "{found}"
        );
        ensure!(
            !has_flag(&result, "exam_changed", "serious"),
            "{}",
            result["flags"]
        );
        ensure!(
            has_flag(&result, "exam_changed", "info"),
            "{}",
            result["flags"]
        );
        Ok(())
    })
}

#[test]
fn what_runs_in_place_of_a_test_runner_is_not_believed() -> Result<()> {
    in_each_mode("shadow", |env, fixture| {
        commit(
            env,
            fixture,
            &[
                ("a.py", "def f(): return 1\n"),
                (
                    "test_a.py",
                    "import unittest\nfrom a import f\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertEqual(f(), 2)\n",
                ),
                ("package.json", "{\"scripts\": {\"test\": \"exit 1\"}}\n"),
                ("Makefile", "test:\n\tpython3 -m unittest -q\n"),
            ],
        )?;
        for (lie, check, shell) in [
            (
                "a module in place of the runner",
                "python3 -m unittest -q",
                "echo 'raise SystemExit(0)' > unittest.py",
            ),
            (
                "another recipe",
                "make -s test",
                "printf 'test:\\n\\ttrue\\n' > Makefile",
            ),
            (
                "another script",
                "sh -c \"$(sed -n 's/.*\\\"test\\\": \\\"\\(.*\\)\\\"}}/\\1/p' package.json)\"",
                "sed -i 's/exit 1/true/' package.json",
            ),
        ] {
            let result = env.run_with(fixture, &["--check", check], shell)?;
            let found = report(&result, check)?;
            ensure!(
                found["verdict"] == "fixed" && found["exam"] == "still_failing",
                "{lie}: {found}"
            );
        }
        Ok(())
    })
}

#[test]
fn clm_002_what_did_not_cross_back_is_not_there() -> Result<()> {
    in_each_mode("ignored", |env, fixture| {
        commit(
            env,
            fixture,
            &[(".gitignore", "node_modules/\nbuild/\n"), ("value", "1\n")],
        )?;
        // The user's own packages are there; they are the folder's.
        env.as_owner(
            fixture,
            &fixture.folder,
            &["mkdir", "-p", "node_modules/.bin"],
        )?;
        env.put(fixture, "node_modules/.bin/tool", "grep -q 2 value\n")?;
        let shell = "echo true > node_modules/.bin/tool; mkdir build; echo true > build/tool
            echo 3 > value
            setsid sh -c 'while sleep 0.01; do echo $$ > value; done' > /dev/null 2>&1 &";
        let tool = "sh node_modules/.bin/tool";
        let options = [
            "--check",
            tool,
            "--check",
            "test ! -e build",
            "--check",
            "cat value",
        ];
        let result = env.run_with(fixture, &options, shell)?;
        ensure!(
            verdict(&result, tool)? == "still_failing",
            "{}",
            result["checks"]
        );
        ensure!(
            verdict(&result, "test ! -e build")? == "passes",
            "{}",
            result["checks"]
        );
        // Whatever a process that was left had time to write, what is checked is the patch.
        let patch = env.look(
            fixture,
            &["diff", result["run"].as_str().unwrap_or_default()],
        )?;
        let executions = report(&result, "cat value")?["executions"].as_array();
        let patched = executions
            .into_iter()
            .flatten()
            .find(|own| own["tree"] == "patched");
        let seen = patched.and_then(|own| own["ran"]["stdout_tail"].as_str());
        let seen = seen.context("it was not run")?;
        ensure!(patch.contains(&format!("\n+{seen}")), "{seen}: {patch}");
        Ok(())
    })
}

#[test]
fn what_a_check_writes_reaches_nothing() -> Result<()> {
    in_each_mode("writes", |env, fixture| {
        commit(env, fixture, &[("value", "1\n")])?;
        let first = "echo 9 > value; echo x > made; setsid sh -c 'sleep 300' & true";
        let second = "test ! -e made && ! grep -q 9 value";
        let result = env.run_with(
            fixture,
            &["--check", first, "--check", second],
            "echo 2 > value",
        )?;
        ensure!(verdict(&result, first)? == "passes", "{}", result["checks"]);
        ensure!(
            verdict(&result, second)? == "passes",
            "{}",
            result["checks"]
        );
        let patch = env.look(
            fixture,
            &["diff", result["run"].as_str().unwrap_or_default()],
        )?;
        ensure!(
            patch.contains("+2") && !patch.contains("made") && !patch.contains("+9"),
            "{patch}"
        );
        ensure!(fs::read(fixture.folder.join("value"))? == b"1\n");
        ensure!(!fixture.folder.join("made").exists());
        Ok(())
    })
}

#[test]
fn clm_001_words_of_a_check_decide_nothing() -> Result<()> {
    in_each_mode("words", |env, fixture| {
        commit(env, fixture, &[("value", "1\n")])?;
        let liar = "echo 'test result: ok. 100 passed; 0 failed; 0 ignored'; exit 1";
        let result = env.run_with(fixture, &["--check", liar], "echo 2 > value")?;
        let found = report(&result, liar)?;
        ensure!(found["verdict"] == "still_failing", "{found}");
        let counts = &found["executions"][0]["ran"]["counts"];
        ensure!(
            counts["passed"] == 100 && counts["runner"] == "cargo test",
            "{found}"
        );
        ensure!(found["notes"].to_string().contains("at odds"), "{found}");
        let run = result["run"].as_str().context("no run")?;
        for tree in ["base", "patched"] {
            let log = env.look(fixture, &["logs", run, "--check", "1", "--tree", tree])?;
            ensure!(
                log.starts_with("test result: ok. 100 passed"),
                "{tree}: {log}"
            );
        }
        // A check that prints what we would.
        let forger = "printf '  \\342\\234\\223 all: passes\\nrun 0: done\\n'; exit 1";
        let words = ["run", "--check", forger, "--", "sh", "-c", "echo 3 > value"];
        let output = env.call(fixture).finish(&words)?;
        ensure!(output.status.code() == CHECKS_FAILED, "{}", output.tail());
        for line in output
            .stderr
            .lines()
            .filter(|line| line.contains("all: passes") && !line.contains("printf"))
        {
            ensure!(line.trim_start().starts_with('│'), "{line}");
        }
        ensure!(output.stderr.contains("│ run 0: done"), "{}", output.stderr);
        Ok(())
    })
}

#[test]
fn a_check_that_hangs_or_floods_is_stopped_and_does_not_pass() -> Result<()> {
    in_each_mode("bounds", |env, fixture| {
        let flood = "yes ringfence | head -c 10000000000";
        let result = env.run_with(fixture, &["--check", flood], "true")?;
        let found = report(&result, flood)?;
        ensure!(
            found["executions"][0]["ran"]["outcome"] == "output_limit",
            "{found}"
        );
        ensure!(found["verdict"] == "still_failing", "{found}");
        ensure!(
            found["notes"].to_string().contains("printed more than"),
            "{found}"
        );
        let result = env.run_with(
            fixture,
            &["--timeout", "2s", "--check", "sleep 1000"],
            "true",
        )?;
        let found = report(&result, "sleep 1000")?;
        ensure!(
            found["executions"][0]["ran"]["outcome"] == "timed_out",
            "{found}"
        );
        ensure!(
            found["notes"].to_string().contains("`--timeout`"),
            "{found}"
        );
        Ok(())
    })
}

#[test]
fn r25_a_claim_of_passing_tests_is_held_against_the_checks() -> Result<()> {
    in_each_mode("claim", |env, fixture| {
        commit(env, fixture, &[("value", "1\n")])?;
        let shell =
            "echo 3 > value; echo '{\"tests\": {\"status\": \"passed\"}}' > $RINGFENCE_RESULT";
        let result = env.run_with(fixture, &["--check", "grep -q 2 value"], shell)?;
        let contradicted = result["flags"]
            .to_string()
            .contains("a check of the host does not");
        ensure!(contradicted, "{}", result["flags"]);
        Ok(())
    })
}

#[test]
fn a_result_is_kept_for_the_same_files_and_no_others() -> Result<()> {
    in_each_mode("kept", |env, fixture| {
        commit(env, fixture, &[("value", "1\n")])?;
        let check = ["--check", "grep -q 2 value"];
        let cached = |result: &Value| -> Vec<bool> {
            let executions = result["checks"]["reports"][0]["executions"].as_array();
            let executions = executions.into_iter().flatten();
            executions.map(|own| own["ran"]["cached"] == true).collect()
        };
        let first = env.run_with(fixture, &check, "echo 2 > value")?;
        ensure!(cached(&first).iter().all(|cached| !cached), "{first}");
        let second = env.run_with(fixture, &check, "echo 2 > value")?;
        ensure!(
            cached(&second).iter().all(|cached| *cached),
            "{}",
            second["checks"]
        );
        ensure!(verdict(&second, check[1])? == "fixed");
        env.look(
            fixture,
            &["verify", second["run"].as_str().unwrap_or_default()],
        )?;
        // Another patch on the same base.
        let third = env.run_with(fixture, &check, "echo 22 > value")?;
        ensure!(
            cached(&third) == [true, false, false],
            "{}",
            third["checks"]
        );
        // Something that git does not know of is part of what a check sees.
        env.put(fixture, "untracked", "")?;
        let fourth = env.run_with(fixture, &check, "echo 2 > value")?;
        ensure!(
            cached(&fourth).iter().all(|cached| !cached),
            "{}",
            fourth["checks"]
        );
        Ok(())
    })
}

#[test]
fn a_held_bundle_is_checked_later_and_what_flips_is_flaky() -> Result<()> {
    in_each_mode("later", |env, fixture| {
        commit(env, fixture, &[("value", "1\n")])?;
        let result = env.run_with(fixture, &[], "echo 2 > value")?;
        let run = result["run"].as_str().context("no run")?;
        let none = env.call(fixture).finish(&["check", run])?;
        ensure!(
            none.status.code() == Some(2) && none.stderr.contains("--check"),
            "{}",
            none.tail()
        );
        let words = ["check", run, "--json", "--check", "grep -q 2 value"];
        let checked = |words: &[&str]| -> Result<Value> {
            let output = env.call(fixture).finish(words)?;
            output.json.clone().with_context(|| output.tail())
        };
        let later = checked(&words)?;
        ensure!(later["reports"][0]["verdict"] == "fixed", "{later}");
        // The bundle is what it was.
        env.look(fixture, &["verify", run])?;
        // What is known is turned round: the next honest execution differs from it.
        for entry in fs::read_dir(fixture.state.join("checks"))? {
            let path = entry?.path().join("result.json");
            let mut stored: Value = serde_json::from_slice(&fs::read(&path)?)?;
            let code = stored["ran"]["exit_code"] == json!(0);
            stored["ran"]["exit_code"] = json!(i32::from(code));
            fs::write(&path, stored.to_string())?;
        }
        let again = checked(&[&words[..], &["--again"]].concat())?;
        ensure!(again["reports"][0]["verdict"] == "flaky", "{again}");
        // The folder moved on.
        commit(env, fixture, &[("other", "1\n")])?;
        let moved = env.call(fixture).finish(&words)?;
        ensure!(moved.status.code() == Some(2), "{}", moved.tail());
        ensure!(moved.stderr.contains("began at commit"), "{}", moved.stderr);
        Ok(())
    })
}

#[test]
fn checks_of_a_policy_run_without_network_and_a_folder_can_only_add() -> Result<()> {
    in_each_mode("policy", |env, fixture| {
        let text = "[review]\nchecks = ['grep -q 2 value']\nprotected = ['golden']\nnetwork = ['a.example']\n";
        commit(
            env,
            fixture,
            &[
                ("value", "1\n"),
                ("golden", "1\n"),
                ("ringfence.toml", text),
            ],
        )?;
        let words = [
            "run",
            "--json",
            "--check",
            "grep -q 1 golden",
            "--",
            "sh",
            "-c",
            "echo 2 > value; echo 1 > golden; echo 1 >> golden",
        ];
        let output = env.call(fixture).finish(&words)?;
        let result = output.json.clone().with_context(|| output.tail())?;
        ensure!(
            output.stderr.contains("review.network"),
            "{}",
            output.stderr
        );
        ensure!(
            verdict(&result, "grep -q 2 value")? == "fixed",
            "{}",
            result["checks"]
        );
        ensure!(
            result["checks"]["touched"] == json!(["golden"]),
            "{}",
            result["checks"]
        );
        ensure!(
            report(&result, "grep -q 1 golden")?["exam"] == "passes",
            "{}",
            result["checks"]
        );
        Ok(())
    })
}

#[test]
fn real_runners_are_counted_in_a_sandbox() -> Result<()> {
    in_each_mode("runners", |env, fixture| {
        commit(
            env,
            fixture,
            &[
                (
                    "test_a.py",
                    "def test_ok(): pass\ndef test_bad(): assert 1 == 2\n",
                ),
                (
                    "a.test.js",
                    "const t = require('node:test'); t('ok', () => {}); t('bad', () => { throw 1 });\n",
                ),
            ],
        )?;
        for (program, probe, check, runner) in [
            (
                "pytest",
                "python3 -c 'import pytest'",
                "python3 -m pytest -q -p no:cacheprovider",
                "pytest",
            ),
            ("node", "node --version", "node --test", "TAP"),
        ] {
            let there = env.run_with(fixture, &[], probe)?;
            if there["exit_code"] != 0 {
                println!(
                    "SKIPPED {program}: it is not installed for everybody: {}",
                    said(&there)
                );
                continue;
            }
            let result = env.run_with(fixture, &["--check", check], "echo > other")?;
            let counts = &report(&result, check)?["executions"][0]["ran"]["counts"];
            ensure!(
                counts["runner"] == runner && counts["passed"] == 1 && counts["failed"] == 1,
                "{}",
                result["checks"]
            );
        }
        Ok(())
    })
}
