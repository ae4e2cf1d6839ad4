//! Objects of the user's own repository, written as git writes loose ones.
//!
//! Each is made under a name that git takes for a left-over, and linked to its own when it is whole.
//! Nothing but `objects/` is touched here, and nothing that is there is changed.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use ringfence_model::changes::ObjectHash;
use ringfence_model::hex;
use rustix::fs::{Mode, OFlags};

use super::ApplyError;
use crate::base::object_id;
use crate::ids::RunId;

/// The object directory of a repository.
#[derive(Debug)]
pub(super) struct Objects {
    directory: PathBuf,
    hash: ObjectHash,
    /// As its own directories have it.
    mode: u32,
    owner: Option<(u32, u32)>,
}

impl Objects {
    pub fn open(common_dir: &Path, hash: ObjectHash) -> Result<Self, ApplyError> {
        let path = common_dir.join("objects");
        let failed = |source| write_error(&path, source);
        let directory = fs::canonicalize(&path).map_err(failed)?;
        let meta = fs::metadata(&directory).map_err(failed)?;
        // What root makes in somebody's repository is theirs.
        let is_root = rustix::process::geteuid().is_root();
        Ok(Self {
            directory,
            hash,
            mode: meta.permissions().mode() & 0o7777,
            owner: is_root.then(|| (meta.uid(), meta.gid())),
        })
    }

    /// Writes an object, unless it is there; gives its id.
    pub fn write(&self, kind: &str, bytes: &[u8]) -> Result<String, ApplyError> {
        let id = hex(&object_id(kind, bytes, self.hash));
        let directory = self.directory.join(&id[..2]);
        let path = directory.join(&id[2..]);
        self.put(&directory, &path, kind, bytes)
            .map_err(|source| write_error(&path, source))?;
        Ok(id)
    }

    fn put(&self, directory: &Path, path: &Path, kind: &str, bytes: &[u8]) -> io::Result<()> {
        if path.symlink_metadata().is_ok() {
            return Ok(());
        }
        match fs::create_dir(directory) {
            Ok(()) => {
                fs::set_permissions(directory, fs::Permissions::from_mode(self.mode))?;
                self.give(directory)?;
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        let token = RunId::random().map_err(io::Error::other)?;
        let temporary = directory.join(format!("tmp_obj_{token}"));
        let made = self.fill(&temporary, kind, bytes);
        let named = made.and_then(|()| match fs::hard_link(&temporary, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            // No links on this file system.
            Err(error)
                if error.kind() == io::ErrorKind::Unsupported
                    || error.raw_os_error() == Some(1) =>
            {
                fs::rename(&temporary, path)
            }
            other => other,
        });
        // Gone where it was renamed.
        let _ = fs::remove_file(&temporary);
        named
    }

    fn fill(&self, path: &Path, kind: &str, bytes: &[u8]) -> io::Result<()> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::from_raw_mode(0o444))?;
        let mut out = ZlibEncoder::new(File::from(fd), Compression::fast());
        out.write_all(format!("{kind} {}\0", bytes.len()).as_bytes())?;
        out.write_all(bytes)?;
        out.finish()?;
        self.give(path)
    }

    fn give(&self, path: &Path) -> io::Result<()> {
        match self.owner {
            Some((uid, gid)) => std::os::unix::fs::lchown(path, Some(uid), Some(gid)),
            None => Ok(()),
        }
    }

    /// All that was written is on the disk when this returns.
    pub fn sync(&self) -> Result<(), ApplyError> {
        let sync = || -> io::Result<()> { Ok(rustix::fs::syncfs(File::open(&self.directory)?)?) };
        sync().map_err(|source| write_error(&self.directory, source))
    }
}

pub(super) fn write_error(path: &Path, source: io::Error) -> ApplyError {
    ApplyError::WriteGit {
        path: path.to_owned(),
        source,
    }
}
