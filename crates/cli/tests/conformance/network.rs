//! What is reached: nothing without a policy, and with one what it names.

use std::fs;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::double::Double;
use crate::scene::{Scene, Seen};
use crate::support::said;

/// Says `REACHED` where anything answers or could be sent.
const NOWHERE: &str = r#"python3 - <<'END'
import socket
for target in (("1.1.1.1", 53), ("169.254.169.254", 80), ("10.0.0.1", 443), ("127.0.0.1", @PORT@), ("denied.example", 80)):
    try: socket.create_connection(target, 2); print("REACHED", target)
    except OSError: pass
try:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b"x", ("1.1.1.1", 53)); print("REACHED by datagram")
except OSError: pass
try: print("REACHED", socket.getaddrinfo("example.org", 80))
except OSError: pass
print("TRIED")
END"#;

pub fn offline(scene: &Scene<'_>) -> Result<Seen> {
    let shell = scene.env.fill(NOWHERE, &scene.fixture, "/workspace");
    let result = scene.run(&[], &shell)?;
    ensure!(said(&result) == "TRIED\n", "{}", said(&result));
    Ok(Seen::Held)
}

/// By the proxy that is in the environment, in the clear and through TLS that the gate ends.
const ASK: &str = r#"python3 - <<'END'
import urllib.request as u, urllib.error as e
for url in ("http://api.example/v1/a", "https://api.example/v1/b", "https://api.example/v2/a", "http://denied.example/"):
    try: print(u.urlopen(url, timeout=20).read().decode().strip())
    except e.HTTPError as error: print(error.code)
    except OSError as error: print("refused")
END"#;

pub fn rule(scene: &Scene<'_>) -> Result<Seen> {
    let double = Double::start()?;
    let policy = scene.fixture.folder.with_file_name("policy.toml");
    let text = format!(
        "[network]\nallow = ['GET api.example/v1/**']\n[network.mock]\n'api.example' = 'http://127.0.0.1:{}'\n",
        double.port
    );
    fs::write(&policy, text)?;
    let shell = scene
        .env
        .fill(&format!("{ASK}\n{NOWHERE}"), &scene.fixture, "/workspace");
    let result = scene.run(&["--policy", &policy.to_string_lossy()], &shell)?;
    let told: Vec<&str> = said(&result).lines().collect();
    let expected = [
        "you asked for /v1/a",
        "you asked for /v1/b",
        "403",
        "403",
        "TRIED",
    ];
    ensure!(told == expected, "{told:?} {}", result["stderr"]["head"]);
    let run = result["run"].as_str().unwrap_or_default();
    let journal = scene.env.look(&scene.fixture, &["audit", run, "--json"])?;
    let is_told = |is: &str, host: &str| {
        journal.lines().any(|line| {
            let line: Value = serde_json::from_str(line).unwrap_or_default();
            let event = &line["event"];
            event["kind"] == "network" && event["result"]["is"] == is && event["host"] == host
        })
    };
    ensure!(is_told("allowed", "api.example"), "not in the journal");
    ensure!(is_told("denied", "denied.example"), "not in the journal");
    Ok(Seen::Held)
}
