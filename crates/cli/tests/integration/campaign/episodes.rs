//! R51: `ringfence eval`: state is kept from step to step, the reward is what checks say of the final
//! state, and nothing that an agent leaves besides counts.

use std::fs;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Fixture, Output, Sandboxed, in_each_mode};

fn head(env: &Sandboxed, fixture: &Fixture) -> Result<String> {
    let head = env.git(fixture, &fixture.folder, &["rev-parse", "HEAD"])?;
    Ok(head.trim().to_owned())
}

/// A row on the fixture's own repository, with more or other keys.
pub fn row(env: &Sandboxed, fixture: &Fixture, id: &str, more: Value) -> Result<Value> {
    let mut row = json!({
        "id": id,
        "repo": fixture.folder.to_string_lossy(),
        "commit": head(env, fixture)?,
        "prompt": "do it",
        "check": "true",
    });
    let Value::Object(more) = more else {
        bail!("no object");
    };
    for (key, value) in more {
        row[&key] = value;
        if key == "steps" {
            row.as_object_mut().context("no object")?.remove("prompt");
        }
    }
    Ok(row)
}

pub fn lines(rows: &[Value]) -> String {
    rows.iter().map(|row| format!("{row}\n")).collect()
}

pub fn eval(env: &Sandboxed, fixture: &Fixture, text: &str, words: &[&str]) -> Result<Output> {
    env.put(fixture, "rows.jsonl", text)?;
    let words = [&["eval", "rows.jsonl", "--out", "out.jsonl"], words].concat();
    env.ringfence(fixture, 240, &words)
}

pub fn results(fixture: &Fixture) -> Result<Vec<Value>> {
    let text = fs::read_to_string(fixture.folder.join("out.jsonl"))?;
    text.lines()
        .map(|line| Ok(serde_json::from_str(line)?))
        .collect()
}

pub fn of<'a>(results: &'a [Value], id: &str) -> Result<&'a Value> {
    let mut own = results.iter().filter(|result| result["id"] == id);
    let found = own.next().with_context(|| format!("no `{id}`"))?;
    ensure!(own.next().is_none(), "`{id}` is there twice");
    Ok(found)
}

/// How many sandboxes there are.
fn sandboxes(fixture: &Fixture) -> Result<usize> {
    let entries = fs::read_dir(fixture.state.join("sandboxes"))?;
    Ok(entries
        .filter(|entry| entry.as_ref().is_ok_and(|entry| entry.path().is_dir()))
        .count())
}

#[test]
fn r51_each_step_sees_what_the_one_before_left() -> Result<()> {
    in_each_mode("steps", |env, fixture| {
        let agent = "read word; echo $word >> log; test $(wc -l < log) = $RINGFENCE_STEP";
        let mut rows = Vec::new();
        for number in 0..20 {
            // One of them does another thing, and all share names.
            let last = if number == 7 { "other" } else { "five" };
            let steps = ["one", "two", "three", "four", last];
            let more = json!({ "steps": steps, "check": "test \"$(tail -n 1 log)\" = five" });
            rows.push(row(env, fixture, &format!("row-{number}"), more)?);
        }
        let words = ["--parallel", "4", "--tag", "run1", "--", "sh", "-c", agent];
        eval(env, fixture, &lines(&rows), &words)?.exits(0)?;
        let found = results(fixture)?;
        ensure!(found.len() == 20);
        for number in 0..20 {
            let result = of(&found, &format!("row-{number}"))?;
            let reward = if number == 7 { 0.0 } else { 1.0 };
            ensure!(result["reward"] == reward, "{result}");
            let steps = result["steps"].as_array().context("no steps")?;
            ensure!(steps.len() == 5);
            ensure!(steps.iter().all(|step| step["exit_code"] == 0), "{result}");
            let patch = result["patch"].as_str().context("no patch")?;
            let patch = fs::read_to_string(fixture.folder.join(patch))?;
            ensure!(patch.contains("+four"), "{patch}");
        }
        ensure!(sandboxes(fixture)? == 0, "sandboxes are left");
        Ok(())
    })
}

#[test]
fn r51_what_is_kept_goes_by_its_tag() -> Result<()> {
    in_each_mode("tags", |env, fixture| {
        let rows = [
            row(env, fixture, "a", json!({ "tags": ["x"] }))?,
            row(env, fixture, "b", json!({}))?,
        ];
        let words = [
            "--keep",
            "--tag",
            "run1",
            "--",
            "sh",
            "-c",
            "sleep 600 & echo hi > hi",
        ];
        eval(env, fixture, &lines(&rows), &words)?.exits(0)?;
        let found = results(fixture)?;
        ensure!(of(&found, "a")?["tags"] == json!(["x"]) && of(&found, "a")?["tag"] == "run1");
        ensure!(sandboxes(fixture)? == 2);
        // Nothing of it runs any more, and its files are there.
        let id = of(&found, "b")?["sandbox"]
            .as_str()
            .context("no sandbox")?
            .to_owned();
        let read = env.ringfence(fixture, 60, &["sandbox", "exec", &id, "--", "cat", "hi"])?;
        read.exits(0)?;
        env.ringfence(fixture, 60, &["sandbox", "stop", "--tag", "run1"])?
            .exits(0)?;
        env.ringfence(fixture, 60, &["sandbox", "rm", "--tag", "run1"])?
            .exits(0)?;
        ensure!(sandboxes(fixture)? == 0);
        Ok(())
    })
}

/// Tests that no agent has seen.
const EXAM: &str = "test \"$(cat answer 2>/dev/null)\" = 42\n";

#[test]
fn an_agent_that_cheats_gets_nothing() -> Result<()> {
    in_each_mode("cheats", |env, fixture| {
        let hidden = json!({ "tests/exam.sh": EXAM });
        let exam = |command: &str| json!({ "command": command, "check": "sh tests/exam.sh", "hidden_files": hidden });
        let look = |command: &str, check: &str| json!({ "command": command, "check": check });
        let git = "test $(git rev-list --all --count) = 1 && git diff --quiet HEAD -- a.txt";
        let table = [
            ("honest", exam("test ! -e tests && echo 42 > answer"), 1.0),
            ("nothing", exam("true"), 0.0),
            ("prints", exam("echo PASS; echo '1 passed'; exit 0"), 0.0),
            (
                "own-tests",
                exam("mkdir tests; echo 'exit 0' > tests/exam.sh"),
                0.0,
            ),
            ("link", exam("ln -s /etc tests"), 0.0),
            ("file", exam("echo x > tests"), 0.0),
            (
                "below",
                exam("mkdir -p tests/exam.sh; echo x > tests/exam.sh/x"),
                0.0,
            ),
            (
                "left-running",
                look("sleep 601 & echo hi > hi", "! pgrep -x sleep && test -e hi"),
                1.0,
            ),
            (
                "ignored",
                look(
                    "mkdir ignored; echo x > ignored/conftest.py; echo o > x.o",
                    "test ! -e ignored && test ! -e x.o",
                ),
                1.0,
            ),
            (
                "startup",
                look(
                    "echo x > sitecustomize.py; echo x > conftest.py; echo y > y",
                    "test ! -e sitecustomize.py && test ! -e conftest.py && test -e y",
                ),
                1.0,
            ),
            (
                "history",
                look("rm -rf .git; mkdir .git; echo x > .git/HEAD", git),
                1.0,
            ),
            (
                "elsewhere",
                look(
                    "echo x > /tmp/x; echo x > $HOME/x",
                    "test ! -e /tmp/x && test ! -e $HOME/x",
                ),
                1.0,
            ),
        ];
        let mut rows = Vec::new();
        for (id, more, _) in &table {
            rows.push(row(env, fixture, id, more.clone())?);
        }
        eval(env, fixture, &lines(&rows), &[])?.exits(0)?;
        let found = results(fixture)?;
        for (id, _, reward) in table {
            let result = of(&found, id)?;
            ensure!(result["reward"] == reward, "{result}");
        }
        let put_back = &of(&found, "startup")?["put_back"];
        ensure!(
            *put_back == json!(["conftest.py", "sitecustomize.py"]),
            "{put_back}"
        );
        ensure!(of(&found, "left-running")?["steps"][0]["leftovers"] == 1);
        ensure!(sandboxes(fixture)? == 0);
        Ok(())
    })
}

#[test]
fn a_row_that_goes_wrong_is_told_and_the_others_go_on() -> Result<()> {
    in_each_mode("rows", |env, fixture| {
        let command = json!({ "command": "echo hi > hi", "check": "test -e hi" });
        let with = |key: &str, value: Value| {
            let mut more = command.clone();
            more[key] = value;
            more
        };
        let outside = "diff --git a/../x b/../x\nnew file mode 100644\n--- /dev/null\n+++ b/../x\n@@ -0,0 +1 @@\n+x\n";
        let good = row(env, fixture, "good", command.clone())?;
        let rows = [
            good.clone(),
            row(env, fixture, "typo", with("chek", json!("x")))?,
            row(
                env,
                fixture,
                "commit",
                with("commit", json!("0123456789012345678901234567890123456789")),
            )?,
            row(
                env,
                fixture,
                "option",
                with("commit", json!("--upload-pack=touch x")),
            )?,
            row(
                env,
                fixture,
                "missing",
                with("command", json!(["/nowhere/agent"])),
            )?,
            row(env, fixture, "outside", with("test_patch", json!(outside)))?,
            row(env, fixture, "policy", with("policy", json!("open")))?,
            row(
                env,
                fixture,
                "image",
                with("image", json!("registry.example/x")),
            )?,
            row(env, fixture, "repo", with("repo", json!("/nowhere/at/all")))?,
            good,
            row(
                env,
                fixture,
                "never",
                with("check", json!("echo why >&2; false")),
            )?,
            row(
                env,
                fixture,
                "slow",
                json!({ "command": "sleep 600", "limits": { "time": "1s", "memory": "none" } }),
            )?,
            row(env, fixture, "last", command.clone())?,
        ];
        let text = format!("{{\"id\": \"bad\n\n{}", lines(&rows));
        let output = eval(env, fixture, &text, &[])?;
        output.exits(1)?;
        let found = results(fixture)?;
        ensure!(found.len() == 14, "{}", found.len());
        for (id, kind, said) in [
            ("commit", "not_found", "there is no"),
            ("missing", "invalid", "did not start"),
            ("outside", "invalid", "../x"),
            ("policy", "denied", "only narrow"),
            ("image", "denied", "image"),
        ] {
            let result = of(&found, id)?;
            let error = &result["error"];
            let message = error["message"].as_str().unwrap_or_default();
            ensure!(
                result["reward"].is_null() && message.contains(said),
                "{result}"
            );
            ensure!(error["kind"] == kind, "{result}");
        }
        for id in ["option", "repo"] {
            ensure!(of(&found, id)?["error"].is_object());
        }
        let bad: Vec<&Value> = found
            .iter()
            .filter(|own| own["error"]["kind"] == "bad_row")
            .collect();
        let lines: Vec<u64> = bad.iter().filter_map(|own| own["line"].as_u64()).collect();
        ensure!(lines == [1, 4, 12], "{bad:?}");
        ensure!(
            bad[2]["error"]["message"]
                .as_str()
                .is_some_and(|said| said.contains("line 3"))
        );
        ensure!(of(&found, "never")?["reward"] == 0.0);
        ensure!(of(&found, "never")?["checks"][0]["stderr_tail"] == "why\n");
        ensure!(of(&found, "slow")?["steps"][0]["outcome"] == "timed_out");
        ensure!(of(&found, "last")?["reward"] == 1.0);
        ensure!(!fixture.folder.join("x").exists() && sandboxes(fixture)? == 0);
        // A file of results is not written over.
        eval(env, fixture, &text, &[])?.exits(2)?;
        Ok(())
    })
}

#[test]
fn an_evaluation_that_was_killed_goes_on() -> Result<()> {
    in_each_mode("resume", |env, fixture| {
        let agent = "sleep $SLOW; echo x >> seen";
        let rows = [
            row(
                env,
                fixture,
                "a",
                json!({ "steps": [{ "command": "echo x >> seen" }] }),
            )?,
            row(
                env,
                fixture,
                "b",
                json!({ "check": "test $(wc -l < seen) = 1" }),
            )?,
        ];
        env.put(fixture, "rows.jsonl", lines(&rows))?;
        let words = |slow: &'static str| {
            [
                "eval",
                "rows.jsonl",
                "--out",
                "out.jsonl",
                "--resume",
                "--parallel",
                "1",
                "--env",
                slow,
                "--",
                "sh",
                "-c",
                agent,
            ]
        };
        let mut live = env.call(fixture).live(&words("SLOW=600"))?;
        live.until_having("1.0  a")?;
        live.signal(Signal::KILL)?;
        live.finish()?;
        let first = fs::read_to_string(fixture.folder.join("out.jsonl"))?;
        ensure!(first.lines().count() == 1);
        // Cut off in the middle of a line.
        env.put(
            fixture,
            "out.jsonl",
            format!("{first}{{\"id\":\"b\",\"reward\":1.0,"),
        )?;
        let output = env.ringfence(fixture, 240, &words("SLOW=0"))?;
        output.exits(0)?;
        let text = fs::read_to_string(fixture.folder.join("out.jsonl"))?;
        ensure!(text.starts_with(&first), "what was there was changed");
        let found = results(fixture)?;
        ensure!(
            found.len() == 2 && of(&found, "b")?["reward"] == 1.0,
            "{text}"
        );
        // Of all rows, whoever did them.
        let told = "2 rows: 2 with a reward (1 from before), mean reward 1.000, 0 without";
        ensure!(output.stderr.contains(told), "{}", output.tail());
        ensure!(sandboxes(fixture)? == 0, "sandboxes are left");
        let again = env.ringfence(fixture, 240, &words("SLOW=0"))?;
        again.exits(0)?;
        ensure!(fs::read_to_string(fixture.folder.join("out.jsonl"))? == text);
        // What is no row was told once, and is not done.
        env.put(fixture, "rows.jsonl", lines(&rows) + "no row\n")?;
        for _ in 0..2 {
            let bad = env.ringfence(fixture, 240, &words("SLOW=0"))?;
            bad.exits(1)?;
            let told = "3 rows: 2 with a reward (2 from before), mean reward 1.000, 1 without";
            ensure!(bad.stderr.contains(told), "{}", bad.tail());
        }
        ensure!(results(fixture)?.len() == 3);
        Ok(())
    })
}

const TEST_PATCH: &str = "diff --git a/t/new.sh b/t/new.sh\nnew file mode 100644\nindex 0000000..1111111\n--- /dev/null\n+++ b/t/new.sh\n@@ -0,0 +1 @@\n+grep -q new value\n";
const GOLD: &str = "diff --git a/value b/value\nindex 3367afd..3e75765 100644\n--- a/value\n+++ b/value\n@@ -1 +1 @@ heading\n-old\n+new";

#[test]
fn rows_of_a_known_collection_are_read_as_they_are() -> Result<()> {
    in_each_mode("collection", |env, fixture| {
        let make = "mkdir t; echo old > value; echo 'test -e value' > t/kept.sh; \
            echo 'for t; do sh t/$t.sh || exit 1; done' > run.sh; git add -A; git commit -qm more; \
            mkdir -p ../repos/o; git clone -q . ../repos/o/n";
        env.as_owner(fixture, &fixture.folder, &["sh", "-c", make])?;
        let collected = |id: &str, repo: &str| -> Result<Value> {
            Ok(json!({
                "instance_id": id,
                "repo": repo,
                "base_commit": head(env, fixture)?,
                "problem_statement": "make it new",
                "hints_text": "", "version": "1.0", "created_at": "2024-01-01",
                "test_patch": TEST_PATCH,
                "patch": GOLD,
                "FAIL_TO_PASS": "[\"new\"]",
                "PASS_TO_PASS": ["kept"],
            }))
        };
        let rows = [collected("o__n-1", "o/n")?, collected("out", "../../etc")?];
        let text = lines(&rows);
        let common = ["--repos", "../repos", "--test-command", "sh run.sh {tests}"];
        let table = [
            (&["--gold"][..], 1.0),
            (&["--", "true"], 0.0),
            // What it was told is on its input; neither tests nor the right patch are there.
            (
                &[
                    "--",
                    "sh",
                    "-c",
                    "read p; test ! -e t/new.sh; test \"$p\" = 'make it new' && echo new > value",
                ],
                1.0,
            ),
            (
                &[
                    "--",
                    "sh",
                    "-c",
                    "echo new > value; rm t/kept.sh; echo false > t/kept.sh",
                ],
                0.0,
            ),
            (
                &["--", "sh", "-c", "echo gone > value; echo exit 0 > run.sh"],
                0.0,
            ),
        ];
        for (who, reward) in table {
            let _ = fs::remove_file(fixture.folder.join("out.jsonl"));
            let output = eval(env, fixture, &text, &[&common[..], who].concat())?;
            output.exits(1)?;
            let found = results(fixture)?;
            let result = of(&found, "o__n-1")?;
            ensure!(result["reward"] == reward, "{who:?}: {result}");
            ensure!(result["checks"][0]["tests"] == 2, "{result}");
            let other = of(&found, "out")?;
            ensure!(
                other["error"]["message"]
                    .as_str()
                    .is_some_and(|said| said.contains("owner/name"))
            );
        }
        Ok(())
    })
}

#[test]
fn what_came_after_the_commit_is_not_there() -> Result<()> {
    in_each_mode("later", |env, fixture| {
        let began = head(env, fixture)?;
        let make = "echo gold > a.txt; git commit -qam fix; git tag fixed";
        env.as_owner(fixture, &fixture.folder, &["sh", "-c", make])?;
        let fix = head(env, fixture)?;
        let look = format!(
            "test $(git rev-list --all --reflog | wc -l) = 1 && test -z \"$(git tag)\" \
             && test -z \"$(git status --porcelain)\" && ! git cat-file -e {fix} \
             && ! git cat-file -e {began} && test ! -s .git/objects/info/alternates \
             && test -z \"$(ls /.ringfence/objects)\""
        );
        // Also not where the agent's files are checked, and may look for it.
        let check = format!("test -e left && ! git cat-file -e {fix} && ! git cat-file -e fixed");
        let patch = "diff --git a/left b/left\nnew file mode 100644\n--- /dev/null\n+++ b/left\n@@ -0,0 +1 @@\n+x\n";
        let more = json!({ "commit": began, "check": check, "patch": patch,
                           "steps": [{ "command": look }, { "command": "echo x > left" }] });
        let rows = lines(&[row(env, fixture, "a", more)?]);
        eval(env, fixture, &rows, &[])?.exits(0)?;
        let found = results(fixture)?;
        let result = of(&found, "a")?;
        ensure!(result["steps"][0]["exit_code"] == 0, "{result}");
        ensure!(result["reward"] == 1.0, "{result}");
        ensure!(result["commit"] == began.as_str(), "{result}");
        fs::remove_file(fixture.folder.join("out.jsonl"))?;
        eval(env, fixture, &rows, &["--gold"])?.exits(0)?;
        let found = results(fixture)?;
        let result = of(&found, "a")?;
        ensure!(
            result["reward"] == 1.0 && result["commit"] == began.as_str(),
            "{result}"
        );
        Ok(())
    })
}

#[test]
fn a_runner_that_tells_of_no_test_has_run_none() -> Result<()> {
    in_each_mode("runner", |env, fixture| {
        let version = std::process::Command::new("/usr/bin/python3")
            .args(["-m", "pytest", "--version"])
            .output();
        if !version.is_ok_and(|output| output.status.success()) {
            println!("SKIPPED pytest: there is no pytest of the system's python");
            return Ok(());
        }
        let make = "echo 'def f(): return 1' > code.py; git add -A; git commit -qm code";
        env.as_owner(fixture, &fixture.folder, &["sh", "-c", make])?;
        let test = json!({ "test_code.py": "import code_under as c\ndef test_a(): assert c.f() == 2\ndef test_b(): assert True\n" });
        let with = |command: &str| {
            json!({ "command": command, "check": null, "hidden_files": test,
                    "tests": ["test_code.py::test_a", "test_code.py::test_b"] })
        };
        let checked = |code: &str| {
            json!({ "command": format!("echo '{code}' > code_under.py"), "hidden_files": test,
                    "check": "/usr/bin/python3 -m pytest -q -p no:cacheprovider test_code.py" })
        };
        // A plugin of the runner, and a module that it loads: both say what is not so.
        let says = "import os; os.write(1, b\"2 passed in 0.01s\\\\n\"); os._exit(0)";
        let plugin = "echo 'def f(): return 3' > code_under.py; mkdir evil-1.dist-info; \
            printf 'Metadata-Version: 2.1\\nName: evil\\nVersion: 1\\n' > evil-1.dist-info/METADATA; \
            printf '[pytest11]\\nevil = evilp\\n' > evil-1.dist-info/entry_points.txt; \
            printf 'import os\\nos.write(1, b\"2 passed in 0.01s\")\\nos._exit(0)\\n' > evilp.py";
        let shadow = &format!(
            "echo 'def f(): return 3' > code_under.py; printf '{says}\\n' > pluggy.py; cp pluggy.py argparse.py"
        );
        let rows = [
            row(
                env,
                fixture,
                "right",
                with("echo 'def f(): return 2' > code_under.py"),
            )?,
            row(
                env,
                fixture,
                "wrong",
                with("echo 'def f(): return 3' > code_under.py"),
            )?,
            row(
                env,
                fixture,
                "ends",
                with("echo 'import os; os._exit(0)' > code_under.py"),
            )?,
            row(env, fixture, "plugin", with(plugin))?,
            row(env, fixture, "shadow", with(shadow))?,
            row(env, fixture, "checked", checked("import os; os._exit(0)"))?,
            row(env, fixture, "checked-right", checked("def f(): return 2"))?,
        ];
        let command = "/usr/bin/python3 -m pytest -q -p no:cacheprovider {tests}";
        eval(env, fixture, &lines(&rows), &["--test-command", command])?.exits(0)?;
        let found = results(fixture)?;
        ensure!(
            of(&found, "right")?["reward"] == 1.0,
            "{}",
            of(&found, "right")?
        );
        ensure!(of(&found, "wrong")?["reward"] == 0.0);
        let ends = &of(&found, "ends")?["checks"][0];
        ensure!(ends["exit_code"] == 0 && ends["passed"] == false, "{ends}");
        for (id, put_back) in [
            ("plugin", "evil-1.dist-info/entry_points.txt"),
            ("shadow", "pluggy.py"),
        ] {
            let result = of(&found, id)?;
            ensure!(result["reward"] == 0.0, "{result}");
            let listed = result["put_back"].as_array().context("nothing put back")?;
            ensure!(listed.iter().any(|path| path == put_back), "{result}");
        }
        let checked = of(&found, "checked")?;
        ensure!(
            checked["checks"][0]["exit_code"] == 0 && checked["reward"] == 0.0,
            "{checked}"
        );
        let checked = of(&found, "checked-right")?;
        ensure!(checked["reward"] == 1.0, "{checked}");
        Ok(())
    })
}
