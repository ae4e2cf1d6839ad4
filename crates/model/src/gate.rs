//! What the host and a gate say to each other, and what a gate and a guest do.
//!
//! A gate is one host process for one sandbox. Its standard input is a socket to the engine, its
//! standard output one to the guest, and it has nothing else of the host but the network:
//!
//! ```text
//! engine ──[Order]──▶ gate ──[Want]──▶ guest     the guest makes sockets in the sandbox's network
//! engine ◀─[Word]──── gate ◀─[socket]─ guest     and hands them over; the gate accepts on them
//! ```
//!
//! The engine sends the [`Setup`] first. Orders and words are JSON, one a line. Wants are packets of fixed size on a
//! sequenced-packet socket; each is answered by a packet that carries the socket, or an error.
//! Values of secrets are in no JSON: they follow the setup as raw bytes.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::ByteText;
use crate::host::{Host, HostPattern};
use crate::policy::network::{NetworkRule, PathPattern, Protocol, Reason, Rules};

/// Where the gate answers inside: name service, web proxy and SOCKS5.
pub const GATE_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 64, 0, 1);
pub const NAME_PORT: u16 = 53;
pub const PROXY_PORT: u16 = 3128;
pub const SOCKS_PORT: u16 = 1080;
/// Addresses that names have inside: `127.64.0.0/10`, which is local everywhere.
pub const NAMES_FIRST: Ipv4Addr = Ipv4Addr::new(127, 64, 1, 0);
pub const NAMES_LAST: Ipv4Addr = Ipv4Addr::new(127, 127, 255, 254);
/// BOUND: one line of JSON, and the whole setup.
pub const MAX_LINE: usize = 4 << 20;
/// BOUND: the value of a secret.
pub const MAX_SECRET: usize = 64 << 10;

/// The user and group of a gate that root starts: the first id behind those that sandboxes of root have, so that no
/// process in a sandbox can be it. All gates share it, and with it the cache.
pub const GATE_ID: u32 = 0x7001_0000;

/// With what a gate begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    pub rules: Rules,
    #[serde(default)]
    pub mocks: Vec<Mock>,
    #[serde(default)]
    pub secrets: Vec<BoundSecret>,
    /// Hosts whose answers name the hosts that files come from.
    #[serde(default)]
    pub indexes: Vec<Index>,
    /// Where artefacts are kept for other sandboxes; none are where this is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<PathBuf>,
    /// Name servers; those of the host where this is empty.
    #[serde(default)]
    pub name_servers: Vec<SocketAddr>,
    /// A file of certificates (PEM) that are trusted beside those of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roots: Option<PathBuf>,
}

impl Setup {
    /// Whether requests are looked into anywhere; then the inside must trust the gate's authority.
    pub fn looks_inside(&self) -> bool {
        let rule = |rule: &NetworkRule| rule.looks_inside();
        self.rules.0.iter().any(rule)
            || !self.mocks.is_empty()
            || !self.secrets.is_empty()
            || !self.indexes.is_empty()
    }
}

/// A double on the host that answers for a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mock {
    pub host: Host,
    /// Plain HTTP there.
    pub to: SocketAddr,
}

/// A secret, without its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundSecret {
    pub name: String,
    /// What the sandbox has instead: the same shape, no meaning.
    pub placeholder: String,
    pub hosts: Vec<HostPattern>,
    /// Upper case. Empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathPattern>,
    /// `Authorization: Bearer {}`: the header in which it is swapped, and how it stands there.
    pub header: String,
}

/// A package index that the host's own client is configured to use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    pub kind: IndexKind,
    pub host: Host,
    pub port: u16,
    /// Whether artefacts from it may be kept for other sandboxes.
    pub public: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IndexKind {
    /// Python: the simple index, HTML or JSON.
    Simple,
    Npm,
    Cargo,
    Apt,
    Go,
}

/// The value of a secret: cannot be printed or serialised, and is wiped.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(Zeroizing<Vec<u8>>);

impl SecretValue {
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The bytes, for whoever sends them to where they are bound.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretValue(..)")
    }
}

/// Writes a setup and the values of its secrets, in order.
pub fn write_setup(out: &mut dyn Write, setup: &Setup, values: &[SecretValue]) -> io::Result<()> {
    let json = serde_json::to_vec(setup)?;
    write_block(out, &json, MAX_LINE)?;
    for value in values {
        write_block(out, value.expose(), MAX_SECRET)?;
    }
    Ok(())
}

fn write_block(out: &mut dyn Write, bytes: &[u8], most: usize) -> io::Result<()> {
    let length = u32::try_from(bytes.len())
        .ok()
        .filter(|_| bytes.len() <= most)
        .ok_or(io::ErrorKind::FileTooLarge)?;
    out.write_all(&length.to_le_bytes())?;
    out.write_all(bytes)
}

/// Reads a setup and the value of each of its secrets.
pub fn read_setup(from: &mut dyn Read) -> io::Result<(Setup, Vec<SecretValue>)> {
    let setup: Setup = serde_json::from_slice(&read_block(from, MAX_LINE)?)?;
    let values = setup
        .secrets
        .iter()
        .map(|_| read_block(from, MAX_SECRET).map(SecretValue))
        .collect::<io::Result<_>>()?;
    Ok((setup, values))
}

fn read_block(from: &mut dyn Read, most: usize) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > most {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut bytes = Zeroizing::new(vec![0; length]);
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// What the engine says while the sandbox runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Order {
    /// These rules from now on. Connections that they do not allow are closed.
    Rules { rules: Rules },
    /// The host's name servers now: the answer to [`Word::NameServersWanted`].
    NameServers { servers: Vec<SocketAddr> },
    /// Say what is not said yet, then answer `ended` and go.
    End,
}

/// What a gate says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "word", rename_all = "snake_case")]
pub enum Word {
    /// It has its setup, before there is a guest. `authority`: the certificate (PEM) that the inside
    /// must trust, where requests are looked into.
    Ready {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        authority: Option<String>,
    },
    /// The guest gave it its sockets: names, web proxy and SOCKS5 answer.
    Listening,
    /// The host's list of name servers is another file now, which the gate may not read.
    NameServersWanted,
    /// Something for the journal.
    Seen(Traffic),
    /// New rules hold.
    Changed { closed: u64 },
    /// Nothing more will be said.
    Ended,
}

/// How something inside asked for the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// A question to the name service.
    Name,
    /// A connection to an address that a name was given.
    Direct,
    /// The web proxy.
    Proxy,
    Socks,
}

/// One thing that happened at the gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    pub via: Via,
    /// As it was asked for; canonical where it is a host.
    pub host: ByteText,
    /// 0 for names.
    pub port: u16,
    pub protocol: Protocol,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Without the query. HOSTILE: whoever prints it quotes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<ByteText>,
    /// The address that was dialled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    pub result: Happened,
    /// The rule that decided, as written, and where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// How often exactly this happened since it was last said; 1 is left out.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub times: u64,
}

fn one() -> u64 {
    1
}

fn is_one(times: &u64) -> bool {
    *times == 1
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Happened {
    /// It was let through, and is over.
    Allowed {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<u16>,
        sent: u64,
        received: u64,
        duration_ms: u64,
        /// Whether requests were seen, not only bytes.
        inspected: bool,
        /// Names of the secrets that were put in.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        secrets: Vec<String>,
        /// It came out of the cache; nothing was asked upstream.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        cached: bool,
    },
    /// It was refused.
    Denied {
        reason: Reason,
        detail: String,
        /// The rule line that would allow it, where one can.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        allow: Option<String>,
    },
    /// It was allowed, and the other side failed: not there, too slow, a bad certificate.
    Failed { detail: String },
    /// A host sent back a secret; it was taken out of the answer.
    Scrubbed { secret: String, form: String },
    /// A credential that the sandbox sent itself was taken out of a request: only what is bound to
    /// a host is used there.
    Stripped { field: String },
    /// An index named a host that files come from; it may be asked for them now.
    Learned { index: Host },
}

/// A socket that the gate wants from the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    pub kind: SocketKind,
    pub address: Ipv4Addr,
    pub port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketKind {
    /// A listening stream socket.
    Stream,
    Datagram,
}

impl Want {
    pub const BYTES: usize = 7;

    pub fn encode(self) -> [u8; Self::BYTES] {
        let [a, b, c, d] = self.address.octets();
        let [high, low] = self.port.to_be_bytes();
        let kind = match self.kind {
            SocketKind::Stream => 1,
            SocketKind::Datagram => 2,
        };
        [kind, a, b, c, d, high, low]
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let &[kind, a, b, c, d, high, low] = bytes else {
            return None;
        };
        Some(Self {
            kind: match kind {
                1 => SocketKind::Stream,
                2 => SocketKind::Datagram,
                _ => return None,
            },
            address: Ipv4Addr::new(a, b, c, d),
            port: u16::from_be_bytes([high, low]),
        })
    }
}

/// The guest's answer to a [`Want`]: 0 and a descriptor, or the number of an error.
pub const ANSWER_BYTES: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setup_is_read_as_it_was_written() {
        let setup = Setup {
            secrets: vec![BoundSecret {
                name: "T".to_owned(),
                placeholder: "p".to_owned(),
                hosts: vec![HostPattern::parse("a.b").expect("a host")],
                methods: Vec::new(),
                path: None,
                header: "Authorization: Bearer {}".to_owned(),
            }],
            ..Setup::default()
        };
        let value = SecretValue::new(b"hunter2".to_vec());
        let mut bytes = Vec::new();
        write_setup(&mut bytes, &setup, std::slice::from_ref(&value)).expect("it fits");
        let (read, values) = read_setup(&mut bytes.as_slice()).expect("it was written");
        assert_eq!((read, values), (setup, vec![value.clone()]));
        assert!(!format!("{value:?}").contains("hunter2"));
        for cut in 0..bytes.len() {
            assert!(read_setup(&mut &bytes[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn wants_have_one_form() {
        let want = Want {
            kind: SocketKind::Stream,
            address: GATE_ADDRESS,
            port: PROXY_PORT,
        };
        assert_eq!(Want::decode(&want.encode()), Some(want));
        assert_eq!(Want::decode(&[1, 2, 3]), None);
        assert_eq!(Want::decode(&[3, 127, 64, 0, 1, 0, 53]), None);
    }
}
