//! Where sandboxes come from: one mirror and one base for many of them, kept from every agent.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::sandbox::kit::{Kit, lasting, path, text};
use crate::support::fingerprint;

/// A `git` that writes down how it is called, before the real one.
fn logged(kit: &Kit<'_>) -> Result<(PathBuf, PathBuf)> {
    let bin = kit.fixture.folder.with_file_name("bin");
    let log = kit.fixture.folder.with_file_name("git.log");
    fs::create_dir(&bin)?;
    fs::write(&log, "")?;
    fs::set_permissions(&log, fs::Permissions::from_mode(0o666))?;
    let git = bin.join("git");
    let script = format!(
        "#!/bin/sh\necho \"$*\" >> {}\nexec /usr/bin/git \"$@\"\n",
        path(&log)
    );
    // Another process writes the program: a fork in a neighbouring test would hold ours open, and
    // what is open for writing cannot be executed.
    let text = bin.join("text");
    fs::write(&text, script)?;
    let copied = std::process::Command::new("cp")
        .args([&text, &git])
        .status()?;
    anyhow::ensure!(copied.success(), "cannot copy the program");
    fs::set_permissions(&git, fs::Permissions::from_mode(0o755))?;
    Ok((bin, log))
}

#[test]
fn r36_many_sandboxes_cost_one_clone() -> Result<()> {
    lasting("one-clone", |kit| {
        let (bin, log) = logged(kit)?;
        let remote = kit.fixture.folder.with_file_name("remote.git");
        let top = remote.parent().context("a parent")?.to_owned();
        let folder = path(&kit.fixture.folder);
        kit.env.git(
            kit.fixture,
            &top,
            &["clone", "-q", "--bare", folder, path(&remote)],
        )?;
        let url = format!("file://{}", path(&remote));
        let searched = format!("{}:/usr/bin:/bin", path(&bin));
        let create = |revision: &str| {
            let output = kit
                .env
                .call(kit.fixture)
                .variable("PATH", &searched)
                .finish(&[
                    "sandbox", "create", "--repo", &url, "--base", revision, "--json",
                ])?;
            ensure!(output.status.success(), "{}", output.tail());
            output.json.context("no JSON")
        };
        let mut bases = Vec::new();
        let mut commit = String::new();
        for _ in 0..10 {
            let made = create("main")?;
            bases.push(text(&made, "base").to_owned());
            commit = text(&made, "commit").to_owned();
        }
        bases.dedup();
        ensure!(bases.len() == 1, "{bases:?}");
        let calls = fs::read_to_string(&log)?;
        let fetches = |calls: &str| {
            calls
                .lines()
                .filter(|line| line.contains(&url) && line.starts_with("fetch "))
                .count()
        };
        let first: Vec<&str> = calls.lines().take(12).collect();
        ensure!(
            calls.matches("init ").count() == 1,
            "not one clone: {first:?}"
        );
        for place in ["mirrors", "bases"] {
            let directories = fs::read_dir(kit.state_path(place))?
                .flatten()
                .filter(|entry| entry.path().is_dir())
                .count();
            ensure!(directories == 1, "{directories} {place}");
        }
        // A commit that is there asks nobody.
        let before = fetches(&calls);
        ensure!(before == 10, "{before} fetches: {first:?}");
        fs::rename(&remote, top.join("gone"))?;
        let made = create(&commit)?;
        ensure!(text(&made, "commit") == commit, "{made}");
        let after = fetches(&fs::read_to_string(&log)?);
        ensure!(before == after, "fetched for a commit that is cached");
        ensure!(kit.sh(text(&made, "sandbox"), "cat a.txt")? == "one\ntwo\nthree\n");
        Ok(())
    })
}

#[test]
fn r37_no_agent_can_change_the_mirror_and_no_token_is_kept() -> Result<()> {
    const TOKEN: &str = "tok-5e1fa7c09b";
    lasting("mirror", |kit| {
        let first = kit.create(&[])?;
        let second = kit.create(&[])?;
        kit.sh(&first, "true")?;
        let mirror = only(&kit.state_path("mirrors"))?;
        let base = only(&kit.state_path("bases"))?;
        let facts = || -> Result<_> { Ok((fingerprint(&mirror)?, fingerprint(&base)?)) };
        let before = facts()?;
        for id in [&first, &second] {
            let tried = kit.sh(
                id,
                "cd /.ringfence/objects/0 || exit 1; echo x > new && echo \"made\"; for f in $(find . -type f); do \
                 { echo x > $f || rm -f $f || mv $f $f.x || chmod 777 $f || truncate -s 0 $f; } 2>/dev/null \
                 && echo \"changed $f\"; done; touch . 2>/dev/null && echo touched; rm -rf ./* 2>/dev/null; \
                 cd /workspace; git config gc.pruneExpire now; git commit -q --allow-empty -m x; git gc -q --prune=now; \
                 git update-ref -d refs/heads/main; git repack -qadf; rm -rf .git/objects/*; find . -delete; true",
            )?;
            ensure!(tried.is_empty(), "{tried}");
        }
        ensure!(facts()? == before, "the mirror or the base changed");
        kit.env.as_owner(
            kit.fixture,
            Path::new("/"),
            &["git", "-C", path(&mirror), "fsck", "--strict"],
        )?;
        let third = kit.create(&[])?;
        ensure!(kit.sh(&third, "git status --short; git log --format=%s; git fsck")? == "first\n");

        // Addresses with a secret: refused or used, never kept.
        let port = {
            let closed = std::net::TcpListener::bind(("127.0.0.1", 0))?;
            closed.local_addr()?.port()
        };
        let url = format!("http://user:{TOKEN}@127.0.0.1:{port}/r.git");
        let output = kit.call(&["sandbox", "create", "--repo", &url, "--base", "main"])?;
        ensure!(!output.status.success());
        ensure!(!output.stderr.contains(TOKEN), "{}", output.stderr);
        let holds = |word: &str| -> Result<String> {
            let found = Command::new("grep")
                .args(["-rlaF", "-D", "skip", word])
                .arg(&kit.fixture.state)
                .output()?;
            Ok(String::from_utf8_lossy(&found.stdout).into_owned())
        };
        ensure!(
            holds(TOKEN)?.is_empty(),
            "the token is in {}",
            holds(TOKEN)?
        );
        ensure!(
            holds(path(&kit.fixture.folder))?.contains("store.db"),
            "the search finds nothing"
        );
        Ok(())
    })
}

fn only(place: &Path) -> Result<PathBuf> {
    let found: Vec<PathBuf> = fs::read_dir(place)?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect();
    ensure!(found.len() == 1, "{found:?}");
    Ok(found[0].clone())
}
