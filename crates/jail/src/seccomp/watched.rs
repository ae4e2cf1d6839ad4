//! The filter that makes what a command does visible: execs, and calls that change files.
//!
//! It is installed by each warden, never by the guest, who answers: a process that waits for its own
//! answer waits for ever. Whoever is below such a filter cannot get another listener.

use std::collections::BTreeMap;

use seccompiler::sock_filter;

use super::allowlist::{IF_AT_LEAST, IF_EQUAL, LOAD, NUMBER_AT, RETURN, instruction};

/// Where the kernel puts the low half of an argument.
#[cfg(target_endian = "little")]
pub(super) const fn argument_at(index: u32) -> u32 {
    16 + 8 * index
}

pub(super) const IF_ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const SHOWN: u32 = 0x7fc0_0000;
const NEW_LISTENER: u32 = 8;
/// With any of these, opening a file is asking to change it.
const WRITING: u32 = (libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC) as u32;

/// Which calls are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Always,
    /// With any of these bits in this argument.
    Bits(u32, u32),
    /// Never shown: answered with this error where any of these bits is in this argument.
    Refused(u32, u32, i32),
    /// Always answered with this error.
    Never(i32),
}

#[rustfmt::skip]
const CALLS: &[(libc::c_long, When)] = &[
    (libc::SYS_execve, When::Always), (libc::SYS_execveat, When::Always),
    // An early call of glibc in a process that was forked (there the first), in a thread, and in a program. No
    // call that forks can be shown: a signal interrupts who waits for its answer, and nobody expects that of a fork.
    (libc::SYS_set_robust_list, When::Always),
    (libc::SYS_openat, When::Bits(2, WRITING)),
    // Its flags are in memory, out of sight. Every program knows kernels without it.
    (libc::SYS_openat2, When::Never(libc::ENOSYS)),
    (libc::SYS_truncate, When::Always), (libc::SYS_unlinkat, When::Always),
    (libc::SYS_renameat2, When::Always), (libc::SYS_linkat, When::Always),
    (libc::SYS_symlinkat, When::Always), (libc::SYS_mknodat, When::Always),
    (libc::SYS_fchmod, When::Always), (libc::SYS_fchmodat, When::Always),
    (libc::SYS_fchmodat2, When::Always), (libc::SYS_renameat, When::Always),
    // An access list in an attribute is a mode.
    (libc::SYS_setxattr, When::Always), (libc::SYS_lsetxattr, When::Always),
    (libc::SYS_fsetxattr, When::Always),
    (libc::SYS_seccomp, When::Refused(1, NEW_LISTENER, libc::EPERM)),
];

/// The older forms that only x86-64 has.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const CALLS_HERE: &[(libc::c_long, When)] = &[
    (libc::SYS_open, When::Bits(1, WRITING)), (libc::SYS_creat, When::Always),
    (libc::SYS_unlink, When::Always), (libc::SYS_rename, When::Always),
    (libc::SYS_link, When::Always), (libc::SYS_symlink, When::Always),
    (libc::SYS_mknod, When::Always), (libc::SYS_chmod, When::Always),
];
#[cfg(target_arch = "aarch64")]
const CALLS_HERE: &[(libc::c_long, When)] = &[];

/// The program. The allowlist, which is always below it, has dealt with other architectures.
///
/// ```text
/// for each call, ascending:   beyond it? next    not it? allow    else its own answer
/// ```
pub(super) fn program() -> Vec<sock_filter> {
    let calls: BTreeMap<u32, When> = CALLS
        .iter()
        .chain(CALLS_HERE)
        .map(|&(call, when)| (call as u32, when))
        .collect();
    let answer = |k: u32| instruction(RETURN, k, 0, 0);
    let allow = answer(libc::SECCOMP_RET_ALLOW);
    let refused = |errno: i32| libc::SECCOMP_RET_ERRNO | errno as u32;
    let mut program = vec![instruction(LOAD, NUMBER_AT, 0, 0)];
    for (call, when) in calls {
        let own = match when {
            When::Always => vec![answer(SHOWN)],
            When::Never(errno) => vec![answer(refused(errno))],
            When::Bits(argument, bits) => with_bits(argument, bits, SHOWN),
            When::Refused(argument, bits, errno) => with_bits(argument, bits, refused(errno)),
        };
        let length = own.len() as u8;
        program.extend([
            instruction(IF_AT_LEAST, call + 1, length + 2, 0),
            instruction(IF_EQUAL, call, 1, 0),
            allow.clone(),
        ]);
        program.extend(own);
    }
    program.push(allow);
    program
}

fn with_bits(argument: u32, bits: u32, met: u32) -> Vec<sock_filter> {
    vec![
        instruction(LOAD, argument_at(argument), 0, 0),
        instruction(IF_ANY_BIT, bits, 0, 1),
        instruction(RETURN, met, 0, 0),
        instruction(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::allowlist::ARCHITECTURE;
    use super::super::walk::{Call, walk};
    use super::*;

    #[test]
    fn what_changes_something_is_shown_and_nothing_else_is() {
        let program = program();
        let named: BTreeMap<u32, When> = CALLS
            .iter()
            .chain(CALLS_HERE)
            .map(|&(call, when)| (call as u32, when))
            .collect();
        for number in 0..1024 {
            for bits in [0, 1, 2, 0o100, 0o1000, NEW_LISTENER, u32::MAX] {
                for argument in 0..6 {
                    let mut arguments = [0; 6];
                    arguments[argument as usize] = bits;
                    let expected = match named.get(&number) {
                        Some(When::Always) => SHOWN,
                        Some(When::Never(errno)) => libc::SECCOMP_RET_ERRNO | *errno as u32,
                        Some(&When::Bits(at, mask)) if at == argument && bits & mask != 0 => SHOWN,
                        Some(&When::Refused(at, mask, errno))
                            if at == argument && bits & mask != 0 =>
                        {
                            libc::SECCOMP_RET_ERRNO | errno as u32
                        }
                        _ => libc::SECCOMP_RET_ALLOW,
                    };
                    let call = Call {
                        architecture: ARCHITECTURE,
                        number,
                        arguments,
                    };
                    assert_eq!(walk(&program, &call), expected, "{number}");
                }
            }
        }
    }

    /// A call that changes entries by name and is allowed is shown, or nobody knows who did it.
    #[test]
    fn every_allowed_call_that_opens_or_renames_is_shown() {
        let shown: Vec<libc::c_long> = CALLS.iter().chain(CALLS_HERE).map(|c| c.0).collect();
        for call in [
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_openat,
            libc::SYS_openat2,
            libc::SYS_renameat2,
            libc::SYS_linkat,
            libc::SYS_symlinkat,
            libc::SYS_unlinkat,
            libc::SYS_truncate,
            libc::SYS_fchmod,
            libc::SYS_fchmodat2,
            libc::SYS_setxattr,
            libc::SYS_lsetxattr,
            libc::SYS_fsetxattr,
        ] {
            assert!(shown.contains(&call), "{call}");
            assert!(super::super::ALLOWED.contains(&call), "{call}");
        }
    }
}
