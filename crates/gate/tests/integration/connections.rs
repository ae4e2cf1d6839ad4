//! Connections to the addresses that names have inside.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown};

use ringfence_model::gate::{Happened, Traffic, Via};
use ringfence_model::policy::network::{Reason, Rules};

use crate::kit;
use kit::{
    Gate, World, connect, echo_server, has_curl, hello, plain_rule, read_all, recorder, rule,
    rules, setup, tls_server,
};

/// Bytes to a fatal alert of TLS.
const ALERT: [u8; 6] = [21, 3, 3, 0, 2, 2];

fn allowed(traffic: &Traffic) -> Option<(u64, u64)> {
    match traffic.result {
        Happened::Allowed { sent, received, .. } => Some((sent, received)),
        _ => None,
    }
}

/// Sends bytes to a name from inside, and reads what comes until the end.
fn talk(gate: &Gate, name: &str, port: u16, bytes: &[u8]) -> Vec<u8> {
    let address = IpAddr::V4(gate.lookup(name).expect("it is allowed"));
    let bytes = bytes.to_vec();
    gate.inside(move || {
        let mut stream = connect(address, port).expect("it listens");
        stream.write_all(&bytes).ok();
        stream.shutdown(Shutdown::Write).ok();
        read_all(&mut stream)
    })
}

#[test]
fn a_named_service_takes_any_bytes_and_they_are_counted() {
    let port = echo_server();
    let world = World::new(&[("db.test", &["127.0.0.1"])]);
    let line = format!("tcp db.test:{port}");
    let Some(gate) = Gate::start(&setup(rules(&[&line]), &world)) else {
        return;
    };
    assert_eq!(talk(&gate, "db.test", port, b"\0hello"), b"\0hello");
    let seen = gate.seen(|traffic| allowed(traffic).is_some());
    assert_eq!(allowed(&seen), Some((6, 6)));
    assert_eq!(seen.via, Via::Direct);
    assert_eq!(seen.host.0, b"db.test");
    assert_eq!(seen.rule.as_deref(), Some(line.as_str()));
    assert_eq!(seen.from.as_deref(), Some("test.toml:1"));
    assert_eq!(seen.address, Some([127, 0, 0, 1].into()));
    // One look-up for one connection: both kinds of address, once.
    assert_eq!(world.asked(), ["db.test", "db.test"]);
}

#[test]
fn a_service_that_speaks_first_is_heard() {
    let port = kit::server(|mut stream| {
        stream.write_all(b"220 ready\r\n").ok();
    });
    let world = World::new(&[("mail.test", &["127.0.0.1"])]);
    let line = format!("tcp mail.test:{port}");
    let Some(gate) = Gate::start(&setup(rules(&[&line]), &world)) else {
        return;
    };
    let address = IpAddr::V4(gate.lookup("mail.test").expect("it is allowed"));
    let heard = gate.inside(move || read_all(&mut connect(address, port).expect("it listens")));
    assert_eq!(heard, b"220 ready\r\n");
}

#[test]
fn tls_to_an_allowed_name_is_passed_on_unread() {
    let (port, certificate) = tls_server("web.test");
    let world = World::new(&[("web.test", &["127.0.0.1"])]);
    let Some(gate) = Gate::start(&setup(rules(&[&format!("web.test:{port}")]), &world)) else {
        return;
    };
    if !has_curl() {
        return;
    }
    let path = certificate.path().to_str().expect("plain");
    let url = format!("https://web.test:{port}/");
    assert_eq!(
        gate.curl(&["--cacert", path, &url]),
        (0, "hello\n".to_owned())
    );
    let seen = gate.seen(|traffic| allowed(traffic).is_some());
    assert!(matches!(
        seen.result,
        Happened::Allowed {
            inspected: false,
            ..
        }
    ));
    // The same through the proxy and through SOCKS5.
    for (proxy, via) in [
        ("http://127.64.0.1:3128", Via::Proxy),
        ("socks5h://127.64.0.1:1080", Via::Socks),
    ] {
        let (exit, text) = gate.curl(&["-x", proxy, "--cacert", path, &url]);
        assert_eq!((exit, text.as_str()), (0, "hello\n"), "{proxy}");
        let seen = gate.seen(|traffic| allowed(traffic).is_some());
        assert_eq!(seen.via, via);
    }
}

#[test]
fn a_hello_for_another_name_is_refused_before_anything_is_dialled() {
    let (port, received) = recorder();
    let world = World::new(&[("web.test", &["127.0.0.1"])]);
    let Some(gate) = Gate::start(&setup(rules(&[&format!("web.test:{port}")]), &world)) else {
        return;
    };
    for name in [Some("evil.test"), Some("xweb.test"), None] {
        let answer = talk(&gate, "web.test", port, &hello(name));
        assert_eq!(answer[..6], ALERT, "{name:?}");
        let (detail, allow) = gate.denied("web.test", Reason::Protocol);
        assert!(detail.contains(name.unwrap_or("no server")), "{detail}");
        assert_eq!(allow, None);
    }
    assert_eq!(world.asked(), Vec::<String>::new());
    assert!(received.try_recv().is_err());
}

#[test]
fn a_hello_is_read_however_it_is_cut() {
    let (port, received) = recorder();
    let world = World::new(&[("web.test", &["127.0.0.1"])]);
    let Some(gate) = Gate::start(&setup(rules(&[&format!("web.test:{port}")]), &world)) else {
        return;
    };
    let address = IpAddr::V4(gate.lookup("web.test").expect("it is allowed"));
    let bytes = hello(Some("web.test"));
    // net-025: a byte a packet.
    let sent = bytes.clone();
    gate.inside(move || {
        let mut stream = connect(address, port).expect("it listens");
        stream.set_nodelay(true).expect("a socket");
        for byte in sent {
            stream.write_all(&[byte]).expect("it reads");
        }
    });
    assert_eq!(received.recv_timeout(kit::PATIENCE), Ok(bytes.clone()));
    // A hello of more than one record: each has some bytes of it.
    let mut records = Vec::new();
    for part in bytes[5..].chunks(7) {
        records.extend_from_slice(&[22, 3, 1, 0, part.len() as u8]);
        records.extend_from_slice(part);
    }
    talk(&gate, "web.test", port, &records);
    assert_eq!(received.recv_timeout(kit::PATIENCE), Ok(records));
}

#[test]
fn a_web_rule_takes_nothing_but_the_web() {
    let (port, received) = recorder();
    let world = World::new(&[("web.test", &["127.0.0.1"])]);
    let Some(gate) = Gate::start(&setup(rules(&[&format!("web.test:{port}")]), &world)) else {
        return;
    };
    for bytes in [
        &b"SSH-2.0-OpenSSH_9\r\n"[..],
        b"\0\0\0\x08\x04\xd2\x16\x2f",
        b"\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x00\x05hello",
        b"GE",
    ] {
        talk(&gate, "web.test", port, bytes);
        gate.denied("web.test", Reason::Protocol);
    }
    talk(&gate, "web.test", port, b"SSH-2.0-x\r\n");
    let (detail, allow) = gate.denied("web.test", Reason::Protocol);
    assert_eq!(detail, "what was sent is neither HTTP nor TLS");
    assert_eq!(allow, Some(format!("tcp web.test:{port}")));
    assert!(received.try_recv().is_err());
}

#[test]
fn what_must_be_seen_is_never_passed_on_unread() {
    let (port, received) = recorder();
    let world = World::new(&[("web.test", &["127.0.0.1"])]);
    // net-024: whatever the first bytes are, and when.
    let line = format!("GET web.test:{port}/public/**");
    let Some(gate) = Gate::start(&setup(rules(&[&line]), &world)) else {
        return;
    };
    for bytes in [
        &b"\0\x01\x02"[..],
        b"SSH-2.0-x\r\n",
        b"\x16\x03\x01\0\x01\x02",
    ] {
        talk(&gate, "web.test", port, bytes);
        gate.denied("web.test", Reason::Protocol);
    }
    // A hello is answered by the gate itself, not by the host.
    let bytes = hello(Some("web.test"));
    talk(&gate, "web.test", port, &bytes);
    gate.end();
    assert!(received.try_iter().all(|all| all != bytes));
}

#[test]
fn the_address_that_was_checked_is_the_one_that_is_dialled() {
    let listener = std::net::TcpListener::bind("127.0.0.2:0").expect("a port");
    let port = listener.local_addr().expect("it is bound").port();
    let accepting = std::thread::spawn(move || listener.accept().map(|_| ()));
    // net-019: another answer the second time.
    let world = World::new(&[("rebind.test", &["127.0.0.2", "127.0.0.1"])]);
    let mut own = plain_rule(&format!("tcp rebind.test:{port}"));
    own.addresses = vec!["127.0.0.2/32".parse().expect("a range")];
    let Some(gate) = Gate::start(&setup(Rules(vec![own]), &world)) else {
        return;
    };
    talk(&gate, "rebind.test", port, b"x");
    accepting.join().expect("no panic").expect("a connection");
    let seen = gate.seen(|traffic| allowed(traffic).is_some());
    assert_eq!(seen.address, Some([127, 0, 0, 2].into()));
    assert_eq!(talk(&gate, "rebind.test", port, b"x"), b"");
    let (detail, _) = gate.denied("rebind.test", Reason::Address);
    assert!(detail.contains("127.0.0.1"), "{detail}");
}

#[test]
fn a_public_name_does_not_lead_into_the_host_or_its_network() {
    let (port, received) = recorder();
    let names = [
        "127.0.0.1",
        "10.0.0.1",
        "169.254.169.254",
        "100.100.100.200",
        "0.0.0.0",
    ];
    let world = World::new(&[("*.inner.test", &names), ("loop.test", &["127.64.0.1"])]);
    let mut again = rule("tcp loop.test:3128");
    again.ports = vec![3128];
    let web = plain_rule(&format!("*.inner.test:{port}"));
    let Some(gate) = Gate::start(&setup(Rules(vec![web, again]), &world)) else {
        return;
    };
    for address in names {
        let answer = talk(&gate, "x.inner.test", port, &hello(Some("x.inner.test")));
        assert_eq!(answer[..6], ALERT, "{address}");
        let (detail, _) = gate.denied("x.inner.test", Reason::Address);
        assert!(detail.contains(address), "{detail}");
    }
    // Not even a rule that takes the address leads from a gate to a gate.
    talk(
        &gate,
        "loop.test",
        3128,
        b"CONNECT loop.test:3128 HTTP/1.1\r\n\r\n",
    );
    gate.denied("loop.test", Reason::Address);
    assert!(received.try_recv().is_err());
}

#[test]
fn names_below_a_wildcard_are_looked_up_only_so_often() {
    let world = World::new(&[("*.wild.test", &["10.0.0.1"])]);
    let Some(gate) = Gate::start(&setup(Rules(vec![plain_rule("*.wild.test")]), &world)) else {
        return;
    };
    // net-006: each name that is dialled is a word to whoever has the zone.
    let mut spoken = 0;
    for number in 0..100 {
        let name = format!("secret-{number}.wild.test");
        talk(&gate, &name, 443, &hello(Some(&name)));
        spoken += 1;
    }
    let mut asked = world.asked();
    asked.dedup();
    asked.sort();
    asked.dedup();
    assert!(asked.len() <= 60, "{} of {spoken}", asked.len());
    gate.denied("secret-99.wild.test", Reason::Budget);
}

#[test]
fn a_host_that_is_down_is_a_failure_and_not_a_denial() {
    let world = World::new(&[("down.test", &["127.0.0.1"])]);
    let lines = ["tcp down.test:1", "tcp gone.test:1", "down.test:2"];
    let Some(gate) = Gate::start(&setup(rules(&lines), &world)) else {
        return;
    };
    for name in ["down.test", "gone.test"] {
        assert_eq!(talk(&gate, name, 1, b"x"), b"");
        let seen = gate.seen(|traffic| traffic.host.0 == name.as_bytes());
        assert!(matches!(seen.result, Happened::Failed { .. }), "{seen:?}");
    }
    // Internal error, in the words of TLS.
    let answer = talk(&gate, "down.test", 2, &hello(Some("down.test")));
    assert_eq!(answer, [21, 3, 3, 0, 2, 2, 80]);
}

#[test]
fn requests_in_the_clear_are_read_whichever_way_they_come() {
    let port = kit::server(|mut stream| {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
            head.push(byte[0]);
        }
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n";
        stream.write_all(answer).ok();
    });
    let world = World::new(&[("web.test", &["127.0.0.1"])]);
    let Some(gate) = Gate::start(&setup(rules(&[&format!("web.test:{port}")]), &world)) else {
        return;
    };
    if !has_curl() {
        return;
    }
    // net-026: what is spoken at a port is seen, not guessed from its number.
    let url = format!("http://web.test:{port}/");
    for (ways, via) in [
        (&[][..], Via::Direct),
        (&["-x", "http://127.64.0.1:3128"], Via::Proxy),
        (&["-p", "-x", "http://127.64.0.1:3128"], Via::Proxy),
        (&["-x", "socks5h://127.64.0.1:1080"], Via::Socks),
    ] {
        let (exit, text) = gate.curl(&[ways, &[&url]].concat());
        assert_eq!((exit, text.as_str()), (0, "hello\n"), "{ways:?}");
        let seen = gate.seen(|traffic| allowed(traffic).is_some());
        assert_eq!((seen.via, seen.method.as_deref()), (via, Some("GET")));
        // net-023: the name inside is the name outside.
        let other = ["-f", "-H", "Host: evil.test", &url];
        let (exit, text) = gate.curl(&[ways, &other].concat());
        assert_eq!(exit, 22, "{ways:?}: {text}");
    }
}
