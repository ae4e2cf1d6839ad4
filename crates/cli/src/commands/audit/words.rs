//! The words for what a journal holds.

use std::error::Error as _;

use ringfence_engine::audit::{Ending, Fault, Used};
use ringfence_engine::run::Seconds;
use ringfence_model::ByteText;
use ringfence_model::gate::{Happened, Traffic, Via};
use ringfence_model::journal::{Event, ProbeResult};
use ringfence_model::limits::HumanBytes;
use ringfence_model::observed::{Exec, ExecFailed, Wrote};
use ringfence_model::outcome::Outcome;

use crate::text::{argument, arguments, clean};

/// The head of the list of programs.
pub const PROGRAMS: &str =
    "  RUNS        SIZE  SHA-256                                                           PROGRAM";

pub fn program(used: &Used<'_>) -> String {
    let size = used
        .size
        .map_or_else(|| "-".to_owned(), |size| HumanBytes(size).to_string());
    format!(
        "{:>6}  {size:>10}  {:<64}  {}",
        used.runs,
        used.sha256.map_or_else(|| "not read".to_owned(), clean),
        argument(used.path)
    )
}

/// So many of something.
pub fn count(number: u64, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    }
}

/// What is wrong with a journal, with its cause.
pub fn fault(fault: &Fault) -> String {
    let cause = match fault {
        Fault::Chain(chain) => chain.source(),
        _ => None,
    };
    match cause {
        Some(cause) => clean(&format!("{fault}: {cause}")),
        None => clean(&fault.to_string()),
    }
}

pub fn ending(ending: Ending) -> String {
    match ending {
        Ending::Exited(code) => format!("exit {code}"),
        Ending::Signal(number) => signal(number),
        Ending::Unknown => "ended".to_owned(),
        Ending::Became(exec) => format!("became {exec}"),
        Ending::Running => "running".to_owned(),
        Ending::Unseen => "no end seen".to_owned(),
    }
}

/// A duration in microseconds.
pub fn took(us: Option<u64>) -> String {
    match us {
        None => String::new(),
        Some(us) if us < 1000 => "<1 ms".to_owned(),
        Some(us) => Seconds(us / 1000).to_string(),
    }
}

fn signal(number: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
        "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
        "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    usize::try_from(number - 1)
        .ok()
        .and_then(|at| NAMES.get(at))
        .map_or_else(|| format!("signal {number}"), |name| format!("SIG{name}"))
}

/// Why an exec failed.
pub fn errno(errno: i32) -> String {
    use rustix::io::Errno;
    let known = [
        (Errno::NOENT, "not found"),
        (Errno::ACCESS, "no permission"),
        (Errno::PERM, "not permitted"),
        (Errno::NOEXEC, "no program"),
        (Errno::NOTDIR, "not found"),
        (Errno::ISDIR, "a directory"),
        (Errno::LOOP, "link loop"),
        (Errno::TOOBIG, "too long"),
        (Errno::TXTBSY, "being written"),
        (Errno::NOMEM, "no memory"),
        (Errno::NOSYS, "not observed"),
    ];
    known
        .iter()
        .find(|(known, _)| known.raw_os_error() == errno)
        .map_or_else(|| format!("error {errno}"), |(_, word)| (*word).to_owned())
}

/// The last part of a path, for a terminal.
pub fn name(path: &ByteText) -> String {
    argument(&ByteText::from(last(path)))
}

fn last(path: &ByteText) -> &[u8] {
    let bytes = path.as_bytes();
    let at = bytes.iter().rposition(|&byte| byte == b'/');
    at.map_or(bytes, |at| &bytes[at + 1..])
}

/// What ran, in one line: its arguments, and first of all what they do not say.
///
/// HOSTILE: the first argument is whatever the caller wished. The file that the kernel really ran
/// stands before it where the two differ.
pub fn ran(exec: &Exec) -> String {
    let mut line = String::new();
    if !exec.verified {
        line.push_str("(as asked, not verified) ");
    }
    let first = exec.argv.first();
    if is_of_the_host(&exec.exe) {
        if first.map(last) != Some(last(&exec.exe)) {
            line.push_str(&format!("[{}] ", name(&exec.exe)));
        }
    } else if first != Some(&exec.exe) {
        line.push_str(&format!("[{}] ", argument(&exec.exe)));
    }
    if let Some(cut) = &exec.argv_cut {
        line.push_str(&format!("({} of arguments) ", HumanBytes(cut.bytes)));
    }
    line.push_str(&arguments(&exec.argv));
    line
}

/// Whether a program lies where an agent cannot write, so that its name says enough.
fn is_of_the_host(exe: &ByteText) -> bool {
    [
        "/usr/",
        "/bin/",
        "/sbin/",
        "/lib",
        "/nix/store/",
        "/gnu/store/",
    ]
    .iter()
    .any(|top| exe.as_bytes().starts_with(top.as_bytes()))
}

/// What did not run.
pub fn tried(failed: &ExecFailed) -> String {
    let mut line = argument(&failed.asked);
    if let [_, rest @ ..] = &failed.argv[..]
        && !rest.is_empty()
    {
        line.push(' ');
        line.push_str(&arguments(rest));
    }
    line
}

/// What was done to a path, and with which other one.
pub fn wrote(what: &Wrote) -> (&'static str, String) {
    let none = String::new();
    match what {
        Wrote::Opened => ("opened", none),
        Wrote::Created => ("created", none),
        Wrote::Truncated => ("truncated", none),
        Wrote::Renamed { from } => ("renamed", format!(" (was {})", argument(from))),
        Wrote::Exchanged { with } => ("exchanged", format!(" (with {})", argument(with))),
        Wrote::Linked { to } => ("linked", format!(" (to {})", argument(to))),
        Wrote::Symlinked => ("symlink", none),
        Wrote::Removed => ("removed", none),
        Wrote::Mode => ("mode", none),
        Wrote::MadeNode => ("made node", none),
        Wrote::Unplaced => (
            "unplaced",
            " (asked so; where it is cannot be told)".to_owned(),
        ),
    }
}

/// What is no program and no write, in a sentence.
pub fn sentence(event: &Event) -> Option<String> {
    Some(match event {
        Event::Task {
            argv,
            folder,
            version,
            ..
        } => {
            let what = if argv.is_empty() {
                "a sandbox that lasts".to_owned()
            } else {
                arguments(argv)
            };
            format!("asked: {what} on {} ({})", argument(folder), clean(version))
        }
        Event::Enforced {
            backend,
            identity,
            image,
            ..
        } => {
            let on = image.iter().map(|image| format!(", on {}", clean(image)));
            let on: String = on.collect();
            format!("enforced by {}, {}{on}", clean(backend), clean(identity))
        }
        Event::Proof { probes } => proof(probes),
        Event::Command { argv } => format!("command: {}", arguments(argv)),
        Event::Limit { limit, detail } => {
            let limit = limit.as_str().replace('_', " ");
            format!("limit of {limit} met: {}", clean(detail))
        }
        Event::Network(traffic) => format!("network: {}", network(traffic)),
        Event::GateLost { detail } => format!("gate lost: {}", clean(detail)),
        Event::CommandEnded {
            outcome,
            code,
            signal: by,
            duration_ms,
            leftovers,
            cpu_ms,
            peak_bytes,
        } => {
            let how = how_ended(*outcome, *code, *by);
            let left = match leftovers {
                0 => String::new(),
                n => format!(", {} left running", count(*n, "process")),
            };
            let cpu = cpu_ms.map_or_else(String::new, |ms| format!(", {} of CPU", Seconds(ms)));
            let peak = peak_bytes.map_or_else(String::new, |bytes| {
                format!(", {} at most", HumanBytes(bytes))
            });
            let after = Seconds(*duration_ms);
            format!("command ended: {how} after {after}{cpu}{peak}{left}")
        }
        Event::Seal {
            changed, omitted, ..
        } => format!(
            "sealed: {}, {omitted} left behind",
            count(*changed, "change")
        ),
        Event::CheckBegan {
            check,
            tree,
            command,
        } => {
            let tree = tree.as_str();
            format!("check {} on {tree} began: {}", check + 1, clean(command))
        }
        Event::CheckNetwork {
            check,
            tree,
            traffic,
        } => {
            let tree = tree.as_str();
            format!(
                "check {} on {tree}: network: {}",
                check + 1,
                network(traffic)
            )
        }
        Event::CheckGateLost {
            check,
            tree,
            detail,
        } => {
            let tree = tree.as_str();
            format!(
                "check {} on {tree}: gate lost: {}",
                check + 1,
                clean(detail)
            )
        }
        Event::CheckEnded {
            check,
            tree,
            outcome,
            code,
            duration_ms,
            cached,
            ..
        } => {
            let how = how_ended(*outcome, *code, None);
            let known = if *cached { ", known already" } else { "" };
            let (tree, after) = (tree.as_str(), Seconds(*duration_ms));
            format!(
                "check {} on {tree} ended: {how} after {after}{known}",
                check + 1
            )
        }
        Event::IterationBegan { iteration, most } => {
            format!("iteration {iteration} of {most} began")
        }
        Event::IterationCheck {
            iteration,
            check,
            tree,
            outcome,
            code,
            duration_ms,
            cached,
            ..
        } => {
            let when = match iteration {
                0 => "before the agent".to_owned(),
                number => format!("after iteration {number}"),
            };
            let known = if *cached { ", known already" } else { "" };
            let (tree, after) = (tree.as_str(), Seconds(*duration_ms));
            let how = how_ended(*outcome, *code, None);
            let check = check + 1;
            format!("check {check} on {tree}, {when}: {how} after {after}{known}")
        }
        Event::IterationEnded {
            iteration,
            outcome,
            code,
            signal,
            duration_ms,
            changed,
            ..
        } => {
            let (how, after) = (how_ended(*outcome, *code, *signal), Seconds(*duration_ms));
            let changed = count(*changed, "changed file");
            format!("iteration {iteration} ended: {how} after {after}, {changed}")
        }
        Event::ExecutionEnded { reason, processes } => {
            let with = match processes {
                0 => String::new(),
                n => format!(", {n} processes with it"),
            };
            format!("execution ended: {}{with}", reason.as_str())
        }
        Event::End { status } => format!("over: {}", status.as_str().replace('_', " ")),
        Event::Exit(exit) => format!("exec {}, whose start is not recorded, ended", exit.exec),
        Event::Program(_)
        | Event::Exec(_)
        | Event::ExecFailed(_)
        | Event::Write(_)
        | Event::Denial(_) => return None,
    })
}

/// How a command ended.
fn how_ended(outcome: Outcome, code: Option<i32>, by: Option<i32>) -> String {
    match (outcome, code, by) {
        (Outcome::Exited, Some(code), _) => format!("exit {code}"),
        (Outcome::Signaled, _, Some(number)) => signal(number),
        (outcome, ..) => outcome.as_str().replace('_', " "),
    }
}

/// What was asked of the network, and what came of it.
pub fn network(traffic: &Traffic) -> String {
    let mut asked = match (&traffic.method, traffic.via) {
        (Some(method), _) => format!("{} ", clean(method)),
        (None, Via::Name) => "name ".to_owned(),
        (None, _) => "connect ".to_owned(),
    };
    asked.push_str(&argument(&traffic.host));
    if traffic.port != 0 {
        asked.push_str(&format!(":{}", traffic.port));
    }
    if let Some(path) = &traffic.path {
        asked.push_str(&argument(path));
    }
    if traffic.times > 1 {
        asked.push_str(&format!(", {} times", traffic.times));
    }
    let came = match &traffic.result {
        Happened::Allowed {
            status,
            sent,
            received,
            cached,
            ..
        } => {
            let status = status
                .map(|status| format!(" {status},"))
                .unwrap_or_default();
            let cached = if *cached { ", from the cache" } else { "" };
            format!("allowed:{status} {sent} bytes sent, {received} received{cached}")
        }
        Happened::Denied {
            reason,
            detail,
            allow,
        } => {
            let allow = allow
                .as_ref()
                .map(|line| format!("; would be allowed by {:?}", clean(line)))
                .unwrap_or_default();
            format!("denied ({}): {}{allow}", reason.as_str(), clean(detail))
        }
        Happened::Failed { detail } => format!("failed: {}", clean(detail)),
        Happened::Scrubbed { secret, form } => {
            format!(
                "secret {} taken out of the answer ({})",
                clean(secret),
                clean(form)
            )
        }
        Happened::Stripped { field } => {
            format!("its own credential in `{}` was taken out", clean(field))
        }
        Happened::Learned { index } => format!("files may come from it, says {index}"),
    };
    format!("{asked}: {came}")
}

fn proof(probes: &[ProbeResult]) -> String {
    let failed: Vec<String> = probes
        .iter()
        .filter(|probe| !probe.held && !probe.is_left_out())
        .map(|probe| format!("{} ({})", clean(&probe.probe), clean(&probe.detail)))
        .collect();
    let tried = probes.iter().filter(|probe| !probe.is_left_out()).count();
    let shown = match probes.len() - tried {
        0 => String::new(),
        n => format!(
            "; {} not made: known to work and harmless",
            count(n as u64, "attempt")
        ),
    };
    if failed.is_empty() {
        format!(
            "proved: {} that must fail failed from inside{shown}",
            count(tried as u64, "attempt")
        )
    } else {
        format!("NOT proved: {}", failed.join(", "))
    }
}
