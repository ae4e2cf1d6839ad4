//! Requests inside connections, as real clients send them.

#[path = "support/kit.rs"]
#[allow(dead_code, reason = "each test program uses its own part")]
mod kit;
#[path = "support/site.rs"]
#[allow(dead_code, reason = "each test program uses its own part")]
mod site;

use std::io::Write as _;

use kit::{Gate, World, has_curl, rules, setup};
use ringfence_model::gate::{Happened, Setup};
use ringfence_model::policy::network::Reason;
use site::{Outside, Site, answer};

/// A gate, and a file with what the inside trusts.
struct Looking {
    gate: Gate,
    authority: tempfile::NamedTempFile,
}

impl Looking {
    fn start(setup: &Setup) -> Option<Self> {
        if !has_curl() {
            return None;
        }
        let gate = Gate::start(setup)?;
        let mut authority = tempfile::NamedTempFile::new().expect("a file");
        let pem = gate.authority.clone().expect("requests are looked into");
        authority.write_all(pem.as_bytes()).expect("room");
        Some(Self { gate, authority })
    }

    /// Runs curl inside, which trusts the gate.
    fn curl(&self, arguments: &[&str]) -> (i32, String) {
        let authority = self.authority.path().to_str().expect("a path");
        self.gate
            .curl(&[&["--cacert", authority], arguments].concat())
    }
}

fn hello(saw: &site::Saw) -> Vec<u8> {
    answer(
        "200 OK",
        "X-Own: yes\r\n",
        format!("hello {}", saw.path()).as_bytes(),
    )
}

#[test]
fn what_a_rule_allows_goes_through_and_the_rest_is_told_why_not() {
    let outside = Outside::new();
    let world = World::new(&[("a.test", &["127.0.0.1"])]);
    let site = Site::secure(outside.config(&["a.test"], &["http/1.1"]), hello);
    let port = site.port;
    let lines = [format!("GET a.test:{port}/repos/**")];
    let mut setup = setup(rules(&[&lines[0]]), &world);
    setup.roots = Some(outside.path().to_owned());
    let Some(inside) = Looking::start(&setup) else {
        return;
    };
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
