//! `ringfence audit`.

mod page;
mod verify;
mod words;

use std::ffi::{OsStr, OsString};
use std::io::{BufWriter, IsTerminal as _, Write};
use std::path::Path;
use std::process::ExitCode;

use anstream::eprintln;
use clap::{Args, Subcommand};
use ringfence_engine::audit::{
    Filter, Followed, Found, Kept, Life, Story, Tree, at_path, find, names_a_path,
};
use ringfence_engine::error::Error;
use serde_json::json;

use super::open;
use crate::console::window_size;
use crate::text::{clean, clean_json};
use page::Page;

/// BOUND: what is cut to the width of a terminal has this many columns in a file or pipe.
const COLUMNS_IN_A_PIPE: usize = 4096;

/// Tell what happened in a run: each program, who started it, how it ended, how long it took
///
/// It is told from the journal, which is written outside of the sandbox from what the kernel showed;
/// no word of the agent is in it. What one program does inside itself is one line, reading is not
/// recorded, and a write says who opened a file for writing, which is evidence and not proof.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Audit {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    look: Look,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Verify(verify::Verify),
}

#[derive(Debug, Args)]
struct Look {
    /// Id, its beginning, name, or `last`; a lasting sandbox; a bundle's directory; a journal
    #[arg(default_value = "last", value_name = "RUN")]
    run: OsString,
    /// As a tree of processes
    #[arg(long)]
    tree: bool,
    /// The events as the journal has them, one JSON object per line
    #[arg(long, conflicts_with = "tree")]
    json: bool,
    /// Only where the arguments, the program or a path match this regular expression
    #[arg(long, value_name = "PATTERN")]
    grep: Option<String>,
    /// Only what failed, was denied or met a limit; with `--writes`, what failing programs wrote
    #[arg(long)]
    failed: bool,
    /// Only what was opened for writing, made, renamed or removed in the workspace, and by whom
    #[arg(long)]
    writes: bool,
    /// Only what was asked of the network, let through or not
    #[arg(long, conflicts_with_all = ["tree", "writes", "programs"])]
    network: bool,
    /// Each file that was executed: how often, its size and SHA-256
    #[arg(long, conflicts_with_all = ["tree", "writes", "failed"])]
    programs: bool,
}

impl Audit {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.verb {
            Some(Verb::Verify(verify)) => verify.run(),
            None => self.look.run(),
        }
    }
}

/// What is meant by what was typed.
pub(super) fn found(text: &OsStr) -> Result<Found, Error> {
    let name = text.to_str().filter(|name| !names_a_path(name));
    let found = match name {
        Some(name) => {
            let (home, store) = open()?;
            find(&home, &store, name)?
        }
        None => at_path(Path::new(text))?,
    };
    for doubt in &found.doubts {
        eprintln!("note: {}", clean(doubt));
    }
    Ok(found)
}

impl Look {
    fn run(self) -> anyhow::Result<ExitCode> {
        let pattern = self.grep.as_deref().map(Filter::matching);
        let mut filter = pattern
            .transpose()
            .map_err(Error::from)?
            .unwrap_or_default();
        filter.failed = self.failed;
        filter.writes = self.writes;
        filter.network = self.network;
        let found = found(&self.run)?;
        let stdout = std::io::stdout().lock();
        let width = if stdout.is_terminal() {
            window_size().map_or(120, |size| usize::from(size.columns))
        } else {
            COLUMNS_IN_A_PIPE
        };
        let mut out = BufWriter::new(stdout);
        let mut code = ExitCode::SUCCESS;
        for kept in &found.journals {
            let (story, followed) = Story::read(kept).map_err(Error::from)?;
            if let (Some(execution), false) = (kept.execution, self.json) {
                writeln!(out, "execution {execution}")?;
            }
            self.tell(&mut out, kept, &story, &filter, width)?;
            out.flush()?;
            if report(kept, &followed) {
                code = ExitCode::FAILURE;
            }
        }
        Ok(code)
    }

    fn tell(
        &self,
        out: &mut dyn Write,
        kept: &Kept,
        story: &Story,
        filter: &Filter,
        width: usize,
    ) -> anyhow::Result<()> {
        let page = Page { story, width };
        if self.programs {
            return self.programs(out, kept, story, filter);
        }
        if self.json {
            for line in &story.lines {
                if filter.wants(story, &line.event) {
                    writeln!(out, "{}", line.to_json()?)?;
                }
            }
            return Ok(());
        }
        let mut told = false;
        if self.tree {
            let tree = Tree::of(story, filter);
            tree.walk(|branch| {
                told = true;
                writeln!(out, "{}", page.branch(branch))
            })?;
        } else {
            for line in &story.lines {
                if !filter.wants(story, &line.event) {
                    continue;
                }
                if let Some(row) = page.row(line, filter) {
                    if !told {
                        writeln!(out, "{}", page.header(filter))?;
                    }
                    told = true;
                    writeln!(out, "{row}")?;
                }
            }
        }
        if !told {
            let why = match story.evidence.execs.is_empty() {
                _ if self.network && story.evidence.network.is_empty() => {
                    "nothing asked for the network"
                }
                _ if !filter.is_empty() => "nothing of that kind is recorded",
                true => "no program is recorded",
                false => "nothing is recorded",
            };
            writeln!(out, "{why}")?;
        }
        Ok(())
    }

    fn programs(
        &self,
        out: &mut dyn Write,
        kept: &Kept,
        story: &Story,
        filter: &Filter,
    ) -> anyhow::Result<()> {
        let mut used = story.programs();
        used.retain(|used| filter.is_path_wanted(used.path));
        used.sort_by(|a, b| b.runs.cmp(&a.runs).then_with(|| a.path.cmp(b.path)));
        if self.json {
            for used in used {
                let value = json!({
                    "execution": kept.execution,
                    "program": used.program,
                    "path": used.path,
                    "size": used.size,
                    "sha256": used.sha256,
                    "runs": used.runs,
                });
                writeln!(out, "{}", clean_json(&value.to_string()))?;
            }
            return Ok(());
        }
        if used.is_empty() {
            writeln!(out, "no program is recorded")?;
            return Ok(());
        }
        writeln!(out, "{}", words::PROGRAMS)?;
        for used in &used {
            writeln!(out, "{}", words::program(used))?;
        }
        Ok(())
    }
}

/// Says what a reader must know of a journal beside what it tells; whether something is wrong.
pub(super) fn report(kept: &Kept, followed: &Followed) -> bool {
    if let Some(fault) = &followed.fault {
        eprintln!(
            "error: the journal `{}` is not whole: {}",
            clean(&kept.path.display().to_string()),
            words::fault(fault)
        );
        eprintln!(
            "note: what is told is what its first {} tell",
            words::count(followed.lines, "line")
        );
        return true;
    }
    match kept.life {
        Life::Running => eprintln!("note: it is running; this is what is known so far"),
        Life::Lost => eprintln!("note: it was lost, so its journal may end early"),
        Life::Unknown if !followed.is_ended => eprintln!(
            "note: the journal does not say that all is over: it was running or lost, or lines are gone"
        ),
        Life::Unknown | Life::Over => {}
    }
    false
}
