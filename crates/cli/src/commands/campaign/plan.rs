//! `ringfence campaign plan`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anstream::eprintln;
use clap::Args;
use ringfence_engine::attend::Inputs;
use ringfence_engine::campaign::{self, CampaignError, PlanRequest, Planned, PlannedTask};
use ringfence_engine::error::Error;
use ringfence_engine::home::Home;
use ringfence_engine::store::Store;
use ringfence_jail::signals::Signals;
use ringfence_model::bundle::Base;
use ringfence_model::limits::{HumanBytes, Limits};
use ringfence_model::plan::SplitDiff;
use ringfence_model::split::{Oversize, When};

use super::sit::typed;
use crate::console::window_size;
use crate::text::{clean, clean_json, plural, shorten};

/// Show the tasks that a plan comes to; nothing is run and nothing in the folder changes
///
/// A plan says which files a job is about and how they are split: by pattern, by content, by
/// directory, by imports, or by a command that prints groups and runs in a sandbox without a network.
/// Each file is in one task; docs/campaigns.md has all that a plan can say.
#[derive(Debug, Args)]
pub struct Plan {
    /// The plan, a TOML file
    #[arg(value_name = "PLAN")]
    file: PathBuf,
    /// The folder that is worked on [default: the current directory]
    #[arg(long, value_name = "FOLDER")]
    repo: Option<PathBuf>,
    /// Write a document for each task into this directory, for `ringfence run --task`
    #[arg(long, value_name = "DIR")]
    write: Option<PathBuf>,
    /// Say what differs from an earlier split: a file with what `--json` printed then, or the name
    /// of a campaign [default: the campaign of the plan's name, where there is one]
    #[arg(long, value_name = "FILE|NAME")]
    against: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Plan {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let signals = Signals::hold()?;
        let home = Home::open(None)?;
        let folder = match &self.repo {
            Some(folder) => folder.clone(),
            None => std::env::current_dir()?,
        };
        let request = PlanRequest {
            file: self.file.clone(),
            folder,
            usual: Limits::for_host(ringfence_jail::total_memory_bytes()),
        };
        let inputs = Inputs {
            stdin: None,
            signals: Some(&signals),
        };
        let mut planned = campaign::plan(&home, &request, &inputs)?;
        signals.release();
        if let Some(task) = planned.documents.first()
            && let Err(error) = campaign::ready(&home, &typed()?, task)
        {
            let hint = error.hint().map(|hint| format!("; {hint}"));
            let hint = hint.unwrap_or_default();
            let note = format!("it cannot be run yet: {error}{hint}");
            planned.notes.push(note);
        }
        let diff = self.diff(&home, &planned)?;
        if let Some(directory) = &self.write {
            campaign::write(&planned, directory)?;
        }
        let mut out = std::io::stdout().lock();
        if self.json {
            let mut value = serde_json::to_value(&planned)?;
            if let Some(diff) = &diff {
                value["diff"] = serde_json::to_value(diff)?;
            }
            writeln!(out, "{}", clean_json(&value.to_string()))?;
            return Ok(ExitCode::SUCCESS);
        }
        table(&mut out, &planned)?;
        if let Some(diff) = &diff {
            tell_diff(&mut out, diff)?;
        }
        drop(out);
        if let Some(directory) = &self.write {
            eprintln!(
                "{} written to {}",
                plural(planned.tasks.len(), "task document"),
                clean(&directory.to_string_lossy())
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Plan {
    /// What differs from what was there before, where there was something.
    fn diff(&self, home: &Home, planned: &Planned) -> anyhow::Result<Option<SplitDiff>> {
        if let Some(file) = self.against.as_deref().filter(|file| file.exists()) {
            return Ok(Some(campaign::compare(file, planned)?));
        }
        let typed = self.against.as_ref().map(|name| name.to_string_lossy());
        let store = Store::open(home)?;
        let name = typed.as_deref().unwrap_or(&planned.name);
        match (campaign::find(&store, name)?, &typed) {
            (Some(record), _) if typed.is_some() || record.folder == planned.folder => {
                Ok(Some(campaign::against(&store, &record, planned)?))
            }
            (None, Some(name)) => {
                Err(Error::from(CampaignError::NoEarlier(name.to_string())).into())
            }
            _ => Ok(None),
        }
    }
}

fn table(out: &mut dyn Write, planned: &Planned) -> std::io::Result<()> {
    let base = match &planned.base {
        Base::Commit { commit, .. } => format!("at commit {}", &commit[..commit.len().min(12)]),
        Base::DirtyFolder { commit, .. } => {
            format!(
                "at commit {} and changed since",
                &commit[..commit.len().min(12)]
            )
        }
        Base::Folder { .. } => "in no repository".to_owned(),
    };
    let folder = clean(&planned.folder.to_string_lossy());
    writeln!(out, "campaign {}: {folder}, {base}", clean(&planned.name))?;
    writeln!(out)?;
    // What stands before the files takes 43 columns.
    let width = window_size().map_or(120, |size| usize::from(size.columns));
    let room = width.saturating_sub(43).max(20);
    writeln!(
        out,
        "{:>5}  {:<16}  {:>5}  {:>7}  FIRST FILE",
        "TASK", "ID", "FILES", "LINES"
    )?;
    for task in &planned.tasks {
        let shown = first_file(task, room);
        writeln!(
            out,
            "{:>5}  {:<16}  {:>5}  {:>7}  {shown}",
            task.number,
            task.id,
            task.files.len(),
            task.lines,
        )?;
    }
    totals(out, planned)
}

/// The first file, and what is particular about the task.
fn first_file(task: &PlannedTask, room: usize) -> String {
    let mut about = Vec::new();
    match task.when {
        When::First => about.push("before all others".to_owned()),
        When::Last => about.push("after all others".to_owned()),
        When::Between => {}
    }
    about.extend(task.oversize.map(|why| match why {
        Oversize::Cycle => "large: they import each other in a circle".to_owned(),
        Oversize::Tests => "large: a file with all its tests".to_owned(),
        Oversize::Together => "large: they change together".to_owned(),
    }));
    about.extend(task.staged.map(|count| format!("{count} staged")));
    let about = if about.is_empty() {
        String::new()
    } else {
        format!("  ({})", about.join("; "))
    };
    let more = match task.files.len() {
        0 | 1 => String::new(),
        count => format!(" +{}", count - 1),
    };
    let taken = more.chars().count() + about.chars().count();
    let first = task.files.first().map(|path| path.to_text());
    let first = shorten(
        &first.unwrap_or_default(),
        room.saturating_sub(taken).max(20),
    );
    format!("{first}{more}{about}")
}

fn totals(out: &mut dyn Write, planned: &Planned) -> std::io::Result<()> {
    let tasks = &planned.tasks;
    let files: usize = tasks.iter().map(|task| task.files.len()).sum();
    let lines: u64 = tasks.iter().map(|task| task.lines).sum();
    let bytes: u64 = tasks.iter().map(|task| task.bytes).sum();
    writeln!(out)?;
    writeln!(
        out,
        "{}, {}, {}, {}",
        plural(tasks.len(), "task"),
        plural(files, "file"),
        plural(usize::try_from(lines).unwrap_or(usize::MAX), "line"),
        HumanBytes(bytes)
    )?;
    for left in &planned.left_out {
        let some: Vec<String> = left
            .files
            .iter()
            .take(3)
            .map(|path| shorten(&path.to_text(), 60))
            .collect();
        let more = if left.count > some.len() { ", …" } else { "" };
        writeln!(
            out,
            "left out: {} {}: {}{more}",
            plural(left.count, "file"),
            left.why.as_str(),
            some.join(", ")
        )?;
    }
    for note in &planned.notes {
        writeln!(out, "note: {}", clean(note))?;
    }
    Ok(())
}

fn tell_diff(out: &mut dyn Write, diff: &SplitDiff) -> std::io::Result<()> {
    /// BOUND: what fits on a screen; `--json` has all of it.
    const SHOWN: usize = 10;
    writeln!(out)?;
    if diff.is_empty() {
        return writeln!(out, "against the earlier split: nothing differs");
    }
    writeln!(
        out,
        "against the earlier split: {} the same, {} added, {} removed",
        plural(diff.same.len(), "task"),
        diff.added.len(),
        diff.removed.len()
    )?;
    let mut lines: Vec<String> = Vec::new();
    lines.extend(
        diff.added_files
            .iter()
            .map(|path| format!("+ {}", path.to_text())),
    );
    lines.extend(
        diff.removed_files
            .iter()
            .map(|path| format!("- {}", path.to_text())),
    );
    let moved = diff.moved.iter();
    lines.extend(moved.map(|own| format!("> {} ({} to {})", own.path.to_text(), own.from, own.to)));
    for line in lines.iter().take(SHOWN) {
        writeln!(out, "  {}", shorten(line, 110))?;
    }
    if lines.len() > SHOWN {
        writeln!(
            out,
            "  … and {} more; `--json` has them",
            lines.len() - SHOWN
        )?;
    }
    Ok(())
}
