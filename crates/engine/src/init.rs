//! `ringfence init`: a folder is looked at, and an environment for it is proposed.
//!
//! ```text
//!   files of the folder ──▶ model::init ──▶ ringfence.toml      gives nothing of the host
//!   toolchains of the host ─▶ grants ─────▶ the user's policy   only if the user says so
//! ```
//!
//! HOSTILE: the folder may be anybody's. Nothing of it is executed, no link followed, no pipe
//! waited for, and no more than a bounded part of it read.

mod error;
mod grants;
mod look;

#[cfg(test)]
mod tests;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use ringfence_model::init::{LeftOut, Proposed, Said, propose};
use ringfence_model::policy::preset;

use crate::durable::{DurableError, Existing, sync_all, write_file};
use crate::error::Error;
use crate::home::Home;
use crate::policy::{self, HOST_FILE, PROPOSAL};
use crate::presets::{self, Surroundings};
use crate::toolchains::{self, Choice, Chosen, Pinned, Toolchain};

pub use error::InitError;
pub use grants::Grants;
pub use look::look;

/// What is proposed for a folder on this host.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// Every link resolved.
    pub folder: PathBuf,
    pub proposed: Proposed,
    /// What the user has outside of the system's directories.
    pub toolchains: Vec<Toolchain>,
    /// Where the programs come from that the project needs; empty where an image brings them.
    pub choices: Vec<Choice>,
    /// What the user's own policy does not grant yet.
    pub grants: Grants,
    /// Why it is not known what the user's policy grants.
    pub policy_fault: Option<String>,
}

/// Looks at a folder, and at what this host has for it.
pub fn propose_for(home: &Home, folder: &Path) -> Result<Proposal, Error> {
    let folder = folder
        .canonicalize()
        .map_err(|source| InitError::OpenFolder {
            path: folder.to_owned(),
            source,
        })?;
    let mut proposed = propose(&look(&folder)?);
    let pins: Vec<Pinned> = proposed
        .needs
        .iter()
        .filter_map(|need| {
            let version = need.version.as_ref()?;
            Some(Pinned {
                program: need.program.clone(),
                version: version.value.clone(),
                place: version.why.clone(),
            })
        })
        .collect();
    let around = Surroundings::of_process(Some(&folder));
    only_known_presets(&mut proposed, &around);
    let toolchains = toolchains::find(&around, &pins);
    let mut choices = toolchains::choose(&around, &toolchains, &proposed.needs);
    // What a Dockerfile or devcontainer.json names is believed to have what it needs.
    if proposed.image.is_none() {
        choices.retain(|choice| choice.from != Chosen::Nowhere || !proposed.bring(&choice.program));
    }
    let lacks = choices.iter().find(|choice| choice.from == Chosen::Nowhere);
    if let (Some(lacks), Some(image)) = (lacks, proposed.possible_image.clone()) {
        let why = format!("{}; `{}` is not on this machine", image.why, lacks.program);
        proposed.possible_image = None;
        proposed.image.get_or_insert(Said { why, ..image });
    }
    // An image brings its own.
    if proposed.image.is_some() {
        choices.clear();
    }
    let mut wanted: Vec<usize> = choices
        .iter()
        .filter_map(|choice| match choice.from {
            Chosen::Toolchain(at) => Some(at),
            Chosen::System | Chosen::Nowhere => None,
        })
        .collect();
    wanted.sort_unstable();
    wanted.dedup();
    let (standing, policy_fault) = match policy::of_host(home, None, Some(&folder)) {
        Ok(policy) => (policy, None),
        Err(error) => (Default::default(), Some(error.to_string())),
    };
    let wanted: Vec<&Toolchain> = wanted.iter().map(|at| &toolchains[*at]).collect();
    let grants = Grants::missing(&standing, &wanted, &proposed);
    Ok(Proposal {
        folder,
        proposed,
        toolchains,
        choices,
        grants,
        policy_fault,
    })
}

/// Leaves out presets that mean nothing on this host: with one of them a policy stops every run.
fn only_known_presets(proposed: &mut Proposed, around: &Surroundings) {
    let mut kept = Vec::new();
    for said in std::mem::take(&mut proposed.network) {
        let name = said.value.strip_prefix(preset::PREFIX).unwrap_or_default();
        match presets::look(name, around) {
            Ok(_) => kept.push(said),
            Err(error) => proposed.left_out.push(LeftOut {
                place: said.why,
                what: error.to_string(),
                instead: error.hint().to_owned(),
            }),
        }
    }
    proposed.network = kept;
}

/// Writes the proposal into its folder.
pub fn write(folder: &Path, text: &str, existing: Existing) -> Result<PathBuf, Error> {
    let path = folder.join(PROPOSAL);
    match put(&path, text, existing, 0o644) {
        Err(DurableError::Publish { source, .. } | DurableError::Create { source, .. })
            if source.kind() == std::io::ErrorKind::AlreadyExists =>
        {
            Err(InitError::Taken(path).into())
        }
        Err(error) => Err(error.into()),
        Ok(()) => Ok(path),
    }
}

/// The user's policy with grants added, which was read and is fine; nothing is written yet.
#[derive(Clone, Debug)]
pub struct Widened {
    /// Where it goes, links resolved.
    pub path: PathBuf,
    pub text: String,
    mode: u32,
    existing: Existing,
}

/// Adds grants to the user's policy.
pub fn widen(home: &Home, grants: &Grants) -> Result<Widened, Error> {
    let path = home.root().join(HOST_FILE);
    let (path, before, mode, existing) = match path.canonicalize() {
        Ok(path) => {
            let failed = |source| InitError::ReadPolicy {
                path: path.clone(),
                source,
            };
            let text = std::fs::read_to_string(&path).map_err(failed)?;
            let mode = path.metadata().map_err(failed)?.permissions().mode();
            (path, text, mode, Existing::Replace)
        }
        Err(_) => (path, String::new(), 0o600, Existing::Refuse),
    };
    let text = grants.added_to(&before).map_err(|why| InitError::Merge {
        path: path.clone(),
        why,
    })?;
    policy::check_as(home, &text, &path)?;
    Ok(Widened {
        path,
        text,
        mode,
        existing,
    })
}

impl Widened {
    /// Puts it in its place.
    pub fn save(&self) -> Result<(), Error> {
        Ok(put(&self.path, &self.text, self.existing, self.mode)?)
    }
}

fn put(path: &Path, text: &str, existing: Existing, mode: u32) -> Result<(), DurableError> {
    let written = write_file(path, text.as_bytes(), existing)?;
    let failed = |source| DurableError::Write {
        path: path.to_owned(),
        source,
    };
    let mode = Permissions::from_mode(mode & 0o777);
    written.file.set_permissions(mode).map_err(failed)?;
    let parent = path.parent().unwrap_or(Path::new("/"));
    sync_all(&[(&written.path, &written.file)], &[parent])
}
