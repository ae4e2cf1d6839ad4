//! What a gate gives up before it reads anything of the agent's: all of the host but the network,
//! what finding hosts takes, and its cache.

use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use ringfence_model::gate::Setup;
use rustix::process::{DumpableBehavior, Resource, Rlimit};

/// Libraries, what finding hosts takes, and certificates. No home, no `/tmp`, no `/proc`, and of `/etc` nothing else:
/// keys and passwords of the host are there.
const READABLE: [&str; 29] = [
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix/store",
    "/gnu/store",
    "/dev/urandom",
    "/etc/ld.so.cache",
    "/etc/localtime",
    // Finding hosts.
    "/etc/gai.conf",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/run/NetworkManager",
    "/run/resolvconf",
    "/run/systemd/resolve",
    // Certificates, where distributions have them.
    "/etc/ca-certificates",
    "/etc/certs",
    "/etc/pki/ca-trust/extracted",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/tls/certs",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs",
    "/var/lib/ca-certificates",
    "/var/ssl/certs",
];

/// No core file, no reading of its memory by others, and descriptors for many connections.
pub(crate) fn hide() -> io::Result<()> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    rustix::process::setrlimit(Resource::Core, none)?;
    // Each connection is up to six descriptors, each port of a name one.
    let mut files = rustix::process::getrlimit(Resource::Nofile);
    files.current = files.maximum;
    Ok(rustix::process::setrlimit(Resource::Nofile, files)?)
}

/// Landlock, as far as the kernel has it. Where it has none the gate is bound less; the sandbox is
/// not, and so this is no reason to have no gate.
pub(crate) fn raise(setup: &Setup) -> io::Result<RulesetStatus> {
    let abi = ABI::V6;
    let readable = READABLE.iter().map(PathBuf::from);
    // Where a host's own certificates are elsewhere, its environment says so.
    let elsewhere = ["SSL_CERT_FILE", "SSL_CERT_DIR"].map(std::env::var_os);
    let elsewhere = elsewhere.into_iter().flatten().map(PathBuf::from);
    let readable = readable.chain(setup.roots.clone()).chain(elsewhere);
    let build = || -> Result<RulesetStatus, RulesetError> {
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(abi))?
            // It dials; it takes its listeners from the guest.
            .handle_access(AccessNet::BindTcp)?
            .scope(Scope::from_all(abi))?
            .create()?;
        for path in readable {
            let look = if path.is_dir() {
                AccessFs::ReadFile | AccessFs::ReadDir
            } else {
                AccessFs::ReadFile.into()
            };
            // Most hosts have some of these only.
            if let Ok(path) = PathFd::new(&path) {
                ruleset = ruleset.add_rule(PathBeneath::new(path, look))?;
            }
        }
        if let Some(path) = setup.cache.as_deref().and_then(open) {
            let all = AccessFs::from_all(abi) & !AccessFs::Execute;
            ruleset = ruleset.add_rule(PathBeneath::new(path, all))?;
        }
        Ok(ruleset.restrict_self()?.ruleset)
    };
    build().map_err(io::Error::other)
}

/// A cache that is not there is not made here: there is none then.
fn open(path: &Path) -> Option<PathFd> {
    PathFd::new(path).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::{TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
    use std::process::Command;

    use super::*;

    #[test]
    fn a_gate_has_its_cache_and_what_finding_hosts_takes() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        fs::create_dir(&cache).unwrap();
        fs::write(folder.path().join("secret"), "x").unwrap();
        let place = folder.path().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // The wall is around the thread that raises it, and what it starts.
        let behind = std::thread::spawn(move || {
            let setup = Setup {
                cache: Some(cache.clone()),
                ..Setup::default()
            };
            if raise(&setup).unwrap() != RulesetStatus::FullyEnforced {
                println!("SKIPPED the wall of a gate: this kernel has not all of Landlock");
                return;
            }
            fs::write(cache.join("kept"), "x").unwrap();
            fs::rename(cache.join("kept"), cache.join("there")).unwrap();
            // Names are found, certificates are read, hosts are dialled.
            assert!(("localhost", 1).to_socket_addrs().unwrap().next().is_some());
            assert!(rustls_native_certs::load_native_certs().errors.is_empty());
            TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            UdpSocket::bind("127.0.0.1:0").unwrap();
            let denied = |result: io::Result<()>| {
                assert_eq!(result.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
            };
            denied(fs::read(place.join("secret")).map(|_| ()));
            denied(fs::read("/etc/passwd").map(|_| ()));
            denied(fs::read_dir("/etc").map(|_| ()));
            denied(fs::write(place.join("new"), "x"));
            denied(fs::write(place.join("secret"), "y"));
            denied(fs::remove_file(place.join("secret")));
            denied(TcpListener::bind("127.0.0.1:0").map(|_| ()));
            denied(Command::new("/bin/true").status().map(|_| ()));
        });
        behind.join().unwrap();
    }
}
