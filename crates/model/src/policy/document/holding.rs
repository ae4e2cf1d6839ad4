//! The part of `[review]` that says what is held and what a rule may approve.

use super::super::Bound;
use super::super::glob::Globs;
use super::super::network::Origin;
use super::Document;
use super::reader::{Reader, Value};
use crate::holding::{AutoApprove, ChecksWanted, Holding, Tolerated};
use crate::limits::parse_size;

/// Its keys.
pub(super) const KEYS: [&str; 4] = [
    "auto_approve",
    "max_patch_bytes",
    "max_patch_files",
    "max_patch_lines",
];

/// BOUND: what a rule allows that says nothing of it.
const MAX_LINES: u64 = 50;
const MAX_FILES: u64 = 20;

/// What a file says of holding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HoldingText {
    pub lines: Option<Bound>,
    pub files: Option<Bound>,
    pub bytes: Option<Bound>,
    pub auto_approve: Option<AutoText>,
}

/// `auto_approve`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AutoText {
    /// `false`: whatever stands below.
    Off(Origin),
    On(AutoApprove),
}

impl HoldingText {
    /// This file over another one: the later one, key by key.
    pub fn over(self, base: Self) -> Self {
        Self {
            lines: self.lines.or(base.lines),
            files: self.files.or(base.files),
            bytes: self.bytes.or(base.bytes),
            auto_approve: self.auto_approve.or(base.auto_approve),
        }
    }

    pub fn resolve(self) -> Holding {
        Holding {
            lines: self.lines,
            files: self.files,
            bytes: self.bytes,
            auto_approve: match self.auto_approve {
                Some(AutoText::On(rule)) => Some(rule),
                Some(AutoText::Off(_)) | None => None,
            },
        }
    }
}

impl Document {
    /// One of [`KEYS`].
    pub(super) fn read_holding<'t>(
        &mut self,
        reader: &mut Reader<'t>,
        key: &str,
        value: &Value<'t>,
    ) {
        let own = &mut self.holding;
        match key {
            "auto_approve" => own.auto_approve = auto_approve(reader, value),
            "max_patch_bytes" => own.bytes = bound(reader, value, parse_bytes),
            "max_patch_files" => own.files = bound(reader, value, parse_count),
            _ => own.lines = bound(reader, value, parse_count),
        }
    }
}

fn parse_bytes(text: &str) -> Result<Option<u64>, String> {
    parse_size(text).map_err(|error| error.to_string())
}

fn parse_count(text: &str) -> Result<Option<u64>, String> {
    match text {
        "none" => Ok(None),
        text => match text.parse::<u32>() {
            Ok(count) => Ok(Some(count.into())),
            Err(_) => Err("a count or `none` is meant".to_owned()),
        },
    }
}

fn bound<'t>(
    reader: &mut Reader<'t>,
    value: &Value<'t>,
    parse: fn(&str) -> Result<Option<u64>, String>,
) -> Option<Bound> {
    let most = reader.quantity(value, parse)?;
    let from = reader.origin(&value.span());
    Some(Bound { most, from })
}

fn auto_approve<'t>(reader: &mut Reader<'t>, value: &Value<'t>) -> Option<AutoText> {
    let from = reader.origin(&value.span());
    match value.get_ref().as_bool() {
        Some(false) => return Some(AutoText::Off(from)),
        Some(true) => {
            let message = "say what it may approve: `{ checks = \"all\", max_lines = 50, … }`";
            reader.wrong(value.span(), message);
            return None;
        }
        None => {}
    }
    let table = reader.table(value)?;
    let mut rule = AutoApprove {
        checks: ChecksWanted::All,
        max_lines: MAX_LINES,
        max_files: MAX_FILES,
        flags: Tolerated::None,
        paths: None,
        from,
    };
    let keys = ["checks", "flags", "max_files", "max_lines", "paths"];
    for (key, value) in reader.keys(table, &keys) {
        match key {
            "checks" => match reader.string(value) {
                Some("all") => rule.checks = ChecksWanted::All,
                Some("none") => rule.checks = ChecksWanted::None,
                Some(_) => reader.wrong(value.span(), "`all` or `none` is meant"),
                None => {}
            },
            "flags" => match reader.string(value) {
                Some("none") => rule.flags = Tolerated::None,
                Some("low") => rule.flags = Tolerated::Low,
                Some(_) => reader.wrong(value.span(), "`none` or `low` is meant"),
                None => {}
            },
            "paths" => {
                let glob = |text: &str| Globs::parse(&[text]).map(|_| ());
                rule.paths = Some(reader.lines(value, glob));
            }
            key => {
                let parse = |text: &str| match parse_count(text) {
                    Ok(None) => Err("a count is meant: a rule has a bound".to_owned()),
                    parsed => parsed,
                };
                if let Some(Some(most)) = reader.quantity(value, parse) {
                    match key {
                        "max_files" => rule.max_files = most,
                        _ => rule.max_lines = most,
                    }
                }
            }
        }
    }
    Some(AutoText::On(rule))
}
