//! `ringfence sandbox exec` and `shell`.

use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::process::ExitCode;

use anstream::eprintln;
use clap::Args;
use ringfence_engine::attend::Inputs;
use ringfence_engine::client::Stream;
use ringfence_engine::error::Error;
use ringfence_engine::sandboxes::exec::{Beside, ExecRequest, Executed, Lost, exec, turn};
use ringfence_engine::sandboxes::session;
use ringfence_jail::signals::Signals;
use ringfence_jail::terminal::RawMode;
use ringfence_model::ByteText;
use ringfence_model::outcome::Outcome;
use ringfence_model::wire::WindowSize;
use serde_json::json;

use crate::commands::limits::{Quantity, VariableArgs, duration};
use crate::commands::open_host;
use crate::console::{Live, Passing, window_size};
use crate::text::{clean, clean_json};

/// Run a command in a sandbox, and exit with its code
///
/// Files stay, also in the home and in `/tmp`; what it leaves running goes on. Commands of one
/// sandbox run one after the other, unless `--shared`.
#[derive(Debug, Args)]
pub struct Exec {
    /// Id, its beginning, name, or `last`
    #[arg(value_name = "SANDBOX")]
    sandbox: String,
    /// Keep directory and variables from one command of this session to the next
    #[arg(long, value_name = "NAME")]
    session: Option<String>,
    /// Start another execution where the old one is lost
    #[arg(long)]
    replace: bool,
    /// Only on this execution; another one is an error
    #[arg(long, value_name = "N")]
    incarnation: Option<u64>,
    /// Run beside other commands
    #[arg(long, conflicts_with = "no_wait")]
    shared: bool,
    /// Refuse where another command runs, instead of waiting for it
    #[arg(long)]
    no_wait: bool,
    /// Where it starts, seen from the workspace
    #[arg(long, value_name = "DIR", conflicts_with = "session")]
    cwd: Option<OsString>,
    /// Stop it after this long, e.g. `90s`
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Quantity>,
    #[command(flatten)]
    variables: VariableArgs,
    /// Print the result as one JSON object; the command's output goes to standard error
    #[arg(long)]
    json: bool,
    /// The command and its arguments, after `--`
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Open a shell in a sandbox
///
/// Its directory, variables and history are there again in the next shell, also after the execution
/// was replaced.
#[derive(Debug, Args)]
pub struct Shell {
    /// Id, its beginning, name, or `last`
    #[arg(value_name = "SANDBOX")]
    sandbox: String,
    /// Whose directory, variables and history
    #[arg(long, value_name = "NAME", default_value = "shell")]
    session: String,
    /// Start another execution where the old one is lost
    #[arg(long)]
    replace: bool,
}

impl Exec {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let terminal =
            std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && !self.json;
        let request = ExecRequest {
            argv: self
                .command
                .iter()
                .map(|word| ByteText::from(word.as_bytes()))
                .collect(),
            env: self.variables.variables(),
            cwd: self.cwd.map(|path| ByteText(path.into_vec())),
            session: self.session,
            terminal: None,
            time_seconds: self.timeout.and_then(|Quantity(seconds)| seconds),
            lost: lost(self.replace),
            incarnation: self.incarnation,
        };
        let beside = match (self.shared, self.no_wait) {
            (true, _) => Beside::Share,
            (_, true) => Beside::Refuse,
            _ => Beside::Wait,
        };
        let passing = if self.json {
            Passing::ToStderr
        } else {
            Passing::Through
        };
        let done = match execute(&self.sandbox, request, beside, terminal, passing) {
            Ok(done) => done,
            Err(error) => {
                if self.json
                    && let Some(known) = error.downcast_ref::<Error>()
                {
                    let value = json!({ "error": {
                        "kind": known.word(),
                        "message": known.to_string(),
                        "hint": known.hint(),
                    }});
                    writeln!(std::io::stdout(), "{}", clean_json(&value.to_string()))?;
                }
                return Err(error);
            }
        };
        if self.json {
            let attended = &done.attended;
            let text = |stream| {
                let capture = done.spool.stream(stream);
                json!({
                    "head": String::from_utf8_lossy(capture.head()),
                    "tail": String::from_utf8_lossy(&capture.tail()),
                    "bytes": capture.total(),
                    "truncated": capture.is_truncated(),
                })
            };
            let value = json!({
                "outcome": attended.outcome,
                "exit_code": attended.code,
                "signal": attended.signal,
                "not_started": attended.not_started,
                "duration_ms": attended.duration_ms,
                "incarnation": done.incarnation,
                "sequence": done.sequence,
                "checkpoint": done.checkpoint,
                "ended": done.ended,
                "leftovers": attended.leftovers,
                "limit_hits": attended.hits,
                "stdout": text(Stream::Stdout),
                "stderr": text(Stream::Stderr),
            });
            let mut out = std::io::stdout().lock();
            writeln!(out, "{}", clean_json(&value.to_string()))?;
        }
        Ok(exit_code(&done))
    }
}

impl Shell {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        let request = ExecRequest {
            argv: session::shell(&self.session)?,
            env: Vec::new(),
            cwd: None,
            session: None,
            terminal: None,
            time_seconds: None,
            lost: lost(self.replace),
            incarnation: None,
        };
        // Somebody may sit in it for hours.
        let beside = Beside::Share;
        let done = execute(&self.sandbox, request, beside, terminal, Passing::Through)?;
        Ok(exit_code(&done))
    }
}

fn lost(replace: bool) -> Lost {
    if replace { Lost::Replace } else { Lost::Tell }
}

/// Runs a command with the caller's terminal, input and signals.
fn execute(
    sandbox: &str,
    mut request: ExecRequest,
    beside: Beside,
    terminal: bool,
    passing: Passing,
) -> anyhow::Result<Executed> {
    let host = open_host()?;
    let id = host.store.find_sandbox(sandbox)?.id;
    if terminal {
        // A terminal that does not tell its size is as large as terminals always were.
        request.terminal = Some(window_size().unwrap_or(WindowSize {
            columns: 80,
            rows: 24,
        }));
        if let Some(term) = std::env::var_os("TERM") {
            request.env.push(("TERM".into(), ByteText(term.into_vec())));
        }
    }
    let turn = turn(&host, id, beside, &mut |note| {
        eprintln!("ringfence: {}", clean(note));
    })?;
    let signals = Signals::hold()?;
    let stdin = std::io::stdin();
    let raw = terminal
        .then(|| RawMode::enter(stdin.as_fd()))
        .transpose()?;
    let mut console = Live::new(passing, true);
    let inputs = Inputs {
        stdin: (terminal || !stdin.is_terminal()).then(|| stdin.as_fd()),
        signals: Some(&signals),
    };
    let end = if terminal { "\r\n" } else { "\n" };
    let mut tell = |note: &str| {
        let _ = write!(std::io::stderr(), "ringfence: {}{end}", clean(note));
    };
    let done = exec(&host, id, &turn, &request, &inputs, &mut console, &mut tell);
    console.finish();
    drop(raw);
    let done = done?;
    let attended = &done.attended;
    if let Some(reason) = &attended.not_started {
        eprintln!("ringfence: {}", clean(reason));
    }
    for (limit, detail) in &attended.hits {
        eprintln!(
            "ringfence: limit of {}: {}",
            limit.as_str().replace('_', " "),
            clean(detail)
        );
    }
    match attended.outcome {
        Outcome::Exited | Outcome::Signaled | Outcome::NotStarted | Outcome::Cancelled => {}
        Outcome::RuntimeLost => match done.ended {
            Some(reason) => eprintln!("ringfence: the execution was ended: {}", reason.as_str()),
            None => eprintln!(
                "ringfence: runtime_lost: the execution is gone; its workspace is whole, and `--replace` starts another"
            ),
        },
        outcome => eprintln!("ringfence: {}", outcome.as_str()),
    }
    Ok(done)
}

/// The command's own code; as a shell has it where there is none.
fn exit_code(done: &Executed) -> ExitCode {
    let attended = &done.attended;
    let code = match (attended.outcome, attended.code, attended.signal) {
        (Outcome::NotStarted, code, _) => code.unwrap_or(127),
        (Outcome::TimedOut, _, _) => 124,
        (Outcome::RuntimeLost, _, _) => 4,
        // A bound that was met is a failure, whatever the command thought.
        (Outcome::Exited | Outcome::Signaled | Outcome::Cancelled, Some(code), _) => code,
        (_, Some(code), _) => code.max(1),
        (_, _, Some(signal)) => 128 + signal,
        _ => 1,
    };
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
