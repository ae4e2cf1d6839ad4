//! `ringfence campaign apply`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anstream::eprintln;
use clap::Args;
use ringfence_engine::apply::{Bundle, Extent, OuterLinks, Person};
use ringfence_engine::attend::Inputs;
use ringfence_engine::campaign::merge::{
    LeftTask, Merged, Merging, Onto, Piece, Reason, Shape, TakenTask, Undecided, merge, rebased,
    short,
};
use ringfence_engine::campaign::{CampaignError, refuse_full, write_tasks};
use ringfence_engine::checks::Fresh;
use ringfence_engine::error::Error;
use ringfence_engine::home::Home;
use ringfence_engine::store::{CampaignRecord, Store};
use ringfence_jail::signals::Signals;
use ringfence_model::campaign::TaskState;

use crate::commands::limits::VariableArgs;
use crate::commands::open;
use crate::commands::policy::nothing_typed;
use crate::commands::run::checks::{CHECKS_FAILED, tell as tell_checks};
use crate::console::{Live, Passing};
use crate::text::{clean, clean_json, plural};

/// Put the work of a campaign on a new branch, task by task
///
/// Each bundle that was approved is put on top of those before it, and its checks run there again,
/// in fresh sandboxes. What does not fit, or does not pass on top of the others, is left out and
/// named; the others go on. At the end the checks of all run on all of it. The working tree does not
/// change.
///
/// The exit code is 0 if all tasks with changes are on the branch, 1 if some are not, and 5 if the
/// checks at the end do not hold; then no branch is made, unless `--anyway`.
#[derive(Debug, Args)]
pub struct Apply {
    /// The campaign; of each task the run that counts
    #[arg(
        value_name = "NAME",
        required_unless_present = "runs",
        conflicts_with = "runs"
    )]
    name: Option<String>,
    /// These runs instead, in this order: ids, their beginnings, or names
    #[arg(long, value_name = "RUN", num_args = 1..)]
    runs: Vec<String>,
    /// The new branch
    #[arg(long, value_name = "NAME")]
    branch: String,
    /// Make a branch for each task, `NAME/0001-TASK` and so on, each on top of the one before
    #[arg(long)]
    stacked: bool,
    /// Write what did not fit or pass as tasks on top of the branch into this directory, which is not there yet
    #[arg(long, value_name = "DIR", conflicts_with_all = ["runs", "dry_run"])]
    rebase: Option<PathBuf>,
    /// The commit that it stands on: an id, a branch, or `HEAD` [default: what the first run began from]
    #[arg(long, value_name = "COMMIT")]
    base: Option<String>,
    /// Another folder of the repository, or of a copy of it
    #[arg(long, value_name = "FOLDER")]
    into: Option<PathBuf>,
    /// Check all of it with this line of shell as well; can be given more than once
    #[arg(long = "check", value_name = "COMMAND")]
    checks: Vec<String>,
    /// Do all checks now, whatever is known of the same files
    #[arg(long)]
    again: bool,
    /// Approve what nobody has decided about, where it is on the branch; what failed, has a serious flag
    /// or a check that does not hold needs a decision of its own
    #[arg(long)]
    approve: bool,
    /// Why it is approved
    #[arg(long, value_name = "TEXT", requires = "approve")]
    why: Option<String>,
    /// Approve also what needs a decision of its own, and make the branch whatever the last checks say
    #[arg(long)]
    anyway: bool,
    /// Make links that lead out of the folder, too
    #[arg(long)]
    allow_links: bool,
    /// The author of the commits [default: you, by your own git settings]
    #[arg(long, value_name = "NAME <ADDRESS>")]
    author: Option<String>,
    #[command(flatten)]
    variables: VariableArgs,
    /// Only say what would happen; checks run all the same
    #[arg(long)]
    dry_run: bool,
    /// Print what was done as one JSON object
    #[arg(long)]
    json: bool,
}

impl Apply {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let signals = Signals::hold()?;
        let (home, store) = open()?;
        if let Some(directory) = &self.rebase {
            refuse_full(directory)?;
        }
        let (campaign, pieces) = self.pieces(&store)?;
        let Some(folder) = pieces.first().map(|piece| piece.run.folder.clone()) else {
            return Err(Error::Campaign(CampaignError::NothingRan).into());
        };
        let mut typed = nothing_typed()?;
        typed.env = self.variables.variables();
        let folder = self.into.clone().unwrap_or(folder);
        for text in &self.checks {
            ringfence_model::check::command(text)?;
        }
        let author = self.author.as_deref().map(Person::parse).transpose();
        let merging = Merging {
            campaign: campaign
                .as_ref()
                .map_or_else(|| "runs".to_owned(), |campaign| campaign.name.clone()),
            branch: self.branch.clone(),
            shape: if self.stacked {
                Shape::Stacked
            } else {
                Shape::One
            },
            base: self.base.clone(),
            into: self.into.clone(),
            links: if self.allow_links {
                OuterLinks::Allowed
            } else {
                OuterLinks::Refused
            },
            author: author.map_err(Error::Apply)?,
            undecided: if !self.approve {
                Undecided::Left
            } else {
                Undecided::Approved {
                    why: self.why.clone(),
                    anyway: self.anyway,
                }
            },
            last: self.checks.clone(),
            fresh: if self.again {
                Fresh::Again
            } else {
                Fresh::Kept
            },
            extent: if self.dry_run {
                Extent::Look
            } else {
                Extent::Apply
            },
            despite: self.anyway,
            request: typed.request(&home, &folder)?,
        };
        let inputs = Inputs {
            stdin: None,
            signals: Some(&signals),
        };
        let mut console = Live::new(Passing::ToStderr, false);
        let merged = merge(&home, &store, &pieces, &merging, &inputs, &mut console);
        console.finish();
        let merged = merged?;
        let sent_back = match (&self.rebase, &campaign) {
            (Some(directory), Some(campaign)) => {
                send_back(&home, &store, campaign, &merged, directory)?
            }
            _ => Vec::new(),
        };
        if self.rebase.is_some() && sent_back.is_empty() {
            let why = if merged.made {
                "nothing was left out for what the others did"
            } else {
                "there is no branch to stand on"
            };
            eprintln!("note: no task was sent back: {why}");
        }
        if self.json {
            let mut out = std::io::stdout().lock();
            writeln!(out, "{}", clean_json(&serde_json::to_string(&merged)?))?;
        } else {
            self.tell(&merged)?
        }
        for path in &sent_back {
            eprintln!("sent back: {}", clean(&path.display().to_string()));
        }
        if !sent_back.is_empty() {
            eprintln!(
                "  run one on the branch: git worktree add DIR {0}; ringfence run --repo DIR --task FILE",
                clean(&self.branch)
            );
        }
        Ok(exit_code(&merged))
    }

    /// What is to be taken, in order.
    fn pieces(&self, store: &Store) -> anyhow::Result<(Option<CampaignRecord>, Vec<Piece>)> {
        let Some(name) = &self.name else {
            let mut pieces = Vec::new();
            for (at, text) in self.runs.iter().enumerate() {
                let run = store.find(text)?;
                pieces.push(Piece {
                    number: at as u32 + 1,
                    task: run.id.to_string(),
                    run,
                });
            }
            return Ok((None, pieces));
        };
        let campaign = store.campaign(name)?;
        let (mut pieces, mut without) = (Vec::new(), 0);
        for task in store.campaign_tasks(campaign.id)? {
            match (task.state, task.run) {
                (TaskState::Dropped, _) => {}
                (TaskState::Waiting | TaskState::Running, _) | (_, None) => without += 1,
                (_, Some(run)) => pieces.push(Piece {
                    number: task.number,
                    task: task.task,
                    run: store.run(run)?,
                }),
            }
        }
        if without > 0 {
            eprintln!("note: {without} tasks are not over, or have no run that counts");
        }
        Ok((Some(campaign), pieces))
    }

    fn tell(&self, merged: &Merged) -> anyhow::Result<()> {
        for note in &merged.notes {
            eprintln!("note: {}", clean(note));
        }
        let mut out = std::io::stdout().lock();
        for task in &merged.taken {
            writeln!(
                out,
                "taken     {}{}",
                named(task.number, &task.task),
                joined(task)
            )?;
        }
        for task in &merged.left_out {
            writeln!(
                out,
                "left out  {}: {}: {}",
                named(task.number, &task.task),
                task.reason.words(),
                clean(&task.why)
            )?;
        }
        out.flush()?;
        let mut last = merged.last.clone();
        for report in &mut last.reports {
            report.command = short(&report.command);
        }
        tell_checks(&last, "");
        let base: String = merged
            .base
            .iter()
            .flat_map(|base| base.chars())
            .take(12)
            .collect();
        let tasks = plural(merged.taken.len(), "task");
        match (merged.made, &merged.branch, &merged.commit) {
            (true, Some(branch), Some(commit)) => writeln!(
                out,
                "\nbranch `{}` is at {commit}: {tasks} on top of {base}",
                clean(branch.trim_start_matches("refs/heads/"))
            )?,
            _ if merged.taken.is_empty() => {
                let next = match &self.name {
                    Some(name) => format!("ringfence review --campaign {}", clean(name)),
                    None => "ringfence review RUN".to_owned(),
                };
                writeln!(out, "\nnothing was taken, and no branch made; next: {next}")?
            }
            _ if !merged.last.hold() && !self.anyway => writeln!(
                out,
                "\nthe checks do not hold on all of it, and no branch was made; `--anyway` makes it"
            )?,
            _ => writeln!(out, "\n{tasks} would be on top of {base}; nothing was made")?,
        }
        self.tell_next(merged, &mut out)
    }

    /// What can be done about those that were left out.
    fn tell_next(&self, merged: &Merged, out: &mut dyn std::io::Write) -> anyhow::Result<()> {
        let Some(name) = self.name.as_ref().filter(|_| !merged.taken.is_empty()) else {
            return Ok(());
        };
        let name = clean(name);
        let left = |reasons: &[Reason]| {
            let own = merged.left_out.iter();
            own.filter(|task| reasons.contains(&task.reason)).count()
        };
        let unfit = left(&[Reason::Clash, Reason::Checks]);
        let held = left(&[Reason::Held]);
        if unfit > 0 && self.rebase.is_none() {
            writeln!(
                out,
                "{} did not fit or pass on top of the others; `--rebase DIR`, with another `--branch`, writes such tasks anew",
                plural(unfit, "task")
            )?;
        }
        if held > 0 {
            writeln!(
                out,
                "{} left out for want of a decision: ringfence review --campaign {name}",
                plural(held, "task")
            )?;
        }
        Ok(())
    }
}

/// Writes what did not fit, or did not pass there, as tasks on top of the branch.
fn send_back(
    home: &Home,
    store: &Store,
    campaign: &CampaignRecord,
    merged: &Merged,
    directory: &Path,
) -> anyhow::Result<Vec<PathBuf>> {
    let (Some(commit), Some(tree)) = (&merged.commit, &merged.tree) else {
        return Ok(Vec::new());
    };
    let again = merged.left_out.iter();
    let again = again.filter(|left| matches!(left.reason, Reason::Clash | Reason::Checks));
    let mut tasks = Vec::new();
    for left in again {
        let was = store.task_document(campaign, &left.task)?;
        let bundle = Bundle::open(home, left.run)?;
        let onto = Onto { commit, tree };
        tasks.push(rebased(&was, left, bundle.patch_text(), onto));
    }
    if tasks.is_empty() {
        Ok(Vec::new())
    } else {
        Ok(write_tasks(&tasks, directory)?)
    }
}

fn named(number: u32, task: &str) -> String {
    format!("{number:04}-{}", clean(task))
}

fn joined(task: &TakenTask) -> String {
    match &task.merged[..] {
        [] => String::new(),
        [path] => format!(", `{}` joined", clean(&path.to_text())),
        [path, rest @ ..] => {
            let path = clean(&path.to_text());
            format!(", `{path}` and {} more joined", rest.len())
        }
    }
}

fn exit_code(merged: &Merged) -> ExitCode {
    let lost = |task: &LeftTask| task.reason != Reason::NoChange;
    if !merged.last.hold() {
        return ExitCode::from(CHECKS_FAILED);
    }
    if merged.left_out.iter().any(lost) || merged.taken.is_empty() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
