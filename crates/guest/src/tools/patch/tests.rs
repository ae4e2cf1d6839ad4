//! Patches as git makes them, applied by us and by git, and patches that must be refused.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use ringfence_model::tools::FailureKind;
use serde_json::{Value, json};

use super::*;
use crate::testing::Bench;

fn git(directory: &Path, arguments: &[&str]) -> Vec<u8> {
    let output = Command::new("git")
        .args(["-c", "user.name=t", "-c", "user.email=t@t"])
        .args(["-c", "core.autocrlf=false", "-c", "commit.gpgsign=false"])
        .args(arguments)
        .current_dir(directory)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .output()
        .expect("git runs");
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

/// Names, modes and content of a tree, without git's own.
fn tree(directory: &Path) -> Vec<(String, u32, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == ".git" {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            found.push((format!("{name}/"), 0, Vec::new()));
            for (below, mode, content) in tree(&entry.path()) {
                found.push((format!("{name}/{below}"), mode, content));
            }
        } else {
            let mode = entry.metadata().unwrap().permissions().mode() & 0o100;
            // A link that leads to a directory has no content.
            let content = fs::read(entry.path()).unwrap_or_default();
            found.push((name, mode, content));
        }
    }
    found.sort();
    found
}

fn refused(bench: &Bench, request: Value) -> FailureKind {
    let before = tree(&bench.path(""));
    let kind = bench.call(patch, request).unwrap_err().kind;
    assert_eq!(tree(&bench.path("")), before, "nothing has changed");
    kind
}

#[test]
fn a_patch_of_git_makes_the_same_tree_as_git() {
    let bench = Bench::new();
    let numbers = |range: std::ops::Range<u32>| -> String {
        range.map(|number| format!("line {number}\n")).collect()
    };
    bench.file("plain", numbers(0..60));
    bench.file("crlf", "a\r\nb\r\nc\r\n");
    bench.file("open", "x\ny");
    bench.file("script", "#!/bin/sh\n");
    bench.file("dir/gone", "bye\n");
    bench.file("empty", "");
    bench.file("moved", numbers(0..30));
    bench.file("swap1", numbers(100..130));
    bench.file("swap2", numbers(200..230));
    bench.file("with space", "s\n");
    bench.file("näme\n", "n\n");
    bench.file("becomes", "a file\n");
    let work = bench.path("");
    git(&work, &["init", "-q"]);
    git(&work, &["add", "-A"]);
    git(&work, &["commit", "-qm", "one"]);
    git(
        &work,
        &[
            "worktree",
            "add",
            "-q",
            bench.outside("w").to_str().unwrap(),
        ],
    );
    let other = bench.outside("w");
    let change = |name: &str, content: &str| {
        let path = other.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    };
    change(
        "plain",
        &numbers(0..60)
            .replace("line 3\n", "")
            .replace("line 50", "fifty\nmore"),
    );
    change("crlf", "a\r\nB\r\nc\r\n");
    change("open", "x\ny\nz");
    fs::set_permissions(other.join("script"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::remove_dir_all(other.join("dir")).unwrap();
    fs::remove_file(other.join("empty")).unwrap();
    fs::create_dir(other.join("to")).unwrap();
    fs::rename(other.join("moved"), other.join("to/there")).unwrap();
    change("to/there", &numbers(0..30).replace("line 7", "seven"));
    fs::rename(other.join("swap1"), other.join("t")).unwrap();
    fs::rename(other.join("swap2"), other.join("swap1")).unwrap();
    fs::rename(other.join("t"), other.join("swap2")).unwrap();
    change("with space", "t\n");
    change("näme\n", "m\n");
    fs::remove_file(other.join("becomes")).unwrap();
    change("becomes/a/directory", "now\n");
    change("new/deep/file", "no end");
    change("new/empty", "");
    git(&other, &["add", "-A"]);
    for arguments in [
        &["diff", "--cached", "-M", "-B"][..],
        &["diff", "--cached", "--no-renames"],
        &[
            "diff",
            "--cached",
            "-M",
            "-C",
            "--find-copies-harder",
            "-U1",
        ],
    ] {
        let fresh = || {
            git(&work, &["reset", "-q", "--hard"]);
            git(&work, &["clean", "-qfd"]);
        };
        let text = git(&other, arguments);
        fs::write(bench.outside("p"), &text).unwrap();
        fresh();
        git(&work, &["apply", "../outside/p"]);
        let theirs = tree(&work);
        fresh();
        let request = json!({"text": String::from_utf8(text).unwrap()});
        let mut dry = request.clone();
        dry["dry_run"] = json!(true);
        let before = tree(&work);
        let planned = bench.call(patch, dry).unwrap();
        assert_eq!(tree(&work), before, "a dry run changes nothing");
        assert_eq!(bench.call(patch, request).unwrap(), planned);
        let ours = tree(&work);
        assert!(ours == theirs, "{arguments:?}: as git applies it");
        assert!(ours == tree(&other), "{arguments:?}: as it was meant");
    }
}

#[test]
fn hunks_that_have_moved_land_where_git_puts_them() {
    let bench = Bench::new();
    let work = bench.path("");
    git(&work, &["init", "-q"]);
    let mut number: u32 = 1;
    let mut next = |below: u32| {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (number >> 16) % below
    };
    for round in 0..60 {
        let base: Vec<String> = (0..80).map(|_| format!("{}\n", next(40))).collect();
        let mut changed = base.clone();
        for _ in 0..4 {
            // Git holds a hunk at an end of the file to that end.
            let at = next(60) as usize + 8;
            match next(3) {
                0 => changed[at] = "changed\n".to_owned(),
                1 => changed.insert(at, "inserted\n".to_owned()),
                _ => drop(changed.remove(at)),
            }
        }
        bench.file("f", base.concat());
        git(&work, &["add", "f"]);
        bench.file("f", changed.concat());
        let text = String::from_utf8(git(&work, &["diff", "f"])).unwrap();
        // What the patch meets has more at its beginning.
        let moved = "top\n".repeat(next(5) as usize) + &base.concat();
        bench.file("f", &moved);
        fs::write(bench.outside("p"), &text).unwrap();
        git(&work, &["apply", "../outside/p"]);
        let theirs = bench.content("f");
        bench.file("f", &moved);
        bench.call(patch, json!({"text": text})).unwrap();
        assert_eq!(bench.content("f"), theirs, "round {round}");
    }
}

#[test]
fn a_patch_is_applied_whole_or_not_at_all() {
    let bench = Bench::new();
    bench.file("a", "1\n");
    bench.file("b", "2\n");
    let good = "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-1\n+one\n";
    let bad = "--- a/b\n+++ b/b\n@@ -1 +1 @@\n-3\n+three\n";
    let both = json!({"text": format!("{good}{bad}")});
    assert_eq!(refused(&bench, both), FailureKind::Conflict);
    // A directory is in the way only when it comes to writing.
    let create = "--- /dev/null\n+++ b/n/f\n@@ -0,0 +1 @@\n+x\n";
    let clash = "--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n";
    let late = json!({"text": format!("{good}{create}{clash}")});
    assert!(bench.call(patch, late.clone()).is_err());
    assert_eq!(
        (bench.content("a").as_str(), bench.names(".").len()),
        ("1\n", 2)
    );
    let answer = bench.call(patch, json!({"text": good})).unwrap();
    assert_eq!(answer.files[0].hunks, 1);
    assert_eq!(bench.content("a"), "one\n");
}

#[test]
fn hostile_and_broken_patches_are_refused() {
    let bench = Bench::new();
    bench.file("f", "x\n");
    bench.file(".git/config", "x\n");
    fs::write(bench.outside("f"), "x\n").unwrap();
    symlink("../outside", bench.path("out")).unwrap();
    symlink("f", bench.path("link")).unwrap();
    let change = |name: &str| format!("--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-x\n+y\n");
    let create = |name: &str| format!("--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+y\n");
    let git = |lines: &str| format!("diff --git a/f b/f\n{lines}");
    for (text, kind) in [
        (change("../outside/f"), FailureKind::Denied),
        (change("/etc/passwd"), FailureKind::Denied),
        (change("out/f"), FailureKind::Denied),
        (change(".git/config"), FailureKind::Denied),
        (create("d/.GIT/hooks/x"), FailureKind::Denied),
        (create("out/new"), FailureKind::Denied),
        (change("link"), FailureKind::Invalid),
        (change("./f"), FailureKind::Invalid),
        (change("nothing"), FailureKind::NotFound),
        (create("f"), FailureKind::Conflict),
        (create("n") + &create("n"), FailureKind::Conflict),
        (git("GIT binary patch\n"), FailureKind::Invalid),
        (
            git("Binary files a/f and b/f differ\n"),
            FailureKind::Invalid,
        ),
        (git("new file mode 120000\n"), FailureKind::Invalid),
        (
            git("old mode 100644\nnew mode 160000\n"),
            FailureKind::Invalid,
        ),
        (git("deleted file mode 100644\n"), FailureKind::Conflict),
        (git("rename from f\n"), FailureKind::Invalid),
        (git("rename from f\nrename to ../g\n"), FailureKind::Denied),
        (
            git("rename from f\nrename to .git/g\n"),
            FailureKind::Denied,
        ),
        (change("f").replace("+y\n", ""), FailureKind::Invalid),
        (
            change("f").replace("@@ -1 +1", "@@ -1,z +1"),
            FailureKind::Invalid,
        ),
        ("@@ -1 +1 @@\n-x\n+y\n".to_owned(), FailureKind::Invalid),
        ("nothing at all".to_owned(), FailureKind::Invalid),
        (String::new(), FailureKind::Invalid),
        (
            "--- f\n+++ f\n@@ -1 +1 @@\n-x\n+y\n".to_owned(),
            FailureKind::Invalid,
        ),
    ] {
        assert_eq!(refused(&bench, json!({"text": text})), kind, "{text}");
    }
    assert_eq!(fs::read(bench.outside("f")).unwrap(), b"x\n");
    let plain = "--- f\t2026-01-01\n+++ f\t2026-01-01\n@@ -1 +1 @@\n-x\n+y";
    bench
        .call(patch, json!({"text": plain, "strip": 0}))
        .unwrap();
    assert_eq!(bench.content("f"), "y\n");
}

#[test]
fn content_that_is_not_text_is_patched_from_bytes() {
    let bench = Bench::new();
    bench.file("f", b"\xff\nx\n");
    let text = b"--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n \xff\n-x\n+y\n".to_vec();
    let bytes = ringfence_model::tools::Base64(text);
    bench.call(patch, json!({"bytes": bytes})).unwrap();
    assert_eq!(fs::read(bench.path("f")).unwrap(), b"\xff\ny\n");
}
