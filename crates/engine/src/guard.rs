//! Values of secrets are taken out of everything that is kept of a sandbox.
//!
//! The sandbox never has them. This is the wall behind that wall: a value that lay in the folder, or
//! that a host gave away in a form that nobody thought of, does not cross back.

use std::sync::Arc;

use ringfence_model::changes::{Change, ChangeSet, Omitted, WhyOmitted};
use ringfence_model::gate::{BoundSecret, SecretValue};
use ringfence_model::journal::Event;
use ringfence_model::needles::{Needles, Stream};
use ringfence_model::observed::Refused;

use crate::changes::{Sources, new_bytes};

/// BOUND: a file of more bytes is not searched, and stays behind.
const SEARCHED: u64 = 100 << 20;

/// Finds the values of a sandbox's secrets; nothing where it has none.
#[derive(Clone, Debug, Default)]
pub struct Guard(Option<Arc<Needles>>);

impl Guard {
    pub fn of(secrets: &[(BoundSecret, SecretValue)]) -> Self {
        let pairs = secrets
            .iter()
            .map(|(bound, value)| (value.expose(), bound.placeholder.as_bytes()));
        Self(Needles::new(pairs).map(Arc::new))
    }

    /// The same without values; placeholders stand there instead.
    pub fn clean(&self, bytes: Vec<u8>) -> Vec<u8> {
        let replaced = |needles: &Arc<Needles>| needles.replace(&bytes, &mut Vec::new());
        self.0.as_ref().and_then(replaced).unwrap_or(bytes)
    }

    pub fn has_secrets(&self) -> bool {
        self.0.is_some()
    }

    /// Whether there is a value in these bytes.
    pub fn finds(&self, bytes: &[u8]) -> bool {
        let needles = self.0.as_ref();
        needles.is_some_and(|needles| needles.find(bytes).is_some())
    }

    /// What searches a stream.
    pub fn stream(&self) -> Option<Stream<Arc<Needles>>> {
        self.0.clone().map(Stream::new)
    }

    /// An event as it may be in a journal.
    pub fn event(&self, event: Event) -> Event {
        let Some(needles) = &self.0 else {
            return event;
        };
        let Ok(json) = serde_json::to_vec(&event) else {
            return event;
        };
        match needles.replace(&json, &mut Vec::new()) {
            None => event,
            // Its placeholder is as plain as the value was: it is JSON as before.
            Some(json) => serde_json::from_slice(&json).unwrap_or_else(|_| {
                Event::Denial(Refused {
                    pid: 0,
                    operation: "record".to_owned(),
                    reason: "the event held the value of a secret".to_owned(),
                })
            }),
        }
    }

    /// Changes that hold a value stay behind, in their name or their content.
    pub fn hold_back(&self, sources: &Sources, set: &mut ChangeSet) {
        let Some(needles) = &self.0 else {
            return;
        };
        let holds = |change: &Change| {
            let Some(new) = &change.new else {
                return false;
            };
            match new_bytes(sources, change, SEARCHED) {
                Some(bytes) => needles.find(&bytes).is_some(),
                None => new.size > 0,
            }
        };
        let (held, kept) = set.changes.drain(..).partition(holds);
        set.changes = kept;
        set.omitted
            .extend(held.into_iter().map(|change: Change| Omitted {
                size: change.new.as_ref().map_or(0, |new| new.size),
                path: change.path,
                why: WhyOmitted::Secret,
                files: 1,
            }));
        set.omitted.sort_by(|a, b| a.path.cmp(&b.path));
    }
}
