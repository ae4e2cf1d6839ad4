//! Web sockets: after the handshake, bytes are counted and, where secrets are bound, searched.

use bytes::Bytes;
use ringfence_model::gate::Happened;

use super::body::Incoming;
use super::exchange::{After, Exchange, Stop};
use super::frames::{Ended, Frames};
use super::passage::Passage;
use super::release::{Due, ReleaseTimer};
use super::reply::{Answer, Reply};
use super::request::PATIENCE;
use super::upstream::One;
use super::wire::{Reader, Writer};
use crate::head::{Fields, Framing, write_answer};
use crate::secrets::Needles;

/// Tells the client that the host agrees, and passes on what both say.
pub(crate) async fn tunnel(
    own: &Exchange<'_>,
    mut answer: Answer,
    mut host: One,
    from: &mut Incoming<'_>,
    reply: &mut Option<Reply<'_>>,
    needles: Option<&Needles>,
) -> Result<After, Stop> {
    // Where secrets are bound none is asked for: what is coded cannot be searched.
    if needles.is_some() && answer.fields.has("sec-websocket-extensions") {
        let host = &own.flow().host;
        let detail = format!("`{host}` uses an extension of web sockets that it was not asked for");
        return Err(Stop::Failed(detail));
    }
    answer.fields.strip_hop_by_hop();
    // What the handshake says is searched like any answer.
    if let Ok(mut passage) = Passage::new(needles, &mut answer, true) {
        own.scrubbed(&mut passage).await;
    }
    let (Incoming::One { reader, .. }, Some(Reply::One { writer, .. })) = (from, reply.take())
    else {
        return Err(Stop::Gone);
    };
    let head = accept(&answer.fields, &answer.reason);
    writer.send(&head).await.map_err(|_| Stop::Gone)?;
    let up = async {
        while let Some(piece) = next(reader).await? {
            own.send_counted(piece.len())?;
            host.writer.send(&piece).await.map_err(|_| Stop::Gone)?;
        }
        host.writer.shutdown().await.map_err(|_| Stop::Gone)
    };
    let down = back(own, &mut host.reader, writer, needles);
    let result = tokio::try_join!(up, down);
    match result {
        Ok(_) | Err(Stop::Gone) => Ok(After::Close),
        Err(stop) => Err(stop),
    }
}

async fn next(reader: &mut Reader) -> Result<Option<Bytes>, Stop> {
    let piece = tokio::time::timeout(PATIENCE, reader.anything()).await;
    piece.map_err(|_| Stop::Gone)?.map_err(|_| Stop::Gone)
}

/// Passes on what the host says. A value in it cannot be replaced, for frames say how long they
/// are; the connection ends before it is through.
async fn back(
    own: &Exchange<'_>,
    host: &mut Reader,
    client: &mut Writer,
    needles: Option<&Needles>,
) -> Result<(), Stop> {
    let mut frames = needles.map(Frames::new);
    let mut timer = ReleaseTimer::default();
    loop {
        let holds_back = frames.as_ref().is_some_and(Frames::holds_back);
        let due = frames.as_ref().map_or(Due::Message, Frames::due);
        let piece = tokio::select! {
            biased;
            piece = next(host) => piece?,
            release = timer.expired(due), if holds_back => {
                timer.released(release);
                let released = frames.as_mut().map(Frames::pause).unwrap_or_default();
                client.send(&released).await.map_err(|_| Stop::Gone)?;
                continue;
            }
        };
        let Some(mut piece) = piece else {
            break;
        };
        own.received(piece.len())?;
        if let Some(frames) = &mut frames {
            piece = match frames.piece(&piece) {
                Ok(piece) => piece,
                Err(Ended::Found(found)) => {
                    let secret = own.flow().gate.inspect.secrets.name(found).to_owned();
                    let form = found.form.to_owned();
                    own.tell(Happened::Scrubbed { secret, form }).await;
                    return Err(Stop::Gone);
                }
                Err(Ended::Unreadable(why)) => {
                    let host = &own.flow().host;
                    let detail = format!("the web socket of `{host}` has {why}");
                    return Err(Stop::Failed(detail));
                }
            };
        }
        if !piece.is_empty() {
            timer.passed_on();
            client.send(&piece).await.map_err(|_| Stop::Gone)?;
        }
        timer.arrived();
    }
    // The host went away in the middle of a message.
    let rest = frames.as_mut().map(Frames::pause).unwrap_or_default();
    client.send(&rest).await.map_err(|_| Stop::Gone)?;
    client.shutdown().await.map_err(|_| Stop::Gone)
}

fn accept(fields: &Fields, reason: &[u8]) -> Vec<u8> {
    let upgrade = [("Connection", "Upgrade"), ("Upgrade", "websocket")];
    write_answer(101, reason, fields, Framing::None, &upgrade)
}
