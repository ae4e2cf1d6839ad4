//! `ringfence campaign rm`.

use std::process::ExitCode;

use anstream::eprintln;
use clap::Args;
use ringfence_engine::campaign::{self, CampaignError};
use ringfence_engine::error::Error;

use crate::commands::open;

/// Forget a campaign; its runs and their bundles stay
#[derive(Debug, Args)]
pub struct Rm {
    /// The campaign
    name: String,
}

impl Rm {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (home, store) = open()?;
        let record = store.campaign(&self.name)?;
        if !campaign::forget(&home, &store, &record)? {
            return Err(Error::from(CampaignError::Driven(record.name)).into());
        }
        eprintln!("campaign {} is forgotten", record.name);
        eprintln!("  its runs are in `ringfence list`");
        Ok(ExitCode::SUCCESS)
    }
}
