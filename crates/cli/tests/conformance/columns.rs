//! What is compared: backends, each with who starts it and on what root. One line here is one more.

use crate::engine::{Absent, Engine, TOOLS, which};
use crate::support::{Mode, is_root};

/// One column of the table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub name: &'static str,
    /// Options of `ringfence run`.
    pub options: &'static [&'static str],
    pub mode: Mode,
    /// What it needs of the tests.
    pub needs: Needs,
    /// What `/` is inside.
    pub root: Root,
}

/// What a column needs besides the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    /// The tests' own Docker engine.
    Engine,
    /// The same, as one of another machine.
    Elsewhere,
    /// The tests' own service of Podman.
    Podman,
}

/// Engines of the tests' own, as far as there are any.
#[derive(Debug)]
pub struct Engines {
    pub docker: anyhow::Result<Engine>,
    pub podman: anyhow::Result<Engine>,
}

impl Engines {
    pub fn start() -> Self {
        Self {
            docker: Engine::start(),
            podman: Engine::podman(),
        }
    }

    /// The one that a column needs.
    pub fn of(&self, needs: Needs) -> Option<Result<&Engine, &anyhow::Error>> {
        match needs {
            Needs::Nothing => None,
            Needs::Engine | Needs::Elsewhere => Some(self.docker.as_ref()),
            Needs::Podman => Some(self.podman.as_ref()),
        }
    }
}

/// What `/` is inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// The host's system.
    Host,
    /// The image with tools.
    Image,
}

use Mode::{Root as AsRoot, Rootless};
use Needs::{Elsewhere, Engine as TheEngine, Nothing, Podman};
use Root::{Host, Image};

/// Every backend that there may be.
#[rustfmt::skip]
pub const COLUMNS: &[Column] = &[
    column("native", &["--backend", "native"], Rootless, Nothing, Host),
    column("native, root", &["--backend", "native"], AsRoot, Nothing, Host),
    column("docker", &["--backend", "docker"], Rootless, TheEngine, Host),
    column("docker, root", &["--backend", "docker"], AsRoot, TheEngine, Host),
    column("docker, image", &["--backend", "docker", "--image", TOOLS], AsRoot, TheEngine, Image),
    column("docker, ssh", &["--backend", "docker", "--image", TOOLS], Rootless, Elsewhere, Image),
    column("podman, root", &["--backend", "podman"], AsRoot, Podman, Host),
    column("podman, image", &["--backend", "podman", "--image", TOOLS], AsRoot, Podman, Image),
    column("gvisor", &["--backend", "gvisor"], AsRoot, Nothing, Host),
    column("docker, gvisor", &["--backend", "docker-gvisor"], Rootless, TheEngine, Host),
];

/// The columns that are always tried: each backend, and each root where that is another way in. The others differ in
/// who starts the backend or how it is reached, and only the long form has them.
pub const SHORT_FORM: &[&str] = &[
    "native",
    "native, root",
    "docker",
    "docker, image",
    "podman, root",
    "gvisor",
];

const fn column(
    name: &'static str,
    options: &'static [&'static str],
    mode: Mode,
    needs: Needs,
    root: Root,
) -> Column {
    Column {
        name,
        options,
        mode,
        needs,
        root,
    }
}

impl Column {
    /// Its name as a part of a path.
    pub fn place(&self) -> String {
        self.name.replace(", ", "-")
    }

    /// Variables by which its engine is found.
    pub fn found_by(&self, engine: Option<&Engine>) -> anyhow::Result<Vec<(String, String)>> {
        match (engine, self.needs) {
            (None, _) => Ok(Vec::new()),
            (Some(engine), Elsewhere) => engine.elsewhere(),
            (Some(engine), _) => Ok(engine.here()),
        }
    }

    /// Why this machine cannot have it. What it can have and does not work is a failure, never absent.
    pub fn absent(&self, engines: &Engines) -> Option<String> {
        if self.mode == AsRoot && !is_root() {
            return Some("the tests do not run as root".to_owned());
        }
        if self.name.contains("gvisor") && which("runsc").is_none() {
            return Some("there is no `runsc`".to_owned());
        }
        match engines.of(self.needs) {
            Some(Err(error)) if error.is::<Absent>() => Some(format!("{error:#}")),
            _ => None,
        }
    }
}
