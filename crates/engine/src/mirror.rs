//! Mirrors: one bare repository for each source, fetched once and kept.
//!
//! ```text
//!   typed ─▶ cached commit? ── yes ──────────────────────────────────▶ resolved, no network
//!               │ no
//!               ▼
//!            lock (others wait here) ─▶ made? ─ no ─▶ init, fetch ──┐
//!                                         │ yes                     ▼
//!                                         └─ fetched meanwhile? ─▶ resolve ─▶ resolved
//!                                              no ─▶ fetch ─────────▲
//! ```
//!
//! A killed clone leaves its row `making`; the next request goes on in the same directory, and what
//! was fetched stays. Nothing is ever collected, so a commit that was there once stays.
//!
//! INVARIANT: no credential is in a mirror's files. Its address is not either: each fetch names it.

mod clear;
mod error;
mod fetch;
mod process;
pub(crate) mod stall;

use std::path::{Path, PathBuf};
use std::time::Instant;

use sha2::{Digest, Sha256};

use crate::clock::{ms_since, now_us};
use crate::fail;
use crate::git::{self, Found};
use crate::home::Home;
use crate::ids::MirrorId;
use crate::lock::FileLock;
use crate::source::{Credentials, Dial, Source, Typed};
use crate::store::{SourceState, Store};

pub use error::MirrorError;
use fetch::Held;
pub(crate) use fetch::has_file;
pub(crate) use process::Git;
pub use process::ProcessError;

/// BOUND: git's own limit for a ref is far below.
const REVISION_BYTES: usize = 1024;

/// Hears what goes on, in lines for a person.
pub trait Progress {
    fn say(&mut self, line: &str);
}

/// Nobody watches.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Progress for Silent {
    fn say(&mut self, _line: &str) {}
}

/// A bare repository of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    pub id: MirrorId,
    pub path: PathBuf,
    pub source: Source,
}

impl Mirror {
    /// The directory that a sandbox reads objects from.
    pub fn objects(&self) -> PathBuf {
        self.path.join("objects")
    }
}

/// A commit that is in a mirror.
#[derive(Clone, Debug)]
pub struct Resolved {
    pub mirror: Mirror,
    /// The whole id, in lower case.
    pub commit: String,
    /// The branch that was named, or that the remote's `HEAD` is.
    pub branch: Option<String>,
    /// For a person: what is not as it was asked for.
    pub notes: Vec<String>,
    /// For submodules of the same host.
    pub(crate) credentials: Option<Credentials>,
}

/// The id of a source's mirror.
pub fn id_of(source: &Source) -> MirrorId {
    MirrorId::from_bits(bits_of(&source.text()))
}

/// The first eight bytes of a text's SHA-256.
pub(crate) fn bits_of(text: &str) -> u64 {
    let digest = Sha256::digest(text.as_bytes());
    digest[..8]
        .iter()
        .fold(0, |bits, &byte| (bits << 8) | u64::from(byte))
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Revision {
    /// The remote's `HEAD`.
    Head,
    /// A whole commit id.
    Commit(String),
    /// A branch, a tag, a ref or the beginning of a commit id.
    Name(String),
}

/// Makes or finds the mirror of a source and makes sure that a revision is in it.
///
/// A whole commit id that is cached needs no network. Anything else is fetched; where that fails
/// and the revision is cached, the cached one is given, with a note.
pub fn ensure(
    home: &Home,
    store: &Store,
    typed: &Typed,
    rev: Option<&str>,
    progress: &mut dyn Progress,
) -> Result<Resolved, MirrorError> {
    let asked_us = now_us();
    let revision = parse_revision(rev)?;
    let typed = &locate(typed)?;
    let id = id_of(&typed.source);
    let mirror = Mirror {
        id,
        path: home.mirror(id),
        source: typed.source.clone(),
    };
    // A base of this commit was made from this mirror: git need not be asked.
    if let Revision::Commit(commit) = &revision
        && is_ready(store, &mirror)?
        && store.base_of_commit(id, commit)?.is_some()
    {
        store.touch_mirror(id)?;
        return Ok(Resolved {
            mirror,
            commit: commit.clone(),
            branch: None,
            notes: Vec::new(),
            credentials: typed.credentials.clone(),
        });
    }
    let cached = |mirror: &Mirror| match &revision {
        Revision::Commit(commit) => fetch::has_commit(&mirror.path, commit),
        _ => Ok(false),
    };
    if is_ready(store, &mirror)? && cached(&mirror)? {
        store.touch_mirror(id)?;
        return resolve(mirror, &revision, typed, Vec::new());
    }
    let text = typed.source.text();
    let lock = home.mirrors().join(format!("{id}.lock"));
    let lock = FileLock::wait(&lock, || {
        progress.say(&format!("waiting for another clone of {text}"));
    })?;
    let held = Held {
        mirror: &mirror,
        typed,
        lock: &lock,
    };
    let mut notes = Vec::new();
    if !is_ready(store, &mirror)? {
        fail::point("mirror:locked");
        store.insert_mirror(id, &text)?;
        fail::point("mirror:recorded");
        progress.say(&format!("cloning {text}"));
        let began = Instant::now();
        let cloned = held.clone(home, progress);
        traced("cloned", &mirror, &cloned, began);
        cloned.inspect_err(|_| {
            // An address at which nothing was found leaves nothing.
            if !mirror.path.join("HEAD").exists() {
                let _ = store.remove_mirror(id);
            }
        })?;
        fail::point("mirror:fetched");
        finish(store, &mirror)?;
        fail::point("mirror:done");
    } else if !cached(&mirror)? {
        let fetched_us = store.mirror(id)?.and_then(|record| record.fetched_us);
        if fetched_us.is_none_or(|fetched_us| fetched_us < asked_us) {
            progress.say(&format!("fetching {text}"));
            let began = Instant::now();
            let updated = held.update(home, &revision, progress);
            traced("fetched", &mirror, &updated, began);
            match updated {
                Ok(()) => finish(store, &mirror)?,
                Err(
                    error @ (MirrorError::Fetch { .. }
                    | MirrorError::Stalled { .. }
                    | MirrorError::NoRepository { .. }),
                ) => {
                    if fetch::find(&mirror.path, &revision)?.is_none() {
                        return Err(error);
                    }
                    notes.push(not_reachable(fetched_us));
                }
                Err(error) => return Err(error),
            }
        }
    }
    if fetch::find(&mirror.path, &revision)?.is_none() {
        held.by_name(&revision, progress)?;
    }
    store.touch_mirror(id)?;
    resolve(mirror, &revision, typed, notes)
}

/// For operators. A source holds no secret.
fn traced(what: &'static str, mirror: &Mirror, made: &Result<(), MirrorError>, began: Instant) {
    tracing::info!(
        what,
        mirror = %mirror.id,
        source = ?mirror.source.text(),
        ok = made.is_ok(),
        ms = ms_since(began),
        "mirror"
    );
}

/// Removes the directory of a mirror that the store does not know and nobody makes.
pub fn sweep(home: &Home, store: &Store, id: MirrorId) -> Result<(), MirrorError> {
    let lock = home.mirrors().join(format!("{id}.lock"));
    let Some(_lock) = FileLock::take(&lock)? else {
        return Ok(());
    };
    if store.mirror(id)?.is_none() {
        remove(home, id)?;
        let _ = std::fs::remove_file(lock);
    }
    Ok(())
}

/// Removes a mirror that no base reads; one that a base does is refused.
pub fn forget(home: &Home, store: &Store, id: MirrorId) -> Result<(), MirrorError> {
    let lock = home.mirrors().join(format!("{id}.lock"));
    let _lock = FileLock::wait(&lock, || {})?;
    if let Some(&base) = store.mirror_users(id)?.first() {
        return Err(MirrorError::InUse { mirror: id, base });
    }
    store.remove_mirror(id)?;
    fail::point("gc:forgot-mirror");
    remove(home, id)?;
    // Whoever waits for it finds it nameless and takes a new one.
    let _ = std::fs::remove_file(lock);
    Ok(())
}

fn remove(home: &Home, id: MirrorId) -> Result<(), MirrorError> {
    let path = home.mirror(id);
    match std::fs::remove_dir_all(&path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(MirrorError::Make {
            what: "remove",
            path,
            source,
        }),
        _ => Ok(()),
    }
}

fn not_reachable(fetched_us: Option<i64>) -> String {
    let time = fetched_us
        .and_then(|us| jiff::Timestamp::from_microsecond(us).ok())
        .map(|time| time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string());
    match time {
        Some(time) => format!("remote not reachable, using what was fetched at {time}"),
        None => "remote not reachable, using what was fetched before".to_owned(),
    }
}

fn is_ready(store: &Store, mirror: &Mirror) -> Result<bool, MirrorError> {
    let record = store.mirror(mirror.id)?;
    Ok(
        record.is_some_and(|record| record.state == SourceState::Ready)
            && mirror.path.join("HEAD").exists(),
    )
}

/// Syncs what was fetched, then says so.
fn finish(store: &Store, mirror: &Mirror) -> Result<(), MirrorError> {
    sync(&mirror.path)?;
    store.finish_mirror(mirror.id, now_us())?;
    Ok(())
}

/// Everything of the file system that holds a directory goes to the disk.
pub(crate) fn sync(path: &Path) -> Result<(), MirrorError> {
    std::fs::File::open(path)
        .and_then(|directory| Ok(rustix::fs::syncfs(directory)?))
        .map_err(|source| MirrorError::Make {
            what: "sync",
            path: path.to_owned(),
            source,
        })
}

fn resolve(
    mirror: Mirror,
    revision: &Revision,
    typed: &Typed,
    notes: Vec<String>,
) -> Result<Resolved, MirrorError> {
    let text = mirror.source.text();
    let Some((commit, branch)) = fetch::find(&mirror.path, revision)? else {
        return Err(match revision {
            Revision::Head => MirrorError::NoRevision {
                rev: "HEAD".to_owned(),
                source_text: text,
            },
            Revision::Commit(rev) | Revision::Name(rev) => MirrorError::NoRevision {
                rev: rev.clone(),
                source_text: text,
            },
        });
    };
    Ok(Resolved {
        mirror,
        commit,
        branch,
        notes,
        credentials: typed.credentials.clone(),
    })
}

/// The source to fetch from: of a folder within a repository, the repository.
fn locate(typed: &Typed) -> Result<Typed, MirrorError> {
    let Source::Path(path) = &typed.source else {
        return Ok(typed.clone());
    };
    let found = |path: PathBuf| Typed {
        source: Source::Path(path),
        credentials: None,
        dial: Dial::AsTyped,
    };
    let no_repository = || MirrorError::NoRepository { path: path.clone() };
    // A folder that was removed may have a mirror all the same.
    if !path.exists() {
        return Ok(found(path.clone()));
    }
    let (repo, place) = match git::find(path)? {
        Found::Nothing => (git::find_bare(path)?, Some(path.clone())),
        repo => (repo, None),
    };
    let unsupported = |path: &Path, reason| MirrorError::Unsupported {
        path: path.to_owned(),
        reason,
    };
    let repo = match repo {
        Found::Nothing => return Err(no_repository()),
        Found::Refused(refusal) => return Err(unsupported(path, refusal.to_string())),
        Found::Repository(repo) => repo,
    };
    if let Some(reason) = &repo.unsupported {
        return Err(unsupported(&repo.top, reason.clone()));
    }
    // Git follows links and lists of borrowed objects wherever they lead.
    if let Err(refusal) = git::check_objects(&repo) {
        return Err(unsupported(&repo.top, refusal.to_string()));
    }
    Ok(found(place.unwrap_or(repo.top)))
}

/// HOSTILE: a revision goes to git as an argument, and a submodule's comes from a repository.
fn parse_revision(rev: Option<&str>) -> Result<Revision, MirrorError> {
    let Some(rev) = rev.filter(|rev| *rev != "HEAD") else {
        return Ok(Revision::Head);
    };
    if matches!(rev.len(), 40 | 64) && rev.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(Revision::Commit(rev.to_ascii_lowercase()));
    }
    let bad = |c: char| c.is_control() || " ~^:?*[\\".contains(c);
    let good = !rev.is_empty()
        && rev.len() <= REVISION_BYTES
        && !rev.starts_with(['-', '/', '.'])
        && !rev.ends_with(['/', '.'])
        && !rev.chars().any(bad)
        && !["..", "@{", "//", "/."]
            .iter()
            .any(|part| rev.contains(part))
        && rev != "@";
    if good {
        Ok(Revision::Name(rev.to_owned()))
    } else {
        Err(MirrorError::Revision {
            rev: rev.chars().take(100).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_are_names_or_ids() {
        for (rev, good) in [
            ("main", true),
            ("feature/a-b", true),
            ("v1.0", true),
            ("refs/pull/1/head", true),
            ("abc1234", true),
            ("-x", false),
            ("--upload-pack=x", false),
            ("a..b", false),
            ("a:b", false),
            ("+a", true),
            ("a^", false),
            ("a b", false),
            ("a\nb", false),
            ("@", false),
            ("a@{1}", false),
            ("", false),
        ] {
            assert_eq!(parse_revision(Some(rev)).is_ok(), good, "{rev:?}");
        }
        assert_eq!(parse_revision(None).unwrap(), Revision::Head);
        assert_eq!(parse_revision(Some("HEAD")).unwrap(), Revision::Head);
        let id = "A".repeat(40);
        assert_eq!(
            parse_revision(Some(&id)).unwrap(),
            Revision::Commit("a".repeat(40))
        );
    }

    #[test]
    fn a_source_has_one_id() {
        let a = Source::Url("https://example.org/a".to_owned());
        let b = Source::Url("https://example.org/b".to_owned());
        assert_eq!(id_of(&a), id_of(&a.clone()));
        assert_ne!(id_of(&a), id_of(&b));
    }
}
