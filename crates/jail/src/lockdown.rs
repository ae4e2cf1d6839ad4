//! What the guest does to itself, and so to everything it starts, before it takes commands.

use std::io;

use landlock::{
    ABI, Access as _, AccessFs, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset,
    RulesetAttr as _, RulesetCreatedAttr as _, RulesetStatus, Scope,
};

use rustix::io::Errno;

use crate::identity::{GUEST_CAPABILITIES, OBSERVER_CAPABILITIES};
use crate::seccomp::{Filters, SeccompError, SetIds};
use crate::sys;
use crate::warden::BecomeAgent;

/// Why the guest could not lock itself down.
#[derive(Debug, thiserror::Error)]
pub enum LockdownError {
    #[error("cannot make the guest unreadable to the agent")]
    Undumpable(#[source] io::Error),
    #[error("cannot keep the guest's capabilities from the agent")]
    Capabilities(#[source] io::Error),
    #[error("cannot restrict file access with Landlock")]
    Landlock(#[source] landlock::RulesetError),
    #[error("cannot open `{path}` for Landlock")]
    OpenForLandlock {
        path: String,
        #[source]
        source: landlock::PathFdError,
    },
    #[error("cannot list `/`")]
    ListRoot(#[source] io::Error),
    #[error(transparent)]
    Seccomp(#[from] SeccompError),
}

/// What came of the second wall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wall {
    /// All that we ask for is enforced.
    Full,
    /// An older kernel: a part of it.
    Partial,
    /// This kernel has no Landlock.
    Absent,
}

/// Hides the guest from the agent: no ptrace, no `/proc/1/{mem,environ,fd,…}`.
pub fn make_undumpable() -> Result<(), LockdownError> {
    sys::prctl(libc::PR_SET_DUMPABLE, 0).map_err(|errno| LockdownError::Undumpable(errno.into()))
}

/// The guest's capabilities are its own: nothing that it executes inherits them. Those of a setup
/// are handed on to its commands by name.
pub fn keep_capabilities_from_others(become_agent: BecomeAgent) -> Result<(), LockdownError> {
    let keep = match become_agent {
        // In a container of somebody else's it may have none to begin with.
        BecomeAgent::Already => OBSERVER_CAPABILITIES & permitted()?,
        BecomeAgent::Switch(_) => GUEST_CAPABILITIES,
        BecomeAgent::Setup { keep } => GUEST_CAPABILITIES | keep,
    };
    sys::set_capabilities(keep).map_err(|errno| LockdownError::Capabilities(errno.into()))
}

/// Whether this process may look into others that hide their memory.
pub(crate) fn may_look_into_all() -> bool {
    permitted().is_ok_and(|own| own & OBSERVER_CAPABILITIES != 0)
}

/// What this process may use.
fn permitted() -> Result<u64, LockdownError> {
    let sets = rustix::thread::capabilities(None);
    let sets = sets.map_err(|errno| LockdownError::Capabilities(errno.into()))?;
    Ok(sets.permitted.bits())
}

/// Landlock: everything that is mounted may be read and executed, only `writable` may be written.
/// Renames and links between directories are legal inside what is writable. A root that can be
/// written is so but for our own directory, devices and processes.
pub fn raise_wall(writable: &[String], root: RootWrites) -> Result<Wall, LockdownError> {
    let abi = ABI::V6;
    let all = AccessFs::from_all(abi);
    let looking = AccessFs::from_read(abi);
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)
        .map_err(LockdownError::Landlock)?
        .scope(Scope::from_all(abi))
        .map_err(LockdownError::Landlock)?
        .create()
        .map_err(LockdownError::Landlock)?;
    let open = |path: &str| {
        PathFd::new(path).map_err(|source| LockdownError::OpenForLandlock {
            path: path.to_owned(),
            source,
        })
    };
    // Names can be made in `/` itself; what is made there can be read, and written where `/` has it.
    let (naming, parts) = match root {
        RootWrites::No => (looking, Vec::new()),
        RootWrites::Yes => (
            all & !(AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev),
            root_parts().map_err(LockdownError::ListRoot)?,
        ),
    };
    ruleset = ruleset
        .add_rule(PathBeneath::new(open("/")?, naming))
        .map_err(LockdownError::Landlock)?;
    // Devices are written, but nothing is made there. Nothing in /proc is: the memory of processes
    // is there, and what stands at its exec must be what the kernel made.
    let write = AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    ruleset = ruleset
        .add_rule(PathBeneath::new(open("/dev")?, looking | write))
        .map_err(LockdownError::Landlock)?;
    for path in writable.iter().chain(&parts) {
        // Nothing is made below a file; the kernel takes no rule that says so.
        let rights = if std::path::Path::new(path).is_dir() {
            all
        } else {
            all & AccessFs::from_file(abi)
        };
        ruleset = ruleset
            .add_rule(PathBeneath::new(open(path)?, rights))
            .map_err(LockdownError::Landlock)?;
    }
    let status = ruleset.restrict_self().map_err(LockdownError::Landlock)?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => Wall::Full,
        RulesetStatus::PartiallyEnforced => Wall::Partial,
        RulesetStatus::NotEnforced => Wall::Absent,
    })
}

/// Whether commands may write `/` itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootWrites {
    No,
    /// In a setup.
    Yes,
}

/// HOSTILE: the image chose the names in `/`, and may have made links of them to what must stay
/// closed. Only real directories are taken.
fn root_parts() -> io::Result<Vec<String>> {
    const CLOSED: [&str; 4] = ["dev", "proc", "sys", crate::plan::OWN];
    let mut parts = Vec::new();
    for entry in std::fs::read_dir("/")? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if entry.file_type()?.is_dir() && !CLOSED.contains(&name.as_str()) {
            parts.push(format!("/{name}"));
        }
        // BOUND: a rule is kernel memory; no system has as many directories in `/`.
        if parts.len() >= 256 {
            break;
        }
    }
    Ok(parts)
}

/// System call filters for the guest and everything below.
pub fn filter_calls(set_ids: SetIds) -> Result<(), LockdownError> {
    Ok(Filters::build(set_ids)?.install()?)
}

/// What programs that add users need besides, in a setup.
pub fn filter_calls_of_setup() -> Result<(), LockdownError> {
    Ok(crate::seccomp::hide_audit()?)
}

/// What a process is told of itself in `/proc/self/status`, asked for where a kernel has no such line.
/// `None`: nobody knows.
pub fn ask_of_itself(line: &str) -> Option<String> {
    match line {
        "NoNewPrivs" => {
            let held = ask(libc::PR_GET_NO_NEW_PRIVS, 0, 0).ok()?;
            Some(held.to_string())
        }
        "CapAmb" => {
            let mut ambient = 0_u64;
            for capability in 0..u64::BITS {
                let bit = libc::c_ulong::from(capability);
                let (option, is_set) = (libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_IS_SET);
                match ask(option, is_set as libc::c_ulong, bit) {
                    Ok(set) => ambient |= u64::from(set != 0) << capability,
                    // Of the first: the kernel knows no ambient ones. Of a later: it knows no more.
                    Err(Errno::INVAL) => break,
                    Err(_) => return None,
                }
            }
            Some(format!("{ambient:016x}"))
        }
        _ => None,
    }
}

fn ask(
    option: libc::c_int,
    first: libc::c_ulong,
    second: libc::c_ulong,
) -> rustix::io::Result<libc::c_int> {
    // SAFETY: the options used here take plain numbers, and answer with one.
    match unsafe { libc::prctl(option, first, second, 0, 0) } {
        -1 => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
        told => Ok(told),
    }
}

/// What must not be had inside, tried by the caller: each names what it tried and whether the
/// kernel refused.
pub fn try_refused_calls() -> Vec<(&'static str, io::Result<()>)> {
    let socket = |family: i32| -> io::Result<()> {
        // SAFETY: a socket that should not come to be; where it does, this process ends soon.
        match unsafe { libc::socket(family, libc::SOCK_STREAM, 0) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    let call = |number: libc::c_long| -> io::Result<()> {
        // SAFETY: each of these is refused before its arguments are looked at, or fails on zeros.
        match unsafe { libc::syscall(number, 0, 0, 0, 0, 0, 0) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    vec![
        (
            "new_user_namespace",
            sys::unshare(libc::CLONE_NEWUSER).map_err(Into::into),
        ),
        (
            "new_mount_namespace",
            sys::unshare(libc::CLONE_NEWNS).map_err(Into::into),
        ),
        ("vsock", socket(libc::AF_VSOCK)),
        ("packet_socket", socket(libc::AF_PACKET)),
        ("mount", call(libc::SYS_mount)),
        ("io_uring", call(libc::SYS_io_uring_setup)),
        ("bpf", call(libc::SYS_bpf)),
        ("keyctl", call(libc::SYS_keyctl)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_asks_of_itself_is_what_its_status_says() {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        for key in ["NoNewPrivs", "CapAmb"] {
            let told = status
                .lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            assert_eq!(ask_of_itself(key).as_deref(), told.map(str::trim), "{key}");
        }
        assert_eq!(ask_of_itself("Seccomp"), None);
    }
}
