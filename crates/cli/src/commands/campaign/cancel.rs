//! `ringfence campaign cancel`.

use std::process::ExitCode;

use anstream::eprintln;
use clap::Args;
use ringfence_engine::campaign::{self, CampaignError};
use ringfence_engine::error::Error;

use crate::commands::open;

/// Ask whoever works on a campaign to stop, as Ctrl-C there would
#[derive(Debug, Args)]
pub struct Cancel {
    /// The campaign
    name: String,
}

impl Cancel {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (home, store) = open()?;
        let record = store.campaign(&self.name)?;
        if !campaign::is_driven(&home, &record)? {
            return Err(Error::from(CampaignError::NotDriven(record.name)).into());
        }
        store.ask_campaign_to_stop(record.id)?;
        eprintln!("campaign {} is asked to stop", record.name);
        eprintln!("  go on later: ringfence campaign resume {}", record.name);
        Ok(ExitCode::SUCCESS)
    }
}
