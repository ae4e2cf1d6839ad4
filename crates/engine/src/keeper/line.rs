//! The caller's end: a line to the keeper of a sandbox, and through it to the guest.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;

use ringfence_jail::cgroup::CgroupEvents;
use ringfence_model::policy::network::Rules;
use ringfence_model::sandbox::{Answer, Call, Described, EndReason, PROTOCOL, Purpose};

use super::Places;
use crate::attend::Channel;
use crate::client::{Client, ClientError};

/// Why there is no line, or no answer.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    #[error("no execution is there")]
    Connect(#[source] io::Error),
    #[error("the execution is number {found}, not {asked}")]
    Other { asked: u64, found: u64 },
    #[error("the execution was started by another version of ringfence")]
    OtherVersion,
    #[error("the keeper of the sandbox refused: {reason}")]
    Refused { reason: String },
    #[error("cannot talk to the keeper of the sandbox")]
    Talk(#[source] ClientError),
}

/// What became of an execution that was to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndAnswer {
    Ended {
        processes: u64,
    },
    /// Something runs in it.
    Busy,
}

/// A connection to a keeper.
#[derive(Debug)]
pub struct Line {
    client: Client,
    incarnation: u64,
    before: CgroupEvents,
}

impl Line {
    pub fn connect(
        places: &Places,
        purpose: Purpose,
        incarnation: Option<u64>,
    ) -> Result<Self, LineError> {
        let socket = dial(places).map_err(LineError::Connect)?;
        let mut line = Self {
            client: Client::new(socket),
            incarnation: 0,
            before: CgroupEvents::default(),
        };
        match line.call(&Call::Hello {
            protocol: PROTOCOL,
            purpose,
            incarnation,
        })? {
            Answer::Welcome { incarnation } => line.incarnation = incarnation,
            Answer::Other { incarnation: found } => {
                return Err(LineError::Other {
                    asked: incarnation.unwrap_or_default(),
                    found,
                });
            }
            Answer::OtherProtocol { .. } => return Err(LineError::OtherVersion),
            _ => return Err(LineError::Talk(ClientError::OtherAnswer)),
        }
        if purpose == Purpose::Work {
            line.before = line.refusals()?;
        }
        Ok(line)
    }

    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub fn describe(&mut self) -> Result<Described, LineError> {
        match self.call(&Call::Describe)? {
            Answer::Described(described) => Ok(described),
            _ => Err(LineError::Talk(ClientError::OtherAnswer)),
        }
    }

    /// Everything inside stands still until `thaw`, or until this line is dropped.
    pub fn freeze(&mut self) -> Result<(), LineError> {
        self.done(&Call::Freeze)
    }

    /// Everything goes on; gives how many threads had run meanwhile.
    pub fn thaw(&mut self) -> Result<u64, LineError> {
        match self.call(&Call::Thaw)? {
            Answer::Thawed { ran } => Ok(ran),
            _ => Err(LineError::Talk(ClientError::OtherAnswer)),
        }
    }

    /// New rules of the network; gives how many connections they closed.
    pub fn change_network(&mut self, rules: Rules) -> Result<u64, LineError> {
        match self.call(&Call::Network { rules })? {
            Answer::Changed { closed } => Ok(closed),
            _ => Err(LineError::Talk(ClientError::OtherAnswer)),
        }
    }

    pub fn end_if_idle(&mut self) -> Result<EndAnswer, LineError> {
        self.ending(&Call::EndIfIdle)
    }

    pub fn end(&mut self, reason: EndReason) -> Result<EndAnswer, LineError> {
        self.ending(&Call::End { reason })
    }

    fn ending(&mut self, call: &Call) -> Result<EndAnswer, LineError> {
        match self.call(call)? {
            Answer::Ended { processes } => Ok(EndAnswer::Ended { processes }),
            Answer::Busy => Ok(EndAnswer::Busy),
            _ => Err(LineError::Talk(ClientError::OtherAnswer)),
        }
    }

    fn done(&mut self, call: &Call) -> Result<(), LineError> {
        match self.call(call)? {
            Answer::Done => Ok(()),
            _ => Err(LineError::Talk(ClientError::OtherAnswer)),
        }
    }

    fn call(&mut self, call: &Call) -> Result<Answer, LineError> {
        match self.client.call_keeper(call).map_err(LineError::Talk)? {
            Answer::Failed { reason } => Err(LineError::Refused { reason }),
            answer => Ok(answer),
        }
    }

    fn refusals(&mut self) -> Result<CgroupEvents, LineError> {
        let described = self.describe()?;
        Ok(CgroupEvents {
            memory_kills: described.memory_kills,
            process_refusals: described.process_refusals,
        })
    }
}

impl Channel for Line {
    fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    fn kernel_refusals(&mut self) -> CgroupEvents {
        let now = self.refusals().unwrap_or(self.before);
        CgroupEvents {
            memory_kills: now.memory_kills.saturating_sub(self.before.memory_kills),
            process_refusals: now
                .process_refusals
                .saturating_sub(self.before.process_refusals),
        }
    }
}

/// By way of a descriptor: a socket's path may have 107 bytes only, a home's any number.
fn dial(places: &Places) -> io::Result<UnixStream> {
    let directory = File::open(&places.directory)?;
    UnixStream::connect(format!("/proc/self/fd/{}/socket", directory.as_raw_fd()))
}
