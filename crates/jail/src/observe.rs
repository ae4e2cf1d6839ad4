//! The kernel's side of observation: calls that a filter shows, processes that are stopped at their
//! exec, memory of processes, and how they ended.
//!
//! ```text
//! process: execve ──▶ shown ──▶ guest: seize, interrupt, let go on
//!                                 ├── stops at its exec: the new memory holds the arguments that the
//!                                 │   kernel copied, and nothing of the program has run ──▶ detach
//!                                 └── stops on its way back: refused, with the error ──▶ detach
//! ```
//!
//! Between execs nothing is traced: debuggers and sanitisers inside work.

mod asked;
mod endings;
mod listener;
mod memory;
mod tracee;

pub use asked::{Asked, At, Directory, Opening};
pub use endings::{Ending, Endings, ended_how};
pub use listener::{Listener, Shown, receive_listener};
pub use memory::read_memory;
pub use tracee::{Children, Stop, detach, interrupt, seize};

pub(crate) use listener::{install, pair, send_listener};
