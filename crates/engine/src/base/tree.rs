//! Git's trees and index, made by our own code from what is on the disk.
//!
//! A flat list, sorted by path as bytes, is in the order of git's trees too: a directory sorts as if
//! its name ended in `/`, and in a path it does.

use ringfence_model::changes::ObjectHash;

use crate::changes::BlobHasher;

pub(super) const REGULAR: u32 = 0o100644;
pub(super) const EXECUTABLE: u32 = 0o100755;
pub(super) const SYMLINK: u32 = 0o120000;
pub(super) const GITLINK: u32 = 0o160000;

/// One path of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub path: Vec<u8>,
    /// As git has it.
    pub mode: u32,
    pub oid: Vec<u8>,
    /// Seconds of the last change and size, where the file is known to hold what `oid` says.
    pub clean: Option<(i64, u64)>,
}

/// An object's id.
pub(crate) fn object_id(kind: &str, bytes: &[u8], hash: ObjectHash) -> Vec<u8> {
    let mut hasher = BlobHasher::of_kind(kind, hash, bytes.len() as u64);
    hasher.update(bytes);
    hasher.finish_bytes()
}

/// The id of the tree that sorted entries make. `emit` is given each tree object.
pub(super) fn tree_id(
    entries: &[Entry],
    hash: ObjectHash,
    emit: &mut dyn FnMut(&[u8], &[u8]),
) -> Vec<u8> {
    below(entries, 0, hash, emit)
}

/// Recurses as deep as paths have parts; a path has at most 4096 bytes.
fn below(
    entries: &[Entry],
    skip: usize,
    hash: ObjectHash,
    emit: &mut dyn FnMut(&[u8], &[u8]),
) -> Vec<u8> {
    let mut body = Vec::new();
    let mut rest = entries;
    while let Some(first) = rest.first() {
        let name = &first.path[skip..];
        let (mode, name, id, taken) = match name.iter().position(|&b| b == b'/') {
            None => (first.mode, name, first.oid.clone(), 1),
            Some(slash) => {
                let prefix = &first.path[..=skip + slash];
                let count = rest.partition_point(|entry| entry.path.starts_with(prefix));
                let id = below(&rest[..count], prefix.len(), hash, emit);
                (0o040000, &name[..slash], id, count)
            }
        };
        body.extend_from_slice(format!("{mode:o} ").as_bytes());
        body.extend_from_slice(name);
        body.push(0);
        body.extend_from_slice(&id);
        rest = &rest[taken..];
    }
    let id = object_id("tree", &body, hash);
    emit(&id, &body);
    id
}

/// An index (version 2) of sorted entries.
///
/// What git would compare and we do not know (inode, owner, time of change of the inode) is zero:
/// `core.checkStat=minimal` has it compare seconds and size only.
pub(super) fn index_bytes(entries: &[Entry], hash: ObjectHash) -> Vec<u8> {
    let mut out = b"DIRC".to_vec();
    let word = |out: &mut Vec<u8>, value: u32| out.extend_from_slice(&value.to_be_bytes());
    word(&mut out, 2);
    word(&mut out, entries.len() as u32);
    for entry in entries {
        let start = out.len();
        let (seconds, size) = entry.clean.unwrap_or((0, 0));
        // Ten words: ctime (2), mtime (2), dev, ino, mode, uid, gid, size; cut to 32 bits as git does.
        for value in [0, 0, seconds as u32, 0, 0, 0, entry.mode, 0, 0, size as u32] {
            word(&mut out, value);
        }
        out.extend_from_slice(&entry.oid);
        let length = entry.path.len().min(0xfff) as u16;
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(&entry.path);
        let padding = 8 - (out.len() - start) % 8;
        out.extend_from_slice(&[0; 8][..padding]);
    }
    let sum = match hash {
        ObjectHash::Sha1 => {
            sha1::Digest::finalize(<sha1::Sha1 as sha1::Digest>::new_with_prefix(&out)).to_vec()
        }
        ObjectHash::Sha256 => {
            sha2::Digest::finalize(<sha2::Sha256 as sha2::Digest>::new_with_prefix(&out)).to_vec()
        }
    };
    out.extend_from_slice(&sum);
    out
}

#[cfg(test)]
mod tests {
    use ringfence_model::hex;

    use super::*;
    use crate::git::Index;

    fn entry(path: &str, mode: u32) -> Entry {
        Entry {
            path: path.as_bytes().to_vec(),
            mode,
            oid: object_id("blob", b"", ObjectHash::Sha1),
            clean: Some((1000, 0)),
        }
    }

    #[test]
    fn trees_are_gits() {
        let mut trees = 0;
        let empty = tree_id(&[], ObjectHash::Sha1, &mut |_, _| trees += 1);
        assert_eq!(hex(&empty), "4b825dc642cb6eb9a060e54bf8d69288fbee4904");
        // As `git write-tree` says of the same entries.
        let entries = [
            entry("a.b", REGULAR),
            entry("a/x", EXECUTABLE),
            entry("a/y/z", REGULAR),
            entry("a0", REGULAR),
        ];
        let id = tree_id(&entries, ObjectHash::Sha1, &mut |_, _| trees += 1);
        assert_eq!(trees, 4);
        assert_eq!(hex(&id), "4c8ba18ea0fb161c0bad143705db644013178619");
    }

    #[test]
    fn an_index_is_read_back() {
        for hash in [ObjectHash::Sha1, ObjectHash::Sha256] {
            let oid = object_id("blob", b"x", hash);
            let entries: Vec<Entry> = ["a", "b/c", &"d".repeat(4000)]
                .iter()
                .map(|path| Entry {
                    oid: oid.clone(),
                    ..entry(path, REGULAR)
                })
                .collect();
            let index = Index::parse(&index_bytes(&entries, hash), hash).unwrap();
            assert_eq!(index.len(), 3);
            let (found, stat) = index.remembered(b"b/c").unwrap();
            assert_eq!((found.mode, found.oid), (REGULAR, &oid[..]));
            assert_eq!((stat.mtime, stat.size), ((1000, 0), 0));
        }
    }
}
