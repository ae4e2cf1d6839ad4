//! Paths of requests, and the patterns that rules have of them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::RuleError;

/// BOUND: bytes of a path pattern.
const MAX_PATTERN: usize = 1024;

/// A pattern of paths: segments, `*` for a part of one, `**` for any number of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PathPattern(String);

impl PathPattern {
    pub fn parse(text: &str) -> Result<Self, RuleError> {
        let bad = || RuleError::Path(text.to_owned());
        // A pattern is read as requests are: what no request can be never matches.
        let plain = RequestPath::plain(text).ok_or_else(bad)?;
        let whole = |segment: &str| !segment.contains("**") || segment == "**";
        if text.len() > MAX_PATTERN || text.contains('?') || !text.split('/').all(whole) {
            return Err(bad());
        }
        Ok(Self(plain))
    }

    /// Whether all that the other one matches is surely matched by this one. `false` says nothing.
    pub fn covers(&self, other: &Self) -> bool {
        covers_segments(&self.0, &other.0)
    }

    pub fn matches(&self, path: &RequestPath) -> bool {
        let pattern: Vec<&str> = self.0.split('/').collect();
        let path: Vec<&str> = path.0.split('/').collect();
        matches_by(
            &pattern,
            &path,
            |segment| *segment == "**",
            |own, other| {
                let own: Vec<char> = own.chars().collect();
                let other: Vec<char> = other.chars().collect();
                matches_by(&own, &other, |c| *c == '*', |a, b| a == b)
            },
        )
    }
}

/// Whether all that the inner list of segments matches is surely matched by the outer one. `false`
/// says nothing.
pub(in crate::policy) fn covers_segments(outer: &str, inner: &str) -> bool {
    let outer: Vec<&str> = outer.split('/').collect();
    let inner: Vec<&str> = inner.split('/').collect();
    matches_by(
        &outer,
        &inner,
        |segment| *segment == "**",
        |own, other| {
            // Any number of segments is more than one segment can be.
            if *other == "**" {
                return false;
            }
            let own: Vec<char> = own.chars().collect();
            let other: Vec<char> = other.chars().collect();
            matches_by(&own, &other, |c| *c == '*', |a, b| a == b)
        },
    )
}

/// Matches a list with wildcards that stand for any number of items, without recursion.
fn matches_by<T>(
    pattern: &[T],
    items: &[T],
    any: impl Fn(&T) -> bool,
    same: impl Fn(&T, &T) -> bool,
) -> bool {
    let (mut at, mut next) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    while next < items.len() {
        if pattern.get(at).is_some_and(&any) {
            back = Some((at, next));
            at += 1;
        } else if pattern.get(at).is_some_and(|own| same(own, &items[next])) {
            at += 1;
            next += 1;
        } else if let Some((star, taken)) = back {
            back = Some((star, taken + 1));
            at = star + 1;
            next = taken + 1;
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(any)
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<PathPattern> for String {
    fn from(pattern: PathPattern) -> Self {
        pattern.0
    }
}

impl TryFrom<String> for PathPattern {
    type Error = RuleError;

    fn try_from(text: String) -> Result<Self, RuleError> {
        Self::parse(&text)
    }
}

/// The path of a request that no server reads as another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestPath(String);

impl RequestPath {
    /// Takes the part before `?` of a request's target. `None`: it begins with no slash, has dot
    /// segments, a backslash, a control character, or what hides one of these behind a `%`.
    pub fn parse(target: &str) -> Option<Self> {
        // A star is a wildcard in patterns only.
        Self::plain(target).map(|plain| Self(plain.replace('*', "%2A")))
    }

    fn plain(target: &str) -> Option<String> {
        let path = target.split(['?', '#']).next().unwrap_or(target);
        if !path.starts_with('/') || !path.bytes().all(|byte| (0x21..0x7f).contains(&byte)) {
            return None;
        }
        let mut plain = String::with_capacity(path.len());
        let mut rest = path;
        while let Some(at) = rest.find('%') {
            plain.push_str(&rest[..at]);
            let code = rest.get(at + 1..at + 3)?;
            let byte = u8::from_str_radix(code, 16).ok()?;
            match byte {
                b'/' | b'\\' | b'%' | 0..0x20 | 0x7f => return None,
                b'.' | b'-' | b'_' | b'~' => plain.push(char::from(byte)),
                byte if byte.is_ascii_alphanumeric() => plain.push(char::from(byte)),
                _ => {
                    plain.push('%');
                    plain.push_str(&code.to_ascii_uppercase());
                }
            }
            rest = &rest[at + 3..];
        }
        plain.push_str(rest);
        // `/..;x/` is `/../` to some servers.
        let dots = |segment: &str| matches!(segment.split(';').next(), Some("." | ".."));
        let odd = plain.contains('\\') || plain.contains("//") || plain.split('/').any(dots);
        (!odd).then_some(plain)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}
