//! What this host can hold a sandbox to: every primitive tried, every gap named with its cure.

use std::io;
use std::path::Path;

use ringfence_jail::cgroup::{Cgroup, CgroupLimits};
use ringfence_jail::probe::{self, Primitive};
use ringfence_model::limits::{Graded, Limits};
use serde::Serialize;

use crate::backend;
use crate::error::Error;
use crate::home::Home;
use crate::policy;
use crate::presets::Surroundings;
use crate::sandbox::grades;
use crate::toolchains::{self, Granted, Toolchain};

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub ready: bool,
    pub checks: Vec<Check>,
    pub limits: Vec<Graded>,
    /// What the user has outside of the system's own directories.
    pub toolchains: Vec<ToolchainFound>,
}

/// A toolchain, and whether sandboxes have it.
#[derive(Clone, Debug, Serialize)]
pub struct ToolchainFound {
    pub toolchain: Toolchain,
    /// By the policy of the home; absent where that cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub granted: Option<Granted>,
}

/// One primitive.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub state: State,
    pub detail: String,
    /// The one command that cures it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Works,
    /// A second wall or a firmer limit is missing; sandboxes hold without it.
    Weaker,
    /// No sandbox can be made without it.
    Missing,
}

/// Tries everything.
pub fn examine(home: &Home) -> Result<Report, Error> {
    let mut checks = Vec::new();
    for (name, primitive, what) in [
        (
            "namespaces",
            Primitive::Namespaces,
            "user, mount, pid, network, ipc and uts namespaces",
        ),
        (
            "mounts",
            Primitive::Mounts,
            "detached and read-only mounts inside them",
        ),
        ("proc", Primitive::Proc, "a fresh /proc inside"),
        (
            "overlay",
            Primitive::Overlay,
            "copy-on-write layers in the state directory",
        ),
    ] {
        checks.push(match probe::try_primitive(primitive, home.root()) {
            Ok(()) => check(name, State::Works, what.to_owned(), None),
            Err(error) => check(
                name,
                State::Missing,
                format!("{what}: {error}"),
                Some(cure(primitive, &error, home.root())),
            ),
        });
    }
    checks.push(if probe::has_seccomp() {
        check(
            "seccomp",
            State::Works,
            "system call filters".to_owned(),
            None,
        )
    } else {
        check(
            "seccomp",
            State::Missing,
            "this kernel has no system call filters".to_owned(),
            Some("boot a kernel with CONFIG_SECCOMP_FILTER".to_owned()),
        )
    });
    checks.push(match probe::landlock_version() {
        Some(version) if version >= 6 => check(
            "landlock",
            State::Works,
            format!("second wall, version {version}"),
            None,
        ),
        Some(version) => check(
            "landlock",
            State::Weaker,
            format!("version {version}: signals and abstract sockets are held by namespaces only"),
            Some("boot Linux 6.12 or later".to_owned()),
        ),
        None => check(
            "landlock",
            State::Weaker,
            "no second wall; namespaces and seccomp hold alone".to_owned(),
            Some("boot with `lsm=landlock,…` on the kernel command line".to_owned()),
        ),
    });
    checks.push(if has_git() {
        check(
            "git",
            State::Works,
            "needed for sandboxes from a repository, and for sub-folders of one".to_owned(),
            None,
        )
    } else {
        check(
            "git",
            State::Weaker,
            "`git` is not installed; a sub-folder of a repository has no .git inside".to_owned(),
            Some("install git".to_owned()),
        )
    });
    let limits = Limits::for_host(ringfence_jail::total_memory_bytes());
    let cgroup = Cgroup::create(
        &format!("ringfence-doctor-{}", std::process::id()),
        &CgroupLimits {
            memory_bytes: limits.memory_bytes,
            processes: Some(limits.processes),
        },
    );
    checks.push(match &cgroup {
        Some(cgroup) if cgroup.holds_memory() => check(
            "cgroup",
            State::Works,
            "memory and processes are held by the kernel".to_owned(),
            None,
        ),
        _ => check(
            "cgroup",
            State::Weaker,
            "no memory cgroup for this user; memory is watched".to_owned(),
            Some("systemd-run --user --scope -p Delegate=yes ringfence run …".to_owned()),
        ),
    });
    let limits = grades(&limits, backend::native_holds(cgroup.as_ref()));
    Ok(Report {
        ready: checks.iter().all(|check| check.state != State::Missing),
        checks,
        limits,
        toolchains: toolchains(home),
    })
}

fn toolchains(home: &Home) -> Vec<ToolchainFound> {
    let policy = policy::of_host(home, None, None).ok();
    let found = toolchains::find(&Surroundings::of_process(None), &[]).into_iter();
    let granted = |toolchain: Toolchain| ToolchainFound {
        granted: policy.as_ref().map(|policy| toolchain.granted(policy)),
        toolchain,
    };
    found.map(granted).collect()
}

fn check(name: &'static str, state: State, detail: String, fix: Option<String>) -> Check {
    Check {
        name,
        state,
        detail,
        fix,
    }
}

fn has_git() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join("git").is_file())
}

/// The one command for what is seen.
fn cure(primitive: Primitive, error: &io::Error, home: &Path) -> String {
    let sysctl = |name: &str| {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        std::fs::read_to_string(path)
            .ok()
            .and_then(|text| text.trim().parse::<i64>().ok())
    };
    if sysctl("kernel.apparmor_restrict_unprivileged_userns") == Some(1) {
        return "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0".to_owned();
    }
    if sysctl("kernel.unprivileged_userns_clone") == Some(0) {
        return "sudo sysctl -w kernel.unprivileged_userns_clone=1".to_owned();
    }
    if sysctl("user.max_user_namespaces") == Some(0) {
        return "sudo sysctl -w user.max_user_namespaces=15000".to_owned();
    }
    match primitive {
        Primitive::Overlay if matches!(error.raw_os_error(), Some(22 | 95)) => {
            format!(
                "export RINGFENCE_HOME=DIR with DIR on ext4, xfs, btrfs or tmpfs; `{}` cannot hold layers",
                home.display()
            )
        }
        Primitive::Proc => "docker run --security-opt systempaths=unconfined …".to_owned(),
        _ if Path::new("/.dockerenv").exists() => {
            "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined …"
                .to_owned()
        }
        _ => "boot Linux 5.13 or later with user namespaces and overlayfs".to_owned(),
    }
}
