//! What is asked, one type for each verb.

use serde::{Deserialize, Serialize};

use super::{Base64, here, yes};
use crate::ByteText;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadRequest {
    pub path: ByteText,
    /// Bytes to leave out at the beginning; not together with `lines`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// The most bytes to give.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
    /// First and last line, counted from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<[u64; 2]>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteRequest {
    pub path: ByteText,
    /// The content; either this or `bytes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Base64>,
    #[serde(default)]
    pub mode: WriteMode,
    /// Absent: as it was; a new file is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executable: Option<bool>,
    /// Whether to make directories that are missing.
    #[serde(default = "yes")]
    pub parents: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteMode {
    /// Made or replaced.
    #[default]
    Replace,
    /// Made; a file that is there is a conflict.
    Create,
    /// Made or made longer.
    Append,
}

/// Either `old` and `new`, or `edits`, which are done in order, all or none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EditRequest {
    pub path: ByteText,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
    #[serde(default)]
    pub all: bool,
    /// How often `old` must be there; all of them are replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<usize>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edits: Vec<Edit>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    pub old: String,
    pub new: String,
    #[serde(default)]
    pub all: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<usize>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PatchRequest {
    /// A unified diff; either this or `bytes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Base64>,
    /// Leading directories to take off each name; absent: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strip: Option<usize>,
    /// Whether to check only.
    #[serde(default)]
    pub dry_run: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListRequest {
    #[serde(default = "here")]
    pub path: ByteText,
    /// Absent: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    #[serde(default = "yes")]
    pub hidden: bool,
    #[serde(default)]
    pub ignored: Ignored,
}

/// What becomes of paths that `.gitignore` and `.ignore` name, and of `.git`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ignored {
    #[default]
    Show,
    Skip,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GlobRequest {
    /// Relative to `path`; `*` stays in one directory, `**` does not.
    pub pattern: String,
    #[serde(default = "here")]
    pub path: ByteText,
    #[serde(default = "yes")]
    pub hidden: bool,
    #[serde(default = "skip")]
    pub ignored: Ignored,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchRequest {
    /// A regular expression of Rust's `regex`, or plain text with `fixed`.
    pub pattern: String,
    #[serde(default)]
    pub fixed: bool,
    #[serde(default)]
    pub case: Case,
    /// Whether only whole words match.
    #[serde(default)]
    pub word: bool,
    /// Whether a match may go over the end of a line.
    #[serde(default)]
    pub multiline: bool,
    /// A directory or one file.
    #[serde(default = "here")]
    pub path: ByteText,
    /// Files to search; with `!` in front, files to leave out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub globs: Vec<String>,
    /// Lines before and after each match; `before` and `after` are stronger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    #[serde(default)]
    pub hidden: bool,
    #[serde(default = "skip")]
    pub ignored: Ignored,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Case {
    #[default]
    Sensitive,
    Insensitive,
    /// Insensitive as long as the pattern has no capital letter.
    Smart,
}

/// A link itself, not what it leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatRequest {
    pub path: ByteText,
}

/// With all directories on the way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MkdirRequest {
    pub path: ByteText,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveRequest {
    pub path: ByteText,
    #[serde(default)]
    pub recursive: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    pub from: ByteText,
    pub to: ByteText,
    /// Whether what is at `to` may be replaced.
    #[serde(default)]
    pub overwrite: bool,
}

fn skip() -> Ignored {
    Ignored::Skip
}
