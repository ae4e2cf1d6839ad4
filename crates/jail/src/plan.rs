//! What a sandbox is made of, as an ordered list of plain operations.
//!
//! `plan` is a pure function from a specification and the facts about the host to that list; the
//! loop in `execute` does what it says. To know what a sandbox can see, read the list.

mod etc;
mod gate;
mod kernel;
mod mounts;
mod private;
mod root;
mod scratch;
mod workspace;

use std::ffi::CString;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::facts::{HostFacts, Item};
use crate::identity::{
    AGENT_ID, GUEST_CAPABILITIES, Identity, OBSERVER_CAPABILITIES, SETUP_CAPABILITIES,
};

pub use gate::{GateSpec, TRUST};
pub use mounts::{HostMount, Shown, may_show_at};
pub use private::PrivateOverlay;
pub use root::{ImageRoot, MOST_LAYERS, Root};
pub use scratch::{Scratch, may_be_scratch};
pub use workspace::{Access, Area, KnownDirectory};

/// The directory inside that holds what Ringfence itself needs.
pub const OWN: &str = ".ringfence";

/// What to make.
#[derive(Clone, Debug)]
pub struct Spec {
    pub identity: Identity,
    pub runs: Runs,
    /// The host name inside.
    pub hostname: String,
    pub root: Root,
    pub workspace: WorkspaceSpec,
    /// Directories that are shared below and private on top, the outer before the inner.
    pub overlays: Vec<PrivateOverlay>,
    /// Paths of the host that are shown besides.
    pub mounts: Vec<HostMount>,
    /// Directories in memory besides the usual.
    pub tmpfs: Vec<Scratch>,
    /// Size bound of each of `/tmp`, the home and `/dev/shm`.
    pub tmpfs_bytes: u64,
    /// Where there is a gate. Without one there is nothing to reach.
    pub gate: Option<GateSpec>,
}

impl Spec {
    /// Whether something is shown in a home, or in temporary files, that outlive the sandbox: an earlier
    /// execution may have made anything of the way to it.
    pub fn shows_in_kept_home(&self) -> bool {
        let mounts = self.mounts.iter().map(|mount| &mount.inside);
        let overlays = self.overlays.iter().map(|overlay| &overlay.inside);
        let areas = self.tmpfs.iter().map(|area| &area.inside);
        let kept = |inside: &PathBuf| {
            ["/home/agent", "/tmp"]
                .iter()
                .any(|own| inside.starts_with(own))
        };
        self.workspace.holds == Holds::Everything && mounts.chain(overlays).chain(areas).any(kept)
    }
}

/// Whose commands run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// The agent: uid 1000 without a capability.
    Agent,
    /// A setup: root of its own image, with [`crate::identity::SETUP_CAPABILITIES`].
    Setup,
}

impl Runs {
    /// Who that is inside.
    pub fn id(self) -> u32 {
        match self {
            Self::Agent => AGENT_ID,
            Self::Setup => 0,
        }
    }

    /// What the commands keep, in their own user namespace.
    pub fn capabilities(self) -> u64 {
        match self {
            Self::Agent => 0,
            Self::Setup => SETUP_CAPABILITIES,
        }
    }
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
    /// Read-only layers under the folder, whose own files count more: what a setup made. Owned as
    /// layers are.
    pub below: Vec<PathBuf>,
    /// Holds `upper` and `work`, on one file system.
    pub layer: PathBuf,
    pub holds: Holds,
    /// Absolute path inside.
    pub inside: PathBuf,
    /// Object directories of git, read-only: what was looked at, and its number inside.
    pub objects: Vec<KnownDirectory>,
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
    /// With one id mapped, this process has it already.
    StayGuest,
    /// Take a copy of a host mount into a slot.
    Open {
        slot: usize,
        path: CString,
        attributes: u64,
    },
    /// The same of a layer of an image, whose ids are those of the inside.
    OpenLayer {
        slot: usize,
        path: CString,
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
    /// What is mounted here becomes the working directory, and by the pivot `/`.
    Enter {
        path: CString,
    },
    /// What is mounted here takes no writes from here on; what is mounted below it may.
    Seal {
        path: CString,
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
    #[error("an image of {count} layers is over the bound of {MOST_LAYERS}")]
    TooManyLayers { count: usize },
    #[error("a setup may write nothing of the host, and `{0}` is one of its mounts")]
    SetupWritesHost(PathBuf),
    #[error("a setup that is root needs an image of its own to be root of")]
    SetupWithoutImage,
    #[error("the image `{0}` is another engine's")]
    ForeignImage(String),
}

/// Directories inside that belong to the system; the workspace may not be in or over them.
const OCCUPIED: &[&str] = &[
    "bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "nix", "gnu", "proc", "sbin", "sys",
    "usr", OWN,
];

/// Read-only, no device, no setuid.
pub(crate) const SYSTEM_ATTRIBUTES: u64 =
    crate::sys::MOUNT_ATTR_RDONLY | crate::sys::MOUNT_ATTR_NOSUID | crate::sys::MOUNT_ATTR_NODEV;
const DEVICE_ATTRIBUTES: u64 = crate::sys::MOUNT_ATTR_NOSUID | crate::sys::MOUNT_ATTR_NOEXEC;
pub(crate) const LAYER_ATTRIBUTES: u64 =
    crate::sys::MOUNT_ATTR_NOSUID | crate::sys::MOUNT_ATTR_NODEV;

/// Builds the list.
pub fn plan(spec: &Spec, facts: &HostFacts) -> Result<Vec<Op>, PlanError> {
    let inside = relative(&spec.workspace.inside)?;
    check_setup(spec)?;
    if let Root::Foreign(image) = &spec.root {
        return Err(PlanError::ForeignImage(image.clone()));
    }
    let mut list = List::default();
    list.push(Op::MakePrivate);
    list.push(if spec.identity.has_many() {
        Op::BecomeGuest {
            id: spec.identity.guest_id(),
        }
    } else {
        Op::StayGuest
    });
    open_sources(&mut list, spec, facts)?;
    list.push(Op::NewRoot {
        options: text(ROOT_OPTIONS),
    });
    list.push(Op::CgroupNamespace);
    let staged = list.ops.len();
    system(&mut list, facts)?;
    own_directory(&mut list, spec);
    etc::show(&mut list, spec, facts)?;
    devices(&mut list, spec);
    scratch::usual(&mut list, spec);
    workspace::mount(&mut list, spec, &inside)?;
    private::mount(&mut list, spec, &inside)?;
    mounts::show(&mut list, spec, &inside)?;
    scratch::areas(&mut list, spec, &inside)?;
    gate::show(&mut list, spec, facts);
    kernel::proc(&mut list, spec, facts);
    root::raise(&mut list, spec, staged);
    list.push(Op::LoopbackUp);
    gate::address(&mut list, spec);
    list.push(Op::Hostname {
        name: spec.hostname.clone().into_bytes(),
    });
    list.push(Op::Pivot);
    root::seal(&mut list, spec);
    list.push(match spec.identity {
        Identity::Single { .. } => Op::DropCapabilities {
            keep: OBSERVER_CAPABILITIES,
            ambient: true,
        },
        Identity::Root { .. } | Identity::Range { .. } => Op::DropCapabilities {
            keep: GUEST_CAPABILITIES | spec.runs.capabilities(),
            ambient: false,
        },
    });
    list.push(Op::NewSession);
    list.push(Op::NoCoreFiles);
    list.push(Op::NoNewPrivileges);
    list.push(Op::CloseDescriptors);
    Ok(list.ops)
}

/// Root of an image is nobody elsewhere: it has no image to leave, and nothing of the host to write.
fn check_setup(spec: &Spec) -> Result<(), PlanError> {
    if spec.runs == Runs::Agent {
        return Ok(());
    }
    if spec.root == Root::Host {
        return Err(PlanError::SetupWithoutImage);
    }
    match spec.mounts.iter().find(|m| m.access == Access::Write) {
        Some(mount) => Err(PlanError::SetupWritesHost(mount.inside.clone())),
        None => Ok(()),
    }
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

/// BOUND: directories, small files and mount points.
const ROOT_OPTIONS: &str = "mode=0755,size=16m,nr_inodes=4096";

/// Sources come first: once the new root is mounted, nothing of the host is looked up again.
/// Slots are numbered in this order, and the functions below count on it.
fn open_sources(list: &mut List, spec: &Spec, facts: &HostFacts) -> Result<(), PlanError> {
    root::open(list, spec)?;
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
    for layer in spec.workspace.lower.iter().chain(&spec.workspace.below) {
        list.open(host(layer)?, SYSTEM_ATTRIBUTES);
    }
    list.open(host(&spec.workspace.layer)?, LAYER_ATTRIBUTES);
    workspace::open_objects(list, spec)?;
    if let Some(tools) = &spec.workspace.tools {
        list.open(host(tools)?, SYSTEM_ATTRIBUTES);
    }
    private::open(list, spec)?;
    for mount in &spec.mounts {
        mounts::open(list, mount)?;
    }
    gate::open(list, spec, facts)?;
    // From here on slots are taken in the same order, but those of the root, which comes last.
    list.slots = root::slots(spec);
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

fn own_directory(list: &mut List, spec: &Spec) {
    list.directory(OWN, 0o755);
    root::apart(list, spec, OWN);
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

const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];

fn devices(list: &mut List, spec: &Spec) {
    list.directory("dev", 0o755);
    root::apart(list, spec, "dev");
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
    scratch::tmpfs(list, spec, "dev/shm", 0o1777);
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
