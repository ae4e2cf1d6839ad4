//! `ringfence review`.

mod glyphs;
mod keys;
mod page;
mod plain;
mod screen;
mod view;
mod wide;

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use ringfence_engine::campaign;
use ringfence_engine::home::Home;
use ringfence_engine::review::Opened;
use ringfence_engine::store::{Decided, RunFilter, RunRecord, Store};
use ringfence_engine::verdicts::{self, Anyway, Deciding, Standing};
use ringfence_model::flag::Severity;
use ringfence_model::verdict::{Decision, Hold};

use super::approve::words;
use super::open;
use crate::text::clean;
use page::Page;
use screen::{Screen, Wish};

/// Look at what a run changed, and decide
///
/// On a terminal: the summary with its flags and checks, then each file hunk by hunk, and under each
/// hunk which command made it. `a` approves, `r` rejects, `s` goes on to the next run, `?` shows all
/// keys. Otherwise, or with `--plain`, everything is printed as one document, as for `less -R`.
///
/// The bundle is read once and verified. What is shown is what would be applied, and the verdict
/// names the hash of just that. Long hunks are folded, with a count; `u` shows them whole, and a
/// verdict says how many were never unfolded.
#[derive(Debug, Args)]
pub struct Review {
    /// Id, its beginning, name, or `last`
    #[arg(
        default_value = "last",
        value_name = "RUN",
        conflicts_with_all = ["all_held", "campaign"]
    )]
    run: String,
    /// One after another, all that wait for a verdict, the oldest first
    #[arg(long)]
    all_held: bool,
    /// One after another, what the tasks of a campaign left and waits for a verdict, in their order
    #[arg(long, value_name = "NAME", conflicts_with = "all_held")]
    campaign: Option<String>,
    /// Print it all; on a terminal through `$PAGER`, where that is set
    #[arg(long)]
    plain: bool,
    /// When to use colours
    #[arg(long, value_enum, default_value_t = Colour::Auto, value_name = "WHEN")]
    color: Colour,
    /// Who decides [default: your user name and this host's]; your account is recorded as well
    #[arg(long = "as", value_name = "NAME")]
    name: Option<String>,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Colour {
    Auto,
    Always,
    Never,
}

/// BOUND: runs that are gone through at once.
const HELD: usize = 1000;

impl Review {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (home, store) = open()?;
        let runs = match (&self.campaign, self.all_held) {
            (Some(name), _) => campaign::held(&store, &store.campaign(name)?)?,
            (None, false) => vec![store.find(&self.run)?],
            (None, true) => {
                let filter = RunFilter {
                    decided: Some(Decided::Held),
                    ..RunFilter::default()
                };
                let mut runs = store.runs(filter, HELD)?;
                runs.reverse();
                runs
            }
        };
        let colour = self.colour();
        if runs.is_empty() {
            writeln!(std::io::stdout(), "nothing is held")?;
            return Ok(ExitCode::SUCCESS);
        }
        if !self.is_interactive() {
            plain::print(self.plain, |out| {
                for run in &runs {
                    let opened = Opened::open(&home, run)?;
                    let patch = opened.patch().map_err(anyhow::Error::new)?;
                    let standing = standing(&home, &store, run)?;
                    plain::write(&Page::new(&opened, &patch, standing), colour, out)?;
                }
                Ok(())
            })?;
            return Ok(ExitCode::SUCCESS);
        }
        self.interactive(&home, &store, &runs)
    }

    fn is_interactive(&self) -> bool {
        let term = std::env::var("TERM").unwrap_or_default();
        !self.plain
            && !matches!(term.as_str(), "" | "dumb")
            && std::io::stdin().is_terminal()
            && std::io::stdout().is_terminal()
    }

    fn colour(&self) -> bool {
        let wanted = || std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let term = std::env::var("TERM").unwrap_or_default();
        match self.color {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto => {
                std::io::stdout().is_terminal() && wanted() && !matches!(term.as_str(), "" | "dumb")
            }
        }
    }

    fn interactive(
        &self,
        home: &Home,
        store: &Store,
        runs: &[RunRecord],
    ) -> anyhow::Result<ExitCode> {
        let mut told = Vec::new();
        let mut code = ExitCode::SUCCESS;
        let mut screen = Screen::open(self.colour())?;
        for (at, run) in runs.iter().enumerate() {
            let opened = Opened::open(home, run)?;
            let patch = opened.patch().map_err(anyhow::Error::new)?;
            let page = Page::new(&opened, &patch, standing(home, store, run)?);
            let title = match runs.len() {
                1 => format!("run {}", run.id),
                all => format!("run {} ({} of {all})", run.id, at + 1),
            };
            let doubts = doubts(run, &opened);
            let wish = screen.read(page, &title, &doubts)?;
            let (decision, why, shown) = match wish {
                Wish::Skip => continue,
                Wish::Quit => break,
                Wish::Interrupted => {
                    code = ExitCode::from(130);
                    break;
                }
                Wish::Approve { shown } => (Decision::Approved, None, shown),
                Wish::Reject { why, shown } => (Decision::Rejected, Some(why), shown),
            };
            let deciding = Deciding {
                decision,
                by: verdicts::person(self.name.clone()),
                why,
                seen_sha256: Some(opened.sha256()),
                shown,
                // Whoever approves was asked about each of them.
                anyway: Anyway::Yes,
            };
            told.push(words(&verdicts::record(home, store, run, deciding)?));
        }
        drop(screen);
        let mut out = std::io::stdout().lock();
        for line in &told {
            writeln!(out, "{line}")?;
        }
        if told.is_empty() {
            writeln!(out, "nothing was decided")?;
        }
        Ok(code)
    }
}

/// Where a run stands, in lines.
fn standing(home: &Home, store: &Store, run: &RunRecord) -> anyhow::Result<Vec<String>> {
    let task = run.campaign();
    let task = task.map(|own| format!("task {} of campaign {}", own.number, own.name));
    let mut lines: Vec<String> = task.into_iter().collect();
    match verdicts::proven(store, home, run)? {
        Standing::Held(holds) => lines.extend(holds.iter().map(|hold| format!("held: {hold}"))),
        Standing::Approved(verdict) | Standing::Rejected(verdict) => lines.push(words(&verdict)),
        Standing::Changed(verdict) => lines.extend([
            words(&verdict),
            "the bundle is not the one that was approved".to_owned(),
        ]),
    }
    Ok(lines.iter().map(|line| clean(line)).collect())
}

/// What is asked about before an approval.
fn doubts(run: &RunRecord, opened: &Opened) -> Vec<String> {
    let holds = verdicts::holds(run);
    let named = holds.iter().filter(|hold| hold.kind.needs_anyway());
    let mut doubts: Vec<String> = named.map(Hold::to_string).collect();
    let serious = |severity| severity == Severity::Serious;
    let flags = opened.result.flags.iter();
    let serious = flags.filter(|flag| serious(flag.severity)).count();
    if serious > 0 {
        doubts.push(format!("{serious} serious flags"));
    }
    doubts
}
