//! `ringfence eval`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anstream::eprintln;
use clap::Args;
use ringfence_engine::campaign::Typed;
use ringfence_engine::eval::{
    Afterwards, Begin, Evaluating, RowImages, RowResult, Totals, Who, evaluate,
};

use super::limits::{LimitArgs, VariableArgs};
use super::open_host;
use super::policy::PolicyArgs;
use crate::text::{clean, plural};

/// Run an agent on many rows of (repository, commit, prompt, check), and reward what it leaves
///
/// Each row has a sandbox of its own, in which its steps follow one another. The reward is what the
/// row's checks say of the final state, in fresh sandboxes on the commit with the agent's patch: 1.0
/// if all pass, else 0.0. Tests of the row are laid on top only then. Rows of SWE-bench's shape are
/// read as they are.
///
/// One JSON object a line is written to the file of results; what has a reward there is not done
/// again with `--resume`. The exit code is 0 if each row has a reward and 1 if some have none.
#[derive(Debug, Args)]
pub struct Eval {
    /// The rows: one JSON object a line
    #[arg(value_name = "FILE")]
    rows: PathBuf,
    /// Where results go [default: FILE with `.results.jsonl` or `.gold.results.jsonl` after it]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Go on with a file of results: no row with a reward is done again
    #[arg(long)]
    resume: bool,
    /// How many rows at once
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u16).range(1..=256))]
    parallel: u16,
    /// A word that all sandboxes share, for `sandbox stop --tag` [default: `eval`]
    #[arg(long, default_value = "eval")]
    tag: String,
    /// Keep sandboxes; `sandbox rm --tag` removes them
    #[arg(long)]
    keep: bool,
    /// Where repositories are: a directory with `owner/name`, or an address with `{repo}` in it
    #[arg(long, value_name = "DIR|ADDRESS")]
    repos: Option<String>,
    /// How tests that a row names are run; the exit code decides
    #[arg(long, value_name = "COMMAND", default_value = "pytest -q {tests}")]
    test_command: String,
    /// Look at each row's own right patch instead of an agent's, to prove the row
    #[arg(long, conflicts_with = "command")]
    gold: bool,
    /// Let rows choose their image
    #[arg(long)]
    row_images: bool,
    #[command(flatten)]
    policy: PolicyArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    variables: VariableArgs,
    /// Print each result as it is written, and nothing else, on standard output
    #[arg(long)]
    json: bool,
    /// The agent and its arguments, after `--`: `{prompt}` in a word is the prompt, else it is on
    /// standard input
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Eval {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        // What a dead process left is settled once, and not by each worker.
        drop(open_host()?);
        let how = self.evaluating()?;
        let mut failed = None;
        let totals = evaluate(&|| super::host(), &how, &mut |result| {
            if let Err(error) = self.tell(result) {
                failed = Some(error);
            }
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        tell_totals(&totals, &how.out);
        Ok(match totals.problems {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        })
    }

    fn evaluating(&self) -> anyhow::Result<Evaluating> {
        let out = self.out.clone().unwrap_or_else(|| {
            let mut name = self.rows.clone().into_os_string();
            name.push(if self.gold {
                ".gold.results.jsonl"
            } else {
                ".results.jsonl"
            });
            PathBuf::from(name)
        });
        // A directory is meant from here; what has a scheme is an address.
        let repos = self.repos.as_ref().map(|typed| {
            if typed.contains("://") {
                Ok(typed.clone())
            } else {
                std::path::absolute(typed).map(|path| path.to_string_lossy().into_owned())
            }
        });
        Ok(Evaluating {
            rows: std::path::absolute(&self.rows)?,
            out,
            begin: if self.resume {
                Begin::GoOn
            } else {
                Begin::Anew
            },
            command: self.command.clone(),
            test_command: self.test_command.clone(),
            repos: repos.transpose()?,
            who: if self.gold { Who::Gold } else { Who::Agent },
            tag: self.tag.clone(),
            parallel: usize::from(self.parallel),
            afterwards: if self.keep {
                Afterwards::Kept
            } else {
                Afterwards::Removed
            },
            images: if self.row_images {
                RowImages::Taken
            } else {
                RowImages::Refused
            },
            typed: Typed {
                env: self.variables.variables(),
                ..self.policy.typed(&self.limits)?
            },
        })
    }

    fn tell(&self, result: &RowResult) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        if self.json {
            let text = serde_json::to_string(result)?;
            writeln!(out, "{}", crate::text::clean_json(&text))?;
            return Ok(());
        }
        let name = match &result.id {
            Some(id) => clean(id),
            None => format!("line {}", result.line),
        };
        let seconds = result.usage.wall_ms as f64 / 1000.0;
        match (result.reward, &result.error) {
            (Some(reward), _) => writeln!(out, "{reward:.1}  {name}  {seconds:.1} s")?,
            (None, Some(error)) => {
                writeln!(
                    out,
                    "  –  {name}  {}: {}",
                    error.kind,
                    clean(&error.message)
                )?;
                if let Some(hint) = &error.hint {
                    eprintln!("       hint: {}", clean(hint));
                }
            }
            (None, None) => writeln!(out, "  –  {name}")?,
        }
        Ok(())
    }
}

fn tell_totals(totals: &Totals, out: &Path) {
    let mean = match totals.rewarded {
        0 => String::new(),
        count => format!(", mean reward {:.3}", totals.reward / count as f64),
    };
    let before = match totals.before {
        0 => String::new(),
        count => format!(" ({count} from before)"),
    };
    eprintln!(
        "\n{}: {} with a reward{before}{mean}, {} without; {}",
        plural(totals.rows, "row"),
        totals.rewarded,
        totals.problems,
        clean(&out.display().to_string())
    );
}
