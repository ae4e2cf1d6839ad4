//! Sub-folders of a repository, the one case that the git program is run for.

#![allow(clippy::unwrap_used)]

use crate::shared::git_bench as bench;

use bench::Bench;

const SEED: &str = "git init -q r; cd r; mkdir -p p/q other; echo 1 > p/1; echo 2 > p/q/2;
    echo o > other/o; git add .; git commit -qm first;";

#[test]
fn nothing_that_the_repository_configures_runs() {
    let bench = Bench::new();
    bench.sh(&format!(
        "{SEED} ran=\"touch $PWD/ran\"
         git config core.fsmonitor \"$ran\"; git config filter.x.clean \"$ran; cat\"
         git config alias.commit-tree \"!$ran\"; git config gpg.program \"$ran\"
         git config commit.gpgSign true; git config core.hooksPath .git/hooks
         echo '* filter=x' > .git/info/attributes
         for h in reference-transaction post-index-change; do
           printf '#!/bin/sh\\n%s\\n' \"$ran\" > .git/hooks/$h; chmod +x .git/hooks/$h; done"
    ));
    let before = bench.snapshot(&bench.path("outside"));
    let private = bench.build("r/p");
    assert!(private.present, "{:?}", private.notes);
    assert!(
        bench.snapshot(&bench.path("outside")) == before,
        "something ran or was written"
    );
    let said = bench.inside(
        "r/p",
        &private,
        "git status --porcelain=v1; git log --format=%s%an",
    );
    assert_eq!(said, "Base of the workspaceagent\n");
}

#[test]
fn a_sub_folder_of_a_worktree_with_a_detached_head() {
    let bench = Bench::new();
    bench.sh(&format!(
        "{SEED} git worktree add -q --detach ../w; echo d > ../w/p/1"
    ));
    let private = bench.build("w/p/q");
    let said = bench.inside("w/p/q", &private, "git status --porcelain=v1; git ls-files");
    assert_eq!(said, "2\n");
    let bench2 = Bench::new();
    bench2.sh(&format!(
        "{SEED} git worktree add -q --detach ../w; echo d > ../w/p/1"
    ));
    let private = bench2.build("w/p");
    assert_eq!(
        bench2.inside("w/p", &private, "git status --porcelain=v1"),
        " M 1\n"
    );
}

#[test]
fn a_sub_folder_with_a_submodule() {
    let bench = Bench::new();
    bench.sh(&format!(
        "git init -q lib; echo l > lib/l; git -C lib add .; git -C lib commit -qm l
         {SEED} git submodule --quiet add ../lib p/lib; git commit -qm sub; echo d > p/lib/l"
    ));
    let private = bench.build("r/p");
    let said = bench.inside(
        "r/p",
        &private,
        "git status --porcelain=v1; git -C lib status --porcelain=v1; git -C lib log --format=%s",
    );
    assert_eq!(said, " M lib\n M l\nl\n");
}

#[test]
fn sha256_version_4_and_a_split_index() {
    let bench = Bench::new();
    bench.sh(&format!(
        "{} git update-index --index-version 4; git update-index --split-index;
         echo s > p/staged; git add p/staged; git update-index --skip-worktree p/1; rm p/1",
        SEED.replace("git init -q", "git init -q --object-format=sha256")
    ));
    let private = bench.build("r/p");
    let said = bench.inside("r/p", &private, "git status --porcelain=v1; git fsck 2>&1");
    assert_eq!(said.lines().next(), Some("A  staged"));
}

#[test]
fn a_sparse_index_falls_back_to_the_commit() {
    let bench = Bench::new();
    bench.sh(&format!(
        "{SEED} git sparse-checkout set --cone --sparse-index p/nothing"
    ));
    std::fs::create_dir_all(bench.path("outside/r/p")).unwrap();
    let private = bench.build("r/p");
    assert!(private.present, "{:?}", private.notes);
    assert_eq!(bench.inside("r/p", &private, "git ls-files"), "1\nq/2\n");
}

#[test]
fn a_broken_repository_gives_a_note_and_no_git() {
    let bench = Bench::new();
    bench.sh(&format!(
        "{SEED} t=$(git rev-parse HEAD^{{tree}}); rm -f .git/objects/$(echo $t | cut -c1-2)/$(echo $t | cut -c3-)"
    ));
    let private = bench.build("r/p");
    assert!(!private.present);
    assert!(
        private.notes[0].contains("git program"),
        "{:?}",
        private.notes
    );
    assert_eq!(bench.inside("r/p", &private, "ls -A"), "1\nq\n");
}
