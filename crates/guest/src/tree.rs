//! Every entry of a tree that an agent made: whatever its depth, its names and its modes.
//!
//! HOSTILE: each name is opened from the directory before it, and none is followed. Directories that are
//! closed to their owner are opened while they are walked, and closed again: who walks is the owner.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// BOUND: directories in each other. The names on the way to the innermost are in memory.
pub const DEPTH: usize = 4000;
/// BOUND: directories that are held open; others are found again.
const OPEN_AT_ONCE: usize = 128;

pub const OPEN: OFlags = OFlags::NOFOLLOW
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK);

/// What becomes of an entry that cannot be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Nobody changes the tree meanwhile: it is an error.
    Still,
    /// Somebody does: it is left out.
    Moving,
}

/// What is found.
#[derive(Debug)]
pub struct Entry<'a> {
    pub parent: BorrowedFd<'a>,
    pub name: &'a [u8],
    /// From the root of the walk.
    pub path: &'a [u8],
    /// Directories on the way to it.
    pub depth: usize,
    pub stat: Stat,
}

/// What is done with an entry.
pub type Visit<'a> = dyn FnMut(&Entry<'_>) -> io::Result<()> + 'a;

/// Every entry beneath a directory, each directory before what is in it.
pub fn walk(root: &Path, manner: Manner, visit: &mut Visit<'_>) -> io::Result<()> {
    let stat = rustix::fs::lstat(root)?;
    let (top, closed) = opened(rustix::fs::CWD, root.as_os_str().as_encoded_bytes(), &stat)?;
    walk_in(top, closed, manner, visit)
}

/// The same in one that is open; `closed`: the mode that it gets back.
pub fn walk_in(
    root: OwnedFd,
    closed: Option<u32>,
    manner: Manner,
    visit: &mut Visit<'_>,
) -> io::Result<()> {
    let top = root.try_clone()?;
    // One path for all levels: a deep tree has long ones.
    let mut path = Vec::new();
    let mut levels = vec![Level::open(root, 0, closed)?];
    let walked = walk_levels(top.as_fd(), &mut path, &mut levels, manner, visit);
    // However that ended, what was opened is closed again.
    while let Some(level) = levels.last() {
        path.truncate(level.end);
        leave(top.as_fd(), &path, &mut levels);
    }
    walked
}

fn walk_levels(
    top: BorrowedFd<'_>,
    path: &mut Vec<u8>,
    levels: &mut Vec<Level>,
    manner: Manner,
    visit: &mut Visit<'_>,
) -> io::Result<()> {
    while let Some(level) = levels.last_mut() {
        path.truncate(level.end);
        let Some(name) = level.names.pop() else {
            leave(top, path, levels);
            continue;
        };
        let fd = match level.fd.take().map_or_else(|| descend(top, path), Ok) {
            Ok(fd) => fd,
            Err(_) if manner == Manner::Moving => {
                leave(top, path, levels);
                continue;
            }
            Err(error) => return Err(at(path, &error)),
        };
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&name);
        let looked = look(fd.as_fd(), &name, path, levels.len() - 1, visit);
        if let Some(level) = levels.last_mut() {
            level.fd = Some(fd);
        }
        match looked {
            Ok(Some(inner)) => levels.push(inner),
            Ok(None) => {}
            Err(_) if manner == Manner::Moving => {}
            Err(error) => return Err(at(path, &error)),
        }
        if let Some(far) = levels.len().checked_sub(OPEN_AT_ONCE) {
            levels[far].fd = None;
        }
    }
    Ok(())
}

fn look(
    parent: BorrowedFd<'_>,
    name: &[u8],
    path: &[u8],
    depth: usize,
    visit: &mut Visit<'_>,
) -> io::Result<Option<Level>> {
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let entry = Entry {
        parent,
        name,
        path,
        depth,
        stat,
    };
    visit(&entry)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Ok(None);
    }
    if depth + 1 == DEPTH {
        return Err(io::Error::other("it is too deep"));
    }
    let (inner, closed) = opened(parent, name, &stat)?;
    Level::open(inner, path.len(), closed).map(Some)
}

/// Nothing is left in the innermost directory.
fn leave(top: BorrowedFd<'_>, path: &[u8], levels: &mut Vec<Level>) {
    let Some(done) = levels.pop() else { return };
    let found = match done.closed {
        Some(_) if done.fd.is_none() => descend(top, path).ok(),
        _ => done.fd,
    };
    let Some(fd) = found else { return };
    if let Some(above) = levels.last_mut().filter(|above| above.fd.is_none()) {
        // One step instead of the whole way down, where it leads to what was left: a directory that was
        // moved meanwhile has others above it.
        let up = rustix::fs::openat(&fd, c"..", OPEN | OFlags::DIRECTORY, Mode::empty());
        above.fd = up.ok().filter(|up| identity(up).ok() == Some(above.is));
    }
    if let Some(mode) = done.closed {
        // What resists is the agent's affair.
        let _ = rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode));
    }
}

/// A directory that is walked.
struct Level {
    /// `None` while it is far away.
    fd: Option<OwnedFd>,
    is: (u64, u64),
    /// How much of the path leads to it.
    end: usize,
    /// The last one is next.
    names: Vec<Vec<u8>>,
    /// The mode that it gets back.
    closed: Option<u32>,
}

impl Level {
    fn open(fd: OwnedFd, end: usize, closed: Option<u32>) -> io::Result<Self> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&fd)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(name);
            }
        }
        names.sort_unstable_by(|a, b| b.cmp(a));
        Ok(Self {
            is: identity(&fd)?,
            fd: Some(fd),
            end,
            names,
            closed,
        })
    }
}

fn identity(fd: &OwnedFd) -> io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Opens a directory to be walked; the mode that it had, where that was too little.
pub fn opened(
    parent: BorrowedFd<'_>,
    name: &[u8],
    stat: &Stat,
) -> io::Result<(OwnedFd, Option<u32>)> {
    let mode = stat.st_mode & 0o7777;
    let mut closed = None;
    if mode & 0o700 != 0o700 {
        let wide = Mode::from_raw_mode(mode | 0o700);
        // One that belongs to somebody else is open or it is not.
        if rustix::fs::chmodat(parent, name, wide, AtFlags::empty()).is_ok() {
            closed = Some(mode);
        }
    }
    let opened = rustix::fs::openat(parent, name, OPEN | OFlags::DIRECTORY, Mode::empty());
    if let (Err(_), Some(mode)) = (&opened, closed) {
        let mode = Mode::from_raw_mode(mode);
        let _ = rustix::fs::chmodat(parent, name, mode, AtFlags::empty());
    }
    Ok((opened?, closed))
}

/// Opens a file to be read that its owner may have closed to everybody.
pub fn readable(parent: BorrowedFd<'_>, name: &[u8], stat: &Stat) -> io::Result<OwnedFd> {
    let open = || rustix::fs::openat(parent, name, OPEN, Mode::empty());
    match open() {
        Err(Errno::ACCESS) => {
            let mode = |bits: u32| {
                rustix::fs::chmodat(parent, name, Mode::from_raw_mode(bits), AtFlags::empty())
            };
            mode(stat.st_mode & 0o7777 | 0o400)?;
            let opened = open();
            mode(stat.st_mode & 0o7777)?;
            Ok(opened?)
        }
        opened => Ok(opened?),
    }
}

/// A directory beneath another, by its path.
pub fn descend(top: BorrowedFd<'_>, path: &[u8]) -> io::Result<OwnedFd> {
    let mut here = top.try_clone_to_owned()?;
    for name in path
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty())
    {
        here = rustix::fs::openat(&here, name, OPEN | OFlags::DIRECTORY, Mode::empty())?;
    }
    Ok(here)
}

/// An error, with where it was.
pub fn at(path: &[u8], error: &io::Error) -> io::Error {
    // BOUND: one line for a person.
    let path: String = String::from_utf8_lossy(path).chars().take(200).collect();
    io::Error::other(format!("`{}`: {error}", path.escape_debug()))
}
