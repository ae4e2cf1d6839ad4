//! `ringfence policy learn`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anstream::eprintln;
use clap::Args;
use ringfence_engine::audit::Kept;
use ringfence_engine::error::Error;
use ringfence_engine::home::Home;
use ringfence_engine::learn::{Denied, Replay, Seen, propose, replay};
use ringfence_engine::policy;
use ringfence_engine::presets;
use ringfence_model::policy::Effective;
use ringfence_model::policy::preset::Preset;
use serde_json::json;

use crate::commands::audit;
use crate::text::{clean, clean_json};

/// BOUND: lines of a replay that are printed.
const SHOWN: usize = 20;

/// Propose the least policy from what runs did, and replay it against them
///
/// Hosts, methods and paths, written places, changes, memory and time are taken from the journals
/// and results of the runs. What was denied stands in the proposal as a comment. The proposal is
/// then read as any policy is, and asked about everything that these runs did.
///
/// The policy goes to standard output or to a file, the result of the replay to standard error. The
/// exit code is 1 where something would have been denied.
#[derive(Debug, Args)]
pub struct Learn {
    /// Ids, their beginnings, names, or `last`; lasting sandboxes; bundles; journals
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<OsString>,
    /// Propose nothing: replay this policy instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["output", "include_denied"])]
    policy: Option<PathBuf>,
    /// Write the proposal to a file that is not there yet
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Grant what was denied as well
    #[arg(long)]
    include_denied: bool,
    /// Print one JSON object with the proposal and the replay
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

impl Learn {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mut runs = Vec::new();
        let mut whole = true;
        for name in &self.runs {
            for kept in &audit::found(name)?.journals {
                let label = label(&name.to_string_lossy(), kept);
                let (seen, followed) = Seen::read(&label, kept).map_err(Error::from)?;
                whole &= !audit::report(kept, &followed);
                runs.push(seen);
            }
        }
        let home = Home::open(None).map_err(Error::from)?;
        if let Some(file) = &self.policy {
            let effective = policy::check(&home, file).map_err(Error::Policy)?;
            return self.judged(None, &effective, &runs, whole);
        }
        let denied = if self.include_denied {
            Denied::Included
        } else {
            Denied::Listed
        };
        let mut resolved: BTreeMap<String, Option<Preset>> = BTreeMap::new();
        let proposal = propose(&runs, denied, &mut |name| {
            let resolve = || presets::resolve(&home, name, None).ok();
            resolved
                .entry(name.to_owned())
                .or_insert_with(resolve)
                .clone()
        });
        // INVARIANT: what is printed is what was judged, by the one reader of policies.
        let effective = self.read_back(&home, &proposal.text)?;
        self.judged(Some(&proposal.text), &effective, &runs, whole)
    }

    /// Writes the proposal where it shall be, or where it can be read, and reads it.
    fn read_back(&self, home: &Home, text: &str) -> anyhow::Result<Effective> {
        if let Some(path) = &self.output {
            write_anew(path, text)?;
            return Ok(policy::check(home, path).map_err(Error::Policy)?);
        }
        Ok(policy::check_text(home, text).map_err(Error::Policy)?)
    }

    fn judged(
        &self,
        text: Option<&str>,
        policy: &Effective,
        runs: &[Seen],
        whole: bool,
    ) -> anyhow::Result<ExitCode> {
        let replayed = replay(policy, runs)?;
        if self.json {
            let value = json!({ "policy": text, "runs": runs.len(), "replay": replayed });
            writeln!(std::io::stdout(), "{}", clean_json(&value.to_string()))?;
        } else {
            match (&self.output, text) {
                (None, Some(text)) => std::io::stdout().write_all(text.as_bytes())?,
                (Some(path), _) => eprintln!("written to `{}`", clean(&path.display().to_string())),
                (None, None) => {}
            }
            tell(&replayed, runs.len());
        }
        Ok(if replayed.denied == 0 && whole {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

/// What a run is called in a file that is read later, when another one is the last.
fn label(typed: &str, kept: &Kept) -> String {
    let bundle = kept.path.parent().and_then(Path::file_name);
    match (kept.execution, bundle) {
        (Some(number), _) => format!("{typed} execution {number}"),
        (None, Some(bundle)) if matches!(typed, "last" | "@") => {
            bundle.to_string_lossy().into_owned()
        }
        (None, _) => typed.to_owned(),
    }
}

fn tell(replayed: &Replay, runs: usize) {
    let runs = match runs {
        1 => "1 run".to_owned(),
        runs => format!("{runs} runs"),
    };
    let unused = if replayed.unused.is_empty() {
        "none".to_owned()
    } else {
        replayed.unused.join(", ")
    };
    eprintln!(
        "replayed against {runs}: would have denied {} of {}; unused grants: {}",
        replayed.denied,
        replayed.asked,
        clean(&unused)
    );
    if replayed.unsure > 0 {
        eprintln!(
            "note: of {} the content was not seen, so it cannot be told whether all of it would be allowed",
            replayed.unsure
        );
    }
    for would in replayed.listed.iter().take(SHOWN) {
        eprintln!(
            "  would deny: {} ({})",
            clean(&would.what),
            clean(&would.run)
        );
    }
    if let Some(more @ 1..) = replayed.listed.len().checked_sub(SHOWN) {
        eprintln!("  and {more} more; `--json` lists them");
    }
}

/// A file that is there may be somebody's policy.
fn write_anew(path: &Path, text: &str) -> anyhow::Result<()> {
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().map_err(|source| match source.kind() {
        ErrorKind::AlreadyExists => anyhow::anyhow!(
            "`{}` is there already; name another file, or remove it first",
            path.display()
        ),
        _ => Error::WriteFile {
            path: path.to_owned(),
            source,
        }
        .into(),
    })
}
