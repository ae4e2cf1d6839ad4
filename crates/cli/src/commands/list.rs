//! `ringfence list`.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use ringfence_engine::store::{RunFilter, RunRecord};
use ringfence_model::ByteText;
use serde_json::json;

use super::open;
use crate::console::window_size;
use crate::text::{clean, clean_json, shorten, time};

/// List runs, newest first
#[derive(Debug, Args)]
pub struct List {
    /// How many at most
    #[arg(short = 'n', long, default_value_t = 20, value_name = "N")]
    limit: usize,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

impl List {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (_, store) = open()?;
        let mut runs = store.runs(RunFilter::default(), self.limit.saturating_add(1))?;
        let more = runs.len() > self.limit;
        runs.truncate(self.limit);
        let mut out = std::io::stdout().lock();
        if self.json {
            for run in &runs {
                writeln!(out, "{}", clean_json(&serde_json::to_string(&row(run))?))?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        if runs.is_empty() {
            writeln!(out, "no runs yet")?;
            return Ok(ExitCode::SUCCESS);
        }
        // What stands before the command takes 58 columns.
        let width = window_size().map_or(120, |size| usize::from(size.columns));
        let room = width.saturating_sub(58).max(12);
        writeln!(
            out,
            "{:<12}  {:<19}  {:<10}  {:>7}  COMMAND",
            "RUN", "CREATED (UTC)", "STATUS", "CHANGED"
        )?;
        for run in &runs {
            let changed = run
                .changed_files
                .map_or_else(|| "-".to_owned(), |n| n.to_string());
            let named = run
                .name
                .as_ref()
                .map(|name| format!("[{}] ", clean(name)))
                .unwrap_or_default();
            let command = shorten(&command(run), room.saturating_sub(named.chars().count()));
            writeln!(
                out,
                "{:<12}  {:<19}  {:<10}  {changed:>7}  {named}{command}",
                run.id,
                time(run.created_us),
                run.status.as_str()
            )?;
        }
        if more {
            writeln!(out, "… and more; `ringfence list -n 100` shows them")?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The command in one line.
pub fn command(run: &RunRecord) -> String {
    run.argv
        .iter()
        .map(ByteText::to_text)
        .collect::<Vec<_>>()
        .join(" ")
}

/// What the store knows of a run, as JSON.
pub fn row(run: &RunRecord) -> serde_json::Value {
    json!({
        "run": run.id,
        "name": run.name,
        "status": run.status,
        "outcome": run.outcome,
        "exit_code": run.exit_code,
        "signal": run.signal,
        "folder": run.folder.to_string_lossy(),
        "argv": run.argv,
        "created_us": run.created_us,
        "ended_us": run.ended_us,
        "duration_ms": run.duration_ms,
        "changed_files": run.changed_files,
        "insertions": run.insertions,
        "deletions": run.deletions,
    })
}
