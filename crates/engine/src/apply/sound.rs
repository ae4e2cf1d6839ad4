//! Whether a commit or a tree that an agent made is one that git would make, and no more than that.
//!
//! Stricter than `git fsck --strict`: a commit has a tree, parents, two people and a message, in
//! text that can be seen; a tree is in order, has each name once, and only files, links and
//! directories.
//!
//! HOSTILE: every byte.

use std::collections::BTreeSet;

use ringfence_model::changes::ObjectHash;
use ringfence_model::hex;
use ringfence_model::text::misleads;

use super::Person;

/// BOUND: parents of one commit; more than anybody merges.
const PARENTS: usize = 16;
/// BOUND: bytes of one commit.
const COMMIT_BYTES: usize = 1 << 20;
/// The year 2200 or so: what follows is made up.
const LAST_SECOND: u64 = 7_258_118_400;

pub(super) const DIRECTORY: u32 = 0o040000;
pub(super) const REGULAR: u32 = 0o100644;
pub(super) const EXECUTABLE: u32 = 0o100755;
pub(super) const SYMLINK: u32 = 0o120000;
pub(super) const GITLINK: u32 = 0o160000;

/// A commit that may be taken over.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SoundCommit {
    pub tree: String,
    pub parents: Vec<String>,
}

/// Reads a commit, or says what is wrong with it.
pub(super) fn commit(bytes: &[u8], hash: ObjectHash) -> Result<SoundCommit, &'static str> {
    if bytes.len() > COMMIT_BYTES {
        return Err("it is too large");
    }
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not in UTF-8")?;
    let unseen = |c: char| misleads(c) && !matches!(c, '\n' | '\t');
    if text.chars().any(unseen) {
        return Err("there are characters in it that cannot be seen");
    }
    let (header, message) = text.split_once("\n\n").ok_or("it has no message")?;
    let mut lines = header.split('\n').peekable();
    let oid = |text: &str| hash.is_oid(text.as_bytes()).then(|| text.to_owned());
    let tree = lines.next().and_then(|line| line.strip_prefix("tree "));
    let tree = tree.and_then(oid).ok_or("it has no tree")?;
    let mut parents = Vec::new();
    while let Some(parent) = lines.peek().and_then(|line| line.strip_prefix("parent ")) {
        parents.push(oid(parent).ok_or("a parent of it has no id")?);
        lines.next();
    }
    let once: BTreeSet<&String> = parents.iter().collect();
    if once.len() != parents.len() || parents.len() > PARENTS {
        return Err("it has too many parents");
    }
    for who in ["author ", "committer "] {
        let line = lines.next().and_then(|line| line.strip_prefix(who));
        if !line.is_some_and(is_person) {
            return Err("its author or committer is not written as git does");
        }
    }
    // A signature is of somebody's key, and there is none inside.
    if lines.next().is_some() {
        return Err("it has headers that are not taken over, such as a signature");
    }
    if message.trim().is_empty() {
        return Err("it has no message");
    }
    // What we vouch for is not for an agent to write.
    let claims = |line: &str| {
        let start = line.trim_start().get(..10);
        start.is_some_and(|start| start.eq_ignore_ascii_case("ringfence-"))
    };
    if message.lines().any(claims) {
        return Err("its message has a trailer that only we write");
    }
    Ok(SoundCommit { tree, parents })
}

/// `Name <address> seconds zone`.
fn is_person(line: &str) -> bool {
    let parts = || {
        let (who, when) = line.rsplit_once("> ")?;
        let (name, address) = who.split_once(" <")?;
        let (seconds, zone) = when.split_once(' ')?;
        let person = Person::new(name, address)?;
        // Nothing is trimmed away.
        let whole = person.to_string() == format!("{who}>");
        let number: u64 = seconds.parse().ok()?;
        let plain = seconds == number.to_string() && number <= LAST_SECOND;
        let zone = zone.strip_prefix(['+', '-'])?;
        let zone = zone.len() == 4 && zone.bytes().all(|b| b.is_ascii_digit());
        (whole && plain && zone).then_some(())
    };
    parts().is_some()
}

/// One entry of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TreeEntry {
    pub mode: u32,
    pub name: Vec<u8>,
    pub oid: String,
}

/// The entries of a tree, as they are. `None` where it is none.
pub(super) fn entries(mut body: &[u8], hash: ObjectHash) -> Option<Vec<TreeEntry>> {
    let mut entries = Vec::new();
    while !body.is_empty() {
        let space = body.iter().position(|&b| b == b' ')?;
        let mode = std::str::from_utf8(&body[..space]).ok()?;
        let number = u32::from_str_radix(mode, 8).ok()?;
        // No `040000`, no `+100644`.
        if mode != format!("{number:o}") {
            return None;
        }
        let name = &body[space + 1..];
        let end = name.iter().position(|&b| b == 0)?;
        let (oid, rest) = name[end + 1..].split_at_checked(hash.bytes())?;
        entries.push(TreeEntry {
            mode: number,
            name: name[..end].to_vec(),
            oid: hex(oid),
        });
        body = rest;
    }
    Some(entries)
}

/// Whether the entries of a tree are in git's order, each name once.
pub(super) fn is_in_order(entries: &[TreeEntry]) -> bool {
    let key = |entry: &TreeEntry| match entry.mode {
        DIRECTORY => [&entry.name[..], b"/"].concat(),
        _ => entry.name.clone(),
    };
    let once: BTreeSet<&[u8]> = entries.iter().map(|entry| &entry.name[..]).collect();
    once.len() == entries.len() && entries.is_sorted_by(|a, b| key(a) < key(b))
}

/// What a tree has at a path. `entries` reads one of its directories.
pub(super) fn find(
    tree: &str,
    path: &[u8],
    entries: &mut dyn FnMut(&str) -> Option<Vec<TreeEntry>>,
) -> Option<TreeEntry> {
    let mut tree = tree.to_owned();
    let mut names = path.split(|&byte| byte == b'/').peekable();
    while let Some(name) = names.next() {
        let mut found = entries(&tree)?.into_iter();
        let entry = found.find(|entry| entry.name == name)?;
        match names.peek() {
            None => return Some(entry),
            Some(_) if entry.mode == DIRECTORY => tree = entry.oid,
            Some(_) => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "tree 1111111111111111111111111111111111111111\n\
        parent 2222222222222222222222222222222222222222\n\
        author A B <a@b> 1700000000 +0100\n\
        committer A B <a@b> 1700000000 -0000\n\n\
        Subject\n\nBody\twith words\n";

    #[test]
    fn only_plain_commits_are_taken() {
        let found = commit(GOOD.as_bytes(), ObjectHash::Sha1).unwrap();
        assert_eq!(found.parents, ["2".repeat(40)]);
        assert!(commit(GOOD.as_bytes(), ObjectHash::Sha256).is_err());
        let parent = format!("parent {}\n", "2".repeat(40));
        for (from, to) in [
            ("tree 1", "tree x"),
            ("tree ", "Tree "),
            ("parent 2", "parent g"),
            (&parent, &parent.repeat(2)),
            ("author A B", "author A\x1b[31mB"),
            ("author A B", "author A\u{202e}B"),
            ("author A B <", "author <"),
            ("author A B <", "author A B<"),
            ("author A B", "author A <x> B"),
            ("author A B <a@b> 1", "author A B <a@b> 01"),
            ("author A B <a@b> 1", "author A B <a@b> -1"),
            ("author A B <a@b> 1", "author A B <a@b> 99999999991"),
            ("+0100", "+100"),
            ("+0100", "0100"),
            ("-0000\n", "-0000\ngpgsig -----BEGIN\n"),
            ("-0000\n", "-0000\nencoding latin-1\n"),
            ("-0000\n", "-0000\nmergetag object 1\n"),
            ("Body", "Bo\0dy"),
            ("Body", "Bo\rdy"),
            ("Body", "Bo\x1b]0;x\x07dy"),
            ("Body", "Ringfence-Run: forged\nBody"),
            ("Body", "ringfence-bundle: sha256:0\nBody"),
            ("Subject\n\nBody\twith words", ""),
            ("\n\nSubject", "\nSubject"),
        ] {
            let changed = GOOD.replacen(from, to, 1);
            assert_ne!(changed, GOOD, "{from:?}");
            let found = commit(changed.as_bytes(), ObjectHash::Sha1);
            assert!(found.is_err(), "{from:?} {to:?}");
        }
        let mut latin = GOOD.as_bytes().to_vec();
        latin.push(0xff);
        assert!(commit(&latin, ObjectHash::Sha1).is_err());
    }

    #[test]
    fn only_trees_in_order_are_taken() {
        let tree = |parts: &[(&str, &str)]| {
            let mut body = Vec::new();
            for (mode, name) in parts {
                body.extend_from_slice(format!("{mode} {name}\0").as_bytes());
                body.extend_from_slice(&[1; 20]);
            }
            let entries = entries(&body, ObjectHash::Sha1)?;
            is_in_order(&entries).then_some(entries.len())
        };
        for (parts, good) in [
            (&[("100644", "a"), ("40000", "b")][..], true),
            (&[("100644", "a.b"), ("40000", "a")], true),
            (&[("40000", "a"), ("100644", "a.b")], false),
            (&[("100644", "b"), ("100644", "a")], false),
            // git-029: a link and a directory of one name.
            (&[("120000", "a"), ("40000", "a")], false),
            (&[("120000", "a"), ("100644", "a.b"), ("40000", "a")], false),
            (&[("040000", "a")], false),
            (&[("0100644", "a")], false),
        ] {
            assert_eq!(tree(parts).is_some(), good, "{parts:?}");
        }
        assert!(entries(b"100644 a\0short", ObjectHash::Sha1).is_none());
        assert!(entries(b"100644 a", ObjectHash::Sha1).is_none());
    }
}
