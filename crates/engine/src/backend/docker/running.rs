//! A container with our guest in it, from its start to its end.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use ringfence_jail::cgroup::{CgroupEvents, Foreign};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::place::Place;
use super::told::Told;
use super::{Docker, Kernel, remote, volumes};
use crate::backend::{Backend as _, BackendError, Files, Holds, Processes, Started, gvisor};

/// BOUND: an engine that starts again is there within seconds.
const BACK_WITHIN: Duration = Duration::from_secs(60);

/// What the cgroup of a container is asked to hold.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub memory: Option<u64>,
    pub processes: u64,
}

/// A container with our guest in it.
#[derive(Debug)]
pub struct Running {
    pub docker: Docker,
    pub place: Place,
    pub container: Option<String>,
    pub control: Option<UnixStream>,
    pub foreign: Foreign,
    /// Tells when pid 1 is gone.
    pub pidfd: Option<OwnedFd>,
    pub wanted: Bounds,
    /// What was seen of that: memory and processes.
    pub held: (Option<u64>, Option<u64>),
    pub was_ended: bool,
    /// Where the workspace is not here.
    pub elsewhere: Option<remote::Elsewhere>,
    /// What the engine tells of it.
    pub told: Option<Told>,
}

impl Running {
    /// Whether pid 1 is gone, or goes now that its socket is closed.
    fn is_over(&self) -> bool {
        // BOUND: the guest ends at once.
        let wait = Timespec {
            tv_sec: 10,
            tv_nsec: 0,
        };
        match &self.pidfd {
            Some(pidfd) => {
                let mut waits = [PollFd::new(pidfd, PollFlags::IN)];
                rustix::event::poll(&mut waits, Some(&wait)) == Ok(1)
            }
            None => false,
        }
    }

    /// Does something with an engine that has our work, and may be starting again: it has all volumes then.
    fn in_time(
        &mut self,
        act: impl Fn(&mut Self) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let deadline = Instant::now() + BACK_WITHIN;
        loop {
            match act(self) {
                Err(error)
                    if error.is_silence()
                        && self.elsewhere.is_some()
                        && Instant::now() < deadline =>
                {
                    std::thread::sleep(Duration::from_millis(500));
                }
                done => return done,
            }
        }
    }

    /// What the engine says that it holds is looked at where the kernel keeps it.
    pub fn seen(&self) -> Result<(), BackendError> {
        if self
            .held
            .1
            .is_some_and(|held| held <= self.wanted.processes)
        {
            return Ok(());
        }
        Err(BackendError::DoesNotHold {
            backend: self.docker.name(),
            what: "the number of processes: its cgroup has no such bound here",
        })
    }
}

impl Started for Running {
    fn control(&self) -> Option<&UnixStream> {
        self.control.as_ref()
    }

    fn pid(&self) -> Option<i32> {
        self.foreign.pid()
    }

    fn holds(&self) -> Holds {
        let memory = self
            .held
            .0
            .filter(|bound| self.wanted.memory.is_some_and(|asked| *bound <= asked));
        let files = match self.elsewhere {
            None => Files::Here,
            Some(_) => Files::Elsewhere,
        };
        match self.docker.kernel {
            Kernel::Shared => Holds {
                memory: memory.map(|_| "memory cgroup of the engine"),
                processes: Processes::Cgroup,
                files,
            },
            Kernel::Own(_) => Holds {
                memory: memory.map(|_| gvisor::MEMORY),
                processes: Processes::Namespace,
                files,
            },
        }
    }

    fn agent(&self) -> (u32, u32) {
        self.place.agent()
    }

    fn events(&self) -> CgroupEvents {
        let mut events = self.foreign.events();
        // What the kernel counts there is not seen here, or went with the container: the engine knows.
        let unseen = self.elsewhere.is_some() || self.foreign.is_gone();
        if let Some(told) = self.told.as_ref().filter(|_| unseen) {
            events.memory_kills += told.memory_kills(self.foreign.is_gone());
        }
        match self.docker.kernel {
            Kernel::Shared => events,
            Kernel::Own(_) => gvisor::events(events),
        }
    }

    fn held_up(&self) -> Option<String> {
        let paused = self.told.as_ref().is_some_and(Told::is_paused);
        let name = super::container::name_of(&self.place.name());
        paused.then(|| format!("its container is paused; `docker unpause {name}` lets it go on"))
    }

    fn bring(&mut self) -> Result<(), BackendError> {
        match &self.elsewhere {
            Some(elsewhere) => elsewhere.bring(&self.docker, &self.place),
            None => Ok(()),
        }
    }

    fn end(&mut self) -> io::Result<()> {
        self.was_ended = true;
        // The guest ends with its socket, and everything inside with it.
        if let Some(control) = self.control.take() {
            let _ = control.shutdown(std::net::Shutdown::Both);
        }
        if let Some(id) = self.container.take() {
            // An engine that is gone does not matter where pid 1 is: nothing inside outlives it, and the
            // engine was told to remove the container with it.
            let removed = self.in_time(|running| running.docker.remove(&id));
            if let Err(error) = removed.or_else(|error| self.is_over().then_some(()).ok_or(error)) {
                self.container = Some(id);
                return Err(io::Error::other(error));
            }
        }
        // The volume outlives its container. Where this fails, it is left to whoever asks the engine.
        self.in_time(Self::bring).map_err(io::Error::other)?;
        let is_elsewhere = !self.docker.is_here();
        let removed = volumes::remove(&self.docker, &self.place.name());
        self.elsewhere = None;
        // What is left elsewhere is known by the place alone.
        if removed.is_err() && is_elsewhere {
            return Ok(());
        }
        self.place.leave();
        volumes::clear_many(&self.docker, &self.docker.places);
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A drop cannot report; what is left is found by its place. What was tried is not tried again:
        // an engine may be silent for minutes.
        if !self.was_ended {
            let _ = self.end();
        }
    }
}
