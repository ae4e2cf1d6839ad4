//! The host's end of the protocol: requests out, replies and notices in.
//!
//! HOSTILE: the guest is ours, but what it relays was chosen by an agent. Frames are bounded, JSON
//! is typed, and a guest that breaks the protocol loses the sandbox.

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use ringfence_model::sandbox::{Answer, Call};
use ringfence_model::wire::{self, Failure, Kind, Notice, Reply, Request};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

/// BOUND: how long the guest may take to answer; it answers at once or is gone.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// BOUND: read at once.
const CHUNK: usize = 65536;

/// What went wrong between host and guest.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("the sandbox is gone")]
    Gone,
    #[error("the sandbox did not answer within {} s", ANSWER_WITHIN.as_secs())]
    Silent,
    #[error("cannot talk to the sandbox")]
    Talk(#[source] io::Error),
    #[error("the sandbox does not keep to the protocol")]
    Protocol(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error(transparent)]
    Failed(#[from] Failure),
    #[error("the sandbox answered something else than was asked")]
    OtherAnswer,
}

/// What the guest says.
#[derive(Debug, PartialEq, Eq)]
pub enum Message {
    /// Of the keeper between us and the guest.
    Answer(Answer),
    Reply(u32, Reply),
    Notice(u32, Notice),
    Data(u32, Stream, Vec<u8>),
}

/// Which of the two outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// Whether a message is the one that is waited for.
enum Found<T> {
    It(T),
    Another(Message),
}

/// One connection to one guest.
#[derive(Debug)]
pub struct Client {
    socket: UnixStream,
    buffer: Vec<u8>,
    queue: VecDeque<Message>,
    next_stream: u32,
}

impl Client {
    pub fn new(socket: UnixStream) -> Self {
        Self {
            socket,
            buffer: Vec::new(),
            queue: VecDeque::new(),
            next_stream: 1,
        }
    }

    /// To be waited on; readable when there may be a message.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Asks, and gives the number of the request.
    pub fn send(&mut self, request: &Request) -> Result<u32, ClientError> {
        let stream = self.next_stream;
        self.next_stream += 1;
        let json = serde_json::to_vec(request).map_err(|e| ClientError::Protocol(Box::new(e)))?;
        if json.len() > wire::MAX_PAYLOAD {
            return Err(ClientError::Talk(Errno::TOOBIG.into()));
        }
        let mut frame = Vec::with_capacity(wire::HEADER + json.len());
        wire::encode(&mut frame, Kind::Request, stream, &json);
        self.write(&frame)?;
        Ok(stream)
    }

    /// Asks the keeper, where there is one between us and the guest.
    pub fn call_keeper(&mut self, call: &Call) -> Result<Answer, ClientError> {
        let json = serde_json::to_vec(call).map_err(|e| ClientError::Protocol(Box::new(e)))?;
        let mut frame = Vec::with_capacity(wire::HEADER + json.len());
        wire::encode(&mut frame, Kind::Request, 0, &json);
        self.write(&frame)?;
        self.wait_for(|message| match message {
            Message::Answer(answer) => Found::It(answer),
            other => Found::Another(other),
        })
    }

    /// Asks and waits for the answer; what else comes meanwhile is kept.
    pub fn call(&mut self, request: &Request) -> Result<Reply, ClientError> {
        let stream = self.send(request)?;
        self.answer_to(stream)
    }

    /// Waits for the answer to a request.
    pub fn answer_to(&mut self, stream: u32) -> Result<Reply, ClientError> {
        let reply = self.wait_for(|message| match message {
            Message::Reply(number, reply) if number == stream => Found::It(reply),
            other => Found::Another(other),
        })?;
        match reply {
            Reply::Failed(failure) => Err(failure.into()),
            reply => Ok(reply),
        }
    }

    /// Waits for a message of a kind; what else comes meanwhile is kept.
    fn wait_for<T>(&mut self, wanted: impl Fn(Message) -> Found<T>) -> Result<T, ClientError> {
        let deadline = Instant::now() + ANSWER_WITHIN;
        let mut kept = VecDeque::new();
        let result = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.next(Some(left)) {
                Ok(Some(message)) => match wanted(message) {
                    Found::It(found) => break Ok(found),
                    Found::Another(other) => kept.push_back(other),
                },
                Ok(None) => break Err(ClientError::Silent),
                Err(error) => break Err(error),
            }
        };
        kept.append(&mut self.queue);
        self.queue = kept;
        result
    }

    /// Input for a command, or content for a file.
    pub fn input(&mut self, stream: u32, bytes: &[u8]) -> Result<(), ClientError> {
        let mut frames = Vec::new();
        for chunk in bytes.chunks(wire::MAX_PAYLOAD) {
            wire::encode(&mut frames, Kind::Input, stream, chunk);
        }
        self.write(&frames)
    }

    pub fn end_input(&mut self, stream: u32) -> Result<(), ClientError> {
        let mut frame = Vec::new();
        wire::encode(&mut frame, Kind::EndInput, stream, &[]);
        self.write(&frame)
    }

    fn write(&mut self, frame: &[u8]) -> Result<(), ClientError> {
        match self.socket.write_all(frame) {
            Ok(()) => Ok(()),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                ) =>
            {
                Err(ClientError::Gone)
            }
            Err(error) => Err(ClientError::Talk(error)),
        }
    }

    /// A message that has come already, without waiting.
    pub fn take(&mut self) -> Option<Message> {
        self.queue.pop_front()
    }

    /// The next message; `None` when none came in time. No time means for ever.
    pub fn next(&mut self, within: Option<Duration>) -> Result<Option<Message>, ClientError> {
        let deadline = within.map(|wait| Instant::now() + wait);
        loop {
            if let Some(message) = self.queue.pop_front() {
                return Ok(Some(message));
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let timeout = left.map(|wait| Timespec {
                tv_sec: wait.as_secs() as i64,
                tv_nsec: i64::from(wait.subsec_nanos()),
            });
            let mut waits = [PollFd::new(&self.socket, PollFlags::IN)];
            match rustix::event::poll(&mut waits, timeout.as_ref()) {
                Ok(0) => return Ok(None),
                Ok(_) => self.receive()?,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(ClientError::Talk(errno.into())),
            }
        }
    }

    /// Reads what is there and queues the messages in it. Waits if nothing is there.
    pub fn receive(&mut self) -> Result<(), ClientError> {
        self.buffer.reserve(CHUNK);
        match rustix::io::read(&self.socket, spare_capacity(&mut self.buffer)) {
            Ok(0) | Err(Errno::CONNRESET) => return Err(ClientError::Gone),
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(()),
            Err(errno) => return Err(ClientError::Talk(errno.into())),
        }
        let mut used = 0;
        while let Some((frame, length)) =
            wire::decode(&self.buffer[used..]).map_err(|e| ClientError::Protocol(Box::new(e)))?
        {
            let json = |e: serde_json::Error| ClientError::Protocol(Box::new(e));
            self.queue.push_back(match frame.kind {
                Kind::Reply if frame.stream == 0 => {
                    Message::Answer(serde_json::from_slice(frame.payload).map_err(json)?)
                }
                Kind::Reply => Message::Reply(
                    frame.stream,
                    serde_json::from_slice(frame.payload).map_err(json)?,
                ),
                Kind::Notice => Message::Notice(
                    frame.stream,
                    serde_json::from_slice(frame.payload).map_err(json)?,
                ),
                Kind::Output => Message::Data(frame.stream, Stream::Stdout, frame.payload.to_vec()),
                Kind::ErrorOutput => {
                    Message::Data(frame.stream, Stream::Stderr, frame.payload.to_vec())
                }
                Kind::Request | Kind::Input | Kind::EndInput => {
                    return Err(ClientError::Protocol(
                        "the guest sent what only a host sends".into(),
                    ));
                }
            });
            used += length;
        }
        self.buffer.drain(..used);
        Ok(())
    }
}
