//! What is answered, one type for each verb. Paths are relative to the root of the tools.

use serde::{Deserialize, Serialize};

use super::Base64;
use crate::ByteText;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadAnswer {
    /// Where the content really lies, links followed.
    pub path: ByteText,
    /// Of the whole file.
    pub size: u64,
    /// The content, or null where it is not UTF-8.
    pub text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Base64>,
    /// Where in the file the content begins, and how many bytes it has.
    pub offset: u64,
    pub length: u64,
    /// Of the whole file, where it was counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines_total: Option<u64>,
    /// Whether the file has more behind what is given; with lines, whether the last of them do.
    pub truncated: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteAnswer {
    pub path: ByteText,
    pub size: u64,
    pub created: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EditAnswer {
    pub path: ByteText,
    pub replaced: usize,
    /// Where each replaced text began, as the edit found the file.
    pub lines: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatchAnswer {
    pub files: Vec<PatchedFile>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatchedFile {
    pub path: ByteText,
    pub action: PatchAction,
    /// Where a renamed or copied file was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<ByteText>,
    pub hunks: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PatchAction {
    Modified,
    Created,
    Deleted,
    Renamed,
    Copied,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListAnswer {
    pub entries: Vec<ToolEntry>,
    pub truncated: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolEntry {
    pub path: ByteText,
    #[serde(rename = "type")]
    pub kind: ToolEntryKind,
    pub size: u64,
    /// Permission bits only.
    pub mode: u32,
    pub modified_seconds: i64,
    /// Where a link leads; only `stat` says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<ByteText>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolEntryKind {
    File,
    Directory,
    Link,
    Other,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GlobAnswer {
    pub paths: Vec<ByteText>,
    pub truncated: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchAnswer {
    pub matches: Vec<SearchMatch>,
    pub files_with_matches: u64,
    pub files_searched: u64,
    /// Files that could not be read, or not within the memory that a search may take.
    pub files_unread: u64,
    pub truncated: bool,
}

/// One line that matches, or several where a match goes over the end of a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchMatch {
    pub path: ByteText,
    /// Both from 1; the column counts bytes.
    pub line: u64,
    pub column: u64,
    /// Without the end of the line; cut at a bound; what is not UTF-8 is replaced.
    pub text: String,
    pub before: Vec<String>,
    pub after: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MkdirAnswer {
    pub path: ByteText,
    /// False where the directory was there.
    pub created: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveAnswer {
    pub path: ByteText,
    #[serde(rename = "type")]
    pub kind: ToolEntryKind,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveAnswer {
    pub from: ByteText,
    pub to: ByteText,
}
