//! One host's work: workspaces, sandboxes, the run driver, journal, bundles and store.
//!
//! Start reading at [`run`], the driver.

pub mod archive;
pub mod attend;
pub mod changes;
pub mod client;
mod clock;
pub mod doctor;
pub mod durable;
pub mod error;
pub mod git;
mod guest;
pub mod home;
pub mod ids;
pub mod journal;
pub mod lock;
pub mod output;
pub mod run;
pub mod sandbox;
pub mod store;
pub mod watch;
pub mod workspace;
