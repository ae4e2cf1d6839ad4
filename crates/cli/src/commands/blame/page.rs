//! What `blame` prints.
//!
//! HOSTILE: paths, arguments and lines were chosen by an agent. A line of a hunk starts with its
//! sign, so that none of them can be taken for a line of ours, which start with a corner.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use ringfence_engine::blame::Blame;
use ringfence_engine::error::Error;
use ringfence_engine::evidence::Ran;
use ringfence_engine::run::Seconds;
use ringfence_model::ByteText;
use ringfence_model::attribution::{FileWriters, HunkWriters};
use ringfence_model::changes::{Change, ChangeKind};
use serde_json::{Value, json};

use crate::text::{arguments, clean, clean_bytes, shorten, time};

/// BOUND: columns of a command in a list, in the line of who made a hunk, and in a chain.
const LISTED: usize = 40;
const NAMED: usize = 160;
const CHAINED: usize = 48;
/// BOUND: programs of a chain that are shown.
const CHAIN: usize = 12;
/// BOUND: unexplained paths that are shown.
const UNEXPLAINED: usize = 10;

/// All changed files, with their last writers.
pub fn list(bundle: &Blame, out: &mut dyn Write) -> io::Result<()> {
    if bundle.result.changes.is_empty() {
        return writeln!(out, "run {} changed nothing", bundle.result.run);
    }
    writeln!(out, "   WRITERS  {:<LISTED$}  PATH", "LAST WRITER")?;
    let numbers = 0..bundle.result.changes.len();
    for (change, writers) in numbers.filter_map(|number| bundle.change(number)) {
        let last = writers.map_or_else(|| "?".to_owned(), |writers| last(bundle, writers));
        let more = writers.is_some_and(|writers| writers.writers_truncated);
        let count = writers.map_or("?".to_owned(), |writers| {
            format!("{}{}", writers.writers.len(), if more { "+" } else { "" })
        });
        writeln!(
            out,
            "{}  {count:>7}  {:<LISTED$}  {}",
            letter(change),
            shorten(&last, LISTED),
            path(change)
        )?;
    }
    unexplained(bundle, out)
}

fn last(bundle: &Blame, writers: &FileWriters) -> String {
    match writers.last_writer {
        Some(exec) => format!("{exec} {}", command(bundle, exec)),
        None => "?".to_owned(),
    }
}

fn unexplained(bundle: &Blame, out: &mut dyn Write) -> io::Result<()> {
    let unplaced = bundle.writers.unplaced_count;
    if unplaced > 0 {
        writeln!(
            out,
            "\nincomplete: where {unplaced} writes went cannot be told (`audit --writes`: unplaced)"
        )?;
    }
    let count = bundle.writers.unexplained_count;
    if count == 0 {
        return Ok(());
    }
    writeln!(
        out,
        "\nincomplete: {count} changed paths are explained by no write that was observed"
    )?;
    for path in bundle.writers.unexplained.iter().take(UNEXPLAINED) {
        writeln!(out, "  {}", clean(&path.to_text()))?;
    }
    Ok(())
}

/// Changed files with their hunks, and who made them.
pub fn files(bundle: &Blame, numbers: &[usize], out: &mut dyn Write) -> anyhow::Result<()> {
    let mut told = BTreeSet::new();
    for (index, &number) in numbers.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        file(bundle, number, &mut told, out)?;
    }
    Ok(())
}

fn file(
    bundle: &Blame,
    number: usize,
    told: &mut BTreeSet<u64>,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let Some((change, writers)) = bundle.change(number) else {
        return Ok(());
    };
    writeln!(out, "{} {}", letter(change), path(change))?;
    let Some(writers) = writers else {
        writeln!(out, "└ who wrote it is not listed: the list was cut")?;
        return Ok(());
    };
    if bundle.writers.unexplained.contains(&change.path) {
        writeln!(out, "└ no write that was observed explains this change")?;
    }
    let hunks = bundle.hunks(number)?;
    for (hunk, text) in hunks.iter().enumerate() {
        write!(out, "{}", clean_bytes(text))?;
        match writers.hunks.get(hunk) {
            Some(made) => who(bundle, change, made, told, out)?,
            None => writeln!(out, "└ who made it is not listed: the list was cut")?,
        }
    }
    if hunks.is_empty() {
        whole(bundle, writers, told, out)?;
    }
    if let Some(exec) = writers.from_removed_by {
        execs(bundle, "taken from its old path by", &[exec], told, out)?;
    }
    Ok(())
}

/// Who made one hunk of a change, or a change that has none, in lines of ours.
pub fn of_hunk(bundle: &Blame, number: usize, hunk: Option<usize>) -> Vec<String> {
    let mut out = Vec::new();
    let mut told = BTreeSet::new();
    let written = match (bundle.change(number), hunk) {
        (Some((change, Some(writers))), Some(hunk)) => match writers.hunks.get(hunk) {
            Some(made) => who(bundle, change, made, &mut told, &mut out),
            None => writeln!(out, "└ who made it is not listed: the list was cut"),
        },
        (Some((_, Some(writers))), None) => whole(bundle, writers, &mut told, &mut out),
        _ => writeln!(out, "└ who wrote it is not listed: the list was cut"),
    };
    written.expect("memory takes all that is written to it");
    let text = String::from_utf8_lossy(&out);
    text.lines().map(str::to_owned).collect()
}

fn who(
    bundle: &Blame,
    change: &Change,
    made: &HunkWriters,
    told: &mut BTreeSet<u64>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let did = match (&change.kind, made.told, made.by.len()) {
        (_, _, 0) => return writeln!(out, "└ by nobody that was observed"),
        (_, false, 1) => "it cannot be told who made this; known to have written is",
        (_, false, _) => "it cannot be told which of them made this:",
        (ChangeKind::Deleted, ..) => "removed by",
        (_, true, 1) => "by",
        (_, true, _) => "lines of it by each of",
    };
    execs(bundle, did, &made.by, told, out)
}

/// Who changed a file that has no lines to show.
fn whole(
    bundle: &Blame,
    writers: &FileWriters,
    told: &mut BTreeSet<u64>,
    out: &mut dyn Write,
) -> io::Result<()> {
    if let Some(last) = writers.last_writer {
        execs(bundle, "last changed by", &[last], told, out)?;
    }
    let others: Vec<u64> = writers
        .writers
        .iter()
        .copied()
        .filter(|&exec| Some(exec) != writers.last_writer)
        .collect();
    if others.is_empty() {
        return Ok(());
    }
    execs(bundle, "before that by", &others, told, out)
}

fn execs(
    bundle: &Blame,
    did: &str,
    list: &[u64],
    told: &mut BTreeSet<u64>,
    out: &mut dyn Write,
) -> io::Result<()> {
    for (index, &exec) in list.iter().enumerate() {
        let lead = match (index, list.len()) {
            (0, 1) => format!("└ {did} "),
            (0, _) => {
                writeln!(out, "└ {did}")?;
                "  ".to_owned()
            }
            _ => "  ".to_owned(),
        };
        writeln!(
            out,
            "{lead}{exec}: {}",
            shorten(&command(bundle, exec), NAMED)
        )?;
        // Whoever made several hunks is described once.
        if let Some(ran) = bundle
            .evidence
            .execs
            .get(&exec)
            .filter(|_| told.insert(exec))
        {
            describe(bundle, ran, out)?;
        }
    }
    Ok(())
}

fn describe(bundle: &Blame, ran: &Ran, out: &mut dyn Write) -> io::Result<()> {
    let exe = shorten(&ran.exec.exe.to_text(), NAMED);
    let unverified = if ran.exec.verified {
        ""
    } else {
        ", as it asked for; not verified"
    };
    writeln!(out, "     {exe}{unverified}")?;
    writeln!(out, "     began {} UTC, {}", time(ran.time_us), ending(ran))?;
    let mut chain: Vec<String> = bundle
        .evidence
        .lineage(ran.exec.exec)
        .take(CHAIN + 1)
        .map(|ran| shorten(&arguments(&ran.exec.argv), CHAINED))
        .collect();
    if chain.len() > CHAIN {
        chain[CHAIN] = "…".to_owned();
    }
    chain.reverse();
    if chain.len() > 1 {
        writeln!(out, "     {}", chain.join(" ▸ "))?;
    }
    Ok(())
}

fn ending(ran: &Ran) -> String {
    let Some(exit) = &ran.exit else {
        return "became another program or lived until the end".to_owned();
    };
    let after = Seconds(exit.duration_us / 1000);
    match (exit.code, exit.signal) {
        (Some(code), _) => format!("exited with {code} after {after}"),
        (None, Some(signal)) => format!("died by signal {signal} after {after}"),
        (None, None) => format!("ended after {after}"),
    }
}

fn command(bundle: &Blame, exec: u64) -> String {
    match bundle.evidence.execs.get(&exec) {
        Some(ran) => arguments(&ran.exec.argv),
        None => "not in the journal".to_owned(),
    }
}

pub fn letter(change: &Change) -> char {
    match change.kind {
        ChangeKind::Added => 'A',
        ChangeKind::Modified => 'M',
        ChangeKind::Deleted => 'D',
        ChangeKind::Renamed { .. } => 'R',
    }
}

pub fn path(change: &Change) -> String {
    let path = clean(&change.path.to_text());
    match &change.kind {
        ChangeKind::Renamed { from } => format!("{} → {path}", clean(&from.to_text())),
        _ => path,
    }
}

/// The same for programs.
pub fn json(bundle: &Blame, numbers: Option<&[usize]>) -> Result<Value, Error> {
    let all: Vec<usize> = (0..bundle.result.changes.len()).collect();
    let mut named = BTreeSet::new();
    let mut files = Vec::new();
    for &number in numbers.unwrap_or(&all) {
        let Some((change, writers)) = bundle.change(number) else {
            continue;
        };
        let text = match numbers {
            Some(_) => Some(bundle.hunks(number)?),
            None => None,
        };
        if let Some(writers) = writers {
            named.extend(writers.writers.iter().copied());
            named.extend(writers.from_removed_by);
            named.extend(writers.hunks.iter().flat_map(|hunk| hunk.by.clone()));
        }
        files.push(json!({
            "path": change.path,
            "change": change.kind,
            "last_writer": writers.and_then(|writers| writers.last_writer),
            "from_removed_by": writers.and_then(|writers| writers.from_removed_by),
            "writers": writers.map(|writers| &writers.writers),
            "writers_truncated": writers.is_none_or(|writers| writers.writers_truncated),
            "hunks": hunks(writers, text.as_deref()),
        }));
    }
    let execs: BTreeMap<String, Value> = named
        .iter()
        .map(|&exec| (exec.to_string(), exec_json(bundle, exec)))
        .collect();
    Ok(json!({
        "run": bundle.result.run,
        "complete": bundle.writers.complete,
        "unexplained": bundle.writers.unexplained,
        "unexplained_count": bundle.writers.unexplained_count,
        "unplaced_count": bundle.writers.unplaced_count,
        "files": files,
        "execs": execs,
    }))
}

fn hunks(writers: Option<&FileWriters>, text: Option<&[Vec<u8>]>) -> Vec<Value> {
    let listed = writers.map_or(&[][..], |writers| &writers.hunks);
    let count = text.map_or(listed.len(), <[_]>::len);
    let hunk = |at: usize| {
        let mut value = match listed.get(at) {
            Some(made) => json!(made),
            None => json!({ "by": [], "told": false }),
        };
        if let Some(text) = text {
            let lines = text[at].split_inclusive(|&byte| byte == b'\n');
            let lines = lines.map(|line| ByteText::from(line.strip_suffix(b"\n").unwrap_or(line)));
            value["lines"] = json!(lines.collect::<Vec<_>>());
        }
        value
    };
    (0..count).map(hunk).collect()
}

fn exec_json(bundle: &Blame, exec: u64) -> Value {
    let Some(ran) = bundle.evidence.execs.get(&exec) else {
        return Value::Null;
    };
    let parents: Vec<u64> = bundle.evidence.lineage(exec).map(|r| r.exec.exec).collect();
    json!({
        "argv": ran.exec.argv,
        "exe": ran.exec.exe,
        "cwd": ran.exec.cwd,
        "pid": ran.exec.pid,
        "verified": ran.exec.verified,
        "time_us": ran.time_us,
        "exit": ran.exit,
        "parents": parents.get(1..).unwrap_or_default(),
    })
}
