//! What test runners print, to numbers.
//!
//! HOSTILE: all of it is chosen by the code under test, which an agent wrote. Nothing is decided by
//! it; it is read so that a person sees `3 failed` instead of a page of text, and each number says
//! which runner's words it was taken from, on which stream, and from how many summaries.

mod go;
mod javascript;
mod junit;
mod python;
mod rust;
mod tap;

use std::fmt;

use serde::{Deserialize, Serialize};

/// BOUND: what is read of the end of a stream. A summary stands at the end.
pub const READ_BYTES: usize = 8 << 20;
/// BOUND: bytes of a line that are looked at; no summary is longer.
const LINE_BYTES: usize = 2048;
/// BOUND: names of failing tests that are kept, and characters of each.
const NAMES: usize = 50;
const NAME_CHARACTERS: usize = 200;

/// What a runner says of its tests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Whose words these are.
    pub runner: String,
    pub from: From,
    pub unit: Unit,
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
    /// How many summaries were added up; more than one is usual for some runners.
    pub summaries: u64,
    /// Names of what failed, as far as they are told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failing: Vec<String>,
    /// How many names are not listed.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    pub failing_more: u64,
}

impl Counts {
    /// How many tests there were.
    pub fn all(&self) -> u64 {
        self.passed + self.failed + self.skipped
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.unit {
            Unit::Tests => "tests",
            Unit::Packages => "packages",
        };
        write!(
            f,
            "{} {unit} passed, {} failed, {} skipped by the words of {} on {}",
            self.passed,
            self.failed,
            self.skipped,
            self.runner,
            self.from.as_str()
        )
    }
}

/// Where it stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum From {
    Stdout,
    Stderr,
}

impl From {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "standard output",
            Self::Stderr => "standard error",
        }
    }
}

/// What is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    #[default]
    Tests,
    /// The runner tells no single tests.
    Packages,
}

/// What one parser found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Tally {
    unit: Unit,
    passed: u64,
    failed: u64,
    skipped: u64,
    summaries: u64,
    /// The line of the last summary.
    last: usize,
    failing: Vec<String>,
    more: u64,
}

impl Tally {
    fn add(&mut self, line: usize, passed: u64, failed: u64, skipped: u64) {
        self.passed = self.passed.saturating_add(passed);
        self.failed = self.failed.saturating_add(failed);
        self.skipped = self.skipped.saturating_add(skipped);
        self.summaries += 1;
        self.last = line;
    }

    fn name(&mut self, name: &str) {
        let name: String = name.trim().chars().take(NAME_CHARACTERS).collect();
        if name.is_empty() || self.failing.contains(&name) {
            return;
        }
        if self.failing.len() < NAMES {
            self.failing.push(name)
        } else {
            self.more += 1
        }
    }

    fn found(self) -> Option<Self> {
        (self.summaries > 0).then_some(self)
    }
}

/// One stream.
struct Text<'t> {
    all: &'t str,
    /// Each cut at a length that no summary has.
    lines: Vec<&'t str>,
}

type Parser = fn(&Text<'_>) -> Option<Tally>;

/// The runners, and words of a command that name them.
const PARSERS: &[(&str, &[&str], Parser)] = &[
    ("cargo test", &["cargo test", "cargo t "], rust::cargo),
    ("cargo nextest", &["nextest"], rust::nextest),
    ("pytest", &["pytest", "py.test"], python::pytest),
    (
        "unittest",
        &["unittest", "manage.py test"],
        python::unittest,
    ),
    ("go test -json", &["go test -json"], go::json),
    ("go test", &["go test"], go::plain),
    ("jest", &["jest"], javascript::jest),
    ("vitest", &["vitest"], javascript::vitest),
    ("mocha", &["mocha"], javascript::mocha),
    ("TAP", &["node --test", "tap", "prove", "bats"], tap::tap),
    ("JUnit XML", &["junit"], junit::junit),
];

/// Whether a command names a runner whose words are known here.
pub fn is_known(command: &str) -> bool {
    let named = |words: &[&str]| words.iter().any(|word| command.contains(word));
    PARSERS.iter().any(|(_, words, _)| named(words))
}

/// Whether a line of shell runs such a runner: by whole words, and not where a file of that name is
/// looked at or the runner is installed.
pub fn runs_known(command: &str) -> bool {
    const LOOKS: [&str; 9] = [
        "grep", "test", "[", "echo", "printf", "cat", "which", "command", "ls",
    ];
    const BETWEEN: [char; 8] = [';', '&', '|', '(', ')', '`', '\n', '!'];
    command.split(BETWEEN).any(|part| {
        let words = part.split_whitespace();
        let words = words.map(|word| word.trim_matches(['"', '\'', '$']));
        let words: Vec<&str> = words
            .map(|word| word.rsplit('/').next().unwrap_or(word))
            // `python3 -mpytest`.
            .map(|word| word.strip_prefix("-m").unwrap_or(word))
            .collect();
        let leads = words.first().copied().unwrap_or_default();
        if LOOKS.contains(&leads) || words.contains(&"install") {
            return false;
        }
        let mut phrases = PARSERS.iter().flat_map(|(_, phrases, _)| *phrases);
        phrases.any(|phrase| {
            let phrase: Vec<&str> = phrase.split_whitespace().collect();
            words.windows(phrase.len()).any(|own| own == phrase)
        })
    })
}

/// Reads what a check printed. What its command names counts first, then what stands nearest to the
/// end of its stream.
pub fn count(command: &str, stdout: &[u8], stderr: &[u8]) -> Option<Counts> {
    let mut best: Option<((bool, usize), Counts)> = None;
    for (from, bytes) in [(From::Stdout, stdout), (From::Stderr, stderr)] {
        let all = plain(&bytes[bytes.len().saturating_sub(READ_BYTES)..]);
        let text = Text {
            all: &all,
            lines: all.lines().map(cut).collect(),
        };
        let length = text.lines.len();
        for (runner, words, parser) in PARSERS {
            let Some(tally) = parser(&text) else {
                continue;
            };
            let unnamed = !words.iter().any(|word| command.contains(word));
            let rank = (unnamed, length - tally.last.min(length));
            if best.as_ref().is_none_or(|(other, _)| rank < *other) {
                let counts = Counts {
                    runner: (*runner).to_owned(),
                    from,
                    unit: tally.unit,
                    passed: tally.passed,
                    failed: tally.failed,
                    skipped: tally.skipped,
                    summaries: tally.summaries,
                    failing: tally.failing,
                    failing_more: tally.more,
                };
                best = Some((rank, counts));
            }
        }
    }
    best.map(|(_, counts)| counts)
}

fn cut(line: &str) -> &str {
    let mut end = line.len().min(LINE_BYTES);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    &line[..end]
}

/// Text without escape sequences of terminals.
fn plain(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    if !text.contains('\u{1b}') {
        return text.into_owned();
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\u{1b}' {
            out.push(c);
            continue;
        }
        if chars.next_if_eq(&'[').is_some() {
            // Parameters, then one letter.
            while chars.next_if(|c| !('@'..='~').contains(c)).is_some() {}
            chars.next();
        }
    }
    out
}

/// A count: a few digits and nothing else.
fn number(text: &str) -> Option<u64> {
    // BOUND: more than a thousand million tests are none.
    let digits = !text.is_empty() && text.len() <= 9 && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// `3 words`.
fn counted(part: &str) -> Option<(u64, &str)> {
    let (count, word) = part.trim().split_once(' ')?;
    Some((number(count)?, word.trim()))
}

#[cfg(test)]
mod tests;
