//! Many sandboxes alive at once: started, asked, weighed, ended, and nothing left.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use ringfence_model::wire::{Reply, Request};

use crate::place::{Place, names};
use crate::table::{Table, milliseconds};

/// What the issue asks for on two cores.
const SANDBOXES: usize = 200;

pub fn measure(place: &Place, table: &mut Table) -> Result<()> {
    let guests_before = guests()?;
    let layers_before = names(&place.home().workspaces())?.len();
    let began = Instant::now();
    let mut alive = Vec::new();
    for _ in 0..SANDBOXES {
        alive.push(place.sandbox()?);
    }
    let started = began.elapsed();
    let began = Instant::now();
    for (number, (sandbox, _)) in alive.iter_mut().enumerate() {
        let nonce = number as u64;
        let reply = sandbox.client().call(&Request::Ping { nonce })?;
        ensure!(reply == Reply::Pong { nonce }, "{reply:?}");
    }
    let asked = began.elapsed();
    let weights: Vec<Weight> = alive
        .iter()
        .map(|(sandbox, _)| weigh(sandbox.pid().unwrap_or_default()))
        .collect::<Result<_>>()?;
    let began = Instant::now();
    for (mut sandbox, layer) in alive {
        sandbox.end()?;
        layer.remove()?;
    }
    let ended = began.elapsed();
    let each = milliseconds(started) / SANDBOXES as f64;
    table.note(&format!(
        "{SANDBOXES} alive: started in {:.0} ms ({each:.1} ms each), all asked in {:.1} ms, ended in {:.0} ms",
        milliseconds(started),
        milliseconds(asked),
        milliseconds(ended),
    ));
    let kib: u64 = weights.iter().map(|weight| weight.kib).sum();
    let by = weights.first().map_or("", |weight| weight.by);
    table.note(&format!(
        "memory of an idle sandbox: {} KiB ({by} of its pid 1)",
        kib / SANDBOXES as u64
    ));
    let left = guests()?.difference(&guests_before).count();
    table.holds(&format!("{left} processes left"), left == 0);
    let layers = names(&place.home().workspaces())?.len() - layers_before;
    table.holds(&format!("{layers} layers left"), layers == 0);
    Ok(())
}

struct Weight {
    kib: u64,
    by: &'static str,
}

/// Proportional memory where the kernel tells us, else what is resident.
fn weigh(pid: i32) -> Result<Weight> {
    let field = |file: &str, key: &str| -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
        let value = text.lines().find_map(|line| line.strip_prefix(key))?;
        value.split_whitespace().next()?.parse().ok()
    };
    let weight = |by, kib| Weight { kib, by };
    field("smaps_rollup", "Pss:")
        .map(|kib| weight("PSS", kib))
        .or_else(|| field("status", "VmRSS:").map(|kib| weight("RSS", kib)))
        .ok_or_else(|| anyhow::anyhow!("pid 1 of a sandbox is gone"))
}

/// Every process that is a guest, or was forked from one and has not become another program.
fn guests() -> Result<BTreeSet<i32>> {
    let mut found = BTreeSet::new();
    for name in names(Path::new("/proc"))? {
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if command.starts_with(b"ringfence-guest\0") {
            found.insert(pid);
        }
    }
    Ok(found)
}
