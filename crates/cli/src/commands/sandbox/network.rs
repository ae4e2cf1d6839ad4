//! `ringfence sandbox network`.

use std::process::ExitCode;

use anstream::{eprintln, println};
use clap::Args;
use ringfence_engine::sandboxes::network::{NetworkChange, network};
use ringfence_model::policy::network::Effect;

use crate::commands::open_host;
use crate::text::clean;

/// Show what a sandbox may reach, or change it while it runs
///
/// Rules are written as in a policy: `api.example.com`, `GET api.example.com/v1/**`,
/// `tcp db.example.com:5432`. Connections that the new rules do not allow are closed.
#[derive(Debug, Args)]
pub struct Network {
    /// Id, its beginning, name, or `last`
    #[arg(value_name = "SANDBOX")]
    sandbox: String,
    /// Allow this from now on
    #[arg(long, value_name = "RULE")]
    allow: Vec<String>,
    /// Deny this from now on, whatever allows it
    #[arg(long, value_name = "RULE")]
    deny: Vec<String>,
    /// Take a rule away, or all rules of a host
    #[arg(long, value_name = "RULE")]
    revoke: Vec<String>,
    /// Take all rules away
    #[arg(long)]
    offline: bool,
    /// Print the rules as JSON
    #[arg(long)]
    json: bool,
}

impl Network {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let host = open_host()?;
        let id = host.store.find_sandbox(&self.sandbox)?.id;
        let change = NetworkChange {
            allow: self.allow,
            deny: self.deny,
            revoke: self.revoke,
            offline: self.offline,
        };
        let now = network(&host, id, &change)?;
        match now.closed {
            0 => {}
            1 => eprintln!("1 connection was closed"),
            n => eprintln!("{n} connections were closed"),
        }
        if now.later {
            eprintln!(
                "what runs began offline and stays so; `ringfence sandbox stop {id}` ends it, and the next command has the new rules"
            );
        }
        if self.json {
            println!("{}", serde_json::to_string_pretty(&now.rules)?);
            return Ok(ExitCode::SUCCESS);
        }
        if now.rules.0.is_empty() {
            eprintln!("{id} is offline");
        }
        for rule in &now.rules.0 {
            let effect = match rule.effect {
                Effect::Allow => "allow",
                Effect::Deny => "deny",
            };
            let from = clean(&rule.from.to_string());
            println!("{effect:<5}  {rule}  ({from})");
        }
        Ok(ExitCode::SUCCESS)
    }
}
