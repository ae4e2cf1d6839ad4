//! `ringfence sandbox diff`.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use anstream::eprintln;
use clap::Args;
use ringfence_engine::run::why;
use ringfence_engine::sandboxes::diff::{Want, diff};

use crate::commands::open_host;
use crate::text::{clean, clean_bytes, clean_json};

/// Print what a sandbox changed, as a patch
#[derive(Debug, Args)]
pub struct Diff {
    /// Id, its beginning, name, or `last`
    #[arg(value_name = "SANDBOX")]
    sandbox: String,
    /// Since this checkpoint, not since its base
    #[arg(long, value_name = "CHECKPOINT")]
    from: Option<String>,
    /// At this checkpoint, not at present
    #[arg(long, value_name = "CHECKPOINT")]
    at: Option<String>,
    /// Print the list of changes as one JSON object
    #[arg(long)]
    json: bool,
}

impl Diff {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let host = open_host()?;
        let id = host.store.find_sandbox(&self.sandbox)?.id;
        let want = if self.json { Want::List } else { Want::Patch };
        let mut changes = diff(&host, id, self.from.as_deref(), self.at.as_deref(), want)?;
        let mut out = std::io::stdout().lock();
        if self.json {
            let json = serde_json::to_string(&changes.set)?;
            writeln!(out, "{}", clean_json(&json))?;
            return Ok(ExitCode::SUCCESS);
        }
        if out.is_terminal() {
            let mut patch = Vec::new();
            changes.write(&mut patch)?;
            write!(out, "{}", clean_bytes(&patch))?;
        } else {
            changes.write(&mut out)?;
            out.flush()?;
        }
        for omitted in &changes.set.omitted {
            eprintln!(
                "  left behind: {} ({})",
                clean(&omitted.path.to_text()),
                why(omitted.why)
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}
