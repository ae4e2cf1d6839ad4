//! `ringfence run`.

mod agent;
mod attempts;
pub mod checks;
mod task;

use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anstream::eprintln;
use clap::Args;
use ringfence_engine::agents;
use ringfence_engine::attend::Inputs;
use ringfence_engine::campaign::{self, CampaignError, Typed};
use ringfence_engine::error::Error;
use ringfence_engine::home::Home;
use ringfence_engine::ids::RunId;
use ringfence_engine::run::{RunRequest, RunResult};
use ringfence_engine::workspace::Ignored;
use ringfence_jail::signals::Signals;
use ringfence_jail::terminal::RawMode;
use ringfence_model::ByteText;
use ringfence_model::flag::{Flag, Severity};
use ringfence_model::limits::HumanBytes;
use ringfence_model::outcome::RunStatus;
use ringfence_model::policy::Line;
use ringfence_model::rounds::{AgentLife, Rounds};
use ringfence_model::wire::WindowSize;

use super::backends::HeldArgs;
use super::limits::{LimitArgs, VariableArgs, typed_as};
use super::list;
use super::open;
use super::policy::PolicyArgs;
use crate::console::{Live, Passing, window_size};
use crate::text::{clean, clean_json, plural};

/// Run a command in a fresh sandbox on a copy of a folder, and keep a patch of what it changed
///
/// The command sees the folder as it is, uncommitted work included, at `/workspace`. It runs as
/// user `agent` with an empty home and no network but what its policy allows. The real folder does not change.
///
/// `ringfence review` shows the patch, `ringfence apply` takes it. The exit code is 0 if the command
/// succeeded and 1 if it did not; `--pass-exit-code` passes the command's own.
///
/// With `--check`, the host runs commands of its own on the folder with the patch, in fresh
/// sandboxes. If the command succeeded and one of them does not hold, the exit code is 5.
///
/// With `--iterations`, a command whose checks do not hold is told what they printed and goes on with
/// its files: by the file that `$RINGFENCE_FEEDBACK` names, by its standard input, or where a word of
/// it has `{feedback}`.
#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    how: How,
    /// Run the task of this document; what is typed counts more than what it says
    #[arg(long, value_name = "FILE", conflicts_with_all = ["shell", "same_path", "attempts"])]
    task: Option<PathBuf>,
    #[command(flatten)]
    who: agent::AgentArgs,
    /// A name for this run
    #[arg(long)]
    name: Option<String>,
    /// Run a shell, or the command as one line of shell
    #[arg(long)]
    shell: bool,
    /// Send the command back with the output of failing checks, up to this often in all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    iterations: Option<u32>,
    /// The command stays for all iterations: it prints `$RINGFENCE_TURN` when its turn is over
    #[arg(long)]
    stay: bool,
    /// Run a task that has no check
    #[arg(long, requires = "task")]
    unchecked: bool,
    /// Run it this often, each time from the same start, and compare
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    attempts: u32,
    /// How many attempts at once
    #[arg(long, value_name = "N", default_value_t = 1, requires = "attempts",
          value_parser = clap::value_parser!(u32).range(1..=16))]
    parallel: u32,
    /// Exit with the command's own code
    #[arg(long)]
    pass_exit_code: bool,
    /// Print the result as one JSON object; the command's output goes to standard error
    #[arg(long)]
    json: bool,
    /// The command and its arguments; `--` before it keeps its options from being taken for ours
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// On what, and held to what.
#[derive(Debug, Args)]
pub struct How {
    /// The folder to work on [default: the current directory]
    #[arg(long, value_name = "FOLDER")]
    repo: Option<PathBuf>,
    #[command(flatten)]
    policy: PolicyArgs,
    #[command(flatten)]
    limits: LimitArgs,
    /// Refuse to start where a limit can only be watched on this host
    #[arg(long)]
    require_hard: bool,
    #[command(flatten)]
    held: HeldArgs,
    #[command(flatten)]
    variables: VariableArgs,
    /// Make paths absent inside: `.env*` anywhere, `conf/key`, `secrets/**`
    #[arg(long, value_name = "GLOB")]
    hide: Vec<String>,
    /// Let ignored files cross back as well
    #[arg(long)]
    include_ignored: bool,
    /// Mount the folder at its own path instead of `/workspace`
    #[arg(long)]
    same_path: bool,
    /// Check the patch with this line of shell, before and after; can be given more than once
    #[arg(long = "check", value_name = "COMMAND")]
    checks: Vec<String>,
}

impl Run {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let signals = Signals::hold()?;
        if self.attempts > 1 {
            let (home, _) = open()?;
            let request = self.request(&home, false)?;
            for note in &request.notes {
                eprintln!("note: {}", clean(note));
            }
            return attempts::run(&request, self.attempts, self.parallel, self.json);
        }
        let stdin = std::io::stdin();
        // A terminal for the command whenever the caller has one on both sides.
        let interactive = stdin.is_terminal()
            && std::io::stdout().is_terminal()
            && !self.json
            && self.task.is_none()
            && !self.who.is_told()
            && self.iterations.is_none_or(|most| most == 1);
        let (home, store) = open()?;
        let request = self.request(&home, interactive)?;
        if self.task.is_some() && !self.unchecked && request.policy.review.checks.is_empty() {
            anyhow::bail!(Error::Campaign(CampaignError::NoCheck));
        }
        for note in &request.notes {
            eprintln!("note: {}", clean(note));
        }
        let raw = interactive
            .then(|| RawMode::enter(stdin.as_fd()))
            .transpose()?;
        let passing = if self.json {
            Passing::ToStderr
        } else {
            Passing::Through
        };
        let mut console = Live::new(passing, interactive).holding(raw);
        let inputs = Inputs {
            // A terminal without our taking its output is the caller's own, not the command's.
            stdin: (interactive || !stdin.is_terminal())
                .then(|| stdin.as_fd())
                .filter(|_| request.input.is_none()),
            signals: Some(&signals),
        };
        let result = ringfence_engine::run::run(&home, &store, &request, &inputs, &mut console);
        console.finish();
        console.leave();
        let result = result?;
        if self.json {
            let mut value = serde_json::to_value(&result)?;
            let run = store.run(result.run)?;
            value["review"] = list::review_json(&home, &store, &run);
            let mut out = std::io::stdout().lock();
            writeln!(out, "{}", clean_json(&serde_json::to_string(&value)?))?;
        } else {
            tell(&result, &request.notes);
        }
        Ok(self.exit_code(&result))
    }

    fn exit_code(&self, result: &RunResult) -> ExitCode {
        if self.pass_exit_code {
            let code = match (result.exit_code, result.signal) {
                (Some(code), _) => code,
                (None, Some(signal)) => 128 + signal,
                _ if result.status == RunStatus::Done => 0,
                _ => 1,
            };
            return ExitCode::from(u8::try_from(code).unwrap_or(1));
        }
        checks::exit_code(result)
    }

    fn request(&self, home: &Home, interactive: bool) -> anyhow::Result<RunRequest> {
        let typed = Typed {
            words: self.argv(),
            agent: self.who.agent.clone(),
            ..self.how.typed()?
        };
        let mut request = match (&self.task, &self.who.agent) {
            (Some(file), _) => task::request(home, file, &typed)?,
            (None, Some(name)) => {
                let prompt = self.who.prompt()?;
                let mut request = typed.request(home, &std::env::current_dir()?)?;
                let folder = &request.folder;
                let prepared = agents::prepare(home, name, &prompt, &typed.words, folder);
                let told = prepared.and_then(|prepared| prepared.join(&mut request));
                let told = told.map_err(Error::Agent)?;
                request.input = Some(told.unwrap_or_default().into_bytes());
                request.brief = Some(prompt.into_bytes());
                request
            }
            (None, None) => typed.request(home, &std::env::current_dir()?)?,
        };
        request.name = self.name.clone();
        self.ask(&mut request)?;
        if !interactive {
            return Ok(request);
        }
        let env = &mut request.env;
        if let Some(term) = std::env::var_os("TERM")
            && !env.iter().any(|(key, _)| key.as_bytes() == b"TERM")
        {
            env.push(("TERM".into(), ByteText(term.into_vec())));
        }
        // A terminal that does not tell its size is as large as terminals always were.
        request.terminal = Some(window_size().unwrap_or(WindowSize {
            columns: 80,
            rows: 24,
        }));
        Ok(request)
    }

    /// What the agent is asked, and how often it is sent back.
    fn ask(&self, request: &mut RunRequest) -> anyhow::Result<()> {
        if self.who.agent.is_none() && self.who.is_told() {
            let brief = self.who.prompt()?;
            let (words, input) = campaign::placed(&request.argv, &brief)?;
            request.argv = words;
            request.input = Some(input.unwrap_or_default().into_bytes());
            request.brief = Some(brief.into_bytes());
        }
        if self.iterations.is_some() || self.stay {
            let rounds = request.rounds.get_or_insert(Rounds {
                iterations: 1,
                agent: AgentLife::Restarts,
            });
            rounds.iterations = self.iterations.unwrap_or(rounds.iterations);
            if self.stay {
                rounds.agent = AgentLife::Stays;
            }
        }
        Ok(())
    }

    fn argv(&self) -> Vec<ByteText> {
        let words = self
            .command
            .iter()
            .map(|word| ByteText::from(word.as_bytes()));
        if !self.shell {
            return words.collect();
        }
        let shell = if std::path::Path::new("/bin/bash").exists() {
            "/bin/bash"
        } else {
            "/bin/sh"
        };
        if self.command.is_empty() {
            return vec![shell.into()];
        }
        let line: Vec<&[u8]> = self.command.iter().map(|word| word.as_bytes()).collect();
        vec![shell.into(), "-c".into(), ByteText(line.join(&b' '))]
    }
}

impl How {
    /// What is asked of a folder, if `--repo` names no other. Without a command.
    pub fn request(&self, home: &Home, folder: &Path) -> anyhow::Result<RunRequest> {
        Ok(self.typed()?.request(home, folder)?)
    }

    /// What was typed, without a command.
    fn typed(&self) -> anyhow::Result<Typed> {
        let hide = self.hide.iter().map(|text| Line {
            text: text.clone(),
            from: typed_as("--hide"),
        });
        let mut checks = Vec::new();
        for text in &self.checks {
            ringfence_model::check::command(text)?;
            checks.push(Line {
                text: text.clone(),
                from: typed_as("--check"),
            });
        }
        Ok(Typed {
            folder: self.repo.clone(),
            hide: hide.collect(),
            checks,
            env: self.variables.variables(),
            require_hard: self.require_hard,
            backend: self.held.choice(),
            ignored: if self.include_ignored {
                Ignored::Included
            } else {
                Ignored::LeftBehind
            },
            same_path: self.same_path,
            ..self.policy.typed(&self.limits)?
        })
    }
}

/// The short summary on the terminal; some notes were told already.
fn tell(result: &RunResult, told: &[String]) {
    let status = match result.status {
        RunStatus::Done => "done".to_owned(),
        status => status.as_str().replace('_', " "),
    };
    eprintln!();
    eprintln!(
        "run {}: {status}, the command {} ({})",
        result.run,
        clean(&result.ending()),
        ringfence_engine::run::Seconds(result.duration_ms)
    );
    if result.changed_files.is_empty() {
        eprintln!("  no changes");
    } else {
        eprintln!(
            "  {} changed, +{} −{} lines",
            plural(result.changed_files.len(), "file"),
            result.insertions,
            result.deletions
        );
        for path in result.changed_files.iter().take(8) {
            eprintln!("    {}", clean(&path.to_text()));
        }
        if result.changed_files.len() > 8 {
            eprintln!("    … and {} more", result.changed_files.len() - 8);
        }
    }
    if !result.omitted.is_empty() {
        let bytes: u64 = result.omitted.iter().map(|o| o.size).sum();
        eprintln!(
            "  {} left behind ({}):",
            plural(result.omitted.len(), "path"),
            HumanBytes(bytes)
        );
        for omitted in result.omitted.iter().take(5) {
            eprintln!(
                "    {} ({})",
                clean(&omitted.path.to_text()),
                ringfence_engine::run::why(omitted.why)
            );
        }
    }
    for (limit, detail) in &result.limit_hits {
        eprintln!(
            "  limit of {}: {}",
            limit.as_str().replace('_', " "),
            clean(detail)
        );
    }
    if !result.leftovers.is_empty() {
        eprintln!(
            "  {} still running at the end, and ended",
            plural(result.leftovers.len(), "process")
        );
    }
    for note in result.notes.iter().filter(|note| !told.contains(note)) {
        eprintln!("  note: {}", clean(note));
    }
    checks::tell_rounds(result);
    if let Some(usage) = &result.usage {
        eprintln!("  the agent says: {}", clean(&agent::said(usage)));
    }
    checks::tell(&result.checks, " ");
    tell_flags(&result.flags, result.run);
    if !result.changed_files.is_empty() {
        eprintln!("  see it:  ringfence review {}", result.run);
        eprintln!("  take it: ringfence apply {}", result.run);
    }
}

/// What to look at first, in a few lines; `show` has the rest.
fn tell_flags(flags: &[Flag], run: RunId) {
    /// BOUND: what fits on a screen with the rest.
    const SHOWN: usize = 4;
    let count = |severity| {
        flags
            .iter()
            .filter(|flag| flag.severity == severity)
            .count()
    };
    for flag in flags
        .iter()
        .filter(|flag| flag.severity == Severity::Serious)
        .take(SHOWN)
    {
        eprintln!("  serious: {}", clean(&flag.message));
    }
    let (serious, warnings) = (count(Severity::Serious), count(Severity::Warning));
    if serious + warnings > 0 {
        eprintln!(
            "  {serious} serious and {}; why: ringfence show {run}",
            plural(warnings, "warning")
        );
    }
}
