//! A folder that leads to other repositories of the host shows nothing of them, and says why.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::run::path;
use crate::support::{
    Fixture, Mode, NOBODY, Sandboxed, expect, fingerprint, in_each_mode, is_root, said,
};
use serde_json::Value;

/// What the other repository holds: in a file, in a message, in the name of a branch and in its rules.
const SECRET: &str = "canary-of-another-repository";

/// Prints where the secret is seen inside: in files, and in every object that is mounted.
const SEARCH: &str = "
    mkdir /tmp/all && git init -q /tmp/all
    for objects in /.ringfence/objects/*; do echo $objects; done > /tmp/all/.git/objects/info/alternates
    git -C /tmp/all cat-file --batch-all-objects --batch 2>/dev/null | grep -a canary-of-another
    git log --all --format='%s %D' 2>/dev/null | grep canary-of-another
    grep -ras canary-of-another /workspace; true";

/// Makes the other repository beside the folder, by its owner.
fn make_other(env: &Sandboxed, fixture: &Fixture) -> Result<()> {
    let shell = format!(
        "git init -q -b main other && cd other && echo {SECRET} > s && mkdir src && cp s src/main.c && git add . \
         && git -c user.name=a -c user.email=a@b commit -qm {SECRET} && git branch {SECRET} \
         && echo {SECRET} > .git/info/exclude && git pack-refs --all && git repack -qad"
    );
    let above = fixture.folder.with_file_name("");
    env.as_owner(fixture, &above, &["sh", "-euc", &shell])?;
    Ok(())
}

/// Runs in a folder that was made so by its owner, and gives the result.
fn search(env: &Sandboxed, fixture: &Fixture, folder: &Path, make: &str) -> Result<Value> {
    env.as_owner(fixture, &fixture.folder, &["sh", "-euc", make])?;
    let result = env.call(fixture).folder(folder).run(&[], SEARCH)?;
    expect(&result, "exit_code", 0)?;
    ensure!(said(&result).is_empty(), "`{make}` shows {}", said(&result));
    Ok(result)
}

fn has_note(result: &Value, words: &[&str]) -> bool {
    let notes = result["notes"].as_array().into_iter().flatten();
    let mut notes = notes.filter_map(Value::as_str);
    notes.any(|note| words.iter().all(|word| note.contains(word)))
}

#[test]
fn folder_that_leads_to_another_repository_has_no_git_inside() -> Result<()> {
    for (number, (make, named)) in [
        ("echo ../../other/.git > .git/commondir", ".git/commondir"),
        (
            "rm -rf .git/objects; ln -s ../../other/.git/objects .git/objects",
            ".git/objects",
        ),
        (
            "rm -rf .git/info; ln -s ../../other/.git/info .git/info",
            ".git/info",
        ),
        (
            "rm -rf .git/refs; ln -s ../../other/.git/refs .git/refs",
            ".git/refs",
        ),
        ("rm -rf .git; ln -s ../other/.git .git", ".git"),
        ("rm -rf .git; echo 'gitdir: ../other/.git' > .git", ".git"),
        (
            "echo ../../../other/.git/objects > .git/objects/info/alternates; \
             cp ../other/.git/packed-refs .git; cp ../other/.git/HEAD .git",
            "info/alternates",
        ),
        ("rm .git/index; mkfifo .git/index", ".git/index"),
    ]
    .into_iter()
    .enumerate()
    {
        in_each_mode(&format!("leads-out-{number}"), |env, fixture| {
            make_other(env, fixture)?;
            let result = search(env, fixture, &fixture.folder, make)?;
            ensure!(
                has_note(&result, &["git does not work inside", named]),
                "no note of `{named}`: {}",
                result["notes"]
            );
            // It is told before the agent starts, and kept.
            let shown = env.look(fixture, &["show", "last"])?;
            ensure!(shown.contains("git does not work inside"), "{shown}");
            let result = env.run_with(fixture, &[], "test ! -e .git && echo x >> a.txt")?;
            expect(&result, "exit_code", 0)?;
            expect(&result, "changed_files", vec!["a.txt"])
        })?;
    }
    Ok(())
}

#[test]
fn sub_folder_of_a_repository_with_linked_packs_has_no_git_inside() -> Result<()> {
    in_each_mode("linked-packs", |env, fixture| {
        make_other(env, fixture)?;
        let make = "for pack in ../other/.git/objects/pack/*; do ln -s $PWD/$pack .git/objects/pack/; done; \
                    git -C ../other rev-parse HEAD > .git/HEAD";
        let result = search(env, fixture, &fixture.folder.join("src"), make)?;
        ensure!(
            has_note(&result, &["git does not work inside", "objects/pack"]),
            "{}",
            result["notes"]
        );
        Ok(())
    })
}

#[test]
fn patch_is_not_applied_to_the_repository_that_a_folder_leads_to() -> Result<()> {
    in_each_mode("applied-elsewhere", |env, fixture| {
        let other = fixture.folder.with_file_name("other");
        env.git(
            fixture,
            Path::new("/"),
            &["clone", "-q", path(&fixture.folder), path(&other)],
        )?;
        let result = env.run_with(fixture, &[], "echo more >> a.txt")?;
        expect(&result, "exit_code", 0)?;
        let make = "echo ../../other/.git > .git/commondir";
        env.as_owner(fixture, &fixture.folder, &["sh", "-c", make])?;
        let before = fingerprint(&other)?;
        let author = ["--author", "A <a@example.org>"];
        let words = [
            "apply",
            "last",
            "--approve",
            "--branch",
            "made",
            author[0],
            author[1],
        ];
        let output = env.ringfence(fixture, 60, &words)?;
        ensure!(!output.status.success(), "{}", output.tail());
        ensure!(fingerprint(&other)? == before, "it was written to");
        // The same goes through where the repository is the folder's own.
        fs::remove_file(fixture.folder.join(".git/commondir"))?;
        let output = env.ringfence(fixture, 60, &words)?;
        ensure!(output.status.success(), "{}", output.tail());
        let branches = env.git(fixture, &fixture.folder, &["branch", "--list", "made"])?;
        ensure!(branches.contains("made"), "{branches}");
        Ok(())
    })
}

#[test]
fn sandbox_on_a_folder_that_leads_out_has_no_history() -> Result<()> {
    in_each_mode("snapshot-leads-out", |env, fixture| {
        make_other(env, fixture)?;
        let make = "echo ../../../other/.git/objects > .git/objects/info/alternates";
        env.as_owner(fixture, &fixture.folder, &["sh", "-c", make])?;
        let created = env.ringfence(fixture, 120, &["sandbox", "create", "--json", "."])?;
        let words = ["sandbox", "create", "--json", "--repo", "."];
        let created = if created.status.success() {
            created
        } else {
            env.ringfence(fixture, 120, &words)?
        };
        let told = format!("{}{}", created.stdout, created.stderr);
        ensure!(told.contains("borrows objects"), "{told}");
        Ok(())
    })
}

/// Swaps the folder's objects for the other repository's and back, until there is a file `stop`.
const SWAP: &str = "
    while test ! -e ../stop; do
        mv .git/objects .git/o && ln -s ../../other/.git/objects .git/objects
        rm .git/objects && mv .git/o .git/objects
        mv .git/objects/pack .git/p && ln -s ../../../other/.git/objects/pack .git/objects/pack
        rm .git/objects/pack && mv .git/p .git/objects/pack
    done";

#[test]
fn objects_that_are_swapped_while_runs_start_show_nothing() -> Result<()> {
    in_each_mode("swapped", |env, fixture| {
        make_other(env, fixture)?;
        std::thread::scope(|scope| {
            let swapping =
                scope.spawn(|| env.as_owner(fixture, &fixture.folder, &["sh", "-c", SWAP]));
            let runs = || -> Result<()> {
                for _ in 0..12 {
                    let words = ["run", "--json", "--", "sh", "-c", SEARCH];
                    let output = env.ringfence(fixture, 60, &words)?;
                    ensure!(!output.hung(), "it hangs");
                    ensure!(!output.stdout.contains(SECRET), "{}", output.stdout);
                }
                Ok(())
            };
            let result = runs();
            fs::write(fixture.folder.with_file_name("stop"), "")?;
            let _ = swapping.join();
            result
        })
    })
}

/// Root looks at a folder of somebody else, which leads to what is root's.
#[test]
fn root_sees_only_git_directories_of_the_folders_owner() -> Result<()> {
    if !is_root() {
        println!(
            "SKIPPED root_sees_only_git_directories_of_the_folders_owner: the tests do not run as root"
        );
        return Ok(());
    }
    in_each_mode("owners", |env, fixture| {
        if fixture.mode == Mode::Rootless {
            return Ok(());
        }
        make_other(env, fixture)?;
        let folder = &fixture.folder;
        let above = folder.with_file_name("");
        let owner = format!("{NOBODY}:{NOBODY}");
        // An entry of a worktree that is gone: somebody else has a folder at that path now.
        let make = format!(
            "git -C other worktree add -q --detach ../gone; rm -rf gone; mkdir gone; \
             echo \"gitdir: $PWD/other/.git/worktrees/gone\" > gone/.git; chown -R {owner} gone folder"
        );
        env.as_owner(fixture, &above, &["sh", "-euc", &make])?;
        let result = search(env, fixture, &above.join("gone"), "true")?;
        ensure!(
            has_note(&result, &["belongs to uid 0"]),
            "{}",
            result["notes"]
        );
        // What is all theirs can be worked with.
        let result = env
            .call(fixture)
            .folder(folder)
            .run(&[], "git log --format=%s")?;
        ensure!(said(&result).contains("first"), "{result}");
        fs::remove_file(folder.join(".git/index"))?;
        // A file under a second name, which they could not read by its first.
        let make = "chmod 600 ../other/s; rm -f .git/info/exclude; ln ../other/s .git/info/exclude";
        let result = search(env, fixture, folder, make)?;
        ensure!(
            has_note(&result, &["info/exclude", "uid 0"]),
            "{}",
            result["notes"]
        );
        Ok(())
    })
}

/// Repositories deep in the folder, with credentials in their settings, and an object of what is hidden.
const NESTED: &str = "
    for at in src/a/b/c src/a/vendored/lib; do
        git init -q -b main $at && git -C $at config http.extraHeader canary-of-another-repository
        echo canary-of-another-repository > $at/key.pem && git -C $at add -f key.pem
        git -C $at -c user.name=a -c user.email=a@b commit -qm x && rm $at/key.pem
    done
    git init -q --bare src/a/kept && git -C src/a/kept config http.extraHeader canary-of-another-repository
    mkdir -p src/a/sub && echo 'gitdir: ../kept' > src/a/sub/.git && mkdir -p shut/x/.git
    echo canary-of-another-repository > shut/x/.git/config && chmod 000 shut
    mkdir barred && echo canary-of-another-repository > barred/.git && chmod 000 barred";

#[test]
fn nested_repositories_are_hidden_at_any_depth() -> Result<()> {
    in_each_mode("nested", |env, fixture| {
        env.as_owner(fixture, &fixture.folder, &["sh", "-euc", NESTED])?;
        let before = fingerprint(&fixture.folder)?;
        let shell = format!(
            "chmod -R u+rwX . 2>/dev/null; find . -mindepth 2 -name .git; ls src/a; {SEARCH}; \
             git init -q src/a/b/c && echo x > src/a/b/c/x && git -C src/a/b/c add -f x"
        );
        let result = env.run_with(fixture, &["--hide", "*.pem"], &shell)?;
        expect(&result, "exit_code", 0)?;
        ensure!(said(&result) == "b\nsub\nvendored\n", "{}", said(&result));
        for name in ["`src/a/b/c`", "`src/a/vendored/lib`", "`src/a/kept`"] {
            ensure!(
                has_note(&result, &[name, "hidden"]),
                "{name}: {}",
                result["notes"]
            );
        }
        // What the agent made there is not hidden from it, and its `.git` crosses as little as any.
        let files = result["changed_files"].to_string();
        ensure!(!files.contains(".git/"), "{files}");
        ensure!(
            fingerprint(&fixture.folder)? == before,
            "the folder changed"
        );
        env.as_owner(
            fixture,
            &fixture.folder,
            &["chmod", "755", "shut", "barred"],
        )?;
        Ok(())
    })
}
