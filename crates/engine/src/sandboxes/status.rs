//! The truth about sandboxes: what the store says, held against processes and directories.

use ringfence_model::sandbox::{Described, Purpose, SandboxState};

use super::{Host, seal};
use crate::clock::now_us;
use crate::error::Error;
use crate::ids::{BaseId, LayerId, SandboxId};
use crate::keeper::Line;
use crate::lock::FileLock;
use crate::store::{SandboxRecord, StoreError};

/// A sandbox as it is.
#[derive(Debug)]
pub struct Seen {
    pub record: SandboxRecord,
    pub state: SeenState,
    /// What the keeper says.
    pub execution: Option<Described>,
    /// Sealed layers under the top.
    pub depth: usize,
    /// Something was written since the last seal.
    pub unsealed: bool,
    pub checkpoints: usize,
}

/// Where it is in its life, and whether it is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeenState {
    Is(SandboxState),
    /// A part of its workspace is not there any more.
    Broken {
        missing: String,
    },
}

impl SeenState {
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Is(state) => state.as_str(),
            Self::Broken { .. } => "broken",
        }
    }
}

/// BOUND: how often a sandbox can change under the eyes of who looks at it before that is strange.
const LOOKS: usize = 10;

/// Looks at all sandboxes, newest first. One that is removed meanwhile is not there; one that is
/// changed meanwhile is looked at again.
pub fn look_at_all(host: &Host) -> Result<Vec<Seen>, Error> {
    let mut all = Vec::new();
    for record in host.store.sandboxes()? {
        let id = record.id;
        let mut seen = look(host, record);
        for _ in 0..LOOKS {
            if seen.is_ok() {
                break;
            }
            match host.store.sandbox(id) {
                Ok(record) => seen = look(host, record),
                Err(StoreError::NoSandbox { .. }) => break,
                Err(error) => return Err(error.into()),
            }
        }
        match (seen, host.store.sandbox(id)) {
            (Ok(seen), _) => all.push(seen),
            (Err(_), Err(StoreError::NoSandbox { .. })) => {}
            (Err(error), _) => return Err(error),
        }
    }
    Ok(all)
}

/// The words for a directory that is not there.
pub(super) fn directory_of(id: SandboxId) -> String {
    format!("its directory `sandboxes/{id}`")
}

/// Looks at one sandbox.
pub fn look(host: &Host, record: SandboxRecord) -> Result<Seen, Error> {
    let places = host.places(record.id);
    let held = FileLock::is_held(&places.lock())?;
    let execution = if held {
        Line::connect(&places, Purpose::Rule, None)
            .and_then(|mut line| line.describe())
            .ok()
    } else {
        None
    };
    let state = match missing(host, &record)? {
        Some(missing) => SeenState::Broken { missing },
        None => SeenState::Is(match record.state {
            SandboxState::Running if !held => SandboxState::Lost,
            state if !held && record.expires_us.is_some_and(|at| at <= now_us()) => match state {
                SandboxState::Making => state,
                _ => SandboxState::Expired,
            },
            state => state,
        }),
    };
    Ok(Seen {
        execution,
        depth: host.store.stack(record.head).map_or(0, |stack| stack.len()),
        unsealed: !seal::is_empty(&places.upper()),
        checkpoints: host.store.checkpoints(record.id)?.len(),
        state,
        record,
    })
}

/// The first part of a workspace that is not where it should be.
pub fn missing(host: &Host, record: &SandboxRecord) -> Result<Option<String>, Error> {
    if record.state == SandboxState::Making {
        return Ok(None);
    }
    if !host.home.sandbox(record.id).is_dir() {
        return Ok(Some(directory_of(record.id)));
    }
    if record.incarnation > 0 && top_is_gone(host, record) {
        return Ok(Some(format!("its top `sandboxes/{}/top/upper`", record.id)));
    }
    missing_below(host, record.base, record.head)
}

/// From its first execution on a sandbox has a top, but for the moment in which it is renewed.
fn top_is_gone(host: &Host, record: &SandboxRecord) -> bool {
    let upper = host.places(record.id).upper();
    !upper.is_dir()
        && host
            .store
            .sandbox(record.id)
            .is_ok_and(|now| now.intent.is_none())
        && !upper.is_dir()
}

/// The same for what lies below the top.
pub fn missing_below(
    host: &Host,
    base: BaseId,
    head: Option<LayerId>,
) -> Result<Option<String>, Error> {
    if !host.home.base(base).join("workspace").is_dir() {
        return Ok(Some(format!("its base `bases/{base}`")));
    }
    let gone = host
        .store
        .stack(head)?
        .into_iter()
        .find(|layer| !host.home.layer(layer.id).is_dir());
    Ok(gone.map(|layer| format!("its layer `layers/{}`", layer.id)))
}
