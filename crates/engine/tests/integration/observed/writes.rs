//! Changes of files, with who made them.

use ringfence_engine::evidence::Evidence;
use ringfence_model::observed::Wrote;

use super::{compile, one};
use crate::shared::guest_bench::Bench;

/// What was written: path and kind, in order.
fn written(seen: &Evidence) -> Vec<(String, Wrote)> {
    seen.writes
        .iter()
        .map(|(_, write)| (write.path.to_text(), write.what.clone()))
        .collect()
}

#[test]
fn each_way_to_change_a_file_is_seen_with_who_did_it() {
    let mut bench = Bench::start();
    let (seen, said) = bench.watch(
        "mkdir d; /usr/bin/touch d/a; echo x >> d/a; truncate -s 9 d/a; chmod 755 d/a; ln d/a b; ln -s b c; mv b e; rm e; cd d; mv ../d ../f; rm a",
    );
    assert_eq!(said, "");
    let from = |text: &str| Wrote::Renamed { from: text.into() };
    let expected = [
        ("d/a", Wrote::Created),
        ("d/a", Wrote::Opened),
        ("d/a", Wrote::Opened),
        ("d/a", Wrote::Mode),
        ("b", Wrote::Linked { to: "d/a".into() }),
        ("c", Wrote::Symlinked),
        ("e", from("b")),
        ("e", Wrote::Removed),
        ("f", from("d")),
        ("f/a", Wrote::Removed),
    ]
    .map(|(path, what)| (path.to_owned(), what));
    assert_eq!(written(&seen), expected);
    let touch = one(&seen, &["/usr/bin/touch"]).exec.exec;
    assert_eq!(seen.writes[0].1.exec, Some(touch));
    assert_eq!(seen.writes[1].1.exec, Some(1), "the shell itself");
}

/// Names are those of the kernel: whatever way leads to a file.
#[test]
fn a_file_has_one_name_whatever_the_way_to_it() {
    let mut bench = Bench::start();
    let (seen, said) = bench.watch(
        "mkdir -p real/deep; ln -s real way; ln -s /workspace /tmp/ws; ln -s ../outside-not real/gone; \
         echo 0 > way/zero; echo 1 > way/deep/one; echo 2 > /tmp/ws/real/./deep/../two; cd way/deep; echo 3 > ../three; \
         ln -s three ../point; echo 4 > ../point; exec 5<three-not 2>/dev/null; true",
    );
    let _ = said;
    let paths: Vec<String> = seen.writes.iter().map(|(_, w)| w.path.to_text()).collect();
    for path in ["real/zero", "real/deep/one", "real/two", "real/three"] {
        assert!(paths.iter().any(|p| p == path), "{path} in {paths:?}");
    }
    assert!(
        !paths
            .iter()
            .any(|p| p.starts_with("way/") || p.contains("..")),
        "{paths:?}"
    );
}

#[test]
fn links_that_dangle_and_descriptors_lead_to_their_files() {
    let mut bench = Bench::start();
    let source = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
#include <sys/stat.h>
#include <sys/wait.h>
int main() {
  int r = open("base", O_RDONLY); char p[64]; sprintf(p, "/proc/self/fd/%d", r);
  close(open(p, O_WRONLY));
  fchmod(r, 0755);
  int t = open(".", O_TMPFILE | O_RDWR, 0644); write(t, "x", 1); sprintf(p, "/proc/self/fd/%d", t);
  linkat(AT_FDCWD, p, AT_FDCWD, "appeared", AT_SYMLINK_FOLLOW);
  int d = open("sub", O_RDONLY | O_DIRECTORY); close(openat(d, "by-directory", O_CREAT | O_WRONLY, 0644));
  renameat2(AT_FDCWD, "base", AT_FDCWD, "other", RENAME_EXCHANGE);
  if (!fork()) { close(creat("by-child", 0644)); _exit(0); }
  wait(0);
  return 0;
}"#;
    compile(&mut bench, "ways", source);
    let (seen, said) = bench.watch(
        "echo a > base; echo b > other; mkdir sub; ln -s late early; echo c > early; /tmp/ways; sleep 0.1; ls",
    );
    assert!(said.contains("appeared") && said.contains("late"), "{said}");
    let ways = one(&seen, &["/tmp/ways"]).exec.exec;
    let by = |path: &str, what: Wrote| {
        let found = seen
            .writes
            .iter()
            .find(|(_, w)| w.path.as_bytes() == path.as_bytes() && w.what == what);
        assert!(found.is_some(), "{path} {what:?} in {:?}", written(&seen));
        found.unwrap().1.exec
    };
    let shell = one(&seen, &["sh", "-c"]).exec.exec;
    assert_eq!(by("late", Wrote::Created), Some(shell));
    assert_eq!(by("base", Wrote::Opened), Some(ways));
    assert_eq!(by("base", Wrote::Mode), Some(ways));
    assert_eq!(by("sub/by-directory", Wrote::Created), Some(ways));
    assert_eq!(by("by-child", Wrote::Created), Some(ways));
    assert_eq!(
        by(
            "other",
            Wrote::Exchanged {
                with: "base".into()
            }
        ),
        Some(ways)
    );
    assert_eq!(by("appeared", Wrote::Created), Some(ways));
}

/// Only what can cross back is recorded, and the same thing once. What is not there may be when the
/// kernel looks, so it is told of as well.
#[test]
fn what_is_outside_and_what_is_repeated_is_left_out() {
    let mut bench = Bench::start();
    let (seen, _) = bench.watch(
        "mkdir .git; echo > .git/x; echo > /tmp/y; echo > /dev/null; echo > /home/agent/z; for i in 1 2 3 4 5; do echo $i >> again; done; cat again; ls nothing 2>/dev/null; rm -f nothing",
    );
    assert_eq!(
        written(&seen),
        [
            ("again".to_owned(), Wrote::Created),
            ("again".to_owned(), Wrote::Opened),
            ("nothing".to_owned(), Wrote::Removed)
        ]
    );
}

/// A name that something moved away from starts anew.
#[test]
fn what_is_made_again_after_a_move_is_told_again() {
    let mut bench = Bench::start();
    let (seen, _) = bench.watch(
        "mkdir d; echo > d/a; mv d e; mkdir d; echo > d/a; echo > t; mv t u; echo > t; mv gone there 2>/dev/null; echo > missing/x",
    );
    let from = |text: &str| Wrote::Renamed { from: text.into() };
    let expected = [
        ("d/a", Wrote::Created),
        ("e", from("d")),
        ("d/a", Wrote::Created),
        ("t", Wrote::Created),
        ("u", from("t")),
        ("t", Wrote::Created),
        ("missing/x", Wrote::Created),
    ]
    .map(|(path, what)| (path.to_owned(), what));
    let mut found = written(&seen);
    // Some versions of `mv` look first, others try.
    found.retain(|(path, _)| path != "there");
    assert_eq!(found, expected);
}

/// An access list in an attribute is a mode.
#[test]
fn attributes_are_seen() {
    let mut bench = Bench::start();
    let source = "#include <sys/xattr.h>\n#include <fcntl.h>\nint main() { setxattr(\"one\", \"user.a\", \"b\", 1, 0); lsetxattr(\"two\", \"user.a\", \"b\", 1, 0); fsetxattr(open(\"three\", O_RDONLY), \"user.a\", \"b\", 1, 0); }";
    compile(&mut bench, "attributes", source);
    let (seen, _) = bench.watch("echo > one; echo > two; echo > three; /tmp/attributes");
    let modes: Vec<String> = written(&seen)
        .into_iter()
        .filter_map(|(path, what)| (what == Wrote::Mode).then_some(path))
        .collect();
    assert_eq!(modes, ["one", "two", "three"]);
}

/// Between two writers, what the file held is kept.
#[test]
fn versions_are_kept_between_writers() {
    let mut bench = Bench::start();
    let (seen, _) = bench.watch("echo one > f; sed -i s/one/two/ f; sh -c 'echo three >> f'");
    let kept: Vec<(String, String)> = seen
        .versions
        .iter()
        .map(|(_, v)| {
            (
                v.path.to_text(),
                String::from_utf8(v.content.0.clone()).unwrap(),
            )
        })
        .collect();
    let expected = [("f", "one\n"), ("f", "two\n")].map(|(p, c)| (p.to_owned(), c.to_owned()));
    assert_eq!(kept, expected);
}

/// The flags of `openat2` are out of sight, so programs are told to use what is not.
#[test]
fn nothing_is_opened_out_of_sight() {
    let mut bench = Bench::start();
    let source = "#include <sys/syscall.h>\n#include <unistd.h>\n#include <errno.h>\nint main() { long how[3] = {65, 420, 0}; return syscall(437, -100, \"sneaky\", how, 24) < 0 && errno == ENOSYS ? 0 : 1; }";
    compile(&mut bench, "sneak", source);
    let (_, said) = bench.watch("/tmp/sneak && echo refused; ls");
    assert_eq!(said, "refused\n");
}

/// Ways that hide a name from us and not from the kernel.
#[test]
fn long_chains_and_odd_names_lead_to_their_files() {
    let mut bench = Bench::start();
    let source = r#"
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int main(int c, char **v) {
  int r = open(v[1], O_RDONLY); char p[64];
  sprintf(p, v[2], r); int w = open(p, O_WRONLY | O_TRUNC); return write(w, "EVIL\n", 5) == 5 ? 0 : 1;
}"#;
    compile(&mut bench, "odd", source);
    let (seen, said) = bench.watch(
        "for f in a b c; do echo good > $f; done; ln -s a l0; i=0; while [ $i -lt 21 ]; do ln -s l$i l$((i+1)); i=$((i+1)); done; \
         python3 -c 'open(\"l21\",\"w\").write(\"EVIL\\n\")'; /tmp/odd b //proc/self/fd/%d; /tmp/odd c /proc/./self/fd/%d; \
         mkdir 'd (deleted)'; cd 'd (deleted)'; sh -c 'echo x > inside'",
    );
    assert_eq!(said, "");
    let odd = |file: &str| one(&seen, &["/tmp/odd", file]).exec.exec;
    let python = one(&seen, &["python3", "-c"]).exec.exec;
    let shell = one(&seen, &["sh", "-c", "echo x > inside"]).exec.exec;
    for (path, exec) in [
        ("a", python),
        ("b", odd("b")),
        ("c", odd("c")),
        ("d (deleted)/inside", shell),
    ] {
        let last = seen
            .writes
            .iter()
            .rev()
            .find(|(_, w)| w.path.as_bytes() == path.as_bytes());
        assert_eq!(
            last.map(|(_, w)| w.exec),
            Some(Some(exec)),
            "{path} in {:?}",
            written(&seen)
        );
    }
}

/// A child that was forked before its parent became something else is not that.
#[test]
fn a_fork_stays_what_it_was() {
    let mut bench = Bench::start();
    let source = r#"
#include <fcntl.h>
#include <unistd.h>
int main() {
  if (fork()) execl("/bin/sleep", "sleep", "0.3", (char*)0);
  usleep(100000); close(creat("/workspace/by-fork", 0644)); return 0;
}"#;
    compile(&mut bench, "forks", source);
    let (seen, _) = bench.watch("/tmp/forks; true");
    let forks = one(&seen, &["/tmp/forks"]).exec.exec;
    let write = seen
        .writes
        .iter()
        .find(|(_, w)| w.path.as_bytes() == b"by-fork");
    assert_eq!(write.unwrap().1.exec, Some(forks));
}
