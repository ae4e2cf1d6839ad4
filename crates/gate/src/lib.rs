//! The gate: the only way out of one sandbox.
