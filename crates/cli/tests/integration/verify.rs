//! Bundles of real runs: what they started from and what they became by name, what a reader
//! elsewhere can check, and keys.

mod formats;
mod keys;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::support::{Fixture, Sandboxed, expect, in_each_mode};

/// Something of everything that a patch can carry.
const ALL_KINDS: &str = "echo four >> a.txt; git mv src/deep/x.c src/y.c; echo 'int y;' >> src/y.c; \
    rm .gitignore; chmod +x src/main.c; head -c 300 /dev/urandom > bin; ln -s a.txt link; \
    mkdir 'sp ace'; printf 'no newline' > \"sp ace/q\\\"\\\"$(printf '\\377')\"; : > empty; \
    rm README.md; mkdir README.md; echo x > README.md/inside";

fn commit_all(env: &Sandboxed, fixture: &Fixture) -> Result<()> {
    env.git(fixture, &fixture.folder, &["add", "-A"])?;
    env.git(fixture, &fixture.folder, &["commit", "-qm", "clean"])?;
    Ok(())
}

fn manifest(result: &Value) -> Result<Value> {
    let bundle = result["bundle"].as_str().context("no bundle is named")?;
    let text = fs::read(Path::new(bundle).join("manifest.json"))?;
    Ok(serde_json::from_slice(&text)?)
}

/// `verify` with an exit code; what it found.
fn verify(env: &Sandboxed, fixture: &Fixture, words: &[&str], code: i32) -> Result<Value> {
    let words = [&["verify", "--json"], words].concat();
    let output = env.call(fixture).finish(&words)?;
    output.exits(code).with_context(|| format!("{words:?}"))?;
    output.json.context("no report")
}

fn state(report: &Value, check: &str) -> String {
    let checks = report["checks"].as_array();
    let found = checks.and_then(|all| all.iter().find(|c| c["check"] == check));
    found.map_or_else(String::new, |c| {
        c["state"].as_str().unwrap_or_default().to_owned()
    })
}

/// A copy that anybody can read, far from the home.
fn carried(fixture: &Fixture, result: &Value) -> Result<PathBuf> {
    let bundle = result["bundle"].as_str().context("no bundle is named")?;
    let away = fixture.folder.with_file_name("carried");
    let _ = fs::remove_dir_all(&away);
    fs::create_dir(&away)?;
    for entry in fs::read_dir(bundle)? {
        let entry = entry?;
        let to = away.join(entry.file_name());
        fs::copy(entry.path(), &to)?;
        fs::set_permissions(&to, std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
    }
    Ok(away)
}

#[test]
fn r22_the_tree_of_a_commit_with_its_patch_is_gits() -> Result<()> {
    in_each_mode("commit", |env, fixture| {
        commit_all(env, fixture)?;
        let result = env.run_with(fixture, &[], ALL_KINDS)?;
        expect(&result, "status", "done")?;
        let manifest = manifest(&result)?;
        let head = env.git(
            fixture,
            &fixture.folder,
            &["rev-parse", "HEAD", "HEAD^{tree}"],
        )?;
        let head: Vec<&str> = head.lines().collect();
        ensure!(manifest["base"]["kind"] == "commit", "{}", manifest["base"]);
        ensure!(manifest["base"]["commit"] == head[0] && manifest["base"]["tree"] == head[1]);
        // As git itself makes it, in a clone.
        let clone = fixture.folder.with_file_name("clone");
        let clone_path = clone.to_string_lossy();
        let folder = fixture.folder.to_string_lossy();
        let top = Path::new("/");
        env.git(fixture, top, &["clone", "-q", &folder, &clone_path])?;
        let patch = result["patch"].as_str().context("no patch")?;
        env.git(fixture, &clone, &["apply", "--index", patch])?;
        let tree = env.git(fixture, &clone, &["write-tree"])?;
        ensure!(
            manifest["tree"]["id"] == tree.trim(),
            "{}",
            manifest["tree"]
        );
        let report = verify(env, fixture, &[], 0)?;
        ensure!(report["verdict"] == "ok", "{report}");
        for check in report["checks"].as_array().context("no checks")? {
            ensure!(check["state"] == "ok", "{check}");
        }
        // The commit is still there when the folder has moved on.
        env.put(fixture, "a.txt", "something else\n")?;
        commit_all(env, fixture)?;
        let report = verify(env, fixture, &[], 0)?;
        ensure!(state(&report, "base") == "ok", "{report}");
        // In a pack, by git itself, and without a change, it is the commit's own.
        env.git(fixture, &fixture.folder, &["repack", "-adq"])?;
        let result = env.run_with(fixture, &[], "true")?;
        let manifest = self::manifest(&result)?;
        ensure!(manifest["tree"]["id"] == manifest["base"]["tree"]);
        Ok(())
    })
}

#[test]
fn only_what_is_committed_is_called_a_commit() -> Result<()> {
    in_each_mode("dirty", |env, fixture| {
        type Act<'a> = (&'a str, &'a str, &'a str);
        let acts: [Act<'_>; 8] = [
            ("nothing", "true", "commit"),
            ("untracked", "echo u > untracked", "commit"),
            ("touched", "touch a.txt src/main.c", "commit"),
            ("edited", "echo e >> a.txt", "dirty_folder"),
            ("mode", "chmod +x a.txt", "dirty_folder"),
            ("removed", "rm a.txt", "dirty_folder"),
            ("staged", "echo s >> a.txt; git add a.txt", "dirty_folder"),
            (
                "staged and taken back",
                "cp a.txt k; echo s >> a.txt; git add a.txt; mv k a.txt",
                "dirty_folder",
            ),
        ];
        commit_all(env, fixture)?;
        for (what, act, kind) in acts {
            env.git(fixture, &fixture.folder, &["reset", "-q", "--hard"])?;
            env.git(fixture, &fixture.folder, &["clean", "-qfd"])?;
            env.as_owner(fixture, &fixture.folder, &["sh", "-c", act])?;
            let result = env.run_with(fixture, &[], "echo new > new.txt")?;
            let manifest = manifest(&result)?;
            ensure!(
                manifest["base"]["kind"] == kind,
                "{what}: {}",
                manifest["base"]
            );
            let tree = if kind == "commit" {
                "git_tree"
            } else {
                "change_set"
            };
            ensure!(
                manifest["tree"]["kind"] == tree,
                "{what}: {}",
                manifest["tree"]
            );
            let report = verify(env, fixture, &[], 0)?;
            ensure!(state(&report, "base") == "ok", "{what}: {report}");
        }
        // A file that git does not track and the agent changes is in no commit.
        env.git(fixture, &fixture.folder, &["reset", "-q", "--hard"])?;
        env.put(fixture, "untracked", "u\n")?;
        let result = env.run_with(fixture, &[], "echo v >> untracked")?;
        let manifest = manifest(&result)?;
        ensure!(manifest["base"]["kind"] == "dirty_folder", "{manifest}");
        // Once the folder has moved on, nobody can tell; that is said, and is no failure.
        env.put(fixture, "untracked", "w\n")?;
        let report = verify(env, fixture, &[], 0)?;
        ensure!(state(&report, "base") == "not_checked", "{report}");
        Ok(())
    })
}

#[test]
fn folders_of_all_kinds_have_a_name() -> Result<()> {
    in_each_mode("folders", |env, fixture| {
        commit_all(env, fixture)?;
        // A sub-folder: paths and tree are those of the whole.
        let call = env.call(fixture).folder(&fixture.folder.join("src"));
        let result = call.run(&[], "echo more >> main.c")?;
        let found = manifest(&result)?;
        ensure!(found["base"]["kind"] == "commit", "{}", found["base"]);
        ensure!(found["base"]["prefix"] == "src", "{}", found["base"]);
        let report = verify(env, fixture, &[], 0)?;
        ensure!(state(&report, "base") == "ok", "{report}");
        // No repository.
        let plain = fixture.folder.with_file_name("plain");
        let path = plain.to_string_lossy();
        let make = format!("mkdir '{path}' && echo one > '{path}/one'");
        env.as_owner(fixture, Path::new("/"), &["sh", "-c", &make])?;
        let result = env
            .call(fixture)
            .folder(&plain)
            .run(&[], "echo two >> one")?;
        let found = manifest(&result)?;
        ensure!(found["base"]["kind"] == "folder", "{}", found["base"]);
        let report = verify(env, fixture, &[], 0)?;
        ensure!(state(&report, "base") == "ok", "{report}");
        // No commit yet, and one of the other hash.
        for (format, kind) in [("sha1", "folder"), ("sha256", "commit")] {
            let path = fixture.folder.with_file_name(format);
            let format = format!("--object-format={format}");
            let name = path.to_string_lossy();
            env.git(fixture, Path::new("/"), &["init", "-q", &format, &name])?;
            let make = ["sh", "-c", "mkdir d; echo one > d/one"];
            env.as_owner(fixture, &path, &make)?;
            if kind == "commit" {
                env.git(fixture, &path, &["add", "-A"])?;
                env.git(fixture, &path, &["commit", "-qm", "one"])?;
            }
            let call = env.call(fixture).folder(&path);
            let result = call.run(&[], "echo two >> d/one; echo n > n")?;
            let found = manifest(&result)?;
            ensure!(found["base"]["kind"] == kind, "{}", found["base"]);
            let report = verify(env, fixture, &[], 0)?;
            ensure!(state(&report, "base") == "ok", "{report}");
        }
        Ok(())
    })
}

#[test]
fn a_host_without_git_has_bundles_too() -> Result<()> {
    in_each_mode("no-git", |env, fixture| {
        commit_all(env, fixture)?;
        let base = |path: &str| -> Result<Value> {
            let path = format!("PATH={path}");
            let call = env.call(fixture).within(&["env", &path]);
            let result = call.run(&[], "echo new > new.txt; echo more >> src/main.c")?;
            let report = verify(env, fixture, &[], 0)?;
            ensure!(state(&report, "base") == "ok", "{report}");
            Ok(manifest(&result)?["base"].clone())
        };
        // Objects in files of their own are read without it; those in packs are not.
        ensure!(base("/nonexistent")?["kind"] == "commit");
        env.git(fixture, &fixture.folder, &["repack", "-adq"])?;
        env.git(fixture, &fixture.folder, &["prune-packed", "-q"])?;
        ensure!(base("/usr/bin:/bin")?["kind"] == "commit");
        let without = base("/nonexistent")?;
        ensure!(without["kind"] == "folder", "{without}");
        ensure!(without["why"].to_string().contains("git"), "{without}");
        Ok(())
    })
}

#[test]
fn the_repository_configures_nothing_that_runs() -> Result<()> {
    in_each_mode("configured", |env, fixture| {
        let trap = fixture.folder.with_file_name("trapped");
        let command = format!("touch '{}'", trap.display());
        commit_all(env, fixture)?;
        for key in [
            "core.fsmonitor",
            "core.sshCommand",
            "core.alternateRefsCommand",
            "diff.external",
            "filter.x.clean",
            "filter.x.smudge",
            "filter.x.process",
            "diff.x.textconv",
        ] {
            env.git(fixture, &fixture.folder, &["config", key, &command])?;
        }
        env.put(fixture, ".git/info/attributes", "* filter=x diff=x\n")?;
        let result = env.run_with(fixture, &[], "echo more >> a.txt")?;
        ensure!(manifest(&result)?["base"]["kind"] == "commit");
        let report = verify(env, fixture, &[], 0)?;
        ensure!(state(&report, "base") == "ok", "{report}");
        ensure!(!trap.exists(), "something ran");
        Ok(())
    })
}

#[test]
fn r34_a_bundle_is_verified_elsewhere() -> Result<()> {
    in_each_mode("elsewhere", |env, fixture| {
        commit_all(env, fixture)?;
        let result = env.run_with(fixture, &[], ALL_KINDS)?;
        let away = carried(fixture, &result)?;
        let path = away.to_string_lossy();
        let folder = fixture.folder.to_string_lossy();
        let key = fixture.folder.with_file_name("key.pem");
        let export = env.look(fixture, &["key", "export"])?;
        fs::write(&key, &export)?;
        let key = key.to_string_lossy();

        // Somebody without a home: it is whole, and nobody he knows.
        let stranger = || {
            let nowhere = fixture.folder.with_file_name("nowhere");
            env.call(fixture)
                .variable("RINGFENCE_HOME", &nowhere.to_string_lossy())
        };
        let output = stranger().finish(&["verify", &path, "--json"])?;
        output.exits(3)?;
        let report = output.json.context("no report")?;
        ensure!(report["verdict"] == "untrusted", "{report}");
        ensure!(state(&report, "signature") == "ok", "{report}");
        // The recorded folder is there, and who is not trusted does not say where to look.
        ensure!(state(&report, "base") == "not_checked", "{report}");
        let words = ["verify", &path, "--key", &key, "--base", &folder, "--json"];
        let output = stranger().finish(&words)?;
        output.exits(0)?;
        let report = output.json.context("no report")?;
        ensure!(state(&report, "base") == "ok", "{report}");
        let told = stranger().finish(&["verify", &path])?;
        ensure!(
            told.stdout.contains("failed       signer"),
            "{}",
            told.stdout
        );
        ensure!(told.stdout.contains("not trusted"), "{}", told.stdout);
        let nowhere = fixture.folder.with_file_name("nowhere");
        ensure!(!nowhere.exists(), "looking made a home");

        // Whoever trusts the key by name.
        let trust = stranger().input(export.as_bytes());
        trust.finish(&["key", "trust", "colleague"])?.exits(0)?;
        let output = stranger().finish(&["verify", &path, "--json"])?;
        output.exits(0)?;
        let report = output.json.context("no report")?;
        ensure!(report["signed_by"]["trusted_as"] == "colleague", "{report}");
        stranger()
            .finish(&["key", "untrust", "colleague"])?
            .exits(0)?;
        stranger().finish(&["verify", &path])?.exits(3)?;

        // One byte.
        let patch = away.join("changes.patch");
        let mut bytes = fs::read(&patch)?;
        let last = bytes.len() - 2;
        bytes[last] ^= 1;
        fs::write(&patch, bytes)?;
        let output = stranger().finish(&["verify", &path, "--key", &key])?;
        output.exits(1)?;
        ensure!(
            output.stdout.contains("failed       hashes"),
            "{}",
            output.stdout
        );
        ensure!(output.stdout.contains("NOT VERIFIED"), "{}", output.stdout);
        stranger().finish(&["verify", "./nothing-there"])?.exits(2)
    })
}

/// What never was a bundle is not called a broken one.
#[test]
fn a_directory_that_is_no_bundle_is_told_as_such() -> Result<()> {
    in_each_mode("no-bundle", |env, fixture| {
        for path in [&fixture.folder, &fixture.state] {
            let path = path.to_string_lossy();
            let output = env.call(fixture).finish(&["verify", &path])?;
            output.exits(2)?;
            ensure!(output.stderr.contains("no bundle"), "{}", output.stderr);
            ensure!(output.stdout.is_empty(), "{}", output.stdout);
        }
        Ok(())
    })
}

#[test]
fn a_base_that_is_named_and_is_another_one_is_a_failure() -> Result<()> {
    in_each_mode("wrong-base", |env, fixture| {
        commit_all(env, fixture)?;
        let result = env.run_with(fixture, &[], "echo x >> a.txt")?;
        let bundle = result["bundle"].as_str().context("no bundle is named")?;
        let folder = fixture.folder.to_string_lossy();
        let report = verify(env, fixture, &[bundle, "--base", &folder], 0)?;
        ensure!(state(&report, "base") == "ok", "{report}");
        // Another commit is there, and the one that it started from is not.
        let other = fixture.state.join("other");
        let path = other.to_string_lossy();
        env.as_owner(fixture, &fixture.folder, &["mkdir", &path])?;
        for words in [
            &["init", "-q"][..],
            &[
                "-c",
                "user.name=x",
                "-c",
                "user.email=x@example",
                "commit",
                "-q",
                "--allow-empty",
                "-m",
                "x",
            ],
        ] {
            env.git(fixture, &other, words)?;
        }
        let words = ["verify", bundle, "--base", &path];
        let output = env.call(fixture).finish(&words)?;
        ensure!(!output.status.success(), "{}", output.stdout);
        ensure!(
            !output.stdout.contains("ok           base"),
            "{}",
            output.stdout
        );
        Ok(())
    })
}

#[test]
fn a_run_that_goes_on_or_failed_early_has_no_bundle() -> Result<()> {
    in_each_mode("early", |env, fixture| {
        let mut live = env
            .call(fixture)
            .run_live(&["--name", "slow"], "echo READY; read -r line")?;
        live.until("READY")?;
        let output = env.call(fixture).finish(&["verify", "slow"])?;
        output.exits(2)?;
        ensure!(output.stderr.contains("still running"), "{}", output.tail());
        live.say("\n")?;
        live.finish()?.exits(0)?;
        verify(env, fixture, &["slow"], 0)?;
        // A command that could not be started has one, and says so.
        let output = env
            .call(fixture)
            .finish(&["run", "--json", "--", "/nonexistent"])?;
        output.exits(1)?;
        let report = verify(env, fixture, &[], 0)?;
        ensure!(report["verdict"] == "ok", "{report}");
        Ok(())
    })
}
