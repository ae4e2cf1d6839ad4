//! Heads of HTTP/1 requests and answers, read in the one way that every server reads them.
//!
//! HOSTILE: the agent chose each byte of a request, and whoever answers chose each byte of an
//! answer. What two programs might read in two ways is refused here, and nothing is passed on as it
//! came: a head is written anew from what was understood.

mod fields;

use ringfence_model::host::Host;
use ringfence_model::policy::network::RequestPath;

pub use fields::Fields;
pub use fields::is_value_byte;
use fields::{is_token, trim};

/// BOUND: bytes of a head. Servers take 8 to 64 KiB; tokens of identity services need the most.
pub const MAX_HEAD: usize = 64 << 10;
/// BOUND: fields of a head.
pub const MAX_FIELDS: usize = 128;
/// BOUND: digits of a length, so that it fits a `u64`.
const MAX_LENGTH_DIGITS: usize = 18;

/// Why a head is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    #[error("the head is longer than {MAX_HEAD} bytes")]
    TooLong,
    #[error("the head does not come in time")]
    Late,
    #[error("the head has more than {MAX_FIELDS} fields")]
    TooManyFields,
    #[error("a line of the head does not end with CR LF, or has a control character")]
    Line,
    #[error("the first line is not one of HTTP/1.0 or HTTP/1.1")]
    FirstLine,
    #[error("HTTP/2 begins with TLS here; its preface alone is refused")]
    Preface,
    #[error("the method is no method")]
    Method,
    #[error("the target of the request is neither a path nor a URL")]
    Target,
    #[error("a field has no name, or one with a character that no name has")]
    FieldName,
    #[error("a field is folded over two lines")]
    Folded,
    #[error("the length of the body is given twice, or is no plain number")]
    Length,
    #[error("the body has both a length and a transfer coding")]
    LengthAndCoding,
    #[error("the transfer coding is not plain `chunked`")]
    Coding,
    #[error("there is no `Host` field, or more than one, or it names no host")]
    Host,
    #[error("a change to HTTP/2 in the clear is refused")]
    Upgrade,
}

/// The version of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Http10,
    Http11,
}

/// What a request is sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// `/path?query`
    Path(String),
    /// `http://host/path`: a request to a proxy.
    Url {
        scheme: Scheme,
        place: Place,
        path: String,
    },
    /// `host:port`: what `CONNECT` has.
    Place(Place),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub const fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// A host, and a port where one was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub host: Host,
    pub port: Option<u16>,
}

impl Place {
    /// Reads `host`, `host:port` or `[v6]:port`.
    pub fn parse(text: &str) -> Option<Self> {
        let after = text.rfind(']').map_or(0, |at| at + 1);
        let (host, port) = match text[after..].split_once(':') {
            None => (text, None),
            Some((rest, port)) => {
                let plain = !port.is_empty()
                    && port.len() <= 5
                    && port.bytes().all(|byte| byte.is_ascii_digit());
                let number = port.parse().ok().filter(|port| plain && *port != 0)?;
                (&text[..after + rest.len()], Some(number))
            }
        };
        // A bare IPv6 address has colons of its own; in a URL it stands in brackets.
        if host.contains(':') && !host.starts_with('[') {
            return None;
        }
        Some(Self {
            host: Host::parse(host).ok()?,
            port,
        })
    }
}

/// How the end of a body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    None,
    Length(u64),
    Chunked,
    /// Answers only: until the connection ends.
    UntilClose,
}

/// The head of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    pub method: String,
    pub target: Target,
    pub version: Version,
    pub fields: Fields,
    pub framing: Framing,
}

impl RequestHead {
    /// Reads a whole head, with the empty line at its end.
    pub fn parse(head: &[u8]) -> Result<Self, HeadError> {
        let (first, rest) = first_line(head)?;
        if first == b"PRI * HTTP/2.0" {
            return Err(HeadError::Preface);
        }
        let mut words = first.split(|byte| *byte == b' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(HeadError::FirstLine);
        };
        let version = read_version(version)?;
        let method = read_method(method)?;
        let target = read_target(&method, target)?;
        let fields = read_fields(rest)?;
        let framing = match read_framing(&fields, version)? {
            // Only a response ends with its connection.
            Framing::UntilClose => Framing::None,
            framing => framing,
        };
        if fields.has_word("upgrade", "h2c") || fields.has("http2-settings") {
            return Err(HeadError::Upgrade);
        }
        Ok(Self {
            method,
            target,
            version,
            fields,
            framing,
        })
    }

    /// Whom the `Host` field names. HTTP/1.0 may leave it out.
    pub fn host(&self) -> Result<Option<Place>, HeadError> {
        if self.version == Version::Http10 && !self.fields.has("host") {
            return Ok(None);
        }
        self.fields
            .once("host")
            .and_then(|value| std::str::from_utf8(value).ok())
            .and_then(Place::parse)
            .map(Some)
            .ok_or(HeadError::Host)
    }

    /// Whether the connection may serve another request after this one.
    pub fn keeps_alive(&self) -> bool {
        keeps_alive(self.version, &self.fields)
    }

    /// Whether the client asks for a web socket.
    pub fn asks_for_socket(&self) -> bool {
        self.method == "GET"
            && self.framing == Framing::None
            && self.version == Version::Http11
            && self.fields.has_word("connection", "upgrade")
            && self
                .fields
                .once("upgrade")
                .is_some_and(|value| value.eq_ignore_ascii_case(b"websocket"))
    }
}

/// Writes the head of a request.
pub fn write_request(
    method: &str,
    path: &str,
    fields: &Fields,
    framing: Framing,
    more: &[(&str, &str)],
) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    out.extend_from_slice(format!("{method} {path} HTTP/1.1\r\n").as_bytes());
    fields.write(&mut out);
    finish(&mut out, framing, more);
    out
}

/// Writes the head of an answer.
pub fn write_answer(
    status: u16,
    reason: &[u8],
    fields: &Fields,
    framing: Framing,
    more: &[(&str, &str)],
) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    out.extend_from_slice(format!("HTTP/1.1 {status} ").as_bytes());
    out.extend_from_slice(reason);
    out.extend_from_slice(b"\r\n");
    fields.write(&mut out);
    finish(&mut out, framing, more);
    out
}

fn finish(out: &mut Vec<u8>, framing: Framing, more: &[(&str, &str)]) {
    for (name, value) in more {
        out.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    match framing {
        Framing::None | Framing::UntilClose => {}
        Framing::Length(length) => {
            out.extend_from_slice(format!("Content-Length: {length}\r\n").as_bytes());
        }
        Framing::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
    }
    out.extend_from_slice(b"\r\n");
}

/// The head of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerHead {
    pub status: u16,
    pub reason: Vec<u8>,
    pub version: Version,
    pub fields: Fields,
    framing: Framing,
}

impl AnswerHead {
    pub fn parse(head: &[u8]) -> Result<Self, HeadError> {
        let (first, rest) = first_line(head)?;
        let mut words = first.splitn(3, |byte| *byte == b' ');
        let version = read_version(words.next().unwrap_or_default())?;
        let status = words.next().unwrap_or_default();
        if status.len() != 3 || !status.iter().all(u8::is_ascii_digit) {
            return Err(HeadError::FirstLine);
        }
        let status = status
            .iter()
            .fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0'));
        if status < 100 {
            return Err(HeadError::FirstLine);
        }
        let fields = read_fields(rest)?;
        let framing = read_framing(&fields, version)?;
        Ok(Self {
            status,
            reason: words.next().unwrap_or_default().to_vec(),
            version,
            fields,
            framing,
        })
    }

    /// How the body ends, as an answer to this method.
    pub fn framing(&self, method: &str) -> Framing {
        match self.status {
            100..200 | 204 | 304 => Framing::None,
            _ if method == "HEAD" => Framing::None,
            _ => self.framing,
        }
    }

    /// The length that was said, also where no body follows (answers to `HEAD`).
    pub fn said_length(&self) -> Option<u64> {
        match self.framing {
            Framing::Length(length) => Some(length),
            _ => None,
        }
    }

    pub fn keeps_alive(&self) -> bool {
        keeps_alive(self.version, &self.fields)
    }
}

fn keeps_alive(version: Version, fields: &Fields) -> bool {
    match version {
        Version::Http11 => !fields.has_word("connection", "close"),
        Version::Http10 => fields.has_word("connection", "keep-alive"),
    }
}

/// The path of a target, with its query, and the same as rules see it. What `RequestPath` does not
/// read in one way is refused.
pub fn read_path(target: &str) -> Result<RequestPath, HeadError> {
    let plain = target.bytes().all(|byte| (0x21..0x7f).contains(&byte));
    if !plain || target.contains('#') {
        return Err(HeadError::Target);
    }
    RequestPath::parse(target).ok_or(HeadError::Target)
}

/// Where a head ends in what was read so far: behind its empty line.
pub fn end_of_head(bytes: &[u8]) -> Result<Option<usize>, HeadError> {
    match bytes.windows(4).position(|four| four == b"\r\n\r\n") {
        Some(at) if at + 4 <= MAX_HEAD => Ok(Some(at + 4)),
        None if bytes.len() < MAX_HEAD => Ok(None),
        _ => Err(HeadError::TooLong),
    }
}

fn first_line(head: &[u8]) -> Result<(&[u8], &[u8]), HeadError> {
    if head.len() > MAX_HEAD {
        return Err(HeadError::TooLong);
    }
    let at = head
        .windows(2)
        .position(|two| two == b"\r\n")
        .ok_or(HeadError::Line)?;
    let first = &head[..at];
    if first.is_empty() || !first.iter().all(|byte| is_value_byte(*byte)) {
        return Err(HeadError::FirstLine);
    }
    Ok((first, &head[at + 2..]))
}

fn read_version(text: &[u8]) -> Result<Version, HeadError> {
    match text {
        b"HTTP/1.0" => Ok(Version::Http10),
        b"HTTP/1.1" => Ok(Version::Http11),
        _ => Err(HeadError::FirstLine),
    }
}

/// A method. Rules have capital letters; hosts that make no difference must not be asked otherwise.
pub(crate) fn read_method(method: &[u8]) -> Result<String, HeadError> {
    if !is_token(method) || method.iter().any(u8::is_ascii_lowercase) {
        return Err(HeadError::Method);
    }
    Ok(String::from_utf8_lossy(method).into_owned())
}

fn read_target(method: &str, target: &[u8]) -> Result<Target, HeadError> {
    let target = std::str::from_utf8(target).map_err(|_| HeadError::Target)?;
    if method == "CONNECT" {
        return Place::parse(target)
            .filter(|place| place.port.is_some())
            .map(Target::Place)
            .ok_or(HeadError::Target);
    }
    if target.starts_with('/') {
        return Ok(Target::Path(target.to_owned()));
    }
    let lower = target.to_ascii_lowercase();
    let scheme = match () {
        () if lower.starts_with("http://") => Scheme::Http,
        () if lower.starts_with("https://") => Scheme::Https,
        () => return Err(HeadError::Target),
    };
    let rest = target.split_once("//").map_or("", |(_, rest)| rest);
    let at = rest.find(['/', '?']).unwrap_or(rest.len());
    let path = match rest.get(at..) {
        Some("") | None => "/".to_owned(),
        Some(query) if query.starts_with('?') => format!("/{query}"),
        Some(path) => path.to_owned(),
    };
    let place = Place::parse(&rest[..at]).ok_or(HeadError::Target)?;
    Ok(Target::Url {
        scheme,
        place,
        path,
    })
}

fn read_fields(mut rest: &[u8]) -> Result<Fields, HeadError> {
    let mut fields = Fields::default();
    loop {
        let at = rest
            .windows(2)
            .position(|two| two == b"\r\n")
            .ok_or(HeadError::Line)?;
        let line = &rest[..at];
        rest = &rest[at + 2..];
        if line.is_empty() {
            // What follows the head is no part of it.
            return if rest.is_empty() {
                Ok(fields)
            } else {
                Err(HeadError::Line)
            };
        }
        if matches!(line[0], b' ' | b'\t') {
            return Err(HeadError::Folded);
        }
        let colon = line
            .iter()
            .position(|byte| *byte == b':')
            .ok_or(HeadError::FieldName)?;
        let (name, value) = (&line[..colon], trim(&line[colon + 1..]));
        if !is_token(name) {
            return Err(HeadError::FieldName);
        }
        if fields.count() == MAX_FIELDS {
            return Err(HeadError::TooManyFields);
        }
        let name = String::from_utf8_lossy(name).into_owned();
        fields.push(&name, value).ok_or(HeadError::Line)?;
    }
}

fn read_framing(fields: &Fields, version: Version) -> Result<Framing, HeadError> {
    let length = if !fields.has("content-length") {
        None
    } else {
        let text = fields.once("content-length").ok_or(HeadError::Length)?;
        let plain = !text.is_empty()
            && text.len() <= MAX_LENGTH_DIGITS
            && text.iter().all(u8::is_ascii_digit);
        let number = std::str::from_utf8(text)
            .ok()
            .filter(|_| plain)
            .and_then(|text| text.parse().ok());
        Some(number.ok_or(HeadError::Length)?)
    };
    if !fields.has("transfer-encoding") {
        return Ok(length.map_or(Framing::UntilClose, Framing::Length));
    }
    if length.is_some() {
        return Err(HeadError::LengthAndCoding);
    }
    fields
        .once("transfer-encoding")
        .filter(|value| value.eq_ignore_ascii_case(b"chunked") && version == Version::Http11)
        .map(|_| Framing::Chunked)
        .ok_or(HeadError::Coding)
}

#[cfg(test)]
mod tests;
