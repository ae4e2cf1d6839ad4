//! The change set of a layer, and the patch that it renders to.
//!
//! ```text
//!   layer (upper) ─┐                 ┌─▶ changes ─▶ refused? ─▶ renames ─▶ fits? ─┐
//!                  ├─ walk ─ judge ──┤                                            ├─▶ ChangeSet ─▶ render ─▶ patch
//!   base (lower) ──┘                 └─▶ omitted: what stays behind, and why ─────┘
//! ```
//!
//! HOSTILE: the layer was written by an agent. It is read relative to a directory handle, no link
//! is followed, nothing but regular files and directories is opened, nothing recurses, and what it
//! costs follows what changed: the base is walked only below directories that were deleted.
//!
//! INVARIANT: the base is never written, not even a mode; the modes of the layer that had to be
//! widened to read it are put back. A path is carried whole or not at all.

mod between;
mod binary;
mod content;
mod deleted;
pub(crate) mod descent;
mod error;
mod fit;
pub(crate) mod git_directory;
pub(crate) mod handle;
pub(crate) mod hunks;
mod judge;
mod measure;
pub(crate) mod names;
mod oid;
mod omissions;
mod own;
mod patch;
mod peek;
mod remove;
mod rename;
mod source;
mod walk;

use std::io::Write;
use std::os::fd::OwnedFd;

use ringfence_model::ByteText;
use ringfence_model::changes::{Change, ChangeKind, ChangeSet, ObjectHash, WhyOmitted};

pub use between::between;
pub(crate) use binary::read_literal;
pub use error::ChangesError;
pub use handle::Started;
pub use measure::{Inodes, Usage, measure, measure_apart};
pub(crate) use oid::BlobHasher;
pub use own::own_tree;
pub(crate) use patch::{Texts, quoted};
pub use peek::{names_left, new_bytes, old_bytes};
pub use remove::remove_tree;

use judge::Judge;
use omissions::{Omissions, Tally};
use walk::Walk;

/// Where a layer and its base are read.
#[derive(Debug)]
pub struct Sources {
    /// The layer: the upper directory of an overlay that nobody has mounted any more.
    pub upper: OwnedFd,
    /// The user's folder: the overlay's lower directory.
    pub base: OwnedFd,
    /// When the run began. What of the base changed later is not what the agent saw. The kernel
    /// stamps changes with a clock that lags by up to a tick (4–10 ms), so a change in the very
    /// first tick of a run goes unseen.
    pub started: Started,
    /// The folder's path below the top of its repository (`sub/dir`), put before every path.
    pub prefix: Vec<u8>,
    pub hash: ObjectHash,
}

impl Sources {
    /// A path without the folder's prefix; `None` for one that is not in the folder.
    fn in_folder<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        match self.prefix.as_slice() {
            b"" => Some(path),
            prefix => match path.strip_prefix(prefix)? {
                b"" => Some(b""),
                rest => rest.strip_prefix(b"/"),
            },
        }
    }
}

/// What a crossing rule is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryType {
    Directory,
    File,
}

/// Decides which changed paths cross back. Paths are relative to the folder, without its prefix.
pub trait Crossing {
    /// Whether a changed path crosses. A directory is asked for before what is below it; where it
    /// is refused, nothing below it is looked at.
    fn crosses(&mut self, path: &[u8], what: EntryType) -> Result<(), WhyOmitted>;

    /// Whether a directory refused as `Ignored` is looked into all the same, because something
    /// below it may cross (a tracked file). Each file below is then asked for by itself.
    fn may_hold_crossing(&mut self, _dir: &[u8]) -> bool {
        false
    }
}

/// How much a change set and its patch may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// A file of more bytes stays behind.
    pub file_bytes: u64,
    /// All that is read of the layer to tell what changed; what comes later stays behind.
    pub read_bytes: u64,
    /// The whole patch; the largest changes stay behind until the rest fits.
    pub patch_bytes: u64,
    /// Lines in the list of what stays behind.
    pub omitted_entries: usize,
    /// Changed paths; more of them are an error.
    pub changes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            file_bytes: 100 << 20,
            // BOUND: some seconds of hashing; sparse files cost an agent nothing and us this.
            read_bytes: 2 << 30,
            // BOUND: `git apply` refuses a patch of a gigabyte.
            patch_bytes: 512 << 20,
            omitted_entries: 1000,
            changes: 1_000_000,
        }
    }
}

/// What a rendered patch holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PatchStats {
    pub files: u64,
    pub insertions: u64,
    pub deletions: u64,
    pub bytes: u64,
}

/// Computes what differs from the base.
pub fn compute(
    sources: &Sources,
    crossing: &mut dyn Crossing,
    bounds: &Bounds,
) -> Result<ChangeSet, ChangesError> {
    let judge = Judge::new(sources, crossing, bounds);
    let (mut changes, mut omissions) = Walk::new(sources, judge)?.run()?;
    sort(&mut changes);
    drop_refused(sources, &mut changes, &mut omissions)?;
    rename::detect(sources, &mut changes);
    sort(&mut changes);
    while fit::drop_largest(sources, &mut changes, &mut omissions, bounds.patch_bytes)? {
        drop_refused(sources, &mut changes, &mut omissions)?;
    }
    for change in &mut changes {
        change.path = prefixed(&sources.prefix, change.path.as_bytes());
        if let ChangeKind::Renamed { from } = &mut change.kind {
            *from = prefixed(&sources.prefix, from.as_bytes());
        }
    }
    let (omitted, omitted_truncated) = omissions.finish(|path| prefixed(&sources.prefix, path));
    Ok(ChangeSet {
        changes,
        omitted,
        omitted_truncated,
    })
}

/// Writes the change set as git writes a patch. Both sides are read again and must still be what
/// the change set says; where one is not, what was written so far is to be thrown away.
pub fn render(
    sources: &Sources,
    set: &ChangeSet,
    out: &mut dyn Write,
) -> Result<PatchStats, ChangesError> {
    render_shown(sources, set, out, &mut Unread)
}

/// The same, with somebody who is shown what is compared.
pub(crate) fn render_shown(
    sources: &Sources,
    set: &ChangeSet,
    out: &mut dyn Write,
    texts: &mut dyn Texts,
) -> Result<PatchStats, ChangesError> {
    patch::write(sources, &set.changes, out, texts)
}

struct Unread;

impl Texts for Unread {
    fn compared(&mut self, _: usize, _: &[u8], _: &[u8], _: &[hunks::Hunk]) {}
}

/// Sorts by path; of the two changes of a path that changed its type, the deletion comes first.
fn sort(changes: &mut [Change]) {
    changes.sort_by(|a, b| {
        let adds = |change: &Change| change.kind != ChangeKind::Deleted;
        a.path.cmp(&b.path).then(adds(a).cmp(&adds(b)))
    });
}

/// Leaves behind what cannot be in a patch beside, or without, the other changes. What is left behind can
/// be what kept others from being refused: a git directory is none where its `HEAD` is deleted.
fn drop_refused(
    sources: &Sources,
    changes: &mut Vec<Change>,
    omissions: &mut Omissions,
) -> Result<(), ChangesError> {
    loop {
        drop_blocked(changes, omissions);
        if !git_directory::drop_from(sources, changes, omissions)? {
            return Ok(());
        }
    }
}

/// Leaves behind each new file that has something of the base in its way, and so on for what
/// would have been moved there.
fn drop_blocked(changes: &mut Vec<Change>, omissions: &mut Omissions) {
    loop {
        let before = changes.len();
        changes.retain(|change| {
            let lands = matches!(change.kind, ChangeKind::Added | ChangeKind::Renamed { .. });
            let path = change.path.as_bytes();
            let Some(why) = omissions.in_the_way(path).filter(|_| lands) else {
                return true;
            };
            leave(omissions, change, why);
            false
        });
        if changes.len() == before {
            return;
        }
    }
}

/// Lists a change as left behind, with what that leaves in the base.
fn leave(omissions: &mut Omissions, change: &Change, why: WhyOmitted) {
    let side = change.new.as_ref().or(change.old.as_ref());
    omissions.add(
        change.path.as_bytes(),
        why,
        Tally::file(side.map_or(0, |side| side.size)),
    );
    match &change.kind {
        ChangeKind::Deleted => omissions.keep(change.path.as_bytes(), why),
        ChangeKind::Renamed { from } => {
            let size = change.old.as_ref().map_or(0, |side| side.size);
            omissions.add(from.as_bytes(), why, Tally::file(size));
            omissions.keep(from.as_bytes(), why);
        }
        ChangeKind::Added | ChangeKind::Modified => {}
    }
}

fn prefixed(prefix: &[u8], path: &[u8]) -> ByteText {
    if prefix.is_empty() {
        ByteText::from(path)
    } else {
        ByteText([prefix, b"/", path].concat())
    }
}
