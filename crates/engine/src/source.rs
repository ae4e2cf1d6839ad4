//! What a user typed to say where code comes from: a folder of this host or a git address.
//!
//! An existing path wins. Otherwise it must be an address that git fetches by itself: `https`,
//! `http`, `ssh`, `git` or `file`, or the short form `user@host:path`. Whatever would have git start
//! another program (`ext::`, `helper::address`) or read an option (`-x`) is refused.
//!
//! INVARIANT: a [`Source`] holds no secret. User and password of an http address are taken out here
//! and live in memory only.

mod server;

use std::fmt;
use std::path::{Path, PathBuf};

use ringfence_model::ByteText;

pub use server::{Scheme, Server};

/// BOUND: addresses are typed or pasted; git's own helpers take no longer line.
const MAX_BYTES: usize = 4096;
const SCHEMES: [&str; 5] = ["https", "http", "ssh", "git", "file"];

/// Where code comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A git address without credentials.
    Url(String),
    /// An absolute path, every link resolved.
    Path(PathBuf),
}

impl Source {
    /// One text for each source: an address, or a path that begins with `/`.
    pub fn text(&self) -> String {
        match self {
            Self::Url(url) => url.clone(),
            Self::Path(path) => ByteText::from(path.as_os_str().as_encoded_bytes()).to_text(),
        }
    }

    /// Whether it is on this host.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Url(url) => url.starts_with("file:"),
            Self::Path(_) => true,
        }
    }

    /// Where it is on this host, links resolved; absent for what is elsewhere, or not there.
    pub(crate) fn local_path(&self) -> Option<PathBuf> {
        let path = match self {
            Self::Path(path) => path.clone(),
            // Whatever host a `file` address names, git reads it here.
            Self::Url(url) => {
                let rest = url.strip_prefix("file://")?;
                PathBuf::from(&rest[rest.find('/')?..])
            }
        };
        Some(path.canonicalize().unwrap_or(path))
    }

    /// `scheme://host:port` of an http address: what a credential is good for.
    pub(crate) fn http_origin(&self) -> Option<&str> {
        let Self::Url(url) = self else { return None };
        let rest = url
            .strip_prefix("https://")
            .or_else(|| url.strip_prefix("http://"))?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        Some(&url[..url.len() - rest.len() + end])
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

/// User and password of an address. Never written anywhere.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// As they stood in the address, so that they can be found in what git says.
    raw: String,
    pub(crate) user: String,
    pub(crate) password: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(…)")
    }
}

impl Credentials {
    /// A text with everything secret replaced.
    pub(crate) fn redact(&self, text: &str) -> String {
        let mut out = text.to_owned();
        let raw = self.raw.split_once(':');
        let mut secrets = vec![self.raw.as_str()];
        match (&self.password, raw) {
            (Some(password), Some((_, raw))) => secrets.extend([password.as_str(), raw]),
            // A token may stand alone, in the place of the user.
            _ => secrets.push(&self.user),
        }
        for secret in secrets {
            if !secret.is_empty() {
                out = out.replace(secret, "…");
            }
        }
        out
    }
}

/// A source with what is needed to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Typed {
    pub source: Source,
    pub credentials: Option<Credentials>,
    pub dial: Dial,
}

/// How git connects to a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Dial {
    /// The user named it.
    #[default]
    AsTyped,
    /// HOSTILE: a repository names it. No redirect is followed.
    Submodule {
        /// The addresses of its host that were checked, as `http.curloptResolve` has them.
        pin: Option<String>,
    },
}

/// Why a text names no source. What was typed is not repeated where it may hold a password.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    #[error("a source cannot be empty, begin with `-` or hold control characters")]
    Malformed,
    #[error("a source of more than {MAX_BYTES} bytes is too long")]
    TooLong,
    #[error("`{scheme}` is not a way to fetch code: use https, ssh, git, http or file")]
    Scheme { scheme: String },
    #[error("the address names no host")]
    NoHost,
    #[error("an address with `?` or `#` is not one to fetch from")]
    Query,
    #[error("the user or password in the address is not well-formed")]
    UserInfo,
    #[error("`{text}` is neither an existing folder nor a git address")]
    Unknown { text: String },
}

/// Reads what was typed.
pub fn parse(text: &str) -> Result<Typed, SourceError> {
    check(text)?;
    if let Ok(path) = Path::new(text).canonicalize() {
        return Ok(Typed {
            source: Source::Path(path),
            credentials: None,
            dial: Dial::AsTyped,
        });
    }
    parse_address(text)
}

/// Reads an address, whatever lies at a path of that name.
pub(crate) fn parse_address(text: &str) -> Result<Typed, SourceError> {
    check(text)?;
    let plain = |url: String| Typed {
        source: Source::Url(url),
        credentials: None,
        dial: Dial::AsTyped,
    };
    // Before the first slash `helper::address` would start `git-remote-helper`.
    let head = text.split('/').next().unwrap_or_default();
    if let Some((helper, _)) = head.split_once("::") {
        return Err(SourceError::Scheme {
            scheme: format!("{helper}::"),
        });
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        return short_form(text).map(plain);
    };
    let scheme = scheme.to_ascii_lowercase();
    if !SCHEMES.contains(&scheme.as_str()) {
        return Err(SourceError::Scheme { scheme });
    }
    if scheme == "file" {
        return if rest.starts_with('/') {
            Ok(plain(format!("file://{rest}")))
        } else {
            Err(SourceError::NoHost)
        };
    }
    // Git has no use for it, and it may hold a token.
    if rest.contains(['?', '#']) {
        return Err(SourceError::Query);
    }
    let end = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let (userinfo, host) = match authority.rsplit_once('@') {
        Some((userinfo, host)) => (Some(userinfo), host),
        None => (None, authority),
    };
    if host.is_empty() || host.starts_with(['-', ':']) {
        return Err(SourceError::NoHost);
    }
    let host = host.to_ascii_lowercase();
    match (scheme.as_str(), userinfo) {
        // Without a name the agent of the user decides; a password is of no use to ssh.
        ("ssh", Some(userinfo)) => {
            let user = userinfo.split(':').next().unwrap_or_default();
            if user.is_empty() || user.starts_with('-') {
                return Err(SourceError::UserInfo);
            }
            Ok(plain(format!("ssh://{user}@{host}{path}")))
        }
        ("http" | "https", Some(userinfo)) => Ok(Typed {
            source: Source::Url(format!("{scheme}://{host}{path}")),
            credentials: credentials(userinfo)?,
            dial: Dial::AsTyped,
        }),
        _ => Ok(plain(format!("{scheme}://{host}{path}"))),
    }
}

fn check(text: &str) -> Result<(), SourceError> {
    if text.len() > MAX_BYTES {
        return Err(SourceError::TooLong);
    }
    if text.is_empty() || text.starts_with('-') || text.chars().any(char::is_control) {
        return Err(SourceError::Malformed);
    }
    Ok(())
}

/// `user@host:path`, as `scp` has it: a colon before any slash.
fn short_form(text: &str) -> Result<String, SourceError> {
    let unknown = || SourceError::Unknown {
        text: text.to_owned(),
    };
    let (place, path) = text.split_once(':').ok_or_else(unknown)?;
    let (user, host) = place.split_once('@').unwrap_or(("", place));
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.[]".contains(c);
    let named = !host.is_empty() && !host.starts_with('-') && host.chars().all(good);
    let user_good = !user.starts_with('-') && user.chars().all(good);
    if !named || !user_good || path.is_empty() || path.starts_with('-') {
        return Err(unknown());
    }
    Ok(text.to_owned())
}

fn credentials(userinfo: &str) -> Result<Option<Credentials>, SourceError> {
    let (user, password) = match userinfo.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (userinfo, None),
    };
    if user.is_empty() && password.is_none_or(str::is_empty) {
        return Ok(None);
    }
    Ok(Some(Credentials {
        raw: userinfo.to_owned(),
        user: decode(user)?,
        password: password.map(decode).transpose()?,
    }))
}

/// `%41` is `A`. Git's protocol for credentials is made of lines, so there is no newline.
fn decode(text: &str) -> Result<String, SourceError> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || {
            let byte = bytes.next()?;
            char::from(byte).to_digit(16)
        };
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err(SourceError::UserInfo);
        };
        out.push((high * 16 + low) as u8);
    }
    String::from_utf8(out)
        .ok()
        .filter(|text| !text.chars().any(char::is_control))
        .ok_or(SourceError::UserInfo)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        for (text, expected) in [
            (
                "https://Example.org/a/b.git",
                Some("https://example.org/a/b.git"),
            ),
            ("HTTPS://u:p@example.org/a", Some("https://example.org/a")),
            ("http://127.0.0.1:8080/a", Some("http://127.0.0.1:8080/a")),
            (
                "ssh://git@example.org:22/a",
                Some("ssh://git@example.org:22/a"),
            ),
            (
                "ssh://git:pw@example.org/a",
                Some("ssh://git@example.org/a"),
            ),
            (
                "git@example.org:team/app.git",
                Some("git@example.org:team/app.git"),
            ),
            ("example.org:app.git", Some("example.org:app.git")),
            ("git://example.org/a", Some("git://example.org/a")),
            ("file:///srv/a", Some("file:///srv/a")),
            ("file://srv/a", None),
            ("https://example.org/a?token=x", None),
            ("https://example.org/a#x", None),
            ("https:///a", None),
            ("https://u@/a", None),
            ("ssh://-oProxyCommand=x/a", None),
            ("ssh://-x@example.org/a", None),
            ("-oProxyCommand=x:a", None),
            ("--upload-pack=x", None),
            ("-x@h:a", None),
            ("ext::sh -c x", None),
            ("fd::17/foo", None),
            ("persistent-https::https://example.org/a", None),
            ("ftp://example.org/a", None),
            ("https://example.org/a\nb", None),
            ("https://example.org/a\0b", None),
            ("https://u:%0a@example.org/a", None),
            ("https://u:%zz@example.org/a", None),
            ("h:-x", None),
            ("no-such-folder", None),
            ("", None),
        ] {
            let found = parse(text).ok().map(|typed| typed.source.text());
            assert_eq!(found.as_deref(), expected, "{text}");
        }
        assert_eq!(parse(&"x".repeat(5000)), Err(SourceError::TooLong));
    }

    #[test]
    fn an_existing_path_wins_and_is_resolved() {
        let directory = tempfile::tempdir().unwrap();
        let real = directory.path().canonicalize().unwrap();
        std::fs::create_dir(real.join("a:b")).unwrap();
        std::os::unix::fs::symlink("a:b", real.join("link")).unwrap();
        let typed = parse(real.join("link").to_str().unwrap()).unwrap();
        assert_eq!(typed.source, Source::Path(real.join("a:b")));
    }

    #[test]
    fn secrets_are_taken_out_and_stay_out() {
        let typed = parse("https://us%40er:p%40ss@example.org:444/a").unwrap();
        assert_eq!(typed.source.http_origin(), Some("https://example.org:444"));
        let credentials = typed.credentials.clone().unwrap();
        assert_eq!(credentials.user, "us@er");
        assert_eq!(credentials.password.as_deref(), Some("p@ss"));
        assert!(!format!("{typed:?}").contains("p@ss"));
        let said = "cannot https://us%40er:p%40ss@example.org p@ss p%40ss";
        assert_eq!(credentials.redact(said), "cannot https://…@example.org … …");
        let token = parse("https://ghp_token@example.org/a").unwrap();
        let credentials = token.credentials.unwrap();
        assert_eq!(credentials.redact("for ghp_token"), "for …");
        for text in ["https://@example.org/a", "https://:@example.org/a"] {
            assert_eq!(parse(text).unwrap().credentials, None);
        }
    }
}
