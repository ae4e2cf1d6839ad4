//! Whose git directories are read for a folder.

use std::path::Path;

use super::discover::owner;
use super::refusal::{Reason, Refusal};

/// Who may be the owner of a folder whose git is read by a caller.
fn may_be_owner(owner: u32, caller: u32) -> bool {
    caller == 0 || owner == caller || owner == 0
}

/// Whether a directory belongs to the folder's owner, and that is somebody whose git the caller reads.
pub(super) fn check_owner(directory: &Path, folder: u32) -> Result<(), Refusal> {
    let refused = |reason| Err(Refusal::new(directory.to_owned(), reason));
    let caller = rustix::process::geteuid().as_raw();
    match owner(directory) {
        Some(uid) if uid != folder => refused(Reason::Foreign { uid, owner: folder }),
        _ if !may_be_owner(folder, caller) => refused(Reason::Caller {
            owner: folder,
            caller,
        }),
        _ => Ok(()),
    }
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
