//! Why a backend has no sandbox.

use std::io;
use std::path::PathBuf;

use ringfence_jail::attach::AttachError;

use crate::config::ConfigError;
use crate::error::ErrorKind;

/// What went wrong between us and an engine.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    #[error("there is no backend `{0}`")]
    Unknown(String),
    #[error(transparent)]
    Settings(ConfigError),
    #[error("no {engine} engine answers at `{at}`")]
    NoEngine {
        engine: &'static str,
        at: String,
        #[source]
        source: io::Error,
    },
    #[error("this user may not talk to the {engine} engine at `{at}`")]
    MayNotTalk { engine: &'static str, at: String },
    #[error("the {engine} engine at `{at}` cannot be reached by us")]
    NoWay { engine: &'static str, at: String },
    #[error("cannot talk to the sandbox through the {engine} engine")]
    Streams {
        engine: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("cannot bring the workspace to the engine's machine or back: {said}")]
    Parcel { said: String },
    #[error("the {engine} engine has no runtime `{runtime}`")]
    NoEngineRuntime {
        engine: &'static str,
        runtime: &'static str,
    },
    #[error("cannot {what}: the {engine} engine does not answer")]
    Silent {
        engine: &'static str,
        what: &'static str,
        #[source]
        source: Box<ureq::Error>,
    },
    #[error("cannot {what}: the {engine} engine says `{message}`")]
    Refused {
        engine: &'static str,
        what: &'static str,
        status: u16,
        message: String,
    },
    #[error("cannot {what}: the {engine} engine answers what cannot be understood")]
    Answer {
        engine: &'static str,
        what: &'static str,
        #[source]
        source: serde_json::Error,
    },
    #[error("the {engine} engine has no image `{image}`")]
    NoImage { engine: &'static str, image: String },
    #[error("the image `{image}` is for {found}, and this machine is {wanted}")]
    Architecture {
        image: String,
        found: String,
        wanted: String,
    },
    #[error("the container of the sandbox ended before it could be talked to")]
    EndedEarly,
    #[error("the container of the sandbox did not come up within {seconds} s")]
    Late { seconds: u64 },
    #[error("the backend `{backend}` works for root only")]
    NeedsRoot { backend: &'static str },
    #[error("there is no `{program}` on the `PATH`")]
    NoRuntime { program: &'static str },
    #[error("`{program}` ended before the sandbox could be talked to: `{said}`")]
    RuntimeEnded { program: &'static str, said: String },
    #[error("the backend `{backend}` cannot hold {what}")]
    DoesNotHold {
        backend: &'static str,
        what: &'static str,
    },
    #[error("no backend of this machine has {}", missing.join(", "))]
    NoneHas { missing: Vec<String>, seen: String },
    #[error("`{0}` is no guarantee that can be asked for")]
    BadRequirement(String),
    #[error("cannot {what} `{path}`")]
    Place {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Attach(#[from] AttachError),
}

impl BackendError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unknown(_)
            | Self::Settings(_)
            | Self::Architecture { .. }
            | Self::BadRequirement(_) => ErrorKind::Invalid,
            Self::NoImage { .. } => ErrorKind::NotFound,
            Self::DoesNotHold { .. } | Self::NoneHas { .. } => ErrorKind::Denied,
            _ => ErrorKind::Unavailable,
        }
    }

    /// Whether nobody answered, rather than something else.
    pub fn is_silence(&self) -> bool {
        matches!(
            self,
            Self::NoEngine { .. } | Self::Silent { .. } | Self::Streams { .. }
        )
    }

    /// What to do next.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Unknown(_) => "`ringfence backends` lists them".to_owned(),
            Self::NoEngine { engine, .. } => match *engine {
                "Podman" => "start its service: systemctl start podman.socket".to_owned(),
                _ => "start it (systemctl start docker), or say where it is with `DOCKER_HOST`"
                    .to_owned(),
            },
            Self::MayNotTalk { .. } => {
                "join its group (sudo usermod -aG docker \"$USER\", then log in again); whoever is in it is as good as root here".to_owned()
            }
            Self::NoWay { .. } => {
                "we know `unix:///SOCKET`, `ssh://USER@HOST` and, without encryption, `tcp://HOST:PORT`".to_owned()
            }
            Self::NoEngineRuntime { .. } => {
                "install `runsc` where the engine is, name it (runsc install), and start the engine again".to_owned()
            }
            Self::NoImage { engine, image } => {
                let program = engine.to_lowercase();
                format!("fetch it first: {program} pull {image}")
            }
            Self::Architecture { image, wanted, .. } => {
                format!("fetch it for this machine: docker pull --platform linux/{wanted} {image}")
            }
            Self::Refused { message, .. } if message.contains("no space left") => {
                "the engine's disk is full: `docker system df` shows by what, `docker system prune` makes room".to_owned()
            }
            Self::Parcel { said } if said.contains("No space left") => {
                "make room on the engine's machine (`docker system df` shows by what it is taken), or on this one".to_owned()
            }
            Self::EndedEarly => "the log of the engine says why".to_owned(),
            Self::NeedsRoot { .. } => {
                "run as root, or use the backend `native`, which needs no root".to_owned()
            }
            Self::NoRuntime { .. } => {
                "install it: apt-get install runsc, from the distribution's backports or gVisor's own repository".to_owned()
            }
            Self::DoesNotHold { .. } => {
                "`ringfence backends` shows what each holds; the backend `native` holds all of a policy".to_owned()
            }
            Self::NoneHas { seen, .. } => format!("seen here: {seen}"),
            Self::BadRequirement(_) => {
                "as in `--require kernel=separate`; `ringfence backends` shows all names and values"
                    .to_owned()
            }
            _ => return None,
        })
    }
}
