//! What only the user can give: paths of the host, variables, the network of a setup. As lines of
//! the user's own policy.

use std::path::{Path, PathBuf};

use ringfence_model::init::{AskedMount, Proposed, Said};
use ringfence_model::policy::Effective;
use serde::Serialize;
use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, Table, TableLike, Value, value};

use crate::toolchains::{Shown, Toolchain, is_on_path};

/// What is not granted yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Grants {
    pub mounts: Vec<Granted>,
    /// Directories for `PATH`, of setups as well.
    pub path: Vec<PathBuf>,
    /// Variables, of setups as well.
    pub set: Vec<(String, String)>,
    /// What a setup may reach.
    pub network: Vec<Said>,
    /// What a file of the repository asks for. It is shown and never added.
    pub asked: Vec<AskedMount>,
}

/// A mount and its reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Granted {
    pub host: PathBuf,
    pub inside: PathBuf,
    pub why: String,
}

/// What stands at the top of a policy that is made here.
const HEAD: &str = "# What sandboxes may do, for all repositories; docs/policy.md has every key.\n\
                    extends = \"standard\" # no network; what looks like a credential is hidden\n";

impl Grants {
    /// What a policy lacks for these toolchains and this proposal.
    pub(super) fn missing(
        policy: &Effective,
        toolchains: &[&Toolchain],
        proposed: &Proposed,
    ) -> Self {
        let mut own = Self::default();
        for toolchain in toolchains {
            for shown in &toolchain.mounts {
                let mut mounts = policy.files.mounts.iter();
                let is_there = mounts.any(|mount| {
                    let rest = shown.host.strip_prefix(&mount.host);
                    rest.is_ok_and(|rest| mount.inside.join(rest) == shown.inside)
                });
                let Shown { host, inside } = shown.clone();
                if !is_there && !own.mounts.iter().any(|granted| granted.inside == inside) {
                    own.mounts.push(Granted {
                        host,
                        inside,
                        why: format!("{} ({})", toolchain.title(), toolchain.why),
                    });
                }
            }
            for directory in &toolchain.path {
                if !is_on_path(policy, directory) && !own.path.contains(directory) {
                    own.path.push(directory.clone());
                }
            }
            for (name, value) in &toolchain.set {
                let standing = policy.environment.env.get(*name);
                let standing = standing.and_then(|set| set.value.as_ref());
                if standing != Some(value) {
                    own.set.push(((*name).to_owned(), value.clone()));
                }
            }
        }
        // The rules of a preset say which it was: `preset:npm from …`.
        let rules = &policy.environment.network.rules.0;
        let is_there = |said: &&Said| {
            let mut presets = rules
                .iter()
                .filter_map(|rule| rule.from.file.split(' ').next());
            presets.any(|preset| preset == said.value)
        };
        let wanted = proposed.network.iter().filter(|said| !is_there(said));
        own.network = wanted.cloned().collect();
        own.asked = proposed.mounts.clone();
        own
    }

    /// Whether there is nothing to add.
    pub fn is_empty(&self) -> bool {
        let none = self.mounts.is_empty() && self.path.is_empty();
        none && self.set.is_empty() && self.network.is_empty()
    }

    /// The lines alone.
    pub fn to_toml(&self) -> String {
        let mut document = DocumentMut::new();
        self.add(&mut document)
            .map_or_else(|why| why, |()| document.to_string())
    }

    /// A policy with these lines; what it says otherwise stays as it is, comments too.
    pub(super) fn added_to(&self, before: &str) -> Result<String, String> {
        let text = if before.is_empty() { HEAD } else { before };
        let mut document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
            let message = error.message();
            format!("it is no TOML: {message}")
        })?;
        self.add(&mut document)?;
        Ok(document.to_string())
    }

    fn add(&self, document: &mut DocumentMut) -> Result<(), String> {
        if !self.mounts.is_empty() {
            let files = table(document.as_table_mut(), "files")?;
            let mounts = files
                .entry("mount")
                .or_insert(Item::ArrayOfTables(ArrayOfTables::new()))
                .as_array_of_tables_mut()
                .ok_or("its `files.mount` is not written as `[[files.mount]]`")?;
            let mut last = "";
            for granted in &self.mounts {
                let mut entry = Table::new();
                entry.insert("host", value(text(&granted.host)));
                entry.insert("inside", value(text(&granted.inside)));
                // The reason stands at the first of those that have it.
                let prefix = if granted.why == last {
                    "\n".to_owned()
                } else {
                    format!("\n# {}, read-only\n", granted.why)
                };
                entry.decor_mut().set_prefix(prefix);
                last = &granted.why;
                mounts.push(entry);
            }
        }
        if !self.path.is_empty() {
            self.add_to_whole_path(document);
            let path = self.path.iter().map(|path| text(path));
            extend(document, "path", path)?;
        }
        if !self.network.is_empty() {
            let rules = self.network.iter().map(|said| said.value.clone());
            extend(document, "network", rules)?;
        }
        if !self.set.is_empty() {
            let environment = table(document.as_table_mut(), "environment")?;
            let env = table(environment, "env")?;
            for (name, text) in &self.set {
                env.insert(name, value(text.clone()));
            }
        }
        Ok(())
    }

    /// Where the user set all of `PATH`, that counts more than what an environment adds.
    fn add_to_whole_path(&self, document: &mut DocumentMut) {
        let env = document.get_mut("env").and_then(Item::as_table_like_mut);
        let set = env.and_then(|env| env.get_mut("set")?.as_table_like_mut());
        let Some(whole) = set.and_then(|set| set.get_mut("PATH")) else {
            return;
        };
        if let Some(standing) = whole.as_str() {
            let entries = || std::env::split_paths(standing);
            let own = self
                .path
                .iter()
                .filter(|own| !entries().any(|entry| entry == **own));
            let mut all: Vec<String> = own.map(|own| text(own)).collect();
            all.push(standing.to_owned());
            *whole = value(all.join(":"));
        }
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Adds to a list of `[environment]` what it does not have.
fn extend(
    document: &mut DocumentMut,
    name: &str,
    items: impl Iterator<Item = String>,
) -> Result<(), String> {
    let environment = table(document.as_table_mut(), "environment")?;
    let list = environment
        .entry(name)
        .or_insert(value(Array::new()))
        .as_array_mut()
        .ok_or(format!("its `environment.{name}` is no list"))?;
    for item in items {
        if !list.iter().any(|own| own.as_str() == Some(&item)) {
            list.push(Value::from(item));
        }
    }
    Ok(())
}

/// A table below another, made where it is not there.
fn table<'t>(above: &'t mut dyn TableLike, name: &str) -> Result<&'t mut dyn TableLike, String> {
    let mut made = Table::new();
    // No header where only tables are in it.
    made.set_implicit(true);
    above
        .entry(name)
        .or_insert(Item::Table(made))
        .as_table_like_mut()
        .ok_or(format!("its `{name}` is no table"))
}
