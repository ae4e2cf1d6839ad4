//! The home: the one directory that holds everything Ringfence keeps on a host.
//!
//! ```text
//! $RINGFENCE_HOME, else $XDG_DATA_HOME/ringfence, else $HOME/.local/share/ringfence   (0700)
//! ├── version             layout of this tree: `1`
//! ├── store.db            SQLite: runs and their steps (store.rs)
//! ├── canary              what no sandbox may read; the proof from inside tries to
//! ├── keys/               the key that signs bundles, and those that are trusted (keys.rs)
//! ├── bundles/<run>/      what a run leaves behind; `<run>.partial` until all of it is there
//! ├── workspaces/<run>/
//! │   ├── upper/          the layer that the agent writes
//! │   ├── work/           overlayfs's own
//! │   ├── mask/           what is laid over hidden paths
//! │   └── lock            held for as long as a process drives the run (lock.rs)
//! ├── logs/<run>/
//! │   ├── stdout          all that the command wrote, as far as the bound allows
//! │   ├── stderr
//! │   └── checks/         what checks of the host's own printed
//! ├── checks/<key>/       results of checks, by what they are of (checks/kept.rs)
//! ├── tools/<digest>/     the direct tools, by what they are (guest.rs); made when first needed
//! ├── mirrors/<mirror>/   a bare repository, and `<mirror>.lock` beside it
//! ├── bases/<base>/       what a sandbox starts from, read-only, shared
//! │   ├── workspace/      the tree, with a private `.git`
//! │   ├── home/           empty
//! │   └── tmp/            empty
//! ├── environments/<key>/ what a setup made, read-only, shared (environment.rs)
//! ├── caches/             what setups left in caches, read-only, shared
//! ├── applying/           what is being put into folders, to be undone should we be killed
//! ├── layers/<layer>/     sealed: what a sandbox wrote on top of a base or another layer
//! ├── images/             what images are made of (images.rs)
//! └── sandboxes/<sandbox>/
//!     ├── top/            `upper`, which is written (as a layer), and overlayfs's `work`
//!     ├── lock            held by the keeper for as long as it lives
//!     ├── shaping         held by whoever changes layers, or starts or ends an execution
//!     ├── writing         held by whoever may change files
//!     ├── socket          where the keeper is spoken to
//!     ├── keeper.log      what the keeper could not say otherwise
//!     └── audit-N.jsonl   the journal of execution N
//! ```
//!
//! INVARIANT: the home belongs to us and nobody else can write it, so that paths inside it can be
//! trusted. What lies inside `upper` is the agent's and cannot.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use ringfence_model::environment::CacheKind;
use ringfence_model::image::Digest;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::durable::{self, DurableError, Existing};
use crate::ids::{BaseId, CampaignId, LayerId, MirrorId, RunId, SandboxId};

/// The layout that this program knows.
const VERSION: u32 = 1;
/// BOUND: the marker is a small number; anything longer is not ours.
const MAX_VERSION_BYTES: usize = 32;

/// How the name of a bundle ends that is not whole.
pub(crate) const PARTIAL: &str = ".partial";

const DIRECTORIES: [&str; 16] = [
    "bundles",
    "keys",
    "workspaces",
    "logs",
    "artefacts",
    "checks",
    "mirrors",
    "bases",
    "layers",
    "sandboxes",
    "images",
    "environments",
    "caches",
    "applying",
    "campaigns",
    "attached",
];

/// An opened home: checked, complete, ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    root: PathBuf,
}

/// Why there is no home to work in.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    #[error("no place for the home: set `RINGFENCE_HOME`, `XDG_DATA_HOME` or `HOME`")]
    Locate,
    #[error("cannot find the full path of the home `{path}`")]
    Resolve {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot create `{path}`")]
    Create {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot open the home `{path}`")]
    Open {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the home `{path}` is a link that belongs to uid {owner}, not to uid {ours}")]
    ForeignLink {
        path: PathBuf,
        owner: u32,
        ours: u32,
    },
    #[error("the home `{path}` belongs to uid {owner}, not to uid {ours}")]
    ForeignOwner {
        path: PathBuf,
        owner: u32,
        ours: u32,
    },
    #[error("the home `{path}` can be written by others (mode {mode:04o})")]
    WritableByOthers { path: PathBuf, mode: u32 },
    #[error("cannot make the home `{path}` private")]
    Tighten {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot read `{path}`")]
    ReadVersion {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("`{path}` does not hold a version number")]
    ParseVersion { path: PathBuf },
    #[error(
        "the home `{path}` was made by a newer ringfence (layout {found}, this one knows {VERSION})"
    )]
    Newer { path: PathBuf, found: u32 },
    #[error("cannot mark the home `{path}` with its version")]
    WriteVersion {
        path: PathBuf,
        #[source]
        source: DurableError,
    },
}

impl Home {
    /// Opens the home, and makes it where there is none.
    pub fn open(explicit: Option<PathBuf>) -> Result<Self, HomeError> {
        let path = locate(explicit, |name| std::env::var_os(name))?;
        let root =
            std::path::absolute(&path).map_err(|source| HomeError::Resolve { path, source })?;
        let home = Self { root };
        let directory = home.open_root()?;
        let mode = home.check_owner(&directory)?;
        // A newer home is not touched at all, so this comes before anything is changed.
        let version = home.read_version(directory.as_fd())?;
        if mode & 0o077 != 0 {
            home.tighten(&directory, mode)?;
        }
        for name in DIRECTORIES {
            make_private_directory(&directory, &home.root, name)?;
        }
        if version.is_none() {
            // Last, because it syncs the home and with it the names made above.
            home.write_version()?;
        }
        Ok(home)
    }

    /// The home where there is one; none is made.
    pub fn find(explicit: Option<PathBuf>) -> Result<Option<Self>, HomeError> {
        match locate(explicit, |name| std::env::var_os(name)) {
            Ok(path) if path.symlink_metadata().is_ok() => Self::open(Some(path)).map(Some),
            Ok(_) | Err(HomeError::Locate) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn store(&self) -> PathBuf {
        self.root.join("store.db")
    }

    pub fn canary(&self) -> PathBuf {
        self.root.join("canary")
    }

    pub fn bundles(&self) -> PathBuf {
        self.root.join("bundles")
    }

    pub fn bundle(&self, run: RunId) -> PathBuf {
        self.bundles().join(run.as_str())
    }

    /// Where the files of a bundle are until all of them are there.
    pub fn partial_bundle(&self, run: RunId) -> PathBuf {
        self.bundles().join(format!("{run}{PARTIAL}"))
    }

    /// What sandboxes are attached to that engines of others hold.
    pub fn attached(&self) -> PathBuf {
        self.root.join("attached")
    }

    pub fn keys(&self) -> PathBuf {
        self.root.join("keys")
    }

    pub fn workspaces(&self) -> PathBuf {
        self.root.join("workspaces")
    }

    pub fn workspace(&self, run: RunId) -> PathBuf {
        self.workspaces().join(run.as_str())
    }

    pub fn upper(&self, run: RunId) -> PathBuf {
        self.workspace(run).join("upper")
    }

    pub fn work(&self, run: RunId) -> PathBuf {
        self.workspace(run).join("work")
    }

    pub fn mask(&self, run: RunId) -> PathBuf {
        self.workspace(run).join("mask")
    }

    pub fn lock(&self, run: RunId) -> PathBuf {
        self.workspace(run).join("lock")
    }

    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    pub fn log(&self, run: RunId) -> PathBuf {
        self.logs().join(run.as_str())
    }

    pub fn stdout_log(&self, run: RunId) -> PathBuf {
        self.log(run).join("stdout")
    }

    pub fn stderr_log(&self, run: RunId) -> PathBuf {
        self.log(run).join("stderr")
    }

    /// Results of checks that are kept.
    pub fn checks(&self) -> PathBuf {
        self.root.join("checks")
    }

    /// Packages that gates keep for one another.
    pub fn artefacts(&self) -> PathBuf {
        self.root.join("artefacts")
    }

    /// What is being applied to folders.
    pub fn applying(&self) -> PathBuf {
        self.root.join("applying")
    }

    /// Held by whoever drives a campaign.
    pub fn campaign_lock(&self, campaign: CampaignId) -> PathBuf {
        self.root.join("campaigns").join(format!("{campaign}.lock"))
    }

    pub fn mirrors(&self) -> PathBuf {
        self.root.join("mirrors")
    }

    pub fn mirror(&self, mirror: MirrorId) -> PathBuf {
        self.mirrors().join(mirror.as_str())
    }

    pub fn bases(&self) -> PathBuf {
        self.root.join("bases")
    }

    pub fn base(&self, base: BaseId) -> PathBuf {
        self.bases().join(base.as_str())
    }

    pub fn layers(&self) -> PathBuf {
        self.root.join("layers")
    }

    pub fn layer(&self, layer: LayerId) -> PathBuf {
        self.layers().join(layer.as_str())
    }

    pub fn images(&self) -> PathBuf {
        self.root.join("images")
    }

    /// An unpacked layer of images, by its diff id.
    pub fn image_layer(&self, diff: Digest) -> PathBuf {
        self.images().join("layers").join(diff.hex())
    }

    pub fn sandboxes(&self) -> PathBuf {
        self.root.join("sandboxes")
    }

    pub fn sandbox(&self, sandbox: SandboxId) -> PathBuf {
        self.sandboxes().join(sandbox.as_str())
    }

    pub fn environments(&self) -> PathBuf {
        self.root.join("environments")
    }

    pub fn environment(&self, key: &str) -> PathBuf {
        self.environments().join(key)
    }

    pub fn caches(&self) -> PathBuf {
        self.root.join("caches")
    }

    pub fn cache(&self, kind: CacheKind, scope: &str) -> PathBuf {
        self.caches().join(kind.row().name).join(scope)
    }

    fn open_root(&self) -> Result<OwnedFd, HomeError> {
        let failed = |source: io::Error| HomeError::Open {
            path: self.root.clone(),
            source,
        };
        match rustix::fs::lstat(&self.root) {
            Ok(stat) => {
                let ours = rustix::process::geteuid().as_raw();
                if FileType::from_raw_mode(stat.st_mode).is_symlink() && stat.st_uid != ours {
                    return Err(HomeError::ForeignLink {
                        path: self.root.clone(),
                        owner: stat.st_uid,
                        ours,
                    });
                }
            }
            Err(Errno::NOENT) => self.create_root()?,
            Err(errno) => return Err(failed(errno.into())),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&self.root, flags, Mode::empty()).map_err(|errno| failed(errno.into()))
    }

    fn create_root(&self) -> Result<(), HomeError> {
        let failed = |path: &Path, source: io::Error| HomeError::Create {
            path: path.to_owned(),
            source,
        };
        if let Some(parent) = self.root.parent() {
            std::fs::create_dir_all(parent).map_err(|source| failed(parent, source))?;
        }
        match DirBuilder::new().mode(0o700).create(&self.root) {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                Err(failed(&self.root, source))
            }
            _ => Ok(()),
        }
    }

    /// Gives the permission bits.
    fn check_owner(&self, directory: &OwnedFd) -> Result<u32, HomeError> {
        let stat = rustix::fs::fstat(directory).map_err(|errno| HomeError::Open {
            path: self.root.clone(),
            source: errno.into(),
        })?;
        let ours = rustix::process::geteuid().as_raw();
        if stat.st_uid != ours {
            return Err(HomeError::ForeignOwner {
                path: self.root.clone(),
                owner: stat.st_uid,
                ours,
            });
        }
        let mode = stat.st_mode & 0o7777;
        if mode & 0o022 != 0 {
            return Err(HomeError::WritableByOthers {
                path: self.root.clone(),
                mode,
            });
        }
        Ok(mode)
    }

    /// Takes what others may; what we may stays as it is.
    fn tighten(&self, directory: &OwnedFd, mode: u32) -> Result<(), HomeError> {
        rustix::fs::fchmod(directory, Mode::from_raw_mode(mode & 0o700)).map_err(|errno| {
            HomeError::Tighten {
                path: self.root.clone(),
                source: errno.into(),
            }
        })
    }

    fn version_path(&self) -> PathBuf {
        self.root.join("version")
    }

    /// `None` where there is no marker: a fresh home, or one that was cut while it was made.
    fn read_version(&self, directory: impl AsFd) -> Result<Option<u32>, HomeError> {
        let failed = |errno: Errno| HomeError::ReadVersion {
            path: self.version_path(),
            source: errno.into(),
        };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(directory, "version", flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        };
        let mut buffer = [0; MAX_VERSION_BYTES];
        let length = rustix::io::read(&file, &mut buffer).map_err(failed)?;
        let found: u32 = std::str::from_utf8(&buffer[..length])
            .ok()
            .and_then(|text| text.trim_end().parse().ok())
            .ok_or_else(|| HomeError::ParseVersion {
                path: self.version_path(),
            })?;
        if found > VERSION {
            return Err(HomeError::Newer {
                path: self.root.clone(),
                found,
            });
        }
        Ok(Some(found))
    }

    fn write_version(&self) -> Result<(), HomeError> {
        let content = format!("{VERSION}\n");
        // Replacing is harmless: whoever else makes this home now writes the same.
        durable::write_synced(&self.version_path(), content.as_bytes(), Existing::Replace).map_err(
            |source| HomeError::WriteVersion {
                path: self.root.clone(),
                source,
            },
        )
    }
}

fn make_private_directory(parent: &OwnedFd, root: &Path, name: &str) -> Result<(), HomeError> {
    match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(HomeError::Create {
            path: root.join(name),
            source: errno.into(),
        }),
    }
}

/// Where the home is, by what was asked and the environment.
fn locate(
    explicit: Option<PathBuf>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<PathBuf, HomeError> {
    let set = |name| {
        variable(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    // The XDG specification has relative paths ignored; a relative `HOME` is no better.
    let absolute = |name| set(name).filter(|path| path.is_absolute());
    explicit
        .or_else(|| set("RINGFENCE_HOME"))
        .or_else(|| absolute("XDG_DATA_HOME").map(|path| path.join("ringfence")))
        .or_else(|| absolute("HOME").map(|path| path.join(".local/share/ringfence")))
        .ok_or(HomeError::Locate)
}

#[cfg(test)]
mod tests;
