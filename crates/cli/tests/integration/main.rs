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
mod elsewhere;
#[path = "../support/engine.rs"]
#[allow(dead_code, reason = "each test program uses its own part")]
mod engine;
mod escape;
mod flags;
mod gvisor;
#[path = "../support/sandboxed.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "each test program uses its own part"
)]
mod support;
