//! Looking whether this kernel and this host give what a sandbox is made of, by trying it.

use std::ffi::{CStr, CString};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::mount::{MountFlags, MountPropagationFlags};

use crate::identity::Identity;
use crate::sys::{self, Cloned, Recursive};

/// Something that the kernel gives or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Primitive {
    /// User, mount, pid, network, ipc and uts namespaces in one clone.
    Namespaces,
    /// Mounting inside those namespaces.
    Mounts,
    /// A fresh `/proc` inside.
    Proc,
    /// Copy-on-write with `userxattr` on the state directory.
    Overlay,
}

/// Tries one in a child process; the error is the kernel's.
pub fn try_primitive(primitive: Primitive, state: &Path) -> io::Result<()> {
    let identity = Identity::of_caller(0, 0);
    let scratch = tempdir_in(state)?;
    let directory = CString::new(scratch.as_os_str().as_bytes())?;
    let result = in_namespaces(&identity, &directory, || match primitive {
        Primitive::Namespaces => Ok(()),
        Primitive::Mounts => {
            rustix::mount::mount_change(
                c"/",
                MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
            )?;
            let tree = sys::open_tree(c"/usr", Recursive::Yes)?;
            sys::mount_setattr(
                tree.as_raw_fd(),
                c"",
                Recursive::Yes,
                sys::MOUNT_ATTR_RDONLY,
                None,
            )
        }
        Primitive::Proc => {
            rustix::mount::mount(c"proc", c"/proc", c"proc", MountFlags::NOSUID, None)
        }
        Primitive::Overlay => rustix::mount::mount(
            c"overlay",
            c"merged",
            c"overlay",
            MountFlags::NOSUID,
            c"lowerdir=lower,upperdir=upper,workdir=work,userxattr",
        ),
    });
    // Best effort: the directory is ours and empty but for what the kernel made.
    for part in ["work/work", "work", "upper", "lower", "merged", ""] {
        let _ = std::fs::remove_dir(scratch.join(part));
    }
    result
}

fn tempdir_in(state: &Path) -> io::Result<std::path::PathBuf> {
    let scratch = state.join(format!("probe-{}", std::process::id()));
    for part in ["lower", "upper", "work", "merged"] {
        std::fs::create_dir_all(scratch.join(part))?;
    }
    if rustix::process::geteuid().is_root() {
        let (uid, gid) = Identity::of_caller(0, 0).agent_on_host();
        for part in ["upper", "work", "lower", "merged", ""] {
            std::os::unix::fs::chown(scratch.join(part), Some(uid), Some(gid))?;
        }
    }
    Ok(scratch)
}

/// Runs system calls in a child with fresh namespaces, standing in a directory.
///
/// `action` must not allocate: it runs between clone and exit.
fn in_namespaces(
    identity: &Identity,
    directory: &CStr,
    action: impl FnOnce() -> rustix::io::Result<()>,
) -> io::Result<()> {
    let (mut answer, say) = io::pipe()?;
    let (go_read, mut go_write) = io::pipe()?;
    let flags = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS;
    // SAFETY: the child makes system calls only.
    let (pid, pidfd) = match unsafe { sys::clone_into(flags as u64, None) }? {
        Cloned::Child => {
            let mut byte = [0u8; 4];
            // SAFETY: this process's copies; the buffer has four bytes.
            unsafe {
                libc::close(go_write.as_raw_fd());
                libc::read(go_read.as_raw_fd(), byte.as_mut_ptr().cast(), 1);
            }
            // The state directory is entered with the host's rights, before they are given up.
            let entered = rustix::process::chdir(directory);
            let became = entered.and_then(|()| match identity {
                Identity::Single { .. } | Identity::Root { .. } => Ok(()),
                Identity::Range { .. } => sys::set_ids(0, 0),
            });
            let errno = became
                .and_then(|()| action())
                .err()
                .map_or(0, rustix::io::Errno::raw_os_error);
            let bytes = errno.to_le_bytes();
            // SAFETY: the buffer is ours.
            unsafe { libc::write(say.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
            sys::exit_now(0)
        }
        Cloned::Parent { pid, pidfd } => (pid, pidfd),
    };
    drop((say, go_read));
    let mapped = identity
        .write_maps(pid)
        .and_then(|()| go_write.write_all(&[1]));
    drop(go_write);
    let mut bytes = [0u8; 4];
    let read = answer.read_exact(&mut bytes);
    let _ = rustix::process::waitid(
        rustix::process::WaitId::PidFd(std::os::fd::AsFd::as_fd(&pidfd)),
        rustix::process::WaitIdOptions::EXITED,
    );
    mapped?;
    read?;
    match i32::from_le_bytes(bytes) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// The version of the Landlock interface, where there is one.
pub fn landlock_version() -> Option<i64> {
    // SAFETY: asking for the version takes no attribute.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0,
            1,
        )
    };
    (version > 0).then_some(version)
}

/// Whether system call filters can be installed.
pub fn has_seccomp() -> bool {
    // SAFETY: asking for one's own mode changes nothing.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0) >= 0 }
}
