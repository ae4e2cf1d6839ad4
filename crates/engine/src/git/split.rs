//! What is done with whole index files: joining a split one, taking a sub-folder out of one, and
//! dropping what tells of the host.

use std::ops::Range;

use super::ObjectHash;
use super::index::Index;
use super::index_file::{IndexError, Slot, u32_at};

/// The name of the shared file that an index builds on, if it is split.
pub(super) fn base_name(
    bytes: &[u8],
    link: Option<Range<usize>>,
    hash: ObjectHash,
) -> Result<Option<String>, IndexError> {
    let Some(link) = link else { return Ok(None) };
    let oid = bytes[link]
        .get(..hash.bytes())
        .ok_or(IndexError::Truncated)?;
    if oid.iter().all(|&b| b == 0) {
        return Ok(None);
    }
    let hex: String = oid.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Some(format!("sharedindex.{hex}")))
}

/// Joins the shared entries with those of the index proper: some are deleted, some replaced (they
/// come first and have no name), the rest are added.
pub(super) fn merge(
    base: Vec<Slot>,
    own: Vec<Slot>,
    link: &[u8],
    hash: ObjectHash,
) -> Result<Vec<Slot>, IndexError> {
    let bitmaps = &link[hash.bytes()..];
    let (mut deleted, mut replaced) = (vec![false; base.len()], vec![false; base.len()]);
    if !bitmaps.is_empty() {
        let used = ewah(bitmaps, &mut deleted)?;
        ewah(&bitmaps[used..], &mut replaced)?;
    }
    let mut own = own.into_iter().peekable();
    let mut merged = Vec::with_capacity(base.len() + own.len());
    for (at, slot) in base.into_iter().enumerate() {
        let mut slot = slot;
        if replaced[at] {
            let by = own
                .next_if(|own| own.name_len == 0)
                .ok_or(IndexError::SplitBase)?;
            slot = Slot {
                name: slot.name,
                name_len: slot.name_len,
                ..by
            };
        }
        if !deleted[at] {
            merged.push(slot);
        }
    }
    merged.extend(own);
    Ok(merged)
}

/// Sets the bits of git's compressed bitmap; gives the number of bytes that it took.
///
/// Word by word: a marker says how many equal words and how many literal ones follow it.
fn ewah(bytes: &[u8], bits: &mut [bool]) -> Result<usize, IndexError> {
    let words = u32_at(bytes, 4)? as usize;
    let end = words
        .checked_mul(8)
        .and_then(|n| n.checked_add(12))
        .ok_or(IndexError::Truncated)?;
    let body = bytes
        .get(8..end.saturating_sub(4))
        .ok_or(IndexError::Truncated)?;
    let mut words = body
        .chunks_exact(8)
        .map(|c| u64::from_be_bytes([c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]]));
    let mut at = 0usize;
    while let Some(marker) = words.next() {
        let run = usize::try_from((marker >> 1) & 0xffff_ffff).unwrap_or(usize::MAX);
        let literals = marker >> 33;
        let run_end = at.saturating_add(run.saturating_mul(64));
        if marker & 1 == 1 {
            let (from, to) = (at.min(bits.len()), run_end.min(bits.len()));
            bits[from..to].fill(true);
        }
        at = run_end;
        for _ in 0..literals {
            let word = words.next().ok_or(IndexError::Truncated)?;
            for bit in 0..64 {
                if word >> bit & 1 == 1
                    && let Some(slot) = at.checked_add(bit).and_then(|at| bits.get_mut(at))
                {
                    *slot = true;
                }
            }
            at = at.saturating_add(64);
        }
    }
    Ok(end)
}

/// An index file without some of its extensions.
///
/// The trailing hash becomes zeros, which git reads as "not computed" (`index.skipHash`).
pub(super) fn without(bytes: &[u8], extensions: &[Range<usize>], hash: ObjectHash) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    for range in extensions {
        out.extend_from_slice(&bytes[at..range.start]);
        at = range.end;
    }
    out.extend_from_slice(&bytes[at..bytes.len() - hash.bytes()]);
    out.resize(out.len() + hash.bytes(), 0);
    out
}

/// An index file of the entries below a folder, named relative to it; `None` if sparse
/// directories make that impossible.
pub(super) fn of_folder(index: &Index, folder: &[u8], hash: ObjectHash) -> Option<Vec<u8>> {
    let slots = index.slots_below(folder);
    let extended = slots
        .iter()
        .any(|slot| index.extended_flags(slot).is_some());
    let version: u32 = if extended { 3 } else { 2 };
    let mut out = b"DIRC".to_vec();
    out.extend_from_slice(&version.to_be_bytes());
    out.extend_from_slice(&u32::try_from(slots.len()).ok()?.to_be_bytes());
    for slot in slots {
        let start = out.len();
        let name = index.name(slot).get(folder.len() + 1..)?;
        if name.is_empty() || name.ends_with(b"/") {
            return None;
        }
        out.extend_from_slice(index.stat_and_oid(slot));
        let len = u16::try_from(name.len().min(0xfff)).ok()?;
        out.extend_from_slice(&((slot.flags & 0xf000) | len).to_be_bytes());
        if let Some(flags) = index.extended_flags(slot) {
            out.extend_from_slice(&flags.to_be_bytes());
        }
        out.extend_from_slice(name);
        let padded = (out.len() - start + 8) & !7;
        out.resize(start + padded, 0);
    }
    out.resize(out.len() + hash.bytes(), 0);
    Some(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An index file of version 2 with entries of these names.
    fn made(names: &[&str]) -> Vec<u8> {
        let mut out = b"DIRC\0\0\0\x02".to_vec();
        out.extend_from_slice(&(names.len() as u32).to_be_bytes());
        for name in names {
            let start = out.len();
            out.extend_from_slice(&[0; 24]);
            out.extend_from_slice(&0o100644u32.to_be_bytes());
            out.extend_from_slice(&[0; 12 + 20]);
            out.extend_from_slice(&(name.len() as u16).to_be_bytes());
            out.extend_from_slice(name.as_bytes());
            out.resize(start + ((out.len() - start + 8) & !7), 0);
        }
        out.resize(out.len() + 20, 0);
        out
    }

    #[test]
    fn tracked_paths_are_found_by_name_and_by_directory() {
        let names = ["a", "a.c", "a/b", "a/c/d", "b-x", "b/y", "z"];
        let index = Index::parse(&made(&names), ObjectHash::Sha1).unwrap();
        for name in names {
            assert!(index.is_tracked(name.as_bytes()), "{name}");
        }
        for (dir, below) in [
            ("", true),
            ("a", true),
            ("a/c", true),
            ("b", true),
            ("z", false),
        ] {
            assert_eq!(index.has_tracked_below(dir.as_bytes()), below, "{dir}");
        }
        assert!(!index.is_tracked(b"b"));
        assert!(!index.is_tracked(b"a/c"));
        let below: Vec<_> = index.below(b"a").map(|e| e.path.to_vec()).collect();
        assert_eq!(below, [b"a/b".to_vec(), b"a/c/d".to_vec()]);
    }

    #[test]
    fn a_folder_can_be_taken_out() {
        let index = Index::parse(&made(&["a", "sub/b", "sub/c/d"]), ObjectHash::Sha1).unwrap();
        let bytes = of_folder(&index, b"sub", ObjectHash::Sha1).unwrap();
        let names: Vec<_> = Index::parse(&bytes, ObjectHash::Sha1)
            .unwrap()
            .entries()
            .map(|e| e.path.to_vec())
            .collect();
        assert_eq!(names, [b"b".to_vec(), b"c/d".to_vec()]);
    }

    #[test]
    fn a_bitmap_has_runs_and_literals() {
        let mut bytes = 200u32.to_be_bytes().to_vec();
        bytes.extend_from_slice(&2u32.to_be_bytes());
        // One word of ones, then one literal with bits 0 and 3.
        bytes.extend_from_slice(&(1u64 | 1 << 1 | 1 << 33).to_be_bytes());
        bytes.extend_from_slice(&0b1001u64.to_be_bytes());
        bytes.extend_from_slice(&0u32.to_be_bytes());
        let mut bits = vec![false; 70];
        assert_eq!(ewah(&bytes, &mut bits), Ok(28));
        let expected: Vec<bool> = (0..70).map(|at| at <= 64 || at == 67).collect();
        assert_eq!(bits, expected);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(
            version in 2u8..5,
            count in 0u8..4,
            tail in proptest::collection::vec(any::<u8>(), 0..400),
        ) {
            let mut bytes = b"DIRC\0\0\0".to_vec();
            bytes.extend_from_slice(&[version, 0, 0, 0, count]);
            bytes.extend_from_slice(&tail);
            let _ = Index::parse(&bytes, ObjectHash::Sha1);
            let _ = Index::parse(&bytes, ObjectHash::Sha256);
        }

        #[test]
        fn no_damage_makes_it_panic(
            at in 0usize..300,
            byte in any::<u8>(),
            cut in 0usize..400,
        ) {
            let mut bytes = made(&["a", "sub/b", "sub/c/d"]);
            let len = bytes.len();
            bytes[at % len] = byte;
            bytes.truncate(len - cut.min(len));
            if let Ok(index) = Index::parse(&bytes, ObjectHash::Sha1) {
                let _ = of_folder(&index, b"sub", ObjectHash::Sha1);
                let _ = index.is_tracked(b"sub/b");
            }
        }
    }
}
