//! What can go wrong with an image, and what to do about it.

use std::io;
use std::path::PathBuf;

use ringfence_model::image::{Digest, ImageNameError};
use thiserror::Error;

use super::unpack::UnpackError;
use crate::changes::ChangesError;
use crate::durable::DurableError;
use crate::error::ErrorKind;
use crate::ids::IdError;
use crate::lock::LockError;
use crate::store::StoreError;
use crate::web::WebError;

#[derive(Debug, Error)]
pub enum ImageError {
    #[error(transparent)]
    Name(#[from] ImageNameError),
    #[error("there is no image `{reference}` here")]
    NotHere { reference: String },
    #[error(
        "`{by}` names the image `{reference}`, which is not here, and your policy does not name its registry `{registry}`"
    )]
    NotNamed {
        /// The file and the line that name it.
        by: String,
        reference: String,
        registry: String,
    },
    #[error("more than one image begins with `{digits}`")]
    Ambiguous { digits: String },
    #[error("image `{reference}` is in use: {users}")]
    InUse { reference: String, users: String },
    #[error(transparent)]
    Web(#[from] WebError),
    #[error("the registry `{host}` wants to know who asks for `{repository}`")]
    WhoAsks { host: String, repository: String },
    #[error("the registry `{host}` does not let this user read `{repository}`")]
    NotAllowed { host: String, repository: String },
    #[error("the registry `{host}` has no `{what}`")]
    NotThere { host: String, what: String },
    #[error("the registry `{host}` was asked too often and wants {seconds} s of rest")]
    TooOften { host: String, seconds: u64 },
    #[error("the registry `{host}` answered {status} for `{what}`")]
    Status {
        host: String,
        status: u16,
        what: String,
    },
    #[error("the registry `{host}` asks for a kind of credentials that is not known here")]
    Challenge { host: String },
    #[error("the registry `{host}` wants a token from `{realm}`, which is not asked: {why}")]
    Realm {
        host: String,
        realm: String,
        why: &'static str,
    },
    #[error("the registry `{host}` gives tokens that cannot be sent on")]
    NoToken { host: String },
    #[error("cannot read the credentials in `{}`", path.display())]
    ReadCredentials {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the credentials in `{}` cannot be understood", path.display())]
    ParseCredentials { path: PathBuf },
    #[error("the credential helper `{program}` does not work: {why}")]
    Helper { program: String, why: String },
    #[error(
        "{what} of `{reference}` is not what its digest says: {expected} was asked for, {found} came"
    )]
    WrongDigest {
        what: &'static str,
        reference: String,
        expected: Digest,
        found: Digest,
    },
    #[error("{what} of `{reference}` has {found} bytes, and should have {expected}")]
    WrongSize {
        what: &'static str,
        reference: String,
        expected: u64,
        found: u64,
    },
    #[error("{what} of `{reference}` cannot be understood: {why}")]
    Document {
        what: &'static str,
        reference: String,
        why: String,
    },
    #[error("`{reference}` is not made for this machine ({here}), but for {made_for}")]
    Architecture {
        reference: String,
        here: String,
        made_for: String,
    },
    #[error("layer {number} of `{reference}` cannot be unpacked")]
    Unpack {
        number: usize,
        reference: String,
        #[source]
        source: UnpackError,
    },
    #[error("layer {number} of `{reference}` unpacks to {found}, and should to {expected}")]
    WrongDiff {
        number: usize,
        reference: String,
        expected: Digest,
        found: Digest,
    },
    #[error("`{}` is no image: {why}", path.display())]
    NotAnImage { path: PathBuf, why: String },
    #[error("the image in `{}` has no name", .0.display())]
    Nameless(PathBuf),
    #[error("cannot {what} `{}`", path.display())]
    Access {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("a thread that pulled a layer is gone")]
    Thread,
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Durable(#[from] DurableError),
    #[error(transparent)]
    Remove(#[from] ChangesError),
    #[error(transparent)]
    Id(#[from] IdError),
}

impl ImageError {
    /// Whose move it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Name(_)
            | Self::Ambiguous { .. }
            | Self::Architecture { .. }
            | Self::NotAnImage { .. }
            | Self::Nameless(_)
            | Self::Web(WebError::Address(_))
            | Self::ParseCredentials { .. } => ErrorKind::Invalid,
            Self::NotHere { .. } | Self::NotThere { .. } => ErrorKind::NotFound,
            Self::InUse { .. } | Self::Store(StoreError::SourceInUse { .. }) => ErrorKind::Conflict,
            Self::WhoAsks { .. }
            | Self::NotNamed { .. }
            | Self::NotAllowed { .. }
            | Self::Realm { .. }
            | Self::Web(WebError::NotPublic { .. }) => ErrorKind::Denied,
            Self::WrongDigest { .. }
            | Self::WrongSize { .. }
            | Self::WrongDiff { .. }
            | Self::Document { .. }
            | Self::Unpack { .. } => {
                if self.io_error() {
                    // The disk's fault and not the image's.
                    ErrorKind::Unavailable
                } else {
                    ErrorKind::Invalid
                }
            }
            Self::Thread | Self::Id(_) | Self::Remove(_) => ErrorKind::Internal,
            _ => ErrorKind::Unavailable,
        }
    }

    fn io_error(&self) -> bool {
        matches!(
            self,
            Self::Unpack {
                source: UnpackError::Make { .. },
                ..
            }
        )
    }

    /// What to do next.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NotNamed {
                reference,
                registry,
                ..
            } => {
                return Some(format!(
                    "give `--image {reference}`, or `ringfence image pull {reference}`, or allow the registry in your own policy: `[images]` with `registries = [\"{registry}\"]`"
                ));
            }
            Self::NotHere { .. } => {
                "`ringfence image list` shows those that are; `ringfence image pull` gets one"
            }
            Self::InUse { .. } | Self::Store(StoreError::SourceInUse { .. }) => {
                "end or remove what stands on it first"
            }
            Self::WhoAsks { .. } | Self::NotAllowed { .. } => {
                "`docker login` writes credentials that are used here, too; `DOCKER_CONFIG` names another place; for an image that only a folder names, `ringfence image pull` uses them; a name that does not exist may be answered so as well"
            }
            Self::NotThere { .. } => "check the name and the tag",
            Self::TooOften { .. } => "wait, or log in: registries let known users ask more often",
            Self::Architecture { .. } => {
                "name an image, or a tag of it, that is made for this machine"
            }
            Self::Web(WebError::Address(_)) => {
                "`--plain-http` allows it where the network is trusted"
            }
            Self::Realm { .. } => {
                "what is answered there would go to the registry; where you trust both, name that host in `[images] registries` of your own policy"
            }
            Self::Web(WebError::NotPublic { .. }) => {
                "only the registry that you name may be on this machine or on a private network"
            }
            Self::Web(WebError::Distrusted { .. }) => {
                "`SSL_CERT_FILE` names a file with the certificates to believe"
            }
            Self::Web(
                WebError::TimedOut { .. } | WebError::BrokeOff { .. } | WebError::Reach { .. },
            )
            | Self::Status { .. } => {
                "check the name and the network; what was downloaded, if anything was, is kept, and the next pull goes on from there"
            }
            Self::WrongDigest { .. } | Self::WrongSize { .. } | Self::WrongDiff { .. } => {
                "nothing of it was kept; somebody changed it on the way, or the registry is damaged"
            }
            Self::Ambiguous { .. } => "give more digits",
            Self::Nameless(_) => "give it one with `--name`",
            Self::NotAnImage { .. } => {
                "`docker save`, `skopeo copy … oci-archive:` and `docker export` make files that can be imported"
            }
            _ => return None,
        };
        Some(hint.to_owned())
    }
}
