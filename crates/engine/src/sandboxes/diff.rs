//! What a sandbox changed, since its base or since a checkpoint.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use ringfence_jail::view::merged_view;
use ringfence_model::changes::{ChangeSet, ObjectHash};
use rustix::fs::{Mode, OFlags};

use super::recover::remove_from;
use super::{Host, seal, settle};
use crate::base;
use crate::changes::{self, Bounds, Sources, Started};
use crate::environment::Standing;
use crate::error::Error;
use crate::files::{FileRules, mask};
use crate::git::{self, Repository};
use crate::ids::{LayerId, SandboxId};
use crate::layers;
use crate::lock::FileLock;
use crate::store::SandboxRecord;
use crate::workspace::Rules;

/// The part of a layer that is the workspace.
const WORKSPACE: &str = "workspace";

/// What differs, and the patch of it where one was wanted.
#[derive(Debug)]
pub struct Diff {
    pub set: ChangeSet,
    patch: Option<File>,
}

/// What is wanted of a diff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    List,
    Patch,
}

/// Directories that are removed when a diff was read.
#[derive(Debug, Default)]
struct Temporary {
    names: Vec<(PathBuf, String)>,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        for (parent, name) in &self.names {
            // What resists is removed with its sandbox, or by the next `settle`.
            let _ = remove_from(parent, name);
        }
    }
}

impl Diff {
    /// Writes the patch.
    pub fn write(&mut self, out: &mut dyn io::Write) -> io::Result<()> {
        match &mut self.patch {
            None => Ok(()),
            Some(patch) => {
                patch.seek(SeekFrom::Start(0))?;
                io::copy(patch, out).map(drop)
            }
        }
    }
}

/// What differs from the base, or from a checkpoint: at present, or at another checkpoint.
///
/// What runs stands still while it is read, and goes on before this returns.
pub fn diff(
    host: &Host,
    id: SandboxId,
    from: Option<&str>,
    at: Option<&str>,
    want: Want,
) -> Result<Diff, Error> {
    let shaping = host.shape(id)?;
    diff_held(host, id, (from, at), want, &shaping)
}

/// The same, for who holds the lock.
pub(super) fn diff_held(
    host: &Host,
    id: SandboxId,
    (from, at): (Option<&str>, Option<&str>),
    want: Want,
    _shaping: &FileLock,
) -> Result<Diff, Error> {
    let record = host.store.sandbox(id)?;
    if let Some(missing) = super::status::missing(host, &record)? {
        return Err(Error::WorkspaceBroken {
            sandbox: id.to_string(),
            missing,
        });
    }
    for _ in 0..seal::STILL_TRIES {
        let mut line = match at {
            None => seal::frozen(host, &record)?,
            Some(_) => None,
        };
        let read = read(host, &record, (from, at), want);
        // A keeper that died meanwhile cannot say whether something ran before; now nothing does.
        let still = line
            .as_mut()
            .is_none_or(|line| matches!(line.thaw(), Ok(0)));
        if still {
            return read;
        }
    }
    Err(Error::NotStill(id.to_string()))
}

fn read(
    host: &Host,
    record: &SandboxRecord,
    (from, at): (Option<&str>, Option<&str>),
    want: Want,
) -> Result<Diff, Error> {
    let mut temporary = Temporary::default();
    let (sources, set) = compare(host, record, (from, at), &mut temporary)?;
    let patch = match want {
        Want::List => None,
        Want::Patch => {
            let file = nameless(host, record.id)?;
            let mut out = io::BufWriter::new(file);
            changes::render(&sources, &set, &mut out)?;
            let path = host.home.sandbox(record.id);
            let file = out.into_inner().map_err(|error| Error::WriteFile {
                path,
                source: error.into_error(),
            })?;
            Some(file)
        }
    };
    Ok(Diff { set, patch })
}

/// A file without a name: gone with its last descriptor.
fn nameless(host: &Host, id: SandboxId) -> Result<File, Error> {
    let path = host
        .home
        .sandbox(id)
        .join(format!("{}{}", settle::DISCARDED, LayerId::random()?));
    let make = || -> io::Result<File> {
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(file)
    };
    make().map_err(|source| Error::WriteFile {
        path: path.clone(),
        source,
    })
}

fn compare(
    host: &Host,
    record: &SandboxRecord,
    (from, at): (Option<&str>, Option<&str>),
    temporary: &mut Temporary,
) -> Result<(Sources, ChangeSet), Error> {
    let id = record.id;
    let places = host.places(id);
    let head = match at {
        None => record.head,
        Some(name) => host.store.checkpoint(id, name)?.layer,
    };
    let mut to = State {
        top: None,
        layers: layers_of(host, head)?,
    };
    if at.is_none() && !seal::is_empty(&places.upper()) {
        to.top = Some(places.upper());
    }
    let mark = match from {
        None => None,
        Some(name) => host.store.checkpoint(id, name)?.layer,
    };
    let from = State {
        top: None,
        layers: layers_of(host, mark)?,
    };
    // What both came from: layers are shared from there on down.
    let shared = to
        .layers
        .iter()
        .rev()
        .zip(from.layers.iter().rev())
        .take_while(|(a, b)| a == b)
        .count();
    let reading = Reading::new(host, record)?;
    let (sources, set) = reading.since(&to, shared, temporary)?;
    if shared == from.layers.len() {
        return Ok((sources, set));
    }
    let (_, before) = reading.since(&from, shared, temporary)?;
    let set = changes::between(&before, &set);
    let sources = Sources {
        upper: reading.view(&to.paths(host))?,
        base: reading.view(&from.paths(host))?,
        ..sources
    };
    Ok((sources, set))
}

/// A state of a workspace above its base.
struct State {
    /// What is written now.
    top: Option<PathBuf>,
    /// Sealed, topmost first.
    layers: Vec<LayerId>,
}

impl State {
    fn paths(&self, host: &Host) -> Vec<PathBuf> {
        let layers = self.layers.iter().map(|&layer| host.home.layer(layer));
        self.top.iter().cloned().chain(layers).collect()
    }
}

fn layers_of(host: &Host, head: Option<LayerId>) -> Result<Vec<LayerId>, Error> {
    let stack = host.store.stack(head)?;
    Ok(stack.into_iter().map(|layer| layer.id).collect())
}

/// How the states of one sandbox are read.
struct Reading<'a> {
    host: &'a Host,
    record: &'a SandboxRecord,
    base: base::Base,
    repository: Option<Repository>,
}

impl<'a> Reading<'a> {
    fn new(host: &'a Host, record: &'a SandboxRecord) -> Result<Self, Error> {
        let base = base::open(&host.home, &host.store, record.base)?;
        let tree = base.workspace();
        let repository = if tree.join(".git").exists() {
            git::discover(&tree)?
        } else {
            None
        };
        Ok(Self {
            host,
            record,
            base,
            repository,
        })
    }

    /// What layers, topmost first, show of the workspace.
    fn view(&self, layers: &[PathBuf]) -> Result<OwnedFd, Error> {
        let mut lower = Vec::new();
        for layer in layers {
            let path = layer.join(WORKSPACE);
            if open_directory(&path)?.is_some() {
                lower.push(path);
            }
        }
        lower.push(self.base.workspace());
        let paths: Vec<&Path> = lower.iter().map(PathBuf::as_path).collect();
        merged_view(&paths).map_err(|source| Error::OpenFolder {
            path: self.base.workspace(),
            source,
        })
    }

    /// What a state changed above its lowest `shared` layers.
    fn since(
        &self,
        state: &State,
        shared: usize,
        temporary: &mut Temporary,
    ) -> Result<(Sources, ChangeSet), Error> {
        let paths = state.paths(self.host);
        let (above, below) = paths.split_at(paths.len() - shared);
        let view = self.view(below)?;
        let upper = flatten(self.host, self.record, above, &view, temporary)?;
        let sources = Sources {
            upper,
            base: view,
            // Nothing below a sandbox ever moves.
            started: Started {
                seconds: i64::MAX,
                nanoseconds: 0,
            },
            prefix: Vec::new(),
            hash: self
                .repository
                .as_ref()
                .map_or(ObjectHash::Sha1, |r| r.hash),
        };
        let set = change_set(
            self.host,
            self.record,
            &self.base,
            self.repository.as_ref(),
            &sources,
        )?;
        Ok((sources, set))
    }
}

fn change_set(
    host: &Host,
    record: &SandboxRecord,
    base: &base::Base,
    repository: Option<&Repository>,
    sources: &Sources,
) -> Result<ChangeSet, Error> {
    let files = FileRules::of(&record.detail.policy.files)?;
    let mut rules = Rules::of(repository, sources, &files, record.detail.ignored)?;
    if let Some(mask) = mask::workspace_of(&host.home.sandbox(record.id)) {
        rules.mask(&mask)?;
    }
    if let Some(setup) = Standing::workspace_of(&host.home, &record.detail.stands_on) {
        rules.environment(&setup, &base.path.join(WORKSPACE))?;
    }
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
    temporary: &mut Temporary,
) -> Result<OwnedFd, Error> {
    let parts: Vec<OwnedFd> = above
        .iter()
        .filter_map(|layer| open_directory(&layer.join(WORKSPACE)).transpose())
        .collect::<Result<_, _>>()?;
    let parent = host.home.sandbox(record.id);
    let name = format!("{}{}", settle::DISCARDED, LayerId::random()?);
    let mut keep = || temporary.names.push((parent.clone(), name.clone()));
    match parts.len() {
        1 => Ok(parts.into_iter().next().expect("there is one")),
        0 => {
            let path = parent.join(&name);
            std::fs::create_dir(&path).map_err(|source| Error::WriteFile {
                path: path.clone(),
                source,
            })?;
            keep();
            open_directory(&path)?.ok_or(Error::LayerGone(path))
        }
        _ => {
            let to = File::open(&parent).map_err(|source| Error::ReadFile {
                path: parent.clone(),
                source,
            })?;
            let borrowed: Vec<_> = parts.iter().map(OwnedFd::as_fd).collect();
            keep();
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
