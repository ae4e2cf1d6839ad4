//! `ringfence sandbox`: one file per verb below.

mod checkpoint;
mod create;
mod diff;
mod exec;
mod fork;
mod fs;
mod history;
mod lifecycle;
mod network;
mod relocate;

use std::process::ExitCode;

use clap::{Args, Subcommand};

/// Work in a sandbox that lasts: its workspace is kept, whatever becomes of what runs in it
#[derive(Debug, Args)]
pub struct Sandbox {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Create(Box<create::Create>),
    /// List sandboxes, as `ringfence status` does
    #[command(visible_alias = "ls")]
    List(super::status::Status),
    Exec(Box<exec::Exec>),
    Shell(exec::Shell),
    Checkpoint(checkpoint::Checkpoint),
    Checkpoints(checkpoint::Checkpoints),
    Rollback(checkpoint::Rollback),
    Pin(checkpoint::Pin),
    Unpin(checkpoint::Unpin),
    Fork(fork::Fork),
    Diff(diff::Diff),
    Stop(lifecycle::Stop),
    Resume(lifecycle::Resume),
    Rm(lifecycle::Rm),
    Network(network::Network),
    Move(relocate::Move),
    History(history::History),
    Fs(fs::Fs),
}

impl Sandbox {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.verb {
            Verb::Create(verb) => verb.run(),
            Verb::List(verb) => verb.run(),
            Verb::Exec(verb) => verb.run(),
            Verb::Shell(verb) => verb.run(),
            Verb::Checkpoint(verb) => verb.run(),
            Verb::Checkpoints(verb) => verb.run(),
            Verb::Rollback(verb) => verb.run(),
            Verb::Pin(verb) => verb.run(),
            Verb::Unpin(verb) => verb.run(),
            Verb::Fork(verb) => verb.run(),
            Verb::Diff(verb) => verb.run(),
            Verb::Stop(verb) => verb.run(),
            Verb::Resume(verb) => verb.run(),
            Verb::Rm(verb) => verb.run(),
            Verb::Network(verb) => verb.run(),
            Verb::Move(verb) => verb.run(),
            Verb::History(verb) => verb.run(),
            Verb::Fs(verb) => verb.run(),
        }
    }
}
