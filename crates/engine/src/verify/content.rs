//! What a patch makes of a content, and whether that is what the result says it is.

use ringfence_model::ByteText;
use ringfence_model::changes::{Change, ChangeKind, FileMode, ObjectHash, Side};

use super::patch::{Body, FilePatch, Hunk, Kind, Literal, Sign};
use crate::changes::{BlobHasher, read_literal};

/// What a patch adds up to.
#[derive(Debug, Default)]
pub(super) struct Counted {
    pub insertions: u64,
    pub deletions: u64,
}

/// Holds the headers of a patch against the changes that a result lists. The first that differs is
/// named.
pub(super) fn compare(files: &[FilePatch<'_>], changes: &[Change]) -> Result<Counted, String> {
    if files.len() != changes.len() {
        return Err(format!(
            "the patch has {} files and the result {}",
            files.len(),
            changes.len()
        ));
    }
    let mut counted = Counted::default();
    for (file, change) in files.iter().zip(changes) {
        if let Some(what) = disagreement(file, change) {
            let path = ByteText::from(&file.path[..]);
            return Err(format!("{what} of `{path}` is not what the result says"));
        }
        if let Body::Text(hunks) = &file.body {
            for (sign, _) in hunks.iter().flat_map(|hunk| &hunk.lines) {
                counted.insertions += u64::from(*sign == Sign::In);
                counted.deletions += u64::from(*sign == Sign::Out);
            }
        }
    }
    Ok(counted)
}

fn disagreement(file: &FilePatch<'_>, change: &Change) -> Option<&'static str> {
    let (old, new) = (change.old.as_ref(), change.new.as_ref());
    let (kind, from) = match &change.kind {
        ChangeKind::Added => (Kind::Added, &change.path),
        ChangeKind::Deleted => (Kind::Deleted, &change.path),
        ChangeKind::Modified => (Kind::Modified, &change.path),
        ChangeKind::Renamed { from } => (Kind::Renamed, from),
    };
    if file.path != change.path.as_bytes() || file.old_path != from.as_bytes() {
        return Some("the path");
    }
    let sides = (old.is_some(), new.is_some());
    let expected = (kind != Kind::Added, kind != Kind::Deleted);
    if file.kind != kind || sides != expected {
        return Some("the kind");
    }
    let mode = |side: Option<&Side>| side.map(|side| side.mode);
    let stays = old.is_some() && mode(old) == mode(new);
    let modes = if stays {
        (None, None)
    } else {
        (mode(old), mode(new))
    };
    if file.modes != modes {
        return Some("the mode");
    }
    let same = old.is_some() && old.map(|side| &side.oid) == new.map(|side| &side.oid);
    let Some(index) = &file.index else {
        let nothing = file.body == Body::None && same;
        return (!nothing).then_some("the content");
    };
    let is = |side: Option<&Side>, oid: &str| match side {
        Some(side) => side.oid == oid,
        None => !oid.is_empty() && oid.bytes().all(|b| b == b'0'),
    };
    let index_mode: Option<FileMode> = mode(new).filter(|_| stays);
    if same || !is(old, index.old) || !is(new, index.new) || index.mode != index_mode {
        return Some("the content");
    }
    let size = |side: Option<&Side>| side.map_or(0, |side| side.size);
    let agrees = match &file.body {
        Body::None => !change.binary && size(old) == 0 && size(new) == 0,
        Body::Text(_) => !change.binary,
        Body::Binary { new: a, old: b } => {
            change.binary && a.size == size(new) && b.size == size(old)
        }
    };
    (!agrees).then_some("the content")
}

/// Whether what is needed to know a content stands in the patch itself.
pub(super) fn is_self_contained(file: &FilePatch<'_>) -> bool {
    matches!(file.kind, Kind::Added | Kind::Deleted) || matches!(file.body, Body::Binary { .. })
}

/// Applies a patch of one path to its old content, and holds both contents against their ids. A
/// patch that is self-contained needs no old content.
pub(super) fn check(
    file: &FilePatch<'_>,
    change: &Change,
    old: Option<&[u8]>,
    hash: ObjectHash,
) -> Result<(), String> {
    let failed = |what: &str| {
        let path = ByteText::from(&file.path[..]);
        Err(format!("`{path}`: {what}"))
    };
    let (before, after) = match &file.body {
        // Nothing but a mode or a name.
        Body::None if change.new.is_some() && change.old.is_some() => return Ok(()),
        Body::None => (Vec::new(), Vec::new()),
        Body::Binary { new, old } => match (inflate(old), inflate(new)) {
            (Some(old), Some(new)) => (old, new),
            _ => return failed("its binary content cannot be read"),
        },
        Body::Text(hunks) => {
            let before = match file.kind {
                Kind::Added => Vec::new(),
                Kind::Deleted => side(hunks, Sign::Out),
                _ => old.unwrap_or_default().to_vec(),
            };
            match apply(hunks, &before) {
                Some(after) => (before, after),
                None => return failed("the patch does not fit its old content"),
            }
        }
    };
    for (content, side, which) in [(&before, &change.old, "old"), (&after, &change.new, "new")] {
        let good = match side {
            Some(side) => is_content(content, side, hash),
            None => content.is_empty(),
        };
        if !good {
            return failed(&format!("its {which} content has another id"));
        }
    }
    Ok(())
}

/// Whether these bytes are what a side names.
pub(super) fn is_content(content: &[u8], side: &Side, hash: ObjectHash) -> bool {
    let mut hasher = BlobHasher::new(hash, content.len() as u64);
    hasher.update(content);
    content.len() as u64 == side.size && hasher.finish() == side.oid
}

fn inflate(literal: &Literal<'_>) -> Option<Vec<u8>> {
    read_literal(literal.size, literal.lines.iter().copied())
}

/// All lines of a sign.
fn side(hunks: &[Hunk<'_>], wanted: Sign) -> Vec<u8> {
    let lines = hunks.iter().flat_map(|hunk| &hunk.lines);
    lines
        .filter(|(sign, _)| *sign == wanted)
        .flat_map(|(_, text)| text.iter().copied())
        .collect()
}

/// The text that hunks make of another. Each must fit exactly where it says.
fn apply(hunks: &[Hunk<'_>], old: &[u8]) -> Option<Vec<u8>> {
    let lines: Vec<&[u8]> = old.split_inclusive(|&b| b == b'\n').collect();
    let mut out: Vec<&[u8]> = Vec::new();
    let mut at = 0;
    for hunk in hunks {
        let start = usize::try_from(hunk.old_start).ok()?;
        out.extend(lines.get(at..start)?);
        at = start;
        if out.len() as u64 != hunk.new_start {
            return None;
        }
        for (sign, text) in &hunk.lines {
            if *sign != Sign::In {
                if lines.get(at) != Some(text) {
                    return None;
                }
                at += 1;
            }
            if *sign != Sign::Out {
                out.push(text);
            }
        }
    }
    out.extend(&lines[at..]);
    Some(out.concat())
}

#[cfg(test)]
mod tests {
    use super::super::patch::parse;
    use super::*;

    fn applied(old: &str, hunks: &str) -> Option<String> {
        let patch = format!("diff --git a/a b/a\nindex 1..2 100644\n--- a/a\n+++ b/a\n{hunks}");
        let files = parse(patch.as_bytes()).ok()?;
        let Body::Text(hunks) = &files[0].body else {
            return None;
        };
        let bytes = apply(hunks, old.as_bytes())?;
        Some(String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn hunks_fit_where_they_say_and_nowhere_else() {
        for (old, hunks, new) in [
            ("a\nb\n", "@@ -1,2 +1,2 @@\n a\n-b\n+c\n", Some("a\nc\n")),
            ("a\nb\n", "@@ -2 +2 @@\n-b\n+c\n", Some("a\nc\n")),
            ("a\nb\n", "@@ -1 +1 @@\n-b\n+c\n", None),
            ("a\nb\n", "@@ -2 +1 @@\n-b\n+c\n", None),
            ("a\n", "@@ -1,0 +2 @@\n+b\n", Some("a\nb\n")),
            ("a\n", "@@ -9,0 +10 @@\n+b\n", None),
            (
                "a",
                "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n",
                Some("a\n"),
            ),
            ("a", "@@ -1 +1 @@\n-a\n+b\n", None),
            (
                "1\n2\n3\n",
                "@@ -1 +1 @@\n-1\n+x\n@@ -3 +3 @@\n-3\n+z\n",
                Some("x\n2\nz\n"),
            ),
            (
                "1\n2\n3\n",
                "@@ -3 +3 @@\n-3\n+z\n@@ -1 +1 @@\n-1\n+x\n",
                None,
            ),
        ] {
            assert_eq!(applied(old, hunks).as_deref(), new, "{old:?} {hunks:?}");
        }
    }
}
