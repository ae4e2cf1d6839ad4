//! Random folders, random work on them: the patch always makes the same tree.

#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;

use proptest::prelude::*;
use ringfence_model::changes::WhyOmitted;

use crate::shared::cases;
use crate::shared::overlay as changes_overlay;
use crate::shared::within;
use changes_overlay::{Scene, summary};
use within::within;

/// Few names, so that files, directories and links often meet at one path.
const NAMES: [&str; 8] = ["a", "b", "a b", "ü", "$'\\n'", "'\"'", "-x", "c.txt"];

#[derive(Clone, Debug)]
enum Work {
    Write(Vec<usize>, Vec<u8>),
    Append(Vec<usize>, Vec<u8>),
    Remove(Vec<usize>),
    Link(Vec<usize>, usize),
    Move(Vec<usize>, Vec<usize>),
    Mode(Vec<usize>, u32),
    Directory(Vec<usize>),
    Lines(Vec<usize>, u32, u32),
}

fn path() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(0..NAMES.len(), 1..4)
}

fn content() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![8 => Just(b'x'), 8 => Just(b'\n'), 4 => any::<u8>(), 1 => Just(0)];
    proptest::collection::vec(byte, 0..60)
}

fn work() -> impl Strategy<Value = Work> {
    prop_oneof![
        4 => (path(), content()).prop_map(|(path, bytes)| Work::Write(path, bytes)),
        4 => (path(), 1..60_u32, 0..9_u32).prop_map(|(path, n, cut)| Work::Lines(path, n, cut)),
        2 => (path(), content()).prop_map(|(path, bytes)| Work::Append(path, bytes)),
        3 => path().prop_map(Work::Remove),
        1 => (path(), 0..NAMES.len()).prop_map(|(path, to)| Work::Link(path, to)),
        3 => (path(), path()).prop_map(|(from, to)| Work::Move(from, to)),
        2 => (path(), prop_oneof![Just(0o755), Just(0o644), Just(0o000), Just(0o4711)])
            .prop_map(|(path, mode)| Work::Mode(path, mode)),
        1 => path().prop_map(Work::Directory),
    ]
}

/// Each step may fail, as an agent's do; what matters is what is there in the end.
fn script(steps: &[Work]) -> String {
    let name = |path: &[usize]| -> String {
        let parts: Vec<_> = path.iter().map(|&part| NAMES[part]).collect();
        format!("./{}", parts.join("/"))
    };
    let octal = |bytes: &[u8]| -> String {
        bytes.iter().fold(String::new(), |mut text, byte| {
            write!(text, "\\{byte:03o}").unwrap();
            text
        })
    };
    let mut out = String::from("exec 2>/dev/null\nset +e\n");
    for step in steps {
        let above = |path: &[usize]| match path.split_last() {
            Some((_, above)) if !above.is_empty() => format!("mkdir -p {}; ", name(above)),
            _ => String::new(),
        };
        let line = match step {
            Work::Write(path, bytes) => {
                format!("{}printf '{}' > {}", above(path), octal(bytes), name(path))
            }
            Work::Append(path, bytes) => format!("printf '{}' >> {}", octal(bytes), name(path)),
            Work::Lines(path, count, cut) => {
                format!(
                    "{}seq {count} | sed {}d > {}",
                    above(path),
                    cut + 1,
                    name(path)
                )
            }
            Work::Remove(path) => format!("rm -rf {}", name(path)),
            Work::Link(path, to) => format!("{}ln -sfn {} {}", above(path), NAMES[*to], name(path)),
            Work::Move(from, to) => format!("{}mv -T {} {}", above(to), name(from), name(to)),
            Work::Mode(path, mode) => format!("[ -L {0} ] || chmod {mode:o} {0}", name(path)),
            Work::Directory(path) => format!("mkdir -p {}", name(path)),
        };
        writeln!(out, "{line}").unwrap();
    }
    out + "true\n"
}

fn round_trips(base: &[Work], work: &[Work]) {
    // The folder is the user's, and readable.
    let readable = "find . -type d -exec chmod u+rwx {} +; find . -type f -exec chmod u+rw {} +";
    let scene = Scene::new(&format!("{}{readable}", script(base)), &script(work));
    let set = scene.compute();
    let carried = |why: WhyOmitted| why == WhyOmitted::NotCarried;
    let all = set.omitted.iter().all(|omitted| carried(omitted.why));
    assert!(all, "{}", summary(&set));
    // Not back again: git itself cannot take back everything.
    scene.check_forward(&set);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases::cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_work_round_trips(
        base in proptest::collection::vec(work(), 0..25),
        work in proptest::collection::vec(work(), 1..25),
    ) {
        within(120, move || round_trips(&base, &work));
    }
}
