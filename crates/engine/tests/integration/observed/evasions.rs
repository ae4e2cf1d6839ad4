//! Ways to run or write something that is then not known, or is somebody else's.

use ringfence_model::observed::Wrote;

use super::{compile, one, ran};
use crate::shared::guest_bench::Bench;

/// A sibling instead of a child would have another parent than who made it.
#[test]
fn nobody_gives_its_child_to_its_own_parent() {
    let mut bench = Bench::start();
    let source = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
int main() {
  long made = syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);
  if (!made) _exit(0);
  printf("%ld %d\n", made, errno == EPERM);
  unsigned long three[11] = {CLONE_PARENT, 0, 0, 0, SIGCHLD};
  made = syscall(SYS_clone3, three, sizeof three);
  if (!made) _exit(0);
  printf("%ld\n", made);
}"#;
    compile(&mut bench, "sibling", source);
    let (_, said) = bench.watch("/tmp/sibling");
    assert_eq!(said, "-1 1\n-1\n");
}

/// An orphan in a stranger's process group, and one that a stranger takes in, stay what they were.
#[test]
fn an_orphan_is_not_blamed_on_who_is_near_it() {
    let mut bench = Bench::start();
    let culprit = r#"
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
int main(int c, char **v) {
  int me = getpid();
  if (fork()) _exit(0);
  if (atoi(v[2])) setpgid(0, atoi(v[2]));
  while (getppid() == me) usleep(1000);
  if (atoi(v[2]) && getpgid(0) != atoi(v[2])) _exit(3);
  close(creat(v[1], 0644));
  execl("/bin/echo", "echo", v[1], (char*)0);
}"#;
    let near = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int c, char **v) {
  int open[2], ran[2], innocent = 0; char group[16], x;
  pipe(open); pipe2(ran, O_CLOEXEC);
  if (v[1][0] == 'a') prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  else if (!(innocent = fork())) {
    close(open[0]); close(open[1]); setpgid(0, 0);
    execl("/bin/sleep", "innocent", "60", (char*)0);
  }
  close(ran[1]); read(ran[0], &x, 1);
  sprintf(group, "%d", innocent);
  if (!fork()) execl("/tmp/culprit", "culprit", v[1], group, (char*)0);
  close(open[1]); while (read(open[0], &x, 1) > 0);
  if (innocent) kill(innocent, 9);
  while (wait(0) > 0);
}"#;
    compile(&mut bench, "culprit", culprit);
    compile(&mut bench, "near", near);
    for way in ["grouped", "adopted"] {
        let (seen, said) = bench.watch(&format!("/tmp/near {way}"));
        assert_eq!(said, format!("{way}\n"));
        let culprit = one(&seen, &["culprit"]).exec.exec;
        let write = seen.writes.iter().find(|(_, w)| w.path == way.into());
        assert_eq!(write.unwrap().1.exec, Some(culprit), "{way}");
        let echo = &one(&seen, &["echo", way]).exec;
        assert_eq!(echo.parent, Some(culprit), "{way}: {echo:?}");
    }
}

/// A mapping changes a file in memory without a trace in its times.
#[test]
fn a_program_that_is_changed_through_a_mapping_has_another_hash() {
    let mut bench = Bench::start();
    let source = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int c, char **v) {
  struct stat before, after; stat(v[1], &before);
  int file = open(v[1], O_RDWR);
  char *at = mmap(0, before.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  char *mark = memmem(at, before.st_size, "the first", 9);
  if (!mark) return 9;
  memcpy(mark, "otherwise", 9);
  munmap(at, before.st_size); close(file); stat(v[1], &after);
  puts(before.st_mtim.tv_nsec == after.st_mtim.tv_nsec ? "unseen" : "seen");
}"#;
    compile(&mut bench, "change", source);
    compile(
        &mut bench,
        "said",
        "#include <stdio.h>\nint main() { puts(\"the first\"); return 0; }",
    );
    let (seen, said) = bench.watch(
        "stat -f -c %T /tmp; sleep 0.2; /tmp/said 1; sha256sum < /tmp/said; /tmp/change /tmp/said; /tmp/said 2; sha256sum < /tmp/said",
    );
    let words: Vec<&str> = said.lines().collect();
    assert_eq!(
        [words[0], words[1], words[3], words[4]],
        ["tmpfs", "the first", "unseen", "otherwise"]
    );
    let hash = |which: &str| {
        let exec = &one(&seen, &["/tmp/said", which]).exec;
        seen.programs[&exec.program].sha256.clone().unwrap()
    };
    assert_eq!(format!("{}  -", hash("1")), words[2]);
    assert_eq!(format!("{}  -", hash("2")), words[5]);
    assert_ne!(hash("1"), hash("2"));
}

/// Killed at its exec, a process leaves what the kernel did, or nothing.
#[test]
fn a_kill_at_the_exec_leaves_nothing_that_was_not() {
    let mut bench = Bench::start();
    let source = r#"
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>
#include <sys/wait.h>
int main() {
  close(creat("/tmp/empty", 0755));
  for (int i = 0; i < 400; i++) {
    pid_t c = fork();
    if (!c) {
      if (i % 2) execl("/bin/true", "killed", "there", (char*)0);
      else { char *v[] = {"never", 0}; execv("/tmp/empty", v); }
      _exit(5);
    }
    usleep(i * 5); kill(c, SIGKILL); waitpid(c, 0, 0);
  }
}"#;
    compile(&mut bench, "killer", source);
    let (seen, said) = bench.watch("/tmp/killer; /bin/echo on");
    assert_eq!(said, "on\n");
    assert!(
        ran(&seen, &["never"]).is_empty(),
        "a file without a program"
    );
    let killer = one(&seen, &["/tmp/killer"]).exec.exec;
    let children: Vec<_> = seen
        .execs
        .values()
        .filter(|ran| ran.exec.parent == Some(killer))
        .collect();
    assert!(!children.is_empty(), "none came so far");
    for ran in children {
        let exec = &ran.exec;
        if exec.verified {
            assert!(exec.exe.as_bytes().ends_with(b"/true"), "{exec:?}");
            assert_eq!(exec.argv, ["killed", "there"].map(Into::into), "{exec:?}");
        }
    }
}

/// In directories so deep that the kernel tells no name of them.
const DEEP: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int c, char **v) {
  char name[201]; memset(name, 'd', 200); name[200] = 0;
  chdir("/workspace"); int from = open(v[1], O_RDONLY);
  for (int i = 0; i < 60; i++) if (mkdir(name, 0755) | chdir(name)) return 8;
  int to = open("program", O_CREAT | O_WRONLY, 0755); static char b[65536]; int n;
  if (to < 0) return 7;
  while ((n = read(from, b, sizeof b)) > 0) write(to, b, n);
  close(to); execl("./program", "deep", "down", (char*)0); return 9;
}"#;

#[test]
fn what_lies_too_deep_for_a_name_is_told_as_such() {
    let mut bench = Bench::start();
    compile(&mut bench, "dig", DEEP);
    let (seen, said) = bench.watch("/tmp/dig /bin/echo; echo $?");
    assert_eq!(said, "down\n0\n");
    let deep = one(&seen, &["deep", "down"]);
    assert!(
        !deep.exec.verified || deep.exec.exe.as_bytes().ends_with(b"/program"),
        "{:?}",
        deep.exec
    );
    // And what was written there may be anywhere.
    let dig = one(&seen, &["/tmp/dig"]).exec.exec;
    let (_, write) = seen
        .writes
        .iter()
        .find(|(_, w)| w.path == "program".into())
        .unwrap();
    assert_eq!((&write.what, write.exec), (&Wrote::Unplaced, Some(dig)));
}

/// What `/proc/self` means depends on who looks, however it is spelled.
#[test]
fn a_descriptor_is_executed_by_each_of_its_names() {
    let mut bench = Bench::start();
    let source = r#"
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
#include <sys/wait.h>
int main() {
  int fd = open("/bin/echo", O_RDONLY);
  symlink("/proc/self/fd", "/tmp/way");
  const char *ways[] = {"//proc/self/fd/%d", "/dev//fd/%d", "/tmp/way/%d", "/proc/./self//fd/%d"};
  for (int i = 0; i < 4; i++) {
    if (!fork()) {
      char path[64], number[8]; sprintf(path, ways[i], fd); sprintf(number, "%d", i);
      execl(path, "echo", number, (char*)0); _exit(printf("%s failed\n", path));
    }
    wait(0);
  }
}"#;
    compile(&mut bench, "by-number", source);
    let (seen, said) = bench.watch("/tmp/by-number");
    assert_eq!(said, "0\n1\n2\n3\n");
    for number in ["0", "1", "2", "3"] {
        let exec = &one(&seen, &["echo", number]).exec;
        assert!(exec.verified, "{exec:?}");
        assert!(exec.exe.as_bytes().ends_with(b"/echo"), "{exec:?}");
    }
}
