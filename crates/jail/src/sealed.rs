//! A program in sealed memory: what runs as pid 1 inside can be changed by nobody, and no host
//! file is ever executed through a descriptor that the sandbox could write.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

/// A sealed copy of a program.
#[derive(Debug)]
pub struct Sealed {
    file: OwnedFd,
}

impl Sealed {
    /// Copies the program and seals the copy.
    pub fn new(program: &[u8]) -> io::Result<Self> {
        const MFD_EXEC: MemfdFlags = MemfdFlags::from_bits_retain(0x10);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = match rustix::fs::memfd_create(c"ringfence-guest", flags | MFD_EXEC) {
            // Kernels before 6.3 have no such flag and need none.
            Err(Errno::INVAL) => rustix::fs::memfd_create(c"ringfence-guest", flags)?,
            other => other?,
        };
        let mut rest = program;
        while !rest.is_empty() {
            let written = rustix::io::write(&file, rest)?;
            rest = &rest[written..];
        }
        rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(0o555))?;
        rustix::fs::fcntl_add_seals(
            &file,
            SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
        )?;
        Ok(Self { file })
    }
}

impl AsFd for Sealed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_program_cannot_be_written() {
        let sealed = Sealed::new(b"program").unwrap();
        assert_eq!(rustix::io::pwrite(&sealed, b"x", 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&sealed, 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&sealed, 100), Err(Errno::PERM));
    }
}
