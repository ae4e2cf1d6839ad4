//! What is asked of a run, resolved: no flag, file or environment variable is looked at later.

use std::path::PathBuf;

use ringfence_model::ByteText;
use ringfence_model::limits::Limits;
use ringfence_model::wire::WindowSize;

use crate::error::Error;
use crate::workspace::{self, View};

/// Where programs are looked for inside.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// BOUND: less than this does not hold a shell and the guest.
pub(crate) const LEAST_MEMORY: u64 = 16 << 20;

/// One run.
#[derive(Clone, Debug)]
pub struct RunRequest {
    pub folder: PathBuf,
    pub argv: Vec<ByteText>,
    pub name: Option<String>,
    pub limits: Limits,
    /// A limit that is only watched on this host stops the run before it begins.
    pub require_hard: bool,
    /// Variables beyond the plain ones that every sandbox has.
    pub env: Vec<(ByteText, ByteText)>,
    pub view: View,
    /// A terminal of this size instead of pipes.
    pub terminal: Option<WindowSize>,
}

impl RunRequest {
    pub(super) fn check(&self) -> Result<(), Error> {
        if self
            .argv
            .first()
            .is_none_or(|program| program.as_bytes().is_empty())
        {
            return Err(Error::NoCommand);
        }
        workspace::patterns(&self.view.hide)?;
        if let Some(bytes) = self
            .limits
            .memory_bytes
            .filter(|bytes| *bytes < LEAST_MEMORY)
        {
            return Err(Error::TooLittleMemory { bytes });
        }
        for (key, value) in &self.env {
            let bad = |bytes: &[u8]| bytes.contains(&0);
            if key.as_bytes().is_empty()
                || key.as_bytes().contains(&b'=')
                || bad(key.as_bytes())
                || bad(value.as_bytes())
            {
                return Err(Error::BadVariable(key.to_text()));
            }
        }
        Ok(())
    }

    /// The whole environment of the command: nothing of the host's that was not asked for.
    pub(super) fn environment(&self) -> Vec<(ByteText, ByteText)> {
        let mut plain: Vec<(ByteText, ByteText)> = [
            ("PATH", PATH),
            ("HOME", "/home/agent"),
            ("USER", "agent"),
            ("LOGNAME", "agent"),
            ("SHELL", "/bin/sh"),
            ("LANG", "C.UTF-8"),
            ("RINGFENCE", "1"),
        ]
        .into_iter()
        .map(|(key, value)| (ByteText::from(key), ByteText::from(value)))
        .collect();
        plain.retain(|(key, _)| !self.env.iter().any(|(own, _)| own == key));
        for (at, (key, value)) in self.env.iter().enumerate() {
            // The last one of a name wins.
            if !self.env[at + 1..].iter().any(|(later, _)| later == key) {
                plain.push((key.clone(), value.clone()));
            }
        }
        plain
    }
}
