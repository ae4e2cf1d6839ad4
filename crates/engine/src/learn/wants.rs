//! What runs asked the network for, as rules: the presets that they had, and lines of their own for
//! the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ringfence_model::host::{Host, Reach};
use ringfence_model::policy::network::{
    Effect, NetworkRule, Origin, Protocol, RequestPath, Rules, Verdict,
};
use ringfence_model::policy::preset::{PREFIX, Preset};

use super::traffic::{Ask, End, Traced};
use super::{Denied, Seen, generalise};
use crate::presets;

/// A line of `allow`.
#[derive(Debug)]
pub(super) struct Grant {
    /// As it stands in the file, between quotes.
    pub rule: String,
    /// Addresses beyond the open network.
    pub addresses: BTreeSet<IpAddr>,
    pub times: u64,
}

/// What was asked of one host and port.
#[derive(Debug, Default)]
struct Wants {
    /// By method.
    requests: BTreeMap<String, Vec<RequestPath>>,
    opaque: Option<Opaque>,
    addresses: BTreeSet<IpAddr>,
    times: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Opaque {
    Web,
    Tcp,
}

/// What comes of all traffic.
#[derive(Debug, Default)]
pub(super) struct Network {
    pub grants: Vec<Grant>,
    /// Names of secrets, and where each went.
    pub secrets: BTreeMap<String, BTreeSet<Host>>,
    /// Hosts for which something on the machine answered.
    pub doubled: BTreeSet<Host>,
    /// Requests that no line can say.
    pub unsaid: u64,
}

/// Finds the grants. `resolve` says what a preset is on this host.
pub(super) fn network(
    runs: &[Seen],
    denied: Denied,
    resolve: &mut dyn FnMut(&str) -> Option<Preset>,
) -> Network {
    let mut out = Network::default();
    let mut wants: BTreeMap<(Host, u16), Wants> = BTreeMap::new();
    // Names that were refused, of which nothing more is known.
    let mut names: BTreeMap<Host, u64> = BTreeMap::new();
    let traced = || runs.iter().flat_map(|run| &run.network);
    for traced in traced() {
        match &traced.end {
            End::Passed { secrets } => {
                if let Some(host) = traced.ask.host() {
                    for secret in secrets {
                        let hosts = out.secrets.entry(secret.clone()).or_default();
                        hosts.insert(host.clone());
                    }
                }
            }
            End::Denied { reason, .. }
                if denied == Denied::Included && reason_is_a_gap(*reason) =>
            {
                if let Ask::Name(host) = &traced.ask {
                    *names.entry(host.clone()).or_default() += traced.times;
                }
            }
            _ => continue,
        }
        if let (true, Some(host)) = (traced.was_doubled(), traced.ask.host()) {
            out.doubled.insert(host.clone());
            continue;
        }
        take(&mut wants, &mut out.unsaid, traced);
    }
    names.retain(|host, _| !wants.keys().any(|(known, _)| known == host));
    with_presets(runs, &mut wants, resolve, &mut out);
    for ((host, port), wants) in wants {
        out.own_lines(&host, port, wants);
    }
    for (host, times) in names {
        out.add(host.to_string(), BTreeSet::new(), times);
    }
    out
}

/// Whether a rule that is not there would have allowed it.
pub(super) fn reason_is_a_gap(reason: ringfence_model::policy::network::Reason) -> bool {
    use ringfence_model::policy::network::Reason;
    matches!(
        reason,
        Reason::Host | Reason::Port | Reason::Method | Reason::Path
    )
}

fn take(wants: &mut BTreeMap<(Host, u16), Wants>, unsaid: &mut u64, traced: &Traced) {
    let own = match &traced.ask {
        Ask::Request {
            host,
            port,
            method,
            path,
        } => {
            let own = wants.entry((host.clone(), *port)).or_default();
            let paths = own.requests.entry(method.clone()).or_default();
            if !paths.contains(path) {
                paths.push(path.clone());
            }
            own
        }
        Ask::Connection {
            host,
            port,
            protocol,
        } => {
            let own = wants.entry((host.clone(), *port)).or_default();
            let opaque = match protocol {
                Protocol::Web => Opaque::Web,
                Protocol::Tcp => Opaque::Tcp,
            };
            own.opaque = own.opaque.max(Some(opaque));
            own
        }
        Ask::Name(_) => return,
        Ask::Other(_) => {
            *unsaid += traced.times;
            return;
        }
    };
    own.times += traced.times;
    own.addresses.extend(
        traced
            .address
            .filter(|address| Reach::of(*address) == Reach::Private),
    );
}

/// Takes out what the presets cover that the runs had.
fn with_presets(
    runs: &[Seen],
    wants: &mut BTreeMap<(Host, u16), Wants>,
    resolve: &mut dyn FnMut(&str) -> Option<Preset>,
    out: &mut Network,
) {
    let traced = || runs.iter().flat_map(|run| &run.network);
    let had: BTreeSet<&str> = traced()
        .filter(|traced| matches!(traced.end, End::Passed { .. }))
        .filter_map(|traced| traced.from.as_deref()?.strip_prefix(PREFIX))
        .filter_map(|from| from.split_whitespace().next())
        .collect();
    for known in presets::ALL {
        // A preset allows more than what was asked: only who had it gets it.
        if wants.is_empty() || !had.contains(known.name) {
            continue;
        }
        let Some(preset) = resolve(known.name) else {
            continue;
        };
        let mut rules = Rules(preset.rules.clone());
        rules.0.extend(learned(runs, &preset.indexes));
        let mut times = 0;
        wants.retain(|(host, port), own| {
            let before = own.requests.len() + usize::from(own.opaque.is_some());
            own.requests.retain(|method, paths| {
                paths.retain(|path| {
                    !matches!(rules.request(host, *port, method, path), Verdict::Allow(_))
                });
                !paths.is_empty()
            });
            if own.opaque == Some(Opaque::Web)
                && matches!(rules.connection(host, *port), Verdict::Allow(_))
                && !rules.looks_inside(host, *port)
            {
                own.opaque = None;
            }
            let after = own.requests.len() + usize::from(own.opaque.is_some());
            if after == 0 && before > 0 {
                times += own.times;
            }
            after > 0
        });
        out.add(format!("{PREFIX}{}", known.name), BTreeSet::new(), times);
    }
}

/// Rules for the hosts that indexes named, as a gate has them while the index is allowed.
pub(super) fn learned(runs: &[Seen], indexes: &[ringfence_model::gate::Index]) -> Vec<NetworkRule> {
    let mut rules = Vec::new();
    for traced in runs.iter().flat_map(|run| &run.network) {
        let (End::Learned { index }, Some(host)) = (&traced.end, traced.ask.host()) else {
            continue;
        };
        if !indexes.iter().any(|own| own.host == *index) {
            continue;
        }
        let line = format!("GET,HEAD {host}");
        let from = Origin {
            file: format!("learned from {index}"),
            line: 0,
        };
        let rule = NetworkRule::parse(Effect::Allow, &line, from);
        rules.extend(rule.map(|mut rule| {
            rule.ports.extend(traced.ask.port());
            rule
        }));
    }
    rules
}

impl Network {
    fn own_lines(&mut self, host: &Host, port: u16, wants: Wants) {
        match wants.opaque {
            Some(Opaque::Tcp) => {
                let rule = format!("tcp {host}:{port}");
                return self.add(rule, wants.addresses, wants.times);
            }
            // What was not looked at can only be allowed as a whole.
            Some(Opaque::Web) => {
                return self.add(format!("{host}:{port}"), wants.addresses, wants.times);
            }
            None => {}
        }
        // Methods that ask for the same paths share their lines.
        let mut lines: BTreeMap<Vec<String>, Vec<String>> = BTreeMap::new();
        for (method, paths) in wants.requests {
            lines.entry(generalise(&paths)).or_default().push(method);
        }
        for (patterns, methods) in lines {
            for pattern in patterns {
                let rule = format!("{} {host}:{port}{pattern}", methods.join(","));
                self.add(rule, wants.addresses.clone(), wants.times);
            }
        }
    }

    /// INVARIANT: only what the parser of rules takes gets into a policy.
    fn add(&mut self, rule: String, addresses: BTreeSet<IpAddr>, times: u64) {
        let readable = rule.starts_with(PREFIX)
            || NetworkRule::parse(Effect::Allow, &rule, Origin::default()).is_ok();
        if readable {
            self.grants.push(Grant {
                rule,
                addresses,
                times,
            });
        } else {
            self.unsaid += times;
        }
    }
}
