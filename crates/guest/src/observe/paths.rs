//! Names that processes use, as the absolute names that the kernel makes of them.
//!
//! The guest shares root and mounts with everything inside, so it can look a name up as the kernel
//! will: from the working directory of the process, following links. What it cannot share is what
//! `/proc/self` means.

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

impl Named {
    /// Reads a name from the memory of a thread that waits; `None` where none can be read, which is
    /// what the kernel will find as well.
    pub fn read(thread: i32, at: At) -> Option<Self> {
        let name = match at.name {
            0 => Vec::new(),
            address => read_name(thread, address)?,
        };
        Some(Self {
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
        path
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
                    canonical(&path[..slash]).is_some_and(|parent| parent.starts_with(b"/proc"));
                (!elsewhere).then_some(errno)
            }
            _ => None,
        }
    }

    /// Where it leads; `None` where that is nowhere that can be named.
    pub fn place(&self) -> Option<Place> {
        let mut path = self.for_us();
        // A descriptor of the process is what it stands for.
        if self.name.is_empty() || is_descriptor(&path) {
            let path = read_link(&path)?;
            return Some(Place {
                path,
                what: Some(FileType::RegularFile),
            });
        }
        for _ in 0..LINKS {
            if is_descriptor(&path) {
                return Some(Place {
                    path: read_link(&path)?,
                    what: Some(FileType::RegularFile),
                });
            }
            let place = entry(&path)?;
            if !self.follows || place.what != Some(FileType::Symlink) {
                return Some(place);
            }
            let target = read_link(&place.path)?;
            path = if target.starts_with(b"/") {
                self.seen_by_us(&target)
            } else {
                let parent = place.path.iter().rposition(|&byte| byte == b'/')?;
                [&place.path[..parent], b"/", &target].concat()
            };
        }
        None
    }
}

/// An entry by its name: the directory's own name, without links, and the last part as it is.
fn entry(path: &[u8]) -> Option<Place> {
    let end = path.iter().rposition(|&byte| byte != b'/')? + 1;
    let path = &path[..end];
    let slash = path.iter().rposition(|&byte| byte == b'/')?;
    let (parent, last) = (&path[..slash], &path[slash + 1..]);
    if matches!(last, b"." | b"..") {
        let path = canonical(path)?;
        return Some(Place {
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
    Some(Place { path: whole, what })
}

/// The kernel's own name of a directory. Where it is not there, it may be when the kernel looks:
/// then its name is that of the nearest one above, and the rest as it was said.
fn nearest(directory: &[u8]) -> Option<Vec<u8>> {
    let mut above = directory;
    for _ in 0..ABOVE {
        if let Some(mut path) = canonical(above) {
            path.extend_from_slice(&directory[above.len()..]);
            return Some(path);
        }
        let slash = above.iter().rposition(|&byte| byte == b'/')?;
        if above[slash + 1..] == *b".." {
            return None;
        }
        above = &above[..slash];
    }
    None
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
fn canonical(directory: &[u8]) -> Option<Vec<u8>> {
    if directory.is_empty() {
        return Some(b"/".to_vec());
    }
    // Links of the kernel's to a working directory or a descriptor say it themselves.
    if is_descriptor(directory) || is_working_directory(directory) {
        return read_link(directory);
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(directory, flags, Mode::empty()).ok()?;
    read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()).as_bytes())
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

/// What a link says; `None` where it is none, or leads to what has no name any more.
fn read_link(path: &[u8]) -> Option<Vec<u8>> {
    let target = rustix::fs::readlink(path, Vec::new()).ok()?.into_bytes();
    // HOSTILE: a name may end so and be there.
    if path.starts_with(b"/proc/") && target.ends_with(b" (deleted)") {
        let gone = rustix::fs::stat(path).is_ok_and(|stat| stat.st_nlink == 0);
        return (!gone).then_some(target);
    }
    Some(target)
}

/// One of the links that the kernel keeps for a process, also to what is deleted.
pub fn link(process: i32, which: &str) -> Vec<u8> {
    let path = PathBuf::from(format!("/proc/{process}/{which}"));
    rustix::fs::readlink(path, Vec::new()).map_or_else(|_| Vec::new(), |text| text.into_bytes())
}

/// A string that ends with a zero byte, page by page.
fn read_name(thread: i32, address: u64) -> Option<Vec<u8>> {
    let mut name = Vec::new();
    let mut page = [0; PAGE as usize];
    let mut at = address;
    while name.len() < NAME {
        let in_page = (PAGE - at % PAGE) as usize;
        let count = read_memory(thread, at, &mut page[..in_page]);
        if count == 0 {
            return None;
        }
        if let Some(end) = page[..count].iter().position(|&byte| byte == 0) {
            name.extend_from_slice(&page[..end]);
            return (name.len() < NAME).then_some(name);
        }
        name.extend_from_slice(&page[..count]);
        at += count as u64;
    }
    None
}
