//! `ringfence list`.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use ringfence_engine::home::Home;
use ringfence_engine::run::ROUNDS;
use ringfence_engine::store::{Archived, Decided, RunFilter, RunRecord, Store};
use ringfence_engine::verdicts::{self, Standing};
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
    /// Only those that changed something and wait for a verdict
    #[arg(long, conflicts_with_all = ["approved", "rejected"])]
    held: bool,
    /// Only those that were approved
    #[arg(long, conflicts_with = "rejected")]
    approved: bool,
    /// Only those that were rejected
    #[arg(long)]
    rejected: bool,
    /// Those as well that `compare --keep` took out of the way
    #[arg(long)]
    all: bool,
    /// Only those of a campaign
    #[arg(long, value_name = "NAME")]
    campaign: Option<String>,
    /// Print one list of JSON, an object in each line
    #[arg(long)]
    json: bool,
}

impl List {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (home, store) = open()?;
        let decided = match (self.held, self.approved, self.rejected) {
            (true, ..) => Some(Decided::Held),
            (_, true, _) => Some(Decided::Approved),
            (_, _, true) => Some(Decided::Rejected),
            _ => None,
        };
        let campaign = self.campaign.as_ref().map(|name| store.campaign(name));
        let filter = RunFilter {
            decided,
            campaign: campaign.transpose()?.map(|own| own.id),
            archived: if self.all {
                Archived::Shown
            } else {
                Archived::Hidden
            },
            ..RunFilter::default()
        };
        let mut runs = store.runs(filter, self.limit.saturating_add(1))?;
        let more = runs.len() > self.limit;
        runs.truncate(self.limit);
        let mut out = std::io::stdout().lock();
        if self.json {
            let rows = runs.iter().map(|run| {
                let mut row = row(run);
                row["review"] = review_json(&home, &store, run);
                row
            });
            print_list(&mut out, rows)?;
            return Ok(ExitCode::SUCCESS);
        }
        if runs.is_empty() {
            let none = match decided {
                None => "no runs yet",
                Some(_) => "no such runs",
            };
            writeln!(out, "{none}")?;
            return Ok(ExitCode::SUCCESS);
        }
        // What stands before the command takes 69 columns.
        let width = window_size().map_or(120, |size| usize::from(size.columns));
        let room = width.saturating_sub(69).max(12);
        writeln!(
            out,
            "{:<12}  {:<19}  {:<10}  {:<9}  {:>7}  COMMAND",
            "RUN", "CREATED (UTC)", "STATUS", "REVIEW", "CHANGED"
        )?;
        for run in &runs {
            let changed = run
                .changed_files
                .map_or_else(|| "-".to_owned(), |n| n.to_string());
            let of = run.campaign();
            let of = of.map(|of| format!("{} {}", of.name, of.number));
            let named = run.name.clone().or(of);
            let named = named.map(|name| format!("[{}] ", clean(&name)));
            let named = named.unwrap_or_default();
            let command = shorten(&command(run), room.saturating_sub(named.chars().count()));
            writeln!(
                out,
                "{:<12}  {:<19}  {:<10}  {:<9}  {changed:>7}  {named}{command}",
                run.id,
                time(run.created_us),
                run.status.as_str(),
                review(&home, &store, run),
            )?;
            if decided == Some(Decided::Held) {
                for hold in verdicts::holds(run) {
                    writeln!(out, "{:<12}  held: {}", "", clean(&hold.to_string()))?;
                }
            }
        }
        if more {
            writeln!(out, "… and more; `ringfence list -n 100` shows them")?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// One list of JSON, an item in each line.
pub fn print_list(
    out: &mut dyn Write,
    rows: impl IntoIterator<Item = serde_json::Value>,
) -> anyhow::Result<()> {
    let mut before = "[\n";
    for row in rows {
        let text = clean_json(&serde_json::to_string(&row)?);
        write!(out, "{before}{text}")?;
        before = ",\n";
    }
    let end = if before == ",\n" { "\n]" } else { "[]" };
    writeln!(out, "{end}")?;
    Ok(())
}

/// Where a run stands, in a word.
fn review(home: &Home, store: &Store, run: &RunRecord) -> &'static str {
    if run.bundle.is_none() {
        return "-";
    }
    match verdicts::standing(store, home, run) {
        Ok(Standing::Held(_)) if run.changed_files == Some(0) => "-",
        Ok(standing) => standing.as_str(),
        // Its own command says why.
        Err(_) => "unknown",
    }
}

/// The same, with all that is known of it.
pub fn review_json(home: &Home, store: &Store, run: &RunRecord) -> serde_json::Value {
    let state = review(home, store, run);
    match verdicts::standing(store, home, run) {
        Ok(Standing::Held(holds)) if state == "held" => json!({"state": state, "held": holds}),
        Ok(
            Standing::Approved(verdict) | Standing::Rejected(verdict) | Standing::Changed(verdict),
        ) => json!({"state": state, "verdict": verdict}),
        _ if state == "unknown" => json!({"state": state}),
        _ => serde_json::Value::Null,
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
    let mut row = json!({
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
        "campaign": run.campaign(),
    });
    if let Some(rounds) = run.detail.get(ROUNDS) {
        row[ROUNDS] = rounds.clone();
    }
    row
}
