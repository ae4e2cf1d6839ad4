//! `ringfence run`.

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
use ringfence_engine::attend::Inputs;
use ringfence_engine::error::Error;
use ringfence_engine::home::Home;
use ringfence_engine::ids::RunId;
use ringfence_engine::run::{RunRequest, RunResult};
use ringfence_engine::workspace::{Ignored, View, open_folder};
use ringfence_jail::signals::Signals;
use ringfence_jail::terminal::RawMode;
use ringfence_model::ByteText;
use ringfence_model::flag::{Flag, Severity};
use ringfence_model::limits::HumanBytes;
use ringfence_model::outcome::RunStatus;
use ringfence_model::policy::{Bounds, Line};
use ringfence_model::wire::WindowSize;

use self::task::Tasked;
use super::limits::{LimitArgs, VariableArgs, typed_as};
use super::list;
use super::open;
use super::policy::PolicyArgs;
use crate::console::{Live, Passing, window_size};
use crate::text::{clean, clean_json};

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
#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    how: How,
    /// Run the task of this document; what is typed counts more than what it says
    #[arg(long, value_name = "FILE", conflicts_with_all = ["shell", "same_path", "attempts"])]
    task: Option<PathBuf>,
    /// A name for this run
    #[arg(long)]
    name: Option<String>,
    /// Run a shell, or the command as one line of shell
    #[arg(long)]
    shell: bool,
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
            let request = self.request(&home, false, None)?;
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
            && self.task.is_none();
        let (home, store) = open()?;
        let file = self.task.as_deref();
        let task = file
            .map(|file| Tasked::open(file, &self.argv()))
            .transpose()?;
        let request = self.request(&home, interactive, task.as_ref())?;
        let told = task.as_ref().map(Tasked::input).transpose()?;
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
            stdin: match &told {
                Some(brief) => brief.as_ref().map(|brief| brief.as_fd()),
                None => (interactive || !stdin.is_terminal()).then(|| stdin.as_fd()),
            },
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
                _ => 1,
            };
            return ExitCode::from(u8::try_from(code).unwrap_or(1));
        }
        checks::exit_code(result)
    }

    fn request(
        &self,
        home: &Home,
        interactive: bool,
        task: Option<&Tasked>,
    ) -> anyhow::Result<RunRequest> {
        let folder = match task {
            // Nobody needs the folder of a document where another one is typed.
            Some(task) if self.how.repo.is_none() => task.folder()?,
            _ => std::env::current_dir()?,
        };
        let mut request = self.how.request_of(home, &folder, task)?;
        request.argv = task.map_or_else(|| self.argv(), Tasked::words);
        request.name = self.name.clone();
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
        self.request_of(home, folder, None)
    }

    /// The same of a task; what is typed counts more than what it says.
    fn request_of(
        &self,
        home: &Home,
        folder: &Path,
        task: Option<&Tasked>,
    ) -> anyhow::Result<RunRequest> {
        let folder = self.repo.clone().unwrap_or_else(|| folder.to_owned());
        let real = open_folder(home, &folder)?;
        let hide = self.hide.iter().map(|text| Line {
            text: text.clone(),
            from: typed_as("--hide"),
        });
        let mut hide: Vec<Line> = hide.collect();
        let mut limits = Bounds::new();
        let mut own = None;
        if let Some(task) = task {
            hide.extend(task.hidden(&real)?);
            limits = task.bounds();
            own = task.policy(home, &real)?;
        }
        let path = Some(real.path());
        let mut asked = self
            .policy
            .asked_over(own, home, &self.limits, path, hide)?;
        limits.append(&mut asked.limits);
        asked.limits = limits;
        let mut policy = asked.settle(home, real.path()).map_err(Error::Policy)?;
        for check in task.into_iter().flat_map(Tasked::checks) {
            policy.effective.review.add(check);
        }
        for text in &self.checks {
            ringfence_model::check::command(text)?;
            policy.effective.review.add(Line {
                text: text.clone(),
                from: typed_as("--check"),
            });
        }
        let notes = policy.notes();
        let mut env = policy.env;
        env.extend(self.variables.variables());
        let inside = self
            .same_path
            .then(|| std::fs::canonicalize(&folder))
            .transpose();
        let inside = inside.map_err(|_| Error::NoFolder(folder.clone()))?;
        Ok(RunRequest {
            argv: Vec::new(),
            name: None,
            limits: policy.limits,
            require_hard: self.require_hard || task.is_some_and(Tasked::requires_hard),
            env,
            view: View {
                inside,
                ignored: if self.include_ignored {
                    Ignored::Included
                } else {
                    Ignored::LeftBehind
                },
            },
            policy: policy.effective,
            notes,
            terminal: None,
            attempt: None,
            program: std::env::current_exe()?,
            folder,
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

fn plural(count: usize, word: &str) -> String {
    match (count, word) {
        (1, _) => format!("1 {word}"),
        (_, "process") => format!("{count} processes"),
        _ => format!("{count} {word}s"),
    }
}
