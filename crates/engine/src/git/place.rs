//! Where a folder's git may be, and whose: the rules by which a git directory is used or refused.
//!
//! ```text
//!   folder/.git                          a directory: its own
//!   folder/.git → folder/x               a file or link that stays below the folder
//!   folder/.git → M/worktrees/N          if M/worktrees/N/gitdir names folder/.git, and commondir M
//!   folder/.git → S/modules/N            if its core.worktree names the folder
//! ```
//!
//! All of it belongs to the folder's owner, who is the caller or root, or anybody if root asks. A
//! git directory elsewhere that points back was told of the folder by who may write to it. An entry of a
//! removed worktree still points back: whoever puts a folder at that path shows that repository to it,
//! and only its owner can, since the folder has the same one.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::config::Config;
use super::directory::{Directory, Expected};
use super::discover::{LINE_BYTES, Site};
use super::refusal::{Reason, Refusal};

/// BOUND: what lies in a git directory itself; `sharedindex.*` expire.
const ENTRIES: usize = 4096;

/// What is read of a git directory.
const GIT_FILES: [&str; 13] = [
    "HEAD",
    "commondir",
    "gitdir",
    "index",
    "config.worktree",
    "info/sparse-checkout",
    "ORIG_HEAD",
    "MERGE_HEAD",
    "MERGE_MSG",
    "MERGE_MODE",
    "CHERRY_PICK_HEAD",
    "REVERT_HEAD",
    "logs/HEAD",
];
/// What is read of the directory that worktrees have in common.
const COMMON_FILES: [&str; 9] = [
    "config",
    "packed-refs",
    "shallow",
    "info/exclude",
    "info/attributes",
    "info/grafts",
    "objects/info/alternates",
    "objects/info/http-alternates",
    "reftable/tables.list",
];
const COMMON_DIRECTORIES: [&str; 14] = [
    "info",
    "logs",
    "modules",
    "objects",
    "objects/info",
    "objects/pack",
    "reftable",
    "refs",
    "refs/heads",
    "refs/tags",
    "refs/remotes",
    "refs/notes",
    "refs/replace",
    "worktrees",
];

/// Who may be the owner of a folder whose git is read by a caller.
fn may_be_owner(owner: u32, caller: u32) -> bool {
    caller == 0 || owner == caller || owner == 0
}

/// Whether a directory belongs to the folder's owner, and that is somebody whose git the caller reads.
pub(super) fn check_owner(directory: &Directory) -> Result<(), Refusal> {
    let refused = |reason| Err(Refusal::new(directory.path().to_owned(), reason));
    let (owner, caller) = (directory.owner(), rustix::process::geteuid().as_raw());
    match directory.stat() {
        Err(errno) => refused(Reason::Unreadable(errno)),
        Ok(stat) if stat.st_uid != owner => refused(Reason::Foreign {
            uid: stat.st_uid,
            owner,
        }),
        Ok(_) if !may_be_owner(owner, caller) => refused(Reason::Caller { owner, caller }),
        Ok(_) => Ok(()),
    }
}

/// The directory that a git directory has in common with the worktrees of its repository.
pub(super) fn common(git: &Directory) -> Result<Directory, Refusal> {
    let name = Path::new("commondir");
    git.vet(name, Expected::File)?;
    let refused = |reason| Refusal::new(git.path().join(name), reason);
    let line = git.read(name, LINE_BYTES);
    let Some(line) = line.map_err(|error| refused(Reason::of(&error)))? else {
        return Ok(git.clone());
    };
    let target = git
        .path()
        .join(OsStr::from_bytes(line.bytes.trim_ascii_end()));
    let real = target.canonicalize();
    let real = real.map_err(|_| refused(Reason::LeadsOut(target)))?;
    if real == git.path() {
        return Ok(git.clone());
    }
    Directory::open(&real, git.owner()).map_err(|errno| refused(Reason::Unreadable(errno)))
}

/// Whether all that is read of a repository is a plain file or directory of its own.
pub(super) fn check_layout(git: &Directory, common: &Directory) -> Result<(), Refusal> {
    check_owner(common)?;
    for name in GIT_FILES {
        git.vet(Path::new(name), Expected::File)?;
    }
    for name in COMMON_DIRECTORIES {
        // Where refs are in tables, `refs/heads` is a file.
        if name != "refs/heads" || has_refs_in_files(common) {
            common.vet(Path::new(name), Expected::Directory)?;
        }
    }
    for name in COMMON_FILES {
        common.vet(Path::new(name), Expected::File)?;
    }
    for directory in [git, common] {
        let listed = directory.list(Path::new("."), ENTRIES);
        let refused = |error| Refusal::new(directory.path().to_owned(), Reason::of(&error));
        for (name, _) in listed.map_err(refused)? {
            if name.as_bytes().starts_with(b"sharedindex.") {
                directory.vet(Path::new(&name), Expected::File)?;
            }
        }
    }
    Ok(())
}

fn has_refs_in_files(common: &Directory) -> bool {
    !matches!(common.look(Path::new("reftable")), Ok(Some(_)))
}

/// Whether a git directory is where it may be: below the folder, or it points back.
pub(super) fn check(site: &Site, common: &Directory, config: &Config) -> Result<(), Refusal> {
    let Site { tree, git, roots } = site;
    let below = |directory: &Directory| roots.iter().any(|root| directory.path().starts_with(root));
    let linked = git.path() != common.path();
    let leads_out = |from: &Path, to: &Directory| {
        Refusal::new(from.to_owned(), Reason::LeadsOut(to.path().to_owned()))
    };
    let dot_git = tree.path().join(".git");
    if !linked {
        let Some(worktree) = config.get("core", "worktree") else {
            return if below(git) {
                Ok(())
            } else {
                Err(leads_out(&dot_git, git))
            };
        };
        let worktree = git.path().join(OsStr::from_bytes(worktree));
        let real = worktree.canonicalize();
        return if real.is_ok_and(|real| real == tree.path()) {
            Ok(())
        } else {
            let reason = Reason::WorkTree(worktree);
            Err(Refusal::new(git.path().to_owned(), reason))
        };
    }
    if below(git) && below(common) {
        return Ok(());
    }
    // Git keeps those of a repository in it: a directory elsewhere can name any repository.
    if git.path().parent() != Some(&common.path().join("worktrees")) {
        return Err(leads_out(&git.path().join("commondir"), common));
    }
    if names_back(tree.path(), git) {
        Ok(())
    } else {
        Err(leads_out(&dot_git, git))
    }
}

/// Whether the entry of a linked worktree names the `.git` of this folder.
fn names_back(top: &Path, git: &Directory) -> bool {
    let line = git.read_if_usable(Path::new("gitdir"), LINE_BYTES);
    line.is_some_and(|line| {
        let named = git.path().join(OsStr::from_bytes(line.trim_ascii_end()));
        let folder = named.parent().and_then(|folder| folder.canonicalize().ok());
        named.file_name() == Some(OsStr::new(".git")) && folder.as_deref() == Some(top)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_the_caller_or_root_or_anybody_for_root() {
        for (owner, caller, may) in [
            (1000, 1000, true),
            (0, 1000, true),
            (0, 0, true),
            (1000, 0, true),
            (1001, 1000, false),
        ] {
            assert_eq!(may_be_owner(owner, caller), may, "{owner} {caller}");
        }
    }
}
