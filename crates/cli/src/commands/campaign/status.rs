//! `ringfence campaign status`.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use ringfence_engine::campaign::{self, Report};
use ringfence_engine::run::Seconds;
use ringfence_model::campaign::TaskState;

use super::board::{cost, ended};
use crate::commands::open;
use crate::console::window_size;
use crate::text::{clean, clean_json, plural, shorten};

/// Show how far a campaign is
#[derive(Debug, Args)]
pub struct Status {
    /// The campaign
    name: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Status {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (home, store) = open()?;
        let record = store.campaign(&self.name)?;
        let report = campaign::report(&home, &store, &record)?;
        if self.json {
            let json = serde_json::to_string(&report)?;
            writeln!(std::io::stdout(), "{}", clean_json(&json))?;
            return Ok(ExitCode::SUCCESS);
        }
        write(&report)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn write(report: &Report) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let counts = &report.counts;
    writeln!(
        out,
        "campaign {}: {}, {} of {} over, {}",
        clean(&report.campaign.name),
        report.progress.as_str(),
        counts.over(),
        plural(counts.tasks as usize, "task"),
        Seconds(report.campaign.driven_ms)
    )?;
    writeln!(out, "  {}", counts.words())?;
    if !counts.spent.is_nothing() {
        writeln!(out, "  agents say that they used {}", cost(counts.spent))?;
    }
    writeln!(out)?;
    let width = window_size().map_or(160, |size| usize::from(size.columns).max(40));
    for own in &report.tasks {
        let mut line = ended(&own.task, width);
        if let Some(run) = own.task.run {
            line.push_str(&format!("  {run}"));
        }
        if own.task.state != TaskState::Waiting {
            writeln!(out, "{}", shorten(&line, width))?;
        }
    }
    for step in &report.next {
        writeln!(out, "{}: {}", step.why, step.command)?;
    }
    Ok(())
}
