//! What a repository must not do to us: run programs, leak secrets, mount foreign folders, hang.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs;
use std::time::{Duration, Instant};

use ringfence_engine::git::{self, UserFiles};

use crate::shared::git_bench as bench;
use bench::Bench;

const SEED: &str = "git init -q r; cd r; echo a > a; git add a; git commit -qm a;";

#[test]
fn no_setting_runs_and_no_secret_enters() {
    let bench = Bench::new();
    bench.sh(&format!(
        "{SEED} echo '[core] sshCommand = SECRET0' > ../included
         echo SECRET1 > .git/hooks/post-index-change; chmod +x .git/hooks/post-index-change
         echo '*.f filter=x diff=x' > .git/info/attributes
         cat >> .git/config <<'END'
[core]
    fsmonitor = touch SECRET2
    hooksPath = /SECRET3
    sshCommand = SECRET4
    worktree = .. # the folder itself
    excludesFile = {home}/key
    autocrlf = \"false # SECRET5\"
    eol = SECRET6
[include]
    path = ../../included
[includeIf \"gitdir:/\"]
    path = ../../included
[filter \"x\"]
    clean = SECRET7
    process = SECRET8
[diff \"x\"]
    textconv = SECRET9
    command = SECRET10
[alias]
    status = !SECRET11
[credential]
    helper = !SECRET12
[http \"https://h\"]
    extraHeader = Authorization: SECRET13
[url \"https://SECRET14@h/\"]
    insteadOf = https://h/
[gpg]
    program = SECRET15
[remote \"origin\"]
    url = https://user:SECRET16@h/x.git
    url = https://h/x?token=SECRET17
    url = ext::sh -c SECRET18
    pushurl = https://SECRET19@h/x
    fetch = +refs/heads/*:refs/remotes/origin/*
    fetch = SECRET20
    uploadpack = SECRET21
    promisor = true
    partialclonefilter = SECRET22
[remote \"https://SECRET23@h\"]
    fetch = +refs/heads/*:refs/remotes/x/*
[branch \"main\"]
    remote = https://SECRET24@h/y
    remote = origin
    merge = refs/heads/main
    mergeOptions = SECRET25
[extensions]
    partialClone = SECRET26
[user]
    name = SECRET27
    signingKey = SECRET28
END",
        home = bench.path("home").display()
    ));
    fs::write(bench.path("home/key"), "SECRET29\n").unwrap();
    fs::write(
        bench.path("home/.gitconfig"),
        "[core]\nsshCommand=SECRET30\neol=SECRET31\n",
    )
    .unwrap();
    let private = bench.build("r");
    assert!(private.present, "{:?}", private.notes);
    assert_eq!(bench.leaks("SECRET"), [""; 0]);
    let said = bench.inside(
        "r",
        &private,
        "git status --porcelain=v1; echo y > y.f; git add .; git commit -qm y; git diff HEAD~;
         git config --get-all remote.origin.url; git config --get-all remote.origin.fetch;
         git config branch.main.remote; git config branch.main.merge; git config user.name;
         test -z \"$(ls .git/hooks 2> /dev/null)\"",
    );
    let tail = said.split_once("+y\n").expect("a diff").1;
    assert_eq!(
        tail,
        "https://h/x.git\nhttps://h/x\n+refs/heads/*:refs/remotes/origin/*\norigin\n\
         refs/heads/main\nagent\n"
    );
    assert!(
        private.notes.iter().any(|note| note.contains("`x`")),
        "{:?}",
        private.notes
    );
    assert!(
        private.notes.iter().any(|note| note.contains("partial")),
        "{:?}",
        private.notes
    );
}

#[test]
fn fifos_and_links_in_place_of_files_are_refused_at_once() {
    for name in [
        "HEAD",
        "index",
        "config",
        "packed-refs",
        "shallow",
        "objects/info/alternates",
    ] {
        for kind in ["mkfifo", "ln -s /etc/passwd", "ln -s /dev/zero"] {
            let bench = Bench::new();
            bench.sh(&format!("{SEED} rm -f .git/{name}; {kind} .git/{name}"));
            let started = Instant::now();
            let user = UserFiles::at(Some(bench.path("home")), None);
            let found = git::discover_for(&bench.path("outside/r"), user);
            let refused = match &found {
                Ok(Some(repo)) => match git::build_private(repo, &bench.path("mask"), "/in") {
                    Ok(private) => !private.present,
                    Err(_) => true,
                },
                Ok(None) | Err(_) => true,
            };
            assert!(refused, "{kind} {name}");
            assert!(started.elapsed() < Duration::from_secs(60));
        }
    }
}

#[test]
fn a_gitfile_of_a_submodule_cannot_name_another_repository() {
    let bench = Bench::new();
    bench.sh(
        "git init -q private; echo p > private/p; git -C private add .; git -C private commit -qm p
         git init -q r; cd r; git init -q lib; echo l > lib/l; git -C lib add l;
         git -C lib commit -qm l; git -c advice.addEmbeddedRepo=false add lib; git commit -qm lib
         rm -rf lib/.git; echo 'gitdir: ../../private/.git' > lib/.git",
    );
    let private = bench.build("r");
    assert_eq!(
        private.object_mounts.len(),
        1,
        "{:?}",
        private.object_mounts
    );
    assert_eq!(bench.inside("r", &private, "ls -A lib"), "l\n");
    assert!(
        private.notes.iter().any(|note| note.contains("`lib`")),
        "{:?}",
        private.notes
    );
}

#[test]
fn nested_repositories_are_hidden() {
    let bench = Bench::new();
    bench.sh(&format!(
        "{SEED} git init -q nested; echo n > nested/n; mkdir -p t/u; echo t > t/u/t; git add t;
         git init -q t/u; git worktree add -q --detach deep/down/tree; git commit -qm t"
    ));
    let private = bench.build("r");
    assert_eq!(
        bench.inside(
            "r",
            &private,
            "find . -name .git; git status --porcelain=v1; ls -A nested"
        ),
        "./.git\n?? deep/\n?? nested/\nn\n"
    );
    assert_eq!(private.notes.len(), 3, "{:?}", private.notes);
}

#[test]
fn without_a_repository_nothing_of_git_shows() {
    let bench = Bench::new();
    // Bare, broken, and kept in the folder under another name.
    for (make, left) in [
        (
            "git init -q --bare .bare; echo 'gitdir: ./.bare' > .git; echo x > x",
            "x\n",
        ),
        ("echo 'gitdir: /nowhere' > .git; echo x > x", "x\n"),
        (
            "git init -q one; git init -q two; echo x > one/x",
            "one\ntwo\nx\n",
        ),
        ("mkdir .git; echo x > x", "x\n"),
    ] {
        let bench2 = Bench::new();
        bench2.sh(make);
        assert!(bench2.discover("").is_none(), "{make}");
        git::hide_git(&bench2.path("outside"), &bench2.path("mask")).unwrap();
        let said = bench2.inside(
            "",
            &Default::default(),
            "ls -A; ls -A one 2> /dev/null || true",
        );
        assert_eq!(said, left, "{make}");
    }
    assert_eq!(
        git::hide_git(&bench.path("outside"), &bench.path("mask")).unwrap(),
        [""; 0]
    );
}

#[test]
fn a_separate_git_directory_within_the_folder_is_hidden() {
    let bench = Bench::new();
    bench.sh("mkdir r; cd r; git init -q --separate-git-dir=store .; echo a > a; git add a; git commit -qm a");
    let private = bench.build("r");
    assert_eq!(
        bench.inside("r", &private, "ls -A; git log --format=%s"),
        ".git\na\na\n"
    );
}

#[test]
fn ignore_file_that_a_repository_names_is_not_read() {
    use std::os::fd::AsFd as _;
    let bench = Bench::new();
    bench.sh(&format!(
        "echo SECRET > s; {SEED} git config core.excludesFile $PWD/../s"
    ));
    let repo = bench.discover("r").unwrap();
    let open = |name: &str| fs::File::open(bench.path(name)).unwrap();
    let (upper, base) = (open("upper"), open("outside/r"));
    let mut rules = git::IgnoreRules::load(Some(&repo), upper.as_fd(), base.as_fd()).unwrap();
    assert!(!rules.is_ignored(b"SECRET", false));
}
