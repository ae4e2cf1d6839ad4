//! `ringfence apply` where something is not as it was when the patch was approved.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::fs::{FlockOperation, flock};

use crate::run::path;
use crate::support::{Fixture, Mode, Sandboxed, fingerprint, in_each_mode};

const AUTHOR: [&str; 2] = ["--author", "Ada L. <ada@example.org>"];

fn approved(env: &Sandboxed, fixture: &Fixture, shell: &str) -> Result<String> {
    let result = env.run_with(fixture, &[], shell)?;
    let run = result["run"].as_str().context("no run")?.to_owned();
    env.ringfence(fixture, 60, &["approve", &run])?.exits(0)?;
    Ok(run)
}

fn apply(env: &Sandboxed, fixture: &Fixture, words: &[&str], exit: i32) -> Result<String> {
    let output = env.ringfence(fixture, 60, &[&["apply"], words].concat())?;
    output.exits(exit)?;
    Ok(format!("{}{}", output.stdout, output.stderr))
}

fn commit(env: &Sandboxed, fixture: &Fixture) -> Result<()> {
    env.git(fixture, &fixture.folder, &["add", "-A"])?;
    let words = ["-c", "core.hooksPath=/dev/null", "commit", "-qm", "more"];
    env.git(fixture, &fixture.folder, &words).map(drop)
}

#[test]
fn the_closing_words_of_a_run_lead_to_review_and_apply() -> Result<()> {
    in_each_mode("closing", |env, fixture| {
        let output = env.ringfence(fixture, 240, &["run", "--", "sh", "-c", "echo x > x"])?;
        output.exits(0)?;
        let said = &output.stderr;
        ensure!(said.contains("see it:  ringfence review "), "{said}");
        ensure!(said.contains("take it: ringfence apply "), "{said}");
        ensure!(!said.contains("git apply"), "{said}");
        Ok(())
    })
}

#[test]
fn a_tree_that_moves_after_its_approval() -> Result<()> {
    in_each_mode("moves", |env, fixture| {
        let git = |words: &[&str]| env.git(fixture, &fixture.folder, words);
        env.put(fixture, "long", "1\n2\n3\n4\n5\n6\n7\n8\n9\n")?;
        commit(env, fixture)?;
        let base = git(&["rev-parse", "HEAD"])?;
        let run = approved(env, fixture, "sed -i s/8/eight/ long; echo new > new")?;
        // Another commit, something staged, something edited, and something that git never saw.
        env.put(fixture, "long", "one\n2\n3\n4\n5\n6\n7\n8\n9\n")?;
        commit(env, fixture)?;
        env.put(fixture, "a.txt", "staged\n")?;
        git(&["add", "a.txt"])?;
        env.put(fixture, "a.txt", "edited\n")?;
        env.put(fixture, "untracked", "u\n")?;
        let index = fs::read(fixture.folder.join(".git/index"))?;
        let before = fingerprint(&fixture.folder)?;
        let said = apply(env, fixture, &[&run], 0)?;
        ensure!(said.contains("long (merged)"), "{said}");
        let long = fs::read_to_string(fixture.folder.join("long"))?;
        ensure!(long == "one\n2\n3\n4\n5\n6\n7\neight\n9\n", "{long}");
        ensure!(fs::read(fixture.folder.join(".git/index"))? == index);
        let after = fingerprint(&fixture.folder)?;
        for (path, facts) in &before {
            let changed = *path == fixture.folder || *path == fixture.folder.join("long");
            ensure!(
                changed || after.get(path) == Some(facts),
                "{path:?} changed"
            );
        }
        // A branch stands on what the run began from, wherever `HEAD` is.
        let words = [&run, "--branch", "b", AUTHOR[0], AUTHOR[1]];
        apply(env, fixture, &words, 0)?;
        ensure!(git(&["rev-parse", "b^"])? == base);
        ensure!(git(&["show", "b:long"])? == "1\n2\n3\n4\n5\n6\n7\neight\n9\n");
        // On another commit where the path is another one, it is refused.
        let words = [
            &run, "--branch", "c", "--base", "HEAD", AUTHOR[0], AUTHOR[1],
        ];
        let said = apply(env, fixture, &words, 2)?;
        ensure!(
            said.contains("`long`: the commit has something else"),
            "{said}"
        );

        let run = approved(env, fixture, "sed -i s/eight/acht/ long; echo 1 > other")?;
        env.put(fixture, "long", "one\n2\n3\n4\n5\n6\n7\nVIII\n9\n")?;
        let before = fingerprint(&fixture.folder)?;
        let said = apply(env, fixture, &[&run], 2)?;
        ensure!(
            said.contains("`long`") && said.contains("nothing was changed"),
            "{said}"
        );
        ensure!(
            fingerprint(&fixture.folder)? == before,
            "something was changed"
        );
        Ok(())
    })
}

/// BOUND: what takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until somebody waits for a lock.
fn is_waited_for(lock: &fs::File) -> Result<()> {
    let end = format!(":{} 0 EOF", lock.metadata()?.ino());
    let deadline = Instant::now() + PATIENCE;
    loop {
        let locks = fs::read_to_string("/proc/locks")?;
        let waits = |line: &str| line.contains("-> FLOCK") && line.ends_with(&end);
        if locks.lines().any(waits) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "nobody waits: {locks}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_rejection_that_arrives_while_others_are_waited_for() -> Result<()> {
    in_each_mode("waits", |env, fixture| {
        let run = approved(env, fixture, "echo x > x")?;
        // One that is done, so that there is a lock.
        let first = approved(env, fixture, "echo y > y")?;
        apply(env, fixture, &[&first], 0)?;
        let lock = fs::File::open(fixture.state.join("applying/lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        let before = fingerprint(&fixture.folder)?;
        let waiting = env.call(fixture).live(&["apply", &run])?;
        is_waited_for(&lock)?;
        let words = ["reject", &run, "--why", "on second thoughts"];
        env.ringfence(fixture, 60, &words)?.exits(0)?;
        flock(&lock, FlockOperation::Unlock)?;
        let output = waiting.finish()?;
        output.exits(3)?;
        ensure!(
            output.stderr.contains("on second thoughts"),
            "{}",
            output.tail()
        );
        ensure!(
            fingerprint(&fixture.folder)? == before,
            "something was changed"
        );
        let words = [&run, "--branch", "b", AUTHOR[0], AUTHOR[1]];
        apply(env, fixture, &words, 3)?;
        ensure!(
            env.git(fixture, &fixture.folder, &["branch", "--list", "b"])?
                .is_empty()
        );
        Ok(())
    })
}

#[test]
fn links_that_lead_out_are_refused_on_a_branch_too() -> Result<()> {
    in_each_mode("outer", |env, fixture| {
        let git = |words: &[&str]| env.git(fixture, &fixture.folder, words);
        let work = "ln -s /etc/passwd out; ln -s ../../x up; ln -s .git/config in; ln -s a.txt fine; \
            mkdir d; ln -s ../src/.. d/l";
        let run = approved(env, fixture, work)?;
        let words = [&run, "--branch", "b", AUTHOR[0], AUTHOR[1]];
        let said = apply(env, fixture, &words, 2)?;
        for (path, why) in [
            ("out", "an absolute path"),
            ("up", "leaves the folder"),
            ("in", "into `.git`"),
            ("d/l", "`..` behind a name"),
        ] {
            let line = format!("`{path}`: it is a link");
            let line = said.lines().find(|told| told.contains(&line));
            let told = |line: &str| line.contains(why) && line.contains("--allow-links");
            ensure!(line.is_some_and(told), "{path}: {said}");
        }
        ensure!(!said.contains("`fine`"), "{said}");
        ensure!(git(&["branch", "--list", "b"])?.is_empty());
        apply(env, fixture, &[&words[..], &["--allow-links"]].concat(), 0)?;
        let listed = git(&["ls-tree", "b", "out"])?;
        ensure!(listed.starts_with("120000 blob"), "{listed}");
        ensure!(git(&["show", "b:out"])? == "/etc/passwd");
        Ok(())
    })
}

#[test]
fn what_a_file_has_besides_its_content_is_kept() -> Result<()> {
    in_each_mode("besides", |env, fixture| {
        let file = env.put(fixture, "tool", "old\n")?;
        // Somebody with the id 12345 may read it.
        let list = [
            "0x02000000",
            "01000600ffffffff",
            "0200040039300000",
            "04000400ffffffff",
            "10000600ffffffff",
            "20000400ffffffff",
        ]
        .concat();
        let set_of = |file: &Path, name: &str, value: &str| {
            let mut command = std::process::Command::new("setfattr");
            crate::support::run_quietly(command.args(["-n", name, "-v", value]).arg(file))
        };
        let set = |name: &str, value: &str| set_of(&file, name, value);
        set("user.note", "kept")?;
        let default = list.clone();
        if set("system.posix_acl_access", &list).is_err() {
            println!("SKIPPED access lists: the file system has none");
            return Ok(());
        }
        let root = fixture.mode == Mode::Root;
        if root {
            set(
                "security.capability",
                "0x0100000200040000000000000000000000000000",
            )?;
        }
        let value_of = |file: &Path, name: &str| {
            let mut buffer = vec![0; 4096];
            let read = rustix::fs::getxattr(file, name, &mut buffer[..]);
            read.ok().map(|length| buffer[..length].to_vec())
        };
        let value = |name: &str| value_of(&file, name);
        let before = (value("user.note"), value("system.posix_acl_access"));
        ensure!(before.0.is_some() && before.1.is_some());
        ensure!(!root || value("security.capability").is_some());
        let owner = fs::metadata(&file)?;
        let run = approved(env, fixture, "echo new > tool; chmod u+x tool")?;
        apply(env, fixture, &[&run], 0)?;
        ensure!(fs::read_to_string(&file)? == "new\n");
        let meta = fs::metadata(&file)?;
        ensure!((meta.uid(), meta.gid()) == (owner.uid(), owner.gid()));
        ensure!(meta.permissions().mode() & 0o100 != 0);
        ensure!(value("user.note") == before.0, "{:?}", value("user.note"));
        // The list is there; who may read may execute it, as the patch has it.
        let list = value("system.posix_acl_access").context("no list")?;
        let somebody = 12345u32.to_le_bytes();
        ensure!(list.windows(4).any(|window| window == somebody), "{list:?}");
        // What was allowed to the program that was there is not allowed to what came.
        ensure!(value("security.capability").is_none());
        // A list that a directory gives is for what is new in it, and not for what was there.
        set_of(&fixture.folder, "system.posix_acl_default", &default)?;
        let run = approved(env, fixture, "echo more >> a.txt; echo new > new")?;
        apply(env, fixture, &[&run], 0)?;
        let list_of = |name| value_of(&fixture.folder.join(name), "system.posix_acl_access");
        ensure!(list_of("a.txt").is_none() && list_of("new").is_some());
        Ok(())
    })
}

#[test]
fn files_of_a_submodule_are_another_repositorys() -> Result<()> {
    in_each_mode("modules", |env, fixture| {
        let other = fixture.folder.with_file_name("other");
        let git = |cwd: &Path, words: &[&str]| env.git(fixture, cwd, words);
        git(
            Path::new("/"),
            &["clone", "-q", path(&fixture.folder), path(&other)],
        )?;
        let run = approved(env, fixture, "mkdir lib; echo x > lib/x; echo y > y")?;
        let words = ["submodule", "--quiet", "add", path(&other), "lib"];
        git(&fixture.folder, &words)?;
        let before = fingerprint(&fixture.folder)?;
        let said = apply(env, fixture, &[&run], 2)?;
        ensure!(
            said.contains("`lib/x`: it is in the submodule at `lib`"),
            "{said}"
        );
        ensure!(
            fingerprint(&fixture.folder)? == before,
            "something was changed"
        );
        // What an agent changes in one is in its patch, and not applied from here.
        let run = approved(env, fixture, "echo in >> lib/a.txt")?;
        let said = apply(env, fixture, &[&run], 2)?;
        ensure!(
            said.contains("`lib/a.txt`: it is in the submodule"),
            "{said}"
        );
        // Beside it, all is as ever.
        let run = approved(env, fixture, "echo z > z")?;
        apply(env, fixture, &[&run], 0)?;
        ensure!(fixture.folder.join("z").exists());
        Ok(())
    })
}

#[test]
fn settings_of_the_repository_change_no_byte() -> Result<()> {
    in_each_mode("settings", |env, fixture| {
        let git = |words: &[&str]| env.git(fixture, &fixture.folder, words);
        env.put(fixture, "crlf", "a\nb\nc\n")?;
        commit(env, fixture)?;
        for (key, value) in [
            ("core.autocrlf", "true"),
            ("core.ignorecase", "true"),
            ("core.filemode", "false"),
            ("core.symlinks", "false"),
            ("core.precomposeunicode", "true"),
        ] {
            git(&["config", key, value])?;
        }
        // As git checks it out here.
        fs::remove_file(fixture.folder.join("crlf"))?;
        git(&["checkout", "-q", "--", "crlf"])?;
        let file = fixture.folder.join("crlf");
        ensure!(fs::read_to_string(&file)? == "a\r\nb\r\nc\r\n");
        git(&["checkout", "-q", "--detach"])?;
        let work = "sed -i 's/^b/B/' crlf; echo 1 > README.MD; echo 2 > readme.md; \
            ln -s a.txt link; chmod +x a.txt; printf 'x\\n' > lf";
        let run = approved(env, fixture, work)?;
        apply(env, fixture, &[&run], 0)?;
        ensure!(fs::read_to_string(&file)? == "a\r\nB\r\nc\r\n");
        ensure!(fs::read_to_string(fixture.folder.join("lf"))? == "x\n");
        ensure!(fs::read_to_string(fixture.folder.join("README.MD"))? == "1\n");
        ensure!(fs::read_to_string(fixture.folder.join("readme.md"))? == "2\n");
        ensure!(fixture.folder.join("link").is_symlink());
        let mode = fs::metadata(fixture.folder.join("a.txt"))?.permissions();
        ensure!(mode.mode() & 0o100 != 0);
        // In the commit the lines end otherwise, and nobody converts them.
        let words = [&run, "--branch", "b", AUTHOR[0], AUTHOR[1]];
        let said = apply(env, fixture, &words, 2)?;
        ensure!(
            said.contains("`crlf`: the commit has something else"),
            "{said}"
        );
        // `HEAD` is on no branch, and stays so.
        let run = approved(env, fixture, "echo 3 > three")?;
        let words = [&run, "--branch", "b", AUTHOR[0], AUTHOR[1]];
        apply(env, fixture, &words, 0)?;
        ensure!(git(&["branch", "--show-current"])?.trim().is_empty());
        ensure!(git(&["show", "b:three"])? == "3\n");
        Ok(())
    })
}
