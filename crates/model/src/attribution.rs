//! Who wrote what: the change set joined with the writes that were observed.
//!
//! It names who opened a file for writing, or changed its entry. That is evidence, not proof: what
//! a process did with a file that it had open is not seen.

use serde::{Deserialize, Serialize};

use crate::ByteText;

/// The writers of all that changed. Execs are named by their numbers in the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attribution {
    /// Every changed path is explained by a write that was observed, and where each write was is
    /// known.
    pub complete: bool,
    /// Where the folder is below the top of its repository; paths count from the top.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub prefix: ByteText,
    /// Paths that are not, the first of them.
    pub unexplained: Vec<ByteText>,
    pub unexplained_count: u64,
    /// Writes of which cannot be told where they were: each may have been to any of the files.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unplaced_count: u64,
    /// One for each change, in the same order.
    pub files: Vec<FileWriters>,
    /// The list of files was cut at its bound.
    pub files_truncated: bool,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn is_empty(text: &ByteText) -> bool {
    text.as_bytes().is_empty()
}

/// Who wrote a changed file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileWriters {
    pub path: ByteText,
    /// Who did last what the change shows; of a deleted file, who took it away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_writer: Option<u64>,
    /// Of a renamed file, who took it away from its old path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_removed_by: Option<u64>,
    /// All that had a hand in it, under this name or an earlier one, by their first write.
    pub writers: Vec<u64>,
    /// More are known, or one is not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub writers_truncated: bool,
    /// As in the patch, in the same order. None where the change has no text.
    pub hunks: Vec<HunkWriters>,
    /// The patch has more of them than are listed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hunks_truncated: bool,
}

/// Who made a hunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HunkWriters {
    /// As in the head of the hunk.
    pub old_start: u64,
    pub old_lines: u64,
    pub new_start: u64,
    pub new_lines: u64,
    /// More than one where several made lines of it.
    pub by: Vec<u64>,
    /// Otherwise `by` is everybody who may have made it.
    pub told: bool,
}
