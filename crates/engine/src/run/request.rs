//! What is asked of a run, resolved: no flag, file or environment variable is looked at later.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfence_model::ByteText;
use ringfence_model::bundle::Policy;
use ringfence_model::limits::Limits;
use ringfence_model::policy::{Effective, Files};
use ringfence_model::rounds::Rounds;
use ringfence_model::wire::WindowSize;

use serde::{Deserialize, Serialize};

use super::claim;
use crate::agents::Inside;
use crate::backend::Backend;
use crate::environment::Order;
use crate::error::Error;
use crate::files::FileRules;
use crate::ids::{CampaignId, RunId};
use crate::workspace::{Folder, Ignored, View};

/// Where programs are looked for inside.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// BOUND: less than this does not hold a shell and the guest.
pub(crate) const LEAST_MEMORY: u64 = 16 << 20;

/// One run.
#[derive(Clone, Debug)]
pub struct RunRequest {
    /// What holds its sandbox, and those of its setup and checks.
    pub backend: Arc<dyn Backend>,
    pub folder: PathBuf,
    pub argv: Vec<ByteText>,
    pub name: Option<String>,
    pub limits: Limits,
    /// A limit that is only watched on this host stops the run before it begins.
    pub require_hard: bool,
    /// What it is held to; of this, limits and variables are here as well.
    pub policy: Effective,
    /// For a person: what is not as it was asked for.
    pub notes: Vec<String>,
    /// Variables beyond the plain ones that every sandbox has.
    pub env: Vec<(ByteText, ByteText)>,
    pub view: View,
    /// What the agent is asked, for its standard input; `None`: that is the caller's.
    pub input: Option<Vec<u8>>,
    /// What it is asked, for a file inside, outside of the workspace.
    pub brief: Option<Vec<u8>>,
    /// How often it is sent back with what the checks say; `None`: nobody asked for a loop.
    pub rounds: Option<Rounds>,
    /// A terminal of this size instead of pipes.
    pub terminal: Option<WindowSize>,
    /// Which of several attempts at one task this is.
    pub attempt: Option<Attempt>,
    /// Which task of which campaign it is for.
    pub campaign: Option<OfCampaign>,
    /// Of an agent that was named: its home, its program, how its report is read.
    pub agent: Option<Inside>,
    /// This program: it is also the gate.
    pub program: PathBuf,
}

/// One of several attempts at one task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Attempt {
    /// The id of the first one's group, by which they are found.
    pub group: RunId,
    pub number: u32,
    pub of: u32,
}

/// A task of a campaign, as the row of a run names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfCampaign {
    /// Another campaign of the same name has another one.
    pub id: CampaignId,
    pub name: String,
    /// The id of the task.
    pub task: String,
    /// From 1, in the order of the tasks.
    pub number: u32,
    /// How often it was begun anew because somebody wanted it so.
    pub turn: u32,
}

impl RunRequest {
    pub(super) fn check(&self) -> Result<(), Error> {
        if self
            .argv
            .first()
            .is_none_or(|program| program.as_bytes().is_empty())
        {
            return Err(Error::NoCommand);
        }
        FileRules::of(&self.policy.files)?;
        check_limits(&self.limits)?;
        check_variables(&self.env)
    }

    /// What it sees of the host's files, the program of its agent included.
    pub(super) fn files(&self) -> Files {
        let mut files = self.policy.files.clone();
        let own = self.agent.iter().flat_map(|agent| &agent.mounts);
        files.mounts.extend(own.cloned());
        files
    }

    /// What the run is to stand on.
    pub(crate) fn order(&self, folder: &Folder) -> Result<Order<'_>, Error> {
        let inside = self.view.inside.as_deref();
        let held = (&self.policy, &self.limits);
        Order::of_folder(held, &self.program, &*self.backend, folder, inside)
    }

    /// All that steers the run besides its command.
    pub(super) fn policy(&self, inside: &Path) -> Policy {
        Policy {
            limits: self.limits.clone(),
            require_hard: self.require_hard,
            hide: self
                .policy
                .files
                .hide
                .iter()
                .map(|line| line.text.clone())
                .collect(),
            inside: ByteText::from(inside.as_os_str().as_bytes()),
            include_ignored: self.view.ignored == Ignored::Included,
            effective: Some(self.policy.published()).filter(|own| *own != Effective::default()),
            variables: self.env.iter().map(|(name, _)| name.clone()).collect(),
        }
    }

    /// The variables of the command; `given` are those that lead to a gate.
    /// Those of an environment count less than any.
    pub(super) fn environment(
        &self,
        standing: &[(ByteText, ByteText)],
        given: &[(ByteText, ByteText)],
    ) -> Vec<(ByteText, ByteText)> {
        let own = standing.iter().chain(given).chain(&self.env);
        let own: Vec<_> = own.cloned().collect();
        let mut env = environment(&own);
        if let Some(agent) = &self.agent {
            agent.lead_to(&mut env);
        }
        let name = ByteText::from(claim::VARIABLE);
        if !env.iter().any(|(key, _)| *key == name) {
            env.push((name, claim::PATH.into()));
        }
        env
    }
}

/// Refuses bounds in which nothing can run.
pub(crate) fn check_limits(limits: &Limits) -> Result<(), Error> {
    match limits.memory_bytes.filter(|bytes| *bytes < LEAST_MEMORY) {
        Some(bytes) => Err(Error::TooLittleMemory { bytes }),
        None => Ok(()),
    }
}

/// Refuses what cannot be in an environment.
pub(crate) fn check_variables(env: &[(ByteText, ByteText)]) -> Result<(), Error> {
    for (key, value) in env {
        let bad = |bytes: &[u8]| bytes.contains(&0);
        if key.as_bytes().is_empty()
            || key.as_bytes().contains(&b'=')
            || bad(key.as_bytes())
            || bad(value.as_bytes())
        {
            return Err(Error::BadVariable(key.to_text()));
        }
        // Empty: no result is wanted.
        let is_result = key.as_bytes() == claim::VARIABLE.as_bytes();
        if is_result && !matches!(value.as_bytes().first(), None | Some(b'/')) {
            return Err(Error::RelativeResult(value.to_text()));
        }
    }
    Ok(())
}

/// The whole environment of a command: nothing of the host's that was not asked for.
pub(crate) fn environment(own: &[(ByteText, ByteText)]) -> Vec<(ByteText, ByteText)> {
    let mut plain: Vec<(ByteText, ByteText)> = [
        ("PATH", PATH),
        ("HOME", "/home/agent"),
        ("USER", "agent"),
        ("LOGNAME", "agent"),
        ("SHELL", "/bin/sh"),
        ("LANG", "C.UTF-8"),
        ("RINGFENCE", "1"),
    ]
    .into_iter()
    .map(|(key, value)| (ByteText::from(key), ByteText::from(value)))
    .collect();
    plain.retain(|(key, _)| !own.iter().any(|(name, _)| name == key));
    for (at, (key, value)) in own.iter().enumerate() {
        // The last one of a name wins.
        if !own[at + 1..].iter().any(|(later, _)| later == key) {
            plain.push((key.clone(), value.clone()));
        }
    }
    plain
}
