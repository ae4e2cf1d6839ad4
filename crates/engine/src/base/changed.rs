//! The tree that a commit's tree becomes with a change set in it. Only trees on the way to a changed
//! path are read, so that the cost follows the change.

use std::collections::BTreeMap;

use ringfence_model::ByteText;
use ringfence_model::bundle::{Blob, Step};
use ringfence_model::changes::{FileMode, ObjectHash};
use ringfence_model::hex;

use super::tree::{EXECUTABLE, REGULAR, SYMLINK, object_id};
use crate::git::LookupError;

/// As very old versions of git wrote it.
const REGULAR_FOR_GROUP: u32 = 0o100664;
pub(super) const DIRECTORY: u32 = 0o040000;
/// BOUND: as the kernel has it; how deep this recurses follows from it.
const PATH_BYTES: usize = 4096;

/// Why there is no such tree.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangedError {
    #[error(transparent)]
    Lookup(#[from] LookupError),
    #[error("`{0}` is not as it is committed")]
    Differs(ByteText),
}

pub(super) type Entries = BTreeMap<Vec<u8>, (u32, Vec<u8>)>;

/// A change of one path, relative to the tree in hand.
type Path<'a> = (&'a [u8], Step<'a>);

/// Where tree objects come from.
pub(crate) type Read<'a> = dyn FnMut(&str) -> Result<Vec<u8>, LookupError> + 'a;

/// Who is given each tree object that is new, with its id.
type Emit<'a> = dyn FnMut(&[u8], &[u8]) + 'a;

/// The id of the tree that `root` becomes. Each path must be in it as its step says that it was.
pub(crate) fn changed_tree(
    root: &str,
    steps: &BTreeMap<&[u8], Step<'_>>,
    hash: ObjectHash,
    read: &mut Read<'_>,
) -> Result<String, ChangedError> {
    grown_tree(root, steps, hash, read, &mut |_, _| {})
}

/// The same, with the objects that it takes.
pub(crate) fn grown_tree(
    root: &str,
    steps: &BTreeMap<&[u8], Step<'_>>,
    hash: ObjectHash,
    read: &mut Read<'_>,
    emit: &mut Emit<'_>,
) -> Result<String, ChangedError> {
    if steps.is_empty() {
        return Ok(root.to_owned());
    }
    let paths: Vec<Path<'_>> = steps.iter().map(|(path, step)| (*path, *step)).collect();
    // HOSTILE: whoever made the bundle chose these paths.
    for (path, _) in &paths {
        let plain = |part: &[u8]| !part.is_empty() && part != b"." && part != b"..";
        if path.len() > PATH_BYTES || path.contains(&0) || !path.split(|&b| b == b'/').all(plain) {
            return Err(differs(path));
        }
    }
    let mut growth = Growth { hash, read, emit };
    let entries = growth.changed(Some(root), &paths, 0)?;
    Ok(hex(&write(&entries, hash, growth.emit)))
}

struct Growth<'a, 'b, 'c> {
    hash: ObjectHash,
    read: &'a mut Read<'b>,
    emit: &'a mut Emit<'c>,
}

impl Growth<'_, '_, '_> {
    /// The entries of a tree after these changes, whose paths begin after `skip` bytes.
    fn changed(
        &mut self,
        tree: Option<&str>,
        paths: &[Path<'_>],
        skip: usize,
    ) -> Result<Entries, ChangedError> {
        let mut entries = match tree {
            Some(oid) => {
                let body = (self.read)(oid)?;
                parse(&body, self.hash).ok_or_else(|| LookupError::Missing {
                    oid: oid.to_owned(),
                })?
            }
            None => Entries::new(),
        };
        let is_leaf = |path: &[u8]| !path[skip..].contains(&b'/');
        // What goes makes room for what comes: a file may become a directory, and the reverse.
        for (path, step) in paths.iter().filter(|(path, _)| is_leaf(path)) {
            let found = entries.get(&path[skip..]);
            match (step.old, found) {
                (Some(old), Some((mode, oid))) if is_blob(old, *mode, oid) => {
                    entries.remove(&path[skip..]);
                }
                (Some(_), _) => return Err(differs(path)),
                (None, _) => {}
            }
        }
        let mut rest = paths;
        while let Some((path, _)) = rest.first() {
            let Some(slash) = path[skip..].iter().position(|&b| b == b'/') else {
                rest = &rest[1..];
                continue;
            };
            let prefix = &path[..=skip + slash];
            let count = rest.partition_point(|(path, _)| path.starts_with(prefix));
            let (below, later) = rest.split_at(count);
            let name = &prefix[skip..prefix.len() - 1];
            let tree = match entries.get(name) {
                Some((DIRECTORY, oid)) => Some(hex(oid)),
                Some(_) => return Err(differs(path)),
                None => None,
            };
            let inner = self.changed(tree.as_deref(), below, prefix.len())?;
            if inner.is_empty() {
                entries.remove(name)
            } else {
                entries.insert(
                    name.to_vec(),
                    (DIRECTORY, write(&inner, self.hash, self.emit)),
                )
            };
            rest = later;
        }
        for (path, step) in paths.iter().filter(|(path, _)| is_leaf(path)) {
            if let Some((mode, oid)) = step.new {
                let oid = unhex(oid, self.hash).ok_or_else(|| differs(path))?;
                let entry = (git_mode(mode), oid);
                if entries.insert(path[skip..].to_vec(), entry).is_some() {
                    return Err(differs(path));
                }
            }
        }
        Ok(entries)
    }
}

fn differs(path: &[u8]) -> ChangedError {
    ChangedError::Differs(ByteText::from(path))
}

fn git_mode(mode: FileMode) -> u32 {
    match mode {
        FileMode::Regular => REGULAR,
        FileMode::Executable => EXECUTABLE,
        FileMode::Symlink => SYMLINK,
    }
}

fn is_blob((mode, oid): Blob<'_>, found: u32, found_oid: &[u8]) -> bool {
    let found = match found {
        REGULAR_FOR_GROUP => REGULAR,
        found => found,
    };
    git_mode(mode) == found && oid == hex(found_oid)
}

fn unhex(oid: &str, hash: ObjectHash) -> Option<Vec<u8>> {
    if !hash.is_oid(oid.as_bytes()) {
        return None;
    }
    let pairs = oid.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

/// The entries of a tree object.
pub(super) fn parse(mut body: &[u8], hash: ObjectHash) -> Option<Entries> {
    let mut entries = Entries::new();
    while !body.is_empty() {
        let space = body.iter().position(|&b| b == b' ')?;
        let mode = std::str::from_utf8(&body[..space]).ok()?;
        let mode = u32::from_str_radix(mode, 8).ok()?;
        let name = &body[space + 1..];
        let end = name.iter().position(|&b| b == 0)?;
        let (oid, rest) = name[end + 1..].split_at_checked(hash.bytes())?;
        entries.insert(name[..end].to_vec(), (mode, oid.to_vec()));
        body = rest;
    }
    Some(entries)
}

/// The id of a directory in a tree object.
pub(super) fn directory(body: &[u8], name: &[u8], hash: ObjectHash) -> Option<String> {
    match parse(body, hash)?.get(name) {
        Some((DIRECTORY, oid)) => Some(hex(oid)),
        _ => None,
    }
}

/// The id of a tree: a directory sorts as if its name ended in `/`.
fn write(entries: &Entries, hash: ObjectHash, emit: &mut Emit<'_>) -> Vec<u8> {
    let mut sorted: Vec<_> = entries.iter().collect();
    let key = |name: &[u8], mode: u32| match mode {
        DIRECTORY => [name, b"/"].concat(),
        _ => name.to_vec(),
    };
    sorted.sort_by_cached_key(|(name, (mode, _))| key(name, *mode));
    let mut body = Vec::new();
    for (name, (mode, oid)) in sorted {
        body.extend_from_slice(format!("{mode:o} ").as_bytes());
        body.extend_from_slice(name);
        body.push(0);
        body.extend_from_slice(oid);
    }
    let id = object_id("tree", &body, hash);
    emit(&id, &body);
    id
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::super::tree::{Entry, tree_id};
    use super::*;

    type Files = BTreeMap<Vec<u8>, (FileMode, String)>;

    /// Objects of a tree, and its id.
    fn store(files: &Files) -> (HashMap<String, Vec<u8>>, String) {
        let entries: Vec<Entry> = files
            .iter()
            .map(|(path, (mode, oid))| Entry {
                path: path.clone(),
                mode: git_mode(*mode),
                oid: unhex(oid, ObjectHash::Sha1).unwrap(),
                clean: None,
            })
            .collect();
        let mut objects = HashMap::new();
        let root = tree_id(&entries, ObjectHash::Sha1, &mut |id, body| {
            objects.insert(hex(id), body.to_vec());
        });
        (objects, hex(&root))
    }

    fn grow(old: &Files, steps: &BTreeMap<&[u8], Step<'_>>) -> Result<String, ChangedError> {
        let (objects, root) = store(old);
        changed_tree(&root, steps, ObjectHash::Sha1, &mut |oid| {
            let missing = || LookupError::Missing { oid: oid.into() };
            objects.get(oid).cloned().ok_or_else(missing)
        })
    }

    fn steps<'a>(old: &'a Files, new: &'a Files) -> BTreeMap<&'a [u8], Step<'a>> {
        let blob = |files: &'a Files, path: &[u8]| {
            files.get(path).map(|(mode, oid)| (*mode, oid.as_str()))
        };
        let paths = old.keys().chain(new.keys());
        paths
            .map(|path| {
                let (old, new) = (blob(old, path), blob(new, path));
                (&path[..], Step { old, new })
            })
            .filter(|(_, step)| step.old != step.new)
            .collect()
    }

    fn files() -> impl Strategy<Value = Files> {
        let name = prop::sample::select(vec![
            "a", "a.b", "a/x", "a/y/z", "a0", "b", "b/c", "b/c/d", "c-d", "c/d",
        ]);
        let file = (
            name,
            prop::sample::select(vec![
                FileMode::Regular,
                FileMode::Executable,
                FileMode::Symlink,
            ]),
            0u8..3,
        );
        prop::collection::vec(file, 0..8).prop_map(|list| {
            let mut files = Files::new();
            for (path, mode, content) in list {
                let path = path.as_bytes().to_vec();
                // A file is no directory.
                let clash = files.keys().any(|other: &Vec<u8>| {
                    let within =
                        |a: &[u8], b: &[u8]| b.starts_with(a) && b.get(a.len()) == Some(&b'/');
                    within(other, &path) || within(&path, other)
                });
                if !clash {
                    files.insert(path, (mode, format!("{content:040}")));
                }
            }
            files
        })
    }

    proptest! {
        #[test]
        fn a_changed_tree_is_the_tree_of_the_changed_files(old in files(), new in files()) {
            let grown = grow(&old, &steps(&old, &new)).unwrap();
            prop_assert_eq!(grown, store(&new).1);
        }
    }

    #[test]
    fn what_is_not_as_it_was_is_named() {
        let file = |oid: u8| (FileMode::Regular, format!("{oid:040}"));
        let old = Files::from([(b"a/b".to_vec(), file(1)), (b"c".to_vec(), file(2))]);
        let (one, two) = (format!("{:040}", 1), format!("{:040}", 2));
        let blob = |oid| Some((FileMode::Regular, oid));
        for (path, old_side, new_side) in [
            ("a/b", blob(&*two), blob(&*one)),
            ("a/b", None, blob(&one)),
            ("a", None, blob(&one)),
            ("a", blob(&one), None),
            ("c/d", None, blob(&one)),
            ("d", blob(&one), None),
            ("c", Some((FileMode::Executable, &*two)), None),
            ("../c", None, blob(&one)),
            ("a//b", None, blob(&one)),
            ("/c", None, blob(&one)),
            ("", None, blob(&one)),
            ("n", None, blob("zz")),
        ] {
            let (old_side, new_side) = (old_side, new_side);
            let step = Step {
                old: old_side,
                new: new_side,
            };
            let found = grow(&old, &BTreeMap::from([(path.as_bytes(), step)]));
            assert!(
                matches!(&found, Err(ChangedError::Differs(p)) if p.as_bytes() == path.as_bytes()),
                "{path}: {found:?}"
            );
        }
    }
}
