//! patch-018: death at every step of `apply`: the folder is as it was or as it should be, and nothing is left.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::points::{dies_at, each, moment};
use crate::scene::{call, in_modes_at_once};
use crate::support::{Fixture, Sandboxed};

/// Every kind of change: edited, new in new directories, removed, renamed, retyped both ways.
const WORK: &str = "echo more >> a.txt; mkdir -p n/m; echo x > n/m/x; rm src/deep/x.c; \
    mv src/main.c src/start.c; rm link file; ln -s other link; mkdir file; echo f > file/f; \
    rm -r dir; echo d > dir";

#[test]
fn a_patch_is_applied_or_not() -> Result<()> {
    in_modes_at_once("applying", |env, fixture| {
        let prepare =
            "ln -s a.txt link; echo f > file; mkdir -p dir/e; echo 1 > dir/1; echo 2 > dir/e/2";
        env.as_owner(fixture, &fixture.folder, &["sh", "-c", prepare])?;
        let result = env.run_with(fixture, &[], WORK)?;
        let run = result["run"].as_str().context("no run")?;
        call(env, fixture, &["approve", run])?;
        let before = contents(&fixture.folder)?;
        let kept = fixture.folder.with_file_name("kept");
        copy(&fixture.folder, &kept)?;
        call(env, fixture, &["apply", run])?;
        let after = contents(&fixture.folder)?;
        ensure!(before != after, "nothing was applied");
        each("apply", |point| {
            fs::remove_dir_all(&fixture.folder)?;
            copy(&kept, &fixture.folder)?;
            dies_and_is_settled(env, fixture, (run, point), (&before, &after))
        })
    })
}

fn dies_and_is_settled(
    env: &Sandboxed,
    fixture: &Fixture,
    (run, point): (&str, &str),
    (before, after): (&Contents, &Contents),
) -> Result<()> {
    dies_at(env, fixture, point, &["apply", run])?;
    // Any command settles it.
    env.runs(fixture, &[])?;
    let done = ["done", "cleared"].contains(&moment(point));
    let expected = if done { after } else { before };
    let found = contents(&fixture.folder)?;
    ensure!(found == *expected, "the folder is {found:#?}");
    let left = fs::read_dir(fixture.state.join("applying"))?;
    let left: Vec<_> = left
        .filter_map(|entry| Some(entry.ok()?.file_name()))
        .collect();
    ensure!(left.iter().all(|name| name == "lock"), "left: {left:?}");
    call(env, fixture, &["apply", run])?;
    ensure!(
        contents(&fixture.folder)? == *after,
        "it cannot be applied any more"
    );
    Ok(())
}

/// Each path with what it holds, without `.git`.
type Contents = BTreeMap<PathBuf, String>;

fn contents(folder: &Path) -> Result<Contents> {
    let mut found = Contents::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            if path == folder.join(".git") {
                continue;
            }
            let meta = path.symlink_metadata()?;
            let held = if meta.is_dir() {
                pending.push(path.clone());
                "directory".to_owned()
            } else if meta.is_symlink() {
                format!("link to {:?}", fs::read_link(&path)?)
            } else {
                fs::read_to_string(&path)?
            };
            found.insert(path, held);
        }
    }
    Ok(found)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut command = std::process::Command::new("cp");
    crate::support::run_quietly(command.arg("-a").arg(from).arg(to))
}
