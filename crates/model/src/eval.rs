//! Rows of an evaluation: a repository at a commit, what an agent is to do in some steps, and the
//! checks that decide about what it leaves.
//!
//! ```text
//! {"id", "repo", "commit", "prompt" or "steps", "check" or "checks", …}     our own, strictly
//! {"instance_id", "repo", "base_commit", "problem_statement", "test_patch",
//!  "FAIL_TO_PASS", "PASS_TO_PASS", "patch", …}                             as SWE-bench has them
//! ```
//!
//! HOSTILE: rows come from anywhere. All that is in one is bounded, and what it says is done inside
//! sandboxes only.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::check::{self, MAX_CHECKS};
use crate::limits::Limit;
use crate::strict;

/// BOUND: bytes of one row; the largest of the known collections have one.
pub const MAX_ROW: usize = 16 << 20;
/// BOUND: steps of one episode.
pub const MAX_STEPS: usize = 256;
/// BOUND: bytes of one prompt.
pub const MAX_PROMPT: usize = 1 << 20;
/// BOUND: tests that a row names.
pub const MAX_TESTS: usize = 100_000;
/// BOUND: bytes of one command line with tests in it; the kernel takes 128 KiB in a word.
const LINE_BYTES: usize = 64 << 10;
/// BOUND: characters of an id and of a tag.
const MAX_WORD: usize = 200;

/// What stands for the tests in a command.
pub const TESTS: &str = "{tests}";

/// What is done in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The agent is told this.
    Prompt(String),
    /// This is run instead of the agent.
    Command(Vec<String>),
}

/// What is laid over the agent's files before they are looked at; no agent sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hidden {
    pub files: BTreeMap<String, String>,
    /// A patch as git writes it.
    pub patch: Option<String>,
}

/// One episode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub id: String,
    pub repo: String,
    pub commit: String,
    pub steps: Vec<Step>,
    /// The words of its agent; absent: what was typed.
    pub command: Option<Vec<String>>,
    pub checks: Vec<String>,
    /// Tests that must pass, each once.
    pub tests: Vec<String>,
    pub hidden: Hidden,
    /// The patch that is known to be right; no agent sees it.
    pub gold: Option<String>,
    pub tags: Vec<String>,
    /// They can only be lower than the host's.
    pub limits: BTreeMap<Limit, String>,
    pub policy: Option<String>,
    pub image: Option<String>,
}

/// Why a line is no row.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    #[error("it has more than {MAX_ROW} bytes")]
    TooLong,
    #[error("it is not JSON, or says a key twice: {0}")]
    Json(String),
    #[error("it is not a JSON object")]
    NotAnObject,
    #[error("`{0}` is not known")]
    Unknown(String),
    #[error("there is no `{0}`")]
    Missing(&'static str),
    #[error("`{key}` is not {expected}")]
    Shape {
        key: &'static str,
        expected: &'static str,
    },
    #[error("it has both `{0}` and `{1}`")]
    Both(&'static str, &'static str),
    #[error("there is nothing to decide by: no check and no tests")]
    NoCheck,
    #[error("check `{check}` cannot be used: {why}")]
    Check { check: String, why: String },
    #[error("limit `{limit}`: {why}")]
    Limit { limit: String, why: String },
    #[error("there are too many of `{0}`")]
    TooMany(&'static str),
}

/// Reads a line.
pub fn row(line: &[u8]) -> Result<Row, RowError> {
    if line.len() > MAX_ROW {
        return Err(RowError::TooLong);
    }
    let value = strict::value(line).map_err(|error| {
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        RowError::Json(cause.unwrap_or_default())
    })?;
    let Value::Object(map) = value else {
        return Err(RowError::NotAnObject);
    };
    let mut fields = Fields(map);
    if fields.0.contains_key("instance_id") {
        foreign(&mut fields)
    } else {
        own(fields)
    }
}

/// One of our own. What is not known is refused: it was meant to do something.
fn own(mut fields: Fields) -> Result<Row, RowError> {
    let id = fields.needed_word("id")?;
    let repo = fields.needed("repo")?;
    let commit = fields.needed("commit")?;
    let steps = steps(&mut fields)?;
    let command = fields.words("command")?;
    let checks = match (fields.text("check")?, fields.texts("checks")?) {
        (Some(_), Some(_)) => return Err(RowError::Both("check", "checks")),
        (Some(one), None) => vec![one],
        (None, many) => many.unwrap_or_default(),
    };
    if checks.len() > MAX_CHECKS {
        return Err(RowError::TooMany("checks"));
    }
    for check in &checks {
        check::command(check).map_err(|why| RowError::Check {
            check: check.chars().take(80).collect(),
            why: why.to_string(),
        })?;
    }
    let row = Row {
        id,
        repo,
        commit,
        steps,
        command,
        checks,
        tests: once(fields.texts("tests")?.unwrap_or_default())?,
        hidden: Hidden {
            files: fields.files("hidden_files")?,
            patch: fields.text("test_patch")?,
        },
        gold: fields.text("patch")?,
        tags: tags(fields.texts("tags")?)?,
        limits: limits(fields.map("limits")?)?,
        policy: fields.text("policy")?,
        image: fields.text("image")?,
    };
    if let Some(key) = fields.0.keys().next() {
        return Err(RowError::Unknown(key.chars().take(80).collect()));
    }
    if row.checks.is_empty() && row.tests.is_empty() {
        Err(RowError::NoCheck)
    } else {
        Ok(row)
    }
}

fn steps(fields: &mut Fields) -> Result<Vec<Step>, RowError> {
    let shape = || RowError::Shape {
        key: "steps",
        expected: "a list of prompts, or of objects with `prompt` or `command`",
    };
    let list = match (fields.text("prompt")?, fields.0.remove("steps")) {
        (Some(_), Some(_)) => return Err(RowError::Both("prompt", "steps")),
        (Some(prompt), None) => vec![Value::String(prompt)],
        (None, Some(Value::Array(list))) => list,
        (None, Some(_)) => return Err(shape()),
        (None, None) => return Err(RowError::Missing("prompt")),
    };
    if list.len() > MAX_STEPS {
        return Err(RowError::TooMany("steps"));
    }
    let mut steps = Vec::new();
    for item in list {
        steps.push(match item {
            Value::String(prompt) => Step::Prompt(prompt),
            Value::Object(map) => {
                let mut own = Fields(map);
                let step = match (own.text("prompt")?, own.words("command")?) {
                    (Some(prompt), None) => Step::Prompt(prompt),
                    (None, Some(words)) => Step::Command(words),
                    _ => return Err(shape()),
                };
                if let Some(key) = own.0.keys().next() {
                    return Err(RowError::Unknown(key.chars().take(80).collect()));
                }
                step
            }
            _ => return Err(shape()),
        });
    }
    if let Some(Step::Prompt(_)) = steps.iter().find(
        |step| matches!(step, Step::Prompt(text) if text.len() > MAX_PROMPT || text.contains('\0')),
    ) {
        return Err(RowError::Shape {
            key: "prompt",
            expected: "a text of at most a mebibyte without NUL",
        });
    }
    if steps.is_empty() {
        Err(shape())
    } else {
        Ok(steps)
    }
}

/// One of a known collection. It has more than is used here, and that differs from year to year.
fn foreign(fields: &mut Fields) -> Result<Row, RowError> {
    let prompt = fields.needed("problem_statement")?;
    let mut tests = fields.list_or_json("FAIL_TO_PASS")?;
    tests.extend(fields.list_or_json("PASS_TO_PASS")?);
    let row = Row {
        id: fields.needed_word("instance_id")?,
        repo: fields.needed("repo")?,
        commit: fields.needed("base_commit")?,
        steps: vec![Step::Prompt(prompt)],
        command: None,
        checks: Vec::new(),
        tests: once(tests)?,
        hidden: Hidden {
            files: BTreeMap::new(),
            patch: fields.text("test_patch")?,
        },
        gold: fields.text("patch")?,
        tags: Vec::new(),
        limits: BTreeMap::new(),
        policy: None,
        image: None,
    };
    if row.tests.is_empty() {
        Err(RowError::NoCheck)
    } else {
        Ok(row)
    }
}

/// Each test once, in order.
fn once(tests: Vec<String>) -> Result<Vec<String>, RowError> {
    let mut seen = BTreeSet::new();
    let mut tests = tests;
    tests.retain(|test| seen.insert(test.clone()));
    let bad = |test: &String| {
        test.is_empty() || test.starts_with('-') || test.len() > 4096 || test.contains(['\0', '\n'])
    };
    if tests.iter().any(bad) {
        return Err(RowError::Shape {
            key: "tests",
            expected: "a list of names that are one line and no option",
        });
    }
    if tests.len() > MAX_TESTS {
        Err(RowError::TooMany("tests"))
    } else {
        Ok(tests)
    }
}

fn tags(tags: Option<Vec<String>>) -> Result<Vec<String>, RowError> {
    let tags = tags.unwrap_or_default();
    if tags.len() > 64 {
        return Err(RowError::TooMany("tags"));
    }
    if tags.iter().all(|tag| is_word(tag)) {
        Ok(tags)
    } else {
        Err(RowError::Shape {
            key: "tags",
            expected: "a list of short words",
        })
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().count() <= MAX_WORD && !text.contains(crate::text::misleads)
}

fn limits(map: Map<String, Value>) -> Result<BTreeMap<Limit, String>, RowError> {
    let mut limits = BTreeMap::new();
    for (name, value) in map {
        let bad = |why: &str| RowError::Limit {
            limit: name.chars().take(80).collect(),
            why: why.to_owned(),
        };
        let limit = serde_json::from_value::<Limit>(Value::String(name.clone()));
        let limit = limit.map_err(|_| bad("it is not known"))?;
        let text = match value {
            Value::String(text) => text,
            Value::Number(number) => number.to_string(),
            _ => return Err(bad("it is not a text or a number")),
        };
        crate::task::quantity(limit, &text).map_err(|why| bad(&why))?;
        limits.insert(limit, text);
    }
    Ok(limits)
}

/// The keys of a row that were not looked at yet.
struct Fields(Map<String, Value>);

impl Fields {
    fn text(&mut self, key: &'static str) -> Result<Option<String>, RowError> {
        let expected = "a text";
        match self.0.remove(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(RowError::Shape { key, expected }),
        }
    }

    fn needed(&mut self, key: &'static str) -> Result<String, RowError> {
        let text = self.text(key)?.filter(|text| !text.trim().is_empty());
        text.ok_or(RowError::Missing(key))
    }

    fn needed_word(&mut self, key: &'static str) -> Result<String, RowError> {
        let text = self.needed(key)?;
        let expected = "a short text that can be seen";
        if is_word(&text) {
            Ok(text)
        } else {
            Err(RowError::Shape { key, expected })
        }
    }

    fn texts(&mut self, key: &'static str) -> Result<Option<Vec<String>>, RowError> {
        match self.0.remove(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => list(value, key).map(Some),
        }
    }

    /// A list, or a JSON list in a text.
    fn list_or_json(&mut self, key: &'static str) -> Result<Vec<String>, RowError> {
        let expected = "a list of texts";
        match self.0.remove(key) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::String(text)) => {
                let value = strict::value(text.as_bytes());
                list(value.map_err(|_| RowError::Shape { key, expected })?, key)
            }
            Some(value) => list(value, key),
        }
    }

    /// A program with its arguments, or a line of shell.
    fn words(&mut self, key: &'static str) -> Result<Option<Vec<String>>, RowError> {
        let words = match self.0.remove(key) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::String(line)) => vec!["/bin/sh".to_owned(), "-c".to_owned(), line],
            Some(value) => list(value, key)?,
        };
        let expected = "a line of shell, or a program and its arguments";
        if words.first().is_some_and(|word| !word.is_empty())
            && words.iter().all(|word| !word.contains('\0'))
        {
            Ok(Some(words))
        } else {
            Err(RowError::Shape { key, expected })
        }
    }

    fn map(&mut self, key: &'static str) -> Result<Map<String, Value>, RowError> {
        let expected = "an object";
        match self.0.remove(key) {
            None | Some(Value::Null) => Ok(Map::new()),
            Some(Value::Object(map)) => Ok(map),
            Some(_) => Err(RowError::Shape { key, expected }),
        }
    }

    fn files(&mut self, key: &'static str) -> Result<BTreeMap<String, String>, RowError> {
        let expected = "an object of paths with their texts";
        let mut files = BTreeMap::new();
        for (path, value) in self.map(key)? {
            match value {
                Value::String(text) => files.insert(path, text),
                _ => return Err(RowError::Shape { key, expected }),
            };
        }
        Ok(files)
    }
}

fn list(value: Value, key: &'static str) -> Result<Vec<String>, RowError> {
    let expected = "a list of texts";
    let Value::Array(items) = value else {
        return Err(RowError::Shape { key, expected });
    };
    let mut texts = Vec::new();
    for item in items {
        match item {
            Value::String(text) => texts.push(text),
            _ => return Err(RowError::Shape { key, expected }),
        }
    }
    Ok(texts)
}

/// Command lines that run all of these tests, each within its bound; with how many tests it has.
pub fn test_lines(command: &str, tests: &[String]) -> Vec<(String, u64)> {
    let mut lines = Vec::new();
    let (mut words, mut count) = (String::new(), 0);
    for test in tests {
        let word = quoted(test);
        if count > 0 && words.len() + word.len() > LINE_BYTES {
            lines.push((command.replace(TESTS, &words), count));
            (words, count) = (String::new(), 0);
        }
        if count > 0 {
            words.push(' ');
        }
        words.push_str(&word);
        count += 1;
    }
    if count > 0 {
        lines.push((command.replace(TESTS, &words), count));
    }
    lines
}

/// One word for a shell, whatever is in it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// The address of a row's repository: by a template with `{repo}` in it, or a directory that has
/// `owner/name`. `None` where the row's own name is none.
pub fn address(template: &str, repo: &str) -> Option<String> {
    // HOSTILE: a row names a repository, and neither a way out of the directory nor an option.
    let plain = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['.', '-'])
            && part.len() <= 100
            && part
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    };
    let parts: Vec<&str> = repo.split('/').collect();
    if !(1..=2).contains(&parts.len()) || !parts.iter().all(|part| plain(part)) {
        return None;
    }
    Some(if template.contains("{repo}") {
        template.replace("{repo}", repo)
    } else {
        format!("{}/{repo}", template.trim_end_matches('/'))
    })
}
