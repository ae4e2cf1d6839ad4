//! Whole commands of `ringfence` on the real kernel, rootless and as root. One program, so that it is linked once.

#![allow(
    clippy::print_stdout,
    reason = "scripts/test reads the lines about skipped tests"
)]

mod audit;
mod backends;
mod blame;
mod campaign;
#[path = "../support/cases.rs"]
mod cases;
#[path = "../support/controls.rs"]
mod controls;
mod denials;
#[path = "../support/double.rs"]
mod double;
mod elsewhere;
#[path = "../support/engine.rs"]
#[allow(dead_code, reason = "each test program uses its own part")]
mod engine;
mod escape;
mod flags;
mod gvisor;
mod image;
mod limits;
mod network;
mod policy;
mod review;
mod run;
mod sandbox;
#[path = "../support/sandboxed.rs"]
mod support;
mod terminal;
mod verify;
mod words;
