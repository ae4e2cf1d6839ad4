//! Text hunks, as in a unified diff.

use std::io::{self, Write};
use std::ops::Range;

use imara_diff::{Algorithm, Diff, InternedInput, Token};

/// Unchanged lines shown around a change, as git does.
const CONTEXT_LINES: usize = 3;
/// BOUND: histogram reads best and is quadratic where an agent wants it to be.
const HISTOGRAM_LINES: usize = 5_000;
/// BOUND: over this, between the first and the last line that differ, everything is replaced.
const DIFFED_LINES: usize = 30_000;
/// BOUND: for all files of a patch together; after it, only what is short is still diffed.
const EFFORT_LINES: usize = 1_000_000;
/// Diffing so few lines takes no time, whatever they are.
const SHORT_LINES: usize = 500;

/// What is left of the work that one patch may cost. An agent can make a thousand files that are
/// each slow to diff; each would be within its own bound.
#[derive(Debug)]
pub(crate) struct Effort {
    lines: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Self {
            lines: EFFORT_LINES,
        }
    }
}

impl Effort {
    fn spend(&mut self, lines: usize) -> bool {
        let enough = lines <= DIFFED_LINES && (lines <= SHORT_LINES || lines <= self.lines);
        if enough && lines > SHORT_LINES {
            self.lines -= lines;
        }
        enough
    }
}

/// Lines added and taken away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lines {
    pub insertions: u64,
    pub deletions: u64,
}

/// A run of lines that is replaced by another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Edit {
    pub before: Range<usize>,
    pub after: Range<usize>,
}

/// Edits that are near each other, with the unchanged lines around them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hunk {
    pub before: Range<usize>,
    pub after: Range<usize>,
    pub edits: Vec<Edit>,
}

/// How well two texts were compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precision {
    Exact,
    /// Too much to compare: everything between the first and the last difference is one edit.
    Coarse,
}

/// Two texts and what differs between them.
pub(crate) struct Comparison<'a> {
    input: InternedInput<&'a [u8]>,
    pub hunks: Vec<Hunk>,
    pub precision: Precision,
}

impl<'a> Comparison<'a> {
    /// Finds the hunks that turn `old` into `new`; none where they are equal.
    pub fn new(old: &'a [u8], new: &'a [u8], effort: &mut Effort) -> Self {
        let input = InternedInput::new(old, new);
        let (edits, precision) = edits(&input, effort);
        let mut hunks = Vec::new();
        let mut rest = &edits[..];
        while !rest.is_empty() {
            let near =
                |pair: &[Edit]| pair[1].before.start - pair[0].before.end <= 2 * CONTEXT_LINES;
            let together = 1 + rest.windows(2).take_while(|pair| near(pair)).count();
            let (near, later) = rest.split_at(together);
            hunks.push(hunk(&input, near));
            rest = later;
        }
        Self {
            input,
            hunks,
            precision,
        }
    }

    /// How many lines the old text has.
    pub fn lines_before(&self) -> usize {
        self.input.before.len()
    }

    pub fn edits(&self) -> impl Iterator<Item = &Edit> {
        self.hunks.iter().flat_map(|hunk| &hunk.edits)
    }

    /// Writes the hunks.
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<Lines> {
        for hunk in &self.hunks {
            write_hunk(&self.input, hunk, out)?;
        }
        let mut lines = Lines::default();
        for edit in self.edits() {
            lines.deletions += edit.before.len() as u64;
            lines.insertions += edit.after.len() as u64;
        }
        Ok(lines)
    }
}

fn edits(input: &InternedInput<&[u8]>, effort: &mut Effort) -> (Vec<Edit>, Precision) {
    let (before, after) = (&input.before, &input.after);
    let equal = |pair: &(&Token, &Token)| pair.0 == pair.1;
    let head = before.iter().zip(after).take_while(equal).count();
    let (before_rest, after_rest) = (&before[head..], &after[head..]);
    let tail = before_rest
        .iter()
        .rev()
        .zip(after_rest.iter().rev())
        .take_while(equal)
        .count();
    let middle = before_rest.len().max(after_rest.len()) - tail;
    if before_rest.len() == tail && after_rest.len() == tail {
        return (Vec::new(), Precision::Exact);
    }
    // With nothing on one side there is nothing to find out.
    let one_sided = before_rest.len() == tail || after_rest.len() == tail;
    if one_sided || !effort.spend(middle) {
        let edit = Edit {
            before: head..before.len() - tail,
            after: head..after.len() - tail,
        };
        let precision = if one_sided {
            Precision::Exact
        } else {
            Precision::Coarse
        };
        return (vec![edit], precision);
    }
    let algorithm = if middle > HISTOGRAM_LINES {
        Algorithm::Myers
    } else {
        Algorithm::Histogram
    };
    let mut diff = Diff::compute(algorithm, input);
    diff.postprocess_lines(input);
    let edits = diff.hunks().map(|hunk| Edit {
        before: hunk.before.start as usize..hunk.before.end as usize,
        after: hunk.after.start as usize..hunk.after.end as usize,
    });
    (edits.collect(), Precision::Exact)
}

fn hunk(input: &InternedInput<&[u8]>, edits: &[Edit]) -> Hunk {
    let (first, last) = (&edits[0], &edits[edits.len() - 1]);
    let lead = first.before.start.min(CONTEXT_LINES);
    let trail = (input.before.len() - last.before.end).min(CONTEXT_LINES);
    Hunk {
        before: first.before.start - lead..last.before.end + trail,
        after: first.after.start - lead..last.after.end + trail,
        edits: edits.to_vec(),
    }
}

fn write_hunk(input: &InternedInput<&[u8]>, hunk: &Hunk, out: &mut dyn Write) -> io::Result<()> {
    let (before, after) = (&hunk.before, &hunk.after);
    writeln!(out, "@@ -{} +{} @@", span(before), span(after))?;
    let mut shown = before.start;
    for edit in &hunk.edits {
        write_lines(input, b' ', &input.before[shown..edit.before.start], out)?;
        write_lines(input, b'-', &input.before[edit.before.clone()], out)?;
        write_lines(input, b'+', &input.after[edit.after.clone()], out)?;
        shown = edit.before.end;
    }
    write_lines(input, b' ', &input.before[shown..before.end], out)
}

/// A range of lines as hunk headers count them: from one, and an empty one by the line before it.
fn span(lines: &Range<usize>) -> String {
    match lines.len() {
        0 => format!("{},0", lines.start),
        1 => format!("{}", lines.start + 1),
        count => format!("{},{count}", lines.start + 1),
    }
}

fn write_lines(
    input: &InternedInput<&[u8]>,
    sign: u8,
    tokens: &[Token],
    out: &mut dyn Write,
) -> io::Result<()> {
    for &token in tokens {
        let line = input.interner[token];
        out.write_all(&[sign])?;
        out.write_all(line)?;
        if !line.ends_with(b"\n") {
            out.write_all(b"\n\\ No newline at end of file\n")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(old: &str, new: &str, expected: &str) {
        let mut out = Vec::new();
        Comparison::new(old.as_bytes(), new.as_bytes(), &mut Effort::default())
            .write(&mut out)
            .expect("a vector takes everything");
        assert_eq!(String::from_utf8(out).expect("the input is text"), expected);
    }

    #[test]
    fn hunks_are_as_git_writes_them() {
        check("", "", "");
        check("a\n", "a\n", "");
        check("", "a\n", "@@ -0,0 +1 @@\n+a\n");
        check("a\n", "", "@@ -1 +0,0 @@\n-a\n");
        check(
            "a",
            "a\n",
            "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n",
        );
        check(
            "a\nb",
            "x\nb",
            "@@ -1,2 +1,2 @@\n-a\n+x\n b\n\\ No newline at end of file\n",
        );
        check(
            "1\n2\n3\n4\n5\n6\n7\n8\n9\n",
            "1\n2\n3\n4\nx\n6\n7\n8\n9\n",
            "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+x\n 6\n 7\n 8\n",
        );
    }

    #[test]
    fn far_changes_make_hunks_of_their_own() {
        let old: String = (0..20).map(|line| format!("{line}\n")).collect();
        let new = old.replace("2\n3\n", "2\nx\n").replace("18\n", "y\n");
        let mut out = Vec::new();
        let lines = Comparison::new(old.as_bytes(), new.as_bytes(), &mut Effort::default())
            .write(&mut out)
            .expect("a vector takes it");
        let text = String::from_utf8(out).expect("the input is text");
        assert_eq!(text.matches("@@ -").count(), 2, "{text}");
        assert_eq!(lines.insertions, lines.deletions);
    }

    /// Inputs made to be slow to diff. Without the bounds they take many minutes.
    #[test]
    fn inputs_made_to_be_slow_are_not() {
        let interleaved = |side: &str, count: usize| -> Vec<u8> {
            (0..count)
                .flat_map(|i| format!("{i}\n{side}{i}\n").into_bytes())
                .collect()
        };
        let shuffled = |count: usize, step: usize| -> Vec<u8> {
            (0..count)
                .flat_map(|i| format!("{}\n", i * step % count).into_bytes())
                .collect()
        };
        let repetitive = |count: usize, of: usize| -> Vec<u8> {
            (0..count)
                .flat_map(|i| format!("{}\n", i * i % of).into_bytes())
                .collect()
        };
        let start = std::time::Instant::now();
        let mut effort = Effort::default();
        for (old, new) in [
            (interleaved("a", 2_400), interleaved("b", 2_400)),
            (shuffled(29_989, 7), shuffled(29_989, 13_337)),
            (repetitive(30_000, 97), repetitive(29_000, 101)),
            (repetitive(400_000, 97), repetitive(390_000, 101)),
            (interleaved("a", 500_000), interleaved("b", 500_000)),
        ] {
            Comparison::new(&old, &new, &mut effort)
                .write(&mut io::sink())
                .expect("a sink takes everything");
        }
        assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
    }

    #[test]
    fn effort_runs_out_and_short_texts_are_still_diffed() {
        let mut effort = Effort { lines: 600 };
        assert!(effort.spend(600) && effort.spend(500) && !effort.spend(501));
        assert!(!Effort::default().spend(DIFFED_LINES + 1));
    }
}
