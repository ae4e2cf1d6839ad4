//! One request on its way to a host: written anew, sent, and its answer awaited.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use h2::client::ResponseFuture;
use ringfence_model::policy::network::RequestPath;
use zeroize::Zeroize as _;

use super::body::{Incoming, Outgoing, from_h2};
use super::reply::{Answer, fields_of, map_of};
use super::upstream::Upstream;
use super::wire::{Left, Reader};
use crate::head::{AnswerHead, Fields, Framing, write_request};
use crate::state::Flow;

/// BOUND: how long a host may think, and how long either side may say nothing in a body. Models
/// that reason take minutes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// BOUND: answers before the answer (`103 Early Hints`).
const MAX_EARLY: usize = 8;

/// A request as it was understood.
pub(crate) struct Asked {
    pub(crate) method: String,
    /// `/path?query`
    pub(crate) target: String,
    pub(crate) path: RequestPath,
    /// Without those that are for one connection only, and without `Host`.
    pub(crate) fields: Fields,
    pub(crate) framing: Framing,
    /// It asks for a web socket.
    pub(crate) socket: bool,
    /// The client waits to be asked for the body.
    pub(crate) expects: bool,
    /// The client reads what follows a body; only HTTP/2 passes it on.
    pub(crate) trailers: bool,
}

/// Waits for an answer.
pub(crate) enum Awaiting<'a> {
    One(&'a mut Reader),
    Two(ResponseFuture),
}

/// The host as it stands in a request.
fn authority(flow: &Flow, default: u16) -> String {
    if flow.port == default {
        flow.host.to_string()
    } else {
        format!("{}:{}", flow.host, flow.port)
    }
}

/// Sends the head of a request. Answers where its body goes, and what waits for the answer.
pub(crate) async fn send<'a>(
    upstream: &'a mut Upstream,
    flow: &Flow,
    asked: &Asked,
    fields: &mut Fields,
    secure: bool,
) -> io::Result<(Outgoing<'a>, Awaiting<'a>)> {
    let host = authority(flow, if secure { 443 } else { 80 });
    let nothing = asked.framing == Framing::None;
    match upstream {
        Upstream::One(one) => {
            let mut whole = Fields::default();
            whole.push("Host", host.as_bytes());
            for (name, value) in fields.iter() {
                whole.push(name, value);
            }
            let upgrade: &[_] = if asked.socket {
                &[("Connection", "Upgrade"), ("Upgrade", "websocket")]
            } else {
                &[]
            };
            let (method, target) = (&asked.method, &asked.target);
            let mut head = write_request(method, target, &whole, asked.framing, upgrade);
            let sent = one.writer.send(&head).await;
            // It may have the value of a secret.
            head.zeroize();
            whole.wipe();
            fields.wipe();
            sent?;
            let body = if nothing {
                Outgoing::Nothing
            } else {
                Outgoing::One {
                    writer: &mut one.writer,
                    framing: asked.framing,
                }
            };
            Ok((body, Awaiting::One(&mut one.reader)))
        }
        Upstream::Two(send, _) => {
            let bad = |_| io::Error::from(io::ErrorKind::InvalidData);
            let uri = format!("https://{host}{}", asked.target);
            let mut request = http::Request::new(());
            *request.method_mut() = asked
                .method
                .parse()
                .map_err(|_| io::ErrorKind::InvalidData)?;
            *request.uri_mut() = uri.parse().map_err(bad)?;
            *request.headers_mut() = map_of(fields);
            fields.wipe();
            for value in request.headers_mut().values_mut() {
                // Not kept in tables of the connection, which also has other requests.
                value.set_sensitive(true);
            }
            if asked.trailers {
                let value = http::HeaderValue::from_static("trailers");
                request.headers_mut().insert(http::header::TE, value);
            }
            if let Framing::Length(length) = asked.framing {
                let name = http::header::CONTENT_LENGTH;
                request.headers_mut().insert(name, length.into());
            }
            let (answer, body) = send.send_request(request, nothing).map_err(from_h2)?;
            let body = if nothing {
                Outgoing::Nothing
            } else {
                Outgoing::Two(body)
            };
            Ok((body, Awaiting::Two(answer)))
        }
    }
}

/// What came back.
pub(crate) struct Came<'a> {
    pub(crate) answer: Answer,
    pub(crate) body: Incoming<'a>,
    /// Whether the connection may serve another request when the body is over.
    pub(crate) keep: bool,
}

impl<'a> Awaiting<'a> {
    /// The answer, without those before it.
    pub(crate) async fn answer(self, method: &str) -> io::Result<Came<'a>> {
        let late = |_| io::Error::from(io::ErrorKind::TimedOut);
        let mut came = match self {
            Self::One(reader) => {
                let head = tokio::time::timeout(PATIENCE, final_head(reader));
                let head = head.await.map_err(late)??;
                let left = Left::from(head.framing(method));
                Came {
                    keep: head.keeps_alive() && !matches!(left, Left::UntilClose),
                    answer: Answer {
                        status: head.status,
                        length: head.said_length(),
                        reason: head.reason,
                        fields: head.fields,
                    },
                    body: Incoming::One { reader, left },
                }
            }
            Self::Two(future) => {
                let answer = tokio::time::timeout(PATIENCE, future);
                let (head, body) = answer.await.map_err(late)?.map_err(from_h2)?.into_parts();
                let length = head
                    .headers
                    .get(http::header::CONTENT_LENGTH)
                    .and_then(|value| value.to_str().ok()?.parse().ok());
                let bad = io::ErrorKind::InvalidData;
                Came {
                    keep: true,
                    answer: Answer {
                        status: head.status.as_u16(),
                        reason: head.status.canonical_reason().unwrap_or_default().into(),
                        fields: fields_of(&head.headers).ok_or(bad)?,
                        length,
                    },
                    body: Incoming::two(body),
                }
            }
        };
        if came.answer.status != 101 {
            came.answer.fields.strip_hop_by_hop();
        }
        Ok(came)
    }
}

async fn final_head(reader: &mut Reader) -> io::Result<AnswerHead> {
    for _ in 0..MAX_EARLY {
        let bad = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let head: Bytes = reader.head().await?.map_err(bad)?;
        let head = AnswerHead::parse(&head).map_err(bad)?;
        if !(100..200).contains(&head.status) || head.status == 101 {
            return Ok(head);
        }
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        "the host never answers at last",
    ))
}
