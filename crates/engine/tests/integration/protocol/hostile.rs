//! An agent against what bounds it: it kills wardens, wakes what stands still, forges answers.

use std::time::{Duration, Instant};

use ringfence_engine::client::{ClientError, Message};
use ringfence_model::wire::{Bound, Exec, Leftovers, Notice, Reply, Request, SignalScope, Stdin};

use crate::shared::guest_bench::{Bench, exec, sh};

/// BOUND: what is to happen within milliseconds has this long on a busy machine.
const SOON: Duration = Duration::from_secs(60);

fn python(program: &str) -> Exec {
    exec(&["python3", "-c", program])
}

fn processes(bench: &mut Bench) -> u64 {
    match bench.call(&Request::Usage).unwrap() {
        Reply::Usage(usage) => usage.processes,
        other => panic!("{other:?}"),
    }
}

/// Waits until only the guest is left, or this many processes.
fn wait_until_left(bench: &mut Bench, most: u64) {
    let began = Instant::now();
    while processes(bench) > most {
        assert!(began.elapsed() < SOON, "{} are left", processes(bench));
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn content(bench: &mut Bench, name: &str) -> Vec<u8> {
    let path = format!("/workspace/{name}");
    bench.read(&path, 0, 1 << 20).unwrap_or_default()
}

/// Waits until a file says something else than this.
fn wait_for_change(bench: &mut Bench, name: &str, from: &[u8]) -> Vec<u8> {
    let began = Instant::now();
    loop {
        let now = content(bench, name);
        if !now.is_empty() && now != from {
            return now;
        }
        assert!(began.elapsed() < SOON, "`{name}` does not change");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn thaw(bench: &mut Bench) -> u64 {
    match bench.call(&Request::Thaw).unwrap() {
        Reply::Thawed { ran } => ran,
        other => panic!("{other:?}"),
    }
}

fn end(bench: &mut Bench, stream: u32) {
    let kill = Request::Signal {
        exec: stream,
        signal: 9,
        scope: SignalScope::All,
    };
    assert_eq!(bench.call(&kill).unwrap(), Reply::Done);
    bench.wait_for(|m| matches!(m, Message::Notice(s, Notice::Gone) if *s == stream));
}

/// What an agent leaves behind when it has killed its warden, where it can.
const WAYS_OUT: [&str; 4] = [
    // The plain one.
    "kill -9 $PPID; exec sleep 1000",
    // Sessions of their own, and one that is stopped.
    "setsid sleep 1000 & setsid sleep 1001 & sleep 1002 & kill -STOP $!; kill -9 $PPID; wait",
    // Nobody is ever there when the signal comes: each forks the next and ends.
    "kill -9 $PPID; exec python3 -c 'import os\nwhile True:\n if os.fork(): os._exit(0)'",
    // Many that start each other.
    "b() { for i in 1 2 3; do (sleep 0.01; b) & done; wait; }; kill -9 $PPID; b",
];

#[test]
fn who_kills_its_warden_dies_with_it() {
    for way in WAYS_OUT {
        let mut bench = Bench::start();
        let server = bench.run(sh("setsid sleep 1003 >/dev/null 2>&1 & echo up"));
        let mut asked = sh(way);
        // Where the warden is somebody else, the agent fails and is ended in time.
        asked.timeout_ms = Some(1_000);
        asked.leftovers = Leftovers::Kill;
        let done = bench.run(asked);
        let killed = done.exited.signal == Some(9) && done.exited.bound.is_none();
        let is_root = rustix::process::geteuid().is_root();
        assert_ne!(killed, is_root, "{way}: {:?}", done.exited);
        bench.wait_for(|m| matches!(m, Message::Notice(s, Notice::Gone) if *s == done.stream));
        // The guest, and the server with its warden: nothing of theirs was touched.
        wait_until_left(&mut bench, 3);
        assert_eq!(processes(&mut bench), 3, "{way}");
        let state = bench.run(sh("grep -h '^State' $(grep -l sleep /proc/[0-9]*/status)"));
        let state = String::from_utf8_lossy(&state.stdout).into_owned();
        assert!(state.contains("S (sleeping)"), "{way}: {state}");
        end(&mut bench, server.stream);
    }
}

/// Each process starts two more and ends, whatever is refused.
const STORM: &str = "import os\n\
    def start():\n\
    \x20try: return os.fork() == 0\n\
    \x20except OSError: return False\n\
    def storm():\n\
    \x20while start() or start(): pass\n\
    \x20os._exit(0)\n\
    while True:\n\
    \x20if start(): storm()\n\
    \x20try: os.waitpid(-1, os.WNOHANG)\n\
    \x20except OSError: pass";

#[test]
fn a_storm_ends_its_own_command_only() {
    let mut bench = Bench::start();
    let server = bench.run(sh("setsid sleep 1003 >/dev/null 2>&1 & echo up"));
    let beside = bench.send(&Request::Exec(sh(STOPPED)));
    let stopped = wait_for_change(&mut bench, "stopped", b"");
    let done = bench.run(python(STORM));
    assert_eq!(done.exited.bound, Some(Bound::Processes));
    bench.wait_for(|m| matches!(m, Message::Notice(s, Notice::Gone) if *s == done.stream));
    // The guest, the server with its warden, and a shell with its warden and what it stopped.
    wait_until_left(&mut bench, 6);
    assert_eq!(processes(&mut bench), 6);
    assert_is_stopped(&mut bench, &stopped);
    end(&mut bench, server.stream);
    end(&mut bench, beside);
    wait_until_left(&mut bench, 1);
}

/// Says whom it stopped, and waits for it.
const STOPPED: &str =
    // On a busy host it is a while until it has stopped.
    "sleep 1000 & kill -STOP $!; until grep -q 'State:.T' /proc/$!/status; do :; done; \
     echo $! > stopped; wait";

fn assert_is_stopped(bench: &mut Bench, pid: &[u8]) {
    let pid = String::from_utf8_lossy(pid).trim().to_owned();
    let state = bench.run(sh(&format!("grep State /proc/{pid}/status")));
    let state = String::from_utf8_lossy(&state.stdout).into_owned();
    assert!(state.contains("T (stopped)"), "{state}");
}

#[test]
fn a_warden_killed_when_its_command_is_over_leaves_nothing() {
    let mut bench = Bench::start();
    let first = bench.run(sh("setsid sleep 1000 & echo $PPID"));
    assert_eq!(first.exited.leftovers.len(), 1);
    let warden = String::from_utf8_lossy(&first.stdout).trim().to_owned();
    let done = bench.run(sh(&format!("kill -9 {warden}")));
    if done.exited.code == Some(0) {
        bench.wait_for(|m| matches!(m, Message::Notice(s, Notice::Gone) if *s == first.stream));
    } else {
        end(&mut bench, first.stream);
    }
    wait_until_left(&mut bench, 1);
}

#[test]
fn a_daemon_outlives_its_command_and_other_wardens() {
    let mut bench = Bench::start();
    let daemon = "import os, time\n\
        if os.fork(): os._exit(0)\n\
        os.setsid()\n\
        if os.fork(): os._exit(0)\n\
        n = 0\n\
        while True:\n n += 1; open('beat', 'w').write(str(n)); time.sleep(0.01)";
    let mut asked = python(daemon);
    asked.leftovers = Leftovers::Keep;
    let first = bench.run(asked);
    for _ in 0..3 {
        bench.run(sh("kill -9 $PPID; sleep 0.05"));
        let seen = wait_for_change(&mut bench, "beat", b"");
        wait_for_change(&mut bench, "beat", &seen);
    }
    end(&mut bench, first.stream);
    wait_until_left(&mut bench, 1);
}

/// Two threads and two processes that write all the time.
const BUSY: &str = "import os, threading\n\
    def work(name):\n\
    \x20n = 0\n\
    \x20while True:\n\
    \x20 n += 1\n\
    \x20 with open(name, 'w') as f: f.write(str(n))\n\
    os.fork()\n\
    threading.Thread(target=work, args=('a%d' % os.getpid(),)).start()\n\
    work('busy')";

#[test]
fn what_is_well_behaved_stands_still_and_goes_on() {
    let mut bench = Bench::start();
    let stream = bench.send(&Request::Exec(python(BUSY)));
    let sleeper = bench.send(&Request::Exec(sh(STOPPED)));
    wait_for_change(&mut bench, "busy", b"");
    let stopped = wait_for_change(&mut bench, "stopped", b"");
    for _ in 0..3 {
        assert_eq!(bench.call(&Request::Freeze).unwrap(), Reply::Done);
        let seen = content(&mut bench, "busy");
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(300) {
            assert_eq!(content(&mut bench, "busy"), seen);
        }
        // Nothing is started meanwhile.
        let refused = bench.call(&Request::Exec(sh("true")));
        assert!(
            matches!(&refused, Err(ClientError::Failed(f)) if f.errno == 11 && f.reason == "frozen"),
            "{refused:?}"
        );
        assert_eq!(thaw(&mut bench), 0);
        wait_for_change(&mut bench, "busy", &seen);
    }
    assert_is_stopped(&mut bench, &stopped);
    end(&mut bench, stream);
    end(&mut bench, sleeper);
    wait_until_left(&mut bench, 1);
}

#[test]
fn a_crowd_that_begins_stands_still_and_goes_on() {
    let mut bench = Bench::start();
    let crowd = "for i in $(seq 300); do (echo $i >> began; exec sleep 1000) & done; wait";
    let stream = bench.send(&Request::Exec(sh(crowd)));
    // Most of them are there, and some have not begun.
    let began = Instant::now();
    while processes(&mut bench) < 250 {
        assert!(began.elapsed() < SOON, "there is no crowd");
    }
    assert_eq!(bench.call(&Request::Freeze).unwrap(), Reply::Done);
    assert_eq!(thaw(&mut bench), 0);
    let count = |bytes: Vec<u8>| bytes.iter().filter(|&&byte| byte == b'\n').count();
    while count(content(&mut bench, "began")) < 300 {
        assert!(began.elapsed() < SOON, "some never begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    end(&mut bench, stream);
    wait_until_left(&mut bench, 1);
}

/// Wakes itself by timers of the kernel, and counts. A signal that waits to be taken is dropped with the stop, and
/// its timer does not come again: so there are slow ones as well.
const WAKER: &str = "import ctypes, signal\n\
    signal.signal(signal.SIGCONT, lambda *_: None)\n\
    libc = ctypes.CDLL(None, use_errno=True)\n\
    class Event(ctypes.Structure):\n\
    \x20_fields_ = [('value', ctypes.c_void_p), ('signo', ctypes.c_int), ('notify', ctypes.c_int), ('pad', ctypes.c_byte * 48)]\n\
    for interval in ((0, 40000000), (1, 300000000), (3, 0)):\n\
    \x20timer = ctypes.c_void_p()\n\
    \x20event = Event(None, 18, 0)\n\
    \x20assert libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer)) == 0\n\
    \x20every = (ctypes.c_long * 4)(*interval, *interval)\n\
    \x20assert libc.timer_settime(timer, 0, every, None) == 0\n\
    n = 0\n\
    while True:\n\
    \x20n += 1\n\
    \x20with open('woken', 'w') as f: f.write(str(n))";

#[test]
fn what_wakes_itself_is_told_of() {
    let mut bench = Bench::start();
    let stream = bench.send(&Request::Exec(python(WAKER)));
    wait_for_change(&mut bench, "woken", b"");
    assert_eq!(bench.call(&Request::Freeze).unwrap(), Reply::Done);
    let seen = content(&mut bench, "woken");
    wait_for_change(&mut bench, "woken", &seen);
    assert!(thaw(&mut bench) > 0);
    end(&mut bench, stream);
    wait_until_left(&mut bench, 1);
    // Once it is gone there is nothing to tell.
    assert_eq!(bench.call(&Request::Freeze).unwrap(), Reply::Done);
    assert_eq!(thaw(&mut bench), 0);
}

#[test]
fn a_timeout_holds_while_everything_stands_still() {
    let mut bench = Bench::start();
    let mut asked = sh("echo ready; while :; do sleep 0.01; done");
    asked.timeout_ms = Some(500);
    let stream = bench.send(&Request::Exec(asked));
    bench.read_until(stream, b"ready");
    assert_eq!(bench.call(&Request::Freeze).unwrap(), Reply::Done);
    bench.wait_for(|m| {
        matches!(m, Message::Notice(s, Notice::Bound { bound: Bound::Time, .. }) if *s == stream)
    });
    thaw(&mut bench);
    let done = bench.finish(stream);
    assert_eq!(done.exited.bound, Some(Bound::Time));
    wait_until_left(&mut bench, 1);
}

#[test]
fn nobody_inside_can_answer_for_a_tool() {
    let mut bench = Bench::with_tools();
    let mut tool = exec(&["/.ringfence/tools/ringfence-tools", "/workspace", "list"]);
    tool.stdin = Stdin::Frames;
    let stream = bench.send(&Request::Exec(tool));
    let forge = "for i in $(seq 1000); do \
        for p in /proc/[0-9]*; do \
        case $(tr '\\0' ' ' < $p/cmdline 2>/dev/null; cat $p/comm 2>/dev/null) in \
        *ringfence-tools|*ringfence-tool) \
        ls $p/fd && echo open; echo forged > $p/fd/1 && echo written; \
        cat $p/environ && echo read; exit 0;; esac; done; done; exit 9";
    let done = bench.run(sh(forge));
    assert_eq!(done.exited.code, Some(0), "the tool was not found");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "");
    // The program cannot be read, so there is no instant in which its process could be.
    let done = bench.run(sh("cat /.ringfence/tools/ringfence-tools | wc -c"));
    assert_eq!(String::from_utf8_lossy(&done.stdout).trim(), "0");
    let client = bench.sandbox.client();
    client.input(stream, b"{}").unwrap();
    client.end_input(stream).unwrap();
    let done = bench.finish(stream);
    assert!(done.stdout.starts_with(b"{\""), "{:?}", done.stdout);
}
