//! Why an evaluation, or one of its rows, came to nothing.

use std::io;
use std::path::PathBuf;

use ringfence_model::eval::RowError;

use crate::error::ErrorKind;
use crate::patch::PatchError;

#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    #[error("cannot read `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("`{}` has more than {most} bytes", path.display())]
    TooLarge { path: PathBuf, most: u64 },
    #[error("there are no rows in `{}`", .0.display())]
    NoRows(PathBuf),
    #[error("`{}` is there already", .0.display())]
    Exists(PathBuf),
    #[error("`{}` has rewards of another agent, of `--gold` or by other tests", .0.display())]
    OtherAgent(PathBuf),
    #[error("`{}` is no file of results", .0.display())]
    NoResults(PathBuf),
    #[error("another evaluation writes to `{}`", .0.display())]
    Busy(PathBuf),
    #[error("cannot write `{}`", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the test command has no `{{tests}}` in it")]
    NoTests,
    #[error("it is no row")]
    Row(#[source] RowError),
    #[error("its id is that of line {0}")]
    SameId(usize),
    #[error("`{0}` is not the name of a repository such as `owner/name`")]
    Repository(String),
    #[error("the repository of the row is not cloned: {0}")]
    Server(String),
    #[error("no command is given, and the row has none")]
    NoCommand,
    #[error("a row can only narrow: its policy is `offline` or none, and not `{0}`")]
    Policy(String),
    #[error("the row wants the image `{0}`, and rows may not choose one here")]
    Image(String),
    #[error("the tests of the row cannot be laid over the files")]
    Tests(#[source] PatchError),
    #[error("the row has no patch that is known to be right")]
    NoGold,
    #[error("the row's own patch cannot be used")]
    Gold(#[source] PatchError),
    #[error("step {step} did not start: {why}")]
    NotStarted { step: usize, why: String },
    #[error("the words of the agent's command with the prompt in them are too long")]
    WordsTooLong,
}

impl EvalError {
    /// Whose move it is.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                ErrorKind::Invalid
            }
            Self::Read { .. } | Self::Write { .. } => ErrorKind::Unavailable,
            Self::Exists(_) | Self::Busy(_) | Self::OtherAgent(_) | Self::NoResults(_) => {
                ErrorKind::Conflict
            }
            Self::Policy(_) | Self::Image(_) | Self::Server(_) => ErrorKind::Denied,
            _ => ErrorKind::Invalid,
        }
    }

    /// What to do next.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Exists(_) => "`--resume` goes on with it, `--out` names another file",
            Self::OtherAgent(_) => {
                "`--resume` goes on with the same command; `--out` names another file for this one"
            }
            Self::NoResults(_) => "name another file with `--out`",
            Self::Read { .. } => "name the file of rows; docs/eval.md shows what a row is",
            Self::Busy(_) => "wait for it, or name another file with `--out`",
            Self::NoRows(_) => "docs/eval.md shows what a row is",
            Self::NoTests => "say where they go: `--test-command 'pytest -q {tests}'`",
            Self::NoCommand => {
                "give one: ringfence eval FILE -- COMMAND; the prompt is on its standard input, or in the place of `{prompt}`"
            }
            Self::Image(_) => "`--row-images` lets rows choose, `--image` chooses for all",
            Self::WordsTooLong => "leave `{prompt}` out: the prompt is then on standard input",
            _ => return None,
        })
    }
}
