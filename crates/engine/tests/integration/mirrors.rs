//! Mirrors with the real git: what is fetched how often, what stays, what never lands on the disk.

#![allow(clippy::unwrap_used, clippy::print_stdout, dead_code)]

use std::process::Command;
use std::sync::Barrier;

use ringfence_engine::error::{Error, ErrorKind};
use ringfence_engine::mirror::{self, MirrorError, Silent};
use ringfence_engine::source::Dial;
use ringfence_engine::store::{SourceState, Store};
use ringfence_engine::{base, source};

use crate::shared::mirror_bench as bench;
use bench::{Bench, Lines, Server, inside};

const SEED: &str = "git init -qb main app; cd app; echo one > a; git add a; git commit -qm one;";

#[test]
fn a_path_a_subfolder_and_a_file_url_are_fetched() {
    let bench = Bench::new();
    let head = bench.sh(&format!(
        "{SEED} mkdir sub; git checkout -qb other; echo two > b; git add b; git commit -qm two
         git tag -am t v1; git checkout -q main; git rev-parse HEAD"
    ));
    let top = bench.local("app", None);
    assert_eq!(top.commit, head);
    assert_eq!(top.branch.as_deref(), Some("main"));
    let sub = bench.local("app/sub", Some("v1"));
    assert_eq!(sub.mirror, top.mirror);
    assert_eq!(sub.branch, None);
    assert_ne!(sub.commit, head);
    let other = bench.local("app", Some("other"));
    assert_eq!(other.branch.as_deref(), Some("other"));
    assert_eq!(other.commit, sub.commit);
    assert_eq!(bench.local("app", Some(&head[..9])).commit, head);
    let url = format!("file://{}", bench.path("app").display());
    let by_url = bench.ensure(&url, None).unwrap();
    assert_eq!(by_url.commit, head);
    assert_ne!(by_url.mirror.id, top.mirror.id);
    // What happens later is fetched.
    let later = bench.sh("cd app; git commit -q --allow-empty -m three; git rev-parse HEAD");
    assert_eq!(bench.local("app", None).commit, later);
    // Detached and linked.
    let tree =
        bench.sh("cd app; git worktree add -q --detach ../tree v1; cd ../tree; git rev-parse HEAD");
    let tree_resolved = bench.local("tree", None);
    assert_eq!((tree_resolved.commit, tree_resolved.branch), (tree, None));
    for (rev, kind) in [
        ("nothing", ErrorKind::NotFound),
        ("-x", ErrorKind::Invalid),
        (
            "0123456789012345678901234567890123456789",
            ErrorKind::NotFound,
        ),
    ] {
        let error = bench.ensure(&url, Some(rev)).unwrap_err();
        assert_eq!(Error::from(error).kind(), kind, "{rev}");
    }
}

#[test]
fn what_is_no_repository_or_empty_is_named() {
    let bench = Bench::new();
    bench.sh("mkdir plain; git init -q empty; git init -q --bare bare");
    for (name, kind) in [
        ("plain", ErrorKind::NotFound),
        ("empty", ErrorKind::Invalid),
        ("bare", ErrorKind::Invalid),
    ] {
        let text = bench.path(name);
        let error = bench.ensure(text.to_str().unwrap(), None).unwrap_err();
        assert_eq!(Error::from(error).kind(), kind, "{name}");
    }
    // A commit comes later, and the mirror with it.
    bench.sh("cd empty; git commit -q --allow-empty -m x");
    bench.local("empty", None);
    let error = bench.ensure("http://127.0.0.1:1/x", None).unwrap_err();
    assert!(matches!(error, MirrorError::Fetch { .. }), "{error:?}");
    let error = Error::from(error);
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.hint().is_some());
}

#[test]
fn ten_requests_at_once_are_one_clone() {
    let bench = Bench::new();
    bench.sh(&format!("mkdir srv; cd srv; {SEED}"));
    let server = Server::start(&bench.path("srv"), "");
    let url = server.url("", "app/.git");
    let barrier = Barrier::new(10);
    let commits: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..10)
            .map(|_| {
                scope.spawn(|| {
                    let store = Store::open(&bench.home).unwrap();
                    let typed = source::parse(&url).unwrap();
                    let mut lines = Lines::default();
                    barrier.wait();
                    let resolved =
                        mirror::ensure(&bench.home, &store, &typed, None, &mut lines).unwrap();
                    let base = base::commit(&bench.home, &store, &resolved, &mut lines).unwrap();
                    assert_eq!(std::fs::read(base.workspace().join("a")).unwrap(), b"one\n");
                    (resolved.commit, lines.0)
                })
            })
            .collect();
        let results: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        let said: Vec<_> = results.iter().flat_map(|(_, lines)| lines).collect();
        let count = |word: &str| said.iter().filter(|line| line.contains(word)).count();
        assert_eq!(count("cloning "), 1, "{said:?}");
        assert_eq!(count("fetching "), 0, "{said:?}");
        assert!(count("waiting for another clone") > 0, "{said:?}");
        results.into_iter().map(|(commit, _)| commit).collect()
    });
    assert!(commits.iter().all(|commit| *commit == commits[0]));
    // One that asks for `HEAD`, one that fetches.
    assert_eq!(server.conversations(), 2);
    assert_eq!(bench.store.bases().unwrap().len(), 1);
    // A commit that is there needs no network; a branch is fetched.
    bench.ensure(&url, Some(&commits[0])).unwrap();
    assert_eq!(server.conversations(), 2);
    bench.ensure(&url, Some("main")).unwrap();
    assert_eq!(server.conversations(), 3);
}

#[test]
fn a_token_reaches_the_server_and_nothing_else() {
    let bench = Bench::new();
    let head = bench.sh(&format!("mkdir srv; cd srv; {SEED} git rev-parse HEAD"));
    let server = Server::start(&bench.path("srv"), "me:sesame-token");
    let resolved = bench
        .ensure(&server.url("me:sesame%2Dtoken@", "app/.git"), None)
        .unwrap();
    assert_eq!(resolved.commit, head);
    let base = base::commit(&bench.home, &bench.store, &resolved, &mut Silent).unwrap();
    let url = inside(&base, &["config", "remote.origin.url"]);
    assert_eq!(url, server.url("", "app/.git"));
    // The wrong one is refused, and neither is repeated.
    let other = server.url("me:wrong-token@", "app/.git");
    let resolved = bench.ensure(&other, None).unwrap();
    assert!(
        resolved.notes[0].starts_with("remote not reachable"),
        "{:?}",
        resolved.notes
    );
    let error = bench.ensure(&other, Some("absent")).unwrap_err();
    assert!(matches!(error, MirrorError::Fetch { .. }), "{error:?}");
    assert!(
        !format!("{error:?} {error}").contains("-token"),
        "{error:?}"
    );
    let error = bench
        .ensure(&server.url("sesame-token@", "other"), None)
        .unwrap_err();
    assert!(
        !format!("{error:?} {error}").contains("-token"),
        "{error:?}"
    );
    drop(bench.store);
    let found = Command::new("grep")
        .args(["-rlaE", "sesame|wrong-token"])
        .arg(bench.home.root())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "");
}

#[test]
fn what_was_fetched_outlives_its_remote() {
    let bench = Bench::new();
    let head = bench.sh(&format!("{SEED} git rev-parse HEAD"));
    let url = format!("file://{}", bench.path("app").display());
    bench.ensure(&url, None).unwrap();
    let by_path = source::parse(bench.path("app").to_str().unwrap()).unwrap();
    mirror::ensure(&bench.home, &bench.store, &by_path, None, &mut Silent).unwrap();
    bench.sh("mv app gone");
    assert!(bench.ensure(&url, Some(&head)).unwrap().notes.is_empty());
    for rev in [None, Some("main")] {
        let resolved = bench.ensure(&url, rev).unwrap();
        assert_eq!(resolved.commit, head);
        assert!(
            resolved.notes[0].contains("using what was fetched at 2"),
            "{:?}",
            resolved.notes
        );
        base::commit(&bench.home, &bench.store, &resolved, &mut Silent).unwrap();
        let resolved =
            mirror::ensure(&bench.home, &bench.store, &by_path, rev, &mut Silent).unwrap();
        assert_eq!((resolved.commit, resolved.notes.len()), (head.clone(), 1));
    }
    assert!(bench.ensure(&url, Some("absent")).is_err());
}

#[test]
fn a_killed_clone_is_gone_on_with() {
    let bench = Bench::new();
    let head = bench.sh(&format!("{SEED} git rev-parse HEAD"));
    let text = bench.path("app");
    let typed = source::parse(text.to_str().unwrap()).unwrap();
    let id = mirror::id_of(&typed.source);
    // Killed between `init` and the end of the fetch.
    bench.store.insert_mirror(id, &typed.source.text()).unwrap();
    let path = bench.home.mirror(id);
    bench.sh(&format!("git init -q --bare {}", path.display()));
    std::fs::write(path.join("objects/kept"), "").unwrap();
    let resolved = bench.ensure(text.to_str().unwrap(), None).unwrap();
    assert_eq!(resolved.commit, head);
    assert!(path.join("objects/kept").exists(), "what was there stays");
    let record = bench.store.mirror(id).unwrap().unwrap();
    assert_eq!(record.state, SourceState::Ready);
    // A directory that is lost is made again.
    std::fs::remove_dir_all(&path).unwrap();
    assert_eq!(bench.local("app", Some(&head)).commit, head);
}

#[test]
fn a_commit_on_no_branch_is_fetched_by_its_id() {
    let bench = Bench::new();
    let ids = bench.sh(&format!(
        "{SEED} git config uploadpack.allowAnySHA1InWant true
         git checkout -q --detach; git commit -q --allow-empty -m pull
         git update-ref refs/pull/1/head HEAD; git rev-parse HEAD; git checkout -q main"
    ));
    let url = format!("file://{}", bench.path("app").display());
    bench.ensure(&url, None).unwrap();
    let resolved = bench.ensure(&url, Some(&ids)).unwrap();
    assert_eq!(resolved.commit, ids);
    let resolved = bench.ensure(&url, Some("refs/pull/1/head")).unwrap();
    assert_eq!(resolved.commit, ids);
    let base = base::commit(&bench.home, &bench.store, &resolved, &mut Silent).unwrap();
    assert_eq!(inside(&base, &["rev-parse", "HEAD"]), ids);
}

/// What was checked is what git dials: a name that changes its meaning afterwards changes nothing.
#[test]
fn git_dials_the_addresses_that_were_checked() {
    let bench = Bench::new();
    bench.sh(&format!("mkdir srv; cd srv; {SEED}"));
    let server = Server::start(&bench.path("srv"), "");
    let url = server
        .url("", "app/.git")
        .replace("127.0.0.1", "rebound.invalid");
    let port = url
        .split(['/', ':'])
        .find_map(|part| part.parse::<u16>().ok())
        .unwrap();
    let mut typed = source::parse(&url).unwrap();
    assert!(mirror::ensure(&bench.home, &bench.store, &typed, None, &mut Silent).is_err());
    typed.dial = Dial::Submodule {
        pin: Some(format!("rebound.invalid:{port}:127.0.0.1")),
    };
    mirror::ensure(&bench.home, &bench.store, &typed, None, &mut Silent).unwrap();
    assert!(server.conversations() > 0);
}
