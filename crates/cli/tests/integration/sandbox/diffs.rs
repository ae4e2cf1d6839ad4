//! What a sandbox changed: patches that apply, from every point and in every state of it.

use std::fs;
use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::sandbox::kit::{Kit, lasting, path, text};
use crate::support::fingerprint;

/// Every kind of change.
const CHANGES: &str = r#"echo more >> a.txt; echo new > new.txt; mkdir -p d/e; ln -s ../a.txt d/link
    rm src/main.c; chmod 755 README.md; head -c 5000 /dev/urandom > d/e/blob
    echo odd > "od d\"'é
line"; printf 'no newline' > d/none; : > d/empty; rm -r src/deep; echo now-a-file > src/deep
    echo ignored > x.o; mkdir ignored; echo i > ignored/i; echo home > ~/not-in-the-patch"#;

/// All files that a patch can carry, with content and mode.
const LISTED: &str = r"skip='( -path ./.git -o -path ./ignored -o -name *.o ) -prune -o'; set -f
    find . $skip -type l -printf '%p -> %l\n' | sort; find . $skip -type f -perm -100 -print | sort
    find . $skip -type f -exec sha256sum {} + | sort";

/// The patch applies to a clean checkout of a commit and gives what is seen inside.
fn applies(kit: &Kit<'_>, id: &str, patch: &str, on: &str) -> Result<()> {
    let clone = kit.fixture.folder.with_file_name(format!("clone-{id}"));
    let folder = path(&kit.fixture.folder);
    let top = kit.fixture.folder.parent().expect("a parent").to_owned();
    kit.env
        .git(kit.fixture, &top, &["clone", "-q", folder, path(&clone)])?;
    kit.env.git(kit.fixture, &clone, &["checkout", "-q", on])?;
    let file = kit.env.put(kit.fixture, "../the.patch", patch)?;
    kit.env
        .git(kit.fixture, &clone, &["apply", "--check", path(&file)])?;
    kit.env.git(kit.fixture, &clone, &["apply", path(&file)])?;
    let applied = kit
        .env
        .as_owner(kit.fixture, &clone, &["sh", "-c", LISTED])?;
    let inside = kit.sh(id, LISTED)?;
    ensure!(applied == inside, "applied:\n{applied}\ninside:\n{inside}");
    fs::remove_dir_all(clone)?;
    Ok(())
}

fn diff(kit: &Kit<'_>, words: &[&str]) -> Result<String> {
    kit.done(&[&["sandbox", "diff"], words].concat())
}

#[test]
fn a_patch_applies_and_gives_what_is_inside() -> Result<()> {
    lasting("patch", |kit| {
        let id = kit.create(&[])?;
        ensure!(diff(kit, &[&id])?.is_empty(), "nothing ran yet");
        kit.sh(&id, CHANGES)?;
        // Running, with somebody at work in it.
        kit.sh(&id, "sleep 1000 > /dev/null 2>&1 &")?;
        let running = kit.call(&["sandbox", "diff", &id])?;
        running.exits(0)?;
        ensure!(
            running.stderr.contains("left behind: x.o"),
            "{}",
            running.stderr
        );
        applies(kit, &id, &running.stdout, "main")?;
        kit.expect_state(&id, "running")?;
        // Stopped, sealed, over several layers, in a fork: the same.
        kit.done(&["sandbox", "stop", &id])?;
        ensure!(diff(kit, &[&id])? == running.stdout, "stopped");
        kit.expect_state(&id, "stopped")?;
        kit.done(&["sandbox", "checkpoint", &id, "--name", "one"])?;
        ensure!(diff(kit, &[&id])? == running.stdout, "sealed");
        let fork = kit.done(&["sandbox", "fork", &id])?;
        ensure!(diff(kit, &[fork.trim()])? == running.stdout, "forked");
        kit.sh(
            fork.trim(),
            "rm new.txt; echo two >> a.txt; git add -A; git reset -q --hard HEAD; git clean -fdq",
        )?;
        ensure!(diff(kit, &[fork.trim()])?.is_empty(), "all taken back");
        kit.sh(&id, "rm d/e/blob; echo two > two; mv d dd")?;
        let layered = diff(kit, &[&id])?;
        ensure!(layered != running.stdout);
        applies(kit, &id, &layered, "main")?;
        // Back again.
        kit.done(&["sandbox", "rollback", &id, "one"])?;
        ensure!(diff(kit, &[&id])? == running.stdout, "rolled back");
        let json = kit.json(&["sandbox", "diff", &id, "--json"])?;
        ensure!(json.to_string().contains("new.txt"), "{json}");
        Ok(())
    })
}

#[test]
fn a_diff_since_a_checkpoint_has_only_what_came_later() -> Result<()> {
    lasting("since", |kit| {
        let id = kit.create(&[])?;
        kit.sh(
            &id,
            "echo one >> a.txt; echo x > first.txt; echo gone > gone.txt",
        )?;
        kit.done(&["sandbox", "checkpoint", &id, "--name", "one"])?;
        ensure!(diff(kit, &[&id, "--from", "one"])?.is_empty());
        kit.sh(&id, "echo two >> a.txt; rm gone.txt; echo y > two.txt")?;
        let since = diff(kit, &[&id, "--from", "one"])?;
        ensure!(
            since.contains("+two\n") && since.contains(" one\n"),
            "{since}"
        );
        ensure!(
            since.contains("b/gone.txt") && !since.contains("first.txt"),
            "{since}"
        );
        kit.done(&["sandbox", "checkpoint", &id, "--name", "two"])?;
        ensure!(diff(kit, &[&id, "--from", "one"])? == since);
        ensure!(diff(kit, &[&id, "--from", "two"])?.is_empty());
        kit.done(&["sandbox", "rollback", &id, "one"])?;
        // The way back is a diff as well.
        let back = diff(kit, &[&id, "--from", "two"])?;
        ensure!(
            back.contains("-two\n") && back.contains("+gone\n") && back.contains("-y\n"),
            "{back}"
        );
        ensure!(diff(kit, &[&id, "--at", "two", "--from", "one"])? == since);
        kit.fails(
            2,
            "no checkpoint",
            &["sandbox", "diff", &id, "--from", "three"],
        )?;
        // A fork came from the same state; the checkpoint's name is its origin's.
        kit.sh(&id, "echo three > three.txt")?;
        ensure!(diff(kit, &[&id, "--from", "one"])?.contains("three.txt"));
        Ok(())
    })
}

/// Such a checkpoint is a copy beside the stack, and a diff starts from it all the same.
#[test]
fn a_diff_since_a_checkpoint_that_was_made_while_something_ran() -> Result<()> {
    lasting("since-busy", |kit| {
        let id = kit.create(&[])?;
        kit.sh(&id, "echo one > first.txt; sleep 1000 > /dev/null 2>&1 &")?;
        kit.done(&["sandbox", "checkpoint", &id, "--name", "one"])?;
        kit.sh(&id, "echo two > two.txt; rm first.txt")?;
        let since = diff(kit, &[&id, "--from", "one"])?;
        ensure!(
            since.contains("b/two.txt") && since.contains("-one\n") && !since.contains("a.txt"),
            "{since}"
        );
        // From its base it has everything.
        let patch = diff(kit, &[&id])?;
        ensure!(
            patch.contains("b/two.txt") && !patch.contains("first.txt"),
            "{patch}"
        );
        Ok(())
    })
}

#[test]
fn git_works_inside_as_in_any_clone() -> Result<()> {
    lasting("git", |kit| {
        let folder = kit.fixture.folder.clone();
        kit.env
            .git(kit.fixture, &folder, &["commit", "-qam", "second"])?;
        kit.env.git(kit.fixture, &folder, &["tag", "v1"])?;
        let id = kit.create(&[])?;
        let seen = kit.sh(
            &id,
            "git status --porcelain; git log --format=%s; git remote -v",
        )?;
        ensure!(seen.starts_with("second\nfirst\n"), "{seen}");
        ensure!(!seen.contains("canary"), "{seen}");
        // A clean status opens none of the tracked files.
        let opened = kit.sh(
            &id,
            "strace -f -e trace=openat,open -o /tmp/trace git status --porcelain; \
             grep -c index /tmp/trace; grep -E '\"(a.txt|README.md|src/main.c|src/deep/x.c)\"' /tmp/trace || true",
        )?;
        ensure!(
            opened.lines().count() == 1 && opened != "0\n",
            "opened: {opened}"
        );
        let worked = kit.sh(
            &id,
            "set -e; git config user.name a; git config user.email a@b; git checkout -qb topic; echo t > t; \
             git add t; git commit -qm topic; echo s >> a.txt; git stash -q; git diff --stat; git stash pop -q; \
             git worktree add -q --detach ../tmp/tree main; ls ../tmp/tree | head -n 1; git checkout -q -- a.txt; \
             git checkout -q main; git merge -q topic; git log --format=%s; git fsck --no-dangling; git gc -q; git status --short; \
             git rev-parse HEAD~1",
        )?;
        let head = kit.env.git(kit.fixture, &folder, &["rev-parse", "main"])?;
        ensure!(
            worked == format!("README.md\ntopic\nsecond\nfirst\n{head}"),
            "{worked}"
        );
        // Commits are no changes of files: the patch is that of the tree.
        let patch = diff(kit, &[&id])?;
        ensure!(
            patch.matches("diff --git").count() == 1 && patch.contains("b/t"),
            "{patch}"
        );
        applies(kit, &id, &patch, "main")
    })
}

#[test]
fn a_dirty_folder_is_taken_as_it_is_and_never_touched() -> Result<()> {
    lasting("dirty", |kit| {
        let folder = kit.fixture.folder.clone();
        kit.env.put(kit.fixture, "untracked.txt", "untracked\n")?;
        kit.env.put(kit.fixture, "built.o", "object\n")?;
        kit.env.put(kit.fixture, "staged.txt", "staged\n")?;
        kit.env.git(kit.fixture, &folder, &["add", "staged.txt"])?;
        let before = fingerprint(&folder)?;
        let id = kit.create_of(&["--repo", path(&folder)])?;
        let shown = kit.sh(
            &id,
            "git status --porcelain; cat README.md untracked.txt built.o staged.txt",
        )?;
        ensure!(
            // The index is the commit's: what was staged is there, and not staged.
            shown
                == " M README.md\n?? staged.txt\n?? untracked.txt\n\
                    # Fixture\n\nNot committed.\nuntracked\nobject\nstaged\n",
            "{shown}"
        );
        ensure!(fingerprint(&folder)? == before, "touched by create");
        // The user goes on; the sandbox does not notice.
        for (name, content) in [
            ("README.md", "later\n"),
            ("untracked.txt", "UNTRACKED\n"),
            ("a.txt", "x"),
        ] {
            fs::write(folder.join(name), content)?;
        }
        fs::remove_file(folder.join("staged.txt"))?;
        let after = fingerprint(&folder)?;
        kit.sh(
            &id,
            "echo mine >> untracked.txt; git commit -qam x || true; rm -rf src .git",
        )?;
        kit.done(&["sandbox", "stop", &id])?;
        ensure!(
            kit.sh(
                &id,
                "cat README.md staged.txt untracked.txt; head -n 1 a.txt"
            )? == "# Fixture\n\nNot committed.\nstaged\nuntracked\nmine\none\n"
        );
        ensure!(diff(kit, &[&id])?.contains("+mine"));
        ensure!(fingerprint(&folder)? == after, "touched by the sandbox");
        Ok(())
    })
}

#[test]
fn r11_only_the_files_that_are_needed_are_there() -> Result<()> {
    lasting("staged", |kit| {
        let folder = kit.fixture.folder.clone();
        kit.env.put(kit.fixture, "secret.txt", "sibling-word\n")?;
        kit.env.git(kit.fixture, &folder, &["add", "-A"])?;
        kit.env
            .git(kit.fixture, &folder, &["commit", "-qm", "secret"])?;
        let id = kit.create(&["--stage", "needed", "--files", "src/**", "a.txt"])?;
        let found = kit.sh(&id, "find /workspace -not -path '*/.git*' -type f | sort")?;
        ensure!(
            found == "/workspace/a.txt\n/workspace/src/deep/x.c\n/workspace/src/main.c\n",
            "{found}"
        );
        let searched = kit.sh(
            &id,
            "git cat-file --batch-all-objects --batch --buffer 2>/dev/null | grep -a -c sibling-word; \
             git log --all -p 2>/dev/null | grep -a -c sibling-word; git show HEAD:secret.txt 2>&1; \
             grep -ra sibling-word / --include='*' -s -l --exclude-dir=proc --exclude-dir=usr; \
             ls -A /.ringfence/objects; git status --porcelain; true",
        )?;
        ensure!(
            !searched.contains("sibling-word\n") && searched.starts_with("0\n0\n"),
            "{searched}"
        );
        kit.sh(&id, "echo four >> a.txt; rm src/main.c; echo n > src/new.c; echo mine > secret.txt; git add -A")?;
        let output = kit.call(&["sandbox", "diff", &id])?;
        output.exits(0)?;
        ensure!(
            output.stderr.contains("left behind: secret.txt"),
            "{}",
            output.stderr
        );
        ensure!(!output.stdout.contains("secret.txt"), "{}", output.stdout);
        let patch: PathBuf = kit
            .env
            .put(kit.fixture, "../staged.patch", &output.stdout)?;
        kit.env
            .git(kit.fixture, &folder, &["apply", "--check", path(&patch)])?;
        kit.env
            .git(kit.fixture, &folder, &["apply", path(&patch)])?;
        let changed = kit
            .env
            .git(kit.fixture, &folder, &["status", "--porcelain"])?;
        ensure!(
            changed == " M a.txt\n D src/main.c\n?? src/new.c\n",
            "{changed}"
        );
        let created = kit.call(&[
            "sandbox",
            "create",
            "--repo",
            path(&folder),
            "--base",
            "main",
            "--stage",
            "needed",
            "--files",
            "no/such/file",
        ])?;
        ensure!(
            !created.status.success() && created.stderr.contains("no/such/file"),
            "{}",
            created.tail()
        );
        ensure!(text(&kit.status(&id)?, "state") == "running");
        Ok(())
    })
}
