//! `patch`: a unified diff, all of it or nothing.
//!
//! ```text
//! parse ──▶ plan: every file read, every hunk placed, in memory ──▶ commit: all written,
//!                                                                   or all put back
//! ```
//!
//! Nothing is written before the whole patch is known to fit.

use ringfence_model::ByteText;
use ringfence_model::tools::{PatchAction, PatchAnswer, PatchRequest, PatchedFile};

use crate::failure::{Outcome, too_large};
use crate::measure::{Fit, Room};
use crate::place::Root;
use crate::write::one_content;

mod commit;
mod hunks;
mod parse;
mod plan;

#[cfg(test)]
mod tests;

use parse::{FilePatch, Kind};
use plan::Plan;

/// BOUND: files in one patch.
const MAX_FILES: usize = 5_000;

pub fn patch(root: &Root, request: PatchRequest) -> Outcome<PatchAnswer> {
    let mut text = one_content(request.text, request.bytes)?;
    if text.last() != Some(&b'\n') {
        text.push(b'\n');
    }
    let files = parse::parse(&text, request.strip.unwrap_or(1))?;
    if files.len() > MAX_FILES {
        return Err(too_large(format!(
            "the patch has more than {MAX_FILES} files"
        )));
    }
    let answer = PatchAnswer {
        files: files.iter().map(patched).collect(),
    };
    // Before anything is written: an answer that cannot be given is no answer.
    if Room::new().take(&answer) == Fit::Full {
        return Err(too_large("the names in the patch are too long".to_owned()));
    }
    let mut plan = Plan::new(root, &files);
    for file in &files {
        plan.add(file)?;
    }
    if !request.dry_run {
        commit::commit(root, &plan)?;
    }
    Ok(answer)
}

fn patched(file: &FilePatch<'_>) -> PatchedFile {
    let (old, new) = (
        file.old.clone().map(ByteText),
        file.new.clone().map(ByteText),
    );
    let moved = matches!(file.kind, Kind::Rename | Kind::Copy);
    PatchedFile {
        from: old.clone().filter(|_| moved),
        path: new.or(old).unwrap_or_default(),
        action: match file.kind {
            Kind::Modify => PatchAction::Modified,
            Kind::Create => PatchAction::Created,
            Kind::Delete => PatchAction::Deleted,
            Kind::Rename => PatchAction::Renamed,
            Kind::Copy => PatchAction::Copied,
        },
        hunks: file.hunks.len(),
    }
}
