//! `ringfence diff`.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::Args;
use ringfence_engine::archive;

use super::open;
use crate::text::clean_bytes;

/// Print the patch of a run, as `git apply` takes it
///
/// On a terminal, control characters are shown as escapes; in a pipe or file the patch is exact.
#[derive(Debug, Args)]
pub struct Diff {
    /// Id, its beginning, name, or `last`
    #[arg(default_value = "last", value_name = "RUN")]
    run: String,
    /// What this iteration of a loop left, instead of the last one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    iteration: Option<u32>,
}

impl Diff {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (home, store) = open()?;
        let run = store.find(&self.run)?;
        let patch = |out: &mut dyn std::io::Write| match self.iteration {
            None => archive::write_patch(&home, &run, out),
            Some(number) => archive::write_iteration(&home, &run, number, out),
        };
        let mut out = std::io::stdout().lock();
        if out.is_terminal() {
            let mut bytes = Vec::new();
            patch(&mut bytes)?;
            write!(out, "{}", clean_bytes(&bytes))?;
        } else {
            patch(&mut out)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
