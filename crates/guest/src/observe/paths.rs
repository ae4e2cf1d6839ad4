//! Names that processes use, as the absolute names that the kernel makes of them.
//!
//! The guest shares root and mounts with everything inside, so it can look a name up as the kernel
//! will: from the working directory of the process, following links. What it cannot share is what
//! `/proc/self` means.

use std::ffi::CString;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;

use ringfence_jail::observe::{At, Directory, read_memory};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

/// BOUND: the kernel takes no longer names.
const NAME: usize = 4096;
/// BOUND: links that are followed at the end of a name; the kernel follows no more.
const LINKS: usize = 40;
/// BOUND: directories above one that is missing that are looked for. Each takes as long as a name.
const ABOVE: usize = 12;
const PAGE: u64 = 4096;

/// A name as it was asked for.
#[derive(Clone, Debug)]
pub struct Named {
    thread: i32,
    directory: Directory,
    /// Empty for what the directory itself stands for.
    pub name: Vec<u8>,
    follows: bool,
}

/// Where a name leads.
#[derive(Debug)]
pub struct Place {
    /// Absolute, without links.
    pub path: Vec<u8>,
    /// What is there; `None` where nothing is.
    pub what: Option<FileType>,
}

/// Why a name leads nowhere that can be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nowhere {
    /// It starts from a descriptor that is none, or is about what has been deleted.
    Gone,
    /// It may lead anywhere.
    Unknown,
}

impl Named {
    /// Reads a name from the memory of a thread that waits; says what the kernel would where there
    /// is none.
    pub fn read(thread: i32, at: At) -> Result<Self, Errno> {
        let name = match at.name {
            0 => Vec::new(),
            address => read_name(thread, address)?,
        };
        Ok(Self {
            thread,
            directory: at.directory,
            name,
            follows: at.follows,
        })
    }

    /// The name for our own lookups.
    fn for_us(&self) -> Vec<u8> {
        if self.name.starts_with(b"/") {
            return self.seen_by_us(&self.name);
        }
        let mut path = self.start();
        if !self.name.is_empty() {
            path.push(b'/');
            path.extend_from_slice(&self.name);
        }
        if path.len() < NAME {
            path
        } else {
            // HOSTILE: the kernel took it without what we put before it.
            plain(&path)
        }
    }

    /// An absolute name of the process's, with what is different for us put right.
    fn seen_by_us(&self, name: &[u8]) -> Vec<u8> {
        let thread = self.thread;
        let name = plain(name);
        for (prefix, instead) in [
            (&b"/proc/self/"[..], format!("/proc/{thread}/")),
            (b"/proc/thread-self/", format!("/proc/{thread}/")),
            (b"/dev/fd/", format!("/proc/{thread}/fd/")),
        ] {
            if let Some(rest) = name.strip_prefix(prefix) {
                return [instead.as_bytes(), rest].concat();
            }
        }
        for (stream, fd) in [
            (&b"/dev/stdin"[..], 0),
            (b"/dev/stdout", 1),
            (b"/dev/stderr", 2),
        ] {
            if name == stream {
                return format!("/proc/{thread}/fd/{fd}").into_bytes();
            }
        }
        name
    }

    fn start(&self) -> Vec<u8> {
        match self.directory {
            Directory::Working => format!("/proc/{}/cwd", self.thread),
            Directory::Descriptor(fd) => format!("/proc/{}/fd/{fd}", self.thread),
        }
        .into_bytes()
    }

    /// Why nothing can be there, where nothing can be: the very name is missing.
    pub fn is_missing(&self) -> Option<Errno> {
        if self.name.is_empty() {
            return None;
        }
        let path = self.for_us();
        match rustix::fs::statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW) {
            Err(errno @ (Errno::NOENT | Errno::NOTDIR)) => {
                // A link to `/proc/self` leads us elsewhere: the kernel knows.
                let slash = path.iter().rposition(|&byte| byte == b'/')?;
                let elsewhere =
                    canonical(&path[..slash]).is_ok_and(|parent| parent.starts_with(b"/proc"));
                (!elsewhere).then_some(errno)
            }
            _ => None,
        }
    }

    /// Where it leads.
    pub fn place(&self) -> Result<Place, Nowhere> {
        let mut path = self.for_us();
        // A descriptor of the process is what it stands for.
        if self.name.is_empty() {
            return Ok(Place {
                path: read_link(&path)?,
                what: Some(FileType::RegularFile),
            });
        }
        for _ in 0..LINKS {
            if is_descriptor(&path) {
                return Ok(Place {
                    path: read_link(&path)?,
                    what: Some(FileType::RegularFile),
                });
            }
            let place = entry(&path)?;
            if !self.follows || place.what != Some(FileType::Symlink) {
                return Ok(place);
            }
            let target = read_link(&place.path)?;
            path = if target.starts_with(b"/") {
                self.seen_by_us(&target)
            } else {
                [parent(&place.path), b"/", &target].concat()
            };
        }
        Err(Nowhere::Unknown)
    }
}

/// What stands before the last slash; nothing for what is at the top.
fn parent(path: &[u8]) -> &[u8] {
    let slash = path.iter().rposition(|&byte| byte == b'/');
    &path[..slash.unwrap_or(0)]
}

/// An entry by its name: the directory's own name, without links, and the last part as it is.
fn entry(path: &[u8]) -> Result<Place, Nowhere> {
    let end = path.iter().rposition(|&byte| byte != b'/');
    let path = &path[..end.map_or(0, |end| end + 1)];
    let parent = parent(path);
    let last = path[parent.len()..].strip_prefix(b"/").unwrap_or_default();
    if matches!(last, b"" | b"." | b"..") {
        let path = canonical(path)?;
        return Ok(Place {
            path,
            what: Some(FileType::Directory),
        });
    }
    let mut whole = nearest(parent)?;
    if whole != b"/" {
        whole.push(b'/');
    }
    whole.extend_from_slice(last);
    let looked = rustix::fs::statat(CWD, &whole, AtFlags::SYMLINK_NOFOLLOW);
    let what = looked
        .map(|stat| FileType::from_raw_mode(stat.st_mode))
        .ok();
    Ok(Place { path: whole, what })
}

/// The kernel's own name of a directory. Where it is not there, it may be when the kernel looks:
/// then its name is that of the nearest one above, and the rest as it was said.
fn nearest(directory: &[u8]) -> Result<Vec<u8>, Nowhere> {
    let mut above = directory;
    for _ in 0..ABOVE {
        match canonical(above) {
            Ok(mut path) => {
                path.extend_from_slice(&directory[above.len()..]);
                return Ok(path);
            }
            // Nothing is above what a process starts from but what we would find there.
            Err(nowhere) if is_start(above) => return Err(nowhere),
            Err(_) => {}
        }
        let higher = parent(above);
        if above.ends_with(b"/..") {
            return Err(Nowhere::Unknown);
        }
        above = higher;
    }
    Err(Nowhere::Unknown)
}

/// Without what says nothing: empty parts and `.`.
fn plain(path: &[u8]) -> Vec<u8> {
    let parts = path.split(|&byte| byte == b'/');
    let mut out = Vec::with_capacity(path.len());
    for part in parts.filter(|part| !matches!(*part, b"" | b".")) {
        out.push(b'/');
        out.extend_from_slice(part);
    }
    if out.is_empty() {
        out.push(b'/');
    }
    out
}

/// The kernel's own name of a directory that is there.
fn canonical(directory: &[u8]) -> Result<Vec<u8>, Nowhere> {
    if directory.is_empty() {
        return Ok(b"/".to_vec());
    }
    // Links of the kernel's to a working directory or a descriptor say it themselves.
    if is_start(directory) {
        return read_link(directory);
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(directory, flags, Mode::empty()).map_err(|_| Nowhere::Unknown)?;
    read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()).as_bytes())
}

fn is_start(path: &[u8]) -> bool {
    is_descriptor(path) || is_working_directory(path)
}

fn is_working_directory(path: &[u8]) -> bool {
    let mut parts = path.split(|&byte| byte == b'/').skip(1);
    let named = parts.next() == Some(b"proc") && {
        parts.next();
        parts.next() == Some(b"cwd")
    };
    named && parts.next().is_none()
}

fn is_descriptor(path: &[u8]) -> bool {
    let mut parts = path.split(|&byte| byte == b'/').skip(1);
    parts.next() == Some(b"proc") && {
        parts.next();
        parts.next() == Some(b"fd")
            && parts
                .next()
                .is_some_and(|number| number.iter().all(u8::is_ascii_digit))
            && parts.next().is_none()
    }
}

/// What a link says.
fn read_link(path: &[u8]) -> Result<Vec<u8>, Nowhere> {
    let is_gone = || rustix::fs::stat(path).is_ok_and(|stat| stat.st_nlink == 0);
    match rustix::fs::readlink(path, Vec::new()).map(CString::into_bytes) {
        // HOSTILE: a name may end so and be there.
        Ok(target) if path.starts_with(b"/proc/") && target.ends_with(b" (deleted)") => {
            if is_gone() {
                Err(Nowhere::Gone)
            } else {
                Ok(target)
            }
        }
        Ok(target) => Ok(target),
        Err(Errno::NOENT) if path.starts_with(b"/proc/") => Err(Nowhere::Gone),
        // HOSTILE: of what lies deep enough the kernel tells no name.
        Err(_) if is_gone() => Err(Nowhere::Gone),
        Err(_) => Err(Nowhere::Unknown),
    }
}

/// One of the links that the kernel keeps for a process, also to what is deleted.
pub fn link(process: i32, which: &str) -> Vec<u8> {
    let path = PathBuf::from(format!("/proc/{process}/{which}"));
    rustix::fs::readlink(path, Vec::new()).map_or_else(|_| Vec::new(), |text| text.into_bytes())
}

/// A string that ends with a zero byte, page by page.
fn read_name(thread: i32, address: u64) -> Result<Vec<u8>, Errno> {
    let mut name = Vec::new();
    let mut page = [0; PAGE as usize];
    let mut at = address;
    while name.len() < NAME {
        let in_page = (PAGE - at % PAGE) as usize;
        let count = read_memory(thread, at, &mut page[..in_page])?;
        if count == 0 {
            return Err(Errno::FAULT);
        }
        if let Some(end) = page[..count].iter().position(|&byte| byte == 0) {
            name.extend_from_slice(&page[..end]);
            break;
        }
        name.extend_from_slice(&page[..count]);
        at += count as u64;
    }
    if name.len() < NAME {
        Ok(name)
    } else {
        Err(Errno::NAMETOOLONG)
    }
}
