//! Why an agent cannot be started.

use std::path::PathBuf;

use ringfence_model::policy::document::DocumentError;

use crate::error::ErrorKind;
use crate::policy::PolicyError;
use crate::presets::PresetError;

/// An agent that cannot be used; nothing has begun.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("there is no agent `{name}`; known are {}", known.join(", "))]
    Unknown { name: String, known: Vec<String> },
    #[error("the file of the agent cannot be used:\n{0}")]
    Document(DocumentError),
    #[error(transparent)]
    File(Box<PolicyError>),
    #[error("the agent `{0}` stands on too many others, or on itself")]
    TooDeep(String),
    #[error("the agent `{agent}` needs the program `{program}`, and `PATH` has none")]
    NoProgram {
        agent: String,
        program: String,
        install: Option<String>,
    },
    #[error(
        "the agent `{agent}` needs `{program}` inside, and this host has none that can be shown"
    )]
    NoneInside { agent: String, program: String },
    #[error("`{}` of the agent `{agent}` cannot be shown inside: {why}", path.display())]
    CannotShow {
        agent: String,
        path: PathBuf,
        why: &'static str,
        install: Option<String>,
    },
    #[error("the agent `{agent}` needs a key, and none of {} is set here", keys.join(", "))]
    NoKey { agent: String, keys: Vec<String> },
    #[error("the agent `{agent}` asks its model at `{host}`, and a rule denies that: {rule}")]
    Denied {
        agent: String,
        host: String,
        rule: String,
    },
    #[error("what the agent `{agent}` needs of the network cannot be told")]
    Network {
        agent: String,
        #[source]
        source: PresetError,
    },
    #[error("the words of the agent's command with the prompt in them are too long")]
    WordsTooLong,
    #[error("`{}` of the agent's home is not a directory: its settings would go elsewhere", .0.display())]
    HomeOccupied(PathBuf),
}

impl AgentError {
    /// Whose move it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unknown { .. } => ErrorKind::NotFound,
            Self::File(error) => error.kind(),
            Self::NoProgram { .. }
            | Self::NoneInside { .. }
            | Self::CannotShow { .. }
            | Self::NoKey { .. } => ErrorKind::Unavailable,
            Self::Denied { .. } => ErrorKind::Denied,
            Self::Network { source, .. } => source.kind(),
            _ => ErrorKind::Invalid,
        }
    }

    /// What to do next.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Unknown { .. } => {
                "`ringfence agents` lists them; a file `agents/NAME.toml` in the home of Ringfence is another".to_owned()
            }
            Self::Document(_) | Self::TooDeep(_) => {
                "docs/agents.md has all that such a file can say".to_owned()
            }
            Self::File(error) => return error.hint().map(str::to_owned),
            Self::NoProgram { install, .. } | Self::CannotShow { install, .. } => match install {
                Some(install) => format!("install it: {install}"),
                None => return None,
            },
            Self::NoneInside { program, .. } => {
                format!("install `{program}` for the whole system, or with a manager of versions that `ringfence init` knows")
            }
            Self::NoKey { keys, .. } => format!(
                "export {}=…, or bind it in your policy: `[secrets.{0}]` with `from` and `hosts`; the agent sees a placeholder",
                keys.first().map_or("KEY", String::as_str)
            ),
            Self::Denied { .. } => "take that rule out of the policy, or use another agent".to_owned(),
            Self::Network { source, .. } => source.hint().to_owned(),
            Self::WordsTooLong => {
                "leave `{brief}` out: the prompt is then on standard input".to_owned()
            }
            Self::HomeOccupied(_) => {
                "the environment's setup made it; change the setup, or use none".to_owned()
            }
        })
    }
}
