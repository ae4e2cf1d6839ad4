//! `ringfence show`.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use ringfence_engine::verdicts::{self, Standing};
use ringfence_engine::{archive, checks};
use ringfence_model::outcome::RunStatus;

use super::approve::words;
use super::{list, open};
use crate::text::{clean, clean_json, time};

/// Show what is known of a run
#[derive(Debug, Args)]
pub struct Show {
    /// Id, its beginning, name, or `last`
    #[arg(default_value = "last", value_name = "RUN")]
    run: String,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

impl Show {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (home, store) = open()?;
        let run = store.find(&self.run)?;
        let mut out = std::io::stdout().lock();
        if self.json {
            let mut value = match archive::result(&home, run.id)? {
                Some(result) => serde_json::to_value(result)?,
                None => list::row(&run),
            };
            value["review"] = list::review_json(&home, &store, &run);
            writeln!(out, "{}", clean_json(&serde_json::to_string(&value)?))?;
            return Ok(ExitCode::SUCCESS);
        }
        match archive::result(&home, run.id)? {
            Some(result) => write!(out, "{}", clean(&result.summary()))?,
            None => {
                writeln!(out, "# Run {}\n", run.id)?;
                writeln!(out, "- command: `{}`", clean(&list::command(&run)))?;
                writeln!(out, "- folder: `{}`", clean(&run.folder.to_string_lossy()))?;
                writeln!(
                    out,
                    "- status: {}, begun {} UTC",
                    run.status.as_str(),
                    time(run.created_us)
                )?;
                let layer = home.upper(run.id);
                if run.status == RunStatus::Lost && layer.exists() {
                    writeln!(
                        out,
                        "- what it wrote is kept in `{}`; `ringfence diff {}` shows it as a patch",
                        layer.display(),
                        run.id
                    )?;
                }
            }
        }
        if let Some(of) = run.campaign() {
            let (name, task) = (clean(&of.name), clean(&of.task));
            writeln!(
                out,
                "\n## Campaign\n\n- task {} (`{task}`) of `{name}`",
                of.number
            )?;
        }
        if run.bundle.is_some() {
            writeln!(out, "\n## Review\n")?;
            match verdicts::proven(&store, &home, &run)? {
                Standing::Held(holds) => {
                    for hold in holds {
                        writeln!(out, "- held: {}", clean(&hold.to_string()))?;
                    }
                }
                Standing::Changed(_) => writeln!(
                    out,
                    "- the bundle is not the one that was approved: it cannot be applied"
                )?,
                Standing::Approved(_) | Standing::Rejected(_) => {}
            }
            for verdict in verdicts::history(&home, &store, run.id.as_str())? {
                writeln!(out, "- {} UTC: {}", time(verdict.at_us), words(&verdict))?;
            }
        }
        if let Some(later) = checks::later(&home, run.id)? {
            writeln!(out, "\n## Checked later, {} UTC\n", time(later.time_us))?;
            for report in &later.checks.reports {
                writeln!(out, "- `{}`: {}", clean(&report.command), report.words())?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
