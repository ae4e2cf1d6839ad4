//! One row, from its commit to its reward.

use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ringfence_model::ByteText;
use ringfence_model::changes::Change;
use ringfence_model::environment::NamedBy;
use ringfence_model::eval::{Row, Step, address};
use ringfence_model::limits::{Limit, Limits};
use ringfence_model::outcome::Outcome;
use ringfence_model::policy::network::Origin;
use ringfence_model::policy::{Bound, Line, Network};
use ringfence_model::task;
use rustix::fs::MemfdFlags;

use super::results::{Problem, RowResult, StepSeen};
use super::{Afterwards, EvalError, Evaluating, Open, RowImages, Who, begun, judge};
use crate::attend::{Console, Inputs};
use crate::base::{self, Base};
use crate::client::Stream;
use crate::clock::ms_since;
use crate::error::Error;
use crate::ids::SandboxId;
use crate::mirror::{self, Resolved, Silent};
use crate::output::Capture;
use crate::policy::Asked;
use crate::sandboxes::Host;
use crate::sandboxes::create::{CreateRequest, From, Stage, create};
use crate::sandboxes::diff::{Want, diff};
use crate::sandboxes::exec::{Beside, ExecRequest, Lost, exec, turn};
use crate::sandboxes::remove::remove;
use crate::sandboxes::stop::stop;
use crate::source::{self, Source};
use crate::store::AutoCheckpoint;
use crate::workspace::Ignored;

/// What stands for the prompt in a word of the agent's command.
const PROMPT: &str = "{prompt}";
/// BOUND: bytes of one word of a command line; the kernel takes 128 KiB.
const MAX_WORD: usize = 100 << 10;
/// BOUND: bytes of each stream's end that go into the result.
const TAIL_BYTES: usize = 2048;
/// BOUND: characters of what went wrong.
const MESSAGE: usize = 4000;
/// All files of a commit. A stage of them has a history of one commit, and borrows no objects.
///
/// HOSTILE: the mirror has what came after: the fix, and the tests that are hidden. An agent would
/// read them, and so would its code while it is checked.
const ALL_FILES: &str = ".";
/// Where its execution ends when nothing is asked of it: its evaluation is gone.
const IDLE_SECONDS: u64 = 3600;

/// Does a row. What goes wrong is in the result.
pub(super) fn episode(host: &Host, how: &Evaluating, open: &Open) -> RowResult {
    let began = Instant::now();
    let (line, row) = (open.line, &open.row);
    let span = tracing::info_span!("row", line, id = ?row.id);
    let _inside = span.enter();
    tracing::info!("row began");
    let mut result = begun(how, line, open.sha256.clone());
    result.id = Some(row.id.clone());
    result.tags = row.tags.clone();
    let name = name_of(how, row);
    let done = sweep(host, &name).and_then(|()| act(host, how, row, &name, &mut result));
    if let Err(error) = done {
        result.reward = None;
        result.error = Some(Problem {
            kind: error.word().to_owned(),
            message: crate::checks::chain(&error).chars().take(MESSAGE).collect(),
            hint: error.hint(),
        });
    }
    if how.afterwards == Afterwards::Removed {
        // What resists is there under its tag.
        let _ = sweep(host, &name);
    }
    result.usage.wall_ms = ms_since(began);
    let (reward, ms) = (result.reward, result.usage.wall_ms);
    let problem = result.error.as_ref().map(|error| error.kind.as_str());
    tracing::info!(reward, problem, ms, "row ended");
    result
}

/// The name of a row's sandbox: the same whoever does the row again.
fn name_of(how: &Evaluating, row: &Row) -> String {
    let out = std::path::absolute(&how.out).unwrap_or_else(|_| how.out.clone());
    let bits = mirror::bits_of(&format!("{}\n{}", out.display(), row.id));
    format!("eval-{bits:016x}")
}

/// Removes what a killed evaluation left of this row.
fn sweep(host: &Host, name: &str) -> Result<(), Error> {
    match host.store.find_sandbox(name) {
        Ok(record) => remove(host, &record),
        Err(_) => Ok(()),
    }
}

fn act(
    host: &Host,
    how: &Evaluating,
    row: &Row,
    name: &str,
    result: &mut RowResult,
) -> Result<(), Error> {
    let asked = asked(host, how, row)?;
    let address = repository(how, row)?;
    result.repo = Some(address.clone());
    if how.who == Who::Gold {
        let resolved = cloned(host, how, row, (&address, &asked))?;
        let (home, store) = (&host.home, &host.store);
        let base = base::commit_from(home, store, &resolved, &asked.host.sources, &mut Silent)?;
        result.commit = base.commit.clone();
        // As an agent's work is checked.
        let base = base::staged(home, store, &base, &[ALL_FILES.to_owned()])?;
        let gold = row.gold.as_ref().ok_or(EvalError::NoGold)?;
        return judge::gold(host, how, row, (&base, &asked), gold, result);
    }
    // Before anything is fetched for it.
    words(how, row, &row.steps[0])?;
    // A whole commit that is cloned is not asked for again.
    let commit = match source::parse(&address)?.source {
        Source::Url(_) => cloned(host, how, row, (&address, &asked))?.commit,
        Source::Path(_) => row.commit.clone(),
    };
    let request = CreateRequest {
        backend: how.typed.backend.clone(),
        from: From::Repository {
            typed: address,
            revision: Some(commit),
        },
        stage: Stage::Needed(vec![ALL_FILES.to_owned()]),
        name: Some(name.to_owned()),
        tag: Some(how.tag.clone()),
        policy: asked.clone(),
        env: how.typed.env.clone(),
        ignored: Ignored::LeftBehind,
        idle_seconds: Some(IDLE_SECONDS),
        ttl_seconds: None,
        auto_checkpoint: AutoCheckpoint::Never,
    };
    let created = create(host, &request, &mut Silent)?;
    let id = created.sandbox;
    result.sandbox = Some(id.to_string());
    let base = base::open(&host.home, &host.store, created.base)?;
    result.commit = commit_of(host, &base)?;
    for (at, step) in row.steps.iter().enumerate() {
        one_step(host, id, words(how, row, step)?, at + 1, result)?;
    }
    // Nothing of it runs while it is looked at.
    stop(host, id)?;
    let (patch, changes) = patch(host, how, id, row, result)?;
    judge::agent(host, how, row, (&base, &asked), (&patch, &changes), result)
}

/// The row's commit, in a mirror.
///
/// HOSTILE: where nothing was typed of it, whoever wrote the row says what is connected to.
fn cloned(
    host: &Host,
    how: &Evaluating,
    row: &Row,
    (address, asked): (&str, &Asked),
) -> Result<Resolved, Error> {
    let mut typed = source::parse(address)?;
    if how.repos.is_none() {
        let sources = &asked.host.sources;
        typed = base::checked_alone(sources, typed).map_err(EvalError::Server)?;
    }
    let (home, store) = (&host.home, &host.store);
    let resolved = mirror::ensure(home, store, &typed, Some(&row.commit), &mut Silent)?;
    Ok(resolved)
}

/// The commit of the repository that a stage has the files of.
fn commit_of(host: &Host, stage: &Base) -> Result<Option<String>, Error> {
    match stage.stage_of {
        Some(whole) => Ok(base::open(&host.home, &host.store, whole)?.commit),
        None => Ok(stage.commit.clone()),
    }
}

/// What it changed, as a file beside the results.
fn patch(
    host: &Host,
    how: &Evaluating,
    id: SandboxId,
    row: &Row,
    result: &mut RowResult,
) -> Result<(Vec<u8>, Vec<Change>), Error> {
    let mut found = diff(host, id, None, None, Want::Patch)?;
    let mut text = Vec::new();
    let path = patch_path(&how.out, &row.id);
    let failed = |source| Error::WriteFile {
        path: path.clone(),
        source,
    };
    found.write(&mut text).map_err(failed)?;
    let directory = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory).map_err(failed)?;
    crate::durable::write_synced(&path, &text, crate::durable::Existing::Replace)?;
    result.changed_files = found.set.changes.len();
    result.patch = Some(path.clone());
    Ok((text, found.set.changes))
}

/// Where the patch of a row is.
///
/// HOSTILE: an id names no path; what is not plain in it is a hash.
fn patch_path(out: &Path, id: &str) -> PathBuf {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    let shown: String = id.chars().filter(|&c| plain(c)).take(80).collect();
    let name = format!("{shown}-{:08x}.patch", mirror::bits_of(id) as u32);
    let mut directory = out.as_os_str().to_owned();
    directory.push(".patches");
    PathBuf::from(directory).join(name)
}

/// The policy: the host's, which a row can only narrow.
fn asked(host: &Host, how: &Evaluating, row: &Row) -> Result<Asked, Error> {
    let mut asked = how.typed.asked(None, &host.home, None)?;
    match row.policy.as_deref() {
        None => {}
        Some("offline") => {
            asked.host.network = Network::default();
            asked.host.secrets.clear();
        }
        Some(other) => {
            let other = other.chars().take(80).collect();
            return Err(EvalError::Policy(other).into());
        }
    }
    let from = Origin {
        file: "row".to_owned(),
        line: 0,
    };
    if let Some(image) = &row.image {
        if how.images == RowImages::Refused {
            let image = image.chars().take(200).collect();
            return Err(EvalError::Image(image).into());
        }
        let line = Line {
            text: image.clone(),
            from: from.clone(),
        };
        // HOSTILE: whoever wrote the row chose it.
        asked.host.environment.set_image(line, NamedBy::Others);
    }
    let most = asked.limits();
    for (limit, text) in &row.limits {
        let wanted = task::quantity(*limit, text).ok().flatten();
        if let Some(wanted) = wanted.filter(|wanted| is_lower(&most, *limit, *wanted)) {
            let bound = Bound {
                most: Some(wanted),
                from: from.clone(),
            };
            asked.limits.insert(*limit, bound);
        }
    }
    Ok(asked)
}

fn is_lower(most: &Limits, limit: Limit, wanted: u64) -> bool {
    let own = match limit {
        Limit::Time => most.time_seconds,
        Limit::Memory => most.memory_bytes,
        Limit::Processes => Some(most.processes),
        Limit::Cpu => most.cpu_seconds,
        Limit::OpenFiles => Some(most.open_files),
        Limit::FileSize => most.file_bytes,
        Limit::Disk => most.disk_bytes,
        Limit::Inodes => most.disk_inodes,
        Limit::Output => most.output_bytes,
        Limit::Journal => return false,
    };
    own.is_none_or(|own| wanted < own)
}

/// Where the repository of a row is.
fn repository(how: &Evaluating, row: &Row) -> Result<String, EvalError> {
    let refused = || EvalError::Repository(row.repo.chars().take(200).collect());
    if let Some(template) = &how.repos {
        return address(template, &row.repo).ok_or_else(refused);
    }
    if row.repo.starts_with('-') || row.repo.contains('\0') {
        return Err(refused());
    }
    // A path is meant from where the rows are.
    let beside = how.rows.parent().unwrap_or(Path::new(""));
    let beside = beside.join(&row.repo);
    Ok(if beside.is_dir() {
        beside.to_string_lossy().into_owned()
    } else {
        row.repo.clone()
    })
}

/// The words of a step, and what is on its standard input.
fn words(
    how: &Evaluating,
    row: &Row,
    step: &Step,
) -> Result<(Vec<ByteText>, Option<String>), EvalError> {
    let prompt = match step {
        Step::Command(words) => {
            let words = words.iter().map(|word| word.as_str().into()).collect();
            return Ok((words, None));
        }
        Step::Prompt(prompt) => prompt,
    };
    let words = row.command.as_ref().unwrap_or(&how.command);
    if words.is_empty() {
        return Err(EvalError::NoCommand);
    }
    let placed = words.iter().any(|word| word.contains(PROMPT));
    let filled: Vec<String> = words
        .iter()
        .map(|word| word.replace(PROMPT, prompt))
        .collect();
    if filled.iter().any(|word| word.len() > MAX_WORD) {
        return Err(EvalError::WordsTooLong);
    }
    let filled = filled.iter().map(|word| word.as_str().into()).collect();
    Ok((filled, (!placed).then(|| prompt.clone())))
}

fn one_step(
    host: &Host,
    id: SandboxId,
    (argv, prompt): (Vec<ByteText>, Option<String>),
    number: usize,
    result: &mut RowResult,
) -> Result<(), Error> {
    let input = prompt.map(|prompt| memory(&prompt)).transpose();
    let input = input.map_err(Error::Wait)?;
    let request = ExecRequest {
        argv,
        env: vec![("RINGFENCE_STEP".into(), number.to_string().as_str().into())],
        cwd: None,
        session: None,
        terminal: None,
        time_seconds: None,
        lost: Lost::Replace,
        incarnation: None,
    };
    let inputs = Inputs {
        stdin: input.as_ref().map(|input| input.as_fd()),
        signals: None,
    };
    let turn = turn(host, id, Beside::Wait, &mut |_| {})?;
    let done = exec(host, id, &turn, &request, &inputs, &mut Quiet, &mut |_| {})?;
    let attended = &done.attended;
    result.usage.steps_ms += attended.duration_ms;
    result.usage.cpu_ms += attended.cpu_ms;
    result.usage.peak_bytes = result.usage.peak_bytes.max(attended.peak_bytes);
    result.steps.push(StepSeen {
        outcome: attended.outcome,
        exit_code: attended.code,
        signal: attended.signal,
        duration_ms: attended.duration_ms,
        leftovers: attended.leftovers.len(),
        stdout_tail: tail(done.spool.stream(Stream::Stdout)),
        stderr_tail: tail(done.spool.stream(Stream::Stderr)),
    });
    match attended.outcome {
        Outcome::NotStarted => {
            let why = attended.not_started.clone().unwrap_or_default();
            Err(EvalError::NotStarted { step: number, why }.into())
        }
        _ => Ok(()),
    }
}

/// The end of what it said. Where all of it was kept at the beginning, that is the end.
fn tail(capture: &Capture) -> String {
    let end = if capture.is_truncated() {
        capture.tail()
    } else {
        [capture.head(), &capture.tail()[..]].concat()
    };
    let from = end.len().saturating_sub(TAIL_BYTES);
    String::from_utf8_lossy(&end[from..]).into_owned()
}

fn memory(text: &str) -> std::io::Result<File> {
    let memory = rustix::fs::memfd_create("prompt", MemfdFlags::CLOEXEC)?;
    let mut file = File::from(memory);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// Nobody watches.
pub(super) struct Quiet;

impl Console for Quiet {
    fn output(&mut self, _: Stream, _: &[u8]) {}
}

/// What a row stands on.
pub(super) type Stands<'a> = (&'a Base, &'a Asked);
