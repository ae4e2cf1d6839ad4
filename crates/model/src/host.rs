//! A host as one canonical value: what a rule is matched against is what is looked up and dialled.
//!
//! There is exactly one way to write a host here. What a resolver might read differently (`127.1`,
//! `0x7f.1`, full-width digits, a NUL in the middle) is no host at all.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// BOUND: the longest name that the name service has.
const MAX_NAME: usize = 253;
/// BOUND: the longest label of a name.
const MAX_LABEL: usize = 63;

/// A name or an address, canonical.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// Lower case, letters, digits, hyphens and underscores, no dot at the end.
    Name(String),
    Address(IpAddr),
}

/// What is no host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    #[error("it is empty")]
    Empty,
    #[error("it is longer than {MAX_NAME} bytes")]
    TooLong,
    #[error("it has an empty label, or one of more than {MAX_LABEL} bytes")]
    Label,
    #[error("it has a character that no host name has")]
    Character,
    #[error("it reads as an address to some programs and as a name to others")]
    Ambiguous,
}

impl Host {
    /// Reads a host as it stands in a URL or a request: a name, an IPv4 address with four decimal
    /// parts, or an IPv6 address, in brackets or not.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or(HostError::Character)?;
            return Ipv6Addr::from_str(inner)
                .map(|address| Self::address(IpAddr::V6(address)))
                .map_err(|_| HostError::Character);
        }
        // The standard library takes four decimal parts without leading zeros, and nothing else.
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::address(address));
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        if name.is_empty() {
            return Err(HostError::Empty);
        }
        if name.len() > MAX_NAME {
            return Err(HostError::TooLong);
        }
        for label in name.split('.') {
            if label.is_empty() || label.len() > MAX_LABEL {
                return Err(HostError::Label);
            }
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            if !label.bytes().all(plain) || label.starts_with('-') || label.ends_with('-') {
                return Err(HostError::Character);
            }
        }
        // `127.1`, `2130706433`, `0x7f.0.0.1`: addresses to `inet_aton`, names to others.
        let last = name.rsplit('.').next().unwrap_or(name);
        let number = last.bytes().all(|byte| byte.is_ascii_digit());
        let prefix = last
            .get(..2)
            .is_some_and(|two| two.eq_ignore_ascii_case("0x"));
        let hexadecimal = prefix && last.bytes().skip(2).all(|byte| byte.is_ascii_hexdigit());
        if number || hexadecimal {
            return Err(HostError::Ambiguous);
        }
        Ok(Self::Name(name.to_ascii_lowercase()))
    }

    /// An address; one that carries an IPv4 address inside is that one.
    pub fn address(address: IpAddr) -> Self {
        Self::Address(plain_address(address))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

impl Serialize for Host {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Host {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// The address that is really meant: IPv4 inside IPv6 (mapped, compatible, translated, NAT64, 6to4)
/// is unpacked.
pub fn plain_address(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else {
        return address;
    };
    let s = v6.segments();
    let v4 = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        IpAddr::V4(Ipv4Addr::new(a, b, c, d))
    };
    match s {
        [0, 0, 0, 0, 0, 0xffff, high, low] => v4(high, low),
        // `::` and `::1` are addresses of their own.
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 || low > 1 => v4(high, low),
        [0, 0, 0, 0, 0xffff, 0, high, low] => v4(high, low),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low),
        [0x2002, high, low, ..] => v4(high, low),
        _ => address,
    }
}

/// Where an address leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// The open network.
    Public,
    /// A network of an organisation or a home.
    Private,
    /// This machine, its neighbours on the wire, everybody, or the services that a cloud offers to
    /// its own machines.
    Local,
}

impl Reach {
    /// Where a plain address leads. Ranges for documentation count as public: some networks use
    /// them for what they offer.
    pub fn of(address: IpAddr) -> Self {
        match plain_address(address) {
            IpAddr::V4(address) => Self::of_v4(address),
            IpAddr::V6(address) => Self::of_v6(address),
        }
    }

    fn of_v4(address: Ipv4Addr) -> Self {
        let o = address.octets();
        let local = address.is_loopback()
            || address.is_link_local()
            || address.is_multicast()
            || address.is_broadcast()
            || o[0] == 0
            // Reserved for later: nobody answers there but what a host put there itself.
            || o[0] >= 240
            // Metadata services of clouds that are not on the link.
            || matches!(o, [100, 100, 100, 200] | [168, 63, 129, 16] | [192, 0, 0, 192]);
        let shared = o[0] == 100 && (64..128).contains(&o[1]);
        let protocol = o[0] == 192 && o[1] == 0 && o[2] == 0;
        let bench = o[0] == 198 && (18..20).contains(&o[1]);
        if local {
            Self::Local
        } else if address.is_private() || shared || protocol || bench {
            Self::Private
        } else {
            Self::Public
        }
    }

    fn of_v6(address: Ipv6Addr) -> Self {
        let s = address.segments();
        let metadata =
            s == [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254] || s == [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254];
        let link = s[0] & 0xffc0 == 0xfe80;
        let multicast = s[0] & 0xff00 == 0xff00;
        if address.is_loopback() || address.is_unspecified() || link || multicast || metadata {
            return Self::Local;
        }
        let unique = s[0] & 0xfe00 == 0xfc00;
        let site = s[0] & 0xffc0 == 0xfec0;
        // Local translation, Teredo and discard: what they lead to cannot be told here.
        let translated = s[..3] == [0x64, 0xff9b, 1] || s[..2] == [0x2001, 0] || s[0] == 0x100;
        if unique || site || translated {
            Self::Private
        } else {
            Self::Public
        }
    }
}

/// Hosts that a rule names: one, or all names below one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum HostPattern {
    Exact(Host),
    /// `*.example.com`: any name below, however deep, not the name itself.
    Below(String),
    /// `*`: every name. No address is a name.
    AnyName,
}

impl HostPattern {
    pub fn parse(text: &str) -> Result<Self, HostError> {
        if text == "*" {
            return Ok(Self::AnyName);
        }
        let Some(parent) = text.strip_prefix("*.") else {
            return Host::parse(text).map(Self::Exact);
        };
        match Host::parse(parent)? {
            Host::Name(name) => Ok(Self::Below(name)),
            Host::Address(_) => Err(HostError::Ambiguous),
        }
    }

    pub fn matches(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Exact(own), host) => own == host,
            (Self::Below(parent), Host::Name(name)) => name
                .strip_suffix(parent.as_str())
                .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
            (Self::AnyName, Host::Name(_)) => true,
            (_, Host::Address(_)) => false,
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(host) => host.fmt(f),
            Self::Below(name) => write!(f, "*.{name}"),
            Self::AnyName => f.write_str("*"),
        }
    }
}

impl From<HostPattern> for String {
    fn from(pattern: HostPattern) -> Self {
        pattern.to_string()
    }
}

impl TryFrom<String> for HostPattern {
    type Error = HostError;

    fn try_from(text: String) -> Result<Self, HostError> {
        Self::parse(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_one_spelling() {
        for (text, canonical) in [
            ("Example.COM", "example.com"),
            ("example.com.", "example.com"),
            ("a-b_c.d", "a-b_c.d"),
            ("localhost", "localhost"),
            ("1.2.3.4", "1.2.3.4"),
            ("[::1]", "[::1]"),
            ("::ffff:127.0.0.1", "127.0.0.1"),
            ("[::7f00:1]", "127.0.0.1"),
            ("64:ff9b::a9fe:a9fe", "169.254.169.254"),
            ("2002:7f00:1::", "127.0.0.1"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("3com.com", "3com.com"),
        ] {
            assert_eq!(
                Host::parse(text).map(|host| host.to_string()),
                Ok(canonical.to_owned()),
                "{text}"
            );
        }
    }

    #[test]
    fn what_may_be_read_in_two_ways_is_no_host() {
        for text in [
            "",
            ".",
            "..",
            "a..b",
            ".a",
            "127.1",
            "2130706433",
            "0x7f000001",
            "0x7f.0.0.1",
            "0177.0.0.1",
            "1.2.3.4.",
            "example.123",
            "example.0x",
            "①②⑦.0.0.1",
            "ⓛocalhost",
            "a b",
            "a\tb",
            "a\0.b",
            "a@b",
            "a#b",
            "a%62",
            "a/b",
            "a:80",
            "a\r\nb",
            "-a.b",
            "a-.b",
            "[::1",
            "[1.2.3.4]",
            "::1%lo",
            "[::1%25lo]",
            "*.a",
        ] {
            assert!(Host::parse(text).is_err(), "{text:?}");
        }
        assert!(Host::parse(&"a.".repeat(200)).is_err());
        assert!(Host::parse(&"a".repeat(64)).is_err());
    }

    #[test]
    fn only_whole_labels_match() {
        let below = HostPattern::parse("*.allowed.com").expect("a pattern");
        let exact = HostPattern::parse("allowed.com").expect("a pattern");
        for (host, is_below, is_exact) in [
            ("a.allowed.com", true, false),
            ("a.b.ALLOWED.com", true, false),
            ("allowed.com", false, true),
            ("notallowed.com", false, false),
            ("x.notallowed.com", false, false),
            ("allowed.com.evil.example", false, false),
            ("allowed.community", false, false),
            ("1.2.3.4", false, false),
        ] {
            let host = Host::parse(host).expect("a host");
            assert_eq!(below.matches(&host), is_below, "{host}");
            assert_eq!(exact.matches(&host), is_exact, "{host}");
        }
    }

    #[test]
    fn what_is_not_the_open_network_is_told() {
        for (text, reach) in [
            ("1.1.1.1", Reach::Public),
            ("203.0.113.80", Reach::Public),
            ("127.0.0.1", Reach::Local),
            ("0.0.0.0", Reach::Local),
            ("169.254.169.254", Reach::Local),
            ("100.100.100.200", Reach::Local),
            ("168.63.129.16", Reach::Local),
            ("192.0.0.192", Reach::Local),
            ("255.255.255.255", Reach::Local),
            ("224.0.0.1", Reach::Local),
            ("10.0.0.1", Reach::Private),
            ("172.31.255.255", Reach::Private),
            ("192.168.1.1", Reach::Private),
            ("100.64.0.1", Reach::Private),
            ("::1", Reach::Local),
            ("::", Reach::Local),
            ("::ffff:10.0.0.1", Reach::Private),
            ("::ffff:127.0.0.1", Reach::Local),
            ("64:ff9b::7f00:1", Reach::Local),
            ("64:ff9b:1::1", Reach::Private),
            ("2002:a00:1::", Reach::Private),
            ("fe80::1", Reach::Local),
            ("ff02::1", Reach::Local),
            ("fd00:ec2::254", Reach::Local),
            ("fd12::1", Reach::Private),
            ("2606:4700::1111", Reach::Public),
        ] {
            let address = text.parse().expect("an address");
            assert_eq!(Reach::of(address), reach, "{text}");
        }
    }
}
