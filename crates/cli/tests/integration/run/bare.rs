//! A directory that git takes for one of its own without being called `.git` does not come out of a
//! sandbox: `git status` in it would run what its `config` names.

use std::fs;

use anyhow::{Context, Result, ensure};
use ringfence_engine::home::Home;
use ringfence_engine::keys;
use ringfence_model::bundle::attestation::{Envelope, PAYLOAD_TYPE, Predicate, Statement, to_sign};
use ringfence_model::bundle::{
    ATTESTATION, JOURNAL, MANIFEST, Manifest, PATCH, RESULT, TreeIdentity, change_set_sha256,
    sha256_hex,
};
use ringfence_model::changes::Change;
use ringfence_model::journal::{Chain, Event, Line};
use serde_json::Value;

use crate::support::{Fixture, Sandboxed, in_each_mode};

/// Makes `docs` a bare repository that git heeds. Empty directories do not cross, so none is empty.
const BARE: &str = r#"mkdir -p docs/objects/00 docs/refs/heads
    echo 'ref: refs/heads/main' > docs/HEAD; touch docs/objects/00/x docs/refs/heads/.keep
    printf '[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = .\n' > docs/config
    printf '\tfsmonitor = "echo ran > ../ran; false"\n' >> docs/config
    echo guide > docs/guide.md; echo other > other.txt"#;

/// The key that signs, in a home.
const KEY: &str = "keys/signing.pem";

/// What a bundle says of a path that stayed behind.
fn why(result: &Value, path: &str) -> String {
    let all = result["omitted"].as_array();
    let one = all.and_then(|all| all.iter().find(|one| one["path"] == path));
    one.map_or_else(String::new, |one| {
        one["why"].as_str().unwrap_or_default().to_owned()
    })
}

fn run(result: &Value) -> Result<&str> {
    result["run"].as_str().context("no run")
}

/// `git status` in a directory of the folder, as a shell prompt asks; whether that ran the program.
fn status_runs(env: &Sandboxed, fixture: &Fixture, directory: &str) -> Result<bool> {
    let ran = fixture.folder.join("ran");
    let _ = fs::remove_file(&ran);
    let shell = "cd \"$1\" && git status; true";
    env.as_owner(
        fixture,
        &fixture.folder,
        &["sh", "-c", shell, "sh", directory],
    )?;
    Ok(ran.exists())
}

#[test]
fn bare_repository_in_patch_stays_behind_and_the_rest_crosses() -> Result<()> {
    in_each_mode("bare", |env, fixture| {
        let result = env.run_with(fixture, &[], BARE)?;
        let id = run(&result)?;
        for path in ["HEAD", "config", "objects", "refs"] {
            let why = why(&result, &format!("docs/{path}"));
            ensure!(why == "git_directory", "{path}: {why} of {result}");
        }
        let page = env.look(fixture, &["show", id])?;
        ensure!(page.contains("would be a git directory"), "{page}");
        env.ringfence(fixture, 60, &["apply", id, "--approve"])?
            .exits(0)?;
        for path in ["docs/guide.md", "other.txt"] {
            ensure!(fixture.folder.join(path).exists(), "{path} is not there");
        }
        ensure!(!fixture.folder.join("docs/HEAD").exists());
        ensure!(!status_runs(env, fixture, "docs")?, "the program ran");
        // It would have: the same, made by hand.
        env.as_owner(fixture, &fixture.folder, &["sh", "-c", BARE])?;
        ensure!(status_runs(env, fixture, "docs")?, "no program ran");
        Ok(())
    })
}

#[test]
fn bare_repository_in_two_patches_is_never_completed() -> Result<()> {
    in_each_mode("pieces", |env, fixture| {
        let pieces = "mkdir -p docs/objects docs/refs; touch docs/objects/x docs/refs/x";
        let first = env.run_with(fixture, &[], pieces)?;
        let head = "mkdir -p docs; echo 'ref: refs/heads/x' > docs/HEAD; echo > docs/a.md";
        let second = env.run_with(fixture, &["--include-ignored"], head)?;
        // Each is harmless by itself.
        ensure!(
            second["omitted"].as_array().is_some_and(Vec::is_empty),
            "{second}"
        );
        let verify = |code: i32| -> Result<String> {
            let folder = fixture.folder.to_string_lossy();
            let words = ["verify", run(&second)?, "--base", &folder];
            let output = env.ringfence(fixture, 60, &words)?;
            output.exits(code)?;
            Ok(output.stdout)
        };
        verify(0)?;
        let apply = |result: &Value, code: i32| -> Result<String> {
            let words = ["apply", run(result)?, "--approve"];
            let output = env.ringfence(fixture, 60, &words)?;
            output.exits(code)?;
            Ok(output.stderr)
        };
        apply(&first, 0)?;
        let said = apply(&second, 2)?;
        ensure!(
            said.contains("docs/HEAD") && said.contains("would be a git directory"),
            "{said}"
        );
        ensure!(
            !fixture.folder.join("docs/a.md").exists(),
            "half of it was applied"
        );
        let said = verify(1)?;
        ensure!(said.contains("would be a git directory"), "{said}");
        // One that begins when the pieces are there.
        let third = env.run_with(fixture, &[], head)?;
        ensure!(why(&third, "docs/HEAD") == "git_directory", "{third}");
        apply(&third, 0)?;
        ensure!(fixture.folder.join("docs/a.md").exists());
        Ok(())
    })
}

#[test]
fn bare_repository_of_the_base_is_not_changed() -> Result<()> {
    in_each_mode("base", |env, fixture| {
        let git = |words: &[&str]| env.git(fixture, &fixture.folder, words);
        git(&["init", "-q", "--bare", "tests/repo.git"])?;
        let keep = "touch tests/repo.git/objects/keep tests/repo.git/refs/keep";
        env.as_owner(fixture, &fixture.folder, &["sh", "-c", keep])?;
        git(&["add", "-A"])?;
        git(&["commit", "-qm", "A fixture"])?;
        let shell =
            "cd tests/repo.git; git config core.fsmonitor 'echo x'; mkdir -p hooks modules/x
            echo x > hooks/post-checkout; echo x > modules/x/config; echo x > ../test.txt";
        let result = env.run_with(fixture, &[], shell)?;
        for path in ["config", "hooks", "modules"] {
            let why = why(&result, &format!("tests/repo.git/{path}"));
            ensure!(why == "git_directory", "{path}: {why} of {result}");
        }
        let words = [
            "apply",
            run(&result)?,
            "--approve",
            "--branch",
            "b",
            "--author",
            "A <a@b>",
        ];
        env.ringfence(fixture, 60, &words)?.exits(0)?;
        ensure!(git(&["diff", "--name-only", "main", "b"])?.trim() == "tests/test.txt");
        // What goes as a whole is none afterwards.
        let result = env.run_with(fixture, &[], "rm -r tests/repo.git")?;
        let words = ["apply", run(&result)?, "--approve"];
        env.ringfence(fixture, 60, &words)?.exits(0)?;
        ensure!(!fixture.folder.join("tests/repo.git/HEAD").exists());
        Ok(())
    })
}

/// Makes of a bundle another one whose hashes are right and which is signed as well: by somebody whose key
/// is trusted, and who is hostile.
fn forge(fixture: &Fixture, run: &str, words: &[(&str, &str)]) -> Result<()> {
    let bundle = fixture.state.join("bundles").join(run);
    let read = |name: &str| fs::read_to_string(bundle.join(name));
    let write = |name: &str, text: &str| fs::write(bundle.join(name), text);
    let changed = |text: &str| {
        let one = |text: String, (from, to): &(&str, &str)| text.replace(from, to);
        words.iter().fold(text.to_owned(), one)
    };
    let patch = changed(&read(PATCH)?);
    let (was, is) = (
        sha256_hex(read(PATCH)?.as_bytes()),
        sha256_hex(patch.as_bytes()),
    );
    let mut journal = String::new();
    let mut chain = Chain::default();
    for line in read(JOURNAL)?.lines() {
        let mut line: Line = serde_json::from_str(line)?;
        if let Event::Seal { patch_sha256, .. } = &mut line.event {
            patch_sha256.clone_from(&is);
        }
        journal += &chain.append(line.time_us, line.event)?;
    }
    let mut manifest: Manifest = serde_json::from_str(&read(MANIFEST)?)?;
    let result = changed(&read(RESULT)?).replace(&was, &is);
    let result = result.replace(&manifest.journal.head, chain.head());
    manifest.journal.head = chain.head().to_owned();
    if let TreeIdentity::ChangeSet { sha256 } = &mut manifest.tree {
        let result: Value = serde_json::from_str(&result)?;
        let changes: Vec<Change> = serde_json::from_value(result["changes"].clone())?;
        *sha256 = change_set_sha256(&changes).context("a path changes twice")?;
    }
    for (name, text) in [(PATCH, &patch), (JOURNAL, &journal), (RESULT, &result)] {
        write(name, text)?;
        let file = manifest.files.iter_mut().find(|file| file.name == name);
        let file = file.context("not a file of the manifest")?;
        (file.size, file.sha256) = (text.len() as u64, sha256_hex(text.as_bytes()));
    }
    let text = serde_json::to_string_pretty(&manifest)? + "\n";
    write(MANIFEST, &text)?;
    let envelope: Envelope = serde_json::from_str(&read(ATTESTATION)?)?;
    let (payload, ..) = envelope.open().context("not an envelope of ours")?;
    let old: Statement = serde_json::from_slice(&payload)?;
    let Predicate {
        task,
        outcome,
        signer,
        ..
    } = old.predicate;
    let hash = sha256_hex(text.as_bytes());
    let statement = Statement::about(&manifest, hash, &task.argv, outcome, signer);
    let payload = statement.to_payload();
    // As root, a home of somebody else is not opened.
    let home = tempfile::tempdir()?;
    let own = Home::open(Some(home.path().to_owned()))?;
    fs::copy(fixture.state.join(KEY), home.path().join(KEY))?;
    let key = keys::own(&own)?;
    let signature = key.sign(&to_sign(PAYLOAD_TYPE, &payload));
    let envelope = Envelope::of(&payload, key.public().id(), &signature);
    write(
        ATTESTATION,
        &(serde_json::to_string_pretty(&envelope)? + "\n"),
    )?;
    Ok(())
}

#[test]
fn bare_repository_in_a_signed_bundle_is_refused() -> Result<()> {
    in_each_mode("forged", |env, fixture| {
        // The journal has the command, and keeps it.
        let shell = BARE.replace("docs/HEAD", "docs/'HEAT'");
        let result = env.run_with(fixture, &[], &shell)?;
        let id = run(&result)?;
        // A bundle that is signed again is as good as it was.
        forge(fixture, id, &[])?;
        let verify = || env.ringfence(fixture, 60, &["verify", id]);
        verify()?.exits(0)?;
        forge(fixture, id, &[("docs/HEAT", "docs/HEAD")])?;
        let report = verify()?;
        report.exits(1)?;
        ensure!(
            report.stdout.contains("would be a git directory"),
            "{}",
            report.tail()
        );
        for words in [
            &["approve", id][..],
            &["apply", id, "--approve"],
            &[
                "apply",
                id,
                "--approve",
                "--branch",
                "b",
                "--author",
                "A <a@b>",
            ],
        ] {
            let output = env.ringfence(fixture, 60, words)?;
            output.exits(3)?;
            ensure!(
                output.stderr.contains("would be a git directory"),
                "{words:?}: {}",
                output.tail()
            );
        }
        ensure!(!fixture.folder.join("docs").exists());
        Ok(())
    })
}
