//! Streams of hosts that get a secret: what is held back of them never waits for more to come.
//!
//! In each test one side sends only after the other has seen what came before. A stall would last until the test
//! gives up.

use std::io::{BufRead as _, BufReader, Read as _};
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use bytes::Bytes;
use ringfence_model::gate::{BoundSecret, Setup};
use ringfence_model::host::HostPattern;
use rustls::{ServerConnection, StreamOwned};
use tokio_rustls::TlsAcceptor;

use crate::kit::{self, World, rules, setup};
use crate::site::{Looking, Outside, Saw, Secure, Site, answer};
use crate::two;

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

/// Reads until what came ends with this; the framing of chunks is left out.
fn read_until(stream: &mut BufReader<Secure>, end: &str) {
    let mut text = String::new();
    while !text.ends_with(end) {
        let mut line = String::new();
        let length = stream.read_line(&mut line).expect("more comes");
        assert!(length > 0, "it ended after {text:?}");
        text.push_str(&line);
        text = text.replace("\r\n", "\n");
    }
}

#[test]
fn server_sent_events_arrive_while_the_host_waits() {
    let outside = Outside::new();
    let (seen, next) = channel::<()>();
    let next = Mutex::new(next);
    let port = host(&outside, move |mut stream, head| {
        let chunked = head.starts_with("GET /chunked ");
        let framing = if chunked {
            "Transfer-Encoding: chunked\r\n"
        } else {
            ""
        };
        let fields = format!("Content-Type: text/event-stream\r\n{framing}");
        say(
            &mut stream,
            format!("HTTP/1.1 200 OK\r\n{fields}\r\n").as_bytes(),
        );
        for number in 0..ROUNDS {
            // The end of an event may be the beginning of the value.
            let event = format!("id: {number}\ndata: {}\n\n", &REAL[..number]);
            let event = if chunked {
                format!("{:x}\r\n{event}\r\n", event.len())
            } else {
                event
            };
            say(&mut stream, event.as_bytes());
            next.lock()
                .expect("no panic")
                .recv()
                .expect("the client has it");
        }
    });
    let setup = bound_setup(&outside, port);
    let Some(inside) = Looking::start(&setup, &[REAL]) else {
        return;
    };
    for path in ["/chunked", "/until-close"] {
        let mut stream = inside.secure("api.test", port, 1 << 14);
        let seen: Sender<()> = seen.clone();
        inside.gate.inside(move || {
            say(&mut stream, &request(path, port, ""));
            let mut stream = BufReader::new(stream);
            for number in 0..ROUNDS {
                read_until(&mut stream, &format!("data: {}\n\n", &REAL[..number]));
                seen.send(()).expect("the host waits");
            }
        });
    }
}

#[test]
fn pause_in_the_middle_of_a_value_does_not_release_its_beginning() {
    let outside = Outside::new();
    let (seen, next) = channel::<()>();
    let next = Mutex::new(next);
    let port = host(&outside, move |mut stream, head| {
        let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len()).into_bytes();
        let fields = "Content-Type: text/html\r\nTransfer-Encoding: chunked\r\n";
        let (first, rest) = REAL.split_at(20);
        assert!(head.contains(REAL), "{head}");
        say(
            &mut stream,
            format!("HTTP/1.1 401 No\r\n{fields}\r\n").as_bytes(),
        );
        // As where a window ends: the host goes on when it is told to.
        say(
            &mut stream,
            &chunk(&format!("a line\nnot welcome: {first}")),
        );
        next.lock()
            .expect("no panic")
            .recv()
            .expect("the client has a line");
        say(&mut stream, &chunk(&format!("{rest}\n")));
        say(&mut stream, b"0\r\n\r\n");
    });
    let setup = bound_setup(&outside, port);
    let Some(inside) = Looking::start(&setup, &[REAL]) else {
        return;
    };
    let mut stream = inside.secure("api.test", port, 1 << 14);
    let text = inside.gate.inside(move || {
        say(&mut stream, &request("/", port, ""));
        let mut stream = BufReader::new(stream);
        read_until(&mut stream, "a line\n");
        seen.send(()).expect("the host waits");
        let mut text = String::new();
        while !text.ends_with("\r\n0\r\n\r\n") {
            assert!(
                stream.read_line(&mut text).expect("more comes") > 0,
                "{text}"
            );
        }
        text
    });
    assert!(text.contains(&format!("not welcome: {FAKE}")), "{text}");
    assert!(!text.contains(&REAL[..6]), "{text}");
}

#[test]
fn length_of_a_compressed_page_is_not_told() {
    let outside = Outside::new();
    let config = outside.config(&["api.test"], &["http/1.1"]);
    let site = Site::secure(config, |saw: &Saw| match saw.path() {
        "/coded" => answer("200 OK", "Content-Encoding: gzip\r\n", &[]),
        _ => answer("200 OK", "", &[]),
    });
    let setup = bound_setup(&outside, site.port);
    let Some(inside) = Looking::start(&setup, &[REAL]) else {
        return;
    };
    for version in ["--http1.1", "--http2"] {
        let head = |path: &str| {
            let url = format!("https://api.test:{}{path}", site.port);
            inside.curl(&[version, "-I", &url]).1.to_lowercase()
        };
        assert!(!head("/coded").contains("content-length"), "{version}");
        assert!(head("/plain").contains("content-length: 0"), "{version}");
    }
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
fn http2_messages_are_echoed_one_by_one() {
    let outside = Outside::new();
    let acceptor = TlsAcceptor::from(outside.config(&["api.test"], &["h2"]));
    let port = kit::server(move |stream| {
        stream.set_nonblocking(true).expect("a socket");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let acceptor = acceptor.clone();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime.expect("a runtime"), async move {
            let stream = tokio::net::TcpStream::from_std(stream).expect("a socket");
            let secure = acceptor.accept(stream).await.expect("TLS");
            let mut connection = h2::server::handshake(secure).await.expect("HTTP/2");
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                tokio::task::spawn_local(async move {
                    let mut body = request.into_body();
                    let answer = http::Response::new(());
                    let mut stream = respond.send_response(answer, false).expect("open");
                    while let Some(Ok(piece)) = body.data().await {
                        body.flow_control()
                            .release_capacity(piece.len())
                            .expect("it came");
                        stream.send_data(piece, false).expect("open");
                    }
                    stream.send_data(Bytes::new(), true).expect("open");
                });
            }
        });
    });
    let setup = bound_setup(&outside, port);
    let Some(inside) = Looking::start(&setup, &[REAL]) else {
        return;
    };
    let trusts = two::trusts(&inside);
    let address = inside
        .gate
        .lookup("api.test")
        .expect("it is allowed")
        .into();
    let talk = two::ask(&inside, move || async move {
        let asking = two::connection(&trusts, "api.test", (address, port)).await;
        let mut asking = asking.ready().await.expect("room for a stream");
        let request = http::Request::post(format!("https://api.test:{port}/echo"));
        let request = request.header("authorization", format!("Bearer {FAKE}"));
        let request = request.body(()).expect("a request");
        let (answer, mut stream) = asking.send_request(request, false).expect("open");
        stream
            .send_data(Bytes::from_static(b"hello"), false)
            .expect("open");
        let mut body = answer.await.expect("a head").into_body();
        let mut left = b"hello".len();
        for number in 0..ROUNDS {
            while left > 0 {
                let piece = tokio::time::timeout(kit::PATIENCE, body.data()).await;
                let piece = piece.expect("no stall").expect("more").expect("open");
                body.flow_control()
                    .release_capacity(piece.len())
                    .expect("it came");
                left = left
                    .checked_sub(piece.len())
                    .expect("no more than was sent");
            }
            let text = Bytes::copy_from_slice(&REAL.as_bytes()[..=number]);
            left = text.len();
            stream.send_data(text, false).expect("open");
        }
    });
    talk.join().expect("no panic");
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
