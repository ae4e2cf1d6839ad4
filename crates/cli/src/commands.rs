//! One file per command; its doc comment is its help.

pub mod agents;
pub mod apply;
pub mod approve;
pub mod audit;
pub mod backends;
pub mod blame;
pub mod campaign;
pub mod check;
pub mod compare;
pub mod completions;
pub mod denials;
pub mod diff;
pub mod doctor;
pub mod environment;
pub mod eval;
pub mod events;
pub mod gc;
pub mod image;
pub mod init;
pub mod keep;
pub mod key;
mod limits;
pub mod list;
pub mod logs;
pub mod policy;
pub mod review;
pub mod rm;
pub mod run;
pub mod sandbox;
pub mod show;
pub mod status;
pub mod verify;

use std::path::PathBuf;

use ringfence_engine::error::Error;
use ringfence_engine::home::Home;
use ringfence_engine::sandbox::sweep;
use ringfence_engine::sandboxes::Host;
use ringfence_engine::store::{Store, recover};

use crate::text::clean;

/// The home and its store, with what was lost meanwhile already said so.
fn open() -> Result<(Home, Store), Error> {
    let home = Home::open(None)?;
    settle_applying(&home);
    let store = Store::open(&home)?;
    // A disk that is full cannot take the word that a run was lost; all else still works.
    if let Ok(recovered) = recover(&store, &home) {
        for run in recovered.lost {
            sweep(&home, run.as_str());
        }
    }
    Ok((home, store))
}

/// Undoes or finishes what a killed `apply` left in a folder.
fn settle_applying(home: &Home) {
    // What cannot be settled now is settled later.
    for settled in ringfence_engine::apply::recover(home).unwrap_or_default() {
        let done = if settled.finished {
            "it is finished"
        } else {
            "it was undone"
        };
        let top = settled.top.display().to_string();
        anstream::eprintln!(
            "note: applying run {} to `{}` was cut short; {done}",
            settled.run,
            clean(&top)
        );
        for left in settled.left {
            anstream::eprintln!("note: {}", clean(&left));
        }
    }
}

/// The home, its store and this program, as they are.
fn host() -> Result<Host, Error> {
    let home = Home::open(None)?;
    settle_applying(&home);
    let store = Store::open(&home)?;
    Ok(Host {
        home,
        store,
        program: program()?,
    })
}

/// This program.
fn program() -> Result<PathBuf, Error> {
    std::env::current_exe().map_err(|source| Error::ReadFile {
        path: "/proc/self/exe".into(),
        source,
    })
}

/// The same, with what a dead process left half done already settled.
fn open_host() -> Result<Host, Error> {
    let host = host()?;
    // As above: what cannot be settled now is settled later, and its own command says why.
    let _ = ringfence_engine::sandboxes::recover::recover(&host);
    Ok(host)
}
