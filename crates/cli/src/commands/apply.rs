//! `ringfence apply`.

mod request;

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgGroup, Args};
use ringfence_engine::apply::{
    self, AgentCommits, Applied, ApplyError, Branching, Bundle, Commit, Extent, Fitting, Gate,
    OuterLinks, Person,
};
use ringfence_engine::error::Error;
use ringfence_engine::home::Home;
use ringfence_engine::store::{RunRecord, Store};
use ringfence_engine::verdicts::{self, Anyway, Deciding};
use ringfence_model::verdict::{By, Decision};
use rustix::termios::{QueueSelector, tcflush};

use super::open;
use crate::text::{clean, clean_bytes, clean_json};
use request::Request;

/// BOUND: lines of a patch that are shown before somebody is asked.
const SHOWN_LINES: usize = 400;

/// Apply what a run changed: all of it, or nothing
///
/// To the files of its folder, unless `--branch` says otherwise. What changed there meanwhile is
/// merged line by line; where that is not possible, nothing is changed and the paths are listed.
/// The index, `.git`, hooks and all other files stay as they are, and no git is run on the folder.
///
/// Needs a verdict. On a terminal, a run that nobody has looked at is shown, and you are asked;
/// `--approve` approves and applies in one step. Otherwise the exit code is 3.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("commit").args(["branch", "pull_request"]).multiple(true))]
pub struct Apply {
    /// Id, its beginning, name, or `last`
    #[arg(value_name = "RUN")]
    run: String,
    /// Another folder: a copy of what the run started from, or of its repository
    #[arg(long, value_name = "FOLDER")]
    into: Option<PathBuf>,
    /// Make a commit on this new branch instead; the working tree stays as it is
    #[arg(long, value_name = "NAME")]
    branch: Option<String>,
    /// The commit that the new one goes on top of: an id, a branch, or `HEAD` [default: the run's]
    #[arg(long, value_name = "COMMIT", requires = "commit")]
    base: Option<String>,
    /// The message of the commit [default: a line about the run]; trailers are added
    #[arg(long, short, value_name = "TEXT", requires = "commit")]
    message: Option<String>,
    /// The author of the commit [default: you, by your own git settings]
    #[arg(long, value_name = "NAME <ADDRESS>", requires = "commit")]
    author: Option<String>,
    /// Add a `Co-authored-by` trailer; may be repeated
    #[arg(long = "co-author", value_name = "NAME <ADDRESS>", requires = "commit")]
    co_authors: Vec<String>,
    /// Keep the commits that the agent made, once they are checked; the new commit is a merge of them
    #[arg(long, requires = "branch", conflicts_with_all = ["base", "pull_request"])]
    keep_commits: bool,
    #[command(flatten)]
    request: Request,
    /// Approve it as well, in the same step
    #[arg(long)]
    approve: bool,
    /// Why it is approved; needed where it was rejected before
    #[arg(long, value_name = "TEXT")]
    why: Option<String>,
    /// Approve what failed, moved or is too large; the verdict says so
    #[arg(long)]
    anyway: bool,
    /// Make links that lead out of the folder, too
    #[arg(long)]
    allow_links: bool,
    /// Only say what would happen
    #[arg(long, visible_alias = "dry-run")]
    check_only: bool,
    /// Print what was done as one JSON object
    #[arg(long)]
    json: bool,
}

/// What is applied, and where it is known.
#[derive(Clone, Copy)]
struct At<'a> {
    home: &'a Home,
    store: &'a Store,
    run: &'a RunRecord,
    bundle: &'a Bundle,
}

impl Apply {
    pub fn run(mut self) -> anyhow::Result<ExitCode> {
        let (home, store) = open()?;
        let run = store.find(&self.run)?;
        let bundle = Bundle::open(&home, run.id)?;
        let at = At {
            home: &home,
            store: &store,
            run: &run,
            bundle: &bundle,
        };
        if self.request.pull_request {
            self.branch.get_or_insert_with(|| Request::branch(&run));
        }
        if let Some(branch) = self.branch.clone()
            && self.request.pull_request
            && !self.check_only
        {
            self.pass(&at)?;
            let folder = self.into.clone().unwrap_or_else(|| run.folder.clone());
            let make = || self.commit(&at, Extent::Apply);
            let published =
                self.request
                    .publish((&home, &store), (&run, &bundle), (&folder, &branch), make)?;
            let mut out = std::io::stdout().lock();
            if self.json {
                writeln!(out, "{}", clean_json(&serde_json::to_string(&published)?))?
            } else {
                request::tell(&published, &mut out)?
            }
            return Ok(ExitCode::SUCCESS);
        }
        let extent = if self.check_only {
            Extent::Look
        } else {
            Extent::Apply
        };
        // What does not fit is said before anybody is asked.
        let done = match (self.branch.is_some(), extent) {
            (true, Extent::Look) => Done::Branch(self.commit(&at, Extent::Look)?),
            (true, Extent::Apply) => {
                self.commit(&at, Extent::Look)?;
                self.pass(&at)?;
                Done::Branch(self.commit(&at, Extent::Apply)?)
            }
            (false, Extent::Look) => Done::Tree(self.fit(&at)?.told()),
            (false, Extent::Apply) => {
                let fitting = self.fit(&at)?;
                let fitting = match self.pass(&at)? {
                    Passed::AtOnce => fitting,
                    // Meanwhile anything may have happened.
                    Passed::Asked => self.fit(&at)?,
                };
                let allowed = || allowed(&at);
                Done::Tree(fitting.apply(&home, &allowed).map_err(Error::Apply)?)
            }
        };
        let mut out = std::io::stdout().lock();
        match (self.json, &done) {
            (true, done) => writeln!(out, "{}", clean_json(&self.as_json(&run, done)?))?,
            (false, Done::Tree(applied)) => tell_tree(applied, extent, &mut out)?,
            (false, Done::Branch(commit)) => tell_branch(commit, &mut out)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn links(&self) -> OuterLinks {
        if self.allow_links {
            OuterLinks::Allowed
        } else {
            OuterLinks::Refused
        }
    }

    fn fit(&self, at: &At<'_>) -> anyhow::Result<Fitting> {
        let fitting = apply::to_tree(at.home, at.bundle, self.into.as_deref(), self.links());
        Ok(fitting.map_err(Error::Apply)?)
    }

    fn commit(&self, at: &At<'_>, extent: Extent) -> anyhow::Result<Commit> {
        let name = self.branch.clone().unwrap_or_default();
        let person = |text: &String| Person::parse(text).map_err(Error::Apply);
        let branching = Branching {
            name,
            links: self.links(),
            base: self.base.clone(),
            message: self.message.clone(),
            author: self.author.as_ref().map(person).transpose()?,
            co_authors: self
                .co_authors
                .iter()
                .map(person)
                .collect::<Result<_, _>>()?,
            commits: if self.keep_commits {
                AgentCommits::Kept
            } else {
                AgentCommits::Left
            },
        };
        let (into, allowed) = (self.into.as_deref(), || allowed(at));
        let commit = apply::to_branch(at.home, at.bundle, into, &branching, extent, &allowed);
        Ok(commit.map_err(Error::Apply)?)
    }

    /// Goes on only with a verdict.
    fn pass(&self, at: &At<'_>) -> anyhow::Result<Passed> {
        let At {
            home,
            store,
            run,
            bundle,
        } = *at;
        let gate = Gate::of(home, store, run, bundle)?;
        if let Gate::Open(verdict) = &gate {
            // The rule looked at the patch, and not at what lies between.
            if self.keep_commits && matches!(verdict.by, By::Rule { .. }) {
                let why = "a rule approved the patch, and has seen no commit; `ringfence approve` it yourself first";
                return Err(Error::Apply(ApplyError::NoCommits(why.to_owned())).into());
            }
            return Ok(Passed::AtOnce);
        }
        let terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        let mut passed = Passed::AtOnce;
        let shown = match (&gate, self.approve) {
            // Who says no says why; so does who says yes after that.
            (Gate::Rejected(_), true) if !self.says_why() => {
                gate.pass(bundle).map_err(Error::Apply)?;
                return Ok(Passed::AtOnce);
            }
            (_, true) => None,
            (Gate::Undecided(_), false) if terminal && !self.json => match ask(bundle)? {
                Answer::Yes { shown } => {
                    passed = Passed::Asked;
                    shown
                }
                Answer::No => return Err(Error::Apply(ApplyError::NotApproved).into()),
            },
            _ => {
                gate.pass(bundle).map_err(Error::Apply)?;
                return Ok(Passed::AtOnce);
            }
        };
        let deciding = Deciding {
            decision: Decision::Approved,
            by: verdicts::person(None),
            why: self.why.clone(),
            seen_sha256: Some(bundle.sha256()),
            shown,
            anyway: if self.anyway { Anyway::Yes } else { Anyway::No },
        };
        verdicts::record(home, store, run, deciding)?;
        let gate = Gate::of(home, store, run, bundle)?;
        gate.pass(bundle).map_err(Error::Apply)?;
        Ok(passed)
    }

    fn says_why(&self) -> bool {
        let why = self.why.as_deref().unwrap_or_default();
        !why.trim().is_empty()
    }

    fn as_json(&self, run: &RunRecord, done: &Done) -> anyhow::Result<String> {
        let mut value = match done {
            Done::Tree(applied) => serde_json::to_value(applied)?,
            Done::Branch(commit) => serde_json::to_value(commit)?,
        };
        value["run"] = run.id.to_string().into();
        value["applied"] = (!self.check_only).into();
        Ok(serde_json::to_string(&value)?)
    }
}

/// Whether a verdict still holds; asked once more when nobody else is at work.
fn allowed(at: &At<'_>) -> Result<(), ApplyError> {
    let gate = Gate::of(at.home, at.store, at.run, at.bundle);
    let gate = gate.map_err(|error| ApplyError::Verdict(Box::new(error)))?;
    gate.pass(at.bundle).map(|_| ())
}

/// How it came to a verdict.
enum Passed {
    AtOnce,
    /// A person took the time to look.
    Asked,
}

/// What came of it.
enum Done {
    Tree(Applied),
    Branch(Commit),
}

enum Answer {
    Yes {
        /// How much was on the screen, where that was not all.
        shown: Option<String>,
    },
    No,
}

/// Shows summary, flags and patch, and asks.
fn ask(bundle: &Bundle) -> anyhow::Result<Answer> {
    let mut out = std::io::stderr().lock();
    // HOSTILE: all of it came out of a sandbox.
    writeln!(out, "{}", clean(&bundle.result.summary()))?;
    let patch = clean_bytes(bundle.patch_text());
    let lines = patch.lines().count();
    for line in patch.lines().take(SHOWN_LINES) {
        writeln!(out, "{line}")?;
    }
    let shown = (lines > SHOWN_LINES).then(|| format!("{SHOWN_LINES} of {lines} lines"));
    if let Some(shown) = &shown {
        writeln!(
            out,
            "… this was {shown}; `ringfence diff {}` shows all",
            bundle.run()
        )?;
    }
    // What was typed before it was shown is no answer to it.
    tcflush(std::io::stdin(), QueueSelector::IFlush)?;
    write!(out, "\nApprove and apply this? [y/N] ")?;
    out.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(match answer.trim() {
        "y" | "Y" | "yes" => Answer::Yes { shown },
        _ => Answer::No,
    })
}

fn tell_tree(
    applied: &Applied,
    extent: Extent,
    out: &mut impl std::io::Write,
) -> std::io::Result<()> {
    let is_merged = |path| {
        if applied.merged.contains(path) {
            " (merged)"
        } else {
            ""
        }
    };
    for path in &applied.written {
        writeln!(out, "write   {}{}", clean(&path.to_text()), is_merged(path))?;
    }
    for path in &applied.removed {
        writeln!(out, "remove  {}", clean(&path.to_text()))?;
    }
    for path in &applied.already {
        writeln!(out, "as is   {}", clean(&path.to_text()))?;
    }
    let count = applied.written.len() + applied.removed.len();
    let paths = if count == 1 { "path" } else { "paths" };
    let top = clean(&applied.top.display().to_string());
    match extent {
        Extent::Apply => writeln!(out, "\n{count} {paths} changed in `{top}`"),
        Extent::Look => writeln!(
            out,
            "\n{count} {paths} would change in `{top}`; nothing was changed"
        ),
    }
}

fn tell_branch(commit: &Commit, out: &mut impl std::io::Write) -> std::io::Result<()> {
    let name = commit.branch.trim_start_matches("refs/heads/");
    let kept = match commit.kept.len() {
        0 => String::new(),
        1 => ", with a commit of the agent".to_owned(),
        count => format!(", with {count} commits of the agent"),
    };
    match &commit.commit {
        Some(id) => writeln!(
            out,
            "branch `{}` is at {id}, on top of {}{kept}",
            clean(name),
            commit.parent
        ),
        None => writeln!(
            out,
            "branch `{}` would hold tree {}, on top of {}{kept}; nothing was made",
            clean(name),
            commit.tree,
            commit.parent
        ),
    }
}
