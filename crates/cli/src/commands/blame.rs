//! `ringfence blame`.

pub mod page;

use std::ffi::OsString;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use ringfence_engine::blame::{Asked, Blame as Bundle, BlameError};
use ringfence_engine::error::Error;
use ringfence_engine::store::StoreError;
use ringfence_model::outcome::RunStatus;

use super::open;
use crate::text::clean_json;

/// Tell who made each change of a run: the program, its arguments, and what started it
///
/// Without a path, all changed files are listed with their last writer. With one, each of its hunks
/// is shown and under it who made it. A path counts from the working directory, from the top of the
/// repository, or from the folder of the run; a directory stands for all below it.
///
/// Named is who opened a file for writing, or moved or removed it, as the kernel showed it: that is
/// evidence, not proof. Where several wrote to a file and it cannot be told which of them made a
/// hunk, all of them are named.
#[derive(Debug, Args)]
pub struct Blame {
    /// A run (id, its beginning, name, or `last`), or the directory of a bundle
    #[arg(default_value = "last", value_name = "RUN|DIR")]
    run: String,
    /// A changed file or directory
    #[arg(value_name = "PATH")]
    path: Option<OsString>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Blame {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let bundle = Bundle::open(&self.find()?)?;
        let numbers = match &self.path {
            Some(path) => {
                let cwd = std::env::current_dir().unwrap_or_default();
                let path = Path::new(path);
                let found = bundle.find(&Asked { path, cwd: &cwd });
                Some(found.map_err(Error::from)?)
            }
            None => None,
        };
        let mut out = BufWriter::new(std::io::stdout().lock());
        if self.json {
            let value = page::json(&bundle, numbers.as_deref())?;
            writeln!(out, "{}", clean_json(&serde_json::to_string(&value)?))?;
        } else {
            match &numbers {
                Some(numbers) => page::files(&bundle, numbers, &mut out)?,
                None => page::list(&bundle, &mut out)?,
            }
        }
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }

    /// Where the bundle is.
    fn find(&self) -> anyhow::Result<PathBuf> {
        let path = Path::new(&self.run);
        if self.run.contains('/') || self.run.starts_with('.') {
            return Ok(path.to_owned());
        }
        let (home, store) = open()?;
        let run = match store.find(&self.run) {
            Err(StoreError::NotFound { .. } | StoreError::NoRuns) if path.is_dir() => {
                return Ok(path.to_owned());
            }
            Err(StoreError::NotFound { .. }) if self.path.is_none() && self.run.contains('.') => {
                // What looks like the name of a file was mostly meant as one.
                let path = path.to_owned();
                return Err(Error::from(BlameError::NotABundle { path }).into());
            }
            run => run?,
        };
        if run.status == RunStatus::Running {
            return Err(Error::StillRunning(run.id.to_string()).into());
        }
        let bundle = home.bundle(run.id);
        if run.status == RunStatus::Lost || !bundle.exists() {
            let run = run.id.to_string();
            let what = "bundle";
            return Err(Error::NotKept { run, what }.into());
        }
        Ok(bundle)
    }
}
