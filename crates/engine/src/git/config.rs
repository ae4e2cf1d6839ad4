//! Reader of git's configuration format.
//!
//! Lenient where git is strict: a line that makes no sense is skipped, since nothing is decided
//! here but which few settings are carried over. `include` is never followed.

use std::path::Path;

use super::GitError;
use super::directory::Directory;
use super::files::{self, Contents, Links};

/// BOUND: git's own configuration files are a few KiB; a repository with thousands of branches
/// stays far below this.
const CONFIG_BYTES: u64 = 8 << 20;
/// BOUND: settings kept of one file, so that a hostile file costs bounded memory.
const SETTINGS: usize = 200_000;

/// One `section.subsection.key = value`; a key without `=` has no value and means true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    /// Lower case.
    pub section: Vec<u8>,
    pub subsection: Option<Vec<u8>>,
    /// Lower case.
    pub key: Vec<u8>,
    pub value: Option<Vec<u8>>,
}

/// The settings of one or more files, in the order of reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    settings: Vec<Setting>,
}

impl Config {
    /// Reads a file of a repository; an absent one has no settings.
    pub(super) fn read_in(directory: &Directory, name: &Path) -> Result<Self, GitError> {
        Ok(Self::of(directory.read(name, CONFIG_BYTES)?))
    }

    /// Reads a file of the user's home.
    pub(super) fn read(path: &Path) -> Result<Self, GitError> {
        Ok(Self::of(files::read(path, CONFIG_BYTES, Links::Follow)?))
    }

    fn of(contents: Option<Contents>) -> Self {
        contents
            .map(|contents| Self::parse(&contents.bytes))
            .unwrap_or_default()
    }

    /// Reads the text of a configuration file.
    pub fn parse(text: &[u8]) -> Self {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        Parser { text, at: 0 }.run()
    }

    /// Adds settings that win over those here.
    pub(super) fn overlay(&mut self, other: Self) {
        self.settings.extend(other.settings);
    }

    /// Every setting, in order.
    pub(super) fn settings(&self) -> &[Setting] {
        &self.settings
    }

    /// The last value of `section.key`; a key without a value reads as `true`.
    pub fn get(&self, section: &str, key: &str) -> Option<&[u8]> {
        self.settings
            .iter()
            .rev()
            .find(|s| {
                s.subsection.is_none() && s.section == section.as_bytes() && s.key == key.as_bytes()
            })
            .map(|s| s.value.as_deref().unwrap_or(b"true"))
    }

    /// Name, key and value of every setting of a section that has a name, in order.
    pub(crate) fn named(&self, section: &str) -> impl Iterator<Item = (&[u8], &[u8], &[u8])> {
        self.settings
            .iter()
            .filter(move |s| s.section == section.as_bytes())
            .filter_map(|s| Some((s.subsection.as_deref()?, &s.key[..], s.value.as_deref()?)))
    }

    /// The last value of `section.key` as git reads a boolean.
    pub fn get_bool(&self, section: &str, key: &str) -> Option<bool> {
        self.get(section, key).and_then(parse_bool)
    }
}

/// Git's booleans.
pub(super) fn parse_bool(value: &[u8]) -> Option<bool> {
    match value.to_ascii_lowercase().as_slice() {
        b"true" | b"yes" | b"on" | b"1" => Some(true),
        b"false" | b"no" | b"off" | b"0" | b"" => Some(false),
        _ => None,
    }
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn run(mut self) -> Config {
        let mut config = Config::default();
        let mut section: Option<(Vec<u8>, Option<Vec<u8>>)> = None;
        while let Some(byte) = self.peek() {
            match byte {
                b'#' | b';' => self.skip_line(),
                b'[' => {
                    self.at += 1;
                    section = self.section();
                    if section.is_none() {
                        self.skip_line();
                    }
                }
                _ if byte.is_ascii_whitespace() => self.at += 1,
                _ if byte.is_ascii_alphabetic() => {
                    let key = self.name();
                    let value = self.after_key();
                    if let (Some((section, subsection)), Ok(value)) = (&section, value) {
                        if config.settings.len() == SETTINGS {
                            break;
                        }
                        config.settings.push(Setting {
                            section: section.clone(),
                            subsection: subsection.clone(),
                            key,
                            value,
                        });
                    }
                }
                _ => self.skip_line(),
            }
        }
        config
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn skip_line(&mut self) {
        while let Some(byte) = self.next() {
            if byte == b'\n' {
                break;
            }
        }
    }

    fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r')) {
            self.at += 1;
        }
    }

    /// Letters, digits, `-` and `.`, in lower case.
    fn name(&mut self) -> Vec<u8> {
        let start = self.at;
        while self
            .peek()
            .is_some_and(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'))
        {
            self.at += 1;
        }
        self.text[start..self.at].to_ascii_lowercase()
    }

    /// What follows `[`: `name]`, `name.sub]` (old spelling) or `name "sub"]`.
    fn section(&mut self) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        let name = self.name();
        self.skip_blanks();
        match self.next()? {
            b']' => {
                let dot = name.iter().position(|&b| b == b'.');
                Some(match dot {
                    Some(dot) => (name[..dot].to_vec(), Some(name[dot + 1..].to_vec())),
                    None => (name, None),
                })
            }
            b'"' => {
                let mut subsection = Vec::new();
                loop {
                    match self.next()? {
                        b'"' => break,
                        b'\n' => {
                            self.at -= 1;
                            return None;
                        }
                        b'\\' => match self.next()? {
                            b'\n' => {
                                self.at -= 1;
                                return None;
                            }
                            byte => subsection.push(byte),
                        },
                        byte => subsection.push(byte),
                    }
                }
                self.skip_blanks();
                (self.next()? == b']').then_some((name, Some(subsection)))
            }
            b'\n' => {
                self.at -= 1;
                None
            }
            _ => None,
        }
    }

    /// The rest of a setting's line: nothing, a comment, or `= value`. `Err` is a broken line.
    fn after_key(&mut self) -> Result<Option<Vec<u8>>, ()> {
        self.skip_blanks();
        match self.peek() {
            None | Some(b'\n') => return Ok(None),
            Some(b'#' | b';') => {
                self.skip_line();
                return Ok(None);
            }
            Some(b'=') => self.at += 1,
            Some(_) => {
                self.skip_line();
                return Err(());
            }
        }
        self.skip_blanks();
        self.value().map(Some)
    }

    fn value(&mut self) -> Result<Vec<u8>, ()> {
        let mut value = Vec::new();
        // Trailing blanks outside quotation marks do not count; this is the length without them.
        let mut kept = 0;
        let mut quoted = false;
        loop {
            match self.next() {
                None | Some(b'\n') => {
                    value.truncate(kept);
                    return if quoted { Err(()) } else { Ok(value) };
                }
                Some(b'"') => {
                    quoted = !quoted;
                    kept = value.len();
                }
                Some(b'#' | b';') if !quoted => {
                    self.skip_line();
                    value.truncate(kept);
                    return Ok(value);
                }
                Some(b'\\') => {
                    match self.next() {
                        Some(b'\n') => continue,
                        Some(b'\r') if self.peek() == Some(b'\n') => {
                            self.at += 1;
                            continue;
                        }
                        Some(b'n') => value.push(b'\n'),
                        Some(b't') => value.push(b'\t'),
                        Some(b'b') => value.push(8),
                        Some(byte @ (b'"' | b'\\')) => value.push(byte),
                        Some(b'\r') | Some(_) => {
                            self.skip_line();
                            return Err(());
                        }
                        None => return Err(()),
                    }
                    kept = value.len();
                }
                Some(byte @ (b' ' | b'\t' | b'\r')) if !quoted => value.push(byte),
                Some(byte) => {
                    value.push(byte);
                    kept = value.len();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn listed(text: &str) -> Vec<String> {
        Config::parse(text.as_bytes())
            .settings()
            .iter()
            .map(|s| {
                let mut line = String::from_utf8_lossy(&s.section).into_owned();
                if let Some(sub) = &s.subsection {
                    line += &format!(".{}", String::from_utf8_lossy(sub));
                }
                line += &format!(".{}", String::from_utf8_lossy(&s.key));
                if let Some(value) = &s.value {
                    line += &format!("={}", String::from_utf8_lossy(value));
                }
                line
            })
            .collect()
    }

    #[test]
    fn the_format_is_read_as_git_reads_it() {
        for (text, expected) in [
            ("[core]\n\tbare = false\n", vec!["core.bare=false"]),
            ("[Core]Bare=TRUE", vec!["core.bare=TRUE"]),
            ("[a]\nx\ny ; c\n", vec!["a.x", "a.y"]),
            (
                "[remote \"o\\\"r\\x\"]\nurl = a # b\n",
                vec!["remote.o\"rx.url=a"],
            ),
            ("[a.B]\nk = \" v \" w  \n", vec!["a.b.k= v  w"]),
            ("[a]\nk = one\\\ntwo\n", vec!["a.k=onetwo"]),
            ("[a]\nk = a\\tb\\\\c\n", vec!["a.k=a\tb\\c"]),
            ("[a]\nk = \"x;y#z\"\n", vec!["a.k=x;y#z"]),
            ("[a]\r\nk = v\r\n", vec!["a.k=v"]),
            ("[a]\nbroken line here\nk = v\n", vec!["a.k=v"]),
            ("[a]\nk = \"open\n[b]\nx = 1\n", vec!["b.x=1"]),
            ("[a \"unclosed\n[b]\nx = 1\n", vec!["b.x=1"]),
            ("\u{feff}[a]\nk = v", vec!["a.k=v"]),
        ] {
            assert_eq!(listed(text), expected, "{text:?}");
        }
    }

    #[test]
    fn the_last_value_wins() {
        let config = Config::parse(b"[core]\nbare=true\nbare=no\n[core \"x\"]\nbare=true");
        assert_eq!(config.get_bool("core", "bare"), Some(false));
        assert_eq!(config.get("core", "absent"), None);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Config::parse(&text);
        }

        #[test]
        fn no_likely_text_makes_it_panic(text in "[\\[\\]a-c\"\\\\=;# \\n\\r\\t]{0,60}") {
            let _ = Config::parse(text.as_bytes());
        }
    }
}
