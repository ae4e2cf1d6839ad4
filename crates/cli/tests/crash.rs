//! What becomes of everything when a process dies: at every step of every verb, at random times,
//! with the power, on a full disk, and by a hand that removes what it should not.
//!
//! Needs the feature `failpoints`; `scripts/test` has it on.

#[path = "support/sandboxed.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "each test program uses its own part"
)]
mod support;

#[path = "crash/applied.rs"]
mod applied;
#[path = "crash/campaigns.rs"]
mod campaigns;
#[path = "crash/crowd.rs"]
mod crowd;
#[path = "crash/damage.rs"]
mod damage;
#[path = "crash/disk.rs"]
mod disk;
#[path = "crash/environments.rs"]
mod environments;
#[path = "crash/images.rs"]
mod images;
#[path = "crash/killed.rs"]
mod killed;
#[path = "crash/merged.rs"]
mod merged;
#[path = "crash/points.rs"]
mod points;
#[path = "crash/power.rs"]
mod power;
#[path = "crash/runs.rs"]
mod runs;
#[path = "crash/scene.rs"]
mod scene;
