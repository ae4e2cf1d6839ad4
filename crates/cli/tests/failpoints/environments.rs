//! Death while a setup is made and kept: nobody uses half of it, the next one makes it, and nothing
//! is left behind.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::points::{dies_at, each};
use crate::scene::{call, cgroups, in_modes_at_once};
use crate::support::{Fixture, Sandboxed};

/// One word in all that a setup may leave, and another one each time.
const SETUP: &str = "[environment]\nsetup = '''mkdir made; \
    cat /proc/sys/kernel/random/uuid > made/word; cp made/word ~/word; \
    cp made/word $PIP_CACHE_DIR/word'''\n[environment.cache]\npip = true\n";
const LOOK: &str = "cat made/word ~/word $PIP_CACHE_DIR/word";

#[test]
fn a_setup_is_whole_or_made_again() -> Result<()> {
    in_modes_at_once("setups", |env, fixture| {
        env.put(fixture, "ringfence.toml", SETUP)?;
        each("environment", |point| {
            dies(env, fixture, point)?;
            let listed = call(env, fixture, &["environment", "list", "--json"])?;
            ensure!(listed.is_empty(), "half of it is listed: {listed}");
            let words = call(env, fixture, &["run", "--", "sh", "-c", LOOK])?;
            let all: Vec<&str> = words.lines().collect();
            let same = all.len() == 3 && all.iter().all(|word| *word == all[0]);
            ensure!(same, "not of one setup: {words}");
            let again = call(env, fixture, &["run", "--", "sh", "-c", LOOK])?;
            ensure!(again == words, "it was made twice: {again} and {words}");
            let listed = call(env, fixture, &["environment", "list", "--json"])?;
            let listed: Value = serde_json::from_str(&listed).context("not one")?;
            let key = listed["key"].as_str().context("no key")?;
            remove_runs(env, fixture)?;
            call(env, fixture, &["environment", "rm", key])?;
            nothing_is_left(env, fixture)?;
            // Nor where nobody comes to make it again.
            dies(env, fixture, point)?;
            remove_runs(env, fixture)?;
            nothing_is_left(env, fixture)
        })
    })
}

fn dies(env: &Sandboxed, fixture: &Fixture, point: &str) -> Result<()> {
    dies_at(env, fixture, point, &["run", "--", "true"])
}

fn remove_runs(env: &Sandboxed, fixture: &Fixture) -> Result<()> {
    for row in env.runs(fixture, &[])? {
        call(env, fixture, &["rm", row["run"].as_str().context("an id")?])?;
    }
    Ok(())
}

fn nothing_is_left(env: &Sandboxed, fixture: &Fixture) -> Result<()> {
    let places = names(&fixture.state.join("workspaces"))?;
    call(env, fixture, &["gc"])?;
    for parent in ["workspaces", "environments", "caches/pip"] {
        let mut left = names(&fixture.state.join(parent))?;
        // The lock of a cache may be waited for by somebody, and is empty.
        left.retain(|name| parent != "caches/pip" || !name.ends_with(".lock"));
        ensure!(left.is_empty(), "{left:?} left in {parent}");
    }
    let groups = cgroups(Path::new("/sys/fs/cgroup"), 6);
    let left = groups
        .iter()
        .find(|group| places.iter().any(|place| group.ends_with(place.as_str())));
    ensure!(left.is_none(), "the cgroup {left:?} is left");
    let more = call(env, fixture, &["gc", "--json"])?;
    ensure!(more == "[]", "`gc` finds more the second time: {more}");
    Ok(())
}

fn names(directory: &Path) -> Result<Vec<String>> {
    if !directory.exists() {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    Ok(names)
}
