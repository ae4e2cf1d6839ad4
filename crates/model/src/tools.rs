//! The direct tools of a sandbox: what is asked of `ringfence-tools` and what it answers.
//!
//! One JSON object each way. The program runs inside, as the agent; host and inside share these
//! types. Paths are relative to the root of the tools, or absolute and beneath it.
//!
//! HOSTILE: every answer was made where the agent rules. The host reads at most
//! [`MAX_RESPONSE`] bytes of it and treats it as data.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::ByteText;

mod answers;
mod requests;

pub use answers::*;
pub use requests::*;

/// BOUND: a request holds at most one file of the size that people edit, or one large patch.
pub const MAX_REQUEST: usize = 8 << 20;
/// BOUND: an answer fits one frame of the guest protocol.
pub const MAX_RESPONSE: usize = 4 << 20;
/// BOUND: what a read gives when it does not say how much: some 5,000 lines.
pub const DEFAULT_READ: u64 = 256 << 10;
/// BOUND: the most that one read gives; as base64 it still fits an answer.
pub const MAX_READ: u64 = 2 << 20;
/// BOUND: names in one listing.
pub const MAX_ENTRIES: usize = 10_000;
/// BOUND: levels of a listing.
pub const MAX_DEPTH: u32 = 32;
/// BOUND: paths that a glob gives when it does not say how many, and at most.
pub const DEFAULT_PATHS: usize = 1_000;
pub const MAX_PATHS: usize = 10_000;
/// BOUND: matches that a search gives when it does not say how many, and at most.
pub const DEFAULT_MATCHES: usize = 200;
pub const MAX_MATCHES: usize = 5_000;
/// BOUND: lines before and after a match.
pub const MAX_CONTEXT: usize = 50;
/// BOUND: bytes of a line in a match; minified files have one line.
pub const MAX_LINE_BYTES: usize = 2_000;
/// BOUND: line numbers that an edit gives back.
pub const MAX_LINES_GIVEN: usize = 1_000;

/// Where the program is inside.
pub const PROGRAM: &str = "/.ringfence/tools/ringfence-tools";

/// How the tool that packs and unpacks a tree says on its standard output that it failed; its words follow.
pub const FAILED: [u8; 4] = *b"RFE1";

/// What can be asked, as named on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Read,
    Write,
    Edit,
    Patch,
    List,
    Glob,
    Search,
    Stat,
    Mkdir,
    Remove,
    Move,
}

impl Verb {
    pub const ALL: [Self; 11] = [
        Self::Read,
        Self::Write,
        Self::Edit,
        Self::Patch,
        Self::List,
        Self::Glob,
        Self::Search,
        Self::Stat,
        Self::Mkdir,
        Self::Remove,
        Self::Move,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Edit => "edit",
            Self::Patch => "patch",
            Self::List => "list",
            Self::Glob => "glob",
            Self::Search => "search",
            Self::Stat => "stat",
            Self::Mkdir => "mkdir",
            Self::Remove => "remove",
            Self::Move => "move",
        }
    }

    /// Whether it changes files.
    pub fn changes(self) -> bool {
        matches!(
            self,
            Self::Write | Self::Edit | Self::Patch | Self::Mkdir | Self::Remove | Self::Move
        )
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| verb.name() == name)
    }
}

/// Everything that the program prints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer<T> {
    Ok(T),
    Error(ToolFailure),
}

/// Why a tool did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ToolFailure {
    pub kind: FailureKind,
    pub message: String,
    /// What to do next.
    #[serde(default)]
    pub hint: Option<String>,
}

/// Whose move it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    NotFound,
    Invalid,
    Conflict,
    Denied,
    TooLarge,
    Internal,
}

/// Bytes that are not text, written as base64.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Base64(pub Vec<u8>);

impl fmt::Debug for Base64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Base64({} bytes)", self.0.len())
    }
}

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = STANDARD
            .decode(text)
            .map_err(|_| de::Error::custom("broken base64"))?;
        Ok(Self(bytes))
    }
}

fn here() -> ByteText {
    ByteText::from(".")
}

fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_is_found_by_its_name() {
        for verb in Verb::ALL {
            assert_eq!(Verb::parse(verb.name()), Some(verb));
        }
        assert_eq!(Verb::parse("Read"), None);
    }

    #[test]
    fn an_unknown_field_is_refused() {
        assert!(serde_json::from_str::<ReadRequest>(r#"{"path":"a"}"#).is_ok());
        assert!(serde_json::from_str::<ReadRequest>(r#"{"path":"a","ofset":1}"#).is_err());
    }

    #[test]
    fn answers_are_ok_or_error() {
        let ok: Answer<u8> = Answer::Ok(1);
        assert_eq!(serde_json::to_string(&ok).unwrap(), r#"{"ok":1}"#);
        let error: Answer<u8> = Answer::Error(ToolFailure {
            kind: FailureKind::TooLarge,
            message: "m".into(),
            hint: None,
        });
        let text = serde_json::to_string(&error).unwrap();
        assert_eq!(
            text,
            r#"{"error":{"kind":"too_large","message":"m","hint":null}}"#
        );
        assert_eq!(serde_json::from_str::<Answer<u8>>(&text).unwrap(), error);
    }

    #[test]
    fn bytes_survive_as_base64() {
        let bytes = Base64(vec![0, 255, 10]);
        let text = serde_json::to_string(&bytes).unwrap();
        assert_eq!(text, "\"AP8K\"");
        assert_eq!(serde_json::from_str::<Base64>(&text).unwrap(), bytes);
        assert!(serde_json::from_str::<Base64>("\"A\"").is_err());
    }
}
