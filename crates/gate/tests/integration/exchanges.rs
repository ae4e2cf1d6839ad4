//! Exchanges inside connections: bodies, failures, doubles, budgets, web sockets, new rules.

use std::io::{Read as _, Write as _};
use std::sync::Arc;

use ringfence_model::gate::{BoundSecret, Happened, Mock, Setup, Traffic};
use ringfence_model::host::{Host, HostPattern};
use ringfence_model::policy::network::{Reason, Rules};

use crate::kit;
use crate::site;
use kit::{World, rule, rules, setup};
use site::{Looking, Outside, Saw, Site, a_test, answer, hello};

#[test]
fn many_requests_share_connections_and_each_is_decided() {
    let (setup, site, _outside) = a_test(hello, &["GET a.test:{}/ok/**"]);
    let Some(inside) = Looking::start(&setup, &[]) else {
        return;
    };
    let base = format!("https://a.test:{}", site.port);
    for version in ["--http1.1", "--http2"] {
        let urls: Vec<String> = (0..20)
            .map(|number| format!("{base}/ok/{number}"))
            .collect();
        let mut arguments = vec![version, "-Z", "-w", "\n"];
        arguments.extend(urls.iter().map(String::as_str));
        let (code, text) = inside.curl(&arguments);
        assert_eq!(code, 0, "{text}");
        assert_eq!(text.matches("hello /ok/").count(), 20, "{text}");
        let (_, text) = inside.curl(&[version, &urls[0], &format!("{base}/no"), &urls[1]]);
        assert!(
            text.contains("hello /ok/0") && text.contains("hello /ok/1"),
            "{text}"
        );
        assert!(text.contains("\"reason\":\"path\""), "{text}");
    }
    assert_eq!(site.saw().len(), 44);
}

#[test]
fn bodies_of_any_size_go_both_ways() {
    fn twice(saw: &Saw) -> Vec<u8> {
        answer("200 OK", "", &[&saw.body[..], &saw.body[..]].concat())
    }
    let (setup, site, _outside) = a_test(twice, &["POST,PUT a.test:{}/**"]);
    let Some(inside) = Looking::start(&setup, &[]) else {
        return;
    };
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    let body: Vec<u8> = (0..3_000_000_u32)
        .map(|number| ((number * 7) >> 3) as u8)
        .collect();
    file.write_all(&body).expect("room");
    let path = file.path().to_str().expect("a path").to_owned();
    let out = tempfile::NamedTempFile::new().expect("a file");
    let out_path = out.path().to_str().expect("a path").to_owned();
    let url = format!("https://a.test:{}/x", site.port);
    for arguments in [
        vec!["--http1.1", "-T", &path],
        vec!["--http1.1", "-H", "Transfer-Encoding: chunked", "-T", &path],
        vec!["--http1.1", "-H", "Expect: 100-continue", "-T", &path],
        vec!["--http1.0", "-T", &path],
        vec!["--http2", "-T", &path],
    ] {
        let (code, text) = inside.curl(&[&arguments[..], &["-o", &out_path, &url]].concat());
        assert_eq!(code, 0, "{arguments:?} {text}");
        let came = std::fs::read(&out_path).expect("a file");
        assert!(
            came.len() == 6_000_000 && came.starts_with(&body) && came.ends_with(&body),
            "{arguments:?}"
        );
        let seen = inside.gate.seen(|own| own.method.is_some());
        assert!(
            matches!(
                seen.result,
                Happened::Allowed {
                    sent: 3_000_000,
                    received: 6_000_000,
                    ..
                }
            ),
            "{seen:?}"
        );
    }
}

#[test]
fn a_host_that_fails_is_told_as_such() {
    fn bad(saw: &Saw) -> Vec<u8> {
        match saw.path() {
            "/half" => b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nConnection: close\r\n\r\nhalf".to_vec(),
            "/chunk" => b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhel".to_vec(),
            "/both" => b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_vec(),
            "/split" => b"HTTP/1.1 200 OK\r\nX: a\nSet-Cookie: b\r\n\r\n".to_vec(),
            "/head" => [b"HTTP/1.1 200 OK\r\nX: ".to_vec(), vec![b'a'; 1 << 20]].concat(),
            "/101" => b"HTTP/1.1 101 Switching\r\n\r\n".to_vec(),
            "/early" => [b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n".to_vec(), answer("200 OK", "", b"late")].concat(),
            "/garbage" => b"\x16\x03\x01nonsense\r\n\r\n".to_vec(),
            _ => Vec::new(),
        }
    }
    let (mut setup, site, outside) = a_test(
        bad,
        &["GET a.test:{}/**", "GET b.test:{}/**", "GET c.test:1/**"],
    );
    let other = Outside::new();
    let stranger = Site::secure(other.config(&["b.test"], &[]), hello);
    let wrong = Site::secure(outside.config(&["z.test"], &[]), hello);
    let world = World::new(&[("*.test", &["127.0.0.1"])]);
    setup.name_servers = vec![world.address];
    for port in [stranger.port, wrong.port] {
        setup.rules.0.push(rule(&format!("GET b.test:{port}/**")));
    }
    let Some(inside) = Looking::start(&setup, &[]) else {
        return;
    };
    for version in ["--http1.1", "--http2"] {
        for path in ["both", "split", "head", "101", "garbage", "nothing"] {
            let url = format!("https://a.test:{}/{path}", site.port);
            let (code, text) = inside.curl(&[version, "-w", "%{http_code}", &url]);
            assert!(code == 0 && text.ends_with("502"), "{path}: {code} {text}");
            inside
                .gate
                .seen(|own| matches!(own.result, Happened::Failed { .. }));
        }
        // What was cut is never taken for whole.
        for path in ["half", "chunk"] {
            let url = format!("https://a.test:{}/{path}", site.port);
            let (code, text) = inside.curl(&[version, &url]);
            assert_ne!(code, 0, "{path}: {text}");
            inside
                .gate
                .seen(|own| matches!(own.result, Happened::Failed { .. }));
        }
        let (code, text) = inside.curl(&[version, &format!("https://a.test:{}/early", site.port)]);
        assert_eq!((code, text.as_str()), (0, "late"));
        for (port, what) in [(stranger.port, "prove"), (wrong.port, "prove")] {
            let (_, text) = inside.curl(&[version, &format!("https://b.test:{port}/")]);
            assert!(
                text.contains(what) && text.contains("certificate"),
                "{text}"
            );
            let seen = inside
                .gate
                .seen(|own| own.host.0 == b"b.test" && own.method.is_some());
            assert!(matches!(seen.result, Happened::Failed { .. }), "{seen:?}");
        }
        let (_, text) = inside.curl(&[version, "https://c.test:1/"]);
        assert!(text.contains("does not answer"), "{text}");
    }
    assert!(stranger.saw().is_empty() && wrong.saw().is_empty());
}

#[test]
fn a_double_answers_for_its_host() {
    let double = Site::plain(hello);
    let world = World::new(&[]);
    let mut setup = setup(rules(&["pay.test"]), &world);
    setup.mocks = vec![Mock {
        host: Host::parse("pay.test").expect("a host"),
        to: ([127, 0, 0, 1], double.port).into(),
    }];
    let Some(inside) = Looking::start(&setup, &[]) else {
        return;
    };
    for url in ["https://pay.test/charge", "http://pay.test/charge"] {
        for version in ["--http1.1", "--http2"] {
            // In the clear only HTTP/1 is spoken.
            if version == "--http2" && url.starts_with("http:") {
                continue;
            }
            let (code, text) = inside.curl(&[version, url]);
            assert_eq!((code, text.as_str()), (0, "hello /charge"), "{url}");
        }
    }
    assert!(
        double
            .saw()
            .iter()
            .all(|saw| saw.field("host") == Some("pay.test"))
    );
    // Nobody was asked where that host is.
    assert_eq!(world.asked(), Vec::<String>::new());
}

#[test]
fn redirects_are_the_clients_business() {
    fn away(_: &Saw) -> Vec<u8> {
        answer("302 Found", "Location: https://evil.test/\r\n", b"")
    }
    let (setup, site, _outside) = a_test(away, &["GET a.test:{}/**"]);
    let Some(inside) = Looking::start(&setup, &[]) else {
        return;
    };
    let url = format!("https://a.test:{}/x", site.port);
    let (_, text) = inside.curl(&["-w", "%{http_code} %{redirect_url}", &url]);
    assert_eq!(text, "302 https://evil.test/");
    let (code, _) = inside.curl(&["-L", &url]);
    assert_ne!(code, 0, "the name does not exist");
}

#[test]
fn budgets_hold_inside_connections() {
    fn big(saw: &Saw) -> Vec<u8> {
        answer(
            "200 OK",
            "",
            &vec![b'x'; if saw.path() == "/big" { 100_000 } else { 10 }],
        )
    }
    let (mut setup, site, _outside) = a_test(big, &[]);
    let port = site.port;
    let mut get = rule(&format!("GET a.test:{port}/**"));
    get.budget.download_bytes = Some(50_000);
    let mut put = rule(&format!("PUT a.test:{port}/**"));
    put.budget.upload_bytes = Some(1000);
    let mut delete = rule(&format!("DELETE a.test:{port}/**"));
    delete.budget.per_minute = Some(2);
    setup.rules = Rules(vec![get, put, delete]);
    let Some(inside) = Looking::start(&setup, &[]) else {
        return;
    };
    let url = |path: &str| format!("https://a.test:{port}/{path}");
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(&[b'y'; 600]).expect("room");
    let path = file.path().to_str().expect("a path").to_owned();
    // net-039
    let (code, text) = inside.curl(&["-T", &path, &url("a")]);
    assert_eq!((code, text.as_str()), (0, "xxxxxxxxxx"));
    let (_, text) = inside.curl(&["-T", &path, &url("a")]);
    assert!(text.contains("\"reason\":\"budget\""), "{text}");
    let (code, _) = inside.curl(&[&url("big")]);
    assert_ne!(code, 0, "it is cut");
    for _ in 0..2 {
        assert_eq!(inside.curl(&["-X", "DELETE", &url("a")]).1, "xxxxxxxxxx");
    }
    let (_, text) = inside.curl(&["-X", "DELETE", &url("a")]);
    assert!(text.contains("\"reason\":\"budget\""), "{text}");
    for _ in 0..3 {
        inside.gate.denied("a.test", Reason::Budget);
    }
}

#[test]
fn web_sockets_are_tunnels_where_no_method_is_asked_for() {
    let outside = Outside::new();
    let world = World::new(&[("a.test", &["127.0.0.1"])]);
    let config = outside.config(&["a.test"], &[]);
    // Agrees, and then sends back what comes.
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
            head.contains("Upgrade: websocket\r\n") && head.contains("Sec-WebSocket-Key: k"),
            "{head}"
        );
        stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: a\r\n\r\n").ok();
        while stream.read(&mut byte).is_ok_and(|length| length == 1) {
            stream.write_all(&byte).ok();
        }
    });
    let mut setup = setup(
        rules(&[
            &format!("a.test:{port}/ws"),
            &format!("GET a.test:{port}/read"),
        ]),
        &world,
    );
    setup.roots = Some(outside.path().to_owned());
    let Some(inside) = Looking::start(&setup, &[]) else {
        return;
    };
    let ask = move |path: &str| {
        format!(
            "GET {path} HTTP/1.1\r\nHost: a.test:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\n"
        )
    };
    // net-033
    let refused = ask("/read").replace("Connection: Upgrade", "Connection: Upgrade, close");
    let text = inside.raw("a.test", port, refused);
    assert!(
        text.starts_with("HTTP/1.1 403") && text.contains("web socket"),
        "{text}"
    );
    inside.gate.denied("a.test", Reason::Method);
    let mut stream = inside.secure("a.test", port, 1 << 14);
    let came = inside.gate.inside(move || {
        stream.write_all(ask("/ws").as_bytes()).expect("sent");
        let mut all = Vec::new();
        let mut byte = [0];
        while !all.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|length| length == 1)
        {
            all.push(byte[0]);
        }
        stream.write_all(b"ping").expect("sent");
        let mut back = [0; 4];
        stream.read_exact(&mut back).expect("an echo");
        assert_eq!(&back, b"ping");
        String::from_utf8_lossy(&all).into_owned()
    });
    assert!(
        came.starts_with("HTTP/1.1 101 ") && came.contains("Sec-WebSocket-Accept: a"),
        "{came}"
    );
    let seen = inside
        .gate
        .seen(|own| matches!(own.result, Happened::Allowed { .. }));
    assert!(
        matches!(
            seen.result,
            Happened::Allowed {
                status: Some(101),
                sent: 4,
                received: 4,
                ..
            }
        ),
        "{seen:?}"
    );
}

#[test]
fn new_rules_end_what_they_do_not_allow() {
    let outside = Outside::new();
    let world = World::new(&[("a.test", &["127.0.0.1"])]);
    let config = outside.config(&["a.test"], &[]);
    let began = Arc::new(std::sync::Barrier::new(2));
    let wait = began.clone();
    // Begins an answer that never ends.
    let port = kit::server(move |stream| {
        let connection = rustls::ServerConnection::new(config.clone()).expect("a connection");
        let mut stream = rustls::StreamOwned::new(connection, stream);
        let mut some = [0; 1024];
        assert!(stream.read(&mut some).is_ok_and(|length| length > 0));
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
            .ok();
        stream.flush().ok();
        wait.wait();
        // Until the gate is gone.
        while stream.read(&mut some).is_ok_and(|length| length > 0) {}
    });
    let mut setup = setup(rules(&[&format!("GET a.test:{port}/**")]), &world);
    setup.roots = Some(outside.path().to_owned());
    let Some(mut inside) = Looking::start(&setup, &[]) else {
        return;
    };
    let mut stream = inside.secure("a.test", port, 1 << 14);
    let reading = inside.gate.inside.spawn(move || {
        write!(stream, "GET /x HTTP/1.1\r\nHost: a.test:{port}\r\n\r\n").expect("sent");
        let mut all = Vec::new();
        stream.read_to_end(&mut all).ok();
        all
    });
    began.wait();
    assert!(inside.gate.change(rules(&["b.test"])) >= 1);
    let all = reading.join().expect("it ends");
    assert!(!all.ends_with(b"0123456789"));
    inside.gate.denied("a.test", Reason::Rule);
}

/// A host that takes requests and never answers; it says when it has a whole one.
fn silent(outside: &Outside) -> (u16, std::sync::mpsc::Receiver<()>) {
    let config = outside.config(&["a.test"], &[]);
    let (sender, came) = std::sync::mpsc::channel();
    let port = kit::server(move |stream| {
        let connection = rustls::ServerConnection::new(config.clone()).expect("a connection");
        let mut stream = rustls::StreamOwned::new(connection, stream);
        let mut all = Vec::new();
        let mut some = [0; 1024];
        while !all.ends_with(b"the end") {
            let length = stream.read(&mut some).expect("a request");
            all.extend_from_slice(&some[..length]);
        }
        sender.send(()).ok();
        while stream.read(&mut some).is_ok_and(|length| length > 0) {}
    });
    (port, came)
}

/// Sends a body of 1000 bytes, and waits until the host has it.
fn deliver(inside: &Looking, port: u16, came: &std::sync::mpsc::Receiver<()>) -> site::Secure {
    let mut stream = inside.secure("a.test", port, 1 << 14);
    let stream = inside.gate.inside(move || {
        let body = format!("{:x<993}the end", "");
        let head = format!("POST /x HTTP/1.1\r\nHost: a.test:{port}\r\nContent-Length: 1000\r\n");
        write!(stream, "{head}X-Key: fake-0123456789\r\n\r\n{body}").expect("sent");
        stream
    });
    came.recv_timeout(kit::PATIENCE).expect("it is delivered");
    stream
}

/// What a request that was delivered is in the journal.
fn is_delivered(own: &Traffic) -> bool {
    let told = matches!(
        &own.result,
        Happened::Allowed { status: None, sent: 1000, secrets, .. } if secrets == &["KEY"]
    );
    told && own.address.is_some()
}

fn silent_setup(outside: &Outside, port: u16) -> Setup {
    let world = World::new(&[("a.test", &["127.0.0.1"])]);
    let mut setup = setup(rules(&[&format!("POST a.test:{port}/**")]), &world);
    setup.roots = Some(outside.path().to_owned());
    setup.secrets = vec![BoundSecret {
        name: "KEY".to_owned(),
        placeholder: "fake-0123456789".to_owned(),
        hosts: vec![HostPattern::parse("a.test").expect("a host")],
        methods: Vec::new(),
        path: None,
        header: "X-Key: {}".to_owned(),
    }];
    setup
}

#[test]
fn what_was_delivered_is_said_when_the_sandbox_ends() {
    let outside = Outside::new();
    let (port, came) = silent(&outside);
    let Some(inside) = Looking::start(&silent_setup(&outside, port), &["real-9876543210"]) else {
        return;
    };
    let _open = deliver(&inside, port, &came);
    let all = inside.gate.end();
    assert!(all.iter().any(is_delivered), "{all:?}");
    let denied = |own: &Traffic| matches!(own.result, Happened::Denied { .. });
    assert!(!all.iter().any(denied), "{all:?}");
}

#[test]
fn what_was_delivered_is_said_when_rules_change() {
    let outside = Outside::new();
    let (port, came) = silent(&outside);
    let Some(mut inside) = Looking::start(&silent_setup(&outside, port), &["real-9876543210"])
    else {
        return;
    };
    let _open = deliver(&inside, port, &came);
    assert!(inside.gate.change(rules(&["b.test"])) >= 1);
    inside.gate.seen(is_delivered);
    inside.gate.denied("a.test", Reason::Rule);
}
