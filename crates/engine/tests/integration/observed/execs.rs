//! Programs that run, and how they end.

use ringfence_model::wire::Request;

use super::{compile, one, ran};
use crate::shared::guest_bench::Bench;

#[test]
fn r25_each_program_is_seen_with_its_arguments_and_its_end() {
    let mut bench = Bench::start();
    let (seen, _) = bench.watch(
        "cd /tmp; /bin/echo 'two words' ''; sh -c 'exit 7'; sh -c 'kill -9 $$'; /bin/false || /bin/true",
    );
    let shell = one(
        &seen,
        &[
            "sh",
            "-c",
            "cd /tmp; /bin/echo 'two words' ''; sh -c 'exit 7'; sh -c 'kill -9 $$'; /bin/false || /bin/true",
        ],
    );
    assert_eq!(shell.exec.parent, None);
    assert_eq!(shell.exec.cwd.as_bytes(), b"/workspace");
    let echo = one(&seen, &["/bin/echo", "two words", ""]);
    assert_eq!(echo.exec.argv.len(), 3);
    assert_eq!(echo.exec.parent, Some(shell.exec.exec));
    assert_eq!(echo.exec.parent_pid, shell.exec.pid);
    assert_eq!(echo.exec.cwd.as_bytes(), b"/tmp");
    assert!(echo.exec.verified && echo.exec.started > 0);
    let end = |argv: &[&str]| {
        let exit = one(&seen, argv).exit.clone().unwrap();
        (exit.code, exit.signal)
    };
    assert_eq!(end(&["/bin/echo"]), (Some(0), None));
    assert_eq!(end(&["sh", "-c", "exit 7"]), (Some(7), None));
    assert_eq!(end(&["sh", "-c", "kill -9 $$"]), (None, Some(9)));
    assert_eq!(end(&["/bin/false"]), (Some(1), None));
    assert_eq!(end(&["/bin/true"]), (Some(0), None));
}

/// The hash is of the file that ran, whatever name was used.
#[test]
fn a_program_is_named_by_its_hash() {
    let mut bench = Bench::start();
    let (seen, said) = bench.watch(
        "cp /bin/true /tmp/innocent; /tmp/innocent; ln -s /bin/true /tmp/link; /tmp/link; sha256sum < /bin/true",
    );
    let expected = said.split(' ').next().unwrap();
    for argv in ["/tmp/innocent", "/tmp/link"] {
        let exec = &one(&seen, &[argv]).exec;
        let program = &seen.programs[&exec.program];
        assert_eq!(program.sha256.as_deref(), Some(expected), "{argv}");
    }
    let link = &one(&seen, &["/tmp/link"]).exec;
    assert!(link.exe.as_bytes().ends_with(b"/true"));
    assert_eq!(link.asked.as_ref().unwrap().as_bytes(), b"/tmp/link");
}

#[test]
fn scripts_static_programs_and_programs_in_memory_are_seen() {
    let mut bench = Bench::start();
    let (seen, said) = bench.watch("printf '#!/bin/sh\\nexit 4\\n' > s; chmod +x s; ./s one; printf 'exit 5' > bare; chmod +x bare; ./bare");
    assert_eq!(said, "");
    let script = one(&seen, &["/bin/sh", "./s", "one"]);
    assert_eq!(script.exec.asked.as_ref().unwrap().as_bytes(), b"./s");
    assert_eq!(script.exit.as_ref().unwrap().code, Some(4));
    // A file without an interpreter line is refused by the kernel and run by the shell itself.
    let refused: Vec<_> = seen
        .failed
        .iter()
        .map(|(_, f)| (f.asked.to_text(), f.errno))
        .collect();
    assert_eq!(refused, [("./bare".to_owned(), 8)]);

    let memory = r#"
#define _GNU_SOURCE
#include <sys/mman.h>
#include <fcntl.h>
#include <unistd.h>
#include <sys/syscall.h>
int main() {
  int m = memfd_create("hid", MFD_CLOEXEC), f = open("/bin/true", O_RDONLY);
  char b[65536]; int n; while ((n = read(f, b, sizeof b)) > 0) write(m, b, n);
  char *argv[] = {"innocent", 0}, *env[] = {0};
  syscall(SYS_execveat, m, "", argv, env, AT_EMPTY_PATH);
  return 9;
}"#;
    compile(&mut bench, "memory", memory);
    let (seen, _) = bench.watch("/tmp/memory");
    let hidden = one(&seen, &["innocent"]);
    assert_eq!(hidden.exec.exe.as_bytes(), b"/memfd:hid (deleted)");
    assert!(seen.programs[&hidden.exec.program].sha256.is_some());
    let before = one(&seen, &["/tmp/memory"]);
    assert_eq!(hidden.exec.replaces, Some(before.exec.exec));
    assert_eq!(hidden.exit.as_ref().unwrap().code, Some(0));

    compile(&mut bench, "plain", "int main() { return 3; }");
    let (seen, said) = bench.watch("cc -static -o /tmp/fixed /tmp/plain.c && env -i /tmp/fixed");
    assert_eq!(said, "");
    assert_eq!(
        one(&seen, &["/tmp/fixed"]).exit.as_ref().unwrap().code,
        Some(3)
    );
    // The loader names the program that it runs among its arguments.
    let loader = "for l in /lib64/ld-linux-*.so.* /lib/ld-linux-*.so.*; do test -e $l && exec $l /bin/echo by-loader; done";
    let (seen, said) = bench.watch(loader);
    assert_eq!(said, "by-loader\n");
    let all = seen.execs.values();
    assert_eq!(
        all.filter(|r| r.exec.argv.iter().any(|a| a.as_bytes() == b"by-loader"))
            .count(),
        1
    );
}

/// Looking a name up in `PATH` is one attempt, and none where it is found.
#[test]
fn failed_attempts_are_seen_once() {
    let mut bench = Bench::start();
    let (seen, _) = bench.watch(
        "PATH=/nowhere:/none:/usr/bin env nothing-of-that-name; env true; ./missing; mkdir d; ./d",
    );
    let failed: Vec<(String, i32)> = seen
        .failed
        .iter()
        .map(|(_, f)| {
            (
                f.argv.first().map(|a| a.to_text()).unwrap_or_default(),
                f.errno,
            )
        })
        .collect();
    let of = |name: &str| failed.iter().filter(|(argv, _)| argv == name).count();
    assert_eq!(
        (of("nothing-of-that-name"), of("true")),
        (1, 0),
        "{failed:?}"
    );
    assert!(failed.contains(&("./d".to_owned(), 13)), "{failed:?}");
    let looked = seen
        .failed
        .iter()
        .find(|(_, f)| f.argv[0].as_bytes() == b"nothing-of-that-name");
    let by = looked.unwrap().1.by.unwrap();
    assert_eq!(seen.execs[&by].exec.argv[0].as_bytes(), b"env");
}

/// A process that execs again is the same process, and each exec is there.
#[test]
fn execs_in_one_process_follow_each_other() {
    let mut bench = Bench::start();
    let (seen, _) = bench.watch("exec sh -c 'exec env X=1 sh -c \"exec /bin/true\"'");
    let last = one(&seen, &["/bin/true"]);
    let line: Vec<String> = seen
        .lineage(last.exec.exec)
        .map(|r| r.exec.argv[0].to_text())
        .collect();
    assert_eq!(line, ["/bin/true", "sh", "env", "sh", "sh"]);
    let pids: std::collections::BTreeSet<i32> = seen.execs.values().map(|r| r.exec.pid).collect();
    assert_eq!(pids.len(), 1);
    let ends = seen.execs.values().filter(|r| r.exit.is_some()).count();
    assert_eq!(ends, 1, "a process ends once");
}

#[test]
fn daemons_and_orphans_keep_their_origin() {
    let mut bench = Bench::start();
    let (seen, _) = bench.watch(
        "sh -c '(setsid sh -c \"/bin/echo gc; : > over\" &)'; until [ -e over ]; do sleep 0.01; done",
    );
    let echo = one(&seen, &["/bin/echo", "gc"]);
    let line: Vec<u64> = seen.lineage(echo.exec.exec).map(|r| r.exec.exec).collect();
    assert_eq!(line.last(), Some(&1), "{line:?} of {:#?}", seen.execs);
}

/// Sanitisers and debuggers inside work, and what they hold is told apart.
#[test]
fn what_is_debugged_works_and_is_not_called_verified() {
    let mut bench = Bench::start();
    let leak =
        "#include <stdlib.h>\nint main() { char *volatile p = malloc(77); p = 0; return 0; }";
    compile(&mut bench, "leak", leak);
    let (_, said) = bench.watch("cc -fsanitize=address -o /tmp/san /tmp/leak.c && /tmp/san");
    assert!(said.contains("77 byte(s) leaked"), "{said}");
    let tracer = r#"
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
int main() {
  pid_t child = fork();
  if (!child) { ptrace(PTRACE_TRACEME, 0, 0, 0); execl("/bin/echo", "echo", "held", (char*)0); _exit(9); }
  int status; int stops = 0;
  while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) { stops++; ptrace(PTRACE_CONT, child, 0, 0); }
  return stops == 1 ? 0 : 8;
}"#;
    compile(&mut bench, "tracer", tracer);
    let (seen, said) = bench.watch("/tmp/tracer; echo $?");
    assert_eq!(said, "held\n0\n");
    let held = one(&seen, &["echo", "held"]);
    assert!(!held.exec.verified);
    assert!(held.exec.exe.as_bytes().ends_with(b"/echo"));
    assert!(one(&seen, &["/tmp/tracer"]).exec.verified);
}

/// Any thread may execute; the process goes on with its first number.
#[test]
fn a_thread_that_executes_is_seen() {
    let mut bench = Bench::start();
    let source = r#"
#include <pthread.h>
#include <unistd.h>
void *go(void *x) { execl("/bin/echo", "echo", "thread", (char*)0); return 0; }
int main() { pthread_t t; pthread_create(&t, 0, go, 0); pthread_join(t, 0); return 9; }"#;
    compile(&mut bench, "threads", source);
    let (seen, said) = bench.watch("/tmp/threads");
    assert_eq!(said, "thread\n");
    let before = one(&seen, &["/tmp/threads"]);
    let echo = one(&seen, &["echo", "thread"]);
    assert!(echo.exec.verified);
    assert_eq!(echo.exec.replaces, Some(before.exec.exec));
    assert_eq!(echo.exec.pid, before.exec.pid);
}

#[test]
fn many_short_processes_are_all_seen() {
    let mut bench = Bench::start();
    let (seen, _) = bench.watch("for j in 1 2 3 4; do (i=0; while [ $i -lt 250 ]; do /bin/true; i=$((i+1)); done) & done; wait");
    let all = ran(&seen, &["/bin/true"]);
    assert_eq!(all.len(), 1000);
    assert!(
        all.iter()
            .all(|r| r.exit.as_ref().is_some_and(|e| e.code == Some(0)))
    );
    assert!(all.iter().all(|r| r.exec.verified));
}

/// A process that is forked while another one ends has a copy of what it is waited for by.
#[test]
fn commands_that_begin_while_others_end_are_not_held_up() {
    let mut bench = Bench::start();
    let mut streams = Vec::new();
    for _ in 0..200 {
        streams.push(
            bench.send(&Request::Exec(crate::shared::guest_bench::exec(&[
                "/bin/true",
            ]))),
        );
    }
    for stream in streams {
        assert_eq!(bench.finish(stream).exited.code, Some(0));
    }
}
