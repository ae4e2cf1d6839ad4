//! Package indexes: hosts that they name, and artefacts that are fetched once for all sandboxes.

use std::io::Write as _;
use std::path::Path;

use ringfence_model::gate::{Happened, Index, IndexKind, Mock, Setup, Traffic};
use ringfence_model::host::Host;
use ringfence_model::policy::network::Reason;

use crate::kit;
use crate::site;
use kit::{World, rules, setup};
use site::{Looking, Outside, Saw, Site, answer};

/// An index of Python packages and the host that its files are at, which no rule names.
struct Shop {
    outside: Outside,
    world: World,
    index: Site,
    files: Site,
}

impl Shop {
    fn new() -> Self {
        let outside = Outside::new();
        let world = World::new(&[("*.test", &["127.0.0.1"])]);
        let files = Site::secure(outside.config(&["files.test"], &["http/1.1"]), file);
        let port = files.port;
        let index = Site::secure(outside.config(&["index.test"], &["http/1.1"]), move |saw| {
            page(saw, port)
        });
        Self {
            outside,
            world,
            index,
            files,
        }
    }

    fn setup(&self, cache: Option<&Path>) -> Setup {
        let rule = format!("index.test:{}", self.index.port);
        let mut setup = setup(rules(&[&rule]), &self.world);
        setup.roots = Some(self.outside.path().to_owned());
        setup.indexes = vec![Index {
            kind: IndexKind::Simple,
            host: Host::parse("index.test").expect("a host"),
            port: self.index.port,
            public: true,
        }];
        setup.cache = cache.map(Path::to_owned);
        setup
    }

    fn page_url(&self) -> String {
        format!("https://index.test:{}/simple/a/", self.index.port)
    }

    fn file_url(&self, name: &str) -> String {
        format!("https://files.test:{}/{name}", self.files.port)
    }
}

fn file(saw: &Saw) -> Vec<u8> {
    let path = saw.path();
    match path {
        "/private.whl" => answer("200 OK", "Cache-Control: private\r\n", b"private"),
        "/gone.whl" => answer("404 Not Found", "", b"gone"),
        "/cut.whl" => {
            b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nConnection: close\r\n\r\ncut".to_vec()
        }
        _ => {
            // A host that lets a field of the request decide what it answers.
            let other = saw.field("x-forwarded-host").unwrap_or("none");
            answer(
                "200 OK",
                "Content-Type: x/wheel\r\n",
                format!("file {path} {other}").as_bytes(),
            )
        }
    }
}

fn page(saw: &Saw, port: u16) -> Vec<u8> {
    let html = format!("<a href=\"https://files.test:{port}/a.whl#sha256=0\">a.whl</a>");
    let json = format!("{{\"files\":[{{\"url\":\"https://files.test:{port}/a.whl\"}}]}}");
    let kind = |kind: &str| format!("Content-Type: {kind}\r\nETag: \"1\"\r\n");
    match saw.path() {
        _ if saw.field("if-none-match").is_some() => answer("304 Not Modified", "", b""),
        "/simple/a/"
            if saw
                .field("accept-encoding")
                .is_some_and(|own| own.contains("gzip")) =>
        {
            let mut zip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            zip.write_all(html.as_bytes()).expect("memory");
            let fields = kind("text/html") + "Content-Encoding: gzip\r\n";
            answer("200 OK", &fields, &zip.finish().expect("memory"))
        }
        "/simple/a/" => answer("200 OK", &kind("text/html"), html.as_bytes()),
        "/simple/json/" => answer(
            "200 OK",
            &kind("application/vnd.pypi.simple.v1+json"),
            json.as_bytes(),
        ),
        "/project/a/" => answer("200 OK", &kind("text/html"), html.as_bytes()),
        "/pkg/a.tar.gz" => answer(
            "302 Found",
            &format!("Location: https://files.test:{port}/a.tar.gz\r\n"),
            b"",
        ),
        _ => answer("404 Not Found", "", b""),
    }
}

#[test]
fn files_come_from_where_the_index_says() {
    for (arguments, path) in [
        (vec!["--http1.1"], "/simple/a/"),
        (vec!["--http2"], "/simple/a/"),
        (vec!["--compressed"], "/simple/a/"),
        (
            vec!["-H", "Accept-Encoding: gzip, br, zstd", "-o", "/dev/null"],
            "/simple/a/",
        ),
        (vec!["-H", "If-None-Match: \"1\""], "/simple/a/"),
        (vec![], "/simple/json/"),
        (vec![], "/pkg/a.tar.gz"),
    ] {
        let shop = Shop::new();
        let Some(inside) = Looking::start(&shop.setup(None), &[]) else {
            return;
        };
        // Before, nobody may.
        let (code, _) = inside.curl(&[&shop.file_url("a.whl")]);
        assert_ne!(code, 0);
        inside.gate.denied("files.test", Reason::Host);
        let url = format!("https://index.test:{}{path}", shop.index.port);
        let (code, text) = inside.curl(&[&arguments[..], &[&url]].concat());
        assert_eq!(code, 0, "{text}");
        let seen = inside.gate.seen(|own| own.host.0 == b"files.test");
        assert_eq!(
            seen.result,
            Happened::Learned {
                index: Host::parse("index.test").expect("a host")
            }
        );
        assert_eq!(seen.from.as_deref(), Some("named by index.test"));
        // Now everybody may, to read.
        let (code, text) = inside.curl(&[&shop.file_url("a.whl")]);
        assert_eq!((code, text.as_str()), (0, "file /a.whl none"));
        let (_, text) = inside.curl(&["-d", "x", &shop.file_url("upload")]);
        assert!(text.contains("\"reason\":\"method\""), "{text}");
        assert_eq!(shop.files.saw().len(), 1);
    }
}

#[test]
fn what_anybody_may_write_names_nobody() {
    let shop = Shop::new();
    let mut setup = shop.setup(None);
    let Some(inside) = Looking::start(&setup, &[]) else {
        return;
    };
    let url = format!("https://index.test:{}/project/a/", shop.index.port);
    assert_eq!(inside.curl(&[&url]).0, 0);
    assert_ne!(inside.curl(&[&shop.file_url("a.whl")]).0, 0);
    // Nor does a host that is no index, or a rule that denies give way.
    setup
        .rules
        .0
        .push(kit::rule(&format!("deny files.test:{}", shop.files.port)));
    let Some(inside) = Looking::start(&setup, &[]) else {
        return;
    };
    assert_eq!(inside.curl(&[&shop.page_url()]).0, 0);
    assert_ne!(inside.curl(&[&shop.file_url("a.whl")]).0, 0);
    assert!(shop.files.saw().is_empty());
}

fn cached(all: &[Traffic]) -> usize {
    let own = |own: &&Traffic| matches!(own.result, Happened::Allowed { cached: true, .. });
    all.iter().filter(own).count()
}

#[test]
fn an_artefact_is_fetched_once_for_all_sandboxes() {
    let shop = Shop::new();
    let folder = tempfile::tempdir().expect("a folder");
    let setup = shop.setup(Some(folder.path()));
    let mut hits = Vec::new();
    for version in ["--http1.1", "--http2", "--http1.1"] {
        let Some(inside) = Looking::start(&setup, &[]) else {
            return;
        };
        assert_eq!(inside.curl(&[&shop.page_url()]).0, 0);
        let (code, text) =
            inside.curl(&[version, "-w", " %{content_type}", &shop.file_url("a.whl")]);
        assert_eq!((code, text.as_str()), (0, "file /a.whl none x/wheel"));
        hits.push(cached(&inside.gate.end()));
    }
    assert_eq!(hits, [0, 1, 1]);
    assert_eq!(shop.files.saw().len(), 1);
    // What was changed on the disk is fetched again.
    for entry in std::fs::read_dir(folder.path().join("contents")).expect("a folder") {
        std::fs::write(entry.expect("a file").path(), b"evil").expect("room");
    }
    let Some(inside) = Looking::start(&setup, &[]) else {
        return;
    };
    assert_eq!(inside.curl(&[&shop.page_url()]).0, 0);
    assert_eq!(
        inside.curl(&[&shop.file_url("a.whl")]).1,
        "file /a.whl none"
    );
    assert_eq!(shop.files.saw().len(), 2);
}

#[test]
fn no_sandbox_decides_what_another_gets() {
    let shop = Shop::new();
    let folder = tempfile::tempdir().expect("a folder");
    let setup = shop.setup(Some(folder.path()));
    let Some(inside) = Looking::start(&setup, &[]) else {
        return;
    };
    assert_eq!(inside.curl(&[&shop.page_url()]).0, 0);
    // A field that the host listens to is not passed on where others get the answer.
    let (_, text) = inside.curl(&["-H", "X-Forwarded-Host: evil", &shop.file_url("a.whl")]);
    assert_eq!(text, "file /a.whl none");
    // With a credential, a range or a query, and what is private, missing or cut, nothing is kept.
    for (arguments, name) in [
        (vec!["-H", "Authorization: Bearer x"], "b.whl"),
        (vec!["-b", "s=1"], "b.whl"),
        (vec!["-r", "0-3"], "b.whl"),
        (vec![], "b.whl?x=1"),
        (vec![], "private.whl"),
        (vec![], "gone.whl"),
        (vec![], "cut.whl"),
        (vec!["-I"], "b.whl"),
        (vec![], "b.txt"),
    ] {
        inside.curl(&[&arguments[..], &[&shop.file_url(name)]].concat());
    }
    let kept = std::fs::read_dir(folder.path().join("urls")).expect("a folder");
    assert_eq!(kept.count(), 1);
    let partial = std::fs::read_dir(folder.path().join("partial")).expect("a folder");
    assert_eq!(partial.count(), 0);
    // A double's answer is nobody's artefact.
    let double = Site::plain(|_| answer("200 OK", "", b"evil"));
    let mut mocked = setup.clone();
    mocked.mocks = vec![Mock {
        host: Host::parse("index.test").expect("a host"),
        to: ([127, 0, 0, 1], double.port).into(),
    }];
    let Some(inside) = Looking::start(&mocked, &[]) else {
        return;
    };
    let url = format!("https://index.test:{}/x.whl", shop.index.port);
    assert_eq!(inside.curl(&[&url]).1, "evil");
    // Nor is what a private index has.
    let mut private = shop.setup(Some(folder.path()));
    private.indexes[0].public = false;
    let Some(inside) = Looking::start(&private, &[]) else {
        return;
    };
    assert_eq!(inside.curl(&[&shop.page_url()]).0, 0);
    assert_eq!(inside.curl(&[&shop.file_url("c.whl")]).0, 0);
    let kept = std::fs::read_dir(folder.path().join("urls")).expect("a folder");
    assert_eq!(kept.count(), 1);
}
