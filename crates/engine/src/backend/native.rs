//! The native backend: our own launcher, on namespaces of the kernel. No daemon, no image, no root.

use std::io;
use std::os::unix::net::UnixStream;

use ringfence_jail::cgroup::{Cgroup, CgroupEvents, CgroupLimits};
use ringfence_jail::launch::{Launched, launch};
use ringfence_model::wire::Observation;

use super::{Backend, Files, Holds, Processes, Start, Started};
use crate::guest;
use crate::sandbox::SandboxError;

/// What it is called.
pub const NAME: &str = "native";

/// Sandboxes by our own launcher.
#[derive(Clone, Copy, Debug)]
pub struct Native;

impl Backend for Native {
    fn name(&self) -> &'static str {
        NAME
    }

    fn start(&self, start: &Start<'_>) -> Result<Box<dyn Started>, SandboxError> {
        let sealed = guest::sealed().map_err(SandboxError::SealGuest)?;
        let cgroup = Cgroup::create(
            &cgroup_name(start.name),
            &CgroupLimits {
                memory_bytes: start.limits.memory_bytes,
                // The guest and the warden count as well, so that this bound is met first and its
                // refusals are counted.
                processes: Some(start.limits.processes),
            },
        );
        let launched = launch(start.spec, sealed, cgroup.as_ref(), start.gate)?;
        let id = start.spec.runs.id();
        Ok(Box::new(Running {
            launched,
            cgroup,
            agent: (id, id),
        }))
    }

    fn observation(&self) -> Observation {
        Observation::Verified
    }

    fn destroy(&self, name: &str) {
        ringfence_jail::cgroup::sweep(&cgroup_name(name));
    }
}

fn cgroup_name(name: &str) -> String {
    format!("ringfence-{name}")
}

/// What the kernel holds a sandbox to that is in such a cgroup.
pub(crate) fn holds(cgroup: Option<&Cgroup>) -> Holds {
    Holds {
        memory: cgroup
            .is_some_and(Cgroup::holds_memory)
            .then_some("memory cgroup"),
        processes: if cgroup.is_some_and(Cgroup::holds_processes) {
            Processes::NamespaceAndCgroup
        } else {
            Processes::Namespace
        },
        files: Files::Here,
    }
}

#[derive(Debug)]
struct Running {
    launched: Launched,
    cgroup: Option<Cgroup>,
    agent: (u32, u32),
}

impl Started for Running {
    fn control(&self) -> Option<&UnixStream> {
        Some(self.launched.control())
    }

    fn pid(&self) -> Option<i32> {
        Some(self.launched.pid())
    }

    fn holds(&self) -> Holds {
        holds(self.cgroup.as_ref())
    }

    fn agent(&self) -> (u32, u32) {
        self.agent
    }

    fn events(&self) -> CgroupEvents {
        self.cgroup.as_ref().map(Cgroup::events).unwrap_or_default()
    }

    fn end(&mut self) -> io::Result<()> {
        self.launched.end()
    }
}
