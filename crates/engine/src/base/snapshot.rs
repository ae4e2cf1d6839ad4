//! The base of a folder as it is: dirty, untracked and ignored files included.
//!
//! Where the folder is the top of a repository with a commit, that commit's base is made first. A
//! tracked file that is clean by the user's index, and of the same bytes as the commit's, is a link
//! to that base's; everything else is copied. The index inside is the commit's, so that `git status`
//! shows exactly what is dirty.
//!
//! A linked file has the time of the base. Only a file that is not newer than that is linked, so
//! that no file looks older inside than it is, and what was built from an older one is built again.
//!
//! INVARIANT: the user's folder and git directory are read only, and git sees them only as a remote.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Stat, Timespec};

use super::copy::{self, CopyAll, Sharing};
use super::error::access;
use super::private::{Private, write_index};
use super::tree::{EXECUTABLE, Entry, GITLINK, SYMLINK, object_id};
use super::{Base, BaseError, BaseKind, Built, Submodules, commit_with, files, made};
use crate::clock::now_us;
use crate::git::{self, Found, Index, Repository};
use crate::home::Home;
use crate::ids::BaseId;
use crate::mirror::{self, MirrorError, Progress, Resolved};
use crate::source::{Dial, Source, Typed};
use crate::store::{NewBase, Store};

/// A base of a folder as it is now.
pub fn snapshot(
    home: &Home,
    store: &Store,
    folder: &Path,
    progress: &mut dyn Progress,
) -> Result<Base, BaseError> {
    let folder = match folder.canonicalize() {
        Ok(path) if path.is_dir() => path,
        _ => {
            return Err(BaseError::NoFolder {
                path: folder.to_owned(),
            });
        }
    };
    let own = home
        .root()
        .canonicalize()
        .map_err(access("find", home.root()))?;
    if own.starts_with(&folder) {
        return Err(BaseError::HoldsHome { folder, home: own });
    }
    let mut notes = Vec::new();
    let head = head(home, store, &folder, &mut notes, progress)?;
    let id = BaseId::random()?;
    let new = NewBase {
        id,
        key: format!("snapshot {id}"),
        kind: BaseKind::Snapshot,
        mirror: head.as_ref().map(|head| head.resolved.mirror.id),
    };
    made(home, store, &new, progress, |site, _| {
        let workspace = site.workspace();
        let mut built = match &head {
            None => Built {
                notes: copy::copy_tree(&folder, &workspace, &mut CopyAll)?,
                ..Built::default()
            },
            Some(head) => head.build(&folder, &workspace)?,
        };
        built.notes.splice(0..0, notes);
        Ok(built)
    })
}

/// The commit that a folder is at.
struct Head {
    repo: Repository,
    resolved: Resolved,
    base: Base,
}

/// `None` where the folder has no history that could be carried.
fn head(
    home: &Home,
    store: &Store,
    folder: &Path,
    notes: &mut Vec<String>,
    progress: &mut dyn Progress,
) -> Result<Option<Head>, BaseError> {
    let repo = match git::find(folder)? {
        Found::Nothing => return Ok(None),
        Found::Repository(repo) => *repo,
        Found::Refused(refusal) => {
            notes.push(format!("git does not work inside: {refusal}"));
            return Ok(None);
        }
    };
    if !repo.prefix.is_empty() {
        notes.push("the folder is part of a larger repository; there is no history inside".into());
        return Ok(None);
    }
    if let Some(reason) = &repo.unsupported {
        notes.push(format!("git does not work inside: {reason}"));
        return Ok(None);
    }
    let typed = Typed {
        source: Source::Path(repo.top.clone()),
        credentials: None,
        dial: Dial::AsTyped,
    };
    let resolved = match mirror::ensure(home, store, &typed, None, progress) {
        Ok(resolved) => resolved,
        Err(MirrorError::Unsupported { reason, .. }) => {
            notes.push(format!("git does not work inside: {reason}"));
            return Ok(None);
        }
        Err(MirrorError::Empty { .. } | MirrorError::NoRevision { .. }) => {
            notes.push("there is no commit yet; there is no history inside".into());
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    notes.extend(resolved.notes.iter().cloned());
    let base = commit_with(home, store, &resolved, Submodules::Leave, progress)?;
    Ok(Some(Head {
        repo,
        resolved,
        base,
    }))
}

impl Head {
    fn build(&self, folder: &Path, workspace: &Path) -> Result<Built, BaseError> {
        let committed = self.base.workspace();
        let path = committed.join(".git/index");
        let bytes = std::fs::read(&path).map_err(access("read", &path))?;
        let index = Index::parse(&bytes, self.base.hash)
            .map_err(|source| BaseError::ParseIndex { path, source })?;
        // An index that makes no sense to us only costs copies.
        let user = Index::of(&self.repo).ok().flatten();
        let mut linker = Linker {
            from: files::open_directory(&committed)?,
            index: &index,
            user: user.as_ref(),
            files: BTreeMap::new(),
        };
        let mut notes = copy::copy_tree(folder, workspace, &mut linker)?;
        let now = now_us() / 1_000_000;
        let mut entries = Vec::with_capacity(index.len());
        let mut submodules = 0;
        for entry in index.entries() {
            let mut entry = Entry {
                path: entry.path.to_vec(),
                mode: entry.mode,
                oid: entry.oid.to_vec(),
                clean: None,
            };
            submodules += usize::from(entry.mode == GITLINK);
            entry.clean = linker
                .clean(&entry, workspace, self.base.hash)
                .map_err(access("read", workspace.join(files::relative(&entry.path))))?
                // As new as the index: git must look for itself.
                .filter(|&(seconds, _)| seconds < now - 1);
            entries.push(entry);
        }
        if submodules > 0 {
            notes.push(format!("{submodules} submodules are there as plain files"));
        }
        self.write_private(workspace, &entries, now)?;
        Ok(Built {
            commit: Some(self.resolved.commit.clone()),
            tree: None,
            hash: self.base.hash,
            objects: vec![self.resolved.mirror.id],
            notes,
            missing: Vec::new(),
        })
    }

    fn write_private(
        &self,
        workspace: &Path,
        entries: &[Entry],
        now: i64,
    ) -> Result<(), BaseError> {
        // What decides whether a file counts as changed comes from the user.
        let mut settings = b"[core]\n".to_vec();
        git::line_endings(&mut settings, &self.repo);
        let git_dir = workspace.join(".git");
        Private {
            git_dir: git_dir.clone(),
            resolved: &self.resolved,
            hash: self.base.hash,
            place: 0,
            worktree: None,
            settings,
            entries: &[],
            index_seconds: now,
        }
        .write()?;
        write_index(&git_dir, entries, self.base.hash, now)
    }
}

/// What became of a tracked file.
#[derive(Clone, Copy, Debug)]
enum Placed {
    /// It is the base's own.
    Linked,
    /// It was copied; the user's index says that it holds what is committed.
    Same { seconds: i64, size: u64 },
    /// It was copied, and only its bytes can tell.
    Unknown { seconds: i64, size: u64 },
}

struct Linker<'a> {
    /// The workspace of the commit's base.
    from: OwnedFd,
    index: &'a Index,
    user: Option<&'a (Index, Timespec)>,
    files: BTreeMap<Vec<u8>, Placed>,
}

impl Linker<'_> {
    /// Whether the user's index knows the file by its times as one with the committed content.
    fn is_clean(&self, path: &[u8], stat: &Stat) -> bool {
        let Some((committed, ours)) = self.index.remembered(path) else {
            return false;
        };
        let Some((index, written)) = self.user else {
            return false;
        };
        let Some((entry, seen)) = index.remembered(path) else {
            return false;
        };
        let executes = stat.st_mode & 0o100 != 0;
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && entry.oid == committed.oid
            && entry.mode == committed.mode
            && executes == (entry.mode == EXECUTABLE)
            && seen.is_of(stat, written)
            // Converted line endings and filters show in the size.
            && ours.size == stat.st_size as u32
    }

    /// Time and size of a tracked file, if it holds what is committed.
    fn clean(
        &self,
        entry: &Entry,
        workspace: &Path,
        hash: ringfence_model::changes::ObjectHash,
    ) -> io::Result<Option<(i64, u64)>> {
        let remembered = self.index.remembered(&entry.path).map(|(_, stat)| stat);
        let (Some(placed), Some(ours)) = (self.files.get(&entry.path), remembered) else {
            return Ok(None);
        };
        let (seconds, size) = match *placed {
            Placed::Linked => return Ok(Some((ours.mtime.0.into(), ours.size.into()))),
            Placed::Same { seconds, size } => return Ok(Some((seconds, size))),
            Placed::Unknown { seconds, size } => (seconds, size),
        };
        if ours.size != size as u32 {
            return Ok(None);
        }
        let path = workspace.join(files::relative(&entry.path));
        let metadata = std::fs::symlink_metadata(&path)?;
        let oid = match (metadata.is_symlink(), entry.mode == SYMLINK) {
            (true, true) => {
                let target = std::fs::read_link(&path)?;
                object_id("blob", target.as_os_str().as_encoded_bytes(), hash)
            }
            (false, false) => files::blob_id(&mut File::open(&path)?, hash)?,
            _ => return Ok(None),
        };
        Ok((oid == entry.oid).then_some((seconds, size)))
    }
}

impl Sharing for Linker<'_> {
    fn link(
        &mut self,
        path: &[u8],
        stat: &Stat,
        target: &OwnedFd,
        name: &[u8],
    ) -> io::Result<bool> {
        if !self.is_clean(path, stat) {
            return Ok(false);
        }
        let newer = self
            .index
            .remembered(path)
            .is_some_and(|(_, ours)| stat.st_mtime > i64::from(ours.mtime.0));
        if newer {
            return Ok(false);
        }
        let flags = AtFlags::empty();
        // Too many links, another file system: a copy does as well.
        let linked = rustix::fs::linkat(&self.from, files::relative(path), target, name, flags);
        if linked.is_ok() {
            self.files.insert(path.to_vec(), Placed::Linked);
        }
        Ok(linked.is_ok())
    }

    fn has_tracked_below(&self, directory: &[u8]) -> bool {
        self.index.has_tracked_below(directory)
    }

    fn copied(&mut self, path: &[u8], stat: &Stat) {
        if self.index.get(path).is_none() {
            return;
        }
        let (seconds, size) = (stat.st_mtime, stat.st_size as u64);
        let placed = if self.is_clean(path, stat) {
            Placed::Same { seconds, size }
        } else {
            Placed::Unknown { seconds, size }
        };
        self.files.insert(path.to_vec(), placed);
    }
}
