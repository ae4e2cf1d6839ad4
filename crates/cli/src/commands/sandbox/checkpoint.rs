//! `ringfence sandbox checkpoint`, `checkpoints`, `rollback`, `pin` and `unpin`.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Instant;

use anstream::eprintln;
use clap::Args;
use ringfence_engine::ids::LayerId;
use ringfence_engine::sandboxes::rollback::rollback;
use ringfence_engine::sandboxes::seal::checkpoint;
use ringfence_engine::store::{self, CheckpointRecord, SealHow};
use serde_json::json;

use crate::commands::open_host;
use crate::text::{clean_json, time};

/// Seal the present state under a name
///
/// Nothing can change it any more. Where something runs in the sandbox, it stands still for a
/// moment.
#[derive(Debug, Args)]
pub struct Checkpoint {
    /// Id, its beginning, name, or `last`
    #[arg(value_name = "SANDBOX")]
    sandbox: String,
    /// Its name
    #[arg(long)]
    name: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Checkpoint {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let host = open_host()?;
        let id = host.store.find_sandbox(&self.sandbox)?.id;
        let began = Instant::now();
        let sealed = checkpoint(&host, id, &self.name)?;
        let ms = began.elapsed().as_secs_f64() * 1000.0;
        if self.json {
            let value = json!({
                "sandbox": id,
                "checkpoint": self.name,
                "layer": sealed.layer,
                "milliseconds": ms,
            });
            writeln!(std::io::stdout(), "{}", clean_json(&value.to_string()))?;
        } else {
            let how = match sealed.how {
                None => ", nothing was written since the last one",
                Some(SealHow::Swap) => "",
                Some(SealHow::Copy) => ", what runs stood still for it",
            };
            eprintln!("checkpoint {} of {id} ({ms:.1} ms{how})", self.name);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// List the checkpoints of a sandbox, as the tree that they are
#[derive(Debug, Args)]
pub struct Checkpoints {
    /// Id, its beginning, name, or `last`
    #[arg(value_name = "SANDBOX")]
    sandbox: String,
    /// Print a JSON list
    #[arg(long)]
    json: bool,
}

impl Checkpoints {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let host = open_host()?;
        let record = host.store.find_sandbox(&self.sandbox)?;
        let found = host.store.checkpoints(record.id)?;
        let mut rows = Vec::new();
        for checkpoint in &found {
            rows.push((checkpoint, parent(&host.store, checkpoint, &found)?));
        }
        let lineage = host.store.lineage(record.head)?;
        let current: Vec<Option<LayerId>> = [None]
            .into_iter()
            .chain(lineage.into_iter().map(Some))
            .collect();
        let mut out = std::io::stdout().lock();
        if self.json {
            let list: Vec<_> = rows
                .iter()
                .map(|(checkpoint, parent)| {
                    json!({
                        "checkpoint": checkpoint.name,
                        "layer": checkpoint.layer,
                        "parent": parent,
                        "created_us": checkpoint.created_us,
                        "durable": checkpoint.durable,
                        "pinned": checkpoint.pinned,
                        "current": current.contains(&checkpoint.layer),
                    })
                })
                .collect();
            writeln!(out, "{}", clean_json(&serde_json::to_string(&list)?))?;
            return Ok(ExitCode::SUCCESS);
        }
        if rows.is_empty() {
            writeln!(out, "no checkpoints yet")?;
        }
        print_tree(&mut out, &rows, &current)?;
        Ok(ExitCode::SUCCESS)
    }
}

type TreeRow<'a> = (&'a CheckpointRecord, Option<String>);

/// One line for each; where several lie on one, each begins a branch.
fn print_tree(
    out: &mut dyn std::io::Write,
    rows: &[TreeRow<'_>],
    current: &[Option<LayerId>],
) -> std::io::Result<()> {
    let mut open: Vec<(usize, &TreeRow<'_>)> = Vec::new();
    let children = |above: Option<&str>, depth: usize| {
        let found: Vec<&TreeRow<'_>> = rows
            .iter()
            .filter(|(_, parent)| parent.as_deref() == above)
            .collect();
        let depth = if found.len() > 1 && above.is_some() {
            depth + 1
        } else {
            depth
        };
        found.into_iter().rev().map(move |row| (depth, row))
    };
    open.extend(children(None, 0));
    while let Some((depth, (checkpoint, _))) = open.pop() {
        let mark = if current.contains(&checkpoint.layer) {
            "●"
        } else {
            "○"
        };
        let durable = if checkpoint.durable { "  durable" } else { "" };
        let pinned = if checkpoint.pinned { "  pinned" } else { "" };
        writeln!(
            out,
            "{:indent$}{mark} {}  {}{durable}{pinned}",
            "",
            checkpoint.name,
            time(checkpoint.created_us),
            indent = depth * 2,
        )?;
        open.extend(children(Some(&checkpoint.name), depth));
    }
    Ok(())
}

/// The nearest checkpoint that a checkpoint lies on.
fn parent(
    store: &store::Store,
    checkpoint: &CheckpointRecord,
    all: &[CheckpointRecord],
) -> anyhow::Result<Option<String>> {
    let before = |other: &&CheckpointRecord| {
        other.name != checkpoint.name
            && (other.created_us, &other.name) < (checkpoint.created_us, &checkpoint.name)
    };
    for layer in store.lineage(checkpoint.layer)? {
        let found = all
            .iter()
            .rev()
            .filter(before)
            .find(|other| other.layer == Some(layer));
        if let Some(found) = found {
            return Ok(Some(found.name.clone()));
        }
    }
    let base = all
        .iter()
        .filter(before)
        .find(|other| other.layer.is_none());
    Ok(base.map(|found| found.name.clone()))
}

/// Go back to a checkpoint: what was written since is gone, and what runs is ended
#[derive(Debug, Args)]
pub struct Rollback {
    /// Id, its beginning, name, or `last`
    #[arg(value_name = "SANDBOX")]
    sandbox: String,
    /// The checkpoint
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Rollback {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let host = open_host()?;
        let id = host.store.find_sandbox(&self.sandbox)?.id;
        let began = Instant::now();
        let done = rollback(&host, id, &self.checkpoint)?;
        let ms = began.elapsed().as_secs_f64() * 1000.0;
        if self.json {
            let value = json!({
                "sandbox": id,
                "checkpoint": self.checkpoint,
                "processes_ended": done.processes,
                "milliseconds": ms,
            });
            writeln!(std::io::stdout(), "{}", clean_json(&value.to_string()))?;
        } else {
            let ended = match done.processes {
                0 => "nothing ran in it".to_owned(),
                1 => "1 process was ended".to_owned(),
                n => format!("{n} processes were ended"),
            };
            eprintln!(
                "{id} is at checkpoint {} again ({ms:.1} ms, {ended})",
                self.checkpoint
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Keep a sandbox, or one of its checkpoints, from ever being removed by `gc`
#[derive(Debug, Args)]
pub struct Pin {
    /// Id, its beginning, name, or `last`
    #[arg(value_name = "SANDBOX")]
    sandbox: String,
    /// One of its checkpoints
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: Option<String>,
}

/// Let `gc` remove it again
#[derive(Debug, Args)]
pub struct Unpin {
    /// Id, its beginning, name, or `last`
    #[arg(value_name = "SANDBOX")]
    sandbox: String,
    /// One of its checkpoints
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: Option<String>,
}

impl Pin {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        pin(&self.sandbox, self.checkpoint.as_deref(), store::Pin::Keep)
    }
}

impl Unpin {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        pin(
            &self.sandbox,
            self.checkpoint.as_deref(),
            store::Pin::Release,
        )
    }
}

fn pin(sandbox: &str, checkpoint: Option<&str>, pin: store::Pin) -> anyhow::Result<ExitCode> {
    let host = open_host()?;
    let id = host.store.find_sandbox(sandbox)?.id;
    match checkpoint {
        None => host.store.pin_sandbox(id, pin)?,
        Some(name) => {
            host.store.checkpoint(id, name)?;
            host.store.pin_checkpoint(id, name, pin)?;
        }
    }
    let word = match pin {
        store::Pin::Keep => "pinned",
        store::Pin::Release => "not pinned any more:",
    };
    let of = checkpoint
        .map(|name| format!(" {name} of"))
        .unwrap_or_default();
    eprintln!("{word}{of} {id}");
    Ok(ExitCode::SUCCESS)
}
