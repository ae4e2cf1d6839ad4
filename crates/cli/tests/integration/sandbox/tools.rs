//! `ringfence sandbox fs`: each tool, and the paths that none of them takes.

use anyhow::{Result, ensure};
use serde_json::json;

use crate::sandbox::kit::{Kit, lasting, path};
use crate::support::{CANARY, Output};

fn fs(kit: &Kit<'_>, words: &[&str]) -> Result<String> {
    kit.done(&[&["sandbox", "fs"], words].concat())
}

fn with_input(kit: &Kit<'_>, words: &[&str], input: &[u8]) -> Result<Output> {
    let words = [&["sandbox", "fs"], words].concat();
    kit.env.call(kit.fixture).input(input).finish(&words)
}

#[test]
fn r17_each_tool_does_what_it_says() -> Result<()> {
    lasting("tools", |kit| {
        let id = &kit.create(&[])?;
        ensure!(fs(kit, &["read", id, "a.txt"])? == "one\ntwo\nthree\n");
        ensure!(fs(kit, &["read", id, "a.txt", "--lines", "2:3"])? == "two\nthree\n");
        ensure!(
            fs(
                kit,
                &["read", id, "a.txt", "--offset", "4", "--length", "3"]
            )? == "two"
        );
        with_input(kit, &["write", id, "x.bin"], b"\x00binary\xff")?.exits(0)?;
        ensure!(kit.sh(id, "od -An -c x.bin | tr -d ' '")? == "\\0binary377\n");
        with_input(
            kit,
            &["write", id, "w.sh", "--executable"],
            b"#!/bin/sh\necho ran\n",
        )?
        .exits(0)?;
        ensure!(kit.sh(id, "./w.sh")? == "ran\n");
        with_input(kit, &["write", id, "w.sh", "--create"], b"x")?.exits(2)?;
        with_input(kit, &["write", id, "w.sh", "--append"], b"echo more\n")?.exits(0)?;
        ensure!(kit.sh(id, "./w.sh")? == "ran\nmore\n");
        fs(kit, &["edit", id, "a.txt", "--old", "two", "--new", "-2-"])?;
        ensure!(kit.sh(id, "cat a.txt")? == "one\n-2-\nthree\n");
        kit.fails(
            2,
            "",
            &[
                "sandbox", "fs", "edit", id, "a.txt", "--old", "e", "--new", "E",
            ],
        )?;
        fs(
            kit,
            &["edit", id, "a.txt", "--old", "e", "--new", "E", "--all"],
        )?;
        ensure!(kit.sh(id, "cat a.txt")? == "onE\n-2-\nthrEE\n");

        let patch = b"--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n onE\n--2-\n+patched\n thrEE\n";
        with_input(kit, &["patch", id, "--dry-run"], patch)?.exits(0)?;
        ensure!(kit.sh(id, "cat a.txt")?.contains("-2-"));
        with_input(kit, &["patch", id], patch)?.exits(0)?;
        ensure!(kit.sh(id, "cat a.txt")? == "onE\npatched\nthrEE\n");
        with_input(kit, &["patch", id], patch)?.exits(2)?;
        ensure!(kit.sh(id, "cat a.txt")? == "onE\npatched\nthrEE\n");

        let listed = fs(kit, &["list", id, "--depth", "3"])?;
        ensure!(
            listed.contains("src/deep/x.c") && listed.contains("a.txt"),
            "{listed}"
        );
        let globbed = fs(kit, &["glob", id, "src/**/*.c"])?;
        ensure!(globbed == "src/deep/x.c\nsrc/main.c\n", "{globbed}");
        let found = fs(kit, &["search", id, "int +x", "-g", "*.c"])?;
        ensure!(found == "src/deep/x.c:1:int x;\n", "{found}");
        ensure!(fs(kit, &["search", id, "INT MAIN(", "-F", "-i"])?.contains("src/main.c:1:"));
        let stat = kit.json(&["sandbox", "fs", "stat", id, "src", "--json"])?;
        ensure!(stat.to_string().contains("directory"), "{stat}");
        fs(kit, &["mkdir", id, "made/deep"])?;
        fs(kit, &["mv", id, "w.sh", "made/deep/w.sh"])?;
        kit.fails(
            2,
            "error:",
            &["sandbox", "fs", "mv", id, "a.txt", "README.md"],
        )?;
        fs(kit, &["mv", "--overwrite", id, "a.txt", "README.md"])?;
        kit.fails(2, "error:", &["sandbox", "fs", "rm", id, "made"])?;
        fs(kit, &["rm", "-r", id, "made"])?;
        ensure!(!kit.sh(id, "ls")?.contains("made"));
        kit.fails(2, "error:", &["sandbox", "fs", "read", id, "a.txt"])?;

        let request = json!({ "path": "README.md" }).to_string();
        let called = with_input(kit, &["call", id, "read"], request.as_bytes())?;
        called.exits(0)?;
        ensure!(
            called
                .json
                .as_ref()
                .is_some_and(|json| json["ok"]["text"] == "onE\npatched\nthrEE\n"),
            "{called:?}"
        );
        let refused = with_input(kit, &["call", id, "read"], b"{\"path\": \"../etc/passwd\"}")?;
        refused.exits(3)?;
        ensure!(
            refused
                .json
                .as_ref()
                .is_some_and(|json| json["error"]["kind"] == "denied"),
            "{refused:?}"
        );
        with_input(kit, &["call", id, "read"], b"{\"pth\": 1}")?.exits(2)?;
        with_input(kit, &["call", id, "nothing"], b"{}")?.exits(2)?;
        with_input(kit, &["call", id, "read"], b"no json")?.exits(2)?;
        Ok(())
    })
}

#[test]
fn r17_no_path_leaves_the_workspace() -> Result<()> {
    lasting("escapes", |kit| {
        let id = &kit.create(&[])?;
        kit.sh(
            id,
            "ln -s /etc/passwd link; ln -s / root; ln -s ../home/agent up; echo mine > ~/mine; \
             mkfifo pipe; echo in > /tmp/in",
        )?;
        for name in [
            "/etc/passwd",
            "../etc/passwd",
            "src/../../etc/passwd",
            "link",
            "root/etc/passwd",
            "up/mine",
            "/tmp/in",
        ] {
            for verb in ["read", "stat", "rm"] {
                let output = kit.call(&["sandbox", "fs", verb, id, name])?;
                // Links are things of the workspace themselves.
                if name == "link" && verb != "read" {
                    continue;
                }
                output.exits(3)?;
                ensure!(
                    !output.stdout.contains("root:") && !output.stdout.contains("mine"),
                    "{}",
                    output.tail()
                );
            }
            if name != "link" {
                with_input(kit, &["write", id, name], b"x")?.exits(3)?;
                kit.call(&["sandbox", "fs", "mv", id, "a.txt", name])?
                    .exits(3)?;
                kit.call(&["sandbox", "fs", "mkdir", id, &format!("{name}/d")])?
                    .exits(3)?;
            }
        }
        let patch = b"--- a/../../tmp/in\n+++ b/../../tmp/in\n@@ -1 +1 @@\n-in\n+out\n";
        let patched = with_input(kit, &["patch", id], patch)?;
        ensure!(
            matches!(patched.status.code(), Some(2 | 3)),
            "{}",
            patched.tail()
        );
        ensure!(kit.sh(id, "cat /tmp/in ~/mine")? == "in\nmine\n");
        // Nobody waits for a pipe.
        kit.call(&["sandbox", "fs", "read", id, "pipe"])?.exits(2)?;
        let found = fs(kit, &["search", id, "root:"])?;
        ensure!(found.is_empty(), "{found}");
        let secret = path(&kit.env.secret);
        let output = kit.call(&["sandbox", "fs", "read", id, secret])?;
        output.exits(3)?;
        ensure!(!output.stdout.contains(CANARY));
        Ok(())
    })
}

/// Kills every tool that it meets, after it has tried to answer for it.
const FORGER: &str = r#"cat > /tmp/forge.py <<'END'
import os, time
open('/tmp/ready', 'w').close()
until = time.time() + 120
while time.time() < until:
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            if open(f'/proc/{pid}/comm').read() != 'ringfence-tools\n': continue
            os.kill(int(pid), 19)
            try:
                open(f'/proc/{pid}/fd/1', 'w').write('{"ok":{"forged":true}}\n')
                open('/tmp/forged', 'w').close()
            except OSError: pass
            os.kill(int(pid), 9)
        except OSError: pass
END
python3 /tmp/forge.py > /dev/null 2>&1 &
while [ ! -e /tmp/ready ]; do sleep 0.01; done"#;

#[test]
fn r17_a_tool_that_was_ended_has_answered_nothing() -> Result<()> {
    lasting("forged", |kit| {
        let id = &kit.create(&[])?;
        kit.sh(id, FORGER)?;
        let words = ["sandbox", "fs", "read", id, "a.txt"];
        // Some are quicker than the forger: those are whole.
        let ended = (0..50).try_fold(0, |ended, _| {
            let output = kit.call(&words)?;
            if output.status.success() {
                ensure!(output.stdout == "one\ntwo\nthree\n", "{}", output.tail());
                return Ok(ended);
            }
            let says = "was ended before it could answer";
            ensure!(output.stderr.contains(says), "{}", output.tail());
            output.exits(2)?;
            ensure!(output.stdout.is_empty(), "{}", output.tail());
            Ok(ended + 1)
        })?;
        ensure!(ended > 0, "no tool was met");
        kit.fails(
            1,
            "",
            &["sandbox", "exec", id, "--", "test", "-e", "/tmp/forged"],
        )?;
        Ok(())
    })
}
