//! Content of regular files: read within a bound, written whole or not at all.
//!
//! A new content is written to a temporary name in the same directory and renamed over the old
//! one. Hard links to the old file keep the old content.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{Access, AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::failure::{Hint as _, Outcome, internal, invalid, refused, refused_io, too_large};
use crate::place::Place;

/// BOUND: files that are edited or patched in memory.
pub const MAX_EDITED: u64 = 16 << 20;

/// The permission bits of a file that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executable {
    /// As the file was; a new one is not.
    Keep,
    Yes,
    No,
}

/// As requests say it.
impl From<Option<bool>> for Executable {
    fn from(wish: Option<bool>) -> Self {
        match wish {
            None => Self::Keep,
            Some(true) => Self::Yes,
            Some(false) => Self::No,
        }
    }
}

impl Executable {
    /// Executable for whoever may read.
    pub fn apply(self, mode: u32) -> u32 {
        match self {
            Self::Keep => mode,
            Self::Yes => mode | (mode & 0o444) >> 2,
            Self::No => mode & !0o111,
        }
    }
}

/// Opens a regular file for reading, with its size. Nothing else is opened, so nobody is waited
/// for: a FIFO or a device is refused.
pub fn open(place: &Place) -> Outcome<(File, u64)> {
    let stat = place.must_stat()?;
    regular(place, stat.st_mode)?;
    // The name may have changed hands since; the flags make that harmless.
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(place.directory(), place.name(), flags, Mode::empty())
        .map_err(|errno| refused("open", &place.path, errno))?;
    let stat = rustix::fs::fstat(&fd).map_err(|errno| refused("look at", &place.path, errno))?;
    regular(place, stat.st_mode)?;
    Ok((File::from(fd), u64::try_from(stat.st_size).unwrap_or(0)))
}

fn regular(place: &Place, mode: u32) -> Outcome<()> {
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(invalid(format!("`{}` is a directory", place.shown()))),
        _ => Err(invalid(format!(
            "`{}` is not a regular file",
            place.shown()
        ))),
    }
}

/// The whole content of a file that is small enough to be changed in memory.
pub fn read_whole(place: &Place) -> Outcome<Vec<u8>> {
    let (file, size) = open(place)?;
    let mut content = Vec::new();
    if size <= MAX_EDITED {
        // HOSTILE: the file may grow while it is read.
        file.take(MAX_EDITED + 1)
            .read_to_end(&mut content)
            .map_err(|error| refused_io("read", &place.path, &error))?;
    }
    if size > MAX_EDITED || content.len() as u64 > MAX_EDITED {
        return Err(too_large(format!(
            "`{}` is over the bound of {MAX_EDITED} bytes for files that are changed",
            place.shown()
        )));
    }
    Ok(content)
}

/// Refuses what may not be replaced: anything but a file that the agent may write.
/// `None`: there is nothing yet.
pub fn replaceable(place: &Place) -> Outcome<Option<u32>> {
    if place.is_root() {
        return Err(invalid("`.` is a directory".to_owned()));
    }
    let Some(stat) = place.stat()? else {
        return Ok(None);
    };
    regular(place, stat.st_mode)?;
    // A rename asks only for the directory; a file that is read-only should stay as it is.
    rustix::fs::accessat(
        place.directory(),
        place.name(),
        Access::WRITE_OK,
        AtFlags::empty(),
    )
    .map_err(|errno| {
        refused("write", &place.path, errno).hint(match errno {
            Errno::ROFS => {
                "the policy holds it read-only; `ringfence policy explain PATH` names the line"
            }
            _ => "the file is read-only; change its mode first",
        })
    })?;
    Ok(Some(stat.st_mode & 0o7777))
}

/// A content that has only a temporary name yet; without [`Staged::publish`] it goes away.
#[derive(Debug)]
pub struct Staged<'a> {
    place: &'a Place,
    temporary: OsString,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Staged,
    Published,
}

/// What to do where the name is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    Replace,
    Refuse,
}

impl<'a> Staged<'a> {
    /// Writes the content beside its place. `mode` is what the file had, if there was one.
    pub fn new(
        place: &'a Place,
        content: &[u8],
        mode: Option<u32>,
        executable: Executable,
    ) -> Outcome<Self> {
        let (mut file, temporary) = create(place)?;
        let staged = Self {
            place,
            temporary,
            state: State::Staged,
        };
        file.write_all(content)
            .map_err(|error| refused_io("write", &place.path, &error))?;
        let made = rustix::fs::fstat(&file)
            .map_err(|errno| refused("look at", &place.path, errno))?
            .st_mode
            & 0o7777;
        let wanted = executable.apply(mode.unwrap_or(made));
        if wanted != made {
            rustix::fs::fchmod(&file, Mode::from_raw_mode(wanted))
                .map_err(|errno| refused("set the mode of", &place.path, errno))?;
        }
        Ok(staged)
    }

    /// Gives the content its name.
    pub fn publish(mut self, existing: Existing) -> Outcome<()> {
        let directory = self.place.directory();
        let name = self.place.name();
        let renamed = match existing {
            Existing::Replace => rustix::fs::renameat(directory, &self.temporary, directory, name),
            Existing::Refuse => rename_new(self.place, &self.temporary),
        };
        renamed.map_err(|errno| refused("write", &self.place.path, errno))?;
        self.state = State::Published;
        Ok(())
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        if self.state == State::Staged {
            let directory = self.place.directory();
            // Nothing can be done about a name that stays.
            let _ = rustix::fs::unlinkat(directory, &self.temporary, AtFlags::empty());
        }
    }
}

fn rename_new(place: &Place, temporary: &OsString) -> Result<(), Errno> {
    let directory = place.directory();
    let name = place.name();
    let flags = RenameFlags::NOREPLACE;
    match rustix::fs::renameat_with(directory, temporary, directory, name, flags) {
        // Not every file system can; a link does not replace anything either.
        Err(Errno::INVAL | Errno::NOSYS) => {
            rustix::fs::linkat(directory, temporary, directory, name, AtFlags::empty())?;
            rustix::fs::unlinkat(directory, temporary, AtFlags::empty())
        }
        renamed => renamed,
    }
}

fn create(place: &Place) -> Outcome<(File, OsString)> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    // BOUND: only leftovers of a killed process with our number can be in the way.
    for _ in 0..100 {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = OsString::from(format!(".ringfence-tmp-{}-{count}", std::process::id()));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o666);
        match rustix::fs::openat(place.directory(), &name, flags, mode) {
            Ok(fd) => return Ok((File::from(fd), name)),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(refused("write", &place.path, errno)),
        }
    }
    Err(internal(format!(
        "no temporary name is free beside `{}`",
        place.shown()
    )))
}
