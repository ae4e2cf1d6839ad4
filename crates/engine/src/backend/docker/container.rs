//! What is asked of an engine for one sandbox: the description of its container.

use std::path::Path;

use ringfence_jail::facts::{HostFacts, MaskType};
use ringfence_jail::plan::Holds;
use ringfence_model::hex;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::super::{Start, gvisor};
use super::place::{CONTROL, GUEST, Mount};
use super::{Bounds, Flavour, Lane};

/// On every container of ours: the sandbox's name.
pub const NAME_LABEL: &str = "ringfence.sandbox";
const HOME_LABEL: &str = "ringfence.home";

/// What containers of ours are called.
pub fn name_of(name: &str) -> String {
    format!("ringfence-{name}")
}

/// A label that tells the containers of one home from those of others, and says not where it is.
pub fn label_of(home: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    let hash = hex(&Sha256::digest(home.as_os_str().as_bytes()));
    format!("{HOME_LABEL}={}", &hash[..16])
}

/// A word of an address.
pub fn percent(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => {
                escaped.push(char::from(byte));
            }
            _ => escaped += &format!("%{byte:02X}"),
        }
    }
    escaped
}

/// One container.
pub struct Wanted<'a> {
    pub start: &'a Start<'a>,
    pub image: &'a str,
    pub mounts: Vec<Mount>,
    pub home_label: &'a str,
    pub flavour: Flavour,
    pub agent: (u32, u32),
    pub bounds: Bounds,
    pub lane: Lane,
    /// Whether the engine is one of this machine.
    pub is_here: bool,
    /// One with a kernel of its own.
    pub runtime: Option<&'a str>,
    /// The filter, or the path of a file that has it.
    pub seccomp: String,
}

/// The filter that a container begins with, as engines take it.
pub fn seccomp() -> String {
    let filter = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{ "names": REFUSED, "action": "SCMP_ACT_ERRNO", "errnoRet": 1 }],
    });
    filter.to_string()
}

/// Calls that nothing in a container of ours has a use for, from its first instruction on. The guest's
/// own filter, which is an allowlist, comes before any command.
const REFUSED: &[&str] = &[
    "unshare",
    "setns",
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "open_tree",
    "move_mount",
    "mount_setattr",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "add_key",
    "request_key",
    "keyctl",
    "name_to_handle_at",
    "open_by_handle_at",
    "quotactl",
    "acct",
    "reboot",
    "swapon",
    "swapoff",
    "kexec_load",
    "kexec_file_load",
    "init_module",
    "finit_module",
    "delete_module",
    "syslog",
    "settimeofday",
    "clock_settime",
    "clock_adjtime",
    "adjtimex",
    "iopl",
    "ioperm",
    "process_vm_writev",
    "kcmp",
    "pidfd_getfd",
    "move_pages",
    "migrate_pages",
];

impl Wanted<'_> {
    /// The description, as the engine takes it.
    pub fn describe(&self) -> Value {
        let spec = self.start.spec;
        let (uid, gid) = self.agent;
        let (key, value) = self.home_label.split_once('=').unwrap_or_default();
        let labels = json!({ NAME_LABEL: self.start.name, key: value });
        let bound = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let memory = self.bounds.memory.map_or(0, bound);
        // With a kernel of its own, pid 1 is root of that kernel: there, who has its user can end it.
        let (user, capabilities): (_, &[&str]) = match self.runtime {
            None => (format!("{uid}:{gid}"), &[]),
            Some(_) => ("0:0".to_owned(), &gvisor::CAPABILITIES),
        };
        let entry = match self.lane {
            Lane::Socket => json!([GUEST, "--at", CONTROL]),
            Lane::Streams => json!([GUEST, "--here"]),
        };
        json!({
            "Image": self.image,
            "Hostname": spec.hostname,
            "User": user,
            "Entrypoint": entry,
            "Cmd": [],
            "WorkingDir": "/",
            "Labels": labels,
            "Tty": false,
            "OpenStdin": self.lane == Lane::Streams,
            // The guest goes with whoever talks to it.
            "StdinOnce": true,
            "StopSignal": "SIGKILL",
            // Podman has no way to say so, and asks for timers where it is told.
            "Healthcheck": match self.flavour {
                Flavour::Docker => json!({ "Test": ["NONE"] }),
                Flavour::Podman => Value::Null,
            },
            "HostConfig": {
                // Elsewhere it is asked afterwards how it ended.
                "AutoRemove": self.is_here,
                "NetworkMode": "none",
                "ReadonlyRootfs": true,
                "Privileged": false,
                "Runtime": self.runtime,
                "CapDrop": ["ALL"],
                "CapAdd": capabilities,
                "SecurityOpt": self.security(),
                "PidsLimit": bound(self.bounds.processes),
                "Memory": memory,
                "MemorySwap": memory,
                "Ulimits": ulimits(),
                "IpcMode": "private",
                // Where the container is in the host's tree is nobody's business inside.
                "CgroupnsMode": "private",
                "LogConfig": { "Type": "none", "Config": {} },
                "RestartPolicy": { "Name": "no" },
                "Init": false,
                "MaskedPaths": masked(),
                "ReadonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"],
                // Services have their own ports at the addresses of their names.
                "Sysctls": { "net.ipv4.ip_unprivileged_port_start": "0" },
                "Mounts": self.mounts.iter().map(|mount| mount.describe(self.start.name)).collect::<Vec<_>>(),
                "Tmpfs": self.scratch((uid, gid)),
            },
        })
    }

    fn security(&self) -> Vec<String> {
        let seccomp = format!("seccomp={}", self.seccomp);
        let mut options = vec!["no-new-privileges".to_owned(), seccomp];
        // It does not look at the list of paths that Docker has for this.
        if self.flavour == Flavour::Podman {
            options.push(format!("mask={}", masked().join(":")));
        }
        options
    }

    /// Directories in memory.
    fn scratch(&self, (uid, gid): (u32, u32)) -> Map<String, Value> {
        let spec = self.start.spec;
        let bytes = spec.tmpfs_bytes;
        let mut areas = Map::new();
        let own = |mode: &str, bytes: u64| {
            let plain = format!("rw,nosuid,nodev,exec,size={bytes},mode={mode}");
            json!(match self.flavour {
                Flavour::Docker => format!("{plain},uid={uid},gid={gid}"),
                // Its words for the one user inside, and for nothing of the image's.
                Flavour::Podman => format!("{plain},U,notmpcopyup"),
            })
        };
        let taken = |inside: &str| self.mounts.iter().any(|mount| mount.inside == inside);
        if spec.workspace.holds == Holds::Folder {
            for (inside, mode) in [("/tmp", "1777"), ("/home/agent", "0755")] {
                if !taken(inside) {
                    areas.insert(inside.to_owned(), own(mode, bytes));
                }
            }
        }
        if self.flavour == Flavour::Podman {
            // It has some of its own there, which could be written: a copy of the image's.
            for inside in ["/run", "/var/tmp"].into_iter().filter(|one| !taken(one)) {
                areas.insert(inside.to_owned(), json!("ro,nosuid,nodev"));
            }
        }
        // An engine's own would let no program run, and tools build and run there.
        areas.insert("/dev/shm".to_owned(), own("1777", bytes));
        for area in &spec.tmpfs {
            let inside = area.inside.to_string_lossy().into_owned();
            areas.insert(inside, own("0755", area.bytes));
        }
        areas
    }
}

/// No core files, and as many open files and processes as this process may have: an engine's own idea of
/// that may be more than the machine allows. Fewer processes are held by the cgroup.
fn ulimits() -> Value {
    use rustix::process::{Resource, getrlimit};
    let core = json!({ "Name": "core", "Soft": 0, "Hard": 0 });
    // BOUND: a service of Podman's bounds itself to so many processes.
    const PROCESSES: u64 = 32_768;
    let as_ours = [
        ("nofile", getrlimit(Resource::Nofile).maximum),
        (
            "nproc",
            Some(
                getrlimit(Resource::Nproc)
                    .maximum
                    .unwrap_or(PROCESSES)
                    .min(PROCESSES),
            ),
        ),
    ];
    let as_ours = as_ours.into_iter().filter_map(|(name, most)| {
        let most = i64::try_from(most?).ok()?;
        Some(json!({ "Name": name, "Soft": most, "Hard": most }))
    });
    Value::Array([core].into_iter().chain(as_ours).collect())
}

/// What of the kernel's own files nobody inside has a use for: the same as without an engine.
fn masked() -> Vec<String> {
    let facts = HostFacts::gather();
    let masks = facts.iter().flat_map(|facts| &facts.proc_masks);
    let paths = masks.map(|(name, _): &(String, MaskType)| format!("/proc/{name}"));
    paths.chain(["/sys".to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_words_of_addresses_are_plain() {
        assert_eq!(
            percent(r#"{"label":["a=b"]}"#),
            "%7B%22label%22%3A%5B%22a%3Db%22%5D%7D"
        );
        let label = label_of(Path::new("/srv/u/ringfence"));
        assert!(
            label.starts_with("ringfence.home=") && !label.contains('/'),
            "{label}"
        );
        assert_ne!(label, label_of(Path::new("/srv/v/ringfence")));
    }
}
