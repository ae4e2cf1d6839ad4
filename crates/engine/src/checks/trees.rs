//! The trees that checks run on, as layers over the folder.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use ringfence_model::ByteText;
use ringfence_model::bundle::{PATCH, most_bytes, sha256_hex};
use ringfence_model::check::protected::{self, Protected};
use ringfence_model::check::{Examined, Tree};

use super::{Subject, state};
use crate::error::Error;
use crate::files::FilesError;
use crate::patch::{self, Entry, Patch, PatchError};

/// Why there is nothing to check.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TreesError {
    #[error("the patch cannot be laid over the folder")]
    Patch(#[source] PatchError),
    #[error(transparent)]
    Other(#[from] Error),
}

impl TreesError {
    /// Whether it is about the patch and the folder, and not about this host.
    pub(super) fn is_of_subject(&self) -> bool {
        !matches!(
            self,
            Self::Other(_) | Self::Patch(PatchError::WriteLayer { .. })
        )
    }
}

impl From<TreesError> for Error {
    fn from(error: TreesError) -> Self {
        match error {
            TreesError::Patch(error) => Self::LayPatch(error),
            TreesError::Other(error) => error,
        }
    }
}

/// What there is to run on.
#[derive(Debug)]
pub(super) struct Trees {
    /// Of the folder, before anything ran. `None`: it is too large to be looked at.
    pub state: Option<String>,
    pub examined: Examined,
    /// Protected paths that the patch touches.
    pub touched: Vec<ByteText>,
    pub notes: Vec<String>,
    patched: Side,
    exam: Side,
}

/// A layer, and what names it.
#[derive(Debug, Default)]
struct Side {
    layer: Option<PathBuf>,
    /// Hash of the changes that it holds.
    changes: String,
}

impl Trees {
    pub fn make(subject: &Subject<'_>) -> Result<Self, TreesError> {
        // It costs what the folder holds, and nobody waits for it but the first lookup.
        let folder = subject.workspace.folder().to_owned();
        std::thread::scope(|scope| {
            let state = scope.spawn(move || state::of(&folder));
            let mut trees = Self::lay(subject)?;
            trees.state = state.join().ok().flatten();
            if trees.state.is_none() {
                let note = "the folder is too large to be looked at: no result is kept";
                trees.notes.push(note.to_owned());
            }
            Ok(trees)
        })
    }

    fn lay(subject: &Subject<'_>) -> Result<Self, TreesError> {
        let lines = subject.review().protected.iter();
        let lines: Vec<&str> = lines.map(|line| line.text.as_str()).collect();
        let globs = Protected::with(&lines).map_err(|error| Error::Files(FilesError::Hide(error)));
        let globs = globs.map_err(TreesError::Other)?;
        let text = read(subject.patch).map_err(TreesError::Other)?;
        let patch = Patch::read(&text, subject.changes).map_err(TreesError::Patch)?;
        let commands = subject.review().checks.iter();
        let scripts: BTreeSet<&[u8]> = commands
            .flat_map(|line| protected::scripts(&line.text))
            .map(str::as_bytes)
            .collect();
        let (touched, open) = divide(&patch, &globs, &scripts, subject.prefix);
        let make = |name: &str, entries: &[&Entry<'_>]| lay(subject, name, entries);
        let all: Vec<&Entry<'_>> = patch.entries.iter().collect();
        let patched = make("patched", &all)?;
        let (examined, exam) = match touched.is_empty() {
            true => (Examined::AsPatched, Side::default()),
            false => (Examined::BothWays, make("exam", &open)?),
        };
        Ok(Self {
            state: None,
            examined,
            touched,
            notes: Vec::new(),
            patched,
            exam,
        })
    }

    fn side(&self, tree: Tree) -> Option<&Side> {
        match tree {
            Tree::Base => None,
            Tree::Patched => Some(&self.patched),
            Tree::Exam => Some(&self.exam),
        }
    }

    /// The layer over the folder; none for the folder as it is.
    pub fn layer(&self, tree: Tree) -> Option<&Path> {
        self.side(tree)?.layer.as_deref()
    }

    /// Whether a tree has the files of the base.
    pub fn is_base(&self, tree: Tree) -> bool {
        self.layer(tree).is_none()
    }

    /// What names its files; `None` where nothing does.
    pub fn key(&self, tree: Tree) -> Option<String> {
        let changes = self.side(tree).map_or("", |side| &side.changes);
        let state = self.state.as_ref()?;
        Some(sha256_hex(format!("{state} {changes}").as_bytes()))
    }
}

/// Whether a path is one of this name, wherever a check may have gone before it ran it.
fn is_at_end(path: &[u8], name: &[u8]) -> bool {
    let Some(above) = path.strip_suffix(name) else {
        return false;
    };
    above.is_empty() || above.ends_with(b"/")
}

/// Protected paths, and the entries that touch none.
///
/// HOSTILE: a file in the place of a directory that holds protected files would take them away.
fn divide<'p>(
    patch: &'p Patch<'p>,
    globs: &Protected,
    scripts: &BTreeSet<&[u8]>,
    prefix: &[u8],
) -> (Vec<ByteText>, Vec<&'p Entry<'p>>) {
    let is_protected = |path: &[u8]| {
        let below = path.strip_prefix(prefix).unwrap_or(path);
        let below = below.strip_prefix(b"/").unwrap_or(below);
        let path = Path::new(std::ffi::OsStr::from_bytes(below));
        scripts.iter().any(|script| is_at_end(below, script)) || globs.matches(path)
    };
    let mut touched = BTreeSet::new();
    for entry in &patch.entries {
        for path in [entry.path(), entry.old_path()] {
            if is_protected(path) {
                touched.insert(path);
            }
        }
    }
    let covers = |path: &[u8]| {
        let later = touched.range(path..);
        let mut alike = later.take_while(|own| own.starts_with(path));
        alike.any(|own| own.get(path.len()) == Some(&b'/'))
    };
    let open = patch.entries.iter().filter(|entry| {
        let paths = [entry.path(), entry.old_path()];
        !paths.iter().any(|path| touched.contains(path)) && !covers(entry.path())
    });
    let open = open.collect();
    (touched.into_iter().map(ByteText::from).collect(), open)
}

fn lay(subject: &Subject<'_>, name: &str, entries: &[&Entry<'_>]) -> Result<Side, TreesError> {
    if entries.is_empty() {
        return Ok(Side::default());
    }
    let path = subject.home.workspace(subject.room).join(name);
    let failed = |source: io::Error| {
        TreesError::Other(Error::MakeWorkspace {
            what: "make",
            path: path.clone(),
            source,
        })
    };
    fs::create_dir(&path).map_err(failed)?;
    let folder = fs::metadata(subject.workspace.folder()).map_err(failed)?;
    fs::set_permissions(&path, folder.permissions()).map_err(failed)?;
    let upper = fs::File::open(&path).map_err(failed)?;
    let base = fs::File::open(subject.workspace.folder()).map_err(failed)?;
    patch::layer(
        entries.iter().copied(),
        base.as_fd(),
        subject.prefix,
        upper.as_fd(),
    )
    .map_err(TreesError::Patch)?;
    subject.workspace.give(&path).map_err(failed)?;
    let mut changes = String::new();
    for entry in entries {
        let json = serde_json::to_string(entry.change).expect("plain data always serialises");
        changes.push_str(&json);
        changes.push('\n');
    }
    Ok(Side {
        layer: Some(path),
        changes: sha256_hex(changes.as_bytes()),
    })
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |source| Error::ReadFile {
        path: path.to_owned(),
        source,
    };
    let file = fs::File::open(path).map_err(failed)?;
    let mut text = Vec::new();
    let read = file.take(most_bytes(PATCH)).read_to_end(&mut text);
    read.map_err(failed)?;
    Ok(text)
}
