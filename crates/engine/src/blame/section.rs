//! The part of a patch that belongs to one change.
//!
//! A patch has one section for each change, in the same order. Sections are counted; the names in
//! them are not read. Inside a hunk lines are counted as its head says, so no content is taken for
//! a head.

use std::io::{self, BufRead, Read as _};

/// BOUND: what a patch may hold, and a little more for its heads.
pub(super) const PATCH_BYTES: u64 = 600 << 20;
/// BOUND: hunks of one change in memory: both sides of the largest text.
const SECTION_BYTES: usize = 64 << 20;
/// BOUND: the longest line of a text, with its sign and end.
const LINE_BYTES: u64 = (1 << 20) + 2;

/// The hunks of the section with this number; `None` where the patch has fewer.
pub(super) fn hunks(patch: &mut impl BufRead, number: usize) -> io::Result<Option<Vec<Vec<u8>>>> {
    let mut section = 0;
    let mut hunks: Vec<Vec<u8>> = Vec::new();
    let mut bytes = 0;
    // Lines of the current hunk that are still to come, of each side.
    let mut left = (0, 0);
    let mut line = Vec::new();
    loop {
        line.clear();
        patch.take(LINE_BYTES).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            break;
        }
        let inside = left != (0, 0);
        match line[0] {
            b' ' if inside => left = (take(left.0)?, take(left.1)?),
            b'-' if inside => left.0 = take(left.0)?,
            b'+' if inside => left.1 = take(left.1)?,
            b'\\' => {}
            _ if inside => return Err(broken()),
            b'd' if line.starts_with(b"diff --git ") => {
                if section > number {
                    break;
                }
                section += 1;
                continue;
            }
            b'@' => {
                left = head(&line).ok_or_else(broken)?;
                if section == number + 1 {
                    hunks.push(Vec::new());
                }
            }
            _ => continue,
        }
        if let Some(hunk) = hunks.last_mut().filter(|_| section == number + 1) {
            bytes += line.len();
            if bytes > SECTION_BYTES {
                return Err(broken());
            }
            hunk.extend_from_slice(&line);
        }
    }
    Ok((section > number).then_some(hunks))
}

fn take(left: u64) -> io::Result<u64> {
    left.checked_sub(1).ok_or_else(broken)
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it is no patch of ours")
}

/// How many lines of each side a hunk has.
fn head(line: &[u8]) -> Option<(u64, u64)> {
    let line = std::str::from_utf8(line).ok()?;
    let (old, rest) = line.strip_prefix("@@ -")?.split_once(" +")?;
    let (new, _) = rest.split_once(" @@")?;
    let count = |span: &str| {
        let (start, count) = span.split_once(',').unwrap_or((span, "1"));
        start.parse::<u64>().ok()?;
        count.parse().ok()
    };
    Some((count(old)?, count(new)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATCH: &str = "diff --git a/a b/a\nindex 1..2 100644\n--- a/a\n+++ b/a\n\
        @@ -1,2 +1,2 @@\n-@@ -1 +1 @@\n+diff --git a/x b/x\n c\n@@ -9 +9 @@\n-x\n+y\n\
        \\ No newline at end of file\n\
        diff --git a/b b/b\nold mode 100644\nnew mode 100755\n\
        diff --git a/c b/c\nnew file mode 100644\nGIT binary patch\nliteral 0\nHcmV?d00001\n\n\
        diff --git a/d b/d\ndeleted file mode 100644\n--- a/d\n+++ /dev/null\n@@ -1 +0,0 @@\n--- \n";

    fn found(patch: &str, number: usize) -> Option<Vec<String>> {
        let hunks = hunks(&mut patch.as_bytes(), number).unwrap()?;
        let text = |hunk| String::from_utf8(hunk).unwrap();
        Some(hunks.into_iter().map(text).collect())
    }

    #[test]
    fn each_section_has_its_hunks_and_no_line_is_taken_for_a_head() {
        let a = found(PATCH, 0).unwrap();
        assert_eq!(a.len(), 2, "{a:?}");
        assert!(a[0].ends_with("+diff --git a/x b/x\n c\n"), "{a:?}");
        assert!(
            a[1].ends_with("+y\n\\ No newline at end of file\n"),
            "{a:?}"
        );
        assert_eq!(found(PATCH, 1), Some(Vec::new()));
        assert_eq!(found(PATCH, 2), Some(Vec::new()));
        assert_eq!(found(PATCH, 3).unwrap(), ["@@ -1 +0,0 @@\n--- \n"]);
        assert_eq!(found(PATCH, 4), None);
    }

    #[test]
    fn what_is_no_patch_is_said_to_be_none() {
        for patch in [
            "diff --git a b\n@@ -1,2 +1 @@\n-a\nb\n",
            "diff --git a b\n@@ -x +1 @@\n",
            "diff --git a b\n@@ -1 +1,2 @@\n-a\n-b\n",
        ] {
            assert!(hunks(&mut patch.as_bytes(), 0).is_err(), "{patch}");
        }
        assert_eq!(found("", 0), None);
    }
}
