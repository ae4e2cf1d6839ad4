//! Checks on files that lie over a commit: of several patches one on top of the other, or of what
//! is laid there by us.
//!
//! The ground is the user's folder where it is at that commit, so that what is ignored there is
//! there for checks as well, or a checkout of ours.

use std::path::{Path, PathBuf};

use ringfence_model::ByteText;
use ringfence_model::changes::Change;
use ringfence_model::check::{Checks, Ran, Tree};

use super::room::{Job, OfCheck, Room, remove};
use super::trees::Trees;
use super::{Fresh, Round, Stacked, Subject, Told, check_on, limits, trace, trees};
use crate::attend::{Console, Inputs};
use crate::base::Base;
use crate::environment::{self, Order, Standing};
use crate::error::Error;
use crate::home::Home;
use crate::ids::RunId;
use crate::keeper::INSIDE;
use crate::lock::RunLock;
use crate::patch::Laid;
use crate::run::{RunRequest, discard_layer};
use crate::store::Store;
use crate::workspace::{Workspace, open_folder};

/// What is below everything.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ground<'a> {
    Folder(&'a Path),
    Base(&'a Base),
}

/// A place to check in, gone when it is over.
pub(crate) struct Site<'a> {
    home: &'a Home,
    room: RunId,
    request: &'a RunRequest,
    workspace: Option<Workspace>,
    standing: Standing,
    prefix: Vec<u8>,
    _lock: RunLock,
}

/// Which patch it is about, and where what is printed is kept.
#[derive(Clone, Copy)]
pub(crate) struct About<'a> {
    pub patch: &'a Path,
    pub changes: &'a [Change],
    pub logs: &'a Path,
    pub fresh: Fresh,
}

impl<'a> Site<'a> {
    /// Makes the place; what the request stands on is made where it is not there.
    pub fn make(
        home: &'a Home,
        store: &Store,
        ground: Ground<'_>,
        request: &'a RunRequest,
        inputs: &Inputs<'_>,
        console: &mut dyn Console,
    ) -> Result<Self, Error> {
        let room = RunId::random()?;
        let lock = RunLock::create(home, room)?;
        let mut site = Self {
            home,
            room,
            request,
            workspace: None,
            standing: Standing::default(),
            prefix: Vec::new(),
            _lock: lock,
        };
        let folder = match ground {
            Ground::Folder(path) => open_folder(home, path)?,
            Ground::Base(base) => open_folder(home, &base.workspace())?,
        };
        let order = match ground {
            Ground::Folder(_) => request.order(&folder)?,
            // As a sandbox that stands on it: what a setup made of it is shared.
            Ground::Base(base) => Order {
                policy: &request.policy,
                limits: &request.limits,
                program: &request.program,
                backend: &*request.backend,
                folder: base.workspace(),
                scope: match &base.mirror {
                    Some(mirror) => format!("mirror {mirror}"),
                    None => format!("base {}", base.id),
                },
                inside: PathBuf::from(INSIDE),
            },
        };
        if let Some(resolved) = environment::resolve(home, store, &order, console)? {
            site.standing = environment::ensure(home, store, &order, &resolved, inputs, console)?;
        }
        let (view, files) = (&request.view, &request.policy.files);
        let mut workspace = match ground {
            Ground::Folder(_) => Workspace::create(home, room, folder, view, files)?,
            Ground::Base(base) => Workspace::on_base(home, room, base, view, files)?,
        };
        workspace.stand_on(site.standing.workspace());
        site.prefix = workspace.sources()?.prefix;
        site.workspace = Some(workspace);
        Ok(site)
    }

    fn subject<'s>(&'s self, about: About<'s>) -> Subject<'s> {
        Subject {
            home: self.home,
            room: self.room,
            request: self.request,
            workspace: self.workspace.as_ref().expect("made with the place"),
            standing: &self.standing,
            patch: about.patch,
            changes: about.changes,
            prefix: &self.prefix,
            logs: about.logs,
            fresh: about.fresh,
            stopped: false,
            round: Round::Last,
        }
    }

    /// Runs the checks of the request before and after a patch that lies on top of others.
    pub fn check(
        &self,
        about: About<'_>,
        stacked: &Stacked,
        inputs: &Inputs<'_>,
        console: &mut dyn Console,
    ) -> Result<Checks, Error> {
        let told = Told {
            journal: None,
            console,
            signals: inputs.signals,
            round: Round::Last,
        };
        check_on(self.subject(about), told, |subject| {
            Trees::stacked(subject, stacked)
        })
    }

    /// What is left of a patch without the protected files that it touches, which are named.
    pub fn without_exam(
        &self,
        about: About<'_>,
        stacked: &Stacked,
    ) -> Result<(Vec<ByteText>, Laid), Error> {
        Ok(trees::without_exam(&self.subject(about), stacked)?)
    }

    /// Runs each check of the request once on these files, each in a room of its own.
    pub fn run_once(
        &self,
        about: About<'_>,
        laid: &Laid,
        inputs: &Inputs<'_>,
    ) -> Result<Vec<Ran>, Error> {
        let subject = self.subject(about);
        let trees = Trees::of_files(&subject, laid)?;
        let path = about.logs;
        std::fs::create_dir(path).map_err(|source| Error::WriteFile {
            path: path.to_owned(),
            source,
        })?;
        let limits = limits(&self.request.limits);
        let mut all = Vec::new();
        for (check, line) in self.request.policy.review.checks.iter().enumerate() {
            let job = Job {
                check,
                tree: Tree::Patched,
            };
            let mut room = Room::make(&subject, &trees, job, check + 1)?;
            let mut witness = OfCheck { job, journal: None };
            let ran = room.run(&subject, &line.text, &limits, inputs, &mut witness);
            let place = room.end();
            remove(&place);
            let ran = ran?.ran;
            trace(&line.text, job.tree, &ran);
            all.push(ran);
        }
        Ok(all)
    }

    /// Where what is kept until it is over can be put.
    pub fn directory(&self) -> PathBuf {
        self.home.workspace(self.room)
    }
}

impl Drop for Site<'_> {
    fn drop(&mut self) {
        discard_layer(self.home, self.room);
    }
}
