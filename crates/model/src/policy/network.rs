//! Rules of the network: which host, port, method and path may be reached, and what decides.
//!
//! ```text
//! api.github.com                     any request, ports 80 and 443
//! *.example.com:8443                 any name below, one port
//! GET,HEAD api.github.com/repos/**   these methods, this path
//! tcp db.internal:5432               a connection, whatever is in it
//! ```
//!
//! A rule that denies wins over every rule that allows. What no rule allows is denied.

mod path;

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::host::{Host, HostError, HostPattern, Reach, plain_address};

pub(super) use path::covers_segments;
pub use path::{PathPattern, RequestPath};

/// Where web requests go when a rule names no port.
pub const WEB_PORTS: [u16; 2] = [80, 443];
/// BOUND: methods of one rule.
const MAX_METHODS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    Allow,
    Deny,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// HTTP in the clear or inside TLS. Bytes that are neither are refused.
    Web,
    /// Any bytes.
    Tcp,
}

/// Where a rule was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// A file, a preset (`preset:npm`), or an option of the command line.
    pub file: String,
    /// Counted from 1; 0 where there are no lines.
    pub line: u32,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{line}", self.file),
        }
    }
}

/// What all that a rule allows may use together. `None`: not bounded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Requests or connections that begin in a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_minute: Option<u32>,
    /// Bytes sent to the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_bytes: Option<u64>,
    /// Bytes that come from the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub download_bytes: Option<u64>,
    /// How long one connection may last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u64>,
}

impl Budget {
    /// Whether there is a bound that everything under the rule uses up together.
    pub fn is_shared(&self) -> bool {
        self.per_minute.is_some() || self.upload_bytes.is_some() || self.download_bytes.is_some()
    }
}

/// Addresses with a common beginning: `10.0.0.0/8`, or one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Range {
    address: IpAddr,
    bits: u8,
}

impl Range {
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, plain_address(address)) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let shift = 32 - u32::from(self.bits);
                let cut = |address: u32| u64::from(address) >> shift;
                cut(own.to_bits()) == cut(other.to_bits())
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let shift = 128 - u32::from(self.bits);
                let cut = |address: u128| address.checked_shr(shift).unwrap_or(0);
                cut(own.to_bits()) == cut(other.to_bits())
            }
            _ => false,
        }
    }
}

impl Range {
    /// Whether all of the other one is in this one.
    pub fn holds(&self, other: &Self) -> bool {
        // IPv4 inside IPv6 is another range, however it begins.
        let same = self.address.is_ipv4() == other.address.is_ipv4();
        same && self.bits <= other.bits && self.contains(other.address)
    }
}

impl FromStr for Range {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let bad = || RuleError::Range(text.to_owned());
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => most,
            Some(bits) => bits
                .parse()
                .ok()
                .filter(|bits| *bits <= most)
                .ok_or_else(bad)?,
        };
        Ok(Self { address, bits })
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl From<Range> for String {
    fn from(range: Range) -> Self {
        range.to_string()
    }
}

impl TryFrom<String> for Range {
    type Error = RuleError;

    fn try_from(text: String) -> Result<Self, RuleError> {
        text.parse()
    }
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkRule {
    pub effect: Effect,
    pub protocol: Protocol,
    /// Upper case. Empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    pub host: HostPattern,
    pub ports: Vec<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathPattern>,
    /// Addresses beyond the open network that the host may have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<Range>,
    #[serde(default)]
    pub budget: Budget,
    pub from: Origin,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    #[error("`{text}` is no host: {why}")]
    Host { text: String, why: HostError },
    #[error("`{0}` is no port")]
    Port(String),
    #[error("`{0}` is no method: write it in capital letters")]
    Method(String),
    #[error("a `tcp` rule names one port, and no path")]
    Tcp,
    #[error("`{0}` is no path pattern")]
    Path(String),
    #[error("`{0}` is no range of addresses")]
    Range(String),
    #[error("a rule is `[METHOD] HOST[:PORT][/PATH]` or `tcp HOST:PORT`")]
    Shape,
}

impl NetworkRule {
    /// Reads a rule.
    pub fn parse(effect: Effect, text: &str, from: Origin) -> Result<Self, RuleError> {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let (first, target) = match words[..] {
            [target] => (None, target),
            [first, target] => (Some(first), target),
            _ => return Err(RuleError::Shape),
        };
        if target.contains("://") {
            return Err(RuleError::Shape);
        }
        let (place, path) = match target.find('/') {
            Some(at) => (&target[..at], Some(PathPattern::parse(&target[at..])?)),
            None => (target, None),
        };
        let (host, port) = split_port(place)?;
        let host = HostPattern::parse(host).map_err(|why| RuleError::Host {
            text: host.to_owned(),
            why,
        })?;
        let protocol = if first == Some("tcp") {
            Protocol::Tcp
        } else {
            Protocol::Web
        };
        if protocol == Protocol::Tcp && (port.is_none() || path.is_some()) {
            return Err(RuleError::Tcp);
        }
        let methods = match first {
            None | Some("tcp") => Vec::new(),
            Some(methods) => read_methods(methods)?,
        };
        Ok(Self {
            effect,
            protocol,
            methods,
            host,
            ports: port.map_or(WEB_PORTS.to_vec(), |port| vec![port]),
            path,
            addresses: Vec::new(),
            budget: Budget::default(),
            from,
        })
    }

    /// Any web request to a host.
    pub fn any_request(host: &Host, from: Origin) -> Self {
        Self {
            effect: Effect::Allow,
            protocol: Protocol::Web,
            methods: Vec::new(),
            host: HostPattern::Exact(host.clone()),
            ports: WEB_PORTS.to_vec(),
            path: None,
            addresses: Vec::new(),
            budget: Budget::default(),
            from,
        }
    }

    fn covers(&self, host: &Host, port: u16) -> bool {
        self.ports.contains(&port) && self.host.matches(host)
    }

    /// Whether only a look at each request can tell.
    pub fn looks_inside(&self) -> bool {
        !self.methods.is_empty() || self.path.is_some()
    }

    fn covers_request(&self, method: &str, path: &RequestPath) -> bool {
        (self.methods.is_empty() || self.methods.iter().any(|own| own == method))
            && self.path.as_ref().is_none_or(|own| match self.effect {
                Effect::Allow => own.matches(path),
                Effect::Deny => own.may_match(path),
            })
    }

    /// Whether this rule names the very address, or a range that it is in.
    pub fn names(&self, address: IpAddr) -> bool {
        let literal = HostPattern::Exact(Host::address(address));
        self.host == literal || self.addresses.iter().any(|range| range.contains(address))
    }

    /// Whether a host that this rule names may have this address.
    pub fn takes(&self, address: IpAddr) -> bool {
        if self.names(address) {
            return true;
        }
        match (&self.host, Reach::of(address)) {
            (_, Reach::Public) => true,
            // A service of one's own network, named with its port.
            (HostPattern::Exact(Host::Name(_)), Reach::Private) => self.protocol == Protocol::Tcp,
            _ => false,
        }
    }
}

impl fmt::Display for NetworkRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            Protocol::Tcp => f.write_str("tcp ")?,
            Protocol::Web if self.methods.is_empty() => {}
            Protocol::Web => write!(f, "{} ", self.methods.join(","))?,
        }
        write!(f, "{}", self.host)?;
        if self.ports != WEB_PORTS {
            for port in &self.ports {
                write!(f, ":{port}")?;
            }
        }
        self.path.as_ref().map_or(Ok(()), |path| path.fmt(f))
    }
}

fn split_port(place: &str) -> Result<(&str, Option<u16>), RuleError> {
    // A bare IPv6 address has colons of its own; only brackets tell a port from it.
    let at = match place.rfind(']') {
        Some(end) => place[end..].find(':').map(|at| at + end),
        None if place.matches(':').count() > 1 => None,
        None => place.find(':'),
    };
    let Some(at) = at else {
        return Ok((place, None));
    };
    let text = &place[at + 1..];
    let port = Some(text)
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0'))
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| RuleError::Port(text.to_owned()))?;
    Ok((&place[..at], Some(port)))
}

pub(super) fn read_methods(text: &str) -> Result<Vec<String>, RuleError> {
    let methods: Vec<String> = text.split(',').map(str::to_owned).collect();
    let plain = |method: &String| {
        !method.is_empty()
            && method
                .bytes()
                .all(|byte| byte.is_ascii_uppercase() || byte == b'-')
    };
    match methods.iter().find(|method| !plain(method)) {
        Some(bad) => Err(RuleError::Method(bad.clone())),
        None if methods.len() > MAX_METHODS => Err(RuleError::Method(text.to_owned())),
        None => Ok(methods),
    }
}

/// Why something was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// No rule allows the host.
    Host,
    /// A rule allows the host, at other ports.
    Port,
    /// A rule allows the host, with other methods.
    Method,
    /// A rule allows the host, with other paths.
    Path,
    /// A rule denies it.
    Rule,
    /// The host has an address that no rule names.
    Address,
    /// What was sent is not what the rule is about: no HTTP, no TLS, another name inside.
    Protocol,
    /// The request cannot be read in one way only.
    Malformed,
    /// A budget of the rule is used up.
    Budget,
    /// A placeholder of a secret was sent to where it is not bound.
    Secret,
}

impl Reason {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Port => "port",
            Self::Method => "method",
            Self::Path => "path",
            Self::Rule => "rule",
            Self::Address => "address",
            Self::Protocol => "protocol",
            Self::Malformed => "malformed",
            Self::Budget => "budget",
            Self::Secret => "secret",
        }
    }
}

/// What the rules say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    Allow(&'a NetworkRule),
    Deny {
        reason: Reason,
        /// The rule that denies, where one does.
        rule: Option<&'a NetworkRule>,
    },
}

/// All rules of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rules(pub Vec<NetworkRule>);

impl Rules {
    fn with(&self, effect: Effect) -> impl Iterator<Item = &NetworkRule> {
        self.0.iter().filter(move |rule| rule.effect == effect)
    }

    /// Ports at which something of this host is allowed; none where the name is not even known.
    pub fn ports(&self, host: &Host) -> BTreeSet<u16> {
        self.with(Effect::Allow)
            .filter(|rule| rule.host.matches(host))
            .flat_map(|rule| rule.ports.iter().copied())
            .filter(|port| !self.denies_all(host, *port))
            .collect()
    }

    fn denies_all(&self, host: &Host, port: u16) -> bool {
        self.with(Effect::Deny)
            .any(|rule| rule.covers(host, port) && !rule.looks_inside())
    }

    /// Whether requests to this host must be seen: then no connection to it is passed on unread.
    pub fn looks_inside(&self, host: &Host, port: u16) -> bool {
        let opaque = |rule: &&NetworkRule| rule.covers(host, port) && !rule.looks_inside();
        let denies_some = self
            .with(Effect::Deny)
            .any(|rule| rule.covers(host, port) && rule.looks_inside());
        denies_some || !self.with(Effect::Allow).any(|rule| opaque(&rule))
    }

    /// What is said of a connection whose content is not seen, or not yet.
    pub fn connection(&self, host: &Host, port: u16) -> Verdict<'_> {
        if let Some(rule) = self
            .with(Effect::Deny)
            .find(|rule| rule.covers(host, port) && !rule.looks_inside())
        {
            return Verdict::Deny {
                reason: Reason::Rule,
                rule: Some(rule),
            };
        }
        let covering = || {
            self.with(Effect::Allow)
                .filter(|rule| rule.covers(host, port))
        };
        // The most that is allowed: any bytes, then any request, then some.
        let rank = |rule: &&NetworkRule| match (rule.protocol, rule.looks_inside()) {
            (Protocol::Tcp, _) => 0,
            (Protocol::Web, false) => 1,
            (Protocol::Web, true) => 2,
        };
        match covering().min_by_key(rank) {
            Some(rule) => Verdict::Allow(rule),
            None => Verdict::Deny {
                reason: self.missing(host),
                rule: None,
            },
        }
    }

    fn missing(&self, host: &Host) -> Reason {
        if self.with(Effect::Allow).any(|rule| rule.host.matches(host)) {
            Reason::Port
        } else {
            Reason::Host
        }
    }

    /// What is said of one request.
    pub fn request(&self, host: &Host, port: u16, method: &str, path: &RequestPath) -> Verdict<'_> {
        let covering = |effect| {
            self.with(effect).filter(move |rule| {
                // Who denies any bytes denies those of requests; who allows them says nothing of
                // requests.
                let about = rule.protocol == Protocol::Web || effect == Effect::Deny;
                about && rule.covers(host, port)
            })
        };
        if let Some(rule) = covering(Effect::Deny).find(|rule| rule.covers_request(method, path)) {
            return Verdict::Deny {
                reason: Reason::Rule,
                rule: Some(rule),
            };
        }
        if let Some(rule) = covering(Effect::Allow).find(|rule| rule.covers_request(method, path)) {
            return Verdict::Allow(rule);
        }
        let path_fits = |rule: &NetworkRule| rule.path.as_ref().is_none_or(|own| own.matches(path));
        let reason = match covering(Effect::Allow).next() {
            None => self.missing(host),
            Some(_) if covering(Effect::Allow).any(path_fits) => Reason::Method,
            Some(_) => Reason::Path,
        };
        Verdict::Deny { reason, rule: None }
    }

    /// The line that would allow a connection.
    pub fn line_for(host: &Host, port: u16, protocol: Protocol) -> String {
        match protocol {
            Protocol::Tcp => format!("tcp {host}:{port}"),
            Protocol::Web if WEB_PORTS.contains(&port) => host.to_string(),
            Protocol::Web => format!("{host}:{port}"),
        }
    }

    /// The line that would allow a request.
    pub fn line_for_request(host: &Host, port: u16, method: &str, path: &RequestPath) -> String {
        let place = Self::line_for(host, port, Protocol::Web);
        format!("{method} {place}{}", path.as_str())
    }
}

#[cfg(test)]
mod tests;
