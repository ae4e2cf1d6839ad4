//! `ringfence policy`: one file per verb below. And the option that other commands have.

mod check;
mod explain;
mod learn;
mod presets;

use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use ringfence_engine::campaign::Typed;
use ringfence_engine::error::Error;
use ringfence_engine::home::Home;
use ringfence_engine::policy::Asked;
use ringfence_model::ByteText;
use ringfence_model::limits::Limits;
use ringfence_model::policy::Line;

use super::limits::{LimitArgs, typed_as};
use super::program;

/// Read a policy, and say what it allows and why
#[derive(Debug, Args)]
pub struct Policy {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Check(check::Check),
    Explain(explain::Explain),
    Presets(presets::Presets),
    Learn(learn::Learn),
}

impl Policy {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.verb {
            Verb::Check(verb) => verb.run(),
            Verb::Explain(verb) => verb.run(),
            Verb::Presets(verb) => verb.run(),
            Verb::Learn(verb) => verb.run(),
        }
    }
}

/// What a sandbox may do.
#[derive(Debug, Args)]
pub struct PolicyArgs {
    /// What it may read, write, reach, spend and use: a file, `offline`, `standard` or `online`
    /// [default: `policy.toml` in the home of ringfence]
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// The image that is `/` inside, whatever a policy says; `host` for none
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Let the setup of the environment reach this as well: a rule, or `preset:NAME`
    #[arg(long, value_name = "RULE")]
    setup_network: Vec<String>,
}

impl PolicyArgs {
    /// The host's policy with what was typed.
    pub fn asked(
        &self,
        home: &Home,
        limits: &LimitArgs,
        folder: Option<&Path>,
    ) -> Result<Asked, Error> {
        self.typed(limits)?.asked(None, home, folder)
    }

    /// What was typed, and nothing else yet.
    pub fn typed(&self, limits: &LimitArgs) -> Result<Typed, Error> {
        Ok(Typed {
            policy: self.policy.clone(),
            image: self.image.as_ref().map(|image| Line {
                text: image.clone(),
                from: typed_as("--image"),
            }),
            setup_network: self.setup_network.clone(),
            limits: limits.bounds(),
            ..nothing_typed()?
        })
    }
}

/// Nothing was typed of a policy.
pub fn nothing_typed() -> Result<Typed, Error> {
    let usual = Limits::for_host(ringfence_jail::total_memory_bytes());
    Ok(Typed::nothing(program()?, usual, variable))
}

/// What a variable of this process holds.
pub fn variable(name: &str) -> Option<ByteText> {
    Some(ByteText(std::env::var_os(name)?.into_vec()))
}
