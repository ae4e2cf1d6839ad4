//! What an agent is to us: a file that says how it is started and told, what is staged into its
//! empty home, what it must reach, and how its own report is read.
//!
//! Such a file is ours or the user's. Nothing of a folder that is worked on is ever one.

mod report;
#[cfg(test)]
mod tests;

use std::path::{Component, Path, PathBuf};

use toml::de::DeTable;

use crate::policy::Line;
use crate::policy::document::reader::{Reader, Value, read_text};
use crate::policy::document::{Document, DocumentError, Problem};
use crate::policy::network::Origin;

pub use report::{Field, Report, Usage};

/// BOUND: words of a command.
const MAX_WORDS: usize = 256;
/// BOUND: files that are staged, and bytes of each: settings, not programs.
const MAX_HOME: usize = 32;
const MAX_HOME_BYTES: usize = 64 << 10;
/// BOUND: bytes of a path below the home.
const MAX_PATH: usize = 200;

/// What stands for something else in words, variables and staged files.
pub const BRIEF: &str = "{brief}";
/// A file inside that holds the brief.
pub const BRIEF_FILE: &str = "{brief_file}";
/// What failing checks said, in the words of a later round.
pub const FEEDBACK: &str = "{feedback}";
/// Where the model is asked.
pub const BASE_URL: &str = "{base_url}";
/// Where the folder is inside.
pub const WORKSPACE: &str = "{workspace}";

/// An agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preset {
    pub name: String,
    pub about: String,
    /// The command that installs it, for a person.
    pub install: Option<String>,
    /// Its program and words. The first word is the name of a program of this host, or its path.
    pub command: Vec<String>,
    /// The words of a later round that goes on where the one before ended.
    pub again: Option<Vec<String>>,
    /// Further programs that must be there inside.
    pub needs: Vec<String>,
    /// Of these variables one must hold a secret.
    pub keys: Vec<String>,
    pub base_url: Option<BaseUrl>,
    /// What it must reach, its secrets and variables; written as in a policy.
    pub grants: Document,
    pub home: Vec<HomeText>,
    pub report: Option<Report>,
}

/// Where the model is asked, if nobody says another place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseUrl {
    /// The variable of the caller that names another.
    pub variable: String,
    pub usual: String,
}

/// A file of the agent's home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HomeText {
    /// Relative to the home.
    pub path: PathBuf,
    pub text: String,
}

/// A file as it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentText {
    /// Another agent, over which this one is laid.
    pub extends: Option<Line>,
    file: String,
    about: Option<String>,
    install: Option<String>,
    command: Option<Vec<String>>,
    again: Option<Vec<String>>,
    needs: Option<Vec<String>>,
    keys: Option<Vec<String>>,
    base_url: Option<BaseUrl>,
    grants: Document,
    home: Vec<HomeText>,
    report: Option<Report>,
}

impl AgentText {
    /// Reads a file. `user` is what `~/` is in the sources of its secrets.
    pub fn parse(bytes: &[u8], file: &str, user: Option<&Path>) -> Result<Self, DocumentError> {
        read_text(bytes, file, "an agent's file", |reader, table| {
            Self::read(reader, table, user)
        })
    }

    fn read<'t>(reader: &mut Reader<'t>, table: &DeTable<'t>, user: Option<&Path>) -> Self {
        let mut own = Self {
            file: reader.file.to_owned(),
            ..Self::default()
        };
        let keys = [
            "extends", "about", "install", "command", "again", "needs", "keys", "base_url",
            "network", "secrets", "env", "home", "result",
        ];
        for (key, value) in reader.keys(table, &keys) {
            match key {
                "extends" => own.extends = plain(reader, value),
                "about" => own.about = reader.string(value).map(str::to_owned),
                "install" => own.install = reader.string(value).map(str::to_owned),
                "command" => own.command = words(reader, value),
                "again" => own.again = words(reader, value),
                "needs" => own.needs = Some(names(reader, value, program)),
                "keys" => own.keys = Some(names(reader, value, variable)),
                "base_url" => own.base_url = base_url(reader, value),
                "home" => own.home = home(reader, value),
                "result" => own.report = Report::read_from(reader, value),
                part => own.grants.read_part(reader, part, value, user),
            }
        }
        own
    }

    /// This file over another one: what it says counts, the rest is the other's.
    pub fn over(self, base: Self) -> Self {
        let mut home = base.home;
        home.retain(|old| !self.home.iter().any(|own| own.path == old.path));
        home.extend(self.home);
        // Words of a later round belong to their command.
        let again = match self.command {
            Some(_) => self.again,
            None => self.again.or(base.again),
        };
        Self {
            extends: base.extends,
            file: self.file,
            about: self.about.or(base.about),
            install: self.install.or(base.install),
            command: self.command.or(base.command),
            again,
            needs: self.needs.or(base.needs),
            keys: self.keys.or(base.keys),
            base_url: self.base_url.or(base.base_url),
            grants: self.grants.over(base.grants),
            home,
            report: self.report.or(base.report),
        }
    }

    /// The agent that it is, when nothing is below it any more.
    pub fn finish(self, name: &str) -> Result<Preset, DocumentError> {
        let lacks = |what: &str| {
            let line = Line {
                text: String::new(),
                from: Origin {
                    file: self.file.clone(),
                    line: 1,
                },
            };
            DocumentError(vec![Problem::on("", &line, what.to_owned())])
        };
        let Some(command) = self.command else {
            return Err(lacks(
                "an agent has a command: command = [\"program\", \"word\"]",
            ));
        };
        if self.home.len() > MAX_HOME {
            return Err(lacks(&format!("at most {MAX_HOME} files of the home")));
        }
        Ok(Preset {
            name: name.to_owned(),
            about: self.about.unwrap_or_else(|| name.to_owned()),
            install: self.install,
            command,
            again: self.again,
            needs: self.needs.unwrap_or_default(),
            keys: self.keys.unwrap_or_default(),
            base_url: self.base_url,
            grants: self.grants,
            home: self.home,
            report: self.report,
        })
    }
}

/// Whether this can be the name of an agent: it is also that of a file.
pub fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !name.is_empty() && name.len() <= 64 && name.bytes().all(plain)
}

fn plain<'t>(reader: &mut Reader<'t>, value: &Value<'t>) -> Option<Line> {
    let line = reader.line(value)?;
    if !is_name(&line.text) {
        reader.wrong(value.span(), "the name of an agent is meant");
        return None;
    }
    Some(line)
}

fn words<'t>(reader: &mut Reader<'t>, value: &Value<'t>) -> Option<Vec<String>> {
    let mut words: Vec<String> = Vec::new();
    for item in reader.array(value) {
        // A word may be a script of several lines.
        let hidden = |c: char| crate::text::misleads(c) && !matches!(c, '\n' | '\t');
        match item.get_ref().as_str() {
            Some(word) if !word.contains(hidden) => words.push(word.to_owned()),
            _ => reader.wrong(item.span(), "a string without hidden characters is meant"),
        }
    }
    let wrong = match words.first() {
        None => Some("a command has a program".to_owned()),
        Some(_) if words.len() > MAX_WORDS => Some(format!("at most {MAX_WORDS} words")),
        Some(first) => program(first).err(),
    };
    match wrong {
        Some(message) => {
            reader.wrong(value.span(), message);
            None
        }
        None => Some(words),
    }
}

/// A name that is looked for, or an absolute path.
fn program(text: &str) -> Result<(), String> {
    let path = Path::new(text);
    let fine = if text.starts_with('/') {
        !path.components().any(|part| part == Component::ParentDir)
    } else {
        !text.is_empty() && !text.contains(['/', '{']) && !text.starts_with('-')
    };
    if fine {
        Ok(())
    } else {
        Err(format!(
            "`{text}` is neither the name of a program nor its absolute path"
        ))
    }
}

fn variable(text: &str) -> Result<(), String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if !text.is_empty() && text.len() <= 256 && text.bytes().all(plain) {
        Ok(())
    } else {
        Err(format!("`{text}` is not the name of a variable"))
    }
}

fn names<'t>(
    reader: &mut Reader<'t>,
    value: &Value<'t>,
    check: impl Fn(&str) -> Result<(), String>,
) -> Vec<String> {
    let lines = reader.lines(value, check);
    lines.into_iter().map(|line| line.text).collect()
}

fn base_url<'t>(reader: &mut Reader<'t>, value: &Value<'t>) -> Option<BaseUrl> {
    let table = reader.table(value)?;
    let (mut name, mut usual) = (None, None);
    for (key, value) in reader.keys(table, &["variable", "usual"]) {
        let text = reader.string(value)?.to_owned();
        match key {
            "variable" => {
                reader.keep(value.span(), variable(&text))?;
                name = Some(text);
            }
            _ if text.starts_with("https://") => usual = Some(text),
            _ => reader.wrong(value.span(), "an address with `https://` is meant"),
        }
    }
    let (Some(variable), Some(usual)) = (name, usual) else {
        reader.wrong(value.span(), "a base URL has `variable` and `usual`");
        return None;
    };
    Some(BaseUrl { variable, usual })
}

fn home<'t>(reader: &mut Reader<'t>, value: &Value<'t>) -> Vec<HomeText> {
    let mut files: Vec<HomeText> = Vec::new();
    for item in reader.array(value) {
        let Some(file) = home_file(reader, item) else {
            continue;
        };
        if files.iter().any(|other| other.path == file.path) {
            reader.wrong(item.span(), "this file was named before");
        }
        files.push(file);
    }
    files
}

fn home_file<'t>(reader: &mut Reader<'t>, value: &Value<'t>) -> Option<HomeText> {
    let table = reader.table(value)?;
    let (mut path, mut text) = (None, None);
    for (key, value) in reader.keys(table, &["path", "text"]) {
        if key == "path" {
            let named = below(reader.string(value)?);
            path = Some(reader.keep(value.span(), named)?);
            continue;
        }
        // Any text: it has lines.
        match value.get_ref().as_str() {
            Some(own) if own.len() <= MAX_HOME_BYTES && !own.contains('\0') => {
                text = Some(own.to_owned());
            }
            _ => {
                let message = format!("a text of at most {MAX_HOME_BYTES} bytes is meant");
                reader.wrong(value.span(), message);
                return None;
            }
        }
    }
    let (Some(path), Some(text)) = (path, text) else {
        reader.wrong(value.span(), "a file of the home has `path` and `text`");
        return None;
    };
    Some(HomeText { path, text })
}

/// A path below the home, by plain names.
fn below(text: &str) -> Result<PathBuf, &'static str> {
    let path = PathBuf::from(text);
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    let fine = !text.is_empty()
        && text.len() <= MAX_PATH
        && path.components().all(plain)
        // What components leave out: `a//b` and `a/./b`.
        && path.components().collect::<PathBuf>().as_os_str() == path.as_os_str();
    if fine {
        Ok(path)
    } else {
        Err("a path below the home is meant, without `..`")
    }
}
