//! Squashed and copied layers show what the layers showed, whatever was done in them.

#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::os::fd::AsFd as _;

use proptest::prelude::*;
use ringfence_engine::layers;

use crate::shared::again;
use crate::shared::stack;
use crate::shared::within;
use stack::{Stack, seen};
use within::within;

/// Each rule of the overlay by itself: the base, and what each generation does.
const RULES: &[(&str, &[&str])] = &[
    ("echo 1 > f", &["echo 2 > f", "rm f", "echo 3 > f"]),
    (
        "mkdir d; echo 1 > d/f",
        &["rm -r d", "mkdir d; echo 2 > d/g"],
    ),
    (
        "mkdir d; echo 1 > d/f",
        &["rm -r d; mkdir d", "echo 2 > d/g"],
    ),
    (
        "mkdir d; echo 1 > d/f",
        &["echo 2 > d/g", "rm -r d; echo file > d"],
    ),
    (
        "echo 1 > d",
        &["rm d; mkdir d; echo 2 > d/f", "rm d/f; echo 3 > d/g"],
    ),
    // Made and removed by the layers alone: not even a whiteout is left.
    (
        "true",
        &[
            "mkdir d; echo 1 > d/f; echo 1 > d/g",
            "rm d/f",
            "echo 3 > d/h",
        ],
    ),
    ("true", &["mkdir d; echo 1 > d/f", "rm -r d"]),
    // A whiteout whose directory is there in the base, and one whose is not.
    (
        "mkdir d; echo 1 > d/f",
        &["mkdir e; echo 1 > e/f", "rm d/f e/f"],
    ),
    // A file between two directories.
    (
        "mkdir -p d/e; echo 1 > d/e/f",
        &["rm -r d; echo 1 > d", "rm d; mkdir -p d/e; echo 2 > d/e/g"],
    ),
    // Opaque over merged over opaque.
    (
        "mkdir -p d/e; echo 1 > d/e/f",
        &[
            "rm -r d/e; mkdir d/e; echo 2 > d/e/g",
            "echo 3 > d/e/h; rm d/e/g",
            "rm -r d/e; mkdir d/e",
        ],
    ),
    (
        "ln -s /etc d",
        &["rm d; mkdir d; echo 1 > d/passwd", "rm -r d; ln -s /etc d"],
    ),
    (
        "mkdir d; chmod 755 d",
        &["chmod 700 d", "touch -d @1000000000.5 d", "echo 1 > d/f"],
    ),
    (
        "echo 1 > f; ln f g",
        &["echo 2 >> g", "ln f h; ln g i", "rm f"],
    ),
    (
        "true",
        &[
            "mkfifo p; echo 1 > f; chmod 4711 f",
            "rm p; mkfifo p q",
            "mv f g",
        ],
    ),
];

#[test]
fn every_rule_holds_in_every_range() {
    for (base, generations) in RULES {
        let mut stack = Stack::new(base);
        for work in *generations {
            stack.generation(work);
        }
        check_all(&stack);
    }
}

/// Everything that must be true of a stack, in every range of it.
fn check_all(stack: &Stack) {
    let last = stack.live.last().unwrap();
    let all = stack.view(&stack.names(0..stack.count));
    assert_eq!(layers::digest(all.as_fd()).unwrap(), *last);
    for start in 0..stack.count {
        for end in start + 1..=stack.count {
            stack.check_merge(start..end);
        }
    }
    for number in 0..stack.count {
        let (from, to) = (number.to_string(), format!("copy-{number}"));
        stack.copy(&from, &to);
        assert_eq!(stack.digest(&from), stack.digest(&to));
    }
    let copies: Vec<_> = (0..stack.count)
        .rev()
        .map(|n| format!("copy-{n}"))
        .collect();
    assert_eq!(seen(&all), seen(&stack.view(&copies)));
    let names = [stack.names(0..stack.count), vec!["base".to_owned()]].concat();
    let fds: Vec<_> = names.iter().map(|name| stack.open(name)).collect();
    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    let parent = stack.open(".");
    layers::merge(&fds, None, parent.as_fd(), b"plain").unwrap();
    assert_eq!(
        stack.digest("plain"),
        *last,
        "with the base it is a plain tree"
    );
}

/// Few names, so that files, directories and links often meet at one path.
const NAMES: [&str; 5] = ["a", "b", "ü", "$'\\n'", "-x"];

#[derive(Clone, Debug)]
enum Work {
    Write(Vec<usize>, u8),
    Append(Vec<usize>, u8),
    Remove(Vec<usize>),
    Directory(Vec<usize>),
    Recreate(Vec<usize>, usize),
    Move(Vec<usize>, Vec<usize>),
    Symlink(Vec<usize>, usize),
    HardLink(Vec<usize>, Vec<usize>),
    Mode(Vec<usize>, usize),
    FileToDirectory(Vec<usize>, usize),
    DirectoryToFile(Vec<usize>),
    Fifo(Vec<usize>),
}

fn path() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(0..NAMES.len(), 1..4)
}

fn work() -> impl Strategy<Value = Work> {
    let name = 0..NAMES.len();
    prop_oneof![
        6 => (path(), any::<u8>()).prop_map(|(path, n)| Work::Write(path, n)),
        2 => (path(), any::<u8>()).prop_map(|(path, n)| Work::Append(path, n)),
        4 => path().prop_map(Work::Remove),
        2 => path().prop_map(Work::Directory),
        3 => (path(), name.clone()).prop_map(|(path, name)| Work::Recreate(path, name)),
        2 => (path(), path()).prop_map(|(from, to)| Work::Move(from, to)),
        1 => (path(), name.clone()).prop_map(|(path, to)| Work::Symlink(path, to)),
        1 => (path(), path()).prop_map(|(from, to)| Work::HardLink(from, to)),
        2 => (path(), 0..6_usize).prop_map(|(path, mode)| Work::Mode(path, mode)),
        2 => (path(), name).prop_map(|(path, name)| Work::FileToDirectory(path, name)),
        2 => path().prop_map(Work::DirectoryToFile),
        1 => path().prop_map(Work::Fifo),
    ]
}

/// Each step may fail, as an agent's do; what matters is what is there in the end.
fn script(steps: &[Work]) -> String {
    // As nobody, what a mode closes cannot be compared through a view.
    let modes = if rustix::process::geteuid().is_root() {
        ["700", "000", "4711", "644", "2755", "1777"]
    } else {
        ["700", "755", "4711", "555", "2755", "1777"]
    };
    let name = |path: &[usize]| -> String {
        let parts: Vec<_> = path.iter().map(|&part| NAMES[part]).collect();
        format!("./{}", parts.join("/"))
    };
    let above = |path: &[usize]| match path.split_last() {
        Some((_, above)) if !above.is_empty() => format!("mkdir -p {}; ", name(above)),
        _ => String::new(),
    };
    let mut out = String::from("exec 2>/dev/null\nset +e\n");
    for step in steps {
        let line = match step {
            Work::Write(path, n) => format!("{}echo {n} > {}", above(path), name(path)),
            // Not into a FIFO, which nobody reads.
            Work::Append(path, n) => format!("[ -f {0} ] && echo {n} >> {0}", name(path)),
            Work::Remove(path) => format!("rm -rf {}", name(path)),
            Work::Directory(path) => format!("mkdir -p {}", name(path)),
            Work::Recreate(path, below) => format!(
                "[ -d {0} ] && rm -rf {0} && mkdir {0} && echo new > {0}/{1}",
                name(path),
                NAMES[*below]
            ),
            Work::Move(from, to) => format!("{}mv -T {} {}", above(to), name(from), name(to)),
            Work::Symlink(path, to) => {
                format!("{}ln -sfn {} {}", above(path), NAMES[*to], name(path))
            }
            Work::HardLink(from, to) => format!("{}ln {} {}", above(to), name(from), name(to)),
            Work::Mode(path, mode) => {
                format!("[ -L {0} ] || chmod {1} {0}", name(path), modes[*mode])
            }
            Work::FileToDirectory(path, below) => format!(
                "[ -f {0} ] && rm {0} && mkdir {0} && echo in > {0}/{1}",
                name(path),
                NAMES[*below]
            ),
            Work::DirectoryToFile(path) => {
                format!("[ -d {0} ] && rm -rf {0} && echo file > {0}", name(path))
            }
            Work::Fifo(path) => format!("{}mkfifo {}", above(path), name(path)),
        };
        // Writing into a FIFO would wait for a reader.
        match step {
            Work::Write(path, _) => writeln!(out, "[ -p {} ] || {{ {line}; }}", name(path)),
            _ => writeln!(out, "{line}"),
        }
        .unwrap();
    }
    out + "true\n"
}

fn cases() -> u32 {
    let asked = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok());
    asked.unwrap_or(25)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(), max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn random_generations_show_the_same(
        base in proptest::collection::vec(work(), 0..20),
        generations in proptest::collection::vec(proptest::collection::vec(work(), 1..20), 2..5),
    ) {
        within(120, move || {
            let mut stack = Stack::new(&script(&base));
            for work in &generations {
                stack.generation(&script(work));
            }
            check_all(&stack);
        });
    }
}

#[test]
fn everything_again() {
    again::as_nobody(
        module_path!(),
        again::USUAL_DESCRIPTORS,
        &["a_hundred_thousand"],
    );
}
