//! Where a submodule is fetched from.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::super::missing::Login;
use super::Why;
use crate::mirror::Resolved;
use crate::source::{self, Dial, Source, Typed};

/// Where a submodule is fetched from, or why it is not.
///
/// HOSTILE: the repository chose the address. One on this machine is heeded only within the parent
/// itself: where its own git keeps the submodule that a person has checked out there, or below it.
/// Any other would bring a stranger's pick of the caller's repositories inside.
pub(super) fn address(parent: &Resolved, name: &[u8], url: &[u8]) -> Result<Typed, Why> {
    let refused = |reason: &str| Why::Refused(reason.to_owned());
    let here = parent.mirror.source.local_path();
    let kept = here.as_deref().and_then(|folder| kept_module(folder, name));
    if let Some(path) = kept {
        return Ok(Typed {
            source: Source::Path(path),
            credentials: None,
            dial: Dial::AsTyped,
        });
    }
    let url = std::str::from_utf8(url).map_err(|_| refused("its address is not text"))?;
    let full = if url.starts_with("./") || url.starts_with("../") {
        relative_to(&parent.mirror.source.text(), url)
            .ok_or_else(|| refused("its address leads nowhere"))?
    } else {
        url.to_owned()
    };
    let mut typed = if Path::new(&full).is_absolute() {
        Typed {
            source: Source::Path(PathBuf::from(&full)),
            credentials: None,
            dial: Dial::AsTyped,
        }
    } else {
        source::parse_address(&full).map_err(|error| refused(&error.to_string()))?
    };
    if let Some(path) = typed.source.local_path() {
        let within = |path: &Path| {
            let climbs = path.components().any(|part| part.as_os_str() == "..");
            !climbs && here.as_ref().is_some_and(|here| path.starts_with(here))
        };
        if !within(&path) {
            return Err(refused(
                "its address is elsewhere on this machine; `git submodule update --init --recursive` in the repository takes it from there",
            ));
        }
        if !path.exists() {
            let reason = "there is nothing at its address".to_owned();
            let text = path.to_string_lossy().into_owned();
            return Err(Why::Missing(reason, text, Login::None));
        }
        typed.source = Source::Path(path);
    }
    // A password is for one host only, and a repository has none to give.
    let origin = typed.source.http_origin();
    typed.credentials = if origin.is_some() && origin == parent.mirror.source.http_origin() {
        parent.credentials.clone()
    } else {
        None
    };
    Ok(typed)
}

/// Where the git of a repository on this machine keeps a submodule.
fn kept_module(folder: &Path, name: &[u8]) -> Option<PathBuf> {
    let found = match crate::git::find_bare(folder).ok()? {
        crate::git::Found::Nothing => crate::git::discover(folder).ok()?,
        found => found.usable(),
    };
    let git_dir = found?.common_dir;
    let path = git_dir.join("modules").join(OsStr::from_bytes(name));
    let path = path.canonicalize().ok()?;
    // A link in there may lead anywhere, and so may what it borrows.
    let borrows = [
        "commondir",
        "objects/info/alternates",
        "objects/info/http-alternates",
    ]
    .iter()
    .any(|name| path.join(name).symlink_metadata().is_ok());
    let own = |name: &str| {
        path.join(name)
            .symlink_metadata()
            .is_ok_and(|m| !m.is_symlink())
    };
    let whole = ["HEAD", "objects", "refs", "config"]
        .iter()
        .all(|name| own(name));
    (path.starts_with(&git_dir) && whole && !borrows).then_some(path)
}

/// A relative address, as git reads it: `..` takes one part off the parent's.
fn relative_to(parent: &str, url: &str) -> Option<String> {
    let mut base = parent.trim_end_matches('/');
    let mut colon = false;
    let mut rest = url;
    loop {
        if let Some(after) = rest.strip_prefix("../") {
            rest = after;
            let floor = base.find("://").map_or(0, |at| at + 3);
            match base[floor..].rfind('/') {
                Some(slash) => base = &base[..floor + slash],
                None if floor == 0 && base.contains(':') => {
                    base = &base[..base.find(':')?];
                    colon = true;
                }
                None => return None,
            }
        } else if let Some(after) = rest.strip_prefix("./") {
            rest = after;
        } else {
            break;
        }
    }
    if rest.is_empty() || rest.split('/').any(|part| part == "..") {
        return None;
    }
    let separator = if colon { ':' } else { '/' };
    Some(format!("{base}{separator}{}", rest.trim_end_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::MirrorId;
    use crate::mirror::Mirror;

    #[test]
    fn relative_addresses_are_read_as_git_does() {
        for (parent, url, expected) in [
            (
                "https://h/team/app.git",
                "../lib.git",
                Some("https://h/team/lib.git"),
            ),
            (
                "https://h/team/app.git/",
                "./lib",
                Some("https://h/team/app.git/lib"),
            ),
            ("https://h/team/app", "../../x/lib", Some("https://h/x/lib")),
            ("https://h/app", "../../../lib", None),
            (
                "git@h:team/app.git",
                "../lib.git",
                Some("git@h:team/lib.git"),
            ),
            ("git@h:app.git", "../lib.git", Some("git@h:lib.git")),
            ("/srv/app", "../lib", Some("/srv/lib")),
            ("https://h/team/app", "../", None),
            ("https://h/team/app", "../a/../../b", None),
        ] {
            assert_eq!(
                relative_to(parent, url).as_deref(),
                expected,
                "{parent} {url}"
            );
        }
    }

    #[test]
    fn hostile_addresses_are_refused() {
        let parent = |text: &str| Resolved {
            mirror: Mirror {
                id: MirrorId::from_bits(1),
                path: PathBuf::new(),
                source: if text.starts_with('/') {
                    Source::Path(text.into())
                } else {
                    Source::Url(text.to_owned())
                },
            },
            commit: String::new(),
            branch: None,
            notes: Vec::new(),
            credentials: source::parse("https://u:p@h/x").unwrap().credentials,
        };
        let remote = parent("https://h/team/app");
        for url in [
            "-x",
            "--upload-pack=x",
            "ext::sh -c x",
            "/etc",
            "file:///etc",
            "FILE:///etc",
            "fd::3",
            "../../../../etc",
            "https://h/a\nb",
            "",
            "..",
            "lib",
        ] {
            assert!(address(&remote, b"lib", url.as_bytes()).is_err(), "{url:?}");
        }
        let typed = address(&remote, b"lib", b"../lib").unwrap();
        assert!(typed.credentials.is_some());
        let other = address(&remote, b"lib", b"https://other/lib").unwrap();
        assert!(other.credentials.is_none());
        let named = address(&remote, b"lib", b"https://evil:x@other/lib").unwrap();
        assert!(named.credentials.is_none());
        assert!(address(&parent("/srv/app"), b"lib", b"/").is_err());
        assert!(address(&parent("file:///srv/app"), b"lib", b"file:///srv/lib").is_err());
    }
}
