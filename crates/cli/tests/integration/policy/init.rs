//! `ringfence init` on folders of all kinds.

use std::fs;
use std::os::unix::fs::symlink;

use anyhow::{Context as _, Result, ensure};

use crate::support::{Fixture, Sandboxed, expect, in_each_mode};

fn put_all(env: &Sandboxed, fixture: &Fixture, files: &[(&str, &str)]) -> Result<()> {
    for (name, text) in files {
        if let Some((folder, _)) = name.rsplit_once('/') {
            let folder = fixture.folder.join(folder);
            let folder = folder.to_str().context("a path")?;
            env.as_owner(fixture, &fixture.folder, &["mkdir", "-p", folder])?;
        }
        env.put(fixture, name, text)?;
    }
    Ok(())
}

#[test]
fn a_proposal_is_written_once_says_why_and_is_a_policy() -> Result<()> {
    in_each_mode("init", |env, fixture| {
        put_all(
            env,
            fixture,
            &[
                ("requirements.txt", "x==1\n"),
                ("web/package-lock.json", "{}"),
                (
                    "Dockerfile",
                    "FROM registry.example/python:3.13\nRUN make \x1b[2J deps\n",
                ),
            ],
        )?;
        let said = env.look(fixture, &["init"])?;
        for words in [
            "wrote ",
            "image  registry.example/python:3.13",
            "from Dockerfile:1, the last stage",
            "setup  (cd web && npm ci)",
            "Dockerfile:2  RUN make \\u{1b}[2J deps",
            "network = [\"preset:pypi\", \"preset:npm\"]",
            "ringfence image import dev-image.tar",
            "next: ringfence image pull registry.example/python:3.13",
        ] {
            ensure!(said.contains(words), "no `{words}` in {said}");
        }
        ensure!(!said.contains('\x1b'), "{said}");
        let path = fixture.folder.join("ringfence.toml");
        let written = fs::read_to_string(&path)?;
        env.look(fixture, &["policy", "check", "ringfence.toml"])?;
        // Not again, unless that is meant.
        let again = env.call(fixture).finish(&["init"])?;
        again.exits(2)?;
        ensure!(again.stderr.contains("hint: `--print`"), "{}", again.stderr);
        fs::write(&path, "# mine\n")?;
        let printed = env.look(fixture, &["init", "--print"])?;
        ensure!(printed == written, "{printed}");
        ensure!(fs::read_to_string(&path)? == "# mine\n");
        let forced = env.call(fixture).finish(&["init", "--force", "--json"])?;
        forced.exits(0)?;
        ensure!(fs::read_to_string(&path)? == written);
        let json = forced.json.context("an object")?;
        expect(&json, "text", written)?;
        ensure!(json["proposed"]["image"]["why"] == "Dockerfile:1, the last stage");
        // Nothing but this file is in the folder now.
        let status = env.git(
            fixture,
            &fixture.folder,
            &["status", "--short", "ringfence.toml"],
        )?;
        ensure!(status == "?? ringfence.toml\n", "{status}");
        Ok(())
    })
}

#[test]
fn files_that_are_no_files_are_named_and_not_read() -> Result<()> {
    in_each_mode("hostile", |env, fixture| {
        let folder = &fixture.folder;
        let secret = env.home.join(".npmrc");
        symlink(&secret, folder.join("Dockerfile"))?;
        symlink(&env.home, folder.join(".devcontainer"))?;
        symlink(&secret, folder.join("ringfence.toml"))?;
        env.as_owner(
            fixture,
            folder,
            &["mkfifo", "Containerfile", "package.json", "go.sum"],
        )?;
        env.put(fixture, ".devcontainer.json", "[".repeat(1 << 20))?;
        env.put(fixture, "pyproject.toml", vec![b'x'; 8 << 20])?;
        env.put(fixture, ".nvmrc", b"\xff\xfe\0")?;
        env.put(fixture, ".python-version", "3.12\u{202e}\x1b[2J\n")?;
        env.put(fixture, "Cargo.lock", "\0".repeat(9000))?;
        let call = env.call(fixture);
        let refused = call.finish(&["init"])?;
        refused.exits(2)?;
        let forced = call.finish(&["init", "--force"])?;
        forced.exits(0)?;
        let said = &forced.stdout;
        for words in [
            "Dockerfile  it is a link",
            "Containerfile  it is no file",
            "package.json  it is no file",
            "pyproject.toml  it is too large",
            ".devcontainer.json  it is not JSON",
        ] {
            ensure!(said.contains(words), "no `{words}` in {said}");
        }
        ensure!(!said.contains(crate::support::CANARY), "{said}");
        ensure!(!said.contains(['\x1b', '\u{202e}', '\0']), "{said:?}");
        ensure!(fs::read_to_string(&secret)? == crate::support::CANARY);
        let path = folder.join("ringfence.toml");
        ensure!(path.symlink_metadata()?.is_file());
        env.look(fixture, &["policy", "check", "ringfence.toml"])?;
        Ok(())
    })
}

#[test]
fn a_folder_that_says_nothing_gets_no_file() -> Result<()> {
    in_each_mode("nothing", |env, fixture| {
        let said = env.look(fixture, &["init"])?;
        ensure!(
            said.starts_with("nothing here says what it needs"),
            "{said}"
        );
        ensure!(!fixture.folder.join("ringfence.toml").exists());
        let gone = env.call(fixture).finish(&["init", "no-such-folder"])?;
        gone.exits(2)
    })
}
