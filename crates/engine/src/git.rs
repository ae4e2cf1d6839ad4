//! A folder's git repository, as far as a sandbox needs it.
//!
//! Three questions are answered here, by our own small readers and without a git process:
//! which repository holds a folder (`discover`), what private `.git` directory stands in its place
//! inside (`build_private`), and which changed paths are ignored (`IgnoreRules`).
//!
//! ```text
//!   the user's folder            mask (host-owned lower layer)      inside
//!   ├── .git/   never written    ├── .git/  opaque, sanitised       ├── .git/   the mask's
//!   ├── lib/.git (submodule)     │   └── modules/lib/               ├── lib/.git → modules/lib
//!   └── src/                     └── lib/.git  gitfile              └── src/
//!                                objects: read-only mounts, named in info/alternates
//! ```
//!
//! INVARIANT: nothing in this module writes below the user's folder or git directory.
//! INVARIANT: the git program runs only for a sub-folder of a repository (`subfolder`) and to read
//! objects in packs (`lookup`), on a directory that we made, never on the user's.

mod classes;
mod config;
mod directory;
mod discover;
mod files;
mod ignored;
mod index;
mod index_file;
mod layers;
mod lookup;
mod nested;
mod objects;
mod patterns;
mod place;
mod private;
mod refs;
mod refusal;
mod repositories;
mod sanitise;
mod scratch;
mod split;
mod subfolder;
mod submodules;

use std::io;
use std::path::PathBuf;

pub use config::Config;
pub use discover::{
    Found, Repository, UserFiles, discover, discover_for, find, find_bare, find_for,
};
pub(crate) use files::open_beneath;
pub use ignored::IgnoreRules;
pub use index::{Index, IndexEntry, IndexStat};
pub use index_file::IndexError;
pub(crate) use lookup::Lookup;
pub use lookup::LookupError;
pub use nested::hide_git;
pub use objects::ObjectMount;
pub(crate) use objects::check_objects;
pub use private::{PrivateGit, build_private};
pub(crate) use refs::{NewBranch, RefTarget, branch_commit, head_commit, new_branch, parse_ref};
pub use refusal::Refusal;
use ringfence_model::ByteText;
use ringfence_model::changes::ObjectHash;
use ringfence_model::policy::glob::Globs;
pub(crate) use sanitise::{OURS, escape, line, line_endings};
pub(crate) use scratch::Scratch;
pub(crate) use submodules::is_safe;

use crate::workspace::is_hidden;

/// Why a repository could not be read, or its private directory not be made.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    #[error("could not read `{}`", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("`{}` is not a regular file", path.display())]
    ReadSpecial { path: PathBuf },
    #[error("`{}` is a second name of a file of uid {uid}", path.display())]
    ReadForeign { path: PathBuf, uid: u32 },
    #[error("`{}` is over the bound of {limit} bytes", path.display())]
    ReadTooLarge { path: PathBuf, limit: u64 },
    #[error("could not list `{}`", path.display())]
    List { path: PathBuf, source: io::Error },
    #[error("`{}` has more than {limit} entries", path.display())]
    ListTooLong { path: PathBuf, limit: usize },
    #[error("could not find the real path of `{}`", path.display())]
    Canonicalise { path: PathBuf, source: io::Error },
    #[error("could not open the layers of the workspace")]
    OpenLayers { source: io::Error },
    #[error("could not parse the git index `{}`", path.display())]
    ParseIndex { path: PathBuf, source: IndexError },
    #[error("could not write `{}`", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("could not create the directory `{}`", path.display())]
    CreateDirectory { path: PathBuf, source: io::Error },
    #[error("could not remove `{}`", path.display())]
    Remove { path: PathBuf, source: io::Error },
    #[error("could not mark `{}` opaque for overlayfs", path.display())]
    MarkOpaque { path: PathBuf, source: io::Error },
    #[error("could not hide `{}`", path.display())]
    Hide { path: PathBuf, source: io::Error },
}

/// For a person: why there is no git inside, where it is hidden itself or its objects would show what
/// is. `aliases` are hidden as other names of hidden files.
pub(crate) fn why_hidden(
    repo: Option<&Repository>,
    hidden: &Globs,
    aliases: &[ByteText],
) -> Result<Option<String>, GitError> {
    if is_hidden(hidden, b".git") {
        return Ok(Some(
            "git does not work inside: the policy hides `.git`".to_owned(),
        ));
    }
    let Some(repo) = repo.filter(|_| !hidden.is_empty()) else {
        return Ok(None);
    };
    let is_alias = |path: &[u8]| aliases.iter().any(|alias| alias.as_bytes() == path);
    let tracked = tracked_matching(repo, |path| is_hidden(hidden, path) || is_alias(path))?;
    Ok(tracked.map(|path| {
        let path = ByteText::from(&path[..]);
        format!("git does not work inside: `{path}` is hidden and tracked, or may hold what is")
    }))
}

/// A path of the index, relative to the folder, for which something holds; also one of which that
/// cannot be told, because it stands for a tree (a submodule, a sparse directory).
fn tracked_matching(
    repo: &Repository,
    holds: impl Fn(&[u8]) -> bool,
) -> Result<Option<Vec<u8>>, GitError> {
    let Some((index, _)) = Index::read(repo)? else {
        return Ok(None);
    };
    let below = |path: &[u8]| -> Option<Vec<u8>> {
        if repo.prefix.is_empty() {
            return Some(path.to_vec());
        }
        let rest = path.strip_prefix(&repo.prefix[..])?;
        Some(rest.strip_prefix(b"/")?.to_vec())
    };
    let unseen = |entry: &IndexEntry<'_>| entry.is_gitlink() || entry.path.ends_with(b"/");
    Ok(index
        .entries()
        .filter_map(|entry| Some((below(entry.path)?, unseen(&entry))))
        .find(|(path, unseen)| *unseen || holds(path))
        .map(|(path, _)| path))
}
