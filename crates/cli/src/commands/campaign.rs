//! `ringfence campaign`: one file per verb below.

mod apply;
mod board;
mod cancel;
mod list;
mod plan;
mod report;
mod resume;
mod rm;
mod run;
mod sit;
mod status;

use std::process::ExitCode;

use clap::{Args, Subcommand};

/// Split a large job into tasks, run them in parallel, and report
#[derive(Debug, Args)]
pub struct Campaign {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Apply(Box<apply::Apply>),
    Plan(plan::Plan),
    Run(run::Run),
    Status(status::Status),
    Resume(resume::Resume),
    Report(report::Report),
    List(list::List),
    Cancel(cancel::Cancel),
    Rm(rm::Rm),
}

impl Campaign {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.verb {
            Verb::Apply(verb) => verb.run(),
            Verb::Plan(verb) => verb.run(),
            Verb::Run(verb) => verb.run(),
            Verb::Status(verb) => verb.run(),
            Verb::Resume(verb) => verb.run(),
            Verb::Report(verb) => verb.run(),
            Verb::List(verb) => verb.run(),
            Verb::Cancel(verb) => verb.run(),
            Verb::Rm(verb) => verb.run(),
        }
    }
}
