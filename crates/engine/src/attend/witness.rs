//! Who takes what was seen of a command.

use ringfence_model::journal::Event;
use ringfence_model::observed::Observed;

use crate::journal::JournalError;

/// Takes what the kernel showed of the processes inside.
pub trait Witness {
    fn observed(&mut self, observed: Observed) -> Result<(), JournalError>;
    /// Takes what the gate said, or that it is gone.
    fn network(&mut self, event: Event) -> Result<(), JournalError>;
    /// Nothing happened for a moment: what was taken can be put where it outlives this process.
    fn idle(&mut self);
}

/// For commands of ours, of which nothing is recorded.
#[derive(Debug)]
pub struct Unwatched;

impl Witness for Unwatched {
    fn observed(&mut self, _: Observed) -> Result<(), JournalError> {
        Ok(())
    }

    fn network(&mut self, _: Event) -> Result<(), JournalError> {
        Ok(())
    }

    fn idle(&mut self) {}
}
