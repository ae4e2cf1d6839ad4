//! `ringfence apply --keep-commits`: the agent's own commits, if they bring nothing that a patch
//! could not have brought.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::support::{Fixture, Sandboxed, in_each_mode};

/// What each agent here begins with: a git that knows who it is, and a way to hide a commit with an
/// odd tree between two that are fine.
const BEGIN: &str = r#"
set -e
g() { git -c user.name=Agent -c user.email=agent@example.org "$@"; }
between() {
    c=$(g commit-tree $1 -p HEAD -m between); d=$(g commit-tree HEAD^{tree} -p $c -m back)
    git update-ref HEAD $d
}
with() { { git ls-tree HEAD; printf "$@"; } | git mktree --missing; }
blob() { printf "$1" | git hash-object -w --stdin; }
last() { echo 1 >> a.txt; g commit -qam last; }
"#;

fn ran(env: &Sandboxed, fixture: &Fixture, work: &str) -> Result<Value> {
    let result = env.run_with(fixture, &[], &format!("{BEGIN}{work}"))?;
    ensure!(result["exit_code"] == 0, "{work}: {}", result["stderr"]);
    env.ringfence(fixture, 60, &["approve", run(&result)?])?
        .exits(0)?;
    Ok(result)
}

fn run(result: &Value) -> Result<&str> {
    result["run"].as_str().context("no run")
}

fn keep(env: &Sandboxed, fixture: &Fixture, run: &str, more: &[&str], exit: i32) -> Result<String> {
    let words = [
        "apply",
        run,
        "--keep-commits",
        "--author",
        "Ada <ada@example.org>",
    ];
    let output = env.ringfence(fixture, 60, &[&words, more].concat())?;
    output.exits(exit)?;
    Ok(format!("{}{}", output.stdout, output.stderr))
}

fn clean(env: &Sandboxed, fixture: &Fixture) -> Result<()> {
    let words = ["checkout", "-q", "--", "README.md"];
    env.git(fixture, &fixture.folder, &words).map(drop)
}

#[test]
fn commits_of_the_agent_are_kept() -> Result<()> {
    in_each_mode("kept", |env, fixture| {
        clean(env, fixture)?;
        let git = |words: &[&str]| env.git(fixture, &fixture.folder, words);
        let work = "sed -i s/two/2/ a.txt; g commit -qam 'First step'
            g checkout -qb side; mkdir n; printf 'x\\0' > n/x; ln -s ../a.txt n/l; g add -A; g commit -qm Side
            g checkout -q main; rm src/deep/x.c; g commit -qam Other; g merge -q --no-ff -m Joined side
            chmod +x src/main.c; g commit -qam 'Last step'";
        let result = ran(env, fixture, work)?;
        let id = run(&result)?;
        let said = keep(env, fixture, id, &["--branch", "kept", "--check-only"], 0)?;
        ensure!(said.contains("with 5 commits of the agent"), "{said}");
        ensure!(git(&["branch", "--list", "kept"])?.is_empty());
        keep(
            env,
            fixture,
            id,
            &["--branch", "kept", "-m", "All of it"],
            0,
        )?;

        git(&["fsck", "--strict", "--full"])?;
        let log = git(&["log", "--topo-order", "--format=%an: %s", "main..kept^2"])?;
        let subjects: Vec<&str> = log.lines().collect();
        ensure!(
            subjects.first() == Some(&"Agent: Last step")
                && subjects.last() == Some(&"Agent: First step")
                && subjects.len() == 5,
            "{log}"
        );
        // On its own line of history there is one commit, with the patch and the trailers.
        let log = git(&["log", "--first-parent", "--format=%an%n%B", "main..kept"])?;
        let start = format!("Ada\nAll of it\n\nRingfence-Run: {id}\nRingfence-Bundle: sha256:");
        ensure!(log.starts_with(&start), "{log}");
        ensure!(log.matches("Ringfence-Run").count() == 1, "{log}");
        ensure!(git(&["rev-parse", "kept^1"])? == git(&["rev-parse", "main"])?);
        ensure!(git(&["rev-parse", "kept^{tree}"])? == git(&["rev-parse", "kept^2^{tree}"])?);
        // The same tree as without them.
        let words = ["apply", id, "--branch", "one", "--author", "A <a@b>"];
        env.ringfence(fixture, 60, &words)?.exits(0)?;
        ensure!(git(&["rev-parse", "kept^{tree}"])? == git(&["rev-parse", "one^{tree}"])?);

        // What is kept is what was signed.
        let file = fixture.state.join("logs").join(id).join("commits");
        let mut bytes = fs::read(&file)?;
        let end = bytes.len() - 1;
        bytes[end] ^= 1;
        fs::write(&file, bytes)?;
        let said = keep(env, fixture, id, &["--branch", "again"], 2)?;
        ensure!(said.contains("not as they were"), "{said}");
        let said = keep(env, fixture, id, &["--branch", "x", "--base", "HEAD"], 2)?;
        ensure!(said.contains("--base"), "{said}");
        // It goes with the run.
        env.ringfence(fixture, 60, &["rm", id])?.exits(0)?;
        ensure!(!file.exists());
        Ok(())
    })
}

#[test]
fn commits_that_a_patch_could_not_bring_are_refused() -> Result<()> {
    // What the agent does, the exit code, and the word for it.
    const CASES: &[(&str, i32, &str)] = &[
        ("echo 1 >> a.txt", 2, "the run kept none"),
        ("last; git gc -q", 2, "the run kept none"),
        ("last; echo 2 >> a.txt", 3, "left uncommitted"),
        (
            "last; echo i > x.o; git add -f x.o; g commit -qm i",
            3,
            "left uncommitted",
        ),
        (
            "echo 1 >> a.txt; git checkout -q --orphan o; g commit -qam o",
            3,
            "does not go back",
        ),
        ("last; g merge -qm m theirs", 3, "was not made in this run"),
        (
            "g commit -q --allow-empty -m 'Ringfence-Run: x'; last",
            3,
            "a trailer that only we write",
        ),
        (
            "g commit -q --allow-empty -m \"$(printf 'a\\n\\n\\033[31mb')\"; last",
            3,
            "cannot be seen",
        ),
        // git-029, git-101: names and types that only a tree object has.
        (
            "t=$(printf '100644 blob %s\\tconfig\\n' $(blob x) | git mktree); between $(with '040000 tree %s\\t.GIT\\n' $t); last",
            3,
            "git's own directory",
        ),
        (
            "t=$(printf '100755 blob %s\\tpre-commit\\n' $(blob x) | git mktree); between $(with '040000 tree %s\\tgit~1\\n' $t); last",
            3,
            "git's own directory",
        ),
        // A bare repository, and one that two commits make.
        (
            "mkdir -p d/objects d/refs; touch d/HEAD d/objects/x d/refs/x; git add d; between $(git write-tree); git rm -rqf d; last",
            3,
            "would be a git directory",
        ),
        (
            "mkdir -p d/objects d/refs; touch d/objects/x d/refs/x; git add d; g commit -qm parts; \
             mkdir D; touch D/head; git add -f D/head; between $(git write-tree); git rm -rqf D d; g commit -qam none; last",
            3,
            "would be a git directory",
        ),
        (
            "between $(with '100644 blob %s\\t..\\n' $(blob x)); last",
            3,
            "`..` in the path",
        ),
        (
            "between $(with '120000 blob %s\\tl\\n' $(blob /etc/passwd)); last",
            3,
            "an absolute path",
        ),
        (
            "between $(with '120000 blob %s\\tl\\n' $(blob ../../x)); last",
            3,
            "leaves the folder",
        ),
        (
            "between $(with '120000 blob %s\\tl\\n' $(blob .git/hooks)); last",
            3,
            "into `.git`",
        ),
        (
            "between $(with '120000 blob %s\\t.gitmodules\\n' $(blob a.txt)); last",
            3,
            "reads its submodules",
        ),
        (
            "between $(with '100644 blob %s\\t.gitmodules\\n' $(blob x)); last",
            3,
            "reads its submodules",
        ),
        // A link through one that only the same tree has.
        (
            "between $(with '120000 blob %s\\tin\\n120000 blob %s\\tl\\n' $(blob /etc) $(blob in/passwd)); last",
            3,
            "an absolute path",
        ),
        (
            "between $(with '160000 commit %s\\tsub\\n' $(git rev-parse HEAD)); last",
            3,
            "a submodule",
        ),
        (
            "between $(with '100644 blob %040d\\tnothing\\n' 7); last",
            3,
            "is not there",
        ),
        (
            "b=$(blob x); t=$( { git cat-file tree HEAD; printf '100644 a.txt\\0'; printf '\\1%.0s' $(seq 20); } | git hash-object -t tree -w --literally --stdin); between $t; last",
            3,
            "not in order",
        ),
    ];
    in_each_mode("unkept", |env, fixture| {
        clean(env, fixture)?;
        let git = |words: &[&str]| env.git(fixture, &fixture.folder, words);
        git(&["checkout", "-q", "-b", "theirs"])?;
        env.put(fixture, "theirs", "theirs\n")?;
        git(&["add", "theirs"])?;
        git(&["-c", "core.hooksPath=/dev/null", "commit", "-qm", "theirs"])?;
        git(&["checkout", "-q", "main"])?;
        let objects = || git(&["count-objects", "-v"]);
        let before = objects()?;
        for (work, exit, why) in CASES {
            let result = ran(env, fixture, work)?;
            let id = run(&result)?;
            let said = keep(env, fixture, id, &["--branch", "kept"], *exit).context(*work)?;
            ensure!(said.contains(why), "{work}: {said}");
            ensure!(said.contains("without `--keep-commits`"), "{said}");
            ensure!(objects()? == before, "{work}: something was written");
        }
        ensure!(git(&["branch", "--list", "kept"])?.is_empty());
        // A rule has seen the patch only.
        let rule =
            "[review]\nauto_approve = { checks = \"all\", max_lines = 9, flags = \"low\" }\n";
        let rule = env.put(fixture, "../rule.toml", rule)?;
        let rule = rule.to_str().context("a plain path")?;
        let options = ["--policy", rule, "--check", "true"];
        let result = env.run_with(fixture, &options, &format!("{BEGIN}last"))?;
        ensure!(
            result["review"]["state"] == "approved",
            "{}",
            result["review"]
        );
        let said = keep(env, fixture, run(&result)?, &["--branch", "kept"], 2)?;
        ensure!(said.contains("a rule approved"), "{said}");
        // Files that were not committed when the run began are in no commit that could be the base.
        env.put(fixture, "README.md", "# Not committed\n")?;
        let result = ran(env, fixture, "last")?;
        let said = keep(env, fixture, run(&result)?, &["--branch", "kept"], 2)?;
        ensure!(said.contains("not committed"), "{said}");
        Ok(())
    })
}
