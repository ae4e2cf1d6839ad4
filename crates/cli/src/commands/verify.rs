//! `ringfence verify`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use ringfence_engine::error::Error;
use ringfence_engine::home::Home;
use ringfence_engine::keys;
use ringfence_engine::store::StoreError;
use ringfence_engine::verify::{Report, Request, Verdict, verify};
use ringfence_model::outcome::RunStatus;

use super::open;
use crate::text::{clean, clean_json};

/// Verify that a bundle is whole, says the same everywhere, and who signed it
///
/// Works offline and on any machine. A directory is read as it is, and no home is made for it; its
/// signer is trusted if it is this installation's own key, one of `ringfence key trust`, or the one
/// given with `--key`.
///
/// The exit code is 0 if everything that could be checked holds and the signer is trusted, 1 if
/// something does not hold, and 3 if all holds but the signer is not trusted. What could not be
/// checked because the base is not here is said and is no failure, unless `--base` named one.
#[derive(Debug, Args)]
pub struct Verify {
    /// A run (id, its beginning, name, or `last`), or the directory of a bundle
    #[arg(default_value = "last", value_name = "RUN|DIR")]
    bundle: String,
    /// A folder or repository that has what the run started from [default: the recorded folder]
    #[arg(long, value_name = "FOLDER|REPO")]
    base: Option<PathBuf>,
    /// Trust the public key in this file (PEM), and no other
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Print what was found as one JSON object
    #[arg(long)]
    json: bool,
}

impl Verify {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (bundle, home) = self.find()?;
        let keys = match &self.key {
            Some(path) => {
                let name = format!("the key in {}", path.display());
                vec![(name, keys::read_public(path).map_err(Error::Key)?)]
            }
            None => match &home {
                Some(home) => keys::all_trusted(home).map_err(Error::Key)?,
                None => Vec::new(),
            },
        };
        let report = verify(&Request {
            bundle,
            keys,
            base: self.base,
        })?;
        let mut out = std::io::stdout().lock();
        if self.json {
            writeln!(out, "{}", clean_json(&serde_json::to_string(&report)?))?;
        } else {
            tell(&report, &mut out)?;
        }
        Ok(ExitCode::from(report.verdict.exit_code()))
    }

    /// Where the bundle is, and the home if there is one.
    fn find(&self) -> anyhow::Result<(PathBuf, Option<Home>)> {
        let path = Path::new(&self.bundle);
        let found = Home::find(None).map_err(Error::Home)?;
        let is_path = self.bundle.contains('/') || self.bundle.starts_with('.');
        if is_path || (found.is_none() && path.is_dir()) {
            return Ok((path.to_owned(), found));
        }
        let (home, store) = open()?;
        let run = match store.find(&self.bundle) {
            Err(StoreError::NotFound { .. } | StoreError::NoRuns) if path.is_dir() => {
                return Ok((path.to_owned(), Some(home)));
            }
            run => run?,
        };
        if run.status == RunStatus::Running {
            return Err(Error::StillRunning(run.id.to_string()).into());
        }
        let bundle = home.bundle(run.id);
        if !bundle.exists() {
            let run = run.id.to_string();
            let what = "bundle";
            return Err(Error::NotKept { run, what }.into());
        }
        Ok((bundle, Some(home)))
    }
}

fn tell(report: &Report, out: &mut impl std::io::Write) -> std::io::Result<()> {
    for check in &report.checks {
        writeln!(
            out,
            "{:<11}  {:<9}  {}",
            check.state.as_str(),
            check.check,
            clean(&check.detail).replace('\n', " ")
        )?;
    }
    let verdict = match report.verdict {
        Verdict::Ok => "verified",
        Verdict::Untrusted => {
            "whole, but signed by a key that is not trusted here: anybody can have made it"
        }
        Verdict::Broken => "NOT VERIFIED: this is not what was packed",
    };
    match &report.run {
        Some(run) => writeln!(out, "\nrun {}: {verdict}", clean(run)),
        None => writeln!(out, "\n{verdict}"),
    }
}
