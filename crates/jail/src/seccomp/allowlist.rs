//! The allowlist of system calls as a short program over runs of neighbouring numbers.
//!
//! A chain of one comparison for each call has 1,700 instructions, and the kernel walks it for
//! every number that exists when it is installed: a millisecond of each sandbox's start. The
//! named numbers lie in some eighty runs, and a run needs two comparisons.
//!
//! ```text
//! another architecture?  kill
//! for each run, ascending:   beyond it? next run    in it? its answer    else (a gap): unknown
//! beyond the last run:       unknown
//! ```
//!
//! Every jump is to a fixed distance inside its own run, so there is nothing to compute or to get
//! wrong with their number. Tests walk the program for every number.

use std::collections::BTreeMap;

use seccompiler::sock_filter;

#[cfg(target_arch = "x86_64")]
pub(super) const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(super) const ARCHITECTURE: u32 = 0xc000_00b7;

/// Where the kernel puts the number of the call, and the architecture.
pub(super) const NUMBER_AT: u32 = 0;
pub(super) const ARCHITECTURE_AT: u32 = 4;

pub(super) const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
pub(super) const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
pub(super) const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
pub(super) const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// A program that gives each named call its answer, `ENOSYS` to all others, and kills what calls by
/// another architecture's numbers.
pub(super) fn program(answers: &BTreeMap<u32, u32>) -> Vec<sock_filter> {
    let answer = |k: u32| instruction(RETURN, k, 0, 0);
    let unknown = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    let mut program = vec![
        instruction(LOAD, ARCHITECTURE_AT, 0, 0),
        instruction(IF_EQUAL, ARCHITECTURE, 1, 0),
        answer(libc::SECCOMP_RET_KILL_PROCESS),
        instruction(LOAD, NUMBER_AT, 0, 0),
    ];
    for run in runs(answers) {
        program.extend([
            instruction(IF_AT_LEAST, run.last + 1, 3, 0),
            instruction(IF_AT_LEAST, run.first, 0, 1),
            answer(run.answer),
            answer(unknown),
        ]);
    }
    program.push(answer(unknown));
    program
}

pub(super) fn instruction(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// Neighbouring numbers with one answer.
struct Run {
    first: u32,
    last: u32,
    answer: u32,
}

fn runs(answers: &BTreeMap<u32, u32>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (&call, &answer) in answers {
        match runs.last_mut() {
            Some(run) if run.last + 1 == call && run.answer == answer => run.last = call,
            _ => runs.push(Run {
                first: call,
                last: call,
                answer,
            }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::super::walk::{Call, walk};
    use super::*;

    #[test]
    fn what_is_named_gets_its_answer_and_nothing_else_does() {
        let (allow, refuse) = (libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_ERRNO | 1);
        let unknown = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
        let lists = [
            BTreeMap::new(),
            BTreeMap::from([(0, allow)]),
            BTreeMap::from(
                [1, 2, 3, 5, 7, 8, 200, 451].map(|n| (n, if n == 2 { refuse } else { allow })),
            ),
            super::super::answers(),
        ];
        for answers in lists {
            let program = program(&answers);
            let x32 = 0x4000_0000;
            for number in (0..4096).chain(x32..x32 + 4096).chain([u32::MAX, 1 << 31]) {
                let expected = answers.get(&number).copied().unwrap_or(unknown);
                let answer = |architecture| {
                    let call = Call {
                        architecture,
                        number,
                        arguments: [0; 6],
                    };
                    walk(&program, &call)
                };
                assert_eq!(answer(ARCHITECTURE), expected, "{number}");
                let elsewhere = answer(ARCHITECTURE ^ 1);
                assert_eq!(elsewhere, libc::SECCOMP_RET_KILL_PROCESS);
            }
        }
    }
}
