//! The lines of one file that a search gives: matches, and what is around them.

use std::collections::VecDeque;
use std::io;

use grep_matcher::Matcher as _;
use grep_regex::RegexMatcher;
use grep_searcher::{Searcher, Sink, SinkContext, SinkMatch};
use ringfence_model::ByteText;
use ringfence_model::tools::{MAX_LINE_BYTES, MAX_RESPONSE, SearchMatch};

/// Collects lines in their order; context lines of neighbouring matches come once.
#[derive(Debug)]
pub struct Lines<'a> {
    matcher: &'a RegexMatcher,
    /// How many matches there may be.
    limit: usize,
    matches: usize,
    bytes: usize,
    lines: Vec<Line>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Whole,
    /// There was more than there may be.
    Cut,
}

#[derive(Debug)]
struct Line {
    /// The first, and the one behind the last: a match may have several.
    number: u64,
    next: u64,
    text: String,
    /// Only matches have one.
    column: Option<u64>,
}

impl<'a> Lines<'a> {
    pub fn new(matcher: &'a RegexMatcher, limit: usize) -> Self {
        Self {
            matcher,
            limit,
            matches: 0,
            bytes: 0,
            lines: Vec::new(),
            state: State::Whole,
        }
    }

    pub fn is_cut(&self) -> bool {
        self.state == State::Cut
    }

    /// Matches with the lines before and after them.
    pub fn matches(
        &self,
        path: &ByteText,
        before: usize,
        after: usize,
    ) -> impl Iterator<Item = SearchMatch> {
        let of = move |(index, line): (usize, &Line)| {
            let column = line.column?;
            Some(SearchMatch {
                path: path.clone(),
                line: line.number,
                column,
                text: line.text.clone(),
                before: self.before(index, before),
                after: self.after(index, after),
            })
        };
        self.lines.iter().enumerate().filter_map(of)
    }

    fn before(&self, index: usize, count: usize) -> Vec<String> {
        let mut found = VecDeque::new();
        let mut expected = self.lines[index].number;
        for line in self.lines[..index].iter().rev().take(count) {
            if line.next != expected {
                break;
            }
            expected = line.number;
            found.push_front(line.text.clone());
        }
        found.into()
    }

    fn after(&self, index: usize, count: usize) -> Vec<String> {
        let mut found = Vec::new();
        let mut expected = self.lines[index].next;
        for line in self.lines[index + 1..].iter().take(count) {
            if line.number != expected {
                break;
            }
            expected = line.next;
            found.push(line.text.clone());
        }
        found
    }

    /// Adds a line; false when it was one too many.
    fn push(&mut self, number: Option<u64>, bytes: &[u8], column: Option<u64>) -> bool {
        let number = number.unwrap_or(0);
        let text = shown(bytes);
        // BOUND: lines that would not fit the answer are not kept either.
        self.bytes += text.len() + 1;
        if self.bytes > MAX_RESPONSE {
            self.state = State::Cut;
            return false;
        }
        let lines = memchr::memchr_iter(b'\n', bytes).count().max(1);
        self.lines.push(Line {
            number,
            next: number + lines as u64,
            text,
            column,
        });
        true
    }
}

impl Sink for Lines<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        let number = found.line_number();
        if self.matches == self.limit {
            self.state = State::Cut;
            // It may still be a line after the last match.
            self.push(number, found.bytes(), None);
            return Ok(false);
        }
        self.matches += 1;
        let at = self.matcher.find(found.bytes())?;
        let column = at.map_or(0, |at| at.start()) as u64 + 1;
        Ok(self.push(number, found.bytes(), Some(column)))
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> io::Result<bool> {
        Ok(self.push(context.line_number(), context.bytes(), None))
    }
}

/// A line without its end, cut at its bound.
fn shown(bytes: &[u8]) -> String {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
    let cut = &bytes[..bytes.len().min(MAX_LINE_BYTES)];
    let mut text = String::from_utf8_lossy(cut).into_owned();
    if cut.len() < bytes.len() {
        // A character that was split is not a broken one.
        if text.ends_with('\u{fffd}') {
            text.pop();
        }
        text.push('…');
    }
    text
}
