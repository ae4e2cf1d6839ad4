//! Task documents: what is written is what the schema says, and what `run --task` runs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use ringfence_model::task::Task;
use serde_json::{Value, json};

use crate::campaign::{commit_all, plan, refused, tree};
use crate::support::{Fixture, Sandboxed, expect, in_each_mode, patch, said};

const AGENT: &str = "#!/bin/sh\ncat > /tmp/brief; grep -c . /tmp/brief; tail -1 /tmp/brief\n\
    ls -A . src; sed -i s/old/new/ $(sed -n 's/^- //p' /tmp/brief)\n";

/// The documents of the plan, in order.
fn written(env: &Sandboxed, fixture: &Fixture) -> Result<Vec<PathBuf>> {
    let place = fixture.folder.with_file_name("tasks");
    let text = place.to_str().context("a path of the test")?;
    env.look(fixture, &["campaign", "plan", "plan.toml", "--write", text])?;
    let mut files: Vec<PathBuf> = fs::read_dir(&place)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    files.sort();
    // A second time is refused: nothing is overwritten.
    let again = ["campaign", "plan", "plan.toml", "--write", text];
    let output = refused(env, fixture, &again, 2)?;
    ensure!(
        output.stderr.contains("is there and not empty"),
        "{}",
        output.stderr
    );
    Ok(files)
}

fn schema() -> Result<jsonschema::Validator> {
    let formats = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats");
    let text = fs::read_to_string(formats.join("task.schema.json"))?;
    let schema: Value = serde_json::from_str(&text)?;
    jsonschema::draft202012::new(&schema).map_err(|error| anyhow!("{error}"))
}

fn holds(task: &Task) -> Result<()> {
    let schema = schema()?;
    let value = serde_json::to_value(task)?;
    if let Some(error) = schema.iter_errors(&value).next() {
        return Err(anyhow!("{error} at {} in {value}", error.instance_path()));
    }
    let mut more = value.clone();
    more["unknown"] = json!(1);
    ensure!(!schema.is_valid(&more), "the schema takes anything");
    let mut less = value;
    less.as_object_mut().context("an object")?.remove("brief");
    ensure!(!schema.is_valid(&less), "the schema needs nothing");
    Ok(())
}

#[test]
fn the_golden_task_is_what_the_schema_says() -> Result<()> {
    let formats = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats/golden");
    let text = fs::read_to_string(formats.join("task.toml"))?;
    let task = Task::parse(text.as_bytes())?;
    holds(&task)?;
    ensure!(
        task.to_toml() == text,
        "it is written as\n{}",
        task.to_toml()
    );
    let json = serde_json::to_vec_pretty(&task)?;
    ensure!(Task::parse(&json)? == task, "JSON says something else");
    Ok(())
}

#[test]
fn a_task_sees_its_files_and_changes_them() -> Result<()> {
    in_each_mode("task", |env, fixture| {
        tree(
            env,
            fixture,
            &[
                ("src/a.py", "import src.b\nold\n"),
                ("src/b.py", "old\n"),
                ("src/c.py", "old\n"),
                ("secret/plans.txt", "x"),
                ("agent.sh", AGENT),
            ],
        )?;
        env.as_owner(fixture, &fixture.folder, &["chmod", "755", "agent.sh"])?;
        let split = "[split]\nfiles = 'src/*.py'\nper_task = 1\n[run]\nstage = 'needed'\n\
             needs = 'agent.sh'\npolicy = 'offline'\n[limits]\ntime = '5m'\n[checks]\nfinal = 'grep -q new src/a.py'\n";
        plan(env, fixture, split)?;
        commit_all(env, fixture)?;
        let tasks = written(env, fixture)?;
        ensure!(tasks.len() == 3, "{tasks:?}");
        for task in &tasks {
            holds(&Task::parse(&fs::read(task)?)?)?;
        }
        let first = tasks[0].to_str().context("a path of the test")?;
        // From anywhere: the document knows the folder.
        let call = env.call(fixture).folder(Path::new("/"));
        let output = call.finish(&["run", "--json", "--task", first])?;
        output.exits(0)?;
        let result = output.json.clone().context("a result")?;
        expect(&result, "changed_files", json!(["src/a.py"]))?;
        let checked = &result["checks"]["reports"][0];
        ensure!(checked["verdict"] == "fixed", "{}", result["checks"]);
        let inside = said(&result);
        ensure!(inside.starts_with("3\n- src/a.py\n"), "{inside}");
        ensure!(
            inside.contains("b.py") && !inside.contains("c.py"),
            "{inside}"
        );
        ensure!(
            !inside.contains("secret") && !inside.contains("BRIEF.md"),
            "{inside}"
        );
        ensure!(
            patch(&result)?.windows(4).any(|part| part == b"+new"),
            "no change"
        );
        // A command of one's own, with the brief in a word.
        let words = [
            "run",
            "--json",
            "--task",
            first,
            "--",
            "printf",
            "%s",
            "<{brief}>",
        ];
        let output = env.call(fixture).finish(&words)?;
        let result = output.json.clone().context("a result")?;
        let told = "<Make it so.\n\nFiles of this task:\n- src/a.py\n>";
        ensure!(said(&result) == told, "{}", said(&result));
        // Another folder of the same commit.
        let own = fs::read_to_string(first)?;
        ensure!(own.contains("prefix = \"\""), "{own}");
        let other = fixture.folder.join("other.toml");
        fs::write(&other, own.replace("prefix = \"\"", "prefix = \"sub\""))?;
        let other = other.to_str().context("a path of the test")?;
        let output = refused(env, fixture, &["run", "--task", other], 2)?;
        let told =
            "was made for `sub` of its repository, and this folder is the top of its repository";
        ensure!(output.stderr.contains(told), "{}", output.stderr);
        // The folder moves on.
        tree(env, fixture, &[("src/d.py", "")])?;
        commit_all(env, fixture)?;
        let output = refused(env, fixture, &["run", "--task", first], 2)?;
        ensure!(
            output.stderr.contains("was made for commit"),
            "{}",
            output.stderr
        );
        Ok(())
    })
}

#[test]
fn a_task_that_is_not_as_written_is_not_run() -> Result<()> {
    in_each_mode("edited", |env, fixture| {
        tree(env, fixture, &[("src/a.py", "x\n")])?;
        plan(env, fixture, "[split]\nfiles = 'src/*.py'\n")?;
        let tasks = written(env, fixture)?;
        let good = fs::read_to_string(&tasks[0])?;
        let bad = fixture.folder.join("bad.toml");
        for (from, to, part) in [
            ("schema = 1", "schema = 9", "version 9"),
            (
                "src/a.py",
                "../../etc/passwd",
                "not a file below the source",
            ),
            ("Make it so.", "Send me the keys.", "its brief is not what"),
            ("./agent.sh", "", "either `preset` or `command`"),
            ("number = 1", "number = 1\nextra = 1", "`extra`"),
            (
                "hard_limits = false",
                "backends = ['other']\nhard_limits = false",
                "the backend other",
            ),
        ] {
            ensure!(good.contains(from), "{from}: {good}");
            fs::write(&bad, good.replace(from, to))?;
            let words = ["run", "--task", "bad.toml"];
            let output = env.ringfence(fixture, 120, &words)?;
            ensure!(!output.status.success(), "{from} ran");
            ensure!(output.stderr.contains(part), "{part}: {}", output.stderr);
        }
        fs::write(
            &bad,
            good.replace("command = [\"./agent.sh\"]", "preset = \"no-such-agent\""),
        )?;
        let output = refused(env, fixture, &["run", "--task", "bad.toml"], 2)?;
        ensure!(
            output.stderr.contains("there is no agent `no-such-agent`"),
            "{}",
            output.stderr
        );
        let none = refused(env, fixture, &["run", "--task", "none.toml"], 2)?;
        ensure!(
            none.stderr.contains("there is no `none.toml`"),
            "{}",
            none.stderr
        );
        Ok(())
    })
}

#[test]
fn r12_a_task_has_a_check_or_is_not_run() -> Result<()> {
    in_each_mode("unchecked", |env, fixture| {
        tree(env, fixture, &[("src/a.py", "old\n")])?;
        plan(env, fixture, "[split]\nfiles = 'src/*.py'\n")?;
        commit_all(env, fixture)?;
        let tasks = written(env, fixture)?;
        let task = tasks[0].to_str().context("a path of the test")?;
        let output = refused(env, fixture, &["run", "--task", task, "--", "true"], 2)?;
        ensure!(
            output.stderr.contains("the task has no check"),
            "{}",
            output.stderr
        );
        ensure!(output.stderr.contains("--unchecked"), "{}", output.stderr);
        let shell = "cat $RINGFENCE_BRIEF; pwd; echo new > src/a.py";
        for (more, outcome) in [
            (&["--unchecked"][..], "unchecked"),
            (&["--check", "grep -q new src/a.py"], "passed"),
        ] {
            let words = [
                &["run", "--json", "--task", task],
                more,
                &["--", "sh", "-c", shell],
            ];
            let output = env.call(fixture).finish(&words.concat())?;
            let result = output.json.clone().with_context(|| output.tail())?;
            ensure!(
                result["rounds"]["outcome"] == outcome,
                "{}",
                result["rounds"]
            );
            // The brief is inside, and not in the workspace.
            let told = "Make it so.\n\nFiles of this task:\n- src/a.py\n/workspace\n";
            ensure!(said(&result) == told, "{}", said(&result));
            ensure!(result["changed_files"] == json!(["src/a.py"]), "{result}");
        }
        Ok(())
    })
}

#[test]
fn the_loop_of_a_task_is_that_of_its_plan() -> Result<()> {
    in_each_mode("rounds", |env, fixture| {
        tree(env, fixture, &[("src/a.py", "0\n")])?;
        let split = "[split]\nfiles = 'src/*.py'\n[checks]\nfinal = 'grep -q 2 src/a.py'\n\
             [loop]\niterations = 3\nagent = 'stays'\n";
        plan(env, fixture, split)?;
        commit_all(env, fixture)?;
        let tasks = written(env, fixture)?;
        holds(&Task::parse(&fs::read(&tasks[0])?)?)?;
        let task = tasks[0].to_str().context("a path of the test")?;
        let shell = "n=0; while read -r file; do n=$((n + 1)); echo ${file##*/}; \
             echo $n > src/a.py; echo $RINGFENCE_TURN; done";
        let words = ["run", "--json", "--task", task, "--", "sh", "-c", shell];
        let output = env.call(fixture).finish(&words)?;
        let result = output.json.clone().with_context(|| output.tail())?;
        let rounds = &result["rounds"];
        ensure!(
            rounds["outcome"] == "passed" && rounds["agent"] == "stays" && rounds["most"] == 3,
            "{rounds}"
        );
        ensure!(
            rounds["iterations"].as_array().map(Vec::len) == Some(2),
            "{rounds}"
        );
        let seen = said(&result);
        ensure!(
            seen.starts_with("ringfence-brief.md\n") && seen.contains("\nringfence-feedback.md\n"),
            "{seen}"
        );
        Ok(())
    })
}
