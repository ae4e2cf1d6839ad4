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
}

impl Diff {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (home, store) = open()?;
        let run = store.find(&self.run)?;
        let mut out = std::io::stdout().lock();
        if out.is_terminal() {
            let mut bytes = Vec::new();
            archive::write_patch(&home, &run, &mut bytes)?;
            write!(out, "{}", clean_bytes(&bytes))?;
        } else {
            archive::write_patch(&home, &run, &mut out)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
