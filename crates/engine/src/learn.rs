//! From what runs did to the least policy that lets them do it again, and what a policy would have
//! denied them.
//!
//! ```text
//!   journals ─▶ Seen ─▶ propose ─▶ text of a policy ─▶ the real parser ─▶ replay over the same Seen
//! ```
//!
//! What is proposed is judged as it stands in the file, by the same rules that a gate and a seal
//! ask. What was denied is listed and not granted, unless the caller wishes it.
//!
//! HOSTILE: hosts, methods, paths and file names were chosen by an agent. Nothing of them gets into
//! the text that did not go through the parser of rules or a quoting of its own.

mod files;
mod limits;
mod paths;
mod proposal;
mod replay;
mod seen;
mod traffic;
mod wants;

pub use paths::generalise;
pub use proposal::{Denied, Proposal, propose};
pub use replay::{Replay, WouldDeny, replay};
pub use seen::Seen;

#[cfg(test)]
mod tests;
