//! A command and what comes of it: streams, exit, signals, time, what it leaves behind.

use std::fs;

use anyhow::{Context, Result, ensure};
use ringfence_model::hex;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::scene::{Scene, Seen};
use crate::support::{expect, said};

/// What the command printed, all of it.
fn whole(result: &Value, stream: &str) -> Result<Vec<u8>> {
    let path = result[stream]["file"]
        .as_str()
        .context("no file is named")?;
    Ok(fs::read(path)?)
}

pub fn streams(scene: &Scene<'_>) -> Result<Seen> {
    let shell = "echo out; echo err >&2; printf 'a\\000\\377\\n' ; printf '\\200' >&2";
    let result = scene.run(&[], shell)?;
    ensure!(whole(&result, "stdout")? == b"out\na\0\xff\n", "{result}");
    ensure!(whole(&result, "stderr")? == b"err\n\x80", "{result}");
    Ok(Seen::Held)
}

/// What a shell exits with in bulk, and how `run` itself exits for some.
pub fn codes(scene: &Scene<'_>) -> Result<Seen> {
    let shell = "for code in $(seq 0 15 255); do sh -c \"exit $code\"; test $? = $code || echo $code; done; exit 42";
    let result = scene.run(&[], shell)?;
    ensure!(said(&result).is_empty(), "other codes: {}", said(&result));
    expect(&result, "exit_code", 42)?;
    for code in [127, 255] {
        let line = format!("exit {code}");
        let words = scene.options(&["--pass-exit-code", "--", "sh", "-c", &line]);
        let words = [&["run"], &words[..]].concat();
        scene.call().finish(&words)?.exits(code)?;
    }
    Ok(Seen::Held)
}

pub fn signals(scene: &Scene<'_>) -> Result<Seen> {
    for (name, number) in [("KILL", 9), ("TERM", 15), ("SEGV", 11)] {
        let result = scene.run(&[], &format!("kill -{name} $$"))?;
        expect(&result, "signal", number)?;
        expect(&result, "exit_code", Value::Null)?;
        expect(&result, "outcome", "signaled")?;
    }
    Ok(Seen::Held)
}

/// Who is still there when the command ends is named, and is gone.
pub fn background(scene: &Scene<'_>) -> Result<Seen> {
    let result = scene.run(&[], "(setsid sleep 1000 &); sleep 1000 & echo done")?;
    expect(&result, "status", "done")?;
    let left = result["leftovers"].to_string();
    ensure!(left.contains("sleep"), "not named: {left}");
    Ok(Seen::Held)
}

pub fn input(scene: &Scene<'_>) -> Result<Seen> {
    let mark = format!("{}\0\u{fffd}", "x".repeat(100_000));
    let words = scene.options(&["--json", "--", "sh", "-c", "sha256sum; cat; echo end"]);
    let words = [&["run"], &words[..]].concat();
    let output = scene.call().input(mark.as_bytes()).finish(&words)?;
    let result = output.json.context("no result")?;
    let expected = format!("{}  -\nend\n", hex(&Sha256::digest(mark.as_bytes())));
    ensure!(said(&result) == expected, "{}", said(&result));
    Ok(Seen::Held)
}

/// `python3` gives it a terminal, and keeps another open, so that numbers differ.
pub const TERMINAL: [&str; 3] = [
    "python3",
    "-c",
    "import os,pty,sys,fcntl,termios,struct
kept=pty.openpty()
pid,fd=pty.fork()
if pid==0: os.execvp(sys.argv[1],sys.argv[1:])
fcntl.ioctl(fd,termios.TIOCSWINSZ,struct.pack('HHHH',37,91,0,0))
os.write(1,b'')
while True:
    try: data=os.read(fd,4096)
    except OSError: break
    if not data: break
    os.write(1,data)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid,0)[1]))",
];

/// A terminal of its own, of the caller's size.
pub fn terminal(scene: &Scene<'_>) -> Result<Seen> {
    let shell =
        "test -t 0 && test -t 1 && test -t 2 && echo ON-$(tty) SIZE-$(stty size | tr ' ' x)";
    let words = scene.options(&["--", "sh", "-c", shell]);
    let words = [&["run"], &words[..]].concat();
    let output = scene.call().within(&TERMINAL).finish(&words)?;
    let is_there = output.stdout.contains("ON-/dev/") && output.stdout.contains("SIZE-37x91");
    ensure!(is_there, "{}", output.tail());
    Ok(Seen::Held)
}

pub fn large_output(scene: &Scene<'_>) -> Result<Seen> {
    let shell = "head -c 52428800 /dev/urandom > /tmp/b; sha256sum < /tmp/b >&2; cat /tmp/b";
    let result = scene.run(&["--output", "200M"], shell)?;
    expect(&result, "outcome", "exited")?;
    let out = whole(&result, "stdout")?;
    ensure!(out.len() == 52_428_800, "{} bytes", out.len());
    let told = String::from_utf8(whole(&result, "stderr")?)?;
    ensure!(
        told.starts_with(&hex(&Sha256::digest(&out))),
        "other bytes: {told}"
    );
    Ok(Seen::Held)
}

/// A thousand programs, each of them recorded.
pub fn thousand(scene: &Scene<'_>) -> Result<Seen> {
    let shell = "i=0; while test $i -lt 1000; do /bin/true $i; i=$((i + 1)); done";
    let result = scene.run(&[], shell)?;
    expect(&result, "status", "done")?;
    let observed = &result["observed"];
    ensure!(observed["execs"] == 1001, "{observed}");
    ensure!(observed["unverified"] == 0, "{observed}");
    expect(&result["evidence"], "complete", true)?;
    Ok(Seen::Held)
}
