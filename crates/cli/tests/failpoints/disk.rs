//! A disk that is full: it is said so, nothing is lost, and all works when there is room again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::scene::{BACKGROUND, Scene, in_modes_at_once};
use crate::support::{Fixture, Mode, NOBODY, Sandboxed, is_root, run_quietly};

/// A file system that is unmounted whatever happens.
pub struct Mounted {
    pub path: PathBuf,
}

impl Mounted {
    /// Mounts at a fresh directory that belongs to whoever owns the fixture.
    pub fn at(path: &Path, words: &[&str], mode: Mode) -> Result<Self> {
        fs::create_dir_all(path)?;
        run_quietly(Command::new("mount").args(words).arg(path))?;
        let mounted = Self {
            path: path.to_owned(),
        };
        if mode == Mode::Rootless {
            std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY))?;
        }
        Ok(mounted)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // What still runs in it is on its way out; without it the mount is gone from sight at once.
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

#[test]
fn a_full_disk_is_named_and_nothing_is_lost() -> Result<()> {
    if !is_root() {
        println!("SKIPPED full disk: needs root to mount a small file system");
        return Ok(());
    }
    in_modes_at_once("disk", |env, fixture| {
        let place = fixture.folder.with_file_name("small");
        let _mounted = Mounted::at(
            &place,
            &["-t", "tmpfs", "-o", "size=48m,mode=755", "small"],
            fixture.mode,
        )?;
        let small = Fixture {
            name: fixture.name.clone(),
            mode: fixture.mode,
            folder: fixture.folder.clone(),
            state: place.join("state"),
        };
        fill_it(env, &small)
    })
}

fn fill_it(env: &Sandboxed, fixture: &Fixture) -> Result<()> {
    let scene = Scene::set(env, fixture)?;
    let id = scene.fresh()?;
    scene.exec(&id, "head -c 8000000 /dev/urandom > large")?;
    scene.exec(&id, BACKGROUND)?;
    let before = scene.digest(&id)?;
    scene.quiet("settle")?;
    let kept = scene.settled()?;
    let filler = fixture.state.with_file_name("filler");
    // Nearly full: a copy does not fit. Full: nothing does.
    for left in [4 << 20, 0] {
        fill(&filler, left)?;
        for words in [
            &["sandbox", "checkpoint", &id, "--name", "c"][..],
            &[
                "sandbox", "create", "--base", "HEAD", "--stage", "needed", "--files", "src",
            ],
            &["sandbox", "create"],
        ] {
            let output = scene.try_ask(words)?;
            if left > 0 && words[1] == "create" {
                continue;
            }
            ensure!(!output.status.success(), "{words:?} works on a full disk");
            let said = output.stderr.to_lowercase();
            ensure!(
                said.contains("no space") || said.contains("disk is full"),
                "{words:?} does not name the disk: {}",
                output.tail()
            );
        }
        fs::remove_file(&filler)?;
        scene.ticks(&id).context("after it was full")?;
        ensure!(scene.digest(&id)? == before, "something else is there");
    }
    scene.settled()?;
    scene.swept()?;
    for known in kept.sandboxes.keys() {
        ensure!(scene.is_there(known)?, "{known} is lost");
    }
    ensure!(scene.checkpoints(&id)?.is_empty(), "a checkpoint is there");
    scene.checkpoint(&id, "c")?;
    scene.ask(&["sandbox", "rollback", &id, "c"])?;
    ensure!(scene.digest(&id)? == before, "the checkpoint is half");
    scene.end()
}

/// Takes all but so many bytes.
fn fill(path: &Path, left: u64) -> Result<()> {
    let stat = rustix::fs::statvfs(path.parent().context("no parent")?)?;
    let free = stat.f_bavail * stat.f_frsize;
    let file = fs::File::create(path)?;
    let size = free.saturating_sub(left);
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, size)?;
    Ok(())
}
