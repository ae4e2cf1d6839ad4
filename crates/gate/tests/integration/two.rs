//! HTTP/2 on both sides of the gate.

use std::io::{Read as _, Write as _};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use ringfence_model::gate::{BoundSecret, Happened, Setup};
use ringfence_model::host::HostPattern;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::sync::mpsc::unbounded_channel;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::kit;
use crate::site;
use kit::{World, rules, setup};
use site::{Looking, Outside};

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

pub type Asking = h2::client::SendRequest<Bytes>;

/// Runs something that asks in HTTP/2, inside.
pub fn ask<T: Send + 'static, F: Future<Output = T>>(
    inside: &Looking,
    work: impl FnOnce() -> F + Send + 'static,
) -> std::thread::JoinHandle<T> {
    inside.gate.inside.spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        tokio::task::LocalSet::new().block_on(&runtime, async move { work().await })
    })
}

/// A connection of HTTP/2 from inside to a host of this name.
pub async fn connection(
    trusts: &Arc<rustls::ClientConfig>,
    name: &str,
    place: (IpAddr, u16),
) -> Asking {
    let stream = tokio::net::TcpStream::connect(place).await;
    let name = rustls::pki_types::ServerName::try_from(name.to_owned()).expect("a name");
    let secure = TlsConnector::from(trusts.clone())
        .connect(name, stream.expect("it listens"))
        .await
        .expect("it is trusted");
    let (asking, connection) = h2::client::handshake(secure).await.expect("HTTP/2");
    tokio::task::spawn_local(async move { connection.await.ok() });
    asking
}

pub async fn get(
    asking: Asking,
    host: &str,
    port: u16,
    path: &str,
) -> (h2::client::ResponseFuture, Asking) {
    let mut asking = asking.ready().await.expect("room for a stream");
    let request = http::Request::get(format!("https://{host}:{port}{path}"));
    let request = request.body(()).expect("a request");
    let (answer, _) = asking.send_request(request, true).expect("open");
    (answer, asking)
}

/// What clients inside trust.
pub fn trusts(inside: &Looking) -> Arc<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    let own = CertificateDer::from_pem_file(inside.authority()).expect("PEM");
    roots.add(own).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Began,
    Ended,
}

#[test]
fn a_stream_that_is_reset_frees_what_it_holds() {
    let outside = Outside::new();
    // Takes requests, and never answers; or begins to, and never ends.
    let config = outside.config(&["a.test"], &["http/1.1"]);
    let (say, mut seen) = unbounded_channel();
    let port = kit::server(move |stream| {
        let connection = rustls::ServerConnection::new(config.clone()).expect("a connection");
        let mut stream = rustls::StreamOwned::new(connection, stream);
        let mut some = [0; 1024];
        let length = stream.read(&mut some).expect("a request");
        if some[..length].starts_with(b"GET /ok/begin ") {
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
                .ok();
            stream.flush().ok();
        }
        say.send(Seen::Began).ok();
        while stream.read(&mut some).is_ok_and(|length| length > 0) {}
        say.send(Seen::Ended).ok();
    });
    let Some(inside) = start(&outside, port) else {
        return;
    };
    let trusts = trusts(&inside);
    let address = inside.gate.lookup("a.test").expect("it is allowed").into();
    let asking = ask(&inside, move || async move {
        let mut next = async move |expected| {
            let next = tokio::time::timeout(kit::PATIENCE, seen.recv()).await;
            assert_eq!(next.expect("it happens"), Some(expected));
        };
        let asking = connection(&trusts, "a.test", (address, port)).await;
        // Who drops an answer resets its stream. The connection stays.
        let (answer, asking) = get(asking, "a.test", port, "/ok/never").await;
        next(Seen::Began).await;
        drop(answer);
        next(Seen::Ended).await;
        let (answer, _asking) = get(asking, "a.test", port, "/ok/begin").await;
        let mut body = answer.await.expect("a head").into_body();
        assert!(body.data().await.is_some_and(|piece| piece.is_ok()));
        next(Seen::Began).await;
        drop(body);
        next(Seen::Ended).await;
    });
    asking.join().expect("no panic");
}

#[test]
fn streams_of_all_connections_are_bounded() {
    let outside = Outside::new();
    let acceptor = TlsAcceptor::from(outside.config(&["a.test"], &["h2"]));
    let (say, mut seen) = unbounded_channel();
    // Answers the last request only.
    let port = kit::server(move |stream| {
        stream.set_nonblocking(true).expect("a socket");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let stream = tokio::net::TcpStream::from_std(stream).expect("a socket");
            let secure = acceptor.accept(stream).await.expect("TLS");
            let mut connection = h2::server::handshake(secure).await.expect("HTTP/2");
            let mut waiting = Vec::new();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                if request.uri().path() == "/ok/last" {
                    respond.send_response(http::Response::new(()), true).ok();
                }
                waiting.push((request, respond));
                say.send(()).ok();
            }
        });
    });
    let Some(inside) = start(&outside, port) else {
        return;
    };
    let trusts = trusts(&inside);
    let address = inside.gate.lookup("a.test").expect("it is allowed").into();
    let asking = ask(&inside, move || async move {
        let mut seen = async move || {
            let next = tokio::time::timeout(kit::PATIENCE, seen.recv()).await;
            next.expect("the host sees it").expect("it lives");
        };
        let mut answers = Vec::new();
        for _ in 0..8 {
            let asking = connection(&trusts, "a.test", (address, port)).await;
            let (answer, mut asking) = get(asking, "a.test", port, "/ok/x").await;
            answers.push(answer);
            seen().await;
            for _ in 1..128 {
                let (answer, next) = get(asking, "a.test", port, "/ok/x").await;
                answers.push(answer);
                asking = next;
            }
            for _ in 1..128 {
                seen().await;
            }
        }
        let asking = connection(&trusts, "a.test", (address, port)).await;
        let (answer, asking) = get(asking, "a.test", port, "/ok/last").await;
        let refused = answer.await.expect_err("there is no room");
        assert_eq!(refused.reason(), Some(h2::Reason::REFUSED_STREAM));
        // One that ends makes room.
        answers.pop();
        let mut asking = asking;
        loop {
            let (answer, next) = get(asking, "a.test", port, "/ok/last").await;
            asking = next;
            match answer.await {
                Ok(_) => break,
                Err(error) => assert_eq!(error.reason(), Some(h2::Reason::REFUSED_STREAM)),
            }
        }
    });
    asking.join().expect("no panic");
}
