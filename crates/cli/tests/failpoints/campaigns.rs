//! A driver that dies between any two of its steps, and a disk that fills up under it: the next
//! sitting does what is left, does nothing twice, and loses no bundle.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::disk::Mounted;
use crate::points::{dies_at, each};
use crate::scene::{call, in_modes_at_once};
use crate::support::{Fixture, Sandboxed, is_root};

const PLAN: &str = "name = 'c'\nbrief = 'BRIEF.md'\ncommand = ['./agent.sh']\n[split]\n\
    files = 'work/*.txt'\nper_task = 1\n[checks]\nfinal = 'grep -q new work/*.txt'\n\
    [run]\nparallel = 1\n";
const AGENT: &str =
    "#!/bin/sh\nfor file in $(sed -n 's/^- //p'); do sed -i s/old/new/ $file; done\n";

fn prepare(env: &Sandboxed, fixture: &Fixture, tasks: usize, agent: &str) -> Result<()> {
    env.as_owner(fixture, &fixture.folder, &["mkdir", "-p", "work"])?;
    for at in 1..=tasks {
        env.put(fixture, &format!("work/{at}.txt"), format!("old {at}\n"))?;
    }
    env.put(fixture, "BRIEF.md", "Make it new.\n")?;
    env.put(fixture, "plan.toml", PLAN)?;
    env.put(fixture, "agent.sh", agent)?;
    env.as_owner(fixture, &fixture.folder, &["chmod", "+x", "agent.sh"])?;
    Ok(())
}

fn report(env: &Sandboxed, fixture: &Fixture) -> Result<Value> {
    let text = call(env, fixture, &["campaign", "report", "c", "--json"])?;
    Ok(serde_json::from_str(&text)?)
}

/// How many runs of each task have a result, and how many have none.
fn runs(env: &Sandboxed, fixture: &Fixture) -> Result<Vec<(usize, usize)>> {
    let mut found = vec![(0, 0); 2];
    for run in env.runs(fixture, &["--campaign", "c", "-n", "99"])? {
        let at = run["campaign"]["number"].as_u64().context("no task")? as usize - 1;
        match run["status"].as_str() {
            Some("done") => found[at].0 += 1,
            _ => found[at].1 += 1,
        }
    }
    Ok(found)
}

fn dies(env: &Sandboxed, fixture: &Fixture, point: &str) -> Result<()> {
    dies_at(env, fixture, point, &["campaign", "run", "plan.toml"])
}

fn resumes(env: &Sandboxed, fixture: &Fixture) -> Result<()> {
    // Where nobody works on it, nothing runs.
    let left = report(env, fixture)?;
    ensure!(left["progress"] != "running", "{left:#}");
    ensure!(left["counts"]["by_state"]["running"].is_null(), "{left:#}");
    call(env, fixture, &["campaign", "resume", "c"])?;
    let report = report(env, fixture)?;
    ensure!(report["progress"] == "finished", "{report:#}");
    for task in report["tasks"].as_array().context("no tasks")? {
        ensure!(task["state"] == "passed", "{report:#}");
        let run = task["run"].as_str().context("no run")?;
        call(env, fixture, &["verify", run])?;
    }
    Ok(())
}

fn forget(env: &Sandboxed, fixture: &Fixture) -> Result<()> {
    call(env, fixture, &["campaign", "rm", "c"])?;
    for run in env.runs(fixture, &["-n", "99"])? {
        call(env, fixture, &["rm", run["run"].as_str().context("no id")?])?;
    }
    for parent in ["bundles", "workspaces", "logs"] {
        let left = fs::read_dir(fixture.state.join(parent))?.count();
        ensure!(left == 0, "{left} left in {parent}");
    }
    Ok(())
}

#[test]
fn a_campaign_goes_on_where_its_driver_died() -> Result<()> {
    in_modes_at_once("campaign", |env, fixture| {
        prepare(env, fixture, 2, AGENT)?;
        each("campaign", |point| {
            dies(env, fixture, point)?;
            resumes(env, fixture)?;
            // What was finished is there once, and nothing was lost: nothing ran at these points.
            let runs = runs(env, fixture)?;
            ensure!(runs == [(1, 0), (1, 0)], "{runs:?}");
            forget(env, fixture)
        })?;
        // A run that dies under way is done again; one that was packed is not.
        for (point, expected) in [
            ("run:changed", [(1, 1), (1, 0)]),
            ("run:synced", [(1, 1), (1, 0)]),
            ("run:packed", [(1, 0), (1, 0)]),
        ] {
            dies(env, fixture, point)?;
            resumes(env, fixture)?;
            let runs = runs(env, fixture)?;
            ensure!(runs == expected, "at `{point}`: {runs:?}");
            forget(env, fixture)?;
        }
        Ok(())
    })
}

#[test]
fn a_disk_that_fills_up_is_named_and_gone_on_from() -> Result<()> {
    if !is_root() {
        println!("SKIPPED full disk: needs root to mount a small file system");
        return Ok(());
    }
    in_modes_at_once("filled", |env, fixture| {
        let place = fixture.folder.with_file_name("small");
        let words = ["-t", "tmpfs", "-o", "size=48m,mode=755", "small"];
        let _mounted = Mounted::at(&place, &words, fixture.mode)?;
        let small = Fixture {
            name: fixture.name.clone(),
            mode: fixture.mode,
            folder: fixture.folder.clone(),
            state: place.join("state"),
        };
        let greedy = "#!/bin/sh\ncat > /dev/null; head -c 200000000 /dev/zero > full\n";
        prepare(env, &small, 2, greedy)?;
        let output = env
            .call(&small)
            .live(&["campaign", "run", "plan.toml"])?
            .finish()?;
        output.exits(1)?;
        let said = output.stderr.to_lowercase();
        ensure!(
            said.contains("no space") || said.contains("disk is full"),
            "it does not name the disk: {said}"
        );
        let full = report(env, &small)?;
        ensure!(full["counts"]["by_state"]["passed"].is_null(), "{full:#}");
        // Room is made, and the agent is mended.
        for run in env.runs(&small, &["-n", "99"])? {
            call(env, &small, &["rm", run["run"].as_str().context("no id")?])?;
        }
        prepare(env, &small, 2, AGENT)?;
        call(env, &small, &["campaign", "resume", "c", "--failed"])?;
        let done = report(env, &small)?;
        ensure!(done["counts"]["by_state"]["passed"] == 2, "{done:#}");
        Ok(())
    })
}
