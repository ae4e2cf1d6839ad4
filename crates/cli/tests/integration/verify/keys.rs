//! The key of an installation: made once, private, and in nothing that leaves it.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use crate::support::in_each_mode;

#[test]
fn two_first_runs_agree_on_one_key() -> Result<()> {
    in_each_mode("first", |env, fixture| {
        // The home is there; what they race for is the key.
        env.look(fixture, &["list"])?;
        ensure!(fs::read_dir(fixture.state.join("keys"))?.next().is_none());
        let call = env.call(fixture);
        let mut started = Vec::new();
        for _ in 0..4 {
            let mut command = call.command(&[], &["run", "--", "true"]);
            let child = command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?;
            started.push(child);
        }
        for mut child in started {
            ensure!(child.wait()?.success(), "a run failed");
        }
        let own = env.look(fixture, &["key", "show"])?;
        for row in env.runs(fixture, &[])? {
            let run = row["run"].as_str().context("no id")?;
            let report = env.look(fixture, &["verify", run, "--json"])?;
            let report: serde_json::Value = serde_json::from_str(&report)?;
            ensure!(report["signed_by"]["keyid"] == own.trim(), "{report}");
        }
        let mode = |name: &str| -> Result<u32> {
            Ok(fs::metadata(fixture.state.join(name))?.mode() & 0o7777)
        };
        ensure!(mode("keys")? == 0o700 && mode("keys/signing.pem")? == 0o600);
        Ok(())
    })
}

#[test]
fn the_secret_is_nowhere_but_in_its_file() -> Result<()> {
    in_each_mode("secret", |env, fixture| {
        // The agent looks for it everywhere.
        let result = env.run_with(
            fixture,
            &[],
            "echo x > x; find / -name signing.pem 2>/dev/null; grep -rl 'BEGIN PRIV[A]TE' \
             /home /tmp /.ringfence /etc 2>/dev/null; echo looked",
        )?;
        ensure!(crate::support::said(&result) == "looked\n", "{result}");
        let file = fs::read_to_string(fixture.state.join("keys/signing.pem"))?;
        let secret = file.lines().nth(1).context("no secret")?;
        // The last part of the line is of the secret, whatever stands before it.
        let secret = &secret[secret.len() - 30..];
        let mut said = String::new();
        for words in [
            &["key", "show"][..],
            &["key", "show", "--json"],
            &["key", "export"],
            &["key", "list"],
            &["key", "list", "--json"],
            &["verify"],
            &["verify", "--json"],
            &["show"],
            &["show", "--json"],
            &["logs"],
            &["doctor", "--json"],
        ] {
            let output = env.call(fixture).finish(words)?;
            said.push_str(&output.stdout);
            said.push_str(&output.stderr);
        }
        let mut pending = vec![fixture.state.clone()];
        let mut read = 0;
        while let Some(directory) = pending.pop() {
            for entry in fs::read_dir(&directory)? {
                let path = entry?.path();
                if path.is_dir() {
                    pending.push(path);
                } else if !path.ends_with("keys/signing.pem") && path.is_file() {
                    said.push_str(&String::from_utf8_lossy(&fs::read(&path)?));
                    read += 1;
                }
            }
        }
        ensure!(read >= 7, "only {read} files were read");
        ensure!(!said.contains(secret), "the secret is out");
        ensure!(!said.contains("BEGIN PRIVATE"), "a secret is out");
        Ok(())
    })
}

#[test]
fn a_key_that_others_can_read_stops_the_run_before_it_begins() -> Result<()> {
    in_each_mode("readable", |env, fixture| {
        env.look(fixture, &["key", "show"])?;
        let path = fixture.state.join("keys/signing.pem");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o644))?;
        let output = env.call(fixture).finish(&["run", "--", "true"])?;
        output.exits(4)?;
        ensure!(
            output.stderr.contains("can be read by others"),
            "{}",
            output.tail()
        );
        ensure!(output.stderr.contains("hint:"), "{}", output.tail());
        ensure!(env.look(fixture, &["list"])?.contains("no runs yet"));
        fs::set_permissions(&path, PermissionsExt::from_mode(0o600))?;
        env.call(fixture).finish(&["run", "--", "true"])?.exits(0)
    })
}

#[test]
fn keys_of_others_are_named_once() -> Result<()> {
    in_each_mode("named", |env, fixture| {
        let other = fixture.folder.with_file_name("other");
        let elsewhere = || {
            env.call(fixture)
                .variable("RINGFENCE_HOME", &other.to_string_lossy())
        };
        let theirs = elsewhere().finish(&["key", "export"])?.stdout;
        let own = env.look(fixture, &["key", "export"])?;
        ensure!(
            theirs.starts_with("-----BEGIN PUBLIC KEY-----\n"),
            "{theirs}"
        );
        let trust = |name: &str, text: &str| {
            let call = env.call(fixture).input(text.as_bytes());
            call.finish(&["key", "trust", name])
        };
        trust("ci", &theirs)?.exits(0)?;
        trust("ci", &theirs)?.exits(0)?;
        trust("ci", &own)?.exits(2)?;
        trust("../ci", &theirs)?.exits(2)?;
        trust("ci2", "no key")?.exits(2)?;
        let secret = fs::read_to_string(other.join("keys/signing.pem"))?;
        let refused = trust("secret", &secret)?;
        refused.exits(2)?;
        ensure!(
            !refused
                .stderr
                .contains(secret.lines().nth(1).unwrap_or("?"))
        );
        let listed = env.look(fixture, &["key", "list"])?;
        ensure!(listed.lines().count() == 2, "{listed}");
        ensure!(
            listed
                .lines()
                .nth(1)
                .is_some_and(|line| line.ends_with("  ci"))
        );
        env.call(fixture)
            .finish(&["key", "untrust", "ci"])?
            .exits(0)?;
        env.call(fixture)
            .finish(&["key", "untrust", "ci"])?
            .exits(2)
    })
}
