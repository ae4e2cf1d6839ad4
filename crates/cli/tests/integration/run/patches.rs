//! The patch is what really changed, and nothing else.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::run::path;
use crate::support::{Fixture, Sandboxed, expect, in_each_mode, patch, said};

/// What is there before: each thing that can be changed.
const BEFORE: &str = r#"
set -e
mkdir -p dir/sub gone/deep swap names
seq 1 200 > long.txt; seq 1 200 > moved.txt; seq 1 200 > moved-edited.txt
printf 'no end' > no-newline.txt; printf 'a\r\nb\r\n' > crlf.txt; : > empty.txt
head -c 5000 /dev/zero | tr '\0' '\377' > binary.bin; head -c 9000 /dev/zero > zeros.bin
echo '#!/bin/sh' > script.sh; chmod 755 script.sh; echo plain > plain.sh
ln -s long.txt link; ln -s nowhere dangling; ln -s dir dir-link; echo file > was-file
echo 1 > gone/one; echo 2 > gone/deep/two; echo 3 > dir/three; echo 4 > dir/sub/four
echo x > swap/inner; echo y > swap-file
echo s > 'names/with space'; echo q > 'names/quo"te'; echo b > 'names/back\slash'
"#;

/// What the agent does, and what is done outside for comparison.
const WORK: &str = r#"
set -e
sed -i 's/^100$/hundred/; 5d' long.txt; echo end >> long.txt
mv moved.txt dir/moved.txt; mv moved-edited.txt renamed.txt; sed -i 's/^7$/seven/' renamed.txt
printf 'still no end' > no-newline.txt; printf 'a\r\nB\r\n' > crlf.txt; echo now > empty.txt
printf '\000\001\002' | dd of=binary.bin bs=1 seek=100 conv=notrunc 2>/dev/null; rm zeros.bin
head -c 300000 /dev/zero | tr '\0' '\1' > new.bin; : > new-empty.txt
chmod 644 script.sh; chmod 755 plain.sh
ln -sf plain.sh link; rm dangling; ln -s /etc/passwd dangling2; rm dir-link; echo file > dir-link
rm was-file; ln -s long.txt was-file
rm -r gone; mkdir -p made/deep/er; echo n > made/deep/er/new; chmod 755 made/deep/er/new
rm -r dir/sub; mkdir dir/sub; echo again > dir/sub/five
rm -r swap; echo 'a file now' > swap; rm swap-file; mkdir swap-file; echo in > swap-file/inner
rm 'names/with space'; echo Q >> 'names/quo"te'; mv 'names/back\slash' 'names/b'
printf 'o' > "names/$(printf 'new\nline')"; printf 'o\n' > "names/$(printf 'tab\there')"
echo u > names/zürich; echo e > "$(printf 'names/esc\033[31m')"; echo d > ./-rf; echo t > 'trailing '
python3 -c 'open(b"names/\xff\xfe", "w").write("not utf-8\n")'
touch -d @1 a.txt
"#;

/// What a path is, as far as git cares.
#[derive(Debug, PartialEq, Eq)]
pub enum Entry {
    File { executable: bool, content: Vec<u8> },
    Link(PathBuf),
}

/// All files below a folder but those of git.
pub fn tree(top: &Path) -> Result<BTreeMap<Vec<u8>, Entry>> {
    let mut found = BTreeMap::new();
    let mut open = vec![top.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            let metadata = path.symlink_metadata()?;
            let name = path.strip_prefix(top)?.as_os_str().as_bytes().to_vec();
            if name == b".git" {
                continue;
            } else if metadata.is_dir() {
                open.push(path);
            } else if metadata.is_symlink() {
                found.insert(name, Entry::Link(fs::read_link(&path)?));
            } else {
                let executable = metadata.permissions().mode() & 0o100 != 0;
                let content = fs::read(&path)?;
                found.insert(
                    name,
                    Entry::File {
                        executable,
                        content,
                    },
                );
            }
        }
    }
    Ok(found)
}

/// Applies a patch to a fresh clone and looks at what it gives.
fn apply(env: &Sandboxed, fixture: &Fixture, from: &Path, result: &Value) -> Result<PathBuf> {
    let clone = fixture
        .folder
        .with_file_name(format!("clone-{}", result["run"].as_str().unwrap_or("")));
    env.git(
        fixture,
        Path::new("/"),
        &["clone", "-q", path(from), path(&clone)],
    )?;
    let patch = result["patch"].as_str().context("no patch")?;
    env.git(fixture, &clone, &["apply", "--check", patch])?;
    env.git(fixture, &clone, &["apply", patch])?;
    Ok(clone)
}

/// A committed tree with all that `BEFORE` makes.
fn prepare(env: &Sandboxed, fixture: &Fixture) -> Result<()> {
    env.as_owner(fixture, &fixture.folder, &["sh", "-c", BEFORE])?;
    env.git(fixture, &fixture.folder, &["add", "-A"])?;
    env.git(
        fixture,
        &fixture.folder,
        &["-c", "core.hooksPath=/dev/null", "commit", "-qm", "all"],
    )?;
    Ok(())
}

#[test]
fn r22_the_patch_gives_the_same_tree() -> Result<()> {
    in_each_mode("same-tree", |env, fixture| {
        prepare(env, fixture)?;
        let lie = "echo 'diff --git a/lie b/lie'; echo lie > /tmp/changes.patch;";
        let result = env.run_with(fixture, &[], &format!("{lie}{WORK}"))?;
        expect(&result, "exit_code", 0)?;
        expect(&result, "omitted", Vec::<String>::new())?;
        let clone = apply(env, fixture, &fixture.folder, &result)?;

        let real = fixture.folder.with_file_name("real");
        env.as_owner(
            fixture,
            Path::new("/"),
            &["cp", "-a", path(&fixture.folder), path(&real)],
        )?;
        env.as_owner(fixture, &real, &["sh", "-c", WORK])?;
        let (expected, got) = (tree(&real)?, tree(&clone)?);
        for name in expected.keys().chain(got.keys()) {
            ensure!(
                expected.get(name) == got.get(name),
                "{:?} differs",
                String::from_utf8_lossy(name)
            );
        }
        // What git says of the same work names the same paths.
        env.git(fixture, &real, &["add", "-A"])?;
        let names = ["diff", "--cached", "--name-only", "-z", "-M"];
        let mut expected: Vec<String> = env
            .git(fixture, &real, &names)?
            .split_terminator('\0')
            .map(str::to_owned)
            .collect();
        expected.sort();
        let listed = result["changed_files"].as_array().context("no list")?.len();
        ensure!(
            expected.len() == listed,
            "{expected:?} and {}",
            result["changed_files"]
        );
        let patch = String::from_utf8_lossy(&patch(&result)?).into_owned();
        for part in [
            "rename from moved.txt",
            "rename from moved-edited.txt",
            "GIT binary patch",
            "old mode 100755",
            "new file mode 120000",
            "\\ No newline at end of file",
        ] {
            ensure!(patch.contains(part), "no `{part}` in the patch");
        }
        ensure!(!patch.contains("lie"));
        Ok(())
    })
}

#[test]
fn r22_the_patch_applies_to_a_dirty_tree_and_shows_only_the_agents_work() -> Result<()> {
    in_each_mode("dirty", |env, fixture| {
        env.put(fixture, "untracked.txt", "u\n")?;
        let result = env.run_with(fixture, &[], "echo v >> untracked.txt; echo w >> README.md")?;
        expect(&result, "changed_files", vec!["README.md", "untracked.txt"])?;
        expect(&result, "insertions", 2)?;
        expect(&result, "deletions", 0)?;
        let patch = result["patch"].as_str().context("no patch")?;
        env.git(fixture, &fixture.folder, &["apply", patch])?;
        ensure!(fs::read_to_string(fixture.folder.join("untracked.txt"))? == "u\nv\n");
        ensure!(fs::read_to_string(fixture.folder.join("README.md"))?.ends_with("committed.\nw\n"));
        Ok(())
    })
}

#[test]
fn r23_what_the_agent_does_to_git_changes_nothing_in_the_patch() -> Result<()> {
    in_each_mode("own-git", |env, fixture| {
        prepare(env, fixture)?;
        let plain = patch(&env.run_with(fixture, &[], WORK)?)?;
        ensure!(!plain.is_empty());
        let commit = "git add -A; git -c user.name=a -c user.email=a@b commit -qm x";
        for after in [
            commit,
            "git add -A; git stash -q; git stash apply -q --index",
            "echo '* -text diff=evil filter=evil' > .git/info/attributes; \
             git config filter.evil.clean 'cat /dev/null'; git config core.fileMode false; git add -A",
            "echo '*' > .git/info/exclude; git config core.excludesFile /dev/full",
            "rm -rf .git",
            "rm -rf .git; git init -q .; git add -A",
            "rm -rf .git; echo 'gitdir: /tmp/x' > .git",
            "rm -rf .git; ln -s /etc .git",
            "rm -rf .git; mkfifo .git",
            "git update-index --assume-unchanged long.txt; rm .git/index; : > .git/index",
        ] {
            let result = env.run_with(fixture, &[], &format!("{WORK}\n{after}"))?;
            expect(&result, "exit_code", 0).with_context(|| after.to_owned())?;
            ensure!(patch(&result)? == plain, "another patch after `{after}`");
        }
        // Committed and gone from the tree again is no change.
        let result = env.run_with(fixture, &[], &format!("echo x > new; {commit}; rm new"))?;
        expect(&result, "changed_files", Vec::<String>::new())?;
        ensure!(patch(&result)?.is_empty());
        Ok(())
    })
}

#[test]
fn ignored_files_are_left_behind_unless_they_are_asked_for() -> Result<()> {
    in_each_mode("ignored", |env, fixture| {
        let work = "head -c 1000 /dev/zero > x.o; mkdir ignored; head -c 70 /dev/zero > ignored/a; \
            head -c 30 /dev/zero > ignored/b; echo x > new.txt; echo '*.txt' >> .gitignore";
        let result = env.run_with(fixture, &[], work)?;
        // The agent's own rule counts, as it does for git; what it leaves behind is listed.
        expect(&result, "changed_files", vec![".gitignore"])?;
        let list = result["omitted"].as_array().context("no list")?;
        let list: Vec<(&str, &str, u64, u64)> = list
            .iter()
            .map(|o| {
                (
                    o["path"].as_str().unwrap_or_default().trim_end_matches('/'),
                    o["why"].as_str().unwrap_or_default(),
                    o["size"].as_u64().unwrap_or_default(),
                    o["files"].as_u64().unwrap_or_default(),
                )
            })
            .collect();
        ensure!(
            list == [
                ("ignored", "ignored", 100, 2),
                ("new.txt", "ignored", 2, 1),
                ("x.o", "ignored", 1000, 1)
            ],
            "left behind: {list:?}"
        );
        let told = env.call(fixture).finish(&["run", "--", "sh", "-c", work])?;
        ensure!(told.stderr.contains("x.o (ignored)"), "{}", told.stderr);
        let result = env.run_with(fixture, &["--include-ignored"], work)?;
        expect(
            &result,
            "changed_files",
            vec![".gitignore", "ignored/a", "ignored/b", "new.txt", "x.o"],
        )?;
        expect(&result, "omitted", Vec::<String>::new())
    })
}

#[test]
fn what_was_ignored_and_there_is_the_users_whatever_rules_the_agent_writes() -> Result<()> {
    in_each_mode("unignored", |env, fixture| {
        env.put(fixture, "x.o", "mine\n")?;
        let make = [
            "sh",
            "-c",
            "mkdir -p ignored/bin; echo mine > ignored/bin/runner",
        ];
        env.as_owner(fixture, &fixture.folder, &make)?;
        for rules in [
            "echo > .gitignore",
            "rm .gitignore",
            "printf '!*.o\\n!ignored/\\n' >> .gitignore",
            "rm .gitignore; mkdir .gitignore",
            "ln -sf /dev/null .gitignore",
            "head -c 20000000 /dev/zero | tr '\\0' x > .gitignore",
        ] {
            let work = format!(
                "echo theirs > x.o; echo theirs > ignored/bin/runner; echo theirs > ignored/new; \
                 rm -rf ignored/bin; mkdir ignored/bin; echo theirs > ignored/bin/runner; \
                 echo new > y.o; mv ignored ignored2; cp -r ignored2 ignored; rm -rf ignored2; {rules}"
            );
            let result = env.run_with(fixture, &[], &work)?;
            let changed = result["changed_files"].as_array().context("no list")?;
            let changed: Vec<&str> = changed.iter().filter_map(|path| path.as_str()).collect();
            let own = |path: &&str| path.starts_with("ignored") || *path == "x.o";
            ensure!(!changed.iter().any(own), "{rules}: {changed:?}");
            // What is new crosses by the new rules.
            ensure!(changed.contains(&"y.o"), "{rules}: {changed:?}");
        }
        Ok(())
    })
}

#[test]
fn special_files_are_named_and_never_opened() -> Result<()> {
    in_each_mode("special", |env, fixture| {
        let result = env.run_with(
            fixture,
            &[],
            "mkfifo pipe; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'; \
             mkdir hollow; echo x > new.txt; chmod 000 new.txt; truncate -s 5G sparse",
        )?;
        expect(&result, "exit_code", 0)?;
        expect(&result, "changed_files", vec!["new.txt"])?;
        let list = result["omitted"].as_array().context("no list")?;
        let mut names: Vec<String> = list
            .iter()
            .map(|o| {
                format!(
                    "{} {}",
                    o["path"].as_str().unwrap_or_default().trim_end_matches('/'),
                    o["why"].as_str().unwrap_or_default()
                )
            })
            .collect();
        names.sort();
        ensure!(
            names
                == [
                    "hollow not_carried",
                    "pipe special",
                    "sock special",
                    "sparse too_large"
                ],
            "left behind: {names:?}"
        );
        Ok(())
    })
}

#[test]
fn base_moved_is_said_and_no_hunk_is_made() -> Result<()> {
    in_each_mode("moved", |env, fixture| {
        let mut live = env.call(fixture).run_live(
            &[],
            "echo agent >> a.txt; echo agent >> src/main.c; echo READY; read -r line",
        )?;
        live.until("READY")?;
        // As an editor that writes in place; only this file moved.
        fs::write(fixture.folder.join("a.txt"), "the user's\n")?;
        live.say("go on\n")?;
        let output = live.finish()?;
        let result = output.json.clone().context("no result")?;
        expect(&result, "status", "base_moved")?;
        expect(&result, "outcome", "exited")?;
        output.exits(0)?;
        expect(&result, "changed_files", vec!["src/main.c"])?;
        let omitted = &result["omitted"][0];
        expect(omitted, "path", "a.txt")?;
        expect(omitted, "why", "base_moved")?;
        let text = String::from_utf8_lossy(&patch(&result)?).into_owned();
        ensure!(
            !text.contains("a.txt") && text.contains("b/src/main.c"),
            "{text}"
        );
        ensure!(fs::read_to_string(fixture.folder.join("a.txt"))? == "the user's\n");
        ensure!(env.look(fixture, &["list"])?.contains("base_moved"));
        // Nothing of the agent's touched: what the user did there is no matter.
        let mut live = env
            .call(fixture)
            .run_live(&[], "echo x >> README.md; echo READY; read -r l")?;
        live.until("READY")?;
        fs::write(fixture.folder.join("src/deep/x.c"), "the user's\n")?;
        live.say("go on\n")?;
        let result = live.finish()?.json.context("no result")?;
        expect(&result, "status", "done")
    })
}

/// `git checkout x && ringfence run …` in a script: only a moment lies between the two.
#[test]
fn base_moved_is_not_said_of_what_was_there_before_the_start() -> Result<()> {
    in_each_mode("tick", |env, fixture| {
        let change = ": > made$$; exec \"$0\" \"$@\"";
        for turn in 0..20 {
            let call = env.call(fixture).within(&["sh", "-c", change]);
            let result = call.run(&[], "echo x > new.txt")?;
            expect(&result, "status", "done").with_context(|| format!("turn {turn}"))?;
        }
        Ok(())
    })
}

#[test]
fn r23_an_untouched_folder_gives_an_empty_patch() -> Result<()> {
    in_each_mode("untouched", |env, fixture| {
        let result = env.run_with(
            fixture,
            &[],
            "cat a.txt; touch a.txt; cp a.txt t; cat t > a.txt; rm t; chmod 600 README.md; \
             mv src s; mv s src; git status --porcelain",
        )?;
        expect(&result, "changed_files", Vec::<String>::new())?;
        ensure!(patch(&result)?.is_empty());
        ensure!(
            said(&result) == "one\ntwo\nthree\n M README.md\n",
            "{}",
            said(&result)
        );
        Ok(())
    })
}
