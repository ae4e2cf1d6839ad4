//! Opening and looking at entries of a hostile tree, always relative to a directory handle.
//!
//! HOSTILE: an agent chose every name, type, mode and byte below a layer. So each entry is first
//! held by an `O_PATH` handle, which opens nothing, then looked at, and only a regular file or a
//! directory is opened for reading, through that same handle: what was checked is what is opened.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, ResolveFlags, StatxFlags};
use rustix::io::Errno;

/// What the walker may do to a directory or file whose mode keeps its own owner out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nothing: it is the user's folder.
    AsItIs,
    /// Widen the mode while reading and put it back.
    Widen,
    /// Widen the mode for good: the tree is being removed.
    Take,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Directory,
    File,
    Symlink,
    /// Character device 0:0, how an overlay says "deleted".
    Whiteout,
    Special,
}

/// A time as the kernel keeps it; ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Started {
    pub seconds: i64,
    pub nanoseconds: u32,
}

/// Which inode this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    device: (u32, u32),
    pub inode: u64,
}

/// What was seen of an entry without opening it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meta {
    pub kind: Kind,
    pub mode: u32,
    pub size: u64,
    pub blocks: u64,
    pub links: u32,
    pub changed: Started,
    pub identity: Identity,
    pub modified: Started,
    pub owner: u32,
    pub group: u32,
    /// As the disk has it; tells FIFOs, sockets and devices apart.
    pub file_type: FileType,
}

impl Meta {
    pub fn owner_executes(&self) -> bool {
        self.mode & 0o100 != 0
    }

    pub fn lacks(&self, bits: u32) -> bool {
        self.mode & bits != bits && self.owner == rustix::process::geteuid().as_raw()
    }
}

/// A directory open for listing and for lookups below it.
#[derive(Debug)]
pub(crate) struct OpenDirectory {
    pub fd: OwnedFd,
    pub meta: Meta,
    /// The mode to put back when done.
    pub restore: Option<u32>,
}

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);
const HOLD: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Looks at an entry without opening it; `None` where there is none.
pub(crate) fn look(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<Option<Meta>> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    match rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS) {
        Ok(statx) => Ok(Some(meta(&statx))),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Looks at what a handle holds.
pub(crate) fn look_at(fd: BorrowedFd<'_>) -> io::Result<Meta> {
    let statx = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
    Ok(meta(&statx))
}

fn meta(statx: &rustix::fs::Statx) -> Meta {
    let mode = u32::from(statx.stx_mode);
    let kind = match mode & 0o170_000 {
        0o040_000 => Kind::Directory,
        0o100_000 => Kind::File,
        0o120_000 => Kind::Symlink,
        0o020_000 if statx.stx_rdev_major == 0 && statx.stx_rdev_minor == 0 => Kind::Whiteout,
        _ => Kind::Special,
    };
    Meta {
        kind,
        mode: mode & 0o7777,
        size: statx.stx_size,
        blocks: statx.stx_blocks,
        links: statx.stx_nlink,
        changed: Started {
            seconds: statx.stx_ctime.tv_sec,
            nanoseconds: statx.stx_ctime.tv_nsec,
        },
        identity: Identity {
            device: (statx.stx_dev_major, statx.stx_dev_minor),
            inode: statx.stx_ino,
        },
        modified: Started {
            seconds: statx.stx_mtime.tv_sec,
            nanoseconds: statx.stx_mtime.tv_nsec,
        },
        owner: statx.stx_uid,
        group: statx.stx_gid,
        file_type: FileType::from_raw_mode(mode),
    }
}

/// Holds an entry (or, by a longer path, one further below) by an `O_PATH` handle.
fn hold(dir: BorrowedFd<'_>, path: &[u8]) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat2(
        dir,
        path,
        HOLD,
        Mode::empty(),
        RESOLVE,
    )?)
}

/// Holds an entry of a directory that may keep us from looking into it.
pub(crate) fn hold_in(dir: BorrowedFd<'_>, name: &[u8], access: Access) -> io::Result<OwnedFd> {
    match hold(dir, name) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let above = look_at(dir)?;
            if access == Access::AsItIs || !above.lacks(0o500) {
                return Err(error);
            }
            set_mode(dir, above.mode | 0o700)?;
            let held = hold(dir, name);
            set_mode(dir, above.mode)?;
            held
        }
        other => other,
    }
}

/// Holds a directory below a root; `NOTDIR` where it is something else.
pub(crate) fn hold_directory(root: BorrowedFd<'_>, path: &[u8]) -> io::Result<OwnedFd> {
    match path {
        b"" => root.try_clone_to_owned(),
        _ => hold(root, &[path, b"/."].concat()),
    }
}

/// Opens the directory that holds `path` and gives the last name, so that one entry deep below a
/// root can be read without walking everything above it.
pub(crate) fn hold_parent<'p>(
    root: BorrowedFd<'_>,
    path: &'p [u8],
    access: Access,
) -> io::Result<(OwnedFd, &'p [u8])> {
    let (above, name) = match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => return Ok((root.try_clone_to_owned()?, path)),
    };
    match hold(root, above) {
        Err(error)
            if error.kind() == io::ErrorKind::PermissionDenied && access != Access::AsItIs => {}
        other => return Ok((other?, name)),
    }
    let mut here = root.try_clone_to_owned()?;
    for component in above.split(|&byte| byte == b'/') {
        here = hold_in(here.as_fd(), component, access)?;
    }
    Ok((here, name))
}

/// Opens a directory for listing; never follows a link.
pub(crate) fn open_directory(
    dir: BorrowedFd<'_>,
    name: &[u8],
    access: Access,
) -> io::Result<OpenDirectory> {
    let held = hold_in(dir, name, access)?;
    reopen_directory(held.as_fd(), access)
}

/// Opens a directory that is already held, with its own position for listing.
pub(crate) fn reopen_directory(held: BorrowedFd<'_>, access: Access) -> io::Result<OpenDirectory> {
    let meta = look_at(held)?;
    if meta.kind != Kind::Directory {
        return Err(Errno::NOTDIR.into());
    }
    let needed = match access {
        Access::AsItIs => 0,
        Access::Widen => 0o500,
        Access::Take => 0o700,
    };
    let widened = meta.lacks(needed);
    if widened {
        set_mode(held, meta.mode | 0o700)?;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::openat(CWD, by_handle(held), flags, Mode::empty()) {
        Ok(fd) => Ok(OpenDirectory {
            fd,
            meta,
            restore: (widened && access == Access::Widen).then_some(meta.mode),
        }),
        Err(errno) => {
            if widened {
                set_mode(held, meta.mode)?;
            }
            Err(errno.into())
        }
    }
}

/// A regular file open for reading.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub file: File,
    /// From before its mode was widened.
    pub meta: Meta,
    /// The overlay attribute by which it says that its bytes are not its own.
    pub elsewhere: Option<&'static str>,
}

/// Opens a regular file for reading; its mode is back to what it was when this returns.
pub(crate) fn open_file(dir: BorrowedFd<'_>, name: &[u8], access: Access) -> io::Result<OpenFile> {
    let held = hold_in(dir, name, access)?;
    let meta = look_at(held.as_fd())?;
    if meta.kind != Kind::File {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "not a regular file",
        ));
    }
    let widened = access == Access::Widen && meta.lacks(0o400);
    if widened {
        set_mode(held.as_fd(), meta.mode | 0o600)?;
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(CWD, by_handle(held.as_fd()), flags, Mode::empty());
    // Attributes are closed to us by the same mode.
    let attribute = match (&opened, access) {
        (Ok(fd), Access::Widen | Access::Take) => elsewhere(fd.as_fd()),
        _ => Ok(None),
    };
    if widened {
        set_mode(held.as_fd(), meta.mode)?;
    }
    let file = File::from(opened?);
    if look_at(file.as_fd())?.kind != Kind::File {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "not a regular file",
        ));
    }
    Ok(OpenFile {
        file,
        meta,
        elsewhere: attribute?,
    })
}

/// Reads a link's target, and what the link says about itself.
pub(crate) fn read_link(
    dir: BorrowedFd<'_>,
    name: &[u8],
    access: Access,
) -> io::Result<(Vec<u8>, Meta)> {
    let held = hold_in(dir, name, access)?;
    let meta = look_at(held.as_fd())?;
    if meta.kind != Kind::Symlink {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "not a symbolic link",
        ));
    }
    let target = rustix::fs::readlinkat(&held, "", Vec::new())?;
    Ok((target.into_bytes(), meta))
}

/// Whether the entries of a directory may be looked at.
pub(crate) fn may_search(dir: BorrowedFd<'_>) -> bool {
    look(dir, b".").is_ok()
}

/// True where the links at a path lead back to themselves. This follows links, but only within the
/// root, and opens nothing.
pub(crate) fn is_loop(root: BorrowedFd<'_>, path: &[u8]) -> bool {
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let held = rustix::fs::openat2(root, path, flags, Mode::empty(), within);
    matches!(held, Err(Errno::LOOP))
}

/// The names in a freshly opened directory, sorted; at most `limit` of them.
pub(crate) fn names(dir: BorrowedFd<'_>, limit: usize) -> io::Result<Vec<Vec<u8>>> {
    let mut buffer = vec![MaybeUninit::<u8>::uninit(); 32 << 10];
    let mut listing = RawDir::new(dir, &mut buffer);
    let mut names = Vec::new();
    while names.len() < limit
        && let Some(entry) = listing.next()
    {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// The value of an extended attribute of at most 16 bytes (longer ones are cut to nothing).
pub(crate) fn attribute(fd: BorrowedFd<'_>, name: &str) -> io::Result<Option<Vec<u8>>> {
    let mut value = [0_u8; 16];
    match rustix::fs::fgetxattr(fd, name, &mut value) {
        Ok(length) => Ok(Some(value[..length].to_vec())),
        Err(Errno::RANGE) => Ok(Some(Vec::new())),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// The attribute by which an entry of a layer says that its content is elsewhere. Our mounts never
/// make one, so whoever sees one fails closed.
pub(crate) fn elsewhere(fd: BorrowedFd<'_>) -> io::Result<Option<&'static str>> {
    for name in ["user.overlay.redirect", "user.overlay.metacopy"] {
        if attribute(fd, name)?.is_some() {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// True where an entry is there and not for us to read, or on a file system mounted over the tree.
pub(crate) fn is_closed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::CrossesDevices
    )
}

/// True where an entry is not there any more, or is something else by now.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::InvalidData
    ) || error.raw_os_error() == Some(Errno::LOOP.raw_os_error())
}

/// Sets the mode of what a handle holds; a link is never behind it.
pub(crate) fn set_mode(held: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    Ok(rustix::fs::chmod(
        by_handle(held),
        Mode::from_raw_mode(mode),
    )?)
}

/// A path that leads to what a handle holds, also where the handle opens nothing.
pub(crate) fn by_handle(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}
