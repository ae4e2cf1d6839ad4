//! Giving a tree of any depth, names and modes to one owner.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, Gid, Uid};
use rustix::io::Errno;

use super::ChangesError;
use super::descent::{Descent, Step};
use super::handle::{self, Access, Kind};

/// Gives a directory and all that is below it to an owner. No link is followed, and nothing but
/// directories is opened.
///
/// HOSTILE: a setup chose names, modes and owners. Nothing of it runs any more.
pub fn own_tree(root: BorrowedFd<'_>, owner: (u32, u32)) -> Result<(), ChangesError> {
    own(root, owner).map_err(ChangesError::Own)
}

fn own(root: BorrowedFd<'_>, (uid, gid): (u32, u32)) -> io::Result<()> {
    let owner = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    rustix::fs::fchown(root, owner.0, owner.1)?;
    let (mut descent, _) = Descent::new(root, Access::Widen)?;
    let mut enter = true;
    loop {
        if enter {
            for name in handle::names(descent.here(), usize::MAX)? {
                let kind = match handle::look(descent.here(), &name)? {
                    Some(meta) => meta.kind,
                    None => continue,
                };
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                let given = rustix::fs::chownat(descent.here(), &name[..], owner.0, owner.1, flags);
                match given {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => return Err(errno.into()),
                }
                if kind == Kind::Directory {
                    descent.queue(name);
                }
            }
        }
        match descent.advance()? {
            None => return Ok(()),
            Some(Step::Entered(..)) => enter = true,
            Some(Step::Left) => enter = false,
            Some(Step::Closed(_, error)) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    /// A tree whose owners, modes and links are as bad as they can be is given away whole, and
    /// nothing outside of it is.
    #[test]
    fn all_of_a_tree_and_nothing_else_gets_the_owner() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED giving a tree away: needs root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        fs::write(&outside, "").unwrap();
        let tree = dir.path().join("tree");
        let mut at = tree.clone();
        fs::create_dir(&at).unwrap();
        for depth in 0..100 {
            at = at.join(format!("d{depth}"));
            fs::create_dir(&at).unwrap();
        }
        fs::write(at.join("file"), "").unwrap();
        symlink(&outside, tree.join("link")).unwrap();
        symlink(dir.path(), tree.join("up")).unwrap();
        let closed = tree.join("d0");
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
        let opened = fs::File::open(&tree).unwrap();
        own_tree(opened.as_fd(), (4321, 4322)).unwrap();
        let owner = |path: &std::path::Path| {
            let found = fs::symlink_metadata(path).unwrap();
            (found.uid(), found.gid())
        };
        for path in [&tree, &at, &at.join("file"), &tree.join("link"), &closed] {
            assert_eq!(owner(path), (4321, 4322), "{}", path.display());
        }
        assert_eq!(owner(&outside), (0, 0));
        assert_eq!(owner(dir.path()), (0, 0));
        let mode = fs::symlink_metadata(&closed).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0, "modes stay");
    }
}
