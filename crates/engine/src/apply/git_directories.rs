//! Whether a patch would change, complete or make a git directory in the place that it goes to.
//!
//! The reader of patches refuses what a patch holds by itself; here is what it makes of a tree that has
//! some of it already.

use std::collections::BTreeSet;
use std::os::fd::AsFd as _;

use ringfence_model::ByteText;
use ringfence_model::changes::ObjectHash;

use super::ApplyError;
use super::target::Target;
use crate::base::{ListedTree, Read};
use crate::changes::git_directory::{Folder, Touched, WHY, refused_paths};
use crate::git::LookupError;
use crate::patch::{Patch, PatchError};

/// Looks at the files of a folder.
pub(super) fn check_folder(patch: &Patch<'_>, target: &Target) -> Result<(), ApplyError> {
    match refused_paths(patch.touched(), &mut Folder(target.root.as_fd())) {
        Ok(paths) => refuse(paths.first().copied()),
        Err((path, source)) => Err(PatchError::ReadBase { path, source }.into()),
    }
}

/// Looks at the tree of a commit. `read` gives a tree object by its id.
pub(super) fn check_tree(
    patch: &Patch<'_>,
    tree: &str,
    hash: ObjectHash,
    read: &mut Read<'_>,
) -> Result<(), ApplyError> {
    let paths = refused_in(patch.touched(), tree, hash, read)?;
    refuse(paths.first().copied())
}

/// The paths that cannot be changed in such a tree.
pub(super) fn refused_in<'a>(
    touched: impl IntoIterator<Item = Touched<'a>>,
    tree: &str,
    hash: ObjectHash,
    read: &mut Read<'_>,
) -> Result<BTreeSet<&'a [u8]>, LookupError> {
    refused_paths(touched, &mut ListedTree::new(tree, hash, read))
}

/// It cannot be put right by whoever applies the patch, so that it is no conflict.
fn refuse(path: Option<&[u8]>) -> Result<(), ApplyError> {
    match path {
        Some(path) => {
            let (path, why) = (ByteText::from(path), WHY);
            Err(PatchError::Path { path, why }.into())
        }
        None => Ok(()),
    }
}
