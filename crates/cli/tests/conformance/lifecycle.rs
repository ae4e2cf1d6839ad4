//! A sandbox begins, ends and leaves nothing, also where somebody else ends it.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::columns::Root;
use crate::engine::{Engine, SINGLE};
use crate::scene::{Scene, Seen};
use crate::support::{Live, expect, fingerprint, said};

/// It runs, the folder is what it was, and nothing of it is left on the host.
pub fn leaves_nothing(scene: &Scene<'_>) -> Result<Seen> {
    let before = fingerprint(&scene.fixture.folder)?;
    for (shell, outcome) in [
        ("echo x > new.txt; rm a.txt", "exited"),
        ("exit 9", "exited"),
    ] {
        let result = scene.run(&[], shell)?;
        expect(&result, "outcome", outcome)?;
        scene.nothing_left()?;
    }
    ensure!(
        fingerprint(&scene.fixture.folder)? == before,
        "the folder changed"
    );
    let layers = fs::read_dir(scene.fixture.state.join("workspaces"))?.count();
    ensure!(layers == 0, "{layers} layers are left");
    let (engines, _) = scene.attached()?;
    Ok(if engines.is_empty() {
        Seen::Held
    } else {
        Seen::As("yes, but marks of deleted files, which the engine removes by sixteens".to_owned())
    })
}

pub fn two_at_once(scene: &Scene<'_>) -> Result<Seen> {
    let shell = "echo x > own-$1.txt; echo READY; read -r line; ls";
    let start = |number: &str| -> Result<Live> {
        let shell = shell.replace("$1", number);
        scene.call().run_live(&scene.options(&[]), &shell)
    };
    let mut both = [start("1")?, start("2")?];
    for live in &mut both {
        live.until("READY")?;
    }
    for (mut live, (own, other)) in both.into_iter().zip([("1", "2"), ("2", "1")]) {
        live.say("\n")?;
        let result = live.finish()?.json.context("no result")?;
        expect(&result, "status", "done")?;
        let name = format!("own-{own}.txt");
        expect(&result, "changed_files", vec![name.as_str()])?;
        ensure!(
            !said(&result).contains(&format!("own-{other}")),
            "it sees the other"
        );
    }
    Ok(Seen::Held)
}

/// Writes a file and waits, then is ended by `end`.
fn ended_by(scene: &Scene<'_>, end: impl Fn() -> Result<()>) -> Result<Value> {
    let shell = "echo kept > kept.txt; echo READY; read -r line";
    let mut live = scene.call().run_live(&scene.options(&[]), shell)?;
    live.until("READY")?;
    end()?;
    live.finish()?.json.context("no result")
}

/// What was written is there, though the execution is gone.
fn is_kept(scene: &Scene<'_>, result: &Value) -> Result<()> {
    expect(result, "outcome", "runtime_lost")?;
    expect(result, "status", "failed")?;
    let name = "kept.txt";
    let is_patched = result["changed_files"].to_string().contains(name);
    let layers = scene.fixture.state.join("workspaces");
    let is_layered = fingerprint(&layers)?
        .keys()
        .any(|path| path.ends_with(name));
    ensure!(
        is_patched || is_layered,
        "what was written is lost: {result}"
    );
    scene.nothing_left()
}

/// Pid 1 inside is killed from outside.
pub fn survives_a_kill(scene: &Scene<'_>) -> Result<Seen> {
    if scene.has_own_kernel() {
        return Ok(Seen::Nothing("pid 1 has no process on the host"));
    }
    let result = ended_by(scene, || {
        let first = first_of(shell_of(scene)?)?;
        kill_process(first, Signal::KILL)?;
        Ok(())
    })?;
    is_kept(scene, &result)?;
    Ok(Seen::Held)
}

/// The container is killed, or removed, by somebody else.
pub fn survives_its_engine(scene: &Scene<'_>) -> Result<Seen> {
    let Some(engine) = scene.engine else {
        return Ok(Seen::Nothing("there is no container"));
    };
    for words in [&["kill"][..], &["rm", "--force"]] {
        let result = ended_by(scene, || {
            let id = container_of(scene, engine)?;
            engine.docker(&[words, &[&id]].concat()).map(drop)
        })?;
        is_kept(scene, &result).with_context(|| format!("docker {words:?}"))?;
    }
    Ok(Seen::Held)
}

/// The one container of this home, by its label.
pub fn container_of(scene: &Scene<'_>, engine: &Engine) -> Result<String> {
    let home = scene.fixture.state.as_os_str().as_bytes();
    let hash = Sha256::digest(home);
    let hash: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let label = format!("label=ringfence.home={hash}");
    let said = engine.docker(&["ps", "--quiet", "--no-trunc", "--filter", &label])?;
    let id = said.lines().next();
    Ok(id.context("no container has the label")?.to_owned())
}

/// The host's number of a shell inside.
pub fn shell_of(scene: &Scene<'_>) -> Result<i32> {
    let running = scene.env.leftovers(&scene.fixture);
    let inside = running.iter().filter_map(|line| {
        let line = line.strip_prefix("/proc/")?;
        let is_shell = line.ends_with(" (sh)");
        is_shell.then(|| line.split(' ').next()?.parse().ok())?
    });
    inside.min().context("no shell is running")
}

/// The first process of the pid namespace that another is in.
pub fn first_of(pid: i32) -> Result<Pid> {
    let mut pid = pid;
    loop {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().next_back())
                .and_then(|word| word.parse::<i32>().ok())
        };
        if field("NSpid:") == Some(1) {
            return Pid::from_raw(pid).context("no pid");
        }
        pid = field("PPid:").filter(|pid| *pid > 1).context("no first")?;
    }
}

/// An image needs nothing of ours: one static program, no shell, no directory.
pub fn holds_one_program(scene: &Scene<'_>) -> Result<Seen> {
    if scene.column.root != Root::Image {
        return Ok(Seen::Nothing("no image"));
    }
    let backend = &scene.column.options[..2];
    let words = [
        &["run", "--json"],
        backend,
        &["--image", SINGLE, "--", "/single"],
    ]
    .concat();
    let output = scene.call().finish(&words)?;
    let result = output.json.context("no result")?;
    expect(&result, "exit_code", 3)?;
    expect(&result, "changed_files", vec!["made.txt"])?;
    ensure!(said(&result) == "single\n", "{}", said(&result));
    ensure!(result["observed"]["execs"] == 1, "{}", result["observed"]);
    Ok(Seen::Held)
}
