//! The escape corpus: every attack runs in a real sandbox, rootless and as root, and once more with
//! an image as its root, and fails; and runs once without the sandbox, where it must work.
//!
//! After each run, whatever it was, nothing may be running, the folder with its `.git` must be
//! the same to the byte, and the run must have ended by itself.

#![allow(
    clippy::print_stdout,
    reason = "counts and skipped cases are read by scripts/test"
)]

mod records;
mod system;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail, ensure};

use crate::cases::{self, Case, NOT_HERE, NOT_ON_IMAGE, Oracle};
use crate::controls::{self, Control};
use crate::support::{
    Fixture, LOOK_SECONDS, Mode, Output, Sandboxed, Terminal, fingerprint, is_root,
};
use system::System;

const BINARY: &str = env!("CARGO_BIN_EXE_ringfence");
/// The file that host canaries make when something of the agent's runs outside.
const HOST_CANARY: &str = "/tmp/CANARY-host";
/// BOUND: the cores of a small machine; more would only make the cases wait for each other.
const WORKERS: usize = 2;

/// Cases that may end because a program is missing inside: that is how they fail.
const NEEDS_NO_PROGRAM: &[&str] = &["proc-023"];
/// Cases that only mean something where the caller has a terminal.
const ON_A_TERMINAL: &[&str] = &["tty-001", "tty-005"];

#[test]
fn every_case_is_run_or_listed() -> Result<()> {
    let cases = cases::load()?;
    for id in controls::ids() {
        ensure!(
            cases.iter().any(|case| case.id == id),
            "there is a control for `{id}`, which is gone"
        );
    }
    for (id, reason) in NOT_ON_IMAGE {
        ensure!(cases.iter().any(|case| case.id == *id), "`{id}` is gone");
        println!("  {id}: not run on an image: {reason}");
    }
    println!(
        "escape: {} cases run, {} do not:",
        cases.len(),
        NOT_HERE.len()
    );
    for (id, reason) in NOT_HERE {
        println!("  {id}: {reason}");
    }
    println!(
        "escape: {} cases have no control run:",
        controls::not_outside().count()
    );
    for (id, reason) in controls::not_outside() {
        println!("  {id}: not run outside: {reason}");
    }
    Ok(())
}

/// Without this, everything could fail inside because nothing works inside.
#[test]
fn ordinary_work_succeeds_inside() -> Result<()> {
    let env = Sandboxed::start(BINARY)?;
    for mode in Mode::available() {
        let fixture = env.fixture("ordinary", mode)?;
        for shell in [
            "true",
            "test \"$(pwd)\" = /workspace && test \"$(cat a.txt | wc -l)\" = 3",
            "echo x > new.txt && echo y > /tmp/y && echo z > \"$HOME/z\" && echo w > /dev/shm/w",
            "python3 -c 'import ctypes; assert ctypes.CDLL(None).syscall(39) > 0'",
            "python3 -c 'import pty, os; pid, fd = pty.fork(); pid or os._exit(0); os.waitpid(pid, 0)'",
            "printf 'int main(void){return 0;}' > /tmp/c.c && cc -o /tmp/c /tmp/c.c && /tmp/c",
            "git status && git add -A && git -c user.name=a -c user.email=a@b commit -qm x",
            "command -v mount unshare nsenter chrt setfattr chattr mknod ln su >/dev/null",
        ] {
            let output = env.run(&fixture, Terminal::None, shell)?;
            let code = output
                .json
                .as_ref()
                .and_then(|json| json["exit_code"].as_i64());
            ensure!(
                code == Some(0),
                "{mode:?}: `{shell}` failed: {}",
                output.tail()
            );
        }
        env.discard(&fixture);
    }
    Ok(())
}

#[test]
fn r61_r64_r66_r69_attacks_fail_inside() -> Result<()> {
    run_all(Oracle::ExitNonzero, |env, case, fixture| {
        let _kept = listen_in_folder(case, fixture)?;
        let output = run_case(env, case, fixture)?;
        let json = output.json.as_ref().context("no result")?;
        let outcome = json["outcome"].as_str().unwrap_or_default();
        ensure!(
            !matches!(outcome, "" | "not_started" | "runtime_lost" | "timed_out"),
            "ended as `{outcome}`: {}",
            output.tail()
        );
        match json["exit_code"].as_i64() {
            Some(0) => bail!("the attack worked: {}", output.tail()),
            Some(126 | 127) if !NEEDS_NO_PROGRAM.contains(&case.id.as_str()) => {
                bail!("a program is missing inside: {}", output.tail())
            }
            _ => Ok(()),
        }
    })
}

#[test]
fn r67_the_host_runs_nothing_of_the_agents() -> Result<()> {
    ensure!(
        !Path::new(HOST_CANARY).exists(),
        "`{HOST_CANARY}` is there before the test"
    );
    run_all(Oracle::HostCanary, |env, case, fixture| {
        let output = run_case(env, case, fixture)?;
        let json = output.json.as_ref().context("no result")?;
        let run = json["run"].as_str().context("the result names no run")?;
        for words in [
            &["list"][..],
            &["show", run],
            &["diff", run],
            &["logs", run],
        ] {
            let looked = env.ringfence(fixture, LOOK_SECONDS, words)?;
            ensure!(!looked.hung(), "{words:?} hangs");
            ensure!(
                looked.status.success(),
                "{words:?} failed: {}",
                looked.tail()
            );
            ensure!(
                !Path::new(HOST_CANARY).exists(),
                "{words:?} ran what the agent wrote"
            );
        }
        take(env, fixture, run)
    })
}

/// Takes what an agent left, to a branch and to the files. It may be refused; nothing of it runs, and
/// of `.git` only what a branch needs is written.
fn take(env: &Sandboxed, fixture: &Fixture, run: &str) -> Result<()> {
    let before = fingerprint(&fixture.folder.join(".git"))?;
    let author = ["--author", "A <a@example.org>"];
    for words in [
        &["apply", run, "--approve", "--anyway", "--branch", "taken"][..],
        &["apply", run, "--keep-commits", "--branch", "kept"],
        &["apply", run],
    ] {
        let author = if words.contains(&"--branch") {
            &author[..]
        } else {
            &[]
        };
        let taken = env.ringfence(fixture, LOOK_SECONDS, &[words, author].concat())?;
        ensure!(!taken.hung(), "{words:?} hangs");
        ensure!(
            matches!(taken.status.code(), Some(0 | 2 | 3)),
            "{words:?} failed: {}",
            taken.tail()
        );
        ensure!(
            !Path::new(HOST_CANARY).exists(),
            "{words:?} ran what the agent wrote"
        );
    }
    let after = fingerprint(&fixture.folder.join(".git"))?;
    // As a shell prompt asks in each directory that is entered.
    let prompt = "find . -name .git -prune -o -type d -exec timeout 5 git -C {} status ';' 2>/dev/null; true";
    env.as_owner(fixture, &fixture.folder, &["sh", "-c", prompt])?;
    ensure!(
        !Path::new(HOST_CANARY).exists(),
        "`git status` ran what the agent wrote"
    );
    let is_same = |path: &&std::path::PathBuf| before.get(*path) == after.get(*path);
    let of_a_branch = |path: &&std::path::PathBuf| {
        let text = path.to_string_lossy();
        ["/.git/objects", "/.git/refs/heads", "/.git/logs"]
            .iter()
            .any(|part| text.contains(part))
    };
    let git = fixture.folder.join(".git");
    let changed = before.keys().chain(after.keys());
    let mut changed = changed.filter(|path| !is_same(path) && !of_a_branch(path) && **path != git);
    match changed.next() {
        Some(path) => bail!("`{}` changed", path.display()),
        None => Ok(()),
    }
}

#[test]
fn r69_nothing_outlives_its_sandbox() -> Result<()> {
    run_all(Oracle::HostNoProcess, |env, case, fixture| {
        run_case(env, case, fixture).map(|_| ())
    })
}

#[test]
fn r23_what_comes_out_is_what_happened() -> Result<()> {
    run_all(Oracle::Record, |env, case, fixture| {
        if !records::prepare(&case.id, fixture)? {
            println!("SKIPPED {}: needs root to make its fixture", case.id);
            return Ok(());
        }
        let output = run_case(env, case, fixture)?;
        let json = output.json.as_ref().context("no result")?;
        let seen = records::Seen {
            env,
            fixture,
            output: &output,
            json,
        };
        records::check(&case.id, &seen)
    })
}

#[test]
fn attacks_work_without_the_sandbox() -> Result<()> {
    if !is_root() {
        println!("SKIPPED control runs: they need root for a throw-away view of the machine");
        return Ok(());
    }
    let env = Sandboxed::start(BINARY)?;
    let cases = cases::load()?;
    let shown = AtomicUsize::new(0);
    let failures = in_parallel(&cases, |case| {
        let verdict = match case.oracle {
            Oracle::ExitNonzero => control_run(&env, case, controls::control(&case.id)),
            Oracle::HostCanary if controls::CARELESS_GIT_RUNS.contains(&case.id.as_str()) => {
                let careless = Case {
                    id: case.id.clone(),
                    title: case.title.clone(),
                    command: format!(
                        "({}) >/dev/null 2>&1\n{}",
                        case.command,
                        controls::CARELESS_GIT
                    ),
                    oracle: case.oracle,
                };
                control_run(&env, &careless, Control::Bare(""))
            }
            _ => Ok(Shown::NotRun),
        };
        match verdict {
            Ok(Shown::Worked) => {
                shown.fetch_add(1, Ordering::Relaxed);
                None
            }
            Ok(Shown::NotRun) => None,
            Ok(Shown::Lacking(why)) => {
                println!("SKIPPED control of {}: {why}", case.id);
                None
            }
            Err(error) => Some(format!("{}: {}: {error:#}", case.id, case.title)),
        }
    });
    println!("escape: {} controls worked", shown.load(Ordering::Relaxed));
    report(&failures)
}

enum Shown {
    Worked,
    NotRun,
    Lacking(String),
}

fn control_run(env: &Sandboxed, case: &Case, control: Control) -> Result<Shown> {
    let fixture = env.fixture(&format!("control-{}", case.id), Mode::Root)?;
    let _kept = listen_in_folder(case, &fixture)?;
    let folder = fixture.folder.to_string_lossy();
    let (prepare, terminal) = match control {
        Control::NotOutside(_) => return Ok(Shown::NotRun),
        Control::Host => {
            let command = env.fill(&case.command, &fixture, &folder);
            let output = env.outside(&["sh", "-c", &command], Terminal::None, &fixture.folder)?;
            ensure!(
                output.status.success(),
                "does not work outside: {}",
                output.tail()
            );
            env.discard(&fixture);
            return Ok(Shown::Worked);
        }
        Control::Bare(prepare) => (prepare, Terminal::None),
        Control::Terminal => ("", Terminal::Own),
    };
    let scratch = env.path(&format!("{}/scratch", fixture.name));
    fs::create_dir(&scratch)?;
    let scratch = scratch.to_string_lossy();
    let prepare = format!("SECRET={}\n{prepare}", env.secret.display());
    let command = env.fill(&case.command, &fixture, "/workspace");
    let unshare = [
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--uts",
        "--ipc",
        "--kill-child",
    ];
    let bare = [
        "sh",
        "-c",
        controls::BARE,
        "sh",
        &scratch,
        &folder,
        &prepare,
        &command,
    ];
    let words: Vec<&str> = unshare.iter().chain(&bare).copied().collect();
    let output = env.outside(&words, terminal, &fixture.folder)?;
    env.discard(&fixture);
    if !output.stdout.contains(controls::READY) {
        return Ok(Shown::Lacking(if output.status.code() == Some(77) {
            "this machine lacks what the attack needs".to_owned()
        } else {
            format!("no throw-away view: {}", output.tail())
        }));
    }
    ensure!(
        output.status.success(),
        "does not work outside ({:?}): {}",
        output.status.code(),
        output.tail()
    );
    Ok(Shown::Worked)
}

/// Runs one case and looks at what holds for each: it ends, says so, changes nothing in the
/// folder and leaves nothing running.
fn run_case(env: &Sandboxed, case: &Case, fixture: &Fixture) -> Result<Output> {
    let before = fingerprint(&fixture.folder)?;
    let terminal = if ON_A_TERMINAL.contains(&case.id.as_str()) {
        Terminal::Own
    } else {
        Terminal::None
    };
    let command = env.fill(&case.command, fixture, "/workspace");
    let output = env.run(fixture, terminal, &command)?;
    ensure!(!output.hung(), "the run hangs: {}", output.tail());
    ensure!(
        output.json.is_some(),
        "there is no result: {}",
        output.tail()
    );
    let left = env.leftovers(fixture);
    ensure!(left.is_empty(), "left running: {left:?}");
    let after = fingerprint(&fixture.folder)?;
    if before != after {
        let moved: Vec<_> = after
            .iter()
            .filter(|(path, facts)| before.get(*path) != Some(*facts))
            .map(|(path, _)| path)
            .chain(before.keys().filter(|path| !after.contains_key(*path)))
            .collect();
        bail!("the folder changed: {moved:?}");
    }
    Ok(output)
}

/// A program of the host that listens on a socket within the folder, for the one case about it.
fn listen_in_folder(case: &Case, fixture: &Fixture) -> Result<Option<UnixListener>> {
    if case.id != "fs-130" {
        return Ok(None);
    }
    let path = fixture.folder.join("host.sock");
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
    Ok(Some(listener))
}

/// INVARIANT: no case runs in a sandbox that root made before it is seen that host uid 0 is not
/// mapped there. Some cases write settings of the kernel; with that uid, a broken sandbox would
/// let them change this machine, and no other wall stands between.
fn refuse_host_root(env: &Sandboxed, modes: &[Mode]) -> Result<()> {
    if !modes.contains(&Mode::Root) {
        return Ok(());
    }
    let fixture = env.fixture("probe", Mode::Root)?;
    let output = env.run(
        &fixture,
        Terminal::None,
        "cat /proc/self/uid_map >&2; \
        awk '$2 == 0 { bad = 1 } END { exit NR == 0 || bad }' /proc/self/uid_map",
    )?;
    let code = output
        .json
        .as_ref()
        .and_then(|json| json["exit_code"].as_i64());
    env.discard(&fixture);
    ensure!(
        code == Some(0),
        "host uid 0 is mapped inside; no case is run: {}",
        output.tail()
    );
    Ok(())
}

/// Settings that cases try to write. If one did, it is put back and the test fails.
const SETTINGS: &[&str] = &[
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/panic",
    "/proc/sys/kernel/randomize_va_space",
    "/sys/kernel/uevent_helper",
];

fn settings() -> Vec<Option<String>> {
    SETTINGS
        .iter()
        .map(|path| fs::read_to_string(path).ok())
        .collect()
}

fn restore(before: &[Option<String>]) -> Result<()> {
    let mut changed = Vec::new();
    for ((path, before), after) in SETTINGS.iter().zip(before).zip(settings()) {
        if let Some(text) = before
            && after.as_ref() != Some(text)
        {
            fs::write(path, text).with_context(|| format!("cannot put `{path}` back"))?;
            changed.push(*path);
        }
    }
    ensure!(
        changed.is_empty(),
        "settings of this machine were changed and put back: {changed:?}"
    );
    Ok(())
}

fn run_all(
    oracle: Oracle,
    check: impl Fn(&Sandboxed, &Case, &Fixture) -> Result<()> + Sync,
) -> Result<()> {
    let env = Sandboxed::start(BINARY)?;
    let modes = Mode::available();
    refuse_host_root(&env, &modes)?;
    let settings_before = settings();
    let cases: Vec<Case> = cases::load()?
        .into_iter()
        .filter(|case| case.oracle == oracle)
        .collect();
    let system = System::make()?;
    let failures = in_parallel(&cases, |case| {
        let mut found = Vec::new();
        // On an image in one of the modes, by turns: the walls are the same ones.
        let turn = case.id.bytes().map(usize::from).sum::<usize>() % modes.len();
        let places = modes.iter().map(|mode| (*mode, None));
        let on_image = system
            .iter()
            .filter(|_| !NOT_ON_IMAGE.iter().any(|(id, _)| *id == case.id))
            .map(|system| (modes[turn], Some(system)));
        for (mode, system) in places.chain(on_image) {
            let fixture = match system {
                None => env.fixture(&case.id, mode),
                Some(system) => system.fixture(&env, &case.id, mode),
            };
            let verdict = fixture.and_then(|fixture| {
                let verdict = check(&env, case, &fixture);
                env.discard(&fixture);
                verdict
            });
            if let Err(error) = verdict {
                let label = records::label(&case.id, mode);
                let on = system.map_or("", |_| " on an image");
                found.push(format!("{label}{on}: {}: {error:#}", case.title));
            }
        }
        (!found.is_empty()).then(|| found.join("\n"))
    });
    println!("escape: {} cases in {} modes", cases.len(), modes.len());
    restore(&settings_before)?;
    report(&failures)
}

fn in_parallel(cases: &[Case], look: impl Fn(&Case) -> Option<String> + Sync) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Some(failure) = look(case) {
                        failures.lock().expect("no worker panics").push(failure);
                    }
                }
            });
        }
    });
    failures.into_inner().expect("no worker panics")
}

fn report(failures: &[String]) -> Result<()> {
    ensure!(
        failures.is_empty(),
        "{} cases:\n{}",
        failures.len(),
        failures.join("\n")
    );
    Ok(())
}
