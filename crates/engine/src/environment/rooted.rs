//! A setup that is root of its image: `/` can be written, and what was written is a layer of its own.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use ringfence_jail::identity::Identity;
use ringfence_jail::plan::{Root, Runs, Spec};

use super::stand::ROOT_LAYER;
use super::{EnvironmentError, Order, Resolved};
use crate::changes::own_tree;
use crate::error::Error;
use crate::ownership::take_over;

/// Where and as whom it works.
#[derive(Debug)]
pub(super) struct Rooted {
    identity: Identity,
    /// Holds `upper` and `work` of `/`.
    layer: PathBuf,
}

impl Rooted {
    /// Where the policy asks for it. `agent`: who works in the folder otherwise.
    pub fn prepare(
        order: &Order<'_>,
        resolved: &Resolved,
        place: &Path,
        agent: &Identity,
    ) -> Result<Option<Self>, EnvironmentError> {
        if order.policy.environment.root.is_none() || resolved.ground.is_none() {
            return Ok(None);
        }
        let identity = match agent {
            Identity::Range { .. } => agent.clone(),
            _ => Identity::of_setup(0, 0),
        };
        let layer = place.join(ROOT_LAYER);
        for path in [layer.clone(), layer.join("upper"), layer.join("work")] {
            super::stand::make_directory(&path, agent)?;
            if let Identity::Range { .. } = identity {
                let (uid, gid) = identity.root_on_host();
                let given = std::os::unix::fs::chown(&path, Some(uid), Some(gid));
                given.map_err(|source| EnvironmentError::Make {
                    what: "give away",
                    path,
                    source,
                })?;
            }
        }
        Ok(Some(Self { identity, layer }))
    }

    /// What is other than for an agent.
    pub fn change(&self, spec: &mut Spec) {
        spec.identity = self.identity.clone();
        spec.runs = Runs::Setup;
        if let Root::Image(image) = &mut spec.root {
            image.writable = Some(self.layer.clone());
        }
    }

    /// What it wrote of `/`.
    pub fn upper(&self) -> PathBuf {
        self.layer.join("upper")
    }

    /// For a person: what will not work.
    pub fn note(&self) -> Option<String> {
        match self.identity {
            Identity::Root { others: None, .. } => Some(
                "the setup has one user id, which is root: it cannot give files to other users; with ids in `/etc/subuid` and `/etc/subgid` and the program `newuidmap` it can"
                    .to_owned(),
            ),
            _ => None,
        }
    }

    /// Afterwards, whatever came of it: all that it left in `place` can be read and removed by who
    /// called, and the layers in `agents` belong to agents.
    pub fn settle(&self, program: &Path, place: &Path, agents: &[PathBuf]) -> Result<(), Error> {
        take_over(program, place)?;
        if let Identity::Range { .. } = self.identity {
            for path in agents {
                let opened = File::open(path).map_err(|source| EnvironmentError::Make {
                    what: "open",
                    path: path.clone(),
                    source,
                })?;
                own_tree(opened.as_fd(), self.identity.agent_on_host())?;
            }
        }
        Ok(())
    }
}
