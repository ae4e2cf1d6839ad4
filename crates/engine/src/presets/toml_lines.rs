//! Settings in TOML, with the line of each value.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::PresetError;
use super::surroundings::{Setting, Text};

/// A file that was read.
#[derive(Debug)]
pub(super) struct Tables<'a> {
    text: &'a Text,
    table: Spanned<DeTable<'a>>,
}

impl<'a> Tables<'a> {
    pub fn read(text: &'a Text) -> Result<Self, PresetError> {
        let table = DeTable::parse(&text.content).map_err(|error| PresetError::Parse {
            path: text.path.clone(),
            line: line_of(&text.content, error.span().map_or(0, |span| span.start)),
        })?;
        Ok(Self { text, table })
    }

    pub fn top(&self) -> &DeTable<'a> {
        self.table.get_ref()
    }

    /// A table below another.
    pub fn table<'t>(within: &'t DeTable<'a>, key: &str) -> Option<&'t DeTable<'a>> {
        within.get(key)?.get_ref().as_table()
    }

    /// A text as a setting.
    pub fn setting(&self, within: &DeTable<'a>, key: &str) -> Option<Setting> {
        self.text_of(within.get(key)?)
    }

    /// All texts of a list, or the one that stands there alone.
    pub fn settings(&self, within: &DeTable<'a>, key: &str) -> Vec<Setting> {
        match within.get(key).map(|value| (value, value.get_ref())) {
            Some((_, DeValue::Array(list))) => {
                list.iter().filter_map(|item| self.text_of(item)).collect()
            }
            Some((value, _)) => self.text_of(value).into_iter().collect(),
            None => Vec::new(),
        }
    }

    fn text_of(&self, value: &Spanned<DeValue<'a>>) -> Option<Setting> {
        let line = line_of(&self.text.content, value.span().start);
        let text = value.get_ref().as_str()?;
        Some(self.text.setting(text, line))
    }
}

fn line_of(text: &str, at: usize) -> u32 {
    let before = text.as_bytes().iter().take(at);
    let lines = before.filter(|byte| **byte == b'\n').count();
    u32::try_from(lines).map_or(u32::MAX, |lines| lines.saturating_add(1))
}
