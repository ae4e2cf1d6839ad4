//! What an image is called, and what says that its bytes are the right ones.
//!
//! References are written as Docker writes them: `python:3.13-slim`, `registry.example:5000/a/b:tag`,
//! `a/b@sha256:…`. A name without a registry is one of the usual registry; without tag and digest it
//! is `latest`.
//!
//! HOSTILE: a repository's `ringfence.toml` may name an image. Nothing is taken that could be an
//! option, a path with `..` or a part of another address.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// BOUND: as the distribution specification has it.
const NAME_BYTES: usize = 255;
const TAG_BYTES: usize = 128;

/// What short names mean.
const USUAL_HOST: &str = "docker.io";
/// Where that registry answers, below its name.
const USUAL_ENDPOINT: &str = "registry-1";
/// What credentials call it, below its name.
const USUAL_INDEX: &str = "index";
/// What stands before a short name of one part.
const USUAL_OWNER: &str = "library";
const USUAL_TAG: &str = "latest";

/// The SHA-256 of some bytes, written `sha256:` and 64 lower-case digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

/// Why a text is no digest, or no reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageNameError {
    #[error("`{0}` is not a digest: `sha256:` and 64 digits of `0-9a-f`")]
    Digest(String),
    #[error("`{text}` is not the name of an image: {why}")]
    Reference { text: String, why: &'static str },
}

impl Digest {
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub fn bytes(&self) -> [u8; 32] {
        self.0
    }

    /// The 64 digits, for names of files.
    pub fn hex(&self) -> String {
        crate::hex(&self.0)
    }
}

impl FromStr for Digest {
    type Err = ImageNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || ImageNameError::Digest(short(text));
        let hex = text.strip_prefix("sha256:").ok_or_else(bad)?.as_bytes();
        let mut bytes = [0; 32];
        if hex.len() != 64 {
            return Err(bad());
        }
        for (byte, pair) in bytes.iter_mut().zip(hex.chunks(2)) {
            let digit = |c: u8| match c {
                b'0'..=b'9' => Some(c - b'0'),
                b'a'..=b'f' => Some(c - b'a' + 10),
                _ => None,
            };
            *byte = digit(pair[0]).ok_or_else(bad)? << 4 | digit(pair[1]).ok_or_else(bad)?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// The name of an image, whole: nothing is left to be guessed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reference {
    host: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl Reference {
    /// The registry as it is written and as credentials know it: `docker.io`, `registry.example:5000`.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Where the registry answers.
    pub fn endpoint(&self) -> String {
        match self.host.as_str() {
            USUAL_HOST => format!("{USUAL_ENDPOINT}.{USUAL_HOST}"),
            host => host.to_owned(),
        }
    }

    /// `library/python`.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    pub fn digest(&self) -> Option<Digest> {
        self.digest
    }

    /// What a registry is asked for: the digest where there is one, else the tag.
    pub fn version(&self) -> String {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(tag)) => tag.clone(),
            (None, None) => USUAL_TAG.to_owned(),
        }
    }

    /// As a person would write it.
    pub fn familiar(&self) -> String {
        let text = self.to_string();
        let usual = text.strip_prefix(USUAL_HOST);
        let Some(rest) = usual.and_then(|rest| rest.strip_prefix('/')) else {
            return text;
        };
        match rest.strip_prefix("library/") {
            // `library/a/b` would mean another image without its first part.
            Some(name) if !name.contains('/') => name.to_owned(),
            _ => rest.to_owned(),
        }
    }
}

/// The whole name, which reads back as the same reference.
impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl FromStr for Reference {
    type Err = ImageNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = |why| ImageNameError::Reference {
            text: short(text),
            why,
        };
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest.parse()?)),
            None => (text, None),
        };
        // A colon after the last slash begins a tag; one before it, a port.
        let tag_at = rest
            .rfind(':')
            .filter(|at| !rest[*at..].contains('/'))
            .unwrap_or(rest.len());
        let (name, tag) = rest.split_at(tag_at);
        let tag = match tag.strip_prefix(':') {
            Some(tag) if is_tag(tag) => Some(tag.to_owned()),
            Some(_) => return Err(bad("its tag has letters, digits, `_`, `.` and `-`")),
            None => None,
        };
        let (host, path) = match name.split_once('/') {
            Some((host, path)) if is_host_like(host) => (host.to_ascii_lowercase(), path),
            _ => (USUAL_HOST.to_owned(), name),
        };
        if !is_host(&host) {
            return Err(bad("its registry is a host, and perhaps a port"));
        }
        if !path.split('/').all(is_part) {
            return Err(bad(
                "its parts have small letters and digits, with `.`, `_`, `__` or `-` between them",
            ));
        }
        // Its other names.
        let host = usual_name(&host).to_owned();
        let repository = if host == USUAL_HOST && !path.contains('/') {
            format!("{USUAL_OWNER}/{path}")
        } else {
            path.to_owned()
        };
        if host.len() + 1 + repository.len() > NAME_BYTES {
            return Err(bad("it is too long"));
        }
        Ok(Self {
            host,
            repository,
            tag: match (tag, digest) {
                (None, None) => Some(USUAL_TAG.to_owned()),
                (tag, _) => tag,
            },
            digest,
        })
    }
}

/// The one name of a registry that has several.
pub fn usual_name(host: &str) -> &str {
    let below = host.strip_suffix(USUAL_HOST);
    match below.and_then(|below| below.strip_suffix('.')) {
        Some(USUAL_ENDPOINT | USUAL_INDEX) => USUAL_HOST,
        _ => host,
    }
}

/// The one name of a registry that is written as `host` or `host:port`.
pub fn registry_name(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    is_host(&lower).then(|| usual_name(&lower).to_owned())
}

/// What a helper program for credentials calls a registry.
pub fn name_for_helpers(host: &str) -> String {
    match host {
        USUAL_HOST => format!("https://{USUAL_INDEX}.{USUAL_HOST}/v1/"),
        host => host.to_owned(),
    }
}

/// Whether the first part of a name is a host and not a part of the path.
fn is_host_like(text: &str) -> bool {
    text.contains(['.', ':', '['])
        || text == "localhost"
        || text.contains(|c: char| c.is_ascii_uppercase())
}

fn is_host(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[') {
        // An address of IPv6, in brackets.
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) => {
                if address.parse::<std::net::Ipv6Addr>().is_err() {
                    return false;
                }
                (
                    "six",
                    port.strip_prefix(':').or(port.is_empty().then_some("1")),
                )
            }
            None => return false,
        },
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, Some("1")),
        },
    };
    let label = |label: &str| {
        !label.is_empty()
            && label
                .bytes()
                .all(|c| c.is_ascii_alphanumeric() || c == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let digits = |port: &str| port.bytes().all(|c| c.is_ascii_digit());
    host.split('.').all(label)
        && port.is_some_and(|port| digits(port) && port.parse::<u16>().is_ok_and(|port| port != 0))
}

/// `[a-z0-9]+` with `.`, `_`, `__` or any number of `-` in between.
fn is_part(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    if !inner(*first) || !inner(*last) {
        return false;
    }
    let mut separators = text.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    separators.all(|s| matches!(s, "" | "." | "_" | "__") || s.bytes().all(|c| c == b'-'))
}

fn is_tag(text: &str) -> bool {
    let word = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
    text.len() <= TAG_BYTES
        && text.bytes().next().is_some_and(word)
        && text.bytes().all(|c| word(c) || c == b'.' || c == b'-')
}

/// HOSTILE: a text for a message, bounded and without what moves a cursor.
fn short(text: &str) -> String {
    text.chars()
        .map(|c| if crate::text::misleads(c) { '?' } else { c })
        .take(120)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn references_are_what_docker_takes_them_for() {
        let pinned = format!("a/b@sha256:{HEX}");
        let both = format!("registry.example:5000/a/b:c@sha256:{HEX}");
        for (text, whole, familiar, version) in [
            (
                "python",
                "USUAL/library/python:latest",
                "python:latest",
                "latest",
            ),
            (
                "python:3.13-slim",
                "USUAL/library/python:3.13-slim",
                "python:3.13-slim",
                "3.13-slim",
            ),
            ("a/b:c", "USUAL/a/b:c", "a/b:c", "c"),
            (
                "index.USUAL/a/b",
                "USUAL/a/b:latest",
                "a/b:latest",
                "latest",
            ),
            ("USUAL/a", "USUAL/library/a:latest", "a:latest", "latest"),
            (
                "localhost/a",
                "localhost/a:latest",
                "localhost/a:latest",
                "latest",
            ),
            (
                "LOCALHOST/a",
                "localhost/a:latest",
                "localhost/a:latest",
                "latest",
            ),
            (
                "127.0.0.1:5000/a/b/c:d",
                "127.0.0.1:5000/a/b/c:d",
                "127.0.0.1:5000/a/b/c:d",
                "d",
            ),
            (
                "[::1]:5000/a",
                "[::1]:5000/a:latest",
                "[::1]:5000/a:latest",
                "latest",
            ),
            (
                "registry.example/a__b.c-d_e---f",
                "registry.example/a__b.c-d_e---f:latest",
                "registry.example/a__b.c-d_e---f:latest",
                "latest",
            ),
            (
                "library/a/b",
                "USUAL/library/a/b:latest",
                "library/a/b:latest",
                "latest",
            ),
        ] {
            let text = text.replace("USUAL", USUAL_HOST);
            let reference: Reference = text.parse().unwrap();
            assert_eq!(reference.to_string(), whole.replace("USUAL", USUAL_HOST));
            assert_eq!(reference.familiar(), familiar);
            assert_eq!(reference.version(), version);
            assert_eq!(familiar.parse::<Reference>().unwrap(), reference);
        }
        for text in [pinned, both] {
            let reference: Reference = text.parse().unwrap();
            assert_eq!(reference.version(), format!("sha256:{HEX}"));
            assert_eq!(reference.familiar(), text);
        }
        let usual: Reference = "a".parse().unwrap();
        assert_ne!(usual.endpoint(), usual.host());
        assert_eq!(usual_name(&usual.endpoint()), usual.host());
        assert_eq!(usual_name("registry.example"), "registry.example");
        assert!(name_for_helpers(usual.host()).ends_with("/v1/"));
        assert_eq!(usual.repository(), "library/a");
    }

    #[test]
    fn what_is_no_reference_is_refused() {
        for text in [
            "",
            "-a",
            "--privileged",
            "a b",
            "a:",
            ":a",
            "a:b:c",
            "A",
            "a/B",
            "a//b",
            "/a",
            "a/",
            "a/../b",
            "..",
            ".",
            "a:-b",
            "a@",
            "a@sha256:12",
            "a@md5:12",
            "a@b@c",
            "a\n",
            "a\0",
            "http://a/b",
            "a.b:x/c",
            "a.b:0/c",
            "a.b:65536/c",
            "-a.b/c",
            "a..b/c",
            "[::1/a",
            "[x]:1/a",
            "[::1]x/a",
            "a___b",
            "a._b",
            "é",
            "user@host/a",
            "a?b",
            "a#b",
            "a%2fb",
        ] {
            assert!(text.parse::<Reference>().is_err(), "{text:?}");
        }
        let long = "a/".repeat(200) + "b";
        assert!(long.parse::<Reference>().is_err());
        assert!(
            format!("a:{}", "t".repeat(129))
                .parse::<Reference>()
                .is_err()
        );
        assert!(
            format!("a@sha256:{}", HEX.to_uppercase())
                .parse::<Reference>()
                .is_err()
        );
        let error = "a\u{1b}[2J".parse::<Reference>().unwrap_err().to_string();
        assert!(!error.contains('\u{1b}'), "{error:?}");
    }

    #[test]
    fn a_digest_reads_back() {
        let digest: Digest = format!("sha256:{HEX}").parse().unwrap();
        assert_eq!(digest.hex(), HEX);
        assert_eq!(digest, Digest::from_bytes(digest.0));
        let json = serde_json::to_string(&digest).unwrap();
        assert_eq!(serde_json::from_str::<Digest>(&json).unwrap(), digest);
    }

    proptest! {
        #[test]
        fn any_text_reads_back_or_is_refused(text in "[a-zA-Z0-9._:/@\\[\\]-]{0,40}|.{0,20}") {
            if let Ok(reference) = text.parse::<Reference>() {
                prop_assert_eq!(&reference.to_string().parse::<Reference>().unwrap(), &reference);
                prop_assert_eq!(&reference.familiar().parse::<Reference>().unwrap(), &reference);
                for part in [reference.host(), reference.repository(), &reference.version()] {
                    let harmless = |c: char| c.is_ascii_alphanumeric() || "._:-/[]".contains(c);
                    prop_assert!(part.chars().all(harmless));
                    prop_assert!(!part.contains("..") || part.contains("::") || part == reference.version());
                    prop_assert!(!part.starts_with('-') && !part.contains("//"));
                }
            }
        }

        #[test]
        fn well_made_names_are_taken(
            host in "([a-z0-9]{1,5}\\.){1,2}[a-z]{1,5}(:[1-9][0-9]{0,3})?",
            path in "[a-z0-9]{1,4}([._-][a-z0-9]{1,4}){0,2}(/[a-z0-9]{1,4}){0,2}",
            tag in "[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,9}",
        ) {
            let reference: Reference = format!("{host}/{path}:{tag}").parse().unwrap();
            prop_assert_eq!(reference.version(), tag);
        }
    }
}
