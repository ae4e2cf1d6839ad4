//! A tree as a stream of bytes: how a workspace gets to an engine that cannot be shown directories of
//! this machine, and how what changed in it comes back.
//!
//! ```text
//! --unpack ROOT   a parcel on standard input ──▶ the tree is as it says; what is where, on standard output
//! --pack ROOT     what was where on standard input ──▶ a parcel: all that is not as it was, and names of the rest
//! ```
//!
//! HOSTILE: an agent made what is packed there, and may have made every byte that comes back. It is unpacked
//! inside a sandbox, as the agent, beneath ROOT: no link is followed, no name climbs.
//!
//! What is neither a file, a directory nor a link comes out as a pipe. Hard links become files.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use ringfence_model::tools::FAILED;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps};
use rustix::io::Errno;

use crate::tree::{DEPTH, Manner, OPEN, at, descend, opened, readable, walk, walk_in};

/// How a parcel begins, and how what is where begins.
const PARCEL: &[u8; 4] = b"RFP1";
const KNOWN: &[u8; 4] = b"RFK1";

/// BOUND: a path in a parcel; a length has two bytes.
const MAX_PATH: usize = 60_000;
/// BOUND: what is told of a failure.
const MAX_SAID: u64 = 4096;
/// BOUND: copied at once.
const CHUNK: usize = 64 << 10;
/// BOUND: kernels with coarse clocks tell a change from what was before it after so long.
const TICK: Duration = Duration::from_millis(20);

/// What an entry of a parcel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Same = 1,
    Directory = 2,
    File = 3,
    Link = 4,
    End = 5,
    /// Neither of them: a pipe stands for all.
    Special = 6,
}

/// When something is the same as it was: no change leaves this as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    seconds: i64,
    nanoseconds: i64,
}

type Known = BTreeMap<Vec<u8>, Stamp>;

/// Does what was asked for; a failure is told on standard output, whoever reads there.
pub fn run(verb: &str, root: &Path) -> io::Result<()> {
    let mut from = BufReader::with_capacity(CHUNK, io::stdin().lock());
    let mut to = BufWriter::with_capacity(CHUNK, io::stdout().lock());
    let done = match verb {
        "--pack" => pack(root, &mut from, &mut to),
        _ => unpack(root, &mut from, &mut to),
    };
    if let Err(error) = &done {
        to.write_all(&FAILED)?;
        write!(to, "{error}")?;
        to.flush()?;
        // Whoever still sends would meet a closed way, and what was said would be lost on it.
        io::copy(&mut from, &mut io::sink())?;
    }
    to.flush()?;
    done
}

fn pack(root: &Path, from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let known = read_known(from)?;
    to.write_all(PARCEL)?;
    let mut buffer = vec![0; CHUNK];
    walk(root, Manner::Still, &mut |found| {
        let (parent, name, path) = (found.parent, found.name, found.path);
        let stat = &found.stat;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if known.get(path) == Some(&stamp(stat)) {
            return entry(to, Kind::Same, path);
        }
        let mode = stat.st_mode & 0o777;
        match kind {
            FileType::Directory => {
                entry(to, Kind::Directory, path)?;
                to.write_all(&mode.to_le_bytes())
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(parent, name, Vec::new())?;
                entry(to, Kind::Link, path)?;
                text(to, target.as_bytes())
            }
            FileType::RegularFile => {
                let mut file = File::from(readable(parent, name, stat)?);
                let size = file.metadata()?.len();
                entry(to, Kind::File, path)?;
                to.write_all(&mode.to_le_bytes())?;
                to.write_all(&stat.st_mtime.to_le_bytes())?;
                to.write_all(&(stat.st_mtime_nsec as i64).to_le_bytes())?;
                to.write_all(&size.to_le_bytes())?;
                send(&mut file, to, size, &mut buffer)
            }
            _ => entry(to, Kind::Special, path),
        }
    })?;
    to.write_all(&[Kind::End as u8])
}

/// INVARIANT: a parcel without its end is none, and everything that it does not name is gone afterwards.
fn unpack(root: &Path, from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    if bytes::<4>(from)? != *PARCEL {
        return Err(other("this is no parcel"));
    }
    let mut tree = Tree {
        root: rustix::fs::open(root, OPEN | OFlags::DIRECTORY, Mode::empty())?,
        parent: None,
        modes: BTreeMap::new(),
    };
    let mut named = BTreeSet::new();
    let mut buffer = vec![0; CHUNK];
    loop {
        let [kind] = bytes(from)?;
        if kind == Kind::End as u8 {
            break;
        }
        if kind == FAILED[0] {
            // The other side's last words.
            let mut said = Vec::new();
            from.take(MAX_SAID).read_to_end(&mut said)?;
            let said = String::from_utf8_lossy(said.get(3..).unwrap_or_default()).into_owned();
            return Err(other(&said));
        }
        let path = read_text(from)?;
        check(&path)?;
        let told = tree.take(kind, &path, from, &mut buffer);
        told.map_err(|error| at(&path, &error))?;
        named.insert(path);
    }
    let mut gone = Vec::new();
    walk(root, Manner::Still, &mut |found| {
        if !named.contains(found.path) {
            gone.push(found.path.to_vec());
        }
        Ok(())
    })?;
    // What is in a directory goes before it.
    for path in gone.iter().rev() {
        tree.remove(path).map_err(|error| at(path, &error))?;
    }
    tree.finish()?;
    std::thread::sleep(TICK);
    to.write_all(KNOWN)?;
    walk(root, Manner::Still, &mut |found| {
        let stamp = stamp(&found.stat);
        text(to, found.path)?;
        to.write_all(&stamp.inode.to_le_bytes())?;
        to.write_all(&stamp.seconds.to_le_bytes())?;
        to.write_all(&stamp.nanoseconds.to_le_bytes())
    })
}

/// Where a parcel is unpacked.
struct Tree {
    root: OwnedFd,
    /// The last directory that something was made in.
    parent: Option<(Vec<u8>, OwnedFd)>,
    /// Directories get their modes at the end: something is made in them before.
    modes: BTreeMap<Vec<u8>, u32>,
}

impl Tree {
    fn take(
        &mut self,
        kind: u8,
        path: &[u8],
        from: &mut impl Read,
        buffer: &mut [u8],
    ) -> io::Result<()> {
        if kind == Kind::Same as u8 {
            return Ok(());
        }
        let (above, name) = split(path);
        match self.open(above) {
            // Somebody removed it here meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.make_all(above)?,
            opened => drop(opened?),
        }
        let parent = self.open(above)?;
        let there = match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(stat.st_mode),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno.into()),
        };
        let is_open = there.is_some_and(|mode| mode & 0o700 == 0o700);
        let there = there.map(FileType::from_raw_mode);
        if kind == Kind::Directory as u8 {
            let mode = u32::from_le_bytes(bytes(from)?) & 0o777;
            if there != Some(FileType::Directory) {
                if there.is_some() {
                    rustix::fs::unlinkat(parent, name, AtFlags::empty())?;
                }
                rustix::fs::mkdirat(parent, name, Mode::RWXU)?;
            } else if !is_open {
                rustix::fs::chmodat(parent, name, Mode::RWXU, AtFlags::empty())?;
            }
            self.modes.insert(path.to_vec(), mode);
            return Ok(());
        }
        match there {
            Some(FileType::Directory) => {
                // What is in it goes first; a walk of its own, for it is seldom.
                let parent = parent.try_clone_to_owned()?;
                self.parent = None;
                empty(parent.as_fd(), name)?;
                rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR)?;
            }
            // Written in its place: its directory may be closed to its owner.
            Some(FileType::RegularFile) if kind == Kind::File as u8 => {}
            Some(_) => rustix::fs::unlinkat(parent, name, AtFlags::empty())?,
            None => {}
        }
        let parent = self.open(above)?;
        if kind == Kind::Link as u8 {
            let target = read_text(from)?;
            return Ok(rustix::fs::symlinkat(
                OsStr::from_bytes(&target),
                parent,
                name,
            )?);
        }
        if kind == Kind::Special as u8 {
            let own = Mode::RUSR | Mode::WUSR;
            return Ok(rustix::fs::mknodat(parent, name, FileType::Fifo, own, 0)?);
        }
        if kind != Kind::File as u8 {
            return Err(other("it is of no kind"));
        }
        let mode = u32::from_le_bytes(bytes(from)?) & 0o777;
        let time = Timespec {
            tv_sec: i64::from_le_bytes(bytes(from)?),
            tv_nsec: i64::from_le_bytes(bytes(from)?).clamp(0, 999_999_999),
        };
        let size = u64::from_le_bytes(bytes(from)?);
        let own = Mode::RUSR | Mode::WUSR;
        let flags = OPEN | OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let open = || rustix::fs::openat(parent, name, flags, own);
        let made = open().or_else(|errno| match errno {
            Errno::ACCESS => {
                rustix::fs::chmodat(parent, name, own, AtFlags::empty()).and_then(|()| open())
            }
            errno => Err(errno),
        });
        let mut file = File::from(made?);
        take_parts(from, &mut file, size, buffer)?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        Ok(rustix::fs::futimens(&file, &times)?)
    }

    /// Each name of the way is opened from the directory before it, and none is followed.
    fn open(&mut self, path: &[u8]) -> io::Result<BorrowedFd<'_>> {
        if path.is_empty() {
            return Ok(self.root.as_fd());
        }
        if self.parent.as_ref().is_none_or(|(last, _)| last != path) {
            let at = match self.beside(path) {
                Some(at) => at,
                None => self.descend(path)?,
            };
            self.parent = Some((path.to_vec(), at));
        }
        match &self.parent {
            Some((_, fd)) => Ok(fd.as_fd()),
            None => Ok(self.root.as_fd()),
        }
    }

    /// The whole way. What is closed to its owner on it is open until the end.
    fn descend(&mut self, path: &[u8]) -> io::Result<OwnedFd> {
        let mut here = self.root.try_clone()?;
        let mut end = 0;
        for name in path.split(|byte| *byte == b'/') {
            end += name.len() + 1;
            here = match descend(here.as_fd(), name) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    let stat = rustix::fs::statat(&here, name, AtFlags::SYMLINK_NOFOLLOW)?;
                    let (inner, closed) = opened(here.as_fd(), name, &stat)?;
                    let so_far = path[..end - 1].to_vec();
                    // What it is to be in the end may be known already.
                    self.modes
                        .entry(so_far)
                        .or_insert(closed.unwrap_or(stat.st_mode) & 0o777);
                    inner
                }
                inner => inner?,
            };
        }
        Ok(here)
    }

    /// From the last directory, where that is nearer than the root. Nobody moves anything meanwhile.
    fn beside(&self, path: &[u8]) -> Option<OwnedFd> {
        let (last, fd) = self.parent.as_ref()?;
        let names = |path: &[u8]| path.split(|byte| *byte == b'/').count();
        let mut shared = 0;
        for (index, (one, other)) in last.iter().zip(path).enumerate() {
            if one != other {
                break;
            }
            let ends = |path: &[u8]| path.get(index + 1).is_none_or(|byte| *byte == b'/');
            if ends(last) && ends(path) {
                shared = index + 1;
            }
        }
        let rest = |path: &[u8]| path.get(shared + 1..).map_or(0, names);
        let (up, whole) = (rest(last), names(path));
        if shared == 0 || up >= whole {
            return None;
        }
        let mut here = fd.try_clone().ok()?;
        for _ in 0..up {
            let flags = OPEN | OFlags::DIRECTORY;
            here = rustix::fs::openat(&here, c"..", flags, Mode::empty()).ok()?;
        }
        descend(here.as_fd(), path.get(shared + 1..).unwrap_or_default()).ok()
    }

    /// Makes what is missing on the way to a directory.
    fn make_all(&self, path: &[u8]) -> io::Result<()> {
        let mut here = self.root.try_clone()?;
        for name in path.split(|byte| *byte == b'/') {
            match rustix::fs::mkdirat(&here, name, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            here = descend(here.as_fd(), name)?;
        }
        Ok(())
    }

    fn remove(&mut self, path: &[u8]) -> io::Result<()> {
        let (above, name) = split(path);
        // A directory that nobody may write to says so of what is in it.
        let parent = self.open(above)?;
        let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let flags = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => AtFlags::REMOVEDIR,
            _ => AtFlags::empty(),
        };
        match rustix::fs::unlinkat(parent, name, flags) {
            Err(Errno::ACCESS) => {
                let mode = rustix::fs::fstat(parent)?.st_mode & 0o777;
                rustix::fs::fchmod(parent, Mode::RWXU)?;
                let removed = rustix::fs::unlinkat(parent, name, flags);
                rustix::fs::fchmod(parent, Mode::from_raw_mode(mode))?;
                Ok(removed?)
            }
            removed => Ok(removed?),
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        self.parent = None;
        // What is in a directory comes after it.
        for (path, mode) in std::mem::take(&mut self.modes).into_iter().rev() {
            let (above, name) = split(&path);
            let look = |parent| {
                let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
                Ok((parent, stat?))
            };
            let (parent, now) = match self.open(above).and_then(look) {
                // It went meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                found => found?,
            };
            let is_directory = FileType::from_raw_mode(now.st_mode) == FileType::Directory;
            if is_directory && now.st_mode & 0o777 != mode {
                let mode = Mode::from_raw_mode(mode);
                rustix::fs::chmodat(parent, name, mode, AtFlags::empty())?;
            }
        }
        Ok(())
    }
}

/// Removes what is in a directory.
fn empty(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let (top, _) = opened(parent, name, &stat)?;
    let mut inner = Vec::new();
    walk_in(top.try_clone()?, None, Manner::Still, &mut |found| {
        inner.push(found.path.to_vec());
        Ok(())
    })?;
    let mut tree = Tree {
        root: top,
        parent: None,
        modes: BTreeMap::new(),
    };
    for path in inner.iter().rev() {
        tree.remove(path)?;
    }
    Ok(())
}

fn stamp(stat: &Stat) -> Stamp {
    Stamp {
        inode: stat.st_ino,
        seconds: stat.st_ctime,
        nanoseconds: stat.st_ctime_nsec as i64,
    }
}

fn read_known(from: &mut impl Read) -> io::Result<Known> {
    let mut known = Known::new();
    let mut head = Vec::new();
    from.take(4).read_to_end(&mut head)?;
    // Nothing at all: everything is new.
    if head.is_empty() {
        return Ok(known);
    }
    if head != KNOWN {
        return Err(other("this does not say what was where"));
    }
    loop {
        let mut length = [0; 2];
        match from.read(&mut length[..1])? {
            0 => return Ok(known),
            _ => from.read_exact(&mut length[1..])?,
        }
        let path = filled(from, u16::from_le_bytes(length).into())?;
        let stamp = Stamp {
            inode: u64::from_le_bytes(bytes(from)?),
            seconds: i64::from_le_bytes(bytes(from)?),
            nanoseconds: i64::from_le_bytes(bytes(from)?),
        };
        known.insert(path, stamp);
    }
}

fn entry(to: &mut impl Write, kind: Kind, path: &[u8]) -> io::Result<()> {
    to.write_all(&[kind as u8])?;
    text(to, path)
}

fn text(to: &mut impl Write, text: &[u8]) -> io::Result<()> {
    let length = u16::try_from(text.len()).map_err(|_| other("a name is too long"))?;
    to.write_all(&length.to_le_bytes())?;
    to.write_all(text)
}

fn read_text(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let length = u16::from_le_bytes(bytes(from)?);
    filled(from, length.into())
}

fn filled(from: &mut impl Read, length: usize) -> io::Result<Vec<u8>> {
    let mut text = vec![0; length];
    from.read_exact(&mut text)?;
    Ok(text)
}

fn bytes<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The parts of a file that have content: where each begins, how long it is, its bytes; an empty one is the
/// last. Holes cost nothing.
fn send(file: &mut File, to: &mut impl Write, size: u64, buffer: &mut [u8]) -> io::Result<()> {
    let mut at = 0;
    while at < size {
        let begin = match rustix::fs::seek(&*file, SeekFrom::Data(at)) {
            Ok(begin) => begin,
            // Nothing but a hole to its end.
            Err(Errno::NXIO) => break,
            Err(_) => at,
        };
        let end = rustix::fs::seek(&*file, SeekFrom::Hole(begin)).unwrap_or(size);
        let end = end.min(size);
        if begin >= end {
            break;
        }
        rustix::fs::seek(&*file, SeekFrom::Start(begin))?;
        to.write_all(&begin.to_le_bytes())?;
        to.write_all(&(end - begin).to_le_bytes())?;
        copy(file, to, end - begin, buffer)?;
        at = end;
    }
    to.write_all(&[0; 16])
}

fn take_parts(
    from: &mut impl Read,
    file: &mut File,
    size: u64,
    buffer: &mut [u8],
) -> io::Result<()> {
    file.set_len(size)?;
    loop {
        let begin = u64::from_le_bytes(bytes(from)?);
        let length = u64::from_le_bytes(bytes(from)?);
        if length == 0 {
            return Ok(());
        }
        if begin.checked_add(length).is_none_or(|end| end > size) {
            return Err(other("a part is outside of its file"));
        }
        rustix::fs::seek(&*file, SeekFrom::Start(begin))?;
        copy(from, file, length, buffer)?;
    }
}

fn copy(from: &mut impl Read, to: &mut impl Write, size: u64, buffer: &mut [u8]) -> io::Result<()> {
    let mut left = size;
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(CHUNK).min(buffer.len());
        let part = &mut buffer[..most];
        from.read_exact(part)?;
        to.write_all(part)?;
        left -= part.len() as u64;
    }
    Ok(())
}

/// HOSTILE: names that climb, are absolute or are none.
fn check(path: &[u8]) -> io::Result<()> {
    let plain = |name: &[u8]| !matches!(name, b"" | b"." | b"..") && !name.contains(&0);
    let mut names = path.split(|byte| *byte == b'/');
    if path.len() > MAX_PATH || names.clone().count() > DEPTH || !names.all(plain) {
        return Err(at(path, &other("it is no path of a parcel")));
    }
    Ok(())
}

fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

fn other(said: &str) -> io::Error {
    io::Error::other(said.to_owned())
}

#[cfg(test)]
#[path = "parcel/tests.rs"]
mod tests;
