//! What decides how a check is done, kind by kind: each is taken both ways, and none is believed
//! when the agent wrote it.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::checks::commit;
use crate::support::{in_each_mode, said};

/// The only report of a run.
fn report<'a>(result: &'a Value, what: &str) -> Result<&'a Value> {
    let reports = result["checks"]["reports"].as_array();
    let reports = reports.with_context(|| format!("{what}: no checks"))?;
    ensure!(reports.len() == 1, "{what}: {reports:?}");
    Ok(&reports[0])
}

/// It passes with the agent's own files only, and that is told as what it is.
fn is_own_exam(result: &Value, what: &str) -> Result<()> {
    let found = report(result, what)?;
    ensure!(
        found["verdict"] == "fixed" && found["exam"] == "still_failing",
        "{what}: {found}"
    );
    let mut flags = result["flags"].as_array().into_iter().flatten();
    ensure!(
        flags.any(|flag| flag["kind"] == "exam_changed" && flag["severity"] == "serious"),
        "{what}: {}",
        result["flags"]
    );
    Ok(())
}

const TEST: &str = "from a import f\ndef test_f():\n    assert f() == 2\n";
/// Runs the test without any runner.
const BY_HAND: &str = "PYTHONPATH=. python3 -c 'import check_a'";

#[test]
fn what_a_check_loads_first_is_part_of_the_exam() -> Result<()> {
    in_each_mode("exam-loaded", |env, fixture| {
        commit(
            env,
            fixture,
            &[
                ("a.py", "def f(): return 1\n"),
                ("test_a.py", TEST),
                ("check_a.py", "from test_a import test_f\ntest_f()\n"),
                ("package.json", "{\"scripts\": {\"test\": \"exit 1\"}}\n"),
                (".github/ci/test", "grep -q 'return 2' a.py\n"),
                ("sub/Makefile", "test:\n\t@grep -q 'return 2' ../a.py\n"),
                (".cargo/run", "grep -q 'return 2' a.py\n"),
            ],
        )?;
        let skips = "import pytest\n@pytest.hookimpl\ndef pytest_collection_modifyitems(items):\n    \
            items[:] = []\ndef pytest_sessionfinish(session):\n    session.exitstatus = 0\n";
        let conftest = format!("cat > conftest.py <<'END'\n{skips}END");
        for (what, needs, check, shell) in [
            (
                "conftest.py",
                "python3 -c 'import pytest'",
                "python3 -m pytest -q -p no:cacheprovider",
                conftest.as_str(),
            ),
            (
                "sitecustomize.py",
                "python3 --version",
                BY_HAND,
                "echo 'import os; os._exit(0)' > sitecustomize.py",
            ),
            (
                "the test",
                "python3 --version",
                BY_HAND,
                "echo 'def test_f(): pass' > test_a.py",
            ),
            (
                "package.json",
                "npm --version",
                "npm test --silent",
                "sed -i 's/exit 1/true/' package.json",
            ),
            (
                "a file of CI",
                "true",
                "sh .github/ci/test",
                "echo true > .github/ci/test",
            ),
            (
                "a recipe further down",
                "make --version",
                "make -s -C sub test",
                "printf 'test:\\n\\ttrue\\n' > sub/Makefile",
            ),
            (
                "another name for the recipe",
                "make --version",
                "make -s -C sub test",
                "printf 'test:\\n\\ttrue\\n' > sub/GNUmakefile",
            ),
            (
                "settings of a builder",
                "true",
                "cat .cargo/run | sh",
                "echo true > .cargo/run",
            ),
        ] {
            let there = env.run_with(fixture, &[], needs)?;
            if there["exit_code"] != 0 {
                println!("SKIPPED {what}: `{needs}` fails inside: {}", said(&there));
                continue;
            }
            let result = env.run_with(fixture, &["--check", check], shell)?;
            is_own_exam(&result, what)?;
        }
        Ok(())
    })
}

#[test]
fn a_script_is_found_behind_what_runs_it() -> Result<()> {
    in_each_mode("exam-scripts", |env, fixture| {
        commit(
            env,
            fixture,
            &[
                ("value", "1\n"),
                ("ci", "#!/bin/sh\ngrep -q 2 value\n"),
                ("tools/verify", "#!/bin/sh\ngrep -q 2 ../value\n"),
            ],
        )?;
        env.as_owner(
            fixture,
            &fixture.folder,
            &["chmod", "+x", "ci", "tools/verify"],
        )?;
        env.git(fixture, &fixture.folder, &["commit", "-qam", "modes"])?;
        for check in [
            "timeout 60 ./ci",
            "env A=1 ./ci",
            "bash -o pipefail ci",
            "cd tools && ./verify",
            "sh -c './ci'",
            "if ! ./ci; then exit 1; fi",
        ] {
            let shell = "printf '#!/bin/sh\\ntrue\\n' | tee ci > tools/verify";
            let result = env.run_with(fixture, &["--check", check], shell)?;
            is_own_exam(&result, check)?;
        }
        Ok(())
    })
}

#[test]
fn names_of_commits_are_part_of_what_a_check_sees() -> Result<()> {
    in_each_mode("exam-refs", |env, fixture| {
        let check = "git rev-parse -q --verify refs/tags/v1";
        let cached = |result: &Value| -> Result<Vec<bool>> {
            let executions = report(result, "refs")?["executions"].as_array();
            let executions = executions.into_iter().flatten();
            Ok(executions.map(|own| own["ran"]["cached"] == true).collect())
        };
        let run = || env.run_with(fixture, &["--check", check], "echo x > x");
        let first = run()?;
        ensure!(!cached(&first)?.contains(&true), "{}", first["checks"]);
        let second = run()?;
        ensure!(!cached(&second)?.contains(&false), "{}", second["checks"]);
        // Not a file of the tree changes: a tag, then the same as a line of one file.
        env.git(fixture, &fixture.folder, &["tag", "v1"])?;
        let third = run()?;
        ensure!(!cached(&third)?.contains(&true), "{}", third["checks"]);
        env.git(fixture, &fixture.folder, &["pack-refs", "--all"])?;
        let fourth = run()?;
        ensure!(!cached(&fourth)?.contains(&true), "{}", fourth["checks"]);
        Ok(())
    })
}

#[test]
fn what_a_check_asks_of_the_network_is_in_the_journal_as_its_own() -> Result<()> {
    in_each_mode("exam-network", |env, fixture| {
        let policy = "[review]\nnetwork = [\"index.example\"]\nchecks = [\"getent hosts other.example || true\"]\n";
        let policy = env.put(fixture, "../network.toml", policy)?;
        let policy = policy.to_str().context("a plain path")?;
        let result = env.run_with(fixture, &["--policy", policy], "echo x > x")?;
        let run = result["run"].as_str().context("no run")?;
        ensure!(
            report(&result, "network")?["verdict"] == "passes",
            "{}",
            result["checks"]
        );
        let journal = env.look(fixture, &["audit", run, "--json"])?;
        let mut trees = Vec::new();
        for line in journal.lines() {
            let event = &serde_json::from_str::<Value>(line)?["event"];
            ensure!(
                event["kind"] != "network",
                "it is told as the agent's: {event}"
            );
            if event["kind"] == "check_network" && event["traffic"]["host"] == "other.example" {
                ensure!(event["traffic"]["result"]["is"] == "denied", "{event}");
                trees.push(event["tree"].as_str().unwrap_or_default().to_owned());
            }
        }
        trees.dedup();
        ensure!(trees == ["base", "patched"], "{journal}");
        // Nothing that the agent did, and nothing that the rule of the run counts.
        let denied = result["observed"]["network"]["denied"].as_u64();
        ensure!(denied.unwrap_or_default() == 0, "{}", result["observed"]);
        let told = env.look(fixture, &["audit", run, "--network"])?;
        ensure!(told.contains("check 1 on base: network:"), "{told}");
        env.look(fixture, &["verify", run])?;
        Ok(())
    })
}
