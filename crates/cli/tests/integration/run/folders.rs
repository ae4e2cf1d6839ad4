//! R67: the real `.git` is never visible and git works all the same, in every kind of folder.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::run::path;
use crate::support::{
    Fixture, Mode, NOBODY, Sandboxed, expect, fingerprint, in_each_mode, is_root, patch, said,
};

/// Everyday git, and an edit of `$1`. The last line is the number of commits.
const EVERYDAY: &str = "
    set -e; export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
    git status --porcelain >/dev/null; git log --oneline >/dev/null; git fsck >/dev/null 2>&1
    echo edited >> FILE; git diff --stat | grep -q FILE; git add -A; git commit -qm inside
    git status --porcelain; git stash list; git checkout -qb side; git log -1 --format=%s";

/// Runs everyday git in a folder that holds `file`, and expects this path in the patch.
fn everyday(
    env: &Sandboxed,
    fixture: &Fixture,
    folder: &Path,
    file: &str,
    named: &str,
) -> Result<Value> {
    let before = fingerprint(folder)?;
    let call = env.call(fixture).folder(folder);
    let result = call.run(&[], &EVERYDAY.replace("FILE", file))?;
    expect(&result, "exit_code", 0)?;
    ensure!(said(&result) == "inside\n", "git says {}", said(&result));
    expect(&result, "changed_files", vec![named])?;
    let result = call.run(
        &[],
        "grep -rI 'canary-in-git-config\\|canary-real-hook' . /tmp /.[!.]* 2>/dev/null; \
         git config --get-regexp 'remote.*url' | grep @; find .git/hooks -type f ! -name '*.sample'; \
         git rev-parse --git-dir --git-common-dir",
    )?;
    ensure!(
        said(&result).lines().count() == 2,
        "the real git shows: {}",
        said(&result)
    );
    ensure!(fingerprint(folder)? == before, "the folder changed");
    Ok(result)
}

#[test]
fn r67_a_repository() -> Result<()> {
    in_each_mode("repository", |env, fixture| {
        everyday(env, fixture, &fixture.folder, "a.txt", "a.txt").map(|_| ())
    })
}

#[test]
fn r67_the_real_git_directory_cannot_be_written() -> Result<()> {
    in_each_mode("git-writes", |env, fixture| {
        let before = fingerprint(&fixture.folder)?;
        for shell in [
            "echo '#!/bin/sh' > .git/hooks/post-checkout; echo x >> .git/config; rm -f .git/index",
            "mv .git .tig; mkdir .git; echo x > .git/config",
            "rm -rf .git; ln -s /workspace .git; ln -s .git .GIT; mkdir .Git",
            "mkdir -p sub/.git/hooks; echo x > sub/.git/config",
        ] {
            let result = env.run_with(fixture, &[], shell)?;
            expect(&result, "outcome", "exited")?;
            let text = String::from_utf8_lossy(&patch(&result)?).to_lowercase();
            let mut headers = text.lines().filter(|line| line.starts_with("diff --git"));
            let crossed = headers.find(|line| line.ends_with("/.git") || line.contains("/.git/"));
            ensure!(crossed.is_none(), "`{shell}` crosses back: {crossed:?}");
            ensure!(
                fingerprint(&fixture.folder)? == before,
                "changed by `{shell}`"
            );
        }
        Ok(())
    })
}

#[test]
fn r67_a_worktree() -> Result<()> {
    in_each_mode("worktree", |env, fixture| {
        let tree = fixture.folder.with_file_name("tree");
        env.git(
            fixture,
            &fixture.folder,
            &["worktree", "add", "-q", "-b", "w", path(&tree)],
        )?;
        let real = fingerprint(&fixture.folder)?;
        everyday(env, fixture, &tree, "a.txt", "a.txt")?;
        let branch = env
            .call(fixture)
            .folder(&tree)
            .run(&[], "git branch --show-current")?;
        ensure!(said(&branch) == "w\n", "{}", said(&branch));
        ensure!(
            fingerprint(&fixture.folder)? == real,
            "the main repository changed"
        );
        Ok(())
    })
}

#[test]
fn r67_a_submodule_and_the_repository_above_it() -> Result<()> {
    in_each_mode("submodule", |env, fixture| {
        let above = fixture.folder.with_file_name("above");
        env.git(
            fixture,
            Path::new("/"),
            &["init", "-q", "-b", "main", path(&above)],
        )?;
        env.git(
            fixture,
            &above,
            &["submodule", "add", "-q", path(&fixture.folder), "part"],
        )?;
        env.git(fixture, &above, &["commit", "-qm", "with a part"])?;
        everyday(env, fixture, &above.join("part"), "a.txt", "a.txt")?;
        let real = fingerprint(&above)?;
        let result = env.call(fixture).folder(&above).run(
            &[],
            "git status --porcelain && git -C part log -1 --format=%s && git submodule status | wc -l; \
             echo x >> part/a.txt; git -C part status --porcelain",
        )?;
        ensure!(said(&result) == "first\n1\n M a.txt\n", "{result}");
        ensure!(fingerprint(&above)? == real, "the repository above changed");
        Ok(())
    })
}

#[test]
fn r67_a_sub_folder() -> Result<()> {
    in_each_mode("sub-folder", |env, fixture| {
        let folder = fixture.folder.join("src");
        everyday(env, fixture, &folder, "main.c", "src/main.c")?;
        let call = env.call(fixture).folder(&folder);
        let result = call.run(
            &[],
            "ls -A | grep -v '^.git$'; git ls-files; ls ..| grep a.txt; echo x > n.c",
        )?;
        ensure!(
            said(&result) == "deep\nmain.c\ndeep/x.c\nmain.c\n",
            "inside is {}",
            said(&result)
        );
        let patch = result["patch"].as_str().context("no patch")?;
        env.git(fixture, &fixture.folder, &["apply", "--check", patch])?;
        env.git(fixture, &folder, &["apply", patch])?;
        ensure!(fs::read_to_string(folder.join("n.c"))? == "x\n");
        Ok(())
    })
}

#[test]
fn r67_a_folder_without_git() -> Result<()> {
    in_each_mode("without-git", |env, fixture| {
        env.as_owner(fixture, &fixture.folder, &["rm", "-rf", ".git"])?;
        let before = fingerprint(&fixture.folder)?;
        let result = env.run_with(
            fixture,
            &[],
            "git status >/dev/null 2>&1 && echo git; test -e .git && echo dir; echo x >> a.txt; rm README.md",
        )?;
        ensure!(said(&result).is_empty(), "{}", said(&result));
        expect(&result, "changed_files", vec!["README.md", "a.txt"])?;
        let patch = result["patch"].as_str().context("no patch")?;
        ensure!(fingerprint(&fixture.folder)? == before);
        env.git(fixture, &fixture.folder, &["apply", "--check", patch])?;
        let result = env.run_with(
            fixture,
            &[],
            "git init -q . && git add -A && git status --porcelain | wc -l",
        )?;
        ensure!(said(&result) == "5\n", "{}", said(&result));
        expect(&result, "changed_files", Vec::<String>::new())
    })
}

#[test]
fn r67_a_folder_that_nobody_may_write() -> Result<()> {
    in_each_mode("read-only", |env, fixture| {
        env.as_owner(fixture, &fixture.folder, &["chmod", "-R", "a-w", "."])?;
        let before = fingerprint(&fixture.folder)?;
        let shell = "git status --porcelain && echo x > new.txt && chmod u+w src && echo y > src/new.c && rm a.txt";
        let result = env.run_with(fixture, &[], shell)?;
        expect(&result, "exit_code", 0)?;
        expect(
            &result,
            "changed_files",
            vec!["a.txt", "new.txt", "src/new.c"],
        )?;
        ensure!(fingerprint(&fixture.folder)? == before);
        Ok(())
    })
}

/// Mounts the first word read-only on itself, for this process only.
const READ_ONLY: &str = "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\" && \
    cd \"$1\" && shift && exec \"$@\"";

#[test]
fn r67_a_folder_on_a_read_only_mount() -> Result<()> {
    if !is_root() {
        println!("SKIPPED r67_a_folder_on_a_read_only_mount: only root can make one");
        return Ok(());
    }
    in_each_mode("read-only-mount", |env, fixture| {
        let folder = path(&fixture.folder);
        let call = env
            .call(fixture)
            .before(&["unshare", "--mount", "sh", "-c", READ_ONLY, "sh", folder]);
        let result = call.run(&[], &EVERYDAY.replace("FILE", "a.txt"))?;
        expect(&result, "exit_code", 0)?;
        expect(&result, "changed_files", vec!["a.txt"])
    })
}

/// A directory on the tmpfs of the host, gone with this value.
struct OnTmpfs(PathBuf);

impl Drop for OnTmpfs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn r67_a_folder_on_another_file_system() -> Result<()> {
    in_each_mode("other-fs", |env, fixture| {
        let name = format!("ringfence-folder-{}-{:?}", std::process::id(), fixture.mode);
        let place = OnTmpfs(Path::new("/dev/shm").join(name));
        let devices = (
            fs::metadata("/dev/shm")?.dev(),
            fs::metadata(&fixture.folder)?.dev(),
        );
        if devices.0 == devices.1 {
            println!("SKIPPED r67_a_folder_on_another_file_system: /dev/shm is not one");
            return Ok(());
        }
        env.as_owner(
            fixture,
            Path::new("/"),
            &["cp", "-a", path(&fixture.folder), path(&place.0)],
        )?;
        everyday(env, fixture, &place.0, "a.txt", "a.txt").map(|_| ())
    })
}

#[test]
fn r67_files_of_other_users_can_be_worked_with_rootless() -> Result<()> {
    foreign_files(Mode::Rootless)
}

#[test]
fn r67_files_of_other_users_can_be_worked_with_as_root() -> Result<()> {
    foreign_files(Mode::Root)
}

fn foreign_files(mode: Mode) -> Result<()> {
    if !is_root() {
        println!(
            "SKIPPED r67_files_of_other_users in {mode:?} mode: only root can give files away"
        );
        return Ok(());
    }
    in_each_mode("foreign", |env, fixture| {
        if fixture.mode != mode {
            return Ok(());
        }
        for directory in ["theirs", "theirs/deep"] {
            fs::create_dir(fixture.folder.join(directory))?;
        }
        for name in [
            "edit",
            "delete",
            "rename",
            "mode",
            "theirs/edit",
            "theirs/deep/rename",
            "theirs/keep",
            "group",
        ] {
            fs::write(fixture.folder.join(name), format!("{name}\n"))?;
        }
        std::os::unix::fs::symlink("edit", fixture.folder.join("link"))?;
        for (name, uid, gid) in [
            ("edit", 0, 0),
            ("delete", 1234, 1234),
            ("rename", 1000, 1000),
            ("mode", 70_000, 70_000),
            ("theirs", 1234, 1234),
            ("theirs/deep", 0, 4321),
            ("theirs/edit", 1234, 0),
            ("theirs/deep/rename", 200_000, 1),
            ("theirs/keep", 65534, 65534),
        ] {
            chown(fixture.folder.join(name), Some(uid), Some(gid))?;
        }
        std::os::unix::fs::lchown(fixture.folder.join("link"), Some(1234), Some(1234))?;
        let owner = if fixture.mode == Mode::Rootless {
            NOBODY
        } else {
            0
        };
        chown(fixture.folder.join("group"), Some(owner), Some(5555))?;
        let before = fingerprint(&fixture.folder)?;
        let result = env.run_with(
            fixture,
            &[],
            "set -e; cat edit theirs/keep link; echo more >> edit; rm delete; mv rename renamed; \
             chmod 755 mode; echo more >> theirs/edit; mv theirs/deep/rename theirs/moved; \
             echo more >> group; rm link; echo x > theirs/new; mv theirs/deep deeper; git status >/dev/null",
        )?;
        let stderr = result["stderr"]["head"].as_str().unwrap_or_default();
        ensure!(
            !stderr.contains("too large for defined"),
            "EOVERFLOW: {stderr}"
        );
        expect(&result, "exit_code", 0)?;
        ensure!(said(&result) == "edit\ntheirs/keep\nedit\n");
        expect(
            &result,
            "changed_files",
            vec![
                "delete",
                "edit",
                "group",
                "link",
                "mode",
                "renamed",
                "theirs/edit",
                "theirs/moved",
                "theirs/new",
            ],
        )?;
        ensure!(fingerprint(&fixture.folder)? == before);
        Ok(())
    })
}

#[test]
fn r2_an_unreadable_file_is_named_and_stays_unread() -> Result<()> {
    in_each_mode("unreadable", |env, fixture| {
        env.put(fixture, "locked.txt", "LOCKED\n")?;
        env.as_owner(fixture, &fixture.folder, &["chmod", "000", "locked.txt"])?;
        if is_root() {
            fs::write(fixture.folder.join("roots.txt"), "ROOTS\n")?;
            chown(fixture.folder.join("roots.txt"), Some(0), Some(0))?;
            fs::set_permissions(
                fixture.folder.join("roots.txt"),
                std::os::unix::fs::PermissionsExt::from_mode(0o600),
            )?;
        }
        let result = env.run_with(
            fixture,
            &[],
            "cat roots.txt; cat locked.txt; echo x >> a.txt; ls",
        )?;
        expect(&result, "outcome", "exited")?;
        ensure!(!said(&result).contains("LOCKED"), "{}", said(&result));
        expect(&result, "changed_files", vec!["a.txt"])?;
        if is_root() && fixture.mode == Mode::Rootless {
            ensure!(!said(&result).contains("ROOTS"), "{}", said(&result));
            ensure!(
                result["notes"].to_string().contains("roots.txt"),
                "no note: {}",
                result["notes"]
            );
        }
        Ok(())
    })
}
