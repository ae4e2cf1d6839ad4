//! Why there is no pull request, and what is there instead.

use std::io;

use crate::error::ErrorKind;
use crate::git::GitError;
use crate::mirror::ProcessError;
use crate::secrets::SecretError;
use crate::source::SourceError;
use crate::web::WebError;

/// What failed.
#[derive(Debug, thiserror::Error)]
pub enum PullRequestError {
    #[error("run `{run}` is not approved")]
    NotApproved { run: String },
    #[error("`{name}` cannot be a work branch: {why}")]
    BranchName { name: String, why: &'static str },
    #[error("`{branch}` is the default branch of `{remote}`: nothing is ever pushed there")]
    DefaultBranch { branch: String, remote: String },
    #[error("`{remote}` does not say which branch is its default one")]
    NoDefault { remote: String },
    #[error("`{remote}` has a branch `{branch}` already, at {tip}, which is not of this run")]
    ForeignBranch {
        branch: String,
        remote: String,
        tip: String,
    },
    #[error("the folder has no remote `{name}`")]
    NoRemote { name: String },
    #[error("the address of remote `{name}` cannot be used")]
    RemoteAddress {
        name: String,
        #[source]
        source: SourceError,
    },
    #[error("cannot read the settings of the repository")]
    Repository(#[source] GitError),
    #[error("`{remote}` is on no forge: it is a folder, or its address has no project")]
    NotAForge { remote: String },
    #[error("it is not known what kind of forge `{host}` is")]
    UnknownForge { host: String },
    #[error("`[forge.\"{host}\"]` in config.toml: {why}")]
    Settings { host: String, why: String },
    #[error("there is no token for `{host}`")]
    Token {
        host: String,
        #[source]
        source: SecretError,
    },
    #[error("cannot ask `{remote}` for its branches")]
    Ask {
        remote: String,
        #[source]
        source: ProcessError,
    },
    #[error("cannot push `{branch}` to `{remote}`")]
    Push {
        branch: String,
        remote: String,
        #[source]
        source: ProcessError,
    },
    #[error("cannot make a repository to push from")]
    Scratch(#[source] io::Error),
    #[error("branch `{branch}` is pushed, but `{host}` opened no pull request for it")]
    Forge {
        branch: String,
        host: String,
        #[source]
        source: Box<ForgeError>,
    },
}

/// What a forge answered instead.
#[derive(Debug, thiserror::Error)]
pub enum ForgeError {
    #[error(transparent)]
    Web(#[from] WebError),
    #[error("it does not accept the token ({status})")]
    Token { status: u16 },
    #[error("it knows no project `{project}`, or does not show it to this token (404)")]
    NoProject { project: String },
    #[error("it refused the request ({status}): {said}")]
    Refused { status: u16, said: String },
    #[error("it has trouble of its own ({status})")]
    Trouble { status: u16 },
    #[error("it took more than {seconds} seconds to answer")]
    TooSlow { seconds: u64 },
    #[error("its answer has no {what}")]
    Answer { what: &'static str },
}

impl PullRequestError {
    /// Whose move it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotApproved { .. } | Self::DefaultBranch { .. } => ErrorKind::Denied,
            Self::ForeignBranch { .. } => ErrorKind::Conflict,
            Self::BranchName { .. }
            | Self::NoRemote { .. }
            | Self::RemoteAddress { .. }
            | Self::NotAForge { .. }
            | Self::UnknownForge { .. }
            | Self::Settings { .. }
            | Self::Token { .. } => ErrorKind::Invalid,
            Self::NoDefault { .. }
            | Self::Repository(_)
            | Self::Ask { .. }
            | Self::Push { .. }
            | Self::Scratch(_)
            | Self::Forge { .. } => ErrorKind::Unavailable,
        }
    }

    /// What to do next.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NotApproved { run } => {
                return Some(format!(
                    "look at it with `ringfence review {run}`, or approve it with `ringfence approve {run}`"
                ));
            }
            Self::BranchName { .. } => {
                "letters, digits, `-`, `_`, `.` and `/`, such as `ringfence/fix-login`"
            }
            Self::DefaultBranch { .. } => "name a work branch with `--branch`",
            Self::NoDefault { .. } => "push a first commit to it, or set its HEAD to a branch",
            Self::ForeignBranch { .. } => {
                "name another one with `--branch`, or remove that one first; nothing was pushed"
            }
            Self::NoRemote { .. } => "name one of `git remote` with `--remote`",
            Self::NotAForge { .. } => {
                "`--branch NAME` alone makes a branch in the folder's repository"
            }
            Self::UnknownForge { host } | Self::Settings { host, .. } => {
                return Some(format!(
                    "in config.toml of the home: `[forge.\"{host}\"]`, `kind = \"github\"` (or `gitlab`, `gitea`), `api = \"https://…\"`, `token = \"env:NAME\"`"
                ));
            }
            Self::Token { host, .. } => {
                return Some(format!(
                    "`token = \"env:NAME\"`, `\"file:PATH\"` or `\"command:LINE\"` in `[forge.\"{host}\"]` of config.toml; nothing was pushed"
                ));
            }
            Self::Ask { .. } => {
                "git uses your own credentials: does `git ls-remote` work there? nothing was pushed"
            }
            Self::Push { .. } => {
                "git uses your own credentials: may you push there? the same command tries again"
            }
            Self::Forge { source, .. } => match **source {
                ForgeError::Token { .. } => {
                    "give it a token that may open pull requests; the same command then opens it and doubles nothing"
                }
                ForgeError::NoProject { .. } => {
                    "is the remote's address right, and may the token see the project? the same command tries again and doubles nothing"
                }
                ForgeError::Refused { .. } => {
                    "open it by hand from the pushed branch, or mend what it says and run the same command"
                }
                _ => "run the same command again later: it goes on from here and doubles nothing",
            },
            Self::RemoteAddress { .. } | Self::Repository(_) | Self::Scratch(_) => return None,
        };
        Some(hint.to_owned())
    }
}
