//! Files become tasks: disjoint, complete, bounded, and the same whatever order they came in.
//!
//! ```text
//!   files ─▶ first, last            what must change together: a task of its own
//!        └─▶ units                  never torn apart: a file and its tests, a cycle of imports
//!             └─▶ groups            never mixed: directories, or what a command printed
//!                  └─▶ parts        filled in order, up to the bound
//! ```
//!
//! INVARIANT: each file is in exactly one part. A part is larger than the bound only where it is one
//! unit, or what must change together, and then it says so.

pub mod companions;
pub mod content;
pub mod groups;
pub mod imports;
mod locks;
mod order;
#[cfg(test)]
mod properties;
pub mod select;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::ByteText;
use crate::plan::Keep;
use imports::Graph;
use order::Unit;

/// When a task is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// Before all others, alone.
    First,
    /// Beside its equals.
    Between,
    /// After all others, alone.
    Last,
}

/// Why a task has more files than the bound allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Oversize {
    /// They import each other in a circle.
    Cycle,
    /// A file has this many tests.
    Tests,
    /// The plan says so, or they are lock files.
    Together,
}

/// The files of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub when: When,
    /// Sorted, at least one.
    pub files: Vec<ByteText>,
    pub oversize: Option<Oversize>,
}

/// Which files meet.
#[derive(Clone, Copy, Debug)]
pub enum Way<'a> {
    Path,
    Directory,
    Dependencies(&'a Graph),
    /// Disjoint; what is in none of them is in no part.
    Groups(&'a [Vec<ByteText>]),
}

/// How files are split.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    pub way: Way<'a>,
    /// At least 1.
    pub per_task: usize,
    pub keep: Keep,
}

/// Splits files; each comes with the time that the plan says for it.
pub fn split(files: &BTreeMap<ByteText, When>, rules: Rules<'_>) -> Vec<Part> {
    let mut files = files.clone();
    if rules.keep != Keep::Nothing && !matches!(rules.way, Way::Groups(_)) {
        locks::set_apart(&mut files);
    }
    let at = |when: When| -> Vec<ByteText> {
        let own = files.iter().filter(|(_, own)| **own == when);
        own.map(|(path, _)| path.clone()).collect()
    };
    let together = |when: When| {
        let files = at(when);
        let oversize = (files.len() > rules.per_task).then_some(Oversize::Together);
        (!files.is_empty()).then_some(Part {
            when,
            files,
            oversize,
        })
    };
    let between = at(When::Between);
    let groups: Vec<Vec<ByteText>> = match rules.way {
        Way::Groups(groups) => {
            let known: BTreeSet<&ByteText> = between.iter().collect();
            let own = |group: &Vec<ByteText>| {
                let own = group.iter().filter(|path| known.contains(path));
                own.cloned().collect()
            };
            groups.iter().map(own).collect()
        }
        _ => vec![between],
    };
    let mut parts: Vec<Part> = together(When::First).into_iter().collect();
    for group in groups {
        let units = order::units(&group, rules);
        match rules.way {
            Way::Directory => {
                let mut by_directory: BTreeMap<Vec<u8>, Vec<Unit>> = BTreeMap::new();
                for unit in units {
                    let place = directory(unit.leader()).to_vec();
                    by_directory.entry(place).or_default().push(unit);
                }
                for units in by_directory.into_values() {
                    fill(&mut parts, vec![units], rules.per_task);
                }
            }
            _ => {
                let blocks = match rules.keep {
                    Keep::Directory => blocks(units),
                    _ => units.into_iter().map(|unit| vec![unit]).collect(),
                };
                fill(&mut parts, blocks, rules.per_task);
            }
        }
    }
    parts.extend(together(When::Last));
    parts
}

/// Neighbours of one directory.
fn blocks(units: Vec<Unit>) -> Vec<Vec<Unit>> {
    let mut blocks: Vec<Vec<Unit>> = Vec::new();
    for unit in units {
        let own = directory(unit.leader()).to_vec();
        match blocks.last_mut() {
            Some(block) if directory(block[0].leader()) == own => block.push(unit),
            _ => blocks.push(vec![unit]),
        }
    }
    blocks
}

/// Fills new parts in order. A block goes into one part where it fits into one at all.
fn fill(parts: &mut Vec<Part>, blocks: Vec<Vec<Unit>>, per_task: usize) {
    let mut open: Vec<ByteText> = Vec::new();
    let mut close = |open: &mut Vec<ByteText>, oversize| {
        if !open.is_empty() {
            let mut files = std::mem::take(open);
            files.sort_unstable();
            parts.push(Part {
                when: When::Between,
                files,
                oversize,
            });
        }
    };
    for block in blocks {
        let size: usize = block.iter().map(|unit| unit.files.len()).sum();
        if open.len() + size > per_task && size <= per_task {
            close(&mut open, None);
        }
        for unit in block {
            if open.len() + unit.files.len() > per_task {
                close(&mut open, None);
            }
            let oversize = (unit.files.len() > per_task).then_some(if unit.is_cycle {
                Oversize::Cycle
            } else {
                Oversize::Tests
            });
            open.extend(unit.files);
            if oversize.is_some() {
                close(&mut open, oversize);
            }
        }
    }
    close(&mut open, None);
}

/// All before the last slash.
pub(crate) fn directory(path: &ByteText) -> &[u8] {
    let bytes = path.as_bytes();
    let end = bytes.iter().rposition(|byte| *byte == b'/');
    &bytes[..end.unwrap_or(0)]
}

/// All after the last slash.
pub(crate) fn file_name(path: &ByteText) -> &[u8] {
    let bytes = path.as_bytes();
    let start = bytes.iter().rposition(|byte| *byte == b'/');
    &bytes[start.map_or(0, |slash| slash + 1)..]
}
