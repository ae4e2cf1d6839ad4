//! From what a person types to journals: a run, a sandbox that lasts, a bundle, a file.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ringfence_model::bundle::{JOURNAL, JournalHead, MANIFEST, RESULT, most_bytes};
use ringfence_model::outcome::RunStatus;
use ringfence_model::sandbox::SandboxState;
use serde::Deserialize;

use super::AuditError;
use crate::archive;
use crate::error::Error;
use crate::home::Home;
use crate::journal::{LoadError, load_file};
use crate::keeper::Places;
use crate::run::JOURNAL_HEAD;
use crate::store::{RunRecord, SandboxRecord, Store, StoreError};

/// BOUND: executions without a journal that are named.
const DOUBTS: usize = 10;

/// Journals that were found.
#[derive(Debug)]
pub struct Found {
    /// In the order in which they were written.
    pub journals: Vec<Kept>,
    /// What could not be looked at, and does not matter enough to stop.
    pub doubts: Vec<String>,
}

/// A journal on the disk.
#[derive(Debug)]
pub struct Kept {
    pub path: PathBuf,
    /// Which execution of a sandbox wrote it.
    pub execution: Option<u64>,
    pub life: Life,
    pub heads: Vec<Head>,
}

/// What is known of whoever wrote a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Over,
    /// It may write in this moment.
    Running,
    /// It was killed: the journal may end early.
    Lost,
    Unknown,
}

/// The hash of a journal's last line, as somebody else wrote it down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub kept_in: &'static str,
    pub hash: String,
}

/// Whether this can only be a path.
pub fn names_a_path(text: &str) -> bool {
    text.contains('/') || text == "." || text == ".."
}

/// The journals of a run or a sandbox: by id, its beginning, name, or `last`, which is the newest
/// run where there is one. A file that is called so is found where nothing else is.
pub fn find(home: &Home, store: &Store, text: &str) -> Result<Found, Error> {
    let newest = matches!(text, "last" | "@");
    let exact = |id: &str, name: Option<&str>| id == text || name == Some(text);
    let run = match store.find(text) {
        Err(StoreError::NotFound { .. } | StoreError::NoRuns) => None,
        found => Some(found),
    };
    let is_run =
        matches!(&run, Some(Ok(run)) if newest || exact(run.id.as_str(), run.name.as_deref()));
    let sandbox = match store.find_sandbox(text) {
        _ if newest && is_run => None,
        Err(StoreError::NoSandbox { .. }) => None,
        found => Some(found),
    };
    let is_sandbox = matches!(&sandbox, Some(Ok(sandbox))
        if exact(sandbox.id.as_str(), sandbox.name.as_deref()));
    match (run, sandbox) {
        // What is named exactly is meant, whatever else begins so.
        (Some(run), _) if is_run && !is_sandbox => of_run(home, &run?),
        (_, Some(sandbox)) if is_sandbox && !is_run => of_sandbox(home, &sandbox?),
        (Some(run), Some(sandbox)) => Err(AuditError::Ambiguous {
            text: text.to_owned(),
            run: run?.id.to_string(),
            sandbox: sandbox?.id.to_string(),
        }
        .into()),
        (Some(run), None) => of_run(home, &run?),
        (None, Some(sandbox)) => of_sandbox(home, &sandbox?),
        (None, None) if newest => Err(StoreError::NoRuns.into()),
        (None, None) => match at_path(Path::new(text)) {
            Err(AuditError::NoFile(_)) => Err(AuditError::NothingFound {
                text: text.chars().take(64).collect(),
            }
            .into()),
            found => Ok(found?),
        },
    }
}

fn of_run(home: &Home, run: &RunRecord) -> Result<Found, Error> {
    let bundle = home.bundle(run.id);
    let path = archive::journal_path(home, run.id);
    if path.symlink_metadata().is_err() {
        return Err(Error::NotKept {
            run: run.id.to_string(),
            what: "journal",
        });
    }
    let mut doubts = Vec::new();
    let mut heads = heads_in(&bundle, &mut doubts);
    let stored = run.detail.get(JOURNAL_HEAD).and_then(|head| head.as_str());
    heads.extend(stored.map(|hash| Head {
        kept_in: "the store",
        hash: hash.to_owned(),
    }));
    Ok(Found {
        journals: vec![Kept {
            path,
            execution: None,
            life: match run.status {
                RunStatus::Running => Life::Running,
                RunStatus::Lost => Life::Lost,
                RunStatus::Done | RunStatus::Failed | RunStatus::BaseMoved => Life::Over,
            },
            heads,
        }],
        doubts,
    })
}

fn of_sandbox(home: &Home, record: &SandboxRecord) -> Result<Found, Error> {
    let places = Places::of(home, record.id);
    let mut journals = executions(&places.directory)?;
    if journals.is_empty() {
        return Err(AuditError::NeverRan(record.id.to_string()).into());
    }
    let runs = record.state == SandboxState::Running
        && record.keeper.is_some_and(|keeper| keeper.is_alive());
    for kept in &mut journals {
        if kept.execution != Some(record.incarnation) {
            continue;
        }
        kept.life = match record.state {
            SandboxState::Running if runs => Life::Running,
            SandboxState::Running | SandboxState::Lost => Life::Lost,
            _ => Life::Over,
        };
        if kept.life != Life::Over {
            continue;
        }
        let ended = record.detail.ended.as_ref();
        let head = ended.and_then(|ended| ended.journal_head.clone());
        kept.heads.extend(head.map(|hash| Head {
            kept_in: "the store",
            hash,
        }));
    }
    let found: BTreeSet<u64> = journals.iter().filter_map(|kept| kept.execution).collect();
    let doubts = (1..=record.incarnation)
        .filter(|number| !found.contains(number))
        .take(DOUBTS)
        .map(|number| {
            format!("execution {number} has no journal: it did not come up, or its journal is gone")
        })
        .collect();
    Ok(Found { journals, doubts })
}

/// The journals at a path: a bundle, the directory of a sandbox, or one journal.
pub fn at_path(path: &Path) -> Result<Found, AuditError> {
    // What a person names may be a link; what is found in a directory may not.
    let real = fs::canonicalize(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            AuditError::NoFile(path.to_owned())
        }
        _ => AuditError::Look {
            path: path.to_owned(),
            source,
        },
    })?;
    let mut doubts = Vec::new();
    let bundled = |bundle: &Path, path: PathBuf, doubts: &mut Vec<String>| Kept {
        heads: heads_in(bundle, doubts),
        path,
        execution: None,
        life: Life::Unknown,
    };
    let journals = if !real.is_dir() {
        let bundle = real.parent().filter(|_| real.ends_with(JOURNAL));
        vec![match bundle {
            Some(bundle) => bundled(bundle, real.clone(), &mut doubts),
            None => Kept {
                path: real,
                execution: None,
                life: Life::Unknown,
                heads: Vec::new(),
            },
        }]
    } else if real.join(JOURNAL).symlink_metadata().is_ok() {
        vec![bundled(&real, real.join(JOURNAL), &mut doubts)]
    } else {
        executions(&real)?
    };
    if journals.is_empty() {
        return Err(AuditError::NoJournal(path.to_owned()));
    }
    Ok(Found { journals, doubts })
}

/// The journals of all executions in the directory of a sandbox.
fn executions(directory: &Path) -> Result<Vec<Kept>, AuditError> {
    let look = |source| AuditError::Look {
        path: directory.to_owned(),
        source,
    };
    let mut journals = Vec::new();
    for entry in fs::read_dir(directory).map_err(look)? {
        let name = entry.map_err(look)?.file_name();
        let number = name
            .to_str()
            .and_then(|name| name.strip_prefix("audit-")?.strip_suffix(".jsonl"));
        if let Some(Ok(number)) = number.map(str::parse) {
            journals.push(Kept {
                path: directory.join(&name),
                execution: Some(number),
                life: Life::Unknown,
                heads: Vec::new(),
            });
        }
    }
    journals.sort_by_key(|kept| kept.execution);
    Ok(journals)
}

/// What of a bundle's other files matters here.
#[derive(Deserialize)]
struct Naming {
    journal_head: Option<String>,
    journal: Option<JournalHead>,
}

/// What the other files of a bundle say the journal's head is.
fn heads_in(bundle: &Path, doubts: &mut Vec<String>) -> Vec<Head> {
    let mut heads = Vec::new();
    for name in [RESULT, MANIFEST] {
        let content = match load_file(&bundle.join(name), most_bytes(name)) {
            Ok(content) => content,
            Err(LoadError::Read(error)) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(LoadError::Read(error)) => {
                doubts.push(format!("`{name}` cannot be read: {error}"));
                continue;
            }
            Err(LoadError::NotAFile) => {
                doubts.push(format!("`{name}` is not a regular file"));
                continue;
            }
            Err(LoadError::TooLarge { .. }) => {
                doubts.push(format!("`{name}` is too large to be read"));
                continue;
            }
        };
        match serde_json::from_slice::<Naming>(&content) {
            Ok(naming) => {
                let named = naming.journal.map(|journal| journal.head);
                let hash = naming.journal_head.or(named);
                heads.extend(hash.map(|hash| Head {
                    kept_in: name,
                    hash,
                }));
            }
            Err(error) => doubts.push(format!("`{name}` is damaged: {error}")),
        }
    }
    heads
}
