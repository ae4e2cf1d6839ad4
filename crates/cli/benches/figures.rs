//! The figures: what Ringfence costs, beside its peers, measured in turn in one run.
//!
//! ```text
//! cargo bench -p ringfence --bench figures [-- [--check] [--as-root] NAME…]
//! ```
//!
//! Started as root it becomes an unprivileged user first, because that is who the bounds are for;
//! `--as-root` stays. With `--check` a figure over its bound is a failure. Peers are looked for in
//! `PATH`; one that is not there, or does not run here, is named with the reason.

#![allow(clippy::print_stdout, reason = "the table is what a bench is for")]

#[path = "figures/apply.rs"]
mod apply;
#[path = "figures/backends.rs"]
mod backends;
#[path = "figures/burst.rs"]
mod burst;
#[path = "figures/campaign.rs"]
mod campaign;
#[path = "figures/checks.rs"]
mod checks;
#[path = "figures/create.rs"]
mod create;
#[path = "figures/density.rs"]
mod density;
#[path = "figures/environments.rs"]
mod environments;
#[path = "figures/exec.rs"]
mod exec;
#[path = "figures/fork.rs"]
mod fork;
#[path = "figures/images.rs"]
mod images;
#[path = "figures/keeper.rs"]
mod keeper;
#[path = "figures/lasting.rs"]
mod lasting;
#[path = "../tests/integration/image/made.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod made;
#[path = "figures/observe.rs"]
mod observe;
#[path = "figures/patch.rs"]
mod patch;
#[path = "figures/peers.rs"]
mod peers;
#[path = "figures/place.rs"]
mod place;
#[path = "../tests/integration/image/registry.rs"]
mod registry;
#[path = "figures/sample.rs"]
mod sample;
#[path = "figures/start.rs"]
mod start;
#[path = "figures/status.rs"]
mod status;
#[path = "figures/store.rs"]
mod store;
#[path = "figures/table.rs"]
mod table;
#[path = "figures/verify.rs"]
mod verify;

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};

use place::Place;
use table::Table;

/// One figure: its name, and what measures it.
type Figure = (&'static str, fn(&Place, &mut Table) -> Result<()>);

const FIGURES: &[Figure] = &[
    ("start", start::in_process),
    ("cli", start::whole_program),
    ("exec", exec::measure),
    ("patch", patch::measure),
    ("apply", apply::measure),
    ("campaign", campaign::measure),
    ("neighbours", campaign::neighbours),
    ("crowd", campaign::crowd),
    ("density", density::measure),
    ("burst", burst::measure),
    ("fork", fork::forks_once),
    ("checkpoint", fork::checkpoints),
    ("forks", fork::many),
    ("create", create::measure),
    ("store", store::measure),
    ("status", status::measure),
    ("keeper", keeper::measure),
    ("verify", verify::measure),
    ("observe", observe::measure),
    ("checks", checks::measure),
    ("images", images::measure),
    ("backends", backends::measure),
    ("environment", environments::starts),
    ("dependencies", environments::against_installing),
];

/// What was typed.
#[derive(Debug, Default)]
struct Asked {
    names: Vec<String>,
    check: bool,
    as_root: bool,
}

fn main() -> Result<ExitCode> {
    let asked = parse(std::env::args().skip(1))?;
    if rustix::process::geteuid().is_root() && !asked.as_root {
        let builds = asked.names.is_empty() || asked.names.iter().any(|name| name == "observe");
        return place::again_unprivileged(builds.then(place::toolchain).flatten());
    }
    let place = Place::make()?;
    let mut table = Table::default();
    for (name, measure) in FIGURES {
        if asked.names.is_empty() || asked.names.iter().any(|asked| asked == name) {
            table.begin(name);
            measure(&place, &mut table).with_context(|| format!("cannot measure `{name}`"))?;
        }
    }
    Ok(if asked.check && table.is_over() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn parse(arguments: impl Iterator<Item = String>) -> Result<Asked> {
    let mut asked = Asked::default();
    for argument in arguments {
        match argument.as_str() {
            // Cargo says so to every bench.
            "--bench" => {}
            "--check" => asked.check = true,
            "--as-root" => asked.as_root = true,
            name if FIGURES.iter().any(|(known, _)| *known == name) => asked.names.push(argument),
            other => bail!("there is no figure `{other}`"),
        }
    }
    Ok(asked)
}
