//! What a setup made, cut down to what may be shared.
//!
//! Nothing keeps a bit by which it would run as its owner: on the host the owner is somebody.
//!
//! Kept is what the base has not. What the setup changed or deleted of the base is dropped and told:
//! another sandbox has a base of its own. So are marks of the overlay, which would hide what a later
//! base has, and special files.
//!
//! HOSTILE: a setup runs what others wrote. The layer is read relative to handles, no link is
//! followed, nothing recurses.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use ringfence_model::ByteText;
use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::EnvironmentError;
use crate::changes::descent::{Descent, Step, push_name};
use crate::changes::handle::{self, Access, Kind};
use crate::changes::remove_tree;

/// BOUND: names that are told.
const TOLD: usize = 5;

/// What was dropped.
#[derive(Debug, Default)]
pub(super) struct Dropped {
    /// Paths that the base has and the setup changed.
    pub changed: u64,
    pub special: u64,
    pub names: Vec<ByteText>,
}

impl Dropped {
    fn one(&mut self, path: &[u8]) {
        self.changed += 1;
        if self.names.len() < TOLD {
            self.names.push(ByteText::from(path));
        }
    }

    /// For a person.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.changed > 0 {
            let names: Vec<String> = self.names.iter().map(ByteText::to_text).collect();
            let more = if self.changed as usize > names.len() {
                ", …"
            } else {
                ""
            };
            notes.push(format!(
                "the setup changed {} of the folder's own paths; this is not kept: {}{more}",
                self.changed,
                names.join(", ")
            ));
        }
        if self.special > 0 {
            let count = self.special;
            notes.push(format!(
                "{count} sockets, pipes or devices of the setup are not kept"
            ));
        }
        notes
    }
}

/// Prunes a layer over a base; `None`: there is nothing below it. `skip` are names at the top that
/// are ours.
pub(super) fn prune(
    layer: BorrowedFd<'_>,
    base: Option<BorrowedFd<'_>>,
    skip: &[&str],
) -> Result<Dropped, EnvironmentError> {
    start(layer, base, Marks::Removed, skip).map_err(EnvironmentError::Read)
}

/// Takes special files out of what a setup wrote over its image. What it deleted there stays so.
pub(super) fn prune_root(layer: BorrowedFd<'_>) -> Result<Dropped, EnvironmentError> {
    start(layer, None, Marks::Kept, &[]).map_err(EnvironmentError::Read)
}

fn start(
    layer: BorrowedFd<'_>,
    base: Option<BorrowedFd<'_>>,
    marks: Marks,
    skip: &[&str],
) -> io::Result<Dropped> {
    let (descent, _) = Descent::new(layer, Access::Take)?;
    let base = base.map(|base| base.try_clone_to_owned()).transpose()?;
    let mut pruning = Pruning {
        descent,
        base: vec![base],
        marks,
        path: Vec::new(),
        ends: Vec::new(),
        dropped: Dropped::default(),
    };
    pruning.unmark()?;
    pruning.directory(skip)?;
    pruning.run()
}

/// What becomes of the overlay's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marks {
    Removed,
    Kept,
}

struct Pruning {
    descent: Descent,
    /// The base's directory for each on the way, where it has one.
    base: Vec<Option<OwnedFd>>,
    marks: Marks,
    path: Vec<u8>,
    ends: Vec<usize>,
    dropped: Dropped,
}

impl Pruning {
    fn run(mut self) -> io::Result<Dropped> {
        while let Some(step) = self.descent.advance()? {
            match step {
                Step::Entered(name, _) => {
                    let above = self.base.last().and_then(Option::as_ref);
                    let below = above.and_then(|above| {
                        let opened = handle::open_directory(above.as_fd(), &name, Access::AsItIs);
                        opened.ok().map(|opened| opened.fd)
                    });
                    self.base.push(below);
                    let end = push_name(&mut self.path, &name);
                    self.ends.push(end);
                    self.unmark()?;
                    self.directory(&[])?;
                }
                Step::Left => {
                    self.base.pop();
                    self.path.truncate(self.ends.pop().unwrap_or(0));
                }
                Step::Closed(_, error) => return Err(error),
            }
        }
        Ok(self.dropped)
    }

    fn unmark(&self) -> io::Result<()> {
        match self.marks {
            Marks::Removed => unmark(self.descent.here()),
            Marks::Kept => Ok(()),
        }
    }

    fn directory(&mut self, skip: &[&str]) -> io::Result<()> {
        let names = handle::names(self.descent.here(), usize::MAX)?;
        for name in names {
            let end = push_name(&mut self.path, &name);
            let ours = skip.iter().any(|ours| ours.as_bytes() == name);
            self.entry(name, ours)?;
            self.path.truncate(end);
        }
        Ok(())
    }

    fn entry(&mut self, name: Vec<u8>, ours: bool) -> io::Result<()> {
        let here = self.descent.here();
        let Some(meta) = handle::look(here, &name)? else {
            return Ok(());
        };
        let above = self.base.last().and_then(Option::as_ref);
        let old = match above {
            Some(above) => handle::look(above.as_fd(), &name)?,
            None => None,
        };
        if ours {
            return remove(here, &name);
        }
        match (meta.kind, old.map(|old| old.kind)) {
            (Kind::Directory, None | Some(Kind::Directory)) => self.descent.queue(name),
            (Kind::Whiteout, None) if self.marks == Marks::Kept => {}
            (Kind::Whiteout, None) => remove(here, &name)?,
            (Kind::Special, None) => {
                remove(here, &name)?;
                self.dropped.special += 1;
            }
            (Kind::File, None) if meta.mode & 0o6000 != 0 => {
                let opened = handle::open_file(here, &name, Access::Take)?;
                let mode = rustix::fs::Mode::from_raw_mode(opened.meta.mode & 0o1777);
                rustix::fs::fchmod(&opened.file, mode)?;
            }
            (_, None) => {}
            (_, Some(_)) => {
                remove(here, &name)?;
                self.dropped.one(&self.path);
            }
        }
        Ok(())
    }
}

/// Takes away what the overlay wrote to a directory.
fn unmark(directory: BorrowedFd<'_>) -> io::Result<()> {
    for name in [
        "user.overlay.opaque",
        "user.overlay.origin",
        "user.overlay.impure",
    ] {
        match rustix::fs::fremovexattr(directory, name) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn remove(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    match handle::look(dir, name)? {
        Some(meta) if meta.kind == Kind::Directory => {
            remove_tree(dir, name).map_err(io::Error::other)
        }
        Some(_) => match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        },
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_what_the_base_has_not_is_kept() {
        let place = tempfile::tempdir().expect("a place");
        let (base, layer) = (place.path().join("base"), place.path().join("layer"));
        for path in [
            "base/src",
            "base/was",
            "layer/src/gen",
            "layer/lib/x",
            "layer/link",
            "layer/.git",
        ] {
            fs::create_dir_all(place.path().join(path)).expect(path);
        }
        for path in [
            "base/src/a",
            "base/file",
            "layer/src/a",
            "layer/src/gen/b",
            "layer/lib/x/c",
            "layer/file",
            "layer/was",
            "layer/link/x",
            "layer/.git/config",
        ] {
            fs::write(place.path().join(path), path).expect(path);
        }
        std::os::unix::fs::symlink("/", base.join("link")).expect("a link");
        let pipe = rustix::fs::FileType::Fifo;
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, layer.join("pipe"), pipe, mode, 0).expect("a pipe");
        let runs_as_owner = fs::Permissions::from_mode(0o6755);
        fs::set_permissions(layer.join("lib/x/c"), runs_as_owner).expect("a mode");
        let mode =
            |path: &std::path::Path| path.metadata().expect("a file").permissions().mode() & 0o7777;
        let open = |path| File::open(path).expect("a directory");
        let (layer_fd, base_fd) = (open(&layer), open(&base));
        let dropped = prune(layer_fd.as_fd(), Some(base_fd.as_fd()), &[".git"]).expect("pruned");
        let left: Vec<bool> = ["src/a", "file", "was", "link", "pipe", ".git"]
            .iter()
            .map(|path| layer.join(path).symlink_metadata().is_ok())
            .collect();
        assert_eq!(left, [false; 6]);
        assert!(layer.join("src/gen/b").exists() && layer.join("lib/x/c").exists());
        assert_eq!((dropped.changed, dropped.special), (4, 1));
        assert_eq!(dropped.notes().len(), 2);
        assert_eq!(mode(&layer.join("lib/x/c")), 0o755);
        // The base is as it was.
        assert_eq!(fs::read(base.join("file")).expect("a file"), b"base/file");
    }
}
