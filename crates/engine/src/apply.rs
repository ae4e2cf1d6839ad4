//! From a bundle to the user's folder: all of a patch or nothing of it.
//!
//! ```text
//! bundle ─ verified ─▶ patch ─ plan ─▶ conflicts: a list, and nothing was changed
//!                               │
//!                               ▼ stage: every file is made whole beside its place
//!                             intent in the home, synced
//!                               │
//!                               ▼ swap: renames only, each looked at again when it is done
//!                             done mark, synced ─▶ what was replaced is removed
//! ```
//!
//! INVARIANT: no program is started on the folder, and nothing of `.git` is written when a patch
//! goes to the working tree. Nothing is written through a link or into another file system. Who is
//! killed leaves an intent, and the next command undoes or finishes it ([`recover()`]).

mod branch;
mod bundle;
mod commit;
mod error;
mod execute;
mod gate;
mod git_directories;
mod intent;
mod kept;
mod links;
mod merge;
mod objects;
mod plan;
mod recover;
mod sound;
mod stack;
mod stage;
mod target;
#[cfg(test)]
mod tests;

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use ringfence_model::ByteText;
use serde::Serialize;

pub use branch::{AgentCommits, Branching, Commit, to_branch};
pub use bundle::Bundle;
pub use commit::Person;
pub(crate) use commit::message;
pub use error::{ApplyError, Conflict};
pub use gate::Gate;
pub use recover::{Settled, recover};
pub use stack::{Clash, Lines, Placed};
pub(crate) use stack::{Fit, Stack, Step, Wording};

use crate::home::Home;
use crate::ids::RunId;
use crate::patch::Patch;
use plan::{HELD_BYTES, Plan, Planner};
use target::Target;

/// What becomes of links that lead out of the folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OuterLinks {
    #[default]
    Refused,
    Allowed,
}

/// How far it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Only what would happen is found out.
    Look,
    Apply,
}

/// What was done, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Applied {
    /// The top of the paths.
    pub top: PathBuf,
    pub written: Vec<ByteText>,
    pub removed: Vec<ByteText>,
    /// Written, and joined with what was changed there meanwhile.
    pub merged: Vec<ByteText>,
    /// As the patch wants it already.
    pub already: Vec<ByteText>,
}

/// Asked when nobody else applies any more, before anything is changed: whether it still may be.
pub type Allowed<'a> = dyn Fn() -> Result<(), ApplyError> + 'a;

/// A patch that fits a folder; nothing was changed yet.
#[derive(Debug)]
pub struct Fitting {
    run: RunId,
    target: Target,
    plan: Plan,
}

impl Fitting {
    /// What would be done.
    pub fn told(&self) -> Applied {
        self.plan.told(&self.target)
    }

    /// Does it. What was seen of each path must still be so, else everything is put back.
    pub fn apply(self, home: &Home, allowed: &Allowed<'_>) -> Result<Applied, ApplyError> {
        let applied = self.told();
        if !self.plan.ops.is_empty() {
            let Self { run, target, plan } = self;
            let root = target.root.as_fd();
            execute::execute(home, run, root, &target.top, &plan, allowed)?;
        }
        Ok(applied)
    }
}

/// Looks whether a bundle fits the files of its folder, or of another one.
pub fn to_tree(
    home: &Home,
    bundle: &Bundle,
    into: Option<&Path>,
    links: OuterLinks,
) -> Result<Fitting, ApplyError> {
    let target = Target::of_bundle(bundle, into)?;
    fit(home, bundle.run(), &bundle.patch()?, target, links)
}

/// Applies a patch whose paths begin at `top`.
pub fn patch_to_tree(
    home: &Home,
    run: RunId,
    patch: &Patch<'_>,
    top: &Path,
    links: OuterLinks,
) -> Result<Applied, ApplyError> {
    fit(home, run, patch, Target::at(top)?, links)?.apply(home, &|| Ok(()))
}

fn fit(
    home: &Home,
    run: RunId,
    patch: &Patch<'_>,
    target: Target,
    links: OuterLinks,
) -> Result<Fitting, ApplyError> {
    if home.root().starts_with(&target.top) {
        return Err(ApplyError::HoldsHome(target.top));
    }
    git_directories::check_folder(patch, &target)?;
    let plan = Planner::new(&target, patch, links, HELD_BYTES).plan()?;
    Ok(Fitting { run, target, plan })
}
