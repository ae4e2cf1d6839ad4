//! The name service, from inside.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};

use ringfence_model::gate::{NAMES_FIRST, Via};
use ringfence_model::policy::network::Reason;

use crate::kit;
use kit::{Gate, World, ask, connect, question, rules, setup};

fn code(answer: &[u8]) -> u8 {
    answer[3] & 15
}

#[test]
fn an_allowed_name_has_one_address_and_another_has_another() {
    let world = World::new(&[]);
    let Some(gate) = Gate::start(&setup(
        rules(&["a.test", "*.b.test", "tcp c.test:5432"]),
        &world,
    )) else {
        return;
    };
    let first = gate.lookup("a.test").expect("it is allowed");
    assert_eq!(first, NAMES_FIRST);
    assert_eq!(gate.lookup("A.Test"), Some(first));
    let below = gate.lookup("x.b.test").expect("it is allowed");
    let service = gate.lookup("c.test").expect("it is allowed");
    assert!(first != below && below != service && first != service);
    // Nothing was asked outside: not even below the wildcard (net-006).
    assert_eq!(world.asked(), Vec::<String>::new());
    // Other kinds are empty, not absent.
    for kind in [28, 5, 15, 16, 33, 65] {
        let answer = gate.inside(move || ask(&question("a.test", kind)));
        assert_eq!((code(&answer), answer[7]), (0, 0), "{kind}");
    }
    // And back again.
    let answer = gate.inside(|| ask(&question("0.1.64.127.in-addr.arpa", 12)));
    assert_eq!((code(&answer), answer[7]), (0, 1));
    assert!(answer.ends_with(b"\x01a\x04test\0"));
}

#[test]
fn a_name_that_no_rule_allows_does_not_exist_and_says_what_would_allow_it() {
    let world = World::new(&[("evil.test", &["127.0.0.1"])]);
    let lines = ["a.test", "*.b.test", "deny no.b.test"];
    let Some(gate) = Gate::start(&setup(rules(&lines), &world)) else {
        return;
    };
    // net-016, net-050: labels are compared, not letters.
    for name in [
        "evil.test",
        "b.test",
        "xb.test",
        "a.test.evil.test",
        "xa.test",
        "a.testing",
        "metadata.google.internal",
    ] {
        let mut asked = question(name, 1);
        asked[11] = 1;
        asked.extend_from_slice(&[0, 0, 41, 16, 0, 0, 0, 0, 0, 0, 0]);
        let answer = gate.inside(move || ask(&asked));
        assert_eq!((code(&answer), answer[7]), (3, 0), "{name}");
        let text = String::from_utf8_lossy(&answer).into_owned();
        assert!(text.contains(&format!("rule needed: {name}")), "{text:?}");
        let (detail, allow) = gate.denied(name, Reason::Host);
        assert_eq!(detail, format!("no rule allows `{name}`"));
        assert_eq!(allow.as_deref(), Some(name));
    }
    assert_eq!(gate.lookup("no.b.test"), None);
    let (detail, allow) = gate.denied("no.b.test", Reason::Rule);
    assert_eq!((detail.contains("deny no.b.test"), allow), (true, None));
    assert_eq!(world.asked(), Vec::<String>::new());
}

#[test]
fn hostile_questions_get_a_plain_answer() {
    let world = World::new(&[]);
    let Some(gate) = Gate::start(&setup(rules(&["*"]), &world)) else {
        return;
    };
    // Addresses and what some read as such; full-width digits; spaces; a NUL (net-011).
    for name in [
        "127.1",
        "0x7f.1",
        "2130706433",
        "①.test",
        "a b.test",
        "a\0.test",
        "-a.test",
    ] {
        let asked = question(name, 1);
        let answer = gate.inside(move || ask(&asked));
        assert_eq!(code(&answer), 3, "{name:?}");
        gate.denied(name, Reason::Malformed);
    }
    let mut two = question("a.test", 1);
    two[5] = 2;
    assert_eq!(code(&gate.inside(move || ask(&two))), 1);
    let mut update = question("a.test", 1);
    update[2] = 5 << 3;
    assert_eq!(code(&gate.inside(move || ask(&update))), 4);
    gate.denied("", Reason::Malformed);
}

#[test]
fn the_same_answers_come_over_tcp() {
    let world = World::new(&[]);
    let Some(gate) = Gate::start(&setup(rules(&["a.test"]), &world)) else {
        return;
    };
    let answers = gate.inside(|| {
        let mut stream = TcpStream::connect("127.64.0.1:53").expect("it listens");
        let mut answers = Vec::new();
        for name in ["a.test", "b.test"] {
            let question = question(name, 1);
            // In two parts: a length is no packet.
            stream.write_all(&[0]).expect("it reads");
            stream.write_all(&[question.len() as u8]).expect("it reads");
            stream.write_all(&question).expect("it reads");
            let mut length = [0; 2];
            stream.read_exact(&mut length).expect("an answer");
            let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
            stream.read_exact(&mut answer).expect("an answer");
            answers.push(answer);
        }
        answers
    });
    assert_eq!((code(&answers[0]), code(&answers[1])), (0, 3));
    assert!(answers[0].ends_with(&NAMES_FIRST.octets()));
}

#[test]
fn an_address_that_was_not_handed_out_is_refused_by_the_kernel() {
    let world = World::new(&[]);
    let Some(gate) = Gate::start(&setup(rules(&["a.test"]), &world)) else {
        return;
    };
    gate.lookup("a.test").expect("it is allowed");
    let errors = gate.inside(|| {
        let tried = [
            // net-046: of the range, but nobody's. net-044: the host's own services.
            ("127.64.9.9", 443),
            ("127.64.1.0", 22),
            ("127.0.0.1", 22),
            // net-001
            ("1.1.1.1", 443),
            ("169.254.169.254", 80),
        ];
        tried.map(|(address, port)| {
            let address: IpAddr = address.parse().expect("an address");
            connect(address, port)
                .map(|_| ())
                .map_err(|error| error.kind())
        })
    });
    use std::io::ErrorKind::{ConnectionRefused, NetworkUnreachable};
    assert_eq!(
        errors,
        [
            Err(ConnectionRefused),
            Err(ConnectionRefused),
            Err(ConnectionRefused),
            Err(NetworkUnreachable),
            Err(NetworkUnreachable)
        ]
    );
}

#[test]
fn nothing_is_allowed_where_there_are_no_rules() {
    let world = World::new(&[("a.test", &["127.0.0.1"])]);
    let Some(gate) = Gate::start(&setup(rules(&[]), &world)) else {
        return;
    };
    // net-018
    assert_eq!(gate.lookup("a.test"), None);
    let seen = gate.seen(|traffic| traffic.via == Via::Name);
    assert_eq!(seen.host.0, b"a.test");
    assert_eq!(gate.lookup("localhost"), Some(Ipv4Addr::LOCALHOST));
    assert_eq!(world.asked(), Vec::<String>::new());
}

#[test]
fn the_same_denial_is_said_once_and_then_counted() {
    let world = World::new(&[]);
    let Some(gate) = Gate::start(&setup(rules(&[]), &world)) else {
        return;
    };
    for _ in 0..50 {
        assert_eq!(gate.lookup("again.test"), None);
    }
    let all = gate.end();
    let times: u64 = all.iter().map(|traffic| traffic.times).sum();
    assert_eq!(times, 50);
    assert!(all.len() < 50, "{} words", all.len());
}

#[test]
fn more_names_than_have_listeners_keep_their_addresses() {
    let world = World::new(&[]);
    let Some(gate) = Gate::start(&setup(rules(&["*:4444"]), &world)) else {
        return;
    };
    let first = gate.lookup("0.many.test").expect("it is allowed");
    let all = gate.inside(|| {
        let ask = |number| ask(&question(&format!("{number}.many.test"), 1));
        (1..600)
            .map(|number| code(&ask(number)))
            .all(|code| code == 0)
    });
    assert!(all);
    let connects = move || connect(IpAddr::V4(first), 4444).is_ok();
    // It was used least lately, so it has no listener until it is asked for again.
    assert!(!gate.inside(connects));
    assert_eq!(gate.lookup("0.many.test"), Some(first));
    assert!(gate.inside(connects));
}

#[test]
fn the_resolvers_of_real_programs_understand() {
    let world = World::new(&[]);
    let Some(gate) = Gate::start(&setup(rules(&["a.test"]), &world)) else {
        return;
    };
    // glibc
    if let Some(text) = gate.prints("getent", &["ahostsv4", "a.test"]) {
        assert!(text.starts_with("127.64.1.0 "), "{text}");
        assert_eq!(
            gate.prints("getent", &["ahosts", "denied.test"]).as_deref(),
            Some("")
        );
        let back = gate.prints("getent", &["hosts", "127.64.1.0"]);
        assert!(back.is_some_and(|text| text.ends_with("a.test")));
    }
    // c-ares, and what node does by itself
    let ask = "const d = require('dns'); \
               d.resolve4('a.test', (_, a) => d.resolve4('denied.test', (e) => \
               d.lookup('denied.test', (f) => console.log(a[0], e.code, f.code))))";
    if let Some(text) = gate.prints("node", &["-e", ask]) {
        assert_eq!(text, "127.64.1.0 ENOTFOUND ENOTFOUND");
    }
    let ask = "import socket\ntry: socket.create_connection(('denied.test', 443))\n\
               except socket.gaierror as e: print(e.errno == socket.EAI_NONAME)";
    if let Some(text) = gate.prints("python3", &["-c", ask]) {
        assert_eq!(text, "True");
    }
    assert_eq!(world.asked(), Vec::<String>::new());
}
