//! A command in a sandbox: on the execution that is there, or on one that is started for it.

use ringfence_model::ByteText;
use ringfence_model::outcome::Outcome;
use ringfence_model::wire::{Exec, Leftovers, OutputMode, Stdin, WindowSize};

use super::open::open_line;
use super::{Host, seal};
use crate::attend::{Attended, Console, Inputs, attend};
use crate::client::ClientError;
use crate::error::Error;
use crate::fail;
use crate::ids::SandboxId;
use crate::keeper::Line;
use crate::lock::FileLock;
use crate::output::Spool;
use crate::store::{AutoCheckpoint, SandboxRecord};
use crate::watch::DiskWatch;

pub use super::open::Lost;

/// Who else may run a command at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Beside {
    /// Nobody: whoever comes later waits, so that no update is lost.
    #[default]
    Wait,
    /// Nobody: where somebody runs one, this is refused.
    Refuse,
    /// Anybody.
    Share,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct ExecRequest {
    pub argv: Vec<ByteText>,
    /// Variables beyond those of the sandbox.
    pub env: Vec<(ByteText, ByteText)>,
    /// Where it starts; the workspace if not said.
    pub cwd: Option<ByteText>,
    /// Its directory and variables are those that the last command of this session left.
    pub session: Option<String>,
    pub terminal: Option<WindowSize>,
    pub time_seconds: Option<u64>,
    pub lost: Lost,
    /// Only on this execution.
    pub incarnation: Option<u64>,
    pub beside: Beside,
}

/// What came of it.
#[derive(Debug)]
pub struct Executed {
    pub attended: Attended,
    pub incarnation: u64,
    pub sequence: u64,
    /// The checkpoint that was made after it.
    pub checkpoint: Option<String>,
    pub spool: Spool,
}

/// Runs a command to its end. `tell` is called with what a person should know before it starts.
pub fn exec(
    host: &Host,
    id: SandboxId,
    request: &ExecRequest,
    inputs: &Inputs<'_>,
    console: &mut dyn Console,
    tell: &mut dyn FnMut(&str),
) -> Result<Executed, Error> {
    if request
        .argv
        .first()
        .is_none_or(|program| program.as_bytes().is_empty())
    {
        return Err(Error::NoCommand);
    }
    crate::run::check_variables(&request.env)?;
    // Before anybody waits for a sandbox that is not there.
    host.store.sandbox(id)?;
    let _writing = write(host, id, request.beside, tell)?;
    let opened = open_line(host, id, request.lost, request.incarnation)?;
    for note in &opened.notes {
        tell(note);
    }
    fail::point("exec:opened");
    let (mut line, record) = (opened.line, opened.record);
    let incarnation = line.incarnation();
    let sequence =
        host.store
            .call_begins(id, incarnation, request.session.as_deref(), &request.argv)?;
    fail::point("exec:recorded");
    let ran = run(host, &record, request, &mut line, inputs, console);
    if let Err(Error::Client(ClientError::Gone | ClientError::Talk(_))) = &ran {
        // Whatever it did until then is in the workspace; how it ended nobody knows.
        host.store
            .call_ended(id, sequence, Outcome::RuntimeLost, (None, None))?;
        return Err(Error::RuntimeLost {
            sandbox: id.to_string(),
            incarnation,
        });
    }
    let (attended, spool) = ran?;
    fail::point("exec:ran");
    drop(line);
    host.store.call_ended(
        id,
        sequence,
        attended.outcome,
        (attended.code, attended.signal),
    )?;
    host.store.touch_sandbox(id)?;
    let checkpoint = match record.detail.auto_checkpoint {
        AutoCheckpoint::Never => None,
        AutoCheckpoint::EachExec => {
            let name = format!("exec-{sequence}");
            seal::checkpoint(host, id, &name)?;
            Some(name)
        }
    };
    Ok(Executed {
        attended,
        incarnation,
        sequence,
        checkpoint,
        spool,
    })
}

/// The right to change files.
pub(super) fn write(
    host: &Host,
    id: SandboxId,
    beside: Beside,
    tell: &mut dyn FnMut(&str),
) -> Result<Option<FileLock>, Error> {
    let path = host.places(id).writing();
    match beside {
        Beside::Share => Ok(None),
        Beside::Wait => Ok(Some(FileLock::wait(&path, || {
            tell("waiting for the command that runs in this sandbox");
        })?)),
        Beside::Refuse => match FileLock::take(&path)? {
            Some(lock) => Ok(Some(lock)),
            None => Err(Error::SandboxBusy(id.to_string())),
        },
    }
}

fn run(
    host: &Host,
    record: &SandboxRecord,
    request: &ExecRequest,
    line: &mut Line,
    inputs: &Inputs<'_>,
    console: &mut dyn Console,
) -> Result<(Attended, Spool), Error> {
    let mut limits = record.detail.limits.clone();
    if request.time_seconds.is_some() {
        limits.time_seconds = request.time_seconds;
    }
    let mut env = record.detail.env.clone();
    env.extend(request.env.iter().cloned());
    let argv = match &request.session {
        None => request.argv.clone(),
        Some(session) => super::session::wrap(session, &request.argv)?,
    };
    let exec = Exec {
        argv,
        env: crate::run::environment(&env),
        cwd: request
            .cwd
            .clone()
            .unwrap_or_else(|| ByteText::from(crate::keeper::INSIDE)),
        stdin: if inputs.stdin.is_some() {
            Stdin::Frames
        } else {
            Stdin::Empty
        },
        terminal: request.terminal,
        timeout_ms: limits.time_seconds.map(|seconds| seconds * 1000),
        output: OutputMode::Attached,
        leftovers: Leftovers::Keep,
    };
    let mut spool = Spool::ends_only();
    let mut disk = DiskWatch::new(&host.places(record.id).upper(), &limits)?;
    let attended = attend(line, exec, &limits, &mut spool, &mut disk, inputs, console)?;
    Ok((attended, spool))
}
