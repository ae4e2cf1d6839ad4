//! What the guest sees of the processes inside: every exec as the kernel did it, every change of a
//! file with who made it, and nothing that the agent says.

#![allow(clippy::unwrap_used)]

use crate::shared::again;
use crate::shared::guest_bench as bench;
mod evasions;
mod execs;
mod hostile;
mod writes;

use bench::{Bench, sh};
use ringfence_engine::client::Message;
use ringfence_engine::evidence::{Evidence, Ran};
use ringfence_model::wire::Notice;

impl Bench {
    /// Runs a line to its end; gives what was seen of it, and what it wrote.
    fn watch(&mut self, line: &str) -> (Evidence, String) {
        let done = self.run(sh(line));
        let mut evidence = Evidence::default();
        for message in self.take_seen() {
            if let Message::Notice(_, Notice::Observed(observed)) = message {
                evidence.take(0, observed, std::convert::identity);
            }
        }
        let said = [done.stdout, done.stderr].concat();
        (evidence, String::from_utf8_lossy(&said).into_owned())
    }
}

/// The execs whose arguments begin with these.
fn ran<'a>(evidence: &'a Evidence, argv: &[&str]) -> Vec<&'a Ran> {
    let begins = |ran: &&Ran| {
        ran.exec.argv.len() >= argv.len()
            && ran
                .exec
                .argv
                .iter()
                .zip(argv)
                .all(|(is, wanted)| is.as_bytes() == wanted.as_bytes())
    };
    evidence.execs.values().filter(begins).collect()
}

/// The one such exec.
fn one<'a>(evidence: &'a Evidence, argv: &[&str]) -> &'a Ran {
    match ran(evidence, argv).as_slice() {
        [one] => one,
        found => panic!("{} of {argv:?} among {:#?}", found.len(), evidence.execs),
    }
}

/// Makes a program inside from C, beside the workspace.
fn compile(bench: &mut Bench, name: &str, source: &str) {
    let line = format!(
        "cat > /tmp/{name}.c <<'END'\n{source}\nEND\ncc -O1 -w -pthread -o /tmp/{name} /tmp/{name}.c"
    );
    let (_, said) = bench.watch(&line);
    assert_eq!(said, "");
}

/// As root the guest is somebody else than the agent; rootless it is not. Both are tested.
#[test]
fn everything_again_without_privileges() {
    again::as_nobody(module_path!(), again::SAME_LIMITS, &[]);
}
