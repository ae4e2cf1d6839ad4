//! How the content of a file came about: who wrote it one after another, under which name.

use std::collections::BTreeSet;

use super::history::{At, BRINGS, Deeds, Did, Name, WRITES};
use super::names::Names;

/// BOUND: steps of one file; with more, its lines are not told apart.
const STEPS: usize = 256;
/// BOUND: entries looked at to find them.
const ENTRIES: usize = 2_000;

/// One stretch of writing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// The first and the last of its writes.
    pub first: u32,
    pub last: u32,
    /// Who may have written. Zero stands for somebody unknown.
    pub by: BTreeSet<u64>,
    /// What the file was called when it began.
    pub name: Name,
}

/// What a patch compares the file with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    Nothing,
    /// What this name had.
    Of(Option<Name>),
}

impl Names {
    /// The steps from the base to what is there now, oldest first; `None` where they are too many.
    pub fn steps(&self, latest: Option<At>, name: Name, base: Base) -> Option<Vec<Step>> {
        let mut steps = Vec::new();
        let mut moves: Option<Step> = None;
        let (mut next, mut name) = (latest, name);
        let mut from_base = latest.is_none();
        for _ in 0..ENTRIES {
            let Some(at) = next else {
                steps.reverse();
                let foreign = from_base && base != Base::Of(Some(name));
                return Some(with_moves(steps, moves, foreign));
            };
            let entry = self.histories.entry(at);
            let deed = Deeds::of(&[entry.did]);
            from_base = entry.from_base;
            next = entry.before;
            let mut by = BTreeSet::from([entry.exec]);
            if deed.meets(BRINGS) {
                let before = entry.before.map(|at| self.histories.entry(at).deeds);
                let had_content = base == Base::Of(Some(name))
                    || before.is_some_and(|d| d.meets(WRITES.with(BRINGS)));
                if let (false, Some(from)) = (had_content, entry.other) {
                    let moved = moves.get_or_insert(Step {
                        first: entry.first,
                        last: entry.last,
                        by: BTreeSet::new(),
                        name,
                    });
                    moved.first = entry.first;
                    moved.by.insert(entry.exec);
                    (next, name) = (entry.source, from);
                    from_base = entry.from_base;
                    continue;
                }
                let authors = self.histories.authors(entry.source, name)?;
                // Bytes that nobody is known to have written came with whoever moved them.
                if !authors.is_empty() && !entry.from_base {
                    by = authors;
                } else {
                    by.extend(authors);
                }
            } else if !deed.meets(WRITES) {
                continue;
            }
            if steps.len() == STEPS {
                return None;
            }
            steps.push(Step {
                first: entry.first,
                last: entry.last,
                by,
                name,
            });
            if entry.did == Did::Symlinked {
                next = None;
            }
        }
        None
    }
}

/// Where the bytes are in part those of another file of the base, who moved it brought them.
fn with_moves(mut steps: Vec<Step>, moves: Option<Step>, foreign: bool) -> Vec<Step> {
    let Some(moves) = moves else {
        return steps;
    };
    match steps.first_mut() {
        // Written before it was moved: whose lines are whose is not known.
        Some(first) if foreign && first.first < moves.last => first.by.extend(moves.by),
        Some(_) if !foreign => {}
        _ => steps.insert(0, moves),
    }
    steps
}
