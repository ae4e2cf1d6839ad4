//! Reads a patch that we rendered, line by line, and tells which file and line each one is of.
//!
//! HOSTILE: lines of files may look like headers. How many lines a hunk has is said by its header,
//! and nothing within it is taken for anything else.

use std::io::{self, BufRead};

use ringfence_model::changes::Change;
use ringfence_model::flag::{FlagKind, Severity};

use super::{Found, path};

/// BOUND: some seconds of looking; what comes later is named and not looked at.
pub const SCANNED_BYTES: u64 = 64 << 20;
/// BOUND: of one line; minified files have longer ones, which nobody reads anyway.
const LINE_BYTES: usize = 64 << 10;

/// One added or removed line.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    pub change: &'a Change,
    pub sign: Sign,
    /// Its number in the file, the new one or the old one.
    pub number: u64,
    /// Its number in the patch.
    pub patch_line: u64,
    /// Without sign and newline.
    pub text: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    Added,
    Removed,
}

/// What is left of a hunk.
#[derive(Default)]
struct Hunk {
    old: u64,
    new: u64,
    old_at: u64,
    new_at: u64,
}

/// Reads a patch whose files are these changes, in this order; gives the lines added and removed of
/// each one that was read to its end.
pub(super) fn read(
    patch: impl BufRead,
    changes: &[Change],
    found: &mut Found,
    mut look: impl FnMut(&Line<'_>, &mut Found),
) -> io::Result<Vec<(u64, u64)>> {
    let mut patch = patch.take(SCANNED_BYTES);
    let mut counts: Vec<(u64, u64)> = Vec::new();
    let mut text = Vec::new();
    let mut at = None;
    let mut hunk = Hunk::default();
    let mut patch_line = 0;
    loop {
        text.clear();
        if patch.read_until(b'\n', &mut text)? == 0 {
            break;
        }
        patch_line += 1;
        let line = text.strip_suffix(b"\n").unwrap_or(&text);
        if hunk.old == 0 && hunk.new == 0 {
            if line.starts_with(b"diff --git ") {
                at = Some(counts.len());
                counts.push((0, 0));
            } else if let Some(header) = line.strip_prefix(b"@@ -") {
                hunk = hunk_of(header);
            }
            continue;
        }
        let (Some(change), Some(count)) = (changes.get(at.unwrap_or(0)), counts.last_mut()) else {
            break;
        };
        let (sign, number) = match line.first() {
            Some(b'+') => {
                hunk.new = hunk.new.saturating_sub(1);
                hunk.new_at += 1;
                count.0 += 1;
                (Sign::Added, hunk.new_at - 1)
            }
            Some(b'-') => {
                hunk.old = hunk.old.saturating_sub(1);
                hunk.old_at += 1;
                count.1 += 1;
                (Sign::Removed, hunk.old_at - 1)
            }
            Some(b' ') => {
                hunk.old = hunk.old.saturating_sub(1);
                hunk.new = hunk.new.saturating_sub(1);
                hunk.old_at += 1;
                hunk.new_at += 1;
                continue;
            }
            // `\ No newline at end of file`
            _ => continue,
        };
        let whole = &line[1..];
        if whole.len() > LINE_BYTES {
            found.add(
                FlagKind::NotScanned,
                Severity::Info,
                "of a very long line only the beginning was looked at",
                path(&change.path),
            );
        }
        let line = Line {
            change,
            sign,
            number,
            patch_line,
            text: &whole[..whole.len().min(LINE_BYTES)],
        };
        look(&line, found);
    }
    if patch.limit() == 0 {
        found.add(
            FlagKind::NotScanned,
            Severity::Warning,
            format!(
                "the patch is large: only its first {} MiB were looked at line by line",
                SCANNED_BYTES >> 20
            ),
            at.and_then(|at| changes.get(at))
                .and_then(|c| path(&c.path)),
        );
        counts.pop();
    }
    Ok(counts)
}

/// `1,3 +1,4 @@ …`; a count that is not said is one.
fn hunk_of(header: &[u8]) -> Hunk {
    let text = String::from_utf8_lossy(header);
    let mut words = text.split(' ');
    let mut range = |sign: &str| {
        let word = words.next().unwrap_or_default().trim_start_matches(sign);
        let (at, count) = word.split_once(',').unwrap_or((word, "1"));
        (at.parse().unwrap_or(0), count.parse().unwrap_or(0))
    };
    let (old_at, old) = range("-");
    let (new_at, new) = range("+");
    Hunk {
        old,
        new,
        old_at,
        new_at,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::super::tests::change;
    use super::*;

    fn lines(patch: &str, changes: &[Change]) -> Vec<(String, char, u64, u64, String)> {
        let mut seen = Vec::new();
        let mut found = Found::default();
        read(patch.as_bytes(), changes, &mut found, |line, _| {
            seen.push((
                line.change.path.to_text(),
                if line.sign == Sign::Added { '+' } else { '-' },
                line.number,
                line.patch_line,
                String::from_utf8_lossy(line.text).into_owned(),
            ));
        })
        .unwrap();
        seen
    }

    #[test]
    fn lines_are_told_by_file_and_number_whatever_they_look_like() {
        let patch = "diff --git a/a b/a\nindex 1..2 100644\n--- a/a\n+++ b/a\n\
            @@ -2,3 +2,4 @@ diff --git a/x b/x\n context\n-- a/y\n+diff --git a/z b/z\n\
            +@@ -1,9 +1,9 @@\n last\n\
            diff --git a/b b/b\nnew file mode 100644\nindex 0..1\n--- /dev/null\n+++ b/b\n\
            @@ -0,0 +1 @@\n+only\n\\ No newline at end of file\n\
            diff --git a/c b/c\nGIT binary patch\nliteral 1\nIcmZPo\n\nliteral 0\nHcmV?d00001\n\n\
            diff --git a/d b/d\n--- a/d\n+++ b/d\n@@ -7 +7 @@\n-x\n+y\n";
        let changes = ["a", "b", "c", "d"].map(|name| change(name, "modified"));
        let line = |path: &str, sign, number, at, text: &str| {
            (path.to_owned(), sign, number, at, text.to_owned())
        };
        assert_eq!(
            lines(patch, &changes),
            [
                line("a", '-', 3, 7, "- a/y"),
                line("a", '+', 3, 8, "diff --git a/z b/z"),
                line("a", '+', 4, 9, "@@ -1,9 +1,9 @@"),
                line("b", '+', 1, 17, "only"),
                line("d", '-', 7, 31, "x"),
                line("d", '+', 7, 32, "y"),
            ]
        );
    }

    #[test]
    fn what_is_too_long_is_named() {
        let long = "x".repeat(LINE_BYTES + 1);
        let patch = format!("diff --git a/a b/a\n@@ -0,0 +1 @@\n+{long}\n");
        let mut found = Found::default();
        let changes = [change("a", "added")];
        let mut seen = 0;
        read(patch.as_bytes(), &changes, &mut found, |line, _| {
            seen = line.text.len();
        })
        .unwrap();
        assert_eq!(seen, LINE_BYTES);
        assert_eq!(found.finish()[0].kind, FlagKind::NotScanned);
        // A patch over the bound, without holding it.
        let header = b"diff --git a/a b/a\n@@ -0,0 +1,99999999 @@\n".as_slice();
        let endless = io::BufReader::new(header.chain(Endless));
        let mut found = Found::default();
        read(endless, &changes, &mut found, |_, _| {}).unwrap();
        let flags = found.finish();
        assert_eq!(flags[0].kind, FlagKind::NotScanned);
        assert_eq!(flags[0].severity, Severity::Warning);
    }

    /// Lines of 4 KiB for ever.
    struct Endless;

    impl io::Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            buffer.fill(b'+');
            if let Some(last) = buffer.last_mut() {
                *last = b'\n';
            }
            Ok(buffer.len())
        }
    }
}
