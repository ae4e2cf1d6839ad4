//! The allowlist of system calls as a short program over runs of neighbouring numbers.
//!
//! A chain of one comparison for each call has 1,700 instructions, and the kernel walks it for
//! every number that exists when it is installed: a millisecond of each sandbox's start. The
//! allowed numbers lie in some sixty runs, and a run needs two comparisons.
//!
//! ```text
//! another architecture?  kill
//! for each run, ascending:   beyond it? next run    in it? allow    else (a gap): refuse
//! beyond the last run:       refuse
//! ```
//!
//! Every jump is to a fixed distance inside its own run, so there is nothing to compute or to get
//! wrong with their number. Tests walk the program for every number.

use std::collections::BTreeSet;

use seccompiler::sock_filter;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Where the kernel puts the number of the call, and the architecture.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// A program that allows these calls, answers `ENOSYS` to all others, and kills what calls by
/// another architecture's numbers.
pub(super) fn program(calls: &BTreeSet<u32>) -> Vec<sock_filter> {
    let answer = |k: u32| instruction(RETURN, k, 0, 0);
    let refuse = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    let mut program = vec![
        instruction(LOAD, ARCHITECTURE_AT, 0, 0),
        instruction(IF_EQUAL, ARCHITECTURE, 1, 0),
        answer(libc::SECCOMP_RET_KILL_PROCESS),
        instruction(LOAD, NUMBER_AT, 0, 0),
    ];
    for (first, last) in runs(calls) {
        program.extend([
            instruction(IF_AT_LEAST, last + 1, 3, 0),
            instruction(IF_AT_LEAST, first, 0, 1),
            answer(libc::SECCOMP_RET_ALLOW),
            answer(refuse),
        ]);
    }
    program.push(answer(refuse));
    program
}

fn instruction(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// First and last number of each run of neighbours.
fn runs(calls: &BTreeSet<u32>) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &call in calls {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == call => *last = call,
            _ => runs.push((call, call)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would answer.
    fn walk(program: &[sock_filter], architecture: u32, number: u32) -> u32 {
        let (mut at, mut loaded) = (0, 0);
        loop {
            let step = &program[at];
            at += 1;
            let jump = |met: bool| usize::from(if met { step.jt } else { step.jf });
            match step.code {
                LOAD if step.k == NUMBER_AT => loaded = number,
                LOAD => loaded = architecture,
                IF_EQUAL => at += jump(loaded == step.k),
                IF_AT_LEAST => at += jump(loaded >= step.k),
                _ => return step.k,
            }
        }
    }

    #[test]
    fn what_is_named_is_allowed_and_nothing_else() {
        let lists = [
            BTreeSet::new(),
            BTreeSet::from([0]),
            BTreeSet::from([1, 2, 3, 5, 7, 8, 200, 451]),
            super::super::passing().collect(),
        ];
        for calls in lists {
            let program = program(&calls);
            let x32 = 0x4000_0000;
            for number in (0..4096).chain(x32..x32 + 4096).chain([u32::MAX, 1 << 31]) {
                let answer = walk(&program, ARCHITECTURE, number);
                let allowed = answer == libc::SECCOMP_RET_ALLOW;
                assert_eq!(allowed, calls.contains(&number), "{number}");
                assert!(allowed || answer == libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32);
                let elsewhere = walk(&program, ARCHITECTURE ^ 1, number);
                assert_eq!(elsewhere, libc::SECCOMP_RET_KILL_PROCESS);
            }
        }
    }
}
