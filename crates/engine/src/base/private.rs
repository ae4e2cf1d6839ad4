//! The private `.git` of a base, as it is seen inside.
//!
//! It has refs, an index that fits the files, and settings of ours; its objects are read from mounts
//! of the mirrors. Nothing in it names a path of the host.

use std::path::{Path, PathBuf};

use ringfence_model::changes::ObjectHash;

use super::error::access;
use super::tree::{Entry, index_bytes};
use super::{BaseError, OBJECTS_INSIDE, files};
use crate::git;
use crate::mirror::{Git, MirrorError, Resolved};
use crate::source::Source;

/// Files are the bytes that the repository holds; git inside must not take them for anything else.
const ATTRIBUTES: &[u8] = b"* -ident -filter -working-tree-encoding\n";

/// A private git directory that is to be written.
#[derive(Debug)]
pub(super) struct Private<'a> {
    pub git_dir: PathBuf,
    pub resolved: &'a Resolved,
    pub hash: ObjectHash,
    /// The number of its object directory among the mounts.
    pub place: usize,
    /// For a submodule: where its work tree is, seen from the git directory.
    pub worktree: Option<String>,
    /// More settings, as text.
    pub settings: Vec<u8>,
    pub entries: &'a [Entry],
    /// When the index was last written: later than every file in it.
    pub index_seconds: i64,
}

impl Private<'_> {
    /// Writes everything into `git_dir`, which is there.
    pub fn write(&self) -> Result<(), BaseError> {
        let dir = &self.git_dir;
        start(dir)?;
        let alternates = format!("{OBJECTS_INSIDE}/{}\n", self.place);
        files::write(&dir.join("objects/info/alternates"), alternates.as_bytes())?;
        files::write(&dir.join("info/attributes"), ATTRIBUTES)?;
        files::write(&dir.join("config"), &self.config())?;
        let head = match &self.resolved.branch {
            Some(branch) => format!("ref: refs/heads/{branch}\n"),
            None => format!("{}\n", self.resolved.commit),
        };
        files::write(&dir.join("HEAD"), head.as_bytes())?;
        self.write_refs()?;
        let shallow = self.resolved.mirror.path.join("shallow");
        match std::fs::read(&shallow) {
            Ok(bytes) => files::write(&dir.join("shallow"), &bytes)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(access("read", shallow)(error)),
        }
        write_index(dir, self.entries, self.hash, self.index_seconds)
    }

    /// The remote's address, where it is not on this host.
    fn url(&self) -> Option<&str> {
        match &self.resolved.mirror.source {
            source if source.is_local() => None,
            Source::Url(url) => Some(url),
            Source::Path(_) => None,
        }
    }

    fn config(&self) -> Vec<u8> {
        let mut out = config_start(self.hash, self.worktree.as_deref());
        if let Some(url) = self.url() {
            out.extend_from_slice(b"[remote \"origin\"]\n");
            git::line(&mut out, "url", url.as_bytes());
            git::line(&mut out, "fetch", b"+refs/heads/*:refs/remotes/origin/*");
            if let Some(branch) = &self.resolved.branch {
                section(&mut out, "branch", branch.as_bytes());
                git::line(&mut out, "remote", b"origin");
                git::line(&mut out, "merge", format!("refs/heads/{branch}").as_bytes());
            }
        }
        out.extend_from_slice(&self.settings);
        out
    }

    /// Branches of a remote are its branches; those of a folder of this host are one's own.
    fn write_refs(&self) -> Result<(), BaseError> {
        let mirror = &self.resolved.mirror.path;
        let listed = Git::local()
            .at(mirror)
            .args(["for-each-ref", "refs/heads", "refs/tags"])
            .arg("--format=%(objectname) %(refname) %(*objectname)")
            .quiet()
            .map_err(|error| MirrorError::local("list the refs", mirror.clone(), error))?;
        let own = self.url().is_none();
        let mut refs = Vec::new();
        let mut remote_head = None;
        for line in listed.split(|&b| b == b'\n') {
            let mut words = line.split(|&b| b == b' ');
            let (Some(id), Some(name)) = (words.next(), words.next()) else {
                continue;
            };
            let peeled = words.next().unwrap_or_default();
            let name = match name.strip_prefix(b"refs/heads/") {
                Some(branch) if !own => [b"refs/remotes/origin/", branch].concat(),
                _ => name.to_vec(),
            };
            refs.push((name, id.to_vec(), peeled.to_vec()));
        }
        if let Some(branch) = &self.resolved.branch {
            // It may have moved on since.
            let name = format!("refs/heads/{branch}").into_bytes();
            refs.retain(|(other, ..)| *other != name);
            refs.push((name, self.resolved.commit.clone().into_bytes(), Vec::new()));
        }
        refs.sort();
        if !own {
            remote_head = head_of(mirror)
                .map(|branch| format!("refs/remotes/origin/{branch}"))
                .filter(|name| refs.iter().any(|(other, ..)| other == name.as_bytes()));
        }
        let mut out = b"# pack-refs with: peeled fully-peeled sorted \n".to_vec();
        for (name, id, peeled) in &refs {
            out.extend_from_slice(&[id, &b" "[..], name, b"\n"].concat());
            if !peeled.is_empty() {
                out.extend_from_slice(&[b"^", &peeled[..], b"\n"].concat());
            }
        }
        files::write(&self.git_dir.join("packed-refs"), &out)?;
        if let Some(name) = remote_head {
            let dir = files::make_directories(&self.git_dir, Path::new("refs/remotes/origin"))?;
            files::write(&dir.join("HEAD"), format!("ref: {name}\n").as_bytes())?;
        }
        Ok(())
    }
}

/// The branch that a mirror's `HEAD` names.
fn head_of(mirror: &Path) -> Option<String> {
    let head = std::fs::read_to_string(mirror.join("HEAD")).ok()?;
    let branch = head.trim_end().strip_prefix("ref: refs/heads/")?;
    Some(branch.to_owned())
}

/// The directories that every git directory has.
pub(super) fn start(dir: &Path) -> Result<(), BaseError> {
    files::make_directory(dir, 0o755)?;
    for below in [
        "objects/info",
        "objects/pack",
        "info",
        "refs/heads",
        "refs/tags",
    ] {
        files::make_directories(dir, Path::new(below))?;
    }
    Ok(())
}

/// The settings that every private git directory has.
pub(super) fn config_start(hash: ObjectHash, worktree: Option<&str>) -> Vec<u8> {
    let mut out = b"[core]\n".to_vec();
    let extended = hash == ObjectHash::Sha256;
    let version: &[u8] = if extended { b"1" } else { b"0" };
    git::line(&mut out, "repositoryformatversion", version);
    git::line(&mut out, "filemode", b"true");
    git::line(&mut out, "logallrefupdates", b"true");
    if let Some(worktree) = worktree {
        git::line(&mut out, "worktree", worktree.as_bytes());
    }
    if extended {
        out.extend_from_slice(b"[extensions]\n");
        git::line(&mut out, "objectformat", hash.name().as_bytes());
    }
    out.extend_from_slice(git::OURS.as_bytes());
    // Listing a directory through an overlay is slow; one that did not change is not listed again.
    out.extend_from_slice(b"[core]\n");
    git::line(&mut out, "untrackedCache", b"true");
    out
}

/// `[name "of"]`.
pub(super) fn section(out: &mut Vec<u8>, name: &str, of: &[u8]) {
    out.extend_from_slice(format!("[{name} \"").as_bytes());
    git::escape(out, of);
    out.extend_from_slice(b"\"]\n");
}

/// Writes an index with a time that is later than every file's in it: an entry as new as the index
/// itself would make git read the file.
pub(super) fn write_index(
    git_dir: &Path,
    entries: &[Entry],
    hash: ObjectHash,
    seconds: i64,
) -> Result<(), BaseError> {
    let path = git_dir.join("index");
    files::write(&path, &index_bytes(entries, hash))?;
    files::set_mtime(&path, seconds)
}
