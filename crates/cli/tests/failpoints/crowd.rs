//! Many at once: whoever looks, and settles what the dead left, never touches what the living do.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};

use crate::scene::{Scene, in_modes_at_once};

/// BOUND: enough to be in each other's way.
const LOOKERS: usize = 8;
const ROUNDS: usize = 3;

#[test]
fn looking_never_undoes_what_somebody_does() -> Result<()> {
    in_modes_at_once("crowd", |env, fixture| {
        let scene = Scene::set(env, fixture)?;
        let over = AtomicBool::new(false);
        let looked: Result<()> = std::thread::scope(|scope| {
            let lookers: Vec<_> = (0..LOOKERS)
                .map(|n| {
                    let (scene, over) = (&scene, &over);
                    scope.spawn(move || -> Result<()> {
                        while !over.load(Ordering::Relaxed) {
                            match n {
                                // One that sweeps is the most dangerous of them.
                                0 => scene.ask(&["gc"])?,
                                _ => scene.ask(&["status", "--json"])?,
                            };
                        }
                        Ok(())
                    })
                })
                .collect();
            let worked = (0..ROUNDS).try_for_each(|round| {
                work(&scene, round).with_context(|| format!("in round {round}"))
            });
            over.store(true, Ordering::Relaxed);
            let looked = lookers.into_iter().try_for_each(|looker| {
                looker
                    .join()
                    .unwrap_or_else(|_| anyhow::bail!("it panicked"))
            });
            worked.and(looked)
        });
        looked?;
        scene.settled()?;
        scene.end()
    })
}

/// Every call must succeed, and what was acknowledged must be there.
fn work(scene: &Scene<'_>, round: usize) -> Result<()> {
    let made = scene.ask(&["sandbox", "create", "--base", "HEAD"])?;
    scene.exec(&made, "echo kept > kept")?;
    let id = scene.fresh()?;
    if round.is_multiple_of(2) {
        scene.exec(&id, crate::scene::BACKGROUND)?;
    }
    scene.checkpoint(&id, "c")?;
    let forks = scene.ask(&["sandbox", "fork", &id, "--count", "4", "--tag", "crowd"])?;
    ensure!(forks.lines().count() == 4, "{forks}");
    scene.exec(&id, "echo more > more")?;
    scene.ask(&["sandbox", "rollback", &id, "c"])?;
    ensure!(scene.digest(&id)? == scene.dirty, "not the checkpoint");
    scene.remove(&id)?;
    let fork = forks.lines().next().context("no fork")?;
    ensure!(scene.digest(fork)? == scene.dirty, "not what was forked");
    scene.ask(&["sandbox", "stop", fork])?;
    scene.ask(&["sandbox", "rm", "--tag", "crowd"])?;
    // It was never told to start again.
    scene.ask(&["sandbox", "exec", &made, "--", "test", "-f", "kept"])?;
    scene.remove(&made)?;
    Ok(())
}
