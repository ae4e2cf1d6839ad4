//! `ringfence campaign`: one file per verb below.

mod plan;

use std::process::ExitCode;

use clap::{Args, Subcommand};

/// Split a large job into tasks
#[derive(Debug, Args)]
pub struct Campaign {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Plan(plan::Plan),
}

impl Campaign {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.verb {
            Verb::Plan(verb) => verb.run(),
        }
    }
}
