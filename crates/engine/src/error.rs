//! The one error at the engine's edge: what failed, whose move it is, and what to do next.

use std::io;
use std::path::PathBuf;

use ringfence_jail::launch::LaunchError;
use ringfence_jail::plan::PlanError;
use ringfence_model::limits::Limit;

use crate::agents::AgentError;
use crate::apply::ApplyError;
use crate::audit::AuditError;
use crate::base::BaseError;
use crate::blame::BlameError;
use crate::campaign::CampaignError;
use crate::changes::ChangesError;
use crate::checks::LaterError;
use crate::client::ClientError;
use crate::compare::CompareError;
use crate::config::ConfigError;
use crate::durable::DurableError;
use crate::environment::EnvironmentError;
use crate::eval::EvalError;
use crate::files::FilesError;
use crate::gate::GateError;
use crate::git::GitError;
use crate::home::HomeError;
use crate::ids::IdError;
use crate::images::ImageError;
use crate::init::InitError;
use crate::journal::JournalError;
use crate::keeper::LineError;
use crate::keys::KeyError;
use crate::layers::LayersError;
use crate::lock::LockError;
use crate::mirror::MirrorError;
use crate::patch::PatchError;
use crate::policy::PolicyError;
use crate::presets::PresetError;
use crate::pull_request::PullRequestError;
use crate::sandbox::SandboxError;
use crate::sandboxes::network::NetworkError;
use crate::source::SourceError;
use crate::store::{RecoverError, StoreError};
use crate::verdicts::VerdictError;

/// Whose move it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The caller's: the request is wrong.
    Invalid,
    /// The caller's: it is not there.
    NotFound,
    /// The caller's: the state moved on.
    Conflict,
    /// A rule said no.
    Denied,
    /// The operator's: something needed is missing.
    Unavailable,
    /// Ours.
    Internal,
}

impl ErrorKind {
    /// The kind that a process told by its exit code.
    fn of_exit_code(code: u8) -> Self {
        [Self::Invalid, Self::Denied, Self::Unavailable]
            .into_iter()
            .find(|kind| kind.exit_code() == code)
            .unwrap_or(Self::Internal)
    }

    /// The exit code of a command that failed so.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Invalid | Self::NotFound | Self::Conflict => 2,
            Self::Denied => 3,
            Self::Unavailable => 4,
            Self::Internal => 70,
        }
    }
}

/// What failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Home(#[from] HomeError),
    #[error(transparent)]
    Id(#[from] IdError),
    #[error(transparent)]
    Init(#[from] InitError),
    #[error(transparent)]
    Later(#[from] LaterError),
    #[error(transparent)]
    Compare(#[from] CompareError),
    #[error("the patch cannot be laid over the folder")]
    LayPatch(#[source] PatchError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error(transparent)]
    Preset(#[from] PresetError),
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error(transparent)]
    Recover(#[from] RecoverError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    #[error(transparent)]
    Gate(#[from] GateError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Audit(#[from] AuditError),
    #[error(transparent)]
    Blame(#[from] BlameError),
    #[error(transparent)]
    Verdict(#[from] VerdictError),
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error(transparent)]
    Campaign(#[from] CampaignError),
    #[error(transparent)]
    Eval(#[from] EvalError),
    #[error(transparent)]
    PullRequest(#[from] PullRequestError),
    #[error(transparent)]
    Apply(#[from] ApplyError),
    #[error(transparent)]
    Durable(#[from] DurableError),
    #[error(transparent)]
    Git(#[from] GitError),
    #[error(transparent)]
    Changes(#[from] ChangesError),
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Mirror(#[from] MirrorError),
    #[error(transparent)]
    Base(#[from] BaseError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error(
        "`{file}` would have {bytes} bytes, and {most} are the most that a bundle may hold of it"
    )]
    FileOfBundleTooLarge {
        file: &'static str,
        bytes: u64,
        most: u64,
    },
    #[error("`RINGFENCE_RESULT` must be an absolute path: `{0}` is none")]
    RelativeResult(String),
    #[error("there is no bundle `{}`", .0.display())]
    NoBundle(PathBuf),
    #[error("there is no folder `{}`", .0.display())]
    NoFolder(PathBuf),
    #[error("cannot open the folder `{}`", path.display())]
    OpenFolder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the folder `{}` holds Ringfence's own state `{}`", folder.display(), home.display())]
    FolderHoldsHome { folder: PathBuf, home: PathBuf },
    #[error("cannot make the workspace: {what} `{}`", path.display())]
    MakeWorkspace {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the limit `{}` is {grade} on this host and `--require-hard` was given", limit.as_str())]
    LimitNotHard { limit: Limit, grade: &'static str },
    #[error("{bytes} bytes of memory are too little: at least 16M")]
    TooLittleMemory { bytes: u64 },
    #[error("there is nothing to run")]
    NoCommand,
    #[error("`{0}` is not a name of an environment variable")]
    BadVariable(String),
    #[error("run `{0}` is still running")]
    StillRunning(String),
    #[error("cannot read `{}`", path.display())]
    ReadFile {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot write `{}`", path.display())]
    WriteFile {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot print")]
    Print(#[source] io::Error),
    #[error("run `{run}` has no {what}")]
    NotKept { run: String, what: &'static str },
    #[error(transparent)]
    Layers(#[from] LayersError),
    #[error(transparent)]
    Line(#[from] LineError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(
        "runtime_lost: execution {incarnation} of sandbox `{sandbox}` is gone; its workspace is whole"
    )]
    RuntimeLost { sandbox: String, incarnation: u64 },
    #[error("runtime_lost: execution {asked} of sandbox `{sandbox}` is gone, and {found} is there")]
    OtherExecution {
        sandbox: String,
        asked: u64,
        found: u64,
    },
    #[error("conflict: another command runs in sandbox `{0}`")]
    SandboxBusy(String),
    #[error("what runs in sandbox `{0}` does not stand still")]
    NotStill(String),
    #[error("sandbox `{0}` came into use again and was left as it is")]
    UsedAgain(String),
    #[error("sandbox `{sandbox}` is over its bound: {detail}")]
    OverBound { sandbox: String, detail: String },
    #[error("sandbox `{0}` is being removed")]
    BeingRemoved(String),
    #[error("sandbox `{0}` is being made")]
    NotMade(String),
    #[error("sandbox `{0}` is past its time")]
    Expired(String),
    #[error("sandbox `{sandbox}` is broken: {missing} is gone")]
    WorkspaceBroken { sandbox: String, missing: String },
    #[error("sandbox `{sandbox}` has a checkpoint `{name}` already")]
    CheckpointTaken { sandbox: String, name: String },
    #[error("`{0}` cannot be the name of a checkpoint: letters, digits, `-`, `_` and `.`")]
    BadCheckpointName(String),
    #[error("`{0}` cannot be the name of a session: letters, digits, `-` and `_`")]
    BadSession(String),
    #[error("{count} forks cannot be made at once: at least 1, at most {most}")]
    BadCount { count: usize, most: usize },
    #[error("a request to a tool may have {most} bytes")]
    ToolRequestTooLarge { most: usize },
    #[error("the tool `{verb}` gave no answer that can be understood")]
    ToolAnswer {
        verb: &'static str,
        #[source]
        source: serde_json::Error,
    },
    #[error("the tool `{verb}` was ended before it could answer")]
    ToolEnded { verb: &'static str },
    #[error("cannot start the keeper of sandbox `{sandbox}`")]
    StartKeeper {
        sandbox: String,
        #[source]
        source: io::Error,
    },
    #[error("sandbox `{sandbox}` did not start: {}", chain.join("; because: "))]
    KeeperFailed {
        sandbox: String,
        exit_code: u8,
        chain: Vec<String>,
        hint: Option<String>,
    },
    #[error("the layer `{}` is gone", .0.display())]
    LayerGone(PathBuf),
    #[error("cannot wait for the sandbox")]
    Wait(#[source] io::Error),
}

impl ErrorKind {
    /// For a program.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::Denied => "denied",
            Self::Unavailable => "unavailable",
            Self::Internal => "internal",
        }
    }
}

impl Error {
    /// What it is, for a program: its own word where it has one, else its kind.
    pub fn word(&self) -> &'static str {
        match self {
            Self::RuntimeLost { .. } | Self::OtherExecution { .. } => "runtime_lost",
            Self::Expired(_) => "expired",
            Self::WorkspaceBroken { .. } => "broken",
            _ => self.kind().as_str(),
        }
    }

    /// Whose move it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Later(LaterError::NoCheck)
            | Self::Compare(CompareError::Count | CompareError::Twice(_)) => ErrorKind::Invalid,
            Self::Compare(CompareError::NoBundle) => ErrorKind::NotFound,
            Self::Compare(CompareError::NoWinner) => ErrorKind::Denied,
            Self::Later(_) => ErrorKind::Conflict,
            Self::LayPatch(_) => ErrorKind::Unavailable,
            Self::NoFolder(_) | Self::NoBundle(_) | Self::NotKept { .. } => ErrorKind::NotFound,
            Self::SandboxBusy(_)
            | Self::NotStill(_)
            | Self::UsedAgain(_)
            | Self::BeingRemoved(_)
            | Self::NotMade(_)
            | Self::Expired(_)
            | Self::ToolEnded { .. }
            | Self::CheckpointTaken { .. } => ErrorKind::Conflict,
            Self::Lock(LockError::HeldFile { .. }) => ErrorKind::Conflict,
            Self::BadCheckpointName(_)
            | Self::BadSession(_)
            | Self::BadCount { .. }
            | Self::ToolRequestTooLarge { .. }
            | Self::Config(_) => ErrorKind::Invalid,
            Self::KeeperFailed { exit_code, .. } => ErrorKind::of_exit_code(*exit_code),
            Self::Gate(GateError::Secret(_)) | Self::Network(_) => ErrorKind::Invalid,
            Self::Gate(_) => ErrorKind::Unavailable,
            Self::Environment(error) => error.kind(),
            Self::Sandbox(SandboxError::Backend(error)) => error.kind(),
            Self::RuntimeLost { .. }
            | Self::OtherExecution { .. }
            | Self::WorkspaceBroken { .. }
            | Self::LayerGone(_)
            | Self::Layers(_)
            | Self::Line(_)
            | Self::StartKeeper { .. } => ErrorKind::Unavailable,
            Self::Store(error) => store_kind(error),
            Self::Source(_)
            | Self::Journal(JournalError::NotAFile { .. } | JournalError::TooLarge { .. }) => {
                ErrorKind::Invalid
            }
            Self::Audit(error) => error.kind(),
            Self::Init(error) => error.kind(),
            Self::Blame(error) => error.kind(),
            Self::Verdict(error) => error.kind(),
            Self::Agent(error) => error.kind(),
            Self::Campaign(error) => error.kind(),
            Self::Eval(error) => error.kind(),
            Self::PullRequest(error) => error.kind(),
            Self::Apply(error) => error.kind(),
            Self::Policy(error) => error.kind(),
            Self::Preset(error) => error.kind(),
            Self::Image(error) => error.kind(),
            Self::Mirror(error) => mirror_kind(error),
            Self::Base(error) => base_kind(error),
            Self::Lock(LockError::Held { .. }) | Self::StillRunning(_) => ErrorKind::Conflict,
            Self::Files(error) if error.is_of_host() => ErrorKind::Unavailable,
            Self::Files(_)
            | Self::FolderHoldsHome { .. }
            | Self::TooLittleMemory { .. }
            | Self::NoCommand
            | Self::BadVariable(_)
            | Self::RelativeResult(_)
            | Self::OpenFolder { .. }
            | Self::Sandbox(SandboxError::Launch(LaunchError::Plan(PlanError::OccupiedPath(_)))) => {
                ErrorKind::Invalid
            }
            Self::ReadFile { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                ErrorKind::Unavailable
            }
            Self::LimitNotHard { .. } | Self::OverBound { .. } => ErrorKind::Denied,
            Self::Key(error) => key_kind(error),
            Self::FileOfBundleTooLarge { .. } => ErrorKind::Denied,
            Self::Home(_)
            | Self::Sandbox(_)
            | Self::MakeWorkspace { .. }
            | Self::Durable(_)
            | Self::Journal(_)
            | Self::WriteFile { .. }
            | Self::Changes(ChangesError::WritePatch { .. })
            | Self::Recover(_) => ErrorKind::Unavailable,
            _ => ErrorKind::Internal,
        }
    }

    /// What to do next, in one sentence.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Store(StoreError::NoCampaign { .. }) => "`ringfence campaign list` lists them",
            Self::Store(StoreError::CampaignTaken { name }) => {
                return Some(format!(
                    "go on with it: ringfence campaign resume {name}, with `--plan FILE` if the plan was edited; or give another name: --name"
                ));
            }
            Self::Store(StoreError::NoSandbox { .. }) => "`ringfence status` lists the sandboxes",
            Self::Store(StoreError::NoCheckpoint { .. }) => {
                "`ringfence sandbox checkpoints` lists them"
            }
            Self::KeeperFailed { hint, .. } => return hint.clone(),
            Self::Later(error) => error.hint(),
            Self::Environment(error) => return error.hint(),
            Self::Sandbox(SandboxError::Backend(error)) => return error.hint(),
            Self::Files(error) => return error.hint().map(str::to_owned),
            Self::Blame(error) => return error.hint(),
            Self::Verdict(error) => return error.hint(),
            Self::Agent(error) => return error.hint(),
            Self::Campaign(error) => return error.hint(),
            Self::Eval(error) => return error.hint().map(str::to_owned),
            Self::PullRequest(error) => return error.hint(),
            Self::Apply(error) => return error.hint(),
            Self::Policy(error) => return error.hint().map(str::to_owned),
            Self::Init(error) => return error.hint().map(str::to_owned),
            Self::Preset(error) => error.hint(),
            Self::Image(error) => return error.hint(),
            Self::RuntimeLost { .. } => {
                "`--replace` starts another execution on the same workspace; `ringfence sandbox resume` does as well"
            }
            Self::Line(LineError::OtherVersion) => {
                "`ringfence sandbox stop` ends it; the next command starts one of this version"
            }
            Self::NotStill(_) => {
                "a process wakes itself while it is stopped; `ringfence sandbox stop` ends it, and then this works"
            }
            Self::OverBound { .. } => {
                "remove something (`ringfence sandbox fs rm`), roll back, or make a sandbox with a larger bound"
            }
            Self::SandboxBusy(_) => {
                "without `--no-wait` the command waits for its turn; `--shared` runs it beside"
            }
            Self::ToolEnded { .. } => {
                "something inside ended it, or it took too long; `ringfence sandbox exec` shows what runs"
            }
            Self::Expired(_) => {
                "`ringfence sandbox diff` still shows its work; `ringfence gc` removes it"
            }
            Self::WorkspaceBroken { .. } => {
                "nothing was changed; put it back, or roll back to a checkpoint below it, or remove the sandbox with `ringfence sandbox rm`"
            }
            Self::CheckpointTaken { .. } => {
                "a checkpoint never changes; give this one another name"
            }
            Self::NoCommand => {
                "say what to run after `--`; `ringfence run --shell` and `ringfence sandbox shell` open a shell"
            }
            Self::TooLittleMemory { .. } => "sizes are in bytes unless a unit follows: `512M`",
            Self::Key(KeyError::Readable { .. }) => {
                "others may know this key: `chmod go-rwx` keeps it, removing it makes another one"
            }
            Self::Key(KeyError::NotTrusted(_)) => "`ringfence key list` shows those that are",
            Self::NoFolder(_) => "give an existing folder with `--repo`",
            Self::FolderHoldsHome { .. } => {
                "set `RINGFENCE_HOME` to a directory outside of the folder"
            }
            Self::LimitNotHard { .. } => {
                "`ringfence doctor` shows how each limit is held here; `none` switches one off (`--disk none`), and without `--require-hard` it is watched"
            }
            Self::StillRunning(_) => "wait for it, or stop the `ringfence run` that drives it",
            Self::Sandbox(SandboxError::Launch(
                LaunchError::MakeNamespaces(_)
                | LaunchError::MapIds(_)
                | LaunchError::SetUp { .. }
                | LaunchError::IdmapMount { .. },
            )) => "`ringfence doctor` says what is missing on this host and how to get it",
            Self::Sandbox(SandboxError::Launch(LaunchError::ShowMount { inside, .. })) => {
                return Some(format!(
                    "the agent made something in the way, such as a link, at or above `{inside}`; `ringfence sandbox rollback` goes back to a checkpoint from before that"
                ));
            }
            Self::Source(_) | Self::Mirror(MirrorError::Source(_)) => {
                "give a folder, or an address such as `https://host/team/app.git` or `git@host:team/app.git`"
            }
            Self::Audit(error) if error.hint().is_some() => error.hint().unwrap_or_default(),
            Self::Mirror(error) | Self::Base(BaseError::Mirror(error))
                if mirror_hint(error).is_some() =>
            {
                mirror_hint(error).unwrap_or_default()
            }
            Self::Base(BaseError::Gone { .. }) => {
                "start from its source again; it is then made anew"
            }
            Self::Base(BaseError::HoldsHome { .. }) => {
                "set `RINGFENCE_HOME` to a directory outside of the folder"
            }
            Self::Sandbox(SandboxError::NotProven { .. }) => {
                "nothing was run; please report this with the output of `ringfence doctor --json`"
            }
            _ => {
                let mut source: Option<&dyn std::error::Error> = Some(self);
                while let Some(error) = source {
                    let io = error.downcast_ref::<io::Error>();
                    let sql = error.downcast_ref::<rusqlite::Error>();
                    if io.is_some_and(|io| io.kind() == io::ErrorKind::StorageFull)
                        || sql.and_then(rusqlite::Error::sqlite_error_code)
                            == Some(rusqlite::ErrorCode::DiskFull)
                    {
                        return Some(FULL.to_owned());
                    }
                    source = error.source();
                }
                return None;
            }
        };
        Some(hint.to_owned())
    }
}

const FULL: &str = "the disk is full; `ringfence rm` removes runs that are not needed any more";

/// BOUND: where less than this is free, somebody else's last write may have been what failed.
const FULL_BYTES: u64 = 1 << 20;

fn is_full(path: &std::path::Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|stat| stat.f_bavail * stat.f_frsize < FULL_BYTES)
}

fn store_kind(error: &StoreError) -> ErrorKind {
    match error {
        StoreError::NotFound { .. }
        | StoreError::NoRuns
        | StoreError::NoSandbox { .. }
        | StoreError::NoCampaign { .. }
        | StoreError::NoCheckpoint { .. } => ErrorKind::NotFound,
        StoreError::Ambiguous { .. }
        | StoreError::AmbiguousSandbox { .. }
        | StoreError::CheckName { .. } => ErrorKind::Invalid,
        StoreError::NameTaken { .. }
        | StoreError::CampaignTaken { .. }
        | StoreError::NoTask { .. }
        | StoreError::NotRunning { .. }
        | StoreError::SourceInUse { .. } => ErrorKind::Conflict,
        _ => ErrorKind::Unavailable,
    }
}

fn key_kind(error: &KeyError) -> ErrorKind {
    match error {
        KeyError::BadName(_) | KeyError::Parse { .. } => ErrorKind::Invalid,
        KeyError::NameTaken(_) => ErrorKind::Conflict,
        KeyError::NotTrusted(_) => ErrorKind::NotFound,
        _ => ErrorKind::Unavailable,
    }
}

fn mirror_kind(error: &MirrorError) -> ErrorKind {
    match error {
        MirrorError::Source(_)
        | MirrorError::Revision { .. }
        | MirrorError::Unsupported { .. }
        | MirrorError::Empty { .. } => ErrorKind::Invalid,
        MirrorError::NoRepository { .. } | MirrorError::NoRevision { .. } => ErrorKind::NotFound,
        MirrorError::InUse { .. } => ErrorKind::Conflict,
        MirrorError::Store(error) => store_kind(error),
        MirrorError::Local { .. } => ErrorKind::Internal,
        MirrorError::NoGit { .. }
        | MirrorError::Fetch { .. }
        | MirrorError::Stalled { .. }
        | MirrorError::Make { .. }
        | MirrorError::Lock(_)
        | MirrorError::ReadRepository(_) => ErrorKind::Unavailable,
    }
}

fn mirror_hint(error: &MirrorError) -> Option<&'static str> {
    match error {
        // Git does not always say why it could not write.
        MirrorError::Local { path, .. } if is_full(path) => Some(FULL),
        MirrorError::NoGit { .. } => Some("install git and put it on the `PATH`"),
        MirrorError::Fetch { .. } | MirrorError::Stalled { .. } => Some(
            "check the address and that `git ls-remote` reaches it: git's own credential helpers and ssh keys are used",
        ),
        MirrorError::NoRevision { .. } => {
            Some("name a branch, a tag or a commit that is on the remote")
        }
        MirrorError::Empty { .. } => Some("make a first commit, or start from an empty workspace"),
        _ => None,
    }
}

fn base_kind(error: &BaseError) -> ErrorKind {
    match error {
        BaseError::Mirror(error) => mirror_kind(error),
        BaseError::Store(error) => store_kind(error),
        BaseError::NoBase { .. } | BaseError::NoFolder { .. } => ErrorKind::NotFound,
        BaseError::Gone { .. } => ErrorKind::Conflict,
        BaseError::HoldsHome { .. }
        | BaseError::ParsePattern { .. }
        | BaseError::MatchNothing { .. }
        | BaseError::TooMany { .. } => ErrorKind::Invalid,
        BaseError::Access { .. } | BaseError::Lock(_) => ErrorKind::Unavailable,
        _ => ErrorKind::Internal,
    }
}
