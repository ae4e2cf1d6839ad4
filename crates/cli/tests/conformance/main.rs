//! One contract, proven on every backend: one list of cases, tried wherever a backend is there, and the
//! table of what was seen compared with the one in `docs/backends.md`.
//!
//! `RINGFENCE_WRITE_MATRIX=1` writes the table. A backend that is not there is told and its column is
//! left as it was.

#![allow(
    clippy::print_stdout,
    reason = "tables and skipped backends are read by scripts/test and people"
)]

#[path = "../support/cases.rs"]
#[allow(dead_code, reason = "each test program uses its own part")]
mod cases;
mod columns;
#[path = "../support/controls.rs"]
#[allow(dead_code, reason = "each test program uses its own part")]
mod controls;
#[path = "../support/double.rs"]
#[allow(dead_code, reason = "each test program uses its own part")]
mod double;
#[path = "../support/engine.rs"]
#[allow(dead_code, reason = "each test program uses its own part")]
mod engine;
mod evidence;
mod exec;
mod files;
mod isolation;
mod lasting;
mod lifecycle;
mod limits;
mod matrix;
mod network;
mod peers;
mod rows;
mod scene;
#[path = "../support/sandboxed.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "each test program uses its own part"
)]
mod support;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use columns::{COLUMNS, Column, Engines, SHORT_FORM};
use engine::{Absent, Engine};
use matrix::{Document, Table};
use peers::Peer;
use rows::{ROWS, Row};
use scene::{Log, Scene, Seen, Shared};
use support::{Fixture, Sandboxed};

/// BOUND: the cores of a small machine, and two that wait for an engine.
const WORKERS: usize = 4;
/// Writes the tables instead of comparing them.
const WRITE: &str = "RINGFENCE_WRITE_MATRIX";
/// Asks for the long form: all columns, and the same of other tools. `scripts/test --conformance` sets it.
const LONG_FORM: &str = "RINGFENCE_CONFORMANCE_LONG";

#[test]
fn r13_r52_every_backend_keeps_the_contract() -> Result<()> {
    let unheard = isolation::unheard()?;
    ensure!(unheard.is_empty(), "attacks of no area: {unheard:?}");
    for name in SHORT_FORM {
        ensure!(
            COLUMNS.iter().any(|column| column.name == *name),
            "no column `{name}`"
        );
    }
    let env = Sandboxed::start(env!("CARGO_BIN_EXE_ringfence"))?;
    let log = Log::start()?;
    let engines = Engines::start();
    for engine in [&engines.docker, &engines.podman] {
        if let Err(error) = engine
            && !error.is::<Absent>()
        {
            bail!("an engine that is installed does not start: {error:#}");
        }
    }
    let present = present(&engines);
    let shared = Shared::default();
    let attacks: BTreeMap<&str, scene::Attacks> = present
        .iter()
        .map(|column| (column.name, Mutex::default()))
        .collect();
    let mut jobs: Vec<(&Row, &Column)> = wanted()
        .flat_map(|row| present.iter().map(move |column| (row, *column)))
        .collect();
    jobs.sort_by_key(|(row, column)| start_order(row, column));
    let seen = Mutex::new(BTreeMap::new());
    let look = |(row, column): &(&Row, &Column)| {
        let began = Instant::now();
        let told = tried(
            row,
            column,
            |fixture| Scene {
                env: &env,
                column,
                engine: engines.of(column.needs).and_then(std::result::Result::ok),
                fixture,
                shared: &shared,
                attacks: &attacks[column.name],
                log: &log,
            },
            &env,
        );
        let took = began.elapsed().as_secs_f32();
        let (title, name) = (row.title, column.name);
        log.tell(&format!(
            "{name}: {}: {title}: {} ({took:.1} s)",
            row.area,
            told.line()
        ));
        let mut seen = seen.lock().expect("no worker panics");
        seen.insert((row.area, title, name), told);
    };
    in_parallel(&jobs, look);
    let seen = seen.into_inner().expect("no worker panics");
    for engine in [&engines.docker, &engines.podman].into_iter().flatten() {
        // An engine that was told to remove something takes a moment.
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let left = engine.ours()?;
            let volumes = engine.docker(&["volume", "ls", "--quiet"])?;
            if left.is_empty() && volumes.is_empty() {
                break;
            }
            if Instant::now() > deadline {
                let all = engine.docker(&["ps", "--all", "--no-trunc"])?;
                bail!("containers {left:?} and volumes {volumes:?} are left:\n{all}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    let mut table = Table::default();
    for (row, column) in &jobs {
        let told = &seen[&(row.area, row.title, column.name)];
        table.set((row.area, row.title), column.name, told.cell());
        table.explain((row.area, row.title), column.name, told.line());
    }
    let compared = settle("matrix", "", &table);
    let beside = match &engines.docker {
        Ok(engine) if is_long() => beside(&env, engine, &table, &log),
        _ => Ok(Table::default()),
    };
    // Both are told: one that differs hides nothing of the other.
    match (compared, beside) {
        (Err(one), Err(other)) => Err(anyhow::anyhow!("{one:#}\n{other:#}")),
        (Err(one), _) | (_, Err(one)) => Err(one),
        (Ok(()), Ok(peers)) => {
            for (name, table) in [("matrix", table), ("peers", peers)] {
                println!("{}", table.markdown());
                println!("conformance: {name} {}", table.json());
            }
            Ok(())
        }
    }
}

/// The same of others, beside ours. What they do depends on their versions: their table is compared
/// where these are the ones that it names.
fn beside(env: &Sandboxed, engine: &Engine, ours: &Table, log: &Log) -> Result<Table> {
    let mut table = Table::default();
    let mut versions = Vec::new();
    let document = Document::read("peers")?;
    for peer in Peer::ALL {
        match peer.version(engine) {
            Err(why) => println!("SKIPPED conformance {}: {why:#}", peer.name()),
            Ok(version) => {
                versions.push(version);
                let seen = peers::tried(env, engine, peer, log);
                for (area, title, seen) in seen {
                    for column in ["native", "docker"] {
                        if let Some(cell) = ours.get(&area, &title, column) {
                            table.set((&area, &title), &format!("`ringfence`, {column}"), cell);
                        }
                    }
                    table.set((&area, &title), peer.name(), seen.cell());
                    table.explain((&area, &title), peer.name(), seen.line());
                }
            }
        }
    }
    let head = format!("Seen with {}.", versions.join(" and "));
    if document.head() != head && std::env::var_os(WRITE).is_none() {
        println!("SKIPPED conformance peers: docs/backends.md has other versions. {head}");
    } else {
        settle("peers", &head, &table)?;
    }
    Ok(table)
}

/// Rows that are tried: all, or those whose area or title has the word of a variable, for whoever works
/// on one of them.
fn wanted() -> impl Iterator<Item = &'static Row> {
    let word = std::env::var("RINGFENCE_ROWS").unwrap_or_default();
    ROWS.iter()
        .filter(move |row| format!("{} {}", row.area, row.title).contains(&word))
}

/// Whether all columns are tried; a table is only written with all of them.
fn is_long() -> bool {
    [LONG_FORM, WRITE]
        .iter()
        .any(|name| std::env::var_os(name).is_some())
}

/// Backends that are there, all or those whose column has the word of a variable. The others are told.
fn present(engines: &Engines) -> Vec<&'static Column> {
    let mut present = Vec::new();
    let word = std::env::var("RINGFENCE_COLUMNS").unwrap_or_default();
    let is_wanted = |column: &&Column| match word.as_str() {
        "" => is_long() || SHORT_FORM.contains(&column.name),
        word => column.name.contains(word),
    };
    for column in COLUMNS.iter().filter(is_wanted) {
        match column.absent(engines) {
            None => present.push(column),
            Some(why) => println!("SKIPPED conformance {}: {why}", column.name),
        }
    }
    present
}

fn tried<'a>(
    row: &Row,
    column: &Column,
    scene: impl Fn(Fixture) -> Scene<'a>,
    env: &Sandboxed,
) -> Seen {
    let number = ROWS
        .iter()
        .position(|one| (one.area, one.title) == (row.area, row.title));
    let place = format!("row{}-{}", number.unwrap_or_default(), column.place());
    let tried = || {
        let scene = scene(env.fixture(&place, column.mode)?);
        let seen = (row.check)(&scene);
        scene.clear()?;
        let seen = seen.and_then(|seen| {
            scene.nothing_left()?;
            Ok(seen)
        });
        env.discard(&scene.fixture);
        seen
    };
    tried().unwrap_or_else(|error| Seen::Not(format!("{error:#}")))
}

/// Compares a table with the one that is checked in, or writes it.
fn settle(name: &str, head: &str, table: &Table) -> Result<()> {
    let document = Document::read(name)?;
    let some_rows = std::env::var_os("RINGFENCE_ROWS");
    if std::env::var_os(WRITE).is_some() {
        ensure!(some_rows.is_none(), "a table is written with all its rows");
        return document.write(head, table);
    }
    let found = match some_rows {
        Some(_) => Vec::new(),
        None => table.differences(&document.table()),
    };
    ensure!(
        found.is_empty(),
        "docs/backends.md is not what was seen; {WRITE}=1 writes it:\n{}",
        found.join("\n")
    );
    Ok(())
}

/// Long jobs start first, so that none is left to run alone at the end. The first area of attacks at a column runs
/// those of all areas (two minutes at gVisor), and the other areas only wait for it: they come last.
fn start_order(row: &Row, column: &Column) -> u8 {
    let is_first_area = row.title == isolation::AREAS[0].0;
    match row.area {
        "attacks" if is_first_area && column.name.contains("gvisor") => 0,
        "attacks" if is_first_area => 1,
        "attacks" => 3,
        _ => 2,
    }
}

fn in_parallel<T: Sync>(jobs: &[T], look: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    look(job);
                }
            });
        }
    });
}
