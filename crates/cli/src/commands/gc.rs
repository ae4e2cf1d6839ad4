//! `ringfence gc` and `ringfence du`.

use std::io::Write as _;
use std::process::ExitCode;

use anstream::eprintln;
use clap::Args;
use ringfence_engine::error::Error;
use ringfence_engine::sandboxes::Host;
use ringfence_engine::sandboxes::gc::{act, plan};
use ringfence_engine::sandboxes::usage::parts;
use ringfence_model::limits::HumanBytes;
use serde_json::json;

use super::open_host;
use crate::text::{clean, clean_json, shorten, time};

/// Remove what is not needed any more: by age, and where the disk is nearly full
///
/// First executions that are idle, then sandboxes that nobody used (the patch of their work is
/// saved), then layers, bases and mirrors that nothing stands on. Never what is pinned or in use.
/// The bounds are in `config.toml` in the home.
#[derive(Debug, Args)]
pub struct Gc {
    /// Say what would be done, and why
    #[arg(long)]
    dry_run: bool,
    /// List what was removed before, in order
    #[arg(long, conflicts_with = "dry_run")]
    log: bool,
    /// Print a JSON list
    #[arg(long)]
    json: bool,
}

impl Gc {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let host = open_host()?;
        if self.log {
            return log(&host, self.json);
        }
        let actions = plan(&host)?;
        let mut out = std::io::stdout().lock();
        let mut list = Vec::new();
        let mut failed = false;
        for action in &actions {
            let mut row = json!({
                "action": action.what.word(),
                "text": action.what.text(),
                "why": action.why,
            });
            if !self.dry_run {
                match act(&host, action) {
                    Ok(saved) => row["saved"] = json!(saved),
                    Err(Error::UsedAgain(_)) => row["skipped"] = json!("in use again"),
                    // The rest can go all the same.
                    Err(error) => {
                        failed = true;
                        row["error"] = json!(error.to_string());
                        eprintln!("error: {}", clean(&error.to_string()));
                    }
                }
            }
            if !self.json {
                writeln!(
                    out,
                    "{}: {}",
                    clean(&action.what.text()),
                    clean(&action.why)
                )?;
                if let Some(saved) = row["saved"].as_str() {
                    writeln!(out, "  its patch is in {}", clean(saved))?;
                }
            }
            list.push(row);
        }
        if self.json {
            writeln!(out, "{}", clean_json(&serde_json::to_string(&list)?))?;
        } else if actions.is_empty() {
            writeln!(out, "nothing to remove")?;
        }
        Ok(if failed {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        })
    }
}

fn log(host: &Host, json: bool) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    let evictions = host.store.evictions()?;
    if json {
        let list: Vec<_> = evictions
            .iter()
            .map(|eviction| {
                json!({
                    "sequence": eviction.sequence,
                    "time_us": eviction.time_us,
                    "action": eviction.action,
                    "subject": eviction.subject,
                    "why": eviction.why,
                })
            })
            .collect();
        writeln!(out, "{}", clean_json(&serde_json::to_string(&list)?))?;
        return Ok(ExitCode::SUCCESS);
    }
    for eviction in &evictions {
        writeln!(
            out,
            "{}  {} {}: {}",
            time(eviction.time_us),
            eviction.action,
            clean(&eviction.subject),
            clean(&eviction.why)
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Show who takes how much of the disk, each byte counted once
#[derive(Debug, Args)]
pub struct Du {
    /// Print a JSON list
    #[arg(long)]
    json: bool,
}

impl Du {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let host = open_host()?;
        let parts = parts(&host)?;
        let mut out = std::io::stdout().lock();
        if self.json {
            let list: Vec<_> = parts
                .iter()
                .map(|part| {
                    json!({
                        "what": part.what,
                        "id": part.id,
                        "label": part.label,
                        "bytes": part.unique.bytes,
                        "inodes": part.unique.inodes,
                        "users": part.users,
                        "shared": part.users > 1,
                    })
                })
                .collect();
            writeln!(out, "{}", clean_json(&serde_json::to_string(&list)?))?;
            return Ok(ExitCode::SUCCESS);
        }
        let (mut shared, mut own) = (0, 0);
        for part in &parts {
            let by = match (part.what, part.users) {
                ("bundles", _) => String::new(),
                (_, 0) => "used by nothing".to_owned(),
                ("sandbox", _) => "its own".to_owned(),
                (_, 1) => "used by 1".to_owned(),
                (_, n) => format!("shared by {n}"),
            };
            if part.users > 1 {
                shared += part.unique.bytes;
            } else {
                own += part.unique.bytes;
            }
            writeln!(
                out,
                "{:>10}  {:<8} {:<12}  {by:<16} {}",
                HumanBytes(part.unique.bytes).to_string(),
                part.what,
                part.id,
                shorten(&part.label, 60)
            )?;
        }
        writeln!(
            out,
            "{:>10}  in all: {} shared, {} not",
            HumanBytes(shared + own).to_string(),
            HumanBytes(shared),
            HumanBytes(own)
        )?;
        Ok(ExitCode::SUCCESS)
    }
}
