//! What two lists of rules both allow, as a list of rules.
//!
//! Hosts are one inside the other or have nothing in common, and so are ports and methods by their
//! members. Paths may overlap in ways that no one pattern says: a rule of which that cannot be told
//! is left out.

use std::cmp::min;

use super::super::network::{Budget, Effect, NetworkRule, Origin, PathPattern, Protocol, Range};
use crate::host::HostPattern;

const NOT_ALLOWED: &str = "the host's policy does not allow it";
const ONE_BUDGET: &str =
    "the host's rule for it has one budget, of which a rule before this one is a part";

/// What both lists allow, and what of the second list is not, or not surely, allowed by the first,
/// with the reason.
///
/// INVARIANT: of a rule with a budget one part is kept. Each part would have the whole budget. What
/// asks for another part is left out altogether: a later rule must not allow it instead.
///
/// In the order of the first list: where more than one of its rules allows something, the first
/// one's budget still counts.
pub(super) fn common(
    own: &[NetworkRule],
    asked: Vec<NetworkRule>,
) -> (Vec<NetworkRule>, Vec<(NetworkRule, &'static str)>) {
    let own = || own.iter().filter(|rule| rule.effect == Effect::Allow);
    let mut wanted: Vec<Vec<Common>> = Vec::new();
    let mut lost = Vec::new();
    for rule in asked {
        let meets: Vec<Common> = own().map(|own| meet(own, &rule)).collect();
        let told = !meets.iter().any(|meet| matches!(meet, Common::Unknown));
        let any = meets.iter().any(|meet| matches!(meet, Common::Rule(_)));
        let is_rule = |meets: &[Common], at: usize| matches!(meets[at], Common::Rule(_));
        let again = own().enumerate().any(|(at, own)| {
            let before = wanted.iter().any(|before| is_rule(before, at));
            own.budget.is_shared() && is_rule(&meets, at) && before
        });
        match (told && any, again) {
            (true, false) => wanted.push(meets),
            (true, true) => lost.push((rule, ONE_BUDGET)),
            (false, _) => lost.push((rule, NOT_ALLOWED)),
        }
    }
    let mut kept = Vec::new();
    for at in 0..own().count() {
        for meets in &wanted {
            if let Common::Rule(rule) = &meets[at]
                && !kept.contains(&**rule)
            {
                kept.push(NetworkRule::clone(rule));
            }
        }
    }
    (kept, lost)
}

enum Common {
    Nothing,
    Rule(Box<NetworkRule>),
    /// Something, and no rule says what.
    Unknown,
}

/// What both rules allow.
fn meet(own: &NetworkRule, asked: &NetworkRule) -> Common {
    let Some(host) = inner_host(&own.host, &asked.host) else {
        return Common::Nothing;
    };
    let ports: Vec<u16> = own
        .ports
        .iter()
        .copied()
        .filter(|port| asked.ports.contains(port))
        .collect();
    let methods = match (own.methods.is_empty(), asked.methods.is_empty()) {
        (true, _) => asked.methods.clone(),
        (false, true) => own.methods.clone(),
        (false, false) => {
            let mut both = own.methods.clone();
            both.retain(|method| asked.methods.contains(method));
            if both.is_empty() {
                return Common::Nothing;
            }
            both
        }
    };
    if ports.is_empty() || own.protocol != asked.protocol {
        return Common::Nothing;
    }
    let path = match inner_path(own.path.as_ref(), asked.path.as_ref()) {
        Ok(path) => path.cloned(),
        Err(Overlap) => return Common::Unknown,
    };
    // A service that is named one by one may be in a private network; one of many may not.
    let named = |host: &HostPattern| matches!(host, HostPattern::Exact(_));
    if own.protocol == Protocol::Tcp && named(&host) && !named(&own.host) {
        return Common::Unknown;
    }
    let Some(addresses) = inner_ranges(&own.addresses, &asked.addresses) else {
        return Common::Unknown;
    };
    Common::Rule(Box::new(NetworkRule {
        effect: Effect::Allow,
        protocol: own.protocol,
        methods,
        host,
        ports,
        path,
        addresses,
        budget: lower(&own.budget, &asked.budget),
        from: Origin {
            file: format!("{}, narrowed by {}", own.from, asked.from.file),
            line: asked.from.line,
        },
    }))
}

fn inner_host(one: &HostPattern, other: &HostPattern) -> Option<HostPattern> {
    let within = |outer: &HostPattern, inner: &HostPattern| match (outer, inner) {
        (outer, HostPattern::Exact(host)) => outer.matches(host),
        (HostPattern::AnyName, _) => true,
        (HostPattern::Below(outer), HostPattern::Below(inner)) => {
            let below = inner.strip_suffix(outer.as_str());
            below.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        }
        _ => false,
    };
    if within(one, other) {
        Some(other.clone())
    } else {
        within(other, one).then(|| one.clone())
    }
}

struct Overlap;

fn inner_path<'a>(
    one: Option<&'a PathPattern>,
    other: Option<&'a PathPattern>,
) -> Result<Option<&'a PathPattern>, Overlap> {
    match (one, other) {
        (one, None) => Ok(one),
        (None, other) => Ok(other),
        (Some(one), Some(other)) if one.covers(other) => Ok(Some(other)),
        (Some(one), Some(other)) if other.covers(one) => Ok(Some(one)),
        _ => Err(Overlap),
    }
}

/// Whoever names no addresses asks for those that the host gives.
fn inner_ranges(own: &[Range], asked: &[Range]) -> Option<Vec<Range>> {
    if asked.is_empty() {
        return Some(own.to_vec());
    }
    let mut both = Vec::new();
    for asked in asked {
        if own.iter().any(|own| own.holds(asked)) {
            both.push(*asked);
        } else {
            both.extend(own.iter().filter(|own| asked.holds(own)));
        }
    }
    (!both.is_empty()).then_some(both)
}

fn lower(one: &Budget, other: &Budget) -> Budget {
    fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
        match (one, other) {
            (Some(one), Some(other)) => Some(min(one, other)),
            (one, other) => one.or(other),
        }
    }
    Budget {
        per_minute: least(one.per_minute, other.per_minute),
        upload_bytes: least(one.upload_bytes, other.upload_bytes),
        download_bytes: least(one.download_bytes, other.download_bytes),
        seconds: least(one.seconds, other.seconds),
    }
}
