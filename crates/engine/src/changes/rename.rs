//! Finds files that moved: a deletion and an addition of the same content, or of nearly the same
//! text.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;

use ringfence_model::ByteText;
use ringfence_model::changes::{Change, ChangeKind, FileMode, Side};

use super::Sources;
use super::names;
use super::source::{self, Tree};

/// Below this, two texts are two texts.
pub(super) const LEAST_PERCENT: u8 = 60;
/// BOUND: longer texts are compared only by their ids.
const TEXT_BYTES: u64 = 1 << 20;
/// BOUND: what all candidates together may hold, in memory as line hashes.
const CANDIDATE_BYTES: u64 = 16 << 20;
/// BOUND: lines looked at in comparing each deletion with each addition.
const COMPARED_LINES: usize = 20_000_000;

/// Turns pairs of deletions and additions into renames. What cannot be read here is no rename.
pub(super) fn detect(sources: &Sources, changes: &mut Vec<Change>) {
    let mut paths: HashMap<&ByteText, u32> = HashMap::new();
    for change in &*changes {
        *paths.entry(&change.path).or_default() += 1;
    }
    // A path that changed its type has two changes and is no candidate.
    let of_kind = |kind: ChangeKind| -> Vec<usize> {
        let fits = |change: &Change| change.kind == kind && paths[&change.path] == 1;
        (0..changes.len())
            .filter(|&index| fits(&changes[index]))
            .collect()
    };
    let mut deleted = of_kind(ChangeKind::Deleted);
    let mut added = of_kind(ChangeKind::Added);
    let mut pairs = pair_equal(changes, &mut deleted, &mut added);
    pairs.extend(pair_similar(sources, changes, &deleted, &added));
    for &(old, new) in &pairs {
        let (from, side) = (changes[old].path.clone(), changes[old].old.clone());
        let renamed = &mut changes[new];
        renamed.kind = ChangeKind::Renamed { from };
        renamed.old = side;
    }
    let gone: std::collections::HashSet<usize> = pairs.iter().map(|&(old, _)| old).collect();
    let mut index = 0;
    changes.retain(|_| {
        index += 1;
        !gone.contains(&(index - 1))
    });
}

/// How much of the larger text the two share, by whole lines.
pub(super) fn similarity(old: &[u8], new: &[u8]) -> u8 {
    let state = RandomState::new();
    let shared = shared_bytes(&line_hashes(old, &state), &line_hashes(new, &state));
    percent(shared, old.len().max(new.len()) as u64)
}

/// Pairs equal contents, those of the same file name first, and takes them off the lists.
fn pair_equal(
    changes: &[Change],
    deleted: &mut Vec<usize>,
    added: &mut Vec<usize>,
) -> Vec<(usize, usize)> {
    let mut by_oid: HashMap<(&str, bool), Vec<usize>> = HashMap::new();
    // In reverse, because they are taken from the end.
    for &index in deleted.iter().rev() {
        if let Some(key) = changes[index].old.as_ref().and_then(equal_key) {
            by_oid.entry(key).or_default().push(index);
        }
    }
    let mut pairs = Vec::new();
    for same_name in [true, false] {
        added.retain(|&new| {
            let Some(key) = changes[new].new.as_ref().and_then(equal_key) else {
                return true;
            };
            let Some(olds) = by_oid.get_mut(&key) else {
                return true;
            };
            let last = |index: usize| names::last(changes[index].path.as_bytes());
            let found = if same_name {
                // BOUND: a million equal files are not compared by name with a million others.
                let near = olds.len().saturating_sub(64);
                olds[near..]
                    .iter()
                    .rposition(|&old| last(old) == last(new))
                    .map(|at| at + near)
            } else {
                olds.len().checked_sub(1)
            };
            let Some(at) = found else {
                return true;
            };
            pairs.push((olds.remove(at), new));
            false
        });
    }
    let gone: std::collections::HashSet<usize> = pairs.iter().map(|&(old, _)| old).collect();
    deleted.retain(|old| !gone.contains(old));
    pairs
}

/// Contents are equal by id; a link is never a file. Empty files tell nothing.
fn equal_key(side: &Side) -> Option<(&str, bool)> {
    (side.size > 0).then_some((&side.oid, side.mode == FileMode::Symlink))
}

struct Candidate {
    index: usize,
    size: u64,
    /// Hashes of lines, sorted, with the bytes that the lines of that hash hold together.
    lines: Vec<(u64, u64)>,
}

fn pair_similar(
    sources: &Sources,
    changes: &[Change],
    deleted: &[usize],
    added: &[usize],
) -> Vec<(usize, usize)> {
    if deleted.is_empty() || added.is_empty() {
        return Vec::new();
    }
    let state = RandomState::new();
    let olds = candidates(sources, changes, deleted, Tree::Base, &state);
    let news = candidates(sources, changes, added, Tree::Layer, &state);
    let mut scores = Vec::new();
    let mut left = COMPARED_LINES;
    for new in &news {
        for old in &olds {
            let (small, large) = (old.size.min(new.size), old.size.max(new.size));
            let cost = old.lines.len() + new.lines.len();
            if percent(small, large) < LEAST_PERCENT || cost > left {
                continue;
            }
            left -= cost;
            let score = percent(shared_bytes(&old.lines, &new.lines), large);
            if score >= LEAST_PERCENT {
                scores.push((score, old.index, new.index));
            }
        }
    }
    let last = |index: usize| names::last(changes[index].path.as_bytes());
    scores.sort_by_key(|&(score, old, new)| {
        (std::cmp::Reverse((score, last(old) == last(new))), old, new)
    });
    let mut taken = std::collections::HashSet::new();
    let mut pairs = Vec::new();
    for (_, old, new) in scores {
        if !taken.contains(&old) && !taken.contains(&new) {
            taken.extend([old, new]);
            pairs.push((old, new));
        }
    }
    pairs
}

fn candidates(
    sources: &Sources,
    changes: &[Change],
    indices: &[usize],
    tree: Tree,
    state: &RandomState,
) -> Vec<Candidate> {
    let mut left = CANDIDATE_BYTES / 2;
    let mut candidates = Vec::new();
    for &index in indices {
        let change = &changes[index];
        let side = change.old.as_ref().or(change.new.as_ref());
        let Some(side) = side.filter(|side| {
            !change.binary && side.mode != FileMode::Symlink && (1..TEXT_BYTES).contains(&side.size)
        }) else {
            continue;
        };
        if side.size > left {
            continue;
        }
        if let Ok(bytes) = source::bytes(sources, tree, change.path.as_bytes(), side) {
            left -= side.size;
            let lines = line_hashes(&bytes, state);
            candidates.push(Candidate {
                index,
                size: side.size,
                lines,
            });
        }
    }
    candidates
}

fn line_hashes(text: &[u8], state: &RandomState) -> Vec<(u64, u64)> {
    let lines = text.split_inclusive(|&byte| byte == b'\n');
    let mut hashes: Vec<(u64, u64)> = lines
        .map(|line| (state.hash_one(line), line.len() as u64))
        .collect();
    hashes.sort_unstable();
    hashes.dedup_by(|later, first| {
        let same = later.0 == first.0;
        if same {
            first.1 += later.1;
        }
        same
    });
    hashes
}

fn shared_bytes(old: &[(u64, u64)], new: &[(u64, u64)]) -> u64 {
    let (mut at_old, mut at_new, mut shared) = (0, 0, 0);
    while let (Some(left), Some(right)) = (old.get(at_old), new.get(at_new)) {
        match left.0.cmp(&right.0) {
            std::cmp::Ordering::Less => at_old += 1,
            std::cmp::Ordering::Greater => at_new += 1,
            std::cmp::Ordering::Equal => {
                shared += left.1.min(right.1);
                at_old += 1;
                at_new += 1;
            }
        }
    }
    shared
}

fn percent(part: u64, whole: u64) -> u8 {
    match whole {
        0 => 100,
        _ => u8::try_from(part.saturating_mul(100) / whole)
            .unwrap_or(100)
            .min(100),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similarity_is_of_the_larger_text() {
        for (old, new, expected) in [
            ("a\nb\n", "a\nb\n", 100),
            ("a\nb\n", "b\na\n", 100),
            ("a\nb\nc\nd\n", "a\nb\n", 50),
            ("a\na\na\na\n", "a\n", 25),
            ("a\n", "b\n", 0),
            ("", "", 100),
        ] {
            assert_eq!(
                similarity(old.as_bytes(), new.as_bytes()),
                expected,
                "{old:?} {new:?}"
            );
        }
    }
}
