//! What an agent leaves arrives as it is: the whole corpus through run, patch and apply, to the files
//! and to a branch, by both hashes of git.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::run::corpus::CASES;
use crate::run::patches::{Entry, tree};
use crate::run::path;
use crate::support::{Fixture, Mode, Sandboxed, in_each_mode};

/// All cases, each in a directory of its name.
fn script(part: impl Fn(&(&str, &str, &'static str)) -> String) -> String {
    let mut text = "set -e; umask 022\n".to_owned();
    for case in CASES {
        let name = case.0;
        text += &format!("mkdir -p {name}\n(cd {name}\n{}\n)\n", part(case));
    }
    text
}

/// A tree as `git fast-import` reads one: bytes as they are, and no filter in between.
fn import(branch: &str, files: &BTreeMap<Vec<u8>, Entry>) -> Vec<u8> {
    let mut text = format!(
        "commit refs/heads/{branch}\ncommitter F <f@example.org> 1700000000 +0000\ndata 1\nx\n"
    )
    .into_bytes();
    for (name, entry) in files {
        let (mode, content) = match entry {
            Entry::Link(target) => ("120000", target.as_os_str().as_encoded_bytes()),
            Entry::File {
                executable: true,
                content,
            } => ("100755", &content[..]),
            Entry::File { content, .. } => ("100644", &content[..]),
        };
        let quoted: String = name.iter().map(|byte| format!("\\{byte:03o}")).collect();
        text.extend(format!("M {mode} inline \"{quoted}\"\ndata {}\n", content.len()).bytes());
        text.extend(content);
        text.push(b'\n');
    }
    text
}

struct Scene<'a> {
    env: &'a Sandboxed,
    fixture: &'a Fixture,
    folder: PathBuf,
}

impl Scene<'_> {
    fn git(&self, words: &[&str]) -> Result<String> {
        let said = self.env.git(self.fixture, &self.folder, words)?;
        Ok(said.trim().to_owned())
    }

    /// Makes a branch of files, without asking what git would make of them.
    fn branch(&self, name: &str, files: &BTreeMap<Vec<u8>, Entry>) -> Result<String> {
        let stream = self.fixture.folder.with_file_name("stream");
        fs::File::create(&stream)?.write_all(&import(name, files))?;
        // It folds names, too, where that is said.
        let line = "git -c core.ignorecase=false fast-import --quiet < \"$1\"";
        let words = ["sh", "-c", line, "sh", path(&stream)];
        self.env.as_owner(self.fixture, &self.folder, &words)?;
        self.git(&["rev-parse", &format!("{name}^{{tree}}")])
    }

    /// Names what is another tree on two branches.
    fn different(&self, one: &str, other: &str) -> Result<Vec<&'static str>> {
        let of = |branch: &str, case: &str| {
            let shown = self.git(&["rev-parse", "-q", "--verify", &format!("{branch}:{case}")]);
            shown.unwrap_or_default()
        };
        let names = CASES.iter().map(|case| case.0);
        Ok(names
            .filter(|case| of(one, case) != of(other, case))
            .collect())
    }
}

fn arrives(env: &Sandboxed, fixture: &Fixture, hash: &str) -> Result<()> {
    let folder = fixture.folder.with_file_name(format!("corpus-{hash}"));
    let ran = fixture.folder.with_file_name("filter-ran");
    let scene = Scene {
        env,
        fixture,
        folder: folder.clone(),
    };
    let format = format!("--object-format={hash}");
    let words = ["init", "-q", "-b", "main", &format, path(&folder)];
    env.git(fixture, Path::new("/"), &words)?;
    let filter = format!("touch {}; cat", path(&ran));
    for (key, value) in [
        ("filter.mark.clean", &filter[..]),
        ("filter.mark.smudge", &filter),
        ("diff.mark.command", &filter),
        ("merge.mark.driver", &filter),
        ("core.autocrlf", "true"),
        ("core.ignorecase", "true"),
    ] {
        scene.git(&["config", key, value])?;
    }
    let before = script(|case| case.1.to_owned());
    env.as_owner(fixture, &folder, &["sh", "-c", &before])?;
    scene.branch("main", &tree(&folder)?)?;
    scene.git(&["read-tree", "main"])?;

    let work = script(|case| case.2.to_owned());
    let copy = fixture.folder.with_file_name(format!("expected-{hash}"));
    let words = ["cp", "-a", path(&folder), path(&copy)];
    env.as_owner(fixture, Path::new("/"), &words)?;
    fs::remove_dir_all(copy.join(".git"))?;
    env.as_owner(fixture, &copy, &["sh", "-c", &work])?;
    let expected = tree(&copy)?;

    let call = env.call(fixture).folder(&folder);
    let result = call.run(&[], &work)?;
    let run = result["run"].as_str().context("no run")?;
    ensure!(result["exit_code"] == 0, "{result}");
    ensure!(
        result["omitted"] == Value::Array(Vec::new()),
        "{}",
        result["omitted"]
    );
    let manifest = fs::read(
        fixture
            .state
            .join("bundles")
            .join(run)
            .join("manifest.json"),
    )?;
    let manifest: Value = serde_json::from_slice(&manifest)?;
    ensure!(manifest["base"]["kind"] == "commit", "{}", manifest["base"]);

    let author = ["--author", "Ada L. <ada@example.org>"];
    let words = [
        "apply",
        run,
        "--approve",
        "--anyway",
        "--allow-links",
        "--branch",
        "arrived",
    ];
    let output = call.finish(&[&words[..], &author].concat())?;
    output.exits(0)?;
    let wanted = scene.branch("expected", &expected)?;
    let arrived = scene.git(&["rev-parse", "arrived^{tree}"])?;
    let differs = scene.different("arrived", "expected")?;
    ensure!(arrived == wanted, "on the branch these differ: {differs:?}");
    ensure!(manifest["tree"]["id"] == arrived, "{}", manifest["tree"]);

    call.finish(&["apply", run, "--allow-links"])?.exits(0)?;
    let found = tree(&folder)?;
    let case = |name: &[u8]| -> String {
        let end = name.iter().position(|&b| b == b'/');
        String::from_utf8_lossy(&name[..end.unwrap_or(name.len())]).into_owned()
    };
    let names = found.keys().chain(expected.keys());
    let differs = names.filter(|name| found.get(*name) != expected.get(*name));
    let mut differs: Vec<String> = differs.map(|name| case(name)).collect();
    differs.dedup();
    ensure!(differs.is_empty(), "in the files these differ: {differs:?}");
    ensure!(!ran.exists(), "a filter of the repository ran");
    Ok(())
}

#[test]
fn a_corpus_of_nasty_trees_arrives_to_the_byte() -> Result<()> {
    let names: std::collections::BTreeSet<&str> = CASES.iter().map(|case| case.0).collect();
    ensure!(names.len() == CASES.len() && names.len() >= 60);
    in_each_mode("faithful", |env, fixture| {
        // Who runs it makes no difference to the hash.
        let hashes = match fixture.mode {
            Mode::Rootless => &["sha1", "sha256"][..],
            Mode::Root => &["sha1"],
        };
        for hash in hashes {
            arrives(env, fixture, hash).context(*hash)?;
        }
        Ok(())
    })
}
