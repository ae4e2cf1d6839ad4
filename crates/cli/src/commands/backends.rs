//! `ringfence backends`, and what others type to pick one: `--backend` and `--require`.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use ringfence_engine::backend::{self, Choice, NAMES, Seen};
use ringfence_engine::error::Error;
use ringfence_engine::home::Home;
use ringfence_engine::sandbox::SandboxError;
use ringfence_model::guarantees::Guarantee;
use serde_json::{Value, json};

use super::open;
use crate::failure;
use crate::text::{clean, clean_json};

/// What holds the sandbox.
#[derive(Debug, Args)]
pub struct HeldArgs {
    /// What holds the sandbox: `native`, `docker`, `podman`, `gvisor`, `docker-gvisor`; `ringfence backends`
    /// lists them
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// A guarantee that the backend must be seen to have, as `kernel=separate`; can be given more than
    /// once
    #[arg(long, value_name = "NAME=VALUE")]
    require: Vec<String>,
}

impl HeldArgs {
    pub fn choice(&self) -> Choice {
        Choice {
            name: self.backend.clone(),
            require: self.require.clone(),
            image: None,
        }
    }
}

/// Say what can hold sandboxes here, what each was seen to enforce, and how fast it starts
///
/// For each a sandbox is started, and what must not work in it is tried. What was not seen to hold is
/// not there: `--require` of other commands goes by the same.
#[derive(Debug, Args)]
pub struct Backends {
    /// Only these
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Tried with this image of the engine instead of this machine's own system
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Backends {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (home, _) = open()?;
        let names: Vec<&str> = if self.names.is_empty() {
            NAMES.to_vec()
        } else {
            self.names.iter().map(String::as_str).collect()
        };
        let mut rows = Vec::new();
        for name in names {
            rows.push((name, look(&home, name, self.image.as_deref())));
        }
        let mut out = std::io::stdout().lock();
        if self.json {
            let list: Vec<Value> = rows.iter().map(|(name, seen)| row(name, seen)).collect();
            let text = serde_json::to_string(&json!({ "backends": list }))?;
            writeln!(out, "{}", clean_json(&text))?;
        } else {
            for (number, (name, seen)) in rows.iter().enumerate() {
                if number > 0 {
                    writeln!(out)?;
                }
                tell(&mut out, name, seen)?;
            }
        }
        let all = rows.iter().all(|(_, seen)| seen.is_ok());
        Ok(if all || self.names.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(4)
        })
    }
}

fn look(home: &Home, name: &str, image: Option<&str>) -> Result<Seen, Error> {
    let found = backend::named(home, name).map_err(SandboxError::Backend)?;
    backend::probe(home, &*found, image)
}

/// For a person.
fn tell(
    out: &mut impl std::io::Write,
    name: &str,
    seen: &Result<Seen, Error>,
) -> std::io::Result<()> {
    match seen {
        Ok(seen) => {
            let milliseconds = seen.start.as_secs_f64() * 1000.0;
            writeln!(
                out,
                "{name}: starts in {milliseconds:.0} ms; {} attempts from inside failed as they must",
                seen.probes
            )?;
            for guarantee in Guarantee::ALL {
                let value = seen.guarantees.get(guarantee);
                writeln!(out, "  {:<12} {value}", guarantee.as_str())?;
            }
            Ok(())
        }
        Err(error) => {
            let (first, hint) = failure::in_short(error);
            writeln!(out, "{name}: not here: {}", clean(&first))?;
            match hint {
                Some(hint) => writeln!(out, "  hint: {}", clean(&hint)),
                None => Ok(()),
            }
        }
    }
}

/// For a program.
fn row(name: &str, seen: &Result<Seen, Error>) -> Value {
    match seen {
        Ok(seen) => json!({
            "name": name,
            "available": true,
            "start_ms": seen.start.as_secs_f64() * 1000.0,
            "probes": seen.probes,
            "guarantees": seen.guarantees,
        }),
        Err(error) => {
            let (why, hint) = failure::in_short(error);
            json!({ "name": name, "available": false, "why": why, "hint": hint })
        }
    }
}
