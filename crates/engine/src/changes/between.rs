//! What differs between two states that came from one: from what each of them changed.

use std::collections::BTreeMap;

use ringfence_model::ByteText;
use ringfence_model::changes::{Change, ChangeKind, ChangeSet, FileMode, Side};

/// A path in one state: before, in what both came from, and after.
#[derive(Default)]
struct Sides<'a> {
    old: Option<&'a Side>,
    new: Option<&'a Side>,
    binary: bool,
}

/// The changes that lead from one state to another. Both sets are against the same base; what one
/// of them leaves behind is unknown there, and what the other state leaves behind is listed.
pub fn between(from: &ChangeSet, to: &ChangeSet) -> ChangeSet {
    let (before, after) = (sides(from), sides(to));
    let mut changes = Vec::new();
    let mut paths: Vec<&ByteText> = before.keys().chain(after.keys()).copied().collect();
    paths.sort();
    paths.dedup();
    for path in paths {
        // Where a state did not change a path, it has what the other one found there.
        let (a, b) = match (before.get(path), after.get(path)) {
            (Some(a), Some(b)) => (a.new, b.new),
            (Some(a), None) => (a.new, a.old),
            (None, Some(b)) => (b.old, b.new),
            (None, None) => (None, None),
        };
        let binary = |sides: Option<&Sides<'_>>| sides.is_some_and(|sides| sides.binary);
        let binary = binary(before.get(path)) || binary(after.get(path));
        for mut change in steps(path, a, b) {
            change.binary = binary;
            changes.push(change);
        }
    }
    super::sort(&mut changes);
    ChangeSet {
        changes,
        omitted: to.omitted.clone(),
        omitted_truncated: to.omitted_truncated,
    }
}

fn sides(set: &ChangeSet) -> BTreeMap<&ByteText, Sides<'_>> {
    let mut map: BTreeMap<&ByteText, Sides<'_>> = BTreeMap::new();
    for change in &set.changes {
        match &change.kind {
            ChangeKind::Renamed { from } => {
                map.entry(from).or_default().old = change.old.as_ref();
                map.entry(from).or_default().binary = change.binary;
                let entry = map.entry(&change.path).or_default();
                entry.new = change.new.as_ref();
                entry.binary = change.binary;
            }
            // A path that changed its type has two changes, each with one of its sides.
            ChangeKind::Added | ChangeKind::Modified | ChangeKind::Deleted => {
                let entry = map.entry(&change.path).or_default();
                entry.old = change.old.as_ref().or(entry.old);
                entry.new = change.new.as_ref().or(entry.new);
                entry.binary |= change.binary;
            }
        }
    }
    map
}

/// From one side to the other; two steps where the type changes.
fn steps(path: &ByteText, old: Option<&Side>, new: Option<&Side>) -> Vec<Change> {
    let change = |kind, old: Option<&Side>, new: Option<&Side>| Change {
        path: path.clone(),
        kind,
        old: old.cloned(),
        new: new.cloned(),
        binary: false,
    };
    match (old, new) {
        (None, None) => Vec::new(),
        (Some(old), Some(new)) if old == new => Vec::new(),
        (None, new) => vec![change(ChangeKind::Added, None, new)],
        (old, None) => vec![change(ChangeKind::Deleted, old, None)],
        (Some(a), Some(b)) if (a.mode == FileMode::Symlink) == (b.mode == FileMode::Symlink) => {
            vec![change(ChangeKind::Modified, old, new)]
        }
        (old, new) => vec![
            change(ChangeKind::Deleted, old, None),
            change(ChangeKind::Added, None, new),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(text: &str) -> Side {
        Side {
            mode: FileMode::Regular,
            oid: text.to_owned(),
            size: text.len() as u64,
        }
    }

    fn set(list: &[(&str, Option<&str>, Option<&str>)]) -> ChangeSet {
        let changes = list
            .iter()
            .map(|(path, old, new)| Change {
                path: (*path).into(),
                kind: match (old, new) {
                    (None, _) => ChangeKind::Added,
                    (_, None) => ChangeKind::Deleted,
                    _ => ChangeKind::Modified,
                },
                old: old.map(side),
                new: new.map(side),
                binary: false,
            })
            .collect();
        ChangeSet {
            changes,
            ..ChangeSet::default()
        }
    }

    #[test]
    fn each_path_goes_from_one_state_to_the_other() {
        let from = set(&[
            ("same", Some("a"), Some("b")),
            ("only from", Some("a"), Some("b")),
            ("made", None, Some("x")),
            ("gone", Some("g"), None),
            ("both", Some("a"), Some("b")),
        ]);
        let to = set(&[
            ("same", Some("a"), Some("b")),
            ("only to", Some("a"), Some("c")),
            ("made too", None, Some("y")),
            ("both", Some("a"), Some("c")),
        ]);
        let found = between(&from, &to);
        let expected = set(&[
            ("both", Some("b"), Some("c")),
            ("gone", None, Some("g")),
            ("made", Some("x"), None),
            ("made too", None, Some("y")),
            ("only from", Some("b"), Some("a")),
            ("only to", Some("a"), Some("c")),
        ]);
        assert_eq!(found, expected);
        assert_eq!(between(&from, &from), ChangeSet::default());
    }
}
