//! The trees that checks run on, as layers over the folder.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use ringfence_model::ByteText;
use ringfence_model::bundle::{PATCH, most_bytes, sha256_hex};
use ringfence_model::check::protected::Protected;
use ringfence_model::check::scripts;
use ringfence_model::check::shadowing::shadows;
use ringfence_model::check::{Examined, Tree};
use ringfence_model::policy::glob::Globs;

use super::{Subject, state};
use crate::error::Error;
use crate::files::FilesError;
use crate::patch::{self, Entry, Laid, Layered, Patch, PatchError};

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
    base: Side,
    patched: Side,
    exam: Side,
}

/// A patch on top of others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stacked {
    /// What lies over the folder without it.
    pub below: Laid,
    /// The same with it.
    pub with: Laid,
    /// Old and new path of each of its changes.
    pub pairs: Vec<(Vec<u8>, Vec<u8>)>,
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
        let text = read(subject.patch).map_err(TreesError::Other)?;
        let patch = Patch::read(&text, subject.changes).map_err(TreesError::Patch)?;
        let entries = patch.entries.iter();
        let pairs: Vec<Pair<'_>> = entries
            .map(|entry| (entry.old_path(), entry.path()))
            .collect();
        let (touched, open) = exam(subject, &pairs)?;
        let open: Vec<&Entry<'_>> = open.into_iter().map(|at| &patch.entries[at]).collect();
        let make = |name: &str, entries: &[&Entry<'_>]| lay_entries(subject, name, entries);
        let all: Vec<&Entry<'_>> = patch.entries.iter().collect();
        let patched = make("patched", &all)?;
        let (examined, exam) = if touched.is_empty() {
            (Examined::AsPatched, Side::default())
        } else {
            (Examined::BothWays, make("exam", &open)?)
        };
        Ok(Self {
            state: None,
            examined,
            touched,
            notes: Vec::new(),
            base: Side::default(),
            patched,
            exam,
        })
    }

    /// Trees that lie over the folder with all that was put there before.
    pub fn stacked(subject: &Subject<'_>, stacked: &Stacked) -> Result<Self, TreesError> {
        let mut trees = Self {
            state: state::of(subject.workspace.folder()),
            examined: Examined::AsPatched,
            touched: Vec::new(),
            notes: Vec::new(),
            base: lay_files(subject, "below", &stacked.below)?,
            patched: lay_files(subject, "patched", &stacked.with)?,
            exam: Side::default(),
        };
        let (touched, laid) = without_exam(subject, stacked)?;
        if !touched.is_empty() {
            trees.exam = lay_files(subject, "exam", &laid)?;
            trees.examined = Examined::BothWays;
            trees.touched = touched;
        }
        Ok(trees)
    }

    /// One tree: the folder with these files over it.
    pub fn of_files(subject: &Subject<'_>, laid: &Laid) -> Result<Self, TreesError> {
        Ok(Self {
            state: None,
            examined: Examined::AsPatched,
            touched: Vec::new(),
            notes: Vec::new(),
            base: Side::default(),
            patched: lay_files(subject, "patched", laid)?,
            exam: Side::default(),
        })
    }

    fn side(&self, tree: Tree) -> &Side {
        match tree {
            Tree::Base => &self.base,
            Tree::Patched => &self.patched,
            Tree::Exam => &self.exam,
        }
    }

    /// The layer over the folder; none for the folder as it is.
    pub fn layer(&self, tree: Tree) -> Option<&Path> {
        self.side(tree).layer.as_deref()
    }

    /// Whether a tree has the files of the base.
    pub fn is_base(&self, tree: Tree) -> bool {
        self.side(tree).changes == self.base.changes
    }

    /// What names its files; `None` where nothing does.
    pub fn key(&self, tree: Tree) -> Option<String> {
        let changes = &self.side(tree).changes;
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

/// Old and new path of a change.
type Pair<'p> = (&'p [u8], &'p [u8]);

/// Protected paths, and the numbers of the changes that touch none.
fn exam(
    subject: &Subject<'_>,
    pairs: &[Pair<'_>],
) -> Result<(Vec<ByteText>, Vec<usize>), TreesError> {
    let folder = subject.workspace.folder();
    let commands = subject.review().checks.iter();
    let commands = commands.map(|line| line.text.as_str());
    let scripts = scripts::scripts(commands, |file| recipe(folder, file));
    let (patterns, scripts): (Vec<String>, Vec<String>) = scripts
        .into_iter()
        .partition(|script| script.contains(['*', '?', '[']));
    let scripts: BTreeSet<&[u8]> = scripts.iter().map(String::as_bytes).collect();
    let patterns = patterns.into_iter().map(|pattern| format!("**/{pattern}"));
    // Programs of the folder that are found by their names.
    let places = subject.request.policy.environment.path.iter();
    let places = places.filter_map(|line| match line.text.strip_prefix(scripts::INSIDE) {
        Some(rest) => rest.strip_prefix('/'),
        None => Some(&*line.text).filter(|text| !text.starts_with(['/', '~'])),
    });
    let patterns = patterns.chain(places.map(str::to_owned));
    // A line of shell may well have something in it that is no pattern of ours.
    let patterns = patterns.filter(|pattern| Globs::parse(&[pattern]).is_ok());
    let lines = subject.review().protected.iter();
    let lines = lines.map(|line| line.text.clone());
    let lines: Vec<String> = lines.chain(patterns).collect();
    let globs = Protected::with(&lines).map_err(|error| Error::Files(FilesError::Hide(error)));
    let globs = globs.map_err(TreesError::Other)?;
    // What was there before is the folder's own.
    let is_new = |path: &Path| fs::symlink_metadata(folder.join(path)).is_err();
    let exam = |path: &Path| globs.matches(path) || (shadows(path) && is_new(path));
    Ok(divide(pairs, &exam, &scripts, subject.prefix))
}

/// BOUND: a `Makefile` or `package.json` that people write.
const RECIPE_BYTES: u64 = 1 << 20;

/// The text of a file of the folder that says what a check runs.
fn recipe(folder: &Path, file: &str) -> Option<String> {
    let path = Path::new(file);
    let is_below = path
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    let path = folder.join(path);
    let metadata = fs::symlink_metadata(&path).ok()?;
    let is_read = is_below && metadata.is_file() && metadata.len() <= RECIPE_BYTES;
    let bytes = is_read.then(|| fs::read(&path).ok()).flatten()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// What a patch on top of others comes to with protected files as they were below it.
pub(super) fn without_exam(
    subject: &Subject<'_>,
    stacked: &Stacked,
) -> Result<(Vec<ByteText>, Laid), TreesError> {
    let pairs = stacked.pairs.iter();
    let pairs: Vec<Pair<'_>> = pairs.map(|(old, new)| (&old[..], &new[..])).collect();
    let (touched, open) = exam(subject, &pairs)?;
    let mut laid = stacked.below.clone();
    for path in open.iter().flat_map(|&at| [pairs[at].0, pairs[at].1]) {
        match stacked.with.0.get(path) {
            Some(file) => laid.0.insert(path.to_vec(), file.clone()),
            None => laid.0.remove(path),
        };
    }
    Ok((touched, laid))
}

/// HOSTILE: a file in the place of a directory that holds protected files would take them away.
fn divide(
    pairs: &[Pair<'_>],
    is_exam: &dyn Fn(&Path) -> bool,
    scripts: &BTreeSet<&[u8]>,
    prefix: &[u8],
) -> (Vec<ByteText>, Vec<usize>) {
    let is_protected = |path: &[u8]| {
        let below = path.strip_prefix(prefix).unwrap_or(path);
        let below = below.strip_prefix(b"/").unwrap_or(below);
        let path = Path::new(std::ffi::OsStr::from_bytes(below));
        scripts.iter().any(|script| is_at_end(below, script)) || is_exam(path)
    };
    let mut touched = BTreeSet::new();
    for (old, new) in pairs {
        for path in [*new, *old] {
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
    let open = pairs
        .iter()
        .enumerate()
        .filter(|(_, (old, new))| !touched.contains(old) && !touched.contains(new) && !covers(new));
    let open = open.map(|(at, _)| at).collect();
    (touched.into_iter().map(ByteText::from).collect(), open)
}

fn lay_entries(
    subject: &Subject<'_>,
    name: &str,
    entries: &[&Entry<'_>],
) -> Result<Side, TreesError> {
    let mut changes = String::new();
    for entry in entries {
        let json = serde_json::to_string(entry.change).expect("plain data always serialises");
        changes.push_str(&json);
        changes.push('\n');
    }
    let changes = match entries {
        [] => return Ok(Side::default()),
        _ => sha256_hex(changes.as_bytes()),
    };
    lay(subject, name, changes, |base, upper| {
        patch::layer(entries.iter().copied(), base, subject.prefix, upper)
    })
}

fn lay_files(subject: &Subject<'_>, name: &str, laid: &Laid) -> Result<Side, TreesError> {
    let files = laid.below(subject.prefix);
    if files.is_empty() {
        return Ok(Side::default());
    }
    lay(subject, name, laid.name(), |base, upper| {
        patch::layer_files(&files, base, upper)
    })
}

/// Makes a layer over the folder, and fills it.
fn lay(
    subject: &Subject<'_>,
    name: &str,
    changes: String,
    fill: impl FnOnce(BorrowedFd<'_>, BorrowedFd<'_>) -> Result<Layered, PatchError>,
) -> Result<Side, TreesError> {
    let name = format!("{name}-{}", subject.round.name());
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
    fill(base.as_fd(), upper.as_fd()).map_err(TreesError::Patch)?;
    subject.workspace.give(&path).map_err(failed)?;
    Ok(Side {
        layer: Some(path),
        changes,
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
