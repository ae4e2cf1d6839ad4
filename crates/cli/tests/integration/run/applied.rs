//! `ringfence apply`: all of a patch or nothing of it, and never without a verdict.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::support::{Fixture, Mode, Sandboxed, fingerprint, in_each_mode};

const AUTHOR: [&str; 2] = ["--author", "Ada L. <ada@example.org>"];

fn ran(env: &Sandboxed, fixture: &Fixture, shell: &str) -> Result<String> {
    let result = env.run_with(fixture, &[], shell)?;
    Ok(result["run"].as_str().context("no run")?.to_owned())
}

fn apply(env: &Sandboxed, fixture: &Fixture, words: &[&str], exit: i32) -> Result<String> {
    let words: Vec<&str> = ["apply"].iter().chain(words).copied().collect();
    let output = env.ringfence(fixture, 60, &words)?;
    output.exits(exit)?;
    Ok(format!("{}{}", output.stdout, output.stderr))
}

type Seen = BTreeMap<PathBuf, (u32, u64, i64, i64, u64)>;

/// Everything about the folder, its `.git` among it.
fn seen(fixture: &Fixture) -> Result<Seen> {
    fingerprint(&fixture.folder)
}

fn read(fixture: &Fixture, name: &str) -> Result<String> {
    let path = fixture.folder.join(name);
    fs::read_to_string(&path).with_context(|| format!("{path:?}"))
}

#[test]
fn r32_nothing_is_applied_without_a_verdict() -> Result<()> {
    in_each_mode("verdict", |env, fixture| {
        let run = ran(
            env,
            fixture,
            "sed -i s/two/2/ a.txt; mkdir -p n/m; echo x > n/m/x; rm src/deep/x.c; chmod +x src/main.c",
        )?;
        let before = seen(fixture)?;
        let said = apply(env, fixture, &[&run], 3)?;
        ensure!(said.contains("nobody has approved"), "{said}");
        let said = apply(env, fixture, &[&run, "--check-only"], 0)?;
        ensure!(
            said.contains("write   a.txt") && said.contains("nothing was changed"),
            "{said}"
        );
        env.ringfence(fixture, 60, &["reject", &run, "--why", "no"])?
            .exits(0)?;
        let said = apply(env, fixture, &[&run], 3)?;
        ensure!(said.contains("was rejected"), "{said}");
        // Who says yes after a no says why.
        for words in [&["--approve"][..], &["--approve", "--why", " "]] {
            let said = apply(env, fixture, &[&[&run[..]], words].concat(), 3)?;
            ensure!(
                said.contains("was rejected") && said.contains("--approve --why"),
                "{said}"
            );
        }
        ensure!(seen(fixture)? == before, "something was changed");

        let said = apply(
            env,
            fixture,
            &[&run, "--approve", "--why", "yes", "--json"],
            0,
        )?;
        let done: Value = serde_json::from_str(&said)?;
        ensure!(
            done["applied"] == true && done["removed"][0] == "src/deep/x.c",
            "{said}"
        );
        ensure!(read(fixture, "a.txt")? == "one\n2\nthree\n");
        ensure!(read(fixture, "n/m/x")? == "x\n" && !fixture.folder.join("src/deep").exists());
        let main = fs::metadata(fixture.folder.join("src/main.c"))?;
        ensure!(main.permissions().mode() & 0o111 != 0);
        // What is not in the patch is as it was, the index and `.git` among it.
        let after = seen(fixture)?;
        for (path, facts) in &before {
            let changed = ["a.txt", "src/main.c", "src/deep", "src/deep/x.c", "src", ""];
            let changed = changed
                .iter()
                .any(|name| *path == fixture.folder.join(name) || path == Path::new(name));
            ensure!(
                changed || after.get(path) == Some(facts),
                "{path:?} changed"
            );
        }
        let owner = fs::metadata(&fixture.folder)?.uid();
        for name in ["a.txt", "n", "n/m", "n/m/x"] {
            let meta = fs::symlink_metadata(fixture.folder.join(name))?;
            ensure!(meta.uid() == owner, "{name} belongs to {}", meta.uid());
        }
        // Once more is nothing more.
        let said = apply(env, fixture, &[&run], 0)?;
        ensure!(said.contains("0 paths changed"), "{said}");
        Ok(())
    })
}

#[test]
fn a_bundle_that_was_changed_after_its_approval_is_refused() -> Result<()> {
    in_each_mode("changed", |env, fixture| {
        let run = ran(env, fixture, "echo x > x")?;
        env.ringfence(fixture, 60, &["approve", &run])?.exits(0)?;
        let patch = fixture
            .state
            .join("bundles")
            .join(&run)
            .join("changes.patch");
        let text = fs::read_to_string(&patch)?;
        fs::write(&patch, text.replace("+x", "+y"))?;
        let said = apply(env, fixture, &[&run, "--approve"], 3)?;
        ensure!(said.contains("is not what was packed"), "{said}");
        ensure!(!fixture.folder.join("x").exists());
        Ok(())
    })
}

#[test]
fn r30_a_tree_that_moved_on_is_merged_or_left_alone() -> Result<()> {
    in_each_mode("moved", |env, fixture| {
        env.put(fixture, "long.txt", "1\n2\n3\n4\n5\n6\n7\n8\n9\n")?;
        env.put(fixture, "kept", "old\n")?;
        env.git(fixture, &fixture.folder, &["add", "-A"])?;
        env.git(fixture, &fixture.folder, &["commit", "-qm", "long"])?;
        let run = ran(
            env,
            fixture,
            "sed -i s/8/eight/ long.txt; echo new > new; rm kept; mv src/main.c src/start.c",
        )?;
        // Apart from what the agent did, and in a file that moves.
        env.put(fixture, "long.txt", "one\n2\n3\n4\n5\n6\n7\n8\n9\n")?;
        let said = apply(env, fixture, &[&run, "--approve"], 0)?;
        ensure!(said.contains("long.txt (merged)"), "{said}");
        ensure!(read(fixture, "long.txt")? == "one\n2\n3\n4\n5\n6\n7\neight\n9\n");
        ensure!(
            fixture.folder.join("src/start.c").exists() && !fixture.folder.join("kept").exists()
        );

        env.git(fixture, &fixture.folder, &["add", "-A"])?;
        env.git(fixture, &fixture.folder, &["commit", "-qm", "merged"])?;
        // In the same place, and each other way to be in the way: all are listed, nothing changes.
        let run = ran(
            env,
            fixture,
            "sed -i s/eight/acht/ long.txt; echo mine > taken; rm new; echo z >> a.txt; mkdir d; echo 1 > d/x",
        )?;
        env.put(fixture, "long.txt", "one\n2\n3\n4\n5\n6\n7\n8!\n9\n")?;
        env.put(fixture, "taken", "theirs\n")?;
        env.put(fixture, "new", "changed\n")?;
        symlink("/tmp", fixture.folder.join("d"))?;
        let before = seen(fixture)?;
        let said = apply(env, fixture, &[&run, "--approve"], 2)?;
        for (path, why) in [
            ("long.txt", "in the same place"),
            ("taken", "something else is there"),
            ("new", "the patch removes it"),
            ("d/x", "link"),
        ] {
            let line = said
                .lines()
                .find(|line| line.contains(&format!("`{path}`")));
            ensure!(
                line.is_some_and(|line| line.contains(why)),
                "{path}: {said}"
            );
        }
        ensure!(seen(fixture)? == before, "something was changed");
        Ok(())
    })
}

#[test]
fn what_cannot_be_replaced_is_named() -> Result<()> {
    in_each_mode("closed", |env, fixture| {
        let run = ran(
            env,
            fixture,
            "echo x >> a.txt; echo y > src/deep/y; ln -s /etc/passwd out; ln -s a.txt in",
        )?;
        let before = seen(fixture)?;
        let said = apply(env, fixture, &[&run, "--approve"], 2)?;
        ensure!(
            said.contains("`out`: it is a link to an absolute path") && !said.contains("`in`"),
            "{said}"
        );
        fs::set_permissions(
            fixture.folder.join("a.txt"),
            fs::Permissions::from_mode(0o444),
        )?;
        let said = apply(env, fixture, &[&run, "--approve", "--allow-links"], 2)?;
        ensure!(said.contains("`a.txt`: it is read-only here"), "{said}");
        fs::set_permissions(
            fixture.folder.join("a.txt"),
            fs::Permissions::from_mode(0o640),
        )?;
        let deep = fixture.folder.join("src/deep");
        fs::set_permissions(&deep, fs::Permissions::from_mode(0o555))?;
        if fixture.mode == Mode::Rootless {
            let said = apply(env, fixture, &[&run, "--approve", "--allow-links"], 2)?;
            ensure!(said.contains("`src/deep` cannot be written"), "{said}");
        }
        ensure!(!fixture.folder.join("out").exists() && seen(fixture)?.len() == before.len());
        fs::set_permissions(&deep, fs::Permissions::from_mode(0o755))?;
        apply(env, fixture, &[&run, "--approve", "--allow-links"], 0)?;
        ensure!(fs::read_link(fixture.folder.join("out"))? == Path::new("/etc/passwd"));
        // Permissions that git does not know are kept.
        let mode = fs::metadata(fixture.folder.join("a.txt"))?
            .permissions()
            .mode();
        ensure!(mode & 0o777 == 0o640, "{mode:o}");
        Ok(())
    })
}

#[test]
fn a_branch_is_made_and_nothing_else_is_touched() -> Result<()> {
    in_each_mode("branch", |env, fixture| {
        let folder = &fixture.folder;
        let run = ran(
            env,
            fixture,
            "sed -i s/two/2/ a.txt; mkdir -p n/m; printf 'x\\0' > n/m/x; rm src/deep/x.c; chmod +x src/main.c; ln -s a.txt l",
        )?;
        for name in [
            "main", "-x", "HEAD", "a..b", "a b", "a.lock", "a/", "@", "x/.y",
        ] {
            let option = format!("--branch={name}");
            let said = apply(
                env,
                fixture,
                &[&run, "--approve", &option, AUTHOR[0], AUTHOR[1]],
                2,
            )?;
            ensure!(said.contains("cannot be a new branch"), "{name}: {said}");
        }
        let said = apply(env, fixture, &[&run, "--approve", "--branch", "fix/x"], 2)?;
        ensure!(said.contains("it is not known who you are"), "{said}");
        let before = seen(fixture)?;
        let words = [
            &run,
            "--approve",
            "--branch",
            "fix/x",
            AUTHOR[0],
            AUTHOR[1],
            "-m",
            "Fix it",
            "--co-author",
            "Bot <bot@example.org>",
        ];
        apply(env, fixture, &words, 0)?;
        let is_new = |path: &&PathBuf| !before.contains_key(*path);
        let after = seen(fixture)?;
        for path in after.keys().filter(is_new) {
            let text = path.to_string_lossy();
            let expected = [
                ".git/objects/",
                ".git/refs/heads/fix",
                ".git/logs/refs/heads/fix",
            ];
            ensure!(
                expected.iter().any(|part| text.contains(part)),
                "{text} was made"
            );
        }
        env.git(fixture, folder, &["fsck", "--strict", "--full"])?;
        let log = env.git(
            fixture,
            folder,
            &["log", "--format=%an <%ae>%n%B", "-1", "fix/x"],
        )?;
        ensure!(
            log.starts_with("Ada L. <ada@example.org>\nFix it\n\nRingfence-Run: "),
            "{log}"
        );
        ensure!(
            log.contains("Ringfence-Bundle: sha256:")
                && log.contains("Co-authored-by: Bot <bot@example.org>")
        );
        let shown = env.git(
            fixture,
            folder,
            &["diff", "--binary", "--full-index", "main", "fix/x"],
        )?;
        let patch = env.look(fixture, &["diff", &run])?;
        let heads = |text: &str| -> Vec<String> {
            let of_interest =
                |line: &&str| !line.starts_with("literal ") && !line.starts_with("delta ");
            text.lines()
                .filter(of_interest)
                .take_while(|line| !line.starts_with("GIT binary"))
                .map(str::to_owned)
                .collect()
        };
        ensure!(heads(&shown) == heads(&patch), "{shown}\n{patch}");
        let said = apply(env, fixture, &words, 2)?;
        ensure!(said.contains("it is there already"), "{said}");
        let said = apply(
            env,
            fixture,
            &[&run, "--branch", "fix", AUTHOR[0], AUTHOR[1]],
            2,
        )?;
        ensure!(said.contains("is in the way"), "{said}");
        ensure!(env.git(fixture, folder, &["status", "--short"])?.trim() == "M README.md");
        // README.md was changed and not committed when the run began, and so cannot be on a branch.
        let run = ran(env, fixture, "echo more >> README.md; echo y > y")?;
        let said = apply(
            env,
            fixture,
            &[&run, "--approve", "--branch", "dirty", AUTHOR[0], AUTHOR[1]],
            2,
        )?;
        ensure!(
            said.contains("`README.md`: the commit has something else"),
            "{said}"
        );
        Ok(())
    })
}

#[test]
fn other_shapes_of_repositories() -> Result<()> {
    in_each_mode("shapes", |env, fixture| {
        let folder = &fixture.folder;
        // A detached HEAD in a linked worktree.
        let linked = folder.with_file_name("linked");
        let linked_text = linked.to_string_lossy().into_owned();
        env.git(
            fixture,
            folder,
            &["worktree", "add", "-q", "--detach", &linked_text],
        )?;
        let call = env.call(fixture).folder(&linked);
        let result = call.run(&[], "echo linked >> a.txt")?;
        let run = result["run"].as_str().context("no run")?;
        apply(
            env,
            fixture,
            &[
                run,
                "--approve",
                "--branch",
                "from-linked",
                AUTHOR[0],
                AUTHOR[1],
            ],
            0,
        )?;
        ensure!(
            env.git(fixture, folder, &["show", "from-linked:a.txt"])?
                .ends_with("linked\n")
        );
        apply(env, fixture, &[run], 0)?;
        ensure!(fs::read_to_string(linked.join("a.txt"))?.ends_with("linked\n"));
        ensure!(!read(fixture, "a.txt")?.contains("linked"));
        // Into another copy.
        apply(env, fixture, &[run, "--into", &folder.to_string_lossy()], 0)?;
        ensure!(read(fixture, "a.txt")?.ends_with("linked\n"));
        env.git(fixture, folder, &["checkout", "-q", "a.txt"])?;

        // Line ends are the working tree's.
        env.put(fixture, "crlf.txt", "a\r\nb\r\n")?;
        env.put(fixture, ".gitattributes", "crlf.txt text eol=crlf\n")?;
        env.git(fixture, folder, &["add", "-A"])?;
        env.git(fixture, folder, &["commit", "-qm", "crlf"])?;
        let run = ran(env, fixture, "printf 'a\\r\\nc\\r\\n' > crlf.txt")?;
        apply(env, fixture, &[&run, "--approve"], 0)?;
        ensure!(read(fixture, "crlf.txt")? == "a\r\nc\r\n");

        // A file that is not checked out.
        let run = ran(env, fixture, "echo sparse >> src/deep/x.c")?;
        env.git(fixture, folder, &["checkout", "-q", "--", "."])?;
        env.git(
            fixture,
            folder,
            &["sparse-checkout", "set", "--no-cone", "/*", "!/src/deep"],
        )?;
        let said = apply(env, fixture, &[&run, "--approve"], 2)?;
        ensure!(said.contains("sparse checkout"), "{said}");
        Ok(())
    })
}

#[test]
fn a_folder_without_a_repository_has_no_branches() -> Result<()> {
    in_each_mode("plain", |env, fixture| {
        let plain = fixture.folder.with_file_name("plain");
        env.as_owner(
            fixture,
            Path::new("/"),
            &["mkdir", &plain.to_string_lossy()],
        )?;
        let result = env.call(fixture).folder(&plain).run(&[], "echo x > x")?;
        let run = result["run"].as_str().context("no run")?;
        let said = apply(
            env,
            fixture,
            &[run, "--approve", "--branch", "b", AUTHOR[0], AUTHOR[1]],
            2,
        )?;
        ensure!(said.contains("is not in a git repository"), "{said}");
        apply(env, fixture, &[run, "--approve"], 0)?;
        ensure!(fs::read_to_string(plain.join("x"))? == "x\n");
        Ok(())
    })
}
