//! `ringfence run` from outside: what goes in, what comes out, and what is left.
//!
//! Each test runs the real program as root and as somebody unprivileged, as far as the tester may.

mod applied;
mod attempts;
mod bare;
mod checks;
mod commits;
mod corpus;
mod environments;
mod events;
mod exams;
mod faithful;
mod faults;
mod folders;
mod held;
mod listed;
mod options;
mod patches;
mod published;
mod rechecked;
mod registries;
mod repositories;
mod rounds;
mod standing;
mod traced;

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use serde_json::Value;

use crate::support::{CANARY, Fixture, Sandboxed, expect, fingerprint, in_each_mode, said};

/// Looks for secrets everywhere that is not a program of the host. The words are put together
/// inside, so that the command itself is not found.
const SEARCH: &str = r#"
    word=$(printf 'can%s' ary); probe=$(printf 'pos%s' itive)
    { env; tr '\0' '\n' < /proc/self/environ; for p in /proc/[0-9]*; do
        cat "$p/environ" "$p/cmdline" "$p/comm" 2>/dev/null | tr '\0' '\n'
    done; } > /tmp/seen
    grep -ic "$word" /tmp/seen && echo "FOUND in a process"
    for top in / ; do
        find $top -xdev -name "*$word*" 2>/dev/null
        grep -rIil "$word" /workspace /home /root /tmp /etc /dev/shm /run /var /opt /srv /mnt 2>/dev/null
    done | sed 's/^/FOUND /'
    grep -ril "$probe" /workspace /home /tmp /dev/shm | sed 's/^/PROBE /'
    cat a.txt"#;

#[test]
fn r1_no_secret_of_the_host_is_inside_or_in_the_bundle() -> Result<()> {
    in_each_mode("secrets", |env, fixture| {
        env.put(fixture, "probe.txt", "positive\n")?;
        let result = env.run_with(fixture, &[], SEARCH)?;
        expect(&result, "outcome", "exited")?;
        let seen = said(&result);
        ensure!(!seen.contains("FOUND"), "found inside: {seen}");
        ensure!(
            seen.contains("PROBE /workspace/probe.txt"),
            "the search does not work: {seen}"
        );
        let direct = format!(
            "cat {} {}/.netrc; true",
            env.secret.display(),
            env.home.display()
        );
        let result = env.run_with(fixture, &[], &direct)?;
        ensure!(said(&result).is_empty(), "read: {}", said(&result));
        let found = holding(&fixture.state, CANARY.as_bytes())?;
        ensure!(found.is_empty(), "kept in {found:?}");
        // The search of the state works, too.
        ensure!(!holding(&fixture.state, b"PROBE /workspace")?.is_empty());
        Ok(())
    })
}

/// Files below a directory that hold these bytes.
fn holding(top: &Path, bytes: &[u8]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in fingerprint(top)?.into_keys() {
        if path.is_file() && fs::read(&path)?.windows(bytes.len()).any(|w| w == bytes) {
            found.push(path);
        }
    }
    Ok(found)
}

#[test]
fn r2_the_real_folder_does_not_change() -> Result<()> {
    in_each_mode("unchanged", |env, fixture| {
        env.put(fixture, "staged.txt", "staged\n")?;
        env.put(fixture, "untracked.txt", "untracked\n")?;
        env.git(fixture, &fixture.folder, &["add", "staged.txt"])?;
        let status = ["status", "--porcelain", "--untracked-files=all"];
        let outside = env.git(fixture, &fixture.folder, &status)?;
        let before = fingerprint(&fixture.folder)?;
        let result = env.run_with(fixture, &[], "git status --porcelain -uall; cat README.md")?;
        ensure!(
            said(&result) == format!("{outside}# Fixture\n\nNot committed.\n"),
            "not the folder as it is: {}",
            said(&result)
        );
        for shell in [
            "echo x >> a.txt; git add -A; git -c user.name=a -c user.email=a@b commit -qm x",
            "git update-index --refresh; git gc -q; git reset -q --hard; git clean -fdxq",
            "chmod -R 700 .; touch -d @0 a.txt; ln -f a.txt b.txt; mv src lib",
            "rm -rf .git; find . -delete; ls -A",
            "kill -9 $$",
        ] {
            env.run_with(fixture, &[], shell)?;
            ensure!(
                fingerprint(&fixture.folder)? == before,
                "changed by `{shell}`"
            );
        }
        Ok(())
    })
}

fn path(path: &Path) -> &str {
    path.to_str().expect("the paths of tests are text")
}

#[test]
fn r3_each_run_is_fresh() -> Result<()> {
    const PLACES: &str = "/workspace/m .git/m /tmp/m \"$HOME/m\" /dev/shm/m \"$HOME/.cache/m\"";
    in_each_mode("fresh", |env, fixture| {
        let mark = format!(
            "mkdir -p ~/.cache; for f in {PLACES}; do echo m > \"$f\" || exit 1; done; \
             git config user.name x; git checkout -qb other; ipcmk -Q"
        );
        let result = env.run_with(fixture, &[], &mark)?;
        expect(&result, "exit_code", 0)?;
        let look = format!(
            "for f in {PLACES}; do test ! -e \"$f\" || exit 1; done; \
             git branch; git config user.name; ls -A ~ /tmp /dev/shm; ipcs -q | grep 0x"
        );
        let result = env.run_with(fixture, &[], &look)?;
        ensure!(
            said(&result) == "* main\nagent\n/dev/shm:\n\n/home/agent:\n\n/tmp:\n",
            "not fresh: {}",
            said(&result)
        );
        Ok(())
    })
}

#[test]
fn r4_success_failure_and_timeout_leave_nothing() -> Result<()> {
    in_each_mode("gone", |env, fixture| {
        let temporary = fixture.folder.with_file_name("tmp");
        env.as_owner(fixture, Path::new("/"), &["mkdir", path(&temporary)])?;
        let call = env.call(fixture).variable("TMPDIR", path(&temporary));
        let busy = "sleep 1000 & setsid sleep 1000 & (sleep 1000 &) ; echo x > new.txt; ";
        for (options, end, outcome) in [
            (&[][..], "true", "exited"),
            (&[], "exit 3", "exited"),
            (&[], "kill -9 $$", "signaled"),
            (&["--timeout", "1s"], "sleep 1000", "timed_out"),
        ] {
            let result = call.run(options, &format!("{busy}{end}"))?;
            expect(&result, "outcome", outcome)?;
            expect(&result, "changed_files", vec!["new.txt"])?;
            let left = traces(env, fixture, &result)?;
            ensure!(left.is_empty(), "`{end}` leaves {left:?}");
            ensure!(fs::read_dir(&temporary)?.next().is_none());
        }
        Ok(())
    })
}

/// What there is on the host of a run beyond its record: processes, mounts, layers, cgroups.
fn traces(env: &Sandboxed, fixture: &Fixture, result: &Value) -> Result<Vec<String>> {
    let run = result["run"].as_str().context("no run")?;
    let mut found = env.leftovers(fixture);
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let ours = |line: &&str| line.contains(run) || line.contains(path(&fixture.state));
    found.extend(mounts.lines().filter(ours).map(str::to_owned));
    for entry in fs::read_dir(fixture.state.join("workspaces"))? {
        found.push(entry?.path().display().to_string());
    }
    found.extend(cgroups(run));
    Ok(found)
}

/// Everything that a process started and that is still there. Pid 1 of a sandbox has no
/// environment to find it by.
fn descendants(pid: u32) -> Vec<i32> {
    let mut found = Vec::new();
    let mut open = vec![pid as i32];
    while let Some(pid) = open.pop() {
        let tasks = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        for child in tasks.unwrap_or_default().split_whitespace() {
            let child = child.parse().expect("the kernel writes numbers");
            found.push(child);
            open.push(child);
        }
    }
    found
}

/// Takes hold of processes and waits, when it is called, for the end of all of them.
fn ends_of(pids: &[i32]) -> Result<impl FnOnce() -> Result<()>> {
    let mut held = Vec::new();
    for pid in pids {
        let pid = Pid::from_raw(*pid).context("not a pid")?;
        held.push((pid, pidfd_open(pid, PidfdFlags::empty())?));
    }
    Ok(move || {
        for (pid, fd) in held {
            let wait = Timespec {
                tv_sec: 5,
                tv_nsec: 0,
            };
            let ended = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&wait))?;
            ensure!(ended == 1, "process {pid:?} is still there");
        }
        Ok(())
    })
}

fn cgroups(run: &str) -> Vec<String> {
    let output = std::process::Command::new("find")
        .args([
            "/sys/fs/cgroup",
            "-type",
            "d",
            "-name",
            &format!("ringfence-{run}*"),
        ])
        .output();
    let found = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    found
        .unwrap_or_default()
        .lines()
        .map(str::to_owned)
        .collect()
}

#[test]
fn r4_a_killed_ringfence_keeps_the_layer_and_nothing_else() -> Result<()> {
    in_each_mode("killed", |env, fixture| {
        let mut live = env.call(fixture).run_live(
            &[],
            "(sleep 1000 &) ; echo two >> a.txt; echo new > new.txt; echo READY; exec sleep 1000",
        )?;
        live.until("READY")?;
        ensure!(!env.leftovers(fixture).is_empty(), "nothing runs");
        let inside = descendants(live.pid());
        ensure!(inside.len() >= 4, "only {inside:?} run");
        let ends = ends_of(&inside)?;
        let running = &env.runs(fixture, &[])?[0];
        expect(running, "status", "running")?;
        let run = running["run"].as_str().context("no run")?;
        let refused = env.ringfence(fixture, 20, &["rm", run])?;
        refused.exits(2)?;

        live.signal(Signal::KILL)?;
        live.finish()?;
        ends()?;
        let left = env.leftovers(fixture);
        ensure!(left.is_empty(), "left running: {left:?}");
        let lost = &env.runs(fixture, &[])?[0];
        expect(lost, "status", "lost")?;
        ensure!(env.look(fixture, &["list"])?.contains("lost"));
        let diff = env.look(fixture, &["diff", run])?;
        for part in ["+++ b/a.txt", "+two", "+++ b/new.txt", "+new"] {
            ensure!(diff.contains(part), "no `{part}` in {diff}");
        }
        let log = env.look(fixture, &["logs", run])?;
        ensure!(log == "READY\n", "the log is {log}");
        env.look(fixture, &["show", run])?;
        env.look(fixture, &["rm", run])?;
        let left = traces(env, fixture, lost)?;
        for cgroup in cgroups(run) {
            fs::remove_dir(cgroup)?;
        }
        ensure!(left.is_empty(), "left after `rm`: {left:?}");
        ensure!(env.look(fixture, &["list"])?.contains("no runs yet"));
        Ok(())
    })
}

#[test]
fn r18_a_server_inside_is_reached_inside_only() -> Result<()> {
    in_each_mode("server", |env, fixture| {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let shell = format!(
            "mkfifo /tmp/ready; python3 -u -m http.server {port} >/tmp/ready 2>/dev/null &
             read -r line < /tmp/ready
             python3 -c \"import urllib.request as u; \
                 print(u.urlopen('http://localhost:{port}/a.txt').read().decode(), end='')\"
             if command -v curl >/dev/null; then curl -sS http://localhost:{port}/a.txt; fi
             echo SERVING; read -r line; echo \"$line\""
        );
        let mut live = env.call(fixture).run_live(&[], &shell)?;
        live.until("SERVING")?;
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            bail!("the server inside is reached from the host");
        }
        TcpListener::bind(("127.0.0.1", port)).context("its port is taken on the host")?;
        live.say("go on\n")?;
        let output = live.finish()?;
        let result = output.json.context("no result")?;
        let text = said(&result);
        ensure!(text.starts_with("one\ntwo\nthree\n"), "it said {text}");
        ensure!(text.ends_with("SERVING\ngo on\n"), "it said {text}");
        expect(&result, "exit_code", 0)?;
        ensure!(result["leftovers"].to_string().contains("http.server"));
        ensure!(env.leftovers(fixture).is_empty());
        Ok(())
    })
}

#[test]
fn r18_a_background_child_does_not_hold_the_run() -> Result<()> {
    in_each_mode("background", |env, fixture| {
        let result = env.run_with(fixture, &[], "sleep 1000 & setsid sleep 1000 & echo on")?;
        expect(&result, "exit_code", 0)?;
        expect(&result, "outcome", "exited")?;
        ensure!(said(&result) == "on\n");
        let count = result["leftovers"].as_array().map_or(0, Vec::len);
        ensure!(count == 2, "leftovers: {}", result["leftovers"]);
        let left = traces(env, fixture, &result)?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
}

#[test]
fn r66_the_agent_is_somebody_with_no_power() -> Result<()> {
    in_each_mode("identity", |env, fixture| {
        let result = env.run_with(
            fixture,
            &[],
            "id -u; id -g; id -un; id -G; grep -E '^(Cap|NoNewPrivs|Seccomp:|Groups)' /proc/self/status",
        )?;
        let expected = "1000\n1000\nagent\n1000\n\
            Groups:\t \n\
            CapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n\
            CapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n";
        ensure!(said(&result) == expected, "is {}", said(&result));
        for shell in [
            "su -c true </dev/null",
            "sudo -n true </dev/null",
            "cp /bin/sleep /tmp/s && chmod 4755 /tmp/s && test $(stat -c %u /tmp/s) = 0",
            "chown 0 a.txt",
            "python3 -c 'import os; os.setuid(0)'",
            "python3 -c 'import os; os.setgroups([0])'",
        ] {
            let result = env.run_with(fixture, &[], shell)?;
            expect(&result, "outcome", "exited")?;
            ensure!(result["exit_code"] != 0, "`{shell}` works");
        }
        Ok(())
    })
}

#[test]
fn r69_no_process_of_the_host_or_of_a_neighbour_is_inside() -> Result<()> {
    in_each_mode("neighbours", |env, fixture| {
        let mut neighbour = env.call(fixture).run_live(
            &[],
            "echo n > /dev/shm/n; echo READY; read -r line; : neighbour",
        )?;
        neighbour.until("READY")?;
        let host = std::process::id();
        let shell = format!(
            "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done | grep -c 'neighb[o]ur'
             test -e /dev/shm/n && echo shared; kill -0 {host} 2>/dev/null && echo host
             kill -0 {} 2>/dev/null && echo other; ls -d /proc/[0-9]* | wc -l; readlink /proc/self/ns/*",
            neighbour.pid()
        );
        let result = env.run_with(fixture, &[], &shell)?;
        let lines: Vec<&str> = said(&result).lines().collect();
        ensure!(lines[0] == "0", "sees {lines:?}");
        let count: usize = lines[1]
            .parse()
            .context("host, neighbour or shared memory")?;
        ensure!(count <= 6, "{count} processes are visible");
        for name in ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"] {
            let own = fs::read_link(format!("/proc/self/ns/{name}"))?;
            let own = own.to_string_lossy();
            ensure!(
                !lines.contains(&own.as_ref()),
                "shares `{own}` with the host"
            );
        }
        neighbour.say("\n")?;
        neighbour.finish()?.exits(0)
    })
}
