//! Policy files and what they stand on, read and put together.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use ringfence_model::policy::document::{
    Document, DocumentError, Grant, MAX_BYTES, Problem, Source,
};
use ringfence_model::policy::narrow::Proposal;
use ringfence_model::policy::network::{NetworkRule, Origin};
use ringfence_model::policy::preset::{self, Preset};
use ringfence_model::policy::{Effective, Line, Mount, built_in};
use rustix::fs::{CWD, Mode, OFlags};

use super::{PROPOSAL, PolicyError};
use crate::files::check_places;
use crate::home::Home;
use crate::keeper::INSIDE;
use crate::presets;

/// BOUND: how deep files stand on each other, and how many may be read for one policy.
const MAX_DEPTH: usize = 8;
const MAX_FILES: usize = 64;
/// Where in the home the user's own presets are: `NAME.toml`.
const PRESETS: &str = "presets";

/// Where things are looked for, and what was read.
#[derive(Debug)]
pub(super) struct Loader<'a> {
    home: &'a Home,
    /// What `~/` is.
    user: Option<PathBuf>,
    /// What a run works on: presets take nothing from there.
    folder: Option<&'a Path>,
    /// Texts by the name of their file, to show the line of a problem.
    texts: BTreeMap<String, String>,
    /// The files of the host that are being read, outermost first.
    way: Vec<PathBuf>,
    read: usize,
}

/// Whether links lead on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Links {
    /// A file of the host, which may be in a repository of dotfiles.
    Follow,
    /// HOSTILE: a file of a repository, which may be a link to anything.
    Refuse,
}

impl<'a> Loader<'a> {
    pub fn new(home: &'a Home, folder: Option<&'a Path>) -> Self {
        Self {
            home,
            user: std::env::home_dir(),
            folder,
            texts: BTreeMap::new(),
            way: Vec::new(),
            read: 0,
        }
    }

    /// A policy of the host: the path of a file, or the name of one that is built in.
    pub fn host(&mut self, typed: &Path) -> Result<Effective, PolicyError> {
        if let Some(document) = built_in::document(&typed.to_string_lossy()) {
            let document = self.whole(document, Path::new("/"))?;
            return document.resolve(&mut |line| self.preset(line));
        }
        let bytes = read(typed, Links::Follow)?;
        let bytes = bytes.ok_or_else(|| PolicyError::NoFile(typed.to_owned()))?;
        self.text(&bytes, typed)
    }

    /// Refuses mounts that no run can have, whatever is on the host.
    pub fn check_mounts(&self, mounts: &[Mount]) -> Result<(), PolicyError> {
        let mut problems = Vec::new();
        for mount in mounts {
            let checked = check_places(mount, self.home, &[], Path::new(INSIDE));
            if let Err(error) = checked {
                let line = Line {
                    text: mount.host.to_string_lossy().into_owned(),
                    from: mount.from.clone(),
                };
                problems.push(self.found(&line, error.to_string()));
            }
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(PolicyError::Document(DocumentError(problems)))
        }
    }

    /// The same of what stands, or will stand, in a file.
    pub fn text(&mut self, bytes: &[u8], file: &Path) -> Result<Effective, PolicyError> {
        let user = self.user.clone();
        let mut document = self.parse(bytes, &file.to_string_lossy(), user.as_deref())?;
        if document.extends.is_empty() {
            let text = built_in::DEFAULT.to_owned();
            let from = Origin::default();
            document.extends.push(Line { text, from });
        }
        let document = self.standing(document, file)?;
        document.resolve(&mut |line| self.preset(line))
    }

    /// What the folder's own file proposes.
    pub fn proposal(mut self, folder: &Path) -> Result<Option<Proposal>, PolicyError> {
        let Some(bytes) = read(&folder.join(PROPOSAL), Links::Refuse)? else {
            return Ok(None);
        };
        let document = self.parse(&bytes, PROPOSAL, None)?;
        for line in &document.extends {
            // HOSTILE: a path would make us read, and show in an error, any file of the host.
            if built_in::document(&line.text).is_none() {
                let message = "a repository can extend `offline`, `standard` and `online`, no file";
                return Err(self.problem(line, message.to_owned()));
            }
        }
        let document = self.whole(document, folder)?;
        let mut allow = None;
        for grant in document.allow.iter().flatten() {
            let rules: &mut Vec<NetworkRule> = allow.get_or_insert_default();
            match grant {
                Grant::Rule(rule) => rules.push(rule.clone()),
                Grant::Preset(line) => rules.extend(self.preset(line)?.rules),
            }
        }
        // An empty list is one as well.
        let allow = allow.or(document.allow.as_ref().map(|_| Vec::new()));
        Ok(Some(Proposal { document, allow }))
    }

    fn parse(
        &mut self,
        bytes: &[u8],
        file: &str,
        home: Option<&Path>,
    ) -> Result<Document, PolicyError> {
        let document = Document::parse(bytes, Source { file, home });
        let document = document.map_err(PolicyError::Document)?;
        let text = String::from_utf8_lossy(bytes).into_owned();
        self.texts.insert(file.to_owned(), text);
        Ok(document)
    }

    /// The document of a file, over all that it extends.
    fn standing(&mut self, document: Document, path: &Path) -> Result<Document, PolicyError> {
        let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        self.way.push(real);
        let whole = self.whole(document, path.parent().unwrap_or(Path::new(".")));
        self.way.pop();
        whole
    }

    /// A document over all that it extends, in order.
    fn whole(&mut self, document: Document, directory: &Path) -> Result<Document, PolicyError> {
        let mut base = Document::default();
        for line in &document.extends {
            base = self.extended(line, directory)?.over(base);
        }
        Ok(document.over(base))
    }

    fn extended(&mut self, line: &Line, directory: &Path) -> Result<Document, PolicyError> {
        if let Some(document) = built_in::document(&line.text) {
            return self.whole(document, directory);
        }
        let path = match line.text.strip_prefix(preset::PREFIX) {
            Some(name) if is_plain(name) => {
                let presets = self.home.root().join(PRESETS);
                presets.join(format!("{name}.toml"))
            }
            Some(_) => return Err(self.problem(line, "a preset is `preset:NAME`".to_owned())),
            None => match (line.text.strip_prefix("~/"), &self.user) {
                (Some(rest), Some(user)) => user.join(rest),
                _ => directory.join(&line.text),
            },
        };
        let shown = path.display();
        let bytes = match read(&path, Links::Follow) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => {
                let names: Vec<&str> = built_in::ALL.iter().map(|(name, _)| *name).collect();
                let names = names.join(", ");
                let message = format!("there is no `{shown}`; known by name are {names}");
                return Err(self.problem(line, message));
            }
            Err(PolicyError::Read { source, .. }) => {
                return Err(self.problem(line, format!("cannot read `{shown}`: {source}")));
            }
            Err(error) => return Err(self.problem(line, error.to_string())),
        };
        let real = path.canonicalize().unwrap_or_else(|_| path.clone());
        if self.way.contains(&real) {
            return Err(self.problem(line, format!("`{shown}` stands on itself")));
        }
        self.read += 1;
        if self.way.len() >= MAX_DEPTH || self.read > MAX_FILES {
            let message = format!(
                "at most {MAX_DEPTH} files stand on each other, and {MAX_FILES} make one policy"
            );
            return Err(self.problem(line, message));
        }
        let user = self.user.clone();
        let document = self.parse(&bytes, &path.to_string_lossy(), user.as_deref())?;
        self.standing(document, &path)
    }

    /// What a preset is on this host.
    pub fn preset(&self, line: &Line) -> Result<Preset, PolicyError> {
        presets::resolve(self.home, &line.text, self.folder).map_err(|error| {
            let mut message = error.to_string();
            let mut cause = error.source();
            while let Some(error) = cause {
                message.push_str(&format!(": {error}"));
                cause = error.source();
            }
            self.problem(line, format!("{message}; {}", error.hint()))
        })
    }

    /// Something that is wrong with an item that was read well.
    fn problem(&self, line: &Line, message: String) -> PolicyError {
        PolicyError::Document(DocumentError(vec![self.found(line, message)]))
    }

    fn found(&self, line: &Line, message: String) -> Problem {
        let text = self.texts.get(&line.from.file).map_or("", String::as_str);
        Problem::on(text, line, message)
    }
}

fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !name.is_empty() && name.bytes().all(plain)
}

/// A regular file, up to the bound and a byte; `None` where there is none.
pub(super) fn read(path: &Path, links: Links) -> Result<Option<Vec<u8>>, PolicyError> {
    let mut flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    if links == Links::Refuse {
        flags |= OFlags::NOFOLLOW;
    }
    let failed = |source: io::Error| PolicyError::Read {
        path: path.to_owned(),
        source,
    };
    let file = match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(rustix::io::Errno::LOOP | rustix::io::Errno::NXIO) => {
            return Err(PolicyError::NotAFile(path.to_owned()));
        }
        Err(errno) => return Err(failed(errno.into())),
    };
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(PolicyError::NotAFile(path.to_owned()));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    Ok(Some(bytes))
}
