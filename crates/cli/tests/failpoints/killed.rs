//! `kill -9` of the keeper at any time: the execution is lost, and nothing else.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::scene::{Scene, end_all, in_modes_at_once};

const ROUNDS: u64 = 20;
/// BOUND: about what a round takes.
const WITHIN_MS: u64 = 250;

#[test]
fn a_keeper_that_is_killed_at_any_time_loses_no_file() -> Result<()> {
    in_modes_at_once("killed", |env, fixture| {
        let scene = Scene::set(env, fixture)?;
        let id = scene.fresh()?;
        let mut written = 0;
        for round in 0..ROUNDS {
            one(&scene, &id, round, &mut written)
                .with_context(|| format!("in round {round} of the seed {}", seed()))?;
        }
        scene.remove(&id)?;
        scene.end()
    })
}

fn seed() -> u64 {
    let given = std::env::var("RINGFENCE_SEED").ok();
    given.and_then(|text| text.parse().ok()).unwrap_or(7)
}

fn one(scene: &Scene<'_>, id: &str, round: u64, written: &mut u64) -> Result<()> {
    let mut hasher = DefaultHasher::new();
    (seed(), round).hash(&mut hasher);
    let moment = Duration::from_millis(hasher.finish() % WITHIN_MS);
    let next = *written + 1;
    let name = format!("r{round}");
    let (executed, sealed) = std::thread::scope(|scope| {
        let killer = scope.spawn(|| kill_after(scene, moment));
        let write = format!("echo {next} > count.new && mv count.new count");
        let write = ["sandbox", "exec", id, "--replace", "--", "sh", "-c", &write];
        let executed = scene.try_ask(&write);
        let sealed = scene.try_ask(&["sandbox", "checkpoint", id, "--name", &name]);
        let _ = killer.join();
        (executed, sealed)
    });
    let (executed, sealed) = (executed?, sealed?);
    for output in [&executed, &sealed] {
        // Whatever it came to, it is said in words and not by dying.
        ensure!(output.status.code().is_some(), "{}", output.tail());
        ensure!(output.status.code() != Some(70), "{}", output.tail());
    }
    scene.settled()?;
    let count = scene.exec(id, "cat count 2>/dev/null || echo 0")?;
    let count: u64 = count.parse().with_context(|| format!("`{count}`"))?;
    let expected = if executed.status.success() {
        count == next
    } else {
        count == next || count == *written
    };
    ensure!(expected, "{count} after {written}: {}", executed.tail());
    *written = count;
    let there = scene.checkpoints(id)?.contains_key(&name);
    ensure!(there || !sealed.status.success(), "`{name}` is lost");
    Ok(())
}

/// Kills the keeper that is there after a while, and whoever writes to the disk.
fn kill_after(scene: &Scene<'_>, moment: Duration) {
    let began = Instant::now();
    while began.elapsed() < moment {
        std::thread::sleep(Duration::from_millis(1));
    }
    end_all(&scene.fixture.state);
}
