//! Streams of hosts that get a secret: what is held back of them never waits for more to come.
//!
//! In each test one side sends only after the other has seen what came before. A stall would last until the test
//! gives up.

use std::io::Read as _;

use ringfence_model::gate::{BoundSecret, Setup};
use ringfence_model::host::HostPattern;
use rustls::{ServerConnection, StreamOwned};

use crate::kit::{self, World, rules, setup};
use crate::site::{Looking, Outside, Saw, Site, answer};

const FAKE: &str = "ghp_FakeFakeFakeFake0123456789";
const REAL: &str = "ghp_RealRealRealReal9876543210";
const ROUNDS: usize = 20;

fn bound_setup(outside: &Outside, port: u16) -> Setup {
    let world = World::new(&[("api.test", &["127.0.0.1"])]);
    let mut setup = setup(rules(&[&format!("api.test:{port}")]), &world);
    setup.roots = Some(outside.path().to_owned());
    setup.secrets = vec![BoundSecret {
        name: "TOKEN".to_owned(),
        placeholder: FAKE.to_owned(),
        hosts: vec![HostPattern::parse("api.test").expect("a host")],
        methods: Vec::new(),
        path: None,
        header: "Authorization: Bearer {}".to_owned(),
    }];
    setup
}

type Conversation = StreamOwned<ServerConnection, std::net::TcpStream>;

/// A host of HTTP/1 that reads the head of a request and then goes its own way.
fn host(outside: &Outside, serve: impl Fn(Conversation, &str) + Send + Sync + 'static) -> u16 {
    let config = outside.config(&["api.test"], &["http/1.1"]);
    kit::server(move |stream| {
        let connection = ServerConnection::new(config.clone()).expect("a connection");
        let mut stream = StreamOwned::new(connection, stream);
        let head = read_head(&mut stream);
        serve(stream, &head);
    })
}

fn read_head(stream: &mut impl std::io::Read) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|length| length == 1) {
        head.push(byte[0]);
    }
    String::from_utf8_lossy(&head).into_owned()
}

fn say(stream: &mut impl std::io::Write, bytes: &[u8]) {
    stream.write_all(bytes).expect("the gate reads");
    stream.flush().expect("the gate reads");
}

fn request(path: &str, port: u16, fields: &str) -> Vec<u8> {
    let head = format!("GET {path} HTTP/1.1\r\nHost: api.test:{port}\r\n");
    format!("{head}Authorization: Bearer {FAKE}\r\n{fields}\r\n").into_bytes()
}

/// A frame of a web socket: short, of a client (masked with zeros) or of a host.
fn frame(first: u8, content: &[u8], of_client: bool) -> Vec<u8> {
    let length = u8::try_from(content.len()).expect("short");
    let mut bytes = vec![first, length | if of_client { 0x80 } else { 0 }];
    bytes.extend_from_slice(if of_client { &[0; 4] } else { &[] });
    bytes.extend_from_slice(content);
    bytes
}

#[test]
fn web_socket_messages_are_echoed_one_by_one() {
    let outside = Outside::new();
    let port = host(&outside, |mut stream, head| {
        assert!(head.contains(REAL), "{head}");
        let upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\n";
        say(
            &mut stream,
            format!("HTTP/1.1 101 Yes\r\n{upgrade}\r\n").as_bytes(),
        );
        for _ in 0..2 * ROUNDS {
            let mut head = [0; 6];
            stream.read_exact(&mut head).expect("a message");
            let mut content = vec![0; usize::from(head[1] & 0x7f)];
            stream.read_exact(&mut content).expect("a message");
            say(&mut stream, &frame(head[0], &content, false));
        }
        // The last echo arrives although the message goes on.
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
    });
    let setup = bound_setup(&outside, port);
    let Some(inside) = Looking::start(&setup, &[REAL]) else {
        return;
    };
    let mut stream = inside.secure("api.test", port, 1 << 14);
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n";
    inside.gate.inside(move || {
        say(&mut stream, &request("/ws", port, upgrade));
        assert!(read_head(&mut stream).starts_with("HTTP/1.1 101 "));
        for number in 0..ROUNDS {
            let text = &REAL.as_bytes()[..number];
            // A whole message; then the first frame of one that goes on for ever, and its continuations.
            let first = if number == 0 { 0x01 } else { 0x00 };
            let frames = if number < ROUNDS / 2 {
                [0x81, 0x82]
            } else {
                [first, 0x00]
            };
            let frames = if number == ROUNDS / 2 {
                [0x01, 0x00]
            } else {
                frames
            };
            for kind in frames {
                say(&mut stream, &frame(kind, text, true));
                let mut echo = vec![0; 2 + text.len()];
                stream.read_exact(&mut echo).expect("the echo");
                assert_eq!(echo, frame(kind, text, false));
            }
        }
    });
}

#[test]
fn parts_of_answers_are_refused() {
    let outside = Outside::new();
    let config = outside.config(&["api.test"], &["http/1.1"]);
    let site = Site::secure(config, |saw: &Saw| {
        let range = "Content-Range: bytes 0-3/9\r\n";
        match saw.path() {
            "/part" => answer("206 Partial Content", range, b"FIRST"),
            _ => answer("200 OK", "", b"all of it"),
        }
    });
    let port = site.port;
    let setup = bound_setup(&outside, port);
    let Some(inside) = Looking::start(&setup, &[REAL]) else {
        return;
    };
    let url = |path: &str| format!("https://api.test:{port}{path}");
    for version in ["--http1.1", "--http2"] {
        let curl = |more: &[&str]| {
            inside
                .curl(&[&["-w", "%{http_code}", version], more].concat())
                .1
        };
        let asked = site.saw().len();
        for range in ["Range: bytes=0-3", "range: bytes=-4", "RANGE: other=x"] {
            let text = curl(&["-H", range, &url("/")]);
            assert!(
                text.contains("\"reason\":\"protocol\"") && text.ends_with("403"),
                "{text}"
            );
        }
        assert_eq!(site.saw().len(), asked);
        let text = curl(&[&url("/part")]);
        assert!(text.ends_with("502") && !text.contains("FIRST"), "{text}");
        assert_eq!(curl(&["-H", "A-IM: vcdiff", &url("/")]), "all of it200");
        let last = site.saw().pop().expect("it came");
        assert_eq!(last.field("a-im"), None);
    }
}
