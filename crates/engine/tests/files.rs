//! What a policy says about files holds against what an agent tries, for root and for nobody.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "shared/again.rs"]
mod again;
#[path = "files/areas.rs"]
mod areas;
#[path = "files/bench.rs"]
mod bench;
#[path = "files/crossing.rs"]
mod crossing;
#[path = "files/mounts.rs"]
mod mounts;

#[test]
fn everything_again_without_privileges() {
    again::as_nobody("\"$0\" --test-threads=2 --skip everything_again");
}
