//! `ringfence campaign list`.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use ringfence_engine::campaign::{self, Counts};
use serde_json::json;

use crate::commands::list::print_list;
use crate::commands::open;
use crate::text::{clean, time};

/// List campaigns, newest first
#[derive(Debug, Args)]
pub struct List {
    /// Print one list of JSON, an object in each line
    #[arg(long)]
    json: bool,
}

impl List {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (home, store) = open()?;
        let mut out = std::io::stdout().lock();
        let campaigns = store.campaigns()?;
        if campaigns.is_empty() && !self.json {
            writeln!(out, "no campaigns yet")?;
        }
        let mut rows = Vec::new();
        for record in campaigns {
            let (tasks, driven) = campaign::tasks(&home, &store, &record)?;
            let counts = Counts::of(&tasks);
            if self.json {
                rows.push(json!({"campaign": record, "counts": counts, "driven": driven}));
                continue;
            }
            let word = match (driven, counts.is_finished()) {
                (true, _) => "running",
                (_, true) => "finished",
                _ => "stopped",
            };
            writeln!(
                out,
                "{:<24}  {}  {word:<8}  {}",
                clean(&record.name),
                time(record.created_us),
                counts.words()
            )?;
        }
        if self.json {
            print_list(&mut out, rows)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
