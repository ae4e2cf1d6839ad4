//! `attestation.json`: a DSSE envelope over an in-toto statement (v1).

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::{Backend, Base, JournalHead, Manifest, PATCH, TreeIdentity};
use crate::ByteText;
use crate::outcome::{Outcome, RunStatus};

/// What stands in the envelope.
pub const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";
const STATEMENT_TYPE: &str = "https://in-toto.io/Statement/v1";
/// What our predicate is called.
pub const PREDICATE_TYPE: &str = "urn:ringfence:run:v1";

/// A DSSE envelope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Envelope {
    pub payload_type: String,
    /// Base 64 of the statement.
    pub payload: String,
    /// Exactly one.
    pub signatures: Vec<Signature>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// SHA-256 (hex) of the public key as a DER `SubjectPublicKeyInfo`.
    pub keyid: String,
    /// Base 64 of the ed25519 signature over [`to_sign`].
    pub sig: String,
}

/// An in-toto statement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Statement {
    #[serde(rename = "_type")]
    pub kind: String,
    pub subject: Vec<Subject>,
    pub predicate_type: String,
    pub predicate: Predicate,
}

/// What the statement is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    pub name: String,
    /// By algorithm: `sha256`, or `gitTree`.
    pub digest: BTreeMap<String, String>,
}

/// What is said of the subjects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predicate {
    pub run: String,
    pub task: Task,
    pub base: Base,
    pub policy_sha256: String,
    pub backend: Backend,
    pub journal: JournalHead,
    pub manifest_sha256: String,
    pub checks: Vec<Check>,
    pub outcome: Ending,
    pub signer: Signer,
}

/// What was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    pub argv: Vec<ByteText>,
}

/// A check that the host ran on the result. It runs none yet, so that only the empty list is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Check {}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    pub status: RunStatus,
    pub outcome: Outcome,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
}

/// Who signs. The key is here so that a reader who does not know it can name it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signer {
    pub keyid: String,
    /// PEM of a `SubjectPublicKeyInfo`.
    pub public_key: String,
}

impl Statement {
    /// The statement about a run whose manifest has this hash.
    pub fn about(
        manifest: &Manifest,
        manifest_sha256: String,
        argv: &[ByteText],
        outcome: Ending,
        signer: Signer,
    ) -> Self {
        let patch = manifest.sha256(PATCH).unwrap_or_default().to_owned();
        let subject = |name: &str, algorithm: &str, digest: String| Subject {
            name: name.to_owned(),
            digest: BTreeMap::from([(algorithm.to_owned(), digest)]),
        };
        let result = match &manifest.tree {
            TreeIdentity::GitTree { id } => subject("tree", "gitTree", id.clone()),
            TreeIdentity::ChangeSet { sha256 } => subject("change_set", "sha256", sha256.clone()),
        };
        Self {
            kind: STATEMENT_TYPE.to_owned(),
            subject: vec![subject(PATCH, "sha256", patch), result],
            predicate_type: PREDICATE_TYPE.to_owned(),
            predicate: Predicate {
                run: manifest.run.clone(),
                task: Task {
                    argv: argv.to_vec(),
                },
                base: manifest.base.clone(),
                policy_sha256: manifest.policy_sha256.clone(),
                backend: manifest.backend.clone(),
                journal: manifest.journal.clone(),
                manifest_sha256,
                checks: Vec::new(),
                outcome,
                signer,
            },
        }
    }

    /// The bytes that go into the envelope.
    pub fn to_payload(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data always serialises")
    }
}

impl Envelope {
    pub fn of(payload: &[u8], keyid: String, signature: &[u8]) -> Self {
        Self {
            payload_type: PAYLOAD_TYPE.to_owned(),
            payload: STANDARD.encode(payload),
            signatures: vec![Signature {
                keyid,
                sig: STANDARD.encode(signature),
            }],
        }
    }

    /// Payload, key id and signature; `None` where it is not one of ours.
    pub fn open(&self) -> Option<(Vec<u8>, &str, Vec<u8>)> {
        let [signature] = &self.signatures[..] else {
            return None;
        };
        if self.payload_type != PAYLOAD_TYPE {
            return None;
        }
        let payload = STANDARD.decode(&self.payload).ok()?;
        let sig = STANDARD.decode(&signature.sig).ok()?;
        Some((payload, &signature.keyid, sig))
    }
}

/// What is signed: DSSE's pre-authentication encoding, in which no two pairs are alike.
pub fn to_sign(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let head = format!(
        "DSSEv1 {} {payload_type} {} ",
        payload_type.len(),
        payload.len()
    );
    [head.as_bytes(), payload].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_signed_is_what_dsse_says() {
        // The example of the specification.
        let signed = to_sign("http://example.com/HelloWorld", b"hello world");
        let expected = "DSSEv1 29 http://example.com/HelloWorld 11 hello world";
        assert_eq!(signed, expected.as_bytes());
    }

    #[test]
    fn an_envelope_holds_one_signature_of_our_type() {
        let whole = Envelope::of(b"{}", "id".into(), &[1, 2]);
        let (payload, keyid, sig) = whole.open().unwrap();
        assert_eq!(
            (&payload[..], keyid, &sig[..]),
            (&b"{}"[..], "id", &[1, 2][..])
        );
        for change in [
            |e: &mut Envelope| e.payload_type.push('x'),
            |e: &mut Envelope| e.payload.push('*'),
            |e: &mut Envelope| e.payload.push('A'),
            |e: &mut Envelope| e.signatures.clear(),
            |e: &mut Envelope| e.signatures.push(e.signatures[0].clone()),
            |e: &mut Envelope| e.signatures[0].sig.insert(0, ' '),
        ] {
            let mut changed = whole.clone();
            change(&mut changed);
            assert_eq!(changed.open(), None, "{changed:?}");
        }
    }
}
