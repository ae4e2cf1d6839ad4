//! `ringfence campaign apply`: the work of several tasks on one branch, each looked at again on top
//! of those before it.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::support::{Fixture, Output, Sandboxed, fingerprint, in_each_mode};

/// One file with room between its lines, one that nobody shares, one in a directory.
const LONG: &str = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";

const AUTHOR: &str = "Ada L. <ada@example.org>";

fn begin(env: &Sandboxed, fixture: &Fixture) -> Result<()> {
    env.put(fixture, "long.txt", LONG)?;
    env.git(fixture, &fixture.folder, &["add", "-A"])?;
    env.git(fixture, &fixture.folder, &["commit", "-qm", "long"])?;
    Ok(())
}

fn ran(env: &Sandboxed, fixture: &Fixture, options: &[&str], shell: &str) -> Result<String> {
    let result = env.run_with(fixture, options, shell)?;
    Ok(result["run"].as_str().context("no run")?.to_owned())
}

fn approve(env: &Sandboxed, fixture: &Fixture, runs: &[&str]) -> Result<()> {
    for run in runs {
        env.ringfence(fixture, 60, &["approve", run])?.exits(0)?;
    }
    Ok(())
}

fn apply(env: &Sandboxed, fixture: &Fixture, words: &[&str]) -> Result<Output> {
    let words = [
        &["campaign", "apply", "--json", "--author", AUTHOR, "--runs"],
        words,
    ]
    .concat();
    env.ringfence(fixture, 240, &words)
}

fn told(output: &Output) -> Result<Value> {
    output.json.clone().with_context(|| output.tail())
}

fn git(env: &Sandboxed, fixture: &Fixture, words: &[&str]) -> Result<String> {
    Ok(env.git(fixture, &fixture.folder, words)?.trim().to_owned())
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

#[test]
fn tasks_are_taken_in_order_and_what_does_not_fit_is_named() -> Result<()> {
    in_each_mode("merged", |env, fixture| {
        begin(env, fixture)?;
        let runs = [
            ran(
                env,
                fixture,
                &[],
                "sed -i s/^1$/one/ long.txt; mkdir n; echo x > n/x",
            )?,
            ran(env, fixture, &[], "sed -i s/^1$/uno/ long.txt")?,
            ran(
                env,
                fixture,
                &[],
                "sed -i s/^9$/nine/ long.txt; rm src/deep/x.c; chmod +x src/main.c",
            )?,
        ];
        let [one, other, two] = [&runs[0][..], &runs[1], &runs[2]];
        approve(env, fixture, &[one, other, two])?;
        let before = fingerprint(&fixture.folder)?;
        let looked = apply(
            env,
            fixture,
            &[one, other, two, "--branch", "all", "--dry-run"],
        )?;
        looked.exits(1)?;
        ensure!(told(&looked)?["made"] == false, "{}", looked.tail());
        ensure!(
            fingerprint(&fixture.folder)? == before,
            "a look changed something"
        );

        let done = apply(env, fixture, &[one, other, two, "--branch", "all"])?;
        done.exits(1)?;
        let merged = told(&done)?;
        ensure!(merged["taken"][0]["run"] == one && merged["taken"][1]["run"] == two);
        let left = &merged["left_out"][0];
        ensure!(left["run"] == other && left["reason"] == "clash", "{left}");
        let clash = &left["clashes"][0];
        ensure!(
            clash["path"] == "long.txt"
                && clash["lines"]["first"] == 1
                && clash["lines"]["last"] == 1
                && clash["with"] == serde_json::json!([1]),
            "{clash}"
        );
        // One commit for each, on top of what the runs began from.
        let log = git(
            env,
            fixture,
            &["log", "--format=%H %P", "--reverse", "main..all"],
        )?;
        let commits: Vec<Vec<&str>> = log.lines().map(|line| line.split(' ').collect()).collect();
        let base = git(env, fixture, &["rev-parse", "main"])?;
        ensure!(commits.len() == 2 && commits[0][1] == base && commits[1][1] == commits[0][0]);
        ensure!(text(&merged, "commit") == commits[1][0]);
        let joined = git(env, fixture, &["show", "all:long.txt"])?;
        ensure!(joined == "one\n2\n3\n4\n5\n6\n7\n8\nnine", "{joined}");
        git(env, fixture, &["fsck", "--strict"])?;
        // The same as git makes of the patches.
        let apart = fixture.folder.with_file_name("apart");
        let apart_text = apart.to_string_lossy().into_owned();
        git(
            env,
            fixture,
            &["worktree", "add", "-q", "--detach", &apart_text, "main"],
        )?;
        for run in [one, two] {
            let patch = fixture
                .state
                .join("bundles")
                .join(run)
                .join("changes.patch");
            env.git(
                fixture,
                &apart,
                &["apply", "--index", &patch.to_string_lossy()],
            )?;
        }
        let tree = env.git(fixture, &apart, &["write-tree"])?;
        ensure!(tree.trim() == text(&merged, "tree"), "another tree");
        // The working tree and the index are as they were.
        ensure!(git(env, fixture, &["status", "--porcelain"])?.is_empty());
        let after = fingerprint(&fixture.folder)?;
        for (path, facts) in &before {
            let own = path.starts_with(fixture.folder.join(".git")) || path.starts_with(".git");
            ensure!(own || after.get(path) == Some(facts), "{path:?}");
        }
        Ok(())
    })
}

#[test]
fn what_passes_alone_and_not_on_top_of_another_is_left_out() -> Result<()> {
    in_each_mode("on-top", |env, fixture| {
        begin(env, fixture)?;
        let check = ["--check", "test ! -e left || test ! -e right"];
        let left = ran(env, fixture, &check, "echo l > left")?;
        let right = ran(env, fixture, &check, "echo r > right")?;
        let third = ran(env, fixture, &check, "echo t > third")?;
        approve(env, fixture, &[&left, &right, &third])?;
        let done = apply(env, fixture, &[&left, &right, &third, "--branch", "all"])?;
        done.exits(1)?;
        let merged = told(&done)?;
        ensure!(merged["taken"][1]["run"] == third.as_str(), "{merged}");
        let out = &merged["left_out"][0];
        ensure!(
            out["run"] == right.as_str() && out["reason"] == "checks",
            "{out}"
        );
        ensure!(out["checks"]["reports"][0]["verdict"] == "broke", "{out}");
        ensure!(merged["last"]["reports"][0]["verdict"] == "passes");
        let names = git(env, fixture, &["ls-tree", "--name-only", "all"])?;
        ensure!(names.contains("left") && names.contains("third") && !names.contains("right"));
        // In the other order the other one is left out.
        let done = apply(env, fixture, &[&right, &left, "--branch", "other"])?;
        ensure!(told(&done)?["left_out"][0]["run"] == left.as_str());
        // Checks of the end count for all of it: then there is no branch.
        let last = ["--branch", "none", "--check", "test ! -e left"];
        let done = apply(env, fixture, &[&[&left[..]], &last[..]].concat())?;
        done.exits(5)?;
        ensure!(told(&done)?["made"] == false);
        ensure!(git(env, fixture, &["branch", "--list", "none"])?.is_empty());
        let done = apply(
            env,
            fixture,
            &[&[&left[..]], &last[..], &["--anyway"]].concat(),
        )?;
        done.exits(5)?;
        ensure!(!git(env, fixture, &["branch", "--list", "none"])?.is_empty());
        Ok(())
    })
}

#[test]
fn stacked_branches_stand_on_each_other_and_a_base_may_move() -> Result<()> {
    in_each_mode("stacked", |env, fixture| {
        begin(env, fixture)?;
        let check = ["--check", "grep -q Fixture README.md"];
        let one = ran(env, fixture, &check, "echo 1 > one")?;
        let two = ran(
            env,
            fixture,
            &check,
            "echo 2 > two; sed -i s/^5$/five/ long.txt",
        )?;
        approve(env, fixture, &[&one, &two])?;
        let began = git(env, fixture, &["rev-parse", "main"])?;
        // The folder moves on, and is not clean either.
        env.put(fixture, "long.txt", LONG.replace("1\n", "first\n"))?;
        env.git(fixture, &fixture.folder, &["commit", "-qam", "moved"])?;
        env.put(fixture, "a.txt", "dirty\n")?;
        let done = apply(env, fixture, &[&one, &two, "--branch", "c", "--stacked"])?;
        done.exits(0)?;
        let merged = told(&done)?;
        ensure!(
            merged["notes"][0]
                .as_str()
                .is_some_and(|note| note.contains("checkout"))
        );
        ensure!(merged["base"] == began.as_str());
        let (first, second) = (format!("c/0001-{one}"), format!("c/0002-{two}"));
        let parent = |name: &str| git(env, fixture, &["rev-parse", &format!("{name}^")]);
        ensure!(parent(&first)? == began);
        ensure!(parent(&second)? == git(env, fixture, &["rev-parse", &first])?);
        ensure!(merged["branch"] == format!("refs/heads/{second}"));
        // The same again: the names are taken, and nothing is made.
        let refs = git(env, fixture, &["for-each-ref"])?;
        apply(env, fixture, &[&one, &two, "--branch", "c", "--stacked"])?.exits(2)?;
        apply(env, fixture, &[&one, &two, "--branch", "c"])?.exits(2)?;
        ensure!(git(env, fixture, &["for-each-ref"])? == refs);
        // On top of what moved, lines are joined.
        let done = apply(
            env,
            fixture,
            &[&one, &two, "--branch", "new", "--base", "main"],
        )?;
        done.exits(0)?;
        let joined = git(env, fixture, &["show", "new:long.txt"])?;
        ensure!(joined == "first\n2\n3\n4\nfive\n6\n7\n8\n9", "{joined}");
        ensure!(fs::read_to_string(fixture.folder.join("a.txt"))? == "dirty\n");
        Ok(())
    })
}

#[test]
fn only_what_was_approved_is_taken() -> Result<()> {
    in_each_mode("verdicts", |env, fixture| {
        begin(env, fixture)?;
        let runs = [
            ran(env, fixture, &[], "echo 1 > one")?,
            ran(env, fixture, &[], "echo 2 > two")?,
            ran(env, fixture, &[], "echo 3 > three")?,
            ran(env, fixture, &[], "true")?,
            ran(env, fixture, &[], "echo 5 > five")?,
        ];
        let ids: Vec<&str> = runs.iter().map(String::as_str).collect();
        approve(env, fixture, &[ids[0], ids[3], ids[4]])?;
        env.ringfence(fixture, 60, &["reject", ids[1], "--why", "no"])?
            .exits(0)?;
        // Somebody changed a bundle after its approval.
        let patch = fixture
            .state
            .join("bundles")
            .join(ids[4])
            .join("changes.patch");
        fs::write(&patch, fs::read_to_string(&patch)?.replace("+5", "+6"))?;
        let reasons = |merged: &Value| -> Vec<String> {
            let left = merged["left_out"].as_array().cloned().unwrap_or_default();
            left.iter()
                .map(|left| text(left, "reason").to_owned())
                .collect()
        };
        let done = apply(env, fixture, &[&ids[..], &["--branch", "some"]].concat())?;
        done.exits(1)?;
        let merged = told(&done)?;
        ensure!(
            reasons(&merged) == ["rejected", "held", "no_change", "no_bundle"],
            "{merged}"
        );
        let names = git(env, fixture, &["ls-tree", "--name-only", "some"])?;
        ensure!(names.lines().any(|name| name == "one") && !names.contains("two"));
        // Who approves along the way does not overrule a no.
        let done = apply(
            env,
            fixture,
            &[&ids[..4], &["--branch", "more", "--approve"]].concat(),
        )?;
        done.exits(1)?;
        ensure!(
            reasons(&told(&done)?) == ["rejected", "no_change"],
            "{}",
            done.tail()
        );
        let names = git(env, fixture, &["ls-tree", "--name-only", "more"])?;
        ensure!(names.contains("three") && !names.contains("two"));
        // Where nothing changed there is nothing to decide on, whatever the checks say.
        let idle = ran(env, fixture, &["--check", "test -e never"], "true")?;
        let words = [ids[0], &idle, "--branch", "idle", "--approve"];
        let done = apply(env, fixture, &words)?;
        done.exits(0)?;
        ensure!(reasons(&told(&done)?) == ["no_change"], "{}", done.tail());
        let done = apply(env, fixture, &[ids[1], "--branch", "nothing"])?;
        done.exits(1)?;
        ensure!(git(env, fixture, &["branch", "--list", "nothing"])?.is_empty());
        apply(env, fixture, &[ids[0], ids[0], "--branch", "twice"])?.exits(2)?;
        Ok(())
    })
}

#[test]
fn an_approval_of_many_is_of_what_is_on_the_branch() -> Result<()> {
    in_each_mode("approve", |env, fixture| {
        begin(env, fixture)?;
        let exam = ["--check", "test -e tests/ok"];
        let runs = [
            ran(env, fixture, &[], "echo 1 > one")?,
            ran(env, fixture, &[], "echo 2 > one")?,
            ran(env, fixture, &["--check", "test ! -e bad"], "echo b > bad")?,
            ran(env, fixture, &exam, "mkdir tests; echo > tests/ok")?,
        ];
        let ids: Vec<&str> = runs.iter().map(String::as_str).collect();
        let states = || -> Result<Vec<String>> {
            let shown = ids.iter().map(|run| {
                let shown = env.look(fixture, &["show", run, "--json"])?;
                let shown: Value = serde_json::from_str(&shown)?;
                Ok(text(&shown["review"], "state").to_owned())
            });
            shown.collect()
        };
        let nobody = ["held"; 4];
        // No branch, no verdict: a look, checks at the end that fail, and a name that is none.
        for (more, code) in [
            (&["--branch", "a", "--dry-run"][..], 1),
            (&["--branch", "a", "--check", "test ! -e one"], 5),
            (&["--branch", "refs/heads/a"], 2),
        ] {
            let words = [&ids[..], more, &["--approve"]].concat();
            apply(env, fixture, &words)?.exits(code)?;
            ensure!(states()? == nobody, "{more:?}: {:?}", states()?);
        }
        let done = apply(
            env,
            fixture,
            &[&ids[..], &["--branch", "a", "--approve"]].concat(),
        )?;
        done.exits(1)?;
        let merged = told(&done)?;
        let left = merged["left_out"].as_array().context("no list")?;
        let left: Vec<&str> = left.iter().map(|left| text(left, "reason")).collect();
        ensure!(left == ["clash", "held", "held"], "{merged}");
        let why = text(&merged["left_out"][1], "why");
        ensure!(
            why.contains(&format!("ringfence review {}", ids[2])),
            "{why}"
        );
        ensure!(
            states()? == ["approved", "held", "held", "held"],
            "{:?}",
            states()?
        );
        // Who says so takes them all the same, but nothing whose check breaks on the branch: that is
        // left out, and not approved.
        let words = ["--branch", "b", "--approve", "--anyway"];
        let done = apply(env, fixture, &[&ids[2..], &words].concat())?;
        let merged = told(&done)?;
        ensure!(merged["made"] == true, "{merged}");
        ensure!(merged["left_out"][0]["reason"] == "checks", "{merged}");
        // What the checks at the end do without is named with its task.
        let named = "task 2 changed what checks are done with";
        ensure!(merged["notes"].to_string().contains(named), "{merged}");
        let found = states()?;
        ensure!(
            found == ["approved", "held", "held", "approved"],
            "{found:?}"
        );
        Ok(())
    })
}

#[test]
fn a_patch_is_held_to_the_tree_that_the_others_made() -> Result<()> {
    in_each_mode("stacked-links", |env, fixture| {
        begin(env, fixture)?;
        // Each is harmless by itself; together one would go through the link of the other.
        let link = ran(env, fixture, &[], "ln -s src lib")?;
        let below = ran(env, fixture, &[], "mkdir lib; echo x > lib/x")?;
        let gone = ran(env, fixture, &[], "rm -r src/deep; echo f > src/deep")?;
        let inside = ran(env, fixture, &[], "echo y > src/deep/y")?;
        let edited = ran(env, fixture, &[], "echo 'int y;' >> src/deep/x.c")?;
        // It leads nowhere bad until another link is there.
        let out = ran(env, fixture, &[], "ln -s ../.. src/up")?;
        approve(
            env,
            fixture,
            &[&link, &below, &gone, &inside, &edited, &out],
        )?;
        let done = apply(
            env,
            fixture,
            &[
                &link, &below, &gone, &inside, &edited, &out, "--branch", "all",
            ],
        )?;
        done.exits(1)?;
        let merged = told(&done)?;
        let left = merged["left_out"].as_array().context("no list")?;
        let clashes: Vec<(&str, &str, Value)> = left
            .iter()
            .map(|left| {
                let clash = &left["clashes"][0];
                (
                    text(left, "run"),
                    text(clash, "path"),
                    clash["with"].clone(),
                )
            })
            .collect();
        let expected = [
            (&below[..], "lib/x", serde_json::json!([1])),
            (&inside, "src/deep/y", serde_json::json!([3])),
            (&edited, "src/deep/x.c", serde_json::json!([3])),
            (&out, "src/up", serde_json::json!([])),
        ];
        ensure!(clashes == expected, "{clashes:?}");
        let tree = git(env, fixture, &["ls-tree", "-r", "all"])?;
        ensure!(
            tree.lines()
                .any(|line| line.starts_with("120000") && line.ends_with("\tlib"))
        );
        ensure!(!tree.contains("lib/x"), "{tree}");
        // The other way round the directory is there, and the link is in the way.
        let done = apply(env, fixture, &[&below, &link, "--branch", "other"])?;
        ensure!(
            told(&done)?["left_out"][0]["run"] == link.as_str(),
            "{}",
            done.tail()
        );
        Ok(())
    })
}

/// It does its own file, and writes its name where all others do.
const AGENT: &str =
    "#!/bin/sh\nfile=$(sed -n 's/^- //p')\necho done >> $file\necho $file > shared.txt\n";

#[test]
fn a_campaign_is_taken_by_its_name_and_what_clashes_goes_back() -> Result<()> {
    in_each_mode("named", |env, fixture| {
        let files = [("p/a.py", "a\n"), ("p/b.py", "b\n"), ("shared.txt", "s\n")];
        crate::campaign::tree(env, fixture, &files)?;
        env.put(fixture, "agent.sh", AGENT)?;
        env.as_owner(fixture, &fixture.folder, &["chmod", "+x", "agent.sh"])?;
        crate::campaign::plan(
            env,
            fixture,
            "[split]\nfiles = 'p/*.py'\nper_task = 1\n[checks]\nfinal = ['test -e shared.txt']\n",
        )?;
        crate::campaign::commit_all(env, fixture)?;
        let words = ["campaign", "apply", "c", "--branch", "all"];
        env.ringfence(fixture, 60, &words)?.exits(2)?;
        let ran = env.ringfence(fixture, 240, &["campaign", "run", "plan.toml"])?;
        ensure!(!ran.hung(), "{}", ran.tail());
        let back = fixture.folder.with_file_name("back");
        let directory = back.to_string_lossy().into_owned();
        let more = [
            "--author",
            AUTHOR,
            "--approve",
            "--json",
            "--rebase",
            &directory,
        ];
        // A directory that cannot take them is told before anything is made.
        fs::create_dir(&back)?;
        fs::write(back.join("x"), "")?;
        let full = env.ringfence(fixture, 240, &[&words[..], &more].concat())?;
        full.exits(2)?;
        ensure!(git(env, fixture, &["branch", "--list", "all"])?.is_empty());
        fs::remove_dir_all(&back)?;
        let done = env.ringfence(fixture, 240, &[&words[..], &more].concat())?;
        done.exits(1)?;
        let merged = told(&done)?;
        ensure!(merged["taken"][0]["number"] == 1, "{merged}");
        let left = &merged["left_out"][0];
        ensure!(
            left["number"] == 2 && left["clashes"][0]["path"] == "shared.txt",
            "{left}"
        );
        ensure!(git(env, fixture, &["show", "all:p/a.py"])? == "a\ndone");
        let subject = git(env, fixture, &["log", "-1", "--format=%s", "all"])?;
        ensure!(subject.starts_with("c: task 1 ("), "{subject}");
        // The other one is a task on top of the branch.
        let written: Vec<_> = fs::read_dir(&back)?.collect::<Result<_, _>>()?;
        ensure!(written.len() == 1, "{written:?}");
        let task = written[0].path().to_string_lossy().into_owned();
        let apart = fixture.folder.with_file_name("apart");
        let folder = apart.to_string_lossy().into_owned();
        git(env, fixture, &["worktree", "add", "-q", &folder, "all"])?;
        let words = ["run", "--json", "--repo", &folder, "--task", &task];
        let again = env.ringfence(fixture, 120, &words)?;
        again.exits(0)?;
        let changed = &told(&again)?["changed_files"];
        ensure!(
            *changed == serde_json::json!(["p/b.py", "shared.txt"]),
            "{changed}"
        );
        Ok(())
    })
}

#[test]
fn tasks_that_make_a_bare_repository_together_are_not_all_taken() -> Result<()> {
    in_each_mode("merged-bare", |env, fixture| {
        begin(env, fixture)?;
        let runs = [
            ran(
                env,
                fixture,
                &[],
                "mkdir -p d/objects; touch d/objects/x d/HEAD",
            )?,
            ran(env, fixture, &[], "mkdir -p d/refs; touch d/refs/x")?,
        ];
        let [one, two] = [&runs[0][..], &runs[1]];
        approve(env, fixture, &[one, two])?;
        let done = apply(env, fixture, &[one, two, "--branch", "both"])?;
        done.exits(1)?;
        let merged = told(&done)?;
        ensure!(merged["taken"][0]["run"] == one, "{merged}");
        let clash = &merged["left_out"][0]["clashes"][0];
        ensure!(
            clash["path"] == "d/refs/x" && text(clash, "why").contains("would be a git directory"),
            "{merged}"
        );
        Ok(())
    })
}
