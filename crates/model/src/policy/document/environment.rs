//! `[environment]` and `[mounts]` of a policy file.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use super::super::{Line, Variable};
use super::reader::{Reader, Value};
use super::{Document, Grant, grants, host_path, read_variables};
use crate::environment::{CACHES, CacheKind, Scratch, Switch};
use crate::limits::parse_size;
use crate::policy::network::Origin;

/// BOUND: files that decide, each of which is read before a start.
const MAX_KEY: usize = 64;
/// BOUND: directories before `PATH`, each of which every program that is looked for is sought in.
const MAX_PATH: usize = 32;
/// BOUND: areas in memory.
const MAX_TMPFS: usize = 16;
/// BOUND: a setup is a few lines; what is longer belongs into a file that it runs.
const MAX_SETUP: usize = 16 << 10;
/// BOUND: the longest reference that registries take is half of it.
const MAX_IMAGE: usize = 512;

/// What a file says of the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvironmentText {
    pub image: Option<Line>,
    pub setup: Option<Line>,
    pub key: Option<Vec<Line>>,
    /// `None`: it says nothing of it. Empty: nothing is allowed.
    pub network: Option<Vec<Grant>>,
    pub root: Option<Switch>,
    pub env: BTreeMap<String, Variable>,
    pub path: Option<Vec<Line>>,
    pub caches: BTreeMap<CacheKind, Switch>,
    pub tmpfs: Vec<Scratch>,
}

impl Document {
    pub(super) fn read_environment<'t>(&mut self, reader: &mut Reader<'t>, value: &Value<'t>) {
        let Some(table) = reader.table(value) else {
            return;
        };
        let own = &mut self.environment;
        let keys = [
            "image", "setup", "key", "network", "root", "env", "path", "cache",
        ];
        for (key, value) in reader.keys(table, &keys) {
            match key {
                "image" => {
                    let line = reader.line(value);
                    own.image = line.filter(|line| {
                        let read = image(&line.text);
                        reader.keep(value.span(), read).is_some()
                    });
                }
                "setup" => own.setup = setup(reader, value),
                "key" => {
                    let lines = reader.lines(value, key_file);
                    if lines.len() > MAX_KEY {
                        reader.wrong(value.span(), format!("at most {MAX_KEY} files decide"));
                    }
                    own.key = Some(lines);
                }
                "network" => own.network = Some(grants::read(reader, value)),
                "root" => own.root = switch(reader, value),
                "env" => read_variables(reader, value, &mut own.env),
                "path" => {
                    let lines = reader.lines(value, directory);
                    if lines.len() > MAX_PATH {
                        let message = format!("at most {MAX_PATH} directories are before `PATH`");
                        reader.wrong(value.span(), message);
                    }
                    own.path = Some(lines);
                }
                _ => {
                    let names: Vec<&'static str> = CACHES.iter().map(|row| row.name).collect();
                    let Some(table) = reader.table(value) else {
                        continue;
                    };
                    for (name, value) in reader.keys(table, &names) {
                        if let Some(kind) = CacheKind::named(name)
                            && let Some(switch) = switch(reader, value)
                        {
                            own.caches.insert(kind, switch);
                        }
                    }
                }
            }
        }
    }

    /// `"/var/tmp/db" = { tmpfs = "512M" }`.
    pub(super) fn read_mounts<'t>(&mut self, reader: &mut Reader<'t>, value: &Value<'t>) {
        let Some(table) = reader.table(value) else {
            return;
        };
        for (place, value) in table {
            let path = reader.keep(place.span(), host_path(place.get_ref(), None));
            let shown = !place.get_ref().chars().any(crate::text::misleads);
            if !shown {
                let why = "it has a character that is not shown as it is";
                reader.wrong(place.span(), why);
            }
            let Some(table) = reader.table(value) else {
                continue;
            };
            let mut bytes = None;
            for (_, value) in reader.keys(table, &["tmpfs"]) {
                bytes = reader.quantity(value, size);
            }
            match (path, bytes.flatten()) {
                (Some(inside), Some(bytes)) => self.environment.tmpfs.push(Scratch {
                    inside,
                    bytes,
                    from: reader.origin(&place.span()),
                }),
                (Some(_), None) if table.is_empty() => {
                    reader.wrong(value.span(), "`{ tmpfs = \"512M\" }` is meant");
                }
                _ => {}
            }
        }
        if self.environment.tmpfs.len() > MAX_TMPFS {
            let message = format!("at most {MAX_TMPFS} areas are in memory");
            reader.wrong(value.span(), message);
        }
    }
}

fn size(text: &str) -> Result<Option<u64>, String> {
    match parse_size(text) {
        // Less than a page holds nothing.
        Ok(Some(bytes)) if bytes >= 4096 => Ok(Some(bytes)),
        Ok(_) => Err("an area in memory has a size, of 4K at least".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn switch<'t>(reader: &mut Reader<'t>, value: &Value<'t>) -> Option<Switch> {
    let from: Origin = reader.origin(&value.span());
    reader.boolean(value).map(|on| Switch { on, from })
}

/// Looked at closely where it is looked up; here only that it is one word.
fn image(text: &str) -> Result<(), &'static str> {
    let plain = |byte: u8| byte.is_ascii_graphic();
    if !text.is_empty() && text.len() <= MAX_IMAGE && text.bytes().all(plain) {
        Ok(())
    } else {
        Err("the name of an image is meant, or `host` for none")
    }
}

/// Shell may have more than one line; nothing else in it is not shown as it is.
fn setup<'t>(reader: &mut Reader<'t>, value: &Value<'t>) -> Option<Line> {
    let Some(text) = value.get_ref().as_str() else {
        reader.wrong(value.span(), "a string is meant");
        return None;
    };
    let hidden = |c: char| crate::text::misleads(c) && !matches!(c, '\n' | '\t');
    if text.chars().any(hidden) {
        let why = "it has a character that is not shown as it is";
        reader.wrong(value.span(), why);
        return None;
    }
    if text.len() > MAX_SETUP {
        let why = format!("a setup has at most {MAX_SETUP} bytes; put it into a file");
        reader.wrong(value.span(), why);
        return None;
    }
    Some(Line {
        text: text.to_owned(),
        from: reader.origin(&value.span()),
    })
}

/// A file of the folder, by its path from the top.
fn key_file(text: &str) -> Result<(), &'static str> {
    if is_below(text) {
        Ok(())
    } else {
        Err("the path of a file of the folder is meant, from its top, without `..`")
    }
}

/// A directory inside: of the folder, below the home of the agent, or from `/`.
fn directory(text: &str) -> Result<(), &'static str> {
    let rest = text.strip_prefix("~/").or(text.strip_prefix('/'));
    let rest = rest.unwrap_or(text);
    if is_below(rest) && !rest.starts_with('~') && !text.contains(':') {
        Ok(())
    } else {
        Err("a directory inside is meant: `bin` of the folder, `~/bin` or `/opt/x/bin`")
    }
}

/// Plain names with `/` between them.
fn is_below(text: &str) -> bool {
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    let exact = !text.ends_with('/') && !text.contains("//") && !text.contains("/./");
    !text.is_empty() && exact && Path::new(text).components().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::document::Source;

    fn read(text: &str) -> Result<EnvironmentText, String> {
        let source = Source {
            file: "own",
            home: None,
        };
        Document::parse(text.as_bytes(), source)
            .map(|document| document.environment)
            .map_err(|error| error.0[0].message.clone())
    }

    #[test]
    fn all_of_it_is_read_with_its_place() {
        let read = read(
            "[environment]\nimage = 'python:3.13-slim'\nsetup = '''\nset -e\npip install x'''\n\
             key = ['requirements.txt', 'a/b.lock']\nnetwork = ['preset:pip', 'a.example']\n\
             root = true\nenv = { A = '1' }\npath = ['~/.local/bin', '.venv/bin', '/opt/x/bin']\n[environment.cache]\npip = true\nnpm = false\n\
             [mounts]\n'/var/tmp/db' = { tmpfs = '512M' }\n'/scratch' = { tmpfs = 8192 }\n",
        )
        .expect("an environment");
        assert_eq!(read.image.expect("an image").text, "python:3.13-slim");
        let setup = read.setup.expect("a setup");
        assert_eq!(setup.text, "set -e\npip install x");
        assert_eq!(setup.from.line, 3);
        assert_eq!(read.key.expect("a key").len(), 2);
        assert_eq!(read.network.expect("rules").len(), 2);
        assert_eq!(read.path.expect("directories").len(), 3);
        assert!(read.root.is_some_and(|root| root.on));
        assert!(read.caches[&CacheKind::Pip].on && !read.caches[&CacheKind::Npm].on);
        let sizes: Vec<u64> = read.tmpfs.iter().map(|area| area.bytes).collect();
        assert_eq!(sizes, [8192, 512 << 20]);
    }

    #[test]
    fn what_is_none_is_told() {
        for (text, message) in [
            ("[environment]\nkey = ['../a']", "the path of a file"),
            ("[environment]\nkey = ['/etc/passwd']", "the path of a file"),
            ("[environment]\nkey = ['a//b']", "the path of a file"),
            ("[environment]\npath = ['../a']", "a directory inside"),
            ("[environment]\npath = ['/a/../b']", "a directory inside"),
            ("[environment]\npath = ['/a:/b']", "a directory inside"),
            ("[environment]\npath = ['~']", "a directory inside"),
            ("[environment]\npath = ['']", "a directory inside"),
            ("[environment]\npath = ['/']", "a directory inside"),
            ("[environment]\nimage = 'a b'", "the name of an image"),
            ("[environment]\nimage = ''", "the name of an image"),
            (
                "[environment]\nsetup = \"a\\u001b[2J\"",
                "it has a character",
            ),
            ("[environment]\nsetup = ['a']", "a string is meant"),
            ("[environment]\npull = 'x'", "`pull` is not known here"),
            (
                "[environment.cache]\nmaven = true",
                "`maven` is not known here",
            ),
            ("[environment]\nenv = { 'A B' = '1' }", "`A B` is not"),
            ("[mounts]\n'a/b' = { tmpfs = '1M' }", "an absolute path"),
            ("[mounts]\n'/a' = { tmpfs = 'none' }", "an area in memory"),
            ("[mounts]\n'/a' = { tmpfs = 7 }", "an area in memory"),
            ("[mounts]\n'/a' = {}", "`{ tmpfs"),
            (
                "[mounts]\n'/a' = { host = '/etc' }",
                "`host` is not known here",
            ),
        ] {
            let said = read(text).expect_err(text);
            assert!(said.starts_with(message), "{text}: {said}");
        }
    }
}
