//! The mask of a sandbox that lasts: a layer of ours between its base and all that it writes.
//!
//! ```text
//!   top, layers    what was written inside
//!   mask           whiteouts of what is hidden, and what areas are mounted on
//!   base           shared with other sandboxes
//! ```
//!
//! It follows from the base and the policy alone, and neither ever changes: it is made once, at the
//! first need, and a fork makes its own.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use ringfence_jail::identity::Identity;
use ringfence_jail::launch::identity_for;
use ringfence_jail::plan::Area;
use ringfence_model::ByteText;
use ringfence_model::policy::Files;

use super::FileRules;
use crate::base::Base;
use crate::changes::remove_tree;
use crate::error::Error;
use crate::git;
use crate::workspace::scan;

/// Its name in the directory of its sandbox.
const NAME: &str = "mask";
/// Its name while it is made.
const MAKING: &str = "mask.making";
const WORKSPACE: &str = "workspace";

/// A mask that is there, or none where none is needed.
#[derive(Debug, Default)]
pub(crate) struct Mask {
    pub layer: Option<PathBuf>,
    pub areas: Vec<Area>,
    /// The history is not seen: it holds what is hidden.
    pub hides_git: bool,
    /// For a person, when it was made.
    pub notes: Vec<String>,
}

/// The mask of the sandbox in `directory`, made where it is not there yet. `aliases` are paths that
/// are other names of hidden files.
pub(crate) fn ensure(
    directory: &Path,
    base: &Base,
    files: &Files,
    aliases: &[ByteText],
) -> Result<Mask, Error> {
    let rules = FileRules::of(files)?;
    if !rules.needs_mask() {
        return Ok(Mask::default());
    }
    let (layer, tree) = (directory.join(NAME), base.workspace());
    let mut notes = Vec::new();
    if !layer.is_dir() {
        let making = directory.join(MAKING);
        let parent = made("open", directory, File::open(directory))?;
        remove_tree(parent.as_fd(), MAKING.as_bytes())?;
        notes = make(&making, &tree, &rules, aliases)?;
        made("make", &layer, fs::rename(&making, &layer))?;
    }
    let inner = layer.join(WORKSPACE);
    Ok(Mask {
        // What is missing was made with the mask.
        areas: rules.areas().lay(&tree, &inner)?,
        hides_git: inner
            .join(".git")
            .symlink_metadata()
            .is_ok_and(|metadata| metadata.file_type().is_char_device()),
        layer: Some(layer),
        notes,
    })
}

/// The part of a mask that is the workspace, where there is one.
pub(crate) fn workspace_of(directory: &Path) -> Option<PathBuf> {
    let path = directory.join(NAME).join(WORKSPACE);
    path.is_dir().then_some(path)
}

fn make(
    mask: &Path,
    tree: &Path,
    rules: &FileRules,
    aliases: &[ByteText],
) -> Result<Vec<String>, Error> {
    let inner = mask.join(WORKSPACE);
    let metadata = made("look at", tree, fs::metadata(tree))?;
    for (path, mode) in [
        (mask, 0o755),
        (&inner, metadata.permissions().mode() & 0o777 | 0o700),
    ] {
        made("make", path, fs::create_dir(path))?;
        let mode = fs::Permissions::from_mode(mode);
        made("open", path, fs::set_permissions(path, mode))?;
    }
    let opened = made("open", tree, File::open(tree))?;
    let identity = made("look at", tree, identity_for(opened.as_fd()))?;
    let mut notes = Vec::new();
    let hidden = rules.hidden();
    if !hidden.is_empty() {
        let has_git = tree.join(".git").symlink_metadata().is_ok();
        let repository = if has_git { git::discover(tree)? } else { None };
        let why = git::why_hidden(repository.as_ref(), hidden, aliases)?;
        if let Some(why) = why.filter(|_| has_git) {
            scan::whiteout(tree, &inner, Path::new(".git"))?;
            notes.push(why);
        }
        let mut scanned = scan::scan(tree, &inner, hidden, &identity)?;
        for path in aliases {
            use std::os::unix::ffi::OsStrExt as _;
            let path = Path::new(std::ffi::OsStr::from_bytes(path.as_bytes()));
            if tree.join(path).symlink_metadata().is_ok() {
                scan::whiteout(tree, &inner, path)?;
                scanned.hide_one();
            }
        }
        notes.extend(scanned.notes());
        if scanned.hides_nothing() {
            notes.push("the policy hides nothing that is there".to_owned());
        }
    }
    rules.areas().lay(tree, &inner)?;
    if let Identity::Range { .. } = identity {
        made(
            "give away",
            mask,
            scan::give_away(mask, identity.agent_on_host()),
        )?;
    }
    Ok(notes)
}

fn made<T>(what: &'static str, path: &Path, result: io::Result<T>) -> Result<T, Error> {
    result.map_err(|source| Error::MakeWorkspace {
        what,
        path: path.to_owned(),
        source,
    })
}
