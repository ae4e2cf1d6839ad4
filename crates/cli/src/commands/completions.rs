//! `ringfence completions`.

use std::process::ExitCode;

use clap::{Args, CommandFactory as _};

/// Print a completion script for a shell
///
/// For bash: `ringfence completions bash > ~/.local/share/bash-completion/completions/ringfence`.
#[derive(Debug, Args)]
pub struct Completions {
    shell: clap_complete::Shell,
}

impl Completions {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mut command = crate::Cli::command();
        clap_complete::generate(
            self.shell,
            &mut command,
            "ringfence",
            &mut std::io::stdout(),
        );
        Ok(ExitCode::SUCCESS)
    }
}
