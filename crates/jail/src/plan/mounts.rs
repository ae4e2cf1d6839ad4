//! The part of the plan that shows more of the host than the workspace: what a policy names.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use super::{
    Access, LAYER_ATTRIBUTES, List, OCCUPIED, OWN, Op, PlanError, SYSTEM_ATTRIBUTES, Spec, host,
    text,
};

/// A file or directory of the host, which was looked at before and must be the same when it is
/// mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostMount {
    /// Without links.
    pub host: PathBuf,
    /// Device and inode.
    pub identity: (u64, u64),
    pub is_directory: bool,
    /// Shown as the agent where ids are mapped.
    pub owner: (u32, u32),
    /// Absolute path inside.
    pub inside: PathBuf,
    pub access: Access,
}

/// What is to be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// What is in a slot.
    Slot(usize),
    /// What is mounted at a path of the new root.
    At(CString),
}

impl HostMount {
    /// A directory that is only read is shown through an overlay of its own: neither the host's
    /// path nor any of its sockets and pipes can be reached through that.
    fn is_veiled(&self) -> bool {
        self.is_directory && self.access == Access::ReadOnly
    }
}

pub(super) fn open(list: &mut List, mount: &HostMount) -> Result<(), PlanError> {
    let slot = list.slots;
    list.slots += 1;
    list.push(Op::OpenExact {
        slot,
        path: host(&mount.host)?,
        identity: mount.identity,
        owner: mount.owner,
        attributes: match mount.access {
            Access::ReadOnly => SYSTEM_ATTRIBUTES,
            Access::Write => LAYER_ATTRIBUTES,
        },
    });
    Ok(())
}

pub(super) fn show(list: &mut List, spec: &Spec, workspace: &str) -> Result<(), PlanError> {
    let blank = format!("{OWN}/blank");
    let (source, veiled) = (format!("{OWN}/veil"), format!("{OWN}/veiled"));
    if spec.mounts.iter().any(HostMount::is_veiled) {
        for path in [&blank, &source, &veiled] {
            list.directory(path, 0o755);
        }
    }
    for mount in &spec.mounts {
        let parts = parts(&mount.inside, workspace)?;
        let slot = list.slots;
        list.slots += 1;
        let is_directory = mount.is_directory;
        if !mount.is_veiled() {
            list.push(Op::Reveal {
                mount: Shown::Slot(slot),
                parts,
                is_directory,
            });
            continue;
        }
        list.push(Op::Attach {
            slot,
            path: text(&source),
        });
        list.push(Op::Overlay {
            path: text(&veiled),
            options: text(&format!("lowerdir={blank}:{source},userxattr")),
            attributes: SYSTEM_ATTRIBUTES,
        });
        list.push(Op::Reveal {
            mount: Shown::At(text(&veiled)),
            parts,
            is_directory,
        });
        for path in [&veiled, &source] {
            list.push(Op::Detach { path: text(path) });
        }
    }
    Ok(())
}

/// Whether a host path can be seen at this path of a sandbox whose workspace is at another.
pub fn may_show_at(inside: &Path, workspace: &Path) -> bool {
    let workspace = workspace.strip_prefix("/").unwrap_or(workspace);
    parts(inside, &workspace.to_string_lossy()).is_ok()
}

/// The names on the way to a place; refused where the sandbox has something of its own.
pub(super) fn parts(inside: &Path, workspace: &str) -> Result<Vec<CString>, PlanError> {
    let occupied = || PlanError::OccupiedMount(inside.to_owned());
    let path = inside.strip_prefix("/").map_err(|_| occupied())?;
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => {
                parts.push(CString::new(name.as_bytes()).map_err(|_| occupied())?);
            }
            _ => return Err(occupied()),
        }
    }
    let first = parts.first().and_then(|name| name.to_str().ok());
    let is_system = first.is_none_or(|name| OCCUPIED.contains(&name));
    let is_taken = ["home", "home/agent", "root", "run", "var"]
        .iter()
        .any(|own| path == Path::new(own));
    let is_scratch = ["tmp", "var/tmp"].iter().any(|own| path.starts_with(own));
    let meets = path.starts_with(workspace) || Path::new(workspace).starts_with(path);
    if is_system || is_taken || is_scratch || meets {
        return Err(occupied());
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_where_the_sandbox_has_nothing() {
        for (path, expected) in [
            ("/data", true),
            ("/opt/models/a", true),
            ("/home/agent/.cargo/registry", true),
            ("/var/lib/x", true),
            ("/", false),
            ("data", false),
            ("/data/../usr", false),
            ("/usr/local/x", false),
            ("/etc/x", false),
            ("/proc/x", false),
            ("/dev/sda", false),
            ("/tmp", false),
            ("/tmp/x", false),
            ("/var/tmp/x", false),
            ("/root", false),
            (concat!("/root", "/x"), true),
            ("/home", false),
            ("/home/agent", false),
            ("/run", false),
            ("/.ringfence/x", false),
            ("/work", true),
            ("/workspace", false),
            ("/workspace/data", false),
            ("/a", false),
            ("/a/b", false),
            ("/a/b/c", false),
            ("/a/c", true),
        ] {
            let here = may_show_at(Path::new(path), Path::new("/workspace"))
                && may_show_at(Path::new(path), Path::new("/a/b"));
            assert_eq!(here, expected, "{path}");
        }
    }
}
