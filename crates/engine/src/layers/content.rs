//! Copying the bytes of a file: shared where the file system can, else data by data, holes left out.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// Whether the file system was seen to share blocks between files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cloning {
    Tried,
    Refused,
}

/// BOUND: bytes asked for in one call, so that a signal is not kept waiting.
const STEP: u64 = 64 << 20;
const BUFFER: usize = 128 << 10;

/// Makes `to`, which is empty, what `from` is, and gives the bytes that were written.
pub(super) fn copy(from: &File, to: &File, size: u64, cloning: &mut Cloning) -> io::Result<u64> {
    if size == 0 {
        return Ok(0);
    }
    if *cloning == Cloning::Tried {
        match rustix::fs::ioctl_ficlone(to, from) {
            Ok(()) => return Ok(0),
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::XDEV | Errno::NOSYS) => {
                *cloning = Cloning::Refused;
            }
            // This file only.
            Err(_) => {}
        }
    }
    rustix::fs::ftruncate(to, size)?;
    let mut written = 0;
    let mut at = 0;
    while let Some((start, end)) = data(from, at, size)? {
        copy_range(from, to, start, end)?;
        written += end - start;
        at = end;
    }
    Ok(written)
}

/// The next stretch at or after `at` that is not a hole.
pub(super) fn data(file: &File, at: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if at >= size {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // A file system without holes.
        Err(Errno::INVAL) => return Ok(Some((at, size))),
        Err(errno) => return Err(errno.into()),
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start))?.min(size);
    Ok((start < end).then_some((start, end)))
}

fn copy_range(from: &File, to: &File, start: u64, end: u64) -> io::Result<()> {
    let (mut read_at, mut write_at) = (start, start);
    while read_at < end {
        let length = usize::try_from((end - read_at).min(STEP)).unwrap_or(BUFFER);
        let (source, target) = (Some(&mut read_at), Some(&mut write_at));
        match rustix::fs::copy_file_range(from, source, to, target, length) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL | Errno::PERM) => {
                return copy_by_hand(from, to, read_at, end);
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn copy_by_hand(from: &File, to: &File, mut at: u64, end: u64) -> io::Result<()> {
    let mut buffer = vec![0_u8; BUFFER];
    while at < end {
        let wanted = usize::try_from(end - at).map_or(BUFFER, |rest| rest.min(BUFFER));
        let length = from.read_at(&mut buffer[..wanted], at)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        to.write_all_at(&buffer[..length], at)?;
        at += length as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_stay_holes_by_every_way() {
        use std::os::unix::fs::MetadataExt as _;
        let (from, to, by_hand) = (file(), file(), file());
        from.set_len(1 << 40).unwrap();
        from.write_all_at(b"in the middle", 1 << 39).unwrap();
        let mut cloning = Cloning::Refused;
        let written = copy(&from, &to, 1 << 40, &mut cloning).unwrap();
        copy_by_hand(&from, &by_hand, 1 << 39, (1 << 39) + 4096).unwrap();
        assert!(written < 1 << 20, "{written}");
        for made in [&to, &by_hand] {
            let mut read = [0_u8; 13];
            made.read_exact_at(&mut read, 1 << 39).unwrap();
            assert_eq!(&read, b"in the middle");
            assert!(made.metadata().unwrap().blocks() < 2048);
        }
        assert_eq!(to.metadata().unwrap().len(), 1 << 40);
    }

    fn file() -> File {
        tempfile::tempfile().unwrap()
    }
}
