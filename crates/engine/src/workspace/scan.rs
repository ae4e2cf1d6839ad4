//! One look over the folder before the start: hidden paths get a whiteout in the mask, and what
//! belongs to an id that does not exist inside gets a copy there that belongs to the agent.
//!
//! Without the copy, the kernel answers `EOVERFLOW` to whoever touches such a file inside.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{
    FileTypeExt as _, MetadataExt as _, PermissionsExt as _, chown, lchown, symlink,
};
use std::path::{Path, PathBuf};

use ringfence_jail::identity::Identity;
use ringfence_model::ByteText;
use ringfence_model::limits::HumanBytes;
use ringfence_model::policy::glob::Globs;
use rustix::fs::{CWD, FileType, Mode};

use super::{is_hidden, make};
use crate::error::Error;

/// BOUND: entries looked at for owners when nothing is hidden: some 20 ms. Beyond it, the start of
/// a run must not grow with the tree; a run that fails says so.
const ENTRIES: u64 = 20_000;
/// BOUND: bytes copied because they belong to somebody else.
const COPIED_BYTES: u64 = 4 << 30;

/// What was found.
#[derive(Debug, Default)]
pub struct Scanned {
    hidden: u64,
    foreign: u64,
    foreign_bytes: u64,
    unreadable: Vec<PathBuf>,
    cut: bool,
}

impl Scanned {
    /// Whether no path was hidden.
    pub fn hides_nothing(&self) -> bool {
        self.hidden == 0
    }

    /// One more path was hidden.
    pub fn hide_one(&mut self) {
        self.hidden += 1;
    }

    /// What a run that failed on a large tree should know.
    pub fn doubt(&self) -> Option<String> {
        self.cut.then(|| {
            format!(
                "only the first {ENTRIES} paths were looked at for files of other users, which \
                 cannot be changed inside"
            )
        })
    }

    /// For a person.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.hidden > 0 {
            notes.push(match self.hidden {
                1 => "1 path is hidden".to_owned(),
                count => format!("{count} paths are hidden"),
            });
        }
        if self.foreign > 0 {
            notes.push(format!(
                "{} paths belong to another user or group and were copied ({})",
                self.foreign,
                HumanBytes(self.foreign_bytes)
            ));
        }
        for path in self.unreadable.iter().take(5) {
            notes.push(format!(
                "`{}` is not readable and absent inside",
                path.display()
            ));
        }
        if self.unreadable.len() > 5 {
            notes.push(format!(
                "{} more paths are not readable and absent inside",
                self.unreadable.len() - 5
            ));
        }
        notes
    }
}

/// Fills the mask.
pub(crate) fn scan(
    folder: &Path,
    mask: &Path,
    hidden: &Globs,
    identity: &Identity,
) -> Result<Scanned, Error> {
    let mut scanned = Scanned::default();
    let mut open = vec![PathBuf::new()];
    let mut seen = 0u64;
    let mut aliases = Vec::new();
    while let Some(relative) = open.pop() {
        let directory = folder.join(&relative);
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            // What the caller cannot list, the agent cannot either.
            Err(_) => continue,
        };
        for entry in entries.flatten() {
            seen += 1;
            if seen > ENTRIES && hidden.is_empty() {
                scanned.cut = true;
                return Ok(scanned);
            }
            let path = relative.join(entry.file_name());
            // The real git directory is never visible; the mask has its own.
            if relative.as_os_str().is_empty() && entry.file_name() == ".git" {
                continue;
            }
            if is_hidden(hidden, path.as_os_str().as_bytes()) {
                whiteout(folder, mask, &path)?;
                scanned.hidden += 1;
                aliased(&folder.join(&path), &mut aliases);
                continue;
            }
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if is_foreign(&metadata, identity) {
                copy(folder, mask, &path, &metadata, &mut scanned)?;
            } else if is_socket_or_pipe(&metadata) {
                // A socket in the folder may lead to a process of the host.
                whiteout(folder, mask, &path)?;
            }
            if metadata.is_dir() {
                open.push(path);
            }
        }
    }
    for path in other_names(folder, &aliases) {
        whiteout(folder, mask, &path)?;
        scanned.hidden += 1;
    }
    Ok(scanned)
}

/// Other names that hidden files of a folder have in it, and that are not hidden by themselves. A
/// copy of the folder does not tell them any more.
pub(crate) fn aliases(folder: &Path, hidden: &Globs) -> Vec<ByteText> {
    let mut aliases = Vec::new();
    let mut open = if hidden.is_empty() {
        Vec::new()
    } else {
        vec![PathBuf::new()]
    };
    while let Some(relative) = open.pop() {
        for entry in fs::read_dir(folder.join(&relative))
            .into_iter()
            .flatten()
            .flatten()
        {
            let path = relative.join(entry.file_name());
            if path.as_os_str() == ".git" {
                continue;
            }
            if is_hidden(hidden, path.as_os_str().as_bytes()) {
                aliased(&folder.join(&path), &mut aliases);
            } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(path);
            }
        }
    }
    other_names(folder, &aliases)
        .iter()
        .map(|path| path.as_os_str().as_bytes())
        .filter(|path| !is_hidden(hidden, path))
        .map(ByteText::from)
        .collect()
}

/// Remembers hidden files that have other names, below a hidden directory as well.
fn aliased(path: &Path, aliases: &mut Vec<(u64, u64)>) {
    let mut open = vec![path.to_owned()];
    while let Some(path) = open.pop() {
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            continue;
        };
        if metadata.is_file() && metadata.nlink() > 1 {
            aliases.push((metadata.dev(), metadata.ino()));
        } else if metadata.is_dir() {
            open.extend(
                fs::read_dir(&path)
                    .into_iter()
                    .flatten()
                    .flatten()
                    .map(|entry| entry.path()),
            );
        }
    }
}

/// All names in the folder of these files.
fn other_names(folder: &Path, aliases: &[(u64, u64)]) -> Vec<PathBuf> {
    let mut names = Vec::new();
    let mut open = if aliases.is_empty() {
        Vec::new()
    } else {
        vec![PathBuf::new()]
    };
    while let Some(relative) = open.pop() {
        for entry in fs::read_dir(folder.join(&relative))
            .into_iter()
            .flatten()
            .flatten()
        {
            let path = relative.join(entry.file_name());
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if metadata.is_dir() {
                open.push(path);
            } else if metadata.nlink() > 1 && aliases.contains(&(metadata.dev(), metadata.ino())) {
                names.push(path);
            }
        }
    }
    names
}

fn is_socket_or_pipe(metadata: &Metadata) -> bool {
    let kind = metadata.file_type();
    kind.is_socket() || kind.is_fifo()
}

/// Whether an owner does not exist inside.
fn is_foreign(metadata: &Metadata, identity: &Identity) -> bool {
    match *identity {
        Identity::Single { uid, gid } | Identity::Root { uid, gid, .. } => {
            metadata.uid() != uid || metadata.gid() != gid
        }
        Identity::Range {
            length,
            owner_uid,
            owner_gid,
            ..
        } => {
            // What is not the owner's is not the agent's either, and could not be worked with.
            metadata.uid() != owner_uid || (metadata.gid() >= length && metadata.gid() != owner_gid)
        }
    }
}

/// Makes the directories above a path in the mask, with the modes of the folder's own. False where
/// one of them is hidden, and the path with it.
fn parents(folder: &Path, mask: &Path, path: &Path) -> Result<bool, Error> {
    let mut above: Vec<&Path> = path
        .ancestors()
        .skip(1)
        .filter(|p| !p.as_os_str().is_empty())
        .collect();
    above.reverse();
    for part in above {
        let target = mask.join(part);
        match fs::create_dir(&target) {
            Ok(()) => mirror(&folder.join(part), &target)?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if !make("look at", &target, fs::symlink_metadata(&target))?.is_dir() {
                    return Ok(false);
                }
            }
            Err(source) => {
                return Err(Error::MakeWorkspace {
                    what: "make",
                    path: target,
                    source,
                });
            }
        }
    }
    Ok(true)
}

/// A directory of the mask is seen in place of the folder's: it has its mode and times.
fn mirror(from: &Path, to: &Path) -> Result<(), Error> {
    let metadata = make("look at", from, fs::metadata(from))?;
    let mode = metadata.permissions().mode() & 0o777 | 0o700;
    make(
        "open",
        to,
        fs::set_permissions(to, fs::Permissions::from_mode(mode)),
    )
}

pub(crate) fn whiteout(folder: &Path, mask: &Path, path: &Path) -> Result<(), Error> {
    if !parents(folder, mask, path)? {
        return Ok(());
    }
    let target = mask.join(path);
    let made = rustix::fs::mknodat(CWD, &target, FileType::CharacterDevice, Mode::empty(), 0);
    match made {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(errno) => make("hide", &target, Err(errno.into())),
    }
}

fn copy(
    folder: &Path,
    mask: &Path,
    path: &Path,
    metadata: &Metadata,
    scanned: &mut Scanned,
) -> Result<(), Error> {
    let from = folder.join(path);
    let to = mask.join(path);
    // Something of the mask's own is there already.
    if fs::symlink_metadata(&to).is_ok() {
        return Ok(());
    }
    if !parents(folder, mask, path)? {
        return Ok(());
    }
    let copied: io::Result<()> = if metadata.is_dir() {
        if fs::read_dir(&from).is_err() {
            Err(io::ErrorKind::PermissionDenied.into())
        } else {
            fs::create_dir(&to).and_then(|()| {
                fs::set_permissions(
                    &to,
                    fs::Permissions::from_mode(metadata.permissions().mode() & 0o777 | 0o700),
                )
            })
        }
    } else if metadata.is_symlink() {
        fs::read_link(&from).and_then(|target| symlink(target, &to))
    } else if metadata.is_file() {
        scanned.foreign_bytes += metadata.len();
        if scanned.foreign_bytes > COPIED_BYTES {
            return Err(Error::MakeWorkspace {
                what: "copy",
                path: from,
                source: io::ErrorKind::FileTooLarge.into(),
            });
        }
        fs::copy(&from, &to).and_then(|_| keep_time(&to, metadata))
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    };
    match copied {
        Ok(()) => scanned.foreign += 1,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let _ = fs::remove_file(&to);
            whiteout(folder, mask, path)?;
            scanned.unreadable.push(path.to_owned());
        }
        Err(source) => {
            return Err(Error::MakeWorkspace {
                what: "copy",
                path: from,
                source,
            });
        }
    }
    Ok(())
}

/// Build tools and git look at the time of a file.
fn keep_time(path: &Path, metadata: &Metadata) -> io::Result<()> {
    let file = fs::File::open(path)?;
    file.set_modified(metadata.modified()?)
}

/// Gives a tree that we made to another owner; it is small and holds nothing of an agent.
pub(crate) fn give_away(root: &Path, owner: (u32, u32)) -> io::Result<()> {
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        chown(&directory, Some(owner.0), Some(owner.1))?;
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                open.push(entry.path());
            } else {
                lchown(entry.path(), Some(owner.0), Some(owner.1))?;
            }
        }
    }
    Ok(())
}
