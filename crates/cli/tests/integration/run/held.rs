//! What is held, why, and what a rule of the host approves.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::support::{Fixture, Sandboxed, in_each_mode};

/// Runs a shell command, and says where the run stands.
fn standing(
    env: &Sandboxed,
    fixture: &Fixture,
    options: &[&str],
    shell: &str,
) -> Result<(String, Value)> {
    let result = env.run_with(fixture, options, shell)?;
    let run = result["run"].as_str().context("no run")?.to_owned();
    let row = &env.runs(fixture, &["-n", "1"])?[0];
    ensure!(row["run"] == run.as_str(), "{row}");
    Ok((run, row["review"].clone()))
}

fn held(review: &Value, kind: &str) -> Result<()> {
    let kinds = review["held"].as_array().context("not held")?;
    let has = kinds.iter().any(|hold| hold["kind"] == kind);
    ensure!(review["state"] == "held" && has, "not {kind}: {review}");
    Ok(())
}

#[test]
fn r10_a_patch_over_the_size_limit_is_held() -> Result<()> {
    in_each_mode("held-large", |env, fixture| {
        let (run, review) = standing(env, fixture, &[], "seq 2000 > many.txt")?;
        held(&review, "too_large")?;
        let refused = env.ringfence(fixture, 60, &["approve", &run])?;
        refused.exits(3)?;
        ensure!(refused.stderr.contains("2000 lines, at most 1000"));
        env.ringfence(fixture, 60, &["approve", &run, "--anyway"])?
            .exits(0)?;
        let listed = env.look(fixture, &["list", "--approved"])?;
        ensure!(listed.contains(&run), "{listed}");
        Ok(())
    })
}

#[test]
fn r33_a_risky_patch_is_held_with_reasons() -> Result<()> {
    in_each_mode("held-risky", |env, fixture| {
        for shell in [
            "mkdir -p .github/workflows; echo 'on: push' > .github/workflows/x.yml",
            "ln -s /etc/passwd link",
            "mkdir -p .vscode; echo '{\"tasks\": [{\"command\": \"x\"}]}' > .vscode/tasks.json",
        ] {
            let (_, review) = standing(env, fixture, &[], shell)?;
            held(&review, "risky")?;
        }
        let listed = env.look(fixture, &["list", "--held"])?;
        ensure!(listed.contains("held: risky: runs_on_review"), "{listed}");
        Ok(())
    })
}

#[test]
fn r32_a_rule_approves_what_it_says_and_a_repository_can_only_switch_it_off() -> Result<()> {
    in_each_mode("held-rule", |env, fixture| {
        let policy =
            "[review]\nauto_approve = { checks = \"all\", max_lines = 5, flags = \"low\" }\n";
        let policy = env.put(fixture, "../rule.toml", policy)?;
        let policy = policy.to_str().context("a plain path")?;
        let rule = ["--policy", policy, "--check", "true"];
        let (_, review) = standing(env, fixture, &rule, "echo x > small.txt")?;
        ensure!(review["state"] == "approved", "{review}");
        let by = &review["verdict"]["by"];
        ensure!(by["kind"] == "rule" && by["text"].to_string().contains("max_lines = 5"));
        let (_, review) = standing(env, fixture, &rule, "seq 6 > larger.txt")?;
        held(&review, "not_reviewed")?;
        let (_, review) = standing(env, fixture, &rule[..2], "echo x > unchecked.txt")?;
        held(&review, "not_reviewed")?;
        let failing = ["--policy", policy, "--check", "false"];
        let (_, review) = standing(env, fixture, &failing, "echo x > failing.txt")?;
        held(&review, "checks")?;
        env.put(
            fixture,
            "ringfence.toml",
            "[review]\nauto_approve = false\n",
        )?;
        let (_, review) = standing(env, fixture, &rule, "echo x > small.txt")?;
        held(&review, "not_reviewed")
    })
}

/// A rule that would approve nearly everything that is small, and its path.
fn generous(env: &Sandboxed, fixture: &Fixture, paths: &str) -> Result<String> {
    let text = format!(
        "[review]\nauto_approve = {{ checks = \"all\", max_lines = 50, flags = \"low\"{paths} }}\n"
    );
    let path = env.put(fixture, "../generous.toml", text)?;
    Ok(path.to_str().context("a plain path")?.to_owned())
}

fn committed(env: &Sandboxed, fixture: &Fixture, files: &[(&str, &str)]) -> Result<()> {
    for (name, text) in files {
        env.put(fixture, name, text)?;
    }
    env.git(fixture, &fixture.folder, &["add", "-A"])?;
    env.git(fixture, &fixture.folder, &["commit", "-qm", "more"])?;
    Ok(())
}

#[test]
fn a_check_that_a_folder_proposes_vouches_for_nothing() -> Result<()> {
    in_each_mode("held-proposed", |env, fixture| {
        committed(
            env,
            fixture,
            &[("ringfence.toml", "[review]\nchecks = [\"true\"]\n")],
        )?;
        let rule = generous(env, fixture, "")?;
        let rule = ["--policy", rule.as_str()];
        let (run, review) = standing(env, fixture, &rule, "echo x > small.txt")?;
        held(&review, "not_reviewed")?;
        ensure!(review.to_string().contains("no checks"), "{review}");
        // It did run, and holds.
        let page = env.look(fixture, &["show", &run])?;
        ensure!(page.contains("passes; exit 0 before; exit 0 now"), "{page}");
        // One of the host beside it is what counts.
        let own = [&rule[..], &["--check", "test -e a.txt"]].concat();
        let (_, review) = standing(env, fixture, &own, "echo x > small.txt")?;
        ensure!(review["state"] == "approved", "{review}");
        // And one that is proposed can still fail a run.
        committed(
            env,
            fixture,
            &[("ringfence.toml", "[review]\nchecks = [\"false\"]\n")],
        )?;
        let (_, review) = standing(env, fixture, &own, "echo x > small.txt")?;
        held(&review, "checks")
    })
}

#[test]
fn a_patch_that_steers_later_runs_is_approved_by_no_rule() -> Result<()> {
    in_each_mode("held-steers", |env, fixture| {
        committed(
            env,
            fixture,
            &[
                ("ringfence.toml", "[review]\nprotected = [\"golden\"]\n"),
                ("notes.txt", "one\ntwo\nthree\nfour\nfive\n"),
            ],
        )?;
        let rule = generous(env, fixture, "")?;
        let options = ["--policy", rule.as_str(), "--check", "true"];
        for shell in [
            "echo '# more' >> ringfence.toml",
            "rm ringfence.toml",
            "git mv ringfence.toml other.toml",
            "echo '[review]' > src/ringfence.toml",
        ] {
            let (_, review) = standing(env, fixture, &options, shell)?;
            ensure!(review["state"] == "held", "{shell}: {review}");
        }
        let (_, review) = standing(env, fixture, &options, "echo x > small.txt")?;
        ensure!(review["state"] == "approved", "{review}");
        // What a rename takes away is not among the paths of the rule.
        let rule = generous(env, fixture, ", paths = [\"docs/**\"]")?;
        let options = ["--policy", rule.as_str(), "--check", "true"];
        let shell = "mkdir docs; git mv notes.txt docs/notes.txt";
        let (_, review) = standing(env, fixture, &options, shell)?;
        held(&review, "not_reviewed")?;
        ensure!(
            review.to_string().contains("not among its paths"),
            "{review}"
        );
        let shell = "mkdir docs; echo x > docs/x.md";
        let (_, review) = standing(env, fixture, &options, shell)?;
        ensure!(review["state"] == "approved", "{review}");
        Ok(())
    })
}

#[test]
fn fewer_tests_than_before_are_approved_by_no_rule() -> Result<()> {
    in_each_mode("held-shrank", |env, fixture| {
        let count = "echo \"test result: ok. $(cat count.txt) passed; 0 failed; 0 ignored\"";
        committed(env, fixture, &[("count.txt", "3\n")])?;
        let rule = generous(env, fixture, "")?;
        let options = ["--policy", rule.as_str(), "--check", count];
        let (_, review) = standing(env, fixture, &options, "echo 4 > count.txt")?;
        ensure!(review["state"] == "approved", "{review}");
        for shell in ["echo 2 > count.txt", "echo no number > count.txt"] {
            let (_, review) = standing(env, fixture, &options, shell)?;
            held(&review, "checks")?;
        }
        Ok(())
    })
}

/// The rule of `docs/review.md`, with flags that are good to know: a new program is one.
fn documented() -> Result<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/review.md");
    let page = std::fs::read_to_string(page)?;
    let line = page
        .lines()
        .find(|line| line.starts_with("auto_approve = "));
    let line = line.context("no example")?;
    Ok(format!("[review]\n{line}\n").replace("\"none\"", "\"low\""))
}

#[test]
fn example_rule_approves_documents_and_nothing_that_runs() -> Result<()> {
    in_each_mode("held-example", |env, fixture| {
        committed(
            env,
            fixture,
            &[
                ("index.md", "# Index\n"),
                ("run.md", "#!/bin/sh\n1\n2\n3\n4\n5\n6\n7\n8\n"),
            ],
        )?;
        env.as_owner(
            fixture,
            &fixture.folder,
            &[
                "sh",
                "-c",
                "mkdir docs; mv *.md docs; git add -A; git commit -qm docs",
            ],
        )?;
        let rule = env.put(fixture, "../example.toml", documented()?)?;
        let options = [
            "--policy",
            rule.to_str().context("a plain path")?,
            "--check",
            "true",
        ];
        let (_, review) = standing(env, fixture, &options, "echo more >> docs/index.md")?;
        ensure!(review["state"] == "approved", "{review}");
        for (shell, why) in [
            (
                "mkdir -p docs/objects docs/refs; touch docs/objects/x docs/refs/x docs/HEAD; echo x > docs/a.md",
                "would be a git directory",
            ),
            (
                "echo 'ref: refs/heads/x' > docs/HEAD",
                "`docs/HEAD` is of no kind",
            ),
            ("echo x > docs/config", "`docs/config` is of no kind"),
            ("echo x > docs/.x.md", "`docs/.x.md` is a dot file"),
            (
                "mkdir docs/.GITHUB; echo x > docs/.GITHUB/a.md",
                "is a dot file, or in a dot directory",
            ),
            (
                "mkdir docs/a; echo x > docs/a/CMakeLists.txt",
                "is a recipe or a setting",
            ),
            (
                "printf '#!/bin/sh\\n' > docs/a.md",
                "`docs/a.md` is a program",
            ),
            // The first line is not in the patch.
            ("echo 9 >> docs/run.md", "`docs/run.md` is a program"),
            ("git mv docs/run.md docs/b.md", "`docs/b.md` is a program"),
            ("echo x > 'docs/b.md '", "not every machine"),
            (
                "printf 'x' > \"docs/$(printf 'c\\342\\200\\214').md\"",
                "not every machine",
            ),
            ("ln -s index.md docs/link.md", "symbolic link"),
            (
                "rm docs/index.md; ln -s run.md docs/index.md",
                "symbolic link",
            ),
            (
                "rm docs/index.md; mkdir docs/index.md; echo > docs/index.md/a.md",
                "changes its type",
            ),
            ("echo x > docs/a.py", "is not among its paths"),
            ("echo x > a.md", "is not among its paths"),
        ] {
            // What is flagged is held for that already; the rule has words of its own for the rest.
            let (_, review) = standing(env, fixture, &options, shell)?;
            ensure!(review["state"] == "held", "{shell}: {review}");
            let flagged = review.to_string().contains("there are flags")
                || review.to_string().contains("risky");
            ensure!(
                flagged || review.to_string().contains(why),
                "{shell}: {review}"
            );
        }
        // A pattern for all of a directory widens nothing.
        let rule = generous(env, fixture, ", paths = [\"docs/**\"]")?;
        let options = ["--policy", rule.as_str(), "--check", "true"];
        for name in ["HEAD", "config", ".x.md", "x.sh"] {
            let shell = format!("echo x > docs/{name}");
            let (_, review) = standing(env, fixture, &options, &shell)?;
            held(&review, "not_reviewed").with_context(|| shell)?;
            let why = format!("does not apply: `docs/{name}` is ");
            ensure!(review.to_string().contains(&why), "{name}: {review}");
        }
        Ok(())
    })
}
