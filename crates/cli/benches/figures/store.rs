//! A store with many runs: what is listed and shown takes no longer.

use std::fs;

use anyhow::{Context as _, Result};
use ringfence_engine::home::Home;
use ringfence_engine::ids::RunId;
use ringfence_engine::lock::RunLock;
use ringfence_engine::store::{Driver, NewRun, RunFilter, Store};
use ringfence_model::ByteText;
use ringfence_model::outcome::RunStatus;

use crate::place::{Place, outside};
use crate::sample::{Contender, in_turn};
use crate::table::{Against, Bound, Table};

const FEW: usize = 100;
const MANY: usize = 100_000;
const ROUNDS: usize = 60;
const BOUND: Bound = Bound::times(2.0);

pub fn measure(place: &Place, table: &mut Table) -> Result<()> {
    let [few, many] = [filled(place, FEW)?, filled(place, MANY)?];
    for (name, words) in [
        ("ringfence list", &["list"][..]),
        ("ringfence status", &["status"]),
    ] {
        let command = |home: &Home| {
            let mut command = place.program_at(home, words);
            move || outside(&mut command)
        };
        compare(table, name, command(&few), command(&many))?;
    }
    let list = |home: &Home, filter: RunFilter| -> Result<_> {
        let store = Store::open(home)?;
        Ok(move || {
            store.runs(filter, 20)?;
            Ok(())
        })
    };
    let all = RunFilter::default();
    compare(table, "the newest 20", list(&few, all)?, list(&many, all)?)?;
    let running = RunFilter {
        status: Some(RunStatus::Running),
        ..RunFilter::default()
    };
    let (of_few, of_many) = (list(&few, running)?, list(&many, running)?);
    compare(table, "those that run", of_few, of_many)?;
    let open = |home: &Home| {
        let home = home.clone();
        move || {
            Store::open(&home)?;
            Ok(())
        }
    };
    compare(table, "opening it", open(&few), open(&many))
}

fn compare(
    table: &mut Table,
    name: &str,
    few: impl FnMut() -> Result<()>,
    many: impl FnMut() -> Result<()>,
) -> Result<()> {
    let mut contenders = [
        Contender::new(format!("{name}, {FEW} runs"), few),
        Contender::new(format!("{name}, {MANY} runs"), many),
    ];
    let times = in_turn(ROUNDS, &mut contenders)?;
    table.times(&contenders[0].name, &times[0]);
    let against = Against {
        name: "few",
        samples: &times[0],
        bound: BOUND,
    };
    table.held(&contenders[1].name, &times[1], against);
    Ok(())
}

/// A home whose store has this many runs that are over.
fn filled(place: &Place, runs: usize) -> Result<Home> {
    let home = Home::open(Some(place.root().join(format!("home-{runs}"))))?;
    let store = Store::open(&home)?;
    for number in 0..runs {
        let id = RunId::random()?;
        let lock = RunLock::create(&home, id)?;
        let new = NewRun {
            name: None,
            folder: place.folder(),
            argv: ["pytest", "-x", "tests"].map(ByteText::from).to_vec(),
            created_us: 1_700_000_000_000_000 + number as i64,
            driver: Driver::current(),
            detail: Default::default(),
        };
        store.insert_run(&lock, &new)?;
        store.mark_lost(id)?;
        drop(lock);
        fs::remove_dir_all(home.workspace(id)).context("cannot remove a workspace")?;
    }
    Ok(home)
}
