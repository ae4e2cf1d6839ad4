//! The text of a patch as this program writes one, and nothing else: what cannot have come from
//! here is refused rather than guessed at. So there are no copies, no binary deltas, no fuzz.
//!
//! HOSTILE: every byte. All lengths are those of the text in hand; nothing is reserved by a number
//! that stands in it.

use ringfence_model::ByteText;
use ringfence_model::changes::FileMode;

use crate::changes::quoted;

/// What a patch says of one path.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FilePatch<'a> {
    pub old_path: Vec<u8>,
    pub path: Vec<u8>,
    pub kind: Kind,
    /// `old mode` and `new mode`, or the one mode of what comes or goes.
    pub modes: (Option<FileMode>, Option<FileMode>),
    pub index: Option<IndexLine<'a>>,
    pub body: Body<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Added,
    Deleted,
    Modified,
    Renamed,
}

/// `index OLD..NEW MODE`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct IndexLine<'a> {
    pub old: &'a str,
    pub new: &'a str,
    /// Only where it did not change.
    pub mode: Option<FileMode>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Body<'a> {
    None,
    Text(Vec<Hunk<'a>>),
    Binary { new: Literal<'a>, old: Literal<'a> },
}

/// A piece of text that is replaced.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hunk<'a> {
    /// Lines before it, on each side.
    pub old_start: u64,
    pub new_start: u64,
    pub lines: Vec<(Sign, &'a [u8])>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    Same,
    Out,
    In,
}

/// A whole content, deflated, in base 85.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Literal<'a> {
    pub size: u64,
    pub lines: Vec<&'a [u8]>,
}

/// Where a patch is not one of ours.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unreadable {
    pub line: u64,
    pub why: Why,
}

/// What is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    NotOurs,
    /// A commit of another repository in the place of a file.
    Submodule,
}

/// All of a patch.
pub(super) fn parse(text: &[u8]) -> Result<Vec<FilePatch<'_>>, Unreadable> {
    let mut lines = Lines {
        rest: text,
        number: 0,
        why: Why::NotOurs,
    };
    let mut files = Vec::new();
    while !lines.rest.is_empty() {
        match file(&mut lines) {
            Some(file) => files.push(file),
            None => {
                return Err(Unreadable {
                    line: lines.number,
                    why: lines.why,
                });
            }
        }
    }
    Ok(files)
}

struct Lines<'a> {
    rest: &'a [u8],
    number: u64,
    why: Why,
}

impl<'a> Lines<'a> {
    /// The next line without its newline, which must be there.
    fn next(&mut self) -> Option<&'a [u8]> {
        self.number += 1;
        let end = memchr::memchr(b'\n', self.rest)?;
        let line = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Some(line)
    }

    /// The rest of the next line, if it begins so.
    fn after(&mut self, start: &str) -> Option<&'a [u8]> {
        if self.rest.starts_with(start.as_bytes()) {
            self.next()?.strip_prefix(start.as_bytes())
        } else {
            None
        }
    }

    /// A mode; only three are.
    fn mode(&mut self, text: &[u8]) -> Option<FileMode> {
        if text == b"160000" {
            self.why = Why::Submodule;
        }
        [FileMode::Regular, FileMode::Executable, FileMode::Symlink]
            .into_iter()
            .find(|mode| mode.octal().as_bytes() == text)
    }
}

fn file<'a>(lines: &mut Lines<'a>) -> Option<FilePatch<'a>> {
    let names = lines.next()?.strip_prefix(b"diff --git ")?;
    let mut modes = (None, None);
    let mut kind = Kind::Modified;
    if let Some(mode) = lines.after("new file mode ") {
        (modes.1, kind) = (Some(lines.mode(mode)?), Kind::Added);
    } else if let Some(mode) = lines.after("deleted file mode ") {
        (modes.0, kind) = (Some(lines.mode(mode)?), Kind::Deleted);
    } else if let Some(mode) = lines.after("old mode ") {
        let new = lines.after("new mode ")?;
        modes = (Some(lines.mode(mode)?), Some(lines.mode(new)?));
    }
    let (old_path, path) = match lines.after("similarity index ") {
        Some(percent) => {
            let percent = percent.strip_suffix(b"%")?;
            if kind != Kind::Modified || number(percent)? > 100 {
                return None;
            }
            kind = Kind::Renamed;
            let from = unquoted(lines.after("rename from ")?)?;
            (from, unquoted(lines.after("rename to ")?)?)
        }
        None => {
            let path = twice(names)?;
            (path.clone(), path)
        }
    };
    if names != both(&old_path, &path) {
        return None;
    }
    let index = match lines.after("index ") {
        Some(line) => Some(index_line(lines, line)?),
        None => None,
    };
    let mut file = FilePatch {
        old_path,
        path,
        kind,
        modes,
        index,
        body: Body::None,
    };
    file.body = body(lines, &file)?;
    Some(file)
}

fn body<'a>(lines: &mut Lines<'a>, file: &FilePatch<'_>) -> Option<Body<'a>> {
    if lines.rest.starts_with(b"GIT binary patch\n") {
        lines.next()?;
        let new = literal(lines)?;
        let old = literal(lines)?;
        return Some(Body::Binary { new, old });
    }
    let Some(old) = lines.after("--- ") else {
        return Some(Body::None);
    };
    let new = lines.after("+++ ")?;
    let expected = |prefix: &[u8], path: &[u8], absent: bool| {
        if absent {
            return b"/dev/null".to_vec();
        }
        let mut name = quoted(prefix, path);
        if name.contains(&b' ') {
            name.push(b'\t');
        }
        name
    };
    if old != expected(b"a/", &file.old_path, file.kind == Kind::Added)
        || new != expected(b"b/", &file.path, file.kind == Kind::Deleted)
    {
        return None;
    }
    let mut hunks = Vec::new();
    while let Some(span) = lines.after("@@ -") {
        hunks.push(hunk(lines, span)?);
    }
    (!hunks.is_empty()).then_some(Body::Text(hunks))
}

fn hunk<'a>(lines: &mut Lines<'a>, span: &[u8]) -> Option<Hunk<'a>> {
    let span = span.strip_suffix(b" @@")?;
    let mut sides = span.split(|&b| b == b' ');
    let (old_start, mut old_left) = range(sides.next()?)?;
    let (new_start, mut new_left) = range(sides.next()?.strip_prefix(b"+")?)?;
    if sides.next().is_some() {
        return None;
    }
    let mut found = Vec::new();
    while old_left > 0 || new_left > 0 {
        let at = lines.rest;
        let line = lines.next()?;
        let (sign, text) = line.split_first()?;
        let sign = match sign {
            b' ' => Sign::Same,
            b'-' => Sign::Out,
            b'+' => Sign::In,
            _ => return None,
        };
        if sign != Sign::In {
            old_left = old_left.checked_sub(1)?;
        }
        if sign != Sign::Out {
            new_left = new_left.checked_sub(1)?;
        }
        let text = match lines.after("\\ No newline at end of file") {
            Some(b"") => text,
            Some(_) => return None,
            None => &at[1..=line.len()],
        };
        found.push((sign, text));
    }
    Some(Hunk {
        old_start,
        new_start,
        lines: found,
    })
}

/// `START[,COUNT]`; gives the lines before, and how many there are.
fn range(text: &[u8]) -> Option<(u64, u64)> {
    let mut parts = text.splitn(2, |&b| b == b',');
    let start = number(parts.next()?)?;
    let count = parts.next().map_or(Some(1), number)?;
    match count {
        0 => Some((start, 0)),
        _ => Some((start.checked_sub(1)?, count)),
    }
}

fn literal<'a>(lines: &mut Lines<'a>) -> Option<Literal<'a>> {
    let size = number(lines.after("literal ")?)?;
    let mut found = Vec::new();
    loop {
        match lines.next()? {
            b"" => return Some(Literal { size, lines: found }),
            line => found.push(line),
        }
    }
}

fn index_line<'a>(lines: &mut Lines<'a>, line: &'a [u8]) -> Option<IndexLine<'a>> {
    let line = std::str::from_utf8(line).ok()?;
    let (ids, mode) = match line.split_once(' ') {
        Some((ids, mode)) => (ids, Some(lines.mode(mode.as_bytes())?)),
        None => (line, None),
    };
    let (old, new) = ids.split_once("..")?;
    Some(IndexLine { old, new, mode })
}

/// Digits only, without zeros before them.
fn number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let value: u64 = text.parse().ok()?;
    (value.to_string() == text).then_some(value)
}

/// The names of a header.
fn both(old: &[u8], new: &[u8]) -> Vec<u8> {
    [quoted(b"a/", old), quoted(b"b/", new)].join(&b' ')
}

/// The one path in `a/PATH b/PATH`.
fn twice(names: &[u8]) -> Option<Vec<u8>> {
    // Both halves are alike but for their first letter, so that each has half of the length.
    let half = names.len().checked_sub(1)? / 2;
    let path = unquoted(&names[..half])?;
    Some(path.strip_prefix(b"a/")?.to_vec())
}

fn unquoted(name: &[u8]) -> Option<Vec<u8>> {
    match name.first()? {
        b'"' => ByteText::from_text(std::str::from_utf8(name).ok()?).map(|text| text.0),
        _ => Some(name.to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATCH: &str = "diff --git a/a b b/a b\n\
        old mode 100644\nnew mode 100755\n\
        index 1..2\n--- a/a b\t\n+++ b/a b\t\n\
        @@ -1,2 +1,2 @@\n-x\n+y\n z\n\\ No newline at end of file\n\
        diff --git \"a/q\\\"\" \"b/q\\\"\"\n\
        new file mode 120000\nindex 0..3\n--- /dev/null\n+++ \"b/q\\\"\"\n@@ -0,0 +1 @@\n+t\n\
        diff --git a/m b/n\nsimilarity index 100%\nrename from m\nrename to n\n";

    #[test]
    fn a_patch_is_read() {
        let files = parse(PATCH.as_bytes()).unwrap();
        assert_eq!(files.len(), 3);
        assert_eq!(files[0].path, b"a b");
        assert_eq!(
            files[0].modes,
            (Some(FileMode::Regular), Some(FileMode::Executable))
        );
        let Body::Text(hunks) = &files[0].body else {
            panic!("no text");
        };
        let lines: [(Sign, &[u8]); 3] =
            [(Sign::Out, b"x\n"), (Sign::In, b"y\n"), (Sign::Same, b"z")];
        assert_eq!(hunks[0].lines, lines);
        assert_eq!(
            (&files[1].path[..], files[1].kind),
            (&b"q\""[..], Kind::Added)
        );
        assert_eq!(
            (&files[2].old_path[..], files[2].kind),
            (&b"m"[..], Kind::Renamed)
        );
    }

    #[test]
    fn what_we_do_not_write_is_refused() {
        for (from, to) in [
            ("a/a b b/a b", "a/a b b/a c"),
            ("--- a/a b\t", "--- a/a c\t"),
            ("+++ b/a b\t", "+++ b/a b"),
            ("@@ -1,2 +1,2 @@", "@@ -1,2 +1,3 @@"),
            ("@@ -1,2 +1,2 @@", "@@ -1,2 +1,2 @@ f()"),
            ("@@ -1,2 +1,2 @@", "@@ -01,2 +1,2 @@"),
            ("100755", "100777"),
            ("rename to n", "rename to o"),
            ("similarity index 100%", "similarity index 101%"),
            ("+t\n", "+t\n+u\n"),
            ("\ndiff --git a/m", "\n\ndiff --git a/m"),
            ("rename to n\n", "rename to n"),
        ] {
            let changed = PATCH.replace(from, to);
            assert_ne!(changed, PATCH, "{from}");
            assert!(parse(changed.as_bytes()).is_err(), "{to}");
        }
    }

    #[test]
    fn a_submodule_is_named() {
        for (from, to) in [
            ("new file mode 120000", "new file mode 160000"),
            ("new mode 100755", "new mode 160000"),
        ] {
            let changed = PATCH.replace(from, to);
            assert_eq!(parse(changed.as_bytes()).unwrap_err().why, Why::Submodule);
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(
            at: proptest::sample::Index,
            cut: proptest::sample::Index,
            byte: u8,
        ) {
            let mut text = PATCH.as_bytes().to_vec();
            let at = at.index(text.len());
            text[at] = byte;
            let _ = parse(&text);
            let _ = parse(&text[cut.index(text.len())..]);
        }
    }
}
