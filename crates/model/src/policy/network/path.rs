//! Paths of requests, and the patterns that rules have of them.

use std::borrow::Cow;
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
        covers_segments(&self.0, &other.0) && covers_segments(&split(&self.0), &split(&other.0))
    }

    /// Whether the pattern matches however a server reads the path: a `%2F` is a slash to some of
    /// them, and a part of a name to others.
    pub fn matches(&self, path: &RequestPath) -> bool {
        matches_segments(&self.0, &path.0) && matches_segments(&split(&self.0), &split(&path.0))
    }

    /// Whether it matches as some server reads the path. What denies must ask so.
    pub fn may_match(&self, path: &RequestPath) -> bool {
        let patterns = [Cow::Borrowed(self.0.as_str()), split(&self.0)];
        let paths = [Cow::Borrowed(path.0.as_str()), split(&path.0)];
        patterns
            .iter()
            .any(|pattern| paths.iter().any(|path| matches_segments(pattern, path)))
    }
}

/// As those read it to whom a `%2F` is a slash.
fn split(plain: &str) -> Cow<'_, str> {
    if plain.contains("%2F") {
        Cow::Owned(plain.replace("%2F", "/"))
    } else {
        Cow::Borrowed(plain)
    }
}

fn matches_segments(pattern: &str, path: &str) -> bool {
    let pattern: Vec<&str> = pattern.split('/').collect();
    let path: Vec<&str> = path.split('/').collect();
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

/// The path of a request that no server reads as another one, but for a `%2F` (packages have names
/// with a slash in them): rules look at both readings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestPath(String);

impl RequestPath {
    /// Takes the part before `?` of a request's target. `None`: it begins with no slash, has dot
    /// segments, a backslash, a control character, or what hides one of these behind a `%`, in
    /// either reading.
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
                b'\\' | b'%' | 0..0x20 | 0x7f => return None,
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
        let both = split(&plain);
        let odd = plain.contains('\\') || both.contains("//") || both.split('/').any(dots);
        let odd = odd || plain.split('/').any(dots);
        (!odd).then_some(plain)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}
