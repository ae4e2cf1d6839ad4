//! A commit's tree on the disk, and the proof that it is that tree.
//!
//! Git writes the files from a mirror, with filters and conversions off. Then our own code reads
//! them back, link by link and byte by byte, and computes the tree's id; only what has the id that
//! the commit names is used. On the way each file gets git's mode whatever the umask, and one time
//! in the past, so that a change within the same second cannot go unseen.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use ringfence_model::changes::ObjectHash;
use ringfence_model::hex;
use rustix::fs::{AtFlags, FileType, Mode};

use super::error::access;
use super::files::{self, Found};
use super::tree::{EXECUTABLE, Entry, GITLINK, REGULAR, SYMLINK, object_id, tree_id};
use super::{BaseError, Site, files::relative};
use crate::git::Index;
use crate::mirror::{Git, MirrorError, Resolved};

/// BOUND: more processes that write to one file system wait for each other.
const MAX_WORKERS: usize = 8;

/// A tree that was written and read back.
#[derive(Debug)]
pub(super) struct Checked {
    pub hash: ObjectHash,
    /// Its id.
    pub tree: String,
    /// Sorted; gitlinks among them.
    pub entries: Vec<Entry>,
}

/// Checks a commit out into an empty directory below a base that is being made.
pub(super) fn checkout(
    resolved: &Resolved,
    target: &Path,
    site: Site<'_>,
    seconds: i64,
) -> Result<Checked, BaseError> {
    let mirror = &resolved.mirror.path;
    let commit = &resolved.commit;
    let failed =
        |what| move |error| BaseError::from(MirrorError::local(what, mirror.clone(), error));
    let expected = Git::local()
        .at(mirror)
        .args(["rev-parse", "--verify", "--end-of-options"])
        .arg(format!("{commit}^{{tree}}"))
        .quiet()
        .map_err(failed("find the tree"))?;
    let expected = String::from_utf8_lossy(expected.trim_ascii()).into_owned();
    let hash = match expected.len() {
        64 => ObjectHash::Sha256,
        _ => ObjectHash::Sha1,
    };
    let index = site.path.join("index.tmp");
    Git::local()
        .at(mirror)
        .holding(site.lock)
        .env("GIT_INDEX_FILE", &index)
        .args(["read-tree", &expected])
        .quiet()
        .map_err(failed("read the tree"))?;
    Git::local()
        .at(mirror)
        .nowhere(target)
        .holding(site.lock)
        .env("GIT_INDEX_FILE", &index)
        .env("GIT_WORK_TREE", target)
        // Most of the time goes into making files, which the file system does side by side.
        .setting("checkout.workers", &workers().to_string())
        .args(["checkout-index", "--all", "--quiet"])
        .quiet()
        .map_err(failed("write the files"))?;
    let gitlinks = gitlinks(&index, hash)?;
    std::fs::remove_file(&index).map_err(access("remove", &index))?;
    let entries = settle(target, hash, &gitlinks, seconds)?;
    let found = hex(&tree_id(&entries, hash, &mut |_, _| {}));
    if found != expected {
        return Err(BaseError::Verify {
            path: target.to_owned(),
            commit: commit.clone(),
            expected,
            found,
        });
    }
    Ok(Checked {
        hash,
        tree: found,
        entries,
    })
}

fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get().min(MAX_WORKERS))
}

type Gitlinks = BTreeMap<Vec<u8>, Vec<u8>>;

fn gitlinks(path: &Path, hash: ObjectHash) -> Result<Gitlinks, BaseError> {
    let bytes = std::fs::read(path).map_err(access("read", path))?;
    let index = Index::parse(&bytes, hash).map_err(|source| BaseError::ParseIndex {
        path: path.to_owned(),
        source,
    })?;
    Ok(index
        .entries()
        .filter(|entry| entry.is_gitlink())
        .map(|entry| (entry.path.to_vec(), entry.oid.to_vec()))
        .collect())
}

/// Reads a tree from the disk, and gives every file its mode and time.
fn settle(
    top: &Path,
    hash: ObjectHash,
    gitlinks: &Gitlinks,
    seconds: i64,
) -> Result<Vec<Entry>, BaseError> {
    let root = files::open_directory(top)?;
    let mut entries = Vec::new();
    for found in files::list(top, |path| gitlinks.contains_key(path))? {
        let failed = |source| access("check", top.join(relative(&found.path)))(source);
        if let Some(entry) = settle_one(&root, &found, hash, gitlinks, seconds).map_err(failed)? {
            entries.push(entry);
        }
    }
    Ok(entries)
}

fn settle_one(
    root: &OwnedFd,
    found: &Found,
    hash: ObjectHash,
    gitlinks: &Gitlinks,
    seconds: i64,
) -> std::io::Result<Option<Entry>> {
    let path = found.path.clone();
    let times = files::times(seconds, 0);
    let entry = |mode, oid, size| Entry {
        path: path.clone(),
        mode,
        oid,
        clean: Some((seconds, size)),
    };
    match found.kind() {
        FileType::Directory => {
            let flags = AtFlags::empty();
            let mode = Mode::from_raw_mode(0o755);
            rustix::fs::chmodat(root, relative(&path), mode, flags)?;
            Ok(gitlinks.get(&path).map(|oid| Entry {
                clean: None,
                ..entry(GITLINK, oid.clone(), 0)
            }))
        }
        FileType::RegularFile => {
            let mut file = files::open_file(root, &path)?;
            let oid = files::blob_id(&mut file, hash)?;
            let (mode, bits) = match found.stat.st_mode & 0o100 {
                0 => (REGULAR, 0o644),
                _ => (EXECUTABLE, 0o755),
            };
            if found.stat.st_mode & 0o7777 != bits {
                rustix::fs::fchmod(&file, Mode::from_raw_mode(bits))?;
            }
            rustix::fs::futimens(&file, &times)?;
            Ok(Some(entry(mode, oid, file.metadata()?.len())))
        }
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(root.as_fd(), relative(&path), Vec::new())?;
            let target = target.as_bytes();
            rustix::fs::utimensat(root, relative(&path), &times, AtFlags::SYMLINK_NOFOLLOW)?;
            let oid = object_id("blob", target, hash);
            Ok(Some(entry(SYMLINK, oid, target.len() as u64)))
        }
        _ => Err(std::io::Error::other("a special file in a checkout")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn what_is_on_the_disk_is_what_counts() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path();
        std::fs::create_dir(top.join("d")).unwrap();
        std::fs::write(top.join("d/f"), "x").unwrap();
        symlink("/etc/passwd", top.join("l")).unwrap();
        std::fs::set_permissions(top.join("d/f"), PermissionsExt::from_mode(0o700)).unwrap();
        let settle = || settle(top, ObjectHash::Sha1, &Gitlinks::new(), 1_000_000).unwrap();
        let entries = settle();
        let modes: Vec<u32> = entries.iter().map(|entry| entry.mode).collect();
        assert_eq!(modes, [EXECUTABLE, SYMLINK]);
        assert_eq!(
            entries[1].oid,
            object_id("blob", b"/etc/passwd", ObjectHash::Sha1)
        );
        let metadata = std::fs::metadata(top.join("d/f")).unwrap();
        assert_eq!(metadata.mode() & 0o7777, 0o755);
        assert_eq!(metadata.mtime(), 1_000_000);
        let id = |entries: &[Entry]| tree_id(entries, ObjectHash::Sha1, &mut |_, _| {});
        let before = id(&entries);
        std::fs::write(top.join("d/f"), "y").unwrap();
        assert_ne!(id(&settle()), before);
    }
}
