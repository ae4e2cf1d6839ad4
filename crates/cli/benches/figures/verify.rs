//! A journal of 100,000 events: what it takes on the disk, and how long its check takes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ringfence_engine::audit::{at_path, follow};
use ringfence_engine::home::Home;
use ringfence_engine::journal::JournalFile;
use ringfence_model::journal::Event;
use ringfence_model::observed::{Exec, ExecFailed, Exit, Program, Write, Wrote};
use ringfence_model::outcome::RunStatus;

use crate::place::{Place, outside};
use crate::sample::{Contender, in_turn};
use crate::table::Table;

const EVENTS: u64 = 100_000;
const ROUNDS: usize = 15;
/// What the issue allows, by the clock of the machine that it is measured on.
const BOUND: Duration = Duration::from_secs(2);

pub fn measure(place: &Place, table: &mut Table) -> Result<()> {
    let journal = written(&place.beside("journal")?.join("audit.jsonl"))?;
    let bytes = std::fs::metadata(&journal)?.len();
    let text = journal.to_str().context("not text")?;
    let home = Home::open(Some(place.root().join("home-verify")))?;
    let mut verify = place.program_at(&home, &["audit", "verify", text]);
    let mut show = place.program_at(&home, &["audit", text, "--tree"]);
    let mut contenders = [
        Contender::new("in process", || {
            let found = at_path(&journal)?;
            let followed = follow(&found.journals[0], drop)?;
            ensure!(followed.fault.is_none() && followed.lines == EVENTS);
            Ok(())
        }),
        Contender::new("ringfence audit verify", || outside(&mut verify)),
        Contender::new("ringfence audit --tree", || outside(&mut show)),
    ];
    let times = in_turn(ROUNDS, &mut contenders)?;
    for (contender, times) in contenders.iter().zip(&times) {
        table.times(&contender.name, times);
    }
    table.holds(
        &format!("`audit verify` of {EVENTS} events in less than {BOUND:?}"),
        times[1].median() < BOUND,
    );
    table.note(&format!(
        "{bytes} bytes, {} for each event",
        bytes.div_ceil(EVENTS)
    ));
    Ok(())
}

/// A journal as a large build leaves it: each program tried in vain once, started, ended, and with
/// two files written.
fn written(path: &Path) -> Result<PathBuf> {
    let mut journal = JournalFile::create(path)?;
    let began_us = 1_800_000_000_000_000;
    for number in 0..EVENTS - 1 {
        let time_us = began_us + number as i64 * 731;
        journal.append_observed(time_us, event(number))?;
    }
    journal.append(Event::End {
        status: RunStatus::Done,
    })?;
    journal.sync()?;
    Ok(path.to_owned())
}

fn event(number: u64) -> Event {
    let exec = number / 5 + 1;
    let pid = 1000 + exec as i32;
    let source = format!("src/module_{}/part_{exec}.c", exec % 40);
    let object = source.replace(".c", ".o");
    let argv = [
        "gcc",
        "-O2",
        "-Wall",
        "-Iinclude",
        "-c",
        "-o",
        &object,
        &source,
    ];
    let argv = argv.map(Into::into).to_vec();
    let cwd = "/workspace".into();
    match number % 5 {
        0 if number.is_multiple_of(500) => Event::Program(Program {
            program: (number / 500) as u32 + 1,
            path: "/usr/bin/x86_64-linux-gnu-gcc-12".into(),
            size: 1_014_784,
            sha256: Some("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08".into()),
        }),
        0 => Event::ExecFailed(ExecFailed {
            by: Some(exec.saturating_sub(1).max(1)),
            pid,
            asked: "/usr/local/bin/gcc".into(),
            argv,
            argv_cut: None,
            cwd,
            errno: 2,
        }),
        1 => Event::Exec(Exec {
            exec,
            pid,
            started: 7_000_000 + number,
            parent: (exec > 1).then_some(exec / 8 + 1).filter(|&by| by < exec),
            parent_pid: 1000,
            replaces: None,
            program: 1,
            exe: "/usr/bin/x86_64-linux-gnu-gcc-12".into(),
            asked: Some("/usr/bin/gcc".into()),
            argv,
            argv_cut: None,
            cwd,
            verified: true,
        }),
        2 => Event::Write(Write {
            exec: Some(exec),
            pid,
            path: object.as_str().into(),
            what: Wrote::Created,
        }),
        3 => Event::Write(Write {
            exec: Some(exec),
            pid,
            path: object.as_str().into(),
            what: Wrote::Renamed {
                from: source.as_str().into(),
            },
        }),
        _ => Event::Exit(Exit {
            exec,
            code: Some(0),
            signal: None,
            duration_us: 31_742,
            cpu_us: Some(28_331),
        }),
    }
}
