//! The configuration of a private git directory: a short list of settings, values checked and
//! written anew, and our own.
//!
//! It is an allowlist. What could run a program, reach a host, name a file or carry a credential
//! (include, hooks, fsmonitor, filters, aliases, credentials, `insteadOf`, promisors) has no way in.

use super::config::{Config, Setting, parse_bool};
use super::{ObjectHash, Repository};

/// What is ours: an index whose times come from the user's, nothing in the background, and an
/// identity that cannot be mistaken for the user's.
pub(crate) const OURS: &str = "\
[core]
\tbare = false
\tcheckStat = minimal
\ttrustctime = false
\tuntrackedCache = false
[gc]
\tauto = 0
[maintenance]
\tauto = false
[user]
\tname = agent
\temail = agent@ringfence.invalid
";

/// Whether remotes, branches and submodules are carried over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    Carry,
    /// For a history of our own making, which no remote knows.
    Drop,
}

/// The whole configuration file of a private git directory. `worktree` is for a submodule, whose
/// work tree is not beside its git directory.
pub(super) fn config_text(repo: &Repository, worktree: Option<&[u8]>, names: Names) -> Vec<u8> {
    let extended = repo.hash == ObjectHash::Sha256 || repo.reftable;
    let mut out = Vec::new();
    out.extend_from_slice(b"[core]\n");
    line(
        &mut out,
        "repositoryformatversion",
        if extended { b"1" } else { b"0" },
    );
    for key in [
        "filemode",
        "symlinks",
        "ignorecase",
        "sparsecheckout",
        "sparsecheckoutcone",
    ] {
        if let Some(value) = repo.config.get_bool("core", key) {
            line(&mut out, key, bool_text(value));
        }
    }
    if let Some(value) = repo.config.get("core", "logallrefupdates") {
        match parse_bool(value) {
            Some(value) => line(&mut out, "logallrefupdates", bool_text(value)),
            None if value.eq_ignore_ascii_case(b"always") => {
                line(&mut out, "logallrefupdates", b"always");
            }
            None => {}
        }
    }
    line_endings(&mut out, repo);
    if let Some(worktree) = worktree {
        line(&mut out, "worktree", worktree);
    }
    if extended {
        out.extend_from_slice(b"[extensions]\n");
        line(&mut out, "objectformat", repo.hash.name().as_bytes());
        if repo.reftable {
            line(&mut out, "refstorage", b"reftable");
        }
    }
    if repo.config.get_bool("index", "sparse") == Some(true) {
        out.extend_from_slice(b"[index]\n");
        line(&mut out, "sparse", b"true");
    }
    if names == Names::Carry {
        for setting in repo.config.settings() {
            named(&mut out, setting);
        }
    }
    out.extend_from_slice(OURS.as_bytes());
    out
}

/// Names of the content filters that the user's git would run and ours does not.
pub(super) fn filters(repo: &Repository) -> Vec<String> {
    let mut names: Vec<String> = [&repo.config, &repo.user.config]
        .into_iter()
        .flat_map(Config::settings)
        .filter(|s| s.section == b"filter" && matches!(&s.key[..], b"clean" | b"process"))
        .filter_map(|s| String::from_utf8(s.subsection.clone()?).ok())
        .filter(|name| !name.chars().any(char::is_control) && name.len() < 64)
        .collect();
    names.sort();
    names.dedup();
    // BOUND: these go into a note for a person.
    names.truncate(8);
    names
}

/// `core.autocrlf` and `core.eol` decide whether a file counts as changed, so the user's own
/// settings are carried over where the repository has none.
pub(crate) fn line_endings(out: &mut Vec<u8>, repo: &Repository) {
    let of = |key| {
        repo.config
            .get("core", key)
            .or_else(|| repo.user.config.get("core", key))
    };
    if let Some(value) = of("autocrlf") {
        match parse_bool(value) {
            Some(value) => line(out, "autocrlf", bool_text(value)),
            None if value.eq_ignore_ascii_case(b"input") => line(out, "autocrlf", b"input"),
            None => {}
        }
    }
    if let Some(value) = of("eol") {
        let value = value.to_ascii_lowercase();
        if matches!(&value[..], b"lf" | b"crlf" | b"native") {
            line(out, "eol", &value);
        }
    }
}

/// The settings of remotes, branches and submodules that tell names apart and run nothing.
fn named(out: &mut Vec<u8>, setting: &Setting) {
    let (Some(name), Some(value)) = (&setting.subsection, &setting.value) else {
        return;
    };
    // A name that holds a colon may be an address with a password in it.
    if name.is_empty() || name.contains(&b':') || !is_plain(name) || !is_plain(value) {
        return;
    }
    let kept = match (&setting.section[..], &setting.key[..]) {
        (b"remote" | b"submodule", b"url") => without_userinfo(value),
        (b"remote", b"fetch") => is_refspec(value).then(|| value.clone()),
        (b"branch", b"remote") => (!value.contains(&b':')).then(|| value.clone()),
        (b"branch", b"merge") => value.starts_with(b"refs/").then(|| value.clone()),
        (b"submodule", b"active") => parse_bool(value).map(|value| bool_text(value).to_vec()),
        _ => None,
    };
    if let Some(value) = kept {
        out.push(b'[');
        out.extend_from_slice(&setting.section);
        out.extend_from_slice(b" \"");
        escape(out, name);
        out.extend_from_slice(b"\"]\n");
        // INVARIANT: keys are letters, digits and dashes; the parser takes no others.
        line(out, &String::from_utf8_lossy(&setting.key), &value);
    }
}

fn bool_text(value: bool) -> &'static [u8] {
    if value { b"true" } else { b"false" }
}

/// No control characters: none can be meant in a name, and none must reach a terminal.
fn is_plain(text: &[u8]) -> bool {
    text.len() < 4096 && !text.iter().any(|b| b.is_ascii_control())
}

fn is_refspec(value: &[u8]) -> bool {
    let value = value
        .strip_prefix(b"+")
        .or(value.strip_prefix(b"^"))
        .unwrap_or(value);
    value
        .split(|&b| b == b':')
        .all(|side| side.starts_with(b"refs/") || side == b"HEAD")
}

/// One `key = value`.
pub(crate) fn line(out: &mut Vec<u8>, key: &str, value: &[u8]) {
    out.push(b'\t');
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(b" = \"");
    escape(out, value);
    out.extend_from_slice(b"\"\n");
}

/// A text as it stands between quotation marks.
pub(crate) fn escape(out: &mut Vec<u8>, text: &[u8]) {
    for &byte in text {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
}

/// An address without user, password, query and fragment; `None` if it cannot be told for sure
/// that no secret is left.
fn without_userinfo(url: &[u8]) -> Option<Vec<u8>> {
    // `helper::address` runs a program of that name.
    if url.windows(2).any(|pair| pair == b"::") {
        return None;
    }
    let Some(scheme_end) = url.windows(3).position(|three| three == b"://") else {
        // `user@host:path` has no place for a password, a local path has none either; whatever
        // has an `@` beyond the first colon is neither.
        let colon = url.iter().position(|&b| b == b':');
        let at = url.iter().rposition(|&b| b == b'@');
        return match (colon, at) {
            (Some(colon), Some(at)) if at > colon => None,
            _ => Some(url.to_vec()),
        };
    };
    let (scheme, rest) = url.split_at(scheme_end + 3);
    let end = rest
        .iter()
        .position(|&b| matches!(b, b'?' | b'#'))
        .unwrap_or(rest.len());
    let rest = &rest[..end];
    let slash = rest.iter().position(|&b| b == b'/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(slash);
    let at = authority.iter().rposition(|&b| b == b'@');
    let host = at.map_or(authority, |at| &authority[at + 1..]);
    // A password with a slash in it moves the `@` into what looks like the path.
    if path.contains(&b'@') && (at.is_some() || authority.contains(&b':')) {
        return None;
    }
    Some([scheme, host, path].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lose_their_secrets() {
        for (url, kept) in [
            ("https://user:pw@host/x.git", Some("https://host/x.git")),
            ("https://token@host:8443/x", Some("https://host:8443/x")),
            ("https://host/x?token=t#f", Some("https://host/x")),
            ("https://host/@scope/x", Some("https://host/@scope/x")),
            ("https://user:p/w@host/x", None),
            ("https://user:p@w/x@host/x", None),
            ("ssh://git@host/x", Some("ssh://host/x")),
            ("git@host:x/y.git", Some("git@host:x/y.git")),
            ("user:pw@host:x", None),
            ("../other.git", Some("../other.git")),
            ("/srv/a@b.git", Some("/srv/a@b.git")),
            ("ext::sh -c id", None),
            ("https://[::1]/x", None),
        ] {
            let got = without_userinfo(url.as_bytes());
            assert_eq!(got.as_deref(), kept.map(str::as_bytes), "{url}");
        }
    }
}
