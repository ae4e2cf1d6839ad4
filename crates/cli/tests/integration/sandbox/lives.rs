//! Executions come and go, the workspace stays: kills, losses, sessions, what is broken, what is
//! removed by age.

use std::fs;

use anyhow::{Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::sandbox::kit::{Kit, TREE, lasting, path, text};
use crate::support::{expect, fingerprint};

/// Something of every kind, in every place that lasts.
const FILL: &str = "echo more >> a.txt; echo new > new.txt; mkdir -p d/e; ln -s ../a.txt d/link; \
    rm src/main.c; chmod 755 README.md; head -c 100000 /dev/urandom > d/e/blob; \
    echo h > ~/kept; mkdir ~/.cache; echo c > ~/.cache/c; echo t > /tmp/t; git add new.txt";

#[test]
fn r38_a_killed_keeper_or_guest_loses_no_file() -> Result<()> {
    lasting("killed", |kit| {
        let id = kit.create(&[])?;
        kit.sh(&id, FILL)?;
        let before = kit.sh(&id, TREE)?;
        ensure!(before.contains("home/agent/kept") && before.contains("workspace/d/link l"));
        kit.kill_keeper(&id)?;
        kit.expect_state(&id, "lost")?;
        let after = kit.done(&["sandbox", "exec", &id, "--replace", "--", "sh", "-c", TREE])?;
        ensure!(before == after, "{before}\n{after}");
        // The guest is the keeper's only child.
        let keeper = kit.keeper(&id)?.as_raw_nonzero();
        let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children"))?;
        let guest: i32 = children.trim().parse()?;
        kill_process(Pid::from_raw(guest).expect("a pid"), Signal::KILL)?;
        kit.until("lost", || Ok(text(&kit.status(&id)?, "state") == "lost"))?;
        let after = kit.done(&["sandbox", "exec", &id, "--replace", "--", "sh", "-c", TREE])?;
        ensure!(before == after, "{before}\n{after}");
        expect(&kit.status(&id)?, "incarnation", 3)
    })
}

#[test]
fn r39_a_lost_execution_is_told_and_replaced_only_on_request() -> Result<()> {
    lasting("lost", |kit| {
        let id = kit.create(&[])?;
        kit.sh(&id, "echo kept > kept; sleep 1000 > /dev/null 2>&1 &")?;
        kit.kill_keeper(&id)?;
        let marker = ["sandbox", "exec", &id, "--", "touch", "ran"];
        let said = kit.fails(4, "runtime_lost", &marker)?;
        ensure!(
            said.contains("hint:") && said.contains("--replace"),
            "{said}"
        );
        let seen = kit.expect_state(&id, "lost")?;
        expect(&seen, "incarnation", 1)?;
        expect(&seen, "keeper_pid", Value::Null)?;
        kit.fails(4, "runtime_lost", &["sandbox", "fs", "read", &id, "kept"])?;
        let replaced = kit.call(&["sandbox", "exec", &id, "--replace", "--", "cat", "kept"])?;
        replaced.exits(0)?;
        ensure!(replaced.stdout == "kept\n");
        ensure!(
            replaced.stderr.contains("was lost and is replaced"),
            "{}",
            replaced.stderr
        );
        expect(&kit.expect_state(&id, "running")?, "incarnation", 2)?;
        let old = [
            "sandbox",
            "exec",
            &id,
            "--incarnation",
            "1",
            "--",
            "touch",
            "ran",
        ];
        kit.fails(4, "runtime_lost", &old)?;
        kit.done(&["sandbox", "exec", &id, "--incarnation", "2", "--", "true"])?;
        ensure!(
            kit.sh(&id, "ls")?.lines().all(|name| name != "ran"),
            "it ran all the same"
        );
        Ok(())
    })
}

#[test]
fn r39_what_an_exec_was_doing_is_told_when_its_execution_dies() -> Result<()> {
    lasting("dies", |kit| {
        let id = kit.create(&[])?;
        kit.sh(&id, "true")?;
        let mut live = kit.live(&id, "echo up; sleep 1000")?;
        live.until("up")?;
        kit.kill_keeper(&id)?;
        let output = live.finish()?;
        output.exits(4)?;
        ensure!(output.stderr.contains("runtime_lost"), "{}", output.tail());
        let history = kit.done(&["sandbox", "history", &id, "--json"])?;
        ensure!(history.contains("runtime_lost"), "{history}");
        Ok(())
    })
}

#[test]
fn r42_what_is_gone_is_told_and_nothing_else_is_lost() -> Result<()> {
    lasting("broken", |kit| {
        let whole = kit.create(&[])?;
        kit.sh(&whole, "echo x > x")?;
        let other = kit.create(&["--name", "other"])?;
        kit.sh(&other, "echo one > one")?;
        kit.done(&["sandbox", "checkpoint", &other, "--name", "one"])?;
        kit.sh(&other, "echo two > two")?;
        kit.done(&["sandbox", "stop", &other, &whole])?;
        let seen = kit.expect_state(&other, "stopped")?;
        let head = text(&seen, "head").to_owned();

        // A layer.
        let layer = kit.state_path("layers").join(&head);
        let away = kit.state_path("away");
        fs::rename(&layer, &away)?;
        broken(kit, &other, &head)?;
        let top = kit.state_path("sandboxes").join(&other).join("top/upper");
        ensure!(
            top.join("workspace/two").exists(),
            "what was left is destroyed"
        );
        kit.expect_state(&whole, "stopped")?;
        fs::rename(&away, &layer)?;
        ensure!(kit.sh(&other, "cat one two")? == "one\ntwo\n");
        kit.done(&["sandbox", "stop", &other])?;

        // The top.
        fs::rename(&top, &away)?;
        broken(kit, &other, "top")?;
        fs::rename(&away, &top)?;
        ensure!(kit.sh(&other, "cat one two")? == "one\ntwo\n");
        kit.done(&["sandbox", "stop", &other])?;
        fs::rename(&top, &away)?;
        kit.done(&["sandbox", "rm", &other])?;
        fs::remove_dir_all(&away)?;

        // The base.
        let base = kit.state_path("bases").join(text(&seen, "base"));
        fs::rename(&base, &away)?;
        broken(kit, &whole, text(&seen, "base"))?;
        fs::rename(&away, &base)?;
        ensure!(kit.sh(&whole, "cat x a.txt")? == "x\none\ntwo\nthree\n");
        // All of it, while it runs.
        fs::remove_dir_all(kit.state_path("sandboxes").join(&whole))?;
        kit.expect_state(&whole, "broken")?;
        kit.fails(4, "broken", &["sandbox", "exec", &whole, "--", "true"])?;
        kit.done(&["sandbox", "rm", &whole])?;
        ensure!(kit.states()?.is_empty());
        Ok(())
    })
}

/// It is told in each place, with what is missing, and nothing on the disk changes by that.
fn broken(kit: &Kit<'_>, id: &str, missing: &str) -> Result<()> {
    let places = ["layers", "sandboxes"];
    let looks = || -> Result<Vec<_>> {
        places
            .iter()
            .map(|place| {
                Ok(fingerprint(&kit.state_path(place))?
                    .into_keys()
                    .collect::<Vec<_>>())
            })
            .collect()
    };
    let before = looks()?;
    let seen = kit.expect_state(id, "broken")?;
    ensure!(text(&seen, "missing").contains(missing), "{seen}");
    for words in [
        &["sandbox", "exec", id, "--", "true"][..],
        &["sandbox", "exec", id, "--replace", "--", "true"],
        &["sandbox", "resume", id],
        &["sandbox", "checkpoint", id, "--name", "no"],
        &["sandbox", "fork", id],
        &["sandbox", "diff", id],
        &["sandbox", "fs", "list", id],
    ] {
        kit.fails(4, missing, words)?;
    }
    ensure!(before == looks()?, "something changed on the disk");
    kit.expect_state(id, "broken")?;
    Ok(())
}

#[test]
fn r40_a_session_keeps_directory_and_variables() -> Result<()> {
    lasting("session", |kit| {
        let id = kit.create(&[])?;
        let session = |options: &[&str], words: &[&str]| {
            kit.done(
                &[
                    &["sandbox", "exec", &id, "--session", "s"],
                    options,
                    &["--"],
                    words,
                ]
                .concat(),
            )
        };
        session(&[], &["cd", "src/deep"])?;
        session(&[], &["export WORD=\"it's\nhere\" OTHER=2; unset OTHER"])?;
        let look = r#"pwd; echo "$WORD,$OTHER""#;
        let expected = "/workspace/src/deep\nit's\nhere,\n";
        ensure!(session(&[], &[look])? == expected);
        kit.kill_keeper(&id)?;
        let after = session(&["--replace"], &[look])?;
        ensure!(after == expected, "{after}");
        // Others have their own.
        let other = kit.done(&["sandbox", "exec", &id, "--session", "t", "--", look])?;
        ensure!(other == "/workspace\n,\n", "{other}");
        ensure!(kit.sh(&id, look)? == "/workspace\n,\n");
        // A failing command leaves its state and its code.
        let failed = [
            "sandbox",
            "exec",
            &id,
            "--session",
            "s",
            "--",
            "cd ..; export N=3; exit 9",
        ];
        kit.call(&failed)?.exits(9)?;
        ensure!(session(&[], &["pwd; echo $N"])? == "/workspace/src\n3\n");
        kit.fails(
            2,
            "session",
            &["sandbox", "exec", &id, "--session", "../x", "--", "true"],
        )?;

        let history = kit.done(&["sandbox", "history", &id, "--json"])?;
        let calls: Vec<Value> = history
            .lines()
            .map(|line| Ok(serde_json::from_str(line)?))
            .collect::<Result<_>>()?;
        let facts: Vec<(u64, u64, i64)> = calls
            .iter()
            .map(|call| {
                (
                    call["sequence"].as_u64().unwrap_or(0),
                    call["incarnation"].as_u64().unwrap_or(0),
                    call["exit_code"].as_i64().unwrap_or(-1),
                )
            })
            .collect();
        let expected = [
            (1, 1, 0),
            (2, 1, 0),
            (3, 1, 0),
            (4, 2, 0),
            (5, 2, 0),
            (6, 2, 0),
            (7, 2, 9),
            (8, 2, 0),
        ];
        let mut sorted = facts.clone();
        sorted.sort_unstable();
        ensure!(sorted == expected, "{facts:?}");
        let of_t = kit.done(&["sandbox", "history", &id, "--json", "--session", "t"])?;
        ensure!(of_t.lines().count() == 1, "{of_t}");
        Ok(())
    })
}

#[test]
fn r41_status_agrees_with_disk_and_processes() -> Result<()> {
    lasting("status", |kit| {
        let ready = kit.create(&["--name", "ready", "--tag", "g"])?;
        let running = kit.create(&[])?;
        let stopped = kit.create(&[])?;
        let lost = kit.create(&[])?;
        for id in [&running, &stopped, &lost] {
            kit.sh(
                id,
                "echo x > x; sleep 1000 > /dev/null 2>&1 & sleep 1000 > /dev/null 2>&1 &",
            )?;
        }
        kit.done(&["sandbox", "stop", &stopped])?;
        kit.kill_keeper(&lost)?;
        for (id, state, processes) in [
            (&ready, "ready", Value::Null),
            (&running, "running", 2.into()),
            (&stopped, "stopped", Value::Null),
            (&lost, "lost", Value::Null),
        ] {
            let seen = kit.expect_state(id, state)?;
            expect(&seen, "processes", processes)?;
            expect(&seen, "unsealed", id != &ready)?;
            let base = kit.state_path("bases").join(text(&seen, "base"));
            ensure!(base.join("workspace/a.txt").is_file(), "{base:?}");
            let directory = kit.state_path("sandboxes").join(id);
            ensure!(directory.is_dir());
            ensure!(directory.join("top/upper/workspace/x").exists() == (id != &ready));
        }
        let keepers = kit.processes()?;
        ensure!(
            keepers.len() == 1 && keepers[0].contains(&running),
            "{keepers:?}"
        );
        let keeper = kit.keeper(&running)?.as_raw_nonzero();
        let line = fs::read_to_string(format!("/proc/{keeper}/cmdline"))?;
        ensure!(line.contains(&running), "{line}");
        // What is mounted is what status says, and nowhere but in that execution.
        let guest = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children"))?;
        let inside = fs::read_to_string(format!("/proc/{}/mountinfo", guest.trim()))?;
        ensure!(inside.contains(" /workspace "), "{inside}");
        for process in ["self".to_owned(), keeper.to_string()] {
            let mounts = fs::read_to_string(format!("/proc/{process}/mountinfo"))?;
            ensure!(!mounts.contains(path(&kit.fixture.state)), "{mounts}");
        }
        let all = kit.json(&["status", "--json"])?;
        let names = |place: &str| -> Result<usize> {
            Ok(fs::read_dir(kit.state_path(place))?
                .flatten()
                .filter(|entry| entry.path().is_dir())
                .count())
        };
        for place in ["sandboxes", "bases", "mirrors"] {
            let told = all[place].as_array().map_or(0, Vec::len);
            ensure!(told == names(place)?, "{place}: {told} in {all}");
        }
        // Rows of the store, read without our program.
        let sql = "SELECT id || ' ' || state FROM sandboxes ORDER BY id";
        let store = kit.state_path("store.db");
        let rows = kit.env.as_owner(
            kit.fixture,
            std::path::Path::new("/"),
            &["python3", "-c", SQL, path(&store), sql],
        )?;
        let mut told: Vec<String> = all["sandboxes"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|row| format!("{} {}", text(row, "sandbox"), text(row, "state")))
            .collect();
        told.sort();
        ensure!(
            rows.lines().eq(told.iter().map(String::as_str)),
            "{rows}\n{told:?}"
        );
        let du = kit.json(&["du", "--json"])?;
        ensure!(
            du.as_array()
                .is_some_and(|parts| parts.iter().any(|part| part["id"] == running.as_str())),
            "{du}"
        );
        Ok(())
    })
}

const SQL: &str = "import sqlite3, sys\n\
    for row in sqlite3.connect(sys.argv[1]).execute(sys.argv[2]): print(row[0])";

#[test]
fn an_idle_execution_ends_by_itself_and_its_end_is_told() -> Result<()> {
    lasting("idle", |kit| {
        let id = kit.create(&["--idle-timeout", "1s"])?;
        kit.sh(&id, "echo kept > kept; sleep 1000 > /dev/null 2>&1 &")?;
        kit.expect_state(&id, "running")?;
        kit.until("stopped", || {
            Ok(text(&kit.status(&id)?, "state") == "stopped")
        })?;
        ensure!(kit.processes()?.is_empty());
        let output = kit.call(&["sandbox", "exec", &id, "--", "cat", "kept"])?;
        output.exits(0)?;
        ensure!(output.stdout == "kept\n");
        ensure!(
            output.stderr.contains("idle for too long") && output.stderr.contains("1 process"),
            "{}",
            output.stderr
        );
        // A command that runs is no idleness.
        kit.sh(&id, "sleep 1.6; echo still")?;
        expect(&kit.status(&id)?, "incarnation", 2)
    })
}

#[test]
fn a_sandbox_past_its_time_ends_and_is_collected() -> Result<()> {
    lasting("ttl", |kit| {
        let id = kit.create(&["--ttl", "1s"])?;
        kit.sh(&id, "echo work >> a.txt")?;
        kit.until("expired", || {
            Ok(text(&kit.status(&id)?, "state") == "expired")
        })?;
        kit.until("ended", || Ok(kit.processes()?.is_empty()))?;
        kit.fails(2, "past its time", &["sandbox", "exec", &id, "--", "true"])?;
        let plan = kit.json(&["gc", "--dry-run", "--json"])?;
        ensure!(plan.to_string().contains("past its time"), "{plan}");
        kit.done(&["gc"])?;
        ensure!(kit.states()?.is_empty());
        let saved = kit.state_path("saved").join(format!("{id}.patch"));
        ensure!(fs::read_to_string(saved)?.contains("+work"));
        Ok(())
    })
}

#[test]
fn stop_and_resume_tell_what_ended() -> Result<()> {
    lasting("stop", |kit| {
        let id = kit.create(&[])?;
        kit.sh(&id, "for i in 1 2 3; do sleep 1000 > /dev/null 2>&1 & done")?;
        let stopped = kit.call(&["sandbox", "stop", &id])?;
        ensure!(stopped.stderr.contains("3 processes"), "{}", stopped.stderr);
        kit.expect_state(&id, "stopped")?;
        let resumed = kit.call(&["sandbox", "resume", &id])?;
        ensure!(resumed.stderr.contains("3 processes"), "{}", resumed.stderr);
        expect(&kit.expect_state(&id, "running")?, "processes", 0)?;
        // Twice is as good as once.
        kit.done(&["sandbox", "stop", &id])?;
        kit.done(&["sandbox", "stop", &id])?;
        Ok(())
    })
}

#[test]
fn r44_collection_goes_in_order_and_leaves_what_is_used() -> Result<()> {
    lasting("gc", |kit| {
        let clean = kit.create(&[])?;
        let dirty = kit.create(&[])?;
        kit.sh(
            &dirty,
            "echo work >> a.txt; head -c 3000 /dev/urandom > blob; rm README.md",
        )?;
        kit.done(&["sandbox", "stop", &dirty])?;
        let pinned = kit.create(&[])?;
        kit.done(&["sandbox", "pin", &pinned])?;
        let running = kit.create(&[])?;
        kit.sh(&running, "echo r > r; sleep 1000 > /dev/null 2>&1 &")?;
        let empty = kit.create_of(&["--empty"])?;
        let base = text(&kit.status(&empty)?, "base").to_owned();
        kit.done(&["sandbox", "rm", &empty])?;
        ensure!(kit.json(&["gc", "--dry-run", "--json"])? == Value::Array(Vec::new()));

        let config = kit.state_path("config.toml");
        fs::write(
            &config,
            "[gc]\nage = \"1s\"\nidle = \"1h\"\ncache_age = \"1s\"\nfree = \"none\"\n",
        )?;
        kit.until("old enough", || {
            let plan = kit.json(&["gc", "--dry-run", "--json"])?;
            Ok(plan.as_array().is_some_and(|plan| plan.len() == 3))
        })?;
        let plan = kit.json(&["gc", "--dry-run", "--json"])?;
        let rows: Vec<(&str, &str)> = plan
            .as_array()
            .into_iter()
            .flatten()
            .map(|row| (text(row, "action"), text(row, "text")))
            .collect();
        let words: Vec<&str> = rows.iter().map(|row| row.0).collect();
        ensure!(
            words == ["remove_sandbox", "save_and_remove_sandbox", "remove_base"],
            "{plan}"
        );
        ensure!(
            rows[0].1.contains(&clean) && rows[1].1.contains(&dirty) && rows[2].1.contains(&base)
        );
        ensure!(
            plan.to_string().matches("not used for").count() == 3,
            "{plan}"
        );
        kit.expect_state(&clean, "ready")?;
        kit.done(&["gc", "--json"])?;
        let mut states = kit.states()?;
        states.sort();
        ensure!(states == ["ready", "running"], "{states:?}");
        let saved = kit.state_path("saved").join(format!("{dirty}.patch"));
        let folder = &kit.fixture.folder;
        kit.env
            .git(kit.fixture, folder, &["checkout", "-q", "--", "."])?;
        kit.env
            .git(kit.fixture, folder, &["apply", "--check", path(&saved)])?;
        ensure!(kit.sh(&running, "cat r")? == "r\n");

        // Idle executions first, then everything that nothing stands on, to the mirror.
        fs::write(
            &config,
            "[gc]\nage = \"1s\"\nidle = \"1s\"\ncache_age = \"1s\"\nfree = \"none\"\n",
        )?;
        kit.until("idle", || {
            let plan = kit.json(&["gc", "--json"])?;
            Ok(plan.to_string().contains("stop the execution"))
        })?;
        kit.expect_state(&running, "stopped")?;
        kit.done(&["sandbox", "unpin", &pinned])?;
        let plan = kit.json(&["gc", "--json"])?;
        let words: Vec<&str> = plan
            .as_array()
            .into_iter()
            .flatten()
            .map(|row| text(row, "action"))
            .collect();
        ensure!(
            words
                == [
                    "remove_sandbox",
                    "save_and_remove_sandbox",
                    "remove_base",
                    "remove_mirror"
                ],
            "{plan}"
        );
        for place in ["sandboxes", "layers", "bases", "mirrors"] {
            let left: Vec<_> = fs::read_dir(kit.state_path(place))?
                .flatten()
                .filter(|entry| entry.path().is_dir())
                .collect();
            ensure!(left.is_empty(), "{left:?}");
        }
        fs::remove_file(config)?;
        Ok(())
    })
}
