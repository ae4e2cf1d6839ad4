//! A patch as a layer on top of its base: files, links and whiteouts, as an overlay reads them.
//!
//! The base is read and never written; what it has must be what the patch was made of. A directory
//! that the patch empties goes with what was in it, as git has no empty directories.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ringfence_model::ByteText;
use ringfence_model::changes::FileMode;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::found::{Found, find};
use super::paths::above;
use super::{Entry, Laid, LaidFile, PatchError};
use crate::changes::handle::{self, Access, Kind};
use crate::layers::whiteout;

/// What a layer came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layered {
    pub files: u64,
    pub whiteouts: u64,
    pub bytes: u64,
}

/// Writes what these entries of a patch make of a base into the empty directory `upper`.
///
/// `prefix` is where the base is below the top of the patch's paths (`sub/dir`, or nothing). All
/// that is made belongs to the caller; files are 0644 or 0755, directories are as in the base.
pub fn layer<'a>(
    entries: impl IntoIterator<Item = &'a Entry<'a>>,
    base: BorrowedFd<'_>,
    prefix: &[u8],
    upper: BorrowedFd<'_>,
) -> Result<Layered, PatchError> {
    let mut gone = BTreeSet::new();
    let mut made = BTreeMap::new();
    for entry in entries {
        if entry.change.old.is_some() {
            gone.insert(inside(entry.old_path(), prefix)?);
        }
        if let Some(side) = &entry.change.new {
            made.insert(inside(entry.path(), prefix)?, (side.mode, entry));
        }
    }
    let mut writer = Writer {
        base,
        upper,
        came_to: Layered::default(),
    };
    for path in whiteouts(base, &gone, &made)? {
        writer.whiteout(path)?;
    }
    for (path, (mode, entry)) in &made {
        let old = old_content(base, prefix, entry)?;
        let content = entry.content(old.as_deref())?.unwrap_or_default();
        writer.file(path, *mode, &content)?;
    }
    Ok(writer.came_to)
}

/// Writes files over a base, and hides what is `None`: all of it is there. Paths begin at the base.
pub(crate) fn layer_files(
    files: &BTreeMap<&[u8], Option<(FileMode, &[u8])>>,
    base: BorrowedFd<'_>,
    upper: BorrowedFd<'_>,
) -> Result<Layered, PatchError> {
    let gone = files.iter().filter(|(_, file)| file.is_none());
    let gone: BTreeSet<&[u8]> = gone.map(|(path, _)| *path).collect();
    let made = files
        .iter()
        .filter_map(|(path, file)| Some((*path, (*file)?)));
    let made: BTreeMap<&[u8], (FileMode, &[u8])> = made.collect();
    let mut writer = Writer {
        base,
        upper,
        came_to: Layered::default(),
    };
    for path in whiteouts(base, &gone, &made)? {
        writer.whiteout(path)?;
    }
    for (path, (mode, content)) in &made {
        writer.file(path, *mode, content)?;
    }
    Ok(writer.came_to)
}

/// All files that a patch changes, as they are then.
pub(crate) fn laid(entries: &[Entry<'_>], base: BorrowedFd<'_>) -> Result<Laid, PatchError> {
    let mut laid = Laid::default();
    for entry in entries {
        if entry.change.old.is_some() {
            laid.0.entry(entry.old_path().to_vec()).or_insert(None);
        }
        if let Some(side) = &entry.change.new {
            let old = old_content(base, b"", entry)?;
            let content = entry.content(old.as_deref())?.unwrap_or_default();
            let file = LaidFile {
                mode: side.mode,
                oid: side.oid.clone(),
                content: Arc::from(content.into_owned()),
            };
            laid.0.insert(entry.path().to_vec(), Some(file));
        }
    }
    Ok(laid)
}

/// What the base has where an entry's old content is.
fn old_content(
    base: BorrowedFd<'_>,
    prefix: &[u8],
    entry: &Entry<'_>,
) -> Result<Option<Vec<u8>>, PatchError> {
    let Some(side) = &entry.change.old else {
        return Ok(None);
    };
    let from = inside(entry.old_path(), prefix)?;
    let found = find(base, from, side.size).map_err(|source| read_error(from, source))?;
    match found {
        Found::Content { bytes, .. } if found.is(side) => Ok(Some(bytes)),
        _ => Err(PatchError::Moved {
            path: ByteText::from(from),
        }),
    }
}

/// A path of the patch as one of the base.
fn inside<'p>(path: &'p [u8], prefix: &[u8]) -> Result<&'p [u8], PatchError> {
    let below = match prefix {
        b"" => Some(path),
        _ => path
            .strip_prefix(prefix)
            .and_then(|rest| rest.strip_prefix(b"/")),
    };
    below.ok_or_else(|| PatchError::Path {
        path: ByteText::from(path),
        why: "it is outside of the folder",
    })
}

/// What must be hidden: what goes and has nothing in its place, and directories that are empty then.
fn whiteouts<'p, V>(
    base: BorrowedFd<'_>,
    gone: &BTreeSet<&'p [u8]>,
    made: &BTreeMap<&'p [u8], V>,
) -> Result<BTreeSet<&'p [u8]>, PatchError> {
    let stays: BTreeSet<&[u8]> = made.keys().flat_map(|path| above(path)).collect();
    let mut hidden: BTreeSet<&[u8]> = gone
        .iter()
        .copied()
        .filter(|path| !made.contains_key(path) && !stays.contains(path))
        .collect();
    let mut emptied: Vec<&[u8]> = hidden.iter().flat_map(|path| above(path)).collect();
    // The deepest first.
    emptied.sort_unstable_by(|a, b| b.cmp(a));
    emptied.dedup();
    for directory in emptied {
        if stays.contains(directory) {
            continue;
        }
        let failed = |source| read_error(directory, source);
        let (parent, name) =
            handle::hold_parent(base, directory, Access::AsItIs).map_err(failed)?;
        let opened =
            handle::open_directory(parent.as_fd(), name, Access::AsItIs).map_err(failed)?;
        let names = handle::names(opened.fd.as_fd(), usize::MAX).map_err(failed)?;
        let is_hidden = |name: &Vec<u8>| hidden.contains(&[directory, b"/", name].concat()[..]);
        if names.iter().all(is_hidden) {
            hidden.insert(directory);
        }
    }
    // What is below something hidden is hidden with it, and a file in its place hides it too.
    let covered =
        |path: &&[u8]| above(path).any(|above| hidden.contains(above) || made.contains_key(above));
    Ok(hidden
        .iter()
        .copied()
        .filter(|path| !covered(path) && !made.contains_key(path))
        .collect())
}

struct Writer<'a> {
    base: BorrowedFd<'a>,
    upper: BorrowedFd<'a>,
    came_to: Layered,
}

impl Writer<'_> {
    fn whiteout(&mut self, path: &[u8]) -> Result<(), PatchError> {
        let (dir, name) = self.parent(path)?;
        whiteout(dir.as_fd(), name).map_err(|source| write_error(path, source))?;
        self.came_to.whiteouts += 1;
        Ok(())
    }

    fn file(&mut self, path: &[u8], mode: FileMode, content: &[u8]) -> Result<(), PatchError> {
        let (dir, name) = self.parent(path)?;
        write(dir.as_fd(), name, mode, content).map_err(|source| write_error(path, source))?;
        self.came_to.files += 1;
        self.came_to.bytes += content.len() as u64;
        Ok(())
    }

    /// The directory of a path in the layer, which is made where it is not there.
    fn parent<'p>(&self, path: &'p [u8]) -> Result<(OwnedFd, &'p [u8]), PatchError> {
        if let Ok(parent) = handle::hold_parent(self.upper, path, Access::AsItIs) {
            return Ok(parent);
        }
        for directory in above(path) {
            let failed = |source| write_error(directory, source);
            let (dir, name) =
                handle::hold_parent(self.upper, directory, Access::AsItIs).map_err(failed)?;
            match rustix::fs::mkdirat(&dir, name, Mode::RWXU) {
                Err(Errno::EXIST) => continue,
                other => other.map_err(|errno| failed(errno.into()))?,
            }
            let mode = self.mode_in_base(directory).unwrap_or(0o755);
            let made = handle::open_directory(dir.as_fd(), name, Access::AsItIs).map_err(failed)?;
            handle::set_mode(made.fd.as_fd(), mode).map_err(failed)?;
        }
        handle::hold_parent(self.upper, path, Access::AsItIs)
            .map_err(|source| write_error(path, source))
    }

    fn mode_in_base(&self, directory: &[u8]) -> Option<u32> {
        let (dir, name) = handle::hold_parent(self.base, directory, Access::AsItIs).ok()?;
        let meta = handle::look(dir.as_fd(), name).ok()??;
        // The owner can always write: this is our layer.
        (meta.kind == Kind::Directory).then_some(meta.mode & 0o777 | 0o700)
    }
}

fn write(dir: BorrowedFd<'_>, name: &[u8], mode: FileMode, content: &[u8]) -> std::io::Result<()> {
    let bits = match mode {
        FileMode::Symlink => return Ok(rustix::fs::symlinkat(content, dir, name)?),
        FileMode::Executable => 0o755,
        FileMode::Regular => 0o644,
    };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = std::fs::File::from(rustix::fs::openat(
        dir,
        name,
        flags,
        Mode::RUSR | Mode::WUSR,
    )?);
    file.write_all(content)?;
    // Whatever the caller's umask is.
    Ok(rustix::fs::fchmod(&file, Mode::from_raw_mode(bits))?)
}

fn read_error(path: &[u8], source: std::io::Error) -> PatchError {
    let path = ByteText::from(path);
    if handle::is_gone(&source) {
        PatchError::Moved { path }
    } else {
        PatchError::ReadBase { path, source }
    }
}

fn write_error(path: &[u8], source: std::io::Error) -> PatchError {
    PatchError::WriteLayer {
        path: ByteText::from(path),
        source,
    }
}
