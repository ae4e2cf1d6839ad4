//! The task document: one task of a campaign, with all that any backend needs to run it.
//!
//! It is TOML or JSON of one shape ([docs/formats/task.schema.json]). It is written by `ringfence
//! campaign plan --write` and read without leniency: what is not known here is not run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::bundle::Base;
use crate::limits::Limit;
use crate::rounds::AgentLife;
use crate::split::When;
use crate::strict::{self, StrictError};
use crate::{ByteText, hex};

/// The version of this shape.
pub const SCHEMA: u32 = 1;
/// BOUND: bytes of a task document: a brief, a policy, and the names of some thousand files.
pub const MAX_BYTES: usize = 16 << 20;
/// BOUND: bytes of a brief. An agent reads all of it at each start.
pub const MAX_BRIEF: usize = 64 << 10;

/// How much of the tree a sandbox shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// All of it.
    #[default]
    Whole,
    /// The task's files, what they import, their tests, and what the plan names.
    Needed,
}

/// A task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    pub schema: u32,
    /// Follows from files and brief, see [`id`].
    pub id: String,
    /// The campaign's name.
    pub campaign: String,
    /// Its place among the tasks of the campaign, from 1.
    pub number: u32,
    pub when: When,
    /// A folder, as an absolute path, or the address of a repository.
    pub source: String,
    pub stage: Stage,
    /// What is to be worked on.
    pub files: Vec<ByteText>,
    /// What else is seen where not everything is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<ByteText>,
    /// What the source was.
    pub base: Base,
    pub brief: Brief,
    pub agent: Agent,
    #[serde(default)]
    pub checks: Checks,
    #[serde(default, rename = "loop")]
    pub rounds: Rounds,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// As they are written in policies.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<Limit, String>,
    #[serde(default)]
    pub requires: Requires,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Brief {
    /// The name of the file that it was.
    pub name: String,
    pub sha256: String,
    pub text: String,
}

/// Who does it: one of the two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
}

/// Commands whose exit codes decide.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checks {
    #[serde(default)]
    pub baseline: Vec<String>,
    #[serde(default, rename = "final")]
    pub last: Vec<String>,
}

/// How often it is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rounds {
    pub iterations: u32,
    pub attempts: u32,
    /// Absent: it is started for each iteration.
    #[serde(default, skip_serializing_if = "AgentLife::is_default")]
    pub agent: AgentLife,
}

impl Default for Rounds {
    fn default() -> Self {
        Self {
            iterations: 1,
            attempts: 1,
            agent: AgentLife::default(),
        }
    }
}

/// What it may do: one of the two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// One that is built in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// A policy file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// What a backend must have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requires {
    /// By name; empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backends: Vec<String>,
    /// What it must be seen to have, as `kernel=separate`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guarantees: Vec<String>,
    /// As `uname -m` has it; absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// A limit that can only be watched is not enough.
    #[serde(default)]
    pub hard_limits: bool,
}

/// Why a text is no task.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    #[error("a task has at most {MAX_BYTES} bytes")]
    TooLong,
    #[error("it is not UTF-8")]
    NotText,
    #[error("it is not TOML: {message} in line {line}")]
    Toml { line: usize, message: String },
    #[error("it is TOML with a date or a number that is no integer in it")]
    Kind,
    #[error("it is not a task")]
    Shape(#[source] StrictError),
    #[error("it is of version {found}, and this program reads version {SCHEMA}")]
    Version { found: u32 },
    #[error("its id is `{found}`, and its files and brief make `{expected}`")]
    Id { found: String, expected: String },
    #[error("its brief is not what its hash says")]
    BriefChanged,
    #[error("`{0}` is not a file below the source")]
    Path(ByteText),
    #[error("it has no files")]
    NoFiles,
    #[error("`{what}` says either {one} or {other}")]
    Either {
        what: &'static str,
        one: &'static str,
        other: &'static str,
    },
    #[error("limit `{}`: {why}", limit.as_str())]
    Limit { limit: Limit, why: String },
    #[error("it has more than {} checks", crate::check::MAX_CHECKS)]
    TooManyChecks,
    #[error("a check of it cannot be used")]
    Check(#[source] crate::check::CommandError),
    #[error(
        "`loop` has counts from 1: at most {} iterations and {} attempts",
        crate::plan::MAX_ROUNDS,
        crate::plan::MAX_ATTEMPTS
    )]
    Rounds,
}

impl Task {
    /// Reads a task, TOML or JSON.
    pub fn parse(bytes: &[u8]) -> Result<Self, TaskError> {
        if bytes.len() > MAX_BYTES {
            return Err(TaskError::TooLong);
        }
        let task: Self = match bytes.trim_ascii_start().first() {
            Some(b'{') => strict::parse(bytes).map_err(TaskError::Shape)?,
            _ => {
                let json = json_of(bytes)?.to_string();
                strict::parse(json.as_bytes()).map_err(TaskError::Shape)?
            }
        };
        task.check()?;
        Ok(task)
    }

    /// As TOML.
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(self).expect("a task has nothing that TOML lacks")
    }

    fn check(&self) -> Result<(), TaskError> {
        if self.schema != SCHEMA {
            return Err(TaskError::Version { found: self.schema });
        }
        if self.files.is_empty() {
            return Err(TaskError::NoFiles);
        }
        let paths = self.files.iter().chain(&self.beside);
        if let Some(path) = paths.into_iter().find(|path| !is_below(path)) {
            return Err(TaskError::Path(path.clone()));
        }
        if sha256(self.brief.text.as_bytes()) != self.brief.sha256 {
            return Err(TaskError::BriefChanged);
        }
        let expected = id(&self.brief.sha256, &self.files);
        if self.id != expected {
            let found = self.id.clone();
            return Err(TaskError::Id { found, expected });
        }
        let named = |list: &Vec<String>| list.first().is_some_and(|word| !word.is_empty());
        let command = self.agent.command.as_ref();
        if self.agent.preset.is_some() == command.is_some_and(named)
            || command.is_some_and(|own| !named(own))
        {
            return Err(TaskError::Either {
                what: "agent",
                one: "`preset`",
                other: "`command`",
            });
        }
        if let Some(policy) = &self.policy
            && policy.name.is_some() == policy.text.is_some()
        {
            return Err(TaskError::Either {
                what: "policy",
                one: "`name`",
                other: "`text`",
            });
        }
        let checks = self.checks.baseline.iter().chain(&self.checks.last);
        if checks.clone().count() > crate::check::MAX_CHECKS {
            return Err(TaskError::TooManyChecks);
        }
        for text in checks {
            crate::check::command(text).map_err(TaskError::Check)?;
        }
        let rounds = 1..=crate::plan::MAX_ROUNDS;
        let attempts = 1..=crate::plan::MAX_ATTEMPTS;
        if !rounds.contains(&self.rounds.iterations) || !attempts.contains(&self.rounds.attempts) {
            return Err(TaskError::Rounds);
        }
        for (limit, text) in &self.limits {
            let known = limits().any(|known| known == *limit);
            let read = if known {
                quantity(*limit, text).map(|_| ())
            } else {
                Err("it cannot be set".to_owned())
            };
            read.map_err(|why| TaskError::Limit { limit: *limit, why })?;
        }
        Ok(())
    }
}

/// The id of a task: the same for the same brief and files, whatever else changes.
pub fn id(brief_sha256: &str, files: &[ByteText]) -> String {
    let mut sorted: Vec<&ByteText> = files.iter().collect();
    sorted.sort_unstable();
    let mut hasher = Sha256::new();
    hasher.update(b"ringfence task\0");
    hasher.update(brief_sha256.as_bytes());
    for path in sorted {
        hasher.update((path.as_bytes().len() as u64).to_be_bytes());
        hasher.update(path.as_bytes());
    }
    // BOUND: among ten thousand tasks, two are alike by chance once in a million campaigns.
    hex(&hasher.finalize()[..8])
}

/// The hash of a brief.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Limits that a task can set.
pub fn limits() -> impl Iterator<Item = Limit> {
    let own = |limit: &Limit| *limit != Limit::Journal;
    Limit::ALL.into_iter().filter(own)
}

/// Reads a limit as policies write it; `None` is no bound.
pub fn quantity(limit: Limit, text: &str) -> Result<Option<u64>, String> {
    crate::policy::document::quantity(limit, text)
}

fn is_below(path: &ByteText) -> bool {
    let bytes = path.as_bytes();
    !bytes.contains(&0)
        && bytes
            .split(|byte| *byte == b'/')
            .all(|part| !matches!(part, b"" | b"." | b"..") && !part.eq_ignore_ascii_case(b".git"))
}

/// TOML as JSON, so that one reader knows the shape.
fn json_of(bytes: &[u8]) -> Result<serde_json::Value, TaskError> {
    let text = std::str::from_utf8(bytes).map_err(|_| TaskError::NotText)?;
    let value: toml::Table = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let before = text.get(..at).unwrap_or_default();
        TaskError::Toml {
            line: before.matches('\n').count() + 1,
            message: error.message().trim().replace('\n', ", "),
        }
    })?;
    plain(toml::Value::Table(value))
}

/// The reader of TOML bounds how deep this goes.
fn plain(value: toml::Value) -> Result<serde_json::Value, TaskError> {
    use serde_json::Value;
    Ok(match value {
        toml::Value::String(text) => Value::String(text),
        toml::Value::Integer(number) => Value::from(number),
        toml::Value::Boolean(own) => Value::Bool(own),
        toml::Value::Array(list) => {
            let list: Result<Vec<Value>, _> = list.into_iter().map(plain).collect();
            Value::Array(list?)
        }
        toml::Value::Table(table) => {
            let mut map = serde_json::Map::new();
            for (key, value) in table {
                map.insert(key, plain(value)?);
            }
            Value::Object(map)
        }
        toml::Value::Float(_) | toml::Value::Datetime(_) => return Err(TaskError::Kind),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task() -> Task {
        let text = "Do it.\n".to_owned();
        let files = vec![ByteText::from("src/a.py"), ByteText(b"src/\xff".to_vec())];
        Task {
            schema: SCHEMA,
            id: id(&sha256(text.as_bytes()), &files),
            campaign: "c".to_owned(),
            number: 1,
            when: When::Between,
            source: "/srv/app".to_owned(),
            stage: Stage::Needed,
            files,
            beside: vec!["tests/test_a.py".into()],
            base: Base::Folder {
                why: "it is in no repository".to_owned(),
            },
            brief: Brief {
                name: "BRIEF.md".to_owned(),
                sha256: sha256(text.as_bytes()),
                text,
            },
            agent: Agent {
                preset: None,
                command: Some(vec!["./agent.sh".to_owned()]),
            },
            checks: Checks::default(),
            rounds: Rounds::default(),
            policy: Some(Policy {
                name: Some("offline".to_owned()),
                text: None,
            }),
            limits: BTreeMap::from([(Limit::Time, "30m".to_owned())]),
            requires: Requires::default(),
        }
    }

    #[test]
    fn both_forms_are_read_back() {
        let task = task();
        assert_eq!(Task::parse(task.to_toml().as_bytes()).unwrap(), task);
        let json = serde_json::to_vec(&task).unwrap();
        assert_eq!(Task::parse(&json).unwrap(), task);
    }

    #[test]
    fn what_is_not_as_it_should_be_is_refused() {
        let good = task();
        let change = |edit: &dyn Fn(&mut serde_json::Value)| {
            let mut value = serde_json::to_value(&good).unwrap();
            edit(&mut value);
            Task::parse(value.to_string().as_bytes()).unwrap_err()
        };
        let text = |error: TaskError| match error {
            TaskError::Shape(source) => source.to_string(),
            other => other.to_string(),
        };
        type Edit = Box<dyn Fn(&mut serde_json::Value)>;
        let cases: Vec<(Edit, &str)> = vec![
            (Box::new(|v| v["schema"] = 2.into()), "version 2"),
            (Box::new(|v| v["more"] = 1.into()), "`more`"),
            (Box::new(|v| v["base"]["more"] = 1.into()), "more`"),
            (Box::new(|v| v["files"] = serde_json::json!([])), "no files"),
            (
                Box::new(|v| v["files"][0] = "/etc/passwd".into()),
                "`/etc/passwd`",
            ),
            (Box::new(|v| v["files"][0] = "a/../b".into()), "`a/../b`"),
            (
                Box::new(|v| v["beside"][0] = ".GIT/config".into()),
                "`.GIT/config`",
            ),
            (Box::new(|v| v["files"][0] = "other.py".into()), "its id is"),
            (
                Box::new(|v| v["brief"]["text"] = "Do that.".into()),
                "its brief",
            ),
            (
                Box::new(|v| v["agent"]["preset"] = "claude".into()),
                "`agent` says either",
            ),
            (
                Box::new(|v| v["agent"]["command"] = serde_json::json!([])),
                "`agent` says either",
            ),
            (
                Box::new(|v| v["policy"]["text"] = "".into()),
                "`policy` says either",
            ),
            (
                Box::new(|v| v["limits"]["time"] = "soon".into()),
                "limit `time`",
            ),
            (
                Box::new(|v| v["limits"]["journal"] = "1".into()),
                "cannot be set",
            ),
            (
                Box::new(|v| v["loop"]["attempts"] = 0.into()),
                "counts from 1",
            ),
        ];
        for (edit, part) in cases {
            let error = text(change(&*edit));
            assert!(error.contains(part), "{part}: {error}");
        }
        for (bytes, part) in [
            (&b"a = "[..], "line 1"),
            (b"schema = 1\nschema = 1\n", "line 2"),
            (b"schema = 1.5\n", "no integer"),
            (b"\xff", "UTF-8"),
            (b"", "fields that it should have"),
        ] {
            let error = text(Task::parse(bytes).unwrap_err());
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}
