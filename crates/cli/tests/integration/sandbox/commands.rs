//! Commands in a sandbox: codes, input, output, signals, limits, and the walls around them.

use std::io::Read as _;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use crate::sandbox::kit::{lasting, path, text};
use crate::support::{CANARY, expect, said};

#[test]
fn the_code_of_a_command_is_passed_through() -> Result<()> {
    lasting("codes", |kit| {
        let id = kit.create(&[])?;
        for (words, code) in [
            (&["true"][..], 0),
            (&["sh", "-c", "exit 7"], 7),
            (&["sh", "-c", "kill -TERM $$"], 128 + 15),
            (&["sh", "-c", "kill -KILL $$"], 128 + 9),
            (&["no-such-program"], 127),
        ] {
            kit.call(&[&["sandbox", "exec", &id, "--"], words].concat())?
                .exits(code)?;
        }
        let words = [
            "sandbox",
            "exec",
            &id,
            "--timeout",
            "1s",
            "--",
            "sleep",
            "1000",
        ];
        let output = kit.call(&words)?;
        ensure!(output.status.code() == Some(124), "{}", output.tail());
        ensure!(output.stderr.contains("timed_out"), "{}", output.tail());
        let echoed = kit
            .env
            .call(kit.fixture)
            .input(b"one\ntwo\n")
            .finish(&["sandbox", "exec", &id, "--", "tac"])?;
        ensure!(echoed.stdout == "two\none\n", "{}", echoed.tail());
        let words = [
            "sandbox", "exec", &id, "--cwd", "src", "--env", "A=b c", "--", "sh", "-c",
        ];
        let shown = kit.done(&[&words[..], &["pwd; echo $A"]].concat())?;
        ensure!(shown == "/workspace/src\nb c\n", "{shown}");
        Ok(())
    })
}

#[test]
fn much_output_reaches_a_slow_reader_and_holds_up_nobody() -> Result<()> {
    const BYTES: usize = 50 << 20;
    lasting("output", |kit| {
        let id = kit.create(&[])?;
        kit.sh(&id, "true")?;
        let script = format!("yes 0123456789abcde | head -c {BYTES}");
        let call = kit.env.call(kit.fixture);
        let words = [
            "sandbox", "exec", &id, "--shared", "--", "sh", "-c", &script,
        ];
        let mut child = call
            .command(&[], &words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()?;
        let mut out = child.stdout.take().context("no output")?;
        let mut first = [0; 16];
        out.read_exact(&mut first)?;
        // Nobody reads on, and others work all the same.
        for _ in 0..3 {
            let other = ["sandbox", "exec", &id, "--shared", "--", "echo", "beside"];
            ensure!(kit.done(&other)? == "beside\n");
        }
        let described = kit.status(&id)?;
        expect(&described, "execs", 1)?;
        let mut rest = Vec::new();
        out.read_to_end(&mut rest)?;
        ensure!(rest.len() == BYTES - 16, "{} bytes", rest.len());
        let same = |line: &[u8]| line == b"0123456789abcde\n";
        ensure!(
            same(&first) && rest.chunks(16).all(same),
            "not what was printed"
        );
        ensure!(child.wait()?.success());
        Ok(())
    })
}

#[test]
fn an_interrupt_or_a_killed_caller_ends_the_command_only() -> Result<()> {
    lasting("interrupt", |kit| {
        let id = kit.create(&[])?;
        kit.sh(&id, "sleep 1000 > /dev/null 2>&1 &")?;
        for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
            let mut live = kit.live(&id, "echo up; sleep 999; echo no")?;
            live.until("up")?;
            expect(&kit.status(&id)?, "execs", 1)?;
            live.signal(signal)?;
            let output = live.finish()?;
            ensure!(
                !output.status.success() && !output.stdout.contains("no"),
                "{output:?}"
            );
            kit.until("ended", || Ok(kit.status(&id)?["processes"] == 1))?;
            // The next one does not wait for it.
            kit.done(&["sandbox", "exec", &id, "--no-wait", "--", "true"])?;
        }
        expect(&kit.expect_state(&id, "running")?, "incarnation", 1)
    })
}

#[test]
fn each_limit_has_its_outcome() -> Result<()> {
    lasting("limits", |kit| {
        let id = kit.create(&["--memory", "64M", "--disk", "20M", "--pids", "40"])?;
        let run = |shell: &str| kit.sh_json(&id, &["--replace"], shell);
        let hits = |result: &Value| result["limit_hits"].to_string();
        let result = run("head -c 60000000 /dev/zero > big; sleep 1000")?;
        ensure!(text(&result, "outcome") == "disk_full", "{result}");
        kit.done(&["sandbox", "fs", "rm", &id, "big", "--replace"])?;
        let result = run("i=0; while [ $i -lt 100 ]; do sleep 1000 & i=$((i+1)); done; exit 3")?;
        ensure!(hits(&result).contains("processes"), "{result}");
        // What it left holds all there may be.
        kit.done(&["sandbox", "stop", &id])?;
        let result = run("python3 -c 'x = bytearray(500000000); print(len(x))'")?;
        ensure!(said(&result).is_empty(), "{result}");
        ensure!(
            text(&result, "outcome") == "out_of_memory" || hits(&result).contains("memory"),
            "{result}"
        );
        let result = kit.sh_json(&id, &["--replace", "--timeout", "1s"], "sleep 100")?;
        expect(&result, "outcome", "timed_out")?;
        ensure!(hits(&result).contains("time"), "{result}");
        // After each of them the sandbox can be used.
        let result = run("cat a.txt")?;
        expect(&result, "exit_code", 0)
    })
}

#[test]
fn the_walls_are_those_of_a_run() -> Result<()> {
    const WRITE: &str = "find / -xdev -type d 2>/dev/null > /tmp/all; \
        for d in /home /.ringfence/tools /.ringfence/objects/0 /usr/bin /proc/sys; do echo $d; done \
        >> /tmp/all; while read d; do if echo x > \"$d/.probe\" 2>/dev/null; then \
        rm -f \"$d/.probe\"; echo \"$d\"; fi; done < /tmp/all; \
        for d in /workspace /tmp /home/agent /dev/shm; do echo x > $d/.w && echo \"w $d\"; done";
    lasting("walls", |kit| {
        let id = kit.create(&[])?;
        let written = kit.sh(&id, WRITE)?;
        ensure!(
            written
                == "/workspace\n/home/agent\n/tmp\n/dev/shm\n\
                    w /workspace\nw /tmp\nw /home/agent\nw /dev/shm\n",
            "written: {written}"
        );
        let secret = path(&kit.env.secret);
        let looked = kit.sh(
            &id,
            &format!(
                "cat {secret} {home}/.netrc {state}/canary {state}/store.db; \
                 env; tr '\\0' '\\n' < /proc/self/environ; cat /proc/self/mountinfo /proc/*/cmdline; \
                 ls -d {state} {folder}; true",
                home = path(&kit.env.home),
                state = path(&kit.fixture.state),
                folder = path(&kit.fixture.folder),
            ),
        )?;
        ensure!(!looked.contains(CANARY), "{looked}");
        for place in [&kit.fixture.state, &kit.fixture.folder, &kit.env.home] {
            // The command itself is one of the command lines that it reads.
            let seen: Vec<&str> = looked
                .lines()
                .filter(|line| line.contains(path(place)) && !line.contains("cat "))
                .collect();
            ensure!(seen.is_empty(), "{seen:?}");
        }
        ensure!(
            looked.contains("/workspace"),
            "the look does not work: {looked}"
        );
        let network = kit.sh(
            &id,
            "cat /proc/net/dev | grep -c : ; id -u; grep CapEff /proc/self/status",
        )?;
        ensure!(
            network == "1\n1000\nCapEff:\t0000000000000000\n",
            "{network}"
        );
        // It was proved from inside, and written down.
        let journal = kit.state_path("sandboxes").join(&id).join("audit-1.jsonl");
        let journal = std::fs::read_to_string(journal)?;
        ensure!(
            journal.contains("\"proof\"") && journal.contains("\"enforced\""),
            "{journal}"
        );
        Ok(())
    })
}

#[test]
fn r46_parallel_commands_lose_no_update() -> Result<()> {
    lasting("parallel", |kit| {
        let id = kit.create(&[])?;
        kit.sh(&id, "echo 0 > c; : > log")?;
        let count = "n=$(cat c); echo $((n+1)) > c";
        together(100, |_| kit.sh(&id, count).map(drop))?;
        ensure!(kit.sh(&id, "cat c")? == "100\n");
        kit.sh(&id, "seq -f 'line %.0f.' 100 > edited")?;
        together(100, |n| {
            if n < 50 {
                let (old, new) = (format!("line {}.", n + 1), format!("LINE {}.", n + 1));
                let words = [
                    "sandbox", "fs", "edit", &id, "edited", "--old", &old, "--new", &new,
                ];
                kit.done(&words).map(drop)
            } else {
                let words = ["sandbox", "fs", "write", &id, "log", "--append"];
                let call = kit.env.call(kit.fixture).input(format!("{n}\n").as_bytes());
                call.finish(&words)?.exits(0)
            }
        })?;
        let seen = kit.sh(
            &id,
            "grep -c LINE edited; sort -un log | wc -l; wc -l < log",
        )?;
        ensure!(seen == "50\n50\n50\n", "{seen}");
        Ok(())
    })
}

/// Does it so many times, several at once.
fn together(times: usize, act: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    let failures = std::sync::Mutex::new(Vec::new());
    let next = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..25 {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if n >= times {
                        return;
                    }
                    if let Err(error) = act(n) {
                        failures
                            .lock()
                            .expect("no panic")
                            .push(format!("{n}: {error:#}"));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no panic");
    ensure!(
        failures.is_empty(),
        "{} of {times}: {}",
        failures.len(),
        failures[0]
    );
    Ok(())
}

#[test]
fn r46_a_busy_sandbox_refuses_waits_or_shares_as_asked() -> Result<()> {
    lasting("busy", |kit| {
        let id = kit.create(&[])?;
        let mut live = kit.live(&id, "echo up; read go; echo first >> order")?;
        live.until("up")?;
        let refused = kit.fails(
            2,
            "conflict",
            &["sandbox", "exec", &id, "--no-wait", "--", "true"],
        )?;
        ensure!(refused.contains("hint:"), "{refused}");
        let beside = [
            "sandbox",
            "exec",
            &id,
            "--shared",
            "--",
            "sh",
            "-c",
            "echo shared >> order",
        ];
        kit.done(&beside)?;
        let waits = "ringfence: waiting for the command that runs in this sandbox";
        let mut waiting = kit.live(&id, "echo second >> order")?;
        waiting.until(waits)?;
        let words = ["sandbox", "fs", "mkdir", &id, "made"];
        let mut tool = kit.env.call(kit.fixture).live(&words)?;
        tool.until(waits)?;
        live.say("go\n")?;
        for one in [live, waiting, tool] {
            one.finish()?.exits(0)?;
        }
        let order = kit.sh(&id, "cat order; ls -d made")?;
        ensure!(order == "shared\nfirst\nsecond\nmade\n", "{order}");
        Ok(())
    })
}

#[test]
fn a_sandbox_over_its_disk_bound_takes_only_what_makes_room() -> Result<()> {
    lasting("over", |kit| {
        let id = kit.create(&["--disk", "4M", "--checkpoint", "each-exec"])?;
        for name in ["one", "two"] {
            let words = ["sandbox", "exec", &id, "--", "fallocate", "-l", "6M", name];
            kit.fails(1, "disk_full", &words)?;
        }
        // What is over its bound is not sealed, and twice over lets nothing in.
        ensure!(
            kit.done(&["sandbox", "checkpoints", &id])?
                .contains("no checkpoints")
        );
        kit.fails(3, "over its bound", &["sandbox", "exec", &id, "--", "true"])?;
        for name in ["one", "two"] {
            kit.done(&["sandbox", "fs", "rm", &id, name])?;
        }
        kit.sh(&id, "true")?;
        Ok(())
    })
}

#[test]
fn who_ends_an_execution_is_told_to_what_ran_in_it() -> Result<()> {
    lasting("ended", |kit| {
        let id = kit.create(&[])?;
        let mut live = kit.live(&id, "echo up; sleep 1000")?;
        live.until("up")?;
        kit.done(&["sandbox", "stop", &id])?;
        let output = live.finish()?;
        output.exits(4)?;
        let said = &output.stderr;
        ensure!(
            said.contains("was ended: stopped") && !said.contains("runtime_lost"),
            "{said}"
        );
        Ok(())
    })
}
