//! A folder cannot lead to another repository of the host: whatever of its `.git` leads out of it takes
//! git away inside, with a note that names the path.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use ringfence_engine::git::{self, Found, UserFiles};

use crate::shared::git_bench as bench;
use bench::Bench;

/// A repository of somebody else's on this host, and the folder `r` with one of its own.
const SEED: &str = "git init -q victim; cd victim; echo SECRET > s; git add s; git commit -qm SECRET
    echo SECRET-pattern > .git/info/exclude; git branch SECRET-branch; git pack-refs --all; git gc -q
    cd ..; git init -q r; cd r; echo a > a; git add a; git commit -qm a; V=$PWD/../victim;";

/// What a folder of this shape shows inside: nothing of git, and a note with this path.
fn refused(make: &str, named: &str) {
    let bench = Bench::new();
    bench.sh(&format!("{SEED} {make}"));
    let started = Instant::now();
    let user = UserFiles::at(Some(bench.path("home")), None);
    let folder = bench.path("outside/r");
    let refusal = match git::find_for(&folder, user).unwrap() {
        Found::Refused(refusal) => refusal.to_string(),
        Found::Nothing => panic!("nothing found: {make}"),
        Found::Repository(repo) => {
            let private = git::build_private(&repo, &bench.path("mask"), "/in").unwrap();
            assert!(!private.present, "{make}");
            assert!(private.object_mounts.is_empty(), "{make}: {private:?}");
            private.notes.join("\n")
        }
    };
    assert!(refusal.contains(named), "{make}: {refusal}");
    assert!(started.elapsed() < Duration::from_secs(20), "{make}");
    assert_eq!(bench.leaks("SECRET"), [""; 0], "{make}");
}

#[test]
fn git_directory_elsewhere_is_refused() {
    for (make, named) in [
        ("rm -rf .git; echo \"gitdir: $V/.git\" > .git", ".git"),
        ("rm -rf .git; ln -s $V/.git .git", ".git"),
        ("rm -rf .git; ln -s ../victim/.git .git", ".git"),
        ("rm -rf .git; ln -s $V/.git x; echo 'gitdir: x' > .git", ".git"),
        ("rm -rf .git/objects .git/refs; echo $V/.git > .git/commondir", ".git/commondir"),
        ("echo ../../victim/.git > .git/commondir", ".git/commondir"),
        // A directory that points back and has its objects elsewhere is no worktree as git makes it.
        (
            "mkdir -p ../e/worktrees/x; mv .git/HEAD .git/index ../e/worktrees/x; rm -rf .git
             echo \"gitdir: $PWD/../e/worktrees/x\" > .git; echo $V/.git > ../e/worktrees/x/commondir
             echo $PWD/.git > ../e/worktrees/x/gitdir",
            "commondir",
        ),
        // The entry of another work tree.
        (
            "git -C $V worktree add -q --detach ../w; rm -rf .git; cp ../w/.git .git",
            ".git",
        ),
        // One whose settings name another work tree.
        ("git config core.worktree $V", ".git"),
        (
            "cp -r $V/.git ../m; git -C ../m config core.worktree $V; rm -rf .git
             echo 'gitdir: ../m' > .git",
            "is the git directory of",
        ),
    ] {
        refused(make, named);
    }
}

#[test]
fn link_in_a_git_directory_is_refused() {
    for name in [
        "objects",
        "objects/info",
        "objects/pack",
        "refs",
        "refs/heads",
        "info",
        "info/exclude",
        "packed-refs",
        "HEAD",
        "index",
        "config",
        "logs",
    ] {
        let link = format!(
            "mkdir -p .git/info; touch $V/.git/index; rm -rf .git/{name}; ln -s $V/.git/{name} .git/{name}"
        );
        refused(&link, &format!(".git/{name}"));
    }
    for name in [
        "info/attributes",
        "info/sparse-checkout",
        "info/grafts",
        "shallow",
        "commondir",
    ] {
        let link = format!("mkdir -p .git/info; ln -s /etc/passwd .git/{name}");
        refused(&link, &format!(".git/{name}"));
    }
    // Deeper, where the host's own git would follow it.
    for make in [
        "for p in $V/.git/objects/pack/*; do ln -s $p .git/objects/pack/; done",
        "rm -rf .git/objects/0a; ln -s $V/.git/objects/pack .git/objects/0a",
        "ln -s $V/.git/index .git/sharedindex.0000000000000000000000000000000000000000",
        "mkdir -p .git/objects/0a; ln -s $V/s .git/objects/0a/00",
    ] {
        refused(make, ".git/");
    }
}

#[test]
fn special_file_in_a_git_directory_is_refused_at_once() {
    for name in [
        "HEAD",
        "index",
        "config",
        "packed-refs",
        "shallow",
        "info/exclude",
        "info/attributes",
        "objects/info/alternates",
        "MERGE_HEAD",
        "sharedindex.0000000000000000000000000000000000000000",
    ] {
        refused(
            &format!("rm -rf .git/{name}; mkdir -p .git/info; mkfifo .git/{name}"),
            name,
        );
        refused(
            &format!("rm -rf .git/{name}; mkdir -p .git/info .git/{name}/x"),
            name,
        );
    }
    refused("rm -rf .git; mkfifo .git", ".git");
    refused("mkfifo .git/objects/pack/x.pack", "x.pack");
}

#[test]
fn objects_borrowed_from_elsewhere_are_refused() {
    for make in [
        "echo $V/.git/objects > .git/objects/info/alternates",
        "echo ../../../victim/.git/objects > .git/objects/info/alternates",
        "echo \"\\\"$V/.git/objects\\\"\" > .git/objects/info/alternates",
        "ln -s $V/.git v; echo ../../v/objects > .git/objects/info/alternates",
        "cp -r .git/objects o; echo ../../o > .git/objects/info/alternates; echo $V/.git/objects > o/info/alternates",
        "echo /nowhere > .git/objects/info/alternates",
        "cd ..; rm -rf r; git clone -q --shared victim r",
        "cd ..; rm -rf r; git clone -q --reference victim file://$PWD/victim r",
    ] {
        refused(make, "alternates");
    }
}

#[test]
fn sub_folder_of_a_repository_that_leads_out_has_no_git() {
    for make in [
        "echo $V/.git > .git/commondir",
        "echo $V/.git/objects > .git/objects/info/alternates",
        "for p in $V/.git/objects/pack/*; do ln -s $p .git/objects/pack/; done",
    ] {
        let bench = Bench::new();
        // The victim has the same sub-folder, and the folder's `HEAD` names its commit.
        bench.sh(&format!(
            "{SEED} mkdir $V/d; echo SECRET > $V/d/s; git -C $V add d; git -C $V commit -qm SECRET
             git -C $V gc -q; mkdir d; git -C $V rev-parse HEAD > .git/HEAD; {make}"
        ));
        let user = UserFiles::at(Some(bench.path("home")), None);
        let found = git::find_for(&bench.path("outside/r/d"), user).unwrap();
        if let Found::Repository(repo) = found {
            let private = git::build_private(&repo, &bench.path("mask"), "/in").unwrap();
            assert!(!private.present, "{make}");
            assert!(!private.notes.is_empty(), "{make}");
        }
        assert_eq!(bench.leaks("SECRET"), [""; 0], "{make}");
        assert!(!bench.path("mask/.git/objects/pack").exists(), "{make}");
    }
}

#[test]
fn git_directories_that_point_back_or_lie_below_are_used() {
    for make in [
        "mv .git .store; echo 'gitdir: .store' > .git",
        "mv .git .store; echo 'gitdir: ./.store' > .git; git config core.worktree ..",
        "mv .git .store; ln -s .store .git",
        "git worktree add -q ../w; cd ..; rm -rf r; mv w r; git -C r rev-parse 2> /dev/null || true
         mkdir x; git init -q x; cd x; cp ../victim/s .; git add s; git commit -qm a; rm -rf ../r
         git worktree add -q ../r",
        "cd ..; git init -q m; cd m; git submodule --quiet add ../r lib; cd ..; rm -rf r
         mv m/lib r; echo 'gitdir: ../m/.git/modules/lib' > r/.git
         git config -f m/.git/modules/lib/config core.worktree ../../../../r",
        "git worktree add -q x; cp -r .git .store; rm -rf x",
    ] {
        let bench = Bench::new();
        bench.sh(&format!("{SEED} {make}"));
        let private = bench.build("r");
        assert!(private.present, "{make}: {:?}", private.notes);
        let said = bench.inside(
            "r",
            &private,
            "git log --format=%s; git status --porcelain=v1",
        );
        assert!(said.starts_with("a\n"), "{make}: {said}");
    }
}

#[test]
fn submodule_that_leads_out_is_hidden_and_told() {
    for make in [
        "rm -rf lib/.git; echo \"gitdir: $V/.git\" > lib/.git",
        "rm -rf lib/.git; ln -s $V/.git lib/.git",
        "echo $V/.git > .git/modules/lib/commondir",
        "echo $V/.git/objects > .git/modules/lib/objects/info/alternates",
        "rm -rf .git/modules/lib/objects; ln -s $V/.git/objects .git/modules/lib/objects",
        "mv .git/modules/lib ../m; ln -s $PWD/../m .git/modules/lib",
    ] {
        let bench = Bench::new();
        bench.sh(&format!(
            "{SEED} cd ..; git init -q inner; echo i > inner/i; git -C inner add i
             git -C inner commit -qm i; cd r; git submodule --quiet add ../inner lib
             git commit -qm lib; {make}"
        ));
        let private = bench.build("r");
        assert!(private.present, "{make}: {:?}", private.notes);
        assert_eq!(private.object_mounts.len(), 1, "{make}");
        let said = bench.inside("r", &private, "ls -A lib; git log -1 --format=%s");
        assert_eq!(said, "i\nlib\n", "{make}");
        let told = |word: &str| private.notes.iter().any(|note| note.contains(word));
        assert!(told("submodule `lib`"), "{make}: {:?}", private.notes);
        assert!(
            make.contains("ln -s $V/.git lib") || told("victim") || told("/m`") || told("link"),
            "{make}: {:?}",
            private.notes
        );
        assert_eq!(bench.leaks("SECRET"), [""; 0], "{make}");
    }
}

/// As root only: directories and files of other users.
#[test]
fn git_directory_of_another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED git_directory_of_another_user_is_refused: only root can give files away");
        return;
    }
    for (make, named) in [
        ("chown -R 1234 .git", Some("uid 1234")),
        ("chown -R 1234 . ; chown -R 0 .git", Some("uid 0")),
        ("chown 1234 .", Some("uid 0")),
        ("chown -R 1234 .git/objects", Some(".git/objects")),
        // Everything is the owner's, and root may look.
        ("chown -R 1234 .", None),
        // A file with one name was put there by who may write there.
        (
            "chown -R 1234 .; chown 0 .git/index .git/HEAD .git/objects/*/*",
            None,
        ),
        (
            "chown -R 1234 .; rm -f .git/info/exclude; mkdir -p .git/info; ln ../victim/s .git/info/exclude",
            Some("info/exclude"),
        ),
        (
            "chown -R 1234 .; ln ../victim/s .git/objects/pack/x.pack",
            Some("pack/x.pack"),
        ),
        // The way by a worktree: what points back belongs to somebody else.
        (
            "git -C $V worktree add -q --detach ../w; rm -rf ../r; mv ../w ../r; cd ../r
             echo $PWD/.git > $V/.git/worktrees/w/gitdir; chown -R 1234 .",
            Some("uid 0"),
        ),
    ] {
        let bench = Bench::new();
        bench.sh(&format!("{SEED} {make}"));
        match named {
            None => {
                let private = bench.build("r");
                assert!(private.present, "{make}: {:?}", private.notes);
            }
            Some(named) => {
                let user = UserFiles::at(None, None);
                let folder: PathBuf = bench.path("outside/r");
                let said = match git::find_for(&folder, user).unwrap() {
                    Found::Refused(refusal) => refusal.to_string(),
                    Found::Nothing => panic!("{make}"),
                    Found::Repository(repo) => {
                        let mask = bench.path("mask");
                        let private = git::build_private(&repo, &mask, "/in").unwrap();
                        assert!(!private.present, "{make}");
                        private.notes.join("\n")
                    }
                };
                assert!(said.contains(named), "{make}: {said}");
            }
        }
    }
}
