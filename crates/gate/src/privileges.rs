//! Who a gate is to the host: nobody else, and without capabilities.
//!
//! A gate that root starts would be root of the host, and it reads bytes that an agent chose. So it becomes a user of
//! its own before it reads the first of them. What only root can open is opened before.

use std::io;
use std::os::unix::fs::lchown;
use std::path::{Path, PathBuf};

use ringfence_model::gate::{GATE_ID, Setup};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use crate::cache;

/// Whether this process is to become another user.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Gives the directory of the cache to the gate's user, and makes it the working directory: the directories above may
/// be closed to that user.
pub(crate) fn hand_over_cache(setup: &mut Setup) {
    let Some(path) = &setup.cache else {
        return;
    };
    // A cache that cannot be used is no reason to have no network.
    setup.cache = match give_away(path) {
        Ok(()) => Some(PathBuf::from(".")),
        Err(_) => None,
    };
}

fn give_away(path: &Path) -> io::Result<()> {
    cache::make_directories(path)?;
    for name in cache::DIRECTORIES {
        lchown(path.join(name), Some(GATE_ID), Some(GATE_ID))?;
    }
    lchown(path, Some(GATE_ID), Some(GATE_ID))?;
    std::env::set_current_dir(path)
}

/// Becomes the gate's own user where this is root, and gives up all capabilities.
///
/// INVARIANT: called before this process has a second thread: ids and capabilities belong to threads.
pub(crate) fn give_up() -> io::Result<()> {
    set_no_new_privs(true)?;
    if is_root() {
        for capability in CapabilitySet::all().iter() {
            match remove_capability_from_bounding_set(capability) {
                // An older kernel does not know the newest capabilities.
                Ok(()) | Err(Errno::INVAL) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        let (user, group) = (Uid::from_raw(GATE_ID), Gid::from_raw(GATE_ID));
        set_thread_groups(&[])?;
        set_thread_res_gid(group, group, group)?;
        set_thread_res_uid(user, user, user)?;
    }
    let none = CapabilitySet::empty();
    set_capabilities(
        None,
        CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        },
    )?;
    Ok(())
}
