//! Patches that nobody's run has made, against a real folder: each is refused, and nothing is
//! touched, neither there nor beside it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use ringfence_model::ByteText;
use ringfence_model::changes::{Change, ChangeKind, FileMode, ObjectHash, Side};

use super::plan::Planner;
use super::target::Target;
use super::*;
use crate::changes::{BlobHasher, quoted};
use crate::home::Home;

/// A folder with a file beside it, and a home.
struct Place {
    _directory: tempfile::TempDir,
    home: Home,
    top: PathBuf,
}

impl Place {
    fn make() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().join("beside/folder");
        fs::create_dir_all(top.join("d")).unwrap();
        fs::write(directory.path().join("beside/victim"), "keep\n").unwrap();
        fs::create_dir_all(top.join(".git/hooks")).unwrap();
        for (name, text) in [("a", "1\n"), ("d/x", "x\nx\nx\n")] {
            fs::write(top.join(name), text).unwrap();
        }
        let home = Home::open(Some(directory.path().join("home"))).unwrap();
        Self {
            _directory: directory,
            home,
            top,
        }
    }

    /// Everything in the folder and beside it.
    fn seen(&self) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
        let mut found = BTreeMap::new();
        let mut pending = vec![self.top.parent().unwrap().to_owned()];
        while let Some(path) = pending.pop() {
            let meta = fs::symlink_metadata(&path).unwrap();
            let held = if meta.is_dir() {
                pending.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
                Vec::new()
            } else if meta.is_symlink() {
                fs::read_link(&path)
                    .unwrap()
                    .into_os_string()
                    .into_encoded_bytes()
            } else if meta.is_file() {
                fs::read(&path).unwrap()
            } else {
                Vec::new()
            };
            found.insert(path, (meta.permissions().mode(), held));
        }
        found
    }

    fn apply(&self, made: &[Made], links: OuterLinks) -> Result<Applied, ApplyError> {
        let text = made.iter().flat_map(|made| made.text.clone());
        let text: Vec<u8> = text.collect();
        let changes: Vec<Change> = made.iter().map(|made| made.change.clone()).collect();
        let patch = Patch::read(&text, &changes)?;
        let run = RunId::random().unwrap();
        patch_to_tree(&self.home, run, &patch, &self.top, links)
    }
}

/// One change with its part of a patch.
struct Made {
    text: Vec<u8>,
    change: Change,
}

fn side(mode: FileMode, content: &[u8]) -> Side {
    let mut hasher = BlobHasher::new(ObjectHash::Sha1, content.len() as u64);
    hasher.update(content);
    Side {
        mode,
        oid: hasher.finish(),
        size: content.len() as u64,
    }
}

fn head(path: &[u8]) -> Vec<u8> {
    let names = [quoted(b"a/", path), quoted(b"b/", path)].join(&b' ');
    [b"diff --git ", &names[..], b"\n"].concat()
}

/// A new file of one line, without an end where it is a link.
fn added(path: impl AsRef<[u8]>, mode: FileMode, line: &str) -> Made {
    let path = path.as_ref();
    let (content, end) = match mode {
        FileMode::Symlink => (line.to_owned(), "\n\\ No newline at end of file\n"),
        _ => (format!("{line}\n"), "\n"),
    };
    let new = side(mode, content.as_bytes());
    let mut name = quoted(b"b/", path);
    if name.contains(&b' ') {
        name.push(b'\t');
    }
    let text = [
        head(path),
        format!(
            "new file mode {}\nindex {}..{}\n--- /dev/null\n+++ ",
            mode.octal(),
            "0".repeat(40),
            new.oid
        )
        .into_bytes(),
        name,
        format!("\n@@ -0,0 +1 @@\n+{line}{end}").into_bytes(),
    ]
    .concat();
    Made {
        text,
        change: Change {
            path: ByteText::from(path),
            kind: ChangeKind::Added,
            old: None,
            new: Some(new),
            binary: false,
        },
    }
}

/// `d/x` with its second line changed; the patch says where, and of what.
fn edited(hunk: &str, old: &str, new: &str) -> Made {
    let (old, new) = (
        side(FileMode::Regular, old.as_bytes()),
        side(FileMode::Regular, new.as_bytes()),
    );
    let index = format!(
        "index {}..{} 100644\n--- a/d/x\n+++ b/d/x\n{hunk}",
        old.oid, new.oid
    );
    Made {
        text: [head(b"d/x"), index.into_bytes()].concat(),
        change: Change {
            path: "d/x".into(),
            kind: ChangeKind::Modified,
            old: Some(old),
            new: Some(new),
            binary: false,
        },
    }
}

fn file(path: impl AsRef<[u8]>) -> Made {
    added(path, FileMode::Regular, "pwned")
}

fn link(path: &str, target: &str) -> Made {
    added(path, FileMode::Symlink, target)
}

/// With another word in the text of the patch, and in nothing else.
fn with(mut made: Made, from: &str, to: &str) -> Made {
    let text = String::from_utf8(made.text).unwrap();
    assert!(text.contains(from), "{text}");
    made.text = text.replace(from, to).into_bytes();
    made
}

/// Cases of the attack list, by their ids, and the word that they are refused with.
fn refused() -> Vec<(&'static str, Vec<Made>, &'static str)> {
    let mut cases = vec![
        ("patch-001", vec![file("../out.txt")], "`..` in the path"),
        (
            "patch-001",
            vec![file("d/../../victim")],
            "`..` in the path",
        ),
        (
            "patch-001",
            vec![file("a"), file("../victim")],
            "`..` in the path",
        ),
        ("patch-002", vec![file("/etc/cron.d/x")], "an absolute path"),
        ("patch-002", vec![file("//victim")], "an absolute path"),
        // patch-005: there is no word that lets such a path pass; `--allow-links` is for links.
        (
            "patch-005",
            vec![file("../../beside/victim")],
            "`..` in the path",
        ),
        (
            "patch-006",
            vec![link("ln", ".."), file("ln/pwn.txt")],
            "below a file",
        ),
        (
            "patch-006",
            vec![link("ln", "d"), file("ln/x/y")],
            "below a file",
        ),
        // Through a link that the folder has: CVE-2023-23946.
        ("patch-006", vec![file("there/victim")], "a link on the way"),
        ("patch-006", vec![file("inside/new")], "a link on the way"),
        (
            "patch-011",
            vec![with(file("s"), "mode 100644", "mode 104755")],
            "is not one of a patch",
        ),
        (
            "patch-011",
            vec![with(file("s"), "mode 100644", "mode 100666")],
            "is not one of a patch",
        ),
        ("patch-014", vec![file("..\\..\\x")], "`..` in the path"),
        (
            "patch-014",
            vec![file("d\\.git\\config")],
            "git's own directory",
        ),
        // patch-016: where the lines are the same, only the place and the ids tell.
        (
            "patch-016",
            vec![edited("@@ -1 +1 @@\n-x\n+y\n", "x\nx\nx\n", "x\ny\nx\n")],
            "its new content has another id",
        ),
        (
            "patch-016",
            vec![edited("@@ -4 +4 @@\n-x\n+y\n", "x\nx\nx\n", "x\ny\nx\n")],
            "does not fit",
        ),
        (
            "patch-016",
            vec![edited("@@ -2 +2 @@\n-x\n+y\n", "x\nx\n", "x\ny\n")],
            "is not in git",
        ),
        (
            "patch-016",
            vec![with(file("n"), "+pwned", "+other")],
            "its new content has another id",
        ),
        (
            "git-020",
            vec![with(file("sub"), "mode 100644", "mode 160000")],
            "changes a submodule",
        ),
        (
            "git-021",
            vec![link("a2", ".git"), file("A2/modules/x")],
            "into `.git`",
        ),
        (
            "git-021",
            vec![link(".gitmodules", "a")],
            "git reads its submodules there",
        ),
        ("git-012", vec![file(".git")], "git's own directory"),
        (
            "git-014",
            vec![file("sub/.git/config")],
            "git's own directory",
        ),
        (
            "git-106",
            vec![file("n/HEAD"), file("n/objects/x"), link("n/refs", "../d")],
            "would be a git directory",
        ),
        (
            "git-106",
            vec![file("n/HEAD"), file("n/commondir")],
            "would be a git directory",
        ),
        // Parts of it are in the folder, as other machines see it.
        (
            "git-106",
            vec![file("half/HEAD")],
            "would be a git directory",
        ),
        (
            "git-106",
            vec![file("half/head")],
            "would be a git directory",
        ),
        // All of it is.
        (
            "git-106",
            vec![file("a-fixture/config.worktree")],
            "would be a git directory",
        ),
        (
            "git-106",
            vec![file("a-fixture/hooks/x"), file("n")],
            "would be a git directory",
        ),
        ("git-026", vec![file("fifo/x")], "a file where a directory"),
        (
            "git-029",
            vec![link("twice", "d"), file("twice")],
            "it changes twice",
        ),
    ];
    for path in [
        ".git/hooks/x",
        ".GIT/hooks/x",
        "git~1/hooks/x",
        ".git /hooks/x",
        ".git./hooks/x",
        ".git::$INDEX_ALLOCATION/x",
        "sub/.git/x",
        ".g\u{200c}it/x",
    ] {
        cases.push(("patch-003", vec![file(path)], "git's own directory"));
    }
    cases
}

#[test]
fn patches_of_the_attack_list_are_refused_and_nothing_is_touched() {
    let place = Place::make();
    symlink("..", place.top.join("there")).unwrap();
    symlink("d", place.top.join("inside")).unwrap();
    for path in [
        "half/objects",
        "half/Refs",
        "a-fixture/objects",
        "a-fixture/refs",
    ] {
        fs::create_dir_all(place.top.join(path)).unwrap();
    }
    fs::write(place.top.join("a-fixture/HEAD"), "ref: refs/heads/x\n").unwrap();
    let fifo = place.top.join("fifo");
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, fifo, kind, rustix::fs::Mode::RWXU, 0).unwrap();
    let before = place.seen();
    for (id, made, word) in refused() {
        let error = match place.apply(&made, OuterLinks::Refused) {
            Err(error) => error,
            Ok(applied) => panic!("{id}: {applied:?}"),
        };
        let mut said = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(next) = cause {
            said += &format!(": {next}");
            cause = next.source();
        }
        assert!(said.contains(word), "{id}: {said}");
        assert_eq!(place.seen(), before, "{id}");
    }
}

/// patch-011, patch-013, patch-014: what git takes too is taken, as git does, and flagged elsewhere.
#[test]
fn what_is_only_odd_is_applied() {
    let place = Place::make();
    let names = [
        "CON",
        "aux.txt",
        "a:b",
        "dot.",
        "blank ",
        "README.md",
        "readme.md",
        "\u{e9}",
        "e\u{301}",
        "l\nf",
    ];
    let mut names = names.to_vec();
    names.sort_unstable();
    let made: Vec<Made> = names.iter().map(file).collect();
    place.apply(&made, OuterLinks::Refused).unwrap();
    for name in names {
        assert_eq!(
            fs::read(place.top.join(name)).unwrap(),
            b"pwned\n",
            "{name:?}"
        );
    }
    place
        .apply(
            &[added("tool", FileMode::Executable, "#!")],
            OuterLinks::Refused,
        )
        .unwrap();
    let mode = fs::metadata(place.top.join("tool")).unwrap().permissions();
    assert_eq!(mode.mode() & 0o7111, 0o111);
}

/// patch-015: what a patch says that it inflates to is asked before anything is inflated.
#[test]
fn a_patch_that_is_a_bomb_is_refused() {
    let size = 10u64 << 30;
    let new = Side {
        size,
        ..side(FileMode::Regular, b"")
    };
    let new = Side {
        oid: "1".repeat(40),
        ..new
    };
    let text = format!(
        "new file mode 100644\nindex {}..{}\nGIT binary patch\nliteral {size}\nHcmV?d00001\n\nliteral 0\nHcmV?d00001\n\n",
        "0".repeat(40),
        new.oid
    );
    let bomb = Made {
        text: [head(b"bomb"), text.into_bytes()].concat(),
        change: Change {
            path: "bomb".into(),
            kind: ChangeKind::Added,
            old: None,
            new: Some(new),
            binary: true,
        },
    };
    let place = Place::make();
    let error = place.apply(&[bomb], OuterLinks::Refused).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("larger than a patch may carry"), "{cause}");
}

#[test]
fn what_is_held_in_memory_has_a_bound() {
    let place = Place::make();
    let made = [file("1"), file("2")];
    let text = [&made[0].text[..], &made[1].text].concat();
    let changes = made.each_ref().map(|made| made.change.clone());
    let patch = Patch::read(&text, &changes).unwrap();
    let target = Target::at(Path::new(&place.top)).unwrap();
    let plan = |most| Planner::new(&target, &patch, OuterLinks::Refused, most).plan();
    assert_eq!(plan(12).unwrap().ops.len(), 2);
    let error = plan(11).unwrap_err();
    assert!(error.to_string().contains("more than 11 bytes"), "{error}");
    assert!(error.hint().unwrap().contains("--branch"));
}
