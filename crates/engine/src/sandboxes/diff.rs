//! What a sandbox changed, since its base or since a checkpoint.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use ringfence_jail::view::merged_view;
use ringfence_model::changes::{ChangeSet, ObjectHash};
use rustix::fs::{Mode, OFlags};

use super::recover::remove_from;
use super::{Host, seal, settle};
use crate::base;
use crate::changes::{self, Bounds, Sources, Started};
use crate::error::Error;
use crate::git::{self, Repository};
use crate::ids::{LayerId, SandboxId};
use crate::keeper::Line;
use crate::layers;
use crate::lock::FileLock;
use crate::store::SandboxRecord;
use crate::workspace::{Rules, no_patterns};

/// The part of a layer that is the workspace.
const WORKSPACE: &str = "workspace";

/// A change set that can be rendered for as long as it is kept.
#[derive(Debug)]
pub struct Diff {
    pub set: ChangeSet,
    sources: Sources,
    _kept: Kept,
}

/// What must stay as it is while the diff is read.
#[derive(Debug)]
struct Kept {
    /// Everything inside is frozen for as long as this is kept.
    _line: Option<Line>,
    _shaping: Option<FileLock>,
    temporary: Option<(PathBuf, String)>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some((parent, name)) = &self.temporary {
            // What resists is removed with its sandbox, or by the next `settle`.
            let _ = remove_from(parent, name);
        }
    }
}

impl Diff {
    /// Writes the patch.
    pub fn render(&self, out: &mut dyn std::io::Write) -> Result<changes::PatchStats, Error> {
        Ok(changes::render(&self.sources, &self.set, out)?)
    }
}

/// What differs from the base, or from a checkpoint that the present state came from.
pub fn diff(host: &Host, id: SandboxId, from: Option<&str>) -> Result<Diff, Error> {
    let places = host.places(id);
    let shaping = host.shape(id)?;
    let record = host.store.sandbox(id)?;
    if let Some(missing) = super::status::missing(host, &record)? {
        return Err(Error::WorkspaceBroken {
            sandbox: id.to_string(),
            missing,
        });
    }
    let mut above: Vec<PathBuf> = Vec::new();
    let line = if seal::is_empty(&places.upper()) {
        None
    } else {
        above.push(places.upper());
        seal::frozen(host, &record)?
    };
    let mark = match from {
        None => None,
        Some(name) => host.store.checkpoint(id, name)?.layer,
    };
    let written = written_since(host, record.head, mark)?.ok_or_else(|| Error::NotBelow {
        sandbox: id.to_string(),
        checkpoint: from.unwrap_or_default().to_owned(),
    })?;
    above.extend(written.into_iter().map(|layer| host.home.layer(layer)));
    let rest: Vec<LayerId> = host
        .store
        .stack(mark)?
        .into_iter()
        .map(|layer| layer.id)
        .collect();
    compute(host, &record, &above, &rest, line, shaping)
}

/// The layers that lie between a head and one that it came from, topmost first. One that was
/// squashed stands for those that it was made of.
fn written_since(
    host: &Host,
    head: Option<LayerId>,
    mark: Option<LayerId>,
) -> Result<Option<Vec<LayerId>>, Error> {
    let mut above = Vec::new();
    let mut next = head;
    while next != mark {
        let Some(layer) = next.map(|id| host.store.layer(id)).transpose()?.flatten() else {
            return Ok(None);
        };
        let inside = mark.is_some()
            && host
                .store
                .lineage(layer.squashed)?
                .iter()
                .any(|older| Some(older.id) == mark);
        if inside {
            next = layer.squashed;
        } else {
            above.push(layer.id);
            next = layer.parent;
        }
    }
    Ok(Some(above))
}

fn compute(
    host: &Host,
    record: &SandboxRecord,
    above: &[PathBuf],
    rest: &[LayerId],
    line: Option<Line>,
    shaping: FileLock,
) -> Result<Diff, Error> {
    let base = base::open(&host.home, &host.store, record.base)?;
    let tree = base.path.join(WORKSPACE);
    let mut lower: Vec<PathBuf> = rest
        .iter()
        .map(|&layer| host.home.layer(layer).join(WORKSPACE))
        .filter(|path| path.is_dir())
        .collect();
    lower.push(tree.clone());
    let paths: Vec<&Path> = lower.iter().map(PathBuf::as_path).collect();
    let view = merged_view(&paths).map_err(|source| Error::OpenFolder {
        path: tree.clone(),
        source,
    })?;
    let mut kept = Kept {
        _line: line,
        _shaping: Some(shaping),
        temporary: None,
    };
    let upper = flatten(host, record, above, &view, &mut kept)?;
    let repository = if tree.join(".git").exists() {
        git::discover(&tree)?
    } else {
        None
    };
    let sources = Sources {
        upper,
        base: view,
        // Nothing below a sandbox ever moves.
        started: Started {
            seconds: i64::MAX,
            nanoseconds: 0,
        },
        prefix: Vec::new(),
        hash: repository.as_ref().map_or(ObjectHash::Sha1, |r| r.hash),
    };
    let set = change_set(host, record, &base, repository.as_ref(), &sources)?;
    Ok(Diff {
        set,
        sources,
        _kept: kept,
    })
}

fn change_set(
    host: &Host,
    record: &SandboxRecord,
    base: &base::Base,
    repository: Option<&Repository>,
    sources: &Sources,
) -> Result<ChangeSet, Error> {
    let hidden = no_patterns();
    let mut rules = Rules::of(repository, sources, &hidden, record.detail.ignored)?;
    if let Some(whole) = base.stage_of {
        let whole = host.home.base(whole).join(WORKSPACE);
        rules.stage(&whole, &base.path.join(WORKSPACE))?;
    }
    Ok(changes::compute(sources, &mut rules, &Bounds::default())?)
}

/// One directory that stands for all layers above.
fn flatten(
    host: &Host,
    record: &SandboxRecord,
    above: &[PathBuf],
    below: &OwnedFd,
    kept: &mut Kept,
) -> Result<OwnedFd, Error> {
    let parts: Vec<OwnedFd> = above
        .iter()
        .filter_map(|layer| open_directory(&layer.join(WORKSPACE)).transpose())
        .collect::<Result<_, _>>()?;
    let parent = host.home.sandbox(record.id);
    let name = format!("{}{}", settle::DISCARDED, LayerId::random()?);
    let temporary = |kept: &mut Kept| kept.temporary = Some((parent.clone(), name.clone()));
    match parts.len() {
        1 => Ok(parts.into_iter().next().expect("there is one")),
        0 => {
            let path = parent.join(&name);
            std::fs::create_dir(&path).map_err(|source| Error::WriteFile {
                path: path.clone(),
                source,
            })?;
            temporary(kept);
            open_directory(&path)?.ok_or(Error::LayerGone(path))
        }
        _ => {
            let to = File::open(&parent).map_err(|source| Error::ReadFile {
                path: parent.clone(),
                source,
            })?;
            let borrowed: Vec<_> = parts.iter().map(OwnedFd::as_fd).collect();
            temporary(kept);
            layers::merge(&borrowed, Some(below.as_fd()), to.as_fd(), name.as_bytes())?;
            let path = parent.join(&name);
            open_directory(&path)?.ok_or(Error::LayerGone(path))
        }
    }
}

/// HOSTILE: what is in a layer was an agent's; a link is not followed. Its mode is widened, for an
/// agent may have closed its own root.
fn open_directory(path: &Path) -> Result<Option<OwnedFd>, Error> {
    use std::os::unix::fs::PermissionsExt as _;
    let fail = |source: std::io::Error| Error::ReadFile {
        path: path.to_owned(),
        source,
    };
    let metadata = match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => metadata,
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fail(error)),
    };
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & 0o700 != 0o700 {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode | 0o700))
            .map_err(fail)?;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| fail(errno.into()))?;
    Ok(Some(fd))
}
