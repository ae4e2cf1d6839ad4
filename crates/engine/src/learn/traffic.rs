//! What a gate saw, as questions that rules can be asked.

use std::fmt;
use std::net::IpAddr;

use ringfence_model::ByteText;
use ringfence_model::gate::{Happened, Traffic, Via};
use ringfence_model::host::{Host, Reach};
use ringfence_model::policy::network::{
    Effect, NetworkRule, Origin, Protocol, Reason, RequestPath,
};

/// One line of the journal.
#[derive(Clone, Debug)]
pub(super) struct Traced {
    pub ask: Ask,
    pub end: End,
    /// The rule that decided, where it was written.
    pub from: Option<String>,
    pub address: Option<IpAddr>,
    pub times: u64,
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Request {
        host: Host,
        port: u16,
        method: String,
        path: RequestPath,
    },
    /// Bytes that were not looked at.
    Connection {
        host: Host,
        port: u16,
        protocol: Protocol,
    },
    /// A question to the name service.
    Name(Host),
    /// What no rule can be about.
    Other(ByteText),
}

/// What came of it.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// It went through, or would have if somebody had answered.
    Passed { secrets: Vec<String> },
    Denied {
        reason: Reason,
        allow: Option<String>,
    },
    /// An index named this host.
    Learned { index: Host },
    /// No question of rules.
    Aside,
}

impl Traced {
    pub fn of(traffic: Traffic) -> Self {
        let ask = ask(&traffic);
        // Of a connection whose requests are looked at, those count.
        let looks = |rule: &String| {
            let rule = NetworkRule::parse(Effect::Allow, rule, Origin::default());
            rule.is_ok_and(|rule| rule.looks_inside())
        };
        let unseen = traffic.method.is_none() && traffic.rule.as_ref().is_some_and(looks);
        let end = match traffic.result {
            Happened::Allowed { inspected, .. } if inspected && traffic.method.is_none() => {
                End::Aside
            }
            Happened::Allowed { .. } | Happened::Failed { .. } if unseen => End::Aside,
            Happened::Allowed { secrets, .. } => End::Passed { secrets },
            Happened::Failed { .. } => End::Passed {
                secrets: Vec::new(),
            },
            Happened::Denied { reason, allow, .. } => End::Denied { reason, allow },
            Happened::Learned { index } => End::Learned { index },
            Happened::Scrubbed { .. } | Happened::Stripped { .. } => End::Aside,
        };
        Self {
            ask,
            end,
            from: traffic.from,
            address: traffic.address,
            times: traffic.times.max(1),
        }
    }

    /// Whether something on this machine answered instead of the host.
    pub fn was_doubled(&self) -> bool {
        self.from.as_deref() == Some("mock")
            || self
                .address
                .is_some_and(|address| Reach::of(address) == Reach::Local)
    }
}

impl Ask {
    pub fn host(&self) -> Option<&Host> {
        match self {
            Self::Request { host, .. } | Self::Connection { host, .. } | Self::Name(host) => {
                Some(host)
            }
            Self::Other(_) => None,
        }
    }

    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Request { port, .. } | Self::Connection { port, .. } => Some(*port),
            Self::Name(_) | Self::Other(_) => None,
        }
    }
}

/// As a person reads it. Hosts and paths have no characters that mislead.
impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request {
                host,
                port,
                method,
                path,
            } => {
                // HOSTILE: a method is any word.
                let method: String = method.escape_default().take(32).collect();
                write!(f, "{method} {host}:{port}{}", path.as_str())
            }
            Self::Connection {
                host,
                port,
                protocol: Protocol::Tcp,
            } => write!(f, "tcp {host}:{port}"),
            Self::Connection { host, port, .. } => write!(f, "{host}:{port}"),
            Self::Name(host) => host.fmt(f),
            Self::Other(asked) => {
                let text: String = asked.to_text().escape_default().take(100).collect();
                write!(f, "`{text}`")
            }
        }
    }
}

fn ask(traffic: &Traffic) -> Ask {
    let other = || Ask::Other(traffic.host.clone());
    let text = std::str::from_utf8(traffic.host.as_bytes());
    let Some(host) = text.ok().and_then(|text| Host::parse(text).ok()) else {
        return other();
    };
    let port = traffic.port;
    match (traffic.via, &traffic.method, &traffic.path) {
        (Via::Name, ..) => Ask::Name(host),
        (_, Some(method), Some(path)) => {
            let path = std::str::from_utf8(path.as_bytes());
            match path.ok().and_then(RequestPath::parse) {
                Some(path) => Ask::Request {
                    host,
                    port,
                    method: method.clone(),
                    path,
                },
                None => other(),
            }
        }
        _ if port == 0 => Ask::Name(host),
        _ => Ask::Connection {
            host,
            port,
            protocol: traffic.protocol,
        },
    }
}
