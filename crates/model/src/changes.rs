//! The change set: what differs from the base, by path, type, mode and content.
//!
//! It is computed from the layer that the kernel wrote, never from what an agent says. The patch
//! is one rendering of it.

use serde::{Deserialize, Serialize};

use crate::ByteText;

/// The hash that names a repository's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectHash {
    Sha1,
    Sha256,
}

impl ObjectHash {
    /// Length of an object id in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    /// As git spells it in `extensions.objectFormat`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
        }
    }

    /// True for a whole object id in hexadecimal.
    pub fn is_oid(self, text: &[u8]) -> bool {
        text.len() == self.bytes() * 2 && text.iter().all(u8::is_ascii_hexdigit)
    }
}

/// What a path holds on one side of a change. Modes are git's: only these three exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileMode {
    Regular,
    Executable,
    Symlink,
}

impl FileMode {
    /// As git writes it in a patch.
    pub fn octal(self) -> &'static str {
        match self {
            Self::Regular => "100644",
            Self::Executable => "100755",
            Self::Symlink => "120000",
        }
    }
}

/// One side of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    pub mode: FileMode,
    /// Git's object id of the content (hex), by the repository's own hash.
    pub oid: String,
    pub size: u64,
}

/// How a path changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    Added,
    Modified,
    Deleted,
    /// Moved from another path, with or without edits.
    Renamed {
        from: ByteText,
    },
}

/// One path that differs from the base and crosses back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Relative to the top of the repository, or of the folder where there is none.
    pub path: ByteText,
    pub kind: ChangeKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<Side>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<Side>,
    /// Rendered as a binary hunk.
    pub binary: bool,
}

/// Why a changed path does not cross back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhyOmitted {
    /// Ignored by the repository's rules and not tracked.
    Ignored,
    /// Hidden by the policy of the run.
    Hidden,
    /// A FIFO, socket or device: reported, never opened.
    Special,
    /// Over the size that a patch may carry.
    TooLarge,
    /// Git cannot carry it: an empty directory, or a name it refuses such as a nested `.git`.
    NotCarried,
    /// Part of what would be a git directory after the patch, though it is not called `.git`.
    GitDirectory,
    /// The base file or its directory moved since the start; a hunk would be against other bytes.
    BaseMoved,
    /// Could not be read.
    Unreadable,
    /// The repository has something there that the workspace did not show.
    NotStaged,
    /// The policy lets nobody write there.
    ReadOnly,
    /// The policy does not let it cross back.
    NotExported,
    /// A setup made it, or the directory that it is in.
    Environment,
    /// It holds the value of a secret, or cannot be searched for one.
    Secret,
}

/// A changed path that stays behind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Omitted {
    pub path: ByteText,
    pub why: WhyOmitted,
    /// Bytes, of everything below it where the path is a directory.
    pub size: u64,
    /// How many files this line stands for.
    pub files: u64,
}

/// All that differs from the base.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeSet {
    /// Sorted by path.
    pub changes: Vec<Change>,
    pub omitted: Vec<Omitted>,
    /// True where the list of omitted paths was cut at its bound.
    pub omitted_truncated: bool,
}

impl ChangeSet {
    /// The paths whose base moved under the run.
    pub fn moved(&self) -> impl Iterator<Item = &Omitted> {
        self.omitted
            .iter()
            .filter(|o| o.why == WhyOmitted::BaseMoved)
    }
}
