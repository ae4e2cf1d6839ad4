//! What a gate denied is told with the rule that would allow it; policies are learned from runs;
//! presets say what they are here.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use ringfence_engine::journal::JournalFile;
use ringfence_model::ByteText;
use ringfence_model::gate::{Happened, Traffic, Via};
use ringfence_model::journal::Event;
use ringfence_model::outcome::RunStatus;
use ringfence_model::policy::network::{Protocol, Reason};
use ringfence_model::text::misleads;
use serde_json::Value;

use crate::support::{Fixture, Output, RUN_SECONDS, Sandboxed, in_each_mode};

/// `ringfence` with these words; it must exit so.
fn says(env: &Sandboxed, fixture: &Fixture, words: &[&str], code: i32) -> Result<Output> {
    let output = env.ringfence(fixture, RUN_SECONDS, words)?;
    output.exits(code).with_context(|| format!("{words:?}"))?;
    ensure!(!output.stderr.contains("panicked"), "{}", output.stderr);
    Ok(output)
}

fn holds(text: &str, parts: &[&str]) -> Result<()> {
    for part in parts {
        ensure!(text.contains(part), "no {part:?} in {text}");
    }
    Ok(())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the paths of tests are text")
}

/// Asks by hand, as any program can.
const ASK: &str = r#"
ask() { python3 -c '
import socket, sys
s = socket.create_connection(("127.64.0.1", 3128), 30)
s.sendall(sys.argv[1].encode())
sys.stdout.write(s.recv(4096).decode(errors="replace").split("\r\n")[0] + "\n")
' "$1"; }
get() { ask "$(printf '%s http://%s%s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n ' "$1" "$2" "$3" "$2")"; }
"#;

#[test]
fn what_a_run_was_denied_is_listed_flagged_and_learned_from() -> Result<()> {
    in_each_mode("denied", |env, fixture| {
        let policy = env.put(
            fixture,
            "own.toml",
            "[network]\nallow = [\"GET b.example/items/**\"]\n",
        )?;
        let shell = format!(
            "{ASK}get GET a.example /x; get POST b.example /items/1; get POST b.example /items/1; \
             get GET b.example /other; mkdir src; echo 1 > src/new.py"
        );
        let result = env.run_with(fixture, &["--policy", text(&policy)], &shell)?;
        let id = result["run"].as_str().context("no id")?;
        let flags = result["flags"].to_string();
        holds(&flags, &["network_denied", "a.example"])?;

        let told = says(env, fixture, &["denials"], 0)?.stdout;
        holds(
            &told,
            &[
                "2  method     POST b.example:80/items/1",
                "1  path       GET b.example:80/other",
                "a.example",
                "    \"POST b.example/items/1\",",
                "    \"GET b.example/other\",",
                "policy.toml",
            ],
        )?;
        let json = says(env, fixture, &["denials", id, "--json"], 0)?.stdout;
        let value: Value = serde_json::from_str(&json)?;
        ensure!(value["times"] == 4, "{value}");

        let told = says(env, fixture, &["audit", "--network"], 0)?.stdout;
        holds(&told, &["POST b.example:80/items/1: denied (method)"])?;
        let page = says(env, fixture, &["show"], 0)?.stdout;
        holds(&page, &["0 let through, 4 denied", "ringfence denials"])?;

        let learned = fixture.folder.join("learned.toml");
        let words = ["policy", "learn", id, "-o", text(&learned)];
        let output = says(env, fixture, &words, 0)?;
        holds(
            &output.stderr,
            &["would have denied 0 of ", "unused grants: none"],
        )?;
        let proposal = std::fs::read_to_string(&learned)?;
        holds(
            &proposal,
            &["allow = []", "#   \"POST b.example/items/1\",  # 2 times"],
        )?;
        says(env, fixture, &["policy", "check", text(&learned)], 0)?;
        // It is not written over.
        let output = says(env, fixture, &words, 2)?;
        holds(&output.stderr, &["is there already"])?;
        let words = ["policy", "learn", "last", "--include-denied", "--json"];
        let json = says(env, fixture, &words, 0)?.stdout;
        let value: Value = serde_json::from_str(&json)?;
        let proposal = value["policy"].as_str().context("no policy")?;
        holds(proposal, &["    \"POST b.example:80/items/*\",", id])?;
        // Of the policy that the run had nothing was used.
        let words = ["policy", "learn", id, "--policy", text(&policy)];
        let output = says(env, fixture, &words, 0)?;
        holds(&output.stderr, &["unused grants: GET b.example/items/**"])
    })
}

#[test]
fn nothing_that_is_told_of_a_hostile_journal_reaches_the_terminal_raw() -> Result<()> {
    in_each_mode("hostile", |env, fixture| {
        let bundle = env.put(fixture, "audit.jsonl", "")?;
        std::fs::remove_file(&bundle)?;
        let mut journal = JournalFile::create(&bundle)?;
        for word in [&b"\x1b]0;x\x07"[..], b"\xff", "\u{202e}.example".as_bytes()] {
            for reason in [Reason::Host, Reason::Rule, Reason::Secret] {
                let traffic = Traffic {
                    via: Via::Direct,
                    host: ByteText::from(word),
                    port: 443,
                    protocol: Protocol::Web,
                    method: Some("\u{1b}[2J\n".to_owned()),
                    path: Some(ByteText::from(word)),
                    address: None,
                    result: Happened::Denied {
                        reason,
                        detail: "\u{1b}[2J".to_owned(),
                        allow: Some("a\"]\n\u{1b}".to_owned()),
                    },
                    rule: None,
                    from: None,
                    times: 1,
                };
                journal.append(Event::Network(traffic))?;
            }
        }
        let status = RunStatus::Done;
        journal.append(Event::End { status })?;
        journal.sync()?;
        // Whoever reads it is not always who wrote it.
        std::fs::set_permissions(&bundle, Permissions::from_mode(0o644))?;
        for words in [
            &["denials", text(&bundle)][..],
            &["denials", text(&bundle), "--json"],
            &["audit", "--network", text(&bundle)],
            &["policy", "learn", text(&bundle)],
            &["policy", "learn", text(&bundle), "--include-denied"],
            &["policy", "learn", text(&bundle), "--json"],
        ] {
            let output = says(env, fixture, words, 0)?;
            let said = format!("{}{}", output.stdout, output.stderr);
            let raw = said.chars().find(|c| misleads(*c) && *c != '\n');
            ensure!(raw.is_none(), "{words:?}: {raw:?} in {said:?}");
        }
        Ok(())
    })
}

#[test]
fn presets_say_what_they_are_here_and_no_password() -> Result<()> {
    in_each_mode("presets", |env, fixture| {
        let call = env
            .call(fixture)
            .variable("PIP_INDEX_URL", "https://me:hunter2@index.example/simple")
            .variable("UV_DEFAULT_INDEX", "https://uv.example/simple");
        for words in [
            &["policy", "presets", "pypi"][..],
            &["policy", "presets", "pypi", "--json"],
        ] {
            let output = call.finish(words)?;
            output.exits(0)?;
            holds(
                &output.stdout,
                &[
                    "GET,HEAD index.example:443",
                    "$PIP_INDEX_URL",
                    "uv.example",
                    "credentials for `index.example` were left out",
                ],
            )?;
            ensure!(!output.stdout.contains("hunter2"), "{}", output.stdout);
        }
        let output = call.finish(&["policy", "presets", "nothing"])?;
        output.exits(2)?;
        holds(&output.stderr, &["there is no preset `nothing`", "hint:"])?;
        // A client that is not there, in a policy: the line, and what to do.
        let policy = env.put(
            fixture,
            "p.toml",
            "[network]\nallow = [\n  \"preset:go\",\n]\n",
        )?;
        let output = env
            .call(fixture)
            .within(&["env", "PATH=/nonexistent"])
            .finish(&["policy", "check", text(&policy)])?;
        output.exits(1)?;
        holds(&output.stderr, &["p.toml:3", "has no hosts", "policy file"])
    })
}
