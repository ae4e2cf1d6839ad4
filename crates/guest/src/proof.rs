//! The proof from inside: before an agent starts, everything that it must not be able to do is
//! tried in its place, and what it must be able to do as well.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use ringfence_jail::{lockdown, warden};
use ringfence_model::journal::ProbeResult;
use ringfence_model::wire::{Hello, Prove, Reply};
use rustix::io::Errno;

use crate::{become_agent, failure};

/// Tries everything in a child process that is the agent in all but its program.
pub fn prove(prove: &Prove, hello: &Hello) -> Reply {
    let said = warden::call_as_agent(become_agent(hello), |out| {
        let probes = tried(prove, hello);
        // A proof that cannot be told is no proof; the parent sees that nothing came.
        if let Ok(json) = serde_json::to_vec(&probes) {
            let _ = out.write_all(&json);
        }
    });
    let probes = said
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok());
    match probes {
        Some(probes) => Reply::Proof { probes },
        None => Reply::Failed(failure("prove", b"sandbox", Errno::IO)),
    }
}

fn tried(prove: &Prove, hello: &Hello) -> Vec<ProbeResult> {
    let mut probes = Vec::new();
    let mut must_fail = |probe: &str, result: Result<(), String>| {
        probes.push(ProbeResult {
            probe: probe.to_owned(),
            held: result.is_err(),
            tried: true,
            detail: result.err().unwrap_or_else(|| "it worked".to_owned()),
        });
    };
    let said = |error: std::io::Error| error.to_string();
    let canary = Path::new(std::ffi::OsStr::from_bytes(prove.canary.as_bytes()));
    must_fail("read_host_canary", fs::read(canary).map(drop).map_err(said));
    if let Some(port) = prove.host_port {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let connected = TcpStream::connect_timeout(&address, Duration::from_millis(100));
        must_fail("reach_host", connected.map(drop).map_err(said));
    }
    for directory in &prove.unwritable {
        let made = make_file(directory);
        must_fail(&format!("write_{directory}"), made.map_err(said));
    }
    for path in &prove.held {
        must_fail(&format!("write_{path}"), write(path).map_err(said));
        must_fail(
            &format!("change_mode_{path}"),
            keep_mode(path).map_err(said),
        );
        must_fail(
            &format!("change_times_{path}"),
            keep_times(path).map_err(said),
        );
    }
    for file in ["environ", "mem", "maps"] {
        let probe = format!("read_pid1_{file}");
        if is_shown(prove, &probe) {
            continue;
        }
        let opened = fs::read(format!("/proc/1/{file}"));
        // An empty environment of pid 1 would still be one that can be read.
        must_fail(&probe, opened.map(drop).map_err(said));
    }
    must_fail("open_pid1_descriptors", open_descriptors().map_err(said));
    for (name, result) in lockdown::try_refused_calls() {
        must_fail(name, result.map_err(said));
    }
    let mut must_hold = |probe: &str, held: bool, detail: String| {
        probes.push(ProbeResult {
            probe: probe.to_owned(),
            held,
            tried: true,
            detail,
        });
    };
    let written = write(&prove.writable);
    must_hold(
        "write_workspace",
        written.is_ok(),
        written
            .err()
            .map_or_else(|| "made and removed".to_owned(), said),
    );
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let keep = hello.setup.as_ref().map_or(0, |setup| setup.capabilities);
    let capabilities = format!("{keep:016x}");
    for (key, expected) in [
        ("CapEff", &capabilities[..]),
        ("CapPrm", &capabilities),
        ("CapBnd", &capabilities),
        ("CapAmb", "0000000000000000"),
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
    ] {
        let value = status
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
            .map(|value| value.trim().to_owned())
            .or_else(|| lockdown::ask_of_itself(key))
            .unwrap_or_default();
        must_hold(key, value == expected, value);
    }
    let uid = rustix::process::geteuid().as_raw();
    must_hold("identity", uid == hello.agent_uid, format!("uid {uid}"));
    let interfaces = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let names: Vec<&str> = interfaces
        .lines()
        .skip(2)
        .filter_map(|line| line.split(':').next())
        .map(str::trim)
        .collect();
    must_hold("only_loopback", names == ["lo"], names.join(" "));
    let visible = fs::read_dir("/proc").into_iter().flatten().flatten();
    let visible = visible
        .filter(|entry| entry.file_name().as_bytes().iter().all(u8::is_ascii_digit))
        .count();
    must_hold(
        "only_own_processes",
        visible <= 3,
        format!("{visible} processes"),
    );
    for probe in ProbeResult::HARMLESS {
        if !is_shown(prove, probe) {
            continue;
        }
        probes.push(ProbeResult {
            probe: probe.to_owned(),
            held: false,
            tried: false,
            detail: "not tried: this kernel shows it to everybody inside".to_owned(),
        });
    }
    probes
}

/// Opens whatever pid 1 has open, its way to the host above all: one is enough.
fn open_descriptors() -> std::io::Result<()> {
    // BOUND: so early it has a dozen.
    const LAST: i32 = 48;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut refused = std::io::ErrorKind::NotFound.into();
    // What it has as standard streams is nothing.
    for number in 3..LAST {
        for write in [false, true] {
            let opened = fs::File::options()
                .read(!write)
                .write(write)
                .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
                .open(format!("/proc/1/fd/{number}"));
            match opened {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => refused = error,
            }
        }
    }
    Err(refused)
}

/// INVARIANT: nothing else is ever left out, whatever the host asks for.
fn is_shown(prove: &Prove, probe: &str) -> bool {
    ProbeResult::HARMLESS.contains(&probe) && prove.shown.iter().any(|shown| shown == probe)
}

/// Writes in a directory, or opens a file to be written.
fn write(path: &str) -> std::io::Result<()> {
    if Path::new(path).is_dir() {
        make_file(path)
    } else {
        fs::File::options().append(true).open(path).map(drop)
    }
}

/// Sets what is there already: the kernel asks for the same right as for another mode.
fn keep_mode(path: &str) -> std::io::Result<()> {
    fs::set_permissions(path, fs::metadata(path)?.permissions())
}

fn keep_times(path: &str) -> std::io::Result<()> {
    let metadata = fs::metadata(path)?;
    let times = fs::FileTimes::new()
        .set_accessed(metadata.accessed()?)
        .set_modified(metadata.modified()?);
    fs::File::open(path)?.set_times(times)
}

fn make_file(directory: &str) -> std::io::Result<()> {
    let path = format!("{directory}/.ringfence-proof-{}", std::process::id());
    fs::File::create_new(&path)?;
    fs::remove_file(&path)
}
