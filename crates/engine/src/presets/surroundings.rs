//! What a preset may look at: the caller's environment, his configuration and his programs; never
//! the folder that a run works on.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use ringfence_model::policy::network::Origin;
use rustix::fs::{Mode, OFlags};

use super::PresetError;
use super::answers::Answers;
use crate::home::Home;

/// BOUND: a file of settings; real ones have a few hundred bytes.
const FILE_BYTES: u64 = 1 << 20;

/// Where presets look.
pub struct Surroundings {
    variables: BTreeMap<String, String>,
    /// `/`, but in tests.
    root: PathBuf,
    /// What lies below is not read and not started.
    away_from: Option<PathBuf>,
    pub(super) answers: Option<Answers>,
}

/// Values of variables may be secrets.
impl fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Surroundings")
            .field("root", &self.root)
            .field("away_from", &self.away_from)
            .finish_non_exhaustive()
    }
}

/// A value, and where it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub value: String,
    pub from: Origin,
    pub told: Told,
}

/// Who says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// The user or his organisation.
    Configured,
    /// The client, of itself.
    ByDefault,
}

/// A file of settings as it was read.
#[derive(Debug)]
pub(super) struct Text {
    pub path: PathBuf,
    pub content: String,
}

impl Surroundings {
    /// Those of this process, for a run on `folder`.
    pub fn of_process(folder: Option<&Path>) -> Self {
        // What is no text is no setting that a client would understand.
        let variables = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Self::of(variables, PathBuf::from("/"), folder)
    }

    pub(crate) fn of(
        variables: BTreeMap<String, String>,
        root: PathBuf,
        folder: Option<&Path>,
    ) -> Self {
        // A folder that cannot be resolved is still what its name says.
        let real = |folder: &Path| folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        Self {
            variables,
            root,
            away_from: folder.map(real),
            answers: None,
        }
    }

    /// What clients say is kept for a while.
    pub fn remembering(self, home: &Home) -> Self {
        let answers = Some(Answers::of(home));
        Self { answers, ..self }
    }

    /// A variable that is set and not empty.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        let value = self.variables.get(name)?;
        Some(value.as_str()).filter(|value| !value.trim().is_empty())
    }

    /// The same, as a setting.
    pub(super) fn setting(&self, name: &str) -> Option<Setting> {
        self.variable(name).map(|value| Setting {
            value: value.trim().to_owned(),
            from: Origin {
                file: format!("${name}"),
                line: 0,
            },
            told: Told::Configured,
        })
    }

    /// All variables whose names this takes.
    pub(super) fn variables(
        &self,
        takes: impl Fn(&str) -> bool,
    ) -> impl Iterator<Item = (&str, &str)> {
        self.variables
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .filter(move |(name, _)| takes(name))
    }

    /// A path of the user's home.
    pub(crate) fn home(&self, path: &str) -> Option<PathBuf> {
        self.directory("HOME").map(|home| home.join(path))
    }

    /// A path of the user's settings.
    pub(crate) fn config(&self, path: &str) -> Option<PathBuf> {
        match self.directory("XDG_CONFIG_HOME") {
            Some(config) => Some(config.join(path)),
            None => self.home(".config").map(|config| config.join(path)),
        }
    }

    /// A variable that names a place. What is not absolute depends on where we are, which may be
    /// the folder.
    pub(crate) fn directory(&self, name: &str) -> Option<PathBuf> {
        self.variable(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    }

    /// A path of the system.
    pub(super) fn system(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// Whether something lies in the folder that the run works on.
    pub(crate) fn is_in_the_folder(&self, path: &Path) -> bool {
        let real = path.canonicalize();
        self.away_from.as_ref().is_some_and(|folder| {
            path.starts_with(folder) || real.is_ok_and(|real| real.starts_with(folder))
        })
    }

    /// Reads a file of settings; `None` where there is none, or only one that an agent may have
    /// written.
    pub(super) fn read(&self, path: &Path) -> Result<Option<Text>, PresetError> {
        let read = |source| PresetError::Read {
            path: path.to_owned(),
            source,
        };
        if self.is_in_the_folder(path) {
            return Ok(None);
        }
        // A FIFO is not waited for.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(errno) => {
                let source = io::Error::from(errno);
                return match source.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(None),
                    _ => Err(read(source)),
                };
            }
        };
        if !file.metadata().map_err(read)?.is_file() {
            return Err(PresetError::NotAFile(path.to_owned()));
        }
        let mut bytes = Vec::new();
        file.take(FILE_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(read)?;
        if bytes.len() as u64 > FILE_BYTES {
            return Err(PresetError::TooLarge {
                path: path.to_owned(),
                bytes: FILE_BYTES,
            });
        }
        let content = String::from_utf8(bytes)
            .ok()
            .filter(|content| !content.contains('\0'))
            .ok_or_else(|| PresetError::NotText(path.to_owned()))?;
        Ok(Some(Text {
            path: path.to_owned(),
            content,
        }))
    }

    /// A program of the user: the first of this name in `PATH` that can be executed and does not
    /// lie in the folder. Entries that are not absolute are passed over.
    pub(crate) fn program(&self, name: &str) -> Option<PathBuf> {
        let is_program = |path: &PathBuf| {
            let executable = |metadata: fs::Metadata| {
                metadata.is_file() && metadata.permissions().mode() & 0o111 != 0
            };
            fs::metadata(path).is_ok_and(executable) && !self.is_in_the_folder(path)
        };
        std::env::split_paths(self.variable("PATH")?)
            .filter(|directory| directory.is_absolute())
            .map(|directory| directory.join(name))
            .find(is_program)
    }
}

impl Text {
    /// A value that stands in this file.
    pub fn setting(&self, value: &str, line: u32) -> Setting {
        Setting {
            value: value.to_owned(),
            from: Origin {
                file: self.path.display().to_string(),
                line,
            },
            told: Told::Configured,
        }
    }
}
