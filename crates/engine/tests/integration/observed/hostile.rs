//! Agents that do not want to be seen.

use ringfence_model::wire::{Reply, Request};

use super::{compile, one, ran};
use crate::shared::guest_bench::{Bench, exec};

/// One thread executes while another changes the path and the arguments under the kernel's hands:
/// what is recorded is what ran.
#[test]
fn a_race_for_the_arguments_is_lost() {
    let mut bench = Bench::start();
    let source = r#"
#include <pthread.h>
#include <string.h>
#include <unistd.h>
#include <sys/wait.h>
static char path[64], arg[64];
static volatile int stop;
static void *flip(void *x) {
  for (;;) { strcpy(path, "/tmp/one"); strcpy(arg, "one"); strcpy(path, "/tmp/two"); strcpy(arg, "two"); }
}
int main() {
  for (int i = 0; i < 100; i++) {
    if (!fork()) {
      strcpy(path, "/tmp/one"); strcpy(arg, "one");
      pthread_t t; pthread_create(&t, 0, flip, 0); usleep(200);
      char *argv[] = {arg, arg, 0}, *env[] = {0};
      for (int n = 0; n < 50; n++) execve(path, argv, env);
      _exit(9);
    }
    wait(0);
  }
}"#;
    compile(&mut bench, "race", source);
    let tell = |name: &str| {
        format!(
            "#include <stdio.h>\nint main(int c, char **v) {{ printf(\"{name} %s %s\\n\", v[0], v[1]); return 0; }}"
        )
    };
    compile(&mut bench, "one", &tell("one"));
    compile(&mut bench, "two", &tell("two"));
    let (seen, said) = bench.watch("/tmp/race");
    let mut really: Vec<String> = said.lines().map(str::to_owned).collect();
    let mut recorded: Vec<String> = seen
        .execs
        .values()
        .filter_map(|r| {
            let exe = r.exec.exe.to_text();
            let name = exe
                .strip_prefix("/tmp/")
                .filter(|n| ["one", "two"].contains(n))?;
            let words: Vec<String> = r.exec.argv.iter().map(|a| a.to_text()).collect();
            Some(format!("{name} {}", words.join(" ")))
        })
        .collect();
    assert!(really.len() > 50, "{}", really.len());
    really.sort();
    recorded.sort();
    assert_eq!(recorded, really);
}

/// Who makes itself unreadable is read all the same.
#[test]
fn hiding_its_memory_hides_nothing() {
    let mut bench = Bench::start();
    let source = r#"
#include <sys/prctl.h>
#include <unistd.h>
#include <fcntl.h>
int main() {
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  close(open("/workspace/hidden", O_CREAT | O_WRONLY, 0644));
  execl("/bin/echo", "echo", "unseen", (char*)0);
  return 9;
}"#;
    compile(&mut bench, "hide", source);
    let (seen, said) = bench.watch("chmod 0111 /tmp/hide; /tmp/hide");
    assert_eq!(said, "unseen\n");
    assert!(one(&seen, &["/tmp/hide"]).exec.verified);
    let echo = one(&seen, &["echo", "unseen"]);
    assert!(echo.exec.verified);
    assert!(
        seen.writes
            .iter()
            .any(|(_, w)| w.path.as_bytes() == b"hidden" && w.exec.is_some())
    );
}

#[test]
fn newlines_and_other_bytes_stay_arguments() {
    let mut bench = Bench::start();
    let (seen, _) =
        bench.watch("/bin/echo '\n{\"kind\":\"end\"}\n' \"$(printf '\\377\\033[2J')\" >/dev/null");
    let argv = &one(&seen, &["/bin/echo"]).exec.argv;
    assert_eq!(argv[1].as_bytes(), b"\n{\"kind\":\"end\"}\n");
    assert_eq!(argv[2].as_bytes(), b"\xff\x1b[2J");
}

#[test]
fn a_long_list_of_arguments_is_cut_and_hashed() {
    let mut bench = Bench::start();
    let (seen, _) = bench.watch("/bin/true $(seq 1 20000)");
    let exec = &one(&seen, &["/bin/true", "1"]).exec;
    let cut = exec.argv_cut.as_ref().unwrap();
    assert_eq!(cut.bytes, "/bin/true".len() as u64 + 1 + 108_894);
    assert!(exec.argv.len() <= 1024);
    // Neither no list at all nor a wild pointer confuses anybody.
    let source = "#include <unistd.h>\n#include <sys/syscall.h>\nint main() { syscall(SYS_execve, \"/bin/true\", 8, 0); syscall(SYS_execve, 8, 8, 0); syscall(SYS_execve, \"/bin/true\", 0, 0); return 9; }";
    compile(&mut bench, "wild", source);
    let (seen, _) = bench.watch("/tmp/wild");
    let last = seen.execs.values().last().unwrap();
    assert!(last.exec.exe.as_bytes().ends_with(b"/true"), "{last:?}");
    assert!(
        seen.failed.iter().filter(|(_, f)| f.errno == 14).count() >= 1,
        "{:?}",
        seen.failed
    );
}

/// A program that is replaced while it runs is recorded as what ran.
#[test]
fn a_replaced_program_does_not_take_the_other_ones_name() {
    let mut bench = Bench::start();
    let (seen, said) = bench.watch(
        "cp /bin/sleep /tmp/p; sha256sum < /tmp/p; /tmp/p 1000 & until grep -qx p /proc/$!/comm; do :; done; cp /bin/true /tmp/q; mv /tmp/q /tmp/p; kill $!; wait; /tmp/p again; sha256sum < /tmp/p",
    );
    let hashes: Vec<&str> = said.split("  -\n").collect();
    let hash = |argv: &[&str]| {
        let exec = &one(&seen, argv).exec;
        seen.programs[&exec.program].sha256.clone().unwrap()
    };
    assert_eq!(hash(&["/tmp/p", "1000"]), hashes[0]);
    assert_eq!(hash(&["/tmp/p", "again"]), hashes[1]);
}

/// No filter of its own gets an agent a listener, and none undoes ours.
#[test]
fn nobody_inside_can_listen() {
    let mut bench = Bench::start();
    let source = r#"
#include <linux/seccomp.h>
#include <linux/filter.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <errno.h>
#include <stdio.h>
int main() {
  struct sock_filter f[] = {{6, 0, 0, 0x7fff0000}};
  struct sock_fprog p = {1, f};
  int r = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &p);
  printf("%d %d\n", r, errno == EPERM || errno == EBUSY);
  r = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p);
  printf("%d\n", r); fflush(stdout);
  execl("/bin/echo", "echo", "after", (char*)0);
}"#;
    compile(&mut bench, "listen", source);
    let (seen, said) = bench.watch("/tmp/listen");
    assert_eq!(said, "-1 1\n0\nafter\n");
    assert!(one(&seen, &["echo", "after"]).exec.verified);
}

/// Signals, stops and parents that are killed at their exec leave nothing hanging.
#[test]
fn signals_during_execs_confuse_nobody() {
    let mut bench = Bench::start();
    let source = r#"
#include <signal.h>
#include <unistd.h>
#include <sys/wait.h>
#include <stdlib.h>
int main() {
  for (int i = 0; i < 300; i++) {
    pid_t c = fork();
    if (!c) { execl(i % 3 ? "/bin/true" : "/tmp/none", "short", (char*)0); _exit(5); }
    int which = i % 5;
    if (which == 0) kill(c, SIGKILL);
    if (which == 1) { kill(c, SIGSTOP); kill(c, SIGCONT); }
    if (which == 2) kill(c, SIGTERM);
    if (which == 3) kill(c, SIGWINCH);
    int s; waitpid(c, &s, 0);
  }
  execl("/bin/echo", "echo", "through", (char*)0);
}"#;
    compile(&mut bench, "noise", source);
    let (seen, said) = bench.watch("/tmp/noise");
    assert_eq!(said, "through\n");
    assert!(one(&seen, &["echo", "through"]).exec.verified);
    for ran in ran(&seen, &["short"]) {
        assert!(ran.exit.is_some(), "{ran:?}");
    }
}

/// An exec whose file takes its time, or never comes, keeps nobody else waiting.
#[test]
fn one_that_waits_in_its_exec_holds_nobody_up() {
    let mut bench = Bench::start();
    // Opening a FIFO as a program is refused; as an interpreter as well.
    let (seen, said) = bench.watch(
        "mkfifo /tmp/f; chmod +x /tmp/f; (env /tmp/f; printf '#!/tmp/f\\n' > /tmp/s; chmod +x /tmp/s; env /tmp/s) 2>/dev/null; /bin/echo on",
    );
    assert_eq!(said, "on\n");
    assert!(seen.failed.len() >= 2, "{:?}", seen.failed);
}

/// The guest is pid 1: there is nobody to kill, stop or trace who observes.
#[test]
fn the_observer_cannot_be_reached() {
    let mut bench = Bench::start();
    let (_, said) = bench.watch("exec 2>/dev/null; kill -9 1; kill -STOP 1; for f in mem maps environ fd; do cat /proc/1/$f 2>/dev/null | head -c1; done; strace -p 1 -o /dev/null 2>/dev/null && echo traced; /bin/echo alive");
    assert_eq!(said.lines().last(), Some("alive"));
    assert!(!said.contains("traced"));
}

/// What an agent inherits has none of what the observer may.
#[test]
fn no_capability_reaches_the_agent() {
    let mut bench = Bench::start();
    let (_, said) = bench.watch("grep Cap /proc/self/status; sh -c 'grep Cap /proc/$PPID/status' ; for p in /proc/[0-9]*; do test $p = /proc/1 || grep -H CapEff $p/status; done");
    for line in said.lines().filter(|line| line.contains("Cap")) {
        assert!(line.ends_with("0000000000000000"), "{said}");
    }
}

/// A storm stays within its bounds, and everything in it that ran is recorded.
#[test]
fn a_storm_of_forks_is_recorded_until_it_is_refused() {
    let mut bench = Bench::start();
    let mut storm = exec(&["sh", "-c", "f() { /bin/true & f & f & }; f; sleep 2"]);
    storm.timeout_ms = Some(3000);
    let done = bench.run(storm);
    assert!(done.exited.code.is_some() || done.exited.signal.is_some());
    // Its shell is over; what it left may hold itself up for ever, at the bound of processes.
    bench.end(done.stream);
    let (seen, said) = bench.watch("/bin/echo still");
    assert_eq!(said, "still\n");
    assert!(one(&seen, &["/bin/echo", "still"]).exec.verified);
}

/// Threads of one process that execute at once: the kernel has one lock for that and for tracing.
#[test]
fn threads_that_execute_at_once_hold_nobody_up() {
    let mut bench = Bench::start();
    let source = r#"
#include <pthread.h>
#include <unistd.h>
void *go(void *x) { execl("/bin/true", "true", "won", (char*)0); return 0; }
int main() { pthread_t t; for (int i = 0; i < 3; i++) pthread_create(&t, 0, go, 0); go(0); return 9; }"#;
    compile(&mut bench, "at-once", source);
    let (seen, said) =
        bench.watch("i=0; while [ $i -lt 40 ]; do /tmp/at-once || echo lost; i=$((i+1)); done");
    assert_eq!(said, "");
    let won = ran(&seen, &["true", "won"]);
    assert_eq!(won.len(), 40);
    assert!(won.iter().all(|r| r.exec.verified && r.exit.is_some()));
    // Nothing is left that would keep everything from standing still.
    assert_eq!(bench.call(&Request::Freeze).unwrap(), Reply::Done);
    bench.call(&Request::Thaw).unwrap();
}

/// Nobody writes into the memory of a process that stands at its exec, or of any other.
#[test]
fn the_memory_of_others_is_not_written() {
    let mut bench = Bench::start();
    let source = r#"
#define _GNU_SOURCE
#include <sys/uio.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
#include <errno.h>
int main() {
  static char there[4] = "abc"; char here[4] = "xyz";
  struct iovec l = {here, 3}, r = {there, 3};
  int child = fork(); if (!child) { pause(); _exit(0); }
  printf("%d\n", (int)process_vm_writev(child, &l, 1, &r, 1, 0));
  char p[64]; sprintf(p, "/proc/%d/mem", child);
  printf("%d\n", open(p, O_RDWR)); sprintf(p, "/proc/self/mem"); printf("%d\n", open(p, O_WRONLY));
  kill(child, 9);
}"#;
    compile(&mut bench, "meddle", source);
    let (_, said) = bench.watch("/tmp/meddle");
    assert_eq!(said, "-1\n-1\n-1\n");
}

/// A name that takes long to look up takes long for its caller, not for everybody.
#[test]
fn a_name_that_takes_long_holds_nobody_up() {
    let mut bench = Bench::start();
    let source = r#"
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include <sys/stat.h>
int main() {
  static char t[4096], n[4096]; t[0] = 0;
  chdir("/tmp"); mkdir("w", 0755); chdir("w");
  for (int i = 0; i < 2040; i++) strcat(t, "./");
  symlink(t, "s"); n[0] = 0;
  for (int i = 0; i < 38; i++) strcat(n, "s/");
  for (int i = 0; i < 1980; i++) strcat(n, "m/");
  strcat(n, "f"); for (int i = 0; i < 10; i++) open(n, O_WRONLY | O_CREAT, 0644); return 0;
}"#;
    compile(&mut bench, "long", source);
    // One took nine seconds when each part of a name was looked up anew; nothing here waits for so
    // many of them.
    let (_, said) = bench.watch("/tmp/long; /bin/echo on");
    assert_eq!(said, "on\n");
}
