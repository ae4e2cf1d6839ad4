//! Reader of git's index: which paths are tracked, by binary search.
//!
//! Split indexes are joined, sparse directories count as tracked. Names live in one arena, so that
//! 50,000 entries cost three allocations.

use std::ops::Range;
use std::path::Path;

use rustix::fs::{Stat, Timespec};

use super::files::Contents;
use super::index_file::{EXTENDED, IndexError, Parsed, STAT_BYTES, Slot, parse, u32_at};
use super::split;
use super::{GitError, ObjectHash, Repository};

/// BOUND: a million tracked files need about 100 MB.
pub(super) const INDEX_BYTES: u64 = 512 << 20;
const MODE_DIRECTORY: u32 = 0o040000;
const MODE_GITLINK: u32 = 0o160000;

/// One tracked path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry<'a> {
    /// Relative to the top of the work tree; a sparse directory ends in `/`.
    pub path: &'a [u8],
    pub mode: u32,
    pub oid: &'a [u8],
    /// 0, or 1 to 3 while a merge is unresolved.
    pub stage: u8,
}

impl IndexEntry<'_> {
    /// True where another repository's commit is recorded.
    pub fn is_gitlink(&self) -> bool {
        self.mode == MODE_GITLINK
    }
}

/// What an index remembers of a file, cut to 32 bits as git does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexStat {
    pub ctime: (u32, u32),
    pub mtime: (u32, u32),
    pub inode: u32,
    pub size: u32,
}

impl IndexStat {
    /// Whether this is surely the file that was remembered, by an index that was written then.
    pub(crate) fn is_of(&self, stat: &Stat, written: &Timespec) -> bool {
        let cut = |seconds: i64, nanoseconds: i64| (seconds as u32, nanoseconds as u32);
        self.mtime == cut(stat.st_mtime, stat.st_mtime_nsec as i64)
            && self.ctime == cut(stat.st_ctime, stat.st_ctime_nsec as i64)
            && self.inode == stat.st_ino as u32
            && self.size == stat.st_size as u32
            // As new as the index itself: it may have changed since.
            && (stat.st_mtime, stat.st_mtime_nsec as _) < (written.tv_sec, written.tv_nsec)
    }
}

/// The tracked paths, sorted.
#[derive(Debug)]
pub struct Index {
    /// The file as it was read; after it the shared one, if the index is split.
    data: Vec<u8>,
    names: Vec<u8>,
    slots: Vec<Slot>,
    hash: ObjectHash,
}

impl Index {
    /// Reads a repository's index, and hands out the files that it consists of; `None` if there
    /// is none, as in a fresh repository.
    pub(super) fn read(repo: &Repository) -> Result<Option<(Self, IndexFiles)>, GitError> {
        let path = repo.git_dir.join("index");
        let Some(main) = repo.git.read(Path::new("index"), INDEX_BYTES)? else {
            return Ok(None);
        };
        let failed = |source| GitError::ParseIndex {
            path: path.clone(),
            source,
        };
        let mut names = Vec::new();
        let Contents { bytes, mtime } = main;
        let parsed = parse(&bytes, 0, repo.hash, &mut names).map_err(failed)?;
        let host_extensions = parsed.host_extensions.clone();
        let base = match split::base_name(&bytes, parsed.link.clone(), repo.hash).map_err(failed)? {
            None => None,
            Some(name) => {
                let contents = read_shared(repo, &name)?.ok_or(failed(IndexError::SplitBase))?;
                Some((name, contents))
            }
        };
        let main_len = bytes.len();
        let index = Self::merge(
            parsed,
            bytes,
            names,
            base.as_ref().map(|b| &b.1.bytes[..]),
            repo.hash,
        )
        .map_err(failed)?;
        Ok(Some((
            index,
            IndexFiles {
                main_len,
                mtime,
                host_extensions,
                base,
            },
        )))
    }

    /// Reads a repository's index, with the time of its file.
    pub(crate) fn of(repo: &Repository) -> Result<Option<(Self, Timespec)>, GitError> {
        Ok(Self::read(repo)?.map(|(index, files)| (index, files.mtime)))
    }

    /// The entry at exactly this path that is not in conflict, and what is remembered of its file.
    pub(crate) fn remembered(&self, path: &[u8]) -> Option<(IndexEntry<'_>, IndexStat)> {
        let slot = self.slots.get(self.lower_bound(path))?;
        let entry = self.entry(slot);
        if entry.path != path || entry.stage != 0 {
            return None;
        }
        let fixed = self.stat_and_oid(slot);
        let word = |n: usize| u32_at(fixed, n * 4).unwrap_or(0);
        let stat = IndexStat {
            ctime: (word(0), word(1)),
            mtime: (word(2), word(3)),
            inode: word(5),
            size: word(9),
        };
        Some((entry, stat))
    }

    /// Reads an index that is not split.
    pub fn parse(bytes: &[u8], hash: ObjectHash) -> Result<Self, IndexError> {
        Self::parse_split(bytes, None, hash)
    }

    /// Reads an index with the shared file that its `link` extension names.
    pub fn parse_split(
        bytes: &[u8],
        base: Option<&[u8]>,
        hash: ObjectHash,
    ) -> Result<Self, IndexError> {
        let mut names = Vec::new();
        let parsed = parse(bytes, 0, hash, &mut names)?;
        Self::merge(parsed, bytes.to_vec(), names, base, hash)
    }

    fn merge(
        parsed: Parsed,
        mut data: Vec<u8>,
        mut names: Vec<u8>,
        base: Option<&[u8]>,
        hash: ObjectHash,
    ) -> Result<Self, IndexError> {
        let mut slots = match split::base_name(&data, parsed.link.clone(), hash)? {
            None => parsed.slots,
            Some(_) => {
                let base = base.ok_or(IndexError::SplitBase)?;
                let below = parse(base, data.len(), hash, &mut names)?;
                let link = parsed.link.ok_or(IndexError::SplitBase)?;
                let merged = split::merge(below.slots, parsed.slots, &data[link], hash)?;
                data.extend_from_slice(base);
                merged
            }
        };
        if slots.iter().any(|slot| slot.name_len == 0) {
            return Err(IndexError::Name);
        }
        let key = |slot: &Slot| (name_of(&names, slot), stage_of(slot));
        if !slots.is_sorted_by(|a, b| key(a) <= key(b)) {
            slots.sort_by(|a, b| key(a).cmp(&key(b)));
        }
        Ok(Self {
            data,
            names,
            slots,
            hash,
        })
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// True where nothing is tracked.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// All entries by path.
    pub fn entries(&self) -> impl Iterator<Item = IndexEntry<'_>> {
        self.slots.iter().map(|slot| self.entry(slot))
    }

    /// The entries below a directory (all for an empty one).
    pub fn below(&self, dir: &[u8]) -> impl Iterator<Item = IndexEntry<'_>> {
        self.slots_below(dir).iter().map(|slot| self.entry(slot))
    }

    /// True for a tracked file, for a gitlink, and for whatever a sparse directory covers.
    pub fn is_tracked(&self, path: &[u8]) -> bool {
        let at = self.lower_bound(path);
        self.slots
            .get(at)
            .is_some_and(|slot| name_of(&self.names, slot) == path)
            || self.in_sparse_directory(path)
    }

    /// True where anything below a directory is tracked.
    pub fn has_tracked_below(&self, dir: &[u8]) -> bool {
        if dir.is_empty() {
            return !self.slots.is_empty();
        }
        !self.slots_below(dir).is_empty() || self.in_sparse_directory(dir)
    }

    /// The entry at exactly this path, of the lowest stage.
    pub fn get(&self, path: &[u8]) -> Option<IndexEntry<'_>> {
        let slot = self.slots.get(self.lower_bound(path))?;
        (name_of(&self.names, slot) == path).then(|| self.entry(slot))
    }

    pub(super) fn slots_below(&self, dir: &[u8]) -> &[Slot] {
        if dir.is_empty() {
            return &self.slots;
        }
        let with_slash = [dir, b"/"].concat();
        let start = self.lower_bound(&with_slash);
        let rest = &self.slots[start..];
        let len = rest.partition_point(|slot| name_of(&self.names, slot).starts_with(&with_slash));
        &rest[..len]
    }

    /// The bytes of the index proper, without the shared file.
    pub(super) fn main_bytes(&self, files: &IndexFiles) -> &[u8] {
        &self.data[..files.main_len]
    }

    pub(super) fn name(&self, slot: &Slot) -> &[u8] {
        name_of(&self.names, slot)
    }

    /// The stat data and object id of an entry, as they are in the file.
    pub(super) fn stat_and_oid(&self, slot: &Slot) -> &[u8] {
        let start = slot.fixed as usize;
        &self.data[start..start + STAT_BYTES + self.hash.bytes()]
    }

    /// Both words of flags; the second is there only if the first says so.
    pub(super) fn extended_flags(&self, slot: &Slot) -> Option<u16> {
        let at = slot.fixed as usize + STAT_BYTES + self.hash.bytes() + 2;
        (slot.flags & EXTENDED != 0).then(|| u16::from_be_bytes([self.data[at], self.data[at + 1]]))
    }

    fn entry(&self, slot: &Slot) -> IndexEntry<'_> {
        let fixed = self.stat_and_oid(slot);
        IndexEntry {
            path: self.name(slot),
            mode: slot.mode,
            oid: &fixed[STAT_BYTES..],
            stage: stage_of(slot),
        }
    }

    fn lower_bound(&self, path: &[u8]) -> usize {
        self.slots
            .partition_point(|slot| name_of(&self.names, slot) < path)
    }

    /// A sparse directory `a/` stands for everything below it; it sorts before all of that.
    fn in_sparse_directory(&self, path: &[u8]) -> bool {
        path.iter()
            .enumerate()
            .filter(|&(_, &byte)| byte == b'/')
            .map(|(at, _)| &path[..=at])
            .chain([&[path, b"/"].concat()[..]])
            .any(|dir| {
                self.get(dir)
                    .is_some_and(|entry| entry.mode == MODE_DIRECTORY)
            })
    }
}

fn name_of<'a>(names: &'a [u8], slot: &Slot) -> &'a [u8] {
    let start = slot.name as usize;
    &names[start..start + usize::from(slot.name_len)]
}

fn stage_of(slot: &Slot) -> u8 {
    ((slot.flags >> 12) & 3) as u8
}

/// The files that an index consists of.
#[derive(Debug)]
pub(super) struct IndexFiles {
    main_len: usize,
    pub mtime: Timespec,
    /// Parts of the index proper that tell of the host.
    pub host_extensions: Vec<Range<usize>>,
    /// The shared file of a split index with its name.
    pub base: Option<(String, Contents)>,
}

/// Git keeps the shared file beside the index; in a linked worktree it may be in either place.
fn read_shared(repo: &Repository, name: &str) -> Result<Option<Contents>, GitError> {
    for directory in [&repo.git, &repo.common] {
        if let Some(contents) = directory.read(Path::new(name), INDEX_BYTES)? {
            return Ok(Some(contents));
        }
    }
    Ok(None)
}
