//! `ringfence run --attempts`: the same command several times, each in a run of its own.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use anstream::eprintln;
use ringfence_engine::attend::{Console, Inputs};
use ringfence_engine::client::Stream;
use ringfence_engine::ids::RunId;
use ringfence_engine::run::{Attempt, RunRequest, RunResult};
use ringfence_jail::signals::Signals;
use ringfence_model::outcome::Outcome;

use super::super::{compare, open};
use super::checks::exit_code;
use crate::text::clean;

/// Runs all attempts, `parallel` at once, and compares them.
pub fn run(request: &RunRequest, of: u32, parallel: u32, json: bool) -> anyhow::Result<ExitCode> {
    let group = RunId::random()?;
    let next = AtomicU32::new(1);
    let stopped = AtomicBool::new(false);
    let done: Mutex<Vec<(u32, anyhow::Result<RunResult>)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..parallel.min(of) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    if number > of || stopped.load(Ordering::SeqCst) {
                        return;
                    }
                    let attempt = Attempt { group, number, of };
                    let result = one(request, attempt);
                    let cut = |result: &RunResult| result.outcome == Outcome::Cancelled;
                    if result.as_ref().is_ok_and(cut) && !stopped.swap(true, Ordering::SeqCst) {
                        // One of them has taken the signal; the others are to stop as well.
                        let own = rustix::process::getpid();
                        let _ = rustix::process::kill_process(own, rustix::process::Signal::INT);
                    }
                    if let Ok(mut done) = done.lock() {
                        done.push((number, result));
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_default();
    done.sort_by_key(|(number, _)| *number);
    let mut results = Vec::new();
    let mut failed = None;
    for (number, result) in done {
        match result {
            Ok(result) => results.push(result),
            // The others are worth what they are worth.
            Err(error) => {
                eprintln!("[{number}/{of}] failed: {}", clean(&format!("{error:#}")));
                failed.get_or_insert(error);
            }
        }
    }
    let (home, store) = open()?;
    let runs: Vec<_> = results
        .iter()
        .map(|result| store.run(result.run))
        .collect::<Result<_, _>>()?;
    if runs.len() < 2 {
        // Stopped, or failed, before there was anything to compare.
        return match (results.first(), failed) {
            (Some(result), _) => Ok(exit_code(result)),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(ExitCode::FAILURE),
        };
    }
    let compared = ringfence_engine::compare::compare(&home, &runs)?;
    compare::print(&compared, json)?;
    let best = compared.attempts[0].run;
    let best = results.iter().find(|result| result.run == best);
    Ok(best.map_or(ExitCode::FAILURE, exit_code))
}

fn one(request: &RunRequest, attempt: Attempt) -> anyhow::Result<RunResult> {
    // For this thread, again for each attempt: a run lets go of them at its end.
    let signals = Signals::hold()?;
    let (home, store) = open()?;
    let word = format!("[{}/{}]", attempt.number, attempt.of);
    let name = request.name.as_ref();
    let request = RunRequest {
        name: name.map(|name| format!("{name}-{}", attempt.number)),
        attempt: Some(attempt),
        ..request.clone()
    };
    let inputs = Inputs {
        stdin: None,
        signals: Some(&signals),
    };
    let mut console = Quiet(&word);
    let result = ringfence_engine::run::run(&home, &store, &request, &inputs, &mut console)?;
    eprintln!(
        "{word} run {}: the command {}, {} changed",
        result.run,
        clean(&result.ending()),
        crate::text::plural(result.changed_files.len(), "file")
    );
    super::checks::tell(&result.checks, &word);
    Ok(result)
}

/// Steps, and nothing that the command prints: its log has it.
struct Quiet<'a>(&'a str);

impl Console for Quiet<'_> {
    fn output(&mut self, _: Stream, _: &[u8]) {}

    fn step(&mut self, step: &str) {
        if matches!(step, "agent" | "validate") {
            eprintln!("{} {step}", self.0);
        }
    }
}
