//! An answer on its way to the client: searched, counted, read where an index wrote it, and kept
//! where others may want it.

use std::io;

use bytes::Bytes;
use ringfence_model::gate::Happened;

use super::artefact::Beside;
use super::body::{Incoming, Outgoing};
use super::exchange::{After, Exchange, Stop};
use super::passage::Passage;
use super::release::{Due, ReleaseTimer};
use super::reply::Reply;
use super::request::{Came, PATIENCE};
use crate::secrets::Needles;

/// What becomes of both connections.
pub(crate) struct Passed {
    pub(crate) client: After,
    pub(crate) upstream: After,
}

/// Writes bytes to the client, so many at a time.
pub(crate) async fn put(out: &mut Outgoing<'_>, mut bytes: Bytes, most: usize) -> Result<(), Stop> {
    while !bytes.is_empty() {
        let piece = bytes.split_to(bytes.len().min(most));
        let sent = tokio::time::timeout(PATIENCE, out.piece(piece)).await;
        sent.map_err(|_| Stop::Gone)?.map_err(|_| Stop::Gone)?;
    }
    Ok(())
}

/// `now`, or what it takes the place of, where bytes go on one piece late.
fn delay(held: &mut Option<Bytes>, now: Bytes) -> Bytes {
    match held {
        Some(held) => std::mem::replace(held, now),
        None => now,
    }
}

impl Exchange<'_> {
    /// Passes on an answer.
    pub(crate) async fn pass(
        &self,
        came: Came<'_>,
        reply: &mut Option<Reply<'_>>,
        needles: Option<&Needles>,
        artefact: Option<&str>,
    ) -> Result<Passed, Stop> {
        let Came {
            mut answer,
            mut body,
            keep,
        } = came;
        let method = &self.asked.method;
        let nothing = answer.has_no_body(method);
        let mut passage = Passage::new(needles, &mut answer, nothing)
            .map_err(|unsearchable| Stop::Failed(unsearchable.to_string()))?;
        self.scrubbed(&mut passage).await;
        let mut beside = self.beside(&answer, artefact);
        self.learn_redirect(&answer).await;
        let Some(reply) = reply.take() else {
            return Err(Stop::Gone);
        };
        let started = reply.start(method, &answer).await;
        let (mut out, keep_client) = started.map_err(|_| Stop::Gone)?;
        let result = self
            .pass_body(&mut body, &mut passage, &mut beside, &mut out)
            .await;
        if result.is_err() {
            out.cut();
        }
        self.scrubbed(&mut passage).await;
        result?;
        beside.keep(self.flow().gate.inspect.cache.as_ref()).await;
        let kept = |keep| if keep { After::Keep } else { After::Close };
        Ok(Passed {
            client: kept(keep_client),
            upstream: kept(keep),
        })
    }

    async fn pass_body(
        &self,
        body: &mut Incoming<'_>,
        passage: &mut Passage<'_>,
        beside: &mut Beside,
        out: &mut Outgoing<'_>,
    ) -> Result<(), Stop> {
        let failed = |error: io::Error| Stop::host(self.flow(), &error);
        let late = |_| failed(io::ErrorKind::TimedOut.into());
        // Who has the last byte of an index's answer asks for files at once: what it names is allowed
        // before.
        let lag = beside.reading.is_some();
        let mut held = lag.then(Bytes::new);
        let most = passage.size_of_pieces();
        let mut timer = ReleaseTimer::default();
        loop {
            let due = if body.owes_rest() {
                Due::Rest
            } else {
                passage.due(self.ledger.conversation())
            };
            let piece = tokio::select! {
                biased;
                () = out.unwanted() => return Err(Stop::Gone),
                piece = tokio::time::timeout(PATIENCE, body.piece()) => piece,
                // What came meanwhile is read first: a client that does not read must not be able to choose where
                // bytes are released.
                release = timer.expired(due), if passage.holds_back() => {
                    timer.released(release);
                    let released = passage.release(release);
                    beside.piece(&released);
                    put(out, delay(&mut held, released), most).await?;
                    self.scrubbed(passage).await;
                    continue;
                }
            };
            let Some(mut piece) = piece.map_err(late)?.map_err(failed)? else {
                break;
            };
            self.received(piece.len())?;
            while !piece.is_empty() {
                let go_on = passage.step(&mut piece).map_err(failed)?;
                if !go_on.is_empty() {
                    timer.passed_on();
                }
                beside.piece(&go_on);
                put(out, delay(&mut held, go_on), most).await?;
            }
            timer.arrived();
            self.scrubbed(passage).await;
        }
        let rest = passage.end().map_err(failed)?;
        beside.piece(&rest);
        if let Some(reading) = beside.reading.take() {
            self.learn(reading.end()).await;
        }
        put(out, held.unwrap_or_default(), most).await?;
        put(out, rest, most).await?;
        let trailers = body.trailers().await.map_err(failed)?;
        let trailers = trailers.map(|trailers| passage.trailers(trailers));
        out.end(trailers).await.map_err(|_| Stop::Gone)
    }

    /// Says what was taken out of the answer since this was last called.
    pub(crate) async fn scrubbed(&self, passage: &mut Passage<'_>) {
        for found in passage.take_seen() {
            let secret = self.flow().gate.inspect.secrets.name(found).to_owned();
            let form = found.form.to_owned();
            self.tell(Happened::Scrubbed { secret, form }).await;
        }
    }
}
