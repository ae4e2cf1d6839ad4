//! Whom the sandbox is on the host: which ids exist inside and what they are outside.

mod subordinate;

use std::io;

pub use subordinate::Subordinate;

/// The agent's user and group id inside, on every backend.
pub const AGENT_ID: u32 = 1000;

/// Who the agent is to a guest that is somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agent {
    pub uid: u32,
    pub gid: u32,
}

/// The capability that every guest keeps: looking into processes of its own user namespace, also
/// into those that hide their memory. Nothing outside of the sandbox is in that namespace.
pub(crate) const OBSERVER_CAPABILITIES: u64 = 1 << libc_cap::SYS_PTRACE;
/// The capabilities that the guest keeps where it is somebody else than the agent: also switch to
/// the agent, signal it, and empty the bounding set.
pub(crate) const GUEST_CAPABILITIES: u64 = OBSERVER_CAPABILITIES
    | 1 << libc_cap::KILL
    | 1 << libc_cap::SETGID
    | 1 << libc_cap::SETUID
    | 1 << libc_cap::SETPCAP;

/// What changing the bounding set takes.
pub(crate) const BOUND_CAPABILITIES: u64 = 1 << libc_cap::SETPCAP;

/// The capabilities of a setup that is root of its own image: what a package manager needs to lay
/// files for several users. Neither mounts nor networks nor devices, and no other root.
pub const SETUP_CAPABILITIES: u64 = 1 << libc_cap::CHOWN
    | 1 << libc_cap::DAC_OVERRIDE
    | 1 << libc_cap::FOWNER
    | 1 << libc_cap::FSETID
    | 1 << libc_cap::KILL
    | 1 << libc_cap::SETGID
    | 1 << libc_cap::SETUID;

mod libc_cap {
    pub const CHOWN: u64 = 0;
    pub const DAC_OVERRIDE: u64 = 1;
    pub const FOWNER: u64 = 3;
    pub const FSETID: u64 = 4;
    pub(crate) const KILL: u64 = 5;
    pub const SETGID: u64 = 6;
    pub const SETUID: u64 = 7;
    pub const SETPCAP: u64 = 8;
    pub const SYS_PTRACE: u64 = 19;
}

/// BOUND: first host id of the range used as root: far above any allocation that distributions
/// make for users or containers, and below the last valid id.
const RANGE_BASE: u32 = 0x7000_0000;
/// BOUND: the ids that programs inside can name.
const RANGE_LENGTH: u32 = 65_536;

/// How ids inside map to ids on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Rootless: the caller's one id is the agent; nothing else exists inside.
    Single { uid: u32, gid: u32 },
    /// Rootless, of a setup that is root of its own image: the caller's id is root inside. Where
    /// the caller has more ids, those are everybody else.
    Root {
        uid: u32,
        gid: u32,
        others: Option<Subordinate>,
    },
    /// As root: a range of ids that nobody has. No process or file inside has host id 0.
    Range {
        base: u32,
        length: u32,
        /// Who owns the folder on disk; seen inside as the agent.
        owner_uid: u32,
        owner_gid: u32,
    },
}

impl Identity {
    /// The identity for this caller and a folder with this owner.
    pub fn of_caller(owner_uid: u32, owner_gid: u32) -> Self {
        let uid = rustix::process::geteuid().as_raw();
        if uid == 0 {
            Self::Range {
                base: RANGE_BASE,
                length: RANGE_LENGTH,
                owner_uid,
                owner_gid,
            }
        } else {
            Self::Single {
                uid,
                gid: rustix::process::getegid().as_raw(),
            }
        }
    }

    /// The identity of a setup that is root of its own image.
    pub fn of_setup(owner_uid: u32, owner_gid: u32) -> Self {
        match Self::of_caller(owner_uid, owner_gid) {
            Self::Single { uid, gid } => Self::Root {
                uid,
                gid,
                others: Subordinate::of_caller(uid),
            },
            range => range,
        }
    }

    /// In one word, for results.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Single { .. } => "single_uid",
            Self::Root { others: None, .. } => "single_root",
            Self::Root { .. } => "subordinate_range",
            Self::Range { .. } => "uid_range",
        }
    }

    /// The host's ids of the agent: the owner of everything that is written inside.
    pub fn agent_on_host(&self) -> (u32, u32) {
        match *self {
            Self::Single { uid, gid } | Self::Root { uid, gid, .. } => (uid, gid),
            Self::Range { base, .. } => (base + AGENT_ID, base + AGENT_ID),
        }
    }

    /// The host's ids of root inside: the owner of what a setup makes as root of its image.
    pub fn root_on_host(&self) -> (u32, u32) {
        match *self {
            Self::Single { uid, gid } | Self::Root { uid, gid, .. } => (uid, gid),
            Self::Range { base, .. } => (base, base),
        }
    }

    /// The guest's own id inside.
    pub fn guest_id(&self) -> u32 {
        match self {
            Self::Single { .. } => AGENT_ID,
            Self::Root { .. } | Self::Range { .. } => 0,
        }
    }

    /// Whether other ids than one exist inside, so that the groups of the caller can be left.
    pub(crate) fn has_many(&self) -> bool {
        match self {
            Self::Single { .. } | Self::Root { others: None, .. } => false,
            Self::Root { .. } | Self::Range { .. } => true,
        }
    }

    /// Writes the maps of a fresh user namespace, seen from its parent.
    pub(crate) fn write_maps(&self, pid: i32) -> io::Result<()> {
        match self {
            Self::Single { uid, gid } => {
                write_proc(pid, "setgroups", "deny")?;
                write_proc(pid, "gid_map", &format!("{AGENT_ID} {gid} 1"))?;
                write_proc(pid, "uid_map", &format!("{AGENT_ID} {uid} 1"))
            }
            Self::Root {
                uid,
                gid,
                others: Some(others),
            } => others.write_maps(pid, *uid, *gid),
            Self::Root { uid, gid, .. } => {
                write_proc(pid, "setgroups", "deny")?;
                write_proc(pid, "gid_map", &format!("0 {gid} 1"))?;
                write_proc(pid, "uid_map", &format!("0 {uid} 1"))
            }
            Self::Range { base, length, .. } => {
                write_proc(pid, "gid_map", &format!("0 {base} {length}"))?;
                write_proc(pid, "uid_map", &format!("0 {base} {length}"))
            }
        }
    }

    /// The maps of an idmapped mount that shows the folder's owner as the agent and everybody
    /// else below the range's length as themselves; the agent's own number and the owner's change
    /// places, so that the map stays one to one.
    pub(crate) fn mount_maps(&self) -> Option<(String, String)> {
        match *self {
            Self::Single { .. } | Self::Root { .. } => None,
            Self::Range {
                base,
                length,
                owner_uid,
                owner_gid,
            } => Some((
                swap_map(owner_uid, AGENT_ID, base, length),
                swap_map(owner_gid, AGENT_ID, base, length),
            )),
        }
    }
}

impl Identity {
    /// The map of an idmapped mount that shows every owner on the disk as that one inside.
    pub(crate) fn image_map(&self) -> Option<String> {
        match *self {
            Self::Single { .. } | Self::Root { .. } => None,
            Self::Range { base, length, .. } => Some(format!("0 {base} {length}")),
        }
    }
}

fn write_proc(pid: i32, file: &str, text: &str) -> io::Result<()> {
    std::fs::write(format!("/proc/{pid}/{file}"), text)
}

/// `disk outside count` lines that map `0..length` to `base..base+length`, but `owner` to
/// `base + agent` and `agent` to `base + owner` (where the owner lies in the range).
fn swap_map(owner: u32, agent: u32, base: u32, length: u32) -> String {
    let mut lines = vec![format!("{owner} {} 1", base + agent)];
    if owner < length && owner != agent {
        lines.push(format!("{agent} {} 1", base + owner));
    }
    let mut special = vec![agent];
    if owner < length {
        special.push(owner);
    }
    special.sort_unstable();
    special.dedup();
    let mut from = 0;
    for stop in special.into_iter().chain([length]) {
        if stop > from {
            lines.push(format!("{from} {} {}", base + from, stop - from));
        }
        from = stop + 1;
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_the_agent_and_everybody_else_is_themselves() {
        for (owner, expected) in [
            (
                0,
                "0 101000 1\n1000 100000 1\n1 100001 999\n1001 101001 1999",
            ),
            (1000, "1000 101000 1\n0 100000 1000\n1001 101001 1999"),
            (
                2000,
                "2000 101000 1\n1000 102000 1\n0 100000 1000\n1001 101001 999\n2001 102001 999",
            ),
            (70_000, "70000 101000 1\n0 100000 1000\n1001 101001 1999"),
        ] {
            assert_eq!(
                swap_map(owner, 1000, 100_000, 3000),
                expected,
                "owner {owner}"
            );
        }
    }

    #[test]
    fn no_id_inside_is_host_root() {
        let identity = Identity::Range {
            base: RANGE_BASE,
            length: RANGE_LENGTH,
            owner_uid: 0,
            owner_gid: 0,
        };
        let (uids, _) = identity.mount_maps().unwrap();
        for line in uids.lines() {
            let outside: u32 = line.split(' ').nth(1).unwrap().parse().unwrap();
            assert!(outside >= RANGE_BASE, "{line}");
        }
    }
}
