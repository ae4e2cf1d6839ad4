//! A refusal as web clients see it: for programs in JSON, for people in the same words.

use serde_json::json;

use crate::state::{Denial, Flow};

/// The field of an answer that tells a refusal of the gate from one of the host.
pub(crate) const DENIED_FIELD: &str = "X-Ringfence-Denied";

/// The body of an answer that says 403.
pub(crate) fn body(flow: &Flow, denial: &Denial) -> Vec<u8> {
    let body = json!({
        "error": "denied by ringfence",
        "host": flow.host.to_string(),
        "port": flow.port,
        "reason": denial.reason.as_str(),
        "detail": denial.detail,
        "allow": denial.allow,
    });
    with_end(&body)
}

/// The whole answer of HTTP/1.1 to what is denied. The connection ends with it.
pub(crate) fn denied(flow: &Flow, denial: &Denial) -> Vec<u8> {
    // Some clients show nothing of an answer to CONNECT but this line.
    let status = match denial.allow.as_deref().filter(|line| is_short_text(line)) {
        Some(line) => format!("403 Denied by ringfence, rule needed: {line}"),
        None => "403 Denied by ringfence".to_owned(),
    };
    answer(&status, Some(denial), &body(flow, denial))
}

/// The body of an answer that says 400.
pub(crate) fn malformed_body(detail: &str) -> Vec<u8> {
    with_end(&json!({"error": "malformed request", "detail": detail}))
}

/// The whole answer to a request that cannot be read in one way only.
pub(crate) fn malformed(detail: &str) -> Vec<u8> {
    answer("400 Bad Request", None, &malformed_body(detail))
}

/// The whole answer where the host failed.
pub(crate) fn failed(flow: &Flow, detail: &str) -> Vec<u8> {
    answer("502 Bad Gateway", None, &failed_body(flow, detail))
}

/// The body of an answer that says 502.
pub(crate) fn failed_body(flow: &Flow, detail: &str) -> Vec<u8> {
    with_end(&json!({
        "error": "the host cannot be reached",
        "host": flow.host.to_string(),
        "port": flow.port,
        "detail": detail,
    }))
}

/// HOSTILE: a rule line may have a path that the agent chose.
fn is_short_text(line: &str) -> bool {
    line.len() <= 256 && line.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

fn with_end(body: &serde_json::Value) -> Vec<u8> {
    let mut bytes = body.to_string().into_bytes();
    bytes.push(b'\n');
    bytes
}

fn answer(status: &str, denial: Option<&Denial>, body: &[u8]) -> Vec<u8> {
    let denied = denial.map_or_else(String::new, |denial| {
        format!("{DENIED_FIELD}: {}\r\n", denial.reason.as_str())
    });
    let length = body.len();
    let mut bytes = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n{denied}\r\n"
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}
