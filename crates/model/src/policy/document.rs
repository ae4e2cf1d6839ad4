//! A policy file as it was written: TOML text to data, with the place of each item.
//!
//! Nothing is looked up here. An unknown key, a bad value and a character that is not shown as it is
//! are problems with a line and a caret, and a file with a problem is no policy.

mod environment;
mod grants;
mod holding;
mod problem;
pub(crate) mod reader;
mod sources;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Component, Path, PathBuf};

use toml::de::DeTable;

use super::area::Area;
use super::export::Export;
use super::glob::Globs;
use super::network::{NetworkRule, Origin};
use super::review::Review;
use super::sources::Sources;
use super::{Bound, Bounds, Line, Mount, SecretRule, Variable};
use crate::check::MAX_CHECKS;
use crate::gate::Mock;
use crate::limits::{Limit, QuantityError, parse_duration_seconds, parse_size};
use reader::{Reader, Value};

pub use environment::EnvironmentText;
pub use holding::{AutoText, HoldingText};
pub use problem::{DocumentError, Problem};
pub use reader::MAX_BYTES;

/// A policy file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// What it stands on: `standard`, `preset:NAME`, or the path of a file.
    pub extends: Vec<Line>,
    pub hide: Vec<Line>,
    pub write: Option<Vec<Line>>,
    pub read_only: Vec<Line>,
    pub export: Option<Vec<Line>>,
    pub mounts: Vec<Mount>,
    /// `None`: it says nothing of it. Empty: nothing is allowed.
    pub allow: Option<Vec<Grant>>,
    pub deny: Vec<NetworkRule>,
    pub cache: Option<(bool, Origin)>,
    pub mocks: Vec<(Mock, Origin)>,
    pub secrets: Vec<SecretRule>,
    pub pass: Option<Vec<Line>>,
    pub set: BTreeMap<String, Variable>,
    pub limits: Bounds,
    pub environment: EnvironmentText,
    pub review: Review,
    pub holding: HoldingText,
    pub sources: Sources,
}

/// An item of `network.allow`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grant {
    Rule(NetworkRule),
    /// `preset:NAME`, without the prefix.
    Preset(Line),
}

/// Whose file it is.
#[derive(Clone, Copy, Debug)]
pub struct Source<'t> {
    /// As it is shown.
    pub file: &'t str,
    /// What `~/` is.
    pub home: Option<&'t Path>,
}

impl Document {
    /// Reads a file.
    pub fn parse(bytes: &[u8], source: Source<'_>) -> Result<Self, DocumentError> {
        reader::read_text(bytes, source.file, "a policy", |reader, table| {
            Self::read(reader, table, source.home)
        })
    }

    fn read<'t>(reader: &mut Reader<'t>, table: &DeTable<'t>, home: Option<&Path>) -> Self {
        let mut document = Self::default();
        let keys = [
            "extends",
            "files",
            "network",
            "secrets",
            "env",
            "limits",
            "environment",
            "mounts",
            "review",
            "images",
            "repositories",
        ];
        for (key, value) in reader.keys(table, &keys) {
            match key {
                "extends" => document.extends = extends(reader, value),
                "files" => document.read_files(reader, value, home),
                "network" => document.read_network(reader, value),
                "secrets" => document.read_secrets(reader, value, home),
                "env" => document.read_env(reader, value),
                "review" => document.read_review(reader, value),
                "environment" => document.read_environment(reader, value),
                "images" => document.read_images(reader, value),
                "repositories" => document.read_repositories(reader, value),
                "mounts" => document.read_mounts(reader, value),
                _ => document.read_limits(reader, value),
            }
        }
        for secret in &document.secrets {
            let passed = document.pass.iter().flatten();
            let named = passed.map(|line| &line.text).chain(document.set.keys());
            if named.clone().any(|name| *name == secret.name) {
                let line = secret.from.line as usize;
                let before = reader.text.lines().take(line - 1);
                let at = before.map(|line| line.len() + 1).sum();
                let message = format!("`{}` is a secret and a variable", secret.name);
                reader.wrong(at..at + 1, message);
            }
        }
        document
    }

    /// One of the parts that open something, where another document has it as well: `network`,
    /// `secrets` or `env`.
    pub(crate) fn read_part<'t>(
        &mut self,
        reader: &mut Reader<'t>,
        part: &str,
        value: &Value<'t>,
        home: Option<&Path>,
    ) {
        match part {
            "network" => self.read_network(reader, value),
            "secrets" => self.read_secrets(reader, value, home),
            _ => self.read_env(reader, value),
        }
    }

    fn read_files<'t>(&mut self, reader: &mut Reader<'t>, value: &Value<'t>, home: Option<&Path>) {
        let Some(table) = reader.table(value) else {
            return;
        };
        let glob = |text: &str| Globs::parse(&[text]).map(|_| ());
        let area = |text: &str| Area::parse(text).map(|_| ());
        let export = |text: &str| Export::parse(&[text]).map(|_| ());
        let keys = ["hide", "write", "read_only", "export", "mount"];
        for (key, value) in reader.keys(table, &keys) {
            match key {
                "hide" => self.hide = reader.lines(value, glob),
                "write" => self.write = Some(reader.lines(value, area)),
                "read_only" => self.read_only = reader.lines(value, area),
                "export" => self.export = Some(reader.lines(value, export)),
                _ => {
                    for item in reader.array(value) {
                        self.mounts.extend(mount(reader, item, home));
                    }
                }
            }
        }
    }

    fn read_env<'t>(&mut self, reader: &mut Reader<'t>, value: &Value<'t>) {
        let Some(table) = reader.table(value) else {
            return;
        };
        for (key, value) in reader.keys(table, &["pass", "set"]) {
            if key == "pass" {
                self.pass = Some(reader.lines(value, variable_name));
                continue;
            }
            read_variables(reader, value, &mut self.set);
        }
    }

    fn read_review<'t>(&mut self, reader: &mut Reader<'t>, value: &Value<'t>) {
        let Some(table) = reader.table(value) else {
            return;
        };
        let glob = |text: &str| Globs::parse(&[text]).map(|_| ());
        let keys = [&["checks", "protected", "network"][..], &holding::KEYS].concat();
        for (key, value) in reader.keys(table, &keys) {
            match key {
                key if holding::KEYS.contains(&key) => self.read_holding(reader, key, value),
                "checks" => {
                    self.review.checks = reader.lines(value, crate::check::command);
                    if self.review.checks.len() > MAX_CHECKS {
                        reader.wrong(value.span(), format!("at most {MAX_CHECKS} checks"));
                    }
                }
                "protected" => self.review.protected = reader.lines(value, glob),
                _ => {
                    for item in reader.array(value) {
                        self.review.network.0.extend(grants::allowed(reader, item));
                    }
                }
            }
        }
    }

    fn read_limits<'t>(&mut self, reader: &mut Reader<'t>, value: &Value<'t>) {
        let Some(table) = reader.table(value) else {
            return;
        };
        let known: Vec<&'static str> = Limit::ALL
            .into_iter()
            .filter(|limit| *limit != Limit::Journal)
            .map(Limit::as_str)
            .collect();
        for (key, value) in reader.keys(table, &known) {
            let Some(limit) = Limit::ALL.into_iter().find(|limit| limit.as_str() == key) else {
                continue;
            };
            if let Some(most) = reader.quantity(value, |text| quantity(limit, text)) {
                let from = reader.origin(&value.span());
                self.limits.insert(limit, Bound { most, from });
            }
        }
    }
}

/// A table of variables.
fn read_variables<'t>(
    reader: &mut Reader<'t>,
    value: &Value<'t>,
    into: &mut BTreeMap<String, Variable>,
) {
    let Some(table) = reader.table(value) else {
        return;
    };
    for (name, value) in table {
        let named = variable_name(name.get_ref());
        if reader.keep(name.span(), named).is_none() {
            continue;
        }
        // Any text: a value may have more than one line.
        let text = value.get_ref().as_str().filter(|text| !text.contains('\0'));
        match text {
            None => reader.wrong(value.span(), "a string without NUL is meant"),
            Some(text) => {
                let variable = Variable {
                    value: Some(text.to_owned()),
                    from: reader.origin(&name.span()),
                };
                into.insert(name.get_ref().to_string(), variable);
            }
        }
    }
}

/// As on the command line.
pub(crate) fn quantity(limit: Limit, text: &str) -> Result<Option<u64>, String> {
    let say = |error: QuantityError| error.to_string();
    let least = match limit {
        Limit::Time | Limit::Cpu => return parse_duration_seconds(text).map_err(say),
        Limit::Processes => 4,
        Limit::OpenFiles => 16,
        _ => return parse_size(text).map_err(say),
    };
    match text.parse() {
        Ok(count) if (least..=1_000_000).contains(&count) => Ok(Some(count)),
        _ => Err(format!("a count from {least} to 1000000 is meant")),
    }
}

fn extends<'t>(reader: &mut Reader<'t>, value: &Value<'t>) -> Vec<Line> {
    if value.get_ref().is_str() {
        return reader.line(value).into_iter().collect();
    }
    reader.lines(value, |_| Ok::<(), Infallible>(()))
}

fn variable_name(name: &str) -> Result<(), String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let first = name
        .bytes()
        .next()
        .is_some_and(|byte| !byte.is_ascii_digit());
    if first && name.len() <= 256 && name.bytes().all(plain) {
        Ok(())
    } else {
        Err(format!("`{name}` is not the name of a variable"))
    }
}

/// An absolute path without `..`; `~/` is the caller's home.
fn host_path(text: &str, home: Option<&Path>) -> Result<PathBuf, &'static str> {
    let path = match (text.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        (Some(_), None) => return Err("nobody says where `~` is"),
        (None, _) => PathBuf::from(text),
    };
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    if path.is_absolute() && path.components().all(plain) {
        Ok(path)
    } else {
        Err("an absolute path without `..` is meant, or one that begins with `~/`")
    }
}

fn mount<'t>(reader: &mut Reader<'t>, value: &Value<'t>, home: Option<&Path>) -> Option<Mount> {
    let table = reader.table(value)?;
    let (mut host, mut inside, mut writable) = (None, None, false);
    for (key, value) in reader.keys(table, &["host", "inside", "write"]) {
        match key {
            "host" => {
                let text = reader.string(value)?;
                host = Some(reader.keep(value.span(), host_path(text, home))?);
            }
            "inside" => {
                let text = reader.string(value)?;
                inside = Some(reader.keep(value.span(), host_path(text, None))?);
            }
            _ => writable = reader.boolean(value)?,
        }
    }
    let (Some(host), Some(inside)) = (host, inside) else {
        reader.wrong(value.span(), "a mount has `host` and `inside`");
        return None;
    };
    Some(Mount {
        host,
        inside,
        writable,
        from: reader.origin(&value.span()),
    })
}

#[cfg(test)]
mod tests;
