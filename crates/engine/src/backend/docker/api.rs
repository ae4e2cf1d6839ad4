//! The engine's own interface: plain HTTP, one question at a time, whatever leads there.
//!
//! HOSTILE: whoever is at a local socket is as good as root here already; answers are bounded all the same.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::Agent;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport,
};

use super::way::Way;
use crate::backend::BackendError;
use crate::clock::ms_since;

/// BOUND: descriptions of containers and images have some kilobytes.
const ANSWER_BYTES: u64 = 8 << 20;
/// BOUND: removing a container of many files takes seconds; an engine that says nothing for so long
/// hangs.
pub(super) const SILENCE: Duration = Duration::from_secs(120);
/// The version of the interface that is spoken: that of Docker 20.10, which Podman has as well.
pub(super) const VERSION: &str = "v1.41";

/// One engine.
#[derive(Clone, Debug)]
pub(super) struct Engine {
    pub name: &'static str,
    pub way: Way,
    agent: Agent,
}

/// What a question is about.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ask<'a> {
    Get,
    Delete,
    Post(Option<&'a Value>),
    /// A stream of bytes, such as an archive.
    Upload(&'a [u8]),
    Put(&'a [u8]),
}

impl Engine {
    pub fn at(name: &'static str, way: Way) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_global(Some(SILENCE))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .proxy(None)
            .build();
        let along = Along { way: way.clone() };
        Self {
            name,
            way,
            agent: Agent::with_parts(config, along, Nowhere),
        }
    }

    /// Whether somebody answers.
    pub fn ping(&self) -> Result<(), BackendError> {
        let at = self.way.to_string();
        match self.way.connect() {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(BackendError::MayNotTalk {
                    engine: self.name,
                    at,
                })
            }
            Err(source) => Err(BackendError::NoEngine {
                engine: self.name,
                at,
                source,
            }),
        }
    }

    /// Asks for something and reads what is told.
    pub fn ask<T: DeserializeOwned>(
        &self,
        what: &'static str,
        ask: Ask<'_>,
        path: &str,
    ) -> Result<T, BackendError> {
        let bytes = self.bytes(what, ask, path)?;
        serde_json::from_slice(&bytes).map_err(|source| BackendError::Answer {
            engine: self.name,
            what,
            source,
        })
    }

    /// The same, as it comes.
    pub fn bytes(
        &self,
        what: &'static str,
        ask: Ask<'_>,
        path: &str,
    ) -> Result<Vec<u8>, BackendError> {
        let (began, engine) = (Instant::now(), self.name);
        let silent = |error: ureq::Error| {
            tracing::warn!(engine, what, ms = ms_since(began), "no answer");
            self.silent(what, error)
        };
        // No name is looked up: the way leads to the engine.
        let url = format!("http://engine/{VERSION}{path}");
        let answer = match ask {
            Ask::Get => self.agent.get(&url).call(),
            Ask::Delete => self.agent.delete(&url).call(),
            Ask::Post(None) => self.agent.post(&url).send_empty(),
            Ask::Post(Some(body)) => self
                .agent
                .post(&url)
                .content_type("application/json")
                .send(&body.to_string()),
            Ask::Upload(body) => self
                .agent
                .post(&url)
                .content_type("application/x-tar")
                .send(body),
            Ask::Put(body) => self
                .agent
                .put(&url)
                .content_type("application/x-tar")
                .send(body),
        };
        let mut answer = answer.map_err(silent)?;
        let status = answer.status().as_u16();
        let mut body = Vec::new();
        let reader = answer.body_mut().as_reader();
        reader
            .take(ANSWER_BYTES)
            .read_to_end(&mut body)
            .map_err(|error| silent(error.into()))?;
        tracing::debug!(engine, what, status, ms = ms_since(began), "asked");
        match status {
            200..=299 | 304 => Ok(body),
            _ => Err(BackendError::Refused {
                engine: self.name,
                what,
                status,
                message: message(&body),
            }),
        }
    }

    fn silent(&self, what: &'static str, error: ureq::Error) -> BackendError {
        match self.ping() {
            Err(gone) => gone,
            Ok(()) => BackendError::Silent {
                engine: self.name,
                what,
                source: Box::new(error),
            },
        }
    }
}

/// What an engine says went wrong: in JSON, or as it is.
pub(super) fn message(body: &[u8]) -> String {
    let told: Option<Value> = serde_json::from_slice(body).ok();
    let told = told.as_ref().and_then(|told| told["message"].as_str());
    let text = match told {
        Some(text) => text.to_owned(),
        None => String::from_utf8_lossy(body).into_owned(),
    };
    // BOUND: one line for a person.
    let line = text.lines().next().unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).take(400).collect()
}

/// Connects to the engine, whatever the address.
#[derive(Debug)]
struct Along {
    way: Way,
}

impl Connector for Along {
    type Out = Line;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _: Option<()>,
    ) -> Result<Option<Line>, ureq::Error> {
        let config = details.config;
        let buffers = LazyBuffers::new(config.input_buffer_size(), config.output_buffer_size());
        let stream = self.way.connect()?;
        Ok(Some(Line { stream, buffers }))
    }
}

/// A connection.
struct Line {
    stream: UnixStream,
    buffers: LazyBuffers,
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").finish_non_exhaustive()
    }
}

impl Line {
    fn timed(error: io::Error, timeout: NextTimeout) -> ureq::Error {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                ureq::Error::Timeout(timeout.reason)
            }
            _ => ureq::Error::Io(error),
        }
    }
}

impl Transport for Line {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        let wait = timeout.not_zero().map(|wait| *wait);
        self.stream.set_write_timeout(wait)?;
        let output = &self.buffers.output()[..amount];
        let written = self.stream.write_all(output);
        written.map_err(|error| Self::timed(error, timeout))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        let wait = timeout.not_zero().map(|wait| *wait);
        self.stream.set_read_timeout(wait)?;
        let input = self.buffers.input_append_buf();
        let amount = loop {
            match self.stream.read(input) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read.map_err(|error| Self::timed(error, timeout))?,
            }
        };
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        // What was idle and can be read is closed: an engine says nothing without being asked.
        let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        let mut byte = [0_u8];
        let peeked = rustix::net::recv(&self.stream, &mut byte[..], flags);
        peeked == Err(rustix::io::Errno::AGAIN)
    }
}

/// There is no name to be looked up.
#[derive(Debug)]
struct Nowhere;

impl Resolver for Nowhere {
    fn resolve(
        &self,
        _: &http::Uri,
        _: &ureq::config::Config,
        _: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let mut addresses = self.empty();
        addresses.push(std::net::SocketAddr::from(([127, 0, 0, 1], 0)));
        Ok(addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_engine_says_is_one_line_for_a_person() {
        for (body, said) in [
            (
                &br#"{"message":"no such image: x\nmore"}"#[..],
                "no such image: x",
            ),
            (b"plain\x1b[31m text", "plain[31m text"),
            (b"", ""),
        ] {
            assert_eq!(message(body), said);
        }
    }
}
