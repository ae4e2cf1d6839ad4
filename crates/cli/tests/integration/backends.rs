//! Backends besides the native one: how they are picked, what becomes of a sandbox when its engine or
//! container goes, and that nothing is left of it.

#![allow(clippy::unwrap_used)]

mod hostile;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use crate::engine::{self, Engine};
use crate::support::{Fixture, Live, Mode, Output, Sandboxed};

/// BOUND: what is waited for comes at once; on a machine that is drowning, within a minute.
const WITHIN: Duration = Duration::from_secs(60);

fn until(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + WITHIN;
    while !holds()? {
        ensure!(Instant::now() < deadline, "{what} within {WITHIN:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn same(said: &str, expected: &str) -> Result<()> {
    ensure!(said == expected, "{said:?} instead of {expected:?}");
    Ok(())
}

/// A folder, an engine, and somebody.
struct Scene<'a> {
    env: &'a Sandboxed,
    fixture: &'a Fixture,
    engine: &'a Engine,
}

impl Scene<'_> {
    fn call(&self, words: &[&str]) -> Result<Output> {
        let address = self.engine.address();
        let call = self.env.call(self.fixture);
        call.variable("DOCKER_HOST", &address).finish(words)
    }

    /// It must succeed.
    fn done(&self, words: &[&str]) -> Result<Output> {
        let output = self.call(words)?;
        ensure!(output.status.success(), "{words:?}: {}", output.tail());
        Ok(output)
    }

    /// It must fail, with this exit code and all of these words.
    fn refused(&self, words: &[&str], code: i32, said: &[&str]) -> Result<()> {
        let output = self.call(words)?;
        ensure!(
            output.status.code() == Some(code),
            "{words:?}: {}",
            output.tail()
        );
        for text in said {
            ensure!(
                output.stderr.contains(text),
                "{words:?} without `{text}`: {}",
                output.stderr
            );
        }
        Ok(())
    }

    /// No container, no mount and no directory is left.
    fn nothing_left(&self) -> Result<()> {
        until("containers are gone", || Ok(self.engine.ours()?.is_empty()))?;
        self.no_mounts()?;
        // Without root, what the engine alone can remove goes with many, or with this.
        self.done(&["gc"])?;
        let places = fs::read_dir(self.fixture.state.join("attached"))?;
        let names = places.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let names: Vec<String> = names.collect::<Result<_>>()?;
        // One copy of the guest stays.
        ensure!(names.iter().all(|name| name.starts_with('.')), "{names:?}");
        Ok(())
    }

    fn no_mounts(&self) -> Result<()> {
        let table = fs::read_to_string("/proc/self/mountinfo")?;
        let state = self.fixture.state.to_string_lossy().into_owned();
        ensure!(!table.contains(&state), "mounts below {state}");
        Ok(())
    }
}

/// A lasting sandbox with nothing in it.
const CREATE: [&str; 5] = ["sandbox", "create", "--empty", "--backend", "docker"];

/// A run of a line of shell, and its result.
fn run_there(shell: &str) -> Vec<&str> {
    let run = ["run", "--json", "--backend", "docker", "--", "sh", "-c"];
    [&run[..], &[shell]].concat()
}

/// A run in a container that has written a file, and goes on.
fn at_work(env: &Sandboxed, fixture: &Fixture, engine: &Engine) -> Result<Live> {
    let call = env.call(fixture);
    let live = call
        .variable("DOCKER_HOST", &engine.address())
        .live(&run_there("echo work > made; sleep 300"))?;
    until("the command works", || {
        let ours = engine.ours()?;
        let top = ours
            .first()
            .map(|one| engine.docker(&["top", one]).unwrap_or_default());
        Ok(top.is_some_and(|top| top.contains("sleep 300")))
    })?;
    Ok(live)
}

fn with_an_engine(name: &str, test: impl Fn(&Scene<'_>) -> Result<()>) {
    engine::with_each_user(Engine::shared(), name, |env, fixture, engine| {
        test(&Scene {
            env,
            fixture,
            engine,
        })
    });
}

#[test]
fn r39_a_workspace_has_another_execution_elsewhere() {
    with_an_engine("moved", |scene| {
        let id = scene.done(&["sandbox", "create", "--empty"])?;
        let id = id.stdout.trim();
        let shell = |line: &str| -> Result<String> {
            let words = ["sandbox", "exec", id, "--", "sh", "-c", line];
            Ok(scene.done(&words)?.stdout)
        };
        shell("echo one > a; mkdir d; echo gone > d/b; echo at home > ~/h")?;
        scene.done(&["sandbox", "move", id, "--backend", "docker"])?;
        same(
            &shell("cat a ~/h; rm d/b; echo two >> a; echo here > ~/i")?,
            "one\nat home\n",
        )?;
        ensure!(scene.engine.ours()?.len() == 1, "one container");
        scene.done(&["sandbox", "checkpoint", id, "--name", "green"])?;
        shell("rm -r a d")?;
        scene.done(&["sandbox", "rollback", id, "green"])?;
        scene.done(&[
            "sandbox",
            "move",
            id,
            "--backend",
            "docker",
            "--image",
            engine::TOOLS,
        ])?;
        same(
            &shell("cat a ~/i; ls d; test ! -e /etc/os-release")?,
            "one\ntwo\nhere\n",
        )?;
        let fork = scene.done(&["sandbox", "fork", id])?;
        let fork = fork.stdout.trim();
        let words = ["sandbox", "exec", fork, "--", "cat", "a"];
        same(&scene.done(&words)?.stdout, "one\ntwo\n")?;
        scene.done(&[
            "sandbox",
            "move",
            id,
            "--backend",
            "native",
            "--image",
            "host",
        ])?;
        same(&shell("cat a")?, "one\ntwo\n")?;
        let diff = scene.done(&["sandbox", "diff", id])?.stdout;
        ensure!(diff.contains("+two") && !diff.contains("d/b"), "{diff}");
        scene.done(&["sandbox", "rm", id, fork])?;
        scene.nothing_left()
    });
}

#[test]
fn what_goes_behind_our_back_is_told_and_replaced() {
    with_an_engine("lost", |scene| {
        let id = scene.done(&CREATE)?;
        let id = id.stdout.trim();
        scene.done(&["sandbox", "exec", id, "--", "sh", "-c", "echo kept > a"])?;
        let container = scene.engine.ours()?.pop().context("a container")?;
        scene.engine.docker(&["rm", "--force", &container])?;
        until("the container is gone", || {
            Ok(scene.engine.ours()?.is_empty())
        })?;
        let look = ["sandbox", "exec", id, "--", "cat", "a"];
        scene.refused(&look, 4, &["runtime_lost", "--replace"])?;
        let again = scene.done(&["sandbox", "exec", "--replace", id, "--", "cat", "a"])?;
        same(&again.stdout, "kept\n")?;
        scene.done(&["sandbox", "rm", id])?;
        // A run whose container is killed: its work until then is in its patch.
        let live = at_work(scene.env, scene.fixture, scene.engine)?;
        let container = scene.engine.ours()?.pop().context("a container")?;
        scene.engine.docker(&["kill", &container])?;
        let output = live.finish()?;
        let result: Value = output.json.context("a result")?;
        ensure!(result["outcome"] == "runtime_lost", "{result}");
        ensure!(result["changed_files"][0] == "made", "{result}");
        scene.nothing_left()
    });
}

#[test]
fn a_killed_driver_leaves_nothing_of_its_container() {
    with_an_engine("killed", |scene| {
        let live = at_work(scene.env, scene.fixture, scene.engine)?;
        live.signal(Signal::KILL)?;
        drop(live);
        // One that works goes by itself.
        until("containers are gone", || {
            Ok(scene.engine.ours()?.is_empty())
        })?;
        let output = scene.call(&["list", "--json"])?;
        let runs: Vec<Value> = serde_json::from_str(&output.stdout)?;
        ensure!(runs[0]["status"] == "lost", "{runs:?}");
        scene.done(&["rm", "last"])?;
        scene.nothing_left()?;
        // One that was made, and perhaps not started, goes with what looks next.
        let words = ["run", "--backend", "docker", "--", "sleep", "300"];
        let call = scene.env.call(scene.fixture);
        let call = call.variable("DOCKER_HOST", &scene.engine.address());
        let live = call.live(&words)?;
        until("it is made", || Ok(!scene.engine.ours()?.is_empty()))?;
        live.signal(Signal::KILL)?;
        drop(live);
        scene.done(&["gc"])?;
        scene.nothing_left()
    });
}

#[test]
fn what_is_missing_is_named() {
    with_an_engine("missing", |scene| {
        let run = |more: &[&'static str]| [&["run"], more, &["--", "true"]].concat();
        let docker = |more: &[&'static str]| run(&[&["--backend", "docker"], more].concat());
        scene.refused(&run(&["--backend", "dokcer"]), 2, &["no backend `dokcer`"])?;
        scene.refused(
            &docker(&["--image", "not-there"]),
            2,
            &["no image `not-there`", "docker pull not-there"],
        )?;
        scene.refused(&run(&["--require", "kernel=own"]), 2, &["`kernel=own`"])?;
        let words = docker(&["--require", "kernel=separate"]);
        scene.refused(
            &words,
            3,
            &[
                "no backend of this machine has kernel=separate",
                "kernel=shared",
            ],
        )?;
        let met = run(&[
            "--require",
            "observation=verified",
            "--require",
            "network=gate",
        ]);
        scene.done(&met)?;
        // One that is there, and that only its owner may talk to.
        let closed = scene.fixture.folder.with_file_name("closed");
        let _listener = std::os::unix::net::UnixListener::bind(&closed)?;
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o600))?;
        let closed = format!("unix://{}", closed.display());
        for (host, said) in [
            ("unix:///nowhere/socket", "no Docker engine answers"),
            ("npipe:////./pipe/docker", "cannot be reached by us"),
            (&closed, "this user may not talk to the Docker engine"),
        ] {
            if host == closed && scene.fixture.mode == Mode::Root {
                continue;
            }
            let call = scene.env.call(scene.fixture);
            let output = call.variable("DOCKER_HOST", host).finish(&docker(&[]))?;
            ensure!(output.status.code() == Some(4), "{}", output.tail());
            ensure!(output.stderr.contains(said), "{}", output.stderr);
            ensure!(output.stderr.contains("hint:"), "{}", output.stderr);
        }
        let listed = scene.done(&["backends", "--json", "native", "docker"])?;
        let listed = listed.json.context("JSON")?;
        for backend in listed["backends"].as_array().context("a list")? {
            ensure!(backend["available"] == true, "{backend}");
            ensure!(
                backend["guarantees"]["observation"] == "verified",
                "{backend}"
            );
            ensure!(
                backend["start_ms"].as_f64().is_some_and(|ms| ms > 0.0),
                "{backend}"
            );
        }
        scene.nothing_left()
    });
}

/// What Podman would do otherwise than it is asked, without a word, is not asked of it.
#[test]
fn podman_is_asked_for_nothing_that_it_leaves_out() {
    let Some(engine) = engine::or_skip(Engine::podman(), "podman") else {
        return;
    };
    let env = Sandboxed::start(env!("CARGO_BIN_EXE_ringfence")).unwrap();
    for (name, mode, code, said) in [
        ("plain", Mode::Rootless, 4, "works for root only"),
        ("a, b", Mode::Root, 3, "a path with a comma in it"),
    ] {
        let fixture = env.fixture(name, mode).unwrap();
        let call = env.call(&fixture);
        let call = call.variable(engine.variable(), &engine.address());
        let output = call.finish(&["run", "--backend", "podman", "--", "true"]);
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", output.tail());
        assert!(output.stderr.contains(said), "{}", output.stderr);
        assert_eq!(engine.ours().unwrap(), Vec::<String>::new());
    }
}

/// Somebody pauses a container: that is told with what to do, a stop ends it all the same, and the work is kept.
#[test]
fn a_paused_container_is_told() {
    with_an_engine("paused", |scene| {
        let mut live = at_work(scene.env, scene.fixture, scene.engine)?;
        let ours = scene.engine.ours()?;
        scene.engine.docker(&["pause", &ours[0]])?;
        live.until_having("its container is paused; `docker unpause ringfence-")?;
        live.signal(Signal::TERM)?;
        let output = live.finish()?;
        let result = output.json.as_ref().context("no result")?;
        ensure!(result["changed_files"][0] == "made", "{result}");
        scene.nothing_left()?;

        let id = scene.done(&["sandbox", "create", "--empty", "--backend", "docker"])?;
        let id = id.stdout.trim();
        let words = ["sandbox", "exec", id, "--", "echo", "here"];
        same(&scene.done(&words)?.stdout, "here\n")?;
        let ours = scene.engine.ours()?;
        scene.engine.docker(&["pause", &ours[0]])?;
        until("the pause is told", || {
            let output = scene.call(&words)?;
            Ok(!output.status.success() && output.stderr.contains("docker unpause"))
        })?;
        scene.engine.docker(&["unpause", &ours[0]])?;
        until("it goes on", || Ok(scene.call(&words)?.status.success()))?;
        scene.done(&["sandbox", "rm", id])?;
        scene.nothing_left()
    });
}

/// One document, two backends: the same patch and the same verdict of the checks.
#[test]
fn r13_one_task_gives_the_same_patch_and_verdict_everywhere() {
    with_an_engine("portable", |scene| {
        let put = |name: &str, text: &str| scene.env.put(scene.fixture, name, text);
        put("a.txt", "old\n")?;
        put("BRIEF.md", "Make it new.\n")?;
        put(
            "agent.sh",
            "sed -i s/old/new/ a.txt; printf 'b\\0\\377' > b.bin; ln -s a.txt l; chmod +x a.txt\n",
        )?;
        let plan = "name = 'portable'\nbrief = 'BRIEF.md'\ncommand = ['sh', './agent.sh']\n\
             [split]\nfiles = 'a.txt'\n[checks]\nfinal = ['grep -q new a.txt', 'test ! -e b.bin']\n";
        put("plan.toml", plan)?;
        scene.done(&["campaign", "plan", "plan.toml", "--write", "tasks"])?;
        let written = fs::read_dir(scene.fixture.folder.join("tasks"))?.next();
        let written = written.context("a task")??.path();
        let mut seen = Vec::new();
        for backend in ["native", "docker"] {
            let task = written.to_string_lossy().into_owned();
            let words = ["run", "--json", "--backend", backend, "--task", &task];
            let output = scene.call(&words)?;
            let result = output.json.clone().with_context(|| output.tail())?;
            let reports = result["checks"]["reports"].as_array();
            let reports = reports.with_context(|| format!("no checks in {result}"))?;
            let verdicts: Vec<Value> = reports.iter().map(|one| one["verdict"].clone()).collect();
            ensure!(verdicts == ["fixed", "broke"], "{verdicts:?}");
            let manifest = result["bundle"].as_str().context("a bundle")?;
            let manifest = fs::read_to_string(format!("{manifest}/manifest.json"))?;
            let manifest: Value = serde_json::from_str(&manifest)?;
            ensure!(manifest["backend"]["name"] == backend, "{manifest}");
            let probes = manifest["backend"]["probes"].clone();
            seen.push((
                result["patch_sha256"].clone(),
                verdicts,
                output.status.code(),
                probes,
            ));
        }
        ensure!(seen[0] == seen[1], "{seen:#?}");
        ensure!(
            seen[0].2 == Some(5),
            "one check holds and one does not: {seen:#?}"
        );
        scene.nothing_left()
    });
}

#[test]
fn an_engine_that_stops_takes_no_work_along() {
    let Some(engine) = engine::or_skip(Engine::start(), "stopped") else {
        return;
    };
    let env = Sandboxed::start(env!("CARGO_BIN_EXE_ringfence")).unwrap();
    let fixture = env.fixture("stopped", Mode::Root).unwrap();
    let address = engine.address();
    let live = at_work(&env, &fixture, &engine).unwrap();
    // Its end is the end of its containers.
    drop(engine);
    let output = live.finish().unwrap();
    let result = output.json.unwrap();
    assert_eq!(result["outcome"], "runtime_lost", "{result}");
    assert_eq!(result["changed_files"][0], "made", "{result}");
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(
        !table.contains(&*fixture.state.to_string_lossy()),
        "{table}"
    );
    let places = fs::read_dir(fixture.state.join("attached")).unwrap();
    let left = places.filter(|entry| {
        !entry
            .as_ref()
            .unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with('.')
    });
    assert_eq!(left.count(), 0);
    // And the next is told why there is none.
    let words = ["run", "--backend", "docker", "--", "true"];
    let next = env
        .call(&fixture)
        .variable("DOCKER_HOST", &address)
        .finish(&words)
        .unwrap();
    assert_eq!(next.status.code(), Some(4), "{}", next.tail());
    assert!(
        next.stderr.contains("no Docker engine answers"),
        "{}",
        next.stderr
    );
}
