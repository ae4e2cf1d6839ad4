//! How a gate shows inside: a name server, free ports, and the certificates that are trusted.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use super::{List, OWN, Op, PlanError, SYSTEM_ATTRIBUTES, Spec, host, text};
use crate::facts::HostFacts;

/// Where the certificates are that are trusted inside, relative to the root.
pub const TRUST: &str = ".ringfence/ca.pem";

/// How the gate shows inside.
#[derive(Clone, Debug)]
pub struct GateSpec {
    /// The address that answers questions for names.
    pub name_server: Ipv4Addr,
    /// A file of the certificates that the inside trusts, instead of the host's own.
    pub trust: Option<PathBuf>,
    /// Settings for clients, below `/.ringfence`: directories (no content) before what is in them.
    pub staged: Vec<(String, Option<Vec<u8>>)>,
}

/// What `/etc/resolv.conf` says.
pub(super) fn name_service(spec: &Spec) -> String {
    let line = |gate: &GateSpec| format!("nameserver {}\n", gate.name_server);
    spec.gate.as_ref().map(line).unwrap_or_default()
}

/// Opens what is shown, once for each place.
pub(super) fn open(list: &mut List, spec: &Spec, facts: &HostFacts) -> Result<(), PlanError> {
    if let Some(file) = trusted(spec) {
        for _ in trust_places(facts) {
            list.open(host(file)?, SYSTEM_ATTRIBUTES);
        }
    }
    Ok(())
}

/// Some resolvers look for IPv4 addresses only where the machine has one that is not `127.0.0.1`.
pub(super) fn address(list: &mut List, spec: &Spec) {
    list.ops
        .extend(spec.gate.iter().map(|gate| Op::LoopbackAddress {
            address: gate.name_server,
        }));
}

pub(super) fn settings(list: &mut List, spec: &Spec) {
    if spec.gate.is_some() {
        // Services have their own ports at the addresses of their names.
        list.push(Op::Setting {
            path: text("proc/sys/net/ipv4/ip_unprivileged_port_start"),
            value: "0",
        });
    }
}

fn trusted(spec: &Spec) -> Option<&Path> {
    spec.gate.as_ref()?.trust.as_deref()
}

/// Where programs look for certificates: our own place, and each of the host's that is there.
fn trust_places(facts: &HostFacts) -> impl Iterator<Item = &str> {
    std::iter::once(TRUST).chain(facts.bundles.iter().map(String::as_str))
}

/// Those of the places that are not our own, where something is shown at them.
pub(super) fn bundles<'a>(spec: &Spec, facts: &'a HostFacts) -> &'a [String] {
    match trusted(spec) {
        Some(_) => &facts.bundles,
        None => &[],
    }
}

/// Shows the certificates that are trusted, over those of the host.
pub(super) fn show(list: &mut List, spec: &Spec, facts: &HostFacts) {
    for (name, content) in spec.gate.iter().flat_map(|gate| &gate.staged) {
        let path = format!("{OWN}/{name}");
        match content {
            None => list.directory(&path, 0o755),
            Some(content) => list.file(&path, content),
        }
    }
    if trusted(spec).is_some() {
        list.file(TRUST, b"");
        for place in trust_places(facts) {
            list.attach_next(text(place));
        }
    }
}
