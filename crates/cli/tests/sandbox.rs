//! `ringfence sandbox` from outside: workspaces that last, and executions that come and go.
//!
//! Each test runs the real program as root and as somebody unprivileged, as far as the tester may,
//! and ends with all of its sandboxes removed and nothing of them left on the machine.

#[path = "sandbox/checkpoints.rs"]
mod checkpoints;
#[path = "sandbox/commands.rs"]
mod commands;
#[path = "sandbox/diffs.rs"]
mod diffs;
#[path = "sandbox/files.rs"]
mod files;
#[path = "sandbox/kit.rs"]
mod kit;
#[path = "sandbox/lives.rs"]
mod lives;
#[path = "sandbox/many.rs"]
mod many;
#[path = "sandbox/sources.rs"]
mod sources;
#[path = "support/sandboxed.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "each test program uses its own part"
)]
mod support;
#[path = "sandbox/tools.rs"]
mod tools;
#[path = "sandbox/words.rs"]
mod words;
