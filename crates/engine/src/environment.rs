//! Environments: what a setup made once, for every sandbox of that folder that comes later.
//!
//! ```text
//! environments/<key>/
//! ├── workspace/         what the setup made in the folder and the folder has not   ┐ read-only,
//! ├── home/              what it made in its home                                   ├ below every
//! ├── root/              what it made of its image, where there is one              ┘ sandbox
//! ├── stdout, stderr     all that it printed
//! └── audit.jsonl        what was seen of it
//! environments/<key>.lock      one makes it, the others wait
//! environments/<key>.partial/  while it is made; `<key>.failed/` has the output of one that failed
//! caches/<kind>/<scope>/<n>/   what setups of one folder have left in a cache (caches.rs)
//! ```
//!
//! The folder is above the setup's `workspace` inside, so that nothing of a setup can stand in the
//! place of a file that the folder has, now or later.
//!
//! INVARIANT: a setup writes nothing but its own layer: it runs in a sandbox like an agent's, and what
//! it left is cut down (`prune`) before anybody sees it. The key names all that it was made of
//! ([`Inputs`]).

mod build;
mod caches;
mod compare;
mod error;
pub mod ground;
mod inputs;
mod manage;
mod prune;
mod rooted;
mod stand;

use std::fs;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ringfence_jail::launch::identity_for;
use ringfence_jail::plan::Root;
use ringfence_model::ByteText;
use ringfence_model::bundle::EnvironmentFacts;
use ringfence_model::environment::CacheKind;
use ringfence_model::limits::Limits;
use ringfence_model::policy::Effective;
use serde_json::Value;
use tracing::{debug, info, warn};

use crate::attend::{Console, Inputs as Attending};
use crate::backend::{Backend, ForeignImage};
use crate::clock::ms_since;
use crate::error::Error;
use crate::home::Home;
use crate::keeper::INSIDE;
use crate::lock::FileLock;
use crate::sandbox::SandboxError;
use crate::store::{EnvironmentRecord, Store};
use crate::workspace::Folder;

pub use compare::{Difference, How};
pub use error::EnvironmentError;
pub use ground::Ground;
pub use inputs::{Inputs, KeyFile, scope_of};
pub use manage::{
    Compared, Listed, SharedCache, find, leavings, list, remove, remove_leaving, shared_caches,
    verify,
};
pub(crate) use stand::image_of;
pub use stand::{Standing, variables};

/// How what stands on an image says so; its digest follows.
const IMAGES: &str = "images/";
/// The same of an image that is another engine's.
const FOREIGN: &str = "foreign/";

/// Said while somebody else makes the same.
pub const WAITS: &str = "another run is making it";

/// What a sandbox is to stand on.
#[derive(Debug)]
pub struct Order<'a> {
    pub policy: &'a Effective,
    pub limits: &'a Limits,
    /// This program: it is also the gate.
    pub program: &'a Path,
    /// What holds the sandbox of a setup, as it holds those that stand on it.
    pub backend: &'a dyn Backend,
    /// The tree that a setup starts from.
    pub folder: PathBuf,
    /// Whose it is.
    pub scope: String,
    /// Where it is inside.
    pub inside: PathBuf,
}

impl<'a> Order<'a> {
    /// For a folder of the user's; it is at `/workspace` inside where nobody says otherwise.
    pub fn of_folder(
        (policy, limits): (&'a Effective, &'a Limits),
        program: &'a Path,
        backend: &'a dyn Backend,
        folder: &Folder,
        inside: Option<&Path>,
    ) -> Result<Self, Error> {
        Ok(Self {
            policy,
            limits,
            program,
            backend,
            scope: scope_of(folder.path(), folder.fd())?,
            folder: folder.path().to_owned(),
            inside: inside.unwrap_or(Path::new(INSIDE)).to_owned(),
        })
    }
}

/// An order that was looked at: what it comes to, and nothing is made yet.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// Where there is a setup.
    pub inputs: Option<Inputs>,
    /// Where there is an image of ours.
    pub ground: Option<Ground>,
    /// Where there is one of the engine that holds the sandbox.
    foreign: Option<ForeignImage>,
    caches: Vec<CacheKind>,
    cache_scope: String,
}

impl Resolved {
    /// The key of the setup.
    pub fn key(&self) -> Option<String> {
        self.inputs.as_ref().map(Inputs::key)
    }

    /// What `/` is before a setup.
    fn root(&self) -> Root {
        match (&self.ground, &self.foreign) {
            (Some(ground), _) => ground.root(),
            (None, Some(image)) => Root::Foreign(image.id.clone()),
            (None, None) => Root::Host,
        }
    }

    /// What names the image.
    fn image(&self) -> Option<String> {
        let ours = self.ground.as_ref();
        let ours = ours.map(|ground| ground.image.digest.clone());
        ours.or_else(|| Some(self.foreign.as_ref()?.id.clone()))
    }

    /// Directories of the home that must stay while somebody stands on them.
    pub fn stands_on(&self) -> Vec<String> {
        let setup = self.key().map(|key| format!("environments/{key}"));
        let caches = self.caches.iter().map(|kind| {
            let name = kind.row().name;
            format!("caches/{name}/{}", self.cache_scope)
        });
        let image = self
            .ground
            .iter()
            .map(|ground| format!("{IMAGES}{}", ground.image.digest));
        let foreign = self.foreign.iter();
        let foreign = foreign.map(|image| format!("{FOREIGN}{}", image.id));
        let ours = setup.into_iter().chain(caches).chain(image);
        ours.chain(foreign).collect()
    }
}

/// Looks at what an order comes to, and gets its image. `None`: at nothing but the folder.
pub fn resolve(
    home: &Home,
    store: &Store,
    order: &Order<'_>,
    console: &mut dyn Console,
) -> Result<Option<Resolved>, Error> {
    let environment = &order.policy.environment;
    if environment.is_empty() {
        return Ok(None);
    }
    let failed = |source| EnvironmentError::Folder {
        path: order.folder.clone(),
        source,
    };
    let folder = fs::File::open(&order.folder).map_err(failed)?;
    let foreign = environment
        .image()
        .and_then(|name| order.backend.image(name));
    let foreign = foreign.transpose().map_err(SandboxError::Backend)?;
    let ground = match foreign {
        Some(_) => None,
        None => ground::find(home, store, order.policy, console)?,
    };
    let of_engine = foreign.as_ref().map(|image| image.id.clone());
    let image = ground.as_ref().map(|ground| ground.image.digest.clone());
    let image = image.or(of_engine);
    if environment.root.is_some() && image.is_none() && environment.setup().is_some() {
        return Err(EnvironmentError::RootWithoutImage.into());
    }
    let cache_scope = Inputs::cache_scope(&order.scope, image.as_deref());
    let identity = identity_for(folder.as_fd()).map_err(failed)?;
    let inputs = match environment.setup() {
        None => None,
        Some(setup) => Some(Inputs::of(inputs::Seen {
            policy: order.policy,
            setup,
            image,
            scope: order.scope.clone(),
            folder: folder.as_fd(),
            inside: &order.inside,
            identity: &identity,
        })?),
    };
    Ok(Some(Resolved {
        inputs,
        ground,
        foreign,
        caches: environment.caches().collect(),
        cache_scope,
    }))
}

/// Finds what was resolved, and makes it where nobody has yet. Whoever calls has recorded that it
/// stands on it.
pub fn ensure(
    home: &Home,
    store: &Store,
    order: &Order<'_>,
    resolved: &Resolved,
    attending: &Attending<'_>,
    console: &mut dyn Console,
) -> Result<Standing, Error> {
    let mut notes = Vec::new();
    let record = match &resolved.inputs {
        None => None,
        Some(inputs) => Some(match ready(home, store, &inputs.key())? {
            Some(record) => {
                debug!(key = inputs.key(), "environment reused");
                record
            }
            None => make(
                home, store, order, resolved, inputs, attending, console, &mut notes,
            )?,
        }),
    };
    let mut standing = Standing::of(home, order, resolved, record.as_ref())?;
    standing.notes = notes;
    Ok(standing)
}

/// What is there already.
fn ready(home: &Home, store: &Store, key: &str) -> Result<Option<EnvironmentRecord>, Error> {
    let record = store.environment(key)?;
    let record = record.filter(|_| home.environment(key).join(stand::WORKSPACE).is_dir());
    if record.is_some() {
        store.touch_environment(key)?;
    }
    Ok(record)
}

#[expect(clippy::too_many_arguments, reason = "the one that builds knows all")]
fn make(
    home: &Home,
    store: &Store,
    order: &Order<'_>,
    resolved: &Resolved,
    inputs: &Inputs,
    attending: &Attending<'_>,
    console: &mut dyn Console,
    notes: &mut Vec<String>,
) -> Result<EnvironmentRecord, Error> {
    let key = inputs.key();
    let lock = lock_of(home, &key);
    let _lock = FileLock::wait(&lock, || {
        console.step(&format!("setup: {WAITS}"));
    })
    .map_err(EnvironmentError::Lock)?;
    if let Some(record) = ready(home, store, &key)? {
        return Ok(record);
    }
    // A killed maker's leavings, or a directory whose row is gone.
    for name in [
        key.clone(),
        format!("{key}.partial"),
        format!("{key}.failed"),
    ] {
        manage::remove_directory(&home.environments(), &name)?;
    }
    let partial = home.environments().join(format!("{key}.partial"));
    let began = Instant::now();
    let built = build::build(home, order, resolved, inputs, &partial, attending, console);
    let built = match built {
        Ok(built) => built,
        Err(error) => {
            warn!(key, ms = ms_since(began), "environment not made");
            build::keep_output(home, &key)?;
            return Err(error);
        }
    };
    notes.extend(built.notes.iter().cloned());
    let record = built.record(&key, inputs, &order.folder);
    build::keep(home, &key)?;
    store.insert_environment(&record)?;
    for (kind, layer) in &built.caches {
        let scope = &resolved.cache_scope;
        notes.extend(caches::promote(home, *kind, scope, layer)?);
    }
    info!(key, ms = ms_since(began), "environment made");
    Ok(record)
}

fn lock_of(home: &Home, key: &str) -> PathBuf {
    home.environments().join(format!("{key}.lock"))
}

/// What a bundle says of it.
fn facts(resolved: &Resolved, record: Option<&EnvironmentRecord>) -> EnvironmentFacts {
    let tools = record.and_then(|record| record.detail.get("tools"));
    let tools = tools.and_then(Value::as_object);
    let version = |(name, version): (&String, &Value)| {
        let version = version.as_str().unwrap_or_default().to_owned();
        (name.clone(), version)
    };
    EnvironmentFacts {
        image: resolved.image(),
        setup_key: resolved.key(),
        caches: Vec::new(),
        tools: tools.into_iter().flatten().map(version).collect(),
    }
}

/// A variable, for a command.
fn variable(name: &str, value: &str) -> (ByteText, ByteText) {
    (name.into(), value.into())
}
