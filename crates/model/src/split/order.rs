//! Units, and the order in which they are put into parts.

use std::collections::{BTreeMap, BTreeSet};

use super::{Rules, Way, companions};
use crate::ByteText;
use crate::plan::Keep;

/// Files that are never in two parts.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    /// Sorted, at least one.
    pub files: Vec<ByteText>,
    /// The first of those that are no tests.
    leader: usize,
    pub is_cycle: bool,
}

impl Unit {
    /// By this one it is ordered.
    pub fn leader(&self) -> &ByteText {
        &self.files[self.leader]
    }
}

/// The units of some files, in order.
pub(super) fn units(files: &[ByteText], rules: Rules<'_>) -> Vec<Unit> {
    let files: Vec<&ByteText> = files.iter().collect::<BTreeSet<_>>().into_iter().collect();
    let numbers: BTreeMap<&ByteText, usize> = files
        .iter()
        .enumerate()
        .map(|(n, path)| (*path, n))
        .collect();
    // Each file with its tests: `of[n]` is the number of what file `n` goes with.
    let mut of: Vec<usize> = (0..files.len()).collect();
    if rules.keep != Keep::Nothing {
        for (test, subject) in companions::pairs(&files) {
            of[numbers[test]] = numbers[subject];
        }
    }
    let mut edges: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); files.len()];
    if let Way::Dependencies(graph) = rules.way {
        for (number, path) in files.iter().enumerate() {
            // What a test imports says nothing of the file that it goes with.
            if of[number] != number {
                continue;
            }
            let known = graph.of(path).filter_map(|path| numbers.get(path));
            edges[number] = known.map(|n| of[*n]).filter(|n| *n != number).collect();
        }
    }
    let circles = circles(&edges);
    let mut members: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for number in 0..files.len() {
        members.entry(circles[of[number]]).or_default().push(number);
    }
    let sorted = arrange(&members, &circles, &edges, &of);
    sorted
        .into_iter()
        .map(|circle| {
            let own = &members[&circle];
            let leader = own.iter().position(|n| of[*n] == *n).unwrap_or(0);
            Unit {
                files: own.iter().map(|n| files[*n].clone()).collect(),
                leader,
                is_cycle: own.iter().filter(|n| of[**n] == **n).count() > 1,
            }
        })
        .collect()
}

/// Circles, so that what is needed comes first; of several that could be next, the one with the
/// smallest leader.
fn arrange(
    members: &BTreeMap<usize, Vec<usize>>,
    circles: &[usize],
    edges: &[BTreeSet<usize>],
    of: &[usize],
) -> Vec<usize> {
    // Numbers follow the order of paths, so the smallest number is the smallest path.
    let leader = |circle: usize| -> usize {
        let own = &members[&circle];
        own.iter().copied().find(|n| of[*n] == *n).unwrap_or(own[0])
    };
    let mut waits: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    let mut wanted: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for (from, targets) in edges.iter().enumerate() {
        for to in targets {
            let (from, to) = (circles[from], circles[*to]);
            if from != to {
                waits.entry(from).or_default().insert(to);
                wanted.entry(to).or_default().insert(from);
            }
        }
    }
    let free = |circle: &usize| !waits.contains_key(circle);
    let mut ready: BTreeSet<(usize, usize)> = members
        .keys()
        .copied()
        .filter(free)
        .map(|circle| (leader(circle), circle))
        .collect();
    let mut sorted = Vec::with_capacity(members.len());
    while let Some((_, circle)) = ready.pop_first() {
        sorted.push(circle);
        for next in wanted.remove(&circle).unwrap_or_default() {
            if let Some(left) = waits.get_mut(&next) {
                left.remove(&circle);
                if left.is_empty() {
                    ready.insert((leader(next), next));
                }
            }
        }
    }
    sorted
}

/// For each node, the smallest node of its circle; a node that is in none is its own.
///
/// HOSTILE: chains of imports are as long as somebody likes, so there is no recursion.
fn circles(edges: &[BTreeSet<usize>]) -> Vec<usize> {
    const NONE: usize = usize::MAX;
    let count = edges.len();
    let (mut index, mut low) = (vec![NONE; count], vec![0; count]);
    let mut circle = vec![NONE; count];
    let mut stack = Vec::new();
    let mut next = 0;
    for start in 0..count {
        if index[start] != NONE {
            continue;
        }
        let mut way = vec![(start, edges[start].iter())];
        index[start] = next;
        low[start] = next;
        next += 1;
        stack.push(start);
        while let Some((node, targets)) = way.last_mut() {
            let node = *node;
            match targets.next() {
                Some(&to) if index[to] == NONE => {
                    index[to] = next;
                    low[to] = next;
                    next += 1;
                    stack.push(to);
                    way.push((to, edges[to].iter()));
                }
                // On the stack still: a way back.
                Some(&to) if circle[to] == NONE => low[node] = low[node].min(index[to]),
                Some(_) => {}
                None => {
                    way.pop();
                    if let Some((above, _)) = way.last() {
                        low[*above] = low[*above].min(low[node]);
                    }
                    if low[node] == index[node] {
                        let from = stack.iter().rposition(|n| *n == node).unwrap_or(0);
                        let own = stack.split_off(from);
                        let least = own.iter().copied().min().unwrap_or(node);
                        for member in own {
                            circle[member] = least;
                        }
                    }
                }
            }
        }
    }
    circle
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_are_found_however_long_the_way() {
        let edges = |list: &[&[usize]]| -> Vec<BTreeSet<usize>> {
            let set = |targets: &&[usize]| targets.iter().copied().collect();
            list.iter().map(set).collect()
        };
        for (list, expected) in [
            (edges(&[&[1], &[2], &[0]]), vec![0, 0, 0]),
            (edges(&[&[1], &[], &[1]]), vec![0, 1, 2]),
            (edges(&[&[1], &[0, 2], &[3], &[2]]), vec![0, 0, 2, 2]),
            (edges(&[&[3], &[0], &[1], &[3]]), vec![0, 1, 2, 3]),
        ] {
            assert_eq!(circles(&list), expected);
        }
        let long = 200_000;
        let mut chain: Vec<BTreeSet<usize>> = (1..long).map(|n| BTreeSet::from([n])).collect();
        chain.push(BTreeSet::new());
        assert_eq!(circles(&chain).last(), Some(&(long - 1)));
        chain[long - 1].insert(0);
        assert!(circles(&chain).iter().all(|circle| *circle == 0));
    }
}
