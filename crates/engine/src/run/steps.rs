//! The steps of a run: recorded, told to a person, and timed for operators.

use std::cell::Cell;
use std::path::Path;
use std::time::Instant;

use tracing::{Span, info, info_span, warn};

use super::{RunRequest, RunResult};
use crate::attend::Console;
use crate::clock::ms_since;
use crate::error::Error;
use crate::ids::RunId;
use crate::store::Store;

/// The steps that have an effect beyond this process, in order. To prove and to stop are parts of
/// what stands before and after them, and to validate is part of sealing.
const STEPS: [&str; 6] = ["base", "start", "agent", "seal", "pack", "hold"];

/// Records the steps of a run.
pub(super) struct Steps<'a> {
    store: &'a Store,
    id: RunId,
    under_way: Cell<Option<(&'static str, Instant)>>,
}

impl<'a> Steps<'a> {
    pub fn of(store: &'a Store, id: RunId) -> Self {
        Self {
            store,
            id,
            under_way: Cell::new(None),
        }
    }

    /// What all that is traced of a run is within.
    pub fn span(id: RunId, request: &RunRequest, folder: &Path) -> Span {
        info_span!("run", %id, ?folder, backend = request.backend.name())
    }

    /// The step before is done, this one begins.
    pub fn begin(&self, step: &'static str, console: &mut dyn Console) -> Result<(), Error> {
        self.done();
        self.under_way.set(Some((step, Instant::now())));
        console.step(step);
        let at = STEPS.iter().position(|name| *name == step);
        match at {
            None => Ok(()),
            Some(0) => Ok(self.store.step_intent(self.id, step)?),
            Some(at) => Ok(self.store.step_next(self.id, STEPS[at - 1], step)?),
        }
    }

    /// All are done.
    pub fn end(self, result: &RunResult) {
        self.done();
        info!(
            status = ?result.status,
            outcome = ?result.outcome,
            changed_files = result.changed_files.len(),
            ms = result.total_ms,
            "run ended"
        );
    }

    fn done(&self) {
        if let Some((step, began)) = self.under_way.take() {
            info!(step, ms = ms_since(began), "step done");
        }
    }
}

impl Drop for Steps<'_> {
    fn drop(&mut self) {
        if let Some((step, began)) = self.under_way.take() {
            warn!(step, ms = ms_since(began), "step failed");
        }
    }
}
