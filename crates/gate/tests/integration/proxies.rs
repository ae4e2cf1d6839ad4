//! The web proxy and SOCKS5, with the real client and with what no client sends.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown};

use ringfence_model::gate::{Happened, Via};
use ringfence_model::policy::network::Reason;

use crate::kit;
use kit::{Gate, World, connect, echo_server, has_curl, read_all, recorder, rules, setup};

const PROXY: u16 = 3128;
const SOCKS: u16 = 1080;

/// Sends bytes to a port of the gate, and reads what comes until the end.
fn send(gate: &Gate, port: u16, bytes: &[u8]) -> Vec<u8> {
    let bytes = bytes.to_vec();
    gate.inside(move || {
        let mut stream = connect(Ipv4Addr::new(127, 64, 0, 1).into(), port).expect("it listens");
        stream.write_all(&bytes).ok();
        stream.shutdown(Shutdown::Write).ok();
        read_all(&mut stream)
    })
}

fn connect_to(gate: &Gate, target: &str) -> String {
    let head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    String::from_utf8_lossy(&send(gate, PROXY, head.as_bytes())).into_owned()
}

#[test]
fn a_denial_of_the_proxy_teaches() {
    let world = World::new(&[]);
    let Some(gate) = Gate::start(&setup(rules(&["a.test", "deny a.test:443"]), &world)) else {
        return;
    };
    let answer = connect_to(&gate, "Evil.test:443");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(
        head.starts_with("HTTP/1.1 403 Denied by ringfence, rule needed: evil.test\r\n"),
        "{head}"
    );
    assert!(head.contains("X-Ringfence-Denied: host"), "{head}");
    let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(
        body,
        serde_json::json!({
            "error": "denied by ringfence",
            "host": "evil.test",
            "port": 443,
            "reason": "host",
            "detail": "no rule allows `evil.test`",
            "allow": "evil.test",
        })
    );
    let (_, allow) = gate.denied("evil.test", Reason::Host);
    assert_eq!(allow.as_deref(), Some("evil.test"));
    // net-037: only ports of the rule.
    for port in [22, 25, 53, 6379] {
        let answer = connect_to(&gate, &format!("a.test:{port}"));
        assert!(
            answer.contains(&format!("rule needed: tcp a.test:{port}")),
            "{answer}"
        );
        gate.denied("a.test", Reason::Port);
    }
    // A rule that denies is named, and no line is offered against it.
    let answer = connect_to(&gate, "a.test:443");
    assert!(answer.contains(r#""reason":"rule""#), "{answer}");
    assert!(answer.contains(r#""allow":null"#), "{answer}");
    assert_eq!(world.asked(), Vec::<String>::new());
}

#[test]
fn a_connection_that_is_denied_is_denied_to_requests_too() {
    let world = World::new(&[("a.test", &["127.0.0.1"])]);
    let rules = rules(&["a.test", "deny tcp a.test:80"]);
    let Some(gate) = Gate::start(&setup(rules, &world)) else {
        return;
    };
    let request = b"GET http://a.test/x HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";
    let answer = send(&gate, 3128, request);
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    gate.denied("a.test", Reason::Rule);
    assert_eq!(world.asked(), Vec::<String>::new());
}

#[test]
fn names_are_compared_by_label() {
    let world = World::new(&[]);
    let Some(gate) = Gate::start(&setup(rules(&["allowed.test", "*.wild.test"]), &world)) else {
        return;
    };
    // net-016, net-050
    for host in [
        "notallowed.test",
        "allowed.test.evil.test",
        "allowed.testing",
        "xallowed.test",
        "wild.test",
        "evilwild.test",
        "a.wild.test.evil.test",
        "localhost",
    ] {
        let answer = connect_to(&gate, &format!("{host}:443"));
        assert!(answer.starts_with("HTTP/1.1 403 "), "{host}: {answer}");
        gate.denied(host, Reason::Host);
    }
    assert_eq!(world.asked(), Vec::<String>::new());
}

#[test]
fn addresses_are_for_rules_that_name_them() {
    let port = echo_server();
    let world = World::new(&[]);
    let lines = ["*", &format!("tcp 127.0.0.1:{port}")];
    let Some(gate) = Gate::start(&setup(rules(&lines), &world)) else {
        return;
    };
    // net-010, net-044, and the gate itself: a rule for every name has no address in it.
    for (target, host) in [
        ("169.254.169.254:80", "169.254.169.254"),
        ("100.100.100.200:80", "100.100.100.200"),
        ("168.63.129.16:80", "168.63.129.16"),
        ("192.0.0.192:80", "192.0.0.192"),
        ("[fd00:ec2::254]:80", "[fd00:ec2::254]"),
        ("[::ffff:169.254.169.254]:80", "169.254.169.254"),
        ("[64:ff9b::7f00:1]:80", "127.0.0.1"),
        ("[::1]:80", "[::1]"),
        ("1.1.1.1:443", "1.1.1.1"),
        ("127.0.0.1:22", "127.0.0.1"),
        ("127.64.0.1:3128", "127.64.0.1"),
        ("127.64.200.200:443", "127.64.200.200"),
    ] {
        let answer = connect_to(&gate, target);
        assert!(answer.starts_with("HTTP/1.1 403 "), "{target}: {answer}");
        let reason = if target == "127.0.0.1:22" || target.contains("7f00") {
            Reason::Port
        } else {
            Reason::Host
        };
        gate.denied(host, reason);
    }
    let target = format!("127.0.0.1:{port}");
    let head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\nhello");
    let answer = send(&gate, PROXY, head.as_bytes());
    assert_eq!(
        String::from_utf8_lossy(&answer),
        "HTTP/1.1 200 Connection established\r\n\r\nhello"
    );
}

#[test]
fn an_address_of_a_name_is_that_name_to_the_proxies() {
    let port = echo_server();
    let world = World::new(&[("db.test", &["127.0.0.1"])]);
    let Some(gate) = Gate::start(&setup(rules(&[&format!("tcp db.test:{port}")]), &world)) else {
        return;
    };
    let address = gate.lookup("db.test").expect("it is allowed");
    let head = format!("CONNECT {address}:{port} HTTP/1.1\r\nHost: {address}:{port}\r\n\r\nhi");
    let answer = send(&gate, PROXY, head.as_bytes());
    assert!(answer.ends_with(b"\r\n\r\nhi"), "{answer:?}");
    let seen = gate.seen(|traffic| traffic.via == Via::Proxy);
    assert_eq!(seen.host.0, b"db.test");
}

#[test]
fn what_can_be_read_in_two_ways_is_no_request() {
    let world = World::new(&[]);
    let Some(gate) = Gate::start(&setup(rules(&["*"]), &world)) else {
        return;
    };
    // net-011, net-013
    let long = format!(
        "CONNECT a.test:443 HTTP/1.1\r\nX: {}\r\n\r\n",
        "x".repeat(70 << 10)
    );
    for head in [
        "CONNECT evil.test:443\r\nX: .a.test HTTP/1.1\r\n\r\n",
        "CONNECT a.test:443 \r\n\r\n",
        "CONNECT  a.test:443 HTTP/1.1\r\n\r\n",
        "CONNECT a.test\t:443 HTTP/1.1\r\n\r\n",
        "CONNECT a.test@evil.test:443 HTTP/1.1\r\n\r\n",
        "CONNECT a.test#evil.test:443 HTTP/1.1\r\n\r\n",
        "CONNECT a%2etest:443 HTTP/1.1\r\n\r\n",
        "CONNECT a.test:443\0.evil HTTP/1.1\r\n\r\n",
        "CONNECT a.test:0443x HTTP/1.1\r\n\r\n",
        "CONNECT a.test:0 HTTP/1.1\r\n\r\n",
        "CONNECT a.test:65536 HTTP/1.1\r\n\r\n",
        "CONNECT a.test HTTP/1.1\r\n\r\n",
        "CONNECT 127.1:443 HTTP/1.1\r\n\r\n",
        "CONNECT 2130706433:443 HTTP/1.1\r\n\r\n",
        "CONNECT 0x7f.0.0.1:443 HTTP/1.1\r\n\r\n",
        "CONNECT ①②⑦.0.0.1:443 HTTP/1.1\r\n\r\n",
        "CONNECT ⓛocalhost:443 HTTP/1.1\r\n\r\n",
        "CONNECT [::1%25lo]:443 HTTP/1.1\r\n\r\n",
        "CONNECT a.test:443 HTTP/1.1\nHost: a.test\n\r\n\r\n",
        "CONNECT a.test:443 HTTP/1.1\r\nA: b\r\n c\r\n\r\n",
        "CONNECT a.test:443 HTTP/1.1\r\nHost : a\r\n\r\n",
        "CONNECT a.test:443 HTTP/2.0\r\n\r\n",
        "CONNECT a.test:443 HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
        "connect a.test:443 HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
        "GET ftp://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "\x16\x03\x01\x00\x05hello",
        "\x05\x01\x00",
        &long,
    ] {
        let answer = send(&gate, PROXY, head.as_bytes());
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 400 "), "{head:?}: {answer}");
        gate.seen(|traffic| {
            matches!(
                traffic.result,
                Happened::Denied {
                    reason: Reason::Malformed,
                    ..
                }
            )
        });
    }
    assert_eq!(world.asked(), Vec::<String>::new());
}

#[test]
fn curl_sees_the_refusal() {
    let world = World::new(&[]);
    let Some(gate) = Gate::start(&setup(rules(&["a.test"]), &world)) else {
        return;
    };
    if !has_curl() {
        return;
    }
    // By name service.
    let (exit, text) = gate.curl(&["https://denied.test/"]);
    assert_eq!(exit, 6, "{text}");
    // By proxy.
    let code = ["-w", "%{http_connect}", "-o", "/dev/null"];
    let proxy = ["-x", "http://127.64.0.1:3128", "https://denied.test/"];
    let (exit, text) = gate.curl(&[&code[..], &proxy].concat());
    assert_eq!((exit, text.contains("403")), (56, true), "{text}");
    // By SOCKS5, and its older kin.
    let (exit, text) = gate.curl(&["-x", "socks5h://127.64.0.1:1080", "https://denied.test/"]);
    assert_eq!(exit, 97, "{text}");
    let (exit, text) = gate.curl(&["-x", "socks4a://127.64.0.1:1080", "https://a.test/"]);
    assert_eq!(exit, 97, "{text}");
    assert_eq!(world.asked(), Vec::<String>::new());
}

#[test]
fn a_relay_inside_changes_nothing() {
    let world = World::new(&[]);
    let Some(gate) = Gate::start(&setup(rules(&["a.test"]), &world)) else {
        return;
    };
    const HEAD: &[u8] = b"CONNECT denied.test:443 HTTP/1.1\r\nHost: denied.test:443\r\n\r\n";
    // net-048: who asks does not matter, what is asked does.
    let answer = gate.inside(|| {
        let relay = std::net::TcpListener::bind("127.0.0.1:9999").expect("a port");
        let client = std::thread::spawn(|| {
            let mut stream = connect([127, 0, 0, 1].into(), 9999).expect("it listens");
            stream.write_all(HEAD).expect("it reads");
            read_all(&mut stream)
        });
        let (mut near, _) = relay.accept().expect("a client");
        let mut far = connect([127, 64, 0, 1].into(), PROXY).expect("it listens");
        let mut head = vec![0; HEAD.len()];
        near.read_exact(&mut head).expect("a head");
        far.write_all(&head).expect("it reads");
        near.write_all(&read_all(&mut far)).expect("it reads");
        drop(near);
        client.join().expect("no panic")
    });
    assert!(answer.starts_with(b"HTTP/1.1 403 "), "{answer:?}");
}

fn socks_request(kind: u8, address: &[u8], port: u16) -> Vec<u8> {
    let mut bytes = vec![5, 1, 0, 5, 1, 0, kind];
    bytes.extend_from_slice(address);
    bytes.extend_from_slice(&port.to_be_bytes());
    bytes
}

fn socks_name(name: &[u8], port: u16) -> Vec<u8> {
    let mut address = vec![name.len() as u8];
    address.extend_from_slice(name);
    socks_request(3, &address, port)
}

#[test]
fn socks_reaches_what_is_allowed_and_nothing_else() {
    let port = echo_server();
    let world = World::new(&[("db.test", &["127.0.0.1"]), ("evil.test", &["127.0.0.1"])]);
    let Some(gate) = Gate::start(&setup(rules(&[&format!("tcp db.test:{port}")]), &world)) else {
        return;
    };
    let mut bytes = socks_name(b"DB.test", port);
    bytes.extend_from_slice(b"hello");
    let answer = send(&gate, SOCKS, &bytes);
    assert_eq!(answer[..4], [5, 0, 5, 0]);
    assert!(answer.ends_with(b"hello"));
    let seen = gate.seen(|traffic| traffic.via == Via::Socks);
    assert_eq!(seen.host.0, b"db.test");
    world.asked();
    // Denied.
    for bytes in [
        socks_name(b"evil.test", port),
        socks_name(b"db.test", 22),
        socks_request(1, &[127, 0, 0, 1], port),
        socks_request(1, &[169, 254, 169, 254], 80),
        socks_request(
            4,
            &IpAddr::from([0_u16, 0, 0, 0, 0, 0xffff, 0x7f00, 1]).octets(),
            port,
        ),
    ] {
        let answer = send(&gate, SOCKS, &bytes);
        assert_eq!(answer[..4], [5, 0, 5, 2], "{bytes:?}");
    }
    // No host.
    for name in [
        &b"db.test\0.evil.test"[..],
        b"db.test\r\n",
        b"127.1",
        b"",
        b"[::1]x",
        "ⓛocalhost".as_bytes(),
    ] {
        let answer = send(&gate, SOCKS, &socks_name(name, port));
        assert_eq!(answer[..4], [5, 0, 5, 8], "{name:?}");
    }
    // No SOCKS5 as it is spoken here: version 4, authentication, BIND, UDP.
    for (bytes, expected) in [
        (&[4, 1, 1, 187, 127, 0, 0, 1, 0][..], &[0, 91][..]),
        (&[5, 1, 2], &[5, 255]),
        (&[5, 0], &[5, 255]),
        (&[5, 1, 0, 5, 2, 0, 1, 1, 2, 3, 4, 0, 80], &[5, 0, 5, 7]),
        (&[5, 1, 0, 5, 3, 0, 1, 1, 2, 3, 4, 0, 80], &[5, 0, 5, 7]),
        (b"GET / HTTP/1.1\r\n\r\n", &[]),
    ] {
        let answer = send(&gate, SOCKS, bytes);
        let begin = &answer[..expected.len().min(answer.len())];
        assert_eq!(begin, expected, "{bytes:?}");
    }
    assert_eq!(world.asked(), Vec::<String>::new());
}

trait Octets {
    fn octets(&self) -> Vec<u8>;
}

impl Octets for IpAddr {
    fn octets(&self) -> Vec<u8> {
        match self {
            Self::V4(address) => address.octets().to_vec(),
            Self::V6(address) => address.octets().to_vec(),
        }
    }
}

#[test]
fn a_tunnel_of_the_proxy_is_for_the_name_that_it_was_asked_for() {
    let (port, received) = recorder();
    let world = World::new(&[("web.test", &["127.0.0.1"])]);
    let Some(gate) = Gate::start(&setup(rules(&[&format!("web.test:{port}")]), &world)) else {
        return;
    };
    let begin = |bytes: &[u8]| {
        let mut all = format!("CONNECT web.test:{port} HTTP/1.1\r\n\r\n").into_bytes();
        all.extend_from_slice(bytes);
        send(&gate, PROXY, &all)
    };
    let own = kit::hello(Some("web.test"));
    begin(&own);
    assert_eq!(received.recv_timeout(kit::PATIENCE), Ok(own));
    let answer = begin(&kit::hello(Some("evil.test")));
    assert!(answer.ends_with(&[21, 3, 3, 0, 2, 2, 112]), "{answer:?}");
    gate.denied("web.test", Reason::Protocol);
    // It was dialled before the hello came, and nothing was sent.
    assert_eq!(received.recv_timeout(kit::PATIENCE), Ok(Vec::new()));
    begin(b"SSH-2.0-x\r\n");
    gate.denied("web.test", Reason::Protocol);
    assert_eq!(received.recv_timeout(kit::PATIENCE), Ok(Vec::new()));
    // Nobody is there: told in the words of the proxy.
    let Some(gate) = Gate::start(&setup(rules(&["gone.test"]), &world)) else {
        return;
    };
    let answer = connect_to(&gate, "gone.test:443");
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
}
