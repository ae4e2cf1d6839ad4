//! From the files of a repository to a proposal: image, setup and what they need, each with the
//! reason for it.
//!
//! Nothing is executed and nothing looked up: bytes in, data out. Whoever has the folder finds the
//! files ([`what_to_read`]), and whoever has the host adds what the host has.
//!
//! HOSTILE: every byte was chosen by a repository. What is taken over is plain text of a bounded
//! length; what is not plain is left out and named.

mod bring;
pub mod devcontainer;
mod dockerfile;
mod jsonc;
mod locks;
mod pins;
mod render;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::text::misleads;

pub use dockerfile::image_of;
pub use pins::Pin;
pub use render::quoted;

/// BOUND: bytes of a text that is taken over, a command among them.
const MAX_TEXT: usize = 4096;
/// BOUND: notes that a person is told; a hostile file could ask for millions.
const MAX_NOTES: usize = 64;
/// BOUND: as many lock files as a large repository of several projects has.
const MAX_STEPS: usize = 16;
/// BOUND: a policy takes 64 files of a key and a setup of 16 KiB.
const MAX_KEY: usize = 64;
const MAX_SETUP: usize = 16 << 10;

/// A file of the folder, as far as it could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// All of it, or of a lock file its beginning.
    Bytes(Vec<u8>),
    /// It is there and was not read: a link, a pipe, too large.
    Odd(&'static str),
}

/// Files by their paths below the folder, with `/` between plain names.
pub type Files = BTreeMap<String, Seen>;

/// How much of a file is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Whole,
    /// Its name says enough; the beginning tells versions of a format apart.
    Beginning,
}

/// A value, and why it is proposed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Said {
    pub value: String,
    pub why: String,
}

/// Something that is in a file and was not taken over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// The file, with a line where that helps.
    pub place: String,
    pub what: String,
    /// What to do instead, or why nothing has to be done.
    pub instead: String,
}

/// A program that the project is built with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Need {
    pub program: String,
    /// What the repository pins, in its own words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<Said>,
    pub why: String,
}

/// A path of the host that a file of the repository asks for. Only the user can grant it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AskedMount {
    pub host: String,
    pub inside: String,
    pub why: String,
}

/// A memory file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Area {
    pub inside: String,
    pub size: String,
    pub why: String,
}

/// What is proposed for a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Proposed {
    pub image: Option<Said>,
    /// An image that would do, where none is named: for a comment.
    pub possible_image: Option<Said>,
    /// Commands, in order.
    pub setup: Vec<Said>,
    /// Files whose change makes the setup run again.
    pub key: Vec<Said>,
    pub cache: Vec<Said>,
    pub env: BTreeMap<String, Said>,
    /// Directories for `PATH`.
    pub path: Vec<Said>,
    pub scratch: Vec<Area>,
    /// Presets that the setup needs to reach. Only the user can grant them.
    pub network: Vec<Said>,
    pub mounts: Vec<AskedMount>,
    pub needs: Vec<Need>,
    pub left_out: Vec<LeftOut>,
    /// Commands for the host that a person may want to type.
    pub commands: Vec<Said>,
}

/// Whether a file of this name is wanted, wherever it is.
pub fn what_to_read(path: &str) -> Option<Wanted> {
    let name = path.rsplit('/').next().unwrap_or(path);
    if devcontainer::PLACES.contains(&path)
        || dockerfile::is_one(name)
        || pins::is_one(name)
        || matches!(name, "package.json" | "pyproject.toml" | "go.mod")
    {
        return Some(Wanted::Whole);
    }
    locks::is_one(name).then_some(Wanted::Beginning)
}

/// What to propose for a folder with these files.
pub fn propose(files: &Files) -> Proposed {
    let mut own = Proposed::default();
    for (path, seen) in files {
        if let Seen::Odd(what) = seen {
            own.leave_out(path, what, "it was not read");
        }
    }
    devcontainer::take(&mut own, files);
    locks::take(&mut own, files);
    dockerfile::take(&mut own, files);
    pins::take(&mut own, files);
    if own.key.is_empty() && !own.setup.is_empty() {
        let place = devcontainer::PLACES
            .iter()
            .find(|place| files.contains_key(**place));
        own.key.extend(place.map(|place| Said {
            value: (*place).to_owned(),
            why: "the setup stands in it".to_owned(),
        }));
    }
    own.key.truncate(MAX_KEY);
    if own.setup_line().is_some_and(|line| line.len() > MAX_SETUP) {
        own.setup.clear();
        own.leave_out(
            "setup",
            "it is too long",
            "put it into a script of the repository",
        );
    }
    own
}

impl Proposed {
    /// Whether there is nothing to say.
    pub fn is_empty(&self) -> bool {
        self.image.is_none()
            && self.possible_image.is_none()
            && self.setup.is_empty()
            && self.env.is_empty()
            && self.scratch.is_empty()
    }

    fn leave_out(&mut self, place: &str, what: &str, instead: &str) {
        let shown = |text: &str| -> String { text.chars().take(200).collect() };
        match self.left_out.len() {
            MAX_NOTES.. => {}
            count if count + 1 == MAX_NOTES => self.left_out.push(LeftOut {
                place: "…".to_owned(),
                what: "there is more that was not taken over".to_owned(),
                instead: "read the files themselves".to_owned(),
            }),
            _ => self.left_out.push(LeftOut {
                place: shown(place),
                what: shown(what),
                instead: instead.to_owned(),
            }),
        }
    }

    fn need(&mut self, program: &str, why: &str) {
        if !self.needs.iter().any(|need| need.program == program) {
            self.needs.push(Need {
                program: program.to_owned(),
                version: None,
                why: why.to_owned(),
            });
        }
    }
}

/// Adds what is not there yet.
fn add(list: &mut Vec<Said>, value: &str, why: &str) {
    if !list.iter().any(|said| said.value == value) {
        list.push(Said {
            value: value.to_owned(),
            why: why.to_owned(),
        });
    }
}

/// The text of a file; `None` where there is none, or none that is text.
fn text<'f>(files: &'f Files, path: &str) -> Option<&'f str> {
    match files.get(path)? {
        Seen::Bytes(bytes) => std::str::from_utf8(bytes)
            .ok()
            .map(|text| text.strip_prefix('\u{feff}').unwrap_or(text)),
        Seen::Odd(_) => None,
    }
}

/// A text that can stand in a file of ours: one line that is what it looks like.
fn plain(text: &str) -> Option<&str> {
    let fits = !text.is_empty() && text.len() <= MAX_TEXT;
    (fits && !text.chars().any(misleads)).then_some(text)
}

/// Whether a path of a repository can stand in a command without quotes.
pub fn is_plain_path(path: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-+@".contains(c);
    path.len() <= 256
        && path.split('/').all(|name| {
            !name.is_empty() && !matches!(name, "." | "..") && !name.starts_with('-') && {
                name.chars().all(plain)
            }
        })
}

/// The folder that a path is in, and its name.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// A path in a folder.
fn join(folder: &str, name: &str) -> String {
    match folder {
        "" => name.to_owned(),
        folder => format!("{folder}/{name}"),
    }
}

#[cfg(test)]
mod tests;
