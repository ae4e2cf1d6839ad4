//! The format of git's index file, versions 2, 3 and 4 (prefix-compressed), with both hashes.
//!
//! Every offset is checked: the file may be cut or made up.
//!
//! ```text
//!   "DIRC" version count
//!   entry: ctime mtime dev ino mode uid gid size (10 × u32) · oid · flags [· more flags] · name
//!   extensions: signature size bytes …          trailing hash of the whole
//! ```

use std::ops::Range;

use super::ObjectHash;

/// BOUND: the kernel takes no longer path in one call.
const NAME_BYTES: usize = 4096;
/// BOUND: all names together; version 4 could otherwise expand without end.
const NAMES_BYTES: usize = 1 << 30;

/// Ten words of stat data before the object id.
pub(super) const STAT_BYTES: usize = 40;
/// A second word of flags follows the first.
pub(super) const EXTENDED: u16 = 0x4000;

/// Why an index could not be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    #[error("the file ends too early")]
    Truncated,
    #[error("no index signature")]
    Signature,
    #[error("version {0} of the index is not known")]
    Version(u32),
    #[error("a path is malformed or too long")]
    Name,
    #[error("an extension that must be understood is not known")]
    Extension,
    #[error("the shared part of a split index is missing or does not fit")]
    SplitBase,
}

/// Where an entry's parts are: its name in the arena, its fixed part in `data`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub name: u32,
    pub name_len: u16,
    pub flags: u16,
    pub fixed: u32,
    pub mode: u32,
}

/// One index file taken apart.
pub(super) struct Parsed {
    pub slots: Vec<Slot>,
    /// Payload of the `link` extension.
    pub link: Option<Range<usize>>,
    /// Where optional extensions are that must go since they tell of the host, headers included.
    /// Empty if there is none of that kind.
    pub host_extensions: Vec<Range<usize>>,
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Result<u32, IndexError> {
    let four = bytes
        .get(at..at.saturating_add(4))
        .ok_or(IndexError::Truncated)?;
    Ok(u32::from_be_bytes([four[0], four[1], four[2], four[3]]))
}

/// Takes one index file apart. `origin` is where its bytes will stand in `Index::data`.
pub(super) fn parse(
    bytes: &[u8],
    origin: usize,
    hash: ObjectHash,
    names: &mut Vec<u8>,
) -> Result<Parsed, IndexError> {
    let end = bytes
        .len()
        .checked_sub(hash.bytes())
        .ok_or(IndexError::Truncated)?;
    if bytes.get(..4) != Some(b"DIRC") {
        return Err(IndexError::Signature);
    }
    let version = u32_at(bytes, 4)?;
    if !(2..=4).contains(&version) {
        return Err(IndexError::Version(version));
    }
    let count = u32_at(bytes, 8)? as usize;
    let fixed_bytes = STAT_BYTES + hash.bytes() + 2;
    if count > end / fixed_bytes {
        return Err(IndexError::Truncated);
    }
    let mut slots = Vec::with_capacity(count);
    names.reserve(
        bytes
            .len()
            .saturating_sub(count * fixed_bytes)
            .min(NAMES_BYTES),
    );
    let mut at = 12;
    let mut previous = 0..0;
    for _ in 0..count {
        let start = at;
        let flags_at = start + fixed_bytes - 2;
        let flags = bytes
            .get(flags_at..flags_at + 2)
            .ok_or(IndexError::Truncated)?;
        let mut flags = u16::from_be_bytes([flags[0], flags[1]]);
        at = flags_at + 2;
        if version == 2 {
            flags &= !EXTENDED;
        } else if flags & EXTENDED != 0 {
            at += 2;
        }
        let stripped = if version == 4 {
            Some(varint(bytes, &mut at, end)?)
        } else {
            None
        };
        let rest = bytes.get(at..end).ok_or(IndexError::Truncated)?;
        let known = usize::from(flags & 0xfff);
        let len = if stripped.is_none() && known < 0xfff && rest.get(known) == Some(&0) {
            known
        } else {
            let window = &rest[..rest.len().min(NAME_BYTES + 1)];
            window
                .iter()
                .position(|&b| b == 0)
                .ok_or(IndexError::Name)?
        };
        let suffix = &rest[..len];
        if suffix.contains(&0) {
            return Err(IndexError::Name);
        }
        let name = names.len();
        if let Some(stripped) = stripped {
            let kept = previous
                .len()
                .checked_sub(stripped)
                .ok_or(IndexError::Name)?;
            names.extend_from_within(previous.start..previous.start + kept);
        }
        names.extend_from_slice(suffix);
        previous = name..names.len();
        if previous.len() > NAME_BYTES || names.len() > NAMES_BYTES {
            return Err(IndexError::Name);
        }
        slots.push(Slot {
            name: u32::try_from(name).map_err(|_| IndexError::Name)?,
            name_len: u16::try_from(previous.len()).map_err(|_| IndexError::Name)?,
            flags,
            fixed: u32::try_from(origin + start).map_err(|_| IndexError::Truncated)?,
            mode: u32_at(bytes, start + 24)?,
        });
        // Versions 2 and 3 pad with one to eight zeros to a multiple of eight.
        at = match version {
            4 => at + len + 1,
            _ => start + ((at + len - start + 8) & !7),
        };
    }
    extensions(bytes, at, end).map(|(link, host_extensions)| Parsed {
        slots,
        link,
        host_extensions,
    })
}

type Extensions = (Option<Range<usize>>, Vec<Range<usize>>);

fn extensions(bytes: &[u8], mut at: usize, end: usize) -> Result<Extensions, IndexError> {
    let mut link = None;
    let mut host = Vec::new();
    let mut tells = false;
    while at < end {
        let signature = bytes.get(at..at + 4).ok_or(IndexError::Truncated)?;
        let size = u32_at(bytes, at + 4)? as usize;
        let payload = at + 8..at.saturating_add(8).saturating_add(size);
        if payload.end > end {
            return Err(IndexError::Truncated);
        }
        match signature {
            b"link" => link = Some(payload.clone()),
            b"sdir" => {}
            // The untracked cache names the host's folder, the monitor its clock.
            b"UNTR" | b"FSMN" => {
                tells = true;
                host.push(at..payload.end);
            }
            // These hold offsets and sums that are wrong once the former are gone.
            b"EOIE" | b"IEOT" => host.push(at..payload.end),
            _ if signature[0].is_ascii_uppercase() => {}
            _ => return Err(IndexError::Extension),
        }
        at = payload.end;
    }
    if !tells {
        host.clear();
    }
    Ok((link, host))
}

/// Git's offset encoding, where each further byte adds one.
fn varint(bytes: &[u8], at: &mut usize, end: usize) -> Result<usize, IndexError> {
    let mut value = 0usize;
    // BOUND: five groups of seven bits are beyond any name.
    for group in 0..5 {
        let byte = *bytes[..end].get(*at).ok_or(IndexError::Truncated)?;
        *at += 1;
        if group > 0 {
            value += 1;
        }
        value = (value << 7) | usize::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(IndexError::Name)
}
