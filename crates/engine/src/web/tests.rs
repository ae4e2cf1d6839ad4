//! The client against servers of the test, on loopback.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use super::*;

/// A server that answers each connection with the next of these texts, and tells what it was asked.
struct Server {
    port: u16,
    thread: JoinHandle<Vec<String>>,
}

impl Server {
    fn start(answers: Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let thread = thread::spawn(move || {
            answers
                .iter()
                .map(|answer| {
                    let (mut stream, _) = listener.accept().unwrap();
                    let head = read_head(&stream);
                    stream.write_all(answer.as_bytes()).unwrap();
                    head
                })
                .collect()
        });
        Self { port, thread }
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    fn asked(self) -> Vec<String> {
        self.thread.join().unwrap()
    }
}

fn read_head(stream: &TcpStream) -> String {
    let mut head = String::new();
    let mut reader = BufReader::new(stream);
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap() == 0 {
            break;
        }
    }
    head.to_lowercase()
}

fn answer(head: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {head}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn client() -> Client {
    Client::open(LOCAL).unwrap()
}

/// The user named a server on this machine.
const LOCAL: Settings<'static> = Settings {
    plain: PlainHttp::LoopbackOnly,
    named: Some("127.0.0.1"),
    silence: SILENCE,
};

fn asking(url: String) -> Request {
    Request::get(url)
        .header("accept", "text/x-test")
        .unwrap()
        .secret("authorization", "Basic c2VjcmV0")
        .unwrap()
}

#[test]
fn a_status_is_no_error_and_a_body_has_a_bound() {
    for most in [4, 5, 6] {
        let server = Server::start(vec![answer("404 Not Found\r\nRetry-After: 7", "gone!")]);
        let got = client().send(&asking(server.url("/a?b=c"))).unwrap();
        assert_eq!(got.status, 404);
        assert_eq!(got.length(), Some(5));
        assert_eq!(got.retry_after(), Some(Duration::from_secs(7)));
        assert_eq!(got.from, server.url("/a"));
        match got.bytes(most) {
            Ok(body) => assert!(body == b"gone!" && most >= 5),
            Err(WebError::TooLarge { most: 4, .. }) => assert_eq!(most, 4),
            Err(other) => panic!("{other:?}"),
        }
        let asked = server.asked();
        assert!(asked[0].starts_with("get /a?b=c "), "{asked:?}");
        assert!(asked[0].contains("basic c2vjcmv0"), "{asked:?}");
    }
}

#[test]
fn a_wish_to_be_left_alone_has_a_bound() {
    for (said, heard) in [("99999999", Some(RETRY_AFTER_MOST)), ("soon", None)] {
        let head = format!("429 Slow Down\r\nRetry-After: {said}");
        let server = Server::start(vec![answer(&head, "")]);
        let got = client().send(&asking(server.url("/"))).unwrap();
        assert_eq!(got.retry_after(), heard);
        server.asked();
    }
}

#[test]
fn secrets_stay_with_the_origin_that_was_asked() {
    let other = Server::start(vec![answer("200 OK", "blob")]);
    let head = format!("307 Moved\r\nLocation: {}", other.url("/blob?sig=1"));
    let first = Server::start(vec![answer(&head, "")]);
    let got = client().send(&asking(first.url("/"))).unwrap();
    assert_eq!(got.from, other.url("/blob"));
    assert_eq!(got.bytes(9).unwrap(), b"blob");
    let (first, other) = (first.asked(), other.asked());
    assert!(first[0].contains("authorization: basic"), "{first:?}");
    assert!(!other[0].contains("authorization"), "{other:?}");
    assert!(other[0].contains("text/x-test"), "{other:?}");

    // The same origin is asked with them again.
    let head = "302 Found\r\nLocation: /there";
    let server = Server::start(vec![answer(head, ""), answer("200 OK", "")]);
    client().send(&asking(server.url("/here"))).unwrap();
    let asked = server.asked();
    assert!(asked[1].starts_with("get /there "), "{asked:?}");
    assert!(asked[1].contains("authorization: basic"), "{asked:?}");
}

/// A listener that nobody may connect to.
fn untouched(listener: &TcpListener) -> bool {
    listener.set_nonblocking(true).unwrap();
    let accepted = listener.accept();
    accepted.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

#[test]
fn a_private_server_that_nobody_named_is_not_connected_to() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    for named in [None, Some("registry.example")] {
        let client = Client::open(Settings { named, ..LOCAL }).unwrap();
        let error = client.send(&asking(url.clone())).unwrap_err();
        assert!(matches!(error, WebError::NotPublic { .. }), "{error:?}");
        assert!(!error.is_passing());
    }
    assert!(untouched(&listener));
}

#[test]
fn a_redirect_to_another_loopback_address_is_not_followed() {
    let inner = TcpListener::bind("127.0.0.2:0").unwrap();
    let to = inner.local_addr().unwrap();
    for location in [
        format!("http://{to}/x"),
        format!("http://127.0.0.2:{}/x", to.port()),
    ] {
        let head = format!("307 Moved\r\nLocation: {location}");
        let server = Server::start(vec![answer(&head, "")]);
        let error = client().send(&asking(server.url("/"))).unwrap_err();
        assert!(matches!(error, WebError::NotPublic { .. }), "{error:?}");
        server.asked();
    }
    assert!(untouched(&inner));
}

#[test]
fn a_redirect_that_loops_ends() {
    let answers = vec![answer("301 Moved\r\nLocation: /again", ""); REDIRECTS + 1];
    let server = Server::start(answers);
    let error = client().send(&asking(server.url("/"))).unwrap_err();
    assert!(
        matches!(error, WebError::TooManyRedirects { .. }),
        "{error}"
    );
    server.asked();
}

#[test]
fn what_is_sent_is_not_sent_again_elsewhere() {
    let server = Server::start(vec![answer("307 Moved\r\nLocation: /there", "")]);
    let request = Request::new(Method::POST, server.url("/"))
        .body("application/json", b"{}".to_vec())
        .unwrap();
    assert_eq!(client().send(&request).unwrap().status, 307);
    let asked = server.asked();
    assert!(
        asked[0].contains("content-type: application/json"),
        "{asked:?}"
    );
}

#[test]
fn where_redirects_may_lead() {
    let secure = Address::parse("https://registry.example/v2/", PlainHttp::Allowed).unwrap();
    let local = Address::parse("http://127.0.0.1:5000/v2/", PlainHttp::Allowed).unwrap();
    let plain = Address::parse("http://registry.example/v2/", PlainHttp::Allowed).unwrap();
    for (from, to, leads) in [
        (
            &secure,
            "https://blobs.example/a?b=c#d",
            Some("https://blobs.example/a"),
        ),
        (&secure, "/other", Some("https://registry.example/other")),
        (&secure, "http://registry.example/a", None),
        (&secure, "http://127.0.0.1/a", None),
        (&secure, "https://127.0.0.1/a", None),
        (&secure, "https://[::1]/a", None),
        (&secure, "https://localhost/a", None),
        (&secure, "//blobs.example/a", None),
        (&secure, "relative", None),
        (&secure, "file:///etc/passwd", None),
        (&secure, "https://user:word@blobs.example/", None),
        (&plain, "http://127.0.0.1/a", None),
        (
            &plain,
            "https://registry.example/a",
            Some("https://registry.example/a"),
        ),
        (&local, "http://localhost:9/a", Some("http://localhost:9/a")),
    ] {
        let found = from.follow(to, PlainHttp::Allowed).ok();
        assert_eq!(found.map(|a| a.shown()).as_deref(), leads, "{to}");
    }
    assert!(
        local
            .follow("http://registry.example/", PlainHttp::LoopbackOnly)
            .is_err()
    );
}

#[test]
fn plain_http_is_for_this_machine_unless_asked_for() {
    for (url, local) in [
        ("http://127.8.9.1:5000/", true),
        ("http://LocalHost/", true),
        ("http://[::1]:80/", true),
        ("http://localhost.example/", false),
        ("http://registry.example/", false),
        ("http://10.0.0.1/", false),
    ] {
        let found = Address::parse(url, PlainHttp::LoopbackOnly);
        assert_eq!(found.is_ok(), local, "{url}");
        assert!(Address::parse(url, PlainHttp::Allowed).is_ok());
    }
    for url in [
        "",
        "a",
        "ftp://a/",
        "https://a:b@c/",
        "https://",
        "http://a:x/",
    ] {
        assert!(Address::parse(url, PlainHttp::Allowed).is_err(), "{url}");
    }
}

#[test]
fn messages_and_debug_texts_hold_no_secret() {
    let request = asking("http://127.0.0.1:1/x?token=hidden".to_owned());
    assert!(!format!("{request:?}").contains("c2VjcmV0"));
    let error = client().send(&request).unwrap_err();
    assert!(matches!(error, WebError::Reach { .. }), "{error:?}");
    assert!(error.is_passing());
    let text = format!("{error} {error:?}");
    assert!(text.contains("http://127.0.0.1:1/x"), "{text}");
    assert!(
        !text.contains("hidden") && !text.contains("c2VjcmV0"),
        "{text}"
    );
    assert_eq!(address::shown("https://a:b@c/d?e#f\u{1b}"), "https://c/d");
    assert!(Request::get("http://a").header("a b", "").is_err());
    assert!(Request::get("http://a").secret("a", "b\r\nc: d").is_err());
}

#[test]
fn half_a_body_is_an_error_and_so_is_a_silent_server() {
    let half = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf".to_owned();
    let server = Server::start(vec![half]);
    let got = client().send(&asking(server.url("/"))).unwrap();
    let error = got.bytes(100).unwrap_err();
    assert!(matches!(error, WebError::BrokeOff { .. }), "{error:?}");
    server.asked();

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let impatient = Client::open(Settings {
        silence: Duration::from_millis(50),
        ..LOCAL
    })
    .unwrap();
    let error = impatient.send(&asking(url)).unwrap_err();
    assert!(matches!(error, WebError::TimedOut { .. }), "{error:?}");
}

#[test]
fn silence_within_a_body_is_told_from_its_end() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        read_head(&stream);
        let part = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf";
        // On a busy machine the client may have gone already; then it timed out, too.
        let _ = stream.write_all(part);
        stream
    });
    let impatient = Client::open(Settings {
        silence: Duration::from_secs(1),
        ..LOCAL
    })
    .unwrap();
    let answer = impatient.send(&asking(url));
    let stream = server.join().unwrap();
    let error = answer.and_then(|answer| answer.bytes(100)).unwrap_err();
    assert!(matches!(error, WebError::TimedOut { .. }), "{error:?}");
    drop(stream);
}
