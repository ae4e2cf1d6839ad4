//! An exec that waits, read into what it asks for.
//!
//! HOSTILE: all of it is read from the memory of a process that can change it while we read, and
//! again before the kernel does. So it only ever refuses, or stands beside what the kernel did.

use ringfence_jail::observe::At;
use rustix::io::Errno;

use super::argv::Argv;
use super::attempts::last_part;
use super::paths::{self, Named};

#[derive(Debug)]
pub struct ExecCall {
    pub thread: i32,
    /// Absent where it cannot be read.
    named: Option<Named>,
    argv_at: u64,
    pub cwd: Vec<u8>,
}

impl ExecCall {
    pub fn read(thread: i32, at: At, argv_at: u64) -> Self {
        Self {
            thread,
            named: Named::read(thread, at).ok(),
            argv_at,
            cwd: paths::link(thread, "cwd"),
        }
    }

    pub fn is_readable(&self) -> bool {
        self.named.is_some()
    }

    /// Why it must fail, where the very name is missing.
    pub fn is_missing(&self) -> Option<Errno> {
        self.named.as_ref()?.is_missing()
    }

    /// The name as it was asked for.
    pub fn asked(&self) -> &[u8] {
        self.named.as_ref().map_or(b"", |named| &named.name)
    }

    /// The last part of that.
    pub fn name(&self) -> &[u8] {
        last_part(self.asked())
    }

    /// The file that it names.
    pub fn file(&self) -> Vec<u8> {
        let place = self.named.as_ref().and_then(|named| named.place().ok());
        place.map_or_else(|| self.asked().to_vec(), |place| place.path)
    }

    /// The arguments, as they are asked for now.
    pub fn argv(&self) -> Argv {
        Argv::asked(self.thread, self.argv_at)
    }
}
