//! `ringfence logs`.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::Args;
use ringfence_engine::archive;
use ringfence_engine::client::Stream;

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
            let log = archive::log(&home, &run, Stream::Stdout)?;
            pass(
                log,
                &mut std::io::stdout().lock(),
                std::io::stdout().is_terminal(),
            )?;
        }
        if !self.stdout {
            let log = archive::log(&home, &run, Stream::Stderr)?;
            pass(
                log,
                &mut std::io::stderr().lock(),
                std::io::stderr().is_terminal(),
            )?;
        }
        Ok(ExitCode::SUCCESS)
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
