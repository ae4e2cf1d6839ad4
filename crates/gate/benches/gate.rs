//! What a gate costs: bytes, time and decisions, each beside the same without one.
//!
//! `cargo bench -p ringfence-gate --bench gate [-- opaque|latency|decisions]`; needs root for a
//! network of its own.

#![allow(clippy::print_stdout, reason = "figures are what it is for")]

#[path = "../tests/integration/kit.rs"]
#[allow(dead_code, reason = "each program uses its own part")]
mod kit;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use kit::{Gate, World, connect, echo_server, question, rules, setup};

const GIGABYTE: usize = 1_000_000_000;

fn main() {
    let only: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let all: [(&str, fn()); 3] = [
        ("opaque", opaque),
        ("latency", latency),
        ("decisions", decisions),
    ];
    for (name, bench) in all {
        if only.is_empty() || only.iter().any(|word| word == name) {
            bench();
        }
    }
}

/// A service behind a gate, and its address inside.
fn service(port: u16) -> Option<(Gate, IpAddr)> {
    let world = World::new(&[("db.test", &["127.0.0.1"])]);
    let gate = Gate::start(&setup(rules(&[&format!("tcp db.test:{port}")]), &world))?;
    let address = IpAddr::V4(gate.lookup("db.test")?);
    Some((gate, address))
}

fn opaque() {
    let port = kit::server(|mut stream| {
        let part = vec![7; 256 << 10];
        let mut left = GIGABYTE;
        while left > 0 {
            let length = left.min(part.len());
            if stream.write_all(&part[..length]).is_err() {
                return;
            }
            left -= length;
        }
    });
    let Some((gate, address)) = service(port) else {
        return;
    };
    let read = move |address: IpAddr| {
        let (began, used) = (Instant::now(), cpu());
        let mut stream = connect(address, port).expect("it listens");
        let mut part = vec![0; 256 << 10];
        let mut all = 0;
        while let Ok(length @ 1..) = stream.read(&mut part) {
            all += length;
        }
        assert_eq!(all, GIGABYTE);
        let speed = GIGABYTE as f64 / 1e9 / began.elapsed().as_secs_f64();
        (speed, (cpu() - used).as_secs_f64())
    };
    for _ in 0..5 {
        let (direct, direct_cpu) = read(Ipv4Addr::LOCALHOST.into());
        let (through, through_cpu) = gate.inside(move || read(address));
        println!(
            "opaque: 1 GB at {through:.2} GB/s, direct {direct:.2} GB/s: {:.2} ×; \
             both ends and the gate used {through_cpu:.2} s of CPU, both ends alone {direct_cpu:.2} s",
            through / direct
        );
    }
}

/// What this process has used: means something also on a machine that others use.
fn cpu() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(used).expect("it is positive")
}

fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn latency() {
    let port = echo_server();
    let Some((gate, address)) = service(port) else {
        return;
    };
    let exchange = |stream: &mut TcpStream| {
        let began = Instant::now();
        stream.write_all(&[1; 200]).expect("it reads");
        stream.read_exact(&mut [0; 200]).expect("an answer");
        began.elapsed()
    };
    let on_one = move |address: IpAddr| {
        let mut stream = connect(address, port).expect("it listens");
        stream.set_nodelay(true).expect("a socket");
        middle((0..2000).map(|_| exchange(&mut stream)).collect())
    };
    let on_new = move |address: IpAddr| {
        let once = |_| {
            let began = Instant::now();
            let mut stream = connect(address, port).expect("it listens");
            exchange(&mut stream);
            began.elapsed()
        };
        middle((0..500).map(once).collect())
    };
    let local = Ipv4Addr::LOCALHOST.into();
    let (direct, through) = (on_one(local), gate.inside(move || on_one(address)));
    println!(
        "latency: an exchange p50 {through:?}, direct {direct:?}: {:?} more",
        through.saturating_sub(direct)
    );
    let (direct, through) = (on_new(local), gate.inside(move || on_new(address)));
    println!(
        "latency: connection, look-up and exchange p50 {through:?}, direct {direct:?}: {:?} more",
        through.saturating_sub(direct)
    );
}

fn decisions() {
    let lines: Vec<String> = (0..100)
        .map(|number| format!("host-{number}.test"))
        .collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let world = World::new(&[]);
    let Some(gate) = Gate::start(&setup(rules(&lines), &world)) else {
        return;
    };
    const COUNT: usize = 100_000;
    for name in ["host-99.test", "denied.test"] {
        let message = question(name, 1);
        let taken = gate.inside(move || {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
            socket.connect("127.64.0.1:53").expect("it is there");
            let began = Instant::now();
            let mut answer = [0; 512];
            // Some are on their way while others are decided.
            for number in 0..COUNT + 32 {
                if number < COUNT {
                    socket.send(&message).expect("it is there");
                }
                if number >= 32 {
                    socket.recv(&mut answer).expect("an answer");
                }
            }
            began.elapsed()
        });
        let each_second = COUNT as f64 / taken.as_secs_f64();
        println!("decisions: {each_second:.0} names/s of `{name}` among 100 rules");
    }
    const REFUSED: usize = 5_000;
    let taken = gate.inside(|| {
        let began = Instant::now();
        for _ in 0..REFUSED {
            let mut stream = connect([127, 64, 0, 1].into(), 3128).expect("it listens");
            stream
                .write_all(b"CONNECT denied.test:443 HTTP/1.1\r\n\r\n")
                .expect("it reads");
            assert!(kit::read_all(&mut stream).starts_with(b"HTTP/1.1 403 "));
        }
        began.elapsed()
    });
    let each_second = REFUSED as f64 / taken.as_secs_f64();
    println!("decisions: {each_second:.0} refused connections/s, one after the other");
}
