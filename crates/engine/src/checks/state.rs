//! The state of a folder as one hash, without reading a file: what its entries are, how long, and
//! when the kernel saw them change.
//!
//! What a check sees of the folder is more than what git knows: packages that are ignored, files
//! that were never added. The kernel sets the time of change itself, and nobody can set it back.

use std::collections::BTreeSet;
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
    // Wherever its own directory is: that of a worktree is elsewhere.
    if let Some(repository) = crate::git::discover(folder).ok()? {
        for own in BTreeSet::from([repository.git_dir, repository.common_dir]) {
            for name in ["HEAD", "logs/HEAD", "packed-refs", "shallow"] {
                let stat = fs::metadata(own.join(name)).ok();
                let seen =
                    stat.map(|stat| (stat.ino(), stat.size(), stat.ctime(), stat.ctime_nsec()));
                hash.update(format!("{seen:?}"));
            }
            // Names that a check may ask for; what was removed from a directory changes it.
            let names = ["refs", "reftable"].map(|name| own.join(name));
            open.extend(names.into_iter().filter(|names| names.is_dir()));
        }
    }
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
                continue;
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

    fn git(folder: &Path, words: &[&str]) -> bool {
        let mut command = std::process::Command::new("git");
        command.arg("-C").arg(folder).args(words);
        for who in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{who}_NAME"), "a");
            command.env(format!("GIT_{who}_EMAIL"), "a@b.example");
        }
        let done = command.output().expect("git");
        done.status.success()
    }

    #[test]
    fn a_state_follows_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a/b");
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(&file, "1").unwrap();
        let first = of(dir.path()).unwrap();
        assert_eq!(of(dir.path()), Some(first.clone()));
        fs::write(&file, "22").unwrap();
        let second = of(dir.path()).unwrap();
        assert_ne!(second, first);
        fs::write(dir.path().join("a/c"), "").unwrap();
        assert_ne!(of(dir.path()), Some(second));
        assert_eq!(of(&dir.path().join("none")), None);
    }

    /// What a check may ask git for counts, wherever git has it; what git keeps for itself does not.
    #[test]
    fn a_state_follows_where_a_repository_stands() {
        let dir = tempfile::tempdir().unwrap();
        for (name, format) in [("files", None), ("tables", Some("--ref-format=reftable"))] {
            let folder = dir.path().join(name);
            fs::create_dir(&folder).unwrap();
            let words: Vec<&str> = ["init", "-q"].into_iter().chain(format).collect();
            if !git(&folder, &words) {
                println!("SKIPPED states of {name}: this git has no such refs");
                continue;
            }
            let commit = ["commit", "-q", "--allow-empty", "-m", "good"];
            assert!(git(&folder, &commit));
            let beside = dir.path().join(format!("{name}-beside"));
            let path = beside.to_str().unwrap();
            assert!(git(
                &folder,
                &["worktree", "add", "-q", path, "-b", "beside"]
            ));
            let both = || [&folder, &beside].map(|folder| of(folder).unwrap());
            let before = both();
            assert_eq!(both(), before);
            fs::write(folder.join(".git/description"), "x").unwrap();
            assert_eq!(both(), before, "what git keeps for itself");
            assert!(git(
                &beside,
                &["commit", "-q", "--amend", "--allow-empty", "-m", "bad"]
            ));
            let amended = both();
            assert_ne!(amended[1], before[1], "{name}: a commit");
            assert!(git(&folder, &["tag", "v1"]));
            let tagged = both();
            assert!(
                tagged[0] != amended[0] && tagged[1] != amended[1],
                "{name}: a tag"
            );
            assert!(git(&folder, &["tag", "-d", "v1"]));
            assert_ne!(both()[1], tagged[1], "{name}: a tag that is gone");
        }
    }
}
