//! The workspace of a run: the user's folder below, a mask over it, and the layer that is written.
//!
//! ```text
//!   upper   what the agent writes                      ┐
//!   mask    private .git, whiteouts of hidden paths,   ├─ one overlay, /workspace inside
//!           owned copies of what belongs to others     │
//!   folder  the user's, as it is, read-only            │
//!   setup   what a setup made and the folder has not   ┘
//! ```
//!
//! INVARIANT: nothing here writes below the folder.

mod crossing;
pub(crate) mod scan;

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use ringfence_jail::identity::Identity;
use ringfence_jail::launch::identity_for;
use ringfence_jail::plan::{Access, Holds, HostMount, KnownDirectory, OWN, WorkspaceSpec};
use ringfence_model::changes::{ChangeSet, ObjectHash};
use ringfence_model::policy::glob::Globs;
use ringfence_model::policy::{Files, Line, built_in};
use serde::{Deserialize, Serialize};

use crate::base::Base;
use crate::base::identity::{self, Seeking};
use crate::changes::{self, Bounds, Sources, Started};
use crate::environment::Standing;
use crate::error::Error;
use crate::files::{FileRules, check_mounts};
use crate::git::{self, Found, Repository};
use crate::home::Home;
use crate::ids::RunId;
use crate::store::RunRecord;

pub use crossing::Rules;

/// What the agent sees of the folder, and where.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct View {
    /// Where the folder is inside; `/workspace` if not said.
    pub inside: Option<PathBuf>,
    pub ignored: Ignored,
}

/// A workspace, ready to be mounted.
#[derive(Debug)]
pub struct Workspace {
    folder: PathBuf,
    folder_fd: OwnedFd,
    directory: PathBuf,
    repository: Option<Repository>,
    rules: FileRules,
    ignored: Ignored,
    /// What a setup made in the folder.
    setup: Option<PathBuf>,
    started: Started,
    spec: WorkspaceSpec,
    mounts: Vec<HostMount>,
    identity: Identity,
    /// For a person: what is not as one might think.
    pub notes: Vec<String>,
    /// For a person whose command failed.
    pub doubt: Option<String>,
}

impl Workspace {
    /// Makes the layers of a run. The directory `workspaces/<run>` is there already, and locked.
    pub fn create(
        home: &Home,
        run: RunId,
        folder: Folder,
        view: &View,
        files: &Files,
    ) -> Result<Self, Error> {
        Self::lay(home, run, folder, None, view, files)
    }

    /// The same on a base of ours, whose `.git` is private already.
    pub(crate) fn on_base(
        home: &Home,
        run: RunId,
        base: &Base,
        view: &View,
        files: &Files,
    ) -> Result<Self, Error> {
        let folder = open_folder(home, &base.workspace())?;
        Self::lay(home, run, folder, Some(&base.objects), view, files)
    }

    fn lay(
        home: &Home,
        run: RunId,
        folder: Folder,
        private: Option<&[PathBuf]>,
        view: &View,
        files: &Files,
    ) -> Result<Self, Error> {
        let identity = identity_for(folder.fd.as_fd()).map_err(|source| Error::OpenFolder {
            path: folder.path.clone(),
            source,
        })?;
        let directory = home.workspace(run);
        let metadata = fs::metadata(&folder.path).map_err(|source| Error::OpenFolder {
            path: folder.path.clone(),
            source,
        })?;
        for (path, mode) in [
            (
                home.upper(run),
                metadata.permissions().mode() & 0o777 | 0o700,
            ),
            (home.work(run), 0o700),
            (
                home.mask(run),
                metadata.permissions().mode() & 0o777 | 0o700,
            ),
        ] {
            make("make", &path, fs::create_dir(&path))?;
            make(
                "open",
                &path,
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)),
            )?;
        }
        let mask = home.mask(run);
        let rules = FileRules::of(files)?;
        let hidden = rules.hidden();
        let mut notes = Vec::new();
        let found = git::find(&folder.path)?;
        if let Found::Refused(refusal) = &found {
            notes.push(format!("git does not work inside: {refusal}"));
        }
        let repository = found.usable();
        let aliases = match &repository {
            Some(_) => scan::aliases(&folder.path, hidden),
            None => Vec::new(),
        };
        let why_hidden = git::why_hidden(repository.as_ref(), hidden, &aliases)?;
        let objects = match (&repository, private) {
            // What is hidden would be there as an object.
            (Some(_), _) if why_hidden.is_some() => {
                notes.extend(why_hidden);
                notes.extend(git::hide_git(&folder.path, &mask)?);
                Vec::new()
            }
            (Some(_), Some(objects)) => known(objects)?,
            (Some(repository), None) => {
                let private = git::build_private(repository, &mask, &format!("/{OWN}/objects"))?;
                notes.extend(private.notes);
                private
                    .object_mounts
                    .into_iter()
                    .map(|mount| mount.directory)
                    .collect()
            }
            (None, _) => {
                notes.extend(git::hide_git(&folder.path, &mask)?);
                Vec::new()
            }
        };
        let scanned = scan::scan(&folder.path, &mask, hidden, &identity)?;
        notes.extend(scanned.notes());
        // What a built-in policy hides is not there in most folders.
        let meant = |line: &&Line| built_in::document(&line.from.file).is_none();
        let hide = files.hide.iter().filter(meant);
        let hide: Vec<&str> = hide.map(|line| line.text.as_str()).collect();
        if !hide.is_empty() && scanned.hides_nothing() {
            notes.push(format!(
                "nothing in the folder is hidden by {}",
                hide.join(", ")
            ));
        } else if !scanned.hides_nothing() && !objects.is_empty() {
            notes.push(
                "what was committed once can be read from git's objects, hidden or not".to_owned(),
            );
        }
        let areas = rules.areas().lay(&folder.path, &mask)?;
        if let Identity::Range { .. } = identity {
            let owner = identity.agent_on_host();
            for path in [directory.clone(), home.upper(run), home.work(run)] {
                make(
                    "give away",
                    &path,
                    std::os::unix::fs::chown(&path, Some(owner.0), Some(owner.1)),
                )?;
            }
            make("give away", &mask, scan::give_away(&mask, owner))?;
        }
        let spec = WorkspaceSpec {
            lower: vec![mask, folder.path.clone()],
            below: Vec::new(),
            layer: directory.clone(),
            inside: view
                .inside
                .clone()
                .unwrap_or_else(|| PathBuf::from("/workspace")),
            objects,
            holds: Holds::Folder,
            tools: None,
            areas,
        };
        let own = [folder.path.as_path()];
        let mounts = check_mounts(&files.mounts, home, &own, &spec.inside)?;
        notes.extend(mount_notes(&mounts));
        Ok(Self {
            started: now(),
            folder: folder.path,
            folder_fd: folder.fd,
            directory,
            repository,
            rules,
            ignored: view.ignored,
            setup: None,
            spec,
            mounts,
            identity,
            notes,
            doubt: scanned.doubt(),
        })
    }

    /// The workspace of a run that was lost, to read its layer. `created` is earlier than its real
    /// start, so that nothing that moved since is overlooked.
    pub fn reopen(home: &Home, run: &RunRecord) -> Result<Self, Error> {
        let detail = |name: &str| run.detail.get(name).cloned().unwrap_or_default();
        let view: View = serde_json::from_value(detail("view")).unwrap_or_default();
        let files: Files = serde_json::from_value(detail("files")).unwrap_or_default();
        let folder = open_folder(home, &run.folder)?;
        let identity = identity_for(folder.fd.as_fd()).map_err(|source| Error::OpenFolder {
            path: folder.path.clone(),
            source,
        })?;
        Ok(Self {
            repository: git::discover(&folder.path)?,
            rules: FileRules::of(&files)?,
            ignored: view.ignored,
            setup: environment_of(home, &run.detail),
            mounts: Vec::new(),
            started: Started {
                seconds: run.created_us.div_euclid(1_000_000),
                nanoseconds: (run.created_us.rem_euclid(1_000_000) * 1000) as u32,
            },
            spec: WorkspaceSpec {
                lower: Vec::new(),
                below: Vec::new(),
                layer: home.workspace(run.id),
                inside: PathBuf::from("/workspace"),
                objects: Vec::new(),
                holds: Holds::Folder,
                tools: None,
                areas: Vec::new(),
            },
            directory: home.workspace(run.id),
            folder: folder.path,
            folder_fd: folder.fd,
            identity,
            notes: Vec::new(),
            doubt: None,
        })
    }

    /// Puts what a setup made below the folder, whose own files count more.
    pub(crate) fn stand_on(&mut self, setup: Option<PathBuf>) {
        self.spec.below.extend(setup.clone());
        self.setup = setup;
    }

    /// What the launcher needs.
    pub fn spec(&self) -> &WorkspaceSpec {
        &self.spec
    }

    /// Paths of the host that the policy shows.
    pub fn mounts(&self) -> &[HostMount] {
        &self.mounts
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Gives a tree that we made to the agent, where the ids differ.
    pub(crate) fn give(&self, path: &Path) -> io::Result<()> {
        match self.identity {
            Identity::Range { .. } => scan::give_away(path, self.identity.agent_on_host()),
            Identity::Single { .. } | Identity::Root { .. } => Ok(()),
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Begins to find out what the folder is by name.
    pub(crate) fn seek_identity(&self) -> Result<Seeking, Error> {
        let scratch = self.directory.join("lookup.git");
        let seeking = identity::seek(self.repository.clone(), self.started, scratch);
        seeking.map_err(|source| Error::OpenFolder {
            path: self.folder.clone(),
            source,
        })
    }

    /// The layer that is written.
    pub fn upper(&self) -> PathBuf {
        self.directory.join("upper")
    }

    /// What differs from the folder and crosses back, and where it is read from.
    pub fn changes(&self) -> Result<(Sources, ChangeSet), Error> {
        let sources = self.sources()?;
        let set = changes::compute(&sources, &mut self.rules(&sources)?, &Bounds::default())?;
        Ok((sources, set))
    }

    /// Where the change set is read from.
    pub fn sources(&self) -> Result<Sources, Error> {
        let upper = self.upper();
        let fail = |source: io::Error| Error::MakeWorkspace {
            what: "open",
            path: upper.clone(),
            source,
        };
        // The agent may have closed its own root; its mode does not cross back.
        let mode = fs::metadata(&upper).map_err(fail)?.permissions().mode() & 0o777 | 0o700;
        fs::set_permissions(&upper, fs::Permissions::from_mode(mode)).map_err(fail)?;
        Ok(Sources {
            upper: fs::File::open(&upper).map_err(fail)?.into(),
            base: self.folder_fd.try_clone().map_err(fail)?,
            started: self.started,
            prefix: self
                .repository
                .as_ref()
                .map(|r| r.prefix.clone())
                .unwrap_or_default(),
            hash: self
                .repository
                .as_ref()
                .map_or(ObjectHash::Sha1, |r| r.hash),
        })
    }

    /// Which changed paths cross back.
    pub fn rules(&self, sources: &Sources) -> Result<Rules<'_>, Error> {
        let mut rules = Rules::of(self.repository.as_ref(), sources, &self.rules, self.ignored)?;
        rules.mask(&self.directory.join("mask"))?;
        if let Some(setup) = &self.setup {
            rules.environment(setup, &self.folder)?;
        }
        Ok(rules)
    }
}

/// What a setup made for the run of this row.
fn environment_of(
    home: &Home,
    detail: &serde_json::Map<String, serde_json::Value>,
) -> Option<PathBuf> {
    let layers: Vec<String> = serde_json::from_value(detail.get("stands_on")?.clone()).ok()?;
    Standing::workspace_of(home, &layers)
}

/// For a person: what is outside of every change set.
pub(crate) fn mount_notes(mounts: &[HostMount]) -> Vec<String> {
    let written = mounts.iter().filter(|mount| mount.access == Access::Write);
    let note = |mount: &HostMount| {
        format!(
            "`{}` of the host can be written at `{}`; what changes there is in no patch",
            mount.host.display(),
            mount.inside.display()
        )
    };
    written.map(note).collect()
}

/// What becomes of ignored files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ignored {
    #[default]
    LeftBehind,
    Included,
}

/// Whether a path, or a directory above it, is hidden.
pub(crate) fn is_hidden(hidden: &Globs, path: &[u8]) -> bool {
    use std::os::unix::ffi::OsStrExt as _;
    hidden.matches(Path::new(std::ffi::OsStr::from_bytes(path)))
}

/// The user's folder, found and open.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    fd: OwnedFd,
}

impl Folder {
    /// Its real path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Finds and opens the folder of a run.
pub fn open_folder(home: &Home, path: &Path) -> Result<Folder, Error> {
    let real = match fs::canonicalize(path) {
        Ok(real) => real,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Error::NoFolder(path.to_owned()));
        }
        Err(source) => {
            return Err(Error::OpenFolder {
                path: path.to_owned(),
                source,
            });
        }
    };
    let fail = |source| Error::OpenFolder {
        path: real.clone(),
        source,
    };
    let file = fs::File::open(&real).map_err(fail)?;
    if !file.metadata().map_err(fail)?.is_dir() {
        return Err(fail(io::ErrorKind::NotADirectory.into()));
    }
    if home.root().starts_with(&real) {
        return Err(Error::FolderHoldsHome {
            folder: real,
            home: home.root().to_owned(),
        });
    }
    Ok(Folder {
        path: real.clone(),
        fd: file.into(),
    })
}

/// Object directories of mirrors, which are ours.
pub(crate) fn known(objects: &[PathBuf]) -> Result<Vec<KnownDirectory>, Error> {
    let known = objects.iter().map(|path| {
        let host = make("find", path, fs::canonicalize(path))?;
        let metadata = make("look at", &host, fs::metadata(&host))?;
        Ok(KnownDirectory {
            identity: (metadata.dev(), metadata.ino()),
            owner: (metadata.uid(), metadata.gid()),
            host,
        })
    });
    known.collect()
}

fn make<T>(what: &'static str, path: &Path, result: io::Result<T>) -> Result<T, Error> {
    result.map_err(|source| Error::MakeWorkspace {
        what,
        path: path.to_owned(),
        source,
    })
}

/// Now, to the nanosecond: what was changed before has an earlier time. What changes within the
/// file system's next tick may look earlier as well; the agent starts later than that.
pub(crate) fn now() -> Started {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    Started {
        seconds: time.tv_sec,
        nanoseconds: time.tv_nsec as u32,
    }
}
