//! Lists of arguments: as the kernel copied them, or as a process asks for them.

use std::fs::File;
use std::io::Read as _;

use ringfence_jail::observe::read_memory;
use ringfence_model::ByteText;
use ringfence_model::observed::Cut;
use sha2::{Digest as _, Sha256};

/// BOUND: of a list, so many bytes and so many arguments are kept.
const KEPT_BYTES: usize = 8192;
const KEPT: usize = 1024;
/// BOUND: what is read of a list that was only asked for.
const ASKED_BYTES: usize = 64 << 10;
const PAGE: u64 = 4096;

#[derive(Debug, Default, Clone)]
pub struct Argv {
    pub kept: Vec<ByteText>,
    pub cut: Option<Cut>,
    /// The process could not be read.
    pub unread: bool,
}

impl Argv {
    /// What the kernel copied into a process that has not run yet.
    pub fn of_process(process: i32) -> Self {
        let mut list = Vec::new();
        // The kernel bounds it. Nobody inside can write into another process: the filter and
        // Landlock see to that.
        let read = File::open(format!("/proc/{process}/cmdline"))
            .and_then(|mut file| file.read_to_end(&mut list));
        match read {
            Ok(_) => Self::of_list(&list),
            Err(_) => Self {
                unread: true,
                ..Self::default()
            },
        }
    }

    /// What a thread asks for.
    ///
    /// HOSTILE: it can be anything, and change while it is read.
    pub fn asked(thread: i32, address: u64) -> Self {
        let mut list = Vec::new();
        let mut pointers = [0; 8 * 64];
        let mut at = address;
        'all: while address != 0 && list.len() < ASKED_BYTES {
            let count = read_memory(thread, at, &mut pointers).unwrap_or(0);
            if count < 8 {
                break;
            }
            for pointer in pointers[..count].chunks_exact(8) {
                let pointer = u64::from_ne_bytes(pointer.try_into().unwrap_or_default());
                if pointer == 0 || list.len() >= ASKED_BYTES {
                    break 'all;
                }
                read_string(thread, pointer, &mut list);
                list.push(0);
            }
            at += count as u64 / 8 * 8;
        }
        Self::of_list(&list)
    }

    fn of_list(list: &[u8]) -> Self {
        let whole = list.strip_suffix(&[0]).unwrap_or(list);
        if list.is_empty() {
            return Self::default();
        }
        let mut kept = Vec::new();
        let mut bytes = 0;
        let mut all = true;
        for argument in whole.split(|&byte| byte == 0) {
            if kept.len() == KEPT || bytes + argument.len() > KEPT_BYTES {
                // The beginning of a long one says more than nothing.
                if kept.len() < KEPT {
                    kept.push(ByteText::from(&argument[..KEPT_BYTES - bytes]));
                }
                all = false;
                break;
            }
            bytes += argument.len();
            kept.push(ByteText::from(argument));
        }
        let cut = (!all).then(|| Cut {
            bytes: list.len() as u64,
            sha256: ringfence_model::hex(&Sha256::digest(list)),
        });
        Self {
            kept,
            cut,
            unread: false,
        }
    }
}

fn read_string(thread: i32, address: u64, list: &mut Vec<u8>) {
    let mut page = [0; PAGE as usize];
    let mut at = address;
    while list.len() < ASKED_BYTES {
        let in_page = (PAGE - at % PAGE) as usize;
        let count = read_memory(thread, at, &mut page[..in_page]).unwrap_or(0);
        let end = page[..count].iter().position(|&byte| byte == 0);
        list.extend_from_slice(&page[..end.unwrap_or(count)]);
        if end.is_some() || count == 0 {
            return;
        }
        at += count as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_kept_whole_or_cut_with_their_hash() {
        let small = Argv::of_list(b"a\0\0b\n\0");
        assert_eq!(
            small.kept,
            [&b"a"[..], b"", b"b\n"].map(ByteText::from).to_vec()
        );
        assert_eq!(small.cut, None);
        assert!(Argv::of_list(b"").kept.is_empty());
        assert_eq!(Argv::of_list(b"\0").kept, vec![ByteText::default()]);

        let long = [vec![b'x'; KEPT_BYTES - 1], b"\0yz\0end\0".to_vec()].concat();
        let cut = Argv::of_list(&long);
        assert_eq!(cut.kept.len(), 2);
        assert_eq!(cut.kept[1].as_bytes(), b"y");
        assert_eq!(cut.cut.unwrap().bytes, long.len() as u64);

        let many = b"a\0".repeat(KEPT + 1);
        let cut = Argv::of_list(&many);
        assert_eq!((cut.kept.len(), cut.cut.is_some()), (KEPT, true));
    }
}
