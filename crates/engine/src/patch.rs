//! The one reader of patches: for verifying a bundle, for checking one in a fresh sandbox, and for
//! applying one.
//!
//! ```text
//! changes.patch ─ read ─▶ headers, hunks, literals ─┐
//!                                                   ├─ agree ─ paths ─▶ Patch: one Entry a change
//! result.json ────────────▶ changes: sides, ids ────┘
//! ```
//!
//! INVARIANT: a [`Patch`] has only paths that are safe to write below a folder by descriptor, each
//! path once, and no file where another path of it needs a directory. Contents fit exactly or not
//! at all, and are held against their ids.
//!
//! HOSTILE: every byte of both files.

mod agree;
mod content;
mod error;
mod found;
mod laid;
mod layer;
mod paths;
mod plain;
mod read;
mod shown;

use std::borrow::Cow;
use std::collections::BTreeMap;

use ringfence_model::bundle::{Step, steps};
use ringfence_model::changes::{Change, ChangeKind, ObjectHash, Side};

pub use error::PatchError;
pub use layer::{Layered, layer};
pub(crate) use layer::{laid, layer_files};
pub use shown::{Fate, Shown, ShownHunk};

pub(crate) use content::is_content;
pub(crate) use found::{Found, find, find_in};
pub(crate) use laid::{Laid, LaidFile};
pub(crate) use paths::{above, why_refused as why_path_refused};
pub(crate) use plain::{plain, plain_files};

use crate::changes::git_directory::{self, Touched};

use read::{Body, FilePatch, Kind, Sign};

/// BOUND: what a binary content may inflate to; a file of more never gets into a patch.
const LITERAL_BYTES: u64 = 128 << 20;

/// Before and after.
type BothSides<'c> = (Cow<'c, [u8]>, Cow<'c, [u8]>);

/// A patch with the changes that it stands for.
#[derive(Debug)]
pub struct Patch<'a> {
    /// In the order of the patch: by path; of a path that changed its type, what goes comes first.
    pub entries: Vec<Entry<'a>>,
    pub insertions: u64,
    pub deletions: u64,
}

/// One change of a patch.
#[derive(Debug)]
pub struct Entry<'a> {
    pub change: &'a Change,
    file: FilePatch<'a>,
}

impl<'a> Patch<'a> {
    /// Reads a patch and holds it against the changes that a result lists. The first that differs
    /// is named.
    pub fn read(text: &'a [u8], changes: &'a [Change]) -> Result<Self, PatchError> {
        let files = read::parse(text)?;
        if files.len() != changes.len() {
            return Err(PatchError::Count {
                patch: files.len(),
                result: changes.len(),
            });
        }
        paths::check(changes)?;
        let mut patch = Self {
            entries: Vec::with_capacity(files.len()),
            insertions: 0,
            deletions: 0,
        };
        for (file, change) in files.into_iter().zip(changes) {
            agree::check(&file, change).map_err(PatchError::Disagrees)?;
            // HOSTILE: a few bytes can hold gigabytes, so it is asked before they are inflated.
            if let Body::Binary { new, old } = &file.body
                && new.size.max(old.size) > LITERAL_BYTES
            {
                let path = change.path.clone();
                return Err(PatchError::TooLarge { path });
            }
            if let Body::Text(hunks) = &file.body {
                for (sign, _) in hunks.iter().flat_map(|hunk| &hunk.lines) {
                    patch.insertions += u64::from(*sign == Sign::In);
                    patch.deletions += u64::from(*sign == Sign::Out);
                }
            }
            patch.entries.push(Entry { change, file });
        }
        Ok(patch)
    }

    /// The paths that it touches.
    pub(crate) fn touched(&self) -> impl Iterator<Item = Touched<'a>> {
        self.entries
            .iter()
            .flat_map(|entry| git_directory::touched_by(entry.change))
    }

    /// The changes by path; see [`steps`].
    pub fn steps(&self) -> BTreeMap<&'a [u8], Step<'a>> {
        let mut all = BTreeMap::new();
        for entry in &self.entries {
            let one = steps(std::slice::from_ref(entry.change)).unwrap_or_default();
            for (path, step) in one {
                let known: &mut Step<'_> = all.entry(path).or_default();
                known.old = known.old.or(step.old);
                known.new = known.new.or(step.new);
            }
        }
        all
    }
}

impl<'a> Entry<'a> {
    /// Where its old content is.
    pub fn old_path(&self) -> &'a [u8] {
        match &self.change.kind {
            ChangeKind::Renamed { from } => from.as_bytes(),
            _ => self.change.path.as_bytes(),
        }
    }

    pub fn path(&self) -> &'a [u8] {
        self.change.path.as_bytes()
    }

    /// The hash of its ids, by their length.
    pub fn hash(&self) -> ObjectHash {
        let side = self.change.new.as_ref().or(self.change.old.as_ref());
        hash_of(side.map_or("", |side| &side.oid))
    }

    /// Whether what is needed to know its contents stands in the patch itself.
    pub fn is_self_contained(&self) -> bool {
        matches!(self.file.kind, Kind::Added | Kind::Deleted)
            || matches!(self.file.body, Body::Binary { .. })
    }

    /// What the path holds afterwards, of what it held before; `None` where it goes. Both contents
    /// are held against their ids. One that is self-contained needs no old content.
    pub fn content<'c>(
        &'c self,
        old: Option<&'c [u8]>,
    ) -> Result<Option<Cow<'c, [u8]>>, PatchError> {
        let (before, after) = self.contents(old)?;
        let hash = self.hash();
        let change = self.change;
        // What is not there is nothing, and the same content has the same id.
        let same =
            change.old.as_ref().map(|side| &side.oid) == change.new.as_ref().map(|side| &side.oid);
        let checked: [(&[u8], &Option<Side>, &'static str); 2] =
            [(&before, &change.old, "old"), (&after, &change.new, "new")];
        for (content, side, which) in checked.into_iter().take(if same { 1 } else { 2 }) {
            let good = match side {
                Some(side) => is_content(content, side, hash),
                None => content.is_empty(),
            };
            if !good {
                let path = change.path.clone();
                return Err(PatchError::OtherId { path, which });
            }
        }
        Ok(change.new.as_ref().map(|_| after))
    }

    /// Before and after, not held against anything.
    fn contents<'c>(&'c self, old: Option<&'c [u8]>) -> Result<BothSides<'c>, PatchError> {
        let path = || self.change.path.clone();
        let given = |old: Option<&'c [u8]>| {
            old.map(Cow::Borrowed)
                .ok_or_else(|| PatchError::NeedsOld { path: path() })
        };
        match &self.file.body {
            // Nothing but a mode or a name.
            Body::None if self.change.new.is_some() && self.change.old.is_some() => {
                let content = given(old)?;
                Ok((content.clone(), content))
            }
            Body::None => Ok((Cow::default(), Cow::default())),
            Body::Binary { new, old } => match (content::inflate(old), content::inflate(new)) {
                (Some(old), Some(new)) => Ok((old.into(), new.into())),
                _ => Err(PatchError::Binary { path: path() }),
            },
            Body::Text(hunks) => {
                let before = match self.file.kind {
                    Kind::Added => Cow::default(),
                    Kind::Deleted => content::side(hunks, Sign::Out).into(),
                    _ => given(old)?,
                };
                match content::apply(hunks, &before) {
                    Some(after) => Ok((before, after.into())),
                    None => Err(PatchError::DoesNotFit { path: path() }),
                }
            }
        }
    }
}

/// The hash of a repository, by the length of its ids.
pub(crate) fn hash_of(oid: &str) -> ObjectHash {
    match oid.len() {
        64 => ObjectHash::Sha256,
        _ => ObjectHash::Sha1,
    }
}
