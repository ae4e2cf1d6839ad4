//! `ringfence policy`: one file per verb below. And the option that other commands have.

mod check;
mod explain;
mod learn;
mod presets;

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use ringfence_engine::error::Error;
use ringfence_engine::home::Home;
use ringfence_engine::policy::{self, Asked};
use ringfence_model::ByteText;
use ringfence_model::limits::Limits;
use ringfence_model::policy::{Effective, Line};

use super::limits::{LimitArgs, typed_as};

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
    /// The host's policy with what was typed. Presets take nothing from the folder.
    pub fn asked(
        &self,
        home: &Home,
        limits: &LimitArgs,
        folder: Option<&Path>,
        hide: Vec<Line>,
    ) -> Result<Asked, Error> {
        self.asked_over(None, home, limits, folder, hide)
    }

    /// The same, over a policy that came along where none is typed.
    pub fn asked_over(
        &self,
        own: Option<Effective>,
        home: &Home,
        limits: &LimitArgs,
        folder: Option<&Path>,
        hide: Vec<Line>,
    ) -> Result<Asked, Error> {
        let mut host = match own.filter(|_| self.policy.is_none()) {
            Some(own) => own,
            None => policy::of_host(home, self.policy.as_deref(), folder)?,
        };
        policy::allow_setup(home, &mut host, &self.setup_network, folder)?;
        if let Some(image) = &self.image {
            host.environment.image = Some(Line {
                text: image.clone(),
                from: typed_as("--image"),
            });
        }
        let value = |line: &Line| {
            let value = std::env::var_os(&line.text)?;
            Some((line.text.clone(), ByteText(value.into_vec())))
        };
        let caller: BTreeMap<String, ByteText> = host.env.pass.iter().filter_map(value).collect();
        Ok(Asked {
            host,
            usual: Limits::for_host(ringfence_jail::total_memory_bytes()),
            limits: limits.bounds(),
            hide,
            caller,
        })
    }
}
