//! A command in a sandbox: on the execution that is there, or on one that is started for it.

use ringfence_model::ByteText;
use ringfence_model::journal::Event;
use ringfence_model::observed::Observed;
use ringfence_model::outcome::Outcome;
use ringfence_model::sandbox::{EndReason, SandboxState};
use ringfence_model::wire::{Exec, Leftovers, OutputMode, Stdin, WindowSize};

use super::open::open_line;
use super::{Host, room, seal};
use crate::attend::{Attended, Console, Inputs, Records, Witness, attend};
use crate::client::ClientError;
use crate::error::Error;
use crate::fail;
use crate::ids::SandboxId;
use crate::journal::JournalError;
use crate::keeper::Line;
use crate::lock::FileLock;
use crate::output::Spool;
use crate::store::{AutoCheckpoint, LayerRecord, SandboxRecord};
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
}

/// What came of it.
#[derive(Debug)]
pub struct Executed {
    pub attended: Attended,
    pub incarnation: u64,
    pub sequence: u64,
    /// The checkpoint that was made after it.
    pub checkpoint: Option<String>,
    /// Why the execution ended under it, where somebody ended it.
    pub ended: Option<EndReason>,
    pub spool: Spool,
}

/// The right to run a command that may change files.
#[derive(Debug)]
pub struct Turn {
    _writing: Option<FileLock>,
}

/// Waits for one's turn. An interrupt while waiting ends the caller as usual: nothing has begun.
pub fn turn(
    host: &Host,
    id: SandboxId,
    beside: Beside,
    tell: &mut dyn FnMut(&str),
) -> Result<Turn, Error> {
    // Before anybody waits for a sandbox that is not there.
    host.there(id)?;
    let path = host.places(id).writing();
    let writing = match beside {
        Beside::Share => None,
        Beside::Wait => Some(FileLock::wait(&path, || {
            tell("waiting for the command that runs in this sandbox");
        })?),
        Beside::Refuse => match FileLock::take(&path)? {
            Some(lock) => Some(lock),
            None => return Err(Error::SandboxBusy(id.to_string())),
        },
    };
    Ok(Turn { _writing: writing })
}

/// Runs a command to its end. `tell` is called with what a person should know before it starts.
pub fn exec(
    host: &Host,
    id: SandboxId,
    _turn: &Turn,
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
    if let Some(session) = &request.session {
        super::session::check(session)?;
    }
    let opened = open_line(host, id, request.lost, request.incarnation)?;
    for note in &opened.notes {
        tell(note);
    }
    // Twice its bound: only what makes room is let in.
    room::refuse_over(host, &opened.record, 2)?;
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
    let ended = match attended.outcome {
        Outcome::RuntimeLost => ended_by(host, id, incarnation),
        _ => None,
    };
    host.store.touch_sandbox(id)?;
    let checkpoint = match record.detail.auto_checkpoint {
        AutoCheckpoint::Never => None,
        // What is over its bound is not kept for ever.
        AutoCheckpoint::EachExec if attended.outcome == Outcome::DiskFull => None,
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
        ended,
        spool,
    })
}

/// BOUND: the keeper says why in the same moment in which everything ends.
const SAID_WITHIN: u32 = 50;

/// Why an execution ended, where its keeper lived to say so.
fn ended_by(host: &Host, id: SandboxId, incarnation: u64) -> Option<EndReason> {
    for _ in 0..SAID_WITHIN {
        let record = host.store.sandbox(id).ok()?;
        if record.incarnation != incarnation || record.state != SandboxState::Running {
            let ended = record
                .detail
                .ended
                .filter(|_| record.state != SandboxState::Lost)?;
            return (record.incarnation == incarnation).then_some(ended.reason);
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    None
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
        cwd: inside(request.cwd.as_ref()),
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
    let left = LayerRecord::left(&host.store.stack(record.head)?, &limits);
    let mut disk = DiskWatch::new(&host.places(record.id).upper(), &left)?;
    let records = Records {
        spool: &mut spool,
        disk: &mut disk,
        witness: &mut KeptElsewhere,
        // The keeper has it.
        gate: &mut None,
    };
    let attended = attend(line, exec, &limits, records, inputs, console)?;
    Ok((attended, spool))
}

/// The keeper has the journal of a sandbox, and passes nothing of it on.
struct KeptElsewhere;

impl Witness for KeptElsewhere {
    fn observed(&mut self, _: Observed) -> Result<(), JournalError> {
        Ok(())
    }

    fn network(&mut self, _: Event) -> Result<(), JournalError> {
        Ok(())
    }

    fn idle(&mut self) {}
}

/// Where a command starts: what is not absolute is meant from the workspace.
fn inside(cwd: Option<&ByteText>) -> ByteText {
    let workspace = crate::keeper::INSIDE.as_bytes();
    match cwd.map(ByteText::as_bytes) {
        None => ByteText::from(workspace),
        Some(path) if path.starts_with(b"/") => ByteText::from(path),
        Some(path) => ByteText([workspace, b"/", path].concat()),
    }
}
