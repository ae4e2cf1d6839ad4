//! R9, R16, R28: the example that is shipped, from the plan to a branch. 200 files, 20 tasks, one that the
//! agent does not understand and one that it lies about.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::support::{Mode, Sandboxed};

#[test]
fn the_shipped_example_ends_as_it_is_told() -> Result<()> {
    let env = Sandboxed::start(env!("CARGO_BIN_EXE_ringfence"))?;
    // Each task is a sandbox as all other tests have them in each mode; this one is long.
    let fixture = env.fixture("shop", Mode::Rootless)?;
    let maker = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/shop/make-tree");
    let made = Command::new("python3")
        .args(["-B", maker])
        .arg(&fixture.folder)
        .status()?;
    ensure!(made.success(), "the tree was not made");
    let owner = Command::new("chown")
        .arg("-R")
        .arg(format!("--reference={}", fixture.folder.display()))
        .arg(&fixture.folder)
        .status()?;
    ensure!(owner.success(), "the tree has no owner");
    crate::campaign::commit_all(&env, &fixture)?;
    let before = env.git(&fixture, &fixture.folder, &["status", "--short"])?;
    let output = env.ringfence(&fixture, 600, &["campaign", "run", "plan.toml"])?;
    // Not all tasks pass, and the exit code says so.
    output.exits(1)?;
    ensure!(
        output.stdout.contains("18 passed, 2 exhausted")
            || output.stderr.contains("18 passed, 2 exhausted"),
        "{}",
        output.tail()
    );
    let after = env.git(&fixture, &fixture.folder, &["status", "--short"])?;
    ensure!(before == after, "the folder changed: {after}");

    let report = env.look(&fixture, &["campaign", "report", "utcnow", "--json"])?;
    let report: Value = serde_json::from_str(&report)?;
    let tasks = report["tasks"].as_array().context("no tasks")?;
    ensure!(tasks.len() == 20, "{} tasks", tasks.len());
    let lying = task(tasks, 13)?;
    ensure!(lying["state"] == "exhausted", "{lying}");
    let serious = lying["serious"].as_array().context("no flags")?;
    ensure!(!serious.is_empty(), "{lying}");
    ensure!(task(tasks, 10)?["state"] == "exhausted", "task 10");
    let run = task(tasks, 1)?["run"]
        .as_str()
        .context("no run")?
        .to_owned();
    let result = env.look(&fixture, &["show", &run, "--json"])?;
    let result: Value = serde_json::from_str(&result)?;
    // It forgot an import, was told so, and mended it.
    let rounds = result["rounds"]["iterations"].as_array();
    ensure!(
        rounds.is_some_and(|rounds| rounds.len() == 2),
        "{}",
        result["rounds"]
    );

    for number in [1, 2] {
        let run = task(tasks, number)?["run"]
            .as_str()
            .context("no run")?
            .to_owned();
        env.look(&fixture, &["approve", &run])?;
    }
    let words = [
        "campaign",
        "apply",
        "utcnow",
        "--branch",
        "utcnow",
        "--author",
        "A <a@b.example>",
    ];
    let output = env.ringfence(&fixture, 300, &words)?;
    // The others were not decided about.
    output.exits(1)?;
    let changed = ["diff", "--name-only", "HEAD", "utcnow"];
    let changed = env.git(&fixture, &fixture.folder, &changed)?;
    let whose =
        |line: &str| line.starts_with("shop/accounts/") || line.starts_with("shop/baskets/");
    ensure!(
        changed.lines().count() == 8 && changed.lines().all(whose),
        "{changed}"
    );
    env.discard(&fixture);
    Ok(())
}

fn task(tasks: &[Value], number: u64) -> Result<&Value> {
    let found = tasks.iter().find(|task| task["number"] == number);
    found.with_context(|| format!("no task {number}"))
}
