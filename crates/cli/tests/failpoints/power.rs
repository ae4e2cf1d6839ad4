//! A power cut: what was acknowledged is there, and what is called durable is whole.
//!
//! The home is on a file system of its own, which is shut down at once and without its log, as
//! `XFS_IOC_GOINGDOWN` does it on ext4 too, and then mounted again.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::disk::Mounted;
use crate::scene::{BACKGROUND, Scene, end_all, in_modes_at_once};
use crate::support::{Fixture, is_root, run_quietly};

/// `EXT4_IOC_SHUTDOWN` with `EXT4_GOING_FLAGS_NOLOGFLUSH`.
const CUT: &str = "import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.ioctl(fd, 0x8004587D, struct.pack('I', 2))";
const ROUNDS: usize = 2;

#[test]
fn a_power_cut_takes_nothing_that_was_acknowledged() -> Result<()> {
    if !is_root() || !can_loop() {
        println!("SKIPPED power cut: needs root and loop devices");
        return Ok(());
    }
    in_modes_at_once("power", |env, fixture| {
        let image = fixture.folder.with_file_name("image");
        std::fs::File::create(&image)?.set_len(192 << 20)?;
        run_quietly(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image))?;
        let place = fixture.folder.with_file_name("cut");
        let home = Fixture {
            name: fixture.name.clone(),
            mode: fixture.mode,
            folder: fixture.folder.clone(),
            state: place.join("state"),
        };
        let image = image.to_string_lossy().into_owned();
        let mount = || Mounted::at(&place, &["-o", "loop", &image], home.mode);
        let mut mounted = Some(mount()?);
        let scene = Scene::set(env, &home)?;
        let mut known = BTreeMap::new();
        for round in 0..ROUNDS {
            let told = work(&scene, round)?;
            // Nobody is asked to write anything down first.
            let place_text = place.to_string_lossy();
            run_quietly(Command::new("python3").args(["-c", CUT, &place_text]))?;
            // With the power, all processes go.
            end_all(&home.state);
            scene.quiet("keep")?;
            scene.quiet("settle")?;
            drop(mounted.take());
            let_go(&image)?;
            mounted = Some(mount()?);
            known.extend(told);
            check(&scene, &mut known).with_context(|| format!("after cut {round}"))?;
        }
        scene.end()?;
        drop(mounted);
        Ok(())
    })
}

/// Waits until nobody has the file system any more.
///
/// A sandbox that another test starts has a copy of every mount for a moment. As long as one is
/// there, a new mount of the same image is the old file system, which was shut down.
fn let_go(image: &str) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let output = Command::new("losetup").args(["-j", image]).output()?;
        ensure!(output.status.success(), "losetup -j {image}: {output:?}");
        if output.stdout.is_empty() {
            return Ok(());
        }
        ensure!(Instant::now() < until, "somebody keeps {image} mounted");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn can_loop() -> bool {
    let works = |program: &str, words: &[&str]| {
        let output = Command::new(program).args(words).output();
        output.is_ok_and(|output| output.status.success())
    };
    works("losetup", &["-f"]) && works("python3", &["-c", ""]) && works("mkfs.ext4", &["-V"])
}

/// What was acknowledged of a sandbox.
#[derive(Debug, Default)]
struct Told {
    /// Digest of each checkpoint, and whether it was called durable.
    checkpoints: BTreeMap<String, (String, bool)>,
}

/// Sandboxes with checkpoints by moving and by copying, and forks; the last of them just now.
fn work(scene: &Scene<'_>, round: usize) -> Result<BTreeMap<String, Told>> {
    let mut known = BTreeMap::new();
    for n in 0..3 {
        let id = scene.fresh()?;
        let mut told = Told::default();
        if n == 1 {
            scene.exec(&id, BACKGROUND)?;
        }
        for name in ["one", "two"] {
            scene.exec(
                &id,
                &format!("echo {round} {n} {name} > mark; head -c 300000 /dev/urandom > {name}"),
            )?;
            let digest = scene.digest(&id)?;
            scene.checkpoint(&id, name)?;
            told.checkpoints.insert(name.to_owned(), (digest, false));
            if n < 2 {
                scene.quiet("settle")?;
            }
        }
        let forks = scene.ask(&["sandbox", "fork", &id, "--count", "2"])?;
        for (name, durable) in scene.checkpoints(&id)? {
            if let Some(told) = told.checkpoints.get_mut(&name) {
                told.1 = durable;
            }
        }
        known.insert(id, told);
        known.extend(forks.lines().map(|fork| (fork.to_owned(), Told::default())));
    }
    let durable = known.values().flat_map(|told| told.checkpoints.values());
    ensure!(
        durable.filter(|told| told.1).count() >= 4,
        "few are durable"
    );
    Ok(known)
}

fn check(scene: &Scene<'_>, known: &mut BTreeMap<String, Told>) -> Result<()> {
    scene.settled()?;
    for (id, told) in known.iter() {
        let state = scene.state_of(id)?;
        ensure!(state.is_some(), "sandbox {id} was acknowledged and is gone");
        let there = scene.checkpoints(id)?;
        for (name, (digest, durable)) in &told.checkpoints {
            let now = *there
                .get(name)
                .with_context(|| format!("`{name}` of {id} is gone"))?;
            ensure!(now || !durable, "`{name}` of {id} is not durable any more");
            let back = scene.try_ask(&["sandbox", "rollback", id, name])?;
            let same = back.status.success() && scene.digest(id)? == *digest;
            ensure!(
                same || !now,
                "`{name}` of {id} is durable and not whole: {}",
                back.tail()
            );
        }
    }
    for id in known.keys() {
        scene.remove(id)?;
    }
    known.clear();
    ensure!(
        scene.digest(&scene.template)? == scene.green,
        "the template changed"
    );
    scene.swept()
}
