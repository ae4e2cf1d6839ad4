//! Submodules of hostile repositories: the host connects to the site of the repository that the user
//! named, to hosts of the user's own policy, and to nobody else.

#![allow(clippy::unwrap_used)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use ringfence_engine::base::{self, Base};
use ringfence_engine::mirror::Silent;
use ringfence_model::policy::Line;
use ringfence_model::policy::network::Origin;
use ringfence_model::policy::sources::Sources;

use crate::shared::mirror_bench as bench;
use bench::{Bench, Server};

/// A service that nobody may connect to.
struct Untouched {
    at: SocketAddr,
    connected: Receiver<SocketAddr>,
}

impl Untouched {
    fn at(address: &str) -> Self {
        let listener = TcpListener::bind((address, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        let (tell, connected) = mpsc::channel();
        thread::spawn(move || {
            while let Ok((_, from)) = listener.accept() {
                if tell.send(from).is_err() {
                    break;
                }
            }
        });
        Self { at, connected }
    }

    /// Connections are accepted in their order: one of our own is behind all that were before.
    fn check(&self) {
        let own = TcpStream::connect(self.at).unwrap();
        let first = self.connected.recv().unwrap();
        assert_eq!(first, own.local_addr().unwrap(), "there was a connection");
    }
}

/// A server that redirects all that it is asked to another one.
fn redirector(to: SocketAddr) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = [0; 4096];
            let _ = stream.read(&mut head);
            let answer = format!(
                "HTTP/1.1 302 Found\r\nLocation: http://{to}/lib/.git/info/refs?service=git-upload-pack\r\n\
                 Content-Length: 0\r\nConnection: close\r\n\r\n"
            );
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    port
}

/// `srv/lib`, and `srv/app` with a submodule of these addresses, each in a directory of its number.
fn repositories(bench: &Bench, urls: &[String]) {
    let modules: String = urls
        .iter()
        .enumerate()
        .map(|(number, url)| {
            format!("[submodule \"m{number}\"]\n\tpath = m{number}\n\turl = {url}\n")
        })
        .collect();
    std::fs::write(bench.path("modules"), modules).unwrap();
    let count = urls.len();
    bench.sh(&format!(
        "mkdir -p srv; cd srv; rm -rf app; test -d lib || {{ git init -qb main lib; cd lib; echo x > x; \
         git add .; git commit -qm lib; cd ..; }}; id=$(git -C lib rev-parse HEAD); \
         git init -qb main app; cd app; cp ../../modules .gitmodules; git add .; \
         for n in $(seq 0 $(({count} - 1))); do git update-index --add --cacheinfo 160000,$id,m$n; done; \
         git commit -qm app"
    ));
}

fn sources(hosts: &[String]) -> Sources {
    let line = |text: &String| Line {
        text: text.clone(),
        from: Origin::default(),
    };
    Sources {
        repositories: hosts.iter().map(line).collect(),
        ..Sources::default()
    }
}

fn make(bench: &Bench, url: &str, hosts: &[String]) -> Base {
    let resolved = bench.ensure(url, None).unwrap();
    let sources = sources(hosts);
    base::commit_from(&bench.home, &bench.store, &resolved, &sources, &mut Silent).unwrap()
}

fn is_there(base: &Base, number: usize) -> bool {
    let file = base.workspace().join(format!("m{number}/x"));
    std::fs::read(file).is_ok_and(|text| text == b"x\n")
}

#[test]
fn submodules_of_other_servers_are_not_connected_to() {
    let bench = Bench::new();
    let (inner, other) = (Untouched::at("127.0.0.1"), Untouched::at("127.0.0.2"));
    let (port, other_port) = (inner.at.port(), other.at.port());
    bench.sh("mkdir srv");
    let server = Server::start(&bench.path("srv"), "");
    let own = server.url("", "lib/.git");
    let own_port = own.rsplit(':').next().unwrap().split('/').next().unwrap();
    let urls = [
        own.clone(),
        "../../lib/.git".to_owned(),
        format!("http://127.0.0.1:{port}/lib"),
        format!("http://localhost:{port}/lib"),
        format!("http://LOCALHOST:{own_port}/lib/.git"),
        format!("http://127.1:{port}/lib"),
        format!("http://2130706433:{port}/lib"),
        format!("http://[::ffff:127.0.0.1]:{port}/lib"),
        format!("http://127.0.0.2:{other_port}/lib"),
        format!("https://127.0.0.1:{port}/lib"),
        format!("git://127.0.0.1:{port}/lib"),
        format!("ssh://git@127.0.0.1:{port}/lib"),
        format!("../../../127.0.0.1:{port}/lib"),
        format!("../../../../127.0.0.1:{port}/lib"),
        "http://169.254.169.254/lib".to_owned(),
        "https://beacon.example/id-4711".to_owned(),
        "git@beacon.example:id-4711".to_owned(),
    ];
    repositories(&bench, &urls);
    let url = server.url("", "app/.git");
    let first = make(&bench, &url, &[]);
    inner.check();
    other.check();
    for (number, url) in urls.iter().enumerate() {
        assert_eq!(
            is_there(&first, number),
            number < 2,
            "{url} {:#?}",
            first.notes
        );
    }
    // One note each, with the host and the fix where there is one.
    assert_eq!(first.notes.len(), urls.len() - 2, "{:#?}", first.notes);
    let of = |number: usize| {
        let name = format!("`m{number}`");
        first
            .notes
            .iter()
            .find(|note| note.contains(&name))
            .unwrap()
    };
    assert!(
        of(2).contains(&format!("hosts = [\"127.0.0.1:{port}\"]")),
        "{}",
        of(2)
    );
    assert!(
        of(15).contains("hosts = [\"beacon.example\"]"),
        "{}",
        of(15)
    );
    // The next who asks tries again, and is refused again.
    assert_eq!(make(&bench, &url, &[]).id, first.id);
    inner.check();
    other.check();
}

#[test]
fn hosts_of_the_users_policy_are_fetched_from() {
    let bench = Bench::new();
    bench.sh("mkdir srv other");
    let server = Server::start(&bench.path("srv"), "");
    let elsewhere = Server::start(&bench.path("other"), "");
    let there = elsewhere.url("", "lib/.git");
    let host = there
        .strip_prefix("http://")
        .unwrap()
        .split('/')
        .next()
        .unwrap()
        .to_owned();
    repositories(&bench, std::slice::from_ref(&there));
    bench.sh("cp -r srv/lib other");
    let url = server.url("", "app/.git");
    let first = make(&bench, &url, &[]);
    assert!(!is_there(&first, 0));
    assert_eq!(elsewhere.conversations(), 0);
    let second = make(&bench, &url, &[host]);
    assert!(is_there(&second, 0), "{:?}", second.notes);
    assert_ne!(second.id, first.id);
}

#[test]
fn a_redirect_of_a_submodule_is_not_followed() {
    let bench = Bench::new();
    let inner = Untouched::at("127.0.0.1");
    let port = redirector(inner.at);
    repositories(&bench, &[format!("http://127.0.0.1:{port}/lib")]);
    let server = Server::start(&bench.path("srv"), "");
    let base = make(
        &bench,
        &server.url("", "app/.git"),
        &[format!("127.0.0.1:{port}")],
    );
    inner.check();
    assert!(!is_there(&base, 0));
    assert!(base.notes[0].contains("`m0` is empty"), "{:?}", base.notes);
}

#[test]
fn a_repository_of_this_machine_names_no_server() {
    let bench = Bench::new();
    let inner = Untouched::at("127.0.0.1");
    let url = format!("http://{}/lib", inner.at);
    repositories(&bench, &[url, "https://beacon.example/lib".to_owned()]);
    let path = bench.path("srv/app");
    let base = make(&bench, path.to_str().unwrap(), &[]);
    inner.check();
    assert_eq!(base.notes.len(), 2, "{:?}", base.notes);
}
