//! What the host process opens for a sandbox as root.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;

use super::{LaunchError, user_namespace};
use crate::execute;
use crate::identity::Identity;
use crate::plan::{Op, Root, SYSTEM_ATTRIBUTES, Spec};
use crate::sys::{self, Recursive};

/// As root, host directories are opened here, with the host's rights, and those that belong to the
/// folder's owner are shown as the agent's. Rootless, the child opens them itself.
pub(super) fn inherit_mounts(spec: &Spec, ops: &mut [Op]) -> Result<Vec<OwnedFd>, LaunchError> {
    let Some((uid_map, gid_map)) = spec.identity.mount_maps() else {
        return Ok(Vec::new());
    };
    let image = match &spec.root {
        Root::Host | Root::Foreign(_) => None,
        Root::Image(_) => spec.identity.image_map(),
    };
    let image = image
        .map(|map| user_namespace(&map, &map))
        .transpose()
        .map_err(LaunchError::MapIds)?;
    let workspace = &spec.workspace;
    let owned: Vec<&std::path::Path> = workspace
        .lower
        .last()
        .into_iter()
        .chain(&workspace.tools)
        .map(std::path::PathBuf::as_path)
        .collect();
    let layers: Vec<&std::path::Path> = workspace
        .lower
        .iter()
        .rev()
        .skip(1)
        .chain(&workspace.below)
        .chain([&workspace.layer])
        .chain(
            spec.overlays
                .iter()
                .flat_map(|overlay| overlay.lower.iter().chain([&overlay.layer])),
        )
        .map(std::path::PathBuf::as_path)
        .collect();
    let namespace = user_namespace(&uid_map, &gid_map).map_err(LaunchError::MapIds)?;
    let mut held = Vec::new();
    for op in ops.iter_mut() {
        if let Some(tree) = inherit_exact(op)? {
            held.push(tree);
            continue;
        }
        if let Some(tree) = inherit_layer(op, image.as_ref())? {
            held.push(tree);
            continue;
        }
        let Op::Open {
            slot,
            path,
            attributes,
        } = op
        else {
            continue;
        };
        let as_path = std::path::Path::new(std::ffi::OsStr::new(
            <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(path.as_bytes()),
        ));
        let ours = owned.contains(&as_path);
        // Mount points inside the folder or a layer are not part of it.
        let recursive = if ours || layers.contains(&as_path) {
            Recursive::No
        } else {
            Recursive::Yes
        };
        let fail = |errno: Errno| LaunchError::SetUp {
            operation: format!("open {path:?}"),
            source: errno.into(),
        };
        let tree = sys::open_tree(path, recursive).map_err(fail)?;
        sys::mount_setattr(tree.as_raw_fd(), c"", recursive, *attributes, None).map_err(fail)?;
        if ours {
            sys::mount_setattr(
                tree.as_raw_fd(),
                c"",
                Recursive::No,
                0,
                Some(namespace.as_raw_fd()),
            )
            .map_err(|errno| LaunchError::IdmapMount {
                path: as_path.display().to_string(),
                source: errno.into(),
            })?;
        }
        *op = Op::Inherited {
            slot: *slot,
            fd: tree.as_raw_fd(),
            path: path.clone(),
            attributes: *attributes,
        };
        held.push(tree);
    }
    Ok(held)
}

/// The same for a layer of an image: every owner on the disk is that one inside.
fn inherit_layer(op: &mut Op, ids: Option<&OwnedFd>) -> Result<Option<OwnedFd>, LaunchError> {
    let Op::OpenLayer { slot, path } = op else {
        return Ok(None);
    };
    let fail = |errno: Errno| LaunchError::SetUp {
        operation: format!("open the layer {path:?}"),
        source: errno.into(),
    };
    let tree = sys::open_tree(path, Recursive::No).map_err(fail)?;
    let fd = tree.as_raw_fd();
    let ids = ids.map(AsRawFd::as_raw_fd);
    sys::mount_setattr(fd, c"", Recursive::No, SYSTEM_ATTRIBUTES, ids).map_err(|errno| {
        LaunchError::IdmapMount {
            path: path.to_string_lossy().into_owned(),
            source: errno.into(),
        }
    })?;
    *op = Op::Inherited {
        slot: *slot,
        fd,
        path: path.clone(),
        attributes: SYSTEM_ATTRIBUTES,
    };
    Ok(Some(tree))
}

/// The same for a mount of the policy, which has an owner of its own.
fn inherit_exact(op: &mut Op) -> Result<Option<OwnedFd>, LaunchError> {
    let Op::OpenExact {
        slot,
        path,
        identity,
        owner,
        attributes,
    } = op
    else {
        return Ok(None);
    };
    let fail = |errno: Errno| LaunchError::SetUp {
        operation: format!("open {path:?} as it was looked at"),
        source: errno.into(),
    };
    let tree = execute::open_exact(path, *identity).map_err(fail)?;
    let fd = tree.as_raw_fd();
    sys::mount_setattr(fd, c"", Recursive::No, *attributes, None).map_err(fail)?;
    if let Some((uid_map, gid_map)) = Identity::of_caller(owner.0, owner.1).mount_maps() {
        let namespace = user_namespace(&uid_map, &gid_map).map_err(LaunchError::MapIds)?;
        let idmap = Some(namespace.as_raw_fd());
        let mapped = sys::mount_setattr(fd, c"", Recursive::No, 0, idmap);
        mapped.map_err(|errno| LaunchError::IdmapMount {
            path: path.to_string_lossy().into_owned(),
            source: errno.into(),
        })?;
    }
    *op = Op::Inherited {
        slot: *slot,
        fd,
        path: path.clone(),
        attributes: *attributes,
    };
    Ok(Some(tree))
}
