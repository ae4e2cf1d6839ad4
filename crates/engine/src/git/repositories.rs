//! Git directories below a folder, at any depth: found by names alone, without a look at any file.
//!
//! Every directory is listed once, by as many threads as there are processors, up to four. The start
//! of a run waits for it: 10,000 directories with 100,000 files take 60 ms on two cores.

use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags};
use rustix::io::Errno;

/// BOUND: more threads only wait for the same directories.
const THREADS: usize = 4;
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

/// The directories that nobody has listed yet.
#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<PathBuf>,
    /// Threads that list one now, and may add more.
    busy: usize,
    found: Vec<(PathBuf, Nested)>,
}

/// All git directories below a folder, sorted; not the folder's own. What lies on another file system
/// that is mounted there is not visible inside.
pub(super) fn find(folder: &OwnedFd) -> Vec<(PathBuf, Nested)> {
    let queue = Mutex::new(Queue {
        waiting: vec![PathBuf::new()],
        ..Queue::default()
    });
    let changed = Condvar::new();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 1..threads.min(THREADS) {
            scope.spawn(|| work(folder, &queue, &changed));
        }
        work(folder, &queue, &changed);
    });
    let mut found = queue
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
        .found;
    found.sort();
    found
}

fn work(folder: &OwnedFd, queue: &Mutex<Queue>, changed: &Condvar) {
    let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
    loop {
        let mut state = queue.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = loop {
            if let Some(directory) = state.waiting.pop() {
                break directory;
            }
            if state.busy == 0 {
                changed.notify_all();
                return;
            }
            state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        state.busy += 1;
        drop(state);
        let listed = list(folder.as_fd(), &directory, &mut buffer);
        let mut state = queue.lock().unwrap_or_else(PoisonError::into_inner);
        state.busy -= 1;
        state.found.extend(listed.found);
        state.waiting.extend(listed.directories);
        drop(state);
        changed.notify_all();
    }
}

/// What one directory has.
#[derive(Debug, Default)]
struct Listed {
    directories: Vec<PathBuf>,
    found: Vec<(PathBuf, Nested)>,
}

fn list(folder: BorrowedFd<'_>, at: &Path, buffer: &mut [MaybeUninit<u8>]) -> Listed {
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
            listed.directories.push(path);
        }
    }
    if head && objects && refs && !is_top {
        listed.directories.clear();
        listed.found = vec![(at.to_owned(), Nested::Bare)];
    }
    listed
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
            "g/not.git",
        ] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        for name in [
            "f/bare.git/HEAD",
            "f/half/HEAD",
            "f/linked/HEAD",
            "g/.git",
            "g/x",
        ] {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        std::os::unix::fs::symlink("/", dir.path().join("root")).unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("f/linked/objects")).unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("a/b/c/.git")).unwrap();
        let folder = std::fs::File::open(dir.path()).unwrap().into();
        let found = find(&folder);
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
            ]
        );
    }

    /// `RINGFENCE_TREE=DIR cargo test --release … -- --ignored --nocapture` prints how long it takes.
    #[test]
    #[ignore = "measures a tree that is named in the environment"]
    fn measure() {
        let tree = std::env::var_os("RINGFENCE_TREE").expect("a tree");
        let folder: OwnedFd = std::fs::File::open(tree).unwrap().into();
        for _ in 0..7 {
            let began = std::time::Instant::now();
            let found = find(&folder).len();
            eprintln!("{found} found in {:?}", began.elapsed());
        }
    }
}
