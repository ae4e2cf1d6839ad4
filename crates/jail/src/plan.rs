//! What a sandbox is made of, as an ordered list of plain operations.
//!
//! `plan` is a pure function from a specification and the facts about the host to that list; the
//! loop in `execute` does what it says. To know what a sandbox can see, read the list.

mod gate;
mod kernel;
mod mounts;
mod workspace;

use std::ffi::CString;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::facts::{HostFacts, Item};
use crate::identity::{AGENT_ID, Identity};

pub use gate::{GateSpec, TRUST};
pub use mounts::{HostMount, Shown, may_show_at};
pub use workspace::{Access, Area};

/// The directory inside that holds what Ringfence itself needs.
pub const OWN: &str = ".ringfence";

/// What to make.
#[derive(Clone, Debug)]
pub struct Spec {
    pub identity: Identity,
    /// The host name inside.
    pub hostname: String,
    pub workspace: WorkspaceSpec,
    /// Paths of the host that are shown besides.
    pub mounts: Vec<HostMount>,
    /// Size bound of each of `/tmp`, the home and `/dev/shm`.
    pub tmpfs_bytes: u64,
    /// Where there is a gate. Without one there is nothing to reach.
    pub gate: Option<GateSpec>,
}

/// What the layers hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// The folder. Home and temporary files are in memory and go with the sandbox.
    Folder,
    /// Three directories, `workspace`, `home` and `tmp`, that all last.
    Everything,
}

/// The folder that the agent works on: layers of which the top one is written.
#[derive(Clone, Debug)]
pub struct WorkspaceSpec {
    /// Read-only layers, the topmost first, the user's folder last.
    pub lower: Vec<PathBuf>,
    /// Holds `upper` and `work`, on one file system.
    pub layer: PathBuf,
    pub holds: Holds,
    /// Absolute path inside.
    pub inside: PathBuf,
    /// Object directories of git, read-only: host path and its number inside.
    pub objects: Vec<PathBuf>,
    /// A directory of programs that is shown read-only as `/.ringfence/tools`.
    pub tools: Option<PathBuf>,
    /// Parts that are held otherwise than what is around them, the outer before the inner. None:
    /// all of it may be written.
    pub areas: Vec<Area>,
}

/// One step. Paths of targets are relative to the new root, which is the working directory until
/// the pivot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Stop mounts from travelling to or from the host.
    MakePrivate,
    /// Become the guest's ids inside.
    BecomeGuest {
        id: u32,
    },
    /// Take a copy of a host mount into a slot.
    Open {
        slot: usize,
        path: CString,
        attributes: u64,
    },
    /// The same of a path that was looked at before: no link on the way, exactly this file, and
    /// nothing that is mounted below.
    OpenExact {
        slot: usize,
        path: CString,
        /// Device and inode.
        identity: (u64, u64),
        /// Shown as the agent where ids are mapped.
        owner: (u32, u32),
        attributes: u64,
    },
    /// A slot that the host process has filled already.
    Inherited {
        slot: usize,
        fd: RawFd,
        path: CString,
        attributes: u64,
    },
    /// A fresh file system that becomes `/`; from here on it is the working directory.
    NewRoot {
        options: CString,
    },
    Directory {
        path: CString,
        mode: u32,
    },
    File {
        path: CString,
        content: Vec<u8>,
        mode: u32,
    },
    Symlink {
        target: CString,
        path: CString,
    },
    Attach {
        slot: usize,
        path: CString,
    },
    /// Show a directory of the new root at another place of it.
    Bind {
        from: CString,
        path: CString,
    },
    /// Show a part of a tree at the same place of another tree that shows it already. No link is
    /// followed.
    Area {
        from: CString,
        onto: CString,
        path: CString,
        attributes: u64,
    },
    /// Show a mount at a path, of which directories that are missing are made for the agent. No
    /// link is followed.
    Reveal {
        mount: Shown,
        parts: Vec<CString>,
        is_directory: bool,
    },
    Tmpfs {
        path: CString,
        options: CString,
    },
    Devpts {
        path: CString,
    },
    Proc {
        path: CString,
    },
    Overlay {
        path: CString,
        options: CString,
        attributes: u64,
    },
    /// Put an empty, unreadable file or directory over a path; it is a read-only mount, and its
    /// copies are as well.
    Mask {
        path: CString,
        with: CString,
    },
    /// Bound what this user namespace may take of the machine; absent in older kernels.
    Setting {
        path: CString,
        value: &'static str,
    },
    /// Make a part of the tree read-only, below included.
    ReadOnly {
        path: CString,
    },
    Detach {
        path: CString,
    },
    LoopbackUp,
    /// One more address at the loopback.
    LoopbackAddress {
        address: std::net::Ipv4Addr,
    },
    Hostname {
        name: Vec<u8>,
    },
    /// Make the new root `/` and let the host's go.
    Pivot,
    /// The root itself takes no writes from here on.
    SealRoot,
    /// Own cgroup root, taken after the host has put this process into its cgroup.
    CgroupNamespace,
    /// A guest that is root inside gets what is in the bounding set when it is executed, any other
    /// what is ambient.
    DropCapabilities {
        keep: u64,
        ambient: bool,
    },
    NoNewPrivileges,
    NewSession,
    NoCoreFiles,
    /// Nothing but the socket and the program stays open; standard streams are `/dev/null`.
    CloseDescriptors,
}

/// A path that cannot be part of a sandbox.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("`{0}` contains a NUL byte")]
    NulByte(PathBuf),
    #[error("the workspace cannot be at `{0}` inside: the system is there")]
    OccupiedPath(PathBuf),
    #[error("`{0}` cannot be shown inside: the sandbox has something of its own there")]
    OccupiedMount(PathBuf),
}

/// Directories inside that belong to the system; the workspace may not be in or over them.
const OCCUPIED: &[&str] = &[
    "bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "nix", "gnu", "proc", "sbin", "sys",
    "usr", OWN,
];

/// Read-only, no device, no setuid.
const SYSTEM_ATTRIBUTES: u64 =
    crate::sys::MOUNT_ATTR_RDONLY | crate::sys::MOUNT_ATTR_NOSUID | crate::sys::MOUNT_ATTR_NODEV;
const DEVICE_ATTRIBUTES: u64 = crate::sys::MOUNT_ATTR_NOSUID | crate::sys::MOUNT_ATTR_NOEXEC;
const LAYER_ATTRIBUTES: u64 = crate::sys::MOUNT_ATTR_NOSUID | crate::sys::MOUNT_ATTR_NODEV;

/// Builds the list.
pub fn plan(spec: &Spec, facts: &HostFacts) -> Result<Vec<Op>, PlanError> {
    let inside = relative(&spec.workspace.inside)?;
    let mut list = List::default();
    list.push(Op::MakePrivate);
    list.push(Op::BecomeGuest {
        id: spec.identity.guest_id(),
    });
    open_sources(&mut list, spec, facts)?;
    list.push(Op::NewRoot {
        options: text("mode=0755,size=16m,nr_inodes=4096"),
    });
    list.push(Op::CgroupNamespace);
    system(&mut list, facts)?;
    own_directory(&mut list);
    etc(&mut list, spec, facts)?;
    devices(&mut list, spec);
    scratch(&mut list, spec);
    workspace::mount(&mut list, spec, &inside)?;
    mounts::show(&mut list, spec, &inside)?;
    gate::show(&mut list, spec, facts);
    kernel::proc(&mut list, spec, facts);
    list.push(Op::LoopbackUp);
    gate::address(&mut list, spec);
    list.push(Op::Hostname {
        name: spec.hostname.clone().into_bytes(),
    });
    list.push(Op::Pivot);
    list.push(Op::SealRoot);
    list.push(match spec.identity {
        Identity::Single { .. } => Op::DropCapabilities {
            keep: crate::identity::OBSERVER_CAPABILITIES,
            ambient: true,
        },
        Identity::Range { .. } => Op::DropCapabilities {
            keep: crate::identity::GUEST_CAPABILITIES,
            ambient: false,
        },
    });
    list.push(Op::NewSession);
    list.push(Op::NoCoreFiles);
    list.push(Op::NoNewPrivileges);
    list.push(Op::CloseDescriptors);
    Ok(list.ops)
}

#[derive(Default)]
struct List {
    ops: Vec<Op>,
    slots: usize,
}

impl List {
    fn push(&mut self, op: Op) {
        self.ops.push(op);
    }

    fn open(&mut self, path: CString, attributes: u64) -> usize {
        let slot = self.slots;
        self.slots += 1;
        self.push(Op::Open {
            slot,
            path,
            attributes,
        });
        slot
    }

    fn directory(&mut self, path: &str, mode: u32) {
        self.push(Op::Directory {
            path: text(path),
            mode,
        });
    }

    fn file(&mut self, path: &str, content: &[u8]) {
        self.push(Op::File {
            path: text(path),
            content: content.to_vec(),
            mode: 0o644,
        });
    }

    fn link(&mut self, target: &str, path: &str) {
        self.push(Op::Symlink {
            target: text(target),
            path: text(path),
        });
    }
}

/// Sources come first: once the new root is mounted, nothing of the host is looked up again.
/// Slots are numbered in this order, and the functions below count on it.
fn open_sources(list: &mut List, spec: &Spec, facts: &HostFacts) -> Result<(), PlanError> {
    for (name, item) in &facts.system {
        if *item == Item::Directory {
            list.open(text(&format!("/{name}")), SYSTEM_ATTRIBUTES);
        }
    }
    for (name, item) in &facts.etc {
        if *item == Item::Directory {
            list.open(text(&format!("/etc/{name}")), SYSTEM_ATTRIBUTES);
        }
    }
    for device in DEVICES {
        list.open(text(&format!("/dev/{device}")), DEVICE_ATTRIBUTES);
    }
    for layer in &spec.workspace.lower {
        list.open(host(layer)?, SYSTEM_ATTRIBUTES);
    }
    list.open(host(&spec.workspace.layer)?, LAYER_ATTRIBUTES);
    for shown in spec.workspace.objects.iter().chain(&spec.workspace.tools) {
        list.open(host(shown)?, SYSTEM_ATTRIBUTES);
    }
    for mount in &spec.mounts {
        mounts::open(list, mount)?;
    }
    gate::open(list, spec, facts)?;
    // From here on slots are taken in the same order.
    list.slots = 0;
    Ok(())
}

impl List {
    fn attach_next(&mut self, path: CString) {
        let slot = self.slots;
        self.slots += 1;
        self.push(Op::Attach { slot, path });
    }
}

fn system(list: &mut List, facts: &HostFacts) -> Result<(), PlanError> {
    for (name, item) in &facts.system {
        match item {
            Item::Directory => {
                make_parents(list, name);
                list.directory(name, 0o755);
                list.attach_next(text(name));
            }
            Item::Symlink(target) => list.push(Op::Symlink {
                target: bytes(target)?,
                path: text(name),
            }),
            Item::File(_) => {}
        }
    }
    Ok(())
}

fn own_directory(list: &mut List) {
    list.directory(OWN, 0o755);
    list.push(Op::File {
        path: own("void"),
        content: Vec::new(),
        mode: 0,
    });
    list.push(Op::Directory {
        path: own("hollow"),
        mode: 0,
    });
    // Mounts of their own, so that everything masked with them is as read-only as they are.
    for name in ["void", "hollow"] {
        list.push(Op::ReadOnly { path: own(name) });
    }
}

fn own(name: &str) -> CString {
    text(&format!("{OWN}/{name}"))
}

fn etc(list: &mut List, spec: &Spec, facts: &HostFacts) -> Result<(), PlanError> {
    list.directory("etc", 0o755);
    for (name, item) in &facts.etc {
        let path = format!("etc/{name}");
        make_parents(list, &path);
        match item {
            Item::Directory => {
                list.directory(&path, 0o755);
                list.attach_next(text(&path));
            }
            Item::Symlink(target) => list.push(Op::Symlink {
                target: bytes(target)?,
                path: text(&path),
            }),
            Item::File(content) => list.file(&path, content),
        }
    }
    let agent = format!("agent:x:{AGENT_ID}:{AGENT_ID}:agent:/home/agent:/bin/sh\n");
    list.file(
        "etc/passwd",
        format!("root:x:0:0:root:/:/usr/sbin/nologin\n{agent}nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n").as_bytes(),
    );
    list.file(
        "etc/group",
        format!("root:x:0:\nagent:x:{AGENT_ID}:\nnogroup:x:65534:\n").as_bytes(),
    );
    list.file(
        "etc/hosts",
        b"127.0.0.1 localhost ringfence\n::1 localhost\n",
    );
    list.file("etc/hostname", b"ringfence\n");
    list.file("etc/resolv.conf", gate::name_service(spec).as_bytes());
    list.file(
        "etc/nsswitch.conf",
        b"passwd: files\ngroup: files\nhosts: files dns\n",
    );
    list.link("/proc/self/mounts", "etc/mtab");
    Ok(())
}

const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];

fn devices(list: &mut List, spec: &Spec) {
    list.directory("dev", 0o755);
    for device in DEVICES {
        let path = format!("dev/{device}");
        list.file(&path, b"");
        list.attach_next(text(&path));
    }
    list.directory("dev/pts", 0o755);
    list.push(Op::Devpts {
        path: text("dev/pts"),
    });
    list.link("pts/ptmx", "dev/ptmx");
    list.link("/proc/self/fd", "dev/fd");
    for (name, fd) in [("stdin", 0), ("stdout", 1), ("stderr", 2)] {
        list.link(&format!("/proc/self/fd/{fd}"), &format!("dev/{name}"));
    }
    tmpfs(list, "dev/shm", 0o1777, spec.tmpfs_bytes);
}

fn scratch(list: &mut List, spec: &Spec) {
    match spec.workspace.holds {
        Holds::Folder => {
            tmpfs(list, "tmp", 0o1777, spec.tmpfs_bytes);
            list.directory("home", 0o755);
            tmpfs(list, "home/agent", 0o700, spec.tmpfs_bytes);
        }
        // Filled with the workspace.
        Holds::Everything => {
            for path in ["tmp", "home", "home/agent"] {
                list.directory(path, 0o755);
            }
        }
    }
    list.directory("var", 0o755);
    list.link("/tmp", "var/tmp");
    list.directory("run", 0o755);
    list.directory("sys", 0o555);
    list.directory("root", 0o555);
}

fn tmpfs(list: &mut List, path: &str, mode: u32, size: u64) {
    list.directory(path, 0o755);
    // BOUND: inodes are kernel memory; 100,000 temporary files are enough for any build.
    let options =
        format!("mode={mode:o},uid={AGENT_ID},gid={AGENT_ID},size={size},nr_inodes=100000");
    list.push(Op::Tmpfs {
        path: text(path),
        options: text(&options),
    });
}

/// The directories above a path, as far as the list does not make them already.
fn make_parents(list: &mut List, path: &str) {
    let mut at = 0;
    while let Some(slash) = path[at..].find('/') {
        let parent = text(&path[..at + slash]);
        let known = list.ops.iter().any(|op| match op {
            Op::Directory { path, .. } | Op::Symlink { path, .. } => *path == parent,
            _ => false,
        });
        if !known {
            list.push(Op::Directory {
                path: parent,
                mode: 0o755,
            });
        }
        at += slash + 1;
    }
}

/// The workspace's path relative to the root; refused where the system is.
fn relative(inside: &Path) -> Result<String, PlanError> {
    let occupied = || PlanError::OccupiedPath(inside.to_owned());
    let path = inside.to_str().ok_or_else(occupied)?;
    let path = path.strip_prefix('/').ok_or_else(occupied)?;
    let plain = !path.is_empty()
        && path
            .split('/')
            .all(|part| !part.is_empty() && part != "." && part != "..");
    let first = path.split('/').next().unwrap_or_default();
    // A single component such as `/tmp` or `/home` would hide what is made there for the agent.
    let hides = ["tmp", "home", "home/agent", "var", "var/tmp", "run", "root"].contains(&path);
    if !plain || OCCUPIED.contains(&first) || hides || path.starts_with("var/tmp/") {
        return Err(occupied());
    }
    Ok(path.to_owned())
}

fn host(path: &Path) -> Result<CString, PlanError> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| PlanError::NulByte(path.to_owned()))
}

fn bytes(target: &[u8]) -> Result<CString, PlanError> {
    CString::new(target)
        .map_err(|_| PlanError::NulByte(PathBuf::from(String::from_utf8_lossy(target).as_ref())))
}

fn text(path: &str) -> CString {
    CString::new(path).expect("names made here have no NUL")
}
