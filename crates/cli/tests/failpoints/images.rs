//! Death while an image is taken in or removed: it is there, whole, or not at all.

use std::os::unix::process::ExitStatusExt as _;

use anyhow::{Context as _, Result, ensure};

use crate::points::{each, moment};
use crate::scene::{call, in_modes_at_once};
use crate::support::{Fixture, Sandboxed, run_quietly};

#[test]
fn an_image_is_whole_or_not_there() -> Result<()> {
    in_modes_at_once("images", |env, fixture| {
        let file = env.put(fixture, "rootfs.tar", "")?;
        let rootfs = fixture.folder.join("rootfs");
        std::fs::create_dir_all(rootfs.join("etc"))?;
        std::fs::write(rootfs.join("etc/name"), "content")?;
        run_quietly(
            std::process::Command::new("tar")
                .arg("-C")
                .arg(&rootfs)
                .arg("-cf")
                .args([&file, std::path::Path::new(".")]),
        )?;
        let file = file.to_string_lossy().into_owned();
        let import = ["image", "import", &file, "--name", "a:1"];
        let rm = ["image", "rm", "a:1"];
        each("image", |point| {
            let removing = moment(point) == "forgot";
            if removing {
                call(env, fixture, &import)?;
            }
            dies(env, fixture, point, if removing { &rm } else { &import })?;
            let listed = call(env, fixture, &["image", "list"])?;
            let there = moment(point) == "recorded";
            ensure!(listed.contains("a:1") == there, "{listed}");
            if there {
                call(env, fixture, &["image", "verify", "a:1"])?;
            }
            // It can be had again, also from what is there already, and goes without a trace.
            call(env, fixture, &import)?;
            call(env, fixture, &["image", "verify", "a:1"])?;
            call(env, fixture, &rm)?;
            left(fixture, &["layers", "blobs", "partial"])?;
            // Nor does `gc` leave anything of one that was killed.
            if removing {
                return Ok(());
            }
            dies(env, fixture, point, &import)?;
            if there {
                call(env, fixture, &rm)?;
            }
            call(env, fixture, &["gc"])?;
            left(fixture, &["layers", "blobs", "partial"])
        })
    })
}

fn dies(env: &Sandboxed, fixture: &Fixture, point: &str, words: &[&str]) -> Result<()> {
    let met = fixture.folder.with_file_name("met");
    let _ = std::fs::remove_file(&met);
    let output = env
        .call(fixture)
        .variable("RINGFENCE_FAIL", point)
        .variable("RINGFENCE_FAIL_MET", &met.to_string_lossy())
        .live(words)?
        .finish()?;
    ensure!(output.status.signal() == Some(9), "{}", output.tail());
    let said = std::fs::read_to_string(&met).unwrap_or_default();
    ensure!(said == point, "it was not met: {}", output.tail());
    Ok(())
}

fn left(fixture: &Fixture, directories: &[&str]) -> Result<()> {
    for directory in directories {
        let path = fixture.state.join("images").join(directory);
        let entries = std::fs::read_dir(&path).with_context(|| format!("{path:?}"))?;
        let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
        ensure!(names.is_empty(), "{directory} has {names:?}");
    }
    Ok(())
}
