//! Filters, walked as the kernel walks them, for the tests of each.

use seccompiler::sock_filter;

use super::allowlist::{ARCHITECTURE_AT, IF_AT_LEAST, IF_EQUAL, LOAD, NUMBER_AT};
use super::watched::{IF_ANY_BIT, argument_at};

/// A call, as a filter sees it.
pub(super) struct Call {
    pub architecture: u32,
    pub number: u32,
    pub arguments: [u32; 6],
}

/// What the kernel would answer.
pub(super) fn walk(program: &[sock_filter], call: &Call) -> u32 {
    let (mut at, mut loaded) = (0, 0);
    loop {
        let step = &program[at];
        at += 1;
        let jump = |met: bool| usize::from(if met { step.jt } else { step.jf });
        match (step.code, step.k) {
            (LOAD, NUMBER_AT) => loaded = call.number,
            (LOAD, ARCHITECTURE_AT) => loaded = call.architecture,
            (LOAD, k) => loaded = call.arguments[((k - argument_at(0)) / 8) as usize],
            (IF_EQUAL, k) => at += jump(loaded == k),
            (IF_AT_LEAST, k) => at += jump(loaded >= k),
            (IF_ANY_BIT, k) => at += jump(loaded & k != 0),
            (_, answer) => return answer,
        }
    }
}
