//! The bundle in `docs/formats/golden`, to be verified as it is and changed in every way.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ringfence_engine::home::Home;
use ringfence_engine::keys::{self, OwnKey, PublicKey};
use ringfence_engine::verify::{Report, Request, State, Verdict, verify};
use ringfence_model::bundle::attestation::{Envelope, PAYLOAD_TYPE, Signer, Statement, to_sign};
use ringfence_model::bundle::{
    ATTESTATION, FILES, FileDigest, JOURNAL, LISTED, MANIFEST, Manifest, RESULT, sha256_hex,
};
use ringfence_model::journal::{Chain, Event, Line};
use serde_json::Value;

pub fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats/golden")
}

/// The key that signed the golden bundle. It is a secret of nobody.
pub fn golden_key() -> OwnKey {
    let directory = tempfile::tempdir().unwrap();
    let home = Home::open(Some(directory.path().join("home"))).unwrap();
    let path = home.keys().join("signing.pem");
    fs::copy(golden().join("signing.pem"), &path).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    keys::own(&home).unwrap()
}

pub fn another_key() -> OwnKey {
    let directory = tempfile::tempdir().unwrap();
    let home = Home::open(Some(directory.path().join("home"))).unwrap();
    keys::own(&home).unwrap()
}

/// The commit that the golden run started from.
pub fn golden_base() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let top = directory.path();
    let copied = Command::new("cp")
        .arg("-r")
        .arg(golden().join("base/."))
        .arg(top)
        .status();
    assert!(copied.unwrap().success());
    for words in [
        &["init", "-q", "-b", "main"][..],
        &["add", "-A"],
        &["commit", "-q", "-m", "golden"],
    ] {
        let git = Command::new("git")
            .args(words)
            .current_dir(top)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .envs([
                ("HOME", "/nonexistent"),
                ("GIT_CONFIG_NOSYSTEM", "1"),
                ("GIT_AUTHOR_NAME", "Golden"),
                ("GIT_AUTHOR_EMAIL", "golden@example.org"),
                ("GIT_AUTHOR_DATE", "1700000000 +0000"),
                ("GIT_COMMITTER_NAME", "Golden"),
                ("GIT_COMMITTER_EMAIL", "golden@example.org"),
                ("GIT_COMMITTER_DATE", "1700000000 +0000"),
            ])
            .status();
        assert!(git.unwrap().success(), "git {words:?}");
    }
    directory
}

/// A bundle in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle(pub BTreeMap<&'static str, Vec<u8>>);

impl Bundle {
    pub fn golden() -> Self {
        let directory = golden().join("bundle");
        let read = |name| fs::read(directory.join(name)).unwrap();
        Self(FILES.into_iter().map(|name| (name, read(name))).collect())
    }

    pub fn write(&self) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, bytes) in &self.0 {
            fs::write(directory.path().join(name), bytes).unwrap();
        }
        directory
    }

    pub fn report(&self, trusted: &PublicKey, base: Option<&Path>) -> Report {
        look(self.write().path(), trusted, base)
    }

    pub fn verdict(&self, trusted: &PublicKey) -> Verdict {
        self.report(trusted, None).verdict
    }

    pub fn text(&self, name: &str) -> String {
        String::from_utf8(self.0[name].clone()).unwrap()
    }

    pub fn manifest(&self) -> Manifest {
        serde_json::from_slice(&self.0[MANIFEST]).unwrap()
    }

    pub fn statement(&self) -> Statement {
        let envelope: Envelope = serde_json::from_slice(&self.0[ATTESTATION]).unwrap();
        serde_json::from_slice(&envelope.open().unwrap().0).unwrap()
    }

    /// Edits the result as JSON.
    pub fn edit_result(&mut self, edit: impl FnOnce(&mut Value)) {
        let mut value: Value = serde_json::from_slice(&self.0[RESULT]).unwrap();
        edit(&mut value);
        self.0.insert(RESULT, pretty(&value));
    }

    /// Edits the events of the journal, and chains them again.
    pub fn edit_journal(&mut self, mut edit: impl FnMut(&mut Event)) {
        let mut chain = Chain::default();
        let mut text = String::new();
        for line in self.text(JOURNAL).lines() {
            let mut line: Line = serde_json::from_str(line).unwrap();
            edit(&mut line.event);
            text.push_str(&chain.append(line.time_us, line.event).unwrap());
        }
        self.0.insert(JOURNAL, text.into_bytes());
        let head = chain.head().to_owned();
        self.edit_result(|result| result["journal_head"] = head.clone().into());
        let mut manifest = self.manifest();
        manifest.journal.head = head;
        manifest.journal.lines = chain.lines();
        self.0.insert(MANIFEST, pretty(&manifest));
    }

    /// What somebody does who has a key: all hashes are right again, and signed.
    pub fn reseal(&mut self, key: &OwnKey) {
        let mut manifest = self.manifest();
        manifest.files = LISTED
            .into_iter()
            .map(|name| FileDigest {
                name: name.to_owned(),
                size: self.0[name].len() as u64,
                sha256: sha256_hex(&self.0[name]),
            })
            .collect();
        self.0.insert(MANIFEST, pretty(&manifest));
        self.resign(key);
    }

    /// Signs the manifest as it is.
    pub fn resign(&mut self, key: &OwnKey) {
        let old = self.statement().predicate;
        let manifest: Manifest =
            serde_json::from_slice(&self.0[MANIFEST]).unwrap_or_else(|_| Self::golden().manifest());
        let signer = Signer {
            keyid: key.public().id(),
            public_key: key.public().pem(),
        };
        let hash = sha256_hex(&self.0[MANIFEST]);
        let outcome = old.outcome;
        let statement = Statement::about(&manifest, hash, &old.task.argv, outcome, signer);
        self.sign(&statement.to_payload(), key);
    }

    pub fn sign(&mut self, payload: &[u8], key: &OwnKey) {
        let signature = key.sign(&to_sign(PAYLOAD_TYPE, payload));
        let envelope = Envelope::of(payload, key.public().id(), &signature);
        self.0.insert(ATTESTATION, pretty(&envelope));
    }
}

pub fn look(directory: &Path, trusted: &PublicKey, base: Option<&Path>) -> Report {
    verify(&Request {
        bundle: directory.to_owned(),
        keys: vec![("golden".to_owned(), *trusted)],
        base: base.map(Path::to_owned),
    })
    .unwrap()
}

/// The checks that failed, with what they say.
pub fn failures(report: &Report) -> Vec<String> {
    let failed = report.checks.iter().filter(|c| c.state == State::Failed);
    failed
        .map(|c| format!("{}: {}", c.check, c.detail))
        .collect()
}

pub fn pretty(value: &impl serde::Serialize) -> Vec<u8> {
    let mut json = serde_json::to_vec_pretty(value).unwrap();
    json.push(b'\n');
    json
}
