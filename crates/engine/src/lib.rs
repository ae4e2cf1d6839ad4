//! One host's work: workspaces, sandboxes, the run driver, journal, bundles and store.
//!
//! Start reading at [`run`], the driver.

pub mod client;
mod guest;
pub mod sandbox;
