//! HTTP/2 from inside: each stream is a request of its own.

use std::rc::Rc;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use ringfence_model::policy::network::Reason;
use tokio::task::spawn_local;

use super::body::Incoming;
use super::exchange::{Visit, exchange, refuse};
use super::reply::{Reply, fields_of};
use super::request::Asked;
use super::upstream::FRAME;
use super::wire::Link;
use crate::head::{
    Fields, Framing, HeadError, MAX_FIELDS, MAX_HEAD, Place, read_method, read_path,
};
use crate::open::Held;
use crate::state::{Denial, Flow};

/// BOUND: requests of one connection at a time.
pub(crate) const MAX_STREAMS: u32 = 128;
/// BOUND: requests of all connections at a time: each may hold a connection to a host.
pub(crate) const MAX_IN_ALL: usize = 1024;
/// BOUND: what a client may send before it is passed on, for a stream and for all of a connection.
/// The memory is the host's, so this is less than what hosts may send.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;

/// Serves one connection until it ends.
pub(crate) async fn serve(visit: Visit, link: Link, held: Option<Held>) {
    let connection = h2::server::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .max_header_list_size(MAX_HEAD as u32)
        .max_concurrent_streams(MAX_STREAMS)
        .handshake::<_, Bytes>(link);
    let Ok(mut connection) = connection.await else {
        return;
    };
    let visit = Rc::new(visit);
    // Reading on is also what drives the streams that are open.
    let mut held = held;
    loop {
        let next = tokio::select! {
            () = super::revoked(held.as_ref()) => {
                // Streams that are open are held by themselves.
                connection.graceful_shutdown();
                held = None;
                continue;
            }
            next = connection.accept() => next,
        };
        let Some(Ok((request, mut respond))) = next else {
            return;
        };
        let visit = visit.clone();
        let streams = visit.flow.gate.inspect.streams.clone();
        let Ok(seat) = streams.try_acquire_owned() else {
            // Nothing was done for it: clients ask again.
            respond.send_reset(h2::Reason::REFUSED_STREAM);
            continue;
        };
        spawn_local(async move {
            answer(&visit, request, respond).await;
            drop(seat);
        });
    }
}

async fn answer(visit: &Visit, request: http::Request<RecvStream>, respond: SendResponse<Bytes>) {
    let (head, body) = request.into_parts();
    let mut from = Incoming::two(body);
    match read(&visit.flow, &head, &from) {
        Ok(asked) => {
            exchange(visit, asked, &mut from, Reply::Two(respond)).await;
        }
        Err(error) => {
            let denial = Denial::plain(Reason::Malformed, error.to_string());
            refuse(visit, None, &denial, Reply::Two(respond), &from).await;
        }
    }
    from.drain().await;
}

/// HOSTILE: what a stream asks for, as strictly as a head of HTTP/1 is read.
fn read(flow: &Flow, head: &http::request::Parts, from: &Incoming<'_>) -> Result<Asked, HeadError> {
    let same = |place: Option<Place>| {
        let port = |place: &Place| place.port.unwrap_or(443);
        place
            .filter(|place| place.host == flow.host && port(place) == flow.port)
            .map(|_| ())
            .ok_or(HeadError::Host)
    };
    let named = head.uri.authority().map(|own| Place::parse(own.as_str()));
    if let Some(place) = named {
        same(place)?;
    }
    let mut fields = fields_of(&head.headers).ok_or(HeadError::Line)?;
    if fields.count() > MAX_FIELDS {
        return Err(HeadError::TooManyFields);
    }
    match (fields.has("host"), fields.once("host")) {
        (true, host) => same(
            host.and_then(|host| std::str::from_utf8(host).ok())
                .and_then(Place::parse),
        )?,
        (false, _) if head.uri.authority().is_none() => return Err(HeadError::Host),
        (false, _) => {}
    }
    let length = if !fields.has("content-length") {
        None
    } else {
        let length = fields.once("content-length");
        let length = length.and_then(|own| std::str::from_utf8(own).ok()?.parse().ok());
        Some(length.ok_or(HeadError::Length)?)
    };
    let framing = match (from.is_over(), length) {
        (true, _) => Framing::None,
        (false, Some(length)) => Framing::Length(length),
        (false, None) => Framing::Chunked,
    };
    let target = head
        .uri
        .path_and_query()
        .map_or("", http::uri::PathAndQuery::as_str)
        .to_owned();
    let expects = fields.has("expect");
    let trailers = fields.has_word("te", "trailers");
    fields.strip_hop_by_hop();
    fields.remove("host");
    fields.remove("expect");
    join_cookies(&mut fields);
    Ok(Asked {
        method: read_method(head.method.as_str().as_bytes())?,
        path: read_path(&target)?,
        target,
        fields,
        framing,
        socket: false,
        expects,
        trailers,
    })
}

/// HTTP/2 may cut a cookie field into several; HTTP/1 has one.
fn join_cookies(fields: &mut Fields) {
    let cookies: Vec<&[u8]> = fields.all("cookie").collect();
    if cookies.len() > 1 {
        let joined = cookies.join(&b"; "[..]);
        fields.set("cookie", &joined);
    }
}
