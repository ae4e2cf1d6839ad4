//! Many connections, large ones, broken ones, and what ends them.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};

use ringfence_model::gate::{Happened, Traffic};
use ringfence_model::policy::network::{Reason, Rules};

use crate::kit;
use kit::{Gate, World, connect, echo_server, read_all, recorder, rule, rules, setup};

fn bytes_of(traffic: &Traffic) -> Option<(u64, u64)> {
    match traffic.result {
        Happened::Allowed { sent, received, .. } => Some((sent, received)),
        _ => None,
    }
}

/// A gate with one service, and the address of the service inside.
fn service(rules: Rules, world: &World) -> Option<(Gate, IpAddr)> {
    let gate = Gate::start(&setup(rules, world))?;
    let address = IpAddr::V4(gate.lookup("db.test").expect("it is allowed"));
    Some((gate, address))
}

fn world() -> World {
    World::new(&[("db.test", &["127.0.0.1"])])
}

/// Bytes in which a place cannot be taken for another.
fn pattern(length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8)
        .collect()
}

#[test]
fn much_goes_through_in_both_directions_and_arrives_as_it_was() {
    let port = echo_server();
    let world = world();
    let Some((gate, address)) = service(rules(&[&format!("tcp db.test:{port}")]), &world) else {
        return;
    };
    const LENGTH: usize = 64 << 20;
    let same = gate.inside(move || {
        let mut stream = connect(address, port).expect("it listens");
        let mut writer = stream.try_clone().expect("it is open");
        let sending = std::thread::spawn(move || {
            writer.write_all(&pattern(LENGTH)).expect("it reads");
            writer.shutdown(Shutdown::Write).expect("it is open");
        });
        let mut all = Vec::with_capacity(LENGTH);
        stream.read_to_end(&mut all).expect("it ends well");
        sending.join().expect("no panic");
        all == pattern(LENGTH)
    });
    assert!(same);
    let seen = gate.seen(|traffic| bytes_of(traffic).is_some());
    assert_eq!(bytes_of(&seen), Some((LENGTH as u64, LENGTH as u64)));
}

#[test]
fn one_side_may_be_done_before_the_other() {
    // The host has said all; the client goes on, and is heard to its end.
    let (sender, heard) = std::sync::mpsc::channel();
    let sender = std::sync::Mutex::new(sender);
    let port = kit::server(move |mut stream| {
        stream.write_all(b"bye").ok();
        stream.shutdown(Shutdown::Write).ok();
        let all = read_all(&mut stream);
        sender.lock().expect("no panic").send(all).ok();
    });
    let world = world();
    let Some((gate, address)) = service(rules(&[&format!("tcp db.test:{port}")]), &world) else {
        return;
    };
    let said = gate.inside(move || {
        let mut stream = connect(address, port).expect("it listens");
        let said = read_all(&mut stream);
        stream.write_all(b"still here").expect("it reads");
        said
    });
    assert_eq!(said, b"bye");
    assert_eq!(
        heard.recv_timeout(kit::PATIENCE),
        Ok(b"still here".to_vec())
    );
}

#[test]
fn five_hundred_connections_are_held() {
    let port = echo_server();
    let world = world();
    let Some((gate, address)) = service(rules(&[&format!("tcp db.test:{port}")]), &world) else {
        return;
    };
    let answered = gate.inside(move || {
        let mut all: Vec<TcpStream> = (0..500)
            .map(|_| connect(address, port).expect("it listens"))
            .collect();
        for (number, stream) in all.iter_mut().enumerate() {
            stream
                .write_all(&(number as u32).to_le_bytes())
                .expect("it reads");
        }
        let mut answered = 0;
        for (number, stream) in all.iter_mut().enumerate() {
            let mut back = [0; 4];
            stream.read_exact(&mut back).expect("an answer");
            answered += usize::from(u32::from_le_bytes(back) == number as u32);
        }
        answered
    });
    assert_eq!(answered, 500);
}

#[test]
fn a_connection_that_is_broken_off_is_broken_off_on_both_sides() {
    // The host resets in the middle: nobody takes what came for the whole.
    let port = kit::server(|mut stream| {
        stream.write_all(b"part").ok();
        let mut more = [0; 2];
        stream.read_exact(&mut more).ok();
        // Unread bytes make it a reset.
    });
    let world = world();
    let Some((gate, address)) = service(rules(&[&format!("tcp db.test:{port}")]), &world) else {
        return;
    };
    let error = gate.inside(move || {
        let mut stream = connect(address, port).expect("it listens");
        stream.write_all(b"12345").expect("it reads");
        let mut all = Vec::new();
        stream.read_to_end(&mut all).map_err(|error| error.kind())
    });
    assert_eq!(error, Err(std::io::ErrorKind::ConnectionReset));
}

#[test]
fn budgets_of_bytes_hold_to_the_byte() {
    let (port, received) = recorder();
    let world = world();
    for budget in [1000_u64, 3 << 20] {
        let mut own = rule(&format!("tcp db.test:{port}"));
        own.budget.upload_bytes = Some(budget);
        let Some((gate, address)) = service(Rules(vec![own]), &world) else {
            return;
        };
        // net-039
        gate.inside(move || {
            let mut stream = connect(address, port).expect("it listens");
            // The kernel may take all of it before it hears that it is cut off.
            stream.write_all(&pattern(8 << 20)).ok();
            read_all(&mut stream);
        });
        let seen = gate.seen(|traffic| bytes_of(traffic).is_some());
        assert_eq!(bytes_of(&seen), Some((budget, 0)));
        let (detail, _) = gate.denied("db.test", Reason::Budget);
        assert!(
            detail.contains(&format!("{budget} bytes may be sent")),
            "{detail}"
        );
        let arrived = received.recv_timeout(kit::PATIENCE).expect("a connection");
        assert!(arrived.len() as u64 <= budget, "{}", arrived.len());
        // It is the rule's, not the connection's.
        gate.inside(move || {
            let mut stream = connect(address, port).expect("it listens");
            stream.write_all(b"x").ok();
            read_all(&mut stream)
        });
        gate.denied("db.test", Reason::Budget);
        assert_eq!(received.recv_timeout(kit::PATIENCE), Ok(Vec::new()));
    }
}

#[test]
fn a_budget_of_bytes_from_the_host_holds_too() {
    let port = kit::server(|mut stream| {
        stream.write_all(&pattern(8 << 20)).ok();
    });
    let world = world();
    let mut own = rule(&format!("tcp db.test:{port}"));
    own.budget.download_bytes = Some(2 << 20);
    let Some((gate, address)) = service(Rules(vec![own]), &world) else {
        return;
    };
    let length =
        gate.inside(move || read_all(&mut connect(address, port).expect("it listens")).len());
    assert!(length <= 2 << 20, "{length}");
    gate.denied("db.test", Reason::Budget);
}

#[test]
fn a_budget_of_connections_is_for_a_minute() {
    let port = echo_server();
    let world = world();
    let mut own = rule(&format!("tcp db.test:{port}"));
    own.budget.per_minute = Some(2);
    let Some((gate, address)) = service(Rules(vec![own]), &world) else {
        return;
    };
    // The third may fall into the next minute; the fifth can not, and the third with it.
    let answered = gate.inside(move || {
        (0..5)
            .filter(|_| {
                let mut stream = connect(address, port).expect("it listens");
                stream.write_all(b"x").ok();
                stream.shutdown(Shutdown::Write).ok();
                read_all(&mut stream) == b"x"
            })
            .count()
    });
    assert!((2..=4).contains(&answered), "{answered}");
    gate.denied("db.test", Reason::Budget);
}

#[test]
fn a_connection_lasts_as_long_as_its_rule_says() {
    let port = echo_server();
    let world = world();
    let mut own = rule(&format!("tcp db.test:{port}"));
    own.budget.seconds = Some(1);
    let Some((gate, address)) = service(Rules(vec![own]), &world) else {
        return;
    };
    let rest = gate.inside(move || read_all(&mut connect(address, port).expect("it listens")));
    assert_eq!(rest, b"");
    gate.denied("db.test", Reason::Budget);
}

#[test]
fn new_rules_hold_at_once_and_close_what_they_do_not_allow() {
    let port = echo_server();
    let other = echo_server();
    let world = World::new(&[("db.test", &["127.0.0.1"]), ("kept.test", &["127.0.0.1"])]);
    let before = rules(&[
        &format!("tcp db.test:{port}"),
        &format!("tcp kept.test:{port}"),
    ]);
    let Some((mut gate, address)) = service(before, &world) else {
        return;
    };
    let kept = IpAddr::V4(gate.lookup("kept.test").expect("it is allowed"));
    let talk = move |address, port| {
        move || -> std::io::Result<TcpStream> {
            let mut stream = connect(address, port)?;
            stream.write_all(b"x")?;
            stream.read_exact(&mut [0])?;
            Ok(stream)
        }
    };
    let mut revoked = gate.inside(talk(address, port)).expect("it is allowed");
    let mut stays = gate.inside(talk(kept, port)).expect("it is allowed");
    // One host goes, the other has one port more.
    let after = rules(&[
        &format!("tcp kept.test:{port}"),
        &format!("tcp kept.test:{other}"),
    ]);
    assert_eq!(gate.change(after), 1);
    // net-047: the open tunnel closes, the other does not.
    assert_eq!(read_all(&mut revoked), b"");
    gate.denied("db.test", Reason::Host);
    stays.write_all(b"y").expect("it is open");
    let mut back = [0];
    stays.read_exact(&mut back).expect("it is open");
    assert_eq!(&back, b"y");
    // Names and listeners follow.
    assert_eq!(gate.lookup("db.test"), None);
    let refused = gate
        .inside(talk(address, port))
        .map(|_| ())
        .map_err(|error| error.kind());
    assert_eq!(refused, Err(std::io::ErrorKind::ConnectionRefused));
    // It stays open, or the next change may find it closed already.
    let _more = gate
        .inside(talk(kept, other))
        .expect("the new port listens");
    // And back again: the name has the address that it had.
    assert_eq!(gate.change(rules(&[&format!("tcp db.test:{port}")])), 2);
    assert_eq!(gate.lookup("db.test").map(IpAddr::V4), Some(address));
    gate.inside(talk(address, port))
        .expect("it is allowed again");
}

#[test]
fn a_tunnel_that_must_now_be_looked_into_is_closed() {
    let (sender, arrived) = std::sync::mpsc::channel();
    let sender = std::sync::Mutex::new(sender);
    let port = kit::server(move |mut stream| {
        stream.read_exact(&mut [0]).expect("a hello");
        sender.lock().expect("no panic").send(()).ok();
        read_all(&mut stream);
    });
    let world = World::new(&[("web.test", &["127.0.0.1"])]);
    let line = format!("web.test:{port}");
    let Some(mut gate) = Gate::start(&setup(rules(&[&line]), &world)) else {
        return;
    };
    let address = IpAddr::V4(gate.lookup("web.test").expect("it is allowed"));
    let mut stream = gate.inside(move || {
        let mut stream = connect(address, port).expect("it listens");
        stream
            .write_all(&kit::hello(Some("web.test")))
            .expect("it reads");
        stream
    });
    assert_eq!(arrived.recv_timeout(kit::PATIENCE), Ok(()));
    let closed = gate.change(rules(&[&format!("GET {line}/x")]));
    assert_eq!(closed, 1);
    assert_eq!(read_all(&mut stream), b"");
}

#[test]
fn the_end_says_what_was_open() {
    let port = echo_server();
    let world = world();
    let Some((gate, address)) = service(rules(&[&format!("tcp db.test:{port}")]), &world) else {
        return;
    };
    let open = gate.inside(move || {
        let mut stream = connect(address, port).expect("it listens");
        stream.write_all(b"hello").expect("it reads");
        stream.read_exact(&mut [0; 5]).expect("an answer");
        stream
    });
    let all = gate.end();
    assert_eq!(all.iter().find_map(bytes_of), Some((5, 5)));
    drop(open);
}

#[test]
fn a_gate_ends_with_its_engine() {
    let port = echo_server();
    let world = world();
    let Some((gate, address)) = service(rules(&[&format!("tcp db.test:{port}")]), &world) else {
        return;
    };
    let mut open = gate.inside(move || connect(address, port).expect("it listens"));
    gate.leave();
    assert_eq!(read_all(&mut open), b"");
    // Its sockets go with it.
    gate.inside(move || while connect(address, port).is_ok() {});
}
