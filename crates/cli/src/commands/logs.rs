//! `ringfence logs`.

use std::fs::File;
use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::Args;
use ringfence_engine::client::Stream;
use ringfence_engine::home::Home;
use ringfence_engine::store::RunRecord;
use ringfence_engine::{archive, checks};
use ringfence_model::check::Tree;

use super::open;
use crate::text::clean_bytes;

/// Print what the command of a run wrote: standard output to standard output, errors to errors
///
/// On a terminal, colours are left out and other control characters are shown as escapes; in a pipe
/// or file the output is exact.
#[derive(Debug, Args)]
pub struct Logs {
    /// Id, its beginning, name, or `last`
    #[arg(default_value = "last", value_name = "RUN")]
    run: String,
    /// What a check of the host printed instead, by its number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    check: Option<u32>,
    /// On which files it ran: `base`, `patched`, or `exam` (the patch with tests of the base)
    #[arg(long, value_name = "TREE", default_value = "patched", value_parser = ["base", "patched", "exam"])]
    tree: String,
    /// Only standard output
    #[arg(long, conflicts_with = "stderr")]
    stdout: bool,
    /// Only standard error
    #[arg(long)]
    stderr: bool,
}

impl Logs {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (home, store) = open()?;
        let run = store.find(&self.run)?;
        if !self.stderr {
            let log = self.log(&home, &run, Stream::Stdout)?;
            pass(
                log,
                &mut std::io::stdout().lock(),
                std::io::stdout().is_terminal(),
            )?;
        }
        if !self.stdout {
            let log = self.log(&home, &run, Stream::Stderr)?;
            pass(
                log,
                &mut std::io::stderr().lock(),
                std::io::stderr().is_terminal(),
            )?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn log(&self, home: &Home, run: &RunRecord, stream: Stream) -> anyhow::Result<File> {
        let Some(number) = self.check else {
            return Ok(archive::log(home, run, stream)?);
        };
        let tree = match self.tree.as_str() {
            "base" => Tree::Base,
            "exam" => Tree::Exam,
            _ => Tree::Patched,
        };
        let log = checks::log(home, run.id, number as usize, tree, stream)?;
        let why = || {
            anyhow::anyhow!(
                "check {number} of run {} printed nothing there that is kept",
                run.id
            )
        };
        log.ok_or_else(why)
    }
}

/// Exact into a pipe, cleaned on a terminal.
fn pass(
    mut log: std::fs::File,
    out: &mut dyn std::io::Write,
    terminal: bool,
) -> std::io::Result<()> {
    if !terminal {
        std::io::copy(&mut log, out)?;
        return Ok(());
    }
    let mut chunk = vec![0u8; 64 * 1024];
    loop {
        match std::io::Read::read(&mut log, &mut chunk)? {
            0 => return Ok(()),
            count => out.write_all(clean_bytes(&chunk[..count]).as_bytes())?,
        }
    }
}
