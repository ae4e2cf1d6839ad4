//! Links that a patch makes: they stay in the folder, and out of `.git`.
//!
//! HOSTILE: a link is a path that somebody else will walk later. Only `../` at the beginning and
//! plain names after it are understood, because `..` behind a link goes up from elsewhere.

use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::changes::names::is_dot_git;

/// Why these bytes are the target of no link.
pub(super) fn why_no_target(target: &[u8]) -> Option<&'static str> {
    // BOUND: as the kernel has it.
    let fits = (1..=4095).contains(&target.len()) && !target.contains(&0);
    (!fits).then_some("it is a link to no path")
}

/// Why a link at a path may not have this target.
pub(super) fn why_refused(
    root: BorrowedFd<'_>,
    path: &[u8],
    target: &[u8],
) -> Option<&'static str> {
    let inside = match lexical(path, target) {
        Ok(inside) => inside,
        Err(why) => return Some(why),
    };
    // Where a link that is there already leads out, so does what goes through it.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let inside = if inside.is_empty() {
        b".".to_vec()
    } else {
        inside
    };
    match rustix::fs::openat2(root.as_fd(), inside, flags, Mode::empty(), resolve) {
        Err(Errno::XDEV) => Some("it is a link that leaves the folder through another link"),
        _ => None,
    }
}

/// The same in a tree that is nowhere on the disk. `link` gives the target of what is a link there.
pub(super) fn why_refused_in(
    path: &[u8],
    target: &[u8],
    link: &mut dyn FnMut(&[u8]) -> Option<Vec<u8>>,
) -> Option<&'static str> {
    // BOUND: as the kernel has it.
    const FOLLOWED: usize = 40;
    let (mut path, mut target) = (path.to_vec(), target.to_vec());
    'links: for _ in 0..FOLLOWED {
        let inside = match lexical(&path, &target) {
            Ok(inside) => inside,
            Err(why) => return Some(why),
        };
        let ends = (0..inside.len()).filter(|&at| inside[at] == b'/');
        for end in ends.chain([inside.len()]) {
            if let Some(next) = link(&inside[..end]) {
                target = [&next, &inside[end..]].concat();
                path = inside[..end].to_vec();
                continue 'links;
            }
        }
        return None;
    }
    Some("it is a link through too many others")
}

/// The target as a path below the root, as far as names alone tell.
fn lexical(path: &[u8], target: &[u8]) -> Result<Vec<u8>, &'static str> {
    if target.first() == Some(&b'/') {
        return Err("it is a link to an absolute path");
    }
    let mut at: Vec<&[u8]> = path.split(|&byte| byte == b'/').collect();
    at.pop();
    let mut plain = false;
    for name in target.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." if plain => return Err("it is a link with `..` behind a name"),
            b".." => {
                at.pop().ok_or("it is a link that leaves the folder")?;
            }
            name if is_dot_git(name) => return Err("it is a link into `.git`"),
            name => {
                plain = true;
                at.push(name);
            }
        }
    }
    Ok(at.join(&b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_stay_inside() {
        for (path, target, inside) in [
            ("l", "a", Some("a")),
            ("d/l", "../a/./b", Some("a/b")),
            ("d/e/l", "../..", Some("")),
            ("d/l", "../..", None),
            ("l", "..", None),
            ("l", "/etc/passwd", None),
            ("l", "a/../..", None),
            ("l", "a/../b", None),
            ("l", ".git/config", None),
            ("d/l", "../.GIT/hooks", None),
            ("l", "sub/.git", None),
            ("l", "git~1/config", None),
            ("l", "a//b", Some("a/b")),
            ("l", "\u{ff0e}\u{ff0e}/a", Some("\u{ff0e}\u{ff0e}/a")),
        ] {
            let found = lexical(path.as_bytes(), target.as_bytes()).ok();
            let found = found.map(|bytes| String::from_utf8(bytes).unwrap());
            assert_eq!(found.as_deref(), inside, "{path} {target}");
        }
    }

    #[test]
    fn a_link_of_another_tree_does_not_help_either() {
        let mut link = |path: &[u8]| -> Option<Vec<u8>> {
            let target = match path {
                b"out" => "/etc",
                b"in" => "sub/dir",
                b"sub/dir/up" => "../../..",
                b"round" => "about",
                b"about" => "round",
                _ => return None,
            };
            Some(target.as_bytes().to_vec())
        };
        for (target, refused) in [
            ("out", true),
            ("out/passwd", true),
            ("in/there", false),
            ("in/up/there", true),
            ("round/x", true),
            ("nowhere/x", false),
        ] {
            let found = why_refused_in(b"l", target.as_bytes(), &mut link);
            assert_eq!(found.is_some(), refused, "{target}: {found:?}");
        }
    }

    #[test]
    fn a_link_that_is_there_does_not_help() {
        let root = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc", root.path().join("out")).unwrap();
        std::os::unix::fs::symlink("sub", root.path().join("in")).unwrap();
        let top = std::fs::File::open(root.path()).unwrap();
        assert!(why_refused(top.as_fd(), b"l", b"out/passwd").is_some());
        assert!(why_refused(top.as_fd(), b"l", b"in/there").is_none());
        assert!(why_refused(top.as_fd(), b"l", b"nowhere").is_none());
    }
}
