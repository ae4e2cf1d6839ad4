//! The private git directory that stands inside in place of the user's.
//!
//! Built below the mask, a host-owned directory that becomes the overlay layer above the user's
//! folder. It has the user's refs and index and none of the user's settings but a short list; its
//! object store is empty and borrows from read-only mounts.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::directory::Directory;
use super::files::{self, Links};
use super::index::{Index, IndexFiles};
use super::objects::{ObjectMount, ObjectMounts};
use super::refs::{self, Refs};
use super::sanitise::{self, Names};
use super::{GitError, ObjectHash, Repository, nested, split, subfolder, submodules};

/// BOUND: `info/exclude` and the like are written by hand.
pub(super) const RULES_BYTES: u64 = 1 << 20;
/// BOUND: one line for each commit where history was cut.
const SHALLOW_BYTES: u64 = 16 << 20;

/// What was built, and what the launcher must do about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrivateGit {
    /// There is a `.git` inside.
    pub present: bool,
    /// Object directories of the host, each to be mounted read-only at its place inside.
    pub object_mounts: Vec<ObjectMount>,
    /// For a person: what does not work inside, and why.
    pub notes: Vec<String>,
}

/// Builds the private git directory at `mask/.git`, those of checked-out submodules, and hides
/// the git directories of nested repositories.
pub fn build_private(
    repo: &Repository,
    mask: &Path,
    inside_objects: &str,
) -> Result<PrivateGit, GitError> {
    let mut builder = Builder {
        folder: repo.folder(),
        mask: mask.to_owned(),
        objects: ObjectMounts::new(inside_objects),
        notes: Vec::new(),
    };
    let index = Index::read(repo)?;
    let built = if repo.prefix.is_empty() {
        builder.repository(repo, Path::new(".git"), None, index.as_ref())?
    } else {
        subfolder::build(&mut builder, repo, index.as_ref())?
    };
    let present = match built {
        Built::Yes => true,
        Built::No(reason) => {
            // Nobody borrows from them.
            builder.objects.truncate(0);
            builder
                .notes
                .push(format!("git does not work inside: {reason}"));
            builder.remove(Path::new(".git"))?;
            false
        }
    };
    if let Some((index, _)) = &index {
        let top = submodules::Parent {
            repo,
            private: present.then(|| ".git".into()),
            at: Vec::new(),
        };
        submodules::build(&mut builder, &top, index, &repo.prefix, 0)?;
    }
    nested::hide_known(&mut builder, repo, index.as_ref().map(|(index, _)| index))?;
    Ok(PrivateGit {
        present,
        object_mounts: builder.objects.mounts,
        notes: builder.notes,
    })
}

/// Whether a private directory could be built, and if not, why: for a note.
#[derive(Debug)]
pub(super) enum Built {
    Yes,
    No(String),
}

/// What is gathered while the mask is filled.
#[derive(Debug)]
pub(super) struct Builder {
    /// The user's folder that the mask lies over.
    pub folder: PathBuf,
    pub mask: PathBuf,
    pub objects: ObjectMounts,
    pub notes: Vec<String>,
}

impl Builder {
    /// Builds a private git directory of a whole repository at a path below the mask.
    pub(super) fn repository(
        &mut self,
        repo: &Repository,
        at: &Path,
        worktree: Option<&[u8]>,
        index: Option<&(Index, IndexFiles)>,
    ) -> Result<Built, GitError> {
        if let Some(reason) = &repo.unsupported {
            return Ok(Built::No(reason.clone()));
        }
        if repo.reftable && repo.is_linked() {
            return Ok(Built::No(
                "it is a linked worktree of reftable format".to_owned(),
            ));
        }
        let places = match self.objects.add(repo, &mut self.notes) {
            Ok(places) => places,
            Err(refusal) => return Ok(Built::No(refusal.to_string())),
        };
        let private = self.start(at)?;
        if repo.reftable {
            if refs::copy_reftable(repo, &private)?.is_none() {
                return Ok(Built::No("its reftable could not be read".to_owned()));
            }
        } else {
            let Some(refs) = Refs::read(repo)? else {
                return Ok(Built::No("its `HEAD` could not be read".to_owned()));
            };
            refs.write(&private)?;
        }
        files::write(
            &private.join("config"),
            &sanitise::config_text(repo, worktree, Names::Carry),
        )?;
        files::write(
            &private.join("objects/info/alternates"),
            &self.objects.inside_text(&places),
        )?;
        files::write(&private.join("info/exclude"), &excludes(repo))?;
        copy_rules(&repo.common, "info/attributes", &private)?;
        copy_rules(&repo.git, "info/sparse-checkout", &private)?;
        copy_ids(&repo.common, "shallow", &private, repo.hash)?;
        if let Some(index) = index {
            write_index(&private, index, repo.hash)?;
        }
        self.under_way(repo, &private)?;
        self.remarks(repo);
        Ok(Built::Yes)
    }

    /// Creates the directories that every git directory has. The outermost is opaque: nothing of
    /// the user's own shines through.
    pub(super) fn start(&self, at: &Path) -> Result<PathBuf, GitError> {
        let private = self.mask.join(at);
        for dir in ["objects/info", "objects/pack", "info", "refs"] {
            files::create_dirs(&private.join(dir))?;
        }
        files::mark_opaque(&private)?;
        Ok(private)
    }

    /// Takes back what was built of a private directory.
    pub(super) fn remove(&self, at: &Path) -> Result<(), GitError> {
        let path = self.mask.join(at);
        match std::fs::remove_dir_all(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(GitError::Remove { path, source })
            }
            _ => Ok(()),
        }
    }

    /// A merge or cherry-pick that waits for its commit can be ended inside; a rebase cannot.
    fn under_way(&mut self, repo: &Repository, private: &Path) -> Result<(), GitError> {
        for name in ["ORIG_HEAD", "MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD"] {
            copy_ids(&repo.git, name, private, repo.hash)?;
        }
        if private.join("MERGE_HEAD").exists() {
            for name in ["MERGE_MSG", "MERGE_MODE"] {
                copy_rules(&repo.git, name, private)?;
            }
        }
        if ["rebase-merge", "rebase-apply"]
            .iter()
            .any(|name| matches!(repo.git.look(Path::new(name)), Ok(Some(_))))
        {
            self.notes
                .push("a rebase is under way outside; inside there is none".to_owned());
        }
        Ok(())
    }

    fn remarks(&mut self, repo: &Repository) {
        let filters = sanitise::filters(repo);
        if !filters.is_empty() {
            let names = filters.join("`, `");
            self.notes
                .push(format!("content filters do not run inside: `{names}`"));
        }
        let partial = repo.config.get("extensions", "partialclone").is_some()
            || repo
                .config
                .settings()
                .iter()
                .any(|s| s.section == b"remote" && s.key == b"promisor");
        if partial {
            self.notes.push(
                "a partial clone: objects that were never fetched are missing inside".to_owned(),
            );
        }
    }
}

/// The user's own ignore rules, then the repository's, which win.
///
/// Only the file that the *user's* settings name is copied: a repository could name any.
pub(super) fn excludes(repo: &Repository) -> Vec<u8> {
    let mut out = Vec::new();
    let user = repo.user.excludes_file();
    let user = user.and_then(|path| files::read_if_usable(&path, RULES_BYTES, Links::Follow));
    let own = repo
        .common
        .read_if_usable(Path::new("info/exclude"), RULES_BYTES);
    for rules in user.into_iter().chain(own) {
        out.extend_from_slice(&rules);
        out.push(b'\n');
    }
    out
}

/// Writes an index as the user's, with its time: git takes an entry that is not older than the
/// index for one that may have changed unseen.
fn write_index(
    private: &Path,
    (index, parts): &(Index, IndexFiles),
    hash: ObjectHash,
) -> Result<(), GitError> {
    let path = private.join("index");
    let bytes = index.main_bytes(parts);
    if parts.host_extensions.is_empty() {
        files::write_dated(&path, bytes, parts.mtime)?;
    } else {
        let bytes = split::without(bytes, &parts.host_extensions, hash);
        files::write_dated(&path, &bytes, parts.mtime)?;
    }
    match &parts.base {
        Some((name, shared)) => {
            files::write_dated(&private.join(name), &shared.bytes, shared.mtime)
        }
        None => Ok(()),
    }
}

fn copy_rules(from: &Directory, name: &str, private: &Path) -> Result<(), GitError> {
    match from.read_if_usable(Path::new(name), RULES_BYTES) {
        Some(bytes) => files::write(&private.join(name), &bytes),
        None => Ok(()),
    }
}

/// Copies a file that is a list of object ids, and only those.
pub(super) fn copy_ids(
    from: &Directory,
    name: &str,
    private: &Path,
    hash: ObjectHash,
) -> Result<(), GitError> {
    let Some(contents) = from.read(Path::new(name), SHALLOW_BYTES)? else {
        return Ok(());
    };
    let mut out = Vec::with_capacity(contents.bytes.len());
    for line in contents
        .bytes
        .split(|&b| b == b'\n')
        .filter(|line| hash.is_oid(line))
    {
        out.extend_from_slice(line);
        out.push(b'\n');
    }
    if out.is_empty() {
        Ok(())
    } else {
        files::write(&private.join(name), &out)
    }
}

/// A path below the mask or the folder from bytes that were checked.
pub(super) fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}
