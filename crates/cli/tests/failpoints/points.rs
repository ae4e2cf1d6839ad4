//! Death at every step: whatever was asked for is done or was not, and can be asked for again.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;

use anyhow::{Context, Result, ensure};
use ringfence_engine::fail::POINTS;

use crate::scene::{BACKGROUND, Scene, in_modes_at_once};
use crate::support::{Fixture, Sandboxed, run_quietly};

/// Verbs with the test that walks their points.
const WALKED: &[&str] = &[
    "mirror",
    "base",
    "create",
    "exec",
    "checkpoint",
    "fork",
    "rollback",
    "stop",
    "rm",
    "sweep",
    "gc",
    "settle",
    "squash",
    "keeper",
    "run",
    "environment",
    "image",
    "apply",
    "campaign",
    "merge",
];

fn points(verb: &str) -> impl Iterator<Item = &'static str> {
    let of_verb = move |point: &&&str| point.split(':').next() == Some(verb);
    POINTS.iter().filter(of_verb).copied()
}

/// A call that dies at a point, and nowhere else.
pub fn dies_at(env: &Sandboxed, fixture: &Fixture, point: &str, words: &[&str]) -> Result<()> {
    let met = fixture.folder.with_file_name("met");
    let _ = fs::remove_file(&met);
    let output = env
        .call(fixture)
        .variable("RINGFENCE_FAIL", point)
        .variable("RINGFENCE_FAIL_MET", &met.to_string_lossy())
        .live(words)?
        .finish()?;
    ensure!(output.status.signal() == Some(9), "{}", output.tail());
    let said = fs::read_to_string(&met).unwrap_or_default();
    ensure!(said == point, "it was not met: {}", output.tail());
    Ok(())
}

pub fn moment(point: &str) -> &str {
    point.split_once(':').map_or("", |(_, moment)| moment)
}

/// In each mode, a scene that is looked through at its end.
fn walk(name: &str, act: impl Fn(&Scene<'_>) -> Result<()> + Sync) -> Result<()> {
    in_modes_at_once(name, |env, fixture| {
        let scene = Scene::set(env, fixture)?;
        act(&scene)?;
        scene.end()
    })
}

/// Each point of a verb, with its name in what goes wrong.
pub fn each(verb: &str, act: impl Fn(&str) -> Result<()>) -> Result<()> {
    points(verb).try_for_each(|point| act(point).with_context(|| format!("at `{point}`")))
}

#[test]
fn every_point_has_a_test() {
    let walked: BTreeSet<&str> = WALKED.iter().copied().collect();
    let verbs: BTreeSet<&str> = POINTS.iter().filter_map(|p| p.split(':').next()).collect();
    assert_eq!(verbs, walked);
    let distinct: BTreeSet<&&str> = POINTS.iter().collect();
    assert_eq!(distinct.len(), POINTS.len());
}

#[test]
fn a_clone_and_a_base_are_made_again_by_the_next_one() -> Result<()> {
    walk("sources", |scene| {
        for point in points("mirror").chain(points("base")) {
            let copy = scene.fixture.folder.with_file_name(point.replace(':', "-"));
            run_quietly(
                std::process::Command::new("cp")
                    .arg("-a")
                    .args([&scene.fixture.folder, &copy]),
            )?;
            let path = copy.to_string_lossy();
            let commit = ["sandbox", "create", "--repo", &path, "--base", "HEAD"];
            again(scene, point, &commit).with_context(|| format!("at `{point}`"))?;
            // A folder as it is has a base that nobody else can go on with.
            if point.starts_with("base") {
                let folder = ["sandbox", "create", "--repo", &path];
                again(scene, point, &folder).with_context(|| format!("at `{point}`, folder"))?;
            }
        }
        Ok(())
    })
}

fn again(scene: &Scene<'_>, point: &str, words: &[&str]) -> Result<()> {
    let before = scene.kept()?.sandboxes;
    scene.dies(point, words)?;
    let kept = scene.settled()?;
    ensure!(kept.sandboxes == before, "a sandbox is there");
    // The base of a commit is gone on with; that of a folder is only ever swept.
    if !words.contains(&"--base") {
        scene.swept()?;
    }
    let id = scene.ask(words)?;
    let text = scene.exec(
        &id,
        "cat a.txt && git log --format=%s && git status --short",
    )?;
    ensure!(
        text.starts_with("one\ntwo\nthree\nfirst"),
        "it holds {text}"
    );
    scene.remove(&id)?;
    scene.swept()
}

#[test]
fn a_sandbox_is_made_or_not() -> Result<()> {
    walk("create", |scene| {
        each("create", |point| {
            let words = ["sandbox", "create", "--base", "HEAD", "--name", "made"];
            scene.dies(point, &words)?;
            let kept = scene.settled()?;
            let made = moment(point) == "ready";
            let expected = if made { 2 } else { 1 };
            ensure!(kept.sandboxes.len() == expected, "{:?}", kept.sandboxes);
            if !made {
                scene.ask(&words)?;
            }
            scene.exec("made", "test -f a.txt && ! test -e ~/green")?;
            scene.remove("made")?;
            scene.swept()
        })
    })
}

#[test]
fn a_command_ran_or_did_not() -> Result<()> {
    walk("exec", |scene| {
        each("exec", |point| {
            let id = scene.fresh()?;
            scene.ask(&["sandbox", "stop", &id])?;
            let write = ["sandbox", "exec", &id, "--", "sh", "-c", "echo ran > ran"];
            scene.dies(point, &write)?;
            scene.settled()?;
            if moment(point) == "ran" {
                scene.exec(&id, "rm ran")?;
            }
            ensure!(scene.digest(&id)? == scene.dirty, "something else is there");
            scene.ask(&write)?;
            scene.exec(&id, "test -f ran")?;
            scene.remove(&id)?;
            scene.swept()
        })
    })
}

/// What runs while a state is sealed: nothing, then the top is moved; or something, then it is
/// copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inside {
    Quiet,
    Busy,
}

impl Inside {
    fn has(self, point: &str) -> bool {
        match moment(point) {
            "moved" => self == Self::Quiet,
            "copied" => self == Self::Busy,
            _ => true,
        }
    }

    fn prepare(self, scene: &Scene<'_>) -> Result<String> {
        let id = scene.fresh()?;
        if self == Self::Busy {
            scene.exec(&id, BACKGROUND)?;
        }
        Ok(id)
    }

    fn check(self, scene: &Scene<'_>, id: &str) -> Result<()> {
        if self == Self::Busy {
            scene.ticks(id)?;
        }
        ensure!(scene.digest(id)? == scene.dirty, "something else is there");
        Ok(())
    }
}

#[test]
fn a_checkpoint_is_whole_or_not_there() -> Result<()> {
    walk("checkpoint", |scene| {
        for inside in [Inside::Quiet, Inside::Busy] {
            each("checkpoint", |point| {
                if inside.has(point) {
                    checkpoint(scene, point, inside).context(format!("{inside:?}"))
                } else {
                    Ok(())
                }
            })?;
        }
        Ok(())
    })
}

fn checkpoint(scene: &Scene<'_>, point: &str, inside: Inside) -> Result<()> {
    let id = inside.prepare(scene)?;
    let words = ["sandbox", "checkpoint", &id, "--name", "c"];
    scene.dies(point, &words)?;
    scene.settled()?;
    inside.check(scene, &id)?;
    if !scene.checkpoints(&id)?.contains_key("c") {
        let done = match inside {
            Inside::Quiet => ["moved", "sealed", "done"].contains(&moment(point)),
            Inside::Busy => moment(point) == "done",
        };
        ensure!(!done, "the checkpoint is lost");
        scene.ask(&words)?;
    }
    scene.exec(&id, "echo more > more")?;
    scene.ask(&["sandbox", "rollback", &id, "c"])?;
    ensure!(scene.digest(&id)? == scene.dirty, "the checkpoint is half");
    scene.remove(&id)?;
    scene.swept()
}

#[test]
fn forks_are_all_there_or_none() -> Result<()> {
    walk("fork", |scene| {
        for inside in [Inside::Quiet, Inside::Busy] {
            each("fork", |point| {
                if inside.has(point) {
                    fork(scene, point, inside).context(format!("{inside:?}"))
                } else {
                    Ok(())
                }
            })?;
        }
        Ok(())
    })
}

fn fork(scene: &Scene<'_>, point: &str, inside: Inside) -> Result<()> {
    let id = inside.prepare(scene)?;
    let words = ["sandbox", "fork", &id, "--count", "2", "--tag", "forks"];
    let before = scene.kept()?.sandboxes.len();
    scene.dies(point, &words)?;
    let kept = scene.settled()?;
    let made = ["ready", "cleared"].contains(&moment(point));
    let expected = before + if made { 2 } else { 0 };
    ensure!(kept.sandboxes.len() == expected, "{:?}", kept.sandboxes);
    inside.check(scene, &id)?;
    if !made {
        scene.ask(&words)?;
    }
    // Forks stand by themselves.
    scene.remove(&id)?;
    for fork in scene.kept()?.sandboxes.keys() {
        if *fork != scene.template {
            ensure!(scene.digest(fork)? == scene.dirty, "a fork is half");
            break;
        }
    }
    scene.ask(&["sandbox", "rm", "--tag", "forks"])?;
    scene.swept()
}

#[test]
fn a_rollback_is_done_or_was_not_begun() -> Result<()> {
    walk("rollback", |scene| {
        each("rollback", |point| {
            let id = scene.fresh()?;
            // A checkpoint of its own to go back to.
            scene.checkpoint(&id, "c")?;
            scene.exec(&id, "echo later > later; rm a.txt")?;
            let later = scene.digest(&id)?;
            let words = ["sandbox", "rollback", &id, "c"];
            scene.dies(point, &words)?;
            scene.settled()?;
            let expected = match moment(point) {
                "ended" => &later,
                _ => &scene.dirty,
            };
            ensure!(scene.digest(&id)? == *expected, "something else is there");
            scene.ask(&words)?;
            ensure!(scene.digest(&id)? == scene.dirty, "not the checkpoint");
            scene.remove(&id)?;
            scene.swept()
        })
    })
}

#[test]
fn what_is_stopped_or_removed_half_is_so_in_the_end() -> Result<()> {
    walk("end", |scene| {
        each("stop", |point| {
            let id = Inside::Busy.prepare(scene)?;
            scene.dies(point, &["sandbox", "stop", &id])?;
            scene.settled()?;
            scene.ask(&["sandbox", "stop", &id])?;
            let state = scene.state_of(&id)?;
            ensure!(state.as_deref() == Some("stopped"), "it is {state:?}");
            scene.quiet("keep")?;
            ensure!(scene.digest(&id)? == scene.dirty, "something else is there");
            scene.remove(&id)?;
            scene.swept()
        })?;
        for point in points("rm").chain(points("sweep")) {
            remove(scene, point).with_context(|| format!("at `{point}`"))?;
        }
        Ok(())
    })
}

fn remove(scene: &Scene<'_>, point: &str) -> Result<()> {
    let id = Inside::Busy.prepare(scene)?;
    scene.checkpoint(&id, "own")?;
    scene.quiet("settle")?;
    scene.dies(point, &["sandbox", "rm", &id])?;
    scene.settled()?;
    if point == "rm:locked" {
        Inside::Busy.check(scene, &id)?;
        scene.remove(&id)?;
    }
    ensure!(!scene.is_there(&id)?, "it is still there");
    scene.quiet("keep")?;
    scene.swept()
}

#[test]
fn gc_goes_on_where_it_was_killed() -> Result<()> {
    in_modes_at_once("gc", |env, fixture| {
        let scene = Scene::set(env, fixture)?;
        scene.ask(&["sandbox", "pin", &scene.template])?;
        let config = fixture.state.join("config.toml");
        let plain = "[gc]\nfree = \"none\"\n";
        each("gc", |point| {
            std::fs::write(&config, plain)?;
            let bound = match moment(point) {
                "stopped" => "idle = \"1s\"\n",
                "saved" => "age = \"1s\"\n",
                "forgot-base" | "forgot-mirror" => "cache_age = \"1s\"\n",
                _ => "",
            };
            let id = match moment(point) {
                // A layer of forks that never were.
                "forgot" => {
                    let id = Inside::Busy.prepare(&scene)?;
                    scene.dies("fork:listed", &["sandbox", "fork", &id])?;
                    id
                }
                "forgot-base" | "forgot-mirror" => {
                    let copy = fixture.folder.with_file_name(moment(point));
                    run_quietly(
                        std::process::Command::new("cp")
                            .arg("-a")
                            .args([&fixture.folder, &copy]),
                    )?;
                    let path = copy.to_string_lossy();
                    let words = ["sandbox", "create", "--repo", &path, "--base", "HEAD"];
                    scene.ask(&words)?
                }
                _ => scene.fresh()?,
            };
            match moment(point) {
                "forgot-base" | "forgot-mirror" => drop(scene.remove(&id)?),
                "saved" => drop(scene.ask(&["sandbox", "stop", &id])?),
                _ => {}
            }
            std::fs::write(&config, format!("{plain}{bound}"))?;
            pass_the_bound();
            scene.dies(point, &["gc"])?;
            scene.settled()?;
            if scene.is_there(&id)? {
                ensure!(scene.digest(&id)? == scene.dirty, "something else is there");
            } else {
                ensure!(moment(point).starts_with("forgot-"), "it is gone");
            }
            if moment(point) == "saved" {
                scene.ask(&["sandbox", "stop", &id])?;
                pass_the_bound();
            }
            scene.swept()?;
            if moment(point) == "saved" {
                ensure!(!scene.is_there(&id)?, "it is still there");
                let patch = fixture.state.join(format!("saved/{id}.patch"));
                let patch = std::fs::read_to_string(patch)?;
                ensure!(patch.contains("+dirty"), "not its patch: {patch}");
            } else if scene.is_there(&id)? {
                scene.remove(&id)?;
            }
            let green = scene.digest(&scene.template)?;
            ensure!(green == scene.green, "what is pinned changed");
            Ok(())
        })?;
        std::fs::write(&config, plain)?;
        scene.end()
    })
}

/// BOUND: the shortest that `config.toml` can say is a second.
fn pass_the_bound() {
    std::thread::sleep(std::time::Duration::from_millis(1100));
}

#[test]
fn what_can_wait_is_done_by_the_next_one() -> Result<()> {
    walk("settle", |scene| {
        each("settle", |point| {
            let id = unsettled(scene, "c")?;
            scene.dies(point, &["settle", &id])?;
            scene.settled()?;
            scene.ask(&["settle", &id])?;
            ensure!(scene.checkpoints(&id)?["c"], "it is not durable");
            ensure!(scene.digest(&id)? == scene.dirty, "something else is there");
            scene.remove(&id)?;
            scene.swept()
        })?;
        // As deep as it may be without being made flat.
        let deep = scene.fresh()?;
        for n in 0..11 {
            scene.exec(
                &deep,
                &format!("echo {n} > n; echo {n} > n-{n}; rm -f n-{}", n - 2),
            )?;
            scene.checkpoint(&deep, &format!("c{n}"))?;
        }
        let before = scene.digest(&deep)?;
        each("squash", |point| {
            let id = scene.ask(&["sandbox", "fork", &deep, "--from", "c10"])?;
            scene.exec(&id, "echo 10 > n")?;
            scene.dies(
                "checkpoint:done",
                &["sandbox", "checkpoint", &id, "--name", "d"],
            )?;
            scene.dies(point, &["settle", &id])?;
            scene.settled()?;
            ensure!(scene.digest(&id)? == before, "something else is there");
            scene.ask(&["sandbox", "stop", &id])?;
            scene.ask(&["settle", &id])?;
            let status = scene.status()?;
            let rows = status["sandboxes"].as_array().context("no list")?;
            let row = rows.iter().find(|row| row["sandbox"] == *id);
            ensure!(row.is_some_and(|row| row["layers"] == 1), "{row:?}");
            ensure!(scene.digest(&id)? == before, "squashed to something else");
            scene.remove(&id)?;
            scene.swept()
        })
    })
}

/// A sandbox with a checkpoint that nobody has written to the disk yet.
fn unsettled(scene: &Scene<'_>, name: &str) -> Result<String> {
    let id = scene.fresh()?;
    scene.dies(
        "checkpoint:done",
        &["sandbox", "checkpoint", &id, "--name", name],
    )?;
    ensure!(!scene.checkpoints(&id)?[name], "it is durable already");
    Ok(id)
}

#[test]
fn a_keeper_that_dies_takes_nothing_but_its_execution() -> Result<()> {
    walk("keeper", |scene| {
        each("keeper", |point| {
            let id = scene.fresh()?;
            scene.ask(&["sandbox", "stop", &id])?;
            let words = ["sandbox", "exec", &id, "--", "true"];
            match moment(point) {
                "ending" | "ended" | "done" => {
                    let (output, met) = scene.may_meet(point, &words)?;
                    output.exits(0)?;
                    let output = scene.try_ask(&["sandbox", "stop", &id])?;
                    scene.was_met(point, &met, &output)?;
                }
                _ => {
                    let output = scene.met(point, &words)?;
                    ensure!(!output.status.success(), "{words:?} ran without a keeper");
                }
            }
            scene.settled()?;
            scene.quiet("keep")?;
            ensure!(scene.digest(&id)? == scene.dirty, "something else is there");
            scene.remove(&id)?;
            scene.swept()
        })
    })
}
