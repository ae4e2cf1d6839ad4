//! One file per command; its doc comment is its help.

pub mod completions;
pub mod diff;
pub mod doctor;
pub mod list;
pub mod logs;
pub mod rm;
pub mod run;
pub mod show;

use ringfence_engine::error::Error;
use ringfence_engine::home::Home;
use ringfence_engine::sandbox::sweep;
use ringfence_engine::store::{Store, recover};

/// The home and its store, with what was lost meanwhile already said so.
fn open() -> Result<(Home, Store), Error> {
    let home = Home::open(None)?;
    let store = Store::open(&home)?;
    // A disk that is full cannot take the word that a run was lost; all else still works.
    if let Ok(recovered) = recover(&store, &home) {
        for run in recovered.lost {
            sweep(run.as_str());
        }
    }
    Ok((home, store))
}
