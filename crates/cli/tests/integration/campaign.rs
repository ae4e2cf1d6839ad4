//! R9, R11, R13: a plan becomes tasks, each file in one of them; planning changes nothing; and a task
//! document is all that a run of it needs.

mod episodes;
mod exam;
mod example;
mod hostile;
mod merged;
mod running;
mod stopped;
mod tasks;
mod traced;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::support::{Fixture, Output, Sandboxed, fingerprint, in_each_mode};

const HEAD: &str = "name = 'c'\nbrief = 'BRIEF.md'\ncommand = ['./agent.sh']\n";

/// Files of the folder, made by its owner.
fn tree(env: &Sandboxed, fixture: &Fixture, files: &[(&str, &str)]) -> Result<()> {
    for (path, text) in files {
        if let Some((directory, _)) = path.rsplit_once('/') {
            env.as_owner(fixture, &fixture.folder, &["mkdir", "-p", directory])?;
        }
        env.put(fixture, path, text)?;
    }
    Ok(())
}

/// A plan in the folder with this split, and its brief.
fn plan(env: &Sandboxed, fixture: &Fixture, rest: &str) -> Result<()> {
    env.put(fixture, "BRIEF.md", "Make it so.\n")?;
    env.put(fixture, "plan.toml", format!("{HEAD}{rest}"))?;
    Ok(())
}

fn commit_all(env: &Sandboxed, fixture: &Fixture) -> Result<()> {
    env.git(fixture, &fixture.folder, &["add", "-A"])?;
    env.git(fixture, &fixture.folder, &["commit", "-qm", "clean"])?;
    Ok(())
}

fn planned(env: &Sandboxed, fixture: &Fixture, more: &[&str]) -> Result<Value> {
    let words = [&["campaign", "plan", "plan.toml", "--json"], more].concat();
    Ok(serde_json::from_str(&env.look(fixture, &words)?)?)
}

/// A plan that is refused: what was said.
fn refused(env: &Sandboxed, fixture: &Fixture, words: &[&str], code: i32) -> Result<Output> {
    let output = env.ringfence(fixture, 120, words)?;
    output.exits(code)?;
    ensure!(output.stdout.is_empty(), "{}", output.stdout);
    Ok(output)
}

/// The files of each task.
fn files(value: &Value) -> Vec<Vec<String>> {
    let texts = |task: &Value| {
        let files = task["files"].as_array().into_iter().flatten();
        files
            .filter_map(|file| Some(file.as_str()?.to_owned()))
            .collect()
    };
    value["tasks"]
        .as_array()
        .into_iter()
        .flatten()
        .map(texts)
        .collect()
}

fn left_out<'v>(value: &'v Value, why: &str) -> Option<&'v Value> {
    let list = value["left_out"].as_array()?;
    list.iter().find(|left| left["why"] == why)
}

#[test]
fn r9_two_hundred_files_become_twenty_tasks_and_nothing_changes() -> Result<()> {
    in_each_mode("many", |env, fixture| {
        env.as_owner(
            fixture,
            &fixture.folder,
            &["sh", "-c", "for d in $(seq 20); do mkdir -p src/d$d; for f in $(seq 10); do echo x = $f > src/d$d/f$f.py; done; done"],
        )?;
        let split = "[split]\nfiles = 'src/**/*.py'\nper_task = 10\nkeep_together = 'directory'\n";
        plan(env, fixture, split)?;
        commit_all(env, fixture)?;
        let before = fingerprint(&fixture.folder)?;
        let value = planned(env, fixture, &[])?;
        let tasks = files(&value);
        ensure!(tasks.len() == 20, "{value}");
        let all: Vec<&String> = tasks.iter().flatten().collect();
        let set: BTreeSet<&String> = all.iter().copied().collect();
        ensure!(all.len() == 200 && set.len() == 200, "{value}");
        for task in &tasks {
            let place = Path::new(&task[0]).parent();
            ensure!(
                task.iter().all(|file| Path::new(file).parent() == place),
                "{task:?}"
            );
        }
        ensure!(value["base"]["kind"] == "commit", "{}", value["base"]);
        ensure!(
            planned(env, fixture, &[])? == value,
            "another split of the same"
        );
        let text = env.look(fixture, &["campaign", "plan", "plan.toml"])?;
        ensure!(text.contains("20 tasks, 200 files, 200 lines"), "{text}");
        ensure!(text.lines().count() < 30, "{text}");
        ensure!(
            fingerprint(&fixture.folder)? == before,
            "the folder changed"
        );
        let left = fs::read_dir(fixture.state.join("workspaces"))?.count();
        ensure!(left == 0, "{left} left in the home");
        Ok(())
    })
}

#[test]
fn the_files_are_those_that_a_run_sees() -> Result<()> {
    in_each_mode("seen", |env, fixture| {
        tree(
            env,
            fixture,
            &[
                ("app/a.py", "old.Api()\n"),
                ("app/b.py", "new.Api()\n"),
                ("app/tracked.log", "old.Api()\n"),
                (".gitignore", "*.log\nbuild/\n"),
            ],
        )?;
        env.git(fixture, &fixture.folder, &["add", "-f", "."])?;
        env.git(fixture, &fixture.folder, &["commit", "-qm", "x"])?;
        tree(
            env,
            fixture,
            &[
                ("app/untracked.py", "x = old.Api()"),
                ("app/other.log", "old.Api()\n"),
                ("app/key.pem", "old.Api()\n"),
                ("app/secret.py", "old.Api()\n"),
                ("app/build/c.py", "old.Api()\n"),
                ("ringfence.toml", "[files]\nhide = ['secret.py', '*.pem']\n"),
            ],
        )?;
        env.as_owner(
            fixture,
            &fixture.folder,
            &["ln", "-s", "a.py", "app/link.py"],
        )?;
        env.as_owner(fixture, &fixture.folder, &["mkfifo", "app/pipe.py"])?;
        plan(
            env,
            fixture,
            "[split]\nfiles = 'app'\nmatching = '^.*old\\.Api'\n",
        )?;
        let value = planned(env, fixture, &[])?;
        let expected = ["app/a.py", "app/tracked.log", "app/untracked.py"];
        ensure!(files(&value) == [expected], "{value}");
        ensure!(value["tasks"][0]["lines"] == 3, "{value}");
        for (why, count) in [
            ("hidden", 2),
            ("ignored", 1),
            ("special", 2),
            ("no_match", 1),
        ] {
            let left = left_out(&value, why).with_context(|| format!("{why}: {value}"))?;
            ensure!(left["count"] == count, "{why}: {left}");
        }
        ensure!(!value.to_string().contains("build/c.py"), "{value}");
        Ok(())
    })
}

#[test]
fn imports_tests_and_lock_files_decide_the_order() -> Result<()> {
    in_each_mode("order", |env, fixture| {
        tree(
            env,
            fixture,
            &[
                ("app/__init__.py", ""),
                ("app/api.py", "from app import core, types\n"),
                ("app/core.py", "from .types import T\n"),
                ("app/types.py", "T = int  # import app.api\n"),
                ("tests/test_core.py", "import app.core\n"),
                ("pyproject.toml", ""),
                ("uv.lock", ""),
            ],
        )?;
        plan(
            env,
            fixture,
            "[split]\nfiles = ['app/*.py', 'tests', 'pyproject.toml', 'uv.lock']\nby = 'dependencies'\nper_task = 2\nfirst = 'app/__init__.py'\n[run]\nstage = 'needed'\nneeds = 'pyproject.toml'\n",
        )?;
        let value = planned(env, fixture, &[])?;
        let expected: [&[&str]; 5] = [
            &["app/__init__.py"],
            &["app/types.py"],
            &["app/core.py", "tests/test_core.py"],
            &["app/api.py"],
            &["pyproject.toml", "uv.lock"],
        ];
        ensure!(files(&value) == expected, "{value}");
        let when: Vec<&Value> = (0..5).map(|n| &value["tasks"][n]["when"]).collect();
        ensure!(
            when == ["first", "between", "between", "between", "last"],
            "{when:?}"
        );
        // Of the test of the core, its subject, what it imports, its package, and what is named.
        ensure!(value["tasks"][2]["staged"] == 5, "{value}");
        Ok(())
    })
}

#[test]
fn an_edit_of_a_plan_keeps_the_tasks_that_are_the_same() -> Result<()> {
    in_each_mode("edit", |env, fixture| {
        tree(
            env,
            fixture,
            &[("s/a.x", ""), ("s/b.x", ""), ("s/c.x", ""), ("s/d.y", "")],
        )?;
        plan(env, fixture, "[split]\nfiles = 's/*.x'\nper_task = 2\n")?;
        let before = env.look(fixture, &["campaign", "plan", "plan.toml", "--json"])?;
        let kept = fixture.folder.with_file_name("before.json");
        fs::write(&kept, &before)?;
        let kept = kept.to_str().context("a path of the test")?;
        let same = env.look(
            fixture,
            &["campaign", "plan", "plan.toml", "--against", kept],
        )?;
        ensure!(same.contains("nothing differs"), "{same}");
        plan(env, fixture, "[split]\nfiles = 's'\nper_task = 2\n")?;
        let value = planned(env, fixture, &["--against", kept])?;
        let before: Value = serde_json::from_str(&before)?;
        let diff = &value["diff"];
        ensure!(
            diff["same"] == serde_json::json!([before["tasks"][0]["id"]]),
            "{diff}"
        );
        ensure!(
            diff["added_files"] == serde_json::json!(["s/d.y"]),
            "{diff}"
        );
        ensure!(diff["moved"][0]["path"] == "s/c.x", "{diff}");
        // Another brief makes other tasks.
        env.put(fixture, "BRIEF.md", "Make it otherwise.\n")?;
        let value = planned(env, fixture, &["--against", kept])?;
        ensure!(
            value["diff"]["same"] == serde_json::json!([]),
            "{}",
            value["diff"]
        );
        Ok(())
    })
}
