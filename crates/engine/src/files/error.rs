//! What of a policy about files cannot be held here, and what to do about it.

use std::io;
use std::path::PathBuf;

use ringfence_model::policy::area::AreaError;
use ringfence_model::policy::export::ExportError;
use ringfence_model::policy::glob::GlobError;

/// Why a policy about files is refused.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    #[error("`{text}` in `{list}` cannot be held")]
    Area {
        list: &'static str,
        text: String,
        #[source]
        source: AreaError,
    },
    #[error("a policy may have {most} areas, this one has {count}")]
    TooManyAreas { count: usize, most: usize },
    #[error(transparent)]
    Hide(GlobError),
    #[error(transparent)]
    Export(ExportError),
    #[error("`{0}` is to be written and does not exist")]
    NothingToWrite(String),
    #[error("`{0}` is to be written and hidden")]
    WrittenAndHidden(String),
    #[error("`{area}` cannot be held: `{}` is a link", link.display())]
    LinkInTheWay { area: String, link: PathBuf },
    #[error("`{area}` cannot be held: `{}` is not a directory", found.display())]
    FileInTheWay { area: String, found: PathBuf },
    #[error("`{area}` cannot be held: cannot {what} `{}`", path.display())]
    Hold {
        area: String,
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("a policy may have {most} mounts, this one has {count}")]
    TooManyMounts { count: usize, most: usize },
    #[error("`{}` cannot be mounted: it is no absolute path without `..`", .0.display())]
    OddMount(PathBuf),
    #[error("`{}` cannot be mounted: there is a link in it", .0.display())]
    LinkInMount(PathBuf),
    #[error("cannot open `{}`, to be mounted", path.display())]
    OpenMount {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("`{}` cannot be mounted: it is {what}", path.display())]
    ForbiddenMount { path: PathBuf, what: String },
    #[error("`{}` cannot be mounted: `{}` is mounted in it", path.display(), below.display())]
    MountInMount { path: PathBuf, below: PathBuf },
    #[error("`{}` cannot be mounted writable: `{}` is a socket, pipe or device", path.display(), found.display())]
    SpecialInMount { path: PathBuf, found: PathBuf },
    #[error("`{}` cannot be mounted writable: it has more than {most} entries", path.display())]
    LargeMount { path: PathBuf, most: u64 },
    #[error("nothing can be mounted at `{}` inside: the sandbox has something of its own there", .0.display())]
    OccupiedPlace(PathBuf),
    #[error("two mounts are in each other's way inside: `{}` and `{}`", .0.display(), .1.display())]
    MountsMeet(PathBuf, PathBuf),
}

impl FilesError {
    /// What to do next, in one sentence.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Area {
                source: AreaError::Pattern,
                ..
            } => {
                "the kernel holds paths and `dir/**`; any other pattern can be in `export`, which decides what crosses back"
            }
            Self::NothingToWrite(_) => {
                "make it first, or write `dir/**`: a directory is made inside"
            }
            Self::LinkInTheWay { .. } | Self::LinkInMount(_) => {
                "name the path that the link leads to"
            }
            Self::OccupiedPlace(_) => {
                "choose another place, such as `/data` or one below `/home/agent`"
            }
            Self::MountInMount { .. } => "mount them one by one",
            Self::SpecialInMount { .. } | Self::LargeMount { .. } => {
                "mount it read-only, or only a part of it"
            }
            _ => return None,
        })
    }

    /// Whether this host, and not the policy, is the reason.
    pub fn is_of_host(&self) -> bool {
        matches!(self, Self::Hold { .. })
    }
}
