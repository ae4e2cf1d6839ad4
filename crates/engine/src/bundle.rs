//! A bundle in the making. Its files are written beside the place of the bundle; when all of them
//! are on the disk, one rename makes the bundle appear.
//!
//! ```text
//! bundles/<run>.partial/   audit.jsonl, then changes.patch, result.json, summary.md, manifest.json,
//!        │                 attestation.json
//!        │ all synced as one group
//!        ▼ renamed
//! bundles/<run>/           whole
//! ```
//!
//! INVARIANT: a directory that has a run's bare id for its name holds all six files, whole. Whoever
//! dies before leaves a partial one, which says how far it came; whoever dies after has only the row
//! in the store to write, and [`finished`] tells the next one what belongs into it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use ringfence_model::attribution::Attribution;
use ringfence_model::bundle::attestation::{
    Ending, Envelope, PAYLOAD_TYPE, Signer, Statement, to_sign,
};
use ringfence_model::bundle::{
    ATTESTATION, Backend, Base, FileDigest, JOURNAL, JournalHead, LISTED, MANIFEST, Manifest,
    PATCH, Policy, RESULT, SCHEMA, SUMMARY, TreeIdentity, most_bytes, sha256_hex,
};
use ringfence_model::changes::ChangeSet;
use rustix::fs::RenameFlags;
use sha2::{Digest as _, Sha256};

use crate::attribution;
use crate::changes::{ChangesError, PatchStats, Sources};
use crate::clock::now_us;
use crate::durable::{self, Existing, Written};
use crate::error::Error;
use crate::evidence::Evidence;
use crate::fail;
use crate::guard::Guard;
use crate::home::Home;
use crate::ids::RunId;
use crate::journal::JournalFile;
use crate::keys::OwnKey;
use crate::run::RunResult;
use crate::store::FinishedRun;

/// A directory that becomes a bundle.
#[derive(Debug)]
pub(crate) struct Packing<'a> {
    home: &'a Home,
    run: RunId,
    directory: PathBuf,
}

/// A patch that was written, not yet synced.
#[derive(Debug)]
pub(crate) struct Patch {
    file: File,
    pub sha256: String,
    pub stats: PatchStats,
}

/// What only the driver of a run knows.
#[derive(Debug)]
pub(crate) struct Facts {
    pub policy: Policy,
    pub base: Base,
    pub tree: TreeIdentity,
    pub backend: Backend,
}

impl<'a> Packing<'a> {
    pub(crate) fn begin(home: &'a Home, run: RunId) -> Result<Self, Error> {
        let directory = home.partial_bundle(run);
        fs::create_dir(&directory).map_err(|source| Error::WriteFile {
            path: directory.clone(),
            source,
        })?;
        Ok(Self {
            home,
            run,
            directory,
        })
    }

    /// Where a file of the bundle is while it is packed.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The journal, which is there from the beginning.
    pub(crate) fn journal(&self) -> Result<JournalFile, Error> {
        Ok(JournalFile::create(&self.path(JOURNAL))?)
    }

    /// Renders the patch, and tells who made what is in it.
    pub(crate) fn patch(
        &self,
        sources: &Sources,
        set: &ChangeSet,
        evidence: &Evidence,
    ) -> Result<(Patch, Attribution), Error> {
        let show = |out: &mut dyn io::Write| attribution::render(sources, set, evidence, out);
        render(&self.path(PATCH), show)
    }

    /// Writes what is missing, and makes the bundle appear. The journal is complete.
    pub(crate) fn finish(
        self,
        result: &RunResult,
        facts: Facts,
        patch: &Patch,
        journal: &JournalFile,
        key: &OwnKey,
        guard: &Guard,
    ) -> Result<(), Error> {
        let result_json = self.write(RESULT, &guard.clean(result.to_json()))?;
        fail::point("run:result");
        let summary = self.write(SUMMARY, &guard.clean(result.summary().into_bytes()))?;
        fail::point("run:summary");
        let manifest = Manifest {
            schema: SCHEMA,
            run: self.run.to_string(),
            name: result.name.clone(),
            created_us: now_us(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            base: facts.base,
            environment: result.environment.clone(),
            policy_sha256: facts.policy.sha256(),
            policy: facts.policy,
            backend: facts.backend,
            tree: facts.tree,
            journal: JournalHead {
                head: journal.head().to_owned(),
                lines: journal.lines(),
            },
            files: LISTED
                .iter()
                .map(|name| self.digest(name))
                .collect::<Result<_, _>>()?,
        };
        let text = pretty(&manifest);
        let manifest_json = self.write(MANIFEST, &text)?;
        fail::point("run:manifest");
        let attested = attest(&manifest, &text, result, key);
        let attestation = self.write(ATTESTATION, &attested)?;
        fail::point("run:attested");
        durable::sync_all(
            &[
                (journal.path(), journal.file()),
                (&self.directory.join(PATCH), &patch.file),
                (&result_json.path, &result_json.file),
                (&summary.path, &summary.file),
                (&manifest_json.path, &manifest_json.file),
                (&attestation.path, &attestation.file),
            ],
            &[&self.directory],
        )?;
        fail::point("run:synced");
        let bundle = self.home.bundle(self.run);
        let (from, to) = (&self.directory, &bundle);
        rustix::fs::renameat_with(
            rustix::fs::CWD,
            from,
            rustix::fs::CWD,
            to,
            RenameFlags::NOREPLACE,
        )
        .map_err(|errno| Error::WriteFile {
            path: bundle.clone(),
            source: errno.into(),
        })?;
        fail::point("run:named");
        durable::sync_all(&[], &[&self.home.bundles()])?;
        fail::point("run:packed");
        Ok(())
    }

    fn write(&self, name: &'static str, bytes: &[u8]) -> Result<Written, Error> {
        within_bound(name, bytes.len() as u64)?;
        let path = self.directory.join(name);
        Ok(durable::write_file(&path, bytes, Existing::Refuse)?)
    }

    /// Of a file as it was really written.
    fn digest(&self, name: &str) -> Result<FileDigest, Error> {
        let path = self.directory.join(name);
        let read = || -> io::Result<(u64, String)> {
            let mut file = File::open(&path)?;
            let mut hash = Sha256::new();
            let mut chunk = vec![0; 128 << 10];
            let mut size = 0;
            loop {
                match file.read(&mut chunk)? {
                    0 => return Ok((size, ringfence_model::hex(&hash.finalize()))),
                    count => {
                        hash.update(&chunk[..count]);
                        size += count as u64;
                    }
                }
            }
        };
        let (size, sha256) = read().map_err(|source| Error::ReadFile {
            path: path.clone(),
            source,
        })?;
        Ok(FileDigest {
            name: name.to_owned(),
            size,
            sha256,
        })
    }
}

/// Renders a patch into a file that is not there yet; gives what else `show` found.
pub(crate) fn render<T>(
    path: &Path,
    show: impl FnOnce(&mut dyn io::Write) -> Result<(PatchStats, T), ChangesError>,
) -> Result<(Patch, T), Error> {
    let write = || -> Result<(Patch, T), Error> {
        let fail = |source| Error::WriteFile {
            path: path.to_owned(),
            source,
        };
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(fail)?;
        let mut out = Hashing {
            out: io::BufWriter::new(file),
            hash: Sha256::new(),
        };
        let (stats, found) = show(&mut out)?;
        within_bound(PATCH, stats.bytes)?;
        out.flush().map_err(fail)?;
        let file = out.out.into_inner();
        let patch = Patch {
            file: file.map_err(|error| fail(error.into_error()))?,
            sha256: ringfence_model::hex(&out.hash.finalize()),
            stats,
        };
        Ok((patch, found))
    };
    // Half a patch is none, and its room is needed to say so.
    write().inspect_err(|_| drop(fs::remove_file(path)))
}

fn attest(manifest: &Manifest, text: &[u8], result: &RunResult, key: &OwnKey) -> Vec<u8> {
    let public = key.public();
    let signer = Signer {
        keyid: public.id(),
        public_key: public.pem(),
    };
    let ending = ending(result);
    let statement = Statement::about(manifest, sha256_hex(text), &result.argv, ending, signer);
    let payload = statement.to_payload();
    let signature = key.sign(&to_sign(PAYLOAD_TYPE, &payload));
    pretty(&Envelope::of(&payload, public.id(), &signature))
}

/// How a result says that the run ended.
pub(crate) fn ending(result: &RunResult) -> Ending {
    Ending {
        status: result.status,
        outcome: result.outcome,
        exit_code: result.exit_code,
        signal: result.signal,
    }
}

/// How JSON stands in a bundle.
pub(crate) fn pretty(value: &impl serde::Serialize) -> Vec<u8> {
    let mut json = serde_json::to_vec_pretty(value).expect("plain data always serialises");
    json.push(b'\n');
    json
}

fn within_bound(file: &'static str, bytes: u64) -> Result<(), Error> {
    let most = most_bytes(file);
    if bytes > most {
        Err(Error::FileOfBundleTooLarge { file, bytes, most })
    } else {
        Ok(())
    }
}

/// The end of a run whose bundle is whole and whose driver died before it could say so.
pub(crate) fn finished(home: &Home, run: RunId) -> Result<Option<FinishedRun>, Error> {
    let Some(result) = crate::archive::result(home, run)? else {
        return Ok(None);
    };
    let path = home.bundle(run).join(MANIFEST);
    let read = || -> io::Result<Manifest> { Ok(serde_json::from_slice(&fs::read(&path)?)?) };
    let manifest = read().map_err(|source| Error::ReadFile {
        path: path.clone(),
        source,
    })?;
    durable::sync_all(&[], &[&home.bundles()])?;
    Ok(Some(result.finished(manifest.created_us)))
}

/// Hashes what passes.
struct Hashing {
    out: io::BufWriter<File>,
    hash: Sha256,
}

impl io::Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        self.hash.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
