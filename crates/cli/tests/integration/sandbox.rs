//! `ringfence sandbox` from outside: workspaces that last, and executions that come and go.
//!
//! Each test runs the real program as root and as somebody unprivileged, as far as the tester may,
//! and ends with all of its sandboxes removed and nothing of them left on the machine.

mod checkpoints;
mod commands;
mod diffs;
mod files;
mod kit;
mod lives;
mod many;
mod sources;
mod tools;
mod words;
