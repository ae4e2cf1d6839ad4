//! Who drives a run: a lock that dies with its holder, so that liveness needs no daemon.
//!
//! The driving process holds `workspaces/<run>/lock` by `flock`. The kernel lets go of it when the
//! last copy of the descriptor is closed, however the process ends. Pids and start times in the
//! store are for people; this lock is the truth.
//!
//! INVARIANT: no process that outlives the driver may keep a copy. The descriptor closes on exec;
//! whatever is forked without exec must close it. A [`FileLock`] is given on purpose, by
//! [`FileLock::share`], to children that write to what it guards.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{FlockOperation, Mode, OFlags, Timespec};
use rustix::io::Errno;

use crate::home::Home;
use crate::ids::RunId;

/// BOUND: whoever asks whether a lock is held has it for microseconds; 50 ms outlast many of them.
const TRIES: u32 = 50;
const BETWEEN_TRIES: Duration = Duration::from_millis(1);

/// The right to drive a run, for as long as it is kept.
#[derive(Debug)]
pub struct RunLock {
    run: RunId,
    _file: OwnedFd,
}

/// Why there is no lock, or no answer.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("cannot create the workspace `{path}`")]
    CreateWorkspace {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot open the lock `{path}`")]
    Open {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot lock `{path}`")]
    Lock {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("run `{run}` is being driven by another process")]
    Held { run: RunId },
    #[error("`{path}` is held by another process")]
    HeldFile { path: PathBuf },
    #[error("run `{run}` was removed while it was being locked")]
    Removed { run: RunId },
}

impl RunLock {
    /// Makes the workspace directory of a run that is new, and locks it.
    pub fn create(home: &Home, run: RunId) -> Result<Self, LockError> {
        let path = home.workspace(run);
        let make = || {
            rustix::fs::mkdir(&path, Mode::RWXU).map_err(|errno| LockError::CreateWorkspace {
                path: path.clone(),
                source: errno.into(),
            })
        };
        make()?;
        let mut locked = Self::lock(home, run, OFlags::CREATE | OFlags::EXCL);
        for _ in 0..TRIES {
            match &locked {
                // `gc` takes it for abandoned that was not locked yet, and removes it.
                Err(LockError::Removed { .. } | LockError::Held { .. }) => {}
                Err(LockError::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                }
                _ => break,
            }
            if !path.exists() {
                make()?;
            }
            locked = Self::lock(home, run, OFlags::CREATE);
        }
        locked
    }

    /// Takes over the workspace of somebody who is gone; `None` while somebody is there, or has
    /// not come to lock it yet.
    pub fn claim(home: &Home, run: RunId) -> Result<Option<Self>, LockError> {
        // Without a lock but with something in it: whoever removed it before was killed.
        let flags = if Self::is_begun(home, run) {
            OFlags::CREATE
        } else {
            OFlags::empty()
        };
        match Self::lock(home, run, flags) {
            Ok(lock) => Ok(Some(lock)),
            Err(LockError::Held { .. } | LockError::Removed { .. }) => Ok(None),
            Err(LockError::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether there is more than the directory, which is made before its lock.
    pub fn is_begun(home: &Home, run: RunId) -> bool {
        let entries = std::fs::read_dir(home.workspace(run));
        entries.is_ok_and(|mut entries| entries.next().is_some())
    }

    /// Whether a living process drives the run. A run without a lock file is driven by nobody.
    pub fn is_held(home: &Home, run: RunId) -> Result<bool, LockError> {
        let file = match open(home, run, OFlags::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(false),
            Err(errno) => return Err(open_failed(home, run, errno)),
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(Errno::WOULDBLOCK) => Ok(true),
            Err(errno) => Err(lock_failed(home, run, errno)),
        }
    }

    /// The run that this lock is for.
    pub fn run(&self) -> RunId {
        self.run
    }

    fn lock(home: &Home, run: RunId, flags: OFlags) -> Result<Self, LockError> {
        let file = open(home, run, flags).map_err(|errno| open_failed(home, run, errno))?;
        for attempt in 0.. {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if attempt < TRIES => thread::sleep(BETWEEN_TRIES),
                Err(Errno::WOULDBLOCK) => return Err(LockError::Held { run }),
                Err(errno) => return Err(lock_failed(home, run, errno)),
            }
        }
        // A lock on a file that was removed meanwhile would keep nobody out.
        let stat = rustix::fs::fstat(&file).map_err(|errno| lock_failed(home, run, errno))?;
        if stat.st_nlink == 0 {
            return Err(LockError::Removed { run });
        }
        Ok(Self { run, _file: file })
    }
}

/// A lock on a file of its own: who makes a mirror or a base, who keeps or changes a sandbox.
#[derive(Debug)]
pub struct FileLock {
    file: OwnedFd,
}

/// Whether time is on record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    ToNow,
    NotYet,
}

impl FileLock {
    /// A copy for a child process that must not outlive the lock: held until both are closed. The
    /// file is empty, so that it reads like `/dev/null`.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.file.try_clone()
    }

    /// Says that its holder is alive, and whether the time up to now is on record elsewhere.
    ///
    /// The file is never read: when that was is when it was last accessed, and that it lives is when it was
    /// last modified. Nothing is waited for, and a disk that is full does no harm.
    pub fn beat(&self, counted: Counted) {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_NOW,
        };
        let last_access = match counted {
            Counted::ToNow => now,
            Counted::NotYet => Timespec {
                tv_sec: 0,
                tv_nsec: rustix::fs::UTIME_OMIT,
            },
        };
        let times = rustix::fs::Timestamps {
            last_access,
            last_modification: now,
        };
        let _ = rustix::fs::futimens(&self.file, &times);
    }

    /// How long its last holder was seen alive after what is on record.
    pub fn uncounted(path: &Path) -> Duration {
        let seen = std::fs::metadata(path)
            .and_then(|metadata| Ok((metadata.accessed()?, metadata.modified()?)));
        let (counted, alive) = seen.unwrap_or((UNIX_EPOCH, UNIX_EPOCH));
        alive.duration_since(counted).unwrap_or_default()
    }

    /// Takes the lock, and makes its file where there is none. `on_wait` is called once if
    /// somebody else has it.
    pub fn wait(path: &Path, mut on_wait: impl FnMut()) -> Result<Self, LockError> {
        loop {
            let file = open_file(path, OFlags::CREATE)?;
            if !flock(path, &file, FlockOperation::NonBlockingLockExclusive)? {
                on_wait();
                flock(path, &file, FlockOperation::LockExclusive)?;
            }
            if is_named(path, &file)? {
                return Ok(Self { file });
            }
        }
    }

    /// Takes it together with others who do the same; whoever wants it alone waits for all of them.
    pub fn wait_shared(path: &Path, mut on_wait: impl FnMut()) -> Result<Self, LockError> {
        loop {
            let file = open_file(path, OFlags::CREATE)?;
            if !flock(path, &file, FlockOperation::NonBlockingLockShared)? {
                on_wait();
                flock(path, &file, FlockOperation::LockShared)?;
            }
            if is_named(path, &file)? {
                return Ok(Self { file });
            }
        }
    }

    /// Takes the lock if nobody has it. Whoever only asks has it for microseconds.
    pub fn take(path: &Path) -> Result<Option<Self>, LockError> {
        for _ in 0..TRIES {
            let file = open_file(path, OFlags::CREATE)?;
            if flock(path, &file, FlockOperation::NonBlockingLockExclusive)? {
                if is_named(path, &file)? {
                    return Ok(Some(Self { file }));
                }
            } else {
                thread::sleep(BETWEEN_TRIES);
            }
        }
        Ok(None)
    }

    /// Whether a living process has it.
    pub fn is_held(path: &Path) -> Result<bool, LockError> {
        match open_file(path, OFlags::empty()) {
            Ok(file) => Ok(!flock(path, &file, FlockOperation::NonBlockingLockShared)?),
            Err(LockError::Open { source, .. })
                if matches!(
                    Errno::from_io_error(&source),
                    Some(Errno::NOENT | Errno::NOTDIR)
                ) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

fn open_file(path: &Path, flags: OFlags) -> Result<OwnedFd, LockError> {
    let flags = flags | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| LockError::Open {
        path: path.to_owned(),
        source: errno.into(),
    })
}

/// False where somebody else has it and it was not to be waited for.
fn flock(path: &Path, file: &OwnedFd, operation: FlockOperation) -> Result<bool, LockError> {
    loop {
        match rustix::fs::flock(file, operation) {
            Ok(()) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(errno) => {
                return Err(LockError::Lock {
                    path: path.to_owned(),
                    source: errno.into(),
                });
            }
        }
    }
}

/// A lock on a file that was removed meanwhile would keep nobody out.
fn is_named(path: &Path, file: &OwnedFd) -> Result<bool, LockError> {
    let stat = rustix::fs::fstat(file).map_err(|errno| LockError::Lock {
        path: path.to_owned(),
        source: errno.into(),
    })?;
    Ok(stat.st_nlink > 0)
}

fn open(home: &Home, run: RunId, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(home.lock(run), flags, Mode::RUSR | Mode::WUSR)
}

fn open_failed(home: &Home, run: RunId, errno: Errno) -> LockError {
    LockError::Open {
        path: home.lock(run),
        source: errno.into(),
    }
}

fn lock_failed(home: &Home, run: RunId, errno: Errno) -> LockError {
    LockError::Lock {
        path: home.lock(run),
        source: errno.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home() -> (tempfile::TempDir, Home, RunId) {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(Some(directory.path().join("home"))).unwrap();
        (directory, home, RunId::random().unwrap())
    }

    #[test]
    fn a_lock_is_held_until_it_is_dropped() {
        let (_directory, home, run) = home();
        assert!(!RunLock::is_held(&home, run).unwrap());
        let lock = RunLock::create(&home, run).unwrap();
        assert_eq!(lock.run(), run);
        assert!(RunLock::is_held(&home, run).unwrap());
        assert!(RunLock::claim(&home, run).unwrap().is_none());
        drop(lock);
        assert!(!RunLock::is_held(&home, run).unwrap());
        assert!(RunLock::claim(&home, run).unwrap().is_some());
    }

    #[test]
    fn a_workspace_is_made_once() {
        let (_directory, home, run) = home();
        drop(RunLock::create(&home, run).unwrap());
        let error = RunLock::create(&home, run).unwrap_err();
        assert!(
            matches!(error, LockError::CreateWorkspace { .. }),
            "{error:?}"
        );
    }

    #[test]
    fn a_link_in_the_place_of_the_lock_is_not_followed() {
        let (_directory, home, run) = home();
        std::fs::create_dir(home.workspace(run)).unwrap();
        std::os::unix::fs::symlink("/dev/null", home.lock(run)).unwrap();
        assert!(matches!(
            RunLock::is_held(&home, run),
            Err(LockError::Open { .. })
        ));
        assert!(matches!(
            RunLock::claim(&home, run),
            Err(LockError::Open { .. })
        ));
    }

    #[test]
    fn asking_does_not_keep_a_driver_out() {
        let (_directory, home, run) = home();
        drop(RunLock::create(&home, run).unwrap());
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                for _ in 0..2000 {
                    RunLock::is_held(&home, run).unwrap();
                }
            });
            while !asking.is_finished() {
                assert!(RunLock::claim(&home, run).unwrap().is_some());
            }
        });
    }

    #[test]
    fn who_has_not_come_to_lock_yet_is_not_taken_for_gone() {
        let (_directory, home, run) = home();
        std::fs::create_dir(home.workspace(run)).unwrap();
        assert!(RunLock::claim(&home, run).unwrap().is_none());
        assert!(home.workspace(run).exists() && !home.lock(run).exists());
        // Something that lost its lock is nobody's.
        std::fs::write(home.workspace(run).join("rest"), "").unwrap();
        assert!(RunLock::claim(&home, run).unwrap().is_some());
    }

    #[test]
    fn whose_workspace_is_swept_makes_it_again() {
        let (_directory, home, _) = home();
        std::thread::scope(|scope| {
            let making = scope.spawn(|| {
                for _ in 0..500 {
                    let run = RunId::random().unwrap();
                    let lock = RunLock::create(&home, run).unwrap();
                    assert!(home.lock(run).exists(), "it locks what nobody sees");
                    drop(lock);
                }
            });
            while !making.is_finished() {
                for entry in std::fs::read_dir(home.workspaces()).unwrap() {
                    let path = entry.unwrap().path();
                    let name = path.file_name().unwrap().to_str().unwrap();
                    let Some(_held) = RunLock::claim(&home, name.parse().unwrap()).unwrap() else {
                        continue;
                    };
                    std::fs::remove_dir_all(&path).unwrap();
                }
            }
        });
    }
}
