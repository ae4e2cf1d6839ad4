//! A new sandbox: its base, made or found, and a row.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::slice;

use ringfence_model::ByteText;

use super::Host;
use crate::attend::{Console, Inputs};
use crate::backend::{Backend, Choice};
use crate::base::{self, Base};
use crate::client::Stream;
use crate::clock::now_us;
use crate::environment::{self, Order, Resolved};
use crate::error::Error;
use crate::fail;
use crate::files::{FileRules, check_mounts, mask};
use crate::ids::{BaseId, SandboxId};
use crate::keeper::INSIDE;
use crate::mirror::{self, Progress};
use crate::policy::{Asked, Settled};
use crate::sandbox::SandboxError;
use crate::source::{self, Source};
use crate::store::{AutoCheckpoint, NewSandbox, SandboxDetail};
use crate::workspace::{Ignored, mount_notes, scan};

/// What a sandbox starts from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum From {
    /// Nothing.
    Empty,
    /// A URL, or the path of a repository or folder; with a revision the tree of that commit, a
    /// path without one as it is.
    Repository {
        typed: String,
        revision: Option<String>,
    },
}

/// How much of it is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    #[default]
    Whole,
    /// Only these files, by path or pattern.
    Needed(Vec<String>),
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct CreateRequest {
    /// What holds its executions.
    pub backend: Choice,
    pub from: From,
    pub stage: Stage,
    pub name: Option<String>,
    pub tag: Option<String>,
    pub policy: Asked,
    /// Variables beyond those of the policy.
    pub env: Vec<(ByteText, ByteText)>,
    pub ignored: Ignored,
    pub idle_seconds: Option<u64>,
    pub ttl_seconds: Option<u64>,
    pub auto_checkpoint: AutoCheckpoint,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Created {
    pub sandbox: SandboxId,
    pub base: BaseId,
    pub commit: Option<String>,
    pub notes: Vec<String>,
}

/// Makes a sandbox. Nothing runs in it yet.
pub fn create(
    host: &Host,
    request: &CreateRequest,
    progress: &mut dyn Progress,
) -> Result<Created, Error> {
    // Before anything is fetched for it.
    crate::run::check_limits(&request.policy.limits())?;
    crate::run::check_variables(&request.env)?;
    if let Some(name) = &request.name {
        host.store.check_sandbox_name(name)?;
    }
    let (base, source, mut notes) = find_base(host, request, progress)?;
    notes.extend(base.notes.iter().cloned());
    fail::point("create:based");
    let policy = settle(host, request, &base)?;
    notes.extend(policy.notes());
    let files = &policy.effective.files;
    let folder = local_folder(&request.from)?;
    let own: Vec<&Path> = folder.iter().map(PathBuf::as_path).collect();
    let mounts = check_mounts(&files.mounts, &host.home, &own, Path::new(INSIDE))?;
    notes.extend(mount_notes(&mounts));
    let aliases = match &folder {
        Some(folder) => scan::aliases(folder, FileRules::of(files)?.hidden()),
        None => Vec::new(),
    };
    let backend = request.backend.choose(&host.home);
    let backend = backend.map_err(SandboxError::Backend)?;
    let order = order(host, &policy, &*backend, &base, folder.as_deref())?;
    let (home, store) = (&host.home, &host.store);
    let resolved = environment::resolve(home, store, &order, &mut Said(progress))?;
    let stands_on = resolved.as_ref().map(Resolved::stands_on);
    // Those of the environment count less than any.
    let mut env = environment::variables(&order, resolved.as_ref());
    env.extend(policy.env.iter().cloned());
    env.extend(request.env.iter().cloned());
    let id = SandboxId::random()?;
    let new = NewSandbox {
        id,
        name: request.name.clone(),
        tag: request.tag.clone(),
        base: base.id,
        head: None,
        expires_us: expiry(request.ttl_seconds),
        detail: SandboxDetail {
            backend: backend.name().to_owned(),
            source,
            limits: policy.limits.clone(),
            env,
            ignored: request.ignored,
            policy: policy.effective.clone(),
            aliases,
            stands_on: stands_on.unwrap_or_default(),
            idle_seconds: request.idle_seconds,
            auto_checkpoint: request.auto_checkpoint,
            forked_from: None,
            ended: None,
            mounted: Vec::new(),
        },
    };
    make(host, slice::from_ref(&new), "create")?;
    // Now, so that what cannot be held is told to who asks for it.
    let shaping = host.shape(id)?;
    let detail = &new.detail;
    let masked = mask::ensure(
        &host.home.sandbox(id),
        &base,
        &detail.policy.files,
        &detail.aliases,
    );
    let masked = masked.and_then(|mask| {
        notes.extend(mask.notes);
        let Some(resolved) = &resolved else {
            return Ok(Vec::new());
        };
        let nobody = Inputs::default();
        let mut said = Said(progress);
        let (home, store) = (&host.home, &host.store);
        let stood = environment::ensure(home, store, &order, resolved, &nobody, &mut said)?;
        Ok(stood.notes)
    });
    match masked {
        Ok(of_setup) => notes.extend(of_setup),
        Err(error) => {
            let record = host.store.sandbox(id)?;
            super::remove::remove_held(host, &record, Some(shaping))?;
            return Err(error);
        }
    }
    Ok(Created {
        sandbox: id,
        base: base.id,
        commit: base.commit,
        notes,
    })
}

/// The policy, narrowed by what the repository proposes. A stage may not show the proposal, and it
/// counts all the same.
fn settle(host: &Host, request: &CreateRequest, base: &Base) -> Result<Settled, Error> {
    let whole = match base.stage_of {
        Some(whole) => base::open(&host.home, &host.store, whole)?.workspace(),
        None => base.workspace(),
    };
    let policy = request.policy.settle(&host.home, &whole)?;
    crate::run::check_limits(&policy.limits)?;
    Ok(policy)
}

/// What the sandbox is to stand on. Whose base it is decides who may share what a setup made of it.
fn order<'a>(
    host: &'a Host,
    policy: &'a Settled,
    backend: &'a dyn Backend,
    base: &Base,
    folder: Option<&Path>,
) -> Result<Order<'a>, Error> {
    let scope = match (folder, &base.mirror) {
        (Some(folder), _) => {
            let opened = crate::workspace::open_folder(&host.home, folder)?;
            environment::scope_of(opened.path(), opened.fd())?
        }
        (None, Some(mirror)) => format!("mirror {mirror}"),
        (None, None) => format!("base {}", base.id),
    };
    Ok(Order {
        policy: &policy.effective,
        limits: &policy.limits,
        program: &host.program,
        backend,
        folder: base.workspace(),
        // A stage has not all files: what a setup made of it is for that stage.
        scope: match base.stage_of {
            Some(_) => format!("{scope} stage {}", base.id),
            None => scope,
        },
        inside: PathBuf::from(INSIDE),
    })
}

/// What a setup is at, told to who waits for the sandbox.
struct Said<'p>(&'p mut dyn Progress);

impl Console for Said<'_> {
    fn output(&mut self, _: Stream, _: &[u8]) {}

    fn step(&mut self, step: &str) {
        self.0.say(step);
    }
}

/// The folder of this host that is copied as it is.
fn local_folder(from: &From) -> Result<Option<PathBuf>, Error> {
    let From::Repository {
        typed,
        revision: None,
    } = from
    else {
        return Ok(None);
    };
    Ok(match source::parse(typed)?.source {
        Source::Path(path) => Some(path),
        Source::Url(_) => None,
    })
}

/// Intent, directories, result: all of them or none.
pub(super) fn make(host: &Host, new: &[NewSandbox], verb: &str) -> Result<(), Error> {
    host.store.insert_sandboxes(new)?;
    fail::point(&format!("{verb}:listed"));
    let ids: Vec<SandboxId> = new.iter().map(|sandbox| sandbox.id).collect();
    let made = (|| {
        for id in &ids {
            let path = host.home.sandbox(*id);
            std::fs::DirBuilder::new()
                .mode(0o700)
                .create(&path)
                .map_err(|source| Error::MakeWorkspace {
                    what: "make",
                    path,
                    source,
                })?;
        }
        fail::point(&format!("{verb}:made"));
        host.store.sandboxes_made(&ids)?;
        fail::point(&format!("{verb}:ready"));
        Ok(())
    })();
    if made.is_err() {
        for id in ids {
            // What resists is found by `recover`: its maker is this process, and it ends.
            let _ = std::fs::remove_dir(host.home.sandbox(id));
            let _ = host.store.remove_sandbox(id);
        }
    }
    made
}

pub(super) fn expiry(ttl_seconds: Option<u64>) -> Option<i64> {
    let span = i64::try_from(ttl_seconds?).ok()?.checked_mul(1_000_000)?;
    now_us().checked_add(span)
}

fn find_base(
    host: &Host,
    request: &CreateRequest,
    progress: &mut dyn Progress,
) -> Result<(Base, String, Vec<String>), Error> {
    let (home, store) = (&host.home, &host.store);
    let sources = &request.policy.host.sources;
    let mut notes = Vec::new();
    let (base, source) = match &request.from {
        From::Empty => (base::empty(home, store)?, "nothing".to_owned()),
        From::Repository { typed, revision } => {
            let typed = source::parse(typed)?;
            let text = typed.source.text();
            match (&typed.source, revision) {
                (Source::Path(path), None) => {
                    crate::workspace::open_folder(home, path)?;
                    (base::snapshot(home, store, path, progress)?, text)
                }
                _ => {
                    let resolved =
                        mirror::ensure(home, store, &typed, revision.as_deref(), progress)?;
                    notes.extend(resolved.notes.iter().cloned());
                    if resolved.mirror.source != typed.source {
                        notes.push("the folder is part of a larger repository; with a revision all of that is there".to_owned());
                    }
                    let text = match revision {
                        Some(revision) => format!("{text} at {revision}"),
                        None => text,
                    };
                    (
                        base::commit_from(home, store, &resolved, sources, progress)?,
                        text,
                    )
                }
            }
        }
    };
    match &request.stage {
        Stage::Whole => Ok((base, source, notes)),
        Stage::Needed(files) => {
            notes.extend(base.notes.iter().cloned());
            Ok((base::staged(home, store, &base, files)?, source, notes))
        }
    }
}
