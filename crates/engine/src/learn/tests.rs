//! Proposals from journals as they are written, judged by the real parser and the real rules.

use std::convert::Infallible;
use std::path::Path;

use ringfence_model::ByteText;
use ringfence_model::gate::{Happened, Index, IndexKind, Traffic, Via};
use ringfence_model::host::Host;
use ringfence_model::journal::Event;
use ringfence_model::observed::{Write, Wrote};
use ringfence_model::outcome::RunStatus;
use ringfence_model::policy::document::{Document, Source};
use ringfence_model::policy::network::{Effect, NetworkRule, Origin, Protocol, Reason};
use ringfence_model::policy::preset::Preset;
use ringfence_model::policy::{Effective, built_in};

use super::*;
use crate::audit::at_path;
use crate::journal::JournalFile;

fn traffic(method: Option<&str>, host: &str, port: u16, path: Option<&str>) -> Traffic {
    Traffic {
        via: Via::Direct,
        host: host.into(),
        port,
        protocol: Protocol::Web,
        method: method.map(str::to_owned),
        path: path.map(ByteText::from),
        address: None,
        result: Happened::Allowed {
            status: Some(200),
            sent: 1,
            received: 1,
            duration_ms: 1,
            inspected: method.is_some(),
            secrets: Vec::new(),
            cached: false,
        },
        rule: None,
        from: None,
        times: 1,
    }
}

fn request(method: &str, host: &str, path: &str) -> Event {
    Event::Network(traffic(Some(method), host, 443, Some(path)))
}

fn denied(reason: Reason, host: &str, path: &str, allow: Option<&str>) -> Event {
    let mut own = traffic(Some("POST"), host, 443, Some(path));
    own.result = Happened::Denied {
        reason,
        detail: "no".to_owned(),
        allow: allow.map(str::to_owned),
    };
    Event::Network(own)
}

fn wrote(path: &str, what: Wrote) -> Event {
    Event::Write(Write {
        exec: None,
        pid: 1,
        path: path.into(),
        what,
    })
}

/// A bundle with a journal, and a result where one is given.
fn run(directory: &Path, events: Vec<Event>, changed: Option<&[&str]>) -> Seen {
    std::fs::create_dir_all(directory).unwrap();
    let mut journal = JournalFile::create(&directory.join("audit.jsonl")).unwrap();
    for event in events {
        journal.append(event).unwrap();
    }
    let status = RunStatus::Done;
    journal.append(Event::End { status }).unwrap();
    journal.sync().unwrap();
    if let Some(changed) = changed {
        let result = serde_json::json!({
            "duration_ms": 61_000, "cpu_ms": 1000, "peak_bytes": 200 << 20,
            "changed_files": changed,
        });
        std::fs::write(directory.join("result.json"), result.to_string()).unwrap();
    }
    let found = at_path(directory).unwrap();
    let (seen, followed) = Seen::read("a-run", &found.journals[0]).unwrap();
    assert!(followed.fault.is_none(), "{:?}", followed.fault);
    seen
}

/// What the text comes to, as a file of the host.
fn policy(text: &str, presets: &dyn Fn(&str) -> Option<Preset>) -> Effective {
    let source = Source {
        file: "proposed.toml",
        home: None,
    };
    let document = Document::parse(text.as_bytes(), source).unwrap_or_else(|error| {
        panic!("{error}\n{text}");
    });
    assert_eq!(document.extends[0].text, built_in::DEFAULT);
    let base = built_in::document(built_in::DEFAULT).unwrap();
    let resolved = document
        .over(base)
        .resolve::<Infallible>(&mut |line| Ok(presets(&line.text).unwrap()));
    match resolved {
        Ok(effective) => effective,
    }
}

/// A mirror that `npm` is configured for.
fn mirror(name: &str) -> Option<Preset> {
    let from = Origin {
        file: "preset:npm from ~/.npmrc".to_owned(),
        line: 1,
    };
    let rule = NetworkRule::parse(Effect::Allow, "GET,HEAD mirror.example:443", from);
    (name == "npm").then(|| Preset {
        rules: vec![rule.unwrap()],
        indexes: vec![Index {
            kind: IndexKind::Npm,
            host: Host::parse("mirror.example").unwrap(),
            port: 443,
            public: true,
        }],
        ..Preset::default()
    })
}

fn learn(runs: &[Seen], denied: Denied) -> (String, Replay) {
    let text = propose(runs, denied, &mut mirror).text;
    let replayed = replay(&policy(&text, &mirror), runs).unwrap();
    (text, replayed)
}

#[test]
fn the_least_policy_denies_nothing_of_what_was_done() {
    let directory = tempfile::tempdir().unwrap();
    let mut learned = traffic(None, "files.example", 443, None);
    learned.result = Happened::Learned {
        index: Host::parse("mirror.example").unwrap(),
    };
    let mut mirrored = traffic(Some("GET"), "mirror.example", 443, Some("/@scope%2fname"));
    mirrored.from = Some("preset:npm from ~/.npmrc:1".to_owned());
    let mut database = traffic(None, "db.internal", 5432, None);
    database.protocol = Protocol::Tcp;
    database.address = Some("10.0.0.5".parse().unwrap());
    let mut private = traffic(Some("GET"), "wiki.corp", 443, Some("/page"));
    private.address = Some("10.0.0.6".parse().unwrap());
    let mut secret = traffic(Some("POST"), "api.example", 443, Some("/graphql"));
    if let Happened::Allowed { secrets, .. } = &mut secret.result {
        secrets.push("API_TOKEN".to_owned());
    }
    let one = run(
        &directory.path().join("one"),
        vec![
            request("GET", "api.example", "/repos/a/issues/1"),
            request("GET", "api.example", "/repos/a/issues/22"),
            request("HEAD", "api.example", "/repos/a/issues/22"),
            Event::Network(mirrored),
            Event::Network(learned),
            request("GET", "files.example", "/name.tgz"),
            Event::Network(database),
            Event::Network(private),
            Event::Network(secret),
            Event::Network(traffic(None, "opaque.example", 8443, None)),
            wrote("src/a/b.rs", Wrote::Opened),
            wrote("Cargo.toml", Wrote::Truncated),
            wrote(".git/index", Wrote::Created),
        ],
        Some(&["src/a/b.rs", "Cargo.toml"]),
    );
    let two = run(
        &directory.path().join("two"),
        vec![wrote("tests/new.rs", Wrote::Created)],
        Some(&["tests/new.rs"]),
    );
    let (text, replayed) = learn(&[one, two], Denied::Listed);
    for line in [
        "\"preset:npm\",",
        "\"GET,HEAD api.example:443/repos/a/issues/*\",",
        "\"POST api.example:443/graphql\",",
        "\"tcp db.internal:5432\",",
        "{ rule = \"GET wiki.corp:443/page\", addresses = [\"10.0.0.6\"] },",
        "\"opaque.example:8443\",",
        "\"src/a/**\",",
        "\"Cargo.toml\",",
        "\"tests/**\",",
        "\"src/**/*.rs\",",
        "memory = \"512M\"",
        "time = \"5m\"",
        "API_TOKEN",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(!text.contains("files.example"), "{text}");
    assert!(!text.contains(".git"), "{text}");
    assert_eq!(replayed.denied, 0, "{:?}", replayed.listed);
    // Nine requests and connections, three writes, three changes, three bounds of two runs each.
    assert_eq!(replayed.asked, 21);
    assert!(replayed.unused.is_empty(), "{:?}", replayed.unused);
}

#[test]
fn what_was_denied_is_asked_about_and_not_granted() {
    let directory = tempfile::tempdir().unwrap();
    let mut name = traffic(None, "name.example", 0, None);
    name.via = Via::Name;
    name.result = Happened::Denied {
        reason: Reason::Host,
        detail: "no".to_owned(),
        allow: Some("name.example".to_owned()),
    };
    let events = vec![
        denied(
            Reason::Host,
            "up.example",
            "/a/1",
            Some("POST up.example/a/1"),
        ),
        denied(Reason::Secret, "evil.example", "/", None),
        denied(Reason::Host, "odd.example", "/", Some("x\"]\n[limits]")),
        Event::Network(name),
    ];
    let seen = [run(directory.path(), events, None)];
    let (text, replayed) = learn(&seen, Denied::Listed);
    assert!(
        text.contains("#   \"POST up.example/a/1\",  # once, by host"),
        "{text}"
    );
    assert!(text.contains("(secret)"), "{text}");
    assert!(text.contains("allow = []"), "{text}");
    assert_eq!((replayed.asked, replayed.denied), (0, 0));
    let (text, _) = learn(&seen, Denied::Included);
    for line in [
        "    \"POST up.example:443/a/*\",",
        "    \"name.example\",",
        "    \"POST odd.example:443/\",",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(!text.contains("evil.example"), "{text}");
}

#[test]
fn doubles_and_hidden_requests_grant_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut double = traffic(Some("GET"), "pay.example", 443, Some("/v1"));
    double.address = Some("127.0.0.1".parse().unwrap());
    let mut failed = traffic(None, "down.example", 443, None);
    failed.rule = Some("GET down.example/x/**".to_owned());
    failed.result = Happened::Failed {
        detail: "refused".to_owned(),
    };
    let seen = [run(
        directory.path(),
        vec![Event::Network(double), Event::Network(failed)],
        None,
    )];
    let (text, _) = learn(&seen, Denied::Included);
    assert!(text.contains("allow = []"), "{text}");
    assert!(text.contains("`pay.example` was answered on this machine"));
}

#[test]
fn hostile_names_get_into_no_policy() {
    let directory = tempfile::tempdir().unwrap();
    let events = vec![
        request("GET\"]\nx = 1", "a.example", "/"),
        request("GET", "a.example", "/x\"],\"*"),
        request("GET", "b\u{202e}.example", "/"),
        wrote("dir/a\"]\nb", Wrote::Created),
        wrote("dir/*[x]", Wrote::Created),
        wrote("in\u{202e}/deep/x", Wrote::Created),
    ];
    let changed = ["dir/a\"]\nb", "dir/*[x]", "\u{202e}x"];
    let seen = [run(directory.path(), events, Some(&changed))];
    let (text, _) = learn(&seen, Denied::Included);
    assert!(!text.contains('\u{202e}'), "{text}");
    assert!(text.contains("can be allowed by no line"), "{text}");
    let effective = policy(&text, &mirror);
    for rule in &effective.network.rules.0 {
        assert_eq!(rule.host.to_string(), "a.example", "{text}");
    }
}

#[test]
fn entries_at_the_top_need_the_whole_workspace() {
    let directory = tempfile::tempdir().unwrap();
    let events = vec![wrote("out.txt", Wrote::Created)];
    let seen = [run(directory.path(), events, Some(&["out.txt"]))];
    let (text, replayed) = learn(&seen, Denied::Listed);
    assert!(!text.contains("write = ["), "{text}");
    assert!(text.contains("`write` is left out"), "{text}");
    assert!(text.contains("\"out.txt\","), "{text}");
    assert_eq!(replayed.denied, 0, "{:?}", replayed.listed);
}

#[test]
fn a_policy_is_judged_by_what_runs_did() {
    let directory = tempfile::tempdir().unwrap();
    let seen = [run(
        directory.path(),
        vec![
            request("GET", "a.example", "/x"),
            request("POST", "a.example", "/x"),
            Event::Network(traffic(None, "seen.example", 443, None)),
            wrote("src/a.rs", Wrote::Opened),
            wrote("etc/b", Wrote::Opened),
        ],
        Some(&["src/a.rs", "etc/b", "etc/id_rsa"]),
    )];
    let text = "extends = \"standard\"\n[files]\nwrite = [\"src/**\", \"docs/**\"]\nexport = [\"**\", \"*.md\"]\n[network]\nallow = [\"GET a.example\", \"GET seen.example\", \"b.example\", \"preset:npm\"]\n[limits]\ntime = \"60s\"\nmemory = \"1G\"\n";
    let replayed = replay(&policy(text, &mirror), &seen).unwrap();
    let denied: Vec<&str> = replayed
        .listed
        .iter()
        .map(|own| own.what.as_str())
        .collect();
    assert_eq!(
        denied,
        [
            "POST a.example:443/x",
            "write \"etc/b\"",
            "export \"etc/id_rsa\"",
            "time of 61",
        ]
    );
    assert_eq!(replayed.unsure, 1);
    assert_eq!((replayed.denied, replayed.asked), (4, 10));
    assert_eq!(
        replayed.unused,
        [
            "b.example (proposed.toml:6)",
            "preset:npm",
            "write \"docs/**\" (proposed.toml:3)",
            "export \"*.md\" (proposed.toml:4)",
        ]
    );
}
