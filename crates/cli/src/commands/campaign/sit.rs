//! One sitting at a campaign: `run` and `resume` differ only in what comes before.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anstream::eprintln;
use clap::Args;
use ringfence_engine::attend::Inputs;
use ringfence_engine::campaign::{self, Again, Driving, HostSize, PlanRequest, Planned, Typed};
use ringfence_engine::home::Home;
use ringfence_engine::store::{CampaignRecord, Settings, Store};
use ringfence_jail::signals::Signals;
use ringfence_model::campaign::TaskState;
use ringfence_model::limits::Limits;
use ringfence_model::plan::budget::{dollars, number};
use ringfence_model::plan::{Budget, MAX_PARALLEL};

use super::board::Board;
use crate::commands::limits::{Quantity, duration};
use crate::commands::policy::variable;
use crate::commands::program;
use crate::text::clean;

/// How much at once, and how much in all.
#[derive(Debug, Args)]
pub struct Bounds {
    /// How many tasks at once [default: as many as there are processors and memory]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_PARALLEL)))]
    parallel: Option<u32>,
    /// Begin nothing more after this long in all, e.g. `2h`
    #[arg(long, value_name = "TIME", value_parser = duration)]
    budget_time: Option<Quantity>,
    /// Begin no more than so many tasks
    #[arg(long, value_name = "N", value_parser = number)]
    budget_tasks: Option<u64>,
    /// Begin nothing more after so many tokens, where the agent reports them, e.g. `2M`
    #[arg(long, value_name = "N", value_parser = number)]
    budget_tokens: Option<u64>,
    /// Begin nothing more after so many dollars, where the agent reports them, e.g. `2.50`
    #[arg(long, value_name = "USD", value_parser = dollars)]
    budget_cost: Option<u64>,
}

impl Bounds {
    /// What is typed counts more than what was written; `none` is no bound at all.
    pub fn over(&self, written: Settings) -> Settings {
        let typed = Budget {
            time_seconds: self.budget_time.and_then(|Quantity(most)| most),
            tasks: self.budget_tasks,
            tokens: self.budget_tokens,
            cost_micros: self.budget_cost,
        };
        let mut budget = typed.or(written.budget);
        if matches!(self.budget_time, Some(Quantity(None))) {
            budget.time_seconds = None;
        }
        Settings {
            parallel: self.parallel.or(written.parallel),
            budget,
        }
    }
}

/// Reads a plan for a folder.
pub fn planned(
    home: &Home,
    signals: &Signals,
    file: &Path,
    folder: Option<&PathBuf>,
) -> anyhow::Result<Planned> {
    let request = PlanRequest {
        file: file.to_owned(),
        folder: match folder {
            Some(folder) => folder.clone(),
            None => std::env::current_dir()?,
        },
        usual: usual(),
    };
    let inputs = Inputs {
        stdin: None,
        signals: Some(signals),
    };
    Ok(campaign::plan(home, &request, &inputs)?)
}

/// What a campaign gives to all its tasks.
pub fn typed() -> anyhow::Result<Typed> {
    Ok(Typed::nothing(program()?, usual(), variable))
}

fn usual() -> Limits {
    Limits::for_host(ringfence_jail::total_memory_bytes())
}

/// Works on it until nothing is left or somebody stops it, and says what came of it.
pub fn sit(
    home: &Home,
    store: &Store,
    record: &CampaignRecord,
    signals: &Signals,
    again: Again,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let board = Board::new(json);
    let driving = Driving {
        home,
        store,
        typed: typed()?,
        watcher: &board,
        signals,
        host: HostSize {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: ringfence_jail::total_memory_bytes(),
        },
        again,
    };
    let ended = campaign::drive(driving, record)?;
    signals.release();
    // How long it was worked on is in the store by now.
    let record = &store.campaign(&record.name)?;
    let report = campaign::report(home, store, record)?;
    eprintln!();
    eprintln!(
        "campaign {}: {}, {}",
        clean(&record.name),
        report.progress.as_str(),
        report.counts.words()
    );
    eprintln!("  all of it: ringfence campaign report {}", record.name);
    for step in &report.next {
        eprintln!("  {}: {}", step.why, step.command);
    }
    Ok(match ended.stopped {
        true => ExitCode::from(130),
        false if ended.counts.in_state(TaskState::Passed) == ended.counts.tasks => {
            ExitCode::SUCCESS
        }
        false => ExitCode::FAILURE,
    })
}
