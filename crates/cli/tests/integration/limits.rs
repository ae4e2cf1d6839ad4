//! R20, R70: what a run may spend. Each bound stops the run, has its own outcome, and leaves the
//! host and what was done so far alone.

mod processes;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Fixture, Mode, Sandboxed, expect, fingerprint, in_each_mode_in_turn, said};

/// BOUND: a run that is stopped by a bound is over within this; under load, so it is generous.
const SOON: Duration = Duration::from_secs(150);

/// Runs something that goes too far. It must end soon with this outcome, give out what it did
/// before, name the bound, and leave nothing running.
fn stopped(
    env: &Sandboxed,
    fixture: &Fixture,
    options: &[&str],
    shell: &str,
    expected: (&str, Option<&str>),
) -> Result<Value> {
    let began = Instant::now();
    let before = fingerprint(&fixture.folder)?;
    let result = env.run_with(fixture, options, &format!("echo kept > kept.txt; {shell}"))?;
    let (outcome, limit) = expected;
    expect(&result, "outcome", outcome).with_context(|| format!("{options:?} `{shell}`"))?;
    expect(&result, "status", "failed")?;
    ensure!(
        began.elapsed() < SOON,
        "{options:?} took {:?}",
        began.elapsed()
    );
    ensure!(
        result["changed_files"].to_string().contains("kept.txt"),
        "what was done before is lost: {}",
        result["changed_files"]
    );
    if let Some(limit) = limit {
        let hit = result["limit_hits"][0][0].as_str();
        ensure!(
            hit == Some(limit),
            "{options:?} hits {}",
            result["limit_hits"]
        );
    }
    let left = env.leftovers(fixture);
    ensure!(left.is_empty(), "left running: {left:?}");
    ensure!(
        fingerprint(&fixture.folder)? == before,
        "the folder changed"
    );
    Ok(result)
}

#[test]
fn r70_time() -> Result<()> {
    in_each_mode_in_turn("time", |env, fixture| {
        for shell in [
            "sleep 1000",
            "while :; do :; done",
            "trap '' TERM INT HUP QUIT; while :; do sleep 1000; done",
            "(trap '' TERM; sleep 1000) & setsid sleep 1000 & wait",
            "kill -STOP $$",
        ] {
            let expected = ("timed_out", None);
            let result = stopped(env, fixture, &["--timeout", "1s"], shell, expected)?;
            let took = result["duration_ms"].as_u64().unwrap_or(0);
            ensure!((900..15_000).contains(&took), "`{shell}` took {took} ms");
        }
        Ok(())
    })
}

#[test]
fn r70_time_lets_a_command_end_in_order() -> Result<()> {
    in_each_mode_in_turn("grace", |env, fixture| {
        let shell = "trap 'echo tidy > tidy.txt; exit 0' TERM; sleep 1000 & wait";
        let expected = ("timed_out", None);
        let result = stopped(env, fixture, &["--timeout", "1s"], shell, expected)?;
        expect(&result, "changed_files", vec!["kept.txt", "tidy.txt"])
    })
}

/// Takes 400 MB and holds it, page by page.
const HOARD: &str = "python3 -c 'import signal
x = bytearray(400 << 20)
for i in range(0, len(x), 4096): x[i] = 1
signal.pause()'";
/// The same without it being any process's own.
const MEMFD: &str = "python3 -c 'import os, signal
f = os.memfd_create(\"x\")
for _ in range(400): os.write(f, b\"x\" * (1 << 20))
signal.pause()'";
/// The same by many that are small each; the first that is killed ends it.
const MANY: &str = "python3 -c 'import os, signal
for _ in range(8):
    if os.fork() == 0:
        x = bytearray(50 << 20)
        for i in range(0, len(x), 4096): x[i] = 1
        signal.pause()
os.wait()
os._exit(1)'";

/// Shared by processes, and mapped by none: the pages are there all the same.
const SHARED: &str = "python3 -c 'import mmap, signal
m = mmap.mmap(-1, 400 << 20)
for i in range(0, len(m), 1 << 20):
    m[i:i + (1 << 20)] = bytes(1 << 20)
    m.madvise(mmap.MADV_DONTNEED)
signal.pause()'";
/// Behind somebody with more mappings than anybody looks at.
const BEHIND: &str = "python3 -c 'import ctypes, mmap, os, signal
m = mmap.mmap(-1, 44000 * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
at = ctypes.addressof(ctypes.c_char.from_buffer(m))
libc = ctypes.CDLL(None)
for i in range(22000): libc.mprotect(ctypes.c_void_p(at + i * 8192), 4096, 1)
if os.fork() == 0:
    f = os.memfd_create(\"x\")
    for _ in range(400): os.write(f, b\"x\" * (1 << 20))
signal.pause()'";

#[test]
fn r70_memory() -> Result<()> {
    in_each_mode_in_turn("memory", |env, fixture| {
        for shell in [HOARD, MEMFD, MANY, SHARED, BEHIND] {
            let options = ["--memory", "100M", "--timeout", "2m"];
            stopped(
                env,
                fixture,
                &options,
                shell,
                ("out_of_memory", Some("memory")),
            )?;
        }
        Ok(())
    })
}

#[test]
fn r70_memory_is_held_after_the_bound_of_processes_was_met() -> Result<()> {
    in_each_mode_in_turn("memory-after", |env, fixture| {
        // Whoever looks for too many processes does so ten times in a second and says nothing,
        // so that there is no event to wait for.
        let shell = format!(
            "python3 -c 'import os, signal, time
pids = []
try:
    while True:
        pid = os.fork()
        if pid == 0: signal.pause()
        pids.append(pid)
except OSError: time.sleep(1)
for pid in pids: os.kill(pid, 9); os.waitpid(pid, 0)
'; {HOARD}"
        );
        let options = ["--pids", "32", "--memory", "100M", "--timeout", "2m"];
        stopped(env, fixture, &options, &shell, ("out_of_memory", None)).map(|_| ())
    })
}

#[test]
fn r70_memory_that_is_shared_counts_once() -> Result<()> {
    in_each_mode_in_turn("memory-once", |env, fixture| {
        // A map that all children have, and children that come and go: 60 MB in all, and some for each program.
        let shell = "python3 -c 'import mmap, os
m = mmap.mmap(-1, 60 << 20)
m[:] = bytes(len(m))
x = bytearray(40 << 20)
for _ in range(40):
    pids = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            sum(m[::4096])
            os._exit(0)
        pids.append(pid)
    for pid in pids: os.waitpid(pid, 0)
'";
        let options = ["--memory", "200M", "--timeout", "2m"];
        let result = env.run_with(fixture, &options, shell)?;
        expect(&result, "outcome", "exited").with_context(|| result["limit_hits"].to_string())?;
        expect(&result, "status", "done")
    })
}

#[test]
fn r70_who_waits_first_is_held_all_the_same() -> Result<()> {
    in_each_mode_in_turn("waits-first", |env, fixture| {
        // Nobody looks closely at those who wait: whatever they do next is seen.
        let bit_by_bit = "python3 -c 'import time
kept = []
while True: time.sleep(0.4); kept.append(bytearray(30 << 20))'";
        let child = "(sleep 2; exec python3 -c 'kept = []\nwhile True: kept.append(bytearray(1 << 20))') & wait $!";
        let hoard = format!("sleep 2; {HOARD}");
        for shell in [bit_by_bit, child, &hoard] {
            let options = ["--memory", "100M", "--timeout", "2m"];
            let expected = ("out_of_memory", Some("memory"));
            stopped(env, fixture, &options, shell, expected)?;
        }
        let options = ["--cpu-time", "1s", "--timeout", "2m"];
        let shell = "sleep 2; while :; do :; done";
        stopped(env, fixture, &options, shell, ("cpu_limit", Some("cpu")))?;
        Ok(())
    })
}

#[test]
fn r70_every_bound_that_was_met_is_listed() -> Result<()> {
    in_each_mode_in_turn("listed", |env, fixture| {
        for (options, shell, limit) in [
            (["--timeout", "1s"], "exec sleep 1000", "time"),
            (
                ["--file-size", "1M"],
                "exec head -c 3M /dev/zero > large.bin",
                "file_size",
            ),
        ] {
            let result = env.run_with(fixture, &options, shell)?;
            let hit = result["limit_hits"][0][0].as_str();
            ensure!(
                hit == Some(limit),
                "{options:?} ends as {} and lists {}",
                result["outcome"],
                result["limit_hits"]
            );
        }
        Ok(())
    })
}

#[test]
fn r70_memory_on_temporary_file_systems() -> Result<()> {
    in_each_mode_in_turn("shared-memory", |env, fixture| {
        // Each of them is bounded by its own size; together they are over what is allowed.
        let fill = "for place in /dev/shm /tmp ~; do head -c 45M /dev/zero > $place/fill || exit 1; done; exec sleep 1000";
        let options = ["--memory", "100M", "--timeout", "2m"];
        stopped(
            env,
            fixture,
            &options,
            fill,
            ("out_of_memory", Some("memory")),
        )?;
        // One of them alone is full before that, and says so.
        let shell = "head -c 400M /dev/zero > /dev/shm/fill; stat -c %s /dev/shm/fill";
        let result = env.run_with(fixture, &options, shell)?;
        let size: u64 = said(&result).trim().parse().unwrap_or(0);
        ensure!(size <= 100 << 20, "/dev/shm took {size} bytes: {result}");
        Ok(())
    })
}

#[test]
fn r70_processor_time() -> Result<()> {
    in_each_mode_in_turn("cpu", |env, fixture| {
        for shell in [
            "while :; do :; done",
            // Many that live shortly count together.
            "while :; do python3 -c 'sum(range(3000000))'; done",
        ] {
            let options = ["--cpu-time", "1s", "--timeout", "2m"];
            stopped(env, fixture, &options, shell, ("cpu_limit", Some("cpu")))?;
        }
        let result = env.run_with(fixture, &["--cpu-time", "5s"], "sleep 0.1")?;
        expect(&result, "status", "done")
    })
}

#[test]
fn r70_size_of_a_file() -> Result<()> {
    in_each_mode_in_turn("file-size", |env, fixture| {
        let options = ["--file-size", "1M"];
        let expected = ("file_too_large", None);
        let shell = "exec head -c 3M /dev/zero > large.bin";
        stopped(env, fixture, &options, shell, expected)?;
        // The shell is not what was killed, and says it in its own way.
        let shell = "head -c 3M /dev/zero > large.bin; echo $?; stat -c %s large.bin";
        let result = env.run_with(fixture, &options, shell)?;
        ensure!(said(&result) == "153\n1048576\n", "{}", said(&result));
        Ok(())
    })
}

#[test]
fn r70_bytes_on_disk() -> Result<()> {
    in_each_mode_in_turn("disk", |env, fixture| {
        for shell in [
            // One after the other, so that no single file is too large.
            "i=0; while :; do i=$((i + 1)); head -c 1M /dev/zero | tr '\\0' x > f$i || exit; done",
            "mkdir -p ignored/deep; i=0; while :; do i=$((i + 1)); head -c 1M /dev/urandom > ignored/deep/$i || exit; done",
        ] {
            let options = ["--disk", "20M", "--timeout", "2m"];
            stopped(env, fixture, &options, shell, ("disk_full", Some("disk")))?;
        }
        // Files without a name count as well.
        let unlinked = "python3 -c 'import os
kept = []
while True:
    f = os.open(\".\", os.O_TMPFILE | os.O_RDWR); kept.append(f)
    os.write(f, b\"x\" * (1 << 20))'";
        let options = ["--disk", "20M", "--timeout", "2m"];
        stopped(
            env,
            fixture,
            &options,
            unlinked,
            ("disk_full", Some("disk")),
        )?;
        Ok(())
    })
}

#[test]
fn r70_files_on_disk() -> Result<()> {
    in_each_mode_in_turn("inodes", |env, fixture| {
        let shell = "python3 -c 'import itertools
for n in itertools.count(): open(f\"f{n}\", \"w\").close()'";
        let options = ["--inodes", "500", "--timeout", "2m"];
        let result = stopped(env, fixture, &options, shell, ("disk_full", Some("inodes")))?;
        let count = result["changed_files"].as_array().map_or(0, Vec::len);
        ensure!(count > 400, "{count} files cross back");
        Ok(())
    })
}

/// Nothing goes on unrecorded: who does more than a journal may hold is stopped, and what it did
/// until then is kept. In one mode only: it takes thousands of processes.
#[test]
fn r70_journal() -> Result<()> {
    in_each_mode_in_turn("journal", |env, fixture| {
        if fixture.mode == Mode::Root {
            return Ok(());
        }
        let shell = "echo kept > kept.txt; x=$(head -c 7900 /dev/zero | tr '\\0' x); while :; do /bin/true $x; done";
        let result = env.run_with(fixture, &["--timeout", "5m"], shell)?;
        expect(&result, "outcome", "journal_full")?;
        ensure!(
            result["limit_hits"][0][0] == "journal",
            "{}",
            result["limit_hits"]
        );
        ensure!(result["changed_files"].to_string().contains("kept.txt"));
        ensure!(env.leftovers(fixture).is_empty());
        Ok(())
    })
}

#[test]
fn r70_output() -> Result<()> {
    in_each_mode_in_turn("output", |env, fixture| {
        for shell in ["yes", "yes >&2", "yes & yes >&2 & wait"] {
            let options = ["--output", "100K", "--timeout", "2m"];
            let result = stopped(
                env,
                fixture,
                &options,
                shell,
                ("output_limit", Some("output")),
            )?;
            let bytes = |stream: &str| result[stream]["bytes"].as_u64().unwrap_or(0);
            let total = bytes("stdout") + bytes("stderr");
            ensure!(
                (100 << 10..8 << 20).contains(&total),
                "{total} bytes came through"
            );
            let kept: u64 = ["stdout", "stderr"]
                .iter()
                .filter_map(|stream| result[stream]["file"].as_str())
                .filter_map(|file| std::fs::metadata(file).ok())
                .map(|metadata| metadata.len())
                .sum();
            ensure!(kept >= 100 << 10, "only {kept} bytes are kept");
        }
        Ok(())
    })
}

#[test]
fn r70_open_files() -> Result<()> {
    in_each_mode_in_turn("open-files", |env, fixture| {
        let shell = "python3 -c 'import errno, os
kept = []
try:
    while True: kept.append(os.open(\"/dev/null\", 0))
except OSError as e: print(errno.errorcode[e.errno], max(kept))'";
        let result = env.run_with(fixture, &["--open-files", "64"], shell)?;
        ensure!(said(&result) == "EMFILE 63\n", "{}", said(&result));
        let shell = "ulimit -Hn; ulimit -n 128; ulimit -Sn";
        let result = env.run_with(fixture, &["--open-files", "64"], shell)?;
        ensure!(said(&result).starts_with("64\n"), "{}", said(&result));
        ensure!(!said(&result).contains("128"), "the bound was raised");
        Ok(())
    })
}

#[test]
fn r70_require_hard_refuses_what_is_only_watched() -> Result<()> {
    in_each_mode_in_turn("hard", |env, fixture| {
        let doctor: Value = serde_json::from_str(&env.look(fixture, &["doctor", "--json"])?)?;
        let watched = doctor["limits"]
            .as_array()
            .context("no limits")?
            .iter()
            .find(|graded| graded["grade"] == "watched")
            .and_then(|graded| graded["limit"].as_str())
            .context("nothing is watched")?;
        let words = ["run", "--require-hard", "--", "true"];
        let output = env.call(fixture).finish(&words)?;
        output.exits(3)?;
        ensure!(
            output.stderr.contains(&format!("`{watched}`")) && output.stderr.contains("hint:"),
            "{}",
            output.tail()
        );
        let left = std::fs::read_dir(fixture.state.join("workspaces"))?.count();
        ensure!(left == 0, "a refused run leaves {left} layers");
        // What is switched off by name need not be hard; the rest is, for root with cgroups.
        let words = [
            "run",
            "--require-hard",
            "--disk",
            "none",
            "--inodes",
            "none",
            "--",
            "true",
        ];
        let output = env.call(fixture).finish(&words)?;
        if fixture.mode == Mode::Root && watched == "disk" {
            output.exits(0)?;
        } else {
            output.exits(3)?;
        }
        Ok(())
    })
}

#[test]
fn r20_the_host_does_not_feel_a_runaway() -> Result<()> {
    in_each_mode_in_turn("host", |env, fixture| {
        let free = || -> Result<u64> {
            let text = std::fs::read_to_string("/proc/meminfo")?;
            let line = text.lines().find(|line| line.starts_with("MemAvailable"));
            let number = line.and_then(|line| line.split_whitespace().nth(1));
            Ok(number.context("no figure")?.parse::<u64>()? / 1024)
        };
        let before = free()?;
        let bomb = "python3 -c 'import os
while True:
    try: os.fork()
    except OSError: x = bytearray(50 << 20)'";
        let options = ["--pids", "64", "--memory", "200M", "--timeout", "3s"];
        let mut live = env
            .call(fixture)
            .run_live(&options, &format!("echo READY; {bomb}"))?;
        live.until("READY")?;
        // The host can still start processes of the same user.
        for _ in 0..20 {
            env.as_owner(fixture, &fixture.folder, &["true"])?;
        }
        let result = live.finish()?.json.context("no result")?;
        expect(&result, "status", "failed")?;
        let after = free()?;
        ensure!(
            after + 2048 > before,
            "{before} MiB were free and {after} are"
        );
        let left = env.leftovers(fixture);
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
}

#[test]
fn r20_an_interrupt_stops_the_agent_and_packs_what_there_is() -> Result<()> {
    in_each_mode_in_turn("cancel", |env, fixture| {
        for (signal, shell) in [
            (Signal::INT, "sleep 1000"),
            (Signal::TERM, "sleep 1000"),
            (Signal::HUP, "sleep 1000"),
            (
                Signal::INT,
                "trap '' INT TERM; while :; do sleep 1000; done",
            ),
        ] {
            let shell = format!("echo x > new.txt; (setsid sleep 1000 &); echo READY; {shell}");
            let mut live = env.call(fixture).run_live(&[], &shell)?;
            live.until("READY")?;
            live.signal(signal)?;
            let output = live.finish()?;
            output.exits(1)?;
            let result = output.json.context("no result")?;
            expect(&result, "outcome", "cancelled")?;
            expect(&result, "status", "failed")?;
            expect(&result, "changed_files", vec!["new.txt"])?;
            let left = env.leftovers(fixture);
            ensure!(left.is_empty(), "{left:?}");
        }
        Ok(())
    })
}

#[test]
fn r20_the_agent_may_end_in_order_when_it_is_interrupted() -> Result<()> {
    in_each_mode_in_turn("cancel-grace", |env, fixture| {
        let shell = "trap 'echo tidy > tidy.txt; exit 0' INT; echo READY; sleep 1000 & wait";
        let mut live = env.call(fixture).run_live(&[], shell)?;
        live.until("READY")?;
        live.signal(Signal::INT)?;
        let result = live.finish()?.json.context("no result")?;
        expect(&result, "outcome", "cancelled")?;
        expect(&result, "changed_files", vec!["tidy.txt"])
    })
}

#[test]
fn r70_every_result_says_how_firmly_each_bound_holds() -> Result<()> {
    in_each_mode_in_turn("grades", |env, fixture| {
        let result = env.run_with(fixture, &["--cpu-time", "1h"], "true")?;
        let limits = result["limits"].as_array().context("no limits")?;
        let names: Vec<&str> = limits.iter().filter_map(|g| g["limit"].as_str()).collect();
        let expected = [
            "time",
            "memory",
            "processes",
            "cpu",
            "open_files",
            "file_size",
            "disk",
            "inodes",
            "output",
            "journal",
        ];
        ensure!(names == expected, "{names:?}");
        ensure!(
            limits
                .iter()
                .all(|g| g["grade"] == "hard" || g["grade"] == "watched")
        );
        Ok(())
    })
}
