//! Values of a TOML text, with their places: what is not as it should be becomes a [`Problem`], and
//! reading goes on, so that all problems are told at once.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::super::Line;
use super::super::network::Origin;
use super::problem::{DocumentError, MAX_PROBLEMS, Problem};

/// BOUND: bytes of a file. The longest that people write by hand is a hundredth of it.
pub const MAX_BYTES: usize = 256 << 10;

/// BOUND: items of one list; rules are compared each with each.
const MAX_ITEMS: usize = 1000;

pub(crate) type Value<'t> = Spanned<DeValue<'t>>;

/// Reads a whole text; `what` it is stands in what is said of its size.
pub(crate) fn read_text<T>(
    bytes: &[u8],
    file: &str,
    what: &str,
    read: impl for<'t> FnOnce(&mut Reader<'t>, &DeTable<'t>) -> T,
) -> Result<T, DocumentError> {
    let one = |text: &str, at: usize, message: &str| {
        let problem = Problem::at(file, text, at..at + 1, message.to_owned());
        DocumentError(vec![problem])
    };
    if bytes.len() > MAX_BYTES {
        let message = format!("{what} has at most {MAX_BYTES} bytes");
        return Err(one("", 0, &message));
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let good = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
            return Err(one(&good, good.len(), "what follows is not UTF-8"));
        }
    };
    // HOSTILE: what is read must be what a person sees (NUL, escapes of terminals, text that
    // runs backwards).
    let rest = text.replace("\r\n", "\n\n");
    let hidden = |c: char| crate::text::misleads(c) && !matches!(c, '\n' | '\t');
    if let Some(at) = rest.find(hidden) {
        return Err(one(text, at, "this character is not shown as it is"));
    }
    let mut reader = Reader {
        file,
        text,
        problems: Vec::new(),
    };
    let parsed = DeTable::parse(text);
    let document = match &parsed {
        Ok(table) => Some(read(&mut reader, table.get_ref())),
        Err(error) => {
            let span = error.span().unwrap_or(0..0);
            reader.wrong(span, error.message().trim().replace('\n', ", "));
            None
        }
    };
    reader
        .problems
        .sort_by_key(|problem| (problem.line, problem.column));
    match document {
        Some(document) if reader.problems.is_empty() => Ok(document),
        _ => Err(DocumentError(reader.problems)),
    }
}

#[derive(Debug)]
pub(crate) struct Reader<'t> {
    pub file: &'t str,
    pub text: &'t str,
    pub problems: Vec<Problem>,
}

impl<'t> Reader<'t> {
    pub fn wrong(&mut self, span: Range<usize>, message: impl Display) {
        if self.problems.len() < MAX_PROBLEMS {
            let problem = Problem::at(self.file, self.text, span, message.to_string());
            self.problems.push(problem);
        }
    }

    /// Keeps what was understood, and tells what was not.
    pub fn keep<T, E: Display>(&mut self, span: Range<usize>, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.wrong(span, error)).ok()
    }

    pub fn origin(&self, span: &Range<usize>) -> Origin {
        let before = &self.text.as_bytes()[..span.start.min(self.text.len())];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        Origin {
            file: self.file.to_owned(),
            line: u32::try_from(line).unwrap_or(u32::MAX),
        }
    }

    /// The values of a table by name. A key that is not known is a problem, never a no-op.
    pub fn keys<'v>(
        &mut self,
        table: &'v DeTable<'t>,
        known: &[&'static str],
    ) -> BTreeMap<&'static str, &'v Value<'t>> {
        let mut found = BTreeMap::new();
        for (key, value) in table {
            match known.iter().find(|name| **name == key.get_ref().as_ref()) {
                Some(name) => {
                    found.insert(*name, value);
                }
                None => {
                    let message = format!(
                        "`{}` is not known here; known are {}",
                        key.get_ref(),
                        known.join(", ")
                    );
                    self.wrong(key.span(), message);
                }
            }
        }
        found
    }

    pub fn table<'v>(&mut self, value: &'v Value<'t>) -> Option<&'v DeTable<'t>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.wrong(value.span(), "a table is meant");
        }
        table
    }

    /// A string that can be shown as it is.
    pub fn string<'v>(&mut self, value: &'v Value<'t>) -> Option<&'v str> {
        let Some(text) = value.get_ref().as_str() else {
            self.wrong(value.span(), "a string is meant");
            return None;
        };
        // HOSTILE: `"\u0000"` has none of them in the file itself.
        if text.chars().any(crate::text::misleads) {
            self.wrong(
                value.span(),
                "it has a character that is not shown as it is",
            );
            return None;
        }
        Some(text)
    }

    pub fn line(&mut self, value: &Value<'t>) -> Option<Line> {
        let text = self.string(value)?.to_owned();
        Some(Line {
            text,
            from: self.origin(&value.span()),
        })
    }

    pub fn array<'v>(&mut self, value: &'v Value<'t>) -> &'v [Value<'t>] {
        match value.get_ref() {
            DeValue::Array(items) if items.len() <= MAX_ITEMS => items,
            DeValue::Array(_) => {
                self.wrong(
                    value.span(),
                    format!("a list has at most {MAX_ITEMS} items"),
                );
                &[]
            }
            _ => {
                self.wrong(value.span(), "a list is meant");
                &[]
            }
        }
    }

    /// A list of strings; each must pass the check.
    pub fn lines<E: Display>(
        &mut self,
        value: &Value<'t>,
        check: impl Fn(&str) -> Result<(), E>,
    ) -> Vec<Line> {
        let mut lines = Vec::new();
        for item in self.array(value) {
            if let Some(line) = self.line(item)
                && self.keep(item.span(), check(&line.text)).is_some()
            {
                lines.push(line);
            }
        }
        lines
    }

    pub fn boolean(&mut self, value: &Value<'t>) -> Option<bool> {
        let read = value.get_ref().as_bool();
        if read.is_none() {
            self.wrong(value.span(), "`true` or `false` is meant");
        }
        read
    }

    /// A number, or a string that is read as one: `"4G"`, `"30m"`. `none` is no bound.
    pub fn quantity<E: Display>(
        &mut self,
        value: &Value<'t>,
        parse: impl Fn(&str) -> Result<Option<u64>, E>,
    ) -> Option<Option<u64>> {
        let read = match value.get_ref() {
            DeValue::Integer(number) if number.radix() == 10 => parse(number.as_str()),
            DeValue::String(text) => parse(text),
            _ => {
                self.wrong(
                    value.span(),
                    "a number or a string such as `\"4G\"` is meant",
                );
                return None;
            }
        };
        self.keep(value.span(), read)
    }
}
