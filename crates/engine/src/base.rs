//! Bases: what a sandbox starts from. Made once, read-only and shared ever after.
//!
//! ```text
//! bases/<base>/
//! ├── workspace/     the tree; with a private `.git` where there is history
//! ├── home/  tmp/    empty
//! ```
//!
//! The key says what a base is made of and the id follows from the key, so that everybody who wants
//! the same waits for one maker. A killed maker leaves its row `making`; what it made is removed
//! and made again. Where something could not be fetched, the next request tries again and makes
//! another base.
//!
//! INVARIANT: a base that is `ready` never changes. Its files may be links to those of another base.

mod changed;
mod checkout;
mod copy;
mod error;
pub(crate) mod files;
pub(crate) mod identity;
mod lfs;
mod listed;
mod loose;
mod missing;
mod private;
mod snapshot;
mod stage;
mod submodules;
mod tree;

use std::path::{Path, PathBuf};

use ringfence_model::changes::ObjectHash;
use ringfence_model::policy::sources::Sources;
use serde_json::{Map, Value};

use crate::changes::remove_tree;
use crate::fail;
use crate::home::Home;
use crate::ids::{BaseId, MirrorId};
use crate::lock::FileLock;
use crate::mirror::{self, Progress, Resolved, Silent};
use crate::store::{BaseRecord, FinishedBase, NewBase, SourceState, Store};

pub use crate::store::BaseKind;
pub(crate) use changed::{ChangedError, Read, changed_tree, grown_tree};
pub use error::BaseError;
pub(crate) use listed::ListedTree;
use missing::Missing;
pub use snapshot::snapshot;
pub use stage::staged;
pub(crate) use submodules::reach::checked_alone;
pub(crate) use tree::object_id;

/// Where object directories of the host are seen inside, each in a directory of its number.
pub const OBJECTS_INSIDE: &str = "/.ringfence/objects";

/// BOUND: notes are for a person; more of them are counted only.
const MAX_NOTES: usize = 50;

/// What a sandbox starts from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    pub id: BaseId,
    pub kind: BaseKind,
    /// Holds `workspace`, `home` and `tmp`.
    pub path: PathBuf,
    /// Object directories of the host, to be mounted read-only inside at [`OBJECTS_INSIDE`] as
    /// `0`, `1` and so on, in this order.
    pub objects: Vec<PathBuf>,
    pub mirror: Option<MirrorId>,
    pub commit: Option<String>,
    /// Git tree id of the workspace, compared with what is on the disk when it was made.
    pub tree: Option<String>,
    pub hash: ObjectHash,
    /// The base of which this one shows some files only.
    pub stage_of: Option<BaseId>,
    /// For a person: what is not as in the source.
    pub notes: Vec<String>,
}

impl Base {
    pub fn workspace(&self) -> PathBuf {
        self.path.join("workspace")
    }
}

/// Where a base is being made.
#[derive(Clone, Copy, Debug)]
struct Site<'a> {
    id: BaseId,
    path: &'a Path,
    /// For every git that writes there.
    lock: &'a FileLock,
}

impl Site<'_> {
    fn workspace(&self) -> PathBuf {
        self.path.join("workspace")
    }
}

/// What a maker made.
#[derive(Debug)]
struct Built {
    commit: Option<String>,
    tree: Option<String>,
    hash: ObjectHash,
    objects: Vec<MirrorId>,
    notes: Vec<String>,
    /// What could not be fetched, and may be there another time.
    missing: Vec<Missing>,
}

impl Default for Built {
    fn default() -> Self {
        Self {
            commit: None,
            tree: None,
            hash: ObjectHash::Sha1,
            objects: Vec::new(),
            notes: Vec::new(),
            missing: Vec::new(),
        }
    }
}

/// Whether submodules are fetched and checked out too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Submodules<'a> {
    /// From the site of the repository, and from the hosts that the user names.
    Fetch(&'a Sources),
    Leave,
}

/// The base of a commit. Its submodules come from the site of the repository.
pub fn commit(
    home: &Home,
    store: &Store,
    resolved: &Resolved,
    progress: &mut dyn Progress,
) -> Result<Base, BaseError> {
    commit_from(home, store, resolved, &Sources::default(), progress)
}

/// The same; submodules also come from hosts that the user's own policy names.
pub fn commit_from(
    home: &Home,
    store: &Store,
    resolved: &Resolved,
    sources: &Sources,
    progress: &mut dyn Progress,
) -> Result<Base, BaseError> {
    let submodules = Submodules::Fetch(sources);
    commit_with(home, store, resolved, submodules, progress)
}

fn commit_with(
    home: &Home,
    store: &Store,
    resolved: &Resolved,
    submodules: Submodules<'_>,
    progress: &mut dyn Progress,
) -> Result<Base, BaseError> {
    let mirror = &resolved.mirror;
    // Who asks for a commit gets its tree, on whatever branch it was checked out before.
    if resolved.branch.is_none()
        && submodules != Submodules::Leave
        && let Some(record) = store.base_of_commit(mirror.id, &resolved.commit)?
        && let Some(base) = from_record(home, &record)
    {
        store.touch_base(base.id)?;
        return Ok(base);
    }
    // The branch is in `HEAD`, which is in the base.
    let branch = resolved.branch.as_deref().unwrap_or("-");
    let mut key = format!("commit {} {} {branch}", mirror.id, resolved.commit);
    if submodules == Submodules::Leave
        && mirror::has_file(&mirror.path, &resolved.commit, ".gitmodules")
    {
        key.push_str(" without submodules");
    }
    let key = missing::attempt(home, store, resolved, (&key, submodules), progress)?;
    let new = NewBase {
        id: id_of(&key),
        key,
        kind: BaseKind::Commit,
        mirror: Some(mirror.id),
    };
    made(home, store, &new, progress, |site, progress| {
        submodules::build(home, store, resolved, submodules, site, progress)
    })
}

/// An empty workspace; there is one base of it.
pub fn empty(home: &Home, store: &Store) -> Result<Base, BaseError> {
    let key = "empty".to_owned();
    let new = NewBase {
        id: id_of(&key),
        key,
        kind: BaseKind::Empty,
        mirror: None,
    };
    made(home, store, &new, &mut Silent, |_, _| Ok(Built::default()))
}

/// A base that was made before.
pub fn open(home: &Home, store: &Store, id: BaseId) -> Result<Base, BaseError> {
    let record = store.base(id)?.ok_or(BaseError::NoBase { base: id })?;
    from_record(home, &record).ok_or_else(|| BaseError::Gone {
        base: id,
        path: home.base(id),
    })
}

/// The base of which a staged one shows some files.
pub fn stage_of(record: &BaseRecord) -> Option<BaseId> {
    let rest = record.key.strip_prefix("stage ")?;
    rest.split(' ').next()?.parse().ok()
}

/// The mirrors that a base reads: its own, and those of its submodules.
pub(crate) fn mirrors_of(record: &BaseRecord) -> Vec<MirrorId> {
    let objects = texts(record, "objects");
    let objects = objects.iter().filter_map(|id| id.parse().ok());
    objects.chain(record.mirror).collect()
}

/// Removes a base that nothing stands on; one that something does is refused by the store.
pub fn forget(home: &Home, store: &Store, id: BaseId) -> Result<(), BaseError> {
    let lock = lock_of(home, id);
    let _lock = FileLock::wait(&lock, || {})?;
    store.remove_base(id)?;
    fail::point("gc:forgot-base");
    remove(home, id)?;
    // Whoever waits for it finds it nameless and takes a new one.
    let _ = std::fs::remove_file(lock);
    Ok(())
}

/// Whether somebody makes, or removes, this base right now.
pub fn is_being_made(home: &Home, id: BaseId) -> Result<bool, BaseError> {
    Ok(FileLock::is_held(&lock_of(home, id))?)
}

/// Removes a base that is not whole and that nobody makes; any other is left as it is.
pub fn sweep(home: &Home, store: &Store, id: BaseId) -> Result<(), BaseError> {
    let lock = lock_of(home, id);
    let Some(_lock) = FileLock::take(&lock)? else {
        return Ok(());
    };
    match store.base(id)? {
        Some(record) if record.state != SourceState::Making => return Ok(()),
        _ => {}
    }
    remove(home, id)?;
    store.remove_base(id)?;
    let _ = std::fs::remove_file(lock);
    Ok(())
}

fn lock_of(home: &Home, id: BaseId) -> PathBuf {
    home.bases().join(format!("{id}.lock"))
}

fn id_of(key: &str) -> BaseId {
    BaseId::from_bits(mirror::bits_of(key))
}

/// Makes a base, or waits for whoever makes it, or finds it.
fn made(
    home: &Home,
    store: &Store,
    new: &NewBase,
    progress: &mut dyn Progress,
    build: impl FnOnce(Site<'_>, &mut dyn Progress) -> Result<Built, BaseError>,
) -> Result<Base, BaseError> {
    let find = || -> Result<Option<Base>, BaseError> {
        let found = store
            .base(new.id)?
            .and_then(|record| from_record(home, &record));
        if found.is_some() {
            store.touch_base(new.id)?;
        }
        Ok(found)
    };
    if let Some(base) = find()? {
        return Ok(base);
    }
    let lock = lock_of(home, new.id);
    let lock = FileLock::wait(&lock, || {
        progress.say("waiting for another maker of the same base");
    })?;
    if let Some(base) = find()? {
        return Ok(base);
    }
    let path = home.base(new.id);
    // A killed maker's leavings.
    remove(home, new.id)?;
    fail::point("base:locked");
    store.insert_base(new)?;
    fail::point("base:recorded");
    let site = Site {
        id: new.id,
        path: &path,
        lock: &lock,
    };
    let result = lay_out(&path)
        .inspect(|()| fail::point("base:laid"))
        .and_then(|()| build(site, progress))
        .inspect(|_| fail::point("base:built"))
        .and_then(|built| finish(store, new, &path, built));
    fail::point("base:done");
    if let Err(error) = result {
        // The error that matters is the one above; what is left is removed by the next maker.
        let _ = remove(home, new.id);
        let _ = store.remove_base(new.id);
        return Err(error);
    }
    find()?.ok_or(BaseError::Gone { base: new.id, path })
}

fn lay_out(path: &Path) -> Result<(), BaseError> {
    files::make_directory(path, 0o755)?;
    files::make_directory(&path.join("workspace"), 0o755)?;
    files::make_directory(&path.join("home"), 0o700)?;
    files::make_directory(&path.join("tmp"), 0o1777)
}

fn finish(store: &Store, new: &NewBase, path: &Path, built: Built) -> Result<(), BaseError> {
    let mut notes = built.notes;
    if notes.len() > MAX_NOTES {
        let more = notes.len() - MAX_NOTES;
        notes.truncate(MAX_NOTES);
        notes.push(format!("and {more} more of these"));
    }
    let objects: Vec<&str> = built.objects.iter().map(MirrorId::as_str).collect();
    let mut detail = Map::from_iter([
        ("hash".to_owned(), Value::from(built.hash.name())),
        ("objects".to_owned(), Value::from(objects)),
        ("notes".to_owned(), Value::from(notes)),
    ]);
    if !built.missing.is_empty() {
        detail.insert("missing".to_owned(), missing::to_value(&built.missing));
    }
    mirror::sync(path)?;
    let end = FinishedBase {
        commit: built.commit,
        tree: built.tree,
        detail,
    };
    store.finish_base(new.id, &end)?;
    Ok(())
}

fn remove(home: &Home, id: BaseId) -> Result<(), BaseError> {
    let bases = files::open_directory(&home.bases())?;
    remove_tree(std::os::fd::AsFd::as_fd(&bases), id.as_str().as_bytes())?;
    Ok(())
}

/// `None` where it is not complete or not there.
fn from_record(home: &Home, record: &BaseRecord) -> Option<Base> {
    let path = home.base(record.id);
    if record.state != SourceState::Ready || !path.join("workspace").is_dir() {
        return None;
    }
    let objects = texts(record, "objects")
        .iter()
        .map(|id| id.parse().ok())
        .collect::<Option<Vec<MirrorId>>>()?;
    let hash = match record.detail.get("hash").and_then(Value::as_str) {
        Some("sha256") => ObjectHash::Sha256,
        _ => ObjectHash::Sha1,
    };
    Some(Base {
        id: record.id,
        kind: record.kind,
        path,
        objects: objects
            .into_iter()
            .map(|id| home.mirror(id).join("objects"))
            .collect(),
        mirror: record.mirror,
        commit: record.commit.clone(),
        tree: record.tree.clone(),
        hash,
        stage_of: stage_of(record),
        notes: texts(record, "notes"),
    })
}

/// A list of texts in what is noted of a base.
fn texts(record: &BaseRecord, name: &str) -> Vec<String> {
    let list = record.detail.get(name).and_then(Value::as_array);
    let texts = list.into_iter().flatten().filter_map(Value::as_str);
    texts.map(str::to_owned).collect()
}
