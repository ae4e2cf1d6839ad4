//! Private git directories for the checked-out submodules of a repository.
//!
//! Each is built at `.git/modules/<name>` of its parent's private directory, and a gitfile in the
//! submodule's folder names it, whether outside there is a gitfile or (old style) a directory.
//!
//! HOSTILE: a gitlink's path comes from the index and a gitfile may name any directory. A git
//! directory is taken only from the submodule's own folder or from below its parent's git
//! directory; any other is hidden.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ringfence_model::ByteText;
use rustix::fs::FileType;

use super::discover::{self, DotGit, Found, Site};
use super::files;
use super::index::Index;
use super::private::{Builder, Built, path_of};
use super::refusal::{Reason, Refusal};
use super::{GitError, Repository, nested};

/// BOUND: submodules within submodules.
const DEPTH: usize = 8;
/// BOUND: submodules of one repository that are looked at.
pub(super) const SUBMODULES: usize = 4096;

/// The repository whose submodules are built.
#[derive(Debug)]
pub(super) struct Parent<'a> {
    pub repo: &'a Repository,
    /// Its private directory, relative to the mask; `None` if there is none.
    pub private: Option<PathBuf>,
    /// Its work tree relative to the folder.
    pub at: Vec<u8>,
}

/// Builds all submodules of a repository that lie below `prefix` of its work tree.
pub(super) fn build(
    builder: &mut Builder,
    parent: &Parent<'_>,
    index: &Index,
    prefix: &[u8],
    depth: usize,
) -> Result<(), GitError> {
    let skip = if prefix.is_empty() {
        0
    } else {
        prefix.len() + 1
    };
    let gitlinks = index.below(prefix).filter(|entry| entry.is_gitlink());
    for entry in gitlinks.take(SUBMODULES) {
        let path = &entry.path[skip..];
        if !is_safe(path) {
            continue;
        }
        let at = if parent.at.is_empty() {
            path.to_vec()
        } else {
            [&parent.at[..], b"/", path].concat()
        };
        let dot_git = path_of(&at).join(".git");
        match kind(builder, &dot_git)? {
            None => continue,
            Some(FileType::Directory | FileType::RegularFile) => {
                if depth < DEPTH && build_one(builder, parent, path, &at, depth)? {
                    continue;
                }
            }
            Some(_) => {}
        }
        nested::hide(builder, &dot_git)?;
        let name = ByteText(at);
        builder
            .notes
            .push(format!("git does not work inside the submodule `{name}`"));
    }
    Ok(())
}

/// What is at a path below the folder, no link crossed.
fn kind(builder: &Builder, path: &Path) -> Result<Option<FileType>, GitError> {
    let folder = files::open_directory(&builder.folder)?;
    Ok(files::kind_beneath(&folder, path))
}

fn build_one(
    builder: &mut Builder,
    parent: &Parent<'_>,
    path: &[u8],
    at: &[u8],
    depth: usize,
) -> Result<bool, GitError> {
    let Some(parent_private) = &parent.private else {
        return Ok(false);
    };
    let repo = match repository(parent.repo, &builder.folder.join(path_of(at))) {
        Found::Repository(repo) => *repo,
        Found::Nothing => return Ok(false),
        Found::Refused(refusal) => {
            builder.notes.push(refusal.to_string());
            return Ok(false);
        }
    };
    let private = parent_private
        .join("modules")
        .join(name(parent.repo, &repo, path));
    if builder.mask.join(&private).join("HEAD").exists() {
        return Ok(false);
    }
    // One broken submodule is no reason to stop; it is hidden.
    let Ok(index) = Index::read(&repo) else {
        return Ok(false);
    };
    let worktree = [&up(&private)[..], at].concat();
    let mounted = builder.objects.mounts.len();
    match builder.repository(&repo, &private, Some(&worktree), index.as_ref())? {
        Built::Yes => {}
        Built::No(reason) => {
            builder.notes.push(reason);
            builder.objects.truncate(mounted);
            builder.remove(&private)?;
            return Ok(false);
        }
    }
    let relative = path_of(at);
    files::create_dirs(&builder.mask.join(&relative))?;
    let target = private.as_os_str().as_bytes();
    let gitfile = [b"gitdir: ", &up(&relative)[..], target, b"\n"].concat();
    files::write(&builder.mask.join(&relative).join(".git"), &gitfile)?;
    files::mirror_dirs(&builder.folder, &builder.mask, &relative)?;
    if let Some((index, _)) = &index {
        let parent = Parent {
            repo: &repo,
            private: Some(private),
            at: at.to_vec(),
        };
        build(builder, &parent, index, b"", depth + 1)?;
    }
    Ok(true)
}

/// The repository of a submodule, if its git directory is where it belongs.
pub(super) fn repository(parent: &Repository, folder: &Path) -> Found {
    let Ok(relative) = folder.strip_prefix(&parent.top) else {
        return Found::Nothing;
    };
    let Ok(tree) = parent.tree.below(relative) else {
        return Found::Nothing;
    };
    let git = match discover::resolve_dot_git(&tree) {
        DotGit::Directory(git) => git,
        DotGit::Refused(refusal) => return Found::Refused(refusal),
        DotGit::Broken | DotGit::Absent => return Found::Nothing,
    };
    let roots = vec![
        folder.to_owned(),
        parent.git_dir.clone(),
        parent.common_dir.clone(),
    ];
    // One that points back is a repository of its own, with which the parent has nothing to do.
    if !roots.iter().any(|root| git.path().starts_with(root)) {
        let reason = Reason::LeadsOut(git.path().to_owned());
        return Found::Refused(Refusal::new(folder.join(".git"), reason));
    }
    let site = Site { tree, git, roots };
    discover::open(site, Vec::new(), parent.user.clone()).unwrap_or(Found::Nothing)
}

/// The name that git keeps the submodule under; its path where there is none.
fn name(parent: &Repository, repo: &Repository, path: &[u8]) -> PathBuf {
    [&parent.git_dir, &parent.common_dir]
        .into_iter()
        .find_map(|dir| repo.git_dir.strip_prefix(dir.join("modules")).ok())
        .filter(|name| !name.as_os_str().is_empty())
        .map_or_else(|| path_of(path), Path::to_owned)
}

/// As many `../` as lead from a relative path to where it starts.
fn up(path: &Path) -> Vec<u8> {
    b"../".repeat(path.components().count())
}

/// True for a path that stays below its directory and touches no git directory.
pub(crate) fn is_safe(path: &[u8]) -> bool {
    path.split(|&b| b == b'/').all(|part| {
        !part.is_empty()
            && part != b"."
            && part != b".."
            && !part.eq_ignore_ascii_case(b".git")
            && !part.iter().any(|b| b.is_ascii_control())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_gitlinks_are_checked() {
        for (path, safe) in [
            ("lib", true),
            ("a/b c", true),
            ("../x", false),
            ("a/../b", false),
            ("/etc", false),
            ("a/.GIT/b", false),
            ("", false),
            ("a\nb", false),
        ] {
            assert_eq!(is_safe(path.as_bytes()), safe, "{path}");
        }
    }
}
