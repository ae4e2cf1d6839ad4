//! What journals tell a person: found by any name, followed with distrust, filtered, and drawn as a
//! tree.
//!
//! Everything here also works on a journal that was carried to another machine; nothing is taken
//! from it that its chain does not hold.

mod error;
mod filter;
mod find;
mod follow;
mod story;
mod tree;

pub use error::AuditError;
pub use filter::Filter;
pub use find::{Found, Head, Kept, Life, at_path, find, names_a_path};
pub use follow::{Fault, Followed, follow};
pub use story::{Ending, Story, Used};
pub use tree::{Branch, Tree, Twig};

#[cfg(test)]
mod tests;
