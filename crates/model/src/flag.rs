//! A flag: something about a run that a reviewer should know, with what it rests on.

use serde::{Deserialize, Serialize};

use crate::ByteText;

/// BOUND: evidence that is listed of one flag; the rest is counted.
pub const MAX_EVIDENCE: usize = 20;

/// One flag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flag {
    pub kind: FlagKind,
    pub severity: Severity,
    /// One sentence. It holds no bytes that an agent chose.
    pub message: String,
    pub evidence: Vec<Evidence>,
    /// How much evidence is not listed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// How much it matters. Ordered: the worst is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Good to know.
    Info,
    /// Look at it before you take the patch.
    Warning,
    /// Do not take the patch before you understand it.
    Serious,
}

impl Severity {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Serious => "serious",
        }
    }
}

/// What a flag is about; `docs/flags.md` explains each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlagKind {
    ClaimUnreadable,
    ClaimWithoutEvidence,
    ClaimContradicted,
    ClaimMismatch,
    TestsFailed,
    TestsChanged,
    TestsDeleted,
    TestsSkipped,
    AssertionsRemoved,
    ChecksWeakened,
    RepeatedFailure,
    NewProgram,
    OwnProgram,
    UnverifiedExec,
    EvidenceIncomplete,
    InstallHookWrote,
    RunsOnReview,
    SecretAdded,
    CanaryAdded,
    CollidingName,
    ConfusableName,
    OddName,
    HiddenText,
    BinaryChanged,
    OversizedChange,
    LinkLeavesTree,
    MadeExecutable,
    NotScanned,
    SecretMisdirected,
    SecretEchoed,
    NetworkDenied,
    GateLost,
    CheckFailed,
    ExamChanged,
}

impl FlagKind {
    /// The word in JSON, on the terminal and in the documentation.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClaimUnreadable => "claim_unreadable",
            Self::ClaimWithoutEvidence => "claim_without_evidence",
            Self::ClaimContradicted => "claim_contradicted",
            Self::ClaimMismatch => "claim_mismatch",
            Self::TestsFailed => "tests_failed",
            Self::TestsChanged => "tests_changed",
            Self::TestsDeleted => "tests_deleted",
            Self::TestsSkipped => "tests_skipped",
            Self::AssertionsRemoved => "assertions_removed",
            Self::ChecksWeakened => "checks_weakened",
            Self::RepeatedFailure => "repeated_failure",
            Self::NewProgram => "new_program",
            Self::OwnProgram => "own_program",
            Self::UnverifiedExec => "unverified_exec",
            Self::EvidenceIncomplete => "evidence_incomplete",
            Self::InstallHookWrote => "install_hook_wrote",
            Self::RunsOnReview => "runs_on_review",
            Self::SecretAdded => "secret_added",
            Self::CanaryAdded => "canary_added",
            Self::CollidingName => "colliding_name",
            Self::ConfusableName => "confusable_name",
            Self::OddName => "odd_name",
            Self::HiddenText => "hidden_text",
            Self::BinaryChanged => "binary_changed",
            Self::OversizedChange => "oversized_change",
            Self::LinkLeavesTree => "link_leaves_tree",
            Self::MadeExecutable => "made_executable",
            Self::NotScanned => "not_scanned",
            Self::SecretMisdirected => "secret_misdirected",
            Self::SecretEchoed => "secret_echoed",
            Self::NetworkDenied => "network_denied",
            Self::GateLost => "gate_lost",
            Self::CheckFailed => "check_failed",
            Self::ExamChanged => "exam_changed",
        }
    }
}

/// Something concrete that a flag rests on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Evidence {
    /// A program that ran, by its number in the journal.
    Exec {
        exec: u64,
        argv: Vec<ByteText>,
        #[serde(skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
    },
    /// A changed path.
    Path {
        path: ByteText,
        #[serde(skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
    },
    /// A line of the patch, and of the file that it is in: the new one for an added line, the old
    /// one for a removed line.
    Line {
        path: ByteText,
        line: u64,
        patch_line: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
    },
    /// A field of the claim.
    Claim {
        field: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        value: Option<ByteText>,
    },
    /// A check of the host's own, and what came of it.
    Check { command: String, detail: String },
    /// Something that was asked of the network.
    Network {
        host: ByteText,
        /// 0 for a name.
        port: u16,
        #[serde(skip_serializing_if = "Option::is_none")]
        method: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        path: Option<ByteText>,
        times: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All kinds, as the reader of JSON lists them when it meets another.
    fn kinds() -> Vec<String> {
        let error = serde_json::from_str::<FlagKind>("\"other\"").unwrap_err();
        let words = error.to_string();
        let words = words.split('`').skip(3).step_by(2);
        words.map(str::to_owned).collect()
    }

    #[test]
    fn every_kind_has_one_word_a_row_and_a_place_in_the_schema() {
        let page = include_str!("../../../docs/flags.md");
        let schema = include_str!("../../../docs/formats/review.schema.json");
        let kinds = kinds();
        assert!(kinds.len() > 20, "{kinds:?}");
        for word in &kinds {
            let kind: FlagKind = serde_json::from_str(&format!("{word:?}")).unwrap();
            assert_eq!(kind.as_str(), word);
            assert!(
                page.contains(&format!("| `{word}` | ")),
                "{word} has no row"
            );
            assert!(
                schema.contains(&format!("{word:?}")),
                "{word} is not in the schema"
            );
        }
        let rows = page
            .lines()
            .filter(|line| line.starts_with("| `") && line.matches(" | ").count() == 3);
        assert_eq!(rows.count(), kinds.len());
    }
}
