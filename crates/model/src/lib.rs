//! Nouns, rules and formats. No IO, no clock, no async, no unsafe: everything here is a plain
//! function over plain data, so that each rule can be tested as a table.

pub mod agent;
pub mod attribution;
pub mod bundle;
pub mod bytes;
pub mod campaign;
pub mod changes;
pub mod check;
pub mod claim;
pub mod environment;
pub mod eval;
pub mod flag;
pub mod gate;
pub mod guarantees;
pub mod holding;
pub mod host;
pub mod image;
pub mod init;
pub mod journal;
pub mod limits;
pub mod needles;
pub mod observed;
pub mod outcome;
pub mod paths;
pub mod plan;
pub mod policy;
pub mod rounds;
pub mod sandbox;
pub mod site;
pub mod split;
pub mod strict;
pub mod task;
pub mod text;
pub mod tools;
pub mod verdict;
pub mod wire;

pub use bytes::ByteText;

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|byte| {
            [
                DIGITS[usize::from(byte >> 4)],
                DIGITS[usize::from(byte & 15)],
            ]
        })
        .map(char::from)
        .collect()
}
