//! `ringfence rm`.

use std::process::ExitCode;

use anstream::eprintln;
use clap::Args;
use ringfence_engine::archive;

use super::open;

/// Remove runs with all that is kept of them
#[derive(Debug, Args)]
pub struct Rm {
    /// Ids, their beginnings, or names
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<String>,
}

impl Rm {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (home, store) = open()?;
        for text in &self.runs {
            let run = store.find(text)?;
            archive::remove(&home, &store, &run)?;
            eprintln!("removed {}", run.id);
        }
        Ok(ExitCode::SUCCESS)
    }
}
