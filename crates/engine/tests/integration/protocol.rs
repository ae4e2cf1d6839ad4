//! The guest and its protocol on the native backend: commands, files, watches, liveness.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod hostile;
mod image;

use std::time::Duration;

use ringfence_engine::client::{ClientError, Message, Stream};
use ringfence_model::wire::{
    Bound, Changed, Depth, EntryType, Leftovers, Notice, OutputMode, Parents, Reply, Request,
    SignalScope, Stdin, WindowSize, WriteHow,
};

use crate::shared::again;
use crate::shared::guest_bench as bench;
use bench::{Bench, exec, sh};

#[test]
fn a_command_gives_its_code_and_both_streams_apart() {
    let mut bench = Bench::start();
    let done = bench.run(sh("echo out; echo err >&2; exit 7"));
    assert_eq!((done.exited.code, done.exited.signal), (Some(7), None));
    assert_eq!(
        (done.stdout.as_slice(), done.stderr.as_slice()),
        (&b"out\n"[..], &b"err\n"[..])
    );
    assert_eq!((done.exited.stdout_bytes, done.exited.stderr_bytes), (4, 4));
}

#[test]
fn a_signal_and_a_missing_program_are_told_apart() {
    let mut bench = Bench::start();
    let done = bench.run(sh("kill -SEGV $$"));
    assert_eq!((done.exited.code, done.exited.signal), (None, Some(11)));
    let done = bench.run(exec(&["no-such-program"]));
    assert_eq!(done.exited.code, Some(127));
    assert_eq!(
        done.exited.not_started.unwrap().subject.to_text(),
        "no-such-program"
    );
    let done = bench.run(exec(&["/etc/hostname"]));
    assert_eq!(done.exited.code, Some(126));
    let mut elsewhere = exec(&["true"]);
    elsewhere.cwd = "/no/such/folder".into();
    let done = bench.run(elsewhere);
    assert_eq!(done.exited.not_started.unwrap().operation, "enter");
}

#[test]
fn input_reaches_the_command_and_ends() {
    let mut bench = Bench::start();
    let mut cat = exec(&["wc", "-c"]);
    cat.stdin = Stdin::Frames;
    let stream = bench.send(&Request::Exec(cat));
    let all = vec![b'x'; 3 << 20];
    for chunk in all.chunks(100_000) {
        bench.sandbox.client().input(stream, chunk).unwrap();
    }
    bench.sandbox.client().end_input(stream).unwrap();
    let done = bench.finish(stream);
    assert_eq!(done.exited.code, Some(0));
    assert_eq!(String::from_utf8_lossy(&done.stdout).trim(), "3145728");
}

#[test]
fn large_output_is_whole() {
    let mut bench = Bench::start();
    let done = bench.run(sh(
        "head -c 8000000 /dev/zero; head -c 3000000 /dev/zero >&2",
    ));
    assert_eq!(
        (done.stdout.len(), done.stderr.len()),
        (8_000_000, 3_000_000)
    );
}

/// Waits until so many processes inside are `sleep`: before that they have the name of their shell.
fn asleep(count: u32) -> String {
    let names = "cat /proc/[0-9]*/comm 2>/dev/null | grep -cx sleep";
    format!("until [ $({names}) = {count} ]; do :; done")
}

#[test]
fn a_child_that_keeps_the_pipe_does_not_hold_the_exec() {
    let mut bench = Bench::start();
    let done = bench.run(sh(&format!("sleep 1000 & {}; echo started", asleep(1))));
    assert_eq!(done.exited.code, Some(0));
    assert_eq!(done.stdout, b"started\n");
    assert_eq!(done.exited.leftovers.len(), 1);
    assert_eq!(done.exited.leftovers[0].command.to_text(), "sleep 1000");
    // It lives on, and the next command sees it; it goes when asked.
    let seen = bench.run(sh(
        "pgrep -c sleep || cat /proc/[0-9]*/comm | grep -c '^sleep$'",
    ));
    assert_eq!(String::from_utf8_lossy(&seen.stdout).trim(), "1");
    let kill = Request::Signal {
        exec: done.stream,
        signal: 9,
        scope: SignalScope::All,
    };
    assert_eq!(bench.call(&kill).unwrap(), Reply::Done);
    bench.wait_for(|m| matches!(m, Message::Notice(s, Notice::Gone) if *s == done.stream));
}

#[test]
fn leftovers_are_killed_where_that_is_asked() {
    let mut bench = Bench::start();
    let mut asked = sh("setsid sleep 1000 & sleep 1001 & exit 4");
    asked.leftovers = Leftovers::Kill;
    let done = bench.run(asked);
    assert_eq!(
        (done.exited.code, done.exited.leftovers.len()),
        (Some(4), 0)
    );
    bench.wait_for(|m| matches!(m, Message::Notice(s, Notice::Gone) if *s == done.stream));
}

#[test]
fn daemons_are_found_through_their_warden() {
    let mut bench = Bench::start();
    let first = format!("setsid sh -c 'setsid sleep 1001 &' & {}", asleep(1));
    let first = bench.run(sh(&first));
    let second = bench.run(sh(&format!("setsid sleep 1002 & {}", asleep(2))));
    let names = |list: &[ringfence_model::wire::Leftover]| {
        list.iter().map(|l| l.command.to_text()).collect::<Vec<_>>()
    };
    assert_eq!(names(&first.exited.leftovers), ["sleep 1001"]);
    assert_eq!(names(&second.exited.leftovers), ["sleep 1002"]);
}

#[test]
fn a_timeout_ends_everything_even_what_ignores_it() {
    let mut bench = Bench::start();
    let mut stubborn = sh(
        "trap '' TERM; (trap '' TERM; while :; do sleep 0.05; done) & while :; do sleep 0.05; done",
    );
    stubborn.timeout_ms = Some(100);
    let done = bench.run(stubborn);
    assert_eq!(done.exited.bound, Some(Bound::Time));
    assert!(done.exited.leftovers.is_empty());
    let seen = bench.run(sh("ls /proc | grep -c '^[0-9]'"));
    // The guest, this warden, and the pipeline of three.
    assert!(
        String::from_utf8_lossy(&seen.stdout)
            .trim()
            .parse::<u32>()
            .unwrap()
            <= 5
    );
}

#[test]
fn an_agent_that_kills_its_warden_only_ends_its_exec() {
    let mut bench = Bench::start();
    // With one uid inside the warden can be killed; with a range it cannot. Both must be survived.
    let done = bench.run(sh("kill -9 $PPID; sleep 0.2; exit 3"));
    assert!(
        done.exited.signal == Some(9) || done.exited.code == Some(3),
        "{:?}",
        done.exited
    );
    assert_eq!(bench.run(sh("echo alive")).stdout, b"alive\n");
}

#[test]
fn background_output_is_kept_for_whoever_attaches() {
    let mut bench = Bench::start();
    let mut job = sh("echo one; read line; echo two $line");
    job.output = OutputMode::Background;
    job.stdin = Stdin::Frames;
    let stream = bench.send(&Request::Exec(job));
    bench.wait_for(|m| matches!(m, Message::Reply(s, Reply::Started { .. }) if *s == stream));
    // Nothing is sent before somebody attaches; the liveness ping shows that time has passed.
    assert_eq!(
        bench.call(&Request::Ping { nonce: 5 }).unwrap(),
        Reply::Pong { nonce: 5 }
    );
    let reply = bench
        .call(&Request::Attach {
            exec: stream,
            from: 0,
        })
        .unwrap();
    assert_eq!(reply, Reply::Attached { from: 0 });
    bench.sandbox.client().input(stream, b"x\n").unwrap();
    let done = bench.finish(stream);
    assert_eq!(done.stdout, b"one\ntwo x\n");
}

#[test]
fn a_terminal_has_a_size_and_takes_a_new_one() {
    let mut bench = Bench::start();
    let mut shell =
        sh("stty size; trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done");
    shell.terminal = Some(WindowSize {
        columns: 91,
        rows: 33,
    });
    let stream = bench.send(&Request::Exec(shell));
    bench.read_until(stream, b"ready");
    let size = WindowSize {
        columns: 120,
        rows: 50,
    };
    assert_eq!(
        bench.call(&Request::Resize { exec: stream, size }).unwrap(),
        Reply::Done
    );
    let done = bench.finish(stream);
    assert!(
        String::from_utf8_lossy(&done.stdout).contains("50 120"),
        "{:?}",
        done.stdout
    );
}

#[test]
fn an_interrupt_reaches_the_foreground() {
    let mut bench = Bench::start();
    // Not a shell: one that is interrupted just before it forks goes on to wait for its child.
    let mut shell = exec(&[
        "python3",
        "-c",
        "import time; print('ready', flush=True); time.sleep(1000)",
    ]);
    shell.terminal = Some(WindowSize {
        columns: 80,
        rows: 24,
    });
    let stream = bench.send(&Request::Exec(shell));
    bench.read_until(stream, b"ready");
    bench
        .call(&Request::Signal {
            exec: stream,
            signal: 2,
            scope: SignalScope::Foreground,
        })
        .unwrap();
    let done = bench.finish(stream);
    assert!(
        done.exited.signal == Some(2) || done.exited.code == Some(130),
        "{:?}",
        done.exited
    );
}

#[test]
fn files_are_written_read_listed_moved_and_removed() {
    let mut bench = Bench::start();
    let path = |name: &str| format!("/workspace/{name}").as_str().into();
    assert_eq!(
        bench
            .call(&Request::MakeDirectory {
                path: path("a/b"),
                parents: Parents::Make
            })
            .unwrap(),
        Reply::Done
    );
    let content: Vec<u8> = (0..300_000u32).map(|n| n as u8).collect();
    bench
        .write("/workspace/a/b/f", &content, WriteHow::Replace)
        .unwrap();
    assert_eq!(
        bench.read("/workspace/a/b/f", 0, u64::MAX).unwrap(),
        content
    );
    assert_eq!(
        bench.read("/workspace/a/b/f", 299_990, 100).unwrap(),
        &content[299_990..]
    );
    bench
        .write("/workspace/a/b/f", b"more", WriteHow::Append)
        .unwrap();
    assert!(
        bench
            .write("/workspace/a/b/f", b"x", WriteHow::CreateOnly)
            .is_err()
    );
    bench
        .call(&Request::Rename {
            from: path("a/b/f"),
            to: path("a/g"),
        })
        .unwrap();
    match bench.call(&Request::List { path: path("a") }).unwrap() {
        Reply::Listing {
            entries,
            truncated: false,
        } => {
            let seen: Vec<(String, EntryType, u64)> = entries
                .iter()
                .map(|e| (e.name.to_text(), e.what, e.size))
                .collect();
            assert_eq!(seen[1], ("g".to_owned(), EntryType::File, 300_004));
            assert_eq!((seen[0].0.as_str(), seen[0].1), ("b", EntryType::Directory));
        }
        other => panic!("{other:?}"),
    }
    assert!(
        bench
            .call(&Request::Remove {
                path: path("a"),
                depth: Depth::Entry
            })
            .is_err()
    );
    bench
        .call(&Request::Remove {
            path: path("a"),
            depth: Depth::Tree,
        })
        .unwrap();
    let gone = bench.call(&Request::Stat { path: path("a") });
    assert!(matches!(gone, Err(ClientError::Failed(failure)) if failure.errno == 2));
}

#[test]
fn file_requests_reach_no_further_than_the_agent() {
    let mut bench = Bench::start();
    for path in [
        "/proc/1/environ",
        "/proc/1/mem",
        "/etc/shadow",
        "/var/lib/secret",
    ] {
        assert!(bench.read(path, 0, 100).is_err(), "{path}");
    }
    for path in [
        "/etc/x",
        "/usr/bin/x",
        "/x",
        "/proc/sys/kernel/core_pattern",
    ] {
        assert!(
            bench.write(path, b"x", WriteHow::Replace).is_err(),
            "{path}"
        );
    }
    // What would wait for ever is refused at once.
    bench.run(sh("mkfifo fifo"));
    assert!(bench.read("/workspace/fifo", 0, 1).is_err());
    assert!(
        bench
            .write("/workspace/fifo", b"x", WriteHow::Append)
            .is_err()
    );
}

#[test]
fn changes_in_a_directory_are_noticed() {
    let mut bench = Bench::start();
    let watch = bench.send(&Request::Watch {
        path: "/workspace".into(),
    });
    assert_eq!(
        bench.sandbox.client().answer_to(watch).unwrap(),
        Reply::Done
    );
    bench.run(sh("echo x > made; rm made"));
    for expected in [Changed::Created, Changed::Removed] {
        bench.wait_for(|m| {
            matches!(m, Message::Notice(s, Notice::Changed { name, what })
            if *s == watch && name.to_text() == "made" && *what == expected)
        });
    }
    assert_eq!(
        bench.call(&Request::Unwatch { watch }).unwrap(),
        Reply::Done
    );
    assert!(bench.call(&Request::Unwatch { watch }).is_err());
}

#[test]
fn the_guest_reaps_orphans() {
    let mut bench = Bench::start();
    bench.run(sh("for i in $(seq 200); do (sleep 0.01 &) ; done"));
    let seen = bench.run(sh("for i in $(seq 600); do
           dead=$(grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l)
           [ $dead = 0 ] && break; sleep 0.1
         done; echo $dead"));
    assert_eq!(String::from_utf8_lossy(&seen.stdout).trim(), "0");
}

#[test]
fn everything_inside_dies_with_the_sandbox() {
    let mut bench = Bench::start();
    let pid = bench.sandbox.pid().unwrap();
    bench.run(sh("setsid sleep 1000 & disown 2>/dev/null; true"));
    bench.sandbox.end().unwrap();
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    let gone = bench.sandbox.client().next(Some(Duration::from_secs(5)));
    assert!(
        matches!(gone, Err(ClientError::Gone)) || matches!(gone, Ok(Some(_))),
        "{gone:?}"
    );
}

#[test]
fn the_proof_fails_where_the_sandbox_does_not_hold() {
    let mut bench = Bench::start();
    // A canary that the agent can read: the proof must say so and refuse.
    bench
        .write("/workspace/canary", b"seen", WriteHow::Replace)
        .unwrap();
    let canary = std::path::Path::new("/workspace/canary");
    let error = bench.prove_with(canary).unwrap_err();
    assert!(error.to_string().contains("read_host_canary"), "{error}");
}

#[test]
fn two_streams_do_not_mix() {
    let mut bench = Bench::start();
    let a = bench.send(&Request::Exec(sh("for i in $(seq 500); do echo a; done")));
    let b = bench.send(&Request::Exec(sh("for i in $(seq 500); do echo b; done")));
    let (first, second) = (bench.finish(a), bench.finish(b));
    assert_eq!(first.stdout, b"a\n".repeat(500));
    assert_eq!(second.stdout, b"b\n".repeat(500));
    assert_eq!(
        Stream::Stdout.cmp(&Stream::Stderr),
        std::cmp::Ordering::Less
    );
}

/// As root the guest is somebody else than the agent; rootless it is not. Both are tested.
#[test]
fn everything_again_without_privileges() {
    again::as_nobody(module_path!(), again::SAME_LIMITS, &[]);
}

/// Each clone copies all descriptors: what one start waits for must not be held by another.
#[test]
fn sandboxes_start_at_the_same_time_in_one_process() {
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..6 {
                    let mut bench = Bench::start();
                    assert_eq!(bench.run(sh("echo alive")).stdout, b"alive\n");
                }
            });
        }
    });
}
