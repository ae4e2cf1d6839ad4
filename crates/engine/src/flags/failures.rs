//! The same command, failing again and again; and programs of which not all is known.

use std::collections::BTreeMap;

use ringfence_model::ByteText;
use ringfence_model::flag::{FlagKind, Severity};

use super::{Facts, Found, exec, path, path_with};
use crate::evidence::Ran;

/// BOUND: twice may be a second try.
const TIMES: usize = 3;

/// Programs that say `no` by their exit code.
const ANSWERS: &[&str] = &[
    "[",
    "test",
    "false",
    "grep",
    "egrep",
    "fgrep",
    "rg",
    "ag",
    "diff",
    "cmp",
    "which",
    "expr",
    "pgrep",
    "pidof",
    "kill",
    "pkill",
    "command",
    "type",
    "tty",
    "stty",
    "tput",
    "mountpoint",
    "git",
    "dpkg",
    "dpkg-query",
    "rpm",
    "pkg-config",
    "pkgconf",
    "ping",
    "nc",
    "ls",
    "stat",
    "readlink",
    "find",
    "getent",
    "id",
    "locale",
    "systemctl",
    "sleep",
    "timeout",
    "uname",
];

const SHELLS: &[&[u8]] = &[b"sh", b"bash", b"dash", b"zsh", b"ksh", b"busybox"];

pub(super) fn look(facts: &Facts<'_>, found: &mut Found) {
    let mut failed: BTreeMap<&[ByteText], Vec<&Ran>> = BTreeMap::new();
    for ran in facts.evidence.execs.values() {
        if has_failed(ran) && !is_expected(ran) {
            failed.entry(&ran.exec.argv).or_default().push(ran);
        }
        if !ran.exec.verified {
            found.add(
                FlagKind::UnverifiedExec,
                Severity::Warning,
                "a program ran of which only is known what was asked for",
                exec(ran, None),
            );
        }
    }
    for unexplained in facts.unexplained {
        found.add(
            FlagKind::EvidenceIncomplete,
            Severity::Serious,
            "something changed, and no write that was observed explains it",
            path(unexplained),
        );
    }
    for write in facts.evidence.unplaced() {
        found.add(
            FlagKind::EvidenceIncomplete,
            Severity::Serious,
            "something was opened for writing or changed, and where it is cannot be told",
            path_with(&write.path, "the name as the program asked for it"),
        );
    }
    for runs in failed.values().filter(|runs| runs.len() >= TIMES) {
        let last = runs[runs.len() - 1];
        let code = last.exit.as_ref().and_then(|exit| exit.code);
        let how = code.map_or("by a signal".to_owned(), |code| {
            format!("with exit code {code}")
        });
        found.add(
            FlagKind::RepeatedFailure,
            Severity::Warning,
            format!("the same command failed {TIMES} times or more"),
            exec(
                last,
                Some(format!("failed {} times, the last time {how}", runs.len())),
            ),
        );
    }
}

fn has_failed(ran: &Ran) -> bool {
    let exit = ran.exit.as_ref();
    exit.is_some_and(|exit| exit.code.is_some_and(|code| code != 0) || exit.signal.is_some())
}

/// A failure that answers a question: of a program that does so, or of one that finds out what a
/// machine has.
fn is_expected(ran: &Ran) -> bool {
    let words: Vec<&[u8]> = ran.exec.argv.iter().map(ByteText::as_bytes).collect();
    let Some(first) = words.first() else {
        return true;
    };
    let mut name = last_part(first);
    // `which` is a script on some machines, and `command` and `type` are the shell's own.
    if SHELLS.contains(&name) {
        name = match words.get(1..) {
            Some([option, line, ..]) if option.starts_with(b"-") && option.ends_with(b"c") => {
                only_command(line).unwrap_or(name)
            }
            Some([script, ..]) => last_part(script),
            _ => name,
        };
    }
    let probe = |word: &&[u8]| {
        [&b"conftest"[..], b"CMakeScratch", b"cmTC_", b"CMakeTmp"]
            .iter()
            .any(|mark| word.windows(mark.len()).any(|part| part == *mark))
    };
    ANSWERS.iter().any(|answer| answer.as_bytes() == name) || words.iter().any(probe)
}

fn last_part(path: &[u8]) -> &[u8] {
    path.rsplit(|&b| b == b'/').next().unwrap_or(path)
}

/// The command of a line that has no other.
fn only_command(line: &[u8]) -> Option<&[u8]> {
    let line = line.trim_ascii();
    let quiet = line.strip_suffix(b"2>&1").unwrap_or(line);
    let alone = !quiet.iter().any(|b| b";&|`$(\n".contains(b));
    let first = line.split(|b| b.is_ascii_whitespace()).next();
    first.filter(|_| alone)
}

#[cfg(test)]
mod tests {
    use ringfence_model::observed::{Write, Wrote};

    use super::super::tests::{Run, World, evidence};

    #[test]
    fn the_third_failure_is_one_too_many() {
        let times = |line: &str, code: i32, count: usize| {
            let runs = vec![Run::new(line).exits(code); count];
            World {
                evidence: evidence(&runs),
                known: super::super::programs::tests::known(&["/usr/bin/cc", "/usr/bin/grep"]),
                ..World::default()
            }
            .kinds(&[])
        };
        assert_eq!(times("cc a.c", 1, 3), ["warning repeated_failure"]);
        assert_eq!(times("cc a.c", 1, 2), [""; 0]);
        assert_eq!(times("cc a.c", 0, 5), [""; 0]);
        assert_eq!(times("grep x y", 1, 5), [""; 0]);
        assert_eq!(times("cc -c conftest.c", 1, 5), [""; 0]);
    }

    #[test]
    fn looking_for_a_program_is_a_question() {
        let expected = |argv: &[&str]| {
            let mut run = evidence(&[Run::new("cc").exits(1)]);
            let ran = run.execs.values_mut().next().unwrap();
            ran.exec.argv = argv.iter().map(|word| (*word).into()).collect();
            super::is_expected(ran)
        };
        assert!(expected(&["/bin/sh", "/usr/bin/which", "node"]));
        assert!(expected(&["/usr/bin/which", "node"]));
        assert!(expected(&["sh", "-c", "command -v node"]));
        assert!(expected(&[
            "bash",
            "-lc",
            "command -v node >/dev/null 2>&1"
        ]));
        assert!(expected(&["sh", "-c", "type node"]));
        assert!(!expected(&["sh", "-c", "command -v node; make"]));
        assert!(!expected(&["sh", "-c", "make test"]));
        assert!(!expected(&["sh", "-c"]));
        assert!(!expected(&["sh", "./build.sh"]));
        assert!(!expected(&["sh"]));
    }

    #[test]
    fn a_write_without_a_place_makes_the_evidence_incomplete() {
        let mut world = World {
            evidence: evidence(&[Run::new("cc")]),
            known: super::super::programs::tests::known(&["/usr/bin/cc"]),
            ..World::default()
        };
        assert_eq!(world.kinds(&[]), [""; 0]);
        let write = Write {
            exec: Some(1),
            pid: 1,
            path: "m/m/x".into(),
            what: Wrote::Unplaced,
        };
        world.evidence.writes.push((0, write));
        assert_eq!(world.kinds(&[]), ["serious evidence_incomplete"]);
    }

    #[test]
    fn what_was_not_verified_is_told() {
        let mut world = World {
            evidence: evidence(&[Run::new("cc").unverified()]),
            known: super::super::programs::tests::known(&["/usr/bin/cc"]),
            ..World::default()
        };
        assert_eq!(world.kinds(&[]), ["warning unverified_exec"]);
        world.unexplained.push("src/a.rs".into());
        let kinds = world.kinds(&[]);
        assert!(
            kinds.contains(&"serious evidence_incomplete".to_owned()),
            "{kinds:?}"
        );
        world.unexplained.clear();
        world.evidence = evidence(&[Run::new("cc")]);
        assert_eq!(world.kinds(&[]), [""; 0]);
    }
}
