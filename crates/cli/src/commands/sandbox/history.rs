//! `ringfence sandbox history`.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use ringfence_model::ByteText;
use serde_json::json;

use crate::commands::open_host;
use crate::text::{clean, clean_json, time};

/// List the commands that were run in a sandbox, through all its executions
#[derive(Debug, Args)]
pub struct History {
    /// Id, its beginning, name, or `last`
    #[arg(value_name = "SANDBOX")]
    sandbox: String,
    /// How many at most
    #[arg(short = 'n', long, default_value_t = 50, value_name = "N")]
    limit: usize,
    /// Only those of this session
    #[arg(long, value_name = "NAME")]
    session: Option<String>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

impl History {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let host = open_host()?;
        let id = host.store.find_sandbox(&self.sandbox)?.id;
        let mut out = std::io::stdout().lock();
        for call in host.store.calls(id, self.limit)? {
            if self.session.is_some() && call.session != self.session {
                continue;
            }
            if self.json {
                let value = json!({
                    "sequence": call.sequence,
                    "incarnation": call.incarnation,
                    "session": call.session,
                    "argv": call.argv,
                    "began_us": call.began_us,
                    "ended_us": call.ended_us,
                    "outcome": call.outcome,
                    "exit_code": call.exit_code,
                    "signal": call.signal,
                });
                writeln!(out, "{}", clean_json(&value.to_string()))?;
                continue;
            }
            let words: Vec<String> = call.argv.iter().map(ByteText::to_text).collect();
            let ending = match (call.outcome, call.exit_code, call.signal) {
                (None, _, _) => "?".to_owned(),
                (_, Some(code), _) => code.to_string(),
                (_, _, Some(signal)) => format!("signal {signal}"),
                (Some(outcome), _, _) => outcome.as_str().to_owned(),
            };
            writeln!(
                out,
                "{:>4}  {}  #{}  {:>3}  {}",
                call.sequence,
                time(call.began_us),
                call.incarnation,
                ending,
                clean(&words.join(" ")).replace('\n', " ")
            )?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
