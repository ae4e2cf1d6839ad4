//! A folder cannot lead to another repository of the host: whatever of its `.git` leads out of it takes
//! git away inside, with a note that names the path.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::path::PathBuf;

use ringfence_engine::git::{self, Found, UserFiles};

use crate::shared::git_bench as bench;
use bench::Bench;

/// A repository of somebody else's on this host, and the folder `r` with one of its own.
const SEED: &str = "git init -q victim; cd victim; echo SECRET > s; git add s; git commit -qm SECRET
    echo SECRET-pattern > .git/info/exclude; git branch SECRET-branch; git pack-refs --all; git gc -q
    cd ..; git init -q r; cd r; echo a > a; git add a; git commit -qm a; V=$PWD/../victim;";

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
        // Everything is the owner's, and root may look.
        ("chown -R 1234 .", None),
        // A file with one name was put there by who may write there.
        (
            "chown -R 1234 .; chown 0 .git/index .git/HEAD .git/objects/*/*",
            None,
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
