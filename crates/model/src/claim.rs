//! What an agent says of its own work, in the file that `$RINGFENCE_RESULT` names. It is kept next
//! to what was observed and never taken for it.
//!
//! HOSTILE: all of it was chosen by an agent. It is read whole or not at all.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ByteText;

/// BOUND: a summary, some notes, and the names of a thousand files.
pub const MAX_BYTES: u64 = 64 << 10;
/// BOUND: a page of text.
const TEXT_BYTES: usize = 8 << 10;
/// BOUND: the longest path and any command that a person would read.
const ENTRY_BYTES: usize = 4096;
/// BOUND: of each list.
const ENTRIES: usize = 2000;
/// BOUND: unknown fields that are listed, and how much of the name of each.
const UNKNOWN: usize = 20;
const UNKNOWN_BYTES: usize = 64;

/// A claim. Every field may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ClaimedStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tests: Option<ClaimedTests>,
    /// Commands that it says it ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commands: Option<Vec<String>>,
    /// Files that it says it changed, relative to the workspace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed_files: Option<Vec<ByteText>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notes: Option<String>,
    /// Names of fields that mean nothing to us; their values are dropped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimedStatus {
    Success,
    Failure,
    Partial,
}

impl ClaimedStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Partial => "partial",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimedTests {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ClaimedTestStatus>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimedTestStatus {
    Passed,
    Failed,
    NotRun,
}

impl ClaimedTestStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::NotRun => "not run",
        }
    }
}

impl ClaimedTests {
    /// Whether it says that tests passed: in a word, or by a count without failures.
    pub fn says_passed(&self) -> bool {
        match self.status {
            Some(status) => status == ClaimedTestStatus::Passed,
            None => self.passed.is_some_and(|n| n > 0) && self.failed.unwrap_or(0) == 0,
        }
    }
}

/// Why there is no claim though something is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoClaim {
    NotAFile(&'static str),
    TooLarge,
    Unreadable(String),
    NotJson(String),
    TooLong(&'static str),
}

impl fmt::Display for NoClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAFile(what) => write!(f, "it is {what}, not a regular file"),
            Self::TooLarge => write!(f, "it has more than {MAX_BYTES} bytes"),
            Self::Unreadable(why) => write!(f, "it cannot be read: {why}"),
            Self::NotJson(why) => write!(f, "it is not JSON of the expected form: {why}"),
            Self::TooLong(field) => write!(f, "`{field}` is too long"),
        }
    }
}

impl Claim {
    /// Reads the text of a result file.
    pub fn parse(text: &[u8]) -> Result<Self, NoClaim> {
        if text.len() as u64 > MAX_BYTES {
            return Err(NoClaim::TooLarge);
        }
        // Nesting is bounded by the parser.
        let mut raw: Map<String, Value> =
            serde_json::from_slice(text).map_err(|e| NoClaim::NotJson(said(&e)))?;
        let files: Option<Vec<String>> = take(&mut raw, "changed_files")?;
        let claim = Self {
            status: take(&mut raw, "status")?,
            summary: take(&mut raw, "summary")?,
            tests: take(&mut raw, "tests")?,
            commands: take(&mut raw, "commands")?,
            changed_files: files.map(|list| list.iter().map(|f| f.as_str().into()).collect()),
            notes: take(&mut raw, "notes")?,
            unknown: raw
                .into_iter()
                .map(|(name, _)| cut(name, UNKNOWN_BYTES))
                .take(UNKNOWN)
                .collect(),
        };
        claim.check()?;
        Ok(claim)
    }

    fn check(&self) -> Result<(), NoClaim> {
        let text = |text: &Option<String>, most: usize| {
            let length = text.as_ref().map_or(0, String::len);
            length > most
        };
        let list = |lengths: Vec<usize>| {
            lengths.len() > ENTRIES || lengths.into_iter().any(|length| length > ENTRY_BYTES)
        };
        let command = self.tests.as_ref().and_then(|tests| tests.command.clone());
        for (field, too_long) in [
            ("summary", text(&self.summary, TEXT_BYTES)),
            ("notes", text(&self.notes, TEXT_BYTES)),
            ("tests.command", text(&command, ENTRY_BYTES)),
            (
                "commands",
                list(self.commands.iter().flatten().map(String::len).collect()),
            ),
            (
                "changed_files",
                list(
                    self.changed_files
                        .iter()
                        .flatten()
                        .map(|f| f.0.len())
                        .collect(),
                ),
            ),
        ] {
            if too_long {
                return Err(NoClaim::TooLong(field));
            }
        }
        Ok(())
    }
}

/// What the parser says, without the agent's own bytes in it being of any length.
fn said(error: &serde_json::Error) -> String {
    cut(error.to_string(), 200)
}

fn cut(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.push('…');
    }
    text
}

/// Takes a field out of what was read; `null` is as if it were not there.
fn take<T: DeserializeOwned>(
    raw: &mut Map<String, Value>,
    field: &'static str,
) -> Result<Option<T>, NoClaim> {
    let value = raw.remove(field).unwrap_or_default();
    serde_json::from_value(value).map_err(|e| NoClaim::NotJson(format!("`{field}`: {}", said(&e))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_claim_is_read() {
        let claim = Claim::parse(
            br#"{"status": "success", "summary": "done", "notes": "none",
                "tests": {"command": "pytest", "passed": 3, "failed": 0, "status": "passed"},
                "commands": ["pytest -q"], "changed_files": ["a.py"], "zeal": [1], "extra": null}"#,
        )
        .unwrap();
        assert_eq!(claim.status, Some(ClaimedStatus::Success));
        assert!(claim.tests.as_ref().unwrap().says_passed());
        assert_eq!(claim.changed_files, Some(vec!["a.py".into()]));
        assert_eq!(claim.unknown, ["extra", "zeal"]);
        let json = serde_json::to_string(&claim).unwrap();
        assert_eq!(serde_json::from_str::<Claim>(&json).unwrap(), claim);
        assert_eq!(Claim::parse(b"{}").unwrap(), Claim::default());
    }

    #[test]
    fn what_is_no_claim_is_refused_whole() {
        let deep = [b"{\"x\":".as_slice(), &b"[".repeat(30_000)].concat();
        let long = format!("{{\"summary\": \"{}\"}}", "x".repeat(TEXT_BYTES + 1));
        let many = format!("{{\"changed_files\": [{}\"\"]}}", "\"\",".repeat(ENTRIES));
        let huge = vec![b' '; MAX_BYTES as usize + 1];
        for text in [
            &b""[..],
            b"null",
            b"[]",
            b"{",
            b"{} {}",
            b"\xff",
            b"{\"tests\": \"passed\"}",
            b"{\"status\": \"great\"}",
            b"{\"summary\": 3}",
            b"{\"tests\": {\"passed\": -1}}",
            b"{\"tests\": {\"passed\": 1e400}}",
            b"{\"commands\": \"pytest\"}",
            &deep,
            long.as_bytes(),
            many.as_bytes(),
            &huge,
        ] {
            let why = Claim::parse(text).unwrap_err().to_string();
            assert!(why.len() < 300 && !why.is_empty(), "{why}");
        }
    }

    #[test]
    fn a_word_outweighs_a_count() {
        for (json, says) in [
            (r#"{"status": "passed"}"#, true),
            (r#"{"status": "not_run", "passed": 4}"#, false),
            (r#"{"passed": 4}"#, true),
            (r#"{"passed": 4, "failed": 1}"#, false),
            (r#"{"passed": 0}"#, false),
            ("{}", false),
        ] {
            let tests: ClaimedTests = serde_json::from_str(json).unwrap();
            assert_eq!(tests.says_passed(), says, "{json}");
        }
    }
}
