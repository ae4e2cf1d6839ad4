//! What the folder of a run is by name: a commit, a commit with something on top, or just a folder;
//! and what it becomes with the changes of the run in it.
//!
//! It is found out while the agent works, in a thread of its own, because every tracked file has to
//! be looked at; most by nothing but its times, which the user's index remembers. What was changed
//! between the start and the look counts as dirty: how it was at the start is not known any more.
//!
//! As in `git describe --dirty`, files that git does not track do not count.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use ringfence_model::ByteText;
use ringfence_model::bundle::{Base, TreeIdentity, change_set_sha256, steps};
use ringfence_model::changes::{Change, ObjectHash};
use ringfence_model::hex;
use rustix::fs::{AtFlags, FileType, Stat, Timespec};

use super::changed::{ChangedError, changed_tree};
use super::files;
use super::tree::{EXECUTABLE, Entry, GITLINK, REGULAR, SYMLINK, object_id, tree_id};
use crate::changes::Started;
use crate::git::{Index, IndexEntry, IndexStat, Lookup, LookupError, Repository, head_commit};

/// BOUND: files that the index does not know by their times are read, up to a second or so of that.
const READ_BYTES: u64 = 512 << 20;

/// A folder that is being looked at.
#[derive(Debug)]
pub(crate) struct Seeking {
    found: JoinHandle<Found>,
}

#[derive(Debug)]
struct Found {
    base: Base,
    /// Of a commit.
    lookup: Option<Lookup>,
}

/// Begins to look. `scratch` is a directory that is not there yet.
pub(crate) fn seek(
    repo: Option<Repository>,
    started: Started,
    scratch: PathBuf,
) -> std::io::Result<Seeking> {
    let found = std::thread::Builder::new().spawn(move || look(repo, started, &scratch))?;
    Ok(Seeking { found })
}

impl Seeking {
    /// What the folder was, and what it is with these changes.
    pub(crate) fn finish(self, changes: &[Change]) -> (Base, TreeIdentity) {
        let found = self.found.join();
        let Found { base, lookup } = found.expect("looking at files does not panic");
        let change_set = || TreeIdentity::ChangeSet {
            sha256: change_set_sha256(changes).expect("a change set has each path once"),
        };
        let (
            Base::Commit {
                commit,
                tree,
                prefix,
            },
            Some(mut lookup),
        ) = (base.clone(), lookup)
        else {
            return (base, change_set());
        };
        let steps = steps(changes).expect("a change set has each path once");
        let hash = lookup.hash();
        match changed_tree(&tree, &steps, hash, &mut |oid| lookup.object("tree", oid)) {
            Ok(id) => (base, TreeIdentity::GitTree { id }),
            Err(error @ ChangedError::Differs(_)) => {
                let why = error.to_string();
                let base = Base::DirtyFolder {
                    commit,
                    tree,
                    prefix,
                    why,
                };
                (base, change_set())
            }
            Err(ChangedError::Lookup(error)) => (unreadable(&error), change_set()),
        }
    }
}

fn unreadable(error: &LookupError) -> Base {
    Base::Folder {
        why: format!("its commit could not be read: {error}"),
    }
}

fn look(repo: Option<Repository>, started: Started, scratch: &Path) -> Found {
    let folder = |why: &str| Found {
        base: Base::Folder {
            why: why.to_owned(),
        },
        lookup: None,
    };
    let Some(repo) = repo else {
        return folder("it is in no repository");
    };
    let Some(commit) = head_commit(&repo) else {
        return folder("its repository has no commit that can be read");
    };
    if let Some(why) = &repo.unsupported {
        return folder(why);
    }
    let tree =
        Lookup::begin(&repo, scratch).and_then(|mut lookup| Ok((lookup.tree_of(&commit)?, lookup)));
    let (tree, mut lookup) = match tree {
        Ok(found) => found,
        Err(error) => {
            return Found {
                base: unreadable(&error),
                lookup: None,
            };
        }
    };
    let prefix = ByteText::from(&repo.prefix[..]);
    let base = match dirt(&repo, &tree, started, &mut lookup) {
        None => Base::Commit {
            commit,
            tree,
            prefix,
        },
        Some(why) => Base::DirtyFolder {
            commit,
            tree,
            prefix,
            why,
        },
    };
    Found {
        base,
        lookup: Some(lookup),
    }
}

/// What of the folder is not as it is committed.
fn dirt(repo: &Repository, tree: &str, started: Started, lookup: &mut Lookup) -> Option<String> {
    let (index, written) = match Index::of(repo) {
        Ok(Some(found)) => found,
        Ok(None) => return Some("its index is empty".to_owned()),
        Err(error) => return Some(error.to_string()),
    };
    let top = match files::open_directory(&repo.top) {
        Ok(top) => top,
        Err(error) => return Some(error.to_string()),
    };
    let mut folder = Folder {
        top,
        hash: repo.hash,
        started,
        left: READ_BYTES,
    };
    let mut entries = Vec::with_capacity(index.len());
    let skip = match repo.prefix.len() {
        0 => 0,
        length => length + 1,
    };
    for entry in index.below(&repo.prefix) {
        let remembered = index.remembered(entry.path).map(|(_, stat)| stat);
        if let Some(why) = folder.differs(&entry, remembered, &written) {
            return Some(format!("`{}` {why}", ByteText::from(entry.path)));
        }
        entries.push(Entry {
            path: entry.path[skip..].to_vec(),
            mode: entry.mode,
            oid: entry.oid.to_vec(),
            clean: None,
        });
    }
    let staged = hex(&tree_id(&entries, repo.hash, &mut |_, _| {}));
    match subtree(lookup, tree, &repo.prefix) {
        Some(committed) if committed == staged => None,
        _ => Some("its index is not what is committed".to_owned()),
    }
}

/// The id of the tree at a path of another.
fn subtree(lookup: &mut Lookup, tree: &str, prefix: &[u8]) -> Option<String> {
    let mut tree = tree.to_owned();
    for part in prefix.split(|&b| b == b'/').filter(|part| !part.is_empty()) {
        let body = lookup.object("tree", &tree).ok()?;
        tree = super::changed::directory(&body, part, lookup.hash())?;
    }
    Some(tree)
}

struct Folder {
    top: OwnedFd,
    hash: ObjectHash,
    started: Started,
    /// Bytes that may still be read.
    left: u64,
}

impl Folder {
    /// How a tracked file is not what the index says.
    fn differs(
        &mut self,
        entry: &IndexEntry<'_>,
        remembered: Option<IndexStat>,
        written: &Timespec,
    ) -> Option<&'static str> {
        if entry.stage != 0 {
            return Some("is in conflict");
        }
        let path = files::relative(entry.path);
        let stat = rustix::fs::statat(&self.top, path, AtFlags::SYMLINK_NOFOLLOW);
        if entry.mode == GITLINK {
            // What is in a submodule is no part of the commit.
            let there = rustix::fs::statat(&self.top, path.join(".git"), AtFlags::SYMLINK_NOFOLLOW);
            return there.is_ok().then_some("is a submodule that is there");
        }
        let Ok(stat) = stat else {
            return Some("is gone");
        };
        let expected = match entry.mode {
            REGULAR | EXECUTABLE => FileType::RegularFile,
            SYMLINK => FileType::Symlink,
            _ => return Some("is a directory of a sparse index"),
        };
        let executes = stat.st_mode & 0o100 != 0;
        let same_mode = entry.mode == SYMLINK || executes == (entry.mode == EXECUTABLE);
        if FileType::from_raw_mode(stat.st_mode) != expected || !same_mode {
            return Some("has another mode");
        }
        let began = (self.started.seconds, i64::from(self.started.nanoseconds));
        if (stat.st_ctime, stat.st_ctime_nsec as i64) >= began {
            return Some("changed during the run");
        }
        if remembered.is_some_and(|seen| seen.is_of(&stat, written)) {
            return None;
        }
        match self.read(entry, &stat) {
            Some(oid) if oid == entry.oid => None,
            Some(_) => Some("has other content"),
            None => Some("could not be compared"),
        }
    }

    fn read(&mut self, entry: &IndexEntry<'_>, stat: &Stat) -> Option<Vec<u8>> {
        if entry.mode == SYMLINK {
            let path = files::relative(entry.path);
            let target = rustix::fs::readlinkat(&self.top, path, Vec::new()).ok()?;
            return Some(object_id("blob", target.as_bytes(), self.hash));
        }
        self.left = self.left.checked_sub(stat.st_size as u64)?;
        let mut file = files::open_file(&self.top, entry.path).ok()?;
        files::blob_id(&mut file, self.hash).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn git(top: &std::path::Path, words: &[&str]) {
        let status = Command::new("git")
            .args(["-c", "user.name=a", "-c", "user.email=a@example.org"])
            .args(words)
            .current_dir(top)
            .status();
        assert!(status.unwrap().success(), "{words:?}");
    }

    #[test]
    fn what_changed_after_the_start_is_not_taken_for_the_start() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().join("top");
        std::fs::create_dir(&top).unwrap();
        std::fs::write(top.join("file"), "one\n").unwrap();
        git(&top, &["init", "-q"]);
        git(&top, &["add", "-A"]);
        git(&top, &["commit", "-qm", "one"]);
        let changed = std::fs::metadata(top.join("file")).unwrap();
        let changed = std::os::unix::fs::MetadataExt::ctime(&changed);
        let repo = || crate::git::discover(&top).unwrap();
        for (number, (seconds, clean)) in [(changed + 1, true), (changed - 1, false)]
            .into_iter()
            .enumerate()
        {
            let started = Started {
                seconds,
                nanoseconds: 0,
            };
            let scratch = directory.path().join(number.to_string());
            let seeking = seek(repo(), started, scratch).unwrap();
            match seeking.finish(&[]) {
                (Base::Commit { tree, .. }, TreeIdentity::GitTree { id }) if clean => {
                    assert_eq!(tree, id);
                }
                (Base::DirtyFolder { why, .. }, TreeIdentity::ChangeSet { .. }) if !clean => {
                    assert_eq!(why, "`file` changed during the run");
                }
                other => panic!("{seconds}: {other:?}"),
            }
        }
    }
}
