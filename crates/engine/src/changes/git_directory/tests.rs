//! What of a patch is refused, over trees and patches as lists of paths.

use std::convert::Infallible;

use super::*;

/// Files by their paths; one that ends with a slash is a directory with nothing in it.
struct Files(Vec<&'static str>);

impl Tree for Files {
    type Error = Infallible;

    fn entries(
        &mut self,
        directory: &[u8],
        wanted: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Vec<(Vec<u8>, Entry)>, Infallible> {
        let mut entries = Vec::new();
        for path in &self.0 {
            let path = path.as_bytes();
            let rest = match directory {
                b"" => Some(path),
                _ => path
                    .strip_prefix(directory)
                    .and_then(|rest| rest.strip_prefix(b"/")),
            };
            let Some(rest) = rest.filter(|rest| !rest.is_empty()) else {
                continue;
            };
            let (name, entry) = match rest.iter().position(|&byte| byte == b'/') {
                Some(slash) => (&rest[..slash], Entry::Directory),
                None => (rest, Entry::Other),
            };
            if wanted(name) && !entries.contains(&(name.to_vec(), entry)) {
                entries.push((name.to_vec(), entry));
            }
        }
        Ok(entries)
    }
}

/// The lines for what is refused of a patch of `+path` and `-path`.
fn refused_of(base: &[&'static str], patch: &[&'static str]) -> Vec<String> {
    let touched: Vec<Touched<'_>> = patch
        .iter()
        .map(|line| match line.split_at(1) {
            ("+", path) => (path.as_bytes(), After::Something),
            (_, path) => (path.as_bytes(), After::Nothing),
        })
        .collect();
    let Ok(found) = refused(&touched, &mut Files(base.to_vec()));
    let line = |(at, end): &(usize, usize)| {
        let (path, _) = touched[*at];
        String::from_utf8_lossy(&path[..*end]).into_owned()
    };
    found.iter().map(line).collect()
}

const BARE: [&str; 4] = ["d/HEAD", "d/config", "d/objects/", "d/refs/"];

#[test]
fn a_patch_that_makes_a_git_directory_is_refused() {
    let cases: &[(&[&str], &[&str], &[&str])] = &[
        // All of it is new; what is not git's crosses.
        (
            &["d/a.md"],
            &[
                "+d/HEAD",
                "+d/a.md",
                "+d/config",
                "+d/objects/x",
                "+d/refs/x/y",
                "+z",
            ],
            &["d/HEAD", "d/config", "d/objects", "d/refs"],
        ),
        // It is completed.
        (&["d/objects/", "d/refs/"], &["+d/HEAD", "+e"], &["d/HEAD"]),
        (&["d/HEAD", "d/refs/x"], &["+d/objects/x"], &["d/objects"]),
        (&["d/HEAD", "d/objects/x"], &["+d/refs"], &["d/refs"]),
        (
            &["d/HEAD"],
            &["+d/refs/x", "+d/objects"],
            &["d/refs", "d/objects"],
        ),
        // A linked worktree.
        (
            &[],
            &["+w/HEAD", "+w/commondir", "+w/gitdir"],
            &["w/HEAD", "w/commondir", "w/gitdir"],
        ),
        (&["w/HEAD"], &["+w/commondir"], &["w/commondir"]),
        // The top, and deep.
        (
            &[],
            &["+HEAD", "+hooks/x", "+objects/x", "+refs/x", "+src/a"],
            &["HEAD", "hooks", "objects", "refs"],
        ),
        (
            &["a/b/c/refs/", "a/b/c/objects/"],
            &["+a/b/c/HEAD"],
            &["a/b/c/HEAD"],
        ),
        // What other machines take for the same.
        (&["d/Refs/x", "d/OBJECTS/x"], &["+d/head"], &["d/head"]),
        (
            &["d/refs/x", "D/objects/x"],
            &["+\u{ff24}/HEAD"],
            &["\u{ff24}/HEAD"],
        ),
        (
            &[],
            &["+d/HEAD", "+D/ref\u{17f}/x", "+d /objects./x"],
            &["d/HEAD", "D/ref\u{17f}", "d /objects."],
        ),
        // A file takes the place of a directory that did not count.
        (
            &["d/HEAD/x", "d/objects/", "d/refs/"],
            &["-d/HEAD/x", "+d/HEAD"],
            &["d/HEAD", "d/HEAD"],
        ),
        // A path that changes its type is there afterwards.
        (
            &["d/objects/", "d/refs/"],
            &["-d/HEAD", "+d/HEAD"],
            &["d/HEAD", "d/HEAD"],
        ),
        // Of a directory something may be left that the patch does not name.
        (
            &["d/objects/", "d/refs/x"],
            &["-d/refs/x", "+d/HEAD"],
            &["d/refs", "d/HEAD"],
        ),
    ];
    for (base, patch, expected) in cases {
        assert_eq!(refused_of(base, patch), *expected, "{base:?} {patch:?}");
    }
}

#[test]
fn nothing_of_a_git_directory_that_is_there_is_changed() {
    for (patch, expected) in [
        ("+d/config", Some("d/config")),
        ("+d/HEAD", Some("d/HEAD")),
        ("+d/hooks/post-checkout", Some("d/hooks")),
        ("+d/objects/info/alternates", Some("d/objects")),
        ("+d/modules/x/config", Some("d/modules")),
        ("+d/rebase-merge/git-rebase-todo", Some("d/rebase-merge")),
        ("+d/whatever", Some("d/whatever")),
        ("-d/config", Some("d/config")),
        ("+D/config", Some("D/config")),
        ("+e/config", None),
        ("+d.md", None),
    ] {
        let expected: Vec<&str> = expected.into_iter().collect();
        assert_eq!(refused_of(&BARE, &[patch]), expected, "{patch}");
    }
}

#[test]
fn what_is_no_git_directory_afterwards_crosses() {
    let cases: &[(&[&str], &[&str])] = &[
        (&[], &["+d/HEAD"]),
        (&[], &["+d/objects/x", "+d/refs/x", "+d/config"]),
        (&[], &["+d/HEAD", "+d/objects/x"]),
        (&[], &["+HEAD", "+d/objects/x", "+d/refs/x"]),
        (&[], &["+d/HEAD/x", "+d/objects/x", "+d/refs/x"]),
        (
            &[],
            &["+d/HEAD.md", "+d/objects.c", "+d/refs.c", "+d/commondir"],
        ),
        // A fixture that goes.
        (
            &["d/HEAD", "d/config", "d/objects/x", "d/refs/x"],
            &["-d/HEAD", "-d/config", "-d/objects/x", "-d/refs/x"],
        ),
        (&["w/HEAD", "w/commondir"], &["-w/commondir", "+w/a"]),
        (&BARE, &["+a", "+d2/config", "-b"]),
    ];
    for (base, patch) in cases {
        assert_eq!(refused_of(base, patch), [""; 0], "{base:?} {patch:?}");
    }
}

#[test]
fn pieces_that_come_in_two_patches_do_not_complete_it() {
    let first = ["+d/objects/x", "+d/refs/x", "+d/config"];
    assert_eq!(refused_of(&[], &first), [""; 0]);
    let then = ["d/objects/x", "d/refs/x", "d/config"];
    assert_eq!(refused_of(&then, &["+d/HEAD", "+d/b.md"]), ["d/HEAD"]);
}

#[test]
fn a_folder_is_read_as_it_is() {
    let top = tempfile::tempdir().unwrap();
    let at = |path: &str| top.path().join(path);
    std::fs::create_dir_all(at("d/objects")).unwrap();
    std::os::unix::fs::symlink("../x", at("d/Refs")).unwrap();
    std::fs::write(at("file"), "x").unwrap();
    std::os::unix::fs::symlink("d", at("link")).unwrap();
    let fd = std::fs::File::open(top.path()).unwrap();
    let of = |path: &str| {
        refused(
            &[(path.as_bytes(), After::Something)],
            &mut Folder(fd.as_fd()),
        )
        .unwrap()
    };
    assert_eq!(of("d/HEAD"), [(0, 6)]);
    // What is below a file or a link is somewhere else, or nowhere.
    for path in ["d/a", "file/HEAD", "link/HEAD", "none/HEAD", "HEAD"] {
        assert_eq!(of(path), [], "{path}");
    }
}
