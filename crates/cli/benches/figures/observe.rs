//! What observation costs: builds, execs and a storm of processes, observed and not.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ringfence_engine::client::Message;
use ringfence_engine::evidence;
use ringfence_engine::journal::JournalFile;
use ringfence_engine::sandbox::Sandbox;
use ringfence_model::journal::Event;
use ringfence_model::wire::{Notice, Observation, Request};

use crate::place::{Place, command, copy_toolchain, toolchain};
use crate::sample::Samples;
use crate::table::{Against, Bound, Table, milliseconds};

/// BOUND: pairs of builds; each takes some seconds.
const PAIRS: usize = 15;
const FILES: usize = 50;
/// BOUND: execs that are timed together, and how often.
const EXECS: usize = 200;
const ROUNDS: usize = 25;
/// BOUND: short processes, of which no one may be missed.
const STORM: usize = 20_000;

pub fn measure(place: &Place, table: &mut Table) -> Result<()> {
    write_sources(&place.folder())?;
    let toolchain = toolchain();
    if let Some(toolchain) = &toolchain {
        copy_toolchain(toolchain, &place.folder().join("toolchain"))?;
    }
    let journal = place.root().join("observed.jsonl");
    let mut journal = JournalFile::create(&journal)?;
    let mut sides = Vec::new();
    for observation in [Observation::Off, Observation::Verified] {
        let layer = place.layer()?;
        let mut sandbox = place.start_observed(&layer, observation)?;
        place.prove(&mut sandbox)?;
        sides.push((sandbox, layer));
    }
    let mut builds = vec![(
        "make -j2",
        "cd c && make -s clean && make -s -j2 >/dev/null".to_owned(),
        PAIRS,
    )];
    if toolchain.is_some() {
        let build = "cd rust && rm -rf target && cargo build --offline -q 2>/dev/null";
        builds.push(("cargo build", build.to_owned(), PAIRS));
    } else {
        table.note("cargo build: not measured, there is no toolchain that can be read");
    }
    let execs = format!("i=0; while [ $i -lt {EXECS} ]; do /bin/true; i=$((i+1)); done");
    builds.push(("200 × /bin/true", execs, ROUNDS));
    for (name, script, pairs) in &builds {
        let bound = if name.starts_with("200") { 1.7 } else { 1.05 };
        let mut wall = [Vec::new(), Vec::new()];
        let mut cpu = [Vec::new(), Vec::new()];
        for round in 0..pairs + 1 {
            for (side, (sandbox, _)) in sides.iter_mut().enumerate() {
                let (time, used, _) = inside(sandbox, script, &mut journal)?;
                if round > 0 {
                    wall[side].push(time);
                    cpu[side].push(used);
                }
            }
        }
        for (what, [off, on]) in [("wall", wall), ("CPU", cpu)] {
            let (off, on) = (Samples::new(off), Samples::new(on));
            table.times(&format!("{name}, {what}, not observed"), &off);
            let against = Against {
                name: "not observed",
                samples: &off,
                bound: Bound::times(bound),
            };
            table.held(&format!("{name}, {what}"), &on, against);
        }
    }
    let storm = format!("i=0; while [ $i -lt {STORM} ]; do /bin/true; i=$((i+1)); done");
    let (time, _, seen) = inside(&mut sides[1].0, &storm, &mut journal)?;
    // The shell itself is one more.
    table.holds(
        &format!(
            "{STORM} processes in {:.0} ms: {} execs and {} exits seen",
            milliseconds(time),
            seen.execs - 1,
            seen.exits - 1
        ),
        seen.execs == STORM + 1 && seen.exits == STORM + 1,
    );
    for (mut sandbox, layer) in sides {
        sandbox.end()?;
        layer.remove()?;
    }
    Ok(())
}

#[derive(Default)]
struct Seen {
    execs: usize,
    exits: usize,
}

/// Runs a script inside, as a run does: what is observed goes to a journal. Gives its time, the
/// processor time of it and of pid 1, and what was seen.
fn inside(
    sandbox: &mut Sandbox,
    script: &str,
    journal: &mut JournalFile,
) -> Result<(Duration, Duration, Seen)> {
    let guest_before = guest_cpu(sandbox.pid().unwrap_or_default())?;
    let began = Instant::now();
    let client = sandbox.client();
    let env = [
        (
            "PATH",
            "/workspace/toolchain/bin:/usr/local/bin:/usr/bin:/bin",
        ),
        ("HOME", "/home/agent"),
    ];
    let asked = client.send(&Request::Exec(command(&["sh", "-c", script], &env)))?;
    let mut seen = Seen::default();
    let exited = loop {
        match client.next(None)? {
            Some(Message::Notice(_, Notice::Observed(observed))) => {
                let Ok(event) = evidence::event(observed) else {
                    continue;
                };
                match &event {
                    Event::Exec(_) => seen.execs += 1,
                    Event::Exit(_) => seen.exits += 1,
                    _ => {}
                }
                journal.append_observed(0, event)?;
            }
            Some(Message::Notice(stream, Notice::Exited(exited))) if stream == asked => {
                break exited;
            }
            _ => {}
        }
    };
    let time = began.elapsed();
    ensure!(exited.code == Some(0), "`{script}` ended with {exited:?}");
    let guest = guest_cpu(sandbox.pid().unwrap_or_default())?.saturating_sub(guest_before);
    Ok((time, Duration::from_millis(exited.cpu_ms) + guest, seen))
}

/// Processor time of pid 1, as the host counts it.
fn guest_cpu(pid: i32) -> Result<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat"))?;
    let nanoseconds = text.split(' ').next().context("a number")?.parse()?;
    Ok(Duration::from_nanos(nanoseconds))
}

/// Some work for a compiler: small files with a few functions and the usual headers.
fn write_sources(folder: &Path) -> Result<()> {
    let c = folder.join("c");
    fs::create_dir(&c)?;
    let mut makefile = String::from("CC = gcc\nCFLAGS = -O1\nOBJECTS =");
    for number in 0..FILES {
        makefile.push_str(&format!(" f{number}.o"));
    }
    makefile.push_str("\nall: $(OBJECTS)\n\t$(CC) -shared -o all.so $(OBJECTS)\nclean:\n\trm -f *.o all.so\n.PHONY: all clean\n");
    makefile = makefile.replace("CFLAGS = -O1", "CFLAGS = -O1 -fPIC");
    fs::write(c.join("Makefile"), makefile)?;
    for number in 0..FILES {
        let mut text =
            String::from("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n");
        for function in 0..6 {
            text.push_str(&format!(
                "int f{number}_{function}(int n, char *s) {{ int t = 0; for (int i = 0; i < n; i++) \
                 {{ t += s[i] * {function} + (int)strlen(s); if (t > 1000) printf(\"%d\\n\", t); }} return t; }}\n"
            ));
        }
        fs::write(c.join(format!("f{number}.c")), text)?;
    }
    let rust = folder.join("rust/src");
    fs::create_dir_all(&rust)?;
    fs::write(
        folder.join("rust/Cargo.toml"),
        "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2021\"\n",
    )?;
    let mut text = String::from("fn main() {\n");
    for number in 0..60 {
        text.push_str(&format!("    println!(\"{{}}\", f{number}({number}));\n"));
    }
    text.push_str("}\n");
    for number in 0..60 {
        text.push_str(&format!(
            "fn f{number}(n: u64) -> u64 {{ (0..n).map(|i| i * {number}).filter(|i| i % 3 == 0).sum() }}\n"
        ));
    }
    fs::write(rust.join("main.rs"), text)?;
    Ok(())
}
