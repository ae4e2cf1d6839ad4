//! The reward of a final state: the row's checks on the commit's own files with the agent's patch,
//! in fresh sandboxes.
//!
//! HOSTILE: the agent wrote the patch, and knows that it is looked at. Of its changes, those to the
//! exam (tests, their settings, what runs before them) do not count, and the row's own tests lie on
//! top of all. What it left running, ignored or in `.git` is not there.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::Path;

use ringfence_model::changes::Change;
use ringfence_model::check::{MAX_TOUCHED, Ran, runners};
use ringfence_model::eval::{Row, test_lines};
use ringfence_model::policy::Line;
use ringfence_model::policy::network::Origin;

use super::episode::{Quiet, Stands};
use super::results::{CheckSeen, RowResult};
use super::{EvalError, Evaluating};
use crate::attend::Inputs;
use crate::base::Base;
use crate::checks::{About, Fresh, Ground, Site, Stacked};
use crate::error::Error;
use crate::patch::{Laid, Patch, above, laid, plain, plain_files};
use crate::run::RunRequest;
use crate::sandboxes::Host;

/// BOUND: characters of a command in a result; it is in the row.
const SHOWN: usize = 400;

/// What the agent left.
pub(super) fn agent(
    host: &Host,
    how: &Evaluating,
    row: &Row,
    (base, asked): Stands<'_>,
    (text, changes): (&[u8], &[Change]),
    result: &mut RowResult,
) -> Result<(), Error> {
    let top = open(base)?;
    let read = Patch::read(text, changes).map_err(Error::LayPatch)?;
    let with = laid(&read.entries, top.as_fd()).map_err(Error::LayPatch)?;
    let pairs = read.entries.iter();
    let pairs = pairs.map(|entry| (entry.old_path().to_vec(), entry.path().to_vec()));
    let stacked = Stacked {
        below: Laid::default(),
        with,
        pairs: pairs.collect(),
    };
    let tests = tests(row, &top)?;
    let request = request(host, how, row, (base, asked))?;
    let site = site(host, base, &request)?;
    let logs = site.directory().join("logs");
    let patch = result.patch.clone().unwrap_or_default();
    let about = about(&patch, changes, &logs);
    let (put_back, open) = site.without_exam(about, &stacked)?;
    result.put_back_more = put_back.len().saturating_sub(MAX_TOUCHED);
    result.put_back = put_back.into_iter().take(MAX_TOUCHED).collect();
    decide(how, row, &site, about, &over(open, tests), result)
}

/// What is known to be right.
pub(super) fn gold(
    host: &Host,
    how: &Evaluating,
    row: &Row,
    (base, asked): Stands<'_>,
    patch: &str,
    result: &mut RowResult,
) -> Result<(), Error> {
    let top = open(base)?;
    let gold = plain(patch.as_bytes(), top.as_fd()).map_err(EvalError::Gold)?;
    result.changed_files = gold.0.len();
    let tests = tests(row, &top)?;
    let request = request(host, how, row, (base, asked))?;
    let site = site(host, base, &request)?;
    let logs = site.directory().join("logs");
    let about = about(Path::new(""), &[], &logs);
    decide(how, row, &site, about, &over(gold, tests), result)
}

fn open(base: &Base) -> Result<File, Error> {
    let path = base.workspace();
    File::open(&path).map_err(|source| Error::ReadFile { path, source })
}

fn about<'a>(patch: &'a Path, changes: &'a [Change], logs: &'a Path) -> About<'a> {
    About {
        patch,
        changes,
        logs,
        fresh: Fresh::Again,
    }
}

fn site<'a>(host: &'a Host, base: &Base, request: &'a RunRequest) -> Result<Site<'a>, Error> {
    let (home, store) = (&host.home, &host.store);
    let nobody = Inputs::default();
    Site::make(
        home,
        store,
        Ground::Base(base),
        request,
        &nobody,
        &mut Quiet,
    )
}

/// What the row lays over everything.
fn tests(row: &Row, top: &File) -> Result<Laid, EvalError> {
    let patch = row.hidden.patch.as_deref().unwrap_or_default();
    let mut tests = plain(patch.as_bytes(), top.as_fd()).map_err(EvalError::Tests)?;
    let files = plain_files(&row.hidden.files).map_err(EvalError::Tests)?;
    tests.0.extend(files.0);
    Ok(tests)
}

/// The tests on top: what is in the way of one goes.
fn over(mut files: Laid, tests: Laid) -> Laid {
    for path in tests.0.keys() {
        for above in above(path) {
            // HOSTILE: a link in the place of a directory of tests would lead elsewhere.
            files.0.remove(above);
        }
        let inside = [&path[..], b"/"].concat();
        // HOSTILE: Python takes a package for the file of the same name.
        let package = path.strip_suffix(b".py").unwrap_or(path);
        let within = [package, b"/"].concat();
        files.0.retain(|own, _| {
            !own.starts_with(&inside) && !own.starts_with(&within) && own != package
        });
    }
    files.0.extend(tests.0);
    files
}

/// What the checks are held to: as the agent was.
fn request(
    host: &Host,
    how: &Evaluating,
    row: &Row,
    (base, asked): Stands<'_>,
) -> Result<RunRequest, Error> {
    let settled = asked.settle(&host.home, &base.workspace())?;
    let mut request = how.typed.request(&host.home, &base.workspace())?;
    request.policy = settled.effective;
    request.limits = settled.limits;
    request.env = settled.env;
    request.env.extend(how.typed.env.iter().cloned());
    let line = |text: String| Line {
        text,
        from: Origin {
            file: "row".to_owned(),
            line: 0,
        },
    };
    let tests = test_lines(&how.test_command, &row.tests).into_iter();
    let lines = row
        .checks
        .iter()
        .cloned()
        .chain(tests.map(|(text, _)| text));
    request.policy.review.checks = lines.map(line).collect();
    Ok(request)
}

/// Runs the checks, and adds up.
fn decide(
    how: &Evaluating,
    row: &Row,
    site: &Site<'_>,
    about: About<'_>,
    files: &Laid,
    result: &mut RowResult,
) -> Result<(), Error> {
    let ran = site.run_once(about, files, &Inputs::default())?;
    let own = row.checks.iter().map(|check| (check.clone(), None));
    let tests = test_lines(&how.test_command, &row.tests).into_iter();
    let tests = tests.map(|(line, count)| (line, Some(count)));
    for ((command, tests), ran) in own.chain(tests).zip(ran) {
        result.usage.checks_ms += ran.duration_ms;
        result.checks.push(seen(&command, tests, ran));
    }
    let all = result.checks.iter().all(|check| check.passed);
    result.reward = Some(if all { 1.0 } else { 0.0 });
    Ok(())
}

/// Whether a check passed. The exit code decides; where its command names a known runner, that must
/// have told of a test that passed, and of as many as were named.
///
/// HOSTILE: a program that ends itself with 0 before the first test ran says nothing of any.
fn seen(command: &str, tests: Option<u64>, ran: Ran) -> CheckSeen {
    let counted = ran.counts.as_ref().map(|counts| counts.passed);
    let failed = ran.counts.as_ref().is_some_and(|counts| counts.failed > 0);
    let why = match (tests, counted) {
        _ if !ran.passed() => None,
        (Some(_), _) if failed => Some("the runner told of tests that failed".to_owned()),
        (Some(tests), Some(counted)) if counted < tests => Some(format!(
            "the runner told of {counted} tests, and {tests} were named"
        )),
        (Some(_), None) if runners::is_known(command) => {
            Some("the runner told of no test".to_owned())
        }
        (None, None) if runners::runs_known(command) => {
            Some("the runner told of no test".to_owned())
        }
        (None, Some(0)) if runners::runs_known(command) => {
            Some("the runner told of no test that passed".to_owned())
        }
        _ => None,
    };
    CheckSeen {
        command: command.chars().take(SHOWN).collect(),
        passed: ran.passed() && why.is_none(),
        why,
        outcome: ran.outcome,
        exit_code: ran.exit_code,
        signal: ran.signal,
        duration_ms: ran.duration_ms,
        tests,
        counted: tests.and(counted),
        stdout_tail: ran.stdout_tail,
        stderr_tail: ran.stderr_tail,
    }
}
