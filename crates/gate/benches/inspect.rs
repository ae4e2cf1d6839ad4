//! What it costs to look into requests: bytes, time and requests, each beside the same without it.
//!
//! `cargo bench -p ringfence-gate --bench inspect [-- bytes|latency|requests]`; needs root for a
//! network of its own.
#![allow(clippy::print_stdout, reason = "the figures are what a bench is for")]

#[path = "../tests/integration/kit.rs"]
#[allow(dead_code, reason = "each program uses its own part")]
mod kit;
#[path = "../tests/integration/site.rs"]
#[allow(dead_code, reason = "each program uses its own part")]
mod site;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::time::{Duration, Instant};

use ringfence_model::gate::Setup;
use site::{Looking, Outside, Secure};

const GIGABYTE: usize = 1_000_000_000;

fn main() {
    let only: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let Some(bench) = Bench::new() else { return };
    let wanted = |name: &str| only.is_empty() || only.iter().any(|word| word == name);
    if wanted("bytes") {
        bytes(&bench);
    }
    if wanted("latency") {
        latency(&bench);
    }
    if wanted("requests") {
        requests(&bench);
    }
}

struct Bench {
    inside: Looking,
    outside: Outside,
    port: u16,
}

impl Bench {
    fn new() -> Option<Self> {
        let outside = Outside::new();
        let config = outside.config(&["a.test"], &["http/1.1"]);
        let port = kit::server(move |stream| {
            stream.set_nodelay(true).expect("a socket");
            let connection = rustls::ServerConnection::new(config.clone()).expect("a connection");
            serve(BufReader::new(rustls::StreamOwned::new(connection, stream)));
        });
        let world = kit::World::new(&[("a.test", &["127.0.0.1"])]);
        let mut setup: Setup = kit::setup(kit::rules(&[&format!("GET a.test:{port}/**")]), &world);
        setup.roots = Some(outside.path().to_owned());
        Some(Self {
            inside: Looking::start(&setup, &[])?,
            outside,
            port,
        })
    }

    fn direct(&self) -> Secure {
        let stream = kit::connect([127, 0, 0, 1].into(), self.port).expect("it listens");
        site::client(self.outside.path(), "a.test", stream, 1 << 20)
    }
}

/// Answers `/big` with a gigabyte, all else with little.
fn serve(
    mut stream: BufReader<rustls::StreamOwned<rustls::ServerConnection, std::net::TcpStream>>,
) {
    let part = vec![7; 256 << 10];
    let mut line = String::new();
    while stream.read_line(&mut line).is_ok_and(|length| length > 0) {
        let big = line.starts_with("GET /big");
        while line.trim_end() != "" {
            line.clear();
            if stream.read_line(&mut line).is_err() {
                return;
            }
        }
        line.clear();
        let mut left = if big { GIGABYTE } else { 200 };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {left}\r\n\r\n");
        let mut first = head.into_bytes();
        if !big {
            first.extend_from_slice(&part[..left]);
            left = 0;
        }
        if stream.get_mut().write_all(&first).is_err() {
            return;
        }
        while left > 0 {
            let length = left.min(part.len());
            if stream.get_mut().write_all(&part[..length]).is_err() {
                return;
            }
            left -= length;
        }
        if stream.get_mut().flush().is_err() {
            return;
        }
    }
}

/// Asks for a path and reads the whole answer.
fn get(stream: &mut Secure, port: u16, path: &str) -> usize {
    let ask = format!("GET {path} HTTP/1.1\r\nHost: a.test:{port}\r\n\r\n");
    stream.write_all(ask.as_bytes()).expect("it reads");
    stream.flush().expect("it reads");
    let mut part = vec![0; 256 << 10];
    let mut head = Vec::new();
    let (mut left, total) = loop {
        let length = stream.read(&mut part).expect("an answer");
        assert!(length > 0, "an answer");
        head.extend_from_slice(&part[..length]);
        let text = String::from_utf8_lossy(&head);
        if let Some(end) = text.find("\r\n\r\n") {
            assert!(text.starts_with("HTTP/1.1 200"), "{text}");
            let said = text
                .lines()
                .find_map(|line| line.strip_prefix("Content-Length: "));
            let total: usize = said.and_then(|own| own.parse().ok()).expect("a length");
            break (total - (head.len() - end - 4), total);
        }
    };
    while left > 0 {
        left -= stream.read(&mut part).expect("the rest");
    }
    total
}

fn bytes(bench: &Bench) {
    let port = bench.port;
    let read = move |mut stream: Secure| {
        let began = Instant::now();
        assert_eq!(get(&mut stream, port, "/big"), GIGABYTE);
        1.0 / began.elapsed().as_secs_f64()
    };
    for _ in 0..3 {
        let direct = read(bench.direct());
        let stream = bench.inside.secure("a.test", port, 1 << 20);
        let through = bench.inside.gate.inside(move || read(stream));
        println!(
            "intercepted: 1 GB at {through:.2} GB/s, direct TLS {direct:.2} GB/s: {:.2} ×",
            through / direct
        );
    }
    let url = format!("https://a.test:{port}/big");
    for version in ["--http1.1", "--http2"] {
        let speed = ["-o", "/dev/null", "-w", "%{speed_download}"];
        let (_, through) = bench.inside.curl(&[&speed[..], &[version, &url]].concat());
        println!("intercepted, by curl {version}: {through} B/s");
    }
}

fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn latency(bench: &Bench) {
    let port = bench.port;
    let ask = move |mut stream: Secure| {
        let once = |_| {
            let began = Instant::now();
            get(&mut stream, port, "/small");
            began.elapsed()
        };
        middle((0..2000).map(once).collect())
    };
    let direct = ask(bench.direct());
    let stream = bench.inside.secure("a.test", port, 1 << 20);
    let through = bench.inside.gate.inside(move || ask(stream));
    println!(
        "latency: a request p50 {through:?}, direct TLS {direct:?}: {:?} more",
        through.saturating_sub(direct)
    );
}

fn requests(bench: &Bench) {
    let port = bench.port;
    let began = Instant::now();
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let mut stream = bench.inside.secure("a.test", port, 1 << 20);
            bench.inside.gate.inside.spawn(move || {
                for _ in 0..1000 {
                    get(&mut stream, port, "/small");
                }
            })
        })
        .collect();
    for client in clients {
        client.join().expect("no panic");
    }
    let each_second = 8000.0 / began.elapsed().as_secs_f64();
    println!("requests: {each_second:.0}/s, clients and host on the same machine");
}
