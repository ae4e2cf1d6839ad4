//! Addresses that may be asked, and what a redirect may turn one into.

use std::net::IpAddr;

use http::Uri;
use http::uri::{PathAndQuery, Scheme};

/// BOUND: addresses with signatures in them have some 2,000 bytes.
const URL_BYTES: usize = 16 << 10;
/// BOUND: of an address in a message.
const SHOWN_BYTES: usize = 300;

/// Where requests may go without TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlainHttp {
    /// To this machine itself.
    #[default]
    LoopbackOnly,
    /// Anywhere: the caller asked for it.
    Allowed,
}

/// Why an address cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    #[error("`{0}` is not an address of the web")]
    Parse(String),
    #[error("`{0}` is not `https`, and anybody on the way could change what it sends")]
    Plain(String),
}

/// An address that may be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    uri: Uri,
    host: String,
    port: u16,
}

impl Address {
    pub fn parse(text: &str, plain: PlainHttp) -> Result<Self, AddressError> {
        let bad = || AddressError::Parse(shown(text));
        if text.len() > URL_BYTES {
            return Err(bad());
        }
        // What comes after `#` is for the one who asks.
        let text = text.split('#').next().unwrap_or_default();
        let uri: Uri = text.parse().map_err(|_| bad())?;
        let authority = uri.authority().ok_or_else(bad)?;
        // A name and a password would be in every message.
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(bad());
        }
        let secure = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            _ => return Err(bad()),
        };
        let port = match authority.as_str().strip_prefix(authority.host()) {
            Some("") if secure => 443,
            Some("") => 80,
            Some(rest) => rest
                .strip_prefix(':')
                .and_then(|port| port.parse().ok())
                .ok_or_else(bad)?,
            None => return Err(bad()),
        };
        let address = Self {
            host: authority.host().to_ascii_lowercase(),
            port,
            uri,
        };
        if !secure && plain == PlainHttp::LoopbackOnly && !address.is_loopback() {
            return Err(AddressError::Plain(address.shown()));
        }
        Ok(address)
    }

    pub(super) fn uri(&self) -> &Uri {
        &self.uri
    }

    /// In lower case, without the port.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// `host`, or `host:port` where it is not the usual port.
    pub fn authority(&self) -> String {
        let usual = if self.is_secure() { 443 } else { 80 };
        if self.port == usual {
            self.host.clone()
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    pub fn is_secure(&self) -> bool {
        self.uri.scheme() == Some(&Scheme::HTTPS)
    }

    /// Whether it is this machine, by number or by the name that every system has for it.
    pub fn is_loopback(&self) -> bool {
        is_loopback(&self.host)
    }

    /// Whether the same server answers, as far as an address can tell.
    pub fn same_origin(&self, other: &Self) -> bool {
        self.uri.scheme() == other.uri.scheme()
            && self.host == other.host
            && self.port == other.port
    }

    /// Where a redirect from here leads.
    pub(super) fn follow(&self, to: &str, plain: PlainHttp) -> Result<Self, &'static str> {
        let to = if to.starts_with('/') && !to.starts_with("//") {
            let path: PathAndQuery = to.parse().map_err(|_| "it is not an address")?;
            let mut parts = self.uri.clone().into_parts();
            parts.path_and_query = Some(path);
            let uri = Uri::from_parts(parts).map_err(|_| "it is not an address")?;
            return Ok(Self {
                uri,
                ..self.clone()
            });
        } else {
            Self::parse(to, plain)
        };
        let to = to.map_err(|error| match error {
            AddressError::Parse(_) => "it is neither a whole address nor a path",
            AddressError::Plain(_) => "it is not `https`",
        })?;
        if self.is_secure() && !to.is_secure() {
            return Err("it is not `https`");
        }
        if to.is_loopback() && !self.is_loopback() {
            return Err("it is this machine itself");
        }
        Ok(to)
    }

    /// For messages: without the query, which may hold a signature.
    pub fn shown(&self) -> String {
        shown(&self.uri.to_string())
    }
}

/// Whether a host is this machine, by number or by the name that every system has for it.
pub fn is_loopback(host: &str) -> bool {
    let number = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || number.parse::<IpAddr>().is_ok_and(|address| match address {
            IpAddr::V4(four) => four.is_loopback(),
            IpAddr::V6(six) => six.is_loopback(),
        })
}

/// An address for messages: no query, no name and password, bounded, nothing but plain text.
pub(super) fn shown(text: &str) -> String {
    let text = text.split(['?', '#']).next().unwrap_or_default();
    let text = match text.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let host = authority.rsplit('@').next().unwrap_or_default();
            format!("{scheme}://{host}{path}")
        }
        None => text.to_owned(),
    };
    text.chars()
        .filter(|c| !c.is_control())
        .take(SHOWN_BYTES)
        .collect()
}
