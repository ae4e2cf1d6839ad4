//! Layers as an agent would write them to hurt who copies, merges or digests them.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::time::Instant;

use ringfence_engine::layers::{self, Inodes, LayersError};
use rustix::fs::{Mode, OFlags};

use crate::shared::again;
use crate::shared::stack;
use crate::shared::within;
use stack::{Stack, open, seen, sparse};
use within::within;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn closed_modes_are_kept_on_both_sides() {
    let mut stack = Stack::new("true");
    stack.generation(
        "mkdir -p a/b/c d; echo 1 > a/b/f; echo 2 > a/b/c/g; echo 3 > h; ln h d/h; ln a/b/f d/f; \
         ln -s /etc a/b/l; setfattr -n user.note -v text a/b/f; setfattr -n user.dir -v x a/b; \
         touch -d @1234567890.123456789 a/b/f; chmod 0 a/b/f a/b/c/g h a/b/c a/b a; \
         chmod 111 d; touch -d @1234567890.5 a",
    );
    let modes = |name: &str| -> Vec<u32> {
        ["a", "h", "d", "d/h", "d/f"]
            .iter()
            .map(|path| {
                fs::symlink_metadata(stack.path(name).join(path))
                    .unwrap()
                    .mode()
            })
            .collect()
    };
    let (digest, before) = (stack.digest("0"), modes("0"));
    stack.copy("0", "copy");
    stack.merge_over(0..1, None, "merged");
    assert_eq!(stack.digest("copy"), digest);
    assert_eq!(stack.digest("merged"), digest);
    for name in ["0", "copy", "merged"] {
        assert_eq!(modes(name), before, "{name}");
        let meta = fs::metadata(stack.path(name).join("d/f")).unwrap();
        assert_eq!(
            (meta.mtime(), meta.mtime_nsec()),
            (1_234_567_890, 123_456_789)
        );
        let meta = fs::metadata(stack.path(name).join("a")).unwrap();
        assert_eq!(
            (meta.mtime(), meta.mtime_nsec()),
            (1_234_567_890, 500_000_000)
        );
    }
    // One file of two names, in directories that are closed by the time the second one is made.
    let of = |name: &str| fs::metadata(stack.path(name)).unwrap();
    assert_eq!(of("copy/h").ino(), of("copy/d/h").ino());
    assert_eq!((of("copy/h").nlink(), of("copy/d/f").nlink()), (2, 2));
    assert_eq!(of("merged/h").ino(), of("0/h").ino());
    assert_ne!(of("copy/h").ino(), of("0/h").ino());
}

/// A digest that did not look at something would keep quiet about it.
#[test]
fn a_digest_sees_every_kind_of_change() {
    let stack = Stack::new(
        "mkdir d e; echo 1 > f; ln -s a l; mkfifo p; echo 1 > x; setfattr -n user.a -v 1 x; \
         mknod w c 0 0 || true",
    );
    let mut last = stack.digest("base");
    for change in [
        "echo 2 > f",
        "chmod 600 f",
        "chmod 700 d",
        "ln -sfn b l",
        "mv f g",
        "mv g d/g",
        "mv d/g e/g",
        "rm p; touch p",
        "setfattr -n user.a -v 2 x",
        "setfattr -n user.b -v '' x",
        "setfattr -n user.overlay.opaque -v y d",
        "truncate -s 5 x",
        "rm -f w; touch w",
        "rmdir d",
    ] {
        let done = std::process::Command::new("bash")
            .args(["-ec", change])
            .current_dir(stack.path("base"))
            .status();
        assert!(done.unwrap().success(), "{change}");
        let now = stack.digest("base");
        assert_ne!(last, now, "{change}");
        last = now;
    }
    // Neither holes nor times nor owners are shown.
    let zeros = vec![0; 1 << 20];
    fs::write(stack.path("base/z"), &zeros).unwrap();
    last = stack.digest("base");
    fs::remove_file(stack.path("base/z")).unwrap();
    let hollow = fs::File::create(stack.path("base/z")).unwrap();
    hollow.set_len(1 << 20).unwrap();
    assert_eq!(stack.digest("base"), last);
}

#[test]
fn three_thousand_directories_deep() {
    within(120, || {
        let stack = Stack::new("true");
        for layer in ["0", "1"] {
            fs::create_dir(stack.path(layer)).unwrap();
            nest(stack.open(layer), 3000, layer);
        }
        let digest = stack.digest("0");
        let copied = stack.copy("0", "copy");
        assert_eq!(copied.entries, 6000);
        assert_eq!(stack.digest("copy"), digest);
        let merged = stack.merge_over(0..2, None, "merged");
        assert_eq!(merged.entries, 3000 + 3000 + 3000);
    });
}

fn nest(mut here: OwnedFd, depth: usize, file: &str) {
    for _ in 0..depth {
        rustix::fs::mkdirat(&here, "d", Mode::RWXU).unwrap();
        here = rustix::fs::openat(&here, "d", OFlags::PATH, Mode::empty()).unwrap();
        let flags = OFlags::CREATE | OFlags::WRONLY;
        rustix::fs::openat(&here, file, flags, Mode::RUSR).unwrap();
    }
}

#[test]
fn a_hundred_thousand_files() {
    within(240, || {
        let stack = Stack::new("true");
        fs::create_dir_all(stack.path("0/many")).unwrap();
        for number in 0..100_000 {
            fs::write(stack.path("0/many").join(number.to_string()), "x").unwrap();
        }
        let timed = |what: &str, work: &dyn Fn()| {
            let start = Instant::now();
            work();
            println!("{what}: {:?}", start.elapsed());
        };
        timed("copy", &|| {
            assert_eq!(stack.copy("0", "copy").entries, 100_001)
        });
        timed("merge", &|| {
            assert_eq!(stack.merge_over(0..1, None, "merged").bytes, 0);
        });
        timed("digest", &|| {
            assert_eq!(stack.digest("copy"), stack.digest("0"))
        });
        assert_eq!(stack.digest("copy"), stack.digest("merged"));
        // What is shared counts once.
        let mut inodes = Inodes::default();
        let first = layers::usage(stack.open("0").as_fd(), &mut inodes).unwrap();
        let second = layers::usage(stack.open("merged").as_fd(), &mut inodes).unwrap();
        assert_eq!((first.inodes, second.inodes), (100_002, 2));
    });
}

#[test]
fn a_terabyte_of_nothing() {
    within(20, || {
        let stack = Stack::new("true");
        fs::create_dir(stack.path("0")).unwrap();
        sparse(&stack.path("0/huge"), 1 << 40);
        let copied = stack.copy("0", "copy");
        assert!(copied.bytes < 1 << 20, "{copied:?}");
        assert_eq!(stack.digest("0"), stack.digest("copy"));
        let copy = fs::metadata(stack.path("copy/huge")).unwrap();
        assert_eq!(copy.len(), 1 << 40);
        assert!(copy.blocks() < 2048);
    });
}

#[test]
fn nothing_is_followed_and_nothing_hangs() {
    within(60, || {
        let mut stack = Stack::new("mkdir d; echo 1 > d/passwd; echo 1 > s");
        stack.generation(
            "rm -r d; ln -s /etc d; ln -s /proc/self/fd/0 e; mkdir n; ln -s / n/root; mkfifo n/p; \
             echo 1 > x; chmod 6755 x; mkfifo n/q; ln n/q n/r; ln d n/hard; rm s",
        );
        stack.generation("mkdir -p o; echo 2 > $'n/\\377\\001'");
        // A socket hides a file of the base.
        let socket = stack.path("0/s");
        fs::remove_file(&socket).unwrap();
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let digest = stack.digest("0");
        stack.copy("0", "copy");
        assert_eq!(stack.digest("copy"), digest);
        let meta = |name: &str| fs::symlink_metadata(stack.path(name)).unwrap();
        assert!(meta("copy/n/p").file_type().is_fifo());
        assert!(meta("copy/s").file_type().is_socket());
        assert_eq!(meta("copy/x").mode() & 0o7777, 0o6755);
        assert_eq!(meta("copy/n/q").ino(), meta("copy/n/r").ino());
        assert_eq!(meta("copy/d").ino(), meta("copy/n/hard").ino());
        assert_eq!(
            fs::read_link(stack.path("copy/d")).unwrap().as_os_str(),
            "/etc"
        );
        stack.merge(0..2, "merged");
        let (all, merged) = (
            stack.view(&stack.names(0..2)),
            stack.view(&["merged".to_owned()]),
        );
        assert_eq!(seen(&all), seen(&merged));
        assert_eq!(
            layers::digest(all.as_fd()).unwrap(),
            layers::digest(merged.as_fd()).unwrap()
        );
    });
}

/// As root an agent's files belong to an id that nobody has.
#[test]
fn owners_and_their_modes_are_kept() {
    let stack = Stack::new("true");
    fs::create_dir_all(stack.path("0/d")).unwrap();
    fs::write(stack.path("0/d/f"), "x").unwrap();
    std::os::unix::fs::symlink("f", stack.path("0/d/l")).unwrap();
    let agent = 0x7000_0000 + 1000;
    if is_root() {
        for path in ["0/d/f", "0/d"] {
            chown(stack.path(path), Some(agent), Some(agent)).unwrap();
        }
        std::os::unix::fs::lchown(stack.path("0/d/l"), Some(agent), Some(agent)).unwrap();
    }
    for (path, mode) in [("0/d/f", 0o6755), ("0/d", 0o2700)] {
        fs::set_permissions(stack.path(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    stack.copy("0", "copy");
    for path in ["d", "d/f", "d/l"] {
        let of = |layer: &str| fs::symlink_metadata(stack.path(layer).join(path)).unwrap();
        let (from, to) = (of("0"), of("copy"));
        assert_eq!(
            (from.mode(), from.uid(), from.gid()),
            (to.mode(), to.uid(), to.gid()),
            "{path}"
        );
    }
}

#[test]
fn what_fails_leaves_nothing() {
    let stack = Stack::new("true");
    fs::create_dir_all(stack.path("0/a")).unwrap();
    fs::create_dir_all(stack.path("0/z")).unwrap();
    fs::write(stack.path("0/a/f"), "x").unwrap();
    fs::hard_link(stack.path("0/a/f"), stack.path("0/a/g")).unwrap();
    let (parent, layer) = (open(stack.dir.path()), stack.open("0"));
    let attempt = |name: &[u8]| layers::copy(layer.as_fd(), parent.as_fd(), name);
    attempt(b"there").unwrap();
    let there = stack.digest("there");
    // Directories are made from the last to the first.
    let redirect = "user.overlay.redirect";
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(stack.path("0/a"), redirect, b"/etc", flags).unwrap();
    let error = attempt(b"copy").unwrap_err();
    assert!(
        matches!(error, LayersError::OverlayAttribute { .. }),
        "{error:?}"
    );
    let error = layers::merge(&[layer.as_fd()], None, parent.as_fd(), b"copy").unwrap_err();
    assert!(
        matches!(error, LayersError::OverlayAttribute { .. }),
        "{error:?}"
    );
    assert!(!stack.path("copy").exists() && !stack.path("copy.links").exists());
    match attempt(b"there").unwrap_err() {
        LayersError::Make { source, .. } => {
            assert_eq!(source.kind(), io::ErrorKind::AlreadyExists);
        }
        error => panic!("{error:?}"),
    }
    assert_eq!(stack.digest("there"), there, "what was there before stays");
    let none = layers::merge(&[], None, parent.as_fd(), b"copy").unwrap_err();
    assert!(matches!(none, LayersError::NoLayers));
}

/// A file has at most some 65,000 names; one more makes a copy of it necessary.
#[test]
fn a_file_with_too_many_names() {
    let stack = Stack::new("true");
    fs::create_dir(stack.path("0")).unwrap();
    fs::write(stack.path("0/0"), "x").unwrap();
    for number in 1..40_000 {
        fs::hard_link(stack.path("0/0"), stack.path(&format!("0/{number}"))).unwrap();
    }
    let merged = stack.merge_over(0..1, None, "merged");
    assert_eq!(merged.entries, 40_000);
    assert_eq!(stack.digest("0"), stack.digest("merged"));
    let of = |name: &str| fs::metadata(stack.path(name)).unwrap().nlink();
    let inodes: std::collections::HashSet<_> = fs::read_dir(stack.path("merged"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().ino())
        .collect();
    // Where the file system has no such limit, it is one.
    assert!(inodes.len() <= 2 && of("0/0") >= 40_000, "{}", inodes.len());
}

/// Where no link can be made, files are copied, and names of one file stay names of one file.
#[test]
fn another_file_system() {
    let Ok(elsewhere) = tempfile::tempdir_in("/dev/shm") else {
        println!("SKIPPED another file system: there is no other file system");
        return;
    };
    let stack = Stack::new("true");
    for dir in ["0/d", "0/e", "1/e"] {
        fs::create_dir_all(stack.path(dir)).unwrap();
    }
    fs::write(stack.path("0/d/f"), "x").unwrap();
    fs::hard_link(stack.path("0/d/f"), stack.path("0/e/g")).unwrap();
    std::os::unix::fs::symlink("/etc", stack.path("1/e/l")).unwrap();
    let (top, low) = (stack.open("1"), stack.open("0"));
    let (parent, here) = (open(elsewhere.path()), open(stack.dir.path()));
    let both = [top.as_fd(), low.as_fd()];
    let copied = layers::merge(&both, None, parent.as_fd(), b"made").unwrap();
    assert_eq!((copied.entries, copied.bytes > 0), (5, true));
    layers::merge(&both, None, here.as_fd(), b"made").unwrap();
    let digest = layers::digest(open(&elsewhere.path().join("made")).as_fd()).unwrap();
    assert_eq!(digest, stack.digest("made"));
    let of = |name: &str| fs::metadata(elsewhere.path().join(name)).unwrap();
    assert_eq!(of("made/d/f").ino(), of("made/e/g").ino());
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 1);
}

/// What an agent calls opaque is not; the overlay keeps its own marks apart, and so do we.
#[test]
fn marks_that_an_agent_sets_mean_nothing() {
    let mut stack = Stack::new("mkdir d; echo 1 > d/f");
    let set = "for name in opaque redirect other; do \
               setfattr -n user.overlay.$name -v y d || true; done; setfattr -n user.note -v 1 d";
    stack.generation(&format!("{set}; echo 2 > d/g"));
    stack.generation("echo 3 > d/h; touch d");
    stack.generation("rm d/f");
    stack.check_merge(0..3);
    stack.check_merge(1..3);
    stack.check_merge(0..1);
}

/// Many layers at once, and each of them deep, within the usual number of descriptors.
#[test]
fn sixty_four_deep_layers_at_once() {
    within(120, || {
        let stack = Stack::new("true");
        for number in 0..64 {
            let name = number.to_string();
            fs::create_dir(stack.path(&name)).unwrap();
            nest(stack.open(&name), 60, &name);
        }
        let merged = stack.merge_over(0..64, None, "merged");
        assert_eq!(merged.entries, 60 + 60 * 64);
        let view = stack.view(&stack.names(0..64));
        let whole = stack.view(&["merged".to_owned()]);
        assert_eq!(
            layers::digest(view.as_fd()).unwrap(),
            layers::digest(whole.as_fd()).unwrap()
        );
        layers::sync(stack.open("merged").as_fd()).unwrap();
    });
}

/// Rootless, a view shows nothing of what a mode closes; what hides is then kept.
#[test]
fn what_is_closed_below_stays_hidden() {
    let mut stack = Stack::new("true");
    stack.generation("mkdir -p d/e; echo 1 > d/f; echo 1 > d/e/g; chmod 0 d");
    stack.generation("rm d/f; rm -r d/e; mkdir d/e; echo 2 > d/e/h");
    stack.generation("echo 3 > d/i");
    stack.merge(1..3, "merged");
    let names = ["merged".to_owned(), "0".to_owned()];
    let lower = format!("{}:{}:base", names[0], names[1]);
    let script = format!(
        "mkdir -p view; mount -t overlay o -o userxattr,lowerdir={lower} view; cd view; find . | sort"
    );
    let output = std::process::Command::new("unshare")
        .args(["-Urm", "bash", "-ec", &script])
        .current_dir(stack.dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, ".\n./d\n./d/e\n./d/e/h\n./d/i\n");
}

#[test]
fn everything_again() {
    again::as_nobody(
        module_path!(),
        again::USUAL_DESCRIPTORS,
        &["a_hundred_thousand"],
    );
}
