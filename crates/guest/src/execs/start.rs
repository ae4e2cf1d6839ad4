//! Starting a command: its streams, where its program may be, and the warden that looks after it.

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use ringfence_jail::terminal;
use ringfence_jail::warden::{self, Leads, Terminal};
use ringfence_model::ByteText;
use ringfence_model::tools::PROGRAM;
use ringfence_model::wire::{Exec as Asked, Flow, Ids, OutputMode, Stdin};
use rustix::io::Errno;

use super::records::Word;
use super::ring::Ring;
use super::strays::Identity;
use super::{Exec, Input};
use crate::observe::Runs;
use crate::{Ready, become_agent, pipe};

/// Starts a command under a warden.
pub(super) fn start(stream: u32, asked: Asked, ready: &mut Ready) -> io::Result<Exec> {
    let hello = &ready.hello;
    let now = Instant::now();
    let strings = |list: &[ByteText]| -> io::Result<Vec<CString>> {
        list.iter()
            .map(|text| Ok(CString::new(text.as_bytes())?))
            .collect()
    };
    let program = asked.argv.first().cloned().ok_or(Errno::INVAL)?;
    let env: Vec<ByteText> = asked
        .env
        .iter()
        .map(|(key, value)| ByteText([key.as_bytes(), b"=", value.as_bytes()].concat()))
        .collect();
    let path = asked.env.iter().find(|(key, _)| key.as_bytes() == b"PATH");
    // The agent's own, so that a command can open them once more, as `/dev/stdout` or by its terminal.
    let streams = ready.reach.as_agent(|| Streams::open(&asked))?;
    let runs = if program.as_bytes() == PROGRAM.as_bytes() {
        Runs::Ours
    } else {
        Runs::Theirs
    };
    let command = warden::Command {
        candidates: candidates(
            program.as_bytes(),
            path.map_or(&b""[..], |(_, value)| value.as_bytes()),
        )?,
        argv: strings(&asked.argv)?,
        env: strings(&env)?,
        cwd: CString::new(asked.cwd.as_bytes())?,
        stdin: streams.theirs.0,
        stdout: streams.theirs.1,
        stderr: streams.theirs.2,
        terminal: if asked.terminal.is_some() {
            Terminal::Controlling
        } else {
            Terminal::No
        },
        open_files: hello.open_files,
        processes: match hello.ids {
            Ids::Own => Some(hello.processes),
            Ids::Shared => None,
        },
        file_bytes: hello.file_bytes,
        become_agent: become_agent(hello),
        leads: match Leads::of_this_process() {
            // HOSTILE: for a moment the agent could make of it what it wants, and would be believed.
            Leads::Apart if runs == Runs::Ours => Leads::Closed,
            leads => leads,
        },
    };
    let started = warden::start(command, ready.watched.as_ref())?;
    if let Some(listener) = started.listener {
        ready.observer.watch(stream, listener, runs);
    }
    for fd in [&streams.stdin, &streams.stdout, &streams.stderr]
        .into_iter()
        .flatten()
    {
        rustix::io::ioctl_fionbio(fd, true)?;
    }
    rustix::io::ioctl_fionbio(&started.records, true)?;
    Ok(Exec {
        warden: Identity::of(started.pid),
        records: Some(started.records),
        partial_record: Vec::new(),
        program,
        cwd: asked.cwd,
        leader: None,
        stdin: streams.stdin.map(|fd| Input {
            fd,
            pending: Vec::new(),
            at_end: false,
        }),
        stdout: streams.stdout,
        stderr: streams.stderr,
        terminal: asked.terminal.is_some(),
        ring: Ring::default(),
        attached: asked.output == OutputMode::Attached,
        flow: Flow::Free,
        started: now,
        deadline: asked.timeout_ms.map(|ms| now + Duration::from_millis(ms)),
        kill: None,
        bound: None,
        told: Vec::new(),
        leftovers: asked.leftovers,
        crowd: Vec::new(),
        ended: None,
        alone: false,
        last_output: now,
        reported: false,
        word: Word::None,
    })
}

/// Where a program may be: itself where it names a path, else below each part of `PATH`.
fn candidates(program: &[u8], path: &[u8]) -> io::Result<Vec<CString>> {
    if program.contains(&b'/') || program.is_empty() {
        return Ok(vec![CString::new(program)?]);
    }
    path.split(|&byte| byte == b':')
        .map(|directory| {
            let directory = if directory.is_empty() {
                &b"."[..]
            } else {
                directory
            };
            Ok(CString::new([directory, b"/", program].concat())?)
        })
        .collect()
}

/// The command's streams and our ends of them.
struct Streams {
    theirs: (OwnedFd, OwnedFd, OwnedFd),
    stdin: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
}

impl Streams {
    fn open(asked: &Asked) -> io::Result<Self> {
        if let Some(size) = asked.terminal {
            let (ours, theirs) = terminal::open_pair(size.columns, size.rows)?;
            return Ok(Self {
                theirs: (theirs.try_clone()?, theirs.try_clone()?, theirs),
                stdin: Some(ours.try_clone()?),
                stdout: Some(ours),
                stderr: None,
            });
        }
        let (stdin_theirs, stdin) = match asked.stdin {
            Stdin::Frames => {
                let (read, write) = pipe()?;
                (read, Some(write))
            }
            Stdin::Empty => (std::fs::File::open("/dev/null")?.into(), None),
        };
        let (stdout, stdout_theirs) = pipe()?;
        let (stderr, stderr_theirs) = pipe()?;
        Ok(Self {
            theirs: (stdin_theirs, stdout_theirs, stderr_theirs),
            stdin,
            stdout: Some(stdout),
            stderr: Some(stderr),
        })
    }
}
