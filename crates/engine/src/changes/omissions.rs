//! What stays behind, and what in the base therefore stays as it is.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use ringfence_model::ByteText;
use ringfence_model::changes::{Omitted, WhyOmitted};

/// Bytes and files that one line stands for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub bytes: u64,
    pub files: u64,
}

impl Tally {
    pub fn file(bytes: u64) -> Self {
        Self { bytes, files: 1 }
    }

    pub fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.files = self.files.saturating_add(other.files);
    }
}

/// The list of omitted paths, relative to the folder until it is finished.
#[derive(Debug)]
pub(super) struct Omissions {
    lines: Vec<Omitted>,
    /// Where the line of a directory is, for those that gather what is below them.
    gathered: HashMap<Vec<u8>, usize>,
    truncated: bool,
    bound: usize,
    /// Paths of the base that the agent removed and that the patch leaves in place.
    kept: BTreeMap<Vec<u8>, WhyOmitted>,
}

impl Omissions {
    pub fn new(bound: usize) -> Self {
        Self {
            lines: Vec::new(),
            gathered: HashMap::new(),
            truncated: false,
            bound,
            kept: BTreeMap::new(),
        }
    }

    pub fn add(&mut self, path: &[u8], why: WhyOmitted, tally: Tally) {
        if self.lines.len() >= self.bound {
            self.truncated = true;
            return;
        }
        self.lines.push(Omitted {
            path: ByteText::from(path),
            why,
            size: tally.bytes,
            files: tally.files,
        });
    }

    /// Adds to the one line of an ignored directory.
    pub fn gather(&mut self, directory: &[u8], tally: Tally) {
        if let Some(&line) = self.gathered.get(directory) {
            let line = &mut self.lines[line];
            line.size = line.size.saturating_add(tally.bytes);
            line.files = line.files.saturating_add(tally.files);
        } else if self.lines.len() < self.bound {
            self.gathered.insert(directory.to_vec(), self.lines.len());
            self.add(directory, WhyOmitted::Ignored, tally);
        } else {
            self.truncated = true;
        }
    }

    /// Notes that the base still has something at or below this path after the patch.
    pub fn keep(&mut self, path: &[u8], why: WhyOmitted) {
        self.kept.insert(path.to_vec(), why);
    }

    /// Why a new file cannot be put at this path: something of the base that stays is in its way.
    pub fn in_the_way(&self, path: &[u8]) -> Option<WhyOmitted> {
        if self.kept.is_empty() {
            return None;
        }
        let above = path.iter().enumerate().filter(|&(_, &byte)| byte == b'/');
        let mut at_or_above = above.map(|(slash, _)| &path[..slash]).chain([path]);
        if let Some(why) = at_or_above.find_map(|path| self.kept.get(path)) {
            return Some(*why);
        }
        let below = [path, b"/"].concat();
        let range = (Bound::Included(below.clone()), Bound::Unbounded);
        let (first, why) = self.kept.range::<Vec<u8>, _>(range).next()?;
        first.starts_with(&below).then_some(*why)
    }

    /// The lines sorted by path, each with `prefix` before it, and whether some were cut.
    pub fn finish(mut self, prefixed: impl Fn(&[u8]) -> ByteText) -> (Vec<Omitted>, bool) {
        for line in &mut self.lines {
            line.path = prefixed(line.path.as_bytes());
        }
        self.lines.sort_by(|a, b| a.path.cmp(&b.path));
        (self.lines, self.truncated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_is_in_the_way_of_itself_and_of_what_is_above_and_below() {
        let mut omissions = Omissions::new(10);
        omissions.keep(b"a/b", WhyOmitted::Special);
        for (path, blocked) in [
            ("a", true),
            ("a/b", true),
            ("a/b/c", true),
            ("a/bc", false),
            ("a/a", false),
            ("b", false),
            ("a-", false),
        ] {
            assert_eq!(
                omissions.in_the_way(path.as_bytes()).is_some(),
                blocked,
                "{path}"
            );
        }
    }

    #[test]
    fn the_list_is_cut_at_its_bound_and_says_so() {
        let mut omissions = Omissions::new(2);
        omissions.add(b"c", WhyOmitted::Special, Tally::file(1));
        omissions.gather(b"a", Tally::file(1));
        omissions.gather(b"a", Tally::file(2));
        omissions.gather(b"b", Tally::file(2));
        let (lines, truncated) = omissions.finish(|path| ByteText::from(path));
        assert!(truncated);
        let shown: Vec<_> = lines
            .iter()
            .map(|l| (l.path.to_text(), l.size, l.files))
            .collect();
        assert_eq!(shown, [("a".to_owned(), 3, 2), ("c".to_owned(), 1, 1)]);
    }
}
