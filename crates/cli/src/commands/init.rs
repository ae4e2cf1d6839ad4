//! `ringfence init`.

mod told;

use std::io::{BufRead as _, IsTerminal as _, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ringfence_engine::durable::Existing;
use ringfence_engine::error::Error;
use ringfence_engine::home::Home;
use ringfence_engine::init::{InitError, Proposal, Widened, propose_for, widen, write};
use ringfence_engine::policy::PROPOSAL;
use serde_json::json;

use crate::text::{clean, clean_json};

/// Look at a folder, and propose what its sandboxes start from
///
/// Reads lock files, Dockerfile, devcontainer.json and pinned versions, writes a short
/// `ringfence.toml` and says why for each line. Nothing of the folder is executed. What is not
/// taken over is named.
///
/// Toolchains below your home and the network of a setup are yours to grant: the lines for your own
/// policy are shown, and `--user` adds them.
#[derive(Debug, Args)]
pub struct Init {
    /// The folder [default: this one]
    #[arg(value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Write over a `ringfence.toml` that is there
    #[arg(long)]
    force: bool,
    /// Print the file instead of writing it; all else goes to standard error
    #[arg(long, conflicts_with_all = ["force", "json", "user"])]
    print: bool,
    /// Add to your own policy what only you can grant, after showing it
    #[arg(long)]
    user: bool,
    /// Do not ask before adding to your policy
    #[arg(long, requires = "user")]
    yes: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Init {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let home = Home::open(None).map_err(Error::from)?;
        let folder = self.folder.clone().unwrap_or_else(|| PathBuf::from("."));
        let proposal = propose_for(&home, &folder)?;
        let text = proposal.proposed.to_toml();
        if self.print {
            let mut out = std::io::stdout().lock();
            out.write_all(text.as_bytes())?;
            told::tell(&mut std::io::stderr().lock(), &proposal)?;
            return Ok(ExitCode::SUCCESS);
        }
        let widened = if self.user && !proposal.grants.is_empty() {
            Some(widen(&home, &proposal.grants)?)
        } else {
            None
        };
        let written = self.write(&proposal, &text)?;
        if self.json {
            self.save(widened.as_ref())?;
            let all = json!({
                "folder": proposal.folder,
                "written": written,
                "text": text,
                "proposed": proposal.proposed,
                "programs": proposal.choices,
                "toolchains": proposal.toolchains,
                "grants": proposal.grants,
                "grants_text": proposal.grants.to_toml(),
                "granted": widened.as_ref().map(|widened| &widened.path),
                "policy_fault": proposal.policy_fault,
            });
            writeln!(std::io::stdout().lock(), "{}", clean_json(&all.to_string()))?;
            return Ok(ExitCode::SUCCESS);
        }
        {
            let mut out = std::io::stdout().lock();
            match (&written, proposal.proposed.is_empty()) {
                (Some(path), _) => writeln!(out, "wrote {}", clean(&path.to_string_lossy()))?,
                (None, true) => writeln!(
                    out,
                    "nothing here says what it needs, and nothing was written; a sandbox has the \
                     programs of this machine"
                )?,
                (None, false) => writeln!(out, "`{PROPOSAL}` is there already, and stays")?,
            }
            told::tell(&mut out, &proposal)?;
            if self.user && widened.is_none() {
                writeln!(out, "\nthere is nothing to add to your policy")?;
            }
        }
        self.save(widened.as_ref())?;
        Ok(ExitCode::SUCCESS)
    }

    /// Writes the file; who only wants to grant keeps the one that is there.
    fn write(&self, proposal: &Proposal, text: &str) -> Result<Option<PathBuf>, Error> {
        if proposal.proposed.is_empty() {
            return Ok(None);
        }
        let existing = if self.force {
            Existing::Replace
        } else {
            Existing::Refuse
        };
        match write(&proposal.folder, text, existing) {
            Ok(path) => Ok(Some(path)),
            Err(Error::Init(InitError::Taken(_))) if self.user => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Adds to the user's policy, if the user says so.
    fn save(&self, widened: Option<&Widened>) -> anyhow::Result<()> {
        let Some(widened) = widened else {
            return Ok(());
        };
        let path = clean(&widened.path.to_string_lossy());
        if !self.yes {
            if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
                anyhow::bail!(
                    "nobody can be asked here whether this may be added to `{path}`; `--yes` adds it"
                );
            }
            let mut ask = std::io::stderr().lock();
            write!(ask, "\nadd this to {path}? [y/N] ")?;
            ask.flush()?;
            let mut answer = String::new();
            std::io::stdin().lock().read_line(&mut answer)?;
            if !matches!(answer.trim(), "y" | "Y" | "yes") {
                writeln!(ask, "not added")?;
                return Ok(());
            }
        }
        widened.save()?;
        if !self.json {
            writeln!(std::io::stdout().lock(), "\nadded to {path}")?;
        }
        Ok(())
    }
}
