//! Environments listed, looked at, made again and removed.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use ringfence_model::environment::CACHES;
use serde::Serialize;
use serde_json::{Map, Value};

use super::compare::{Difference, Differences, compare};
use super::stand::LAYERS;
use super::{EnvironmentError, Inputs, Order, Resolved, WAITS, build, caches, lock_of};
use crate::attend::{Console, Inputs as Attending};
use crate::changes::remove_tree;
use crate::error::Error;
use crate::home::Home;
use crate::ids::RunId;
use crate::lock::FileLock;
use crate::store::{EnvironmentRecord, Store};

/// One environment, for a list.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    pub key: String,
    pub setup: String,
    pub folder: Option<ringfence_model::ByteText>,
    pub image: Option<String>,
    pub created_us: i64,
    pub used_us: i64,
    pub bytes: u64,
    pub in_use: bool,
    /// All that went into it, what it came to, and what its programs said.
    pub detail: Map<String, Value>,
}

/// All of them, the least recently used first.
pub fn list(store: &Store) -> Result<Vec<Listed>, Error> {
    let mut listed = Vec::new();
    for record in store.environments()? {
        listed.push(listed_of(store, record)?);
    }
    Ok(listed)
}

fn listed_of(store: &Store, record: EnvironmentRecord) -> Result<Listed, Error> {
    let inputs = record.detail.get("inputs");
    let text = |name: &str| {
        let value = inputs.and_then(|inputs| inputs.get(name));
        value.and_then(Value::as_str).map(str::to_owned)
    };
    let folder = record.detail.get("folder").cloned();
    Ok(Listed {
        setup: text("setup").unwrap_or_default(),
        image: text("image"),
        folder: folder.and_then(|folder| serde_json::from_value(folder).ok()),
        in_use: store.is_stood_on(&format!("environments/{}", record.key))?,
        key: record.key,
        created_us: record.created_us,
        used_us: record.used_us,
        bytes: record.bytes,
        detail: record.detail,
    })
}

/// The one whose key begins like this.
pub fn find(store: &Store, typed: &str) -> Result<Listed, Error> {
    let begins = |record: &EnvironmentRecord| !typed.is_empty() && record.key.starts_with(typed);
    let mut found = store.environments()?.into_iter().filter(begins);
    match (found.next(), found.next()) {
        (Some(record), None) => listed_of(store, record),
        (Some(_), Some(_)) => Err(EnvironmentError::Ambiguous(typed.to_owned()).into()),
        _ => Err(EnvironmentError::Unknown(typed.to_owned()).into()),
    }
}

/// Removes an environment that nobody stands on.
pub fn remove(home: &Home, store: &Store, key: &str) -> Result<(), Error> {
    let lock = lock_of(home, key);
    // Whoever makes it again waits until all of it is gone.
    let held = FileLock::wait(&lock, || {}).map_err(EnvironmentError::Lock)?;
    if !store.remove_environment(key)? {
        return Err(EnvironmentError::InUse(key.to_owned()).into());
    }
    for name in [
        key.to_owned(),
        format!("{key}.partial"),
        format!("{key}.failed"),
    ] {
        remove_directory(&home.environments(), &name)?;
    }
    let _ = fs::remove_file(&lock);
    drop(held);
    Ok(())
}

/// What no row knows and nobody makes: leavings of those that were killed, output of setups that
/// failed, generations of caches that newer ones have taken the place of, and caches of folders
/// that have no environment any more. Below the home.
pub fn leavings(home: &Home, store: &Store) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    for (path, lock) in unknown(home, store)? {
        if !FileLock::is_held(&lock).map_err(EnvironmentError::Lock)? {
            found.push(path);
        }
    }
    Ok(found)
}

/// The same with the lock of each, whoever holds it. Locks themselves come last: whoever removes
/// something takes its lock.
fn unknown(home: &Home, store: &Store) -> Result<Vec<(PathBuf, PathBuf)>, Error> {
    let (mut found, mut locks) = (Vec::new(), Vec::new());
    for name in names(&home.environments()) {
        let key = name.split('.').next().unwrap_or_default();
        let known = store.environment(key)?.is_some();
        let path = home.environments().join(&name);
        let lock = lock_of(home, key);
        match (known, path == lock, name == key) {
            (false, true, _) => locks.push((path, lock)),
            (true, true, _) | (true, false, true) => {}
            _ => found.push((path, lock)),
        }
    }
    let records = store.environments()?;
    let scopes: BTreeSet<String> = records.iter().filter_map(cache_scope).collect();
    for cache in shared_caches(home, store)? {
        let place = cache.place;
        let lock = place.with_extension("lock");
        if cache.in_use {
            continue;
        }
        if !scopes.contains(&cache.scope) {
            found.push((place, lock));
            continue;
        }
        let newest = caches::generations(&place)?.into_iter().next_back();
        let newest = newest.map(|newest| newest.to_string());
        let old = names(&place)
            .into_iter()
            .filter(|name| Some(name) != newest.as_ref());
        found.extend(old.map(|name| (place.join(name), lock.clone())));
    }
    found.append(&mut locks);
    Ok(found)
}

/// What setups of one folder have left in one cache.
#[derive(Clone, Debug)]
pub struct SharedCache {
    /// As `[environment.cache]` calls it.
    pub kind: &'static str,
    pub scope: String,
    pub place: PathBuf,
    pub in_use: bool,
}

/// All of them.
pub fn shared_caches(home: &Home, store: &Store) -> Result<Vec<SharedCache>, Error> {
    let mut found = Vec::new();
    for row in &CACHES {
        for scope in names(&home.caches().join(row.name)) {
            if scope.ends_with(".lock") {
                continue;
            }
            found.push(SharedCache {
                kind: row.name,
                place: home.cache(row.kind, &scope),
                in_use: store.is_stood_on(&format!("caches/{}/{scope}", row.name))?,
                scope,
            });
        }
    }
    Ok(found)
}

/// Where the caches are that an environment was made with.
fn cache_scope(record: &EnvironmentRecord) -> Option<String> {
    let image = record.detail.get("inputs")?.get("image")?;
    Some(Inputs::cache_scope(&record.scope, image.as_str()))
}

/// Removes one of them, where it still is one.
pub fn remove_leaving(home: &Home, store: &Store, path: &Path) -> Result<(), Error> {
    let still = |found: Vec<(PathBuf, PathBuf)>| found.into_iter().find(|(one, _)| one == path);
    let Some((_, lock)) = still(unknown(home, store)?) else {
        return Ok(());
    };
    // Whoever makes one holds it; a lock that is held is somebody's who came since.
    let Some(_held) = FileLock::take(&lock).map_err(EnvironmentError::Lock)? else {
        return Ok(());
    };
    if still(unknown(home, store)?).is_none() {
        return Ok(());
    }
    if let (Some(parent), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str)) {
        remove_directory(parent, name)?;
    }
    Ok(())
}

/// What came of making a setup again.
#[derive(Debug, Serialize)]
pub struct Compared {
    pub key: String,
    pub equal: bool,
    /// The digests of both, by layer.
    pub kept: Map<String, Value>,
    pub new: Map<String, Value>,
    pub differences: Vec<Difference>,
    /// All of them, also those that are not listed.
    pub count: u64,
}

/// Makes a setup again from the same inputs, in a place of its own, and compares.
pub fn verify(
    home: &Home,
    order: &Order<'_>,
    resolved: &Resolved,
    record: &Listed,
    attending: &Attending<'_>,
    console: &mut dyn Console,
) -> Result<Compared, Error> {
    let changed = || EnvironmentError::Changed {
        folder: order.folder.clone(),
    };
    let inputs = resolved.inputs.as_ref().ok_or_else(changed)?;
    if inputs.key() != record.key {
        return Err(changed().into());
    }
    // What is made beside it is nobody's leaving meanwhile, and what it is compared with stays.
    let _lock = FileLock::wait(&lock_of(home, &record.key), || {
        console.step(&format!("setup: {WAITS}"));
    })
    .map_err(EnvironmentError::Lock)?;
    let name = format!("{}.verify-{}", record.key, RunId::random()?);
    let scratch = home.environments().join(&name);
    let compared = (|| -> Result<Compared, Error> {
        let built = build::build(home, order, resolved, inputs, &scratch, attending, console)?;
        let mut found = Differences::default();
        let kept_layers = LAYERS
            .into_iter()
            .filter(|layer| home.environment(&record.key).join(layer).is_dir());
        for layer in kept_layers {
            let open = |path: &Path| {
                fs::File::open(path).map_err(|source| EnvironmentError::Make {
                    what: "open",
                    path: path.to_owned(),
                    source,
                })
            };
            let kept = open(&home.environment(&record.key).join(layer))?;
            let new = open(&scratch.join(layer))?;
            compare(kept.as_fd(), new.as_fd(), layer, &mut found)?;
        }
        let digests = |detail: &Map<String, Value>| -> Map<String, Value> {
            let own = detail.iter().filter(|(name, _)| name.ends_with("_sha256"));
            own.map(|(name, value)| (name.clone(), value.clone()))
                .collect()
        };
        let new = built.record(&record.key, inputs, &order.folder);
        let (kept, new) = (digests(&record.detail), digests(&new.detail));
        Ok(Compared {
            key: record.key.clone(),
            equal: found.count == 0 && kept == new,
            kept,
            new,
            differences: found.listed,
            count: found.count,
        })
    })();
    let removed = remove_directory(&home.environments(), &name);
    let compared: Compared = compared?;
    removed?;
    Ok(compared)
}

/// Removes a directory below one of ours; one that is not there is no error.
pub(super) fn remove_directory(parent: &Path, name: &str) -> Result<(), EnvironmentError> {
    let opened = match fs::File::open(parent) {
        Ok(opened) => opened,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(source) => {
            return Err(EnvironmentError::Make {
                what: "open",
                path: parent.to_owned(),
                source,
            });
        }
    };
    remove_tree(opened.as_fd(), name.as_bytes())?;
    Ok(())
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}
