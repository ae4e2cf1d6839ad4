//! The part of the plan that shows the workspace, and what is read-only beside it.

use std::path::PathBuf;

use super::{
    Holds, LAYER_ATTRIBUTES, List, OWN, Op, PlanError, SYSTEM_ATTRIBUTES, Spec, host, make_parents,
    text,
};
use crate::sys::MOUNT_ATTR_RDONLY;

/// What may be done with a part of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Nothing may change: neither content nor names, modes, times or attributes.
    ReadOnly,
    Write,
}

/// A directory or file of the workspace with all that is below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// Relative to the workspace, without links; empty for the workspace itself.
    pub path: PathBuf,
    pub access: Access,
}

/// A directory of the host that was looked at before and must be the same when it is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownDirectory {
    /// Without links.
    pub host: PathBuf,
    /// Device and inode.
    pub identity: (u64, u64),
    /// Shown as the agent where ids are mapped.
    pub owner: (u32, u32),
}

/// Object directories are opened as they were looked at.
pub(super) fn open_objects(list: &mut List, spec: &Spec) -> Result<(), PlanError> {
    for objects in &spec.workspace.objects {
        let slot = list.slots;
        list.slots += 1;
        list.push(Op::OpenExact {
            slot,
            path: host(&objects.host)?,
            identity: objects.identity,
            owner: objects.owner,
            attributes: SYSTEM_ATTRIBUTES,
        });
    }
    Ok(())
}

/// The layers are attached below our own directory, joined by an overlay, and let go: the overlay
/// holds them from then on, and no path to a layer is left inside.
pub(super) fn mount(list: &mut List, spec: &Spec, inside: &str) -> Result<(), PlanError> {
    let mut lower = Vec::new();
    let under = spec.workspace.lower.iter().chain(&spec.workspace.below);
    for number in 0..under.count() {
        let path = format!("{OWN}/lower{number}");
        list.directory(&path, 0o755);
        list.attach_next(text(&path));
        lower.push(path);
    }
    let layer = format!("{OWN}/layer");
    list.directory(&layer, 0o755);
    list.attach_next(text(&layer));
    make_parents(list, inside);
    list.directory(inside, 0o755);
    let tree = format!("{OWN}/tree");
    let apart = spec.workspace.holds == Holds::Everything || !spec.workspace.areas.is_empty();
    let at = if apart {
        list.directory(&tree, 0o755);
        &tree
    } else {
        inside
    };
    // `volatile`: the end of a sandbox does not sync the whole file system below the layer, and no
    // agent can make the host's disk busy with syncs. What must last, the bundle, is synced by us.
    list.push(Op::Overlay {
        path: text(at),
        options: text(&format!(
            "lowerdir={},upperdir={layer}/upper,workdir={layer}/work,userxattr,volatile",
            lower.join(":")
        )),
        attributes: LAYER_ATTRIBUTES,
    });
    for path in lower.into_iter().chain([layer]) {
        list.push(Op::Detach { path: text(&path) });
    }
    if apart {
        let workspace = match spec.workspace.holds {
            Holds::Folder => tree.clone(),
            Holds::Everything => format!("{tree}/workspace"),
        };
        areas(list, spec, &workspace, inside)?;
        if spec.workspace.holds == Holds::Everything {
            for (part, to) in [("home", "home/agent"), ("tmp", "tmp")] {
                list.push(Op::Bind {
                    from: text(&format!("{tree}/{part}")),
                    path: text(to),
                });
            }
        }
        list.push(Op::Detach { path: text(&tree) });
    }
    show(list, spec);
    Ok(())
}

/// Each part is a mount of its own, of the tree that may be written, with its own attributes. So
/// the kernel refuses whatever changes something in a part that is read-only, by whatever call.
fn areas(list: &mut List, spec: &Spec, workspace: &str, inside: &str) -> Result<(), PlanError> {
    let areas = &spec.workspace.areas;
    if areas
        .first()
        .is_none_or(|area| !area.path.as_os_str().is_empty())
    {
        list.push(Op::Bind {
            from: text(workspace),
            path: text(inside),
        });
    }
    for area in areas {
        let path = if area.path.as_os_str().is_empty() {
            text(".")
        } else {
            host(&area.path)?
        };
        let attributes = match area.access {
            Access::Write => LAYER_ATTRIBUTES,
            Access::ReadOnly => LAYER_ATTRIBUTES | MOUNT_ATTR_RDONLY,
        };
        list.push(Op::Area {
            from: text(workspace),
            onto: text(inside),
            path,
            attributes,
        });
    }
    Ok(())
}

/// What is shown read-only beside the workspace: objects of git, and our own programs.
fn show(list: &mut List, spec: &Spec) {
    if spec.workspace.objects.is_empty() && spec.workspace.tools.is_none() {
        return;
    }
    // Object directories are shown through an overlay of their own: a plain bind mount would show
    // their host paths in mountinfo.
    let objects = format!("{OWN}/objects");
    list.directory(&objects, 0o755);
    // Where they look for more objects themselves is a host path; all of those are mounted here.
    let shade = format!("{OWN}/shade");
    list.directory(&shade, 0o755);
    list.directory(&format!("{shade}/info"), 0o755);
    list.file(&format!("{shade}/info/alternates"), b"");
    let source = format!("{OWN}/source");
    list.directory(&source, 0o755);
    let numbers = 0..spec.workspace.objects.len();
    let places = numbers
        .map(|number| format!("{objects}/{number}"))
        .chain(spec.workspace.tools.iter().map(|_| format!("{OWN}/tools")));
    for path in places {
        list.attach_next(text(&source));
        list.directory(&path, 0o755);
        list.push(Op::Overlay {
            path: text(&path),
            options: text(&format!("lowerdir={shade}:{source},userxattr")),
            attributes: SYSTEM_ATTRIBUTES,
        });
        list.push(Op::Detach {
            path: text(&source),
        });
    }
}
