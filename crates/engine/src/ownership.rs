//! Whose on the disk what a setup left is: a setup that is root of its image makes files of several
//! owners, and who keeps, walks and removes its layers must own them.
//!
//! | who calls | owners on the disk | so |
//! | --- | --- | --- |
//! | root | a range that nobody has | they stay, and are the same ids in later sandboxes |
//! | anybody, with subordinate ids | the caller, and those | all become the caller's, by a process with those ids |
//! | anybody else | the caller | nothing is to be done |

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

use ringfence_jail::identity::Identity;
use ringfence_jail::mapped::run_mapped;

use crate::changes::{ChangesError, own_tree, remove_tree};
use crate::error::Error;

/// The word by which this program is asked to do it.
const WORD: &std::ffi::CStr = c"own";

/// Makes all of a tree that a setup left the caller's, where it is not. `program` is this program.
pub fn take_over(program: &Path, directory: &Path) -> Result<(), Error> {
    let identity = Identity::of_setup(0, 0);
    let Identity::Root {
        others: Some(_), ..
    } = identity
    else {
        return Ok(());
    };
    let fail = |source: io::Error| Error::MakeWorkspace {
        what: "take over",
        path: directory.to_owned(),
        source,
    };
    let opened = File::open(directory).map_err(fail)?;
    match run_mapped(&identity, program, WORD, opened.as_fd()).map_err(fail)? {
        Some(0) => Ok(()),
        _ => Err(fail(io::Error::other("its files have other owners"))),
    }
}

/// Removes a directory that a setup may have left, whoever its files belong to.
pub fn remove(program: &Path, parent: &Path, name: &str) -> Result<(), Error> {
    let directory = File::open(parent).map_err(|source| Error::ReadFile {
        path: parent.to_owned(),
        source,
    })?;
    match remove_tree(directory.as_fd(), name.as_bytes()) {
        Err(ChangesError::Remove { source, .. })
            if source.kind() == io::ErrorKind::PermissionDenied => {}
        removed => return Ok(removed?),
    }
    take_over(program, &parent.join(name))?;
    Ok(remove_tree(directory.as_fd(), name.as_bytes())?)
}

/// This process as the one with those ids: the tree is its standard input.
pub fn take_over_here() -> Result<(), Error> {
    let fail = |source: io::Error| Error::MakeWorkspace {
        what: "take over",
        path: "/proc/self/fd/0".into(),
        source,
    };
    // In the machine's own ids this would give somebody's files to root.
    let map = std::fs::read_to_string("/proc/self/uid_map").map_err(fail)?;
    if map
        .lines()
        .any(|line| line.trim_end().ends_with("4294967295"))
    {
        return Err(fail(io::ErrorKind::PermissionDenied.into()));
    }
    Ok(own_tree(std::io::stdin().as_fd(), (0, 0))?)
}
