//! What a killed git leaves in a mirror, and what would stop every later one.
//!
//! A git that was killed, or that lost its power, leaves lock files of its refs and half a pack. The
//! next one takes the locks for those of a living process and gives up.
//!
//! INVARIANT: only whoever holds the mirror's lock clears, and every git that writes to a mirror
//! holds on to that lock itself. So nothing that is removed here belongs to a living process.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::MirrorError;

/// Removes lock files at the top and below `refs`, and half packs.
///
/// Temporary names are removed in `objects/pack` only: a branch may be called `tmp_x`. No ref can end
/// in `.lock`, as git refuses such names.
pub(super) fn clear(mirror: &Path) -> Result<(), MirrorError> {
    let is_lock = |name: &OsStr| name.as_bytes().ends_with(b".lock");
    let is_temporary = |name: &OsStr| name.as_bytes().starts_with(b"tmp_");
    remove_files(mirror, &is_lock)?;
    let mut pending = vec![mirror.join("refs")];
    while let Some(directory) = pending.pop() {
        pending.extend(remove_files(&directory, &is_lock)?);
    }
    remove_files(&mirror.join("objects/pack"), &is_temporary)?;
    Ok(())
}

/// Removes files by their names; gives the directories that are there. No link is followed.
fn remove_files(
    directory: &Path,
    goes: &dyn Fn(&OsStr) -> bool,
) -> Result<Vec<PathBuf>, MirrorError> {
    let mut directories = Vec::new();
    let mut remove = || -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                directories.push(entry.path());
            } else if goes(&entry.file_name()) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    };
    match remove() {
        Ok(()) => Ok(directories),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(directories),
        Err(source) => Err(MirrorError::Make {
            what: "clear",
            path: directory.to_owned(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_killed_git_leaves_goes() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path();
        clear(&top.join("absent")).unwrap();
        let goes = [
            "HEAD.lock",
            "packed-refs.lock",
            "shallow.lock",
            "refs/heads/main.lock",
            "refs/heads/a/b.lock",
            "refs/tags/v1.lock",
            "objects/pack/tmp_pack_x",
            "objects/pack/tmp_idx_x",
        ];
        let stays = [
            "HEAD",
            "packed-refs",
            "refs/heads/tmp_x",
            "refs/heads/tmp_/y",
            "objects/pack/pack-1.pack",
            "objects/info/tmp_x",
            "objects/x.lock",
        ];
        for name in goes.iter().chain(&stays) {
            let path = top.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        clear(top).unwrap();
        for name in goes {
            assert!(!top.join(name).exists(), "{name}");
        }
        for name in stays {
            assert!(top.join(name).exists(), "{name}");
        }
    }
}
