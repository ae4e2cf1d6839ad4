//! Names that git refuses in a patch, and which a change set therefore cannot carry.
//!
//! Wider than git's own defaults on Linux: what one of the user's other machines would take for
//! `.git` (HFS ignores some code points, NTFS trailing dots, spaces and streams) stays behind too.

use unicode_normalization::UnicodeNormalization as _;

/// BOUND: a path must be one that `git apply` can open in one go (PATH_MAX is 4096), with some
/// room for the folder's own path before it.
pub(crate) const PATH_BYTES: usize = 3800;

/// True for one component of a path that git takes for its own directory.
pub(crate) fn is_dot_git(component: &[u8]) -> bool {
    component.split(|&byte| byte == b'\\').any(|part| {
        let short = without_ntfs_tail(part);
        short.eq_ignore_ascii_case(b".git") || short.eq_ignore_ascii_case(b"git~1")
    }) || without_hfs_ignored(component).eq_ignore_ascii_case(b".git")
}

/// True for a link that git refuses: one that it would read its submodules from.
pub(crate) fn is_dot_gitmodules(component: &[u8]) -> bool {
    let short = without_ntfs_tail(component).to_ascii_lowercase();
    let is_short_name = match short.split_last_chunk::<2>() {
        Some((stem, [b'~', b'1'..=b'9'])) => stem == b"gitmod" || is_hashed_short_name(stem),
        _ => false,
    };
    short == b".gitmodules"
        || is_short_name
        || without_hfs_ignored(component).eq_ignore_ascii_case(b".gitmodules")
}

/// NTFS makes `gi7eba~1` and the like once the plain short names are taken.
fn is_hashed_short_name(stem: &[u8]) -> bool {
    stem.len() <= 6 && stem.len() >= 2 && b"gi7eba".starts_with(stem)
}

fn without_ntfs_tail(part: &[u8]) -> &[u8] {
    let stream = part
        .iter()
        .position(|&byte| byte == b':')
        .unwrap_or(part.len());
    let part = &part[..stream];
    let end = part.iter().rposition(|&byte| byte != b' ' && byte != b'.');
    &part[..end.map_or(0, |last| last + 1)]
}

fn without_hfs_ignored(component: &[u8]) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(component) else {
        return component.to_vec();
    };
    let ignored = |c: &char| {
        matches!(c, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
            | '\u{206a}'..='\u{206f}' | '\u{feff}')
    };
    text.chars()
        .filter(|c| !ignored(c))
        .collect::<String>()
        .into_bytes()
}

/// A component as the widest of all file systems sees it: two that are the same here may be one file on
/// some machine. macOS tells neither case nor forms of a letter apart, Windows no case and no tail.
pub(crate) fn folded(component: &[u8]) -> Vec<u8> {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    let dotted = |byte: &u8| plain(byte) || *byte == b'.';
    // What nearly all names are, without a look at each letter.
    if component.last().is_some_and(plain) && component.iter().all(dotted) {
        return component.to_ascii_lowercase();
    }
    let seen = without_hfs_ignored(without_ntfs_tail(component));
    match std::str::from_utf8(&seen) {
        Ok(text) => text
            .nfkc()
            .flat_map(char::to_lowercase)
            .collect::<String>()
            .into_bytes(),
        Err(_) => seen.to_ascii_lowercase(),
    }
}

/// The last component of a path.
pub(crate) fn last(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_spellings_of_dot_git_are_known() {
        for name in [
            ".git",
            ".GIT",
            ".Git",
            "git~1",
            "GIT~1",
            ".git ",
            ".git.",
            ".git. .",
            ".git::$INDEX",
            ".git:x",
            ".g\u{200c}it",
            "\u{feff}.git",
            "a\\.git",
            ".git\\x",
            "git~1 ",
        ] {
            assert!(is_dot_git(name.as_bytes()), "{name:?}");
        }
        for name in [
            ".gitignore",
            ".gitattributes",
            "git",
            "git~2",
            ".gi",
            "x.git",
            "repo.git",
            "",
            " ",
            ".",
            "\u{200c}",
            ".git-old",
            "..git",
        ] {
            assert!(!is_dot_git(name.as_bytes()), "{name:?}");
        }
        assert!(!is_dot_git(b".g\xffit"));
    }

    #[test]
    fn names_that_some_machine_takes_for_one_are_folded_to_one() {
        for name in [
            "refs",
            "REFS",
            "Refs",
            "ref\u{17f}",
            "ｒｅｆｓ",
            "refs.",
            "refs ",
            "refs::$INDEX_ALLOCATION",
            "re\u{200d}fs",
            "\u{feff}refs",
        ] {
            assert_eq!(folded(name.as_bytes()), b"refs", "{name:?}");
        }
        assert_eq!(
            folded("CAFE\u{301}.txt".as_bytes()),
            folded("caf\u{e9}.TXT".as_bytes())
        );
        for name in ["ref", "refs.d", ".refs", "refs-old", "r\u{435}fs", ""] {
            assert_ne!(folded(name.as_bytes()), b"refs", "{name:?}");
        }
        assert_eq!(folded(b"\xffA"), b"\xffa");
    }

    #[test]
    fn all_spellings_of_dot_gitmodules_are_known() {
        for name in [
            ".gitmodules",
            ".GITMODULES",
            "gitmod~1",
            "gi7eba~1",
            ".gitmodules .",
        ] {
            assert!(is_dot_gitmodules(name.as_bytes()), "{name:?}");
        }
        for name in [".gitmodule", "gitmodules", "gitmod~", "gix~1", "~1", ".git"] {
            assert!(!is_dot_gitmodules(name.as_bytes()), "{name:?}");
        }
    }
}
