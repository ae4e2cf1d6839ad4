//! What an entry carries besides its content: owner, extended attributes, mode and time.
//!
//! Everything goes through paths of handles: a handle that opens nothing has no other way.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::changes::handle::{self, Access, Kind, Meta};

/// Where the overlay keeps its own; what an agent sets there itself is stored one level deeper.
const OVERLAY: &[u8] = b"user.overlay.";
const OVERLAY_OF_AGENT: &[u8] = b"user.overlay.overlay.";
const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
/// BOUND: the kernel's own for a list of names and for a value.
const LONGEST: usize = 64 << 10;

/// Which attributes cross.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// All that the layer has.
    All,
    /// Those that the agent set, and not what the overlay noted for itself.
    OfAgent,
}

pub(crate) type Attributes = Vec<(CString, Vec<u8>)>;

/// Reads the attributes of a directory or file whose mode lets us; sorted.
pub(crate) fn read(held: BorrowedFd<'_>, which: Which) -> io::Result<Attributes> {
    let path = handle::by_handle(held);
    let mut buffer = vec![0_u8; 1024];
    let length = loop {
        match rustix::fs::listxattr(&path, &mut *buffer) {
            Ok(length) => break length,
            Err(Errno::NOTSUP) => return Ok(Vec::new()),
            Err(Errno::RANGE) if buffer.len() < LONGEST => buffer.resize(LONGEST, 0),
            Err(errno) => return Err(errno.into()),
        }
    };
    buffer.truncate(length);
    let mut found = Vec::new();
    for name in buffer.split(|&byte| byte == 0) {
        if !crosses(name, which) {
            continue;
        }
        if let Some(value) = value(&path, name)? {
            found.push((CString::new(name)?, value));
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn crosses(name: &[u8], which: Which) -> bool {
    if name.starts_with(OVERLAY) && which == Which::OfAgent {
        return name.starts_with(OVERLAY_OF_AGENT);
    }
    name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_")
}

fn value(path: &str, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0_u8; 256];
    loop {
        match rustix::fs::getxattr(path, name, &mut *value) {
            Ok(length) => {
                value.truncate(length);
                return Ok(Some(value));
            }
            Err(Errno::NODATA) => return Ok(None),
            Err(Errno::RANGE) if value.len() < LONGEST => value.resize(LONGEST, 0),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Gives what was just made the attributes of what it stands for. Our own mode is the last that
/// keeps us out, and so comes late; a change of the owner clears bits of the mode, and so is first.
pub(super) fn apply(
    made: BorrowedFd<'_>,
    like: &Meta,
    attributes: &Attributes,
    opaque: Opaque,
) -> io::Result<()> {
    let path = handle::by_handle(made);
    let mode = like.mode & !dropped_bits(made, like)?;
    for (name, value) in attributes {
        rustix::fs::setxattr(&path, name, value, XattrFlags::empty())?;
    }
    if opaque == Opaque::Marked {
        rustix::fs::setxattr(&path, c"user.overlay.opaque", b"y", XattrFlags::empty())?;
    }
    handle::set_mode(made, mode)?;
    Ok(rustix::fs::utimensat(
        CWD,
        &path,
        &times(like),
        AtFlags::empty(),
    )?)
}

/// Whether a directory is marked as hiding what is below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opaque {
    Marked,
    Unmarked,
}

/// The same for a link, which has only an owner and a time.
pub(super) fn apply_to_link(dir: BorrowedFd<'_>, name: &[u8], like: &Meta) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    dropped_bits(made.as_fd(), like)?;
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    Ok(rustix::fs::utimensat(dir, name, &times(like), flags)?)
}

/// Keeps the owner where we may, and gives the bits of the mode that would mean somebody else.
fn dropped_bits(made: BorrowedFd<'_>, like: &Meta) -> io::Result<u32> {
    let now = handle::look_at(made)?;
    if (now.owner, now.group) == (like.owner, like.group) {
        return Ok(0);
    }
    let (owner, group) = (Uid::from_raw(like.owner), Gid::from_raw(like.group));
    match rustix::fs::chownat(made, "", Some(owner), Some(group), AtFlags::EMPTY_PATH) {
        Ok(()) => Ok(0),
        // HOSTILE: a file that was made to run as its owner would now run as us.
        Err(Errno::PERM | Errno::INVAL) => Ok(SET_USER_ID | SET_GROUP_ID),
        Err(errno) => Err(errno.into()),
    }
}

fn times(like: &Meta) -> Timestamps {
    let time = Timespec {
        tv_sec: like.modified.seconds,
        tv_nsec: like.modified.nanoseconds.into(),
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

/// Opens a regular file while its mode lets us, and puts the mode back.
pub(crate) fn with_file<T>(
    dir: BorrowedFd<'_>,
    name: &[u8],
    access: Access,
    work: impl FnOnce(BorrowedFd<'_>, &Meta) -> io::Result<T>,
) -> io::Result<T> {
    let held = handle::hold_in(dir, name, access)?;
    let meta = handle::look_at(held.as_fd())?;
    if meta.kind != Kind::File {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "not a regular file",
        ));
    }
    let widened = access == Access::Widen && meta.lacks(0o400);
    if widened {
        handle::set_mode(held.as_fd(), meta.mode | 0o600)?;
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let path = handle::by_handle(held.as_fd());
    let worked = rustix::fs::openat(CWD, path, flags, Mode::empty())
        .map_err(io::Error::from)
        .and_then(|file| work(file.as_fd(), &meta));
    if widened {
        handle::set_mode(held.as_fd(), meta.mode)?;
    }
    worked
}
