//! Where the checks of a merge run, and held to what.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use ringfence_model::bundle::Base;
use ringfence_model::policy::Line;
use ringfence_model::policy::network::Origin;

use crate::apply::{Bundle, Stack};
use crate::base::{self, Base as Checkout};
use crate::campaign::CampaignError;
use crate::campaign::room::Room;
use crate::checks::Ground;
use crate::error::Error;
use crate::git;
use crate::home::Home;
use crate::mirror::{self, Silent};
use crate::run::RunRequest;
use crate::source;
use crate::store::Store;
use crate::workspace::open_folder;

/// What the checks stand on.
pub(super) struct Standing {
    pub folder: PathBuf,
    checkout: Option<Checkout>,
    /// For a person.
    pub note: Option<String>,
}

impl Standing {
    /// The folder of the run where it is at the commit below, else a checkout of that commit.
    pub fn find(
        (home, store): (&Home, &Store),
        bundle: &Bundle,
        into: Option<&Path>,
        stack: &Stack,
    ) -> Result<Self, Error> {
        let recorded = OsStr::from_bytes(bundle.result.folder.as_bytes());
        let folder = open_folder(home, into.unwrap_or(Path::new(recorded)))?;
        let repository = git::discover(folder.path())?;
        let prefix = repository.as_ref().map(|found| found.prefix.clone());
        let is = Room::make(home)?.base(repository, &folder)?;
        if matches!(&is, Base::Commit { commit, .. } if *commit == stack.commit) {
            return Ok(Self {
                folder: folder.path().to_owned(),
                checkout: None,
                note: None,
            });
        }
        if prefix.is_some_and(|prefix| !prefix.is_empty()) {
            return Err(CampaignError::MovedBelow {
                folder: folder.path().to_owned(),
                commit: stack.commit.clone(),
            }
            .into());
        }
        let text = stack.top().to_string_lossy();
        let typed = source::parse(&text)?;
        let resolved = mirror::ensure(home, store, &typed, Some(&stack.commit), &mut Silent)?;
        let checkout = base::commit(home, store, &resolved, &mut Silent)?;
        let short: String = stack.commit.chars().take(12).collect();
        Ok(Self {
            folder: checkout.workspace(),
            checkout: Some(checkout),
            note: Some(format!(
                "the folder is not just as {short} has it: checks run on a checkout of that, without what is ignored or not committed"
            )),
        })
    }

    pub fn ground(&self) -> Ground<'_> {
        match &self.checkout {
            Some(checkout) => Ground::Base(checkout),
            None => Ground::Folder(&self.folder),
        }
    }
}

/// What the run was held to, but for what was hidden so that it saw its own part only: the others'
/// work is looked at as well.
pub(super) fn request(like: &RunRequest, bundle: &Bundle) -> RunRequest {
    let was = &bundle.manifest.policy;
    let mut request = like.clone();
    request.policy = was.effective.clone().unwrap_or_default();
    request.limits = was.limits.clone();
    let of_task = |line: &Line| line.from.line == 0 && !line.from.file.starts_with("--");
    request.policy.files.hide.retain(|line| !of_task(line));
    request.view.inside = Some(PathBuf::from(OsStr::from_bytes(was.inside.as_bytes())));
    if let Some(digest) = &bundle.manifest.environment.image {
        let from = Origin {
            file: format!("run {}", bundle.run()),
            line: 0,
        };
        let text = digest.clone();
        request.policy.environment.image = Some(Line { text, from });
    }
    request
}
