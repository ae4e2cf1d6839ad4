//! Images: pulled from a real registry and from servers that misbehave, imported from files,
//! checked, shared and removed.

mod files;
mod made;
mod proposals;
mod pulls;
mod reach;
mod real;
mod registry;
mod roots;
mod runs;
mod server;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::support::{Call, Fixture, Output, Sandboxed};

/// `ringfence image …`; it must exit so.
fn says(call: &Call<'_>, words: &[&str], code: i32) -> Result<Output> {
    let words: Vec<&str> = ["image"].iter().chain(words).copied().collect();
    let output = call.finish(&words)?;
    output.exits(code).with_context(|| format!("{words:?}"))?;
    ensure!(!output.stderr.contains("panicked"), "{}", output.stderr);
    Ok(output)
}

/// A call of somebody who has no credentials but those in the folder `docker` of the fixture.
fn call<'a>(env: &'a Sandboxed, fixture: &'a Fixture) -> Call<'a> {
    let docker = fixture.state.with_file_name("docker");
    env.call(fixture)
        .variable("DOCKER_CONFIG", &docker.to_string_lossy())
}

/// All files and directories of the shelf but locks, below the four that are always there.
fn shelf(fixture: &Fixture) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for directory in ["layers", "blobs", "partial", "uses"] {
        let path = fixture.state.join("images").join(directory);
        let Ok(entries) = std::fs::read_dir(&path) else {
            continue;
        };
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_none_or(|end| end != "lock") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// After a failure there is no image, and `gc` leaves nothing of it on the disk.
fn nothing_is_left(call: &Call<'_>, fixture: &Fixture) -> Result<()> {
    let list = says(call, &["list"], 0)?;
    ensure!(list.stdout.is_empty(), "{}", list.stdout);
    let layers: Vec<PathBuf> = shelf(fixture)?
        .into_iter()
        .filter(|path| path.parent().is_some_and(|p| p.ends_with("layers")))
        .collect();
    ensure!(layers.is_empty(), "{layers:?}");
    call.finish(&["gc"])?.exits(0)?;
    let left = shelf(fixture)?;
    ensure!(left.is_empty(), "gc leaves {left:?}");
    Ok(())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the paths of tests are text")
}
