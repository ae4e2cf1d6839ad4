//! Episodes: many rows, each a repository at a commit, some steps of an agent, and checks that decide
//! about what it leaves.
//!
//! ```text
//! row ─▶ sandbox at the commit ─ step ─ step ─ step ─▶ stopped ─▶ patch
//!                                                                  │ protected files put back,
//!                                                                  ▼ the row's own tests on top
//!                                      a fresh sandbox for each check, on the commit's own files
//!                                                                  │
//! results.jsonl ◀── one line, synced ◀── reward ◀──────────────────┘
//! ```
//!
//! INVARIANT: no step sees the row's tests or its right patch, and no check sees anything of the
//! agent's but its patch. A row that goes wrong is told in its line, and the others go on.

mod episode;
mod error;
mod judge;
mod results;

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use ringfence_model::bundle::sha256_hex;
use ringfence_model::eval::{MAX_ROW, Row, Step, TESTS, row};

use crate::campaign::Typed;
use crate::error::Error;
use crate::sandboxes::Host;

pub use error::EvalError;
pub use results::{Begin, CheckSeen, Problem, RowResult, StepSeen, Usage};

use results::{BAD_ROW, Results};

/// The version of a line of results.
const SCHEMA: u32 = 1;
/// BOUND: bytes of a file of rows; all of them are held.
const ROWS_BYTES: u64 = 2 << 30;

/// Who does the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Agent,
    /// Nobody: the patch of the row that is known to be right is looked at.
    Gold,
}

/// What becomes of sandboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Afterwards {
    Removed,
    /// They are there until somebody removes them, by their tag.
    Kept,
}

/// Whether rows may name images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowImages {
    Refused,
    Taken,
}

/// What is to be done.
#[derive(Debug)]
pub struct Evaluating {
    /// The file of rows.
    pub rows: PathBuf,
    pub out: PathBuf,
    pub begin: Begin,
    /// The words of the agent; a row's own count more.
    pub command: Vec<String>,
    /// With `{tests}` in it.
    pub test_command: String,
    /// A directory, or an address with `{repo}` in it.
    pub repos: Option<String>,
    pub who: Who,
    pub tag: String,
    pub parallel: usize,
    pub afterwards: Afterwards,
    pub images: RowImages,
    /// Policy, bounds and variables.
    pub typed: Typed,
}

/// What came of all rows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    pub rows: usize,
    /// Of those with a reward: done by an earlier call.
    pub before: usize,
    pub rewarded: usize,
    /// Sum of all rewards.
    pub reward: f64,
    pub problems: usize,
}

/// A line of the file of rows.
struct Numbered {
    line: usize,
    sha256: String,
    row: Result<Row, EvalError>,
}

/// A row that is to be done.
struct Open {
    line: usize,
    sha256: String,
    row: Row,
}

/// Does all rows that are not done yet. `open` gives each worker a home and a store of its own;
/// `tell` hears each result when it is on the disk.
pub fn evaluate(
    open: &(dyn Fn() -> Result<Host, Error> + Sync),
    how: &Evaluating,
    tell: &mut dyn FnMut(&RowResult),
) -> Result<Totals, Error> {
    if !how.test_command.contains(TESTS) {
        return Err(EvalError::NoTests.into());
    }
    let rows = read(&how.rows)?;
    if rows.is_empty() {
        return Err(EvalError::NoRows(how.rows.clone()).into());
    }
    let needs_one = |row: &Row| {
        let is_prompt = |step: &Step| matches!(step, Step::Prompt(_));
        row.command.is_none() && row.steps.iter().any(is_prompt)
    };
    let good = rows
        .iter()
        .filter_map(|numbered| numbered.row.as_ref().ok());
    if how.who == Who::Agent && how.command.is_empty() && good.clone().any(needs_one) {
        return Err(EvalError::NoCommand.into());
    }
    let mut results = Results::open(&how.out, how.begin, &how.by())?;
    let mut totals = Totals {
        rows: rows.len(),
        ..Totals::default()
    };
    let mut open_rows = VecDeque::new();
    for Numbered { line, sha256, row } in rows {
        match row {
            Ok(row) => match results.reward(&row.id, &sha256) {
                Some(reward) => {
                    totals.before += 1;
                    totals.rewarded += 1;
                    totals.reward += reward;
                }
                None => open_rows.push_back(Open { line, sha256, row }),
            },
            Err(error) => {
                let mut result = begun(how, line, sha256);
                result.error = Some(Problem {
                    kind: BAD_ROW.to_owned(),
                    message: crate::checks::chain(&error),
                    hint: error.hint().map(str::to_owned),
                });
                // It may be in the file already, and has no reward all the same.
                if !results.is_told(line) {
                    results.write(&result)?;
                }
                totals.add(&result);
                tell(&result);
            }
        }
    }
    let workers = how.parallel.clamp(1, open_rows.len().max(1));
    let queue = Mutex::new(open_rows);
    let (sends, received) = mpsc::channel();
    thread::scope(|scope| -> Result<(), Error> {
        for _ in 0..workers {
            let (sends, queue) = (sends.clone(), &queue);
            scope.spawn(move || work(open, how, queue, &sends));
        }
        drop(sends);
        for result in received {
            let written = result.and_then(|result| {
                results.write(&result)?;
                totals.add(&result);
                tell(&result);
                Ok(())
            });
            if let Err(error) = written {
                // Nobody begins another row whose result could not be told.
                lock(&queue).clear();
                return Err(error);
            }
        }
        Ok(())
    })?;
    Ok(totals)
}

type Queue = Mutex<VecDeque<Open>>;

fn lock(queue: &Queue) -> std::sync::MutexGuard<'_, VecDeque<Open>> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One worker: row after row, until there is none.
fn work(
    open: &(dyn Fn() -> Result<Host, Error> + Sync),
    how: &Evaluating,
    queue: &Queue,
    sends: &mpsc::Sender<Result<RowResult, Error>>,
) {
    let host = match open() {
        Ok(host) => host,
        Err(error) => {
            let _ = sends.send(Err(error));
            return;
        }
    };
    loop {
        let Some(open) = lock(queue).pop_front() else {
            return;
        };
        let result = episode::episode(&host, how, &open);
        if sends.send(Ok(result)).is_err() {
            return;
        }
    }
}

impl Totals {
    fn add(&mut self, result: &RowResult) {
        match result.reward {
            Some(reward) => {
                self.rewarded += 1;
                self.reward += reward;
            }
            None => self.problems += 1,
        }
    }
}

impl Evaluating {
    /// Names what was typed, as far as rewards come of it.
    fn by(&self) -> String {
        let gold = self.who == Who::Gold;
        let typed = serde_json::json!([gold, self.command, self.test_command]);
        sha256_hex(typed.to_string().as_bytes())
    }
}

fn begun(how: &Evaluating, line: usize, row_sha256: String) -> RowResult {
    RowResult {
        schema: SCHEMA,
        line,
        gold: how.who == Who::Gold,
        row_sha256,
        by_sha256: how.by(),
        tag: how.tag.clone(),
        ..RowResult::default()
    }
}

/// All lines that are not empty. What is no row is one with its problem.
fn read(path: &Path) -> Result<Vec<Numbered>, EvalError> {
    let failed = |source| EvalError::Read {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    if length > ROWS_BYTES {
        let (path, most) = (path.to_owned(), ROWS_BYTES);
        return Err(EvalError::TooLarge { path, most });
    }
    let mut reader = BufReader::new(std::io::Read::take(file, ROWS_BYTES));
    let mut rows: Vec<Numbered> = Vec::new();
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        if reader.read_until(b'\n', &mut text).map_err(failed)? == 0 {
            break;
        }
        let bytes = text.trim_ascii();
        if bytes.is_empty() {
            continue;
        }
        let parsed = row(&bytes[..bytes.len().min(MAX_ROW + 1)]);
        let parsed = parsed
            .map_err(EvalError::Row)
            .and_then(|row| match known.get(&row.id) {
                Some(first) => Err(EvalError::SameId(*first)),
                None => Ok(row),
            });
        if let Ok(row) = &parsed {
            known.insert(row.id.clone(), line);
        }
        rows.push(Numbered {
            line,
            sha256: sha256_hex(bytes),
            row: parsed,
        });
    }
    Ok(rows)
}
