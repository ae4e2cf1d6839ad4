//! The guest program, embedded, and its sealed copy in memory.

use std::io;
use std::sync::OnceLock;

use ringfence_jail::sealed::Sealed;

static PROGRAM: &[u8] = include_bytes!(env!("RINGFENCE_GUEST"));

/// The sealed copy: made once in a process, used for every sandbox it starts.
pub fn sealed() -> io::Result<&'static Sealed> {
    static SEALED: OnceLock<Sealed> = OnceLock::new();
    if let Some(sealed) = SEALED.get() {
        return Ok(sealed);
    }
    let sealed = Sealed::new(PROGRAM)?;
    Ok(SEALED.get_or_init(|| sealed))
}
