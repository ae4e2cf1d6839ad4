//! The directory of one sandbox that an engine holds: what it is shown of ours, and the socket at which
//! the guest gets its own.

use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringfence_jail::attach::{self, Attached};
use ringfence_jail::facts::{HostFacts, Item};
use ringfence_jail::plan::{Access, GateSpec, Root, TRUST};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde_json::{Value, json};

use super::super::{BackendError, HELD_BY, LOCK, Start};
use super::container::NAME_LABEL;
use super::image::{self, Looked};
use super::text;
use crate::changes::remove_tree;
use crate::guest::{self, Readable};
use crate::home::Home;
use crate::lock::FileLock;

/// Where the guest and its socket are inside.
pub const GUEST: &str = "/.ringfence/guest";
pub const CONTROL: &str = "/.ringfence/control";
const OWN: &str = "/.ringfence";
const SOCKET: &str = "control";
/// The list of what an engine soils.
const SOILED: &str = "soiled";

/// BOUND: an engine starts a container within a second; on a machine that is drowning, within a minute.
const UP_WITHIN: Duration = Duration::from_secs(60);
/// BOUND: how often it is looked whether the container is still there while it is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Something that a container is shown.
#[derive(Clone, Debug)]
pub struct Mount {
    pub source: Source,
    /// Absolute path inside.
    pub inside: String,
    pub access: Access,
}

#[derive(Clone, Debug)]
pub enum Source {
    /// A path of the host.
    Bind(String),
    /// Layers that the engine joins: options of an overlay.
    Overlay(String),
    /// A volume of this name.
    Volume(String),
}

impl Mount {
    /// As the engine takes it, for the sandbox of a name.
    pub fn describe(&self, name: &str) -> Value {
        match &self.source {
            Source::Bind(path) => json!({
                "Type": "bind",
                "Source": path,
                "Target": self.inside,
                "ReadOnly": self.access == Access::ReadOnly,
                "BindOptions": { "Propagation": "rprivate" },
            }),
            Source::Volume(volume) => json!({
                "Type": "volume",
                "Source": volume,
                "Target": self.inside,
                "ReadOnly": self.access == Access::ReadOnly,
                "VolumeOptions": { "NoCopy": true, "Labels": { NAME_LABEL: name } },
            }),
            Source::Overlay(options) => json!({
                "Type": "volume",
                "Target": self.inside,
                // Without an upper layer it can only be read, and volumes without a name are not asked.
                "VolumeOptions": {
                    "NoCopy": true,
                    "Labels": { NAME_LABEL: name },
                    "DriverConfig": {
                        "Name": "local",
                        "Options": { "type": "overlay", "device": "overlay", "o": options },
                    },
                },
            }),
        }
    }
}

/// What was mounted by us.
pub fn bound(attached: Vec<Attached>) -> Vec<Mount> {
    let mount = |one: Attached| Mount {
        source: Source::Bind(one.host.to_string_lossy().into_owned()),
        inside: one.inside.to_string_lossy().into_owned(),
        access: one.access,
    };
    attached.into_iter().map(mount).collect()
}

/// Where places are, without a link on the way: what is mounted there is known by its real path.
pub fn places(home: &Home) -> Result<PathBuf, BackendError> {
    let path = home.attached();
    fs::canonicalize(&path).map_err(failed("find", &path))
}

/// Says in a new place who holds its sandbox; nobody else takes it for abandoned while this is held.
pub fn claim(path: &Path, backend: &str) -> Result<FileLock, BackendError> {
    let lock = path.join(LOCK);
    let held = FileLock::take(&lock).map_err(|error| io::Error::other(error.to_string()));
    let held = held.and_then(|held| held.ok_or(io::ErrorKind::ResourceBusy.into()));
    let held = held.map_err(failed("lock", &lock))?;
    write(&path.join(HELD_BY), backend.as_bytes())?;
    Ok(held)
}

/// The directory.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    agent: (u32, u32),
    _lock: FileLock,
    listener: Option<UnixListener>,
}

impl Place {
    /// INVARIANT: the directory is there before anything that an engine makes.
    pub fn make(
        places: &Path,
        backend: &str,
        start: &Start<'_>,
        readable: Readable,
    ) -> Result<Self, BackendError> {
        let path = places.join(start.name);
        let own = path.join("own");
        make_directory(&path, 0o700)?;
        let held = claim(&path, backend)?;
        make_directory(&own, 0o755)?;
        let place = Self {
            path,
            agent: start.spec.identity.agent_on_host(),
            _lock: held,
            listener: None,
        };
        let guest = own.join("guest");
        guest::install(places, &guest, readable).map_err(failed("bring the guest to", &guest))?;
        Ok(place)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The sandbox's.
    pub fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Who the agent is, where it is nobody of this machine.
    pub fn is_of(&mut self, agent: (u32, u32)) {
        self.agent = agent;
    }

    pub fn agent(&self) -> (u32, u32) {
        self.agent
    }

    /// Where the guest gets its sockets. By way of a descriptor: a socket's path may have 107 bytes only, a home's any number.
    pub fn listen(&mut self) -> Result<(), BackendError> {
        let own = self.path.join("own");
        let socket = own.join(SOCKET);
        let fail = failed("listen at", &socket);
        let listen = || {
            let directory = File::open(&own)?;
            let path = format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd());
            let listener = UnixListener::bind(path)?;
            fs::set_permissions(&socket, fs::Permissions::from_mode(0o600))?;
            if self.agent.0 != rustix::process::geteuid().as_raw() {
                std::os::unix::fs::chown(&socket, Some(self.agent.0), Some(self.agent.1))?;
            }
            Ok(listener)
        };
        self.listener = Some(listen().map_err(fail)?);
        Ok(())
    }

    /// What is ours inside: our own directory, and `/etc` or some files of it.
    pub fn own_mounts(
        &self,
        start: &Start<'_>,
        accounts: &Looked,
    ) -> Result<Vec<Mount>, BackendError> {
        let spec = start.spec;
        let own = self.path.join("own");
        // Mount points, for what is shown there besides.
        let objects = (0..spec.workspace.objects.len()).map(|number| format!("objects/{number}"));
        let tools = spec.workspace.tools.iter().map(|_| "tools".to_owned());
        for name in objects.chain(tools) {
            make_all(&own.join(name))?;
        }
        let mut mounts = vec![read_only(&own, OWN)?];
        if let Some(gate) = &spec.gate {
            stage(gate, &own)?;
        }
        let etc = self.path.join("etc");
        make_directory(&etc, 0o755)?;
        let accounts = image::joined(accounts, self.agent);
        let name_service = spec
            .gate
            .as_ref()
            .map(|gate| format!("nameserver {}\n", gate.name_server));
        let files: [(&str, Vec<u8>); 6] = [
            ("passwd", accounts.passwd),
            ("group", accounts.group),
            (
                "hosts",
                b"127.0.0.1 localhost ringfence\n::1 localhost\n".to_vec(),
            ),
            ("hostname", b"ringfence\n".to_vec()),
            ("resolv.conf", name_service.unwrap_or_default().into_bytes()),
            (
                "nsswitch.conf",
                b"passwd: files\ngroup: files\nhosts: files dns\n".to_vec(),
            ),
        ];
        for (name, content) in &files {
            write(&etc.join(name), content)?;
        }
        let looked = failed("look at", Path::new("/"));
        let bundles = if spec.root == Root::Host {
            let facts = HostFacts::gather().map_err(looked)?;
            mounts.push(read_only(&etc, "/etc")?);
            mounts.extend(system(&facts, &etc)?);
            facts.bundles.clone()
        } else {
            // Wherever programs of an image may look.
            let nowhere = std::iter::empty::<&Path>();
            HostFacts::gather_for_image(nowhere)
                .map_err(looked)?
                .bundles
        };
        // An engine has files of its own for some of these; ours are on top.
        for (name, _) in &files {
            mounts.push(read_only(&etc.join(name), &format!("/etc/{name}"))?);
        }
        if let Some(trust) = spec.gate.as_ref().and_then(|gate| gate.trust.as_ref()) {
            let places = bundles.iter().map(String::as_str).chain([TRUST]);
            for place in places {
                mounts.push(read_only(trust, &format!("/{place}"))?);
            }
        }
        Ok(mounts)
    }

    /// A file for the engine itself; gives its path.
    pub fn keep(&self, name: &str, content: &str) -> Result<String, BackendError> {
        let path = self.path.join(name);
        write(&path, content.as_bytes())?;
        text(&path)
    }

    /// Waits until the guest asks, and gives it its sockets. The way is closed afterwards.
    pub fn hand_over(
        &mut self,
        gate: Option<BorrowedFd<'_>>,
        is_running: impl Fn() -> bool,
    ) -> Result<UnixStream, BackendError> {
        let listener = self.listener.take().ok_or(BackendError::EndedEarly)?;
        let socket = self.path.join("own").join(SOCKET);
        let fail = || failed("talk at", &socket);
        let deadline = Instant::now() + UP_WITHIN;
        let wait = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(LOOK_EVERY.subsec_nanos()),
        };
        loop {
            let mut waits = [PollFd::new(&listener, PollFlags::IN)];
            match rustix::event::poll(&mut waits, Some(&wait)) {
                Ok(0) if !is_running() => return Err(BackendError::EndedEarly),
                Ok(0) if Instant::now() > deadline => {
                    let seconds = UP_WITHIN.as_secs();
                    return Err(BackendError::Late { seconds });
                }
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => break,
                Err(errno) => return Err(fail()(errno.into())),
            }
        }
        let (way, _) = listener.accept().map_err(fail())?;
        fs::remove_file(&socket).map_err(fail())?;
        drop(listener);
        let (ours, theirs) = UnixStream::pair().map_err(fail())?;
        let sockets: Vec<BorrowedFd<'_>> = [theirs.as_fd()].into_iter().chain(gate).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        rights.push(SendAncillaryMessage::ScmRights(&sockets));
        rustix::net::sendmsg(
            &way,
            &[IoSlice::new(&[1])],
            &mut rights,
            SendFlags::NOSIGNAL,
        )
        .map_err(|errno| fail()(errno.into()))?;
        Ok(ours)
    }

    /// Directories of layers in which the engine will leave what only it can remove.
    pub fn soil(&self, directories: &[PathBuf]) -> Result<(), BackendError> {
        let list = serde_json::to_string(directories).unwrap_or_default();
        self.keep(SOILED, &list).map(drop)
    }

    /// The container is gone: so is this.
    pub fn leave(&self) {
        remove(&self.path);
    }
}

/// Takes what the engine left out of layers that go their own way.
fn take_soiled(path: &Path) {
    let list = fs::read_to_string(path.join(SOILED)).unwrap_or_default();
    let soiled: Vec<PathBuf> = serde_json::from_str(&list).unwrap_or_default();
    for (number, soiled) in soiled.iter().enumerate() {
        let kept = path.join(format!("soiled{number}"));
        // Where the layer is gone, so is this.
        let _ = fs::rename(soiled, &kept);
        // Most often there is nothing in it.
        let parts = ["", "workspace", "home", "tmp"].map(|part| kept.join(part).join("work"));
        for work in parts {
            let _ = fs::remove_dir(work);
        }
    }
}

/// Unmounts and removes a place. What resists is found again by its name.
pub fn remove(path: &Path) {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return;
    };
    // INVARIANT: nothing is removed through a mount.
    if attach::detach(path).is_err() {
        return;
    }
    take_soiled(path);
    // Each by itself: one that resists keeps no other. Who held it is known until all is gone.
    let mut resists = false;
    if let (Ok(opened), Ok(entries)) = (File::open(path), fs::read_dir(path)) {
        for entry in entries
            .flatten()
            .filter(|entry| entry.file_name() != HELD_BY)
        {
            resists |= remove_tree(opened.as_fd(), entry.file_name().as_bytes()).is_err();
        }
    }
    if let Ok(parent) = File::open(parent)
        && !resists
    {
        let _ = remove_tree(parent.as_fd(), name.as_bytes());
    }
}

/// The host's own system, read-only.
fn system(facts: &HostFacts, etc: &Path) -> Result<Vec<Mount>, BackendError> {
    let mut mounts = Vec::new();
    for (name, item) in &facts.system {
        if let Item::Directory | Item::Symlink(_) = item {
            // A container's root has no links of ours: what one leads to is shown in its place.
            let path = Path::new("/").join(name);
            let real = fs::canonicalize(&path).map_err(failed("find", &path))?;
            mounts.push(read_only(&real, &format!("/{name}"))?);
        }
    }
    for (name, item) in &facts.etc {
        let path = etc.join(name);
        if let Some(parent) = path.parent() {
            make_all(parent)?;
        }
        match item {
            Item::Directory => {
                make_all(&path)?;
                let source = Path::new("/etc").join(name);
                mounts.push(read_only(&source, &format!("/etc/{name}"))?);
            }
            Item::Symlink(target) => {
                let target = std::ffi::OsStr::from_bytes(target);
                std::os::unix::fs::symlink(target, &path).map_err(failed("make", &path))?;
            }
            Item::File(content) => write(&path, content)?,
        }
    }
    Ok(mounts)
}

/// Settings of clients that reach the gate.
fn stage(gate: &GateSpec, own: &Path) -> Result<(), BackendError> {
    for (name, content) in &gate.staged {
        let path = own.join(name);
        match content {
            None => make_all(&path)?,
            Some(content) => write(&path, content)?,
        }
    }
    match gate.trust {
        // The mount point.
        Some(_) => write(&own.join("ca.pem"), b""),
        None => Ok(()),
    }
}

pub fn read_only(source: &Path, inside: &str) -> Result<Mount, BackendError> {
    Ok(Mount {
        source: Source::Bind(text(source)?),
        inside: inside.to_owned(),
        access: Access::ReadOnly,
    })
}

pub fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BackendError + use<> {
    let path = path.to_owned();
    move |source| BackendError::Place { what, path, source }
}

fn make_directory(path: &Path, mode: u32) -> Result<(), BackendError> {
    let made = fs::DirBuilder::new().mode(0o700).create(path);
    let made = made.and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)));
    made.map_err(failed("make", path))
}

/// Readable for the agent, whatever the umask.
pub fn make_all(path: &Path) -> Result<(), BackendError> {
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path);
    made.map_err(failed("make", path))
}

fn write(path: &Path, content: &[u8]) -> Result<(), BackendError> {
    let mode = fs::Permissions::from_mode(0o644);
    fs::write(path, content)
        .and_then(|()| fs::set_permissions(path, mode))
        .map_err(failed("write", path))
}
