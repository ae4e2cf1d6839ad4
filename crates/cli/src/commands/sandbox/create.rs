//! `ringfence sandbox create`.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use anstream::eprintln;
use clap::{Args, ValueEnum};
use ringfence_engine::mirror::Progress;
use ringfence_engine::sandboxes::create::{CreateRequest, From, Stage, create};
use ringfence_engine::store::AutoCheckpoint;
use ringfence_engine::workspace::Ignored;
use serde_json::json;

use crate::commands::backends::HeldArgs;
use crate::commands::limits::{LimitArgs, Quantity, VariableArgs, duration};
use crate::commands::open_host;
use crate::commands::policy::PolicyArgs;
use crate::text::{clean, clean_json, shorten};

/// Make a sandbox from a repository, a folder, or nothing
///
/// A repository is cloned once and only fetched later; the tree of a commit is checked out once and
/// shared. A folder without `--base` is taken as it is now, uncommitted and ignored files included.
/// Nothing runs until the first `ringfence sandbox exec`.
#[derive(Debug, Args)]
pub struct Create {
    /// A URL, or the path of a repository or folder [default: the current directory]
    #[arg(long, value_name = "URL|PATH", conflicts_with = "empty")]
    repo: Option<String>,
    /// A branch, tag or commit of it [default: its HEAD; for a path the folder as it is]
    #[arg(long, value_name = "REV", conflicts_with = "empty")]
    base: Option<String>,
    /// Start with an empty workspace
    #[arg(long)]
    empty: bool,
    /// What of it is there: all, or only `--files`
    #[arg(long, value_enum, default_value_t = StageWord::Whole, value_name = "WHAT")]
    stage: StageWord,
    /// Files that are needed: paths, or patterns such as `src/**/*.py`
    #[arg(long, value_name = "PATH|GLOB", num_args = 1..)]
    files: Vec<String>,
    /// A name for this sandbox
    #[arg(long)]
    name: Option<String>,
    /// A word that several sandboxes share, for `stop --tag`
    #[arg(long)]
    tag: Option<String>,
    /// Make a checkpoint by itself
    #[arg(long, value_enum, default_value_t = CheckpointWord::Never, value_name = "WHEN")]
    checkpoint: CheckpointWord,
    /// End its execution when nothing was asked of it for this long, e.g. `30m`, `none`
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1h")]
    idle_timeout: Quantity,
    /// Let it expire after this long, e.g. `8h`
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "none")]
    ttl: Quantity,
    /// Let ignored files be part of its patch as well
    #[arg(long)]
    include_ignored: bool,
    #[command(flatten)]
    policy: PolicyArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    held: HeldArgs,
    #[command(flatten)]
    variables: VariableArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StageWord {
    Whole,
    Needed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CheckpointWord {
    Never,
    EachExec,
}

/// BOUND: as many as are read.
const NOTES: usize = 6;

impl Create {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let host = open_host()?;
        let stage = match (self.stage, self.files.is_empty()) {
            (StageWord::Whole, true) => Stage::Whole,
            (StageWord::Needed, false) => Stage::Needed(self.files.clone()),
            (StageWord::Needed, true) => {
                anyhow::bail!("`--stage needed` wants to know which: `--files …`")
            }
            (StageWord::Whole, false) => anyhow::bail!("`--files` goes with `--stage needed`"),
        };
        let from = if self.empty {
            From::Empty
        } else {
            From::Repository {
                typed: self.repo.clone().unwrap_or_else(|| ".".to_owned()),
                revision: self.base.clone(),
            }
        };
        let folder = match &from {
            From::Repository { typed, .. } => std::fs::canonicalize(typed).ok(),
            From::Empty => None,
        };
        let request = CreateRequest {
            backend: self.held.choice(),
            from,
            stage,
            name: self.name,
            tag: self.tag,
            policy: self
                .policy
                .asked(&host.home, &self.limits, folder.as_deref())?,
            env: self.variables.variables(),
            ignored: if self.include_ignored {
                Ignored::Included
            } else {
                Ignored::LeftBehind
            },
            idle_seconds: self.idle_timeout.0,
            ttl_seconds: self.ttl.0,
            auto_checkpoint: match self.checkpoint {
                CheckpointWord::Never => AutoCheckpoint::Never,
                CheckpointWord::EachExec => AutoCheckpoint::EachExec,
            },
        };
        let mut lines = Lines::default();
        let created = create(&host, &request, &mut lines);
        lines.finish();
        let created = created?;
        let mut out = std::io::stdout().lock();
        if self.json {
            let value = json!({
                "sandbox": created.sandbox,
                "base": created.base,
                "commit": created.commit,
                "notes": created.notes,
            });
            writeln!(out, "{}", clean_json(&value.to_string()))?;
        } else {
            for note in created.notes.iter().take(NOTES) {
                eprintln!("  note: {}", shorten(note, 200));
            }
            if created.notes.len() > NOTES {
                let more = created.notes.len() - NOTES;
                eprintln!("  … and {more} more notes; `--json` lists them");
            }
            writeln!(out, "{}", created.sandbox)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Progress of a clone: one line that changes on a terminal, lines elsewhere.
#[derive(Debug, Default)]
struct Lines {
    shown: bool,
}

impl Progress for Lines {
    fn say(&mut self, line: &str) {
        if std::io::stderr().is_terminal() {
            let _ = write!(std::io::stderr(), "\r\x1b[2K{}", clean(line));
            self.shown = true;
        } else if !line.contains('%') {
            eprintln!("{}", clean(line));
        }
    }
}

impl Lines {
    fn finish(&mut self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }
}
