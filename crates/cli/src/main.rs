//! `ringfence`: words typed, words printed. Everything else is in the engine.

mod commands;
mod console;
mod failure;
mod text;
mod trace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ringfence_jail::Descendants;

/// Run coding agents in throwaway sandboxes; let nothing out but a patch.
///
/// The command runs on a copy-on-write view of a folder. The folder itself, its index and its
/// `.git` do not change. When the command ends, a patch of what it changed is kept, and the
/// sandbox with all its processes is gone.
#[derive(Debug, Parser)]
#[command(
    name = "ringfence",
    version,
    max_term_width = 100,
    after_long_help = "Variables: RINGFENCE_HOME (where everything is kept), RINGFENCE_LOG (what to trace, such as \
                       `info`), RINGFENCE_LOG_FORMAT (`json`), RINGFENCE_LOG_FILE (in the place of standard error)"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<commands::run::Run>),
    Agents(commands::agents::Agents),
    Campaign(commands::campaign::Campaign),
    Eval(Box<commands::eval::Eval>),
    Check(Box<commands::check::Check>),
    Compare(commands::compare::Compare),
    List(commands::list::List),
    Show(commands::show::Show),
    Diff(commands::diff::Diff),
    Blame(commands::blame::Blame),
    Logs(commands::logs::Logs),
    Audit(commands::audit::Audit),
    Denials(commands::denials::Denials),
    Rm(commands::rm::Rm),
    Review(commands::review::Review),
    Approve(commands::approve::Approve),
    Reject(commands::approve::Reject),
    Apply(Box<commands::apply::Apply>),
    Verify(commands::verify::Verify),
    Key(commands::key::Key),
    Policy(commands::policy::Policy),
    Init(commands::init::Init),
    Sandbox(commands::sandbox::Sandbox),
    Image(commands::image::Image),
    Environment(commands::environment::Environment),
    Status(commands::status::Status),
    Events(commands::events::Events),
    Gc(commands::gc::Gc),
    Du(commands::gc::Du),
    Backends(commands::backends::Backends),
    Doctor(commands::doctor::Doctor),
    Completions(commands::completions::Completions),
    #[command(hide = true)]
    Keep(commands::keep::Keep),
    #[command(hide = true)]
    Gate(commands::keep::Gate),
    #[command(hide = true)]
    Settle(commands::keep::Settle),
    #[command(hide = true)]
    Own(commands::keep::Own),
}

impl Command {
    /// Begins to trace, where the command does not do so itself or has nobody to tell it to.
    fn trace(&self) -> anyhow::Result<()> {
        match self {
            Self::Keep(_) | Self::Gate(_) | Self::Settle(_) | Self::Own(_) => Ok(()),
            _ => trace::begin(trace::Goes::AsAsked),
        }
    }
}

fn main() -> ExitCode {
    // Before there is any other thread.
    ringfence_jail::be_prompt(Descendants::Too);
    let cli = Cli::parse();
    if let Err(error) = cli.command.trace() {
        return failure::report(error);
    }
    let result = match cli.command {
        Command::Run(command) => command.run(),
        Command::Agents(command) => command.run(),
        Command::Campaign(command) => command.run(),
        Command::Eval(command) => command.run(),
        Command::Check(command) => command.run(),
        Command::Compare(command) => command.run(),
        Command::List(command) => command.run(),
        Command::Show(command) => command.run(),
        Command::Diff(command) => command.run(),
        Command::Blame(command) => command.run(),
        Command::Logs(command) => command.run(),
        Command::Audit(command) => command.run(),
        Command::Denials(command) => command.run(),
        Command::Rm(command) => command.run(),
        Command::Review(command) => command.run(),
        Command::Approve(command) => command.run(),
        Command::Reject(command) => command.run(),
        Command::Apply(command) => command.run(),
        Command::Verify(command) => command.run(),
        Command::Key(command) => command.run(),
        Command::Policy(command) => command.run(),
        Command::Init(command) => command.run(),
        Command::Sandbox(command) => command.run(),
        Command::Image(command) => command.run(),
        Command::Environment(command) => command.run(),
        Command::Status(command) => command.run(),
        Command::Events(command) => command.run(),
        Command::Gc(command) => command.run(),
        Command::Du(command) => command.run(),
        Command::Keep(command) => command.run(),
        Command::Gate(command) => command.run(),
        Command::Settle(command) => command.run(),
        Command::Own(command) => command.run(),
        Command::Backends(command) => command.run(),
        Command::Doctor(command) => command.run(),
        Command::Completions(command) => command.run(),
    };
    match result {
        Ok(code) => code,
        Err(error) => failure::report(error),
    }
}
