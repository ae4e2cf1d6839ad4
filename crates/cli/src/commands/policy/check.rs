//! `ringfence policy check`.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anstream::eprintln;
use clap::Args;
use ringfence_engine::error::Error;
use ringfence_engine::home::Home;
use ringfence_engine::policy::{self, PolicyError};
use serde_json::json;

use crate::text::{clean, clean_json};

/// Read a policy file and say what is wrong in it
///
/// The files that it extends are read as well, and its presets are looked up. Nothing is started.
/// The exit code is 0 if the policy can be used, 1 if something in it is wrong, and 2 if there is no
/// such file.
#[derive(Debug, Args)]
pub struct Check {
    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Check {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let home = Home::open(None).map_err(Error::from)?;
        let problems = match policy::check(&home, &self.file) {
            Ok(_) => Vec::new(),
            Err(PolicyError::Document(error)) => error.0,
            Err(error) => return Err(Error::Policy(error).into()),
        };
        let ok = problems.is_empty();
        let mut out = std::io::stdout().lock();
        if self.json {
            let value = json!({ "ok": ok, "problems": problems });
            writeln!(out, "{}", clean_json(&value.to_string()))?;
        } else if ok {
            writeln!(out, "ok")?;
        } else {
            for problem in &problems {
                eprintln!("{}", clean(&problem.to_string()));
            }
        }
        Ok(if ok {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}
