//! What an edit of a plan changes: two splits compared.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::ByteText;

/// What differs between two splits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SplitDiff {
    /// Tasks that are the same: what was done of them stands.
    pub same: Vec<String>,
    /// Tasks that were not there, or not so.
    pub added: Vec<String>,
    /// Tasks that are not there any more, or not so.
    pub removed: Vec<String>,
    pub added_files: Vec<ByteText>,
    pub removed_files: Vec<ByteText>,
    /// Files of both, whose task has other files now.
    pub moved: Vec<Moved>,
}

/// A file that is in another task than before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Moved {
    pub path: ByteText,
    pub from: String,
    pub to: String,
}

impl SplitDiff {
    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty()
    }
}

/// Compares two splits, each a list of tasks: id and files.
pub fn diff(old: &[(String, Vec<ByteText>)], new: &[(String, Vec<ByteText>)]) -> SplitDiff {
    let ids = |tasks: &[(String, Vec<ByteText>)]| -> BTreeSet<String> {
        tasks.iter().map(|(id, _)| id.clone()).collect()
    };
    let (before, after) = (ids(old), ids(new));
    let places = |tasks: &[(String, Vec<ByteText>)]| -> BTreeMap<ByteText, String> {
        let place = |(id, files): &(String, Vec<ByteText>)| {
            let id = id.clone();
            let place = move |path: &ByteText| (path.clone(), id.clone());
            files.iter().map(place).collect::<Vec<_>>()
        };
        tasks.iter().flat_map(place).collect()
    };
    let (from, to) = (places(old), places(new));
    let only = |here: &BTreeMap<ByteText, String>, there: &BTreeMap<ByteText, String>| {
        let gone = here.keys().filter(|path| !there.contains_key(*path));
        gone.cloned().collect::<Vec<_>>()
    };
    let moved = from.iter().filter_map(|(path, from)| {
        let to = to.get(path).filter(|to| *to != from)?;
        Some(Moved {
            path: path.clone(),
            from: from.clone(),
            to: to.clone(),
        })
    });
    // In the order in which they are done.
    let in_order = |tasks: &[(String, Vec<ByteText>)], wanted: &dyn Fn(&String) -> bool| {
        let ids = tasks.iter().map(|(id, _)| id);
        ids.filter(|id| wanted(id)).cloned().collect::<Vec<_>>()
    };
    SplitDiff {
        same: in_order(new, &|id| before.contains(id)),
        added: in_order(new, &|id| !before.contains(id)),
        removed: in_order(old, &|id| !after.contains(id)),
        moved: moved.collect(),
        added_files: only(&to, &from),
        removed_files: only(&from, &to),
    }
}
