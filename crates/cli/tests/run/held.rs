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
    let rows = env.look(fixture, &["list", "--json", "-n", "1"])?;
    let row: Value = serde_json::from_str(&rows)?;
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
