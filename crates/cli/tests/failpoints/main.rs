//! What becomes of everything when a process dies: at every step of every verb, at random times,
//! with the power, on a full disk, and by a hand that removes what it should not.
//!
//! Needs the feature `failpoints`; `scripts/test` has it on.

#[path = "../support/sandboxed.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "each test program uses its own part"
)]
mod support;

mod applied;
mod campaigns;
mod crowd;
mod damage;
mod disk;
mod environments;
mod images;
mod killed;
mod merged;
mod points;
mod power;
mod runs;
mod scene;
