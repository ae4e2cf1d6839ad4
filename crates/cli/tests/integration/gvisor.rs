//! The same command on a kernel of its own: by gVisor's `runsc`, as root. What a run promises holds
//! there as well, and what it cannot hold is refused.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{
    self, CANARY, Fixture, Mode, Sandboxed, Terminal, expect, fingerprint, is_root, patch, said,
};

const GVISOR: [&str; 2] = ["--backend", "gvisor"];

/// BOUND: what is killed is gone within milliseconds; under load, within seconds.
const SOON: Duration = Duration::from_secs(10);

/// Runs a check in a fresh fixture of root's, where there is a `runsc`. Nothing may be left of it.
fn on_gvisor(name: &str, check: impl Fn(&Sandboxed, &Fixture) -> Result<()>) -> Result<()> {
    if !is_root() {
        println!("SKIPPED {name}: the tests do not run as root");
        return Ok(());
    }
    if Command::new("runsc").arg("--version").output().is_err() {
        println!("SKIPPED {name}: there is no runsc");
        return Ok(());
    }
    let env = Sandboxed::start(env!("CARGO_BIN_EXE_ringfence"))?;
    let fixture = env.fixture(name, Mode::Root)?;
    let before = fingerprint(&fixture.folder)?;
    let checked = check(&env, &fixture).and_then(|()| {
        ensure!(
            fingerprint(&fixture.folder)? == before,
            "the folder changed"
        );
        nothing_left(&fixture)
    });
    env.discard(&fixture);
    checked
}

fn run(env: &Sandboxed, fixture: &Fixture, options: &[&str], shell: &str) -> Result<Value> {
    let options = [&GVISOR[..], options].concat();
    env.run_with(fixture, &options, shell)
}

/// Places in the home, but for the programs that are kept there.
fn places(fixture: &Fixture) -> Vec<String> {
    let entries = fs::read_dir(fixture.state.join("attached"));
    let names = entries.into_iter().flatten().flatten();
    names
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with('.'))
        .collect()
}

/// Processes of the host that are a runtime of one of these sandboxes.
fn runtimes(names: &[String]) -> Vec<(i32, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let of_ours = |name: &String| line.contains(&format!("ringfence-{name}"));
        if line.contains("runsc") && names.iter().any(of_ours) {
            let pid = entry.file_name().to_string_lossy().parse();
            found.extend(pid.ok().map(|pid| (pid, line)));
        }
    }
    found
}

/// Cgroups of one of these sandboxes.
fn cgroups(names: &[String]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![(PathBuf::from("/sys/fs/cgroup"), 0)];
    while let Some((directory, depth)) = open.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            if names.iter().any(|one| name == format!("ringfence-{one}")) {
                found.push(entry.path());
            } else if depth < 5 {
                open.push((entry.path(), depth + 1));
            }
        }
    }
    found
}

fn mounts(below: &Path) -> Result<Vec<String>> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let below = below.to_string_lossy().into_owned();
    let of_ours = table.lines().filter(|line| line.contains(&below));
    Ok(of_ours.map(str::to_owned).collect())
}

fn runs(fixture: &Fixture) -> Vec<String> {
    let entries = fs::read_dir(fixture.state.join("bundles"));
    let names = entries.into_iter().flatten().flatten();
    names
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

fn nothing_left(fixture: &Fixture) -> Result<()> {
    let names = runs(fixture);
    let deadline = Instant::now() + SOON;
    loop {
        let left = (
            places(fixture),
            runtimes(&names),
            cgroups(&names),
            mounts(&fixture.state)?,
        );
        if left == Default::default() {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "left behind: {left:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn gvisor_a_command_runs_on_another_kernel_and_leaves_a_patch() -> Result<()> {
    on_gvisor("patch", |env, fixture| {
        let shell = "cat /proc/version; uname -r; id -u; echo four >> a.txt; rm src/main.c; \
                     mkdir new; ln -s ../a.txt new/link; printf 'x' > new/run; chmod +x new/run; \
                     git status --short | wc -l; echo out > /dev/stdout; echo err > /dev/stderr";
        let result = run(env, fixture, &[], shell)?;
        expect(&result, "outcome", "exited")?;
        expect(&result, "exit_code", 0)?;
        expect(&result, "wall", "absent")?;
        let files = vec!["a.txt", "new/link", "new/run", "src/main.c"];
        expect(&result, "changed_files", files)?;
        let lines: Vec<&str> = said(&result).lines().collect();
        let host = fs::read_to_string("/proc/version")?;
        ensure!(lines[0] != host.trim(), "the host's kernel: {lines:?}");
        let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
        ensure!(lines[1] != release.trim(), "the host's kernel: {lines:?}");
        ensure!(lines[2] == "1000", "another user: {lines:?}");
        ensure!(lines.last() == Some(&"out"), "no /dev/stdout: {lines:?}");
        let text = String::from_utf8(patch(&result)?)?;
        for part in [
            "+four",
            "deleted file mode 100644",
            "new file mode 120000",
            "100755",
        ] {
            ensure!(text.contains(part), "no `{part}` in {text}");
        }
        let id = result["run"].as_str().context("no run")?;
        let verified = env.look(fixture, &["verify", id])?;
        ensure!(!verified.is_empty(), "nothing was verified");
        let audit = env.look(fixture, &["audit", id])?;
        ensure!(audit.contains("enforced by gvisor"), "{audit}");
        ensure!(
            audit.contains("2 attempts not made: known to work and harmless"),
            "{audit}"
        );
        // The same command gives the same patch on this kernel.
        let native = env.run_with(fixture, &[], shell)?;
        ensure!(patch(&native)? == patch(&result)?, "another patch");
        Ok(())
    })
}

#[test]
fn gvisor_exit_codes_signals_and_input_are_the_commands_own() -> Result<()> {
    on_gvisor("codes", |env, fixture| {
        let result = run(env, fixture, &[], "exit 7")?;
        expect(&result, "exit_code", 7)?;
        let result = run(env, fixture, &[], "kill -9 $$")?;
        expect(&result, "outcome", "signaled")?;
        let words = [&["run", "--json"], &GVISOR[..], &["--", "no-such-program"]].concat();
        let output = env.call(fixture).finish(&words)?;
        let result = output.json.context("no result")?;
        expect(&result, "exit_code", 127)?;
        let call = env.call(fixture).input(b"one\ntwo\n");
        let result = call.run(&GVISOR, "tr a-z A-Z; echo $(ls /proc/self/fd | wc -l)")?;
        ensure!(said(&result) == "ONE\nTWO\n4\n", "{}", said(&result));
        Ok(())
    })
}

#[test]
fn gvisor_a_terminal_is_the_commands_own() -> Result<()> {
    on_gvisor("terminal", |env, fixture| {
        let shell =
            "test -t 0 && test -t 1 && tty && echo typed > \"$(tty)\" && echo yes > tty.txt";
        let words = [&["run"], &GVISOR[..], &["--", "sh", "-c", shell]].concat();
        let output = env.ringfence_at(fixture, support::RUN_SECONDS, Terminal::Own, &words)?;
        output.exits(0)?;
        let told = &env.runs(fixture, &[])?[0];
        expect(told, "changed_files", 1)
    })
}

#[test]
fn gvisor_time_and_memory_have_their_outcomes() -> Result<()> {
    on_gvisor("limits", |env, fixture| {
        let shell = "echo kept > kept.txt; sleep 1000 & sleep 1000";
        let result = run(env, fixture, &["--timeout", "1s"], shell)?;
        expect(&result, "outcome", "timed_out")?;
        expect(&result, "changed_files", vec!["kept.txt"])?;
        let shell = "echo kept > kept.txt; python3 -c 'import signal
x = bytearray(600 << 20)
for i in range(0, len(x), 4096): x[i] = 1
signal.pause()'";
        let options = ["--memory", "100M", "--timeout", "2m"];
        let result = run(env, fixture, &options, shell)?;
        expect(&result, "outcome", "out_of_memory")?;
        expect(&result, "changed_files", vec!["kept.txt"])?;
        let shell = "for i in $(seq 200); do sleep 100 & done; wait";
        let options = ["--pids", "40", "--timeout", "1m"];
        let result = run(env, fixture, &options, shell)?;
        expect(&result, "outcome", "too_many_processes")
    })
}

#[test]
fn gvisor_nothing_of_the_host_is_reached() -> Result<()> {
    on_gvisor("walls", |env, fixture| {
        // Each of these exits with 0 where it works.
        for attack in [
            "cat @SECRET@",
            "cat @HOME@/.netrc",
            "grep -rs @CANARY@ /proc/1/environ /proc/self/environ /mnt /media /run /var",
            "ls @STATE@",
            "echo x > /usr/bin/x",
            "echo x > /etc/passwd",
            "echo x > /.ringfence/guest",
            "cat /.ringfence/guest",
            "kill -9 1",
            "cat /proc/1/mem",
            "readlink /proc/1/exe",
            "mount -t tmpfs none /tmp",
            "unshare -Ur true",
            "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", @PORT@), 2)'",
            // The records of an end, the way to the host and the runtime's log are somebody else's.
            "python3 -c 'import glob, os, stat, sys
for path in glob.glob(\"/proc/[0-9]*/fd/*\"):
    try:
        found = os.stat(path)
        if stat.S_ISCHR(found.st_mode) or found.st_uid == os.getuid(): continue
        os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        sys.exit(0)
    except OSError: pass
sys.exit(1)'",
        ] {
            let shell = env.fill(attack, fixture, "/workspace");
            let result = run(env, fixture, &[], &format!("({shell}) 2>&1; echo ended $?"))?;
            let told = said(&result);
            ensure!(!told.contains(CANARY), "`{attack}` sees a secret: {told}");
            ensure!(!told.contains("ended 0"), "`{attack}` works: {told}");
            ensure!(told.contains("ended"), "`{attack}` ended all: {result}");
        }
        Ok(())
    })
}

#[test]
fn gvisor_areas_are_held_and_what_the_host_writes_inside_is_the_agents() -> Result<()> {
    on_gvisor("areas", |env, fixture| {
        let policy = env.path("areas.toml");
        fs::write(
            &policy,
            "[files]\nread_only = [\"src\"]\nhide = [\"README.md\"]\n",
        )?;
        let policy = policy.to_string_lossy();
        let shell = "for act in 'echo x >> src/main.c' 'touch src/new' 'chmod 600 src/main.c' \
                     'cat README.md'; do sh -c \"$act\" 2>/dev/null && echo \"$act works\"; done; \
                     echo y > b.txt";
        let result = run(env, fixture, &["--policy", &policy], shell)?;
        ensure!(said(&result).is_empty(), "{}", said(&result));
        expect(&result, "changed_files", vec!["b.txt"])?;
        let options = ["--iterations", "2", "--check", "test -f done"];
        let shell =
            "test -s \"$RINGFENCE_FEEDBACK\" || exit 0; stat -c %u \"$RINGFENCE_FEEDBACK\" > done";
        let result = run(env, fixture, &options, shell)?;
        expect(&result, "changed_files", vec!["done"])?;
        let text = String::from_utf8(patch(&result)?)?;
        ensure!(text.contains("+1000"), "somebody else's: {text}");
        Ok(())
    })
}

#[test]
fn gvisor_a_killed_runtime_is_an_outcome_and_the_work_is_kept() -> Result<()> {
    on_gvisor("lost", |env, fixture| {
        let shell = "echo kept > kept.txt; echo up; sleep 1000";
        let options = [&GVISOR[..], &[]].concat();
        let mut live = env.call(fixture).run_live(&options, shell)?;
        live.until("up")?;
        let names = places(fixture);
        ensure!(names.len() == 1, "one place: {names:?}");
        let all = runtimes(&names);
        let kernel = all
            .iter()
            .find(|(_, line)| line.starts_with("runsc-sandbox"));
        let Some((pid, _)) = kernel else {
            bail!("no kernel among {all:?}")
        };
        kill_process(Pid::from_raw(*pid).context("no pid")?, Signal::KILL)?;
        let result = live.finish()?.json.context("no result")?;
        expect(&result, "outcome", "runtime_lost")?;
        expect(&result, "changed_files", vec!["kept.txt"])
    })
}

#[test]
fn gvisor_a_killed_driver_takes_its_sandbox_along() -> Result<()> {
    on_gvisor("killed", |env, fixture| {
        let mut live = env
            .call(fixture)
            .run_live(&GVISOR, "echo kept > kept.txt; echo up; sleep 1000")?;
        live.until("up")?;
        let names = places(fixture);
        ensure!(!runtimes(&names).is_empty(), "nothing runs");
        live.signal(Signal::KILL)?;
        live.finish()?;
        let deadline = Instant::now() + SOON;
        while !runtimes(&names).is_empty() {
            ensure!(Instant::now() < deadline, "{:?}", runtimes(&names));
            std::thread::sleep(Duration::from_millis(20));
        }
        let listed = env.runs(fixture, &[])?;
        let id = listed[0]["run"].as_str().context("no id")?.to_owned();
        env.look(fixture, &["rm", &id])?;
        ensure!(cgroups(&names).is_empty(), "{:?}", cgroups(&names));
        Ok(())
    })
}

#[test]
fn gvisor_what_it_cannot_hold_is_refused() -> Result<()> {
    on_gvisor("refused", |env, fixture| {
        let online = ["--policy", "online"];
        let words = [&["run"], &GVISOR[..], &online, &["--", "true"]].concat();
        let output = env.call(fixture).finish(&words)?;
        output.exits(3)?;
        ensure!(
            output.stderr.contains("cannot hold a network"),
            "{}",
            output.tail()
        );
        // Where there is no `runsc`, what to do is said.
        let words = [&["run"], &GVISOR[..], &["--", "true"]].concat();
        let output = env
            .call(fixture)
            .within(&["env", "PATH=/nonexistent"])
            .finish(&words)?;
        output.exits(4)?;
        ensure!(
            output.stderr.contains("apt-get install runsc"),
            "{}",
            output.tail()
        );
        Ok(())
    })
}
