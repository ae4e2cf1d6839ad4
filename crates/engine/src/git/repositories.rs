//! Git directories below a folder, at any depth: found by names alone, without a look at any file.
//!
//! The start of a run waits for it, and two thirds of that time are the kernel's listing of directories.
//! So a directory without others below it is not listed where the file system counts them: it cannot be a
//! git directory, and one look tells whether it has a `.git`. A second thread took as long on two cores.

use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags};
use rustix::io::Errno;

/// BOUND: the names of a directory of some hundred entries in one call.
const BUFFER_BYTES: usize = 32 << 10;

/// BOUND: the path of a directory that is listed. With what leads to the folder, or to the mask, it stays
/// below what the kernel takes in one call.
const PATH_BYTES: usize = 3000;

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Nested {
    /// Something named `.git`, in any case: a directory, a gitfile or a link.
    DotGit,
    /// A directory of another name that git takes for a git directory.
    Bare,
    /// A directory that cannot be listed, or lies too deep. The agent could open it as its owner.
    Closed,
}

/// All git directories below a folder, sorted; not the folder's own. What lies on another file system
/// that is mounted there is not visible inside.
pub(super) fn find(folder: &OwnedFd) -> Vec<(PathBuf, Nested)> {
    search(folder, counts_directories(folder))
}

fn search(folder: &OwnedFd, counts: Counts) -> Vec<(PathBuf, Nested)> {
    let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
    let mut waiting = vec![PathBuf::new()];
    let mut found = Vec::new();
    while let Some(directory) = waiting.pop() {
        let listed = list(folder.as_fd(), &directory, counts, &mut buffer);
        found.extend(listed.found);
        waiting.extend(listed.directories);
    }
    found.sort();
    found
}

/// What one directory has.
#[derive(Debug, Default)]
struct Listed {
    directories: Vec<PathBuf>,
    found: Vec<(PathBuf, Nested)>,
}

fn list(
    folder: BorrowedFd<'_>,
    at: &Path,
    counts: Counts,
    buffer: &mut [MaybeUninit<u8>],
) -> Listed {
    let mut listed = Listed::default();
    let is_top = at.as_os_str().is_empty();
    if at.as_os_str().len() > PATH_BYTES {
        listed.found.push((at.to_owned(), Nested::Closed));
        return listed;
    }
    let directory = match open(folder, if is_top { Path::new(".") } else { at }) {
        Ok(directory) => directory,
        // Another file system, or gone by now.
        Err(Errno::XDEV | Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return listed,
        Err(_) => {
            listed.found.push((at.to_owned(), Nested::Closed));
            return listed;
        }
    };
    let (mut head, mut objects, mut refs) = (false, false, false);
    let mut entries = RawDir::new(&directory, buffer);
    while let Some(entry) = entries.next() {
        let Ok(entry) = entry else {
            listed.found.push((at.to_owned(), Nested::Closed));
            return listed;
        };
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        let path = at.join(OsStr::from_bytes(name));
        if name.eq_ignore_ascii_case(b".git") {
            // The folder's own is covered otherwise.
            if !(is_top && name == b".git") {
                listed.found.push((path, Nested::DotGit));
            }
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => kind_of(&directory, name),
            kind => kind,
        };
        // A link may stand for each of them.
        head |= name == b"HEAD" && kind != FileType::Directory;
        objects |= name == b"objects" && kind != FileType::RegularFile;
        refs |= name == b"refs" && kind != FileType::RegularFile;
        if kind == FileType::Directory {
            match look(&directory, name, counts) {
                Below::Unknown => listed.directories.push(path),
                Below::Nothing => {}
                Below::DotGit => listed.found.push((path.join(".git"), Nested::DotGit)),
                Below::Closed => listed.found.push((path, Nested::Closed)),
            }
        }
    }
    if head && objects && refs && !is_top {
        listed.directories.clear();
        listed.found = vec![(at.to_owned(), Nested::Bare)];
    }
    listed
}

/// Whether the links to a directory tell how many directories it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counts {
    Yes,
    Unknown,
}

/// File systems whose directories have two links and one for each directory below. Where nobody counts it is
/// one link, or, on a file system of somebody's own making, any number.
const COUNTING: [i64; 3] = [EXT4, XFS, TMPFS];
const EXT4: i64 = 0xef53;
const XFS: i64 = 0x5846_5342;
const TMPFS: i64 = 0x0102_1994;

fn counts_directories(folder: &OwnedFd) -> Counts {
    match rustix::fs::fstatfs(folder) {
        Ok(found) if COUNTING.contains(&found.f_type) => Counts::Yes,
        _ => Counts::Unknown,
    }
}

/// What is in a directory, as far as that can be told without listing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Below {
    Unknown,
    Nothing,
    DotGit,
    Closed,
}

fn look(parent: &OwnedFd, name: &[u8], counts: Counts) -> Below {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let has_none = || {
        let stat = rustix::fs::statat(parent, name, flags);
        stat.is_ok_and(|stat| stat.st_nlink == 2)
    };
    if counts == Counts::Unknown || !has_none() {
        return Below::Unknown;
    }
    match rustix::fs::statat(parent, [name, b"/.git"].concat(), flags) {
        // Another spelling is a git directory only where names have no case, and found there.
        Ok(_) => Below::DotGit,
        Err(Errno::NOENT | Errno::NOTDIR) => Below::Nothing,
        Err(_) => Below::Closed,
    }
}

fn open(folder: BorrowedFd<'_>, at: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    // BOUND: it may ask to be called again while the tree is being renamed.
    for _ in 0..16 {
        match rustix::fs::openat2(folder, at, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

fn kind_of(directory: &OwnedFd, name: &[u8]) -> FileType {
    rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
        .map_or(FileType::Unknown, |stat| {
            FileType::from_raw_mode(stat.st_mode)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn git_directories_are_found_at_any_depth() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            ".git/objects",
            "a/.git/hooks",
            "a/b/c/d/e/.git",
            "a/b/.GIT",
            "f/bare.git/objects/.git",
            "f/bare.git/refs",
            "f/half/objects",
            "f/linked/refs",
            "g/leaf",
            "g/not.git",
        ] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        for name in [
            "f/bare.git/HEAD",
            "f/half/HEAD",
            "f/linked/HEAD",
            "g/.git",
            "g/leaf/.git",
            "g/x",
        ] {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        std::os::unix::fs::symlink("/", dir.path().join("root")).unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("f/linked/objects")).unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("a/b/c/.git")).unwrap();
        let folder = std::fs::File::open(dir.path()).unwrap().into();
        // The second way is right on every file system; the first only where links are counted.
        let ways = [counts_directories(&folder), Counts::Unknown];
        for counts in ways {
            let found = search(&folder, counts);
            let found: Vec<_> = found
                .iter()
                .map(|(path, kind)| (path.to_str().unwrap(), *kind))
                .collect();
            assert_eq!(
                found,
                [
                    ("a/.git", Nested::DotGit),
                    ("a/b/.GIT", Nested::DotGit),
                    ("a/b/c/.git", Nested::DotGit),
                    ("a/b/c/d/e/.git", Nested::DotGit),
                    ("f/bare.git", Nested::Bare),
                    ("f/linked", Nested::Bare),
                    ("g/.git", Nested::DotGit),
                    ("g/leaf/.git", Nested::DotGit),
                ],
                "{counts:?}"
            );
        }
    }
}
