//! How the guest reaches files where it is somebody else than the agent: never with rights that the
//! agent has not.
//!
//! A kernel that has one id for files and another for everything else is told once. One that has not
//! (gVisor's) is told before each file and after it: in between, the guest is the agent in effect and
//! itself in all that says who may trace or signal it.

use std::io;

use crate::identity::Agent;
use crate::lockdown::make_undumpable;
use crate::sys;

/// What it takes to reach a file as the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Nothing: the guest is the agent, or reaches files as the agent all the time.
    Always,
    /// Being the agent meanwhile.
    Switching(Agent),
}

impl Reach {
    /// From here on the guest reaches files as the agent would, by itself or by [`Self::as_agent`].
    pub fn files_as(agent: Agent) -> io::Result<Self> {
        set_file_ids(agent);
        if file_ids() == (agent.uid, agent.gid) {
            return Ok(Self::Always);
        }
        // Tried once, so that what follows can be relied on.
        become_in_effect(agent)?;
        be_itself()?;
        Ok(Self::Switching(agent))
    }

    /// Does something to files as the agent. What is made meanwhile is the agent's.
    ///
    /// INVARIANT: called by the guest, which has one thread. Nothing is reached with the guest's own
    /// rights, and nothing goes on with the agent's: where one cannot be had, everything ends.
    pub fn as_agent<T>(self, reach: impl FnOnce() -> T) -> T {
        let Self::Switching(agent) = self else {
            return reach();
        };
        if become_in_effect(agent).is_err() {
            sys::exit_now(1);
        }
        let reached = reach();
        if be_itself().is_err() {
            sys::exit_now(1);
        }
        reached
    }
}

/// Takes the agent's ids in effect, and with that lays all capabilities aside. The real and the saved
/// ones stay: by these it is decided who may signal or trace this process.
fn become_in_effect(agent: Agent) -> io::Result<()> {
    set_effective(libc::SYS_setresgid, agent.gid)?;
    set_effective(libc::SYS_setresuid, agent.uid)?;
    stay_hidden()
}

/// Being root again takes the capabilities back that are permitted.
fn be_itself() -> io::Result<()> {
    set_effective(libc::SYS_setresuid, 0)?;
    set_effective(libc::SYS_setresgid, 0)?;
    stay_hidden()
}

/// Some kernels show a process again, and let it outlive its parent, when its ids change.
fn stay_hidden() -> io::Result<()> {
    make_undumpable().map_err(io::Error::other)?;
    sys::become_subject_of(libc::SIGKILL)
}

/// Makes file access of this thread that of another user and group.
fn set_file_ids(agent: Agent) {
    // SAFETY: plain numbers; the calls cannot fail in a way that they report.
    unsafe {
        libc::syscall(libc::SYS_setfsgid, agent.gid);
        libc::syscall(libc::SYS_setfsuid, agent.uid);
    }
}

/// Who this thread is to files: user and group. Nobody where the kernel has no such ids.
fn file_ids() -> (u32, u32) {
    // An id that nobody can have changes nothing, and gives the present one.
    const ASK: libc::c_uint = libc::c_uint::MAX;
    // SAFETY: plain numbers.
    unsafe {
        (
            libc::syscall(libc::SYS_setfsuid, ASK) as u32,
            libc::syscall(libc::SYS_setfsgid, ASK) as u32,
        )
    }
}

/// Sets the user or group in effect of this thread, and neither the real nor the saved one.
fn set_effective(call: libc::c_long, id: u32) -> io::Result<()> {
    const SAME: libc::c_long = -1;
    // SAFETY: plain numbers; the raw calls change this thread only.
    match unsafe { libc::syscall(call, SAME, id, SAME) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_a_thread_is_to_files_is_known() {
        let own = (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        );
        assert_eq!(file_ids(), own);
    }
}
