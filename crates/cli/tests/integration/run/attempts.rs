//! Several attempts at one task, and which of them is kept.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::support::{Fixture, Sandboxed, in_each_mode};

fn value_is(env: &Sandboxed, fixture: &Fixture, value: &str) -> Result<()> {
    env.put(fixture, "value", value)?;
    env.git(fixture, &fixture.folder, &["add", "value"])?;
    env.git(fixture, &fixture.folder, &["commit", "-qm", "value"])?;
    Ok(())
}

fn compared(env: &Sandboxed, fixture: &Fixture, words: &[&str]) -> Result<Value> {
    let output = env.call(fixture).finish(words)?;
    output.json.clone().with_context(|| output.tail())
}

#[test]
fn attempts_begin_alike_and_are_told_apart_by_what_they_did() -> Result<()> {
    in_each_mode("attempts", |env, fixture| {
        value_is(env, fixture, "1\n")?;
        for parallel in ["1", "2"] {
            let words = [
                "run",
                "--json",
                "--attempts",
                "3",
                "--parallel",
                parallel,
                "--check",
                "grep -q 2 value",
                "--",
                "sh",
                "-c",
                "grep -q 1 value || exit 9; echo 2 > value",
            ];
            let output = env.call(fixture).finish(&words)?;
            ensure!(output.status.success(), "{}", output.tail());
            let compared = output.json.clone().with_context(|| output.tail())?;
            let attempts = compared["attempts"].as_array().context("no attempts")?;
            ensure!(
                attempts.len() == 3 && compared["sound"] == true,
                "{compared}"
            );
            let best = &attempts[0]["run"];
            for other in &attempts[1..] {
                ensure!(other["same_as"] == *best, "{compared}");
            }
            ensure!(
                attempts.iter().all(|own| own["checks_held"] == 1),
                "{compared}"
            );
        }
        Ok(())
    })
}

#[test]
fn r48_the_best_attempt_is_kept_and_the_others_are_out_of_the_way() -> Result<()> {
    in_each_mode("compare", |env, fixture| {
        value_is(env, fixture, "1\n")?;
        let check = ["--check", "grep -q 2 value"];
        let run = |shell: &str| -> Result<String> {
            let result = env.run_with(fixture, &check, shell)?;
            Ok(result["run"].as_str().context("no run")?.to_owned())
        };
        let large = run("echo 2 > value; seq 100 > filler")?;
        let wrong = run("echo 3 > value")?;
        let small = run("echo 2 > value")?;
        let nothing = run("true")?;
        let words = ["compare", "--json", &large, &wrong, &nothing, &small];
        let found = compared(env, fixture, &words)?;
        let order: Vec<&Value> = found["attempts"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|own| &own["run"])
            .collect();
        ensure!(
            order == [&json!(small), &json!(large), &json!(wrong), &json!(nothing)],
            "{found}"
        );
        let why = found["why"].as_str().unwrap_or_default();
        ensure!(why.contains("changed lines against"), "{why}");
        ensure!(found["differs"].to_string().contains("filler"), "{found}");
        let shown = env.look(fixture, &["compare", "--hunks", &wrong, &small])?;
        ensure!(
            shown.contains("1 of 1") && shown.contains("│ +3"),
            "{shown}"
        );
        // Nothing is kept where nothing holds.
        let none = env
            .call(fixture)
            .finish(&["compare", "--keep", &wrong, &nothing])?;
        ensure!(none.status.code() == Some(3), "{}", none.tail());
        env.look(fixture, &["compare", "--keep", &large, &wrong, &small])?;
        let listed = env.look(fixture, &["list"])?;
        ensure!(
            listed.contains(&small) && listed.contains(&nothing),
            "{listed}"
        );
        ensure!(
            !listed.contains(&large) && !listed.contains(&wrong),
            "{listed}"
        );
        let all = env.look(fixture, &["list", "--all"])?;
        ensure!(all.contains(&large) && all.contains(&wrong), "{all}");
        // Bundles stay, and another choice is possible.
        env.look(fixture, &["verify", &large])?;
        env.look(fixture, &["compare", "--keep", &large, &wrong])?;
        let listed = env.look(fixture, &["list"])?;
        ensure!(
            listed.contains(&large) && !listed.contains(&wrong),
            "{listed}"
        );
        Ok(())
    })
}

#[test]
fn an_attempt_that_cannot_be_done_leaves_the_others_what_they_are() -> Result<()> {
    in_each_mode("attempt-fails", |env, fixture| {
        value_is(env, fixture, "1\n")?;
        env.run_with(fixture, &["--name", "try-2"], "true")?;
        let words = [
            "run",
            "--json",
            "--name",
            "try",
            "--attempts",
            "3",
            "--check",
            "grep -q 2 value",
            "--",
            "sh",
            "-c",
            "echo 2 > value",
        ];
        let output = env.call(fixture).finish(&words)?;
        output.exits(0)?;
        let told = output
            .stderr
            .contains("[2/3] failed: there is one named `try-2`");
        ensure!(told, "{}", output.stderr);
        let found = output.json.clone().with_context(|| output.tail())?;
        let names: Vec<&Value> = found["attempts"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|own| &own["name"])
            .collect();
        ensure!(
            names.len() == 2
                && names.contains(&&json!("try-1"))
                && names.contains(&&json!("try-3")),
            "{found}"
        );
        // None can be done: that is what is said.
        env.run_with(fixture, &["--name", "all-1"], "true")?;
        env.run_with(fixture, &["--name", "all-2"], "true")?;
        let words = ["run", "--name", "all", "--attempts", "2", "--", "true"];
        let output = env.call(fixture).finish(&words)?;
        output.exits(2)?;
        ensure!(output.stderr.contains("all-1"), "{}", output.stderr);
        Ok(())
    })
}

fn keys(value: &Value) -> Vec<&str> {
    let fields = value.as_object().into_iter().flatten();
    let mut names: Vec<&str> = fields.map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    names
}

#[test]
fn an_attempt_that_died_is_named_and_has_no_rank() -> Result<()> {
    in_each_mode("died", |env, fixture| {
        value_is(env, fixture, "1\n")?;
        let check = ["--check", "grep -q 2 value"];
        let run = |name: &str, shell: &str| -> Result<String> {
            let options = [&["--name", name], &check[..]].concat();
            let result = env.run_with(fixture, &options, shell)?;
            Ok(result["run"].as_str().context("no run")?.to_owned())
        };
        let mut dying = env.call(fixture).live(&[
            "run",
            "--name",
            "dying",
            "--",
            "sh",
            "-c",
            "echo 2 > value; echo READY; sleep 1000",
        ])?;
        dying.until("READY")?;
        let running = run("good", "echo 2 > value")?;
        // What still runs is nothing to compare.
        let early = env.call(fixture).finish(&["compare", "dying", "good"])?;
        early.exits(2)?;
        dying.signal(rustix::process::Signal::KILL)?;
        dying.finish()?;
        let words = ["compare", "--json", "good", "dying"];
        let alone = compared(env, fixture, &words)?;
        ensure!(
            alone["attempts"][0]["run"] == running.as_str()
                && alone["lost"][0]["name"] == "dying"
                && alone["lost"][0]["status"] == "lost",
            "{alone}"
        );
        ensure!(alone["why"].to_string().contains("the only one"), "{alone}");
        let none = env.call(fixture).finish(&["compare", "dying", "dying"])?;
        none.exits(2)?;

        // Three that are left; two of them did the same.
        let twin = run("twin", "echo 2 > value")?;
        let other = run("other", "echo 22 > value")?;
        let words = ["compare", "--json", "dying", "other", "twin", "good"];
        let found = compared(env, fixture, &words)?;
        ensure!(
            keys(&found)
                == [
                    "attempts", "differs", "hunks", "lost", "notes", "sound", "why"
                ],
            "{found}"
        );
        ensure!(
            keys(&found["attempts"][0])
                == [
                    "broke",
                    "changes_nothing",
                    "checks",
                    "checks_held",
                    "deletions",
                    "denials",
                    "duration_ms",
                    "files",
                    "flaky",
                    "insertions",
                    "name",
                    "own_exam",
                    "run",
                    "same_as",
                    "serious",
                    "status",
                    "tree",
                    "warnings"
                ],
            "{found}"
        );
        let attempts = found["attempts"].as_array().context("no attempts")?;
        ensure!(attempts.len() == 3 && found["sound"] == true, "{found}");
        let group: Vec<&Value> = attempts
            .iter()
            .filter(|own| [json!(running), json!(twin)].contains(&own["run"]))
            .collect();
        ensure!(group[0]["tree"] == group[1]["tree"], "{found}");
        ensure!(
            group[0]["same_as"].is_null() && group[1]["same_as"] == group[0]["run"],
            "{found}"
        );
        let alone = attempts.iter().find(|own| own["run"] == other.as_str());
        ensure!(alone.is_some_and(|own| own["same_as"].is_null()), "{found}");
        // In whatever order they are named, the order is the same.
        let words = ["compare", "--json", "twin", "good", "dying", "other"];
        let again = compared(env, fixture, &words)?;
        ensure!(again["attempts"] == found["attempts"], "{again}");
        let table = env.look(fixture, &["compare", "dying", "other", "good"])?;
        ensure!(table.contains("left no bundle  dying"), "{table}");
        // All others are out of the way, the one that died among them.
        env.look(
            fixture,
            &["compare", "--keep", "dying", "other", "twin", "good"],
        )?;
        let listed = env.runs(fixture, &[])?;
        ensure!(listed.len() == 1, "{listed:?}");
        ensure!(
            env.runs(fixture, &["--all"])?.len() == 4,
            "not all are there"
        );
        Ok(())
    })
}
