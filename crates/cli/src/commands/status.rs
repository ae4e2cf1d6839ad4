//! `ringfence status`.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use ringfence_engine::sandboxes::status::{Seen, SeenState, look_at_all};
use ringfence_engine::store::RunFilter;
use ringfence_model::limits::HumanBytes;
use ringfence_model::outcome::RunStatus;
use serde_json::json;

use super::{list, open_host};
use crate::text::{clean, clean_json, plural, shorten, time};

/// Show what is there: sandboxes, what runs in them, and what is cached
#[derive(Debug, Args)]
pub struct Status {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// BOUND: runs under way at once that are worth listing.
const RUNS: usize = 1000;

impl Status {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let host = open_host()?;
        let sandboxes = look_at_all(&host)?;
        let running = host.store.runs(
            RunFilter {
                status: Some(RunStatus::Running),
                ..RunFilter::default()
            },
            RUNS,
        )?;
        let mirrors = host.store.mirrors()?;
        let bases = host.store.bases()?;
        let mut out = std::io::stdout().lock();
        if self.json {
            let value = json!({
                "home": host.home.root().to_string_lossy(),
                "sandboxes": sandboxes.iter().map(row).collect::<Vec<_>>(),
                "mirrors": mirrors.iter().map(|mirror| json!({
                    "mirror": mirror.id,
                    "source": mirror.source,
                    "state": mirror.state.as_str(),
                    "fetched_us": mirror.fetched_us,
                    "used_us": mirror.used_us,
                    "present": host.home.mirror(mirror.id).is_dir(),
                })).collect::<Vec<_>>(),
                "bases": bases.iter().map(|base| json!({
                    "base": base.id,
                    "kind": base.kind.as_str(),
                    "state": base.state.as_str(),
                    "mirror": base.mirror,
                    "commit": base.commit,
                    "tree": base.tree,
                    "used_us": base.used_us,
                    "present": host.home.base(base.id).is_dir(),
                })).collect::<Vec<_>>(),
                "runs": running.iter().map(list::row).collect::<Vec<_>>(),
            });
            writeln!(out, "{}", clean_json(&value.to_string()))?;
            return Ok(ExitCode::SUCCESS);
        }
        if sandboxes.is_empty() {
            writeln!(
                out,
                "no sandboxes yet; `ringfence sandbox create` makes one"
            )?;
        } else {
            writeln!(
                out,
                "{:<12}  {:<8}  {:<19}  {:>6}  {:>5}  {:<12}  FROM",
                "SANDBOX", "STATE", "USED (UTC)", "LAYERS", "PROCS", "NAME"
            )?;
        }
        for seen in &sandboxes {
            let name = seen.record.name.as_deref().map_or("-".to_owned(), clean);
            let origin = seen
                .record
                .detail
                .forked_from
                .map(|id| format!("fork of {id}, "))
                .unwrap_or_default();
            let pinned = if seen.record.pinned { "  pinned" } else { "" };
            let processes = seen
                .execution
                .map_or_else(|| "-".to_owned(), |e| e.processes.to_string());
            writeln!(
                out,
                "{:<12}  {:<8}  {:<19}  {:>6}  {processes:>5}  {name:<12}  {origin}{}{pinned}",
                seen.record.id,
                seen.state.as_str(),
                time(seen.record.used_us),
                seen.depth,
                shorten(&seen.record.detail.source, 60)
            )?;
            if let SeenState::Broken { missing } = &seen.state {
                writeln!(out, "              {missing} is gone")?;
            }
        }
        writeln!(
            out,
            "{}, {}, {} under way, {} free on the disk",
            plural(mirrors.len(), "mirror"),
            plural(bases.len(), "base"),
            plural(running.len(), "run"),
            HumanBytes(free(host.home.root()))
        )?;
        Ok(ExitCode::SUCCESS)
    }
}

fn free(path: &std::path::Path) -> u64 {
    rustix::fs::statvfs(path).map_or(0, |stat| stat.f_bavail * stat.f_frsize)
}

fn row(seen: &Seen) -> serde_json::Value {
    let record = &seen.record;
    let missing = match &seen.state {
        SeenState::Broken { missing } => Some(missing),
        SeenState::Is(_) => None,
    };
    json!({
        "sandbox": record.id,
        "name": record.name,
        "tag": record.tag,
        "state": seen.state.as_str(),
        "missing": missing,
        "incarnation": record.incarnation,
        "keeper_pid": record.keeper.filter(|_| seen.execution.is_some()).map(|k| k.pid),
        "processes": seen.execution.map(|e| e.processes),
        "execs": seen.execution.map(|e| e.execs),
        "memory_bytes": seen.execution.map(|e| e.memory_bytes),
        "idle_ms": seen.execution.map(|e| e.idle_ms),
        "base": record.base,
        "head": record.head,
        "layers": seen.depth,
        "unsealed": seen.unsealed,
        "checkpoints": seen.checkpoints,
        "pinned": record.pinned,
        "forked_from": record.detail.forked_from,
        "source": record.detail.source,
        "created_us": record.created_us,
        "used_us": record.used_us,
        "expires_us": record.expires_us,
        "ended": record.detail.ended,
    })
}
