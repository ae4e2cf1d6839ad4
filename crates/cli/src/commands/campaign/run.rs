//! `ringfence campaign run`.

use std::path::PathBuf;
use std::process::ExitCode;

use anstream::eprintln;
use clap::Args;
use ringfence_engine::campaign::{self, Again};
use ringfence_engine::error::Error;
use ringfence_jail::signals::Signals;

use super::sit::{Bounds, planned, sit, typed};
use crate::commands::open;
use crate::text::clean;

/// Run all tasks of a plan, each in a sandbox of its own
///
/// Several run at once. A task that fails stops no other one. Ctrl-C begins nothing more and ends what
/// runs; `ringfence campaign resume` goes on from there, also after this process was killed: what is
/// finished is not done again.
///
/// The exit code is 0 if every task passed, 1 if not, and 130 if it was stopped.
#[derive(Debug, Args)]
pub struct Run {
    /// The plan, a TOML file
    #[arg(value_name = "PLAN")]
    file: PathBuf,
    /// The folder that is worked on [default: the current directory]
    #[arg(long, value_name = "FOLDER")]
    repo: Option<PathBuf>,
    /// Another name than the plan's
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    bounds: Bounds,
    /// Print what happens as JSON, one object in a line
    #[arg(long)]
    json: bool,
}

impl Run {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let signals = Signals::hold()?;
        let (home, store) = open()?;
        let planned = planned(&home, &signals, &self.file, self.repo.as_ref())?;
        for note in &planned.notes {
            eprintln!("note: {}", clean(note));
        }
        let name = self.name.as_ref().unwrap_or(&planned.name);
        let settings = self.bounds.over(planned.settings);
        if let Some(task) = planned.documents.first() {
            campaign::ready(&home, &typed()?, task).map_err(Error::from)?;
        }
        let record = campaign::begin(&store, &planned, name, settings)?;
        sit(&home, &store, &record, &signals, Again::Nothing, self.json)
    }
}
