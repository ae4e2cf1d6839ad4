//! What the gate saw that a reviewer should know: secrets that were sent astray or sent back, what
//! was denied, and a gate that was gone.

use ringfence_model::flag::{Evidence as Rests, FlagKind, Severity};
use ringfence_model::gate::{Happened, Traffic};
use ringfence_model::policy::network::Reason;

use super::{Facts, Found};

pub(super) fn look(facts: &Facts<'_>, found: &mut Found) {
    for (_, traffic) in &facts.evidence.network {
        let (kind, severity, message, detail) = match &traffic.result {
            Happened::Denied {
                reason: Reason::Secret,
                ..
            } => (
                FlagKind::SecretMisdirected,
                Severity::Serious,
                "a secret was sent to where it is not bound; it was not let through",
                None,
            ),
            Happened::Denied { reason, .. } => (
                FlagKind::NetworkDenied,
                Severity::Warning,
                "the gate did not let something through",
                Some(reason.as_str().to_owned()),
            ),
            Happened::Scrubbed { secret, form } => (
                FlagKind::SecretEchoed,
                Severity::Serious,
                "a host sent a secret back; it was taken out of the answer",
                Some(format!("{secret}, {form}")),
            ),
            Happened::Allowed { .. }
            | Happened::Failed { .. }
            | Happened::Stripped { .. }
            | Happened::Learned { .. } => continue,
        };
        found.add(kind, severity, message, network(traffic, detail));
    }
    if facts.evidence.gate_lost {
        found.add(
            FlagKind::GateLost,
            Severity::Warning,
            "the gate was gone before the sandbox ended: from then on nothing could be reached",
            None,
        );
    }
}

/// Evidence: something that was asked of the network.
fn network(traffic: &Traffic, detail: Option<String>) -> Option<Rests> {
    Some(Rests::Network {
        host: traffic.host.clone(),
        port: traffic.port,
        method: traffic.method.clone(),
        path: traffic.path.clone(),
        times: traffic.times.max(1),
        detail,
    })
}

#[cfg(test)]
mod tests {
    use ringfence_model::gate::Via;
    use ringfence_model::policy::network::Protocol;

    use super::super::tests::World;
    use super::*;

    fn traffic(result: Happened) -> (i64, Traffic) {
        let traffic = Traffic {
            via: Via::Direct,
            host: "a.example".into(),
            port: 443,
            protocol: Protocol::Web,
            method: Some("GET".to_owned()),
            path: Some("/\u{1b}x".into()),
            address: None,
            result,
            rule: None,
            from: None,
            times: 3,
        };
        (0, traffic)
    }

    fn denied(reason: Reason) -> Happened {
        Happened::Denied {
            reason,
            detail: "no".to_owned(),
            allow: None,
        }
    }

    #[test]
    fn each_kind_has_its_weight() {
        let echoed = Happened::Scrubbed {
            secret: "TOKEN".to_owned(),
            form: "base64".to_owned(),
        };
        let allowed = Happened::Failed {
            detail: "down".to_owned(),
        };
        for (result, kinds) in [
            (denied(Reason::Host), &["warning network_denied"][..]),
            (denied(Reason::Secret), &["serious secret_misdirected"]),
            (echoed, &["serious secret_echoed"]),
            (allowed, &[]),
        ] {
            let mut world = World::default();
            world.evidence.network.push(traffic(result));
            assert_eq!(world.kinds(&[]), kinds);
        }
        let mut world = World::default();
        world.evidence.gate_lost = true;
        assert_eq!(world.kinds(&[]), ["warning gate_lost"]);
    }

    #[test]
    fn many_denials_are_one_flag() {
        let mut world = World::default();
        for _ in 0..100 {
            let one = traffic(denied(Reason::Host));
            world.evidence.network.push(one);
        }
        let flags = world.flags(&[]);
        assert_eq!(flags.len(), 1);
        assert_eq!((flags[0].evidence.len(), flags[0].more), (20, 80));
    }
}
