//! What makes sandboxes. A backend starts pid 1 inside and hands over a socket to it; everything above
//! (commands, files, terminals, observation, limits of a command, the way to the gate) is the guest's
//! and is written once.
//!
//! ```text
//!   Spec, limits ──▶ Backend::start ──▶ Started: a socket to the guest
//!                        │                 └─ end
//!                        └─ what is on the disk first: `attached/<name>/` in the home
//! ```
//!
//! INVARIANT: what a backend was not seen to enforce, it does not have. Guarantees come from
//! [`probe()`], which starts a sandbox and tries, and each sandbox proves itself before anything runs in it.

mod docker;
mod error;
mod gvisor;
mod native;
mod probe;

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use ringfence_jail::cgroup::CgroupEvents;
use ringfence_jail::plan::Spec;
use ringfence_model::guarantees::Requirement;
use ringfence_model::limits::Limits;
use ringfence_model::wire::Observation;

use crate::config;
use crate::guest;
use crate::home::Home;
use crate::lock::FileLock;
use crate::sandbox::SandboxError;

pub use docker::{Docker, Flavour, ForeignImage};
pub use error::BackendError;
pub use gvisor::Gvisor;
pub use native::NAME as NATIVE;
pub use native::Native;
pub(crate) use native::holds as native_holds;
pub use probe::{Seen, probe};

/// What is asked of a backend.
#[derive(Debug)]
pub struct Start<'a> {
    /// Nobody else has it while this sandbox is there.
    pub name: &'a str,
    pub spec: &'a Spec,
    pub limits: &'a Limits,
    /// Where a gate asks the guest for sockets.
    pub gate: Option<BorrowedFd<'a>>,
}

/// One way to hold a sandbox.
pub trait Backend: fmt::Debug + Send + Sync {
    /// In results, settings and messages.
    fn name(&self) -> &'static str;

    /// Starts pid 1.
    fn start(&self, start: &Start<'_>) -> Result<Box<dyn Started>, SandboxError>;

    /// What is recorded of the processes inside.
    fn observation(&self) -> Observation;

    /// Whether each sandbox is to have a kernel of its own. It is looked at whether it has.
    fn has_kernels(&self) -> bool {
        false
    }

    /// The image that a name means here; `None`: images are ours, and of no concern to it.
    fn image(&self, _name: &str) -> Option<Result<ForeignImage, BackendError>> {
        None
    }

    /// Attempts of the proof that are known to work here and do no harm: they are not made, and the
    /// proof says so. The guest leaves out no others.
    fn shown(&self) -> &'static [&'static str] {
        &[]
    }

    /// Removes what a sandbox leaves whose driver was killed. Always succeeds: what resists is found
    /// again.
    fn destroy(&self, name: &str);
}

/// As asked for, with direct tools that can be read: for kernels that must read what they execute. Such a kernel
/// also lets everybody look into everything of one user.
fn with_readable_tools<'a>(home: &Home, spec: &'a Spec) -> Result<Cow<'a, Spec>, BackendError> {
    if spec.workspace.tools.is_none() {
        return Ok(Cow::Borrowed(spec));
    }
    let tools = guest::install_readable_tools(home).map_err(|source| BackendError::Place {
        what: "install tools in",
        path: home.root().to_owned(),
        source,
    })?;
    let mut spec = spec.clone();
    spec.workspace.tools = Some(tools);
    Ok(Cow::Owned(spec))
}

/// A sandbox that has begun, before anybody has talked to it. Dropping it ends everything inside.
pub trait Started: fmt::Debug + Send {
    /// The way to the guest; none where it did not come up.
    fn control(&self) -> Option<&UnixStream>;

    /// The host's number of pid 1, where it has one.
    fn pid(&self) -> Option<i32>;

    /// What the kernel holds it to.
    fn holds(&self) -> Holds;

    /// Who the agent is inside: user and group.
    fn agent(&self) -> (u32, u32);

    /// What the kernel has refused or killed so far.
    fn events(&self) -> CgroupEvents;

    /// Why nothing in it moves, and what to do, where somebody else holds it up.
    fn held_up(&self) -> Option<String> {
        None
    }

    /// Why it did not come up, where somebody else knows.
    fn why_ended(&mut self) -> Option<BackendError> {
        None
    }

    /// Brings what was written until now into the layer, where it is not there by itself. Nothing may run
    /// inside meanwhile.
    fn bring(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Ends everything inside and waits until nothing is left of it.
    fn end(&mut self) -> io::Result<()>;
}

/// Which limits the kernel holds for all of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holds {
    /// By what memory is held; `None`: the guest looks at it.
    pub memory: Option<&'static str>,
    pub processes: Processes,
    pub files: Files,
}

/// Where what is written is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// In the layer, where it is looked at.
    Here,
    /// On another machine, until it is brought.
    Elsewhere,
}

/// What bounds the number of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processes {
    /// A bound of the user namespace, that is of this sandbox alone.
    Namespace,
    /// That, and a cgroup.
    NamespaceAndCgroup,
    /// A cgroup alone: the ids inside are also others' on the host, so that a bound for one user would
    /// count what is not in the sandbox.
    Cgroup,
}

/// Which backend is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Typed; otherwise that of the settings, or the native one.
    pub name: Option<String>,
    /// Guarantees, as `name=value`.
    pub require: Vec<String>,
    /// What is tried where this machine's own programs cannot be.
    pub image: Option<String>,
}

impl Choice {
    /// The backend that is wanted and has what is required.
    pub fn choose(&self, home: &Home) -> Result<Arc<dyn Backend>, BackendError> {
        let own = match &self.name {
            Some(name) => Some(name.clone()),
            None => config::backend(home).map_err(BackendError::Settings)?,
        };
        if self.require.is_empty() {
            return named(home, own.as_deref().unwrap_or(native::NAME));
        }
        let mut required = Vec::new();
        for text in &self.require {
            let parsed = Requirement::parse(text);
            required.push(parsed.ok_or_else(|| BackendError::BadRequirement(text.clone()))?);
        }
        // Whoever names one means that one.
        let names = match &own {
            Some(name) => vec![name.as_str()],
            None => NAMES.to_vec(),
        };
        let mut seen_here = Vec::new();
        let mut missing = Vec::new();
        for name in names {
            let backend = match named(home, name) {
                // One that is not there has nothing.
                Err(error) if own.is_none() => {
                    seen_here.push(format!("{name}: {error}"));
                    continue;
                }
                found => found?,
            };
            let mut seen = probe(home, &*backend, None);
            if let (Err(error), Some(image)) = (&seen, &self.image)
                && probe::is_not_held(error)
            {
                seen = probe(home, &*backend, Some(image));
            }
            let seen = match seen {
                Ok(seen) => seen.guarantees,
                Err(error) => {
                    seen_here.push(format!("{name}: {error}"));
                    continue;
                }
            };
            let lacks: Vec<String> = required
                .iter()
                .filter(|one| !seen.has(**one))
                .map(ToString::to_string)
                .collect();
            if lacks.is_empty() {
                return Ok(backend);
            }
            seen_here.push(format!("{name}: {seen}"));
            missing = lacks;
        }
        if missing.is_empty() {
            missing = required.iter().map(ToString::to_string).collect();
        }
        Err(BackendError::NoneHas {
            missing,
            seen: seen_here.join("; "),
        })
    }
}

/// All that there are, in the order in which they are tried.
pub const NAMES: &[&str] = &[
    native::NAME,
    docker::DOCKER,
    docker::PODMAN,
    gvisor::NAME,
    docker::DOCKER_GVISOR,
];

/// The backend of a name.
pub fn named(home: &Home, name: &str) -> Result<Arc<dyn Backend>, BackendError> {
    match name {
        native::NAME => Ok(native()),
        docker::DOCKER => Ok(Arc::new(Docker::open(home, Flavour::Docker)?)),
        docker::PODMAN => Ok(Arc::new(Docker::open(home, Flavour::Podman)?)),
        gvisor::NAME => Ok(Arc::new(Gvisor::open(home)?)),
        docker::DOCKER_GVISOR => Ok(Arc::new(Docker::open_gvisor(home)?)),
        _ => Err(BackendError::Unknown(name.to_owned())),
    }
}

/// Removes what is left of a sandbox whose driver was killed, whatever held it.
pub(crate) fn sweep(home: &Home, name: &str) {
    Native.destroy(name);
    let place = home.attached().join(name);
    if place.symlink_metadata().is_err() {
        return;
    }
    if let Ok(at) = std::fs::read_to_string(place.join(docker::ENGINE)) {
        // Where it does not answer, the place says until it does what is there.
        if let Ok(engine) = Docker::elsewhere(home, at.trim()) {
            engine.destroy(name);
        }
        return;
    }
    let by = std::fs::read_to_string(place.join(HELD_BY)).unwrap_or_default();
    match named(home, by.trim()) {
        Ok(backend) => backend.destroy(name),
        // Its engine is not there; what is ours of it goes all the same.
        Err(_) => docker::leave(&place),
    }
}

/// What a place says of who holds its sandbox.
const HELD_BY: &str = "backend";
/// Held for as long as somebody needs a place.
const LOCK: &str = "lock";

/// The names of sandboxes that left something and that nobody drives any more.
pub(crate) fn left(home: &Home) -> Vec<String> {
    let entries = std::fs::read_dir(home.attached()).into_iter().flatten();
    let names = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let abandoned = |name: &String| {
        let lock = home.attached().join(name).join(LOCK);
        !name.starts_with('.') && !FileLock::is_held(&lock).unwrap_or(true)
    };
    names.filter(abandoned).collect()
}

/// The one that needs nothing but the kernel.
pub fn native() -> Arc<dyn Backend> {
    Arc::new(Native)
}
