//! What one sandbox stands on, ready to be mounted.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use ringfence_jail::identity::Identity;
use ringfence_jail::plan::{PrivateOverlay, Root, Scratch};
use ringfence_model::ByteText;
use ringfence_model::bundle::{CacheFacts, EnvironmentFacts};
use ringfence_model::environment::{CacheKind, Environment, HOME};

use super::{EnvironmentError, Ground, Order, Resolved, caches, facts, ground, variable};
use crate::error::Error;
use crate::home::Home;
use crate::run::PATH;
use crate::store::{EnvironmentRecord, Store};

pub(super) const WORKSPACE: &str = "workspace";
pub(super) const HOME_LAYER: &str = "home";
pub(super) const ROOT_LAYER: &str = "root";
/// All that a setup may leave.
pub(super) const LAYERS: [&str; 3] = [WORKSPACE, HOME_LAYER, ROOT_LAYER];

/// What a sandbox stands on besides its folder.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    /// Holds `workspace` and `home`.
    pub setup: Option<PathBuf>,
    /// For the bundle.
    pub facts: EnvironmentFacts,
    /// Variables that everything else counts more than.
    pub env: Vec<(ByteText, ByteText)>,
    pub tmpfs: Vec<Scratch>,
    /// For a person.
    pub notes: Vec<String>,
    ground: Option<Ground>,
    /// An image of the engine that holds the sandbox, by its id there.
    foreign: Option<String>,
    caches: Vec<(CacheKind, Option<PathBuf>)>,
    home: Option<PathBuf>,
}

impl Standing {
    pub(super) fn of(
        home: &Home,
        order: &Order<'_>,
        resolved: &Resolved,
        record: Option<&EnvironmentRecord>,
    ) -> Result<Self, EnvironmentError> {
        let mut own = Self {
            facts: facts(resolved, record),
            setup: record.map(|record| home.environment(&record.key)),
            ground: resolved.ground.clone(),
            foreign: resolved.foreign.as_ref().map(|image| image.id.clone()),
            ..Self::default()
        };
        own.home = own.setup.as_ref().map(|setup| setup.join(HOME_LAYER));
        own.home = own.home.filter(|home| !is_empty(home));
        for kind in &resolved.caches {
            let shared = caches::latest(home, *kind, &resolved.cache_scope)?;
            own.facts.caches.push(CacheFacts {
                kind: *kind,
                scope: resolved.cache_scope.clone(),
                generation: shared.as_ref().map(|(number, _)| *number),
            });
            own.caches.push((*kind, shared.map(|(_, path)| path)));
        }
        own.env = variables(order, Some(resolved));
        own.tmpfs = areas(&order.policy.environment);
        Ok(own)
    }

    /// What a sandbox stands on that was made earlier.
    pub(crate) fn again(
        home: &Home,
        store: &Store,
        environment: &Environment,
        stands_on: &[String],
    ) -> Result<Self, Error> {
        let ours = stands_on
            .iter()
            .find_map(|own| own.strip_prefix(super::IMAGES));
        let image = ours.map(|digest| ground::of_digest(home, store, digest));
        let foreign = stands_on
            .iter()
            .find_map(|own| own.strip_prefix(super::FOREIGN));
        let mut own = Self {
            setup: key_of(stands_on).map(|key| home.environment(key)),
            ground: image.transpose()?,
            foreign: foreign.map(str::to_owned),
            tmpfs: areas(environment),
            ..Self::default()
        };
        let caches = stands_on.iter().filter_map(|layer| {
            let (name, scope) = layer.strip_prefix("caches/")?.split_once('/')?;
            Some((CacheKind::named(name)?, scope))
        });
        for (kind, scope) in caches {
            let shared = caches::latest(home, kind, scope)?;
            own.caches.push((kind, shared.map(|(_, path)| path)));
        }
        Ok(own)
    }

    /// What a setup made in the folder, of what is stood on.
    pub(crate) fn workspace_of(home: &Home, stands_on: &[String]) -> Option<PathBuf> {
        Some(home.environment(key_of(stands_on)?).join(WORKSPACE))
    }

    /// What `/` is.
    pub fn root(&self) -> Root {
        let Some(ground) = &self.ground else {
            return match &self.foreign {
                Some(image) => Root::Foreign(image.clone()),
                None => Root::Host,
            };
        };
        let mut root = ground.root();
        if let Root::Image(image) = &mut root {
            let installed = self.setup.as_ref().map(|setup| setup.join(ROOT_LAYER));
            image.setup = installed.filter(|layer| layer.is_dir());
        }
        root
    }

    /// The setup's part of the folder, which goes below it.
    pub fn workspace(&self) -> Option<PathBuf> {
        Some(self.setup.as_ref()?.join(WORKSPACE))
    }

    /// Home and caches of one sandbox: shared below, with a private part of its own in `place`.
    pub fn overlays(
        &self,
        place: &Path,
        identity: &Identity,
    ) -> Result<Vec<PrivateOverlay>, EnvironmentError> {
        let mut overlays = Vec::new();
        if let Some(home) = &self.home {
            overlays.push(overlay(
                place,
                HOME_LAYER,
                Path::new(HOME),
                Some(home),
                identity,
            )?);
        }
        overlays.extend(self.cache_overlays(place, identity)?);
        Ok(overlays)
    }

    /// The same of caches alone, where the home has layers of its own.
    pub fn cache_overlays(
        &self,
        place: &Path,
        identity: &Identity,
    ) -> Result<Vec<PrivateOverlay>, EnvironmentError> {
        let mut overlays = Vec::new();
        for (kind, shared) in &self.caches {
            let row = kind.row();
            let name = format!("cache-{}", row.name);
            let shared = shared.as_deref();
            overlays.push(overlay(place, &name, &row.inside(), shared, identity)?);
        }
        Ok(overlays)
    }
}

/// The image of what is stood on, by its digest.
pub(crate) fn image_of<'a>(stands_on: &'a [String]) -> Option<&'a str> {
    let named = |own: &'a String| {
        let ours = own.strip_prefix(super::IMAGES);
        ours.or_else(|| own.strip_prefix(super::FOREIGN))
    };
    stands_on.iter().find_map(named)
}

fn key_of(stands_on: &[String]) -> Option<&str> {
    stands_on
        .iter()
        .find_map(|layer| layer.strip_prefix("environments/"))
}

fn areas(environment: &Environment) -> Vec<Scratch> {
    let area = |area: &ringfence_model::environment::Scratch| Scratch {
        inside: area.inside.clone(),
        bytes: area.bytes,
    };
    environment.tmpfs.iter().map(area).collect()
}

/// Variables of image, environment and caches.
pub fn variables(order: &Order<'_>, resolved: Option<&Resolved>) -> Vec<(ByteText, ByteText)> {
    let environment = &order.policy.environment;
    let ground = resolved.and_then(|resolved| resolved.ground.as_ref());
    let mut env = ground.map(Ground::variables).unwrap_or_default();
    let foreign = resolved.and_then(|resolved| resolved.foreign.as_ref());
    // HOSTILE: the maker of the image chose them.
    let theirs = foreign.iter().flat_map(|image| &image.env);
    let theirs = theirs.filter(|(name, _)| !ground::is_ours(name.as_bytes()));
    env.extend(theirs.cloned());
    for kind in environment.caches() {
        let of_cache = kind.row().environment();
        env.extend(of_cache.map(|(name, value)| variable(name, &value)));
    }
    // HOSTILE: a folder proposes them.
    let theirs = environment.env.iter();
    for (name, own) in theirs.filter(|(name, _)| !ground::is_ours(name.as_bytes())) {
        let value = own.value.as_deref().unwrap_or_default();
        env.push(variable(name, value));
    }
    if !environment.path.is_empty() {
        let standing = env.iter().rfind(|(name, _)| name.as_bytes() == b"PATH");
        let standing = standing.map_or(PATH.into(), |(_, path)| {
            // HOSTILE: that of an image is its maker's.
            String::from_utf8_lossy(path.as_bytes())
        });
        env.push(variable(
            "PATH",
            &environment.path(&standing, &order.inside),
        ));
    }
    env
}

/// A writable directory inside over what is shared, or over nothing.
pub(super) fn overlay(
    place: &Path,
    name: &str,
    inside: &Path,
    shared: Option<&Path>,
    identity: &Identity,
) -> Result<PrivateOverlay, EnvironmentError> {
    let layer = place.join(name);
    let (upper, work, empty) = (layer.join("upper"), layer.join("work"), layer.join("empty"));
    for path in [&layer, &upper, &empty] {
        make_directory(path, identity)?;
    }
    // One that was mounted volatile before is not taken again.
    super::manage::remove_directory(&layer, "work")?;
    make_directory(&work, identity)?;
    Ok(PrivateOverlay {
        inside: inside.to_owned(),
        lower: vec![shared.map_or(empty, Path::to_owned)],
        layer,
    })
}

pub(super) fn make_directory(path: &Path, identity: &Identity) -> Result<(), EnvironmentError> {
    let made = match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Err(_) => return Ok(()),
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(0o755)),
    };
    let given = made.and_then(|()| match identity {
        Identity::Range { .. } => {
            let (uid, gid) = identity.agent_on_host();
            std::os::unix::fs::chown(path, Some(uid), Some(gid))
        }
        _ => Ok(()),
    });
    given.map_err(|source| EnvironmentError::Make {
        what: "make",
        path: path.to_owned(),
        source,
    })
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).map_or(true, |mut entries| entries.next().is_none())
}
