//! Streams of hosts that get a secret.

use ringfence_model::gate::{BoundSecret, Setup};
use ringfence_model::host::HostPattern;

use crate::kit::{World, rules, setup};
use crate::site::{Looking, Outside, Saw, Site, answer};

const FAKE: &str = "ghp_FakeFakeFakeFake0123456789";
const REAL: &str = "ghp_RealRealRealReal9876543210";

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
