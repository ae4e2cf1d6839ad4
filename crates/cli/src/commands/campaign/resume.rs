//! `ringfence campaign resume`.

use std::path::PathBuf;
use std::process::ExitCode;

use anstream::eprintln;
use clap::Args;
use ringfence_engine::campaign::{self, Again, CampaignError};
use ringfence_engine::error::Error;
use ringfence_engine::store::CampaignRecord;
use ringfence_jail::signals::Signals;

use super::sit::{Bounds, planned, sit, typed};
use crate::commands::open;
use crate::text::{clean, plural};

/// Go on with a campaign that was stopped, was killed, or has spent its budget
///
/// What is finished is not done again, unless `--failed` asks for what did not pass.
#[derive(Debug, Args)]
pub struct Resume {
    /// The campaign
    name: String,
    /// Take over a plan that was edited: tasks that stay are not done again, new ones are added
    #[arg(long, value_name = "PLAN")]
    plan: Option<PathBuf>,
    /// Do again what is finished and did not pass
    #[arg(long)]
    failed: bool,
    #[command(flatten)]
    bounds: Bounds,
    /// Print what happens as JSON, one object in a line
    #[arg(long)]
    json: bool,
}

impl Resume {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let signals = Signals::hold()?;
        let (home, store) = open()?;
        let mut record = store.campaign(&self.name)?;
        if campaign::is_driven(&home, &record)? {
            return Err(Error::from(CampaignError::Driven(record.name)).into());
        }
        let again = if self.failed {
            Again::Unsuccessful
        } else {
            Again::Nothing
        };
        record.settings = self.bounds.over(record.settings);
        if let Some(file) = &self.plan {
            let planned = planned(&home, &signals, file, Some(&record.folder))?;
            for note in &planned.notes {
                eprintln!("note: {}", clean(note));
            }
            let diff = campaign::against(&store, &record, &planned)?;
            eprintln!(
                "the plan: {} the same, {} added, {} dropped",
                plural(diff.same.len(), "task"),
                diff.added.len(),
                diff.removed.len()
            );
            if let Some(task) = planned.documents.first() {
                campaign::ready(&home, &typed()?, task).map_err(Error::from)?;
            }
            let settings = self.bounds.over(planned.settings);
            record = campaign::replan(&store, &record, &planned, settings)?;
        } else if let Some(task) = campaign::next_task(&store, &record, again)? {
            campaign::ready(&home, &typed()?, &task).map_err(Error::from)?;
        }
        let record = CampaignRecord {
            stop_asked: false,
            ..record
        };
        sit(&home, &store, &record, &signals, again, self.json)
    }
}
