//! Secrets: what is swapped, what is refused, and that no cut lets a value through.

use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use proptest::prelude::*;
use ringfence_model::host::HostPattern;
use ringfence_model::policy::network::PathPattern;

use super::*;

const FAKE: &str = "ghp_0123456789abcdefghij";
const REAL: &str = "ghp_RealRealRealReal/+\"x";

fn secret(header: &str) -> BoundSecret {
    BoundSecret {
        name: "TOKEN".to_owned(),
        placeholder: FAKE.to_owned(),
        hosts: vec![HostPattern::parse("api.example").expect("a host")],
        methods: vec!["GET".to_owned(), "POST".to_owned()],
        path: Some(PathPattern::parse("/repos/**").expect("a path")),
        header: header.to_owned(),
    }
}

fn secrets(header: &str) -> Secrets {
    let value = SecretValue::new(REAL.as_bytes().to_vec());
    Secrets::new(&[secret(header)], vec![value]).expect("usable")
}

/// What leaves for a request: the fields, or the place of the placeholder.
fn leaves(
    own: &Secrets,
    host: &str,
    method: &str,
    target: &str,
    fields: &[(&str, &str)],
) -> Result<Vec<String>, &'static str> {
    let mut sent = Fields::default();
    for (name, value) in fields {
        sent.push(name, value.as_bytes()).expect("a field");
    }
    let host = Host::parse(host).expect("a host");
    let path = RequestPath::parse(target).expect("a path");
    let swaps = own
        .prepare(&host, method, &path, target, &mut sent)
        .map_err(|misplaced| misplaced.place)?;
    own.swap(&swaps, &mut sent);
    Ok(sent
        .iter()
        .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value)))
        .collect())
}

#[test]
fn a_value_is_put_in_only_where_it_is_bound() {
    let own = secrets("Authorization: Bearer {}");
    let bearer = format!("Bearer {FAKE}");
    let there = leaves(
        &own,
        "api.example",
        "GET",
        "/repos/a",
        &[("authorization", &bearer)],
    );
    assert_eq!(there, Ok(vec![format!("authorization: Bearer {REAL}")]));
    for (host, method, target, field, value, place) in [
        // Another host, method or path.
        (
            "b.example",
            "GET",
            "/repos/a",
            "Authorization",
            bearer.as_str(),
            "header",
        ),
        (
            "api.example",
            "DELETE",
            "/repos/a",
            "Authorization",
            &bearer,
            "header",
        ),
        (
            "api.example",
            "GET",
            "/gists",
            "Authorization",
            &bearer,
            "header",
        ),
        // Another field, or another place in it.
        (
            "api.example",
            "GET",
            "/repos/a",
            "X-Api-Key",
            FAKE,
            "header",
        ),
        (
            "api.example",
            "GET",
            "/repos/a",
            "Authorization",
            &format!("token {FAKE}"),
            "header",
        ),
        (
            "api.example",
            "GET",
            "/repos/a",
            "Authorization",
            &format!("{bearer}x"),
            "header",
        ),
        (
            "api.example",
            "GET",
            "/repos/a",
            "Authorization",
            &format!("{bearer}, {bearer}"),
            "header",
        ),
        (
            "api.example",
            "GET",
            "/repos/a",
            "Cookie",
            &format!("a={FAKE}"),
            "header",
        ),
        // The address, plain and coded.
        (
            "api.example",
            "GET",
            &format!("/repos/{FAKE}"),
            "X",
            "y",
            "address",
        ),
        (
            "api.example",
            "GET",
            &format!("/repos/a?t={FAKE}"),
            "X",
            "y",
            "address",
        ),
        (
            "b.example",
            "GET",
            &format!("/?t={}", FAKE.replace('h', "%68")),
            "X",
            "y",
            "address",
        ),
        (
            "b.example",
            "GET",
            &format!("/?t={}", FAKE.replace('h', "%2568")),
            "X",
            "y",
            "address",
        ),
        (
            "b.example",
            "GET",
            &format!("/?t={}", STANDARD_NO_PAD.encode(format!("x{FAKE}y"))),
            "X",
            "y",
            "address",
        ),
        (
            "b.example",
            "GET",
            "/",
            "X",
            &URL_SAFE_NO_PAD.encode(format!("xy{FAKE}")),
            "header",
        ),
    ] {
        assert_eq!(
            leaves(&own, host, method, target, &[(field, value)]),
            Err(place),
            "{host} {method} {target} {field}: {value}"
        );
    }
}

#[test]
fn a_part_of_a_placeholder_is_no_placeholder() {
    let own = secrets("Authorization: Bearer {}");
    let part = format!("Bearer {}", &FAKE[..FAKE.len() - 1]);
    let sent = leaves(
        &own,
        "api.example",
        "GET",
        "/repos/a",
        &[("Authorization", &part)],
    );
    assert_eq!(sent, Ok(Vec::new()), "it is somebody's own credential");
}

#[test]
fn own_credentials_are_taken_out_where_one_is_bound() {
    let own = secrets("Authorization: Bearer {}");
    let fields = [
        ("Authorization", "Bearer mine"),
        ("Cookie", "s=1"),
        ("X-API-Key", "k"),
        ("Accept", "*/*"),
    ];
    let bound = leaves(&own, "api.example", "POST", "/gists", &fields);
    assert_eq!(bound, Ok(vec!["Accept: */*".to_owned()]));
    let other = leaves(&own, "b.example", "POST", "/gists", &fields).expect("no placeholder");
    assert_eq!(other.len(), 4);
}

#[test]
fn basic_credentials_are_opened_and_closed() {
    let own = secrets("Authorization: Basic {}");
    for (pair, real) in [
        (format!("git:{FAKE}"), format!("git:{REAL}")),
        (format!("{FAKE}:"), format!("{REAL}:")),
        (
            format!("{FAKE}:x-oauth-basic"),
            format!("{REAL}:x-oauth-basic"),
        ),
    ] {
        let value = format!("Basic {}", STANDARD.encode(&pair));
        let sent = leaves(
            &own,
            "api.example",
            "GET",
            "/repos/a",
            &[("Authorization", &value)],
        );
        assert_eq!(
            sent,
            Ok(vec![format!(
                "Authorization: Basic {}",
                STANDARD.encode(real)
            )])
        );
    }
    let value = format!("Basic {}", STANDARD.encode(format!("git:x{FAKE}")));
    let sent = leaves(
        &own,
        "api.example",
        "GET",
        "/repos/a",
        &[("Authorization", &value)],
    );
    assert_eq!(sent, Err("header"));
}

#[test]
fn a_value_that_ends_a_line_is_no_value() {
    let value = SecretValue::new(b"a\r\nHost: evil".to_vec());
    let error = Secrets::new(&[secret("Authorization: Bearer {}")], vec![value]).err();
    let text = error
        .map(|error| format!("{error} {error:?}"))
        .expect("refused");
    assert!(text.contains("TOKEN") && !text.contains("evil"), "{text}");
    for header in [
        "Authorization",
        "Authorization: Bearer",
        "A b: {}",
        "A: {} {}",
        "A: {}\r\nB: c",
    ] {
        let value = SecretValue::new(b"v".to_vec());
        assert!(
            Secrets::new(&[secret(header)], vec![value]).is_err(),
            "{header:?}"
        );
    }
}

/// The ways in which a host may send a value back.
fn echoes(value: &str) -> Vec<String> {
    let bytes = value.as_bytes();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let percent: String = bytes.iter().map(|byte| format!("%{byte:02X}")).collect();
    let some: String = value
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '_' {
                c.to_string()
            } else {
                format!("%{:02X}", c as u32)
            }
        })
        .collect();
    let json = serde_json::to_string(value).expect("a string");
    let mut all = vec![value.to_owned(), hex.to_uppercase(), hex, percent, some];
    all.push(json[1..json.len() - 1].to_owned());
    all.push(json[1..json.len() - 1].replace('/', "\\/"));
    for before in ["", "a", "ab", "user:"] {
        let text = format!("{before}{value}tail");
        all.push(base64::engine::general_purpose::STANDARD.encode(&text));
        all.push(base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(&text));
    }
    all
}

fn pass(needles: &Needles, text: &[u8], cuts: &[usize]) -> (Vec<u8>, Vec<Found>) {
    let mut stream = Stream::new(needles);
    let mut out = Vec::new();
    let mut at = 0;
    for cut in cuts {
        let end = (at + cut).min(text.len());
        out.extend(stream.piece(&text[at..end]));
        at = end;
    }
    out.extend(stream.piece(&text[at..]));
    out.extend(stream.end());
    (out, std::mem::take(&mut stream.seen))
}

fn contains(text: &[u8], part: &str) -> bool {
    text.windows(part.len())
        .any(|window| window == part.as_bytes())
}

#[test]
fn echoes_are_replaced_in_their_own_coding() {
    let own = secrets("Authorization: Bearer {}");
    let host = Host::parse("api.example").expect("a host");
    let needles = own.values_for(&host).expect("bound");
    for echo in echoes(REAL) {
        let text = format!("before {echo} after");
        let (out, seen) = pass(needles, text.as_bytes(), &[]);
        assert!(!seen.is_empty(), "{echo}");
        assert!(
            out.starts_with(b"before ") && out.ends_with(b" after"),
            "{echo}"
        );
    }
    let (out, _) = pass(needles, REAL.as_bytes(), &[]);
    assert_eq!(out, FAKE.as_bytes());
    let (out, _) = pass(needles, STANDARD.encode(REAL).as_bytes(), &[]);
    let back = STANDARD.decode(&out).expect("still base64");
    assert_eq!(&back[..FAKE.len()], FAKE.as_bytes());
    assert!(
        own.values_for(&Host::parse("b.example").expect("a host"))
            .is_none()
    );
}

proptest! {
    #[test]
    fn no_cut_lets_a_value_through(
        which in 0_usize..15,
        before in "[a-z]{0,40}",
        cuts in prop::collection::vec(1_usize..12, 0..40),
    ) {
        let own = secrets("Authorization: Bearer {}");
        let needles = own.values.as_ref().expect("some");
        let echo = &echoes(REAL)[which];
        let text = format!("{before}{echo}{before}{echo}");
        let (whole, _) = pass(needles, text.as_bytes(), &[]);
        let (cut, seen) = pass(needles, text.as_bytes(), &cuts);
        prop_assert_eq!(&whole, &cut);
        prop_assert!(!seen.is_empty());
        prop_assert!(!contains(&cut, echo));
    }

    #[test]
    fn what_has_no_value_is_left_alone(text in "[ -~]{0,200}", cuts in prop::collection::vec(1_usize..9, 0..40)) {
        let own = secrets("Authorization: Bearer {}");
        let needles = own.values.as_ref().expect("some");
        let (out, seen) = pass(needles, text.as_bytes(), &cuts);
        prop_assert_eq!(out, text.as_bytes());
        prop_assert!(seen.is_empty());
    }
}
