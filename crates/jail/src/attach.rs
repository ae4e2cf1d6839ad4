//! What a sandbox is to see of the host, mounted on the host: for engines of others, which take
//! directories and know nothing of layers. As root only, since nobody else may mount where an engine
//! looks.
//!
//! ```text
//! place/
//! ├── tree          the layers of the workspace, joined
//! ├── m0, m1, …     what is shown, each a mount of its own
//! ├── l0, l1, …     layers, only while they are joined
//! └── shade, blank  what stands above a source that is only read
//! ```
//!
//! INVARIANT: no path that an agent wrote is looked up with the host's rights: parts of the tree are
//! opened beneath it, without links, and what is given to an engine is a mount point of ours.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::execute::{beneath, open_exact};
use crate::identity::Identity;
use crate::launch::user_namespace;
use crate::plan::{
    Access, Holds, HostMount, LAYER_ATTRIBUTES, OWN, PrivateOverlay, SYSTEM_ATTRIBUTES, Spec,
};
use crate::sys::{self, Recursive};

/// What could not be mounted.
#[derive(Debug, thiserror::Error)]
#[error("cannot mount `{path}` for the sandbox")]
pub struct AttachError {
    pub path: PathBuf,
    #[source]
    pub source: io::Error,
}

/// A mount point of the host, and where it is to be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    pub host: PathBuf,
    pub inside: PathBuf,
    pub access: Access,
}

/// Mounts all that a specification shows but the system, below an empty directory.
pub fn attach(spec: &Spec, place: &Path) -> Result<Vec<Attached>, AttachError> {
    let at = |path: &Path, source: io::Error| AttachError {
        path: path.to_owned(),
        source,
    };
    let owner = match spec.identity.mount_maps() {
        Some((uids, gids)) => Some(user_namespace(&uids, &gids).map_err(|e| at(place, e))?),
        None => None,
    };
    let mut making = Making {
        place,
        owner,
        shown: Vec::new(),
        layers: 0,
    };
    making.workspace(spec)?;
    for overlay in &spec.overlays {
        making.private(overlay)?;
    }
    for (number, objects) in spec.workspace.objects.iter().enumerate() {
        let (host, owner) = (&objects.host, objects.owner);
        let source = exact(host, objects.identity, owner, SYSTEM_ATTRIBUTES)?;
        let inside = format!("/{OWN}/objects/{number}");
        making.veil(Above::Alternates, source, host, Path::new(&inside))?;
    }
    if let Some(tools) = &spec.workspace.tools {
        let source = making.clone_of(tools, SYSTEM_ATTRIBUTES, Owned::Yes)?;
        let inside = format!("/{OWN}/tools");
        making.veil(Above::Alternates, source, tools, Path::new(&inside))?;
    }
    for mount in &spec.mounts {
        making.mount(mount)?;
    }
    Ok(making.shown)
}

/// A copy of the mount of what was looked at, with its owner as the agent.
fn exact(
    path: &Path,
    identity: (u64, u64),
    owner: (u32, u32),
    attributes: u64,
) -> Result<OwnedFd, AttachError> {
    let errno = |errno: Errno| failed(path, errno);
    let tree = open_exact(&name(path)?, identity).map_err(errno)?;
    sys::mount_setattr(tree.as_raw_fd(), c"", Recursive::No, attributes, None).map_err(errno)?;
    if let Some((uids, gids)) = Identity::of_caller(owner.0, owner.1).mount_maps() {
        let ids = user_namespace(&uids, &gids).map_err(|source| AttachError {
            path: path.to_owned(),
            source,
        })?;
        let ids = Some(ids.as_raw_fd());
        sys::mount_setattr(tree.as_raw_fd(), c"", Recursive::No, 0, ids).map_err(errno)?;
    }
    Ok(tree)
}

/// Whether a source belongs to the folder's owner, who is the agent inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owned {
    Yes,
    No,
}

/// What stands above a source that is only read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Above {
    /// An empty list of further objects.
    Alternates,
    Nothing,
}

impl Above {
    fn as_str(self) -> &'static str {
        match self {
            Self::Alternates => "shade",
            Self::Nothing => "blank",
        }
    }
}

struct Making<'a> {
    place: &'a Path,
    owner: Option<OwnedFd>,
    shown: Vec<Attached>,
    layers: usize,
}

impl Making<'_> {
    fn workspace(&mut self, spec: &Spec) -> Result<(), AttachError> {
        let own = &spec.workspace;
        let mut lower = Vec::new();
        for (number, layer) in own.lower.iter().enumerate() {
            // The last is the user's folder; all others are layers of ours.
            let owned = if number + 1 == own.lower.len() {
                Owned::Yes
            } else {
                Owned::No
            };
            lower.push(self.clone_of(layer, SYSTEM_ATTRIBUTES, owned)?);
        }
        for layer in &own.below {
            lower.push(self.clone_of(layer, SYSTEM_ATTRIBUTES, Owned::No)?);
        }
        let top = self.clone_of(&own.layer, LAYER_ATTRIBUTES, Owned::No)?;
        let tree = self.place.join("tree");
        self.join(&tree, lower, Some(top))?;
        if own.holds == Holds::Folder && own.areas.is_empty() {
            self.shown.push(Attached {
                host: tree,
                inside: own.inside.clone(),
                access: Access::Write,
            });
            return Ok(());
        }
        let (folder, mut parts) = match own.holds {
            Holds::Folder => (PathBuf::new(), Vec::new()),
            Holds::Everything => (
                PathBuf::from("workspace"),
                vec![("home", "/home/agent"), ("tmp", "/tmp")],
            ),
        };
        let first = own.areas.first();
        if first.is_none_or(|area| !area.path.as_os_str().is_empty()) {
            self.part(&tree, &folder, own.inside.clone(), Access::Write)?;
        }
        for area in &own.areas {
            let inside = if area.path.as_os_str().is_empty() {
                own.inside.clone()
            } else {
                own.inside.join(&area.path)
            };
            self.part(&tree, &folder.join(&area.path), inside, area.access)?;
        }
        for (part, inside) in parts.drain(..) {
            self.part(&tree, Path::new(part), inside.into(), Access::Write)?;
        }
        Ok(())
    }

    /// HOSTILE: earlier executions wrote in the tree.
    fn part(
        &mut self,
        tree: &Path,
        path: &Path,
        inside: PathBuf,
        access: Access,
    ) -> Result<(), AttachError> {
        let failed = |errno: Errno| failed(&tree.join(path), errno);
        let relative = if path.as_os_str().is_empty() {
            c".".to_owned()
        } else {
            name(path)?
        };
        let opened = beneath(&name(tree)?, &relative).map_err(failed)?;
        let is_directory = is_directory(&opened).map_err(failed)?;
        let part = sys::open_tree_of(opened.as_fd()).map_err(failed)?;
        let attributes = match access {
            Access::Write => LAYER_ATTRIBUTES,
            Access::ReadOnly => LAYER_ATTRIBUTES | sys::MOUNT_ATTR_RDONLY,
        };
        sys::mount_setattr(part.as_raw_fd(), c"", Recursive::No, attributes, None)
            .map_err(failed)?;
        self.show(&part, is_directory, inside, access)
    }

    fn private(&mut self, overlay: &PrivateOverlay) -> Result<(), AttachError> {
        let mut lower = Vec::new();
        for layer in &overlay.lower {
            lower.push(self.clone_of(layer, SYSTEM_ATTRIBUTES, Owned::No)?);
        }
        let top = self.clone_of(&overlay.layer, LAYER_ATTRIBUTES, Owned::No)?;
        let host = self.next();
        self.join(&host, lower, Some(top))?;
        self.shown.push(Attached {
            host,
            inside: overlay.inside.clone(),
            access: Access::Write,
        });
        Ok(())
    }

    /// A mount of the policy, which has an owner of its own.
    fn mount(&mut self, mount: &HostMount) -> Result<(), AttachError> {
        let attributes = match mount.access {
            Access::ReadOnly => SYSTEM_ATTRIBUTES,
            Access::Write => LAYER_ATTRIBUTES,
        };
        let tree = exact(&mount.host, mount.identity, mount.owner, attributes)?;
        if mount.is_directory && mount.access == Access::ReadOnly {
            return self.veil(Above::Nothing, tree, &mount.host, &mount.inside);
        }
        self.show(
            &tree,
            mount.is_directory,
            mount.inside.clone(),
            mount.access,
        )
    }

    /// A directory that is only read, through an overlay of its own: none of its sockets and pipes can
    /// be reached through that.
    fn veil(
        &mut self,
        above: Above,
        source: OwnedFd,
        path: &Path,
        inside: &Path,
    ) -> Result<(), AttachError> {
        let above = self.place.join(above.as_str());
        let made = if above.ends_with(Above::Alternates.as_str()) {
            // Where objects look for more objects is a host path; all of those are shown.
            fs::create_dir_all(above.join("info"))
                .and_then(|()| fs::write(above.join("info/alternates"), ""))
        } else {
            fs::create_dir_all(&above)
        };
        made.map_err(|source| AttachError {
            path: path.to_owned(),
            source,
        })?;
        let upper = sys::open_tree(&name(&above)?, Recursive::No).map_err(|e| failed(path, e))?;
        let host = self.next();
        self.join(&host, vec![upper, source], None)?;
        self.shown.push(Attached {
            host,
            inside: inside.to_owned(),
            access: Access::ReadOnly,
        });
        Ok(())
    }

    /// A copy of a mount of the host, without what is mounted below it.
    fn clone_of(&self, path: &Path, attributes: u64, owned: Owned) -> Result<OwnedFd, AttachError> {
        let errno = |errno: Errno| failed(path, errno);
        let tree = sys::open_tree(&name(path)?, Recursive::No).map_err(errno)?;
        let ids = self.owner.as_ref().filter(|_| owned == Owned::Yes);
        let ids = ids.map(|ids| ids.as_raw_fd());
        sys::mount_setattr(tree.as_raw_fd(), c"", Recursive::No, attributes, ids).map_err(errno)?;
        Ok(tree)
    }

    /// An overlay of layers, topmost first. They are attached for a moment only: the overlay holds them
    /// from then on.
    fn join(
        &mut self,
        host: &Path,
        lower: Vec<OwnedFd>,
        top: Option<OwnedFd>,
    ) -> Result<(), AttachError> {
        let errno = |errno: Errno| failed(host, errno);
        let writable = top.is_some();
        let mut joined = Vec::new();
        let mut result = Ok(());
        for layer in lower.into_iter().chain(top) {
            let path = self.place.join(format!("l{}", self.layers));
            self.layers += 1;
            result = make_directory(&path)
                .and_then(|()| sys::move_mount(layer.as_raw_fd(), &name(&path)?).map_err(errno));
            joined.push(path);
            if result.is_err() {
                break;
            }
        }
        let result = result.and_then(|()| {
            make_directory(host)?;
            let text = |path: &PathBuf| escaped(path);
            let (lower, top) = if writable {
                joined.split_at(joined.len() - 1)
            } else {
                joined.split_at(joined.len())
            };
            let mut options = b"lowerdir=".to_vec();
            options.extend(lower.iter().map(text).collect::<Vec<_>>().join(&b':'));
            options.extend(b",userxattr");
            if let Some(top) = top.first().map(text) {
                let parts: [&[u8]; 5] = [b",upperdir=", &top, b"/upper,workdir=", &top, b"/work"];
                options.extend(parts.concat());
                options.extend(b",volatile");
            }
            let options = CString::new(options).map_err(|_| failed(host, Errno::INVAL))?;
            let flags = if writable {
                MountFlags::NOSUID | MountFlags::NODEV
            } else {
                MountFlags::NOSUID | MountFlags::NODEV | MountFlags::RDONLY
            };
            rustix::mount::mount(c"overlay", host, c"overlay", flags, options.as_c_str())
                .map_err(errno)
        });
        for path in &joined {
            // The directories go with the place.
            let _ = rustix::mount::unmount(path, UnmountFlags::DETACH);
        }
        result
    }

    fn show(
        &mut self,
        tree: &OwnedFd,
        is_directory: bool,
        inside: PathBuf,
        access: Access,
    ) -> Result<(), AttachError> {
        let host = self.next();
        if is_directory {
            make_directory(&host)?
        } else {
            fs::write(&host, "").map_err(|source| AttachError {
                path: host.clone(),
                source,
            })?
        }
        sys::move_mount(tree.as_raw_fd(), &name(&host)?).map_err(|e| failed(&inside, e))?;
        self.shown.push(Attached {
            host,
            inside,
            access,
        });
        Ok(())
    }

    fn next(&self) -> PathBuf {
        self.place.join(format!("m{}", self.shown.len()))
    }
}

/// Unmounts everything below a directory, and fails where something stays. What is not mounted is as good.
pub fn detach(place: &Path) -> io::Result<()> {
    // The table has real paths, and a home may be reached by a link.
    let place = match fs::canonicalize(place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        real => real?,
    };
    for point in mounted_below(&place)? {
        match rustix::mount::unmount(&point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    if mounted_below(&place)?.is_empty() {
        Ok(())
    } else {
        Err(io::ErrorKind::ResourceBusy.into())
    }
}

/// What is mounted at a real path or below it, the innermost first.
fn mounted_below(place: &Path) -> io::Result<Vec<PathBuf>> {
    let table = fs::read("/proc/self/mountinfo")?;
    let mut points: Vec<PathBuf> = table
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4))
        .map(unescaped)
        .filter(|point| point.starts_with(place))
        .collect();
    points.sort_by_key(|point| std::cmp::Reverse(point.as_os_str().len()));
    Ok(points)
}

/// A path of the table of mounts, where blanks are written as octal numbers.
fn unescaped(text: &[u8]) -> PathBuf {
    let mut path = Vec::new();
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let octal = text.get(at + 1..at + 4).filter(|_| byte == b'\\');
        let octal = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(escaped) => {
                path.push(escaped);
                at += 4;
            }
            None => {
                path.push(byte);
                at += 1;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from(std::ffi::OsStr::from_bytes(&path)))
}

/// A path as an option of an overlay, where some characters part paths and options.
pub fn escaped(path: &Path) -> Vec<u8> {
    let mut text = Vec::new();
    for &byte in path.as_os_str().as_bytes() {
        if matches!(byte, b'\\' | b':' | b',') {
            text.push(b'\\');
        }
        text.push(byte);
    }
    text
}

fn is_directory(opened: &OwnedFd) -> rustix::io::Result<bool> {
    let stat = rustix::fs::fstat(opened)?;
    Ok(rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Directory)
}

fn make_directory(path: &Path) -> Result<(), AttachError> {
    match fs::create_dir(path) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => Err(AttachError {
            path: path.to_owned(),
            source,
        }),
        _ => Ok(()),
    }
}

fn name(path: &Path) -> Result<CString, AttachError> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| failed(path, Errno::INVAL))
}

fn failed(path: &Path, errno: Errno) -> AttachError {
    AttachError {
        path: path.to_owned(),
        source: errno.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_options_and_of_the_table_are_escaped() {
        assert_eq!(escaped(Path::new("/a:b,c\\d")), b"/a\\:b\\,c\\\\d");
        assert_eq!(unescaped(b"/a\\040b\\134c"), PathBuf::from("/a b\\c"));
        assert_eq!(unescaped(b"/plain\\"), PathBuf::from("/plain\\"));
    }
}
