//! Death at every step from the end of the agent to the end of the run: there is no bundle, or all
//! of one.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};
use ringfence_model::bundle::FILES;

use crate::points::{dies_at, each, moment};
use crate::scene::{call, in_modes_at_once};
use crate::support::{Fixture, Sandboxed};

#[test]
fn a_bundle_is_whole_or_not_there() -> Result<()> {
    in_modes_at_once("packing", |env, fixture| {
        each("run", |point| dies_and_is_settled(env, fixture, point))
    })
}

/// What the agent does.
const SHELL: &str = "echo more >> a.txt; echo x > x";

fn dies_and_is_settled(env: &Sandboxed, fixture: &Fixture, point: &str) -> Result<()> {
    dies_at(
        env,
        fixture,
        point,
        &[
            "run",
            "--check",
            "grep -q more a.txt",
            "--",
            "sh",
            "-c",
            SHELL,
        ],
    )?;
    let before = bundles(fixture)?;

    let rows = env.runs(fixture, &[])?;
    let [row] = &rows[..] else {
        anyhow::bail!("not one run: {rows:?}");
    };
    let id = row["run"].as_str().context("no id")?;
    let packed = ["named", "packed", "held"].contains(&moment(point));
    let expected = if packed { "done" } else { "lost" };
    ensure!(row["status"] == expected, "it is {}", row["status"]);
    ensure!(
        bundles(fixture)? == before,
        "looking made or removed something"
    );
    ensure!(env.runs(fixture, &[])? == rows);

    let patch = call(env, fixture, &["diff", id])?;
    ensure!(patch.contains("+more") && patch.contains("b/x"), "{patch}");
    let verified = env.call(fixture).finish(&["verify", id])?;
    if packed {
        let files: BTreeSet<String> = FILES.iter().map(|name| format!("{id}/{name}")).collect();
        ensure!(before == files, "there is {before:?}");
        verified.exits(0)?;
        ensure!(row["changed_files"] == 2, "{row}");
    } else {
        let journal = format!("{id}.partial/audit.jsonl");
        ensure!(before.contains(&journal), "no journal is left: {before:?}");
        let whole = before.iter().find(|name| !name.contains(".partial/"));
        ensure!(whole.is_none(), "{whole:?} is there");
        verified.exits(2)?;
        let partial = fixture.state.join(format!("bundles/{id}.partial"));
        let verified = env
            .call(fixture)
            .finish(&["verify", &partial.to_string_lossy()])?;
        // Without manifest and attestation it is no bundle at all.
        let manifest = format!("{id}.partial/manifest.json");
        verified.exits(if before.contains(&manifest) { 1 } else { 2 })?;
    }
    call(env, fixture, &["rm", id])?;
    for parent in ["bundles", "workspaces", "logs"] {
        let left = fs::read_dir(fixture.state.join(parent))?.count();
        ensure!(left == 0, "{left} left in {parent}");
    }
    Ok(())
}

/// All files of all bundles.
fn bundles(fixture: &Fixture) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for bundle in fs::read_dir(fixture.state.join("bundles"))? {
        let bundle = bundle?;
        for file in fs::read_dir(bundle.path())? {
            let (bundle, file) = (bundle.file_name(), file?.file_name());
            found.insert(format!(
                "{}/{}",
                bundle.to_string_lossy(),
                file.to_string_lossy()
            ));
        }
    }
    Ok(found)
}
