//! Which paths a patch may have.
//!
//! HOSTILE: whoever made the bundle chose them. What one of the user's machines would take for a
//! way out of the folder, or into `.git`, is refused on all of them.

use std::collections::BTreeSet;

use ringfence_model::ByteText;
use ringfence_model::bundle::steps;
use ringfence_model::changes::{Change, ChangeKind, FileMode};

use super::PatchError;
use crate::changes::git_directory::{self, touched_by};
use crate::changes::names::{PATH_BYTES, is_dot_git, is_dot_gitmodules, last};

/// Holds all paths of a patch against the rules, each by itself and all together.
pub(super) fn check(changes: &[Change]) -> Result<(), PatchError> {
    for change in changes {
        one(&change.path)?;
        if let ChangeKind::Renamed { from } = &change.kind {
            one(from)?;
        }
        let becomes_link = change
            .new
            .as_ref()
            .is_some_and(|side| side.mode == FileMode::Symlink);
        if becomes_link && is_dot_gitmodules(last(change.path.as_bytes())) {
            return Err(refused(
                &change.path,
                "git reads its submodules there, so it is no link",
            ));
        }
    }
    let Some(steps) = steps(changes) else {
        let path = changes
            .first()
            .map_or_else(|| ByteText::from(&b""[..]), |change| change.path.clone());
        return Err(refused(&twice(changes).unwrap_or(path), "it changes twice"));
    };
    // With what the target has, it is looked at again where the patch meets it.
    let touched = changes.iter().flat_map(touched_by);
    let Ok(git) = git_directory::refused_paths(touched, &mut git_directory::Empty);
    if let Some(path) = git.first() {
        return Err(refused(&ByteText::from(*path), git_directory::WHY));
    }
    // HOSTILE: a file, or worse a link, where another path needs a directory.
    let old: BTreeSet<&[u8]> = steps
        .iter()
        .filter(|(_, step)| step.old.is_some())
        .map(|(path, _)| *path)
        .collect();
    let new: BTreeSet<&[u8]> = steps
        .iter()
        .filter(|(_, step)| step.new.is_some())
        .map(|(path, _)| *path)
        .collect();
    for side in [old, new] {
        for path in &side {
            if above(path).any(|above| side.contains(above)) {
                return Err(refused(
                    &ByteText::from(*path),
                    "a file cannot be below a file",
                ));
            }
        }
    }
    Ok(())
}

/// The directories above a path, without the top.
pub(crate) fn above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    slashes.map(|(at, _)| &path[..at])
}

fn twice(changes: &[Change]) -> Option<ByteText> {
    let first = (1..=changes.len()).find(|count| steps(&changes[..*count]).is_none())?;
    Some(changes[first - 1].path.clone())
}

fn refused(path: &ByteText, why: &'static str) -> PatchError {
    PatchError::Path {
        path: path.clone(),
        why,
    }
}

fn one(path: &ByteText) -> Result<(), PatchError> {
    match why_refused(path.as_bytes()) {
        Some(why) => Err(refused(path, why)),
        None => Ok(()),
    }
}

/// Why a path cannot be one of a patch.
pub(crate) fn why_refused(path: &[u8]) -> Option<&'static str> {
    if path.is_empty() {
        return Some("an empty path");
    }
    if path.len() > PATH_BYTES {
        return Some("the path is too long");
    }
    if path.contains(&0) {
        return Some("a NUL in the path");
    }
    if path[0] == b'/' {
        return Some("an absolute path");
    }
    for name in path.split(|&byte| byte == b'/') {
        if name.is_empty() {
            return Some("an empty name in the path");
        }
        // BOUND: what every file system of Linux has.
        if name.len() > 255 {
            return Some("a name in the path is too long");
        }
        // On some machines a backslash parts names.
        for part in name.split(|&byte| byte == b'\\') {
            match part {
                b"." if part.len() == name.len() => return Some("`.` in the path"),
                b".." => return Some("`..` in the path"),
                _ => {}
            }
        }
        if is_dot_git(name) {
            return Some("git's own directory, which no patch changes");
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use ringfence_model::changes::Side;

    use super::*;

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        let long = "n/".repeat(1900) + "n";
        let name = "n".repeat(256);
        for path in [
            "",
            "/",
            "/etc/passwd",
            "a//b",
            "a/",
            "./a",
            "a/.",
            "a/./b",
            "..",
            "../a",
            "a/../b",
            "a/..",
            "a\\..\\b",
            "..\\a",
            ".git",
            ".git/config",
            "a/.git/hooks/pre-commit",
            ".GIT/x",
            ".g\u{200c}it/x",
            ".git\u{feff}/x",
            "git~1/x",
            "GIT~1",
            ".git /x",
            ".git./x",
            ".git. . /x",
            ".git::$INDEX_ALLOCATION/x",
            ".git:x",
            "a\\.git\\x",
            ".git\\x",
            "a\0b",
            &long,
            &name,
        ] {
            assert!(why_refused(path.as_bytes()).is_some(), "{path:?}");
        }
        for path in [
            "a",
            "a/b",
            ".gitignore",
            ".gitattributes",
            ".github/x",
            "a\\b",
            "...",
            "a..b",
            " ",
            "a ",
            "git~2",
            "-n",
            "\u{65}\u{301}",
            "a\nb",
            "\"q\"",
            ".gitmodules",
            "C:",
            "~",
        ] {
            assert_eq!(why_refused(path.as_bytes()), None, "{path:?}");
        }
    }

    fn change(path: &str, old: Option<FileMode>, new: Option<FileMode>) -> Change {
        let side = |mode: FileMode| Side {
            mode,
            oid: "1".to_owned(),
            size: 1,
        };
        Change {
            path: path.into(),
            kind: match (&old, &new) {
                (None, _) => ChangeKind::Added,
                (_, None) => ChangeKind::Deleted,
                _ => ChangeKind::Modified,
            },
            old: old.map(side),
            new: new.map(side),
            binary: false,
        }
    }

    #[test]
    fn paths_that_are_in_each_others_way_are_refused() {
        const FILE: Option<FileMode> = Some(FileMode::Regular);
        const LINK: Option<FileMode> = Some(FileMode::Symlink);
        for (changes, good) in [
            // Through a link that the same patch makes.
            (
                vec![change("d", None, LINK), change("d/x", None, FILE)],
                false,
            ),
            (
                vec![change("d", None, FILE), change("d/e/x", None, FILE)],
                false,
            ),
            (
                vec![change("d", FILE, None), change("d/x", FILE, None)],
                false,
            ),
            (
                vec![change("d", None, FILE), change("d", None, LINK)],
                false,
            ),
            (
                vec![change("d", FILE, FILE), change("d/x", None, FILE)],
                false,
            ),
            (vec![change("d", FILE, None), change("d", None, LINK)], true),
            (
                vec![change("d", FILE, None), change("d/x", None, FILE)],
                true,
            ),
            (
                vec![change("d", LINK, None), change("d/x", None, FILE)],
                true,
            ),
            (
                vec![change("d", None, FILE), change("d/x", FILE, None)],
                true,
            ),
            (
                vec![
                    change("d", None, FILE),
                    change("d-x", None, FILE),
                    change("dx/y", None, FILE),
                ],
                true,
            ),
            (
                vec![
                    change("d/HEAD", None, FILE),
                    change("d/objects/x", None, FILE),
                    change("d/refs", None, LINK),
                ],
                false,
            ),
            (
                vec![
                    change("d/HEAD", None, LINK),
                    change("d/commondir", None, FILE),
                ],
                false,
            ),
            (
                vec![
                    change("d/HEAD", FILE, None),
                    change("d/objects/x", None, FILE),
                    change("d/refs/x", None, FILE),
                ],
                true,
            ),
            (vec![change("a/.gitmodules", None, LINK)], false),
            (vec![change("a/.gitmodules", None, FILE)], true),
        ] {
            assert_eq!(check(&changes).is_ok(), good, "{changes:?}");
        }
    }
}
