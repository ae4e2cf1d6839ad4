//! What happens to the body of an answer between host and client.

use std::io::{self, Write as _};

use bytes::Bytes;
use flate2::write::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};

use super::release::{Due, Release};
use super::reply::Answer;
use crate::head::Fields;
use crate::secrets::{Found, Needles, PIECE, Stream};

/// BOUND: compressed bytes that are opened at once: they become a thousand times as many at most.
const OPEN_AT_ONCE: usize = 1 << 10;

/// A coding that is undone so that what is inside can be read.
pub(crate) enum Opener {
    Gzip(MultiGzDecoder<Vec<u8>>),
    Zlib(ZlibDecoder<Vec<u8>>),
    Deflate(DeflateDecoder<Vec<u8>>),
    /// `deflate`, before its first byte tells which of two it is.
    Either,
}

/// An answer that cannot be searched for secrets.
///
/// HOSTILE: the host's own name for a coding is not shown: it may be anything that the host was sent.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unsearchable {
    #[error("the answer has a coding that cannot be read; `gzip` and `deflate` can")]
    Coding,
    #[error("the answer is a part of something, although the whole was asked for")]
    Part,
}

impl Opener {
    /// What undoes the coding of an answer; `None` where it has none.
    pub(crate) fn of(fields: &Fields) -> Result<Option<Self>, Unsearchable> {
        let mut codings = fields.all("content-encoding");
        let (first, second) = (codings.next(), codings.next());
        let coding = first.map(<[u8]>::to_ascii_lowercase);
        match (coding.as_deref(), second) {
            (None | Some(b"" | b"identity"), None) => Ok(None),
            (Some(b"gzip" | b"x-gzip"), None) => {
                Ok(Some(Self::Gzip(MultiGzDecoder::new(Vec::new()))))
            }
            (Some(b"deflate"), None) => Ok(Some(Self::Either)),
            _ => Err(Unsearchable::Coding),
        }
    }

    pub(crate) fn piece(&mut self, piece: &[u8]) -> io::Result<Vec<u8>> {
        if let (Self::Either, Some(first)) = (&self, piece.first()) {
            // The beginning of zlib says so: method 8, and a window of 32 KiB at most.
            *self = if first & 0x0f == 8 && first >> 4 <= 7 {
                Self::Zlib(ZlibDecoder::new(Vec::new()))
            } else {
                Self::Deflate(DeflateDecoder::new(Vec::new()))
            };
        }
        match self {
            Self::Gzip(own) => {
                own.write_all(piece)?;
                Ok(std::mem::take(own.get_mut()))
            }
            Self::Zlib(own) => {
                own.write_all(piece)?;
                Ok(std::mem::take(own.get_mut()))
            }
            Self::Deflate(own) => {
                own.write_all(piece)?;
                Ok(std::mem::take(own.get_mut()))
            }
            Self::Either => Ok(Vec::new()),
        }
    }

    /// The last bytes. An end that is missing is an error.
    pub(crate) fn end(&mut self) -> io::Result<Vec<u8>> {
        match self {
            Self::Gzip(own) => {
                own.try_finish()?;
                Ok(std::mem::take(own.get_mut()))
            }
            Self::Zlib(own) => {
                own.try_finish()?;
                Ok(std::mem::take(own.get_mut()))
            }
            Self::Deflate(own) => {
                own.try_finish()?;
                Ok(std::mem::take(own.get_mut()))
            }
            Self::Either => Ok(Vec::new()),
        }
    }
}

/// What one body goes through: opened and searched where secrets may come back, or left as it is.
pub(crate) struct Passage<'a> {
    opener: Option<Opener>,
    search: Option<Stream<&'a Needles>>,
    told: Vec<Found>,
    body: Body,
}

/// What the head of an answer says of its body.
enum Body {
    /// Its length: nobody reads such a body event by event.
    Announced,
    /// That it has events or messages.
    Events,
    Text,
}

/// Whether both sides talk at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conversation {
    GoesOn,
    Over,
}

/// What bodies are read event by event or message by message, by the beginning of their media types.
const EVENTS: [&[u8]; 9] = [
    b"text/event-stream",
    b"application/grpc",
    b"application/connect+",
    b"application/x-ndjson",
    b"application/ndjson",
    b"application/jsonl",
    b"application/json-seq",
    b"application/stream+json",
    b"application/vnd.docker.",
];

impl Body {
    fn of(answer: &Answer) -> Self {
        let media_type = answer.fields.all("content-type").next();
        let media_type = media_type.unwrap_or_default().to_ascii_lowercase();
        if answer.length.is_some() {
            Self::Announced
        } else if EVENTS.iter().any(|events| media_type.starts_with(events)) {
            Self::Events
        } else {
            Self::Text
        }
    }
}

impl<'a> Passage<'a> {
    /// Reads the head of an answer, and takes secrets out of it.
    pub(crate) fn new(
        needles: Option<&'a Needles>,
        answer: &mut Answer,
        nothing: bool,
    ) -> Result<Self, Unsearchable> {
        let Some(needles) = needles else {
            return Ok(Self {
                opener: None,
                search: None,
                told: Vec::new(),
                body: Body::Announced,
            });
        };
        // 206 is a part of a page, 226 a difference to another one (RFC 3229).
        if matches!(answer.status, 206 | 226) {
            return Err(Unsearchable::Part);
        }
        let coding = Opener::of(&answer.fields);
        let is_coded = !matches!(coding, Ok(None));
        let opener = if nothing { None } else { coding? };
        let mut search = Stream::new(needles);
        if let Some(reason) = needles.replace(&answer.reason, &mut search.seen) {
            answer.reason = reason;
        }
        answer.fields = clean(needles, &answer.fields, &mut search.seen);
        if opener.is_some() {
            answer.fields.remove("content-encoding");
        }
        let body = Body::of(answer);
        // What is put in may be longer or shorter. The length of a compressed body tells how much of a guess stands in
        // it twice, once as the value: `HEAD` asks for nothing else.
        if !nothing || is_coded {
            answer.length = None;
        }
        Ok(Self {
            opener,
            search: Some(search),
            told: Vec::new(),
            body,
        })
    }

    /// Takes bytes of `piece` from its front, and gives what goes on for them.
    pub(crate) fn step(&mut self, piece: &mut Bytes) -> io::Result<Bytes> {
        let opened = match &mut self.opener {
            None => piece.split_off(0),
            Some(opener) => {
                let part = piece.split_to(piece.len().min(OPEN_AT_ONCE));
                opener.piece(&part)?.into()
            }
        };
        Ok(match &mut self.search {
            None => opened,
            Some(search) => search.piece(&opened),
        })
    }

    /// Whether bytes are held back that a pause of the host releases.
    pub(crate) fn holds_back(&self) -> bool {
        self.search.as_ref().is_some_and(Stream::holds_back)
    }

    /// What the host may send next, where it owes no rest of a chunk.
    pub(crate) fn due(&self, conversation: Conversation) -> Due {
        match (&self.body, conversation) {
            (Body::Announced, _) => Due::Rest,
            (Body::Events, _) | (_, Conversation::GoesOn) => Due::Message,
            (Body::Text, Conversation::Over) => Due::Line,
        }
    }

    /// The host has sent nothing for a while: what was held back goes on.
    pub(crate) fn release(&mut self, release: Release) -> Bytes {
        let Some(search) = &mut self.search else {
            return Bytes::new();
        };
        match release {
            Release::Lines => search.pause_at_line(),
            Release::All => search.pause(),
        }
    }

    /// How many bytes are written to the client at a time. Where values are searched always as many: the sizes of
    /// pieces would tell how far the host compressed what is in them.
    pub(crate) fn size_of_pieces(&self) -> usize {
        match self.search {
            Some(_) => PIECE,
            None => usize::MAX,
        }
    }

    /// What is left at the end.
    pub(crate) fn end(&mut self) -> io::Result<Bytes> {
        let opened: Bytes = match &mut self.opener {
            None => Bytes::new(),
            Some(opener) => opener.end()?.into(),
        };
        let Some(search) = &mut self.search else {
            return Ok(opened);
        };
        let first = search.piece(&opened);
        let last = search.end();
        Ok([first, last].concat().into())
    }

    /// Takes secrets out of what follows a body.
    pub(crate) fn trailers(&mut self, trailers: http::HeaderMap) -> http::HeaderMap {
        let Some(search) = &mut self.search else {
            return trailers;
        };
        let fields = super::reply::fields_of(&trailers).unwrap_or_default();
        super::reply::map_of(&clean(search.needles(), &fields, &mut search.seen))
    }

    /// What was taken out and not told yet.
    pub(crate) fn take_seen(&mut self) -> Vec<Found> {
        let Some(search) = &self.search else {
            return Vec::new();
        };
        let new: Vec<Found> = search
            .seen
            .iter()
            .filter(|found| !self.told.contains(found))
            .copied()
            .collect();
        self.told.extend(&new);
        new
    }
}

fn clean(needles: &Needles, fields: &Fields, seen: &mut Vec<Found>) -> Fields {
    let mut cleaned = Fields::default();
    for (name, value) in fields.iter() {
        // No honest field has a secret for its name.
        if needles.replace(name.as_bytes(), seen).is_some() {
            continue;
        }
        match needles.replace(value, seen) {
            // What cannot be a value is left out.
            Some(value) => cleaned.push(name, &value),
            None => cleaned.push(name, value),
        };
    }
    cleaned
}
