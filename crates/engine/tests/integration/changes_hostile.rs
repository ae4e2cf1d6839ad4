//! Trees made to break a walker: deep, closed, moving, full of links.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::Command;

use ringfence_engine::changes::{measure, remove_tree};

use crate::shared::again;
use crate::shared::overlay as changes_overlay;
use crate::shared::within;
use changes_overlay::{Scene, Snapshot, run, shell, summary};
use within::within;

const DEEP: &str = "python3 -c '
import os
for i in range(3000):
    os.mkdir(\"d\" * 200); os.chdir(\"d\" * 200)
    if i in (5, 2999): open(\"f\", \"w\").write(\"x\")
'";

#[test]
fn three_thousand_directories_deep() {
    within(120, || {
        let scene = Scene::prepare("");
        scene.work(DEEP, Snapshot::Skipped);
        let set = scene.compute();
        assert_eq!(set.changes.len(), 1, "{}", summary(&set));
        assert_eq!(set.omitted.len(), 1);
        assert_eq!((set.omitted[0].size, set.omitted[0].files), (1, 1));
        scene.render(&set);
        let usage = measure(scene.open("upper").as_fd()).unwrap();
        assert_eq!(usage.inodes, 3003);
        remove_tree(scene.open("").as_fd(), b"upper").unwrap();
        assert!(!scene.path("upper").exists());
    });
}

#[test]
fn three_thousand_directories_deep_in_the_base() {
    within(120, || {
        let scene = Scene::prepare(DEEP);
        scene.work("rm -rf dddd*", Snapshot::Skipped);
        let set = scene.compute();
        assert_eq!(set.changes.len(), 1, "{}", summary(&set));
        assert_eq!(set.omitted.len(), 1);
    });
}

/// The limit is of the process, so a process of its own has it.
#[test]
fn few_handles_are_open_at_once() {
    let own = std::env::current_exe().unwrap();
    let limited = format!(
        "ulimit -n 128; exec {} changes_hostile::three_thousand --nocapture",
        own.display()
    );
    let output = Command::new("bash")
        .args(["-c", &limited])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && !said.contains(" 0 passed"),
        "{said}"
    );
}

#[test]
fn closed_directories_are_measured_and_removed() {
    let work = "mkdir -p a/b/c; head -c 8192 /dev/zero > a/b/c/f; ln a/b/c/f a/b/c/g; \
                truncate -s 1T a/s; mkfifo a/p; ln -s / a/l; chmod 0 a/b/c a/b a";
    let scene = Scene::prepare("");
    scene.work(work, Snapshot::Skipped);
    let usage = measure(scene.open("upper").as_fd()).unwrap();
    assert_eq!(usage.inodes, 8);
    assert!(usage.bytes >= 8192 && usage.bytes < 100_000, "{usage:?}");
    let mode = fs::metadata(scene.path("upper/a"))
        .unwrap()
        .permissions()
        .mode()
        & 0o777;
    assert_eq!(mode, 0, "measuring puts modes back");
    remove_tree(scene.open("").as_fd(), b"upper").unwrap();
    remove_tree(scene.open("").as_fd(), b"work").unwrap();
    remove_tree(scene.open("").as_fd(), b"work").unwrap();
    assert!(!scene.path("upper").exists() && !scene.path("work").exists());
}

#[test]
fn removing_follows_no_link() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("victim")).unwrap();
    fs::write(dir.path().join("victim/f"), "x").unwrap();
    fs::create_dir_all(dir.path().join("tree/d")).unwrap();
    symlink("../victim", dir.path().join("tree/l")).unwrap();
    symlink("../../victim", dir.path().join("tree/d/l")).unwrap();
    symlink("victim", dir.path().join("link")).unwrap();
    let parent: OwnedFd = fs::File::open(dir.path()).unwrap().into();
    for name in ["tree", "link", "missing"] {
        remove_tree(parent.as_fd(), name.as_bytes()).unwrap();
        assert!(fs::symlink_metadata(dir.path().join(name)).is_err());
    }
    assert!(dir.path().join("victim/f").exists());
}

#[test]
fn more_names_than_a_batch_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let script = "mkdir t; cd t; mkdir $(seq -f d%g 5000); touch $(seq -f f%g 5000) d1/x d4999/y";
    run(&mut shell(script, dir.path()));
    let parent: OwnedFd = fs::File::open(dir.path()).unwrap().into();
    remove_tree(parent.as_fd(), b"t").unwrap();
    assert!(!dir.path().join("t").exists());
}

#[test]
fn a_tree_that_moves_is_measured_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let churn = "trap 'exit 0' TERM; while :; do mkdir -p a/b/c/d; echo x > a/b/c/d/f; \
                 mv a z; rm -rf z; mkfifo p; rm p; done 2>/dev/null";
    let mut child = shell(churn, dir.path()).spawn().unwrap();
    let root: OwnedFd = fs::File::open(dir.path()).unwrap().into();
    let measured: Result<Vec<_>, _> = (0..500).map(|_| measure(root.as_fd())).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(measured.is_ok(), "{measured:?}");
}

/// Links and FIFOs where directories and files are expected lead nowhere and hang nothing.
#[test]
fn links_to_the_outside_are_never_followed() {
    within(60, || {
        let work = "rm -r d; ln -s /etc d; ln -s /proc/self/fd/0 e; mkdir n; ln -s / n/root; \
                    mkfifo n/p; ln -s p n/q";
        let scene = Scene::new("mkdir d; echo 1 > d/passwd", work);
        let set = scene.compute();
        assert_eq!(
            summary(&set),
            "A d, D d/passwd, A e, A n/q, A n/root, - n/p Special"
        );
        scene.check(&set);
    });
}

/// The user's own folder is never opened by force.
#[test]
fn what_is_closed_in_the_base_stays() {
    if rustix::process::geteuid().is_root() {
        return; // Run again as nobody, below.
    }
    let base =
        "mkdir d e; echo 1 > d/f; echo 1 > g; echo 1 > h; echo 1 > e/x; chmod 0 d g h; chmod 400 e";
    let scene = Scene::prepare(base);
    scene.work(
        "rm -rf d g; echo 2 > h; echo 3 > e/x; mkdir d; echo 1 > d/n",
        Snapshot::Skipped,
    );
    let set = scene.compute();
    let expected = "- d Unreadable, - e/x Unreadable, - g Unreadable, - h Unreadable";
    assert_eq!(summary(&set), expected);
}

/// As root nothing is closed to us, so the same tests run again as nobody.
#[test]
fn everything_again_without_privileges() {
    for module in ["changes_hostile", "changes_rules", "changes_round_trip"] {
        again::as_nobody(module, again::SAME_LIMITS, &[]);
    }
}
