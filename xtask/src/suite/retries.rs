//! Which failed tests are run again.
//!
//! INVARIANT: attack, race and crash tests never are: an escape that works one time in three is an escape.

use anyhow::{Result, ensure};

use super::junit::Case;

/// Tests that are not run again: the program as nextest names it, and prefixes of the tests' paths. `""` stands for
/// all of a program. A module is listed as a whole if most of its tests are attack, race or crash tests.
const NEVER: &[(&str, &[&str])] = &[
    // The walls of the sandbox.
    ("ringfence-gate", &[""]),
    ("ringfence-gate::integration", &[""]),
    ("ringfence-guest::bin/ringfence-guest", &[""]),
    ("ringfence-guest::bin/ringfence-tools", &[""]),
    ("ringfence-guest::tools", &[""]),
    ("ringfence-jail", &[""]),
    ("ringfence-jail::plan", &[""]),
    ("ringfence::conformance", &[""]),
    ("ringfence::failpoints", &[""]),
    (
        "ringfence-engine",
        &[
            "apply::",
            "base::",
            "changes::",
            "checks::",
            "durable::",
            "files::",
            "flags::",
            "git::",
            "home::",
            "images::",
            "journal::",
            "keys::",
            "layers::",
            "lock::",
            "mirror::",
            "patch::",
            "pull_request::",
            "secrets::",
            "store::",
            "verdicts::",
            "web::",
        ],
    ),
    (
        "ringfence-engine::integration",
        &[
            "bases",
            "changes_",
            "files::",
            "git_",
            "layers",
            "mirrors",
            "observed::",
            "protocol::",
            "verify_faults::",
        ],
    ),
    (
        "ringfence::integration",
        &[
            "audit::",
            "backends::an_engine_that_stops",
            "backends::what_goes_behind",
            "blame::the_name_of_a_run",
            "campaign::exam::",
            "campaign::running::many_tasks",
            "campaign::stopped::",
            "denials::",
            "elsewhere::a_folder_that_moves",
            "escape::",
            "flags::",
            "gvisor::",
            "image::files::",
            "image::pulls::",
            "image::roots::",
            "limits::",
            "network::",
            "policy::",
            "review::",
            "run::applied::",
            "run::attempts::an_attempt_that_died",
            "run::checks::",
            "run::environments::",
            "run::exams::",
            "run::faults::",
            "run::folders::",
            "run::held::",
            "run::listed::",
            "run::options::",
            "run::patches::",
            "run::r18_",
            "run::r1_",
            "run::r2_",
            "run::r3_",
            "run::r4_",
            "run::r66_",
            "run::r69_",
            "run::rechecked::",
            "run::rounds::",
            "run::standing::",
            "sandbox::checkpoints::",
            "sandbox::commands::",
            "sandbox::diffs::",
            "sandbox::files::",
            "sandbox::lives::",
            "sandbox::many::",
            "sandbox::sources::r37_",
            "sandbox::tools::",
            "terminal::a_diff_on_a_terminal",
            "terminal::review::",
            "verify::keys::",
            "verify::the_repository_configures",
        ],
    ),
];

/// Words that mark such a test elsewhere, by its path.
const WORDS: &[&str] = &[
    "attack", "attacks", "cheat", "cheats", "crash", "escape", "escapes", "evade", "evasion",
    "hostile", "kill", "killed", "leak", "parallel", "race", "races", "secret", "secrets", "token",
    "tokens",
];

/// Whether a test that failed is run again.
pub fn is_retried(case: &Case) -> bool {
    let mut never = NEVER.iter().filter(|(program, _)| case.program == *program);
    let is_listed = never.any(|(_, paths)| paths.iter().any(|path| case.name.starts_with(path)));
    let mut words = case.name.split("::").flat_map(|part| part.split('_'));
    !is_listed && !words.any(|word| WORDS.contains(&word))
}

/// Fails if an entry of [`NEVER`] matches no test: after a rename, the test would be retried without anybody
/// noticing. `tests` has every test as `program name`.
pub fn check_list(tests: &[String]) -> Result<()> {
    for (program, prefixes) in NEVER {
        for prefix in *prefixes {
            let start = format!("{program} {prefix}");
            ensure!(
                tests.iter().any(|test| test.starts_with(&start)),
                "`xtask/src/suite/retries.rs` lists `{prefix}`, and `{program}` has no such test: if its tests were \
                 renamed, rename the entry as well"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn renamed_tests_that_are_never_retried_are_noticed() {
        let mut tests: Vec<String> = NEVER
            .iter()
            .flat_map(|(program, prefixes)| {
                prefixes
                    .iter()
                    .map(move |prefix| format!("{program} {prefix}one"))
            })
            .collect();
        check_list(&tests).unwrap();
        tests.retain(|test| !test.contains(" escape::"));
        let error = check_list(&tests).unwrap_err().to_string();
        assert!(error.contains("`escape::`"), "{error}");
    }

    /// The longer of two such entries would match tests for the shorter one, whose own tests could be renamed unnoticed.
    #[test]
    fn no_entry_covers_another() {
        for (program, prefixes) in NEVER {
            for (number, prefix) in prefixes.iter().enumerate() {
                let mut others = prefixes.iter().enumerate();
                let covers =
                    |(other, path): (usize, &&str)| other != number && path.starts_with(prefix);
                assert!(!others.any(covers), "{program} {prefix}");
            }
        }
    }

    #[test]
    fn attack_race_and_crash_tests_are_not_retried() {
        for (program, name, retried) in [
            ("ringfence::integration", "words::a_wrong_run", true),
            ("ringfence::integration", "new_module::a_test", true),
            ("ringfence-model", "plan::tests::parts", true),
            ("ringfence-model::new_program", "a_test", true),
            ("ringfence::integration", "terminal::init::asks", true),
            ("ringfence::integration", "run::r3_each_run_is_fresh", false),
            ("ringfence-gate::integration", "two::streams", false),
            ("ringfence-engine", "store::tests::rows", false),
            ("ringfence-guest::tools", "read", false),
            ("ringfence::integration", "escape::r69_nothing", false),
            ("ringfence::integration", "backends::hostile::a_tool", false),
            (
                "ringfence::integration",
                "run::attempts::a_killed_run",
                false,
            ),
            ("ringfence::failpoints", "points::each", false),
            ("ringfence::conformance", "r13", false),
            ("ringfence::integration", "words::a_race_is_lost", false),
            // Only whole words count.
            ("ringfence::integration", "run::traced::commands", true),
        ] {
            let case = Case {
                program: program.to_owned(),
                name: name.to_owned(),
                time: Duration::ZERO,
                failed: true,
                output: String::new(),
            };
            assert_eq!(is_retried(&case), retried, "{program} {name}");
        }
    }
}
