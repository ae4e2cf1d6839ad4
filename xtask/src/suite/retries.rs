//! Which failed tests are run again.
//!
//! INVARIANT: attack, race and crash tests never are: an escape that works one time in three is an escape.

use anyhow::{Result, ensure};

use super::junit::Case;

/// Modules whose tests mostly are attack, race and crash tests: the program as nextest names it, and prefixes of the
/// tests' paths.
const NEVER: &[(&str, &[&str])] = &[
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
            "campaign::exam::",
            "denials::",
            "escape::",
            "flags::",
            "gvisor::",
            "image::pulls::",
            "image::roots::",
            "limits::",
            "network::",
            "policy::",
            "review::",
            "run::checks::clm_",
            "run::checks::what_runs_in_place",
            "run::environments::of_two_runs",
            "run::environments::what_a_policy_hides",
            "run::exams::",
            "run::faults::",
            "run::folders::",
            "run::held::",
            "run::options::",
            "run::r",
            "run::rounds::an_agent_cannot",
            "run::rounds::what_is_hidden",
            "run::standing::",
            "sandbox::commands::the_walls",
            "sandbox::files::",
            "sandbox::many::",
            "sandbox::tools::",
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

/// Whether a test that failed is run again. Unit tests never are, nor the tests of the programs `failpoints` and
/// `conformance`: what fails once there has a race or is an attack.
pub fn is_retried(case: &Case) -> bool {
    if !case.program.ends_with("::integration") || case.program == "ringfence-gate::integration" {
        return false;
    }
    let mut never = NEVER.iter().filter(|(program, _)| case.program == *program);
    let is_attack = never.any(|(_, paths)| paths.iter().any(|path| case.name.starts_with(path)));
    let mut words = case.name.split("::").flat_map(|part| part.split('_'));
    !is_attack && !words.any(|word| WORDS.contains(&word))
}

/// Fails where [`NEVER`] names no test: one that was renamed would be retried from then on, and nobody would notice.
/// `tests`: all of them, each as its program and name.
pub fn check_list(tests: &[String]) -> Result<()> {
    for (program, prefixes) in NEVER {
        for prefix in *prefixes {
            let start = format!("{program} {prefix}");
            ensure!(
                tests.iter().any(|test| test.starts_with(&start)),
                "`xtask/src/suite/retries.rs` names `{prefix}`, and `{program}` has no such test: if its tests were \
                 renamed, rename it as well"
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

    #[test]
    fn attack_race_and_crash_tests_are_not_retried() {
        for (program, name, retried) in [
            ("ringfence::integration", "run::patches::modes", true),
            ("ringfence::integration", "terminal::init::asks", true),
            ("ringfence::integration", "run::r3_each_run_is_fresh", false),
            ("ringfence-gate::integration", "two::streams", false),
            ("ringfence-engine", "store::tests::rows", false),
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
