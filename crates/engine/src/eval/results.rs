//! The file of results: one JSON object a line, each on the disk before the next is begun.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use ringfence_model::outcome::Outcome;
use rustix::fs::FlockOperation;
use serde::Serialize;
use serde_json::Value;

use super::EvalError;

/// What came of one row.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RowResult {
    pub schema: u32,
    /// Absent where the line is no row.
    pub id: Option<String>,
    /// Its line in the file of rows, from 1.
    pub line: usize,
    /// 1.0 if all checks pass on the final state, else 0.0; absent where that was not found out.
    pub reward: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Problem>,
    pub gold: bool,
    /// Of the row as it stood in the file, and of what was typed to do it: who goes on with this file goes on
    /// with these.
    pub row_sha256: String,
    pub by_sha256: String,
    pub repo: Option<String>,
    pub commit: Option<String>,
    pub steps: Vec<StepSeen>,
    pub checks: Vec<CheckSeen>,
    /// Where the patch of what the agent did is.
    pub patch: Option<PathBuf>,
    pub changed_files: usize,
    /// Protected files that were put back before it was looked at.
    pub put_back: Vec<ringfence_model::ByteText>,
    /// How many are not listed.
    pub put_back_more: usize,
    pub sandbox: Option<String>,
    /// Of all rows of this evaluation.
    pub tag: String,
    pub tags: Vec<String>,
    pub usage: Usage,
}

/// What it took.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Usage {
    pub wall_ms: u64,
    pub steps_ms: u64,
    pub checks_ms: u64,
    pub cpu_ms: u64,
    pub peak_bytes: u64,
}

/// Why there is no reward.
#[derive(Clone, Debug, Serialize)]
pub struct Problem {
    pub kind: String,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// One step of the agent.
#[derive(Clone, Debug, Serialize)]
pub struct StepSeen {
    pub outcome: Outcome,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub duration_ms: u64,
    /// Processes that it left running.
    pub leftovers: usize,
    pub stdout_tail: String,
    pub stderr_tail: String,
}

/// One check on the final state.
#[derive(Clone, Debug, Serialize)]
pub struct CheckSeen {
    pub command: String,
    pub passed: bool,
    /// Why it did not pass although it ended with 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    pub outcome: Outcome,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub duration_ms: u64,
    /// How many tests it was to run, and how many passed by the runner's own words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tests: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counted: Option<u64>,
    pub stdout_tail: String,
    pub stderr_tail: String,
}

/// Which file to write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// One that is not there yet.
    Anew,
    /// What has a reward there is not done again.
    GoOn,
}

/// The file, held by us alone.
#[derive(Debug)]
pub(super) struct Results {
    file: File,
    path: PathBuf,
    /// What was typed.
    by: String,
    /// The rewards by the ids of rows and what these were.
    done: HashMap<(String, String), f64>,
    bad_lines: HashSet<u64>,
}

impl Results {
    /// `by`: what names who does the rows.
    pub fn open(path: &Path, begin: Begin, by: &str) -> Result<Self, EvalError> {
        let failed = |source: io::Error| EvalError::Write {
            path: path.to_owned(),
            source,
        };
        let mut options = File::options();
        options.read(true).write(true);
        let file = match begin {
            Begin::Anew => options.create_new(true).open(path),
            Begin::GoOn => options.create(true).truncate(false).open(path),
        };
        let file = file.map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => EvalError::Exists(path.to_owned()),
            _ => failed(source),
        })?;
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(EvalError::Busy(path.to_owned()));
        }
        let mut results = Self {
            file,
            path: path.to_owned(),
            by: by.to_owned(),
            done: HashMap::new(),
            bad_lines: HashSet::new(),
        };
        let whole = results.read().map_err(failed)??;
        results.file.set_len(whole).map_err(failed)?;
        let end = results.file.seek(SeekFrom::Start(whole));
        end.map_err(failed)?;
        Ok(results)
    }

    /// What is there; how far its lines are whole. Nothing is changed: it may be something else.
    fn read(&mut self) -> io::Result<Result<u64, EvalError>> {
        let mut whole = 0;
        let mut reader = BufReader::new(&self.file);
        let mut line = Vec::new();
        let others = || Ok(Err(EvalError::NoResults(self.path.clone())));
        loop {
            line.clear();
            let count = reader.read_until(b'\n', &mut line)?;
            if line.last() != Some(&b'\n') {
                // It is empty, or was cut short. What stands after results was to be one.
                let common = line.len().min(FIRST_KEY.len());
                if whole == 0 && line[..common] != FIRST_KEY[..common] {
                    return others();
                }
                return Ok(Ok(whole));
            }
            whole += count as u64;
            let value = serde_json::from_slice::<Value>(&line).unwrap_or_default();
            if value["schema"].as_u64().is_none() || value.get("reward").is_none() {
                return others();
            }
            let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
            if let (Some(id), Some(reward)) = (value["id"].as_str(), value["reward"].as_f64()) {
                if text("by_sha256") != self.by {
                    return Ok(Err(EvalError::OtherAgent(self.path.clone())));
                }
                let key = (id.to_owned(), text("row_sha256"));
                self.done.insert(key, reward);
            } else if value["error"]["kind"] == BAD_ROW
                && let Some(number) = value["line"].as_u64()
            {
                self.bad_lines.insert(number);
            }
        }
    }

    /// The reward of a row that is done. One that was edited since is not.
    pub fn reward(&self, id: &str, row_sha256: &str) -> Option<f64> {
        let key = (id.to_owned(), row_sha256.to_owned());
        self.done.get(&key).copied()
    }

    /// Whether it was told already that this line is no row.
    pub fn is_told(&self, line: usize) -> bool {
        self.bad_lines.contains(&(line as u64))
    }

    /// Writes one line; it is on the disk when this returns.
    pub fn write(&mut self, result: &RowResult) -> Result<(), EvalError> {
        let mut line = serde_json::to_vec(result).expect("plain data always serialises");
        line.push(b'\n');
        let mut write = || -> io::Result<()> {
            self.file.write_all(&line)?;
            self.file.sync_data()
        };
        write().map_err(|source| EvalError::Write {
            path: self.path.clone(),
            source,
        })
    }
}

/// How every line begins.
const FIRST_KEY: &[u8] = br#"{"schema":"#;

/// The kind of an error of a line that is no row.
pub(super) const BAD_ROW: &str = "bad_row";
