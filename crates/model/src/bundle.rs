//! What a run leaves behind: the manifest that binds the files of a bundle by hash, and the
//! attestation that binds the manifest to a key. Formats and rules only; files are the engine's.
//!
//! ```text
//! key ──signs──▶ attestation.json ──sha256──▶ manifest.json ──sha256──▶ changes.patch, result.json,
//!                                                                       audit.jsonl, summary.md
//! ```

pub mod attestation;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::ByteText;
use crate::changes::{Change, ChangeKind, FileMode};
use crate::environment::CacheKind;
use crate::journal::FilesHeld;
use crate::limits::{Graded, Limits};
use crate::policy::Effective;
use crate::wire::{Observation, Wall};

/// The version of the formats in a bundle, all of them together.
pub const SCHEMA: u32 = 1;

/// The files of a bundle.
pub const MANIFEST: &str = "manifest.json";
pub const ATTESTATION: &str = "attestation.json";
pub const PATCH: &str = "changes.patch";
pub const RESULT: &str = "result.json";
pub const JOURNAL: &str = "audit.jsonl";
pub const SUMMARY: &str = "summary.md";

/// Those that the manifest lists, in its order.
pub const LISTED: [&str; 4] = [PATCH, RESULT, JOURNAL, SUMMARY];
/// All of them.
pub const FILES: [&str; 6] = [MANIFEST, ATTESTATION, PATCH, RESULT, JOURNAL, SUMMARY];

/// How many bytes a file of a bundle may have.
pub fn most_bytes(file: &str) -> u64 {
    match file {
        // BOUND: a fixed set of fields, and patterns and names that were typed.
        MANIFEST => 16 << 20,
        // BOUND: it repeats the command, of at most 2 MiB and five characters a byte, in base 64.
        ATTESTATION => 32 << 20,
        // BOUND: what a change set may render to, with room for what cannot be foreseen exactly.
        PATCH => 640 << 20,
        // BOUND: a result lists every changed path; a million of them is 200 MB.
        RESULT => 256 << 20,
        // BOUND: as the journal's own.
        JOURNAL => 64 << 20,
        // BOUND: lists in it are short; a name or the command may be long.
        SUMMARY => 32 << 20,
        _ => 0,
    }
}

/// What a sandbox stood on besides its folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentFacts {
    /// The digest of the image. Absent: the host's own toolchain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The hash of all that went into the setup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup_key: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<CacheFacts>,
    /// What programs said of themselves in the sandbox of the setup.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tools: BTreeMap<String, String>,
}

/// A cache that was below.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheFacts {
    pub kind: CacheKind,
    /// Whose setups filled it.
    pub scope: String,
    /// Absent: it was empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
}

impl EnvironmentFacts {
    /// Whether there is nothing to say.
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }
}

/// `manifest.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub schema: u32,
    pub run: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Microseconds since the epoch, by the host's clock, when the bundle was packed.
    pub created_us: i64,
    /// Of the program that made it.
    pub version: String,
    pub base: Base,
    /// What it stood on besides. Absent where there was nothing, and in earlier versions.
    #[serde(default, skip_serializing_if = "EnvironmentFacts::is_plain")]
    pub environment: EnvironmentFacts,
    pub policy: Policy,
    /// See [`Policy::sha256`].
    pub policy_sha256: String,
    pub backend: Backend,
    pub tree: TreeIdentity,
    pub journal: JournalHead,
    /// Each of [`LISTED`], in that order.
    pub files: Vec<FileDigest>,
}

impl Manifest {
    /// The recorded hash of a file.
    pub fn sha256(&self, name: &str) -> Option<&str> {
        let file = self.files.iter().find(|file| file.name == name);
        file.map(|file| file.sha256.as_str())
    }
}

/// What the run started from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Base {
    /// The tracked files were those of a commit.
    Commit {
        commit: String,
        /// Of the whole commit.
        tree: String,
        /// The folder's path below the top of the repository; empty for the top.
        prefix: ByteText,
    },
    /// The folder of a repository, with tracked files that are not those of its commit.
    DirtyFolder {
        commit: String,
        tree: String,
        prefix: ByteText,
        /// For a person: what differs.
        why: String,
    },
    /// A folder of which no commit is known.
    Folder {
        /// For a person: why not.
        why: String,
    },
}

/// What steers a run, besides the command. Values of variables are not in it: they may be secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    pub limits: Limits,
    pub require_hard: bool,
    /// Patterns of what is absent inside.
    pub hide: Vec<String>,
    /// Where the folder is inside.
    pub inside: ByteText,
    pub include_ignored: bool,
    /// Names of the variables that were given.
    pub variables: Vec<ByteText>,
    /// What the files of the policy and the command line came to. Absent where there was nothing,
    /// and in bundles of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective: Option<Effective>,
}

impl Policy {
    /// SHA-256 (hex) of the canonical JSON.
    pub fn sha256(&self) -> String {
        let value = serde_json::to_value(self).expect("plain data always serialises");
        sha256_hex(crate::strict::canonical(&value).as_bytes())
    }
}

/// Who held the sandbox, and to what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backend {
    pub name: String,
    /// Which ids there are inside.
    pub identity: String,
    pub limits: Vec<Graded>,
    pub wall: Wall,
    /// How many things were tried from inside before the start, all in vain.
    pub probes: u64,
    pub observation: Observation,
    /// Absent where nothing but the usual is held, and in bundles of earlier versions.
    #[serde(default, skip_serializing_if = "FilesHeld::is_plain")]
    pub files: FilesHeld,
}

/// What the folder would be with the patch applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TreeIdentity {
    /// Git's id of the base commit's tree with the changes in it.
    GitTree { id: String },
    /// No tree has a name; see [`change_set_sha256`].
    ChangeSet { sha256: String },
}

/// How long the journal is, and where it ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalHead {
    pub head: String,
    pub lines: u64,
}

/// One file of the bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDigest {
    pub name: String,
    pub size: u64,
    pub sha256: String,
}

/// A file of git: its mode and the id of its content.
pub type Blob<'a> = (FileMode, &'a str);

/// What a path holds before and after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step<'a> {
    pub old: Option<Blob<'a>>,
    pub new: Option<Blob<'a>>,
}

/// The changes by path: a rename is a path that goes and one that comes, a change of type is one
/// path. `None` where two changes say different things of one path.
pub fn steps(changes: &[Change]) -> Option<BTreeMap<&[u8], Step<'_>>> {
    let mut steps: BTreeMap<&[u8], Step<'_>> = BTreeMap::new();
    for change in changes {
        let old = change.old.as_ref().map(|side| (side.mode, &side.oid[..]));
        let new = change.new.as_ref().map(|side| (side.mode, &side.oid[..]));
        let from = match &change.kind {
            ChangeKind::Renamed { from } => from.as_bytes(),
            _ => change.path.as_bytes(),
        };
        if let Some(old) = old {
            let step = steps.entry(from).or_default();
            if step.old.replace(old).is_some() {
                return None;
            }
        }
        if let Some(new) = new {
            let step = steps.entry(change.path.as_bytes()).or_default();
            if step.new.replace(new).is_some() {
                return None;
            }
        }
    }
    Some(steps)
}

/// The name of a change set: SHA-256 (hex) over its paths in order, each as
/// `path NUL old NUL new NUL`, where a side is its mode, a space and its id, or nothing.
pub fn change_set_sha256(changes: &[Change]) -> Option<String> {
    let mut hash = Sha256::new();
    for (path, step) in steps(changes)? {
        hash.update(path);
        hash.update([0]);
        for side in [step.old, step.new] {
            if let Some((mode, oid)) = side {
                hash.update(mode.octal());
                hash.update(" ");
                hash.update(oid);
            }
            hash.update([0]);
        }
    }
    Some(crate::hex(&hash.finalize()))
}

/// SHA-256 in hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    crate::hex(&Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::Side;

    fn side(oid: &str) -> Option<Side> {
        Some(Side {
            mode: FileMode::Regular,
            oid: oid.to_owned(),
            size: 1,
        })
    }

    fn change(path: &str, kind: ChangeKind, old: &str, new: &str) -> Change {
        Change {
            path: path.into(),
            kind,
            old: side(old).filter(|_| !old.is_empty()),
            new: side(new).filter(|_| !new.is_empty()),
            binary: false,
        }
    }

    #[test]
    fn a_rename_is_a_path_that_goes_and_one_that_comes() {
        let renamed = [change(
            "b",
            ChangeKind::Renamed { from: "a".into() },
            "1",
            "2",
        )];
        let apart = [
            change("a", ChangeKind::Deleted, "1", ""),
            change("b", ChangeKind::Added, "", "2"),
        ];
        assert_eq!(steps(&renamed), steps(&apart));
        assert_eq!(change_set_sha256(&renamed), change_set_sha256(&apart));
        // As anybody can compute it.
        let text = b"a\x00100644 1\0\0b\0\x00100644 2\0";
        assert_eq!(change_set_sha256(&renamed), Some(sha256_hex(text)));
    }

    #[test]
    fn two_words_on_one_path_are_none() {
        let twice = [
            change("a", ChangeKind::Added, "", "1"),
            change("a", ChangeKind::Added, "", "2"),
        ];
        assert_eq!(change_set_sha256(&twice), None);
        let retyped = [
            change("a", ChangeKind::Deleted, "1", ""),
            change("a", ChangeKind::Added, "", "2"),
        ];
        assert_eq!(steps(&retyped).unwrap().len(), 1);
    }

    #[test]
    fn every_file_has_a_bound() {
        for file in FILES {
            assert!(most_bytes(file) > 0, "{file}");
        }
    }
}
