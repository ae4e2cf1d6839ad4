//! `ringfence sandbox stop`, `resume` and `rm`.

use std::process::ExitCode;

use anstream::eprintln;
use clap::Args;
use ringfence_engine::sandboxes::Host;
use ringfence_engine::sandboxes::remove::remove;
use ringfence_engine::sandboxes::stop::{resume, stop};
use ringfence_engine::store::SandboxRecord;

use crate::commands::open_host;
use crate::text::clean;

/// End what runs in sandboxes; their workspaces stay
#[derive(Debug, Args)]
pub struct Stop {
    /// Ids, their beginnings, names, or `last`
    #[arg(value_name = "SANDBOX", required_unless_present = "tag")]
    sandboxes: Vec<String>,
    /// All with this tag
    #[arg(long)]
    tag: Option<String>,
}

/// Start an execution on the workspace of a sandbox
#[derive(Debug, Args)]
pub struct Resume {
    /// Id, its beginning, name, or `last`
    #[arg(value_name = "SANDBOX")]
    sandbox: String,
}

/// Remove sandboxes with all their work; their forks stay
#[derive(Debug, Args)]
pub struct Rm {
    /// Ids, their beginnings, names, or `last`
    #[arg(value_name = "SANDBOX", required_unless_present = "tag")]
    sandboxes: Vec<String>,
    /// All with this tag
    #[arg(long)]
    tag: Option<String>,
}

impl Stop {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let host = open_host()?;
        for record in meant(&host, &self.sandboxes, self.tag.as_deref())? {
            let ended = match stop(&host, record.id)? {
                0 => String::new(),
                1 => ", 1 process in the background was ended".to_owned(),
                n => format!(", {n} processes in the background were ended"),
            };
            eprintln!("stopped {}{ended}", record.id);
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Resume {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let host = open_host()?;
        let id = host.store.find_sandbox(&self.sandbox)?.id;
        let resumed = resume(&host, id)?;
        for note in &resumed.notes {
            eprintln!("ringfence: {}", clean(note));
        }
        eprintln!("{id} runs, execution {}", resumed.incarnation);
        Ok(ExitCode::SUCCESS)
    }
}

impl Rm {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let host = open_host()?;
        for record in meant(&host, &self.sandboxes, self.tag.as_deref())? {
            remove(&host, &record)?;
            eprintln!("removed {}", record.id);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// All are found before anything is done to any: `last` would be another one each time.
fn meant(host: &Host, texts: &[String], tag: Option<&str>) -> anyhow::Result<Vec<SandboxRecord>> {
    let mut found: Vec<SandboxRecord> = match tag {
        Some(tag) => host.store.sandboxes_tagged(tag)?,
        None => Vec::new(),
    };
    if let Some(tag) = tag
        && found.is_empty()
    {
        anyhow::bail!("no sandbox has the tag `{}`", clean(tag));
    }
    for text in texts {
        let record = host.store.find_sandbox(text)?;
        if !found.iter().any(|known| known.id == record.id) {
            found.push(record);
        }
    }
    Ok(found)
}
