//! HTTP/2 on both sides of the gate.

#[path = "support/kit.rs"]
#[allow(dead_code, reason = "each test program uses its own part")]
mod kit;
#[path = "support/site.rs"]
#[allow(dead_code, reason = "each test program uses its own part")]
mod site;

use std::io::{Read as _, Write as _};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use kit::{World, rules, setup};
use ringfence_model::gate::{BoundSecret, Happened, Setup};
use ringfence_model::host::HostPattern;
use site::{Looking, Outside};
use tokio_rustls::TlsAcceptor;

const FAKE: &str = "sk-fake-0123456789abcdef";
const REAL: &str = "sk-real-fedcba9876543210";

/// What a host of HTTP/2 saw: the path, the credential and the body of each request.
type Saw = Arc<Mutex<Vec<(String, String, usize)>>>;

/// A host that speaks nothing but HTTP/2. It sends back the credential: in a field, in the body,
/// byte by byte, and behind the body.
fn host(outside: &Outside) -> (u16, Saw) {
    let acceptor = TlsAcceptor::from(outside.config(&["a.test"], &["h2"]));
    let saw = Saw::default();
    let seen = saw.clone();
    let port = kit::server(move |stream| {
        let (acceptor, seen) = (acceptor.clone(), seen.clone());
        stream.set_nonblocking(true).expect("a socket");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async move {
            let stream = tokio::net::TcpStream::from_std(stream).expect("a socket");
            let Ok(secure) = acceptor.accept(stream).await else {
                return;
            };
            let mut connection = h2::server::handshake(secure).await.expect("HTTP/2");
            while let Some(Ok((request, respond))) = connection.accept().await {
                tokio::task::spawn_local(reflect(request, respond, seen.clone()));
            }
        });
    });
    (port, saw)
}

async fn reflect(request: http::Request<RecvStream>, mut respond: SendResponse<Bytes>, saw: Saw) {
    let (head, mut body) = request.into_parts();
    let mut length = 0;
    while let Some(Ok(piece)) = body.data().await {
        length += piece.len();
        body.flow_control()
            .release_capacity(piece.len())
            .expect("it came");
    }
    let token = head
        .headers
        .get("x-api-key")
        .map_or("none", |value| value.to_str().expect("text"))
        .to_owned();
    let path = head.uri.path().to_owned();
    saw.lock()
        .expect("no panic")
        .push((path, token.clone(), length));
    let answer = http::Response::builder()
        .header("x-token", &token)
        .header("x-te", head.headers.get("te").map_or("", |_| "trailers"))
        .body(())
        .expect("an answer");
    let mut stream = respond.send_response(answer, false).expect("open");
    for byte in format!("you are {token}, {length} bytes").bytes() {
        stream
            .send_data(Bytes::copy_from_slice(&[byte]), false)
            .expect("open");
    }
    let mut trailers = http::HeaderMap::new();
    trailers.insert("x-behind", token.parse().expect("a value"));
    stream.send_trailers(trailers).expect("open");
}

fn start(outside: &Outside, port: u16) -> Option<Looking> {
    let world = World::new(&[("a.test", &["127.0.0.1"])]);
    let mut setup: Setup = setup(rules(&[&format!("a.test:{port}/ok/**")]), &world);
    setup.roots = Some(outside.path().to_owned());
    setup.secrets = vec![BoundSecret {
        name: "KEY".to_owned(),
        placeholder: FAKE.to_owned(),
        hosts: vec![HostPattern::parse("a.test").expect("a host")],
        methods: Vec::new(),
        path: None,
        header: "X-Api-Key: {}".to_owned(),
    }];
    Looking::start(&setup, &[REAL])
}

#[test]
fn each_stream_is_a_request_of_its_own() {
    let outside = Outside::new();
    let (port, saw) = host(&outside);
    let Some(inside) = start(&outside, port) else {
        return;
    };
    let key = format!("X-Api-Key: {FAKE}");
    let base = format!("https://a.test:{port}");
    let (code, text) = inside.curl(&["--http2", "-i", "-H", &key, &format!("{base}/ok/x")]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains(&format!("you are {FAKE}, 0 bytes")), "{text}");
    assert!(text.contains(&format!("x-token: {FAKE}")), "{text}");
    assert!(text.contains(&format!("x-behind: {FAKE}")), "{text}");
    assert!(!text.contains(REAL), "{text}");
    inside
        .gate
        .seen(|own| matches!(own.result, Happened::Scrubbed { .. }));
    let urls: Vec<String> = (0..30)
        .map(|number| match number % 3 {
            0 => format!("{base}/no/{number}"),
            _ => format!("{base}/ok/{number}"),
        })
        .collect();
    let mut arguments = vec!["--http2", "-Z", "-w", "%{http_code}\n", "-d", "body"];
    arguments.extend(urls.iter().map(String::as_str));
    let (code, text) = inside.curl(&arguments);
    assert_eq!(code, 0, "{text}");
    assert_eq!(text.matches("you are none, 4 bytes").count(), 20, "{text}");
    assert_eq!(text.matches("403\n").count(), 10, "{text}");
    let saw = saw.lock().expect("no panic");
    assert_eq!(saw.len(), 21);
    assert!(saw.iter().all(|(path, ..)| path.starts_with("/ok/")));
    assert_eq!(saw[0].1, REAL);
}

#[test]
fn a_stream_names_the_host_of_its_connection() {
    let outside = Outside::new();
    let (port, saw) = host(&outside);
    let Some(inside) = start(&outside, port) else {
        return;
    };
    let url = format!("https://a.test:{port}/ok/x");
    for (field, why) in [
        ("Host: evil.test", "Host"),
        ("Host: a.test:1", "Host"),
        ("X-HTTP2: a", ""),
    ] {
        let (_, text) = inside.curl(&["--http2", "-w", "%{http_code}", "-H", field, &url]);
        let code = if why.is_empty() { "200" } else { "400" };
        assert!(text.ends_with(code), "{field}: {text}");
    }
    for path in ["/ok/../no", "/ok/%2e%2e/no", "//ok/x"] {
        let url = format!("https://a.test:{port}{path}");
        let (_, text) = inside.curl(&["--http2", "--path-as-is", "-w", "%{http_code}", &url]);
        assert!(text.ends_with("400"), "{path}: {text}");
    }
    // Rules are about methods in capital letters.
    for method in ["delete", "Delete", "gET"] {
        let (_, text) = inside.curl(&["--http2", "-X", method, "-w", "%{http_code}", &url]);
        assert!(text.ends_with("400"), "{method}: {text}");
    }
    assert_eq!(saw.lock().expect("no panic").len(), 1);
}

/// A host that breaks off with its own words.
fn host_that_quotes(outside: &Outside) -> u16 {
    let config = outside.config(&["a.test"], &["h2"]);
    kit::server(move |stream| {
        let connection = rustls::ServerConnection::new(config.clone()).expect("a connection");
        let mut stream = rustls::StreamOwned::new(connection, stream);
        let mut some = [0; 1024];
        assert!(stream.read(&mut some).is_ok_and(|length| length > 0));
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        let last = [0, 0, 8 + REAL.len() as u8, 7, 0, 0, 0, 0, 0];
        let why = [0, 0, 0, 0, 0, 0, 0, 2];
        let all = [&settings[..], &last, &why, REAL.as_bytes()].concat();
        stream.write_all(&all).ok();
        while stream.read(&mut some).is_ok_and(|length| length > 0) {}
    })
}

#[test]
fn what_a_host_says_of_an_error_is_searched() {
    let outside = Outside::new();
    let port = host_that_quotes(&outside);
    let Some(inside) = start(&outside, port) else {
        return;
    };
    let key = format!("X-Api-Key: {FAKE}");
    let url = format!("https://a.test:{port}/ok/x");
    let (_, text) = inside.curl(&["--http2", "-w", "%{http_code}", "-H", &key, &url]);
    assert!(text.ends_with("502") && text.contains(FAKE), "{text}");
    assert!(!text.contains(REAL), "{text}");
    let all = serde_json::to_string(&inside.gate.end()).expect("data");
    assert!(all.contains(FAKE) && !all.contains(REAL), "{all}");
}
