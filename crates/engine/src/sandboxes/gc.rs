//! What is removed, and why: planned first, in one order, and only then done.
//!
//! Executions, then clean sandboxes, then those with work in them (their patch is saved before),
//! then layers, bases and mirrors that nothing stands on. Never what is pinned or in use.

use std::path::PathBuf;

use ringfence_model::image::Digest;
use ringfence_model::sandbox::{EndReason, SandboxState};

use super::diff::{self, Want};
use super::recover::{remove_from, strangers, unfinished_bases, unknown_mirrors};
use super::{Host, remove, settle, status, stop};
use crate::clock::now_us;
use crate::config::{GcSettings, gc_settings};
use crate::durable::{self, Existing};
use crate::environment;
use crate::error::Error;
use crate::fail;
use crate::ids::{BaseId, LayerId, MirrorId, RunId, SandboxId};
use crate::images::Leftover;
use crate::lock::{FileLock, RunLock};
use crate::store::{
    BaseKind, BaseRecord, OrphanKind, SandboxRecord, SourceState, StoreError, orphans,
};

/// BOUND: under pressure, what was used this recently is in use.
const IN_USE_SECONDS: u64 = 600;

/// One thing to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    pub what: What,
    pub why: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Stop(SandboxId),
    /// Nothing in it differs from its base.
    RemoveClean(SandboxId),
    /// Its patch is saved first.
    RemoveDirty(SandboxId),
    RemoveLayer(LayerId),
    RemoveBase(BaseId),
    RemoveMirror(MirrorId),
    /// A base that was never whole.
    RemoveUnfinished(BaseId),
    /// The directory of a mirror that no row knows.
    RemoveUnknown(MirrorId),
    RemoveEnvironment(String),
    /// Something of an environment or a cache that nobody needs.
    RemoveLeaving(PathBuf),
    /// A directory that no row knows.
    RemoveStranger(PathBuf),
    /// Where somebody worked who is gone: a setup, a check.
    RemoveAbandoned(RunId),
    /// What a backend holds for a sandbox that nobody drives any more.
    RemoveAttached(String),
    RemoveImage(Digest),
    /// A layer, a document or half a blob that no image has.
    RemoveOfImages(Leftover),
}

impl What {
    /// For a person.
    pub fn text(&self) -> String {
        match self {
            Self::Stop(id) => format!("stop the execution of sandbox {id}"),
            Self::RemoveClean(id) => format!("remove sandbox {id}"),
            Self::RemoveDirty(id) => format!("save the patch of sandbox {id}, then remove it"),
            Self::RemoveLayer(id) => format!("remove layer {id}"),
            Self::RemoveBase(id) => format!("remove base {id}"),
            Self::RemoveUnfinished(id) => format!("remove base {id}, which is not whole"),
            Self::RemoveUnknown(id) => format!("remove mirror {id}, which is not known"),
            Self::RemoveMirror(id) => format!("remove mirror {id}"),
            Self::RemoveImage(digest) => format!("remove image {digest}"),
            Self::RemoveOfImages(leftover) => format!("remove `{}`", leftover.path.display()),
            Self::RemoveEnvironment(key) => format!("remove environment {key}"),
            Self::RemoveAbandoned(id) => format!("remove `workspaces/{id}`"),
            Self::RemoveAttached(name) => format!("remove `attached/{name}`"),
            Self::RemoveStranger(path) | Self::RemoveLeaving(path) => {
                format!("remove `{}`", path.display())
            }
        }
    }

    /// The id or path of what it is about.
    pub fn subject(&self) -> String {
        match self {
            Self::Stop(id) | Self::RemoveClean(id) | Self::RemoveDirty(id) => id.to_string(),
            Self::RemoveLayer(id) => id.to_string(),
            Self::RemoveBase(id) | Self::RemoveUnfinished(id) => id.to_string(),
            Self::RemoveMirror(id) | Self::RemoveUnknown(id) => id.to_string(),
            Self::RemoveImage(digest) => digest.to_string(),
            Self::RemoveOfImages(leftover) => leftover.path.display().to_string(),
            Self::RemoveEnvironment(key) => key.clone(),
            Self::RemoveAbandoned(id) => id.to_string(),
            Self::RemoveAttached(name) => name.clone(),
            Self::RemoveStranger(path) | Self::RemoveLeaving(path) => path.display().to_string(),
        }
    }

    /// For a program.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Stop(_) => "stop",
            Self::RemoveClean(_) => "remove_sandbox",
            Self::RemoveDirty(_) => "save_and_remove_sandbox",
            Self::RemoveLayer(_) => "remove_layer",
            Self::RemoveBase(_) | Self::RemoveUnfinished(_) => "remove_base",
            Self::RemoveMirror(_) | Self::RemoveUnknown(_) => "remove_mirror",
            Self::RemoveImage(_) => "remove_image",
            Self::RemoveOfImages(_) => "remove_part_of_images",
            Self::RemoveEnvironment(_) => "remove_environment",
            Self::RemoveStranger(_)
            | Self::RemoveLeaving(_)
            | Self::RemoveAbandoned(_)
            | Self::RemoveAttached(_) => "remove_directory",
        }
    }
}

/// What there is to do now.
pub fn plan(host: &Host) -> Result<Vec<Action>, Error> {
    let settings = gc_settings(&host.home)?;
    let pressure = pressure(host, &settings);
    let mut actions = Vec::new();
    let mut clean = Vec::new();
    let mut dirty = Vec::new();
    let mut staying = Vec::new();
    let all = status::look_at_all(host)?;
    for seen in &all {
        let record = &seen.record;
        let running = FileLock::is_held(&host.places(record.id).lock())?;
        let idle = age(record.used_us);
        let used = seen.execution.is_some_and(|e| e.execs > 0);
        if running && !used && !record.pinned && past(idle, settings.idle_seconds) {
            actions.push(Action {
                what: What::Stop(record.id),
                why: format!("asked nothing for {}", span(idle)),
            });
        }
        match removable(record, running, idle, &settings, pressure) {
            None => staying.push(record),
            Some(why) => {
                let empty = record.head.is_none() && !seen.unsealed;
                let broken = matches!(seen.state, status::SeenState::Broken { .. });
                if broken {
                    // Its work cannot be saved: a person decides.
                    staying.push(record);
                } else if empty {
                    clean.push(Action {
                        what: What::RemoveClean(record.id),
                        why,
                    });
                } else {
                    dirty.push(Action {
                        what: What::RemoveDirty(record.id),
                        why,
                    });
                }
            }
        }
    }
    actions.append(&mut clean);
    actions.append(&mut dirty);
    for layer in remove::unused_layers(host)? {
        actions.push(Action {
            what: What::RemoveLayer(layer),
            why: "nothing stands on it".to_owned(),
        });
    }
    caches(host, &staying, &settings, pressure, &mut actions)?;
    for base in unfinished_bases(host)? {
        actions.push(Action {
            what: What::RemoveUnfinished(base),
            why: "whoever made it is gone".to_owned(),
        });
    }
    for mirror in unknown_mirrors(host)? {
        actions.push(Action {
            what: What::RemoveUnknown(mirror),
            why: "no row knows it".to_owned(),
        });
    }
    for record in all.iter().map(|seen| &seen.record) {
        for name in thrown_away(host, record)? {
            actions.push(Action {
                what: What::RemoveStranger(host.home.sandbox(record.id).join(name)),
                why: "it was thrown away".to_owned(),
            });
        }
    }
    images(host, &settings, pressure, &mut actions)?;
    for path in environment::leavings(&host.home, &host.store)? {
        actions.push(Action {
            what: What::RemoveLeaving(path),
            why: "nobody needs it".to_owned(),
        });
    }
    for orphan in orphans(&host.store, &host.home)? {
        // Bundles and logs are evidence: a person decides.
        if let (OrphanKind::Workspace, Some(id)) = (orphan.kind, orphan.run)
            && RunLock::is_begun(&host.home, id)
        {
            actions.push(Action {
                what: What::RemoveAbandoned(id),
                why: "whoever worked there is gone".to_owned(),
            });
        }
    }
    for name in crate::backend::left(&host.home) {
        actions.push(Action {
            what: What::RemoveAttached(name),
            why: "nobody drives its sandbox any more".to_owned(),
        });
    }
    for path in strangers(host)? {
        actions.push(Action {
            what: What::RemoveStranger(path),
            why: "no row knows it".to_owned(),
        });
    }
    Ok(actions)
}

/// Does one of them and records it; gives where a patch was saved. What somebody else did meanwhile
/// is done.
pub fn act(host: &Host, action: &Action) -> Result<Option<PathBuf>, Error> {
    let saved = match perform(host, &action.what) {
        Err(Error::Store(StoreError::NoSandbox { .. })) => return Ok(None),
        done => done?,
    };
    host.store
        .record_eviction(action.what.word(), &action.what.subject(), &action.why)?;
    let Action { what, why } = action;
    tracing::info!(action = what.word(), subject = ?what.subject(), ?why, "gc");
    Ok(saved)
}

fn perform(host: &Host, what: &What) -> Result<Option<PathBuf>, Error> {
    match what {
        What::Stop(id) => {
            let _shaping = host.shape(*id)?;
            if still_idle(host, *id)? {
                stop::end(host, *id, EndReason::Idle)?;
            }
            fail::point("gc:stopped");
        }
        What::RemoveClean(id) | What::RemoveDirty(id) => return evict(host, *id),
        What::RemoveLayer(id) => {
            if host.store.remove_layer(*id)? {
                fail::point("gc:forgot");
                remove::remove_layer(host, *id)?;
            }
        }
        What::RemoveUnfinished(id) => crate::base::sweep(&host.home, &host.store, *id)?,
        What::RemoveUnknown(id) => crate::mirror::sweep(&host.home, &host.store, *id)?,
        What::RemoveBase(id) => crate::base::forget(&host.home, &host.store, *id)?,
        What::RemoveMirror(id) => crate::mirror::forget(&host.home, &host.store, *id)?,
        What::RemoveImage(digest) => {
            crate::images::remove_unused(&host.home, &host.store, *digest)?;
            for leftover in crate::images::leftovers(&host.home, &host.store)? {
                crate::images::remove_leftover(&host.home, &host.store, &leftover)?;
            }
        }
        What::RemoveAttached(name) => crate::backend::sweep(&host.home, name),
        What::RemoveOfImages(leftover) => {
            crate::images::remove_leftover(&host.home, &host.store, leftover)?;
        }
        What::RemoveEnvironment(key) => {
            use crate::environment::EnvironmentError;
            match environment::remove(&host.home, &host.store, key) {
                Err(Error::Environment(EnvironmentError::InUse(key))) => {
                    return Err(Error::UsedAgain(key));
                }
                done => done?,
            }
        }
        What::RemoveLeaving(path) => environment::remove_leaving(&host.home, &host.store, path)?,
        What::RemoveAbandoned(id) => {
            crate::archive::remove_abandoned(&host.program, &host.home, &host.store, *id)?;
        }
        What::RemoveStranger(path) => {
            if let (Some(parent), Some(name)) = (
                path.parent(),
                path.file_name().and_then(|name| name.to_str()),
            ) {
                remove_from(parent, name)?;
            }
        }
    }
    Ok(None)
}

/// Whether an execution is still idle, now that nobody can begin anything.
fn still_idle(host: &Host, id: SandboxId) -> Result<bool, Error> {
    let settings = gc_settings(&host.home)?;
    let seen = status::look(host, host.store.sandbox(id)?)?;
    let used = seen.execution.is_some_and(|e| e.execs > 0);
    Ok(!used && past(age(seen.record.used_us), settings.idle_seconds))
}

/// Removes a sandbox that can still be removed, now that nobody can begin anything in it; where it
/// has work in it, the patch is saved first.
fn evict(host: &Host, id: SandboxId) -> Result<Option<PathBuf>, Error> {
    let shaping = host.shape(id)?;
    let settings = gc_settings(&host.home)?;
    let record = host.store.sandbox(id)?;
    let running = FileLock::is_held(&host.places(id).lock())?;
    let idle = age(record.used_us);
    if removable(&record, running, idle, &settings, pressure(host, &settings)).is_none() {
        return Err(Error::UsedAgain(id.to_string()));
    }
    // What runs in one that is past its time is ended before its work is saved.
    stop::end(host, id, EndReason::Expired)?;
    let seen = status::look(host, host.store.sandbox(id)?)?;
    let clean = record.head.is_none() && !seen.unsealed;
    let saved = if clean {
        None
    } else {
        Some(save(host, &record, &shaping)?)
    };
    fail::point("gc:saved");
    remove::remove_held(host, &record, Some(shaping))?;
    Ok(saved)
}

/// Writes the patch of a sandbox beside the bundles, synced.
fn save(host: &Host, record: &SandboxRecord, shaping: &FileLock) -> Result<PathBuf, Error> {
    let mut changes = diff::diff_held(host, record.id, (None, None), Want::Patch, shaping)?;
    let directory = host.home.root().join("saved");
    std::fs::create_dir_all(&directory).map_err(|source| Error::WriteFile {
        path: directory.clone(),
        source,
    })?;
    let path = directory.join(format!("{}.patch", record.id));
    let mut patch = Vec::new();
    changes
        .write(&mut patch)
        .map_err(|source| Error::ReadFile {
            path: path.clone(),
            source,
        })?;
    durable::write_synced(&path, &patch, Existing::Replace)?;
    Ok(path)
}

fn removable(
    record: &SandboxRecord,
    running: bool,
    idle: u64,
    settings: &GcSettings,
    pressure: Option<u64>,
) -> Option<String> {
    if record.pinned || record.intent.is_some() || record.state == SandboxState::Making {
        return None;
    }
    if record.expires_us.is_some_and(|at| at <= now_us()) {
        return Some("past its time".to_owned());
    }
    if running {
        return None;
    }
    if past(idle, settings.age_seconds) {
        return Some(format!("not used for {}", span(idle)));
    }
    if let Some(free) = pressure
        && idle >= IN_USE_SECONDS
    {
        return Some(format!(
            "only {} are free on the disk",
            ringfence_model::limits::HumanBytes(free)
        ));
    }
    None
}

/// Bases and mirrors that nothing stands on.
fn caches(
    host: &Host,
    staying: &[&SandboxRecord],
    settings: &GcSettings,
    pressure: Option<u64>,
    actions: &mut Vec<Action>,
) -> Result<(), Error> {
    let why = |used_us: i64| {
        let idle = age(used_us);
        if past(idle, settings.cache_age_seconds) {
            Some(format!("nothing stands on it, not used for {}", span(idle)))
        } else if pressure.is_some() && idle >= IN_USE_SECONDS {
            Some("nothing stands on it, and the disk is nearly full".to_owned())
        } else {
            None
        }
    };
    for record in environment::list(&host.store)? {
        if let Some(why) = why(record.used_us).filter(|_| !record.in_use) {
            actions.push(Action {
                what: What::RemoveEnvironment(record.key),
                why,
            });
        }
    }
    let bases = host.store.bases()?;
    let leaving: Vec<LayerId> = remove::unused_layers(host)?;
    let layers = host.store.layers()?;
    let mut kept: Vec<BaseId> = staying.iter().map(|record| record.base).collect();
    kept.extend(
        layers
            .iter()
            .filter(|layer| !leaving.contains(&layer.id))
            .map(|layer| layer.base)
            .filter(|base| staying.iter().any(|record| record.base == *base)),
    );
    let reason = |base: &BaseRecord, kept: &[BaseId]| {
        why(base.used_us).filter(|_| !kept.contains(&base.id) && base.state == SourceState::Ready)
    };
    // A staged base needs the whole one to know what it conceals.
    let (staged, whole): (Vec<_>, Vec<_>) =
        bases.iter().partition(|base| base.kind == BaseKind::Stage);
    for base in &staged {
        if reason(base, &kept).is_none() {
            kept.extend(crate::base::stage_of(base));
        }
    }
    let mut kept_mirrors = Vec::new();
    // Staged ones go first: until then they hold on to the whole ones.
    for base in staged.into_iter().chain(whole) {
        match reason(base, &kept) {
            Some(why) => actions.push(Action {
                what: What::RemoveBase(base.id),
                why,
            }),
            None => kept_mirrors.extend(crate::base::mirrors_of(base)),
        }
    }
    for mirror in host.store.mirrors()? {
        if let Some(why) = why(mirror.used_us).filter(|_| !kept_mirrors.contains(&mirror.id)) {
            actions.push(Action {
                what: What::RemoveMirror(mirror.id),
                why,
            });
        }
    }
    Ok(())
}

/// Images that nothing stands on, and what no image has.
fn images(
    host: &Host,
    settings: &GcSettings,
    pressure: Option<u64>,
    actions: &mut Vec<Action>,
) -> Result<(), Error> {
    for image in host.store.images()? {
        let idle = age(image.used_us);
        let crowded = pressure.is_some() && idle >= IN_USE_SECONDS;
        if (past(idle, settings.cache_age_seconds) || crowded)
            && host.store.image_uses(image.digest)?.is_empty()
        {
            actions.push(Action {
                what: What::RemoveImage(image.digest),
                why: format!("nothing stands on it, not used for {}", span(idle)),
            });
        }
    }
    for leftover in crate::images::leftovers(&host.home, &host.store)? {
        actions.push(Action {
            why: leftover.why.to_owned(),
            what: What::RemoveOfImages(leftover),
        });
    }
    Ok(())
}

/// What a killed `rollback` or `diff` left in a sandbox that nobody works on.
fn thrown_away(host: &Host, record: &SandboxRecord) -> Result<Vec<String>, Error> {
    if record.intent.is_some() || record.state == SandboxState::Making {
        return Ok(Vec::new());
    }
    match settle::discarded(host, record.id) {
        // Removed meanwhile, with all that was in it.
        Err(Error::Store(StoreError::NoSandbox { .. })) => Ok(Vec::new()),
        found => found,
    }
}

/// Free bytes where they are too few.
fn pressure(host: &Host, settings: &GcSettings) -> Option<u64> {
    let stat = rustix::fs::statvfs(host.home.root()).ok()?;
    let free = stat.f_bavail * stat.f_frsize;
    settings.free_bytes.filter(|least| free < *least)?;
    Some(free)
}

fn past(idle: u64, bound: Option<u64>) -> bool {
    bound.is_some_and(|bound| idle >= bound)
}

fn age(used_us: i64) -> u64 {
    u64::try_from((now_us() - used_us) / 1_000_000).unwrap_or(0)
}

/// A span of time, for a person.
fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}
