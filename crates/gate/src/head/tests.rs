//! Heads: tables of what is refused, and what holds for all that is taken.

use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Result<RequestHead, HeadError> {
    RequestHead::parse(text.as_bytes())
}

#[test]
fn a_plain_request_is_read() {
    let head =
        parse("GET /a?b HTTP/1.1\r\nHost: a.example:8443\r\nX-A:  b \r\n\r\n").expect("plain");
    assert_eq!(head.target, Target::Path("/a?b".to_owned()));
    assert_eq!(head.framing, Framing::None);
    assert_eq!(head.fields.once("x-a"), Some(&b"b"[..]));
    let place = head.host().expect("a host").expect("named");
    assert_eq!(
        (place.host.to_string().as_str(), place.port),
        ("a.example", Some(8443))
    );
    assert!(head.keeps_alive());
}

#[test]
fn targets_have_three_forms() {
    let head = parse("GET HTTP://A.example?x HTTP/1.1\r\nHost: a\r\n\r\n").expect("absolute");
    let Target::Url {
        scheme,
        place,
        path,
    } = head.target
    else {
        panic!("a URL is a URL");
    };
    assert_eq!(
        (scheme, place.port, path.as_str()),
        (Scheme::Http, None, "/?x")
    );
    let head = parse("CONNECT [::1]:443 HTTP/1.1\r\nHost: a\r\n\r\n").expect("connect");
    assert!(matches!(
        head.target,
        Target::Place(Place {
            port: Some(443),
            ..
        })
    ));
    for target in [
        "*",
        "a.example",
        "http:/a",
        "ftp://a/",
        "http://u@a/",
        "http://a:0/",
        "http://a:/",
        "http://::1/",
    ] {
        let text = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(parse(&text), Err(HeadError::Target), "{target}");
    }
    for target in [
        "a.example",
        "a.example:0",
        "a:99999",
        "/x",
        "a:4 43",
        "a:+443",
        "::1:443",
    ] {
        let text = format!("CONNECT {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(parse(&text).is_err(), "{target}");
    }
}

#[test]
fn what_may_be_read_in_two_ways_is_refused() {
    let with = |fields: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
    for (fields, why) in [
        (
            "Content-Length: 1\r\nTransfer-Encoding: chunked",
            HeadError::LengthAndCoding,
        ),
        ("Content-Length: 1\r\nContent-Length: 1", HeadError::Length),
        ("Content-Length: 1\r\nContent-Length: 2", HeadError::Length),
        ("Content-Length: 1, 1", HeadError::Length),
        ("Content-Length: +1", HeadError::Length),
        ("Content-Length: -1", HeadError::Length),
        ("Content-Length: 0x1", HeadError::Length),
        ("Content-Length: 1_0", HeadError::Length),
        ("Content-Length:", HeadError::Length),
        ("Content-Length: 99999999999999999999", HeadError::Length),
        ("Transfer-Encoding: identity", HeadError::Coding),
        ("Transfer-Encoding: gzip, chunked", HeadError::Coding),
        ("Transfer-Encoding: chunked, chunked", HeadError::Coding),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            HeadError::Coding,
        ),
        ("Transfer-Encoding: xchunked", HeadError::Coding),
        ("Transfer-Encoding: \u{b}chunked", HeadError::Line),
        ("Transfer-Encoding : chunked", HeadError::FieldName),
        (" Transfer-Encoding: chunked", HeadError::Folded),
        ("X: a\r\n b: c", HeadError::Folded),
        ("X: a\r\n\tTransfer-Encoding: chunked", HeadError::Folded),
        ("X: a\rTransfer-Encoding: chunked", HeadError::Line),
        ("X: a\nTransfer-Encoding: chunked", HeadError::Line),
        ("X: a\0b", HeadError::Line),
        ("X a: b", HeadError::FieldName),
        (": b", HeadError::FieldName),
        ("X", HeadError::FieldName),
        ("Upgrade: h2c", HeadError::Upgrade),
        ("Upgrade: websocket, H2C", HeadError::Upgrade),
        ("HTTP2-Settings: AAMAAABkAAQAAP__", HeadError::Upgrade),
    ] {
        assert_eq!(parse(&with(fields)), Err(why), "{fields:?}");
    }
    for (first, why) in [
        ("PRI * HTTP/2.0", HeadError::Preface),
        ("GET /", HeadError::FirstLine),
        ("GET / HTTP/0.9", HeadError::FirstLine),
        ("GET / HTTP/1.2", HeadError::FirstLine),
        ("GET / HTTP/2", HeadError::FirstLine),
        ("GET / http/1.1", HeadError::FirstLine),
        ("GET  / HTTP/1.1", HeadError::FirstLine),
        ("GET /a b HTTP/1.1", HeadError::FirstLine),
        ("GET / HTTP/1.1 ", HeadError::FirstLine),
        (" GET / HTTP/1.1", HeadError::FirstLine),
        ("GET\t/ HTTP/1.1", HeadError::FirstLine),
        ("get / HTTP/1.1", HeadError::Method),
        ("G(T / HTTP/1.1", HeadError::Method),
        ("", HeadError::FirstLine),
    ] {
        let text = format!("{first}\r\nHost: a\r\n\r\n");
        assert_eq!(parse(&text), Err(why), "{first:?}");
    }
    assert_eq!(parse("GET / HTTP/1.1\nHost: a\n\n"), Err(HeadError::Line));
    assert_eq!(
        parse("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
        Err(HeadError::Coding)
    );
    assert_eq!(
        parse("GET / HTTP/1.1\r\nHost: a\r\n\r\nGET"),
        Err(HeadError::Line)
    );
}

#[test]
fn a_host_is_named_once() {
    for (fields, named) in [
        ("Host: a", true),
        ("Host: a\r\nHost: a", false),
        ("X: y", false),
        ("Host: a@b", false),
        ("Host: a, b", false),
        ("Host: a:x", false),
        ("Host:", false),
        ("Host: 0x7f.1", false),
        ("Host: [::1]:80", true),
    ] {
        let head = parse(&format!("GET / HTTP/1.1\r\n{fields}\r\n\r\n")).expect("a head");
        assert_eq!(head.host().is_ok(), named, "{fields:?}");
    }
    let old = parse("GET / HTTP/1.0\r\n\r\n").expect("a head");
    assert_eq!(old.host(), Ok(None));
    assert!(!old.keeps_alive());
}

#[test]
fn heads_are_bounded() {
    let many = "a: b\r\n".repeat(MAX_FIELDS + 1);
    assert_eq!(
        parse(&format!("GET / HTTP/1.1\r\n{many}\r\n")),
        Err(HeadError::TooManyFields)
    );
    let long = "a".repeat(MAX_HEAD);
    assert_eq!(
        parse(&format!("GET /{long} HTTP/1.1\r\n\r\n")),
        Err(HeadError::TooLong)
    );
    assert_eq!(end_of_head(long.as_bytes()), Err(HeadError::TooLong));
    assert_eq!(end_of_head(b"GET / HTTP/1.1\r\n\r"), Ok(None));
    assert_eq!(end_of_head(b"a\r\n\r\nb"), Ok(Some(5)));
}

#[test]
fn what_is_for_one_connection_is_taken_out() {
    let mut head = parse(
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: close, X-Mine, host\r\nX-Mine: 1\r\nTE: trailers\r\nKeep-Alive: 5\r\nX-Other: 2\r\n\r\n",
    )
    .expect("a head");
    head.fields.strip_hop_by_hop();
    let names: Vec<&str> = head.fields.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["Host", "X-Other"]);
}

#[test]
fn answers_are_read_as_strictly() {
    let answer = AnswerHead::parse(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n").expect("plain");
    assert_eq!(answer.framing("GET"), Framing::Length(3));
    assert_eq!(answer.framing("HEAD"), Framing::None);
    assert_eq!(answer.said_length(), Some(3));
    let answer = AnswerHead::parse(b"HTTP/1.0 200 \r\n\r\n").expect("old");
    assert_eq!(answer.framing("GET"), Framing::UntilClose);
    assert!(!answer.keeps_alive());
    let answer =
        AnswerHead::parse(b"HTTP/1.1 304\r\nContent-Length: 3\r\n\r\n").expect("no reason");
    assert_eq!(answer.framing("GET"), Framing::None);
    for text in [
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 099 OK\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/2 200 OK\r\n\r\n",
        "ICY 200 OK\r\n\r\n",
        "HTTP/1.1 200 O\rK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
    ] {
        assert!(AnswerHead::parse(text.as_bytes()).is_err(), "{text:?}");
    }
}

/// How a careless server finds the end of a request: any line end, any case, blanks before the
/// colon, the last length or any mention of chunks.
fn lax_requests(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    let mut count = 0;
    while !rest.is_empty() {
        count += 1;
        let mut length = 0;
        let mut chunked = false;
        loop {
            let end = rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
            let line = String::from_utf8_lossy(&rest[..end]).to_ascii_lowercase();
            rest = rest.get(end + 1..).unwrap_or_default();
            let line = line.trim();
            if line.is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':') {
                match name.trim() {
                    "content-length" => length = value.trim().parse().unwrap_or(0),
                    "transfer-encoding" => chunked |= value.contains("chunked"),
                    _ => {}
                }
            }
        }
        if chunked {
            let end = rest.windows(5).position(|five| five == b"0\r\n\r\n");
            rest = end.map_or(&[][..], |at| &rest[at + 5..]);
        } else {
            rest = rest.get(length..).unwrap_or_default();
        }
    }
    count
}

fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("Content-Length: 3".to_owned()),
        Just("Content-Length : 3".to_owned()),
        Just("Transfer-Encoding: chunked".to_owned()),
        Just("transfer-encoding:\tchunked".to_owned()),
        Just("Transfer-Encoding: x, chunked".to_owned()),
        Just("Connection: content-length, transfer-encoding".to_owned()),
        Just("Host: a.example".to_owned()),
        "[ -~]{0,20}",
        "[a-zA-Z-]{1,8}: ?[ -~\u{80}-\u{ff}]{0,12}",
        "\\PC{0,12}",
    ]
}

fn ending() -> impl Strategy<Value = &'static str> {
    prop_oneof![8 => Just("\r\n"), 1 => Just("\n"), 1 => Just("\r"), 1 => Just("\r\n "), 1 => Just("\0\r\n")]
}

fn raw_head() -> impl Strategy<Value = Vec<u8>> {
    let first = prop_oneof![
        4 => Just("POST /a HTTP/1.1".to_owned()),
        1 => "[A-Z]{1,5} /[!-~]{0,9} HTTP/1.[0-2]",
        1 => "\\PC{0,24}",
    ];
    (first, prop::collection::vec((ending(), piece()), 0..6)).prop_map(|(first, lines)| {
        let mut text = first;
        for (end, line) in lines {
            text.push_str(end);
            text.push_str(&line);
        }
        text.push_str("\r\n\r\n");
        text.into_bytes()
    })
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = RequestHead::parse(&bytes);
        let _ = AnswerHead::parse(&bytes);
        let _ = end_of_head(&bytes);
    }

    #[test]
    fn what_is_written_is_read_alike_and_is_one_request(bytes in raw_head()) {
        let Ok(mut head) = RequestHead::parse(&bytes) else { return Ok(()) };
        let Target::Path(path) = head.target.clone() else { return Ok(()) };
        head.fields.strip_hop_by_hop();
        let mut written = write_request(&head.method, &path, &head.fields, head.framing, &[]);
        let again = RequestHead::parse(&written).expect("what we write is strict");
        prop_assert_eq!(&again.method, &head.method);
        prop_assert_eq!(&again.target, &head.target);
        prop_assert_eq!(again.framing, head.framing);
        let mut fields = again.fields.clone();
        fields.strip_hop_by_hop();
        prop_assert_eq!(&fields, &head.fields);
        match head.framing {
            Framing::Length(length) if length < 100 => {
                written.extend(std::iter::repeat_n(b'x', usize::try_from(length).unwrap_or(0)));
            }
            Framing::Chunked => written.extend_from_slice(b"3\r\nabc\r\n0\r\n\r\n"),
            _ => {}
        }
        prop_assert_eq!(lax_requests(&written), 1);
    }
}
