//! Who asked for a command, while it runs.

use ringfence_model::check::{Ran, Tree};
use ringfence_model::wire::WindowSize;

use crate::client::Stream;

/// The caller's side of a running command.
pub trait Console {
    /// Output as it comes.
    fn output(&mut self, stream: Stream, bytes: &[u8]);
    /// Whether output can be passed on without waiting. While it cannot, the command is not read
    /// from, and everything else goes on.
    fn has_room(&self) -> bool {
        true
    }
    /// The size of the caller's terminal now.
    fn size(&self) -> Option<WindowSize> {
        None
    }
    /// A step of the run begins.
    fn step(&mut self, _step: &str) {}
    /// The agent is started for this iteration, or told to go on.
    fn iteration(&mut self, _number: u32, _most: u32) {}
    /// A check begins on a tree, or has ended there.
    fn check(&mut self, _command: &str, _tree: Tree, _ran: Option<&Ran>) {}
    /// Something that the caller should know while the command runs.
    fn note(&mut self, _said: &str) {}
    /// Nothing happened for a moment.
    fn idle(&mut self) {}
}
