//! `ringfence approve` and `ringfence reject`.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use ringfence_engine::verdicts::{self, Anyway, Deciding};
use ringfence_model::verdict::{Decision, Verdict};

use super::open;
use crate::text::{clean, clean_json};

/// Approve what a run changed, so that it can be applied
///
/// The bundle is verified first: one that is not what was packed is refused. Who, when, why and the
/// bundle's hash are recorded; should the bundle change afterwards, the approval is void. Nothing
/// is applied by this.
///
/// A run that failed, whose base moved or whose patch is over the size limit is approved with
/// `--anyway` only. A later verdict counts instead of an earlier one, and both are kept.
#[derive(Debug, Args)]
pub struct Approve {
    /// Id, its beginning, name, or `last`
    #[arg(value_name = "RUN")]
    run: String,
    /// Why
    #[arg(long, value_name = "TEXT")]
    why: Option<String>,
    /// Approve what failed, moved or is too large; the verdict says so
    #[arg(long)]
    anyway: bool,
    #[command(flatten)]
    who: Who,
}

/// Reject what a run changed
///
/// It is kept and can be looked at, but not applied, unless it is approved later.
#[derive(Debug, Args)]
pub struct Reject {
    /// Id, its beginning, name, or `last`
    #[arg(value_name = "RUN")]
    run: String,
    /// Why; needed
    #[arg(long, value_name = "TEXT")]
    why: Option<String>,
    #[command(flatten)]
    who: Who,
}

#[derive(Debug, Args)]
struct Who {
    /// Who decides [default: your user name and this host's]; your account is recorded as well
    #[arg(long = "as", value_name = "NAME")]
    name: Option<String>,
    /// Print the verdict as one JSON object
    #[arg(long)]
    json: bool,
}

impl Approve {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let anyway = if self.anyway { Anyway::Yes } else { Anyway::No };
        decide(&self.run, Decision::Approved, self.why, anyway, self.who)
    }
}

impl Reject {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let decision = Decision::Rejected;
        decide(&self.run, decision, self.why, Anyway::No, self.who)
    }
}

fn decide(
    run: &str,
    decision: Decision,
    why: Option<String>,
    anyway: Anyway,
    who: Who,
) -> anyhow::Result<ExitCode> {
    let (home, store) = open()?;
    let run = store.find(run)?;
    let deciding = Deciding {
        decision,
        by: verdicts::person(who.name),
        why,
        seen_sha256: None,
        shown: None,
        anyway,
    };
    let verdict = verdicts::record(&home, &store, &run, deciding)?;
    let mut out = std::io::stdout().lock();
    if who.json {
        let line = serde_json::to_string(&verdict)?;
        writeln!(out, "{}", clean_json(&line))?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(out, "{}", words(&verdict))?;
    if decision == Decision::Approved {
        let changed = run.changed_files.unwrap_or(0);
        let (added, removed) = (run.insertions.unwrap_or(0), run.deletions.unwrap_or(0));
        writeln!(
            out,
            "{changed} changed paths, +{added} -{removed}; nothing was applied yet: `ringfence apply {}`",
            run.id
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A verdict in a line.
pub fn words(verdict: &Verdict) -> String {
    let mut text = format!(
        "run {} {} by {}",
        verdict.run,
        verdict.decision.as_str(),
        verdict.by
    );
    for despite in &verdict.despite {
        text.push_str(&format!(", despite {despite}"));
    }
    if let Some(shown) = &verdict.shown {
        text.push_str(&format!(", {shown}"));
    }
    if let Some(why) = &verdict.why {
        text.push_str(&format!(": {why}"));
    }
    clean(&text).replace('\n', " ")
}
