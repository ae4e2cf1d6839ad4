//! What was denied, put together: each thing once, how often, and the line that would allow it.

use std::collections::BTreeMap;

use ringfence_model::ByteText;
use ringfence_model::gate::{Happened, Traffic};
use ringfence_model::host::Host;
use ringfence_model::policy::network::{
    Effect, NetworkRule, Origin, Protocol, Reason, RequestPath, Rules,
};
use serde::Serialize;

use crate::evidence::Evidence;
use crate::learn::generalise;

/// BOUND: paths of one host and method that are listed one by one.
const MAX_PATHS: usize = 5;
/// BOUND: things that are listed; the rest is counted.
const MAX_LISTED: usize = 200;

/// Everything that was denied, the most frequent first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Denials {
    pub network: Vec<Refusal>,
    /// What was not let through because it could not be observed.
    pub calls: Vec<Call>,
    /// Things that are not listed.
    pub more: u64,
    /// How often something was denied, all in all.
    pub times: u64,
}

/// Something that was asked of the network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    pub reason: Reason,
    /// HOSTILE: as it was asked for.
    pub host: ByteText,
    /// 0: a name was asked for.
    pub port: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// A pattern, where there were many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<ByteText>,
    pub detail: String,
    /// The line that would allow it. `None`: none would, or it is another matter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow: Option<String>,
    pub times: u64,
}

/// A call that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Call {
    pub operation: String,
    pub reason: String,
    pub times: u64,
}

/// What groups requests: all but the path.
type Group = (Reason, ByteText, u16, Option<String>);

impl Denials {
    /// Puts together what several journals hold.
    pub fn of<'a>(evidence: impl IntoIterator<Item = &'a Evidence>) -> Self {
        let mut out = Self::default();
        let mut groups: BTreeMap<Group, BTreeMap<Option<ByteText>, Refusal>> = BTreeMap::new();
        let mut calls: BTreeMap<(String, String), u64> = BTreeMap::new();
        for evidence in evidence {
            for (_, traffic) in &evidence.network {
                if let Some(refusal) = refusal(traffic) {
                    out.times += refusal.times;
                    let group = (
                        refusal.reason,
                        refusal.host.clone(),
                        refusal.port,
                        refusal.method.clone(),
                    );
                    let paths = groups.entry(group).or_default();
                    let times = refusal.times;
                    paths
                        .entry(refusal.path.clone())
                        .and_modify(|known| known.times += times)
                        .or_insert(refusal);
                }
            }
            for (_, refused) in &evidence.refused {
                out.times += 1;
                let key = (refused.operation.clone(), refused.reason.clone());
                *calls.entry(key).or_default() += 1;
            }
        }
        for (_, paths) in groups {
            out.network.extend(drawn_together(paths));
        }
        let call = |((operation, reason), times)| Call {
            operation,
            reason,
            times,
        };
        out.calls = calls.into_iter().map(call).collect();
        out.network
            .sort_by_key(|refusal| std::cmp::Reverse(refusal.times));
        out.calls.sort_by_key(|call| std::cmp::Reverse(call.times));
        let listed = out.network.len() + out.calls.len();
        out.network.truncate(MAX_LISTED);
        out.calls.truncate(MAX_LISTED);
        out.more = (listed - out.network.len() - out.calls.len()) as u64;
        out
    }

    pub fn is_empty(&self) -> bool {
        self.network.is_empty() && self.calls.is_empty()
    }

    /// The lines that would allow what was denied, each once.
    pub fn lines(&self) -> Vec<&str> {
        let mut lines: Vec<&str> = Vec::new();
        for line in self.network.iter().filter_map(|own| own.allow.as_deref()) {
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        lines
    }
}

fn refusal(traffic: &Traffic) -> Option<Refusal> {
    let Happened::Denied {
        reason,
        detail,
        allow,
    } = &traffic.result
    else {
        return None;
    };
    // HOSTILE: a journal may come from anywhere; what is no rule is not shown as one.
    let readable =
        |line: &&String| NetworkRule::parse(Effect::Allow, line, Origin::default()).is_ok();
    Some(Refusal {
        reason: *reason,
        host: traffic.host.clone(),
        port: traffic.port,
        method: traffic.method.clone(),
        path: traffic.path.clone(),
        detail: detail.clone(),
        allow: allow.as_ref().filter(readable).cloned(),
        times: traffic.times.max(1),
    })
}

/// Many paths of one host as a pattern or a few.
fn drawn_together(paths: BTreeMap<Option<ByteText>, Refusal>) -> Vec<Refusal> {
    let all: Vec<Refusal> = paths.into_values().collect();
    let request = |own: &Refusal| {
        let path = own.path.as_ref()?;
        RequestPath::parse(std::str::from_utf8(path.as_bytes()).ok()?)
    };
    let paths: Vec<RequestPath> = all.iter().filter_map(request).collect();
    let host = all
        .first()
        .and_then(|own| std::str::from_utf8(own.host.as_bytes()).ok())
        .and_then(|host| Host::parse(host).ok());
    let (Some(host), Some(first)) = (host, all.first()) else {
        return all;
    };
    let method = first.method.clone();
    // One that has no line, or no path that can be read, is not drawn together with others.
    if all.len() <= MAX_PATHS || paths.len() < all.len() || all.iter().any(|o| o.allow.is_none()) {
        return all;
    }
    let Some(method) = method else {
        return all;
    };
    let place = Rules::line_for(&host, first.port, Protocol::Web);
    let patterns = generalise(&paths);
    patterns
        .into_iter()
        .map(|pattern| {
            let line = format!("{method} {place}{pattern}");
            let rule = NetworkRule::parse(Effect::Allow, &line, Origin::default());
            let own = rule.ok().and_then(|rule| rule.path);
            let fits = |path: &RequestPath| own.as_ref().is_some_and(|own| own.matches(path));
            let times = all.iter().zip(&paths).filter(|(_, path)| fits(path));
            Refusal {
                path: Some(ByteText::from(pattern.as_str())),
                allow: Some(line),
                times: times.map(|(own, _)| own.times).sum(),
                ..first.clone()
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use ringfence_model::gate::Via;
    use ringfence_model::observed::Refused;

    use super::*;

    fn denied(method: Option<&str>, place: (&str, u16), path: Option<&str>) -> (i64, Traffic) {
        let (host, port) = place;
        let allow = match (method, path) {
            (Some(method), Some(path)) => format!("{method} {host}{path}"),
            _ => host.to_owned(),
        };
        let traffic = Traffic {
            via: if port == 0 { Via::Name } else { Via::Direct },
            host: host.into(),
            port,
            protocol: Protocol::Web,
            method: method.map(str::to_owned),
            path: path.map(ByteText::from),
            address: None,
            result: Happened::Denied {
                reason: Reason::Host,
                detail: "no rule allows it".to_owned(),
                allow: Some(allow),
            },
            rule: None,
            from: None,
            times: 2,
        };
        (0, traffic)
    }

    #[test]
    fn the_same_is_counted_and_many_paths_are_one_pattern() {
        let mut evidence = Evidence::default();
        evidence.network.push(denied(None, ("a.example", 0), None));
        evidence.network.push(denied(None, ("a.example", 0), None));
        for number in 0..20 {
            let path = format!("/items/{number}");
            let one = denied(Some("GET"), ("b.example", 443), Some(&path));
            evidence.network.push(one);
        }
        let call = Refused {
            pid: 1,
            operation: "execveat".to_owned(),
            reason: "odd".to_owned(),
        };
        evidence.refused = vec![(0, call.clone()), (1, call)];
        let denials = Denials::of([&evidence]);
        assert_eq!(denials.times, 46);
        assert_eq!(denials.lines(), ["GET b.example/items/*", "a.example"]);
        assert_eq!(denials.network[0].times, 40);
        assert_eq!(denials.calls[0].times, 2);
    }

    #[test]
    fn what_is_no_rule_is_not_shown_as_one() {
        let mut evidence = Evidence::default();
        let (_, mut traffic) = denied(None, ("x", 0), None);
        traffic.host = ByteText(b"\x1b]0;\xff".to_vec());
        if let Happened::Denied { allow, .. } = &mut traffic.result {
            *allow = Some("x\"]\nallow = [\"*\"".to_owned());
        }
        evidence.network.push((0, traffic));
        let denials = Denials::of([&evidence]);
        assert_eq!(denials.network.len(), 1);
        assert!(denials.lines().is_empty());
    }

    #[test]
    fn the_list_is_bounded() {
        let mut evidence = Evidence::default();
        for number in 0..1000 {
            let host = format!("h{number}.example");
            evidence.network.push(denied(None, (&host, 0), None));
        }
        let denials = Denials::of([&evidence]);
        assert_eq!((denials.network.len(), denials.more), (MAX_LISTED, 800));
    }
}
