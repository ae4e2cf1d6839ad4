//! What is said of a request before anything is done for it.

use ringfence_model::policy::network::{NetworkRule, Reason, Rules, Verdict};

use super::request::Asked;
use crate::budget::UsedUp;
use crate::state::{Denial, Flow};

/// Fields that name another method than the request has.
const OVERRIDES: [&str; 4] = [
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "x-original-method",
];

/// What the rules say of a request.
pub(crate) fn decide(flow: &Flow, asked: &Asked) -> Result<NetworkRule, Denial> {
    let (host, port, method) = (&flow.host, flow.port, asked.method.as_str());
    if matches!(method, "CONNECT" | "TRACE" | "TRACK" | "PRI") {
        let detail = format!("`{method}` is not taken inside a connection");
        return Err(Denial::plain(Reason::Protocol, detail));
    }
    let rules = flow.gate.rules();
    let rule = match rules.request(host, port, method, &asked.path) {
        Verdict::Allow(rule) => rule.clone(),
        Verdict::Deny { reason, rule } => {
            let (path, line) = (
                asked.path.as_str(),
                Rules::line_for_request(host, port, method, &asked.path),
            );
            return Err(Denial {
                reason,
                detail: match rule {
                    Some(rule) => format!("`deny {rule}` ({}) forbids it", rule.from),
                    None => format!("no rule allows `{method}` of `{path}` at `{host}`"),
                },
                allow: rule.is_none().then_some(line),
                rule: rule.cloned().map(Box::new),
            });
        }
    };
    let restricts = rules.0.iter().any(|rule| {
        !rule.methods.is_empty() && rule.ports.contains(&port) && rule.host.matches(host)
    });
    if restricts || flow.gate.inspect.secrets.minds_method(host) {
        let found = OVERRIDES.iter().find(|name| asked.fields.has(name));
        if let Some(name) = found {
            let detail = format!("`{name}` would make another request of it");
            return Err(Denial::plain(Reason::Method, detail));
        }
    }
    // The sandbox would choose where the parts of an answer begin, and could have a value come in two halves.
    if asked.fields.has("range") && flow.gate.inspect.secrets.bound_to(host) {
        let detail = "`Range` is refused at a host that gets a secret: ask for the whole";
        return Err(Denial::plain(Reason::Protocol, detail));
    }
    if asked.socket && !rule.methods.is_empty() {
        return Err(Denial {
            reason: Reason::Method,
            detail: format!("a web socket also sends; `{rule}` allows some methods only"),
            allow: Some(format!(
                "{}{}",
                Rules::line_for(host, port, rule.protocol),
                asked.path.as_str()
            )),
            rule: None,
        });
    }
    Ok(rule)
}

/// A placeholder is where it must not be.
pub(crate) fn misplaced_denial(secret: &str, place: &str) -> Denial {
    let detail =
        format!("the placeholder of secret `{secret}` is in the {place}, not where it is bound");
    Denial::plain(Reason::Secret, detail)
}

/// A budget is used up.
pub(crate) fn budget_denial(rule: &NetworkRule, up: UsedUp) -> Denial {
    Denial {
        reason: Reason::Budget,
        detail: format!("the budget of `{rule}` is used up: {up}"),
        allow: None,
        rule: Some(Box::new(rule.clone())),
    }
}
