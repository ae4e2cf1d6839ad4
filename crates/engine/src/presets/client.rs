//! Asking a client what it does where nothing is configured.
//!
//! It runs in `/`, with an environment that holds nothing but where it lies and what is its own, and
//! it is ended with all that it started when it does not answer.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::PresetError;
use super::answers;
use super::surroundings::Surroundings;
use crate::mirror::stall;

/// BOUND: an interpreter that starts cold on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// BOUND: the help of a client has 30 KB.
const OUTPUT_BYTES: usize = 1 << 20;

/// What of the caller's environment says where a client lies and where it has its settings.
const PASSED: &[&str] = &[
    "HOME",
    "PATH",
    "USER",
    "LOGNAME",
    "TMPDIR",
    "XDG_CONFIG_HOME",
    "XDG_CONFIG_DIRS",
    "XDG_DATA_HOME",
    "XDG_CACHE_HOME",
    "RUSTUP_HOME",
    "RUSTUP_TOOLCHAIN",
    "PYENV_ROOT",
    "PYENV_VERSION",
    "VOLTA_HOME",
    "NVM_DIR",
    "ASDF_DIR",
    "ASDF_DATA_DIR",
    "MISE_DATA_DIR",
];

/// A question to a client.
#[derive(Debug)]
pub(super) struct Question<'a> {
    pub program: &'a Path,
    pub arguments: &'a [&'a str],
    /// Beginnings of the names of variables that are the client's own.
    pub own: &'a [&'a str],
    pub set: &'a [(&'a str, &'a str)],
    pub hear: Hear,
}

/// Where the answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hear {
    Output,
    Errors,
}

impl Question<'_> {
    /// As a person would type it.
    pub fn words(&self) -> String {
        let name = self.program.file_name().unwrap_or_default();
        let mut words = vec![name.to_string_lossy().into_owned()];
        words.extend(self.arguments.iter().map(|word| (*word).to_owned()));
        words.join(" ")
    }

    /// What it says. HOSTILE: bytes that are no text are replaced; the rest is for the caller to
    /// judge. How it ended does not matter: some can only be asked with what must fail.
    pub fn ask(&self, surroundings: &Surroundings) -> Result<String, PresetError> {
        let failed = |source| PresetError::Ask {
            command: self.words(),
            source,
        };
        let is_own = |name: &str| {
            PASSED.contains(&name) || self.own.iter().any(|prefix| has_prefix(name, prefix))
        };
        let given = surroundings.variables(is_own);
        let known = surroundings.answers.as_ref();
        let known = known.zip(answers::key(self.program, self.arguments, given));
        if let Some((answers, key)) = &known
            && let Some(answer) = answers.get(key)
        {
            return Ok(answer);
        }
        let mut command = Command::new(self.program);
        command
            .args(self.arguments)
            .current_dir("/")
            .env_clear()
            .envs(surroundings.variables(is_own))
            .env("LC_ALL", "C")
            .envs(self.set.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        match self.hear {
            Hear::Output => command.stdout(Stdio::piped()),
            Hear::Errors => command.stderr(Stdio::piped()),
        };
        let mut child = command.spawn().map_err(failed)?;
        let heard = match (child.stdout.take(), child.stderr.take()) {
            (Some(pipe), _) => self.hear_all(pipe),
            (None, Some(pipe)) => self.hear_all(pipe),
            (None, None) => Ok(Vec::new()),
        };
        // It has said all, or too much, or nothing: in each case it is not needed any more.
        // It leads a group of its own until it is waited for.
        stall::kill_below(child.id());
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        if let Some(group) = group {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        child.wait().map_err(failed)?;
        let answer = heard.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())?;
        if let Some((answers, key)) = known {
            answers.put(key, &answer);
        }
        Ok(answer)
    }

    fn hear_all<P: Read + AsFd>(&self, mut pipe: P) -> Result<Vec<u8>, PresetError> {
        let failed = |source| PresetError::Ask {
            command: self.words(),
            source,
        };
        let end = Instant::now() + PATIENCE;
        let mut heard = Vec::new();
        let mut piece = [0; 16 << 10];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || !stall::wait(&pipe, left).map_err(failed)? {
                return Err(PresetError::Silent {
                    command: self.words(),
                    seconds: PATIENCE.as_secs(),
                });
            }
            match pipe.read(&mut piece) {
                Ok(0) => return Ok(heard),
                Ok(read) => heard.extend_from_slice(&piece[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
            if heard.len() > OUTPUT_BYTES {
                return Err(PresetError::TooMuch {
                    command: self.words(),
                    bytes: OUTPUT_BYTES,
                });
            }
        }
    }
}

/// npm takes its variables in any case.
fn has_prefix(name: &str, prefix: &str) -> bool {
    name.get(..prefix.len())
        .is_some_and(|begins| begins.eq_ignore_ascii_case(prefix))
}
