//! Reading one file of the merged view without mounting it: the upper layer's, else the base's.
//!
//! HOSTILE: an agent wrote the upper layer. It is walked by directory handles, no link is
//! followed, nothing but a regular file within its bound is read.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::files::{self, Opened};

/// The two layers of a workspace.
#[derive(Debug)]
pub(super) struct Layers {
    upper: OwnedFd,
    base: OwnedFd,
}

/// What the upper layer says of a file.
enum Upper {
    Has(Vec<u8>),
    /// Deleted, replaced by something unreadable, or its directory is.
    Hides,
    Silent,
}

impl Layers {
    pub(super) fn new(upper: BorrowedFd<'_>, base: BorrowedFd<'_>) -> std::io::Result<Self> {
        Ok(Self {
            upper: upper.try_clone_to_owned()?,
            base: base.try_clone_to_owned()?,
        })
    }

    /// The bytes of a regular file of the merged view; `None` if there is none within the bound.
    /// And whether that is as the base has it.
    pub(super) fn read(&self, dir: &[u8], name: &str, limit: u64) -> (Option<Vec<u8>>, bool) {
        match self.read_upper(dir, name, limit) {
            Upper::Has(bytes) => (Some(bytes), false),
            Upper::Hides => (None, false),
            Upper::Silent => {
                let path = Path::new(OsStr::from_bytes(dir)).join(name);
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
                let fd = files::open_beneath(&self.base, &path, flags).ok();
                (fd.and_then(|fd| contents(fd, limit)), true)
            }
        }
    }

    fn read_upper(&self, dir: &[u8], name: &str, limit: u64) -> Upper {
        let flags =
            OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut base_shows = true;
        let silent = |base_shows| {
            if base_shows {
                Upper::Silent
            } else {
                Upper::Hides
            }
        };
        let mut at: Option<OwnedFd> = None;
        for part in dir.split(|&b| b == b'/').filter(|part| !part.is_empty()) {
            let from = at.as_ref().map_or(self.upper.as_fd(), AsFd::as_fd);
            let flags = flags | OFlags::DIRECTORY;
            match rustix::fs::openat(from, OsStr::from_bytes(part), flags, Mode::empty()) {
                Ok(fd) => {
                    base_shows &= !is_opaque(&fd);
                    at = Some(fd);
                }
                Err(Errno::NOENT) => return silent(base_shows),
                Err(_) => return Upper::Hides,
            }
        }
        let from = at.as_ref().map_or(self.upper.as_fd(), AsFd::as_fd);
        match rustix::fs::openat(from, name, flags, Mode::empty()) {
            Ok(fd) => contents(fd, limit).map_or(Upper::Hides, Upper::Has),
            Err(Errno::NOENT) => silent(base_shows),
            Err(_) => Upper::Hides,
        }
    }
}

fn contents(fd: OwnedFd, limit: u64) -> Option<Vec<u8>> {
    match files::read_open(fd, limit) {
        Ok(Opened::Contents(contents)) => Some(contents.bytes),
        _ => None,
    }
}

/// A directory that was deleted and made anew: nothing of the base shows in it.
fn is_opaque(dir: &OwnedFd) -> bool {
    let mut value = [0u8; 8];
    matches!(rustix::fs::fgetxattr(dir, "user.overlay.opaque", &mut value[..]), Ok(1) if value[0] == b'y')
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_upper_layer_decides_and_cannot_hang_us() {
        let dir = tempfile::tempdir().unwrap();
        let (upper, base) = (dir.path().join("u"), dir.path().join("b"));
        for name in [
            "kept", "edited", "gone", "opaque", "link", "fifo", "big", "file",
        ] {
            fs::create_dir_all(base.join(name)).unwrap();
            fs::write(base.join(name).join("f"), "base").unwrap();
            if name != "kept" && name != "file" {
                fs::create_dir_all(upper.join(name)).unwrap();
            }
        }
        fs::write(upper.join("edited/f"), "upper").unwrap();
        fs::write(upper.join("file"), "").unwrap();
        files::white_out(&upper.join("gone/f")).unwrap();
        files::mark_opaque(&upper.join("opaque")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", upper.join("link/f")).unwrap();
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, upper.join("fifo/f"), fifo, 0o600.into(), 0).unwrap();
        fs::write(upper.join("big/f"), "x".repeat(2000)).unwrap();
        let open = |path: &Path| files::open_directory(path).unwrap();
        let (upper, base) = (open(&upper), open(&base));
        let layers = Layers::new(upper.as_fd(), base.as_fd()).unwrap();
        for (name, expected) in [
            ("kept", Some("base")),
            ("edited", Some("upper")),
            ("gone", None),
            ("opaque", None),
            ("link", None),
            ("fifo", None),
            ("big", None),
            ("file", None),
            ("absent", None),
        ] {
            let (got, is_base) = layers.read(name.as_bytes(), "f", 1000);
            assert_eq!(is_base, ["kept", "absent"].contains(&name), "{name}");
            assert_eq!(got.as_deref(), expected.map(str::as_bytes), "{name}");
        }
    }
}
