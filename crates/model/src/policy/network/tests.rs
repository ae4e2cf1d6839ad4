//! The rules as tables.

use super::*;

fn rules(lines: &[&str]) -> Rules {
    let rule = |line: &&str| {
        let (effect, text) = match line.strip_prefix("deny ") {
            Some(text) => (Effect::Deny, text),
            None => (Effect::Allow, *line),
        };
        NetworkRule::parse(effect, text, Origin::default()).expect(line)
    };
    Rules(lines.iter().map(rule).collect())
}

fn host(text: &str) -> Host {
    Host::parse(text).expect("a host")
}

fn said(rules: &Rules, method: &str, place: &str, target: &str) -> Option<Reason> {
    let (name, port) = place.split_once(':').expect("host and port");
    let path = RequestPath::parse(target).expect("a path");
    let port = port.parse().expect("a port");
    match rules.request(&host(name), port, method, &path) {
        Verdict::Allow(_) => None,
        Verdict::Deny { reason, .. } => Some(reason),
    }
}

#[test]
fn a_rule_is_written_as_it_was_read() {
    for text in [
        "api.github.com",
        "*.example.com",
        "*.example.com:8443",
        "*",
        "GET api.github.com/repos/**",
        "GET,HEAD a.b/x/*/y",
        "tcp db.internal:5432",
        "tcp 10.0.0.5:5432",
        "tcp [fd12::1]:5432",
        "[fd12::1]:8080/a",
    ] {
        let rule = NetworkRule::parse(Effect::Allow, text, Origin::default()).expect(text);
        assert_eq!(rule.to_string(), text);
        let json = serde_json::to_string(&rule).expect("plain data");
        assert_eq!(
            serde_json::from_str::<NetworkRule>(&json).expect(text),
            rule
        );
    }
}

#[test]
fn what_is_no_rule_is_refused() {
    for text in [
        "",
        "get a.b",
        "GET a.b c",
        "https://a.b",
        "a.b:0",
        "a.b:99999",
        "a.b:x",
        "a.b:",
        "tcp a.b",
        "tcp a.b:1/x",
        "GET, a.b",
        "a.b/../c",
        "a.b/%2e%2e/c",
        "a.b//c",
        "a.b/x?y",
        "a.b/x**",
        "a.b/***",
        "127.1",
        "*.1.2.3.4",
        "a.*.b",
        "**.b",
        "a\0.b",
    ] {
        let rule = NetworkRule::parse(Effect::Allow, text, Origin::default());
        assert!(rule.is_err(), "{text:?}: {rule:?}");
    }
}

#[test]
fn nothing_is_allowed_by_no_rule() {
    let none = rules(&[]);
    assert_eq!(said(&none, "GET", "a.b:443", "/"), Some(Reason::Host));
    assert!(none.ports(&host("a.b")).is_empty());
}

#[test]
fn requests_are_held_to_method_and_path() {
    let rules = rules(&[
        "GET,HEAD api.x.com/repos/**",
        "POST api.x.com/graphql",
        "deny api.x.com/repos/secret/**",
        "plain.x.com:8080",
        "deny *.evil.com",
        "*.evil.com",
    ]);
    for (method, place, path, expected) in [
        ("GET", "api.x.com:443", "/repos/a/b?c=/../d", None),
        ("GET", "api.x.com:443", "/repos/", None),
        ("GET", "api.x.com:443", "/repos", None),
        ("GET", "api.x.com:443", "/repository", Some(Reason::Path)),
        ("POST", "api.x.com:443", "/repos/a", Some(Reason::Method)),
        ("POST", "api.x.com:80", "/graphql", None),
        (
            "GET",
            "api.x.com:443",
            "/repos/secret/x",
            Some(Reason::Rule),
        ),
        (
            "GET",
            "api.x.com:443",
            "/repos/%73ecret/x",
            Some(Reason::Rule),
        ),
        ("GET", "api.x.com:8443", "/repos/a", Some(Reason::Port)),
        ("DELETE", "plain.x.com:8080", "/", None),
        ("GET", "plain.x.com:443", "/", Some(Reason::Port)),
        ("GET", "a.evil.com:443", "/", Some(Reason::Rule)),
    ] {
        let found = said(&rules, method, place, path);
        assert_eq!(found, expected, "{method} {place}{path}");
    }
    assert!(rules.looks_inside(&host("api.x.com"), 443));
    assert!(!rules.looks_inside(&host("plain.x.com"), 8080));
    assert!(rules.ports(&host("a.evil.com")).is_empty());
}

#[test]
fn a_denied_connection_is_also_denied_to_requests() {
    let rules = rules(&["a.b", "deny tcp a.b:80"]);
    assert_eq!(said(&rules, "GET", "a.b:80", "/x"), Some(Reason::Rule));
    assert_eq!(said(&rules, "GET", "a.b:443", "/x"), None);
}

#[test]
fn a_path_that_servers_read_differently_is_none() {
    for target in [
        "",
        "a",
        "*",
        "/a/../b",
        "/a/./b",
        "/a/%2e%2E/b",
        "/a/..",
        "/a/..;x/b",
        "/a%2f..%2fb",
        "/a%2f.%2Fb",
        "/a%2f%2fb",
        "/a/%2fb",
        "/%2fa",
        "/a%5cb",
        "/a\\b",
        "/a%00b",
        "/a%",
        "/a%2",
        "/a%zz",
        "/a//b",
        "//a",
        "/a b",
        "/a\u{e9}",
        "/a%25b",
    ] {
        assert_eq!(RequestPath::parse(target), None, "{target:?}");
    }
    for (target, path) in [
        ("/", "/"),
        ("/a/", "/a/"),
        ("/a?b=/../c", "/a"),
        ("/%61%2db", "/a-b"),
        ("/%c3%a9", "/%C3%A9"),
        ("/@a%2fb", "/@a%2Fb"),
        ("/...", "/..."),
    ] {
        let found = RequestPath::parse(target).expect(target);
        assert_eq!(found.as_str(), path);
    }
}

#[test]
fn an_encoded_slash_is_read_in_both_ways() {
    let rules = rules(&[
        "GET any.x",
        "GET exact.x/@a%2fb",
        "GET plain.x/@a/b",
        "GET one.x/p/*",
        "GET all.x/p/**",
        "GET most.x",
        "deny GET most.x/secret/**",
    ]);
    for (place, path, allowed) in [
        ("any.x", "/@a%2fb", true),
        ("exact.x", "/@a%2Fb", true),
        ("exact.x", "/@a/b", false),
        ("plain.x", "/@a%2fb", false),
        ("one.x", "/p/a%2fb", false),
        ("one.x", "/p/a", true),
        ("all.x", "/p/a%2fb", true),
        ("all.x", "/p%2fa", false),
        ("most.x", "/a%2fb", true),
        ("most.x", "/secret%2fb", false),
        ("most.x", "/secret/a%2fb", false),
    ] {
        let path = RequestPath::parse(path).expect(path);
        let verdict = rules.request(&host(place), 443, "GET", &path);
        assert_eq!(
            matches!(verdict, Verdict::Allow(_)),
            allowed,
            "{place} {path:?}"
        );
    }
    let line = Rules::line_for_request(
        &host("a.x"),
        443,
        "GET",
        &RequestPath::parse("/@a%2fb").expect("a path"),
    );
    assert!(NetworkRule::parse(Effect::Allow, &line, Origin::default()).is_ok());
}

#[test]
fn addresses_beyond_the_open_network_are_named() {
    let mut web = rules(&["a.b"]).0.remove(0);
    let tcp = rules(&["tcp a.b:1"]).0.remove(0);
    let below = rules(&["tcp *.b:1"]).0.remove(0);
    let literal = rules(&["tcp 127.0.0.1:1"]).0.remove(0);
    for (rule, address, taken) in [
        (&web, "1.1.1.1", true),
        (&web, "10.0.0.1", false),
        (&web, "127.0.0.1", false),
        (&tcp, "10.0.0.1", true),
        (&tcp, "::ffff:10.0.0.1", true),
        (&tcp, "127.0.0.1", false),
        (&tcp, "169.254.169.254", false),
        (&below, "10.0.0.1", false),
        (&literal, "127.0.0.1", true),
        (&literal, "127.0.0.2", false),
    ] {
        let address = address.parse().expect("an address");
        assert_eq!(rule.takes(address), taken, "{rule} {address}");
    }
    web.addresses = vec!["127.0.0.0/8".parse().expect("a range")];
    assert!(web.takes(IpAddr::from([127, 3, 4, 5])));
    assert!(!web.takes(IpAddr::from([10, 0, 0, 1])));
    let all: Range = "0.0.0.0/0".parse().expect("a range");
    assert!(all.contains(IpAddr::from([10, 0, 0, 1])));
    assert!("10.0.0.0/33".parse::<Range>().is_err());
}

#[test]
fn the_line_that_would_allow_does() {
    let host = host("a.b");
    let path = RequestPath::parse("/x/y*z").expect("a path");
    for port in [443, 8443] {
        let line = Rules::line_for_request(&host, port, "PUT", &path);
        let rules = rules(&[&line]);
        assert!(matches!(
            rules.request(&host, port, "PUT", &path),
            Verdict::Allow(_)
        ));
    }
}
