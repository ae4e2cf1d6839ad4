//! `ringfence check`.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use ringfence_engine::attend::Inputs;
use ringfence_engine::checks::{Fresh, as_it_ran, check_again};
use ringfence_jail::signals::Signals;

use super::open;
use super::run::How;
use super::run::checks::{CHECKS_FAILED, tell};
use crate::console::{Live, Passing};
use crate::text::clean_json;

/// Check what a run left, in fresh sandboxes, now
///
/// Each check runs on the folder as it was and on the folder with the patch. The folder must be what
/// it was when the run began. What comes of it is recorded beside the bundle, which does not change.
///
/// The exit code is 0 if all checks hold and 5 if one does not.
#[derive(Debug, Args)]
pub struct Check {
    /// Id, its beginning, name, or `last`
    #[arg(value_name = "RUN")]
    run: String,
    /// Do all of it now, whatever is known of the same files
    #[arg(long)]
    again: bool,
    #[command(flatten)]
    how: How,
    /// Print what came of it as one JSON object
    #[arg(long)]
    json: bool,
}

impl Check {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let signals = Signals::hold()?;
        let (home, store) = open()?;
        let run = store.find(&self.run)?;
        let mut request = self.how.request(&home, &run.folder)?;
        as_it_ran(&home, run.id, &mut request)?;
        for note in std::mem::take(&mut request.notes) {
            anstream::eprintln!("note: {}", crate::text::clean(&note));
        }
        let fresh = if self.again {
            Fresh::Again
        } else {
            Fresh::Kept
        };
        let inputs = Inputs {
            stdin: None,
            signals: Some(&signals),
        };
        let mut console = Live::new(Passing::ToStderr, false);
        let checks = check_again(&home, &store, &run, &request, fresh, &inputs, &mut console);
        console.finish();
        let checks = checks?;
        if self.json {
            let mut out = std::io::stdout().lock();
            writeln!(out, "{}", clean_json(&serde_json::to_string(&checks)?))?;
        } else {
            tell(&checks, " ");
        }
        Ok(if checks.hold() {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(CHECKS_FAILED)
        })
    }
}
