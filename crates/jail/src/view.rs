//! What a stack of layers shows, as the descriptor of a directory.
//!
//! ```text
//!  host process                        child (own mount namespace; rootless: own user namespace)
//!  ────────────                        ──────────────────────────────────────────────────────────
//!  opens the layers, words the options
//!  clone ────────────────────────────▶ waits
//!  rootless: writes the maps, go ────▶ mounts the overlay, opens its root
//!  ◀───────────────────────────────── sends that descriptor, and ends
//! ```
//!
//! The namespace ends with the child. The mount is then held by the descriptor alone, and gone when
//! that is closed.

use std::ffi::{CStr, CString};
use std::fmt::Write as _;
use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use rustix::process::{WaitId, WaitIdOptions};

use crate::identity::Identity;
use crate::sys::{self, Cloned};

/// BOUND: the kernel takes one page of options. A layer takes at most 25 bytes of it, because it is
/// named by its descriptor and not by its path.
const OPTIONS_BYTES: usize = 4096;

/// Where the child mounts: it needs a directory that is on every host, and nothing of it again.
const PLACE: &CStr = c"/proc";

/// Shows a stack, topmost first, as a directory that can be listed and not be changed. Marks in the
/// layers are read as `userxattr` has them. One layer is no stack, and is opened as it is.
///
/// Rootless, what a mode closes to the caller is closed in the view, too.
pub fn merged_view(lower: &[&Path]) -> io::Result<OwnedFd> {
    match lower {
        [] => Err(Errno::INVAL.into()),
        [only] => open_directory(only),
        _ => {
            let layers = lower.iter().map(|path| Layer::new(path));
            mount_in_child(&layers.collect::<io::Result<Vec<_>>>()?)
        }
    }
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, LISTED, Mode::empty())?)
}

const LISTED: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

const HELD: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A layer, held so that its descriptor's number is taken. The child opens it once more under that
/// number: an overlay is made of mounts of its own namespace only.
struct Layer {
    path: CString,
    held: OwnedFd,
}

impl Layer {
    fn new(path: &Path) -> io::Result<Self> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        let held = rustix::fs::open(&path, HELD, Mode::empty())?;
        Ok(Self { path, held })
    }
}

/// The options of the mount.
fn options(layers: &[Layer]) -> io::Result<CString> {
    let mut text = String::from("userxattr,lowerdir=");
    for (number, layer) in layers.iter().enumerate() {
        let between = if number == 0 { "" } else { ":" };
        let _ = write!(text, "{between}/proc/self/fd/{}", layer.held.as_raw_fd());
    }
    if text.len() >= OPTIONS_BYTES {
        return Err(Errno::TOOBIG.into());
    }
    Ok(CString::new(text)?)
}

fn mount_in_child(layers: &[Layer]) -> io::Result<OwnedFd> {
    let options = options(layers)?;
    let (mut ours, theirs) = UnixStream::pair()?;
    let identity = Identity::of_caller(0, 0);
    let flags = match identity {
        Identity::Single { .. } | Identity::Root { .. } => libc::CLONE_NEWUSER | libc::CLONE_NEWNS,
        // Root stays root, so that files of every owner can be read.
        Identity::Range { .. } => libc::CLONE_NEWNS,
    };
    // SAFETY: the child makes system calls only, on values that are ready.
    let (pid, pidfd) = match unsafe { sys::clone_into(flags as u64, None) }? {
        Cloned::Child => {
            child(ours.as_fd(), theirs.as_fd(), layers, &options);
            sys::exit_now(0)
        }
        Cloned::Parent { pid, pidfd } => (pid, pidfd),
    };
    drop(theirs);
    let mapped = match identity {
        Identity::Single { .. } | Identity::Root { .. } => identity.write_maps(pid),
        Identity::Range { .. } => Ok(()),
    };
    let went = mapped.and_then(|()| ours.write_all(&[1]));
    // Without a word the child reads the end of the stream, and ends.
    let _ = ours.shutdown(std::net::Shutdown::Write);
    let received = receive(&ours);
    let _ = rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
    went?;
    received
}

/// INVARIANT: runs after clone in a copy of a possibly multi-threaded process; allocates nothing.
fn child(parents: BorrowedFd<'_>, socket: BorrowedFd<'_>, layers: &[Layer], options: &CStr) {
    let mut word = [0_u8; 1];
    // SAFETY: this process's own copy of the other end, which nothing here uses again; the buffer
    // has one byte.
    let told = unsafe {
        libc::close(parents.as_raw_fd());
        libc::read(socket.as_raw_fd(), word.as_mut_ptr().cast(), 1)
    };
    if told != 1 {
        return;
    }
    let mounted = mount(layers, options);
    let errno = mounted
        .as_ref()
        .err()
        .map_or(0, |errno| errno.raw_os_error());
    let bytes = errno.to_le_bytes();
    let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptor = mounted.as_ref().ok().map(AsFd::as_fd);
    control.push(SendAncillaryMessage::ScmRights(descriptor.as_slice()));
    // Who does not hear it reads the end of the stream.
    let _ = rustix::net::sendmsg(
        socket,
        &[IoSlice::new(&bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    );
    // Closed by the end of this process.
    std::mem::forget(mounted);
}

fn mount(layers: &[Layer], options: &CStr) -> rustix::io::Result<OwnedFd> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change(c"/", private)?;
    for layer in layers {
        let here = rustix::fs::open(layer.path.as_c_str(), HELD, Mode::empty())?;
        sys::dup_to(here.as_raw_fd(), layer.held.as_raw_fd())?;
    }
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount(c"overlay", PLACE, c"overlay", flags, options)?;
    rustix::fs::openat(CWD, PLACE, LISTED, Mode::empty())
}

fn receive(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut bytes = [0_u8; 4];
    let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let heard = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    if heard.bytes != bytes.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    match (i32::from_le_bytes(bytes), descriptor) {
        (0, Some(descriptor)) => Ok(descriptor),
        (0, None) => Err(io::ErrorKind::UnexpectedEof.into()),
        (errno, _) => Err(io::Error::from_raw_os_error(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::io::Read as _;
    use std::path::PathBuf;

    /// A stack of 64 layers, each with a file of its own and the same one.
    fn stack(dir: &Path, count: usize) -> Vec<PathBuf> {
        (0..count)
            .map(|number| {
                // Long paths, which would not fit into the options.
                let layer = dir.join(format!("{}{number}", "x".repeat(150)));
                fs::create_dir(&layer).unwrap();
                fs::write(layer.join(format!("own{number}")), "").unwrap();
                fs::write(layer.join("same"), number.to_string()).unwrap();
                layer
            })
            .collect()
    }

    fn names(view: &OwnedFd) -> Vec<String> {
        let path = format!("/proc/self/fd/{}", view.as_raw_fd());
        let names = fs::read_dir(path).unwrap();
        let mut names: Vec<_> = names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn read(view: &OwnedFd, name: &str) -> io::Result<String> {
        let mode = Mode::empty();
        let file = rustix::fs::openat(view, name, OFlags::RDONLY | OFlags::CLOEXEC, mode)?;
        let mut text = String::new();
        File::from(file).read_to_string(&mut text)?;
        Ok(text)
    }

    #[test]
    fn the_topmost_shows_and_nothing_can_be_changed() {
        let dir = tempfile::tempdir().unwrap();
        let layers = stack(dir.path(), 64);
        let layers: Vec<_> = layers.iter().map(PathBuf::as_path).collect();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let view = merged_view(&layers).unwrap();
        assert_eq!(names(&view).len(), 65);
        assert_eq!(read(&view, "same").unwrap(), "0");
        let flags = OFlags::WRONLY | OFlags::CREATE;
        let made = rustix::fs::openat(&view, "new", flags, Mode::RUSR);
        assert_eq!(made.unwrap_err(), Errno::ROFS);
        let now = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert_eq!(mounts, now, "nothing is mounted here");
        drop(view);
        // Nothing holds the layers any more.
        for layer in layers {
            fs::remove_dir_all(layer).unwrap();
        }
    }

    #[test]
    fn one_layer_is_itself_and_none_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let layers = stack(dir.path(), 1);
        let view = merged_view(&[&layers[0]]).unwrap();
        assert_eq!(names(&view), ["own0", "same"]);
        let none = merged_view(&[]).unwrap_err();
        assert_eq!(none.raw_os_error(), Some(libc::EINVAL));
        let missing = merged_view(&[&layers[0], Path::new("/nowhere")]).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn many_threads_make_views_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let layers = stack(dir.path(), 2);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        let view = merged_view(&[&layers[0], &layers[1]]).unwrap();
                        assert_eq!(names(&view), ["own0", "own1", "same"]);
                    }
                });
            }
        });
    }

    /// Rootless, an overlay is another kind of mount. Both are tested.
    #[test]
    fn everything_again_without_privileges() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(dir.path(), open).unwrap();
        let copy = dir.path().join("tests");
        // Another process writes the copy: a fork in a neighbouring test would hold ours open, and
        // a program that is open for writing cannot be executed.
        let copied = std::process::Command::new("cp")
            .arg(std::env::current_exe().unwrap())
            .arg(&copy)
            .status();
        assert!(copied.unwrap().success());
        let output = std::process::Command::new("setpriv")
            .args(["--reuid=65533", "--regid=65533", "--clear-groups"])
            .args(["--inh-caps=-all", "--"])
            .arg(&copy)
            .arg("view::")
            .env("TMPDIR", dir.path())
            .current_dir(dir.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{output:?}");
        assert!(said.contains("4 passed"), "{said}");
    }
}
