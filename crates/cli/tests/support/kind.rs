//! What differs between engines that the tests start: the program, its settings, its client.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use serde_json::{Value, json};

use super::which;

/// One program that is an engine.
#[derive(Debug)]
pub struct Kind {
    /// The program that runs.
    pub daemon: &'static str,
    /// What must be there.
    pub programs: &'static [&'static str],
    /// The client, and what makes it talk to the engine that the variable names.
    pub client: &'static [&'static str],
    /// Where it is, for its client and for us.
    pub variable: &'static str,
    /// The engine with a directory that has all of it; its socket is `socket` there. What it stands on is
    /// before it.
    pub commands: fn(&Path, Lifetime) -> Result<Vec<Command>>,
    /// What ends the containers that outlive it.
    pub clear: &'static [&'static str],
}

/// When an engine ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// With the test that started it, even if that test is killed.
    Test,
    /// With the run of all tests: `scripts/test` stops it.
    Run,
}

pub const DOCKER: Kind = Kind {
    daemon: "dockerd",
    programs: &["dockerd", "containerd", "docker", "busybox"],
    client: &["docker"],
    variable: "DOCKER_HOST",
    commands: docker,
    clear: &[],
};

pub const PODMAN: Kind = Kind {
    daemon: "podman",
    programs: &["podman", "conmon", "runc", "busybox"],
    client: &["podman", "--remote"],
    variable: "CONTAINER_HOST",
    commands: podman,
    // Each has a monitor of its own.
    clear: &["rm", "--all", "--force", "--time", "0"],
};

fn option(directory: &Path, name: &str) -> String {
    directory.join(name).display().to_string()
}

/// The beginning of a command that starts a daemon with this lifetime.
fn daemon(lifetime: Lifetime) -> Command {
    let signal = match lifetime {
        Lifetime::Test => "TERM",
        Lifetime::Run => "clear",
    };
    let mut command = Command::new("setpriv");
    command.env_clear().args(["--pdeathsig", signal]);
    command
}

/// With a `containerd` beside it, as distributions start it: one of its own it kills, with what is going on,
/// where that does not answer within a second or two.
fn docker(directory: &Path, lifetime: Lifetime) -> Result<Vec<Command>> {
    let option = |name| option(directory, name);
    let settings = format!(
        "version = 2\n\
         root = \"{}\"\n\
         state = \"{}\"\n\
         disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
         [grpc]\n\
         address = \"{}\"\n",
        option("containers"),
        option("state"),
        option("containerd"),
    );
    fs::write(directory.join("containerd.toml"), settings)?;
    let mut containerd = daemon(lifetime);
    containerd
        .arg("containerd")
        .args(["--config", &option("containerd.toml")]);
    fs::write(directory.join("settings.json"), runtimes().to_string())?;
    let mut dockerd = daemon(lifetime);
    dockerd
        .arg("dockerd")
        .args(["--containerd", &option("containerd")])
        .args(["--config-file", &option("settings.json")])
        .args(["--data-root", &option("data")])
        .args(["--exec-root", &option("exec")])
        .args(["--pidfile", &option("pid")])
        .args(["--host", &format!("unix://{}", option("socket"))])
        .args(["--bridge=none", "--iptables=false"]);
    Ok(vec![containerd, dockerd])
}

/// Runtimes besides its own. Where an engine has no network, there is none that gVisor could take over.
fn runtimes() -> Value {
    match which("runsc") {
        Some(path) => {
            json!({ "runtimes": { "runsc": { "path": path, "runtimeArgs": ["--network=none"] } } })
        }
        None => json!({}),
    }
}

fn podman(directory: &Path, lifetime: Lifetime) -> Result<Vec<Command>> {
    let option = |name| option(directory, name);
    // Without a lock of its own kind it would share that of the machine's own Podman. A bound on open files
    // that is above the machine's lets no container start.
    let settings = format!(
        "[containers]\n\
         default_ulimits = [\"nofile=20000:20000\"]\n\
         [engine]\n\
         runtime = \"runc\"\n\
         cgroup_manager = \"cgroupfs\"\n\
         events_logger = \"none\"\n\
         lock_type = \"file\"\n\
         tmp_dir = \"{}\"\n\
         [network]\n\
         network_config_dir = \"{}\"\n",
        option("tmp"),
        option("networks"),
    );
    fs::write(directory.join("settings"), settings)?;
    fs::create_dir(directory.join("networks"))?;
    let mut command = daemon(lifetime);
    command
        .arg("podman")
        .args(["--root", &option("data")])
        .args(["--runroot", &option("exec")])
        .args(["--storage-driver", "overlay"])
        .args(["system", "service", "--time=0"])
        .arg(format!("unix://{}", option("socket")))
        .env("CONTAINERS_CONF", option("settings"))
        // It leaves files of what is imported.
        .env("TMPDIR", directory)
        .env("HOME", directory)
        // A container that meets its bound of memory leaves a file where its monitor is.
        .current_dir(directory);
    Ok(vec![command])
}
