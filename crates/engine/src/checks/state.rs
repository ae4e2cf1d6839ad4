//! The state of a folder as one hash, without reading a file: what its entries are, how long, and
//! when the kernel saw them change.
//!
//! What a check sees of the folder is more than what git knows: packages that are ignored, files
//! that were never added. The kernel sets the time of change itself, and nobody can set it back.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use sha2::{Digest as _, Sha256};

/// BOUND: a look at an entry costs some microseconds.
const ENTRIES: usize = 400_000;

/// The state, `None` where the folder is too large or cannot be read.
pub(super) fn of(folder: &Path) -> Option<String> {
    let mut hash = Sha256::new();
    let mut open = vec![folder.to_owned()];
    let mut seen = 0;
    while let Some(directory) = open.pop() {
        let mut names: Vec<_> = fs::read_dir(&directory)
            .ok()?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<_, _>>()
            .ok()?;
        names.sort_unstable();
        for path in names {
            // Of git's own directory only where it stands: the inside has a copy made anew.
            if directory == folder && path.file_name().is_some_and(|name| name == ".git") {
                for name in ["HEAD", "logs/HEAD", "packed-refs"] {
                    let stat = fs::metadata(path.join(name)).ok();
                    let seen = stat.map(|stat| (stat.size(), stat.ctime(), stat.ctime_nsec()));
                    hash.update(format!("{seen:?}"));
                }
                if path.is_dir() {
                    // Names that a check may ask for; what was removed from a directory changes it.
                    open.extend(Some(path.join("refs")).filter(|refs| refs.is_dir()));
                    continue;
                }
            }
            seen += 1;
            if seen > ENTRIES {
                return None;
            }
            let stat = fs::symlink_metadata(&path).ok()?;
            let bytes = path.as_os_str().as_bytes();
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
            for number in [
                u64::from(stat.mode()),
                stat.dev(),
                stat.ino(),
                stat.size(),
                stat.mtime() as u64,
                stat.mtime_nsec() as u64,
                stat.ctime() as u64,
                stat.ctime_nsec() as u64,
            ] {
                hash.update(number.to_le_bytes());
            }
            if stat.is_dir() {
                open.push(path);
            }
        }
    }
    Some(ringfence_model::hex(&hash.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_follows_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a/b");
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::create_dir(dir.path().join(".git")).unwrap();
        fs::write(&file, "1").unwrap();
        let first = of(dir.path()).unwrap();
        assert_eq!(of(dir.path()), Some(first.clone()));
        fs::write(dir.path().join(".git/index"), "x").unwrap();
        assert_eq!(of(dir.path()), Some(first.clone()), "git's own directory");
        fs::create_dir_all(dir.path().join(".git/refs/tags")).unwrap();
        let tagged = dir.path().join(".git/refs/tags/v1");
        fs::write(&tagged, "x").unwrap();
        let with = of(dir.path()).unwrap();
        fs::remove_file(tagged).unwrap();
        assert_ne!(of(dir.path()), Some(with), "a tag");
        fs::write(&file, "22").unwrap();
        let second = of(dir.path()).unwrap();
        assert_ne!(second, first);
        fs::write(dir.path().join("a/c"), "").unwrap();
        assert_ne!(of(dir.path()), Some(second));
        assert_eq!(of(&dir.path().join("none")), None);
    }
}
