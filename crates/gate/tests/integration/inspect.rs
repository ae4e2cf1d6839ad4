//! Requests inside connections, as real clients and hostile ones send them.

use std::io::{Read as _, Write as _};

use ringfence_model::gate::Happened;
use ringfence_model::policy::network::Reason;

use crate::kit;
use crate::site;
use kit::read_all;
use site::{Looking, a_test, hello, tunnel};

#[test]
fn what_a_rule_allows_goes_through_and_the_rest_is_told_why_not() {
    let (setup, site, _outside) = a_test(hello, &["GET a.test:{}/repos/**"]);
    let Some(inside) = Looking::start(&setup, &[]) else {
        return;
    };
    let port = site.port;
    let base = format!("https://a.test:{port}");
    for version in ["--http1.1", "--http2"] {
        let (code, text) = inside.curl(&[version, &format!("{base}/repos/x?q=1")]);
        assert_eq!((code, text.as_str()), (0, "hello /repos/x?q=1"));
        let seen = inside.gate.seen(|own| own.method.is_some());
        assert_eq!(seen.path.expect("a path").0, b"/repos/x");
        let Happened::Allowed {
            status,
            received,
            inspected,
            ..
        } = seen.result
        else {
            panic!("it was allowed: {:?}", seen.result);
        };
        assert_eq!((status, received, inspected), (Some(200), 18, true));

        let (code, text) = inside.curl(&[version, "-d", "x", &format!("{base}/repos/x")]);
        assert_eq!(code, 0, "{text}");
        let body: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(body["reason"], "method");
        assert_eq!(body["allow"], format!("POST a.test:{port}/repos/x"));
        inside.gate.denied("a.test", Reason::Method);
        let (_, text) = inside.curl(&[version, &format!("{base}/user")]);
        assert!(text.contains("\"reason\":\"path\""), "{text}");
        inside.gate.denied("a.test", Reason::Path);
    }
    assert_eq!(site.saw().len(), 2);
}

#[test]
fn requests_that_may_be_read_in_two_ways_reach_nobody() {
    let (setup, site, _outside) = a_test(hello, &["a.test:{}/ok/**"]);
    let Some(inside) = Looking::start(&setup, &[]) else {
        return;
    };
    let port = site.port;
    let host = format!("Host: a.test:{port}");
    let with = |fields: &str| format!("POST /ok/a HTTP/1.1\r\n{host}\r\n{fields}");
    let mut refused = 0;
    let smuggled = "GET /admin HTTP/1.1\r\nHost: a.test\r\n\r\n";
    for (id, bytes) in [
        (
            "net-023",
            "GET /ok/a HTTP/1.1\r\nHost: evil.test\r\n\r\n".to_owned(),
        ),
        (
            "net-023",
            format!("GET /ok/a HTTP/1.1\r\nHost: a.test:{}\r\n\r\n", port ^ 1),
        ),
        (
            "net-023",
            format!("GET /ok/a HTTP/1.1\r\n{host}\r\n{host}\r\n\r\n"),
        ),
        ("net-023", "GET /ok/a HTTP/1.1\r\n\r\n".to_owned()),
        (
            "net-027",
            with(&format!(
                "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{smuggled}"
            )),
        ),
        (
            "net-027",
            with(&format!(
                "Content-Length: 0\r\nContent-Length: 44\r\n\r\n{smuggled}"
            )),
        ),
        (
            "net-027",
            with(&format!(
                "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{smuggled}"
            )),
        ),
        (
            "net-027",
            with(&format!(
                "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{smuggled}"
            )),
        ),
        (
            "net-027",
            with(&format!(
                "X: y\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{smuggled}"
            )),
        ),
        (
            "net-027",
            with(&format!(
                "X: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{smuggled}"
            )),
        ),
        (
            "net-027",
            with(&format!("X: y\rGET /admin HTTP/1.1\r\n\r\n{smuggled}")),
        ),
        (
            "net-028",
            format!("GET /ok/../admin HTTP/1.1\r\n{host}\r\n\r\n"),
        ),
        (
            "net-028",
            format!("GET /ok/%2e%2e/admin HTTP/1.1\r\n{host}\r\n\r\n"),
        ),
        (
            "net-028",
            format!("GET /ok/..%2fadmin HTTP/1.1\r\n{host}\r\n\r\n"),
        ),
        (
            "net-028",
            format!("GET /ok//admin HTTP/1.1\r\n{host}\r\n\r\n"),
        ),
        (
            "net-028",
            format!("GET /ok/\\..\\admin HTTP/1.1\r\n{host}\r\n\r\n"),
        ),
        (
            "net-029",
            format!("GET https://evil.test/ok/a HTTP/1.1\r\n{host}\r\n\r\n"),
        ),
        (
            "net-029",
            format!("GET http://a.test:{port}/ok/a HTTP/1.1\r\n{host}\r\n\r\n"),
        ),
        (
            "net-031",
            format!("CONNECT evil.test:443 HTTP/1.1\r\n{host}\r\n\r\n"),
        ),
        ("net-034", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned()),
        (
            "net-034",
            with(
                "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
            ),
        ),
        (
            "net-038",
            with(&format!("X: {}\r\n\r\n", "a".repeat(10 << 20))),
        ),
        ("net-038", with(&format!("{}\r\n", "X: y\r\n".repeat(1000)))),
    ] {
        let text = inside.raw("a.test", port, bytes.clone());
        let shown: String = bytes.chars().take(80).collect();
        assert!(
            text.starts_with("HTTP/1.1 400 ") || (id == "net-038" && text.is_empty()),
            "{id} {shown:?}: {text}"
        );
        refused += 1;
    }
    assert!(site.saw().is_empty(), "{:?}", site.saw());
    // A whole URL of the host itself is the host itself; its path is what counts.
    let url =
        format!("GET https://a.test:{port}/ok/a HTTP/1.1\r\n{host}\r\nConnection: close\r\n\r\n");
    let text = inside.raw("a.test", port, url);
    assert!(text.ends_with("hello /ok/a"), "{text}");
    let malformed = |own: &Happened| {
        matches!(
            own,
            Happened::Denied {
                reason: Reason::Malformed,
                ..
            }
        )
    };
    let all = inside.gate.end().into_iter();
    let told: u64 = all
        .filter(|own| malformed(&own.result))
        .map(|own| own.times)
        .sum();
    assert_eq!(told, refused);
}

#[test]
fn a_body_that_lies_about_its_end_is_no_second_request() {
    let (setup, site, _outside) = a_test(hello, &["a.test:{}/ok/**"]);
    let Some(inside) = Looking::start(&setup, &[]) else {
        return;
    };
    let port = site.port;
    let hidden = format!("GET /admin HTTP/1.1\r\nHost: a.test:{port}\r\n\r\n");
    let chunks = format!(
        "{:x}\r\n{hidden}\r\n0\r\nX-Trailer: y\r\n\r\n",
        hidden.len()
    );
    let head = format!(
        "POST /ok/a HTTP/1.1\r\nHost: a.test:{port}\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    );
    let text = inside.raw("a.test", port, format!("{head}{chunks}"));
    assert!(text.ends_with("hello /ok/a"), "{text}");
    let saw = site.saw();
    assert_eq!(saw.len(), 1);
    assert_eq!(saw[0].body, hidden.as_bytes());
    assert_eq!(saw[0].field("x-trailer"), None);
    // What is no chunk ends it, and the host never has a whole request.
    let head =
        format!("POST /ok/b HTTP/1.1\r\nHost: a.test:{port}\r\nTransfer-Encoding: chunked\r\n\r\n");
    inside.raw("a.test", port, format!("{head}3\r\nabcd\r\n0\r\n\r\n"));
    inside
        .gate
        .seen(|own| own.path.as_ref().is_some_and(|path| path.0 == b"/ok/b"));
    assert_eq!(site.saw().len(), 1);
}

#[test]
fn methods_cannot_be_changed_on_the_way() {
    let (setup, site, _outside) = a_test(hello, &["GET,POST a.test:{}"]);
    let Some(inside) = Looking::start(&setup, &[]) else {
        return;
    };
    let url = format!("https://a.test:{}/x", site.port);
    for version in ["--http1.1", "--http2"] {
        // net-031
        for (arguments, reason) in [
            (
                vec!["-H", "X-HTTP-Method-Override: DELETE", "-d", "x"],
                Reason::Method,
            ),
            (
                vec!["-H", "x-method-override: PUT", "-d", "x"],
                Reason::Method,
            ),
            (vec!["-X", "TRACE"], Reason::Protocol),
            (vec!["-X", "DELETE"], Reason::Method),
        ] {
            let (code, text) = inside.curl(&[&[version, &url], &arguments[..]].concat());
            assert_eq!(code, 0, "{arguments:?}");
            assert!(text.contains("denied by ringfence"), "{arguments:?} {text}");
            inside.gate.denied("a.test", reason);
        }
    }
    assert!(site.saw().is_empty());
}

#[test]
fn what_must_be_seen_is_never_passed_on_unread() {
    let (setup, site, _outside) = a_test(hello, &["GET a.test:{}/ok"]);
    let Some(inside) = Looking::start(&setup, &[]) else {
        return;
    };
    let port = site.port;
    // net-024: no TLS, no HTTP.
    let place = format!("a.test:{port}");
    let came = inside.gate.inside(move || {
        let mut stream = tunnel(&place);
        stream.write_all(b"SSH-2.0-x\r\n").expect("it reads");
        read_all(&mut stream)
    });
    assert!(came.is_empty());
    inside.gate.denied("a.test", Reason::Protocol);
    // net-025: a hello in single bytes is a hello.
    let mut stream = inside.secure("a.test", port, 1);
    let text = inside.gate.inside(move || {
        write!(
            stream,
            "GET /ok HTTP/1.1\r\nHost: a.test:{port}\r\nConnection: close\r\n\r\n"
        )
        .expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).ok();
        text
    });
    assert!(text.ends_with("hello /ok"), "{text}");
    // net-026: in the clear the same rules hold.
    let (_, text) = inside.curl(&[&format!("http://a.test:{port}/no")]);
    assert!(text.contains("\"reason\":\"path\""), "{text}");
    inside.gate.denied("a.test", Reason::Path);
    // net-034: HTTP/2 without TLS.
    let url = format!("http://a.test:{port}/ok");
    let (code, text) = inside.curl(&["--http2-prior-knowledge", &url]);
    assert_ne!(code, 0, "{text}");
    assert_eq!(site.saw().len(), 1);
}
