//! `ringfence sandbox fork`.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use ringfence_engine::sandboxes::fork::{ForkRequest, Point, fork};
use serde_json::json;

use crate::commands::limits::{Quantity, duration};
use crate::commands::open_host;

/// Make copies of a sandbox that share all that is equal
///
/// Each copy is a sandbox of its own. Nothing runs in it until its first command.
#[derive(Debug, Args)]
pub struct Fork {
    /// Id, its beginning, name, or `last`
    #[arg(value_name = "SANDBOX")]
    sandbox: String,
    /// How many
    #[arg(long, default_value_t = 1, value_name = "N")]
    count: usize,
    /// From this checkpoint, not from the present state
    #[arg(long, value_name = "CHECKPOINT")]
    from: Option<String>,
    /// A word that they share, for `stop --tag` [default: that of the sandbox]
    #[arg(long)]
    tag: Option<String>,
    /// Let them expire after this long
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "none")]
    ttl: Quantity,
    /// Print a JSON list
    #[arg(long)]
    json: bool,
}

impl Fork {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let host = open_host()?;
        let id = host.store.find_sandbox(&self.sandbox)?.id;
        let request = ForkRequest {
            count: self.count,
            at: self.from.map_or(Point::Now, Point::Checkpoint),
            tag: self.tag,
            ttl_seconds: self.ttl.0,
        };
        let forks = fork(&host, id, &request)?;
        let mut out = std::io::stdout().lock();
        if self.json {
            let list: Vec<_> = forks
                .iter()
                .map(|fork| json!({ "sandbox": fork, "forked_from": id }))
                .collect();
            writeln!(out, "{}", serde_json::to_string(&list)?)?;
        } else {
            for fork in forks {
                writeln!(out, "{fork}")?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
