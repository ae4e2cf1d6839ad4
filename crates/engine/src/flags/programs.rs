//! Programs that no earlier run on this folder started, and programs that came into being inside.

use std::collections::{BTreeMap, BTreeSet};

use ringfence_model::ByteText;
use ringfence_model::flag::{FlagKind, Severity};

use super::{Facts, Found, LINEAGE, exec};
use crate::evidence::{Evidence, Ran};

/// The programs of earlier runs on a folder, by path.
#[derive(Clone, Debug, Default)]
pub struct Known(pub BTreeSet<ByteText>);

/// Programs that reach out, look into others or change the machine: their first time is worth a
/// second look.
const NOTABLE: &[&str] = &[
    "at",
    "base64",
    "bpftrace",
    "chisel",
    "crontab",
    "curl",
    "dig",
    "docker",
    "ftp",
    "gdb",
    "gpg",
    "host",
    "kubectl",
    "ldapsearch",
    "lftp",
    "ncat",
    "nc",
    "netcat",
    "nmap",
    "nsenter",
    "nslookup",
    "openssl",
    "podman",
    "rclone",
    "rsync",
    "scp",
    "sftp",
    "socat",
    "ssh",
    "ssh-add",
    "ssh-agent",
    "ssh-keygen",
    "strace",
    "su",
    "sudo",
    "systemctl",
    "systemd-run",
    "tcpdump",
    "telnet",
    "tftp",
    "torsocks",
    "unshare",
    "wget",
    "xxd",
];

/// Programs that make programs and run them as part of their work.
const BUILDERS: &[&str] = &[
    "go",
    "cargo",
    "rustc",
    "make",
    "ninja",
    "cmake",
    "ctest",
    "meson",
    "bazel",
    "gcc",
    "cc",
    "clang",
    "pytest",
    "pip",
    "uv",
    "npm",
    "node",
    "zig",
    "swift",
    "gradle",
    "configure",
    "dotnet",
    "ghc",
    "cabal",
    "stack",
    "dune",
    "nim",
    "tcc",
    "gdb",
    "perl",
    "tox",
    "nox",
    "opam",
];

/// Programs of the machine, which can be told from run to run; what was made inside has another
/// path each time.
pub fn of_the_machine(evidence: &Evidence, inside: &[u8]) -> BTreeSet<ByteText> {
    let paths = evidence.execs.values().map(|ran| &ran.exec.exe);
    paths
        .filter(|path| own_place(path.as_bytes(), inside).is_none())
        .cloned()
        .collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Memory,
    Thrown,
    Home,
    Workspace,
}

/// Where a program lies that was not there before the run, or may not have been.
fn own_place(path: &[u8], inside: &[u8]) -> Option<Place> {
    let below = |top: &[u8]| {
        path.strip_prefix(top)
            .is_some_and(|rest| rest.starts_with(b"/"))
    };
    if path.starts_with(b"/memfd:") || path.starts_with(b"memfd:") {
        Some(Place::Memory)
    } else if below(inside) {
        Some(Place::Workspace)
    } else if below(b"/tmp") || below(b"/dev/shm") {
        Some(Place::Thrown)
    } else if below(b"/home/agent") {
        Some(Place::Home)
    } else {
        None
    }
}

pub(super) fn look(facts: &Facts<'_>, found: &mut Found) {
    let mut first: BTreeMap<&ByteText, &Ran> = BTreeMap::new();
    for ran in facts.evidence.execs.values() {
        first.entry(&ran.exec.exe).or_insert(ran);
    }
    let machine: Vec<&Ran> = first
        .iter()
        .filter(|(path, _)| own_place(path.as_bytes(), facts.inside).is_none())
        .map(|(_, ran)| *ran)
        .collect();
    if facts.known.0.is_empty() {
        if !machine.is_empty() {
            found.add(
                FlagKind::NewProgram,
                Severity::Info,
                format!(
                    "the first observed run on this folder: its {} programs are noted as known",
                    machine.len()
                ),
                None,
            );
        }
    } else {
        for ran in machine {
            if facts.known.0.contains(&ran.exec.exe) {
                continue;
            }
            let (severity, message) = if is_one_of(&ran.exec.exe, NOTABLE) {
                (
                    Severity::Warning,
                    "a program that no earlier run here used, and that reaches out or looks into others",
                )
            } else {
                (Severity::Info, "a program that no earlier run here used")
            };
            found.add(FlagKind::NewProgram, severity, message, exec(ran, None));
        }
    }
    for ran in first.values() {
        let Some(place) = own_place(ran.exec.exe.as_bytes(), facts.inside) else {
            continue;
        };
        let built = facts
            .evidence
            .lineage(ran.exec.exec)
            .take(LINEAGE)
            .skip(1)
            .any(is_builder);
        let (severity, message) = match place {
            Place::Memory => (Severity::Warning, "a program ran that was in memory only"),
            Place::Thrown if !built => (
                Severity::Warning,
                "a program ran from a directory for temporary files",
            ),
            _ => (
                Severity::Info,
                "a program ran that lies in the workspace, the home or a temporary directory",
            ),
        };
        found.add(FlagKind::OwnProgram, severity, message, exec(ran, None));
    }
}

fn is_builder(ran: &Ran) -> bool {
    let script = ran.exec.argv.get(1);
    is_one_of(&ran.exec.exe, BUILDERS) || script.is_some_and(|script| is_one_of(script, BUILDERS))
}

/// By its name, without a version at its end.
fn is_one_of(path: &ByteText, names: &[&str]) -> bool {
    let bytes = path.as_bytes();
    let name = bytes.rsplit(|&b| b == b'/').next().unwrap_or(bytes);
    let end = name
        .iter()
        .rposition(|b| !b.is_ascii_digit() && !b".-".contains(b))
        .map_or(0, |at| at + 1);
    names
        .iter()
        .any(|known| known.as_bytes() == name || known.as_bytes() == &name[..end])
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::tests::{Run, World, evidence};
    use super::*;

    pub fn known(paths: &[&str]) -> Known {
        Known(paths.iter().map(|path| ByteText::from(*path)).collect())
    }

    fn kinds(known_paths: &[&str], runs: &[Run]) -> Vec<String> {
        World {
            known: known(known_paths),
            evidence: evidence(runs),
            ..World::default()
        }
        .kinds(&[])
    }

    #[test]
    fn the_first_run_is_told_in_one_line_and_later_ones_by_what_is_new() {
        let runs = [
            Run::new("sh"),
            Run::new("curl x"),
            Run::new("sed"),
            Run::new("sh"),
        ];
        assert_eq!(kinds(&[], &runs), ["info new_program"]);
        let all = ["/usr/bin/sh", "/usr/bin/curl", "/usr/bin/sed"];
        assert_eq!(kinds(&all, &runs), [""; 0]);
        assert_eq!(kinds(&all[..2], &runs), ["info new_program"]);
        assert_eq!(
            kinds(&all[..1], &runs),
            ["warning new_program", "info new_program"]
        );
    }

    #[test]
    fn programs_that_came_into_being_inside_are_told() {
        let machine = ["/usr/bin/go", "/usr/bin/sh"];
        for (run, expected) in [
            (
                Run::new("./a.out").exe("/workspace/a.out"),
                "info own_program",
            ),
            (Run::new("x").exe("/tmp/x"), "warning own_program"),
            (
                Run::new("x").exe("/memfd:x (deleted)"),
                "warning own_program",
            ),
            (
                Run::new("x").exe("/home/agent/.local/bin/x"),
                "info own_program",
            ),
            (
                Run::new("x.test").exe("/tmp/go-build1/x.test").below(2),
                "info own_program",
            ),
        ] {
            let runs = [Run::new("sh"), Run::new("go test"), run];
            assert_eq!(kinds(&machine, &runs), [expected], "{runs:?}");
        }
        assert_eq!(
            kinds(
                &["/tmpfile", "/usr/bin/sh"],
                &[Run::new("x").exe("/tmpfile")]
            ),
            [""; 0]
        );
    }

    #[test]
    fn what_is_remembered_is_of_the_machine() {
        let evidence = evidence(&[
            Run::new("sh"),
            Run::new("x").exe("/workspace/x"),
            Run::new("sh"),
        ]);
        let paths = of_the_machine(&evidence, b"/workspace");
        assert_eq!(
            paths.into_iter().collect::<Vec<_>>(),
            ["/usr/bin/sh".into()]
        );
    }
}
