//! `ringfence run --task`: one task document instead of options.

use std::path::Path;

use anstream::eprintln;
use ringfence_engine::campaign::{self, Typed};
use ringfence_engine::error::Error;
use ringfence_engine::home::Home;
use ringfence_engine::run::RunRequest;

/// Reads the document; what is typed counts more than what it says.
pub fn request(home: &Home, file: &Path, typed: &Typed) -> Result<RunRequest, Error> {
    let task = campaign::open_task(file)?;
    if task.rounds.attempts > 1 {
        eprintln!("note: this is one attempt");
    }
    campaign::request(home, &task, file, typed)
}
