//! The bounds of a sandbox and its variables, as they are typed.

use anstream::eprintln;
use clap::Args;
use ringfence_model::ByteText;
use ringfence_model::limits::{Limit, QuantityError, parse_duration_seconds, parse_size};
use ringfence_model::policy::network::Origin;
use ringfence_model::policy::{Bound, Bounds};
use std::os::unix::ffi::OsStringExt as _;

use crate::text::clean;

/// Bounds.
#[derive(Debug, Args)]
pub struct LimitArgs {
    /// Stop after this long, e.g. `90s`, `30m`, `2h`, `none`
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Quantity>,
    /// Memory for all processes together, e.g. `4G`, `none`
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<Quantity>,
    /// How many processes and threads there may be
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(4..=1_000_000))]
    pids: Option<u64>,
    /// What may be written to the workspace, e.g. `10G`, `none`
    #[arg(long, value_name = "SIZE", value_parser = size)]
    disk: Option<Quantity>,
    /// How many files may be made in the workspace, e.g. `5000`, `none`
    #[arg(long, value_name = "N", value_parser = size)]
    inodes: Option<Quantity>,
    /// Processor time of all processes together, e.g. `10m`
    #[arg(long, value_name = "TIME", value_parser = duration)]
    cpu_time: Option<Quantity>,
    /// How many files each process may have open
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(16..))]
    open_files: Option<u64>,
    /// How large a single file may grow, e.g. `1G`, `none`
    #[arg(long, value_name = "SIZE", value_parser = size)]
    file_size: Option<Quantity>,
    /// How much the command may print, e.g. `100M`, `none`
    #[arg(long, value_name = "SIZE", value_parser = size)]
    output: Option<Quantity>,
}

/// Variables of the command.
#[derive(Debug, Args)]
pub struct VariableArgs {
    /// Set an environment variable inside
    #[arg(long, value_name = "K=V", value_parser = parse_variable)]
    env: Vec<(ByteText, ByteText)>,
    /// Pass an environment variable of the host
    #[arg(long, value_name = "K")]
    pass_env: Vec<String>,
}

/// A bound as it was typed: a number, or `none`.
#[derive(Clone, Copy, Debug)]
pub struct Quantity(pub Option<u64>);

fn size(text: &str) -> Result<Quantity, QuantityError> {
    parse_size(text).map(Quantity)
}

/// A span of time, or `none`.
pub fn duration(text: &str) -> Result<Quantity, QuantityError> {
    parse_duration_seconds(text).map(Quantity)
}

fn parse_variable(text: &str) -> Result<(ByteText, ByteText), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.into(), value.into())),
        _ => Err(format!("`{text}` is not of the form K=V")),
    }
}

impl LimitArgs {
    /// What was typed, over what a policy says.
    pub fn bounds(&self) -> Bounds {
        let count = |most: Option<u64>| most.map(|most| Quantity(Some(most)));
        [
            (Limit::Time, "--timeout", self.timeout),
            (Limit::Memory, "--memory", self.memory),
            (Limit::Processes, "--pids", count(self.pids)),
            (Limit::Disk, "--disk", self.disk),
            (Limit::Inodes, "--inodes", self.inodes),
            (Limit::Cpu, "--cpu-time", self.cpu_time),
            (Limit::OpenFiles, "--open-files", count(self.open_files)),
            (Limit::FileSize, "--file-size", self.file_size),
            (Limit::Output, "--output", self.output),
        ]
        .into_iter()
        .filter_map(|(limit, option, typed)| {
            let Quantity(most) = typed?;
            let from = typed_as(option);
            Some((limit, Bound { most, from }))
        })
        .collect()
    }
}

/// The origin of what was typed.
pub fn typed_as(option: &str) -> Origin {
    Origin {
        file: option.to_owned(),
        line: 0,
    }
}

impl VariableArgs {
    /// All of them; what is not set here is said so.
    pub fn variables(&self) -> Vec<(ByteText, ByteText)> {
        let mut env = self.env.clone();
        for key in &self.pass_env {
            match std::env::var_os(key) {
                Some(value) => env.push((key.as_str().into(), ByteText(value.into_vec()))),
                None => eprintln!(
                    "warning: `{}` is not set here and cannot be passed",
                    clean(key)
                ),
            }
        }
        env
    }
}
