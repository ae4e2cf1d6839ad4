//! Puts hunks into a content: lines must match exactly, but may have moved.

use ringfence_model::ByteText;

use super::parse::Hunk;
use crate::failure::{Hint as _, Outcome, conflict, too_large};

/// BOUND: lines that are compared for one patch; a file of equal lines could ask for any number.
pub const MAX_COMPARED: usize = 200_000_000;

/// The content after all hunks. `compared` is what may still be compared.
pub fn apply(
    content: &[u8],
    hunks: &[Hunk<'_>],
    path: &ByteText,
    compared: &mut usize,
) -> Outcome<Vec<u8>> {
    let lines: Vec<&[u8]> = content.split_inclusive(|byte| *byte == b'\n').collect();
    let mut out = Vec::with_capacity(content.len());
    let mut taken = 0;
    // How far the hunk before had moved; the next has most likely moved as far.
    let mut moved: isize = 0;
    for (index, hunk) in hunks.iter().enumerate() {
        let number = index + 1;
        if hunk.old.is_empty() && !lines.is_empty() {
            return Err(conflict(format!(
                "hunk {number} of `{path}` has no line to find its place by"
            ))
            .hint("give lines of context"));
        }
        let stated = hunk.line.saturating_sub(1);
        let expected = stated.saturating_add_signed(moved);
        let Some(at) = nearest(&lines, &hunk.old, expected, taken, compared)? else {
            return Err(conflict(format!(
                "hunk {number} of `{path}` does not match at line {} or anywhere behind line {taken}",
                hunk.line
            ))
            .hint("read the file again: context must match exactly"));
        };
        moved = at.cast_signed() - stated.cast_signed();
        out.extend(lines[taken..at].concat());
        out.extend(hunk.new.concat());
        taken = at + hunk.old.len();
    }
    out.extend(lines[taken..].concat());
    Ok(out)
}

/// The place nearest to `expected` at which these lines are, not before `first`.
fn nearest(
    lines: &[&[u8]],
    wanted: &[&[u8]],
    expected: usize,
    first: usize,
    compared: &mut usize,
) -> Outcome<Option<usize>> {
    let Some(last) = lines.len().checked_sub(wanted.len()) else {
        return Ok(None);
    };
    if first > last {
        return Ok(None);
    }
    let start = expected.clamp(first, last);
    for distance in 0..=(last - first) {
        let behind = start.checked_add(distance).filter(|at| *at <= last);
        let before = start.checked_sub(distance).filter(|at| *at >= first);
        for at in [behind, before.filter(|_| distance > 0)]
            .into_iter()
            .flatten()
        {
            if matches(&lines[at..], wanted, compared)? {
                return Ok(Some(at));
            }
        }
    }
    Ok(None)
}

fn matches(lines: &[&[u8]], wanted: &[&[u8]], compared: &mut usize) -> Outcome<bool> {
    for (line, wanted) in lines.iter().zip(wanted) {
        *compared = compared
            .checked_sub(1)
            .ok_or_else(|| too_large("the places of the hunks are too hard to find".to_owned()))?;
        if line != wanted {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hunk<'a>(line: usize, old: &'a str, new: &'a str) -> Hunk<'a> {
        Hunk {
            line,
            old: old.split_inclusive('\n').map(str::as_bytes).collect(),
            new: new.split_inclusive('\n').map(str::as_bytes).collect(),
        }
    }

    fn applied(content: &str, hunks: &[Hunk<'_>]) -> Option<String> {
        let mut compared = 1_000;
        let path = ByteText::from("f");
        apply(content.as_bytes(), hunks, &path, &mut compared)
            .ok()
            .map(|content| String::from_utf8(content).unwrap())
    }

    #[test]
    fn the_nearest_place_is_taken() {
        for (content, hunks, expected) in [
            ("a\nb\n", vec![hunk(1, "a\n", "x\n")], Some("x\nb\n")),
            ("0\na\nb\n", vec![hunk(1, "a\n", "x\n")], Some("0\nx\nb\n")),
            (
                "a\n1\n2\na\n",
                vec![hunk(3, "a\n", "x\n")],
                Some("a\n1\n2\nx\n"),
            ),
            (
                "a\n1\n2\na\n",
                vec![hunk(99, "a\n", "x\n")],
                Some("a\n1\n2\nx\n"),
            ),
            ("", vec![hunk(0, "", "x\n")], Some("x\n")),
            ("a", vec![hunk(1, "a", "a\n")], Some("a\n")),
            ("a\n", vec![hunk(1, "a", "a\n")], None),
            ("a\r\n", vec![hunk(1, "a\n", "x\n")], None),
            ("a\n", vec![hunk(1, "", "x\n")], None),
            ("a\n", vec![hunk(1, "a\nb\n", "x\n")], None),
            // In order, and never over one another.
            (
                "a\na\n",
                vec![hunk(1, "a\n", "x\n"), hunk(1, "a\n", "y\n")],
                Some("x\ny\n"),
            ),
            (
                "b\na\n",
                vec![hunk(2, "a\n", "x\n"), hunk(1, "b\n", "y\n")],
                None,
            ),
            // The second has moved as far as the first.
            (
                "0\n0\na\nz\nz\nz\nz\n",
                vec![hunk(1, "a\n", "x\n"), hunk(3, "z\n", "y\n")],
                Some("0\n0\nx\nz\ny\nz\nz\n"),
            ),
        ] {
            assert_eq!(applied(content, &hunks).as_deref(), expected, "{content:?}");
        }
    }

    #[test]
    fn a_hard_search_ends() {
        let content = "\n".repeat(1_000);
        let old = "\n".repeat(500) + "x\n";
        let mut compared = 10_000;
        let path = ByteText::from("f");
        let failure = apply(
            content.as_bytes(),
            &[hunk(1, &old, "")],
            &path,
            &mut compared,
        );
        assert_eq!(
            failure.unwrap_err().kind,
            ringfence_model::tools::FailureKind::TooLarge
        );
    }
}
