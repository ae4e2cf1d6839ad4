//! Bodies on their way, in HTTP/1 or HTTP/2, in either direction.

use std::future::{pending, poll_fn};
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use http::HeaderMap;

use super::wire::{Left, Reader, Writer};
use crate::head::Framing;

/// BOUND: what is still read of a request that was refused, so that its answer arrives.
const LINGER_BYTES: usize = 4 << 20;
const LINGER_TIME: Duration = Duration::from_secs(5);

/// A body that is read.
pub(crate) enum Incoming<'a> {
    Nothing,
    One { reader: &'a mut Reader, left: Left },
    Two { stream: RecvStream, owed: usize },
}

impl Incoming<'_> {
    pub(crate) fn two(stream: RecvStream) -> Self {
        if stream.is_end_stream() {
            return Self::Nothing;
        }
        Self::Two { stream, owed: 0 }
    }

    /// Whether the sender owes a part of what it announced.
    pub(crate) fn owes_rest(&self) -> bool {
        match self {
            Self::One { left, .. } => left.owes_rest(),
            // A frame of HTTP/2 comes whole or not at all.
            Self::Nothing | Self::Two { .. } => false,
        }
    }

    /// Whether nothing more comes.
    pub(crate) fn is_over(&self) -> bool {
        match self {
            Self::Nothing => true,
            Self::One { left, .. } => left.is_nothing(),
            Self::Two { stream, .. } => stream.is_end_stream(),
        }
    }

    pub(crate) async fn piece(&mut self) -> io::Result<Option<Bytes>> {
        match self {
            Self::Nothing => Ok(None),
            Self::One { reader, left } => reader.body(left).await,
            Self::Two { stream, owed } => {
                // The other side may send as much again as went on, and no more.
                let done = std::mem::take(owed);
                if done > 0 {
                    stream
                        .flow_control()
                        .release_capacity(done)
                        .map_err(from_h2)?;
                }
                let piece = stream.data().await.transpose().map_err(from_h2)?;
                *owed = piece.as_ref().map_or(0, Bytes::len);
                Ok(piece)
            }
        }
    }

    /// Reads what is left, within bounds: who is cut off in the middle never sees the answer.
    pub(crate) async fn drain(&mut self) {
        let drain = async {
            let mut left = LINGER_BYTES;
            while let Ok(Some(piece)) = self.piece().await
                && piece.len() < left
            {
                left -= piece.len();
            }
        };
        tokio::time::timeout(LINGER_TIME, drain).await.ok();
    }

    /// What follows the body; only HTTP/2 has it here.
    pub(crate) async fn trailers(&mut self) -> io::Result<Option<HeaderMap>> {
        match self {
            Self::Two { stream, .. } => stream.trailers().await.map_err(from_h2),
            _ => Ok(None),
        }
    }
}

/// A body that is written.
pub(crate) enum Outgoing<'a> {
    One {
        writer: &'a mut Writer,
        framing: Framing,
    },
    Two(SendStream<Bytes>),
    /// It was said with the head that there is none.
    Nothing,
}

impl Outgoing<'_> {
    pub(crate) async fn piece(&mut self, mut piece: Bytes) -> io::Result<()> {
        match self {
            Self::Nothing => Ok(()),
            Self::One { writer, framing } => writer.piece(*framing, &piece).await,
            Self::Two(stream) => {
                while !piece.is_empty() {
                    stream.reserve_capacity(piece.len());
                    let room = poll_fn(|context| stream.poll_capacity(context))
                        .await
                        .ok_or(io::ErrorKind::BrokenPipe)?
                        .map_err(from_h2)?;
                    if room == 0 {
                        continue;
                    }
                    let part = piece.split_to(room.min(piece.len()));
                    stream.send_data(part, false).map_err(from_h2)?;
                }
                Ok(())
            }
        }
    }

    pub(crate) async fn end(&mut self, trailers: Option<HeaderMap>) -> io::Result<()> {
        match self {
            Self::Nothing => Ok(()),
            Self::One { writer, framing } => writer.end(*framing).await,
            Self::Two(stream) => match trailers {
                Some(trailers) => stream.send_trailers(trailers).map_err(from_h2),
                None => stream.send_data(Bytes::new(), true).map_err(from_h2),
            },
        }
    }

    /// Waits until the other side wants no more of it. Only streams of HTTP/2 say so.
    pub(crate) async fn unwanted(&mut self) {
        match self {
            Self::One { .. } | Self::Nothing => pending().await,
            Self::Two(stream) => reset(|context| stream.poll_reset(context)).await,
        }
    }

    /// Makes sure that what was sent is not taken for a whole body.
    pub(crate) fn cut(&mut self) {
        if let Self::Two(stream) = self {
            stream.send_reset(h2::Reason::INTERNAL_ERROR);
        }
    }
}

/// Waits until a stream is reset, or its connection is gone.
pub(crate) async fn reset(
    poll: impl FnMut(&mut Context<'_>) -> Poll<Result<h2::Reason, h2::Error>>,
) {
    if let Err(error) = poll_fn(poll).await
        && error.reason().is_none()
        && !error.is_io()
    {
        // The stream is over: nothing can be said of it any more.
        pending().await
    }
}

pub(crate) fn from_h2(error: h2::Error) -> io::Error {
    if error.is_io() {
        return error
            .into_io()
            .unwrap_or_else(|| io::ErrorKind::ConnectionReset.into());
    }
    io::Error::other(error)
}
