//! `ringfence keep`, `gate`, `settle` and `own`: this program as the keeper of a sandbox, as its
//! gate, as the one that does what can wait, and as the one that takes over what a setup left.
//! Started by other commands, not by people.

use std::process::ExitCode;

use clap::Args;
use ringfence_engine::error::Error;
use ringfence_engine::ids::SandboxId;
use ringfence_engine::keeper::{Ready, keep, say};
use ringfence_engine::sandboxes::settle::settle;

use super::{host, open_host};
use crate::trace;

/// Keep a sandbox
#[derive(Debug, Args)]
pub struct Keep {
    sandbox: SandboxId,
}

impl Keep {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        // It lives long; what its caller had open is not its to hold.
        ringfence_jail::close_inherited();
        trace::begin(trace::Goes::ToStandardError)?;
        let told = std::cell::Cell::new(false);
        let mut up = |ready: &Ready| {
            told.set(true);
            // Whoever started this may be gone; the sandbox is kept all the same.
            let _ = say(ready, &mut std::io::stdout());
        };
        let kept = host().and_then(|host| keep(&host.home, &host.store, self.sandbox, &mut up));
        match kept {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(error) if told.get() => Err(error.into()),
            Err(error) => {
                up(&failed(&error));
                Ok(ExitCode::FAILURE)
            }
        }
    }
}

fn failed(error: &Error) -> Ready {
    let mut chain = vec![error.to_string()];
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        chain.push(cause.to_string());
        source = cause.source();
    }
    Ready::Failed {
        exit_code: error.kind().exit_code(),
        chain,
        hint: error.hint(),
    }
}

/// Be the way out of a sandbox
#[derive(Debug, Args)]
pub struct Gate {}

impl Gate {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        ringfence_gate::run()?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Take over the tree on standard input, within the ids of a setup
#[derive(Debug, Args)]
pub struct Own {}

impl Own {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        ringfence_engine::ownership::take_over_here()?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Do what can wait
#[derive(Debug, Args)]
pub struct Settle {
    sandbox: SandboxId,
}

impl Settle {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        settle(&open_host()?, self.sandbox)?;
        Ok(ExitCode::SUCCESS)
    }
}
