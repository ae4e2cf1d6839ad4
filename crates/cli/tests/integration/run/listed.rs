//! The attack list's cases about patches, git, configuration and claims: each has a test that is there.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::support::in_each_mode;

/// What the host does with everything that an agent's git left: list, show, diff, logs, apply to a
/// branch, with the agent's commits, and to the files.
const HOST: (&str, &str) = (
    "crates/cli/tests/integration/escape.rs",
    "r67_the_host_runs_nothing_of_the_agents",
);
const PATCH: (&str, &str) = (
    "crates/engine/src/apply/tests.rs",
    "patches_of_the_attack_list_are_refused_and_nothing_is_touched",
);
const ODD: (&str, &str) = (
    "crates/engine/src/apply/tests.rs",
    "what_is_only_odd_is_applied",
);
const LIES: (&str, &str) = (
    "crates/cli/tests/integration/flags/claims.rs",
    "r27_tests_that_are_said_to_pass_must_have_passed",
);

/// A case, and a test that keeps it: its file and its name.
const KEPT_BY: &[(&str, (&str, &str))] = &[
    ("patch-001", PATCH),
    ("patch-002", PATCH),
    ("patch-003", PATCH),
    ("patch-005", PATCH),
    ("patch-006", PATCH),
    ("patch-011", ODD),
    ("patch-013", ODD),
    (
        "patch-013",
        (
            "crates/cli/tests/integration/flags/attacks.rs",
            "names_that_mean_another_file_elsewhere_are_told",
        ),
    ),
    ("patch-014", ODD),
    (
        "patch-015",
        (
            "crates/engine/src/apply/tests.rs",
            "a_patch_that_is_a_bomb_is_refused",
        ),
    ),
    ("patch-016", PATCH),
    (
        "patch-018",
        (
            "crates/cli/tests/failpoints/applied.rs",
            "a_patch_is_applied_or_not",
        ),
    ),
    (
        "patch-020",
        (
            "crates/cli/tests/integration/flags/attacks.rs",
            "files_that_run_on_the_reviewers_side_are_listed",
        ),
    ),
    ("git-003", HOST),
    ("git-005", HOST),
    (
        "git-005",
        (
            "crates/cli/tests/integration/run/faithful.rs",
            "a_corpus_of_nasty_trees_arrives_to_the_byte",
        ),
    ),
    ("git-006", HOST),
    ("git-007", HOST),
    ("git-009", HOST),
    ("git-011", HOST),
    ("git-012", HOST),
    ("git-012", PATCH),
    ("git-014", HOST),
    ("git-014", PATCH),
    ("git-019", HOST),
    ("git-020", HOST),
    ("git-020", PATCH),
    ("git-021", HOST),
    ("git-021", PATCH),
    ("git-023", HOST),
    ("git-025", HOST),
    (
        "git-025",
        (
            "crates/engine/src/commits.rs",
            "an_object_says_how_long_it_is_and_is_not_endless",
        ),
    ),
    ("git-026", HOST),
    ("git-026", PATCH),
    ("git-027", HOST),
    ("git-028", HOST),
    (
        "git-029",
        (
            "crates/engine/src/apply/sound.rs",
            "only_trees_in_order_are_taken",
        ),
    ),
    (
        "git-029",
        (
            "crates/cli/tests/integration/run/commits.rs",
            "commits_that_a_patch_could_not_bring_are_refused",
        ),
    ),
    ("git-030", HOST),
    (
        "cfg-003",
        (
            "crates/cli/tests/integration/run/listed.rs",
            "configuration_that_an_agent_leaves_is_told",
        ),
    ),
    (
        "cfg-004",
        (
            "crates/cli/tests/integration/run/listed.rs",
            "configuration_that_an_agent_leaves_is_told",
        ),
    ),
    (
        "cfg-005",
        (
            "crates/cli/tests/integration/run/listed.rs",
            "configuration_that_an_agent_leaves_is_told",
        ),
    ),
    (
        "cfg-006",
        (
            "crates/cli/tests/integration/policy.rs",
            "a_repository_can_only_narrow",
        ),
    ),
    (
        "cfg-008",
        (
            "crates/model/src/policy/document/tests.rs",
            "characters_that_hide_something_are_refused",
        ),
    ),
    ("clm-001", LIES),
    (
        "clm-001",
        (
            "crates/cli/tests/integration/run/checks.rs",
            "clm_001_words_of_a_check_decide_nothing",
        ),
    ),
    ("clm-002", LIES),
    (
        "clm-002",
        (
            "crates/cli/tests/integration/run/checks.rs",
            "clm_002_what_did_not_cross_back_is_not_there",
        ),
    ),
    (
        "clm-003",
        (
            "crates/cli/tests/integration/run/checks.rs",
            "clm_003_an_exam_that_the_agent_changed_is_taken_both_ways",
        ),
    ),
    ("clm-005", LIES),
    (
        "clm-006",
        (
            "crates/cli/tests/integration/flags/claims.rs",
            "where_no_claim_is_there_is_none",
        ),
    ),
];

#[test]
fn each_case_has_a_test_that_is_there() -> Result<()> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let corpus = fs::read_to_string(top.join("tests/escape/corpus.jsonl"))?;
    for (id, (file, name)) in KEPT_BY {
        let text = fs::read_to_string(top.join(file)).with_context(|| (*file).to_owned())?;
        let is_there = text.contains(&format!("#[test]\nfn {name}("))
            || text.contains(&format!("    #[test]\n    fn {name}("));
        ensure!(is_there, "{id}: there is no test `{name}` in {file}");
        // What stands for a case names it, unless it runs the corpus itself.
        let runs_corpus = (*file, *name) == HOST || file.contains("faithful");
        let names = runs_corpus || text.contains(id) || text.contains(&id.replace('-', "_"));
        ensure!(names, "{id}: {file} does not name it");
        if (*file, *name) == HOST {
            ensure!(
                corpus.contains(&format!("\"{id}\"")),
                "{id} is not in the corpus"
            );
        }
    }
    Ok(())
}

/// cfg-003, cfg-004, cfg-005: what a tool of the host would later obey.
#[test]
fn configuration_that_an_agent_leaves_is_told() -> Result<()> {
    in_each_mode("configuration", |env, fixture| {
        env.put(fixture, ".gitignore", "ignored/\n*.o\n.venv/\n")?;
        let result = env.run_with(
            fixture,
            &[],
            "mkdir -p .CURSOR .venv/bin other/bin; echo '{}' > .CURSOR/mcp.json; echo '{}' > .Mcp.json
             echo 'touch /tmp/x' > .envrc; printf '#!/bin/sh\\n' | tee .venv/bin/python > other/bin/python
             chmod +x .venv/bin/python other/bin/python",
        )?;
        let flags = result["flags"].as_array().context("no flags")?;
        for (path, kind) in [
            (".CURSOR/mcp.json", "runs_on_review"),
            (".Mcp.json", "runs_on_review"),
            (".envrc", "runs_on_review"),
            ("other/bin/python", "made_executable"),
        ] {
            let told =
                |flag: &&serde_json::Value| flag["kind"] == kind && flag.to_string().contains(path);
            ensure!(flags.iter().any(|flag| told(&flag)), "{path}: {flags:?}");
        }
        // What is ignored stays behind, and is not applied.
        let omitted = result["omitted"].to_string();
        ensure!(omitted.contains(".venv"), "{omitted}");
        let run = result["run"].as_str().context("no run")?;
        let words = ["apply", run, "--approve", "--anyway"];
        env.ringfence(fixture, 60, &words)?.exits(0)?;
        ensure!(fixture.folder.join(".CURSOR/mcp.json").exists());
        ensure!(!fixture.folder.join(".venv").exists());
        Ok(())
    })
}
