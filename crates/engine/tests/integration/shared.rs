//! What several of these tests use.

pub mod again;
pub mod cases;
pub mod git_bench;
pub mod golden;
pub mod guest_bench;
pub mod mirror_bench;
pub mod overlay;
pub mod program;
pub mod stack;
pub mod within;
