//! `ringfence rm`.

use std::process::ExitCode;

use anstream::eprintln;
use clap::Args;
use ringfence_engine::archive;
use ringfence_engine::store::RunRecord;

use super::open;

/// Remove runs with all that is kept of them
#[derive(Debug, Args)]
pub struct Rm {
    /// Ids, their beginnings, names, or `last`
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<String>,
}

impl Rm {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (home, store) = open()?;
        // All are found before any is removed: `last` would be another one each time.
        let mut found = Vec::new();
        for text in &self.runs {
            let run = store.find(text)?;
            if !found.iter().any(|known: &RunRecord| known.id == run.id) {
                found.push(run);
            }
        }
        for run in found {
            archive::remove(&home, &store, &run)?;
            eprintln!("removed {}", run.id);
        }
        Ok(ExitCode::SUCCESS)
    }
}
