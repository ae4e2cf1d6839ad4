//! A split's own command, in a sandbox without a network on a view of the folder.

use std::path::Path;

use std::collections::BTreeSet;

use ringfence_model::ByteText;
use ringfence_model::limits::Limits;
use ringfence_model::outcome::Outcome;
use ringfence_model::policy::{Effective, Files};
use ringfence_model::split::groups::{self, MAX_OUTPUT};
use ringfence_model::wire::{Exec, Leftovers, OutputMode, Stdin};

use super::CampaignError;
use super::room::Room;
use crate::attend::{Console, Inputs, Records, Unwatched, attend};
use crate::backend::{Native, Start};
use crate::client::Stream;
use crate::environment::Standing;
use crate::error::Error;
use crate::output::Spool;
use crate::run::{environment, spec};
use crate::sandbox::{Sandbox, sweep};
use crate::watch::DiskWatch;
use crate::workspace::{Folder, View, Workspace, open_folder};

/// BOUND: how long a command may look for groups.
const TIME_SECONDS: u64 = 600;
/// BOUND: characters of what it said that are told.
const TOLD: usize = 1000;

/// Runs the command and reads its groups.
pub(super) fn groups(
    room: &Room<'_>,
    folder: &Folder,
    policy: &Effective,
    line: &str,
    known: &BTreeSet<ByteText>,
    inputs: &Inputs<'_>,
) -> Result<Vec<Vec<ByteText>>, Error> {
    let usual = Limits::for_host(ringfence_jail::total_memory_bytes());
    let limits = Limits {
        time_seconds: Some(TIME_SECONDS),
        output_bytes: Some(2 * MAX_OUTPUT as u64),
        ..usual
    };
    // Nothing of the host but the folder, and of that nothing that is hidden.
    let files = Files {
        hide: policy.files.hide.clone(),
        ..Files::default()
    };
    let own = open_folder(room.home, folder.path())?;
    let workspace = Workspace::create(room.home, room.id, own, &View::default(), &files)?;
    let spec = spec(&workspace, &Standing::default(), &limits, None);
    let start = Start {
        name: room.id.as_str(),
        spec: &spec,
        limits: &limits,
        gate: None,
    };
    let mut sandbox = Sandbox::start(&Native, &start)?;
    sandbox.prove(&room.home.canary())?;
    let mut spool = Spool::ends_only();
    let mut disk = DiskWatch::new(&workspace.upper(), &limits)?;
    let mut heard = Heard::default();
    let exec = exec(line, &spec.workspace.inside, &limits);
    let records = Records {
        spool: &mut spool,
        disk: &mut disk,
        witness: &mut Unwatched,
        gate: &mut None,
    };
    let attended = attend(&mut sandbox, exec, &limits, records, inputs, &mut heard)?;
    sandbox.end().map_err(Error::Wait)?;
    drop(sandbox);
    sweep(room.home, room.id.as_str());
    if attended.outcome != Outcome::Exited || attended.code != Some(0) {
        let ending = match (attended.not_started, attended.outcome, attended.code) {
            (Some(why), ..) => format!("did not start ({why})"),
            (None, Outcome::Exited, Some(code)) => format!("failed with exit code {code}"),
            (None, outcome, _) => format!("ended: {}", outcome.as_str().replace('_', " ")),
        };
        let output = tail(&heard.stderr);
        return Err(CampaignError::CommandFailed { ending, output }.into());
    }
    let groups = groups::parse(&heard.stdout, known).map_err(CampaignError::Groups)?;
    Ok(groups)
}

fn exec(line: &str, inside: &Path, limits: &Limits) -> Exec {
    Exec {
        argv: ["/bin/sh", "-c", line].map(ByteText::from).to_vec(),
        env: environment(&[]),
        cwd: ByteText::from(inside.as_os_str().as_encoded_bytes()),
        stdin: Stdin::Empty,
        terminal: None,
        timeout_ms: limits.time_seconds.map(|seconds| seconds * 1000),
        output: OutputMode::Attached,
        leftovers: Leftovers::Kill,
    }
}

/// The end of what was said; who prints it makes it harmless.
fn tail(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let skipped = text.chars().count().saturating_sub(TOLD);
    text.chars().skip(skipped).collect()
}

/// What the command prints.
///
/// HOSTILE: no more of it is held than can be used; one byte beyond tells that there was more.
#[derive(Default)]
struct Heard {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Console for Heard {
    fn output(&mut self, stream: Stream, bytes: &[u8]) {
        match stream {
            Stream::Stdout => {
                let room = (MAX_OUTPUT + 1).saturating_sub(self.stdout.len());
                self.stdout.extend(&bytes[..bytes.len().min(room)]);
            }
            Stream::Stderr => {
                self.stderr.extend(bytes);
                let extra = self.stderr.len().saturating_sub(8 * TOLD);
                self.stderr.drain(..extra);
            }
        }
    }
}
