//! Which lines of a file were made, and taken away, between which of its versions.

use crate::changes::hunks::{Comparison, Effort, Hunk, Precision};

/// Where a line comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Base(usize),
    /// Made on the way to this version, counted from the first after the base.
    Made(usize),
}

/// Where each line was made, and each line of the base taken away.
#[derive(Debug)]
pub(super) struct Lines {
    now: Vec<Origin>,
    gone: Vec<Option<usize>>,
}

impl Lines {
    /// Follows the lines from the base, which is the first of the versions, to the last of them.
    /// `None` where that costs too much.
    pub fn follow(versions: &[&[u8]], effort: &mut Effort) -> Option<Self> {
        let mut lines: Option<Self> = None;
        for (step, pair) in versions.windows(2).enumerate() {
            let compared = Comparison::new(pair[0], pair[1], effort);
            if compared.precision == Precision::Coarse {
                return None;
            }
            let before = lines.take().unwrap_or_else(|| Self {
                now: (0..compared.lines_before()).map(Origin::Base).collect(),
                gone: vec![None; compared.lines_before()],
            });
            lines = Some(before.next(step, &compared));
        }
        lines
    }

    fn next(mut self, step: usize, compared: &Comparison<'_>) -> Self {
        let mut now = Vec::with_capacity(self.now.len());
        let mut kept = 0;
        for edit in compared.edits() {
            now.extend_from_slice(&self.now[kept..edit.before.start]);
            for origin in &self.now[edit.before.clone()] {
                if let Origin::Base(line) = *origin {
                    self.gone[line] = Some(step);
                }
            }
            now.extend(edit.after.clone().map(|_| Origin::Made(step)));
            kept = edit.before.end;
        }
        now.extend_from_slice(&self.now[kept..]);
        self.now = now;
        self
    }

    /// On the way to which versions a hunk of base and last version was made; `None` where a part
    /// of it was made nowhere.
    pub fn of_hunk(&self, hunk: &Hunk) -> Option<Vec<usize>> {
        let mut all = Vec::new();
        for edit in &hunk.edits {
            let made = self.now[edit.after.clone()].iter().filter_map(|o| match o {
                Origin::Made(step) => Some(*step),
                Origin::Base(_) => None,
            });
            let gone = self.gone[edit.before.clone()].iter().flatten().copied();
            // Of equal lines it does not matter which one is new; their neighbours tell.
            let steps: Vec<usize> = made.chain(gone).collect();
            if steps.is_empty() {
                return None;
            }
            all.extend(steps);
        }
        all.sort_unstable();
        all.dedup();
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(versions: &[&str], expected: &[Option<&[usize]>]) {
        let versions: Vec<&[u8]> = versions.iter().map(|text| text.as_bytes()).collect();
        let lines = Lines::follow(&versions, &mut Effort::default()).unwrap();
        let (old, new) = (versions[0], versions[versions.len() - 1]);
        let compared = Comparison::new(old, new, &mut Effort::default());
        let found: Vec<_> = compared.hunks.iter().map(|h| lines.of_hunk(h)).collect();
        let found: Vec<_> = found.iter().map(Option::as_deref).collect();
        assert_eq!(found, expected, "{versions:?}");
    }

    #[test]
    fn each_hunk_has_the_versions_that_made_it() {
        let base = "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\n15\n16\n";
        let head = base.replace("2\n3\n", "2\nthree\n");
        let both = head.replace("15\n", "fifteen\n");
        check(&[base, &head], &[Some(&[0])]);
        check(&[base, &head, &both], &[Some(&[0]), Some(&[1])]);
        // Somebody who wrote and changed nothing.
        check(&[base, &head, &head, &both], &[Some(&[0]), Some(&[2])]);
        // Over the line of somebody else.
        let again = both.replace("three", "drei");
        check(&[base, &head, &both, &again], &[Some(&[0, 2]), Some(&[1])]);
        // Taken away and put back: nothing is left of it.
        let without = base.replace("8\n", "");
        check(&[base, &without, base, &head], &[Some(&[2])]);
        check(&[base, &without], &[Some(&[0])]);
        check(&["", "a\nb\n", "a\nx\nb\n"], &[Some(&[0, 1])]);
    }

    #[test]
    fn blocks_that_end_alike_belong_to_who_added_them() {
        let function = |name: &str| format!("fn {name}() {{\n    {name};\n}}\n\n");
        let base = [function("a"), function("z")].concat();
        let one = [function("a"), function("k"), function("z")].concat();
        let two = [function("a"), function("k"), function("m"), function("z")].concat();
        check(&[&base, &one, &two], &[Some(&[0, 1])]);
        check(&[&base, &two], &[Some(&[0])]);
    }

    #[test]
    fn what_costs_too_much_is_not_told() {
        let text = |side: &str| -> String { (0..40_000).map(|i| format!("{side}{i}\n")).collect() };
        let (old, new) = (text("a"), text("b"));
        let versions = [old.as_bytes(), new.as_bytes()];
        assert!(Lines::follow(&versions, &mut Effort::default()).is_none());
    }
}
