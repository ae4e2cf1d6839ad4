//! Answers on their way to the client, in HTTP/1 or HTTP/2.

use std::future::pending;
use std::io;

use bytes::Bytes;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::body::{Outgoing, from_h2, reset};
use super::wire::Writer;
use crate::head::{Fields, Framing, Version, write_answer};

/// The head of an answer, without what frames it.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) reason: Vec<u8>,
    pub(crate) fields: Fields,
    /// Where it is known.
    pub(crate) length: Option<u64>,
}

impl Answer {
    /// An answer of the gate itself.
    pub(crate) fn own(status: u16, body: &[u8], more: &[(&str, &str)]) -> Self {
        let mut fields = Fields::default();
        for (name, value) in [
            ("Content-Type", "application/json"),
            ("Cache-Control", "no-store"),
        ]
        .iter()
        .chain(more)
        {
            // These are plain text.
            fields.push(name, value.as_bytes());
        }
        let reason = StatusCode::from_u16(status)
            .ok()
            .and_then(|status| status.canonical_reason());
        Self {
            status,
            reason: reason.unwrap_or_default().into(),
            fields,
            length: Some(body.len() as u64),
        }
    }

    pub(crate) fn has_no_body(&self, method: &str) -> bool {
        method == "HEAD" || matches!(self.status, 100..200 | 204 | 304)
    }
}

/// Where the answer to one request goes.
pub(crate) enum Reply<'a> {
    One {
        writer: &'a mut Writer,
        version: Version,
        /// Whether the connection may serve another request.
        keep: bool,
    },
    Two(SendResponse<Bytes>),
}

impl<'a> Reply<'a> {
    /// Asks for the body of a request whose client waits to be asked.
    pub(crate) async fn go_on(&mut self) -> io::Result<()> {
        match self {
            Self::One { writer, .. } => writer.send(b"HTTP/1.1 100 Continue\r\n\r\n").await,
            Self::Two(respond) => {
                let mut answer = http::Response::new(());
                *answer.status_mut() = StatusCode::CONTINUE;
                respond.send_informational(answer).map_err(from_h2)
            }
        }
    }

    /// Waits until the client wants no answer any more. Only streams of HTTP/2 say so.
    pub(crate) async fn unwanted(&mut self) {
        match self {
            Self::One { .. } => pending().await,
            Self::Two(respond) => reset(|context| respond.poll_reset(context)).await,
        }
    }

    /// The connection ends with this answer.
    pub(crate) fn last(&mut self) {
        if let Self::One { keep, .. } = self {
            *keep = false;
        }
    }

    /// Writes the head. Answers where the body goes, and whether the connection may go on.
    pub(crate) async fn start(
        self,
        method: &str,
        answer: &Answer,
    ) -> io::Result<(Outgoing<'a>, bool)> {
        let nothing = answer.has_no_body(method);
        match self {
            Self::One {
                writer,
                version,
                keep,
            } => {
                let framing = match (answer.length, version) {
                    (Some(length), _) if answer.status != 204 => Framing::Length(length),
                    _ if nothing => Framing::None,
                    (_, Version::Http11) => Framing::Chunked,
                    (_, Version::Http10) => Framing::UntilClose,
                };
                let keep = keep && framing != Framing::UntilClose;
                let close: &[_] = match (keep, version) {
                    (true, Version::Http11) => &[],
                    (true, Version::Http10) => &[("Connection", "keep-alive")],
                    (false, _) => &[("Connection", "close")],
                };
                let (fields, reason) = (&answer.fields, &answer.reason);
                let head = write_answer(answer.status, reason, fields, framing, close);
                writer.send(&head).await?;
                let body = if nothing {
                    Outgoing::Nothing
                } else {
                    Outgoing::One { writer, framing }
                };
                Ok((body, keep))
            }
            Self::Two(mut respond) => {
                let mut head = http::Response::new(());
                *head.status_mut() =
                    StatusCode::from_u16(answer.status).map_err(|_| io::ErrorKind::InvalidData)?;
                *head.headers_mut() = map_of(&answer.fields);
                if let Some(length) = answer.length.filter(|_| answer.status != 204) {
                    head.headers_mut()
                        .insert(http::header::CONTENT_LENGTH, length.into());
                }
                let nothing = nothing || answer.length == Some(0);
                let stream = respond.send_response(head, nothing).map_err(from_h2)?;
                let body = if nothing {
                    Outgoing::Nothing
                } else {
                    Outgoing::Two(stream)
                };
                Ok((body, true))
            }
        }
    }

    /// Sends a whole answer of the gate itself.
    pub(crate) async fn send(self, method: &str, answer: &Answer, body: &[u8]) -> io::Result<bool> {
        let (mut out, keep) = self.start(method, answer).await?;
        out.piece(Bytes::copy_from_slice(body)).await?;
        out.end(None).await?;
        Ok(keep)
    }
}

/// Fields as HTTP/2 has them. What it cannot carry is left out.
pub(crate) fn map_of(fields: &Fields) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in fields.iter() {
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) {
            map.append(name, value);
        }
    }
    map
}

/// Fields that came by HTTP/2.
pub(crate) fn fields_of(map: &HeaderMap) -> Option<Fields> {
    let mut fields = Fields::default();
    for (name, value) in map {
        fields.push(name.as_str(), value.as_bytes())?;
    }
    Some(fields)
}
