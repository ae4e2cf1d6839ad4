//! `ringfence apply --pull-request`.

use std::path::Path;

use clap::Args;
use ringfence_engine::apply::{Bundle, Commit};
use ringfence_engine::git;
use ringfence_engine::home::Home;
use ringfence_engine::mirror::Silent;
use ringfence_engine::pull_request::{self, Draft, Published, Publishing, Wanted};
use ringfence_engine::store::{RunRecord, Store};
use ringfence_model::bundle::TreeIdentity;

use crate::text::clean;

#[derive(Debug, Args)]
pub struct Request {
    /// Push the branch (`ringfence/RUN` unless named) and open a pull request for it, with your own
    /// credentials
    #[arg(long)]
    pub pull_request: bool,
    /// The remote of the folder's repository
    #[arg(
        long,
        value_name = "NAME",
        default_value = "origin",
        requires = "pull_request"
    )]
    remote: String,
    /// The title of the pull request [default: a line about the run]
    #[arg(long, value_name = "TEXT", requires = "pull_request")]
    title: Option<String>,
    /// Mark it as not ready
    #[arg(long, requires = "pull_request")]
    draft: bool,
}

impl Request {
    /// The branch, where none was named.
    pub fn branch(run: &RunRecord) -> String {
        format!("ringfence/{}", run.id)
    }

    /// Publishes a run on a branch; `make` makes the commit, unless an earlier try did.
    pub fn publish(
        &self,
        (home, store): (&Home, &Store),
        (run, bundle): (&RunRecord, &Bundle),
        (folder, branch): (&Path, &str),
        make: impl FnOnce() -> anyhow::Result<Commit>,
    ) -> anyhow::Result<Published> {
        let engine = ringfence_engine::error::Error::from;
        pull_request::branch_name(branch).map_err(engine)?;
        let remote = pull_request::remote(folder, &self.remote).map_err(engine)?;
        let repository = git::discover(folder).map_err(ringfence_engine::error::Error::Git)?;
        let Some(repository) = repository else {
            let name = self.remote.clone();
            return Err(engine(pull_request::PullRequestError::NoRemote { name }).into());
        };
        // A branch that nobody can push is not made.
        pull_request::ready(home, &remote)?;
        let address = remote.source.text();
        let sha256 = bundle.sha256();
        let wanted = Wanted {
            run: run.id.as_str(),
            remote: &address,
            branch,
            tree: match &bundle.manifest.tree {
                TreeIdentity::GitTree { id } => Some(id),
                TreeIdentity::ChangeSet { .. } => None,
            },
            bundle: &sha256,
        };
        let commit = match pull_request::earlier(store, folder, wanted)? {
            Some(commit) => commit,
            None => make()?.commit.unwrap_or_default(),
        };
        let (title, body) = pull_request::words(&bundle.result, &bundle.sha256());
        let publishing = Publishing {
            run,
            commit,
            hash: repository.hash,
            objects: vec![repository.common_dir.join("objects")],
            remote,
            branch: branch.to_owned(),
            title: self.title.clone().unwrap_or(title),
            body,
            draft: if self.draft { Draft::Yes } else { Draft::No },
        };
        Ok(pull_request::publish(
            home,
            store,
            &publishing,
            &mut Silent,
        )?)
    }
}

/// Tells what came of it.
pub fn tell(published: &Published, out: &mut impl std::io::Write) -> std::io::Result<()> {
    let done = if published.found {
        "is open already"
    } else {
        "is open"
    };
    writeln!(
        out,
        "branch `{}` is at {}; pull request {} into `{}` {done}:\n{}",
        clean(&published.branch),
        published.commit,
        published.number,
        clean(&published.base),
        clean(&published.url)
    )
}
