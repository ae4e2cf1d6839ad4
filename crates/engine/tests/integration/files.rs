//! What a policy says about files holds against what an agent tries, for root and for nobody.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::shared::again;
mod areas;
mod bench;
mod crossing;
mod mounts;

#[test]
fn everything_again_without_privileges() {
    again::as_nobody(module_path!(), again::SAME_LIMITS, &[]);
}
