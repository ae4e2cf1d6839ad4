//! The beginning of a TLS connection: whose certificate the client asks for.
//!
//! HOSTILE: all of it. A hello may come in any number of records and packets; what is not a hello
//! in the one way that RFC 8446 writes it is refused.

use ringfence_model::host::Host;

/// BOUND: a hello with everything that is used today has 2 KiB, with keys of post-quantum exchanges
/// in all groups some 8; the record layer allows more than anyone sends.
pub(crate) const MAX_HELLO: usize = 64 << 10;
/// The first byte of a record that carries a handshake.
pub(crate) const HANDSHAKE: u8 = 22;

const MAX_RECORD: usize = 1 << 14;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;

/// What stands in a hello.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Whom the client asks for, where it says so.
    pub(crate) server: Option<Host>,
}

/// Why something is no hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HelloError {
    #[error("the TLS hello is longer than {MAX_HELLO} bytes")]
    TooLong,
    #[error("the TLS connection does not begin with a hello")]
    NoHello,
    #[error("the TLS hello is not well-formed")]
    Shape,
    #[error("the server name in the TLS hello is no host")]
    Name,
}

/// Reads a hello from the first bytes of a connection. `None`: there is more to come.
pub(crate) fn read(bytes: &[u8]) -> Result<Option<Hello>, HelloError> {
    let mut handshake = Vec::new();
    let mut records = bytes;
    while let [kind, major, minor, high, low, rest @ ..] = records {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if *kind != HANDSHAKE || *major != 3 || *minor > 4 {
            return Err(HelloError::NoHello);
        }
        if length == 0 || length > MAX_RECORD {
            return Err(HelloError::Shape);
        }
        handshake.extend_from_slice(rest.get(..length).unwrap_or(rest));
        if let Some(hello) = read_handshake(&handshake)? {
            return Ok(Some(hello));
        }
        match rest.get(length..) {
            Some(rest) => records = rest,
            None => break,
        }
    }
    match bytes.first() {
        Some(kind) if *kind != HANDSHAKE => Err(HelloError::NoHello),
        _ if bytes.len() > MAX_HELLO => Err(HelloError::TooLong),
        _ => Ok(None),
    }
}

fn read_handshake(bytes: &[u8]) -> Result<Option<Hello>, HelloError> {
    let [kind, rest @ ..] = bytes else {
        return Ok(None);
    };
    if *kind != CLIENT_HELLO {
        return Err(HelloError::NoHello);
    }
    let [high, middle, low, body @ ..] = rest else {
        return Ok(None);
    };
    let length = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
    if length > MAX_HELLO {
        return Err(HelloError::TooLong);
    }
    match body.get(..length) {
        None => Ok(None),
        Some(body) => read_body(body).map(Some),
    }
}

/// Takes parts from the front of bytes.
struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], HelloError> {
        let (part, rest) = self.0.split_at_checked(length).ok_or(HelloError::Shape)?;
        self.0 = rest;
        Ok(part)
    }

    fn number(&mut self) -> Result<u16, HelloError> {
        let part = self.take(2)?;
        Ok(u16::from_be_bytes([part[0], part[1]]))
    }

    fn byte(&mut self) -> Result<u8, HelloError> {
        Ok(self.take(1)?[0])
    }

    /// A part with its length before it, in one byte.
    fn short(&mut self) -> Result<&'a [u8], HelloError> {
        let length = self.byte()?;
        self.take(usize::from(length))
    }

    /// A part with its length before it, in two bytes.
    fn long(&mut self) -> Result<&'a [u8], HelloError> {
        let length = self.number()?;
        self.take(usize::from(length))
    }

    fn end(&self) -> Result<(), HelloError> {
        match self.0 {
            [] => Ok(()),
            _ => Err(HelloError::Shape),
        }
    }
}

fn read_body(body: &[u8]) -> Result<Hello, HelloError> {
    let mut body = Parts(body);
    let _version = body.number()?;
    let _random = body.take(32)?;
    let _session = body.short()?;
    let suites = body.long()?;
    let compression = body.short()?;
    if suites.is_empty() || suites.len() % 2 != 0 || compression.is_empty() {
        return Err(HelloError::Shape);
    }
    let mut hello = Hello { server: None };
    if body.0.is_empty() {
        return Ok(hello);
    }
    let mut extensions = Parts(body.long()?);
    body.end()?;
    let mut named = false;
    while !extensions.0.is_empty() {
        let kind = extensions.number()?;
        let content = extensions.long()?;
        if kind == SERVER_NAME {
            // Two names: servers differ in which they take.
            if std::mem::replace(&mut named, true) {
                return Err(HelloError::Shape);
            }
            hello.server = Some(read_name(content)?);
        }
    }
    Ok(hello)
}

fn read_name(content: &[u8]) -> Result<Host, HelloError> {
    let mut content = Parts(content);
    let mut list = Parts(content.long()?);
    content.end()?;
    let kind = list.byte()?;
    let name = list.long()?;
    list.end()?;
    if kind != HOST_NAME {
        return Err(HelloError::Shape);
    }
    // A dot at the end has no place here; a server might look for it in a certificate.
    let text = std::str::from_utf8(name).map_err(|_| HelloError::Name)?;
    if text.ends_with('.') {
        return Err(HelloError::Name);
    }
    Host::parse(text).map_err(|_| HelloError::Name)
}

#[cfg(test)]
mod tests;
