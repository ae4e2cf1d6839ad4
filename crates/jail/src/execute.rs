//! The loop that does what a plan says, in the launcher child.
//!
//! INVARIANT: runs between clone and exec in a copy of a possibly multi-threaded process. It makes
//! system calls on values that were prepared before the clone, and allocates nothing.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

use crate::identity::{AGENT_ID, BOUND_CAPABILITIES};
use crate::plan::{Op, SYSTEM_ATTRIBUTES, Shown};
use crate::sys::{self, Recursive};

/// BOUND: system directories, `/etc` directories, devices, layers and object directories of one
/// sandbox; a plan with more is refused before the clone.
pub(crate) const SLOTS: usize = 384;

/// Where the protocol socket and the guest program are when the guest starts.
pub(crate) const CONTROL_FD: RawFd = 3;
pub(crate) const GUEST_FD: RawFd = 4;
/// Where a failure is reported; closed by exec.
pub(crate) const ERROR_FD: RawFd = 5;
/// Where the gate asks for sockets, in a sandbox that has one.
pub(crate) const GATE_FD: RawFd = 6;

/// Descriptors that the launcher child hands on.
#[derive(Clone, Copy)]
pub(crate) struct Handed {
    pub control: RawFd,
    pub guest: RawFd,
    /// INVARIANT: 10 or more, so that it is never in another one's place.
    pub error: RawFd,
    pub gate: Option<RawFd>,
}

/// What failed: the number of the operation, and the kernel's word.
pub(crate) struct Failed {
    pub operation: u32,
    pub errno: Errno,
}

/// Executes all operations in order.
pub(crate) fn execute(ops: &[Op], handed: Handed) -> Result<(), Failed> {
    let mut slots: [Option<OwnedFd>; SLOTS] = [const { None }; SLOTS];
    // What is made here is for everybody inside, whatever the caller's files are.
    rustix::process::umask(Mode::from_raw_mode(0o022));
    for (number, op) in ops.iter().enumerate() {
        step(op, &mut slots, handed).map_err(|errno| Failed {
            operation: number as u32,
            errno,
        })?;
    }
    // Whatever is in a slot was attached; the descriptors are closed by now.
    std::mem::forget(slots);
    Ok(())
}

fn step(op: &Op, slots: &mut [Option<OwnedFd>; SLOTS], handed: Handed) -> rustix::io::Result<()> {
    match op {
        Op::MakePrivate => rustix::mount::mount_change(
            c"/",
            MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
        ),
        Op::BecomeGuest { id } => sys::set_ids(*id, *id),
        Op::StayGuest => Ok(()),
        Op::Open {
            slot,
            path,
            attributes,
        } => {
            let tree = sys::open_tree(path, Recursive::Yes)?;
            sys::mount_setattr(tree.as_raw_fd(), c"", Recursive::Yes, *attributes, None)?;
            slots[*slot] = Some(tree);
            Ok(())
        }
        Op::OpenLayer { slot, path } => {
            let tree = sys::open_tree(path, Recursive::No)?;
            sys::mount_setattr(
                tree.as_raw_fd(),
                c"",
                Recursive::No,
                SYSTEM_ATTRIBUTES,
                None,
            )?;
            slots[*slot] = Some(tree);
            Ok(())
        }
        Op::OpenExact {
            slot,
            path,
            identity,
            attributes,
            ..
        } => {
            let tree = open_exact(path, *identity)?;
            sys::mount_setattr(tree.as_raw_fd(), c"", Recursive::No, *attributes, None)?;
            slots[*slot] = Some(tree);
            Ok(())
        }
        Op::Inherited { slot, fd, .. } => {
            // The host process owns it; this process has its own copy since the clone.
            let copy = rustix::io::fcntl_dupfd_cloexec(borrow(*fd), 5)?;
            slots[*slot] = Some(copy);
            Ok(())
        }
        Op::NewRoot { options } => new_root(options),
        Op::Directory { path, mode } => {
            rustix::fs::mkdirat(CWD, path.as_c_str(), Mode::from_raw_mode(0o755))?;
            if *mode != 0o755 {
                rustix::fs::chmodat(
                    CWD,
                    path.as_c_str(),
                    Mode::from_raw_mode(*mode),
                    rustix::fs::AtFlags::empty(),
                )?;
            }
            Ok(())
        }
        Op::File {
            path,
            content,
            mode,
        } => write_file(path, content, *mode),
        Op::Symlink { target, path } => {
            rustix::fs::symlinkat(target.as_c_str(), CWD, path.as_c_str())
        }
        Op::Attach { slot, path } => {
            let Some(tree) = slots[*slot].take() else {
                return Err(Errno::BADF);
            };
            sys::move_mount(tree.as_raw_fd(), path)
        }
        Op::Bind { from, path } => {
            rustix::mount::mount_bind(from.as_c_str(), path.as_c_str())?;
            // A bind mount does not take over the flags of what it shows.
            sys::mount_setattr(
                libc::AT_FDCWD,
                path,
                Recursive::No,
                sys::MOUNT_ATTR_NOSUID | sys::MOUNT_ATTR_NODEV,
                None,
            )
        }
        Op::Area {
            from,
            onto,
            path,
            attributes,
        } => {
            let tree = sys::open_tree_of(beneath(from, path)?.as_fd())?;
            sys::mount_setattr(tree.as_raw_fd(), c"", Recursive::No, *attributes, None)?;
            sys::move_mount_onto(tree.as_raw_fd(), beneath(onto, path)?.as_fd())
        }
        Op::Reveal {
            mount,
            parts,
            is_directory,
        } => {
            let tree = match mount {
                Shown::Slot(slot) => slots[*slot].take().ok_or(Errno::BADF)?,
                Shown::At(path) => sys::open_tree(path, Recursive::No)?,
            };
            sys::move_mount_onto(tree.as_raw_fd(), make_place(parts, *is_directory)?.as_fd())
        }
        Op::Tmpfs { path, options } => rustix::mount::mount(
            c"tmpfs",
            path.as_c_str(),
            c"tmpfs",
            MountFlags::NOSUID | MountFlags::NODEV,
            options.as_c_str(),
        ),
        Op::Devpts { path } => rustix::mount::mount(
            c"devpts",
            path.as_c_str(),
            c"devpts",
            MountFlags::NOSUID | MountFlags::NOEXEC,
            c"newinstance,ptmxmode=0666,mode=0620",
        ),
        Op::Proc { path } => rustix::mount::mount(
            c"proc",
            path.as_c_str(),
            c"proc",
            MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NODEV,
            None,
        ),
        Op::Overlay {
            path,
            options,
            attributes,
        } => {
            rustix::mount::mount(
                c"overlay",
                path.as_c_str(),
                c"overlay",
                MountFlags::NOSUID | MountFlags::NODEV,
                options.as_c_str(),
            )?;
            sys::mount_setattr(libc::AT_FDCWD, path, Recursive::No, *attributes, None)
        }
        Op::Mask { path, with } => {
            match rustix::mount::mount_bind(with.as_c_str(), path.as_c_str()) {
                // Entries of /proc come and go with modules.
                Err(Errno::NOENT) => Ok(()),
                other => other,
            }
        }
        Op::Setting { path, value } => {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            match rustix::fs::openat(CWD, path.as_c_str(), flags, Mode::empty()) {
                Ok(file) => rustix::io::write(&file, value.as_bytes()).map(drop),
                // An older kernel does not count it.
                Err(Errno::NOENT) => Ok(()),
                Err(errno) => Err(errno),
            }
        }
        Op::ReadOnly { path } => {
            // Without a detached copy: that would need a mount namespace, of which there may be
            // none left.
            rustix::mount::mount_bind_recursive(path.as_c_str(), path.as_c_str())?;
            sys::mount_setattr(
                libc::AT_FDCWD,
                path,
                Recursive::Yes,
                sys::MOUNT_ATTR_RDONLY
                    | sys::MOUNT_ATTR_NOSUID
                    | sys::MOUNT_ATTR_NODEV
                    | sys::MOUNT_ATTR_NOEXEC,
                None,
            )
        }
        Op::Detach { path } => rustix::mount::unmount(path.as_c_str(), UnmountFlags::DETACH),
        Op::LoopbackUp => sys::loopback_up(),
        Op::LoopbackAddress { address } => sys::loopback_address(*address),
        Op::Hostname { name } => sys::set_hostname(name),
        Op::Pivot => {
            rustix::process::pivot_root(c".", c".")?;
            rustix::mount::unmount(c".", UnmountFlags::DETACH)?;
            rustix::process::chdir(c"/")
        }
        Op::Enter { path } => rustix::process::chdir(path.as_c_str()),
        Op::Seal { path } => sys::mount_setattr(
            libc::AT_FDCWD,
            path,
            Recursive::No,
            sys::MOUNT_ATTR_RDONLY
                | sys::MOUNT_ATTR_NOSUID
                | sys::MOUNT_ATTR_NODEV
                | sys::MOUNT_ATTR_NOEXEC,
            None,
        ),
        Op::CgroupNamespace => match sys::unshare(libc::CLONE_NEWCGROUP) {
            // A kernel without cgroups has nothing to hide.
            Err(Errno::INVAL) => Ok(()),
            other => other,
        },
        Op::DropCapabilities {
            keep,
            ambient: false,
        } => {
            sys::bound_capabilities(*keep)?;
            sys::set_capabilities(*keep)
        }
        Op::DropCapabilities {
            keep,
            ambient: true,
        } => {
            // What is not in the bounding set cannot become inheritable.
            sys::set_inheritable_capabilities(*keep | BOUND_CAPABILITIES, *keep)?;
            sys::raise_ambient(*keep)?;
            sys::bound_capabilities(0)?;
            sys::set_inheritable_capabilities(*keep, *keep)
        }
        Op::NoNewPrivileges => sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1),
        Op::NewSession => {
            rustix::process::setsid()?;
            rustix::process::umask(Mode::from_raw_mode(0o022));
            Ok(())
        }
        Op::NoCoreFiles => sys::set_rlimit(libc::RLIMIT_CORE, 0),
        Op::CloseDescriptors => close_descriptors(handed),
    }
}

/// A detached copy of the mount at a path of the host. No link is followed, and what is there must
/// be what was looked at before.
pub(crate) fn open_exact(path: &CStr, identity: (u64, u64)) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let found = rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve)?;
    let stat = rustix::fs::fstat(&found)?;
    if (stat.st_dev, stat.st_ino) != identity {
        return Err(Errno::STALE);
    }
    sys::open_tree_of(found.as_fd())
}

/// HOSTILE: earlier executions wrote in these trees, and the host's root is still there to be
/// reached: no link is followed, and nothing above the tree is.
pub(crate) fn beneath(tree: &CStr, path: &CStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(CWD, tree, flags | OFlags::NOFOLLOW, Mode::empty())?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(&directory, path, flags, Mode::empty(), resolve)
}

/// HOSTILE: as above; what is missing of a path is made, as the agent's.
fn make_place(parts: &[CString], is_directory: bool) -> rustix::io::Result<OwnedFd> {
    let agent = (
        rustix::fs::Uid::from_raw(AGENT_ID),
        rustix::fs::Gid::from_raw(AGENT_ID),
    );
    let looking = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut at = rustix::fs::openat(CWD, c".", looking | OFlags::DIRECTORY, Mode::empty())?;
    for (number, part) in parts.iter().enumerate() {
        let directory = is_directory || number + 1 < parts.len();
        let made = if directory {
            rustix::fs::mkdirat(&at, part.as_c_str(), Mode::from_raw_mode(0o755))
        } else {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            rustix::fs::openat(&at, part.as_c_str(), flags, Mode::from_raw_mode(0o644)).map(drop)
        };
        match made {
            Ok(()) => {
                let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
                let (uid, gid) = (Some(agent.0), Some(agent.1));
                match rustix::fs::chownat(&at, part.as_c_str(), uid, gid, flags) {
                    // There is no agent where a setup is the only one.
                    Ok(()) | Err(Errno::INVAL) => {}
                    Err(errno) => return Err(errno),
                }
            }
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        let kind = if directory {
            OFlags::DIRECTORY
        } else {
            OFlags::empty()
        };
        at = rustix::fs::openat(&at, part.as_c_str(), looking | kind, Mode::empty())?;
    }
    Ok(at)
}

fn borrow(fd: RawFd) -> std::os::fd::BorrowedFd<'static> {
    // SAFETY: the descriptor was open when the plan was made and is closed by nobody before exec.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) }
}

/// Mounts a fresh tmpfs over a directory that every host has and stands on it.
fn new_root(options: &CStr) -> rustix::io::Result<()> {
    let mut result = Err(Errno::NOENT);
    for place in [c"/tmp", c"/usr", c"/etc"] {
        result = rustix::mount::mount(
            c"tmpfs",
            place,
            c"tmpfs",
            MountFlags::NOSUID | MountFlags::NODEV,
            options,
        )
        .and_then(|()| rustix::process::chdir(place));
        if result.is_ok() {
            break;
        }
    }
    result
}

fn write_file(path: &CStr, content: &[u8], mode: u32) -> rustix::io::Result<()> {
    let file = rustix::fs::openat(
        CWD,
        path,
        OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::from_raw_mode(mode),
    )?;
    let mut rest = content;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest)?;
        rest = &rest[written..];
    }
    Ok(())
}

/// Leaves exactly: 0, 1, 2 on `/dev/null`, the socket, and what exec closes: the program and the
/// way to report a failure.
fn close_descriptors(handed: Handed) -> rustix::io::Result<()> {
    // They may be in each other's place: move them out of the way first.
    let control = rustix::io::fcntl_dupfd_cloexec(borrow(handed.control), 10)?;
    let guest = rustix::io::fcntl_dupfd_cloexec(borrow(handed.guest), 10)?;
    let gate = handed
        .gate
        .map(|gate| rustix::io::fcntl_dupfd_cloexec(borrow(gate), 10))
        .transpose()?;
    let null = rustix::fs::openat(
        CWD,
        c"/dev/null",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    for stream in 0..3 {
        sys::dup_to(null.as_raw_fd(), stream)?;
    }
    sys::dup_to(control.as_raw_fd(), CONTROL_FD)?;
    sys::dup_to(guest.as_raw_fd(), GUEST_FD)?;
    sys::dup_to(handed.error, ERROR_FD)?;
    for fd in [GUEST_FD, ERROR_FD] {
        rustix::io::fcntl_setfd(borrow(fd), rustix::io::FdFlags::CLOEXEC)?;
    }
    let first_closed = match gate {
        Some(gate) => {
            sys::dup_to(gate.as_raw_fd(), GATE_FD)?;
            std::mem::forget(gate);
            GATE_FD + 1
        }
        None => GATE_FD,
    };
    std::mem::forget((control, guest, null));
    sys::close_from(first_closed.cast_unsigned())
}
