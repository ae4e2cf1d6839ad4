//! What is wrong in a file, and where.

use std::fmt;
use std::ops::Range;

use serde::Serialize;

use super::super::Line;
use crate::text::misleads;

/// BOUND: how much of a long line is shown.
const SHOWN: usize = 120;
/// BOUND: problems of one file that are told; whoever has so many has one cause.
pub(super) const MAX_PROBLEMS: usize = 20;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    pub file: String,
    /// Counted from 1.
    pub line: u32,
    /// In characters, counted from 1.
    pub column: u32,
    pub message: String,
    /// The line itself.
    pub text: String,
    /// How many characters of it are meant.
    pub width: u32,
}

impl Problem {
    /// With an item that was read well; `text` is its file, as far as that is known.
    pub fn on(text: &str, item: &Line, message: String) -> Self {
        let number = item.from.line.max(1) as usize;
        let starts = text.match_indices('\n').map(|(at, _)| at + 1);
        let start = std::iter::once(0).chain(starts).nth(number - 1);
        let found = start.and_then(|start| {
            let end = text[start..].find('\n').map_or(text.len(), |at| start + at);
            text[start..end].find(&item.text).map(|at| start + at)
        });
        match found.or(start) {
            Some(at) => Self::at(&item.from.file, text, at..at + item.text.len(), message),
            None => Self {
                line: item.from.line.max(1),
                ..Self::at(&item.from.file, "", 0..0, message)
            },
        }
    }

    /// At a place of a text.
    pub(super) fn at(file: &str, text: &str, span: Range<usize>, message: String) -> Self {
        let start = floor(text, span.start);
        let begin = text[..start].rfind('\n').map_or(0, |at| at + 1);
        let end = text[start..].find('\n').map_or(text.len(), |at| start + at);
        let until = floor(text, span.end.max(start)).min(end);
        let count = |text: &str| u32::try_from(text.chars().count()).unwrap_or(u32::MAX);
        Self {
            file: file.to_owned(),
            line: count(&text[..begin].replace(|c| c != '\n', "")) + 1,
            column: count(&text[begin..start]) + 1,
            message,
            text: text[begin..end].trim_end_matches('\r').to_owned(),
            width: count(&text[start..until.max(start)]).max(1),
        }
    }
}

/// The same place, or the one before where that is inside of a character.
fn floor(text: &str, mut at: usize) -> usize {
    at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file, line, column, ..
        } = self;
        writeln!(f, "{file}:{line}:{column}: {}", self.message)?;
        // A long line is shown from a little before the place.
        let column = *column as usize - 1;
        let skipped = if column + 20 > SHOWN { column - 40 } else { 0 };
        // HOSTILE: what a terminal would act on takes one place, as everything else.
        let plain = |c: char| match c {
            '\t' => ' ',
            c if misleads(c) => '\u{fffd}',
            c => c,
        };
        let shown: String = self
            .text
            .chars()
            .skip(skipped)
            .take(SHOWN)
            .map(plain)
            .collect();
        let number = line.to_string();
        let margin = " ".repeat(number.len());
        let indent = " ".repeat(column - skipped);
        let most = SHOWN.saturating_sub(column - skipped).max(1);
        let carets = "^".repeat((self.width as usize).min(most));
        writeln!(f, "  {number} | {shown}")?;
        write!(f, "  {margin} | {indent}{carets}")
    }
}

/// All that is wrong in a file; there is at least one problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct DocumentError(pub Vec<Problem>);

impl fmt::Display for DocumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.0.iter().enumerate() {
            if at > 0 {
                writeln!(f)?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}
