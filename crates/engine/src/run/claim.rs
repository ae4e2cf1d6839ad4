//! Reads the agent's result file, through the guest and as the agent, when its command has ended
//! and before the sandbox does.
//!
//! HOSTILE: whatever lies there, nobody waits for it and nothing stops the run. What is no claim is
//! told as such.

use std::time::{Duration, Instant};

use ringfence_model::ByteText;
use ringfence_model::claim::{Claim, MAX_BYTES, NoClaim};
use ringfence_model::wire::{EntryType, Notice, Reply, Request};
use rustix::io::Errno;

use crate::attend::Witness;
use crate::client::{Client, ClientError, Message, Stream};
use crate::error::Error;
use crate::journal::JournalError;

/// What the agent finds the path in.
pub(super) const VARIABLE: &str = "RINGFENCE_RESULT";
/// Beside the workspace, where every sandbox can write.
pub(super) const PATH: &str = "/home/agent/ringfence-result.json";
/// BOUND: the guest answers at once, or is gone.
const WITHIN: Duration = Duration::from_secs(10);

/// A claim, nothing at all, or something that is no claim.
pub(super) type Claimed = Result<Option<Claim>, NoClaim>;

/// Reads it. What is observed meanwhile goes to the witness as always.
pub(super) fn read(
    client: &mut Client,
    env: &[(ByteText, ByteText)],
    witness: &mut dyn Witness,
) -> Result<Claimed, Error> {
    let named = env
        .iter()
        .find(|(key, _)| key.as_bytes() == VARIABLE.as_bytes());
    let Some((_, path)) = named.filter(|(_, path)| path.as_bytes().starts_with(b"/")) else {
        return Ok(Ok(None));
    };
    let mut asking = Asking {
        client,
        witness,
        deadline: Instant::now() + WITHIN,
    };
    match asking.file(path) {
        Ok(claimed) => Ok(claimed),
        // A sandbox that is gone has left no word.
        Err(Error::Client(ClientError::Gone)) => Ok(Ok(None)),
        Err(Error::Client(error)) => Ok(Err(NoClaim::Unreadable(error.to_string()))),
        Err(error) => Err(error),
    }
}

struct Asking<'a> {
    client: &'a mut Client,
    witness: &'a mut dyn Witness,
    deadline: Instant,
}

impl Asking<'_> {
    fn file(&mut self, path: &ByteText) -> Result<Claimed, Error> {
        let stream = self.client.send(&Request::Stat { path: path.clone() })?;
        let entry = match self.reply(stream)? {
            Reply::Entry(entry) => entry,
            // Nothing there.
            Reply::Failed(failure) if failure.errno == Errno::NOENT.raw_os_error() => {
                return Ok(Ok(None));
            }
            Reply::Failed(failure) => return Ok(Err(NoClaim::Unreadable(failure.to_string()))),
            _ => return Err(ClientError::OtherAnswer.into()),
        };
        let what = match entry.what {
            EntryType::File => None,
            EntryType::Directory => Some("a directory"),
            EntryType::Symlink => Some("a link"),
            EntryType::Special => Some("a FIFO, socket or device"),
        };
        if let Some(what) = what {
            return Ok(Err(NoClaim::NotAFile(what)));
        }
        if entry.size > MAX_BYTES {
            return Ok(Err(NoClaim::TooLarge));
        }
        let stream = self.client.send(&Request::ReadFile {
            path: path.clone(),
            offset: 0,
            length: MAX_BYTES + 1,
        })?;
        match self.reply(stream)? {
            Reply::File { .. } => {}
            Reply::Failed(failure) => return Ok(Err(NoClaim::Unreadable(failure.to_string()))),
            _ => return Err(ClientError::OtherAnswer.into()),
        }
        let mut text = Vec::new();
        loop {
            match self.next()? {
                Message::Data(number, Stream::Stdout, bytes) if number == stream => {
                    if bytes.is_empty() {
                        return Ok(Claim::parse(&text).map(Some));
                    }
                    text.extend_from_slice(&bytes);
                }
                _ => {}
            }
        }
    }

    fn reply(&mut self, stream: u32) -> Result<Reply, Error> {
        loop {
            match self.next()? {
                Message::Reply(number, reply) if number == stream => return Ok(reply),
                _ => {}
            }
        }
    }

    /// The next message that is not one for the witness.
    fn next(&mut self) -> Result<Message, Error> {
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ClientError::Silent.into());
            }
            match self.client.next(Some(left))? {
                Some(Message::Notice(_, Notice::Observed(observed))) => {
                    match self.witness.observed(observed) {
                        // The command is over, and everything inside is ended next.
                        Ok(()) | Err(JournalError::Full { .. }) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                Some(message) => return Ok(message),
                None => return Err(ClientError::Silent.into()),
            }
        }
    }
}
