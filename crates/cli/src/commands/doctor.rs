//! `ringfence doctor`.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use ringfence_engine::doctor::{State, ToolchainFound, examine};
use ringfence_engine::home::Home;
use ringfence_engine::toolchains::Granted;

use crate::text::clean;

/// Try everything that a sandbox is made of on this host, and name the cure for what is missing
///
/// Exits with 0 if sandboxes can be made here, and 4 if not.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Print the findings as one JSON object
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let home = Home::open(None).map_err(ringfence_engine::error::Error::from)?;
        let report = examine(&home)?;
        let mut out = std::io::stdout().lock();
        if self.json {
            serde_json::to_writer(&mut out, &report)?;
            writeln!(out)?;
        } else {
            for check in &report.checks {
                let mark = match check.state {
                    State::Works => "ok     ",
                    State::Weaker => "weaker ",
                    State::Missing => "MISSING",
                };
                writeln!(out, "{mark}  {:<11} {}", check.name, check.detail)?;
                if let Some(fix) = &check.fix {
                    writeln!(out, "         {:<11} fix: {fix}", "")?;
                }
            }
            writeln!(out, "\nlimits on this host:")?;
            for graded in &report.limits {
                writeln!(
                    out,
                    "  {:<11} {:<8} {}",
                    graded.limit.as_str(),
                    graded.grade.as_str(),
                    graded.by
                )?;
            }
            tell_toolchains(&mut out, &report.toolchains)?;
            writeln!(
                out,
                "\n{}",
                if report.ready {
                    "ready: sandboxes can be made here"
                } else {
                    "not ready: no sandbox can be made here"
                }
            )?;
        }
        Ok(if report.ready {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(4)
        })
    }
}

/// Programs that are not in the system's own directories, and whether sandboxes have them.
fn tell_toolchains(out: &mut dyn Write, found: &[ToolchainFound]) -> io::Result<()> {
    if found.is_empty() {
        return Ok(());
    }
    writeln!(out, "\ntoolchains of yours, in sandboxes without an image:")?;
    for ToolchainFound { toolchain, granted } in found {
        let granted = match granted {
            Some(Granted::Yes) => "granted",
            Some(Granted::NotOnPath) => "granted, not on PATH",
            Some(Granted::Partly) => "granted in part",
            Some(Granted::No) => "not granted",
            None => "your policy cannot be read",
        };
        let line = format!(
            "  {:<22} {granted:<22} {}",
            toolchain.title(),
            toolchain.why
        );
        writeln!(out, "{}", clean(&line))?;
    }
    writeln!(
        out,
        "  `ringfence init` shows the lines of a policy that a project needs"
    )
}
