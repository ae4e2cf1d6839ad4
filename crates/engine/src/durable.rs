//! Files that are there whole or not at all, and that stay.
//!
//! Two dangers, two answers:
//!
//! - `kill -9` cuts between two system calls. [`write_file`] gives a file its name only when all
//!   of its content is in it, so no reader ever sees half of one.
//! - A power cut loses what was not synced. [`sync_all`] syncs a group of files from several
//!   threads at once, so that the file system can join them in one journal commit, and then the
//!   directories. What is acknowledged afterwards (one synced row in the store) is really there.
//!
//! Names come before syncing on purpose, so that one sync of the directory is enough for the whole
//! group. Until the acknowledgement nothing may rely on it. [`write_synced`] is for a single file
//! that has no acknowledgement behind it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::ids::{IdError, RunId};

/// BOUND: a bundle has six files and a run two logs; more threads than that join no more commits.
const SYNC_THREADS: usize = 8;

/// The beginning of names that a killed process may leave behind; they mean nothing.
pub const TEMPORARY_PREFIX: &str = ".tmp-";

/// What to do where the name is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    Refuse,
    Replace,
}

/// A file that has its name but may not be on the disk yet.
#[derive(Debug)]
pub struct Written {
    pub path: PathBuf,
    pub file: File,
}

/// What could not be made to last.
#[derive(Debug, thiserror::Error)]
pub enum DurableError {
    #[error("cannot create `{path}`")]
    Create {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot name a temporary file for `{path}`")]
    NameTemporary {
        path: PathBuf,
        #[source]
        source: IdError,
    },
    #[error("cannot write `{path}`")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot put `{path}` in its place")]
    Publish {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot sync `{path}` to the disk")]
    Sync {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Makes a private file (0600) with this content: whole or not at all, not yet synced.
pub fn write_file(
    path: &Path,
    content: &[u8],
    existing: Existing,
) -> Result<Written, DurableError> {
    write(path, content, existing, Content::SyncedLater)
}

/// As [`write_file`], whole or not at all even after a power cut, and on the disk when it returns.
pub fn write_synced(path: &Path, content: &[u8], existing: Existing) -> Result<(), DurableError> {
    write(path, content, existing, Content::SyncedBeforeItsName)?;
    sync_directory(parent(path))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    SyncedLater,
    SyncedBeforeItsName,
}

fn write(
    path: &Path,
    content: &[u8],
    existing: Existing,
    when: Content,
) -> Result<Written, DurableError> {
    if existing == Existing::Refuse
        && let Some(written) = write_nameless(path, content, when)?
    {
        return Ok(written);
    }
    write_renamed(path, content, existing, when)
}

/// Syncs files together, then the directories that hold their names.
pub fn sync_all(files: &[(&Path, &File)], directories: &[&Path]) -> Result<(), DurableError> {
    for group in files.chunks(SYNC_THREADS) {
        sync_group(group)?;
    }
    for directory in directories {
        sync_directory(directory)?;
    }
    Ok(())
}

fn sync_group(files: &[(&Path, &File)]) -> Result<(), DurableError> {
    let Some((first, rest)) = files.split_first() else {
        return Ok(());
    };
    thread::scope(|scope| {
        let mut waiting = Vec::new();
        let mut inline = Vec::new();
        for file in rest {
            match thread::Builder::new().spawn_scoped(scope, move || sync_file(file)) {
                Ok(handle) => waiting.push(handle),
                // No thread to be had is no reason to fail: it only takes longer.
                Err(_) => inline.push(file),
            }
        }
        let mut result = sync_file(first);
        for file in inline {
            result = result.and(sync_file(file));
        }
        for handle in waiting {
            result = result.and(handle.join().expect("syncing a file does not panic"));
        }
        result
    })
}

fn sync_file((path, file): &(&Path, &File)) -> Result<(), DurableError> {
    rustix::fs::fdatasync(file).map_err(|errno| DurableError::Sync {
        path: path.to_path_buf(),
        source: errno.into(),
    })
}

pub(crate) fn sync_directory(path: &Path) -> Result<(), DurableError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .and_then(rustix::fs::fsync)
        .map_err(|errno| DurableError::Sync {
            path: path.to_owned(),
            source: errno.into(),
        })
}

/// A file without a name that is linked when it is full; `None` where this is not to be had.
fn write_nameless(
    path: &Path,
    content: &[u8],
    when: Content,
) -> Result<Option<Written>, DurableError> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let mut file = match rustix::fs::open(parent(path), flags, mode) {
        Ok(fd) => File::from(fd),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => return Ok(None),
        Err(errno) => {
            return Err(DurableError::Create {
                path: path.to_owned(),
                source: errno.into(),
            });
        }
    };
    fill(path, &mut file, content, when)?;
    let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
    match rustix::fs::linkat(CWD, nameless, CWD, path, AtFlags::SYMLINK_FOLLOW) {
        Ok(()) => Ok(Some(Written {
            path: path.to_owned(),
            file,
        })),
        // Without /proc there is no way to name it.
        Err(Errno::NOENT | Errno::OPNOTSUPP) => Ok(None),
        Err(errno) => Err(DurableError::Publish {
            path: path.to_owned(),
            source: errno.into(),
        }),
    }
}

fn write_renamed(
    path: &Path,
    content: &[u8],
    existing: Existing,
    when: Content,
) -> Result<Written, DurableError> {
    let token = RunId::random().map_err(|source| DurableError::NameTemporary {
        path: path.to_owned(),
        source,
    })?;
    let temporary = parent(path).join(format!("{TEMPORARY_PREFIX}{token}"));
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = rustix::fs::open(&temporary, flags, Mode::RUSR | Mode::WUSR)
        .map(File::from)
        .map_err(|errno| DurableError::Create {
            path: path.to_owned(),
            source: errno.into(),
        })?;
    let result = fill(path, &mut file, content, when).and_then(|()| {
        match existing {
            Existing::Replace => rustix::fs::rename(&temporary, path),
            Existing::Refuse => rustix::fs::link(&temporary, path),
        }
        .map_err(|errno| DurableError::Publish {
            path: path.to_owned(),
            source: errno.into(),
        })
    });
    if result.is_err() || existing == Existing::Refuse {
        // Left behind it would mean nothing, and the error that matters is the one above.
        let _ = rustix::fs::unlink(&temporary);
    }
    result.map(|()| Written {
        path: path.to_owned(),
        file,
    })
}

fn fill(path: &Path, file: &mut File, content: &[u8], when: Content) -> Result<(), DurableError> {
    file.write_all(content)
        .map_err(|source| DurableError::Write {
            path: path.to_owned(),
            source,
        })?;
    match when {
        Content::SyncedLater => Ok(()),
        Content::SyncedBeforeItsName => sync_file(&(path, file)),
    }
}

pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_taken_name_is_refused_or_replaced_and_nothing_else_is_left() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("file");
        write_file(&path, b"one", Existing::Refuse).unwrap();
        for write in [write_nameless_only, write_named_only] {
            let error = write(&path).unwrap_err();
            assert!(matches!(error, DurableError::Publish { .. }), "{error:?}");
            assert_eq!(
                error.to_string(),
                format!("cannot put `{}` in its place", path.display())
            );
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        write_file(&path, b"two", Existing::Replace).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(names(home.path()), ["file"]);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
    }

    fn write_nameless_only(path: &Path) -> Result<Written, DurableError> {
        Ok(write_nameless(path, b"x", Content::SyncedLater)?
            .expect("the test directory can hold nameless files"))
    }

    fn write_named_only(path: &Path) -> Result<Written, DurableError> {
        write_renamed(path, b"x", Existing::Refuse, Content::SyncedBeforeItsName)
    }

    #[test]
    fn both_ways_make_the_same_file() {
        let home = tempfile::tempdir().unwrap();
        let (a, b) = (home.path().join("a"), home.path().join("b"));
        write_nameless_only(&a).unwrap();
        write_named_only(&b).unwrap();
        assert_eq!(std::fs::read(a).unwrap(), std::fs::read(b).unwrap());
        assert_eq!(names(home.path()), ["a", "b"]);
    }

    #[test]
    fn a_missing_directory_is_named() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("absent/file");
        for existing in [Existing::Refuse, Existing::Replace] {
            let error = write_file(&path, b"", existing).unwrap_err();
            assert!(error.to_string().contains("absent/file"), "{error}");
        }
    }

    #[test]
    fn groups_of_any_size_are_synced_and_failures_are_found() {
        let home = tempfile::tempdir().unwrap();
        for count in [0, 1, 3, 20] {
            let written: Vec<Written> = (0..count)
                .map(|n| {
                    let path = home.path().join(format!("{count}-{n}"));
                    write_file(&path, &[7; 5000], Existing::Refuse).unwrap()
                })
                .collect();
            let files: Vec<_> = written.iter().map(|w| (&*w.path, &w.file)).collect();
            sync_all(&files, &[home.path()]).unwrap();
        }
        // A pipe cannot be synced.
        let (reader, _writer) = std::io::pipe().unwrap();
        let pipe = File::from(std::os::fd::OwnedFd::from(reader));
        let good = File::open(home.path().join("1-0")).unwrap();
        let path = Path::new("pipe");
        for files in [
            [(path, &pipe), (path, &good)],
            [(path, &good), (path, &pipe)],
        ] {
            let error = sync_all(&files, &[]).unwrap_err();
            assert_eq!(error.to_string(), "cannot sync `pipe` to the disk");
        }
    }
}
