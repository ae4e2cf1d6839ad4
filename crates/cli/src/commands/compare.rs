//! `ringfence compare`.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use ringfence_engine::compare::{self, Attempt, Compared};
use ringfence_engine::ids::RunId;
use ringfence_engine::run::Seconds;

use super::open;
use crate::text::{clean, clean_json};

/// Compare attempts: which is best, and why
///
/// Runs are ranked by whether they ended well, by their checks, what they broke, flags, denials, the
/// size of the patch and time, in that order. Those that changed the same to the same are one group.
/// Only bundles are read; the sandboxes may be long gone.
#[derive(Debug, Args)]
pub struct Compare {
    /// Two or more: ids, their beginnings, names
    #[arg(required = true, num_args = 2.., value_name = "RUN")]
    runs: Vec<String>,
    /// Keep the best, and take the others out of `list`
    #[arg(long)]
    keep: bool,
    /// Print the hunks that the best does not have
    #[arg(long)]
    hunks: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Compare {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (home, store) = open()?;
        let runs: Vec<_> = self
            .runs
            .iter()
            .map(|run| store.find(run))
            .collect::<Result<_, _>>()?;
        let compared = compare::compare(&home, &runs)?;
        print(&compared, self.json)?;
        if self.hunks && !self.json {
            print_hunks(&compared)?;
        }
        if self.keep {
            let kept = compare::keep(&store, &compared)?;
            anstream::eprintln!("kept {kept}; `ringfence list --all` shows the others");
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The table, and what sets them apart.
pub fn print(compared: &Compared, json: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", clean_json(&serde_json::to_string(compared)?))?;
        return Ok(());
    }
    writeln!(
        out,
        "{:<4}  {:<12}  {:<10}  {:<8}  {:<5}  {:<11}  {:<6}  {:<12}  {:<9}  NAME",
        "RANK", "RUN", "STATUS", "CHECKS", "BROKE", "FLAGS", "DENIED", "CHANGED", "TIME"
    )?;
    for (at, own) in compared.attempts.iter().enumerate() {
        let name = own.name.as_deref().map(clean).unwrap_or_default();
        let same = own.same_as.map(|run| format!("  same as {run}"));
        writeln!(
            out,
            "{:<4}  {:<12}  {:<10}  {:<8}  {:<5}  {:<11}  {:<6}  {:<12}  {:<9}  {name}{}",
            at + 1,
            own.run,
            own.status.as_str(),
            checks(own),
            own.broke,
            format!("{}!, {}", own.serious, own.warnings),
            own.denials,
            format!("{}: +{} −{}", own.files, own.insertions, own.deletions),
            Seconds(own.duration_ms).to_string(),
            same.unwrap_or_default(),
        )?;
    }
    for own in &compared.lost {
        let name = own.name.as_deref().map(clean).unwrap_or_default();
        let status = own.status.as_str();
        writeln!(
            out,
            "{:<4}  {:<12}  {status:<10}  left no bundle  {name}",
            "-", own.run
        )?;
    }
    writeln!(out, "\n{}", compared.why)?;
    for note in &compared.notes {
        writeln!(out, "note: {}", clean(note))?;
    }
    print_differs(compared, &mut out)?;
    let best = compared.attempts[0].run;
    writeln!(out, "\nsee it: ringfence review {best}")?;
    Ok(())
}

fn checks(own: &Attempt) -> String {
    match own.checks {
        0 => "none".to_owned(),
        of => format!("{} of {of}", own.checks_held),
    }
}

/// BOUND: what fits on a screen; `--json` has the rest.
const LISTED: usize = 20;

fn print_differs(compared: &Compared, out: &mut impl std::io::Write) -> anyhow::Result<()> {
    if compared.differs.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nthey differ in:")?;
    for differs in compared.differs.iter().take(LISTED) {
        let side = |runs: &Vec<RunId>| {
            let runs: Vec<String> = runs.iter().map(RunId::to_string).collect();
            runs.join(" = ")
        };
        let sides: Vec<String> = differs.sides.iter().map(side).collect();
        let path = clean(&differs.path.to_text());
        writeln!(out, "  {path}: {}", sides.join(" ≠ "))?;
    }
    if compared.differs.len() > LISTED {
        writeln!(out, "  … and {} more", compared.differs.len() - LISTED)?;
    }
    for hunks in &compared.hunks {
        writeln!(
            out,
            "  {}: {} hunks as the best, {} others",
            hunks.run,
            hunks.shared,
            hunks.others.len() + hunks.more
        )?;
    }
    Ok(())
}

/// HOSTILE: each line of a hunk has a mark before it.
fn print_hunks(compared: &Compared) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for hunks in &compared.hunks {
        for other in &hunks.others {
            writeln!(out, "\n{} {}", hunks.run, clean(&other.path.to_text()))?;
            let text = String::from_utf8_lossy(other.text.as_bytes());
            for line in text.lines() {
                writeln!(out, "  │ {}", clean(line))?;
            }
        }
    }
    Ok(())
}
