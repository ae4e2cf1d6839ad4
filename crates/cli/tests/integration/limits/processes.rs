//! How many processes there may be, and how fast.

use anyhow::{Result, ensure};

use crate::limits::stopped;
use crate::support::{Mode, expect, in_each_mode_in_turn, said};

#[test]
fn r70_processes() -> Result<()> {
    in_each_mode_in_turn("processes", |env, fixture| {
        for shell in [
            "while :; do sleep 1000 & done",
            "python3 -c 'import os\nwhile True: os.fork()'",
            "python3 -c 'import threading\nwhile True: threading.Thread(target=threading.Event().wait, daemon=True).start()'",
        ] {
            // Rootless nobody counts refusals, and threads are gone with the process that failed.
            if shell.contains("Thread") && fixture.mode == Mode::Rootless {
                continue;
            }
            let options = ["--pids", "32", "--timeout", "2m"];
            let expected = ("too_many_processes", Some("processes"));
            stopped(env, fixture, &options, shell, expected)?;
        }
        // Below it all is well.
        let fine = "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 1000 & done; kill %1; exit 0";
        let result = env.run_with(fixture, &["--pids", "32"], fine)?;
        expect(&result, "status", "done")
    })
}

/// Each process starts two more and ends; what the kernel refuses stops none of them.
const STORM: &str = r"python3 -c '
import os
def start():
    try: return os.fork() == 0
    except OSError: return False
def storm():
    while start() or start(): pass
    os._exit(0)
while True:
    if start(): storm()
    try: os.waitpid(-1, os.WNOHANG)
    except OSError: pass
'";

#[test]
fn r70_processes_that_start_others_without_end_are_ended() -> Result<()> {
    in_each_mode_in_turn("storm", |env, fixture| {
        let expected = ("too_many_processes", Some("processes"));
        stopped(env, fixture, &["--timeout", "2m"], STORM, expected)?;
        Ok(())
    })
}

#[test]
fn r70_crowds_and_many_short_processes_are_no_storm() -> Result<()> {
    in_each_mode_in_turn("no-storm", |env, fixture| {
        let crowd = "for i in $(seq 420); do sleep 1000 & done; kill $(jobs -p); exit 0";
        let short = "i=0; while [ $i -lt 3000 ]; do i=$((i + 1)); /bin/true; done";
        let pipes =
            "i=0; while [ $i -lt 400 ]; do i=$((i + 1)); true | cat | cat | cat > /dev/null; done";
        for (pids, honest) in [("512", crowd), ("512", short), ("8", pipes)] {
            let options = ["--pids", pids, "--timeout", "5m"];
            let result = env.run_with(fixture, &options, honest)?;
            expect(&result, "status", "done")?;
        }
        Ok(())
    })
}

/// The guest is scheduled before a storm; what it starts is scheduled as everybody is.
#[test]
fn commands_have_no_priority_of_the_guest() -> Result<()> {
    let runtime = "import ctypes, platform, struct
number = {\"x86_64\": 315, \"aarch64\": 275}[platform.machine()]
attributes = ctypes.create_string_buffer(48)
assert ctypes.CDLL(None).syscall(number, 0, attributes, 48, 0) == 0
size, policy, flags, nice, priority, runtime = struct.unpack_from(\"=IIQiIQ\", attributes)
print(flags, runtime != 100_000)";
    in_each_mode_in_turn("slice", |env, fixture| {
        let result = env.run_with(fixture, &[], &format!("python3 -c '{runtime}'"))?;
        ensure!(said(&result).trim() == "0 True", "{}", said(&result));
        Ok(())
    })
}

#[test]
fn r70_processes_of_two_sandboxes_do_not_add_up() -> Result<()> {
    in_each_mode_in_turn("both", |env, fixture| {
        let crowd = "for i in $(seq 20); do sleep 1000 & done; echo READY; read -r line";
        let mut one = env.call(fixture).run_live(&["--pids", "32"], crowd)?;
        one.until("READY")?;
        let mut two = env.call(fixture).run_live(&["--pids", "32"], crowd)?;
        two.until("READY")?;
        for mut live in [one, two] {
            live.say("\n")?;
            live.finish()?.exits(0)?;
        }
        Ok(())
    })
}
