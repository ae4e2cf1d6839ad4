//! One host's work: workspaces, sandboxes, the run driver, journal, bundles and store.
//!
//! Start reading at [`run`], the driver.

pub mod archive;
pub mod attend;
pub mod attribution;
pub mod audit;
pub mod base;
pub mod blame;
mod bundle;
pub mod changes;
pub mod client;
mod clock;
pub mod config;
pub mod denials;
pub mod doctor;
pub mod durable;
pub mod error;
pub mod evidence;
pub mod fail;
pub mod files;
pub mod flags;
pub mod gate;
pub mod git;
pub mod guard;
pub mod guest;
pub mod home;
pub mod ids;
pub mod journal;
pub mod keeper;
pub mod keys;
pub mod layers;
pub mod learn;
pub mod lock;
pub mod mirror;
pub mod output;
pub mod policy;
pub mod presets;
pub mod run;
pub mod sandbox;
pub mod sandboxes;
pub mod secrets;
pub mod source;
pub mod store;
pub mod verify;
pub mod watch;
pub mod web;
pub mod workspace;
