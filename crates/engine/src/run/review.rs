//! A look at what a run leaves, before it is packed: what was observed, and what to look at.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use ringfence_model::attribution::Attribution;
use ringfence_model::changes::ChangeSet;
use ringfence_model::check::Checks;

use super::claim::Claimed;
use crate::changes::{PatchStats, Sources};
use crate::error::Error;
use crate::evidence::Evidence;
use crate::flags::{self, Facts, Known, Review};
use crate::home::Home;
use crate::sandbox::canary_text;
use crate::store::Store;
use crate::workspace::Workspace;

/// What there is to look at.
pub(super) struct Left<'a> {
    pub workspace: &'a Workspace,
    pub sources: &'a Sources,
    pub set: &'a ChangeSet,
    pub stats: &'a PatchStats,
    pub patch: &'a Path,
    pub evidence: &'a Evidence,
    pub claimed: &'a Claimed,
    pub attribution: &'a Attribution,
    pub checks: &'a Checks,
    /// The command exited by itself, with 0.
    pub succeeded: bool,
}

/// Looks at it.
pub(super) fn review(home: &Home, store: &Store, left: &Left<'_>) -> Result<Review, Error> {
    let canary = canary_text(&home.canary());
    let facts = Facts {
        changes: &left.set.changes,
        omitted: &left.set.omitted,
        insertions: left.stats.insertions,
        deletions: left.stats.deletions,
        gathered: &flags::gather(left.sources, &left.set.changes),
        evidence: left.evidence,
        claim: left.claimed.as_ref().map(Option::as_ref),
        succeeded: left.succeeded,
        known: &Known(store.known_programs(left.workspace.folder())?),
        inside: super::path_bytes(&left.workspace.spec().inside),
        prefix: &left.sources.prefix,
        canary: canary.as_deref().map(str::as_bytes),
        unexplained: &left.attribution.unexplained,
        checks: left.checks,
    };
    let read = |source| Error::ReadFile {
        path: left.patch.to_owned(),
        source,
    };
    let patch = File::open(left.patch).map_err(read)?;
    flags::review(&facts, BufReader::new(patch)).map_err(read)
}

/// Notes which programs ran, so that the next run on this folder knows them.
pub(super) fn note(store: &Store, workspace: &Workspace, evidence: &Evidence) -> Result<(), Error> {
    let inside = super::path_bytes(&workspace.spec().inside);
    let programs = flags::of_the_machine(evidence, inside);
    Ok(store.note_programs(workspace.folder(), &programs)?)
}
