//! The gate: the only way out of one sandbox.

pub mod head;
