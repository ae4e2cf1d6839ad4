//! Failures: one constructor for each kind, and what the kernel's numbers mean.

use std::io;
use std::path::Path;

use ringfence_model::ByteText;
use ringfence_model::tools::FailureKind;
pub use ringfence_model::tools::ToolFailure as Failure;
use rustix::io::Errno;

/// What every tool gives.
pub type Outcome<T> = Result<T, Failure>;

fn failure(kind: FailureKind, message: String) -> Failure {
    Failure {
        kind,
        message,
        hint: None,
    }
}

pub fn not_found(message: String) -> Failure {
    failure(FailureKind::NotFound, message)
}

pub fn invalid(message: String) -> Failure {
    failure(FailureKind::Invalid, message)
}

pub fn conflict(message: String) -> Failure {
    failure(FailureKind::Conflict, message)
}

pub fn denied(message: String) -> Failure {
    failure(FailureKind::Denied, message)
}

pub fn too_large(message: String) -> Failure {
    failure(FailureKind::TooLarge, message)
}

pub fn internal(message: String) -> Failure {
    failure(FailureKind::Internal, message)
}

/// A failure with what to do next.
pub trait Hint {
    fn hint(self, hint: impl Into<String>) -> Self;
}

impl Hint for Failure {
    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// A path as messages show it.
pub fn shown(path: &Path) -> ByteText {
    let bytes = path.as_os_str().as_encoded_bytes();
    ByteText::from(if bytes.is_empty() { b"." } else { bytes })
}

/// What the kernel said about `operation` on `path`.
pub fn refused(operation: &str, path: &Path, errno: Errno) -> Failure {
    let kind = match errno {
        Errno::NOENT => FailureKind::NotFound,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => FailureKind::Denied,
        Errno::EXIST | Errno::NOTEMPTY | Errno::BUSY | Errno::TXTBSY => FailureKind::Conflict,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => FailureKind::TooLarge,
        Errno::NOTDIR | Errno::ISDIR | Errno::NAMETOOLONG | Errno::LOOP | Errno::INVAL => {
            FailureKind::Invalid
        }
        _ => FailureKind::Internal,
    };
    let reason = io::Error::from(errno);
    failure(
        kind,
        format!("cannot {operation} `{}`: {reason}", shown(path)),
    )
}

/// As [`refused`], for what the standard library gives.
pub fn refused_io(operation: &str, path: &Path, error: &io::Error) -> Failure {
    match Errno::from_io_error(error) {
        Some(errno) => refused(operation, path, errno),
        None => internal(format!("cannot {operation} `{}`: {error}", shown(path))),
    }
}
