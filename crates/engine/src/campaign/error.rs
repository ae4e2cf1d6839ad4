//! Why a plan comes to no tasks.

use std::io;
use std::path::PathBuf;

use ringfence_model::check::CommandError;
use ringfence_model::policy::document::DocumentError;
use ringfence_model::policy::glob::GlobError;
use ringfence_model::split::groups::{GroupsError, MAX_GROUPS};
use ringfence_model::split::select::FirstAndLast;
use ringfence_model::task::{MAX_BRIEF, TaskError};

use super::LeftOut;
use crate::error::ErrorKind;

/// A plan or a task that cannot be used; nothing has begun.
#[derive(Debug, thiserror::Error)]
pub enum CampaignError {
    #[error("there is no `{}`", .0.display())]
    NoFile(PathBuf),
    #[error("there is no `{}`", .0.display())]
    NoTaskFile(PathBuf),
    #[error("cannot read `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("`{}` is not a regular file", .0.display())]
    NotAFile(PathBuf),
    #[error("the plan cannot be used:\n{0}")]
    Plan(DocumentError),
    #[error("the plan names the brief `{name}`, and there is none at `{}`", path.display())]
    NoBrief { name: String, path: PathBuf },
    #[error("the brief `{0}` is empty, or not text")]
    BriefNotText(String),
    #[error("the brief `{0}` has more than {MAX_BRIEF} bytes")]
    BriefTooLong(String),
    #[error("the policy `{0}` extends a file, and a task carries no other file along")]
    PolicyStandsOnFile(String),
    #[error(
        "the split is empty: no file is selected by {patterns}{}",
        told(left_out)
    )]
    Empty {
        patterns: String,
        left_out: Vec<LeftOut>,
    },
    #[error("{count} tasks are too many: at most {MAX_GROUPS}")]
    TooManyTasks { count: usize },
    #[error(
        "the check `{check}` cannot name the files of the task that begins with `{first}`; give tasks fewer files with `per_task`, or let the check find them"
    )]
    CheckOfFiles {
        check: String,
        first: String,
        #[source]
        source: CommandError,
    },
    #[error(transparent)]
    FirstAndLast(#[from] FirstAndLast),
    #[error("the patterns of the plan cannot be used together")]
    Pattern(#[source] GlobError),
    #[error("the split's command {ending}{}", said(output))]
    CommandFailed { ending: String, output: String },
    #[error("the groups that the split's command printed cannot be used")]
    Groups(#[source] GroupsError),
    #[error("the task `{}` cannot be used", path.display())]
    Task {
        path: PathBuf,
        #[source]
        source: TaskError,
    },
    #[error("task `{task}` was made for commit {was}, and the folder is at {is}")]
    OtherCommit {
        task: String,
        was: String,
        is: String,
    },
    #[error("task `{task}` was made for {was}, and this folder is {is}")]
    OtherPlace {
        task: String,
        was: String,
        is: String,
    },
    #[error("task `{task}` asks for {what}, and this is {found}")]
    Requires {
        task: String,
        what: String,
        found: String,
    },
    #[error("the task has no check, so nothing would tell whether it is done")]
    NoCheck,
    #[error("`{0}` is not a folder of this host")]
    SourceElsewhere(String),
    #[error("the words of the agent's command with the brief in them are too long")]
    WordsTooLong,
    #[error("only some files are to be seen, and `{0}` cannot be hidden by a pattern")]
    CannotHide(String),
    #[error(
        "more than {most} paths would have to be hidden so that the task sees only what it needs"
    )]
    TooMuchToHide { most: usize },
    #[error("the task's file `{0}` is not in the folder any more")]
    FileGone(String),
    #[error("no task of it has a run that could be taken")]
    NothingRan,
    #[error("the same run is there twice")]
    RunTwice,
    #[error("the folder `{}` is part of a repository, and that is not at {commit} any more", folder.display())]
    MovedBelow { folder: PathBuf, commit: String },
    #[error("the files of task `{task}` were changed since it was planned")]
    FilesMoved { task: String },
    #[error("the name cannot be used: {0}")]
    Name(String),
    #[error("another process works on campaign `{0}` right now")]
    Driven(String),
    #[error("`{0}` is no file and no campaign")]
    NoEarlier(String),
    #[error("nobody works on campaign `{0}` right now")]
    NotDriven(String),
    #[error(
        "campaign `{campaign}` is about `{}`, and the plan was read for `{}`",
        was.display(),
        is.display()
    )]
    OtherFolder {
        campaign: String,
        was: PathBuf,
        is: PathBuf,
    },
    #[error("`{}` is there and not empty", .0.display())]
    NotEmpty(PathBuf),
    #[error("`{}` is not what `ringfence campaign plan --json` printed", path.display())]
    Against {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
}

fn told(left_out: &[LeftOut]) -> String {
    let words: Vec<String> = left_out
        .iter()
        .map(|left| format!("{} {}", left.count, left.why.as_str()))
        .collect();
    if words.is_empty() {
        String::new()
    } else {
        format!(" ({})", words.join(", "))
    }
}

fn said(output: &str) -> String {
    match output.trim() {
        "" => String::new(),
        output => format!(":\n{output}"),
    }
}

impl CampaignError {
    /// Whose move it is.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::NoFile(_) | Self::NoTaskFile(_) | Self::NoBrief { .. } | Self::NoEarlier(_) => {
                ErrorKind::NotFound
            }
            Self::OtherCommit { .. }
            | Self::OtherPlace { .. }
            | Self::NotEmpty(_)
            | Self::FileGone(_)
            | Self::FilesMoved { .. }
            | Self::Driven(_)
            | Self::NotDriven(_)
            | Self::OtherFolder { .. }
            | Self::MovedBelow { .. } => ErrorKind::Conflict,
            Self::Requires { .. } => ErrorKind::Unavailable,
            _ => ErrorKind::Invalid,
        }
    }

    /// What to do next.
    pub(crate) fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NoFile(_) => "give the path of a plan; `examples/plan.toml` is one to start from",
            Self::NoTaskFile(_) => {
                "`ringfence campaign plan PLAN --write DIR` writes task documents"
            }
            Self::Plan(_) => "docs/campaigns.md has all that a plan can say",
            Self::NoBrief { .. } => {
                "write what the agent is to do into that file, or name another one below the plan's directory"
            }
            Self::BriefNotText(_) => "write what the agent is to do into it, as UTF-8",
            Self::BriefTooLong(_) => {
                "put what is long into a file of the repository, and name it in the brief"
            }
            Self::PolicyStandsOnFile(_) => {
                "write what it needs of that file into the policy itself"
            }
            Self::Empty { .. } => {
                "patterns are meant from the top of the folder: `src/**/*.py`; `--repo` names another folder"
            }
            Self::TooManyTasks { .. } => "raise `per_task`, or select fewer files",
            Self::FirstAndLast(_) => "take it out of `first` or of `last`",
            Self::CommandFailed { .. } => {
                "it runs by `/bin/sh` at the top of the folder, in a sandbox without a network; try it: ringfence run --policy offline -- sh -c 'COMMAND'"
            }
            Self::Groups(_) => {
                "it prints one path in a line, from the top of the folder, and an empty line between groups; each file once"
            }
            Self::Task { .. } => "`ringfence campaign plan PLAN --write DIR` writes tasks",
            Self::OtherCommit { .. } => "check that commit out, or plan again",
            Self::OtherPlace { .. } => "give `--repo` that folder, or plan again",
            Self::Requires { .. } => "run it where there is what it asks for",
            Self::NoCheck => {
                "give `[checks] final` in the plan, or `--check COMMAND`; `--unchecked` runs it all the same"
            }
            Self::SourceElsewhere(_) => "give a folder with `--repo`",
            Self::WordsTooLong => "leave `{brief}` out: the brief is then on standard input",
            Self::CannotHide(_) => "rename it, or use stage = \"whole\"",
            Self::TooMuchToHide { .. } => "use stage = \"whole\"",
            Self::FileGone(_) => "plan again",
            Self::MovedBelow { .. } => {
                "check that commit out, or give `--into` the same folder of a worktree of it"
            }
            Self::RunTwice => "name each run once",
            Self::NothingRan => "look how far they are: ringfence campaign list",
            Self::FilesMoved { .. } => {
                "plan it anew for the folder as it is: ringfence campaign resume NAME --plan PLAN"
            }
            Self::Driven(name) => {
                return Some(format!(
                    "look at it: ringfence campaign status {name}; stop it: ringfence campaign cancel {name}"
                ));
            }
            Self::NotDriven(name) => {
                return Some(format!("go on with it: ringfence campaign resume {name}"));
            }
            Self::OtherFolder { .. } => "give its folder with `--repo`, or begin another campaign",
            Self::NotEmpty(_) => "name a directory that is not there yet",
            _ => return None,
        };
        Some(hint.to_owned())
    }
}
