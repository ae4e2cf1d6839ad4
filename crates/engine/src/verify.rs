//! Whether a bundle is what it says: on any machine, offline, with nothing but its directory.
//!
//! ```text
//! files ─▶ manifest ─▶ hashes ─▶ journal ─▶ result ─▶ patch ─▶ signature ─▶ signer ─▶ base
//! ```
//!
//! Each check says `ok`, `failed` or `not checked`. One that failed does not stop those that can
//! still say something.

mod agree;
mod base;
mod files;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use ringfence_model::bundle::attestation::{Envelope, PAYLOAD_TYPE, Statement, to_sign};
use ringfence_model::bundle::{ATTESTATION, JOURNAL, MANIFEST, Manifest, PATCH, RESULT};
use ringfence_model::journal::Line;
use ringfence_model::strict;
use serde::Serialize;

use crate::bundle;
use crate::error::Error;
use crate::home::PARTIAL;
use crate::keys::PublicKey;
use crate::patch::Patch;
use crate::run::RunResult;

use agree::chain;
use base::Answer;
pub use files::Contents;

/// What is to be verified, and by whose keys.
#[derive(Debug)]
pub struct Request {
    pub bundle: PathBuf,
    /// Keys that are trusted, with what they are called.
    pub keys: Vec<(String, PublicKey)>,
    /// Where the base is; the recorded folder if not said.
    pub base: Option<PathBuf>,
}

/// What a check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Ok,
    Failed,
    NotChecked,
}

impl State {
    /// The word shown to people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::NotChecked => "not checked",
        }
    }
}

/// One check.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    pub check: &'static str,
    pub state: State,
    pub detail: String,
}

/// All that was found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub bundle: PathBuf,
    pub verdict: Verdict,
    /// Absent where there is no manifest that can be read.
    pub run: Option<String>,
    pub signed_by: Option<SignedBy>,
    pub checks: Vec<Check>,
}

/// Whose signature it is.
#[derive(Clone, Debug, Serialize)]
pub struct SignedBy {
    pub keyid: String,
    /// What the key is called here; absent where it is not trusted.
    pub trusted_as: Option<String>,
}

/// What it comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Whole, and signed by a key that is trusted.
    Ok,
    /// Whole, and signed by a key that is not trusted here.
    Untrusted,
    /// Something is not what it should be.
    Broken,
}

impl Verdict {
    /// The exit code of a command that found this.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Broken => 1,
            Self::Untrusted => 3,
        }
    }
}

/// The name of the check whose failure means nothing but that a key is not trusted.
const SIGNER: &str = "signer";

/// Reads the files of a bundle, once. The inner error says why this is none.
pub fn read(bundle: &Path) -> Result<Result<Contents, String>, Error> {
    let directory = files::open(bundle)?;
    let read = files::read(&directory).map_err(|source| Error::ReadFile {
        path: bundle.to_owned(),
        source,
    })?;
    Ok(read.and_then(|contents| {
        if is_partial(bundle) {
            Err("this is what a run left that was never packed".to_owned())
        } else {
            Ok(contents)
        }
    }))
}

/// Verifies a bundle. An error means that there is none to be looked at.
pub fn verify(request: &Request) -> Result<Report, Error> {
    let mut found = Found::default();
    let contents = found.note("files", read(&request.bundle)?, |_| SIX.to_owned());
    match &contents {
        Some(contents) => found.look_at(contents, request),
        None => CHECKS
            .iter()
            .for_each(|check| found.skip(check, "without its files")),
    }
    Ok(found.report(request))
}

/// Verifies what was read, without a look at the base: for who is about to meet it anyway.
pub fn verify_packed(contents: &Contents, request: &Request) -> Report {
    let mut found = Found::default();
    found.note("files", Ok(()), |()| SIX.to_owned());
    found.look_at_packed(contents, request, |_, _, _, _| {});
    found.report(request)
}

const SIX: &str = "the six files and nothing else";

/// Those that need the files.
const CHECKS: [&str; 8] = [
    "manifest",
    "hashes",
    "journal",
    "result",
    "patch",
    "signature",
    SIGNER,
    "base",
];

fn is_partial(bundle: &Path) -> bool {
    let name = bundle.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.ends_with(PARTIAL))
}

#[derive(Default)]
struct Found {
    checks: Vec<Check>,
    run: Option<String>,
    signed_by: Option<SignedBy>,
}

impl Found {
    fn report(self, request: &Request) -> Report {
        let failed = |check: &&Check| check.state == State::Failed;
        let failures: Vec<&Check> = self.checks.iter().filter(failed).collect();
        let verdict = match &failures[..] {
            [] => Verdict::Ok,
            [only] if only.check == SIGNER => Verdict::Untrusted,
            _ => Verdict::Broken,
        };
        Report {
            bundle: request.bundle.clone(),
            verdict,
            run: self.run,
            signed_by: self.signed_by,
            checks: self.checks,
        }
    }

    /// Records a check; gives what it found if it is well.
    fn note<T>(
        &mut self,
        check: &'static str,
        result: Result<T, String>,
        detail: impl FnOnce(&T) -> String,
    ) -> Option<T> {
        let (state, detail) = match &result {
            Ok(value) => (State::Ok, detail(value)),
            Err(why) => (State::Failed, why.clone()),
        };
        self.checks.push(Check {
            check,
            state,
            detail,
        });
        result.ok()
    }

    fn skip(&mut self, check: &'static str, why: &str) {
        self.checks.push(Check {
            check,
            state: State::NotChecked,
            detail: why.to_owned(),
        });
    }

    fn look_at(&mut self, contents: &Contents, request: &Request) {
        self.look_at_packed(contents, request, |found, manifest, patch, result| {
            found.base(manifest, patch, result, request);
        });
    }

    /// All that the files say by themselves; `then` is called with what they hold.
    fn look_at_packed(
        &mut self,
        contents: &Contents,
        request: &Request,
        then: impl FnOnce(&mut Self, &Manifest, Option<&Patch<'_>>, Option<&RunResult>),
    ) {
        let text = contents.of(MANIFEST);
        let manifest = self.note("manifest", agree::manifest(text), |manifest| {
            let version: String = manifest.version.chars().take(40).collect();
            format!("schema {}, by ringfence {version}", manifest.schema)
        });
        let Some(manifest) = manifest else {
            for check in &CHECKS[1..] {
                self.skip(check, "without a manifest");
            }
            return;
        };
        self.run = Some(manifest.run.clone());
        let hashes = agree::hashes(&manifest, contents);
        self.note("hashes", hashes, |()| {
            "each file has the recorded length and hash".to_owned()
        });
        let lines = agree::journal(&manifest, contents.of(JOURNAL));
        let lines = self.note("journal", lines, |lines| {
            let head = &manifest.journal.head;
            format!("the chain holds over {} lines, head {head}", lines.len())
        });
        let result = self.result(&manifest, contents, lines.as_deref());
        let patch = self.patch(contents, result.as_ref());
        self.signature(&manifest, contents, result.as_ref(), request);
        then(self, &manifest, patch.as_ref(), result.as_ref());
    }

    fn result(
        &mut self,
        manifest: &Manifest,
        contents: &Contents,
        lines: Option<&[Line]>,
    ) -> Option<RunResult> {
        let parsed = strict::parse::<RunResult>(contents.of(RESULT));
        let parsed = parsed.map_err(|error| chain(&error));
        let agreed = parsed.and_then(|result| {
            agree::result(&result, manifest, lines)?;
            Ok(result)
        });
        self.note("result", agreed, |_| match lines {
            Some(_) => "it says what manifest and journal say".to_owned(),
            None => "it says what the manifest says".to_owned(),
        })
    }

    /// The patch against the result, and against itself as far as it holds whole contents.
    fn patch<'a>(
        &mut self,
        contents: &'a Contents,
        result: Option<&'a RunResult>,
    ) -> Option<Patch<'a>> {
        let Some(result) = result else {
            self.skip("patch", "without a result");
            return None;
        };
        let read = Patch::read(contents.of(PATCH), &result.changes).and_then(|patch| {
            for entry in patch
                .entries
                .iter()
                .filter(|entry| entry.is_self_contained())
            {
                entry.content(None)?;
            }
            Ok(patch)
        });
        let checked = read.map_err(|error| error.to_string()).and_then(|patch| {
            let lines = (patch.insertions, patch.deletions);
            if lines == (result.insertions, result.deletions) {
                Ok(patch)
            } else {
                Err("the result counts other lines".to_owned())
            }
        });
        self.note("patch", checked, |patch| {
            let changes = if patch.entries.len() == 1 {
                "change"
            } else {
                "changes"
            };
            format!("{} {changes}, as the result says", patch.entries.len())
        })
    }

    fn signature(
        &mut self,
        manifest: &Manifest,
        contents: &Contents,
        result: Option<&RunResult>,
        request: &Request,
    ) {
        let signed = signed(contents.of(ATTESTATION)).and_then(|(statement, key)| {
            agree::statement(&statement, manifest, contents.of(MANIFEST), result)?;
            Ok(key)
        });
        let key = self.note("signature", signed, |key| {
            format!("ed25519, over exactly these digests, by key {}", key.id())
        });
        let Some(key) = key else {
            self.skip(SIGNER, "without a signature that holds");
            return;
        };
        let known = request.keys.iter().find(|(_, known)| *known == key);
        let trusted_as = known.map(|(name, _)| name.clone());
        let trusted = trusted_as
            .clone()
            .ok_or_else(|| format!("key {} is not trusted here", key.id()));
        self.note(SIGNER, trusted, |name| format!("trusted: {name}"));
        self.signed_by = Some(SignedBy {
            keyid: key.id(),
            trusted_as,
        });
    }

    fn base(
        &mut self,
        manifest: &Manifest,
        patch: Option<&Patch<'_>>,
        result: Option<&RunResult>,
        request: &Request,
    ) {
        let (Some(patch), Some(result)) = (patch, result) else {
            self.skip("base", "without a patch and a result that hold");
            return;
        };
        let trusted = self
            .signed_by
            .as_ref()
            .and_then(|by| by.trusted_as.as_ref());
        // HOSTILE: who is not trusted does not choose where we look.
        let recorded = trusted.map(|_| {
            let folder = result.folder.as_bytes();
            PathBuf::from(OsStr::from_bytes(folder))
        });
        let Some(at) = request.base.clone().or(recorded) else {
            self.skip("base", "base not here: `--base` says where it is");
            return;
        };
        match base::check(manifest, patch, &at) {
            Answer::Holds(detail) => drop(self.note("base", Ok(()), |()| detail)),
            Answer::Fails(why) => drop(self.note::<()>("base", Err(why), |()| String::new())),
            // Who names a base wants it checked.
            Answer::Unknown(why) if request.base.is_some() => {
                let _ = self.note::<()>("base", Err(why), |()| String::new());
            }
            Answer::Unknown(why) => self.skip("base", &why),
        }
    }
}

/// What was signed, and by which key.
fn signed(text: &[u8]) -> Result<(Statement, PublicKey), String> {
    let envelope: Envelope = strict::parse(text).map_err(|error| chain(&error))?;
    // No hash binds this file, so that its bytes must be the only ones that say this.
    if text != bundle::pretty(&envelope) {
        return Err("it is not written as we write it".to_owned());
    }
    let opened = envelope.open();
    let (payload, keyid, signature) =
        opened.ok_or_else(|| "it is not an envelope with one signature".to_owned())?;
    let statement: Statement = strict::parse(&payload).map_err(|error| chain(&error))?;
    let signer = &statement.predicate.signer;
    let key = PublicKey::from_pem(&signer.public_key)
        .filter(|key| key.id() == keyid && signer.keyid == keyid)
        .ok_or_else(|| "it does not name the key that signed".to_owned())?;
    if key.verifies(&to_sign(PAYLOAD_TYPE, &payload), &signature) {
        Ok((statement, key))
    } else {
        Err(format!("it is not a signature of key {keyid}"))
    }
}
