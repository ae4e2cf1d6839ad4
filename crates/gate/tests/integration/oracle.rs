//! A host that repeats what a request says, and a sandbox that guesses at the value of a secret: what comes back does
//! not tell a right guess from a wrong one until the guess is the whole value.

use std::io::{BufReader, Read as _, Write as _};
use std::net::IpAddr;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use ringfence_model::gate::{BoundSecret, Setup};
use ringfence_model::host::HostPattern;

use crate::kit::{World, rules, setup};
use crate::site::{Looking, Outside, Saw, Secure, Site, answer};
use crate::two;

/// Secrets, and guesses at the beginning of each: 1,000 in all.
const SECRETS: usize = 10;
const GUESSES: usize = 100;
/// BOUND: how many pairs of equally long answers may look different because the machine was busy for 20 ms in the
/// middle of one.
const BUSY: usize = 10;

/// An error page that ends with the path that was asked for, framed as the path says.
fn not_found(saw: &Saw) -> Vec<u8> {
    let path = saw.path();
    let page = format!("{}nothing is at {path}", "<br>".repeat(path.len() % 400));
    let chunked = |coding: &str, page: &[u8]| {
        let fields = format!("Transfer-Encoding: chunked\r\n{coding}");
        let mut bytes = format!("HTTP/1.1 404 Not Found\r\n{fields}\r\n").into_bytes();
        for chunk in page.chunks(7) {
            bytes.extend(format!("{:x}\r\n", chunk.len()).bytes());
            bytes.extend([chunk, b"\r\n"].concat());
        }
        bytes.extend(format!("0\r\nX-Path: {path}\r\n\r\n").bytes());
        bytes
    };
    match path.as_bytes().get(1) {
        Some(b'c') => chunked("", page.as_bytes()),
        Some(b'g') => {
            let mut coder = GzEncoder::new(Vec::new(), Compression::none());
            coder.write_all(page.as_bytes()).expect("memory");
            chunked(
                "Content-Encoding: gzip\r\n",
                &coder.finish().expect("memory"),
            )
        }
        _ => answer(
            "404 Not Found",
            &format!("X-Path: {path}\r\n"),
            page.as_bytes(),
        ),
    }
}

fn bound_setup(outside: &Outside, port: u16, length: usize) -> Setup {
    let world = World::new(&[("api.test", &["127.0.0.1"])]);
    let mut setup = setup(rules(&[&format!("api.test:{port}/**")]), &world);
    setup.roots = Some(outside.path().to_owned());
    setup.secrets = vec![BoundSecret {
        name: "TOKEN".to_owned(),
        placeholder: "p".repeat(length),
        hosts: vec![HostPattern::parse("api.test").expect("a host")],
        methods: Vec::new(),
        path: None,
        header: "Authorization: Bearer {}".to_owned(),
    }];
    setup
}

/// A right guess and two wrong ones, all of the same length, with the framing that they ask for.
type Guess = [String; 3];

fn guesses(secret: &str, runner: &mut TestRunner) -> Vec<Guess> {
    let mut draw = |pattern: String| {
        let strategy = proptest::string::string_regex(&pattern).expect("a pattern");
        strategy.new_tree(runner).expect("a text").current()
    };
    let mut next = |number: usize| {
        let kind = ["c", "g", "l"][number % 3];
        let before = draw("[a-z]{0,900}".to_owned());
        let length = 1 + number % (secret.len() - 1);
        // No wrong guess has its first character right.
        let wrong = [(); 2].map(|()| draw(format!("[0-9]{{{length}}}")));
        let [one, other] = wrong.map(|wrong| format!("/{kind}/{before}/{wrong}"));
        [
            format!("/{kind}/{before}/{}", &secret[..length]),
            one,
            other,
        ]
    };
    (0..GUESSES).map(&mut next).collect()
}

/// The sizes of all pieces in which an answer of HTTP/1 comes.
fn sizes(stream: &mut BufReader<Secure>, path: &str, port: u16) -> Vec<usize> {
    let head = format!("GET {path} HTTP/1.1\r\nHost: api.test:{port}\r\n\r\n");
    stream
        .get_mut()
        .write_all(head.as_bytes())
        .expect("the gate reads");
    stream.get_mut().flush().expect("the gate reads");
    let mut line = || {
        let mut line = Vec::new();
        let mut byte = [0];
        while !line.ends_with(b"\r\n") {
            stream.read_exact(&mut byte).expect("more comes");
            line.push(byte[0]);
        }
        line.truncate(line.len() - 2);
        String::from_utf8(line).expect("plain text")
    };
    let mut sizes = Vec::new();
    loop {
        let field = line();
        sizes.push(field.len());
        assert!(
            !field.to_lowercase().starts_with("content-length"),
            "{field}"
        );
        if field.is_empty() {
            break;
        }
    }
    loop {
        let size = usize::from_str_radix(&line(), 16).expect("a chunk");
        sizes.push(size);
        if size == 0 {
            assert_eq!(line(), "");
            return sizes;
        }
        // The text has no line break of its own.
        assert_eq!(line().len(), size);
    }
}

/// The same for HTTP/2: heads and DATA frames.
async fn sizes_of_frames(asking: two::Asking, path: &str, port: u16) -> (Vec<usize>, two::Asking) {
    let (answer, asking) = two::get(asking, "api.test", port, path).await;
    let (head, mut body) = answer.await.expect("a head").into_parts();
    let fields = head.headers.iter();
    let mut sizes: Vec<usize> = fields
        .map(|(name, value)| name.as_str().len() + value.len())
        .collect();
    while let Some(piece) = body.data().await {
        let length = piece.as_ref().map(Bytes::len).expect("open");
        body.flow_control()
            .release_capacity(length)
            .expect("it came");
        sizes.push(length);
    }
    (sizes, asking)
}

/// How many answers to right guesses, and to wrong ones, had other sizes than those to other wrong guesses.
fn different(all: &[[Vec<usize>; 3]]) -> (usize, usize) {
    let count = |which: usize| all.iter().filter(|sizes| sizes[which] != sizes[2]).count();
    (count(0), count(1))
}

fn measure(inside: &Looking, port: u16, guesses: &[Guess]) -> Vec<[Vec<usize>; 3]> {
    let stream = inside.secure("api.test", port, 1 << 14);
    let guesses = guesses.to_vec();
    inside.gate.inside(move || {
        let mut stream = BufReader::new(stream);
        let mut one = |path: &String| sizes(&mut stream, path, port);
        guesses
            .iter()
            .map(|guess| guess.each_ref().map(&mut one))
            .collect()
    })
}

fn measure_http2(inside: &Looking, port: u16, guesses: &[Guess]) -> Vec<[Vec<usize>; 3]> {
    let trusts = two::trusts(inside);
    let address: IpAddr = inside
        .gate
        .lookup("api.test")
        .expect("it is allowed")
        .into();
    let guesses = guesses.to_vec();
    let talk = two::ask(inside, move || async move {
        let mut asking = two::connection(&trusts, "api.test", (address, port)).await;
        let mut all = Vec::new();
        for guess in guesses {
            let mut three = Vec::new();
            for path in &guess {
                let (sizes, again) = sizes_of_frames(asking, path, port).await;
                three.push(sizes);
                asking = again;
            }
            all.push(three.try_into().expect("three"));
        }
        all
    });
    talk.join().expect("no panic")
}

#[test]
fn sizes_of_answers_do_not_tell_a_right_guess_from_a_wrong_one() {
    let mut runner = TestRunner::deterministic();
    let outside = Outside::new();
    let site = Site::secure(outside.config(&["api.test"], &["http/1.1"]), not_found);
    let port = site.port;
    let (mut right, mut wrong) = (0, 0);
    for _ in 0..SECRETS {
        let secret = proptest::string::string_regex("ghp_[A-Za-z0-9]{8,60}").expect("a pattern");
        let secret = secret.new_tree(&mut runner).expect("a secret").current();
        let setup = bound_setup(&outside, port, secret.len());
        let Some(inside) = Looking::start(&setup, &[&secret]) else {
            return;
        };
        let guesses = guesses(&secret, &mut runner);
        let (one, two) = guesses.split_at(GUESSES / 2);
        for all in [
            measure(&inside, port, one),
            measure_http2(&inside, port, two),
        ] {
            let (of_right, of_wrong) = different(&all);
            (right, wrong) = (right + of_right, wrong + of_wrong);
        }
    }
    println!(
        "of {} answers, other sizes: {right} right, {wrong} wrong",
        SECRETS * GUESSES
    );
    assert!(right <= wrong + BUSY && wrong <= BUSY, "{right} {wrong}");
}
