//! Git directories inside the folder that are not the repository's own: they are hidden.
//!
//! A nested repository's configuration may hold credentials, and git runs what it says. Looked at
//! is what is cheap to know: the folder itself, its first level, the directories that the index
//! knows down to the second level, and the linked worktrees that the repository lists. What lies
//! deeper and is unknown to the index stays visible, though never writable for real.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ringfence_model::ByteText;

use super::discover;
use super::files::{self, Links};
use super::index::Index;
use super::objects::ObjectMounts;
use super::private::Builder;
use super::{GitError, Repository};

/// BOUND: directories of the first level, and linked worktrees, that are looked at.
const LISTED: usize = 4096;
/// BOUND: directories of the index that are looked at; each costs one `stat`.
const KNOWN: usize = 512;
const LINE_BYTES: u64 = 16 << 10;

/// Hides the git directory of a folder without a usable repository, and those of its first level.
/// Gives notes for a person.
pub fn hide_git(folder: &Path, mask: &Path) -> Result<Vec<String>, GitError> {
    let mut builder = Builder {
        folder: files::canonical(folder)?,
        mask: mask.to_owned(),
        objects: ObjectMounts::new(""),
        notes: Vec::new(),
    };
    hide_own(&mut builder)?;
    hide_first_level(&mut builder)?;
    Ok(builder.notes)
}

/// Hides what is known of, beside the repository's own `.git` and its submodules.
pub(super) fn hide_known(
    builder: &mut Builder,
    repo: &Repository,
    index: Option<&Index>,
) -> Result<(), GitError> {
    if std::fs::symlink_metadata(builder.mask.join(".git")).is_err() {
        hide_own(builder)?;
    }
    hide_directory(builder, &repo.git_dir)?;
    hide_directory(builder, &repo.common_dir)?;
    hide_first_level(builder)?;
    for path in linked_worktrees(repo) {
        if let Ok(relative) = path.strip_prefix(&builder.folder) {
            hide_repository(builder, relative)?;
        }
    }
    let Some(index) = index else { return Ok(()) };
    for dir in directories(index, &repo.prefix) {
        hide_repository(builder, Path::new(OsStr::from_bytes(dir)))?;
    }
    Ok(())
}

/// Hides one name of the folder with a whiteout in the mask.
pub(super) fn hide(builder: &Builder, relative: &Path) -> Result<(), GitError> {
    let parent = relative.parent().unwrap_or(Path::new(""));
    files::create_dirs(&builder.mask.join(parent))?;
    files::white_out(&builder.mask.join(relative))?;
    files::mirror_dirs(&builder.folder, &builder.mask, parent)
}

/// The folder's own `.git`, and the directory within the folder that it may name.
fn hide_own(builder: &mut Builder) -> Result<(), GitError> {
    let dot_git = builder.folder.join(".git");
    if std::fs::symlink_metadata(&dot_git).is_err() {
        return Ok(());
    }
    hide(builder, Path::new(".git"))?;
    let line = files::read_if_usable(&dot_git, LINE_BYTES, Links::Refuse);
    let target = line.as_deref().and_then(discover::gitfile_target);
    match target.and_then(|target| builder.folder.join(target).canonicalize().ok()) {
        Some(target) => hide_directory(builder, &target),
        None => Ok(()),
    }
}

/// A git directory that lies in the folder under another name than `.git`.
fn hide_directory(builder: &mut Builder, dir: &Path) -> Result<(), GitError> {
    let Ok(relative) = dir.strip_prefix(&builder.folder) else {
        return Ok(());
    };
    if relative.as_os_str().is_empty() || relative.starts_with(".git") {
        return Ok(());
    }
    let relative = relative.to_owned();
    hide(builder, &relative)?;
    note(builder, "the git directory", &relative);
    Ok(())
}

fn hide_first_level(builder: &mut Builder) -> Result<(), GitError> {
    let folder = builder.folder.clone();
    let entries = std::fs::read_dir(&folder).map_err(|source| GitError::List {
        path: folder.clone(),
        source,
    })?;
    for entry in entries.take(LISTED).flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) && entry.file_name() != ".git" {
            hide_repository(builder, Path::new(&entry.file_name()))?;
        }
    }
    Ok(())
}

/// Hides the `.git` of a directory of the folder, unless the mask has one for it.
fn hide_repository(builder: &mut Builder, dir: &Path) -> Result<(), GitError> {
    let dot_git = dir.join(".git");
    if dir.as_os_str().is_empty()
        || std::fs::symlink_metadata(builder.folder.join(&dot_git)).is_err()
        || std::fs::symlink_metadata(builder.mask.join(&dot_git)).is_ok()
    {
        return Ok(());
    }
    let folder = files::open_directory(&builder.folder)?;
    if files::kind_beneath(&folder, &dot_git).is_none()
        && !std::fs::symlink_metadata(builder.folder.join(&dot_git)).is_ok_and(|m| m.is_symlink())
    {
        // Reached through a link only: the real place is not in this directory.
        return Ok(());
    }
    hide(builder, &dot_git)?;
    note(builder, "the nested repository", dir);
    Ok(())
}

fn note(builder: &mut Builder, what: &str, path: &Path) {
    let name = ByteText::from(path.as_os_str().as_bytes());
    builder
        .notes
        .push(format!("{what} `{name}` is hidden inside"));
}

/// Work trees that the repository knows of, by their `gitdir` files.
fn linked_worktrees(repo: &Repository) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(repo.common_dir.join("worktrees")) else {
        return Vec::new();
    };
    entries
        .take(LISTED)
        .flatten()
        .filter_map(|entry| {
            let line =
                files::read_if_usable(&entry.path().join("gitdir"), LINE_BYTES, Links::Refuse)?;
            let path = entry.path().join(OsStr::from_bytes(line.trim_ascii_end()));
            path.parent()?.canonicalize().ok()
        })
        .collect()
}

/// The directories of the first two levels that have tracked files, without the prefix.
fn directories<'a>(index: &'a Index, prefix: &[u8]) -> BTreeSet<&'a [u8]> {
    let skip = if prefix.is_empty() {
        0
    } else {
        prefix.len() + 1
    };
    let mut found: BTreeSet<&[u8]> = BTreeSet::new();
    let mut last: &[u8] = b"";
    for entry in index.below(prefix).filter(|entry| !entry.is_gitlink()) {
        let path = &entry.path[skip..];
        let mut slashes = path
            .iter()
            .enumerate()
            .filter(|&(_, &b)| b == b'/')
            .map(|(at, _)| at);
        let Some(first) = slashes.next() else {
            continue;
        };
        let dir = &path[..slashes.next().unwrap_or(first)];
        if dir == last || !super::submodules::is_safe(dir) {
            continue;
        }
        last = dir;
        found.insert(dir);
        if found.len() == KNOWN {
            break;
        }
    }
    found
}
