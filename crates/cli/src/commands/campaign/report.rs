//! `ringfence campaign report`.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use ringfence_engine::campaign;

use crate::commands::open;
use crate::text::{clean, clean_json};

/// Print what came of a campaign: every task with its verdict, and what to type next
#[derive(Debug, Args)]
pub struct Report {
    /// The campaign
    name: String,
    /// Print one JSON object
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Print Markdown; this is the default
    #[arg(long)]
    markdown: bool,
}

impl Report {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (home, store) = open()?;
        let record = store.campaign(&self.name)?;
        let report = campaign::report(&home, &store, &record)?;
        let mut out = std::io::stdout().lock();
        if self.json {
            writeln!(out, "{}", clean_json(&serde_json::to_string(&report)?))?
        } else {
            write!(out, "{}", clean(&report.markdown()))?
        }
        Ok(ExitCode::SUCCESS)
    }
}
