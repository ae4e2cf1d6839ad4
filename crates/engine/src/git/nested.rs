//! Git directories inside the folder that are not the repository's own: they are hidden, at any depth.
//!
//! A nested repository's configuration may hold credentials, its objects what is hidden by name, and git
//! runs what it says. Hidden is what is there when the run starts; what appears in the folder later is seen,
//! as all of its changes are.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ringfence_model::ByteText;

use super::files::{self, Links};
use super::index::Index;
use super::objects::ObjectMounts;
use super::private::Builder;
use super::repositories::{self, Nested};
use super::{GitError, Repository, discover};

const LINE_BYTES: u64 = 16 << 10;
/// BOUND: notes are for a person; more of a kind are counted only.
const NOTES: usize = 5;

/// Hides the git directory of a folder without a usable repository, and those below it. Gives notes
/// for a person.
pub fn hide_git(folder: &Path, mask: &Path) -> Result<Vec<String>, GitError> {
    let mut builder = Builder {
        folder: files::canonical(folder)?,
        mask: mask.to_owned(),
        objects: ObjectMounts::new(""),
        notes: Vec::new(),
    };
    hide_own(&mut builder)?;
    hide_nested(&mut builder, |_| false)?;
    Ok(builder.notes)
}

/// Hides what is below the folder, beside the repository's own `.git` and its submodules.
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
    hide_nested(builder, |path| {
        let path = path.as_os_str().as_bytes();
        let path = match &repo.prefix[..] {
            [] => path.to_vec(),
            prefix => [prefix, b"/", path].concat(),
        };
        index.is_some_and(|index| index.has_tracked_below(&path))
    })
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
    let Ok(metadata) = std::fs::symlink_metadata(&dot_git) else {
        return Ok(());
    };
    hide(builder, Path::new(".git"))?;
    if metadata.is_symlink() {
        return match dot_git.canonicalize() {
            Ok(target) => hide_directory(builder, &target),
            Err(_) => Ok(()),
        };
    }
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
    note(builder, "the git directory", &relative, "is hidden inside");
    Ok(())
}

/// Hides all git directories below the folder, unless the mask has one in the place of it.
/// `is_tracked`: whether the repository has files below a directory.
fn hide_nested(builder: &mut Builder, is_tracked: impl Fn(&Path) -> bool) -> Result<(), GitError> {
    let folder = files::open_directory(&builder.folder)?;
    let (mut repositories, mut bare, mut closed) = (Vec::new(), Vec::new(), Vec::new());
    for (path, kind) in repositories::find(&folder) {
        // A repository that is committed, as a test may have it, can be read from the objects anyway.
        if is_covered(builder, &path) || (kind == Nested::Bare && is_tracked(&path)) {
            continue;
        }
        hide(builder, &path)?;
        match kind {
            Nested::DotGit => {
                let tree = path.parent().filter(|tree| !tree.as_os_str().is_empty());
                repositories.push(tree.unwrap_or(&path).to_owned());
            }
            Nested::Bare => bare.push(path),
            Nested::Closed => closed.push(path),
        }
    }
    for (what, why, paths) in [
        ("the nested repository", "is hidden inside", repositories),
        ("the bare repository", "is hidden inside", bare),
        (
            "the directory",
            "cannot be listed and is hidden inside",
            closed,
        ),
    ] {
        for path in paths.iter().take(NOTES) {
            note(builder, what, path, why);
        }
        if let Some(more) = paths.len().checked_sub(NOTES).filter(|more| *more > 0) {
            let note = format!("{what} `…` {why}: {more} more of them");
            builder.notes.push(note);
        }
    }
    Ok(())
}

/// Whether the mask has something at a path, or no directory above it.
fn is_covered(builder: &Builder, path: &Path) -> bool {
    let at = |path: &Path| std::fs::symlink_metadata(builder.mask.join(path)).ok();
    at(path).is_some()
        || path
            .ancestors()
            .skip(1)
            .any(|above| at(above).is_some_and(|metadata| !metadata.is_dir()))
}

fn note(builder: &mut Builder, what: &str, path: &Path, why: &str) {
    let name = ByteText::from(path.as_os_str().as_bytes());
    builder.notes.push(format!("{what} `{name}` {why}"));
}
