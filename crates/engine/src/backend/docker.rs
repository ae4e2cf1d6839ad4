//! The user's own Docker engine, or Podman's, which speaks the same: a container whose pid 1 is our
//! guest, brought from outside. No image needs anything of ours.
//!
//! ```text
//! attached/<name>/          before the container, and gone after it
//! ├── own/                  /.ringfence inside: the guest, the socket at which it gets its sockets
//! ├── etc/                  /etc inside, or some files of it
//! └── tree, m0, …           as root: what is shown, mounted by us (jail/attach.rs)
//! ```
//!
//! Not as root, the engine joins the layers itself, by volumes of its own. The container has one user
//! without a capability, a root that is read-only, no network but its own loopback, and bounds of the
//! engine's cgroup that are read back before they are believed.
//!
//! With a runtime that has a kernel of its own for each container (gVisor's `runsc`), pid 1 is root of
//! that kernel and switches to the agent, as it is without an engine; no socket of the host's leads
//! there, and the engine carries its streams instead.

mod api;
mod container;
mod find;
mod image;
mod parcel;
pub(super) mod place;
mod remote;
mod running;
mod streams;
mod told;
mod volumes;
mod way;

pub(super) use place::remove as leave;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringfence_jail::attach;
use ringfence_jail::cgroup::Foreign;
use ringfence_jail::identity::Identity;
use ringfence_jail::plan::{self, Root, Runs};
use ringfence_model::wire::Observation;
use rustix::process::{Pid, PidfdFlags};
use serde_json::Value;

use super::{Backend, BackendError, Start, Started, gvisor, with_readable_tools};
use crate::guest::Readable;
use crate::home::Home;
use crate::sandbox::SandboxError;
use api::{Ask, Engine};
use container::Wanted;
pub use find::Flavour;
pub use image::ForeignImage;
use place::{Mount, Place, Source};
use running::{Bounds, Running};
use told::Told;

/// Containers of one engine.
#[derive(Clone, Debug)]
pub struct Docker {
    flavour: Flavour,
    kernel: Kernel,
    engine: Engine,
    home: Home,
    /// Where what sandboxes are attached to is.
    places: PathBuf,
    /// By what its containers are found again.
    home_label: String,
}

/// Whose system calls are asked inside.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kernel {
    /// That of the engine's machine.
    Shared,
    /// One for each container, by the engine's runtime of this name.
    Own(String),
}

impl Docker {
    /// The engine that this user's own client would talk to.
    pub fn open(home: &Home, flavour: Flavour) -> Result<Self, BackendError> {
        if flavour == Flavour::Podman && !rustix::process::geteuid().is_root() {
            return Err(BackendError::NeedsRoot { backend: PODMAN });
        }
        let around = find::Surroundings {
            variable: &|name| std::env::var(name).ok(),
            read: &|path| std::fs::read_to_string(path).ok(),
            exists: &|path| path.exists(),
        };
        let engine = Engine::at(flavour.engine(), find::way(flavour, &around)?);
        Self::at(home, flavour, engine)
    }

    /// The engine that an earlier sandbox was at.
    pub(super) fn elsewhere(home: &Home, at: &str) -> Result<Self, BackendError> {
        let name = Flavour::Docker.engine();
        let way = way::Way::parse(at).ok_or_else(|| BackendError::NoWay {
            engine: name,
            at: at.to_owned(),
        })?;
        Self::at(home, Flavour::Docker, Engine::at(name, way))
    }

    fn at(home: &Home, flavour: Flavour, engine: Engine) -> Result<Self, BackendError> {
        engine.ping()?;
        Ok(Self {
            flavour,
            kernel: Kernel::Shared,
            engine,
            home: home.clone(),
            places: place::places(home)?,
            home_label: container::label_of(home.root()),
        })
    }

    /// The same with gVisor's runtime.
    pub fn open_gvisor(home: &Home) -> Result<Self, BackendError> {
        let mut docker = Self::open(home, Flavour::Docker)?;
        let ask = "ask for its runtimes";
        let told: Value = docker.engine.ask(ask, Ask::Get, "/info")?;
        let runtimes = told["Runtimes"].as_object().into_iter().flatten();
        let is_gvisor = |(name, told): &(&String, &Value)| {
            let path = told["path"].as_str().unwrap_or_default();
            *name == gvisor::PROGRAM || Path::new(path).ends_with(gvisor::PROGRAM)
        };
        let named = runtimes.filter(is_gvisor).map(|(name, _)| name).max();
        let runtime = named.ok_or(BackendError::NoEngineRuntime {
            engine: docker.engine.name,
            runtime: gvisor::PROGRAM,
        })?;
        docker.kernel = Kernel::Own(runtime.clone());
        Ok(docker)
    }

    /// Its own words of what it is.
    pub fn version(&self) -> Result<String, BackendError> {
        let told: Value = self.engine.ask("ask what it is", Ask::Get, "/version")?;
        Ok(told["Version"].as_str().unwrap_or("unknown").to_owned())
    }

    /// The image that a name means to this engine.
    pub(crate) fn image(&self, name: &str) -> Result<ForeignImage, BackendError> {
        image::find(&self.engine, name)
    }

    fn check(&self, start: &Start<'_>) -> Result<(), BackendError> {
        let spec = start.spec;
        if self.flavour == Flavour::Podman && matches!(spec.identity, Identity::Single { .. }) {
            // It gives an empty volume to who asks for layers, and says nothing.
            return Err(BackendError::NeedsRoot {
                backend: self.name(),
            });
        }
        let elsewhere = if self.is_here() {
            None
        } else {
            self.lacks_elsewhere(spec)
        };
        match elsewhere.or_else(|| self.lacks(spec)) {
            None => Ok(()),
            Some(what) => Err(BackendError::DoesNotHold {
                backend: self.name(),
                what,
            }),
        }
    }

    /// What is asked for and not had on another machine.
    fn lacks_elsewhere(&self, spec: &plan::Spec) -> Option<&'static str> {
        if self.flavour == Flavour::Podman {
            return Some("a workspace on another machine");
        }
        if spec.root == Root::Host {
            return Some("the programs of this machine on another one; with `--image` it can");
        }
        if spec.workspace.holds == plan::Holds::Everything {
            return Some("a sandbox that lasts on another machine");
        }
        if spec.mounts.len() + spec.overlays.len() > 0 {
            return Some("mounts, caches and setups of this machine on another one");
        }
        let has_areas = !spec.workspace.areas.is_empty();
        has_areas.then_some("parts of the folder apart from others on another machine")
    }

    /// What is asked for and not had anywhere.
    fn lacks(&self, spec: &plan::Spec) -> Option<&'static str> {
        if self.lane() == Lane::Streams && spec.gate.is_some() {
            return Some("a network, not even one with rules");
        }
        if spec.runs == Runs::Setup {
            return Some("a setup that is root");
        }
        if spec.shows_in_kept_home() {
            return Some(IN_HOME);
        }
        if matches!(spec.root, Root::Image(_)) {
            return Some("an image that was pulled by `ringfence image`");
        }
        let is_one_user = matches!(spec.identity, Identity::Single { .. });
        let is_parted = is_one_user && !spec.workspace.areas.is_empty();
        is_parted.then_some("parts of the folder apart from others, unless it is root")
    }

    /// Podman parts what it is told of a mount at every comma.
    fn check_paths(&self, mounts: &[Mount]) -> Result<(), BackendError> {
        let is_parted = |mount: &Mount| {
            let is_source = match &mount.source {
                Source::Bind(path) => path.contains(','),
                Source::Overlay(_) | Source::Volume(_) => false,
            };
            is_source || mount.inside.contains(',')
        };
        if !(self.flavour == Flavour::Podman && mounts.iter().any(is_parted)) {
            Ok(())
        } else {
            Err(BackendError::DoesNotHold {
                backend: self.name(),
                what: "a path with a comma in it",
            })
        }
    }

    fn begin(&self, start: &Start<'_>) -> Result<Running, BackendError> {
        self.check(start)?;
        self.clear(start.name);
        let readable = match self.kernel {
            Kernel::Shared => Readable::ByNobody,
            Kernel::Own(_) => Readable::ByAll,
        };
        let mut place = Place::make(&self.places, self.name(), start, readable)?;
        match self.lane() {
            Lane::Socket => place.listen()?,
            Lane::Streams => {}
        }
        // From here on everything goes with it.
        let mut running = Running {
            docker: self.clone(),
            place,
            container: None,
            control: None,
            foreign: Foreign::default(),
            pidfd: None,
            wanted: self.bounds(start),
            held: (None, None),
            was_ended: false,
            elsewhere: None,
            told: None,
        };
        let image = match &start.spec.root {
            Root::Foreign(image) => image.clone(),
            _ => image::empty(&self.engine)?,
        };
        let shown = match start.spec.identity {
            _ if !self.is_here() => {
                running.place.is_of(remote::AGENT);
                // INVARIANT: before anything that has to be removed there.
                running.place.keep(ENGINE, &self.engine.way.to_string())?;
                let (elsewhere, shown) = remote::stage(self, start, &running.place)?;
                running.elsewhere = Some(elsewhere);
                shown
            }
            Identity::Range { .. } => {
                place::bound(attach::attach(start.spec, running.place.path())?)
            }
            _ => volumes::shown(start.spec, &running.place)?,
        };
        let accounts = match &start.spec.root {
            Root::Foreign(image) => image::look(&self.engine, &self.places, image)?,
            _ => Default::default(),
        };
        let mut mounts = if self.is_here() {
            running.place.own_mounts(start, &accounts)?
        } else {
            // Its own files of `/etc` are all that there is.
            Vec::new()
        };
        mounts.extend(shown);
        self.check_paths(&mounts)?;
        let wanted = Wanted {
            start,
            image: &image,
            mounts,
            home_label: &self.home_label,
            flavour: self.flavour,
            agent: running.place.agent(),
            bounds: running.wanted,
            lane: self.lane(),
            is_here: self.is_here(),
            runtime: self.runtime(),
            seccomp: match self.flavour {
                Flavour::Docker => container::seccomp(),
                // Its client reads the file; so does its service.
                Flavour::Podman => running.place.keep("seccomp.json", &container::seccomp())?,
            },
        };
        let name = container::name_of(start.name);
        // Podman's may be told to tell nothing.
        if self.flavour == Flavour::Docker {
            running.told = Some(Told::listen(&self.engine, &name)?);
        }
        let id = self.create(&name, &wanted.describe())?;
        running.container = Some(id.clone());
        if self.lane() == Lane::Streams {
            running.control = Some(streams::attach(&self.engine, &id)?);
        }
        let path = format!("/containers/{id}/start");
        self.engine
            .bytes("start the container", Ask::Post(None), &path)
            .map_err(|error| self.explained(error))?;
        if self.lane() == Lane::Socket {
            let control = running
                .place
                .hand_over(start.gate, || self.is_running(&id))?;
            running.control = Some(control);
        }
        if self.is_here() {
            let pid = self.inspect(&id)?["State"]["Pid"].as_i64().unwrap_or(0);
            running.foreign = Foreign::of(pid as i32);
            running.pidfd = Pid::from_raw(pid as i32)
                .and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
            running.held = (running.foreign.memory_bytes(), running.foreign.processes());
            // Engines hear nothing of what a runtime with a kernel of its own meets.
            if let (Kernel::Own(_), Some(told)) = (&self.kernel, &running.told) {
                told.count(running.foreign.clone());
            }
        } else {
            running.held = remote::bounds(self, &id);
        }
        running.seen()?;
        Ok(running)
    }

    /// Whether the engine is one of this machine, which can be shown directories of it.
    fn is_here(&self) -> bool {
        self.engine.way.is_local()
    }

    /// How the guest is talked to.
    fn lane(&self) -> Lane {
        if self.is_here() && self.kernel == Kernel::Shared {
            Lane::Socket
        } else {
            Lane::Streams
        }
    }

    /// What the engine's cgroup is to hold.
    fn bounds(&self, start: &Start<'_>) -> Bounds {
        let limits = start.limits;
        match self.kernel {
            Kernel::Shared => Bounds {
                memory: limits.memory_bytes,
                processes: limits.processes,
            },
            Kernel::Own(_) => {
                let (memory, processes) = gvisor::around(limits);
                Bounds { memory, processes }
            }
        }
    }

    fn runtime(&self) -> Option<&str> {
        match &self.kernel {
            Kernel::Shared => None,
            Kernel::Own(name) => Some(name),
        }
    }

    /// A service of somebody who is not root cannot open what root shows it, and says so in many ways.
    fn explained(&self, error: BackendError) -> BackendError {
        let is_rootless = || {
            let told = self
                .engine
                .ask::<Value>("ask what it is", Ask::Get, "/info");
            told.is_ok_and(|told| told["Rootless"] == true)
        };
        let is_refused = matches!(error, BackendError::Refused { .. });
        if !(self.flavour == Flavour::Podman && is_refused && is_rootless()) {
            error
        } else {
            BackendError::DoesNotHold {
                backend: self.name(),
                what: "a sandbox with a service that is not root's",
            }
        }
    }

    /// INVARIANT: nothing but a sandbox of ours that is over has the name.
    fn create(&self, name: &str, body: &Value) -> Result<String, BackendError> {
        let what = "make the container";
        let path = format!("/containers/create?name={name}");
        let deadline = Instant::now() + NAME_FREE_WITHIN;
        let made = loop {
            let made = self.engine.ask::<Value>(what, Ask::Post(Some(body)), &path);
            match made {
                Err(error) if is_taken(&error) && Instant::now() < deadline => {
                    self.remove(name)?;
                    std::thread::sleep(Duration::from_millis(20));
                }
                made => break made.map_err(|error| self.explained(error))?,
            }
        };
        let id = made["Id"].as_str().unwrap_or_default();
        // It becomes a word of addresses.
        if !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            Ok(id.to_owned())
        } else {
            Err(BackendError::Refused {
                engine: self.engine.name,
                what,
                status: 200,
                message: "a container without an id".to_owned(),
            })
        }
    }

    fn inspect(&self, id: &str) -> Result<Value, BackendError> {
        let path = format!("/containers/{id}/json");
        self.engine.ask("look at the container", Ask::Get, &path)
    }

    fn is_running(&self, id: &str) -> bool {
        self.inspect(id)
            .is_ok_and(|told| told["State"]["Running"].as_bool() == Some(true))
    }

    /// Ends and removes a container, with its volumes. One that is not there is as good.
    fn remove(&self, id: &str) -> Result<(), BackendError> {
        let path = format!("/containers/{id}?force=1&v=1");
        match self
            .engine
            .bytes("remove the container", Ask::Delete, &path)
        {
            Ok(_) | Err(BackendError::Refused { status: 404, .. }) => Ok(()),
            // It is being removed already: it was to go with its pid 1.
            Err(BackendError::Refused { status: 409, .. }) => {
                let path = format!("/containers/{id}/wait?condition=removed");
                match self
                    .engine
                    .bytes("wait for the container", Ask::Post(None), &path)
                {
                    Err(BackendError::Refused { status: 404, .. }) => Ok(()),
                    waited => waited.map(drop),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Removes what is left of a sandbox, as far as that can be done.
    fn clear(&self, name: &str) {
        let path = self.places.join(name);
        if path.symlink_metadata().is_err() {
            return;
        }
        let removed = self.remove(&container::name_of(name));
        let removed = if self.is_here() {
            let _ = volumes::remove(self, name);
            Ok(())
        } else {
            removed
                .and_then(|()| self.remove(&remote::name_of(name)))
                .and_then(|()| volumes::remove(self, name))
        };
        // What is left elsewhere is known by this alone.
        if removed.is_err() {
            return;
        }
        place::remove(&path);
        if path.symlink_metadata().is_ok() {
            // The engine's own leavings, in directories that only it can open.
            let _ = volumes::clear(self, &path);
            place::remove(&path);
        }
    }
}

impl Backend for Docker {
    fn name(&self) -> &'static str {
        match (self.flavour, &self.kernel) {
            (_, Kernel::Own(_)) => DOCKER_GVISOR,
            (Flavour::Docker, _) => DOCKER,
            (Flavour::Podman, _) => PODMAN,
        }
    }

    fn start(&self, start: &Start<'_>) -> Result<Box<dyn Started>, SandboxError> {
        let spec = match self.kernel {
            Kernel::Shared => Cow::Borrowed(start.spec),
            Kernel::Own(_) => with_readable_tools(&self.home, start.spec)?,
        };
        let start = Start {
            spec: &spec,
            ..*start
        };
        Ok(Box::new(self.begin(&start)?))
    }

    fn observation(&self) -> Observation {
        match self.kernel {
            Kernel::Shared => Observation::Verified,
            Kernel::Own(_) => Observation::Off,
        }
    }

    fn has_kernels(&self) -> bool {
        self.kernel != Kernel::Shared
    }

    fn shown(&self) -> &'static [&'static str] {
        match self.kernel {
            Kernel::Shared => &[],
            Kernel::Own(_) => gvisor::SHOWN,
        }
    }

    fn destroy(&self, name: &str) {
        self.clear(name);
    }

    fn image(&self, name: &str) -> Option<Result<ForeignImage, BackendError>> {
        Some(Docker::image(self, name))
    }
}

/// BOUND: a container that Podman no longer knows has its name for some moments more.
const NAME_FREE_WITHIN: Duration = Duration::from_secs(30);

/// Whether another container has the name. Podman has no number of its own for that.
fn is_taken(error: &BackendError) -> bool {
    match error {
        BackendError::Refused { status: 409, .. } => true,
        BackendError::Refused {
            status: 500,
            message,
            ..
        } => message.contains("already in use"),
        _ => false,
    }
}

/// HOSTILE: an agent may have left a link there, and an engine makes what is missing as root.
pub(super) const IN_HOME: &str = "mounts and caches in the home or `/tmp` of a sandbox that lasts";

/// In a place: which engine of another machine its sandbox is at.
pub(super) const ENGINE: &str = "engine";

/// What they are called.
pub const DOCKER: &str = "docker";
pub const PODMAN: &str = "podman";
pub const DOCKER_GVISOR: &str = "docker-gvisor";

/// How a guest is talked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    /// By a socket that is handed in.
    Socket,
    /// By its standard streams, which the engine carries.
    Streams,
}

fn text(path: &Path) -> Result<String, BackendError> {
    path.to_str()
        .map(str::to_owned)
        .ok_or(BackendError::DoesNotHold {
            backend: DOCKER,
            what: "a path that is not UTF-8",
        })
}
