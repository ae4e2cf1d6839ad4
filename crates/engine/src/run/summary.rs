//! `summary.md`: a run for a person, in Markdown.
//!
//! HOSTILE: names, arguments, claims and notes may hold anything. What an agent chose stands in
//! code spans on one line each, with a fence longer than any it holds, so that it can make no
//! heading, link, picture, code block or HTML.

mod checks;
mod rounds;

use std::fmt::{Display, Write as _};

use ringfence_model::ByteText;
use ringfence_model::attribution::Attribution;
use ringfence_model::bundle::EnvironmentFacts;
use ringfence_model::changes::{Change, ChangeKind};
use ringfence_model::claim::Claim;
use ringfence_model::flag::{Evidence, Flag, FlagKind, Severity};
use ringfence_model::limits::HumanBytes;
use ringfence_model::text::hides;

use super::observed::{TestResult, TestSeen};
use super::result::{RunResult, Seconds, why};

/// BOUND: lines of a list; the whole list is in the result.
const LISTED: usize = 20;
/// BOUND: evidence of a flag, lines of a claim.
const FEW: usize = 5;
/// BOUND: characters of anything that an agent chose.
const WIDTH: usize = 160;

/// The whole page.
pub(super) fn write(result: &RunResult) -> String {
    let mut text = String::new();
    head(result, &mut text);
    flags(&result.flags, &mut text);
    claimed(result, &mut text);
    section(
        &mut text,
        "Checks of the host",
        checks::lines(&result.checks),
    );
    section(&mut text, "Iterations", rounds::lines(&result.rounds));
    section(&mut text, "Changed files", changes(result));
    section(
        &mut text,
        "Changed, and explained by no write that was observed",
        unexplained(result),
    );
    section(
        &mut text,
        "Test commands that ran",
        result.observed.tests.iter().rev().map(test).collect(),
    );
    let times = |list: &[super::observed::Times]| -> Vec<String> {
        list.iter()
            .map(|times| format!("{} × {}", times.count, words(&times.argv)))
            .collect()
    };
    section(
        &mut text,
        "Programs that ran most",
        times(&result.observed.most_run),
    );
    section(
        &mut text,
        "Commands that failed",
        times(&result.observed.most_failed),
    );
    section(
        &mut text,
        "Not let through",
        result
            .observed
            .most_denied
            .iter()
            .map(|denied| {
                let (operation, reason) = (code(&denied.operation), code(&denied.reason));
                format!("{} × {operation}: {reason}", denied.count)
            })
            .collect(),
    );
    section(&mut text, "Network", network(result));
    section(
        &mut text,
        "Limits met",
        result
            .limit_hits
            .iter()
            .map(|(limit, detail)| format!("{}: {}", limit.as_str(), code(detail)))
            .collect(),
    );
    section(
        &mut text,
        "Left behind",
        result
            .omitted
            .iter()
            .map(|o| {
                let (size, files) = (HumanBytes(o.size), count(o.files, "file"));
                let (path, why) = (code(&o.path), why(o.why));
                format!("{path}: {why} ({size}, {files})")
            })
            .collect(),
    );
    section(
        &mut text,
        "Left running at the end, and ended",
        result
            .leftovers
            .iter()
            .map(|l| format!("{}: {}", l.pid, code(&l.command)))
            .collect(),
    );
    section(
        &mut text,
        "Notes",
        result.notes.iter().map(|note| plain(note)).collect(),
    );
    next(result, &mut text);
    text
}

fn environment(facts: &EnvironmentFacts) -> String {
    let image = facts.image.as_deref().unwrap_or("the host's own toolchain");
    let setup = facts
        .setup_key
        .iter()
        .map(|key| format!("setup {}", &key[..12]));
    let caches = facts.caches.iter().map(|cache| {
        let number = cache.generation.unwrap_or(0);
        format!("{} cache {number}", cache.kind.row().name)
    });
    // HOSTILE: programs of a setup say what they like.
    let tools = facts.tools.iter().map(|(name, version)| {
        if version.contains(name.as_str()) {
            code(version).to_string()
        } else {
            code(format!("{name} {version}")).to_string()
        }
    });
    let parts = std::iter::once(image.to_owned()).chain(setup).chain(caches);
    parts.chain(tools).collect::<Vec<_>>().join(", ")
}

fn head(result: &RunResult, text: &mut String) {
    let _ = writeln!(text, "# Run {}\n", result.run);
    if let Some(name) = &result.name {
        let _ = writeln!(text, "- name: {}", code(name));
    }
    let _ = writeln!(text, "- asked: {}", words(&result.argv));
    let _ = writeln!(text, "- folder: {}", code(&result.folder));
    let _ = writeln!(
        text,
        "- ended: {}; the command {} after {}",
        result.status.as_str().replace('_', " "),
        ending(result),
        Seconds(result.duration_ms)
    );
    let _ = writeln!(
        text,
        "- changed: {}, +{} −{} lines",
        count(result.changed_files.len() as u64, "file"),
        result.insertions,
        result.deletions
    );
    let _ = writeln!(text, "- flags: {}", tally(&result.flags));
    if !result.environment.is_plain() {
        let _ = writeln!(text, "- environment: {}", environment(&result.environment));
    }
    let seen = &result.observed;
    if seen.execs > 0 {
        let _ = writeln!(
            text,
            "- observed: {}, {} of them failed; {}; {}",
            count(seen.execs, "exec"),
            seen.failed,
            count(seen.writes, "write"),
            count(seen.denials, "denial"),
        );
    }
    let network = &seen.network;
    if network.passed + network.denied > 0 {
        let _ = writeln!(
            text,
            "- network: {} let through, {} denied; {} sent, {} received",
            network.passed,
            network.denied,
            HumanBytes(network.sent_bytes),
            HumanBytes(network.received_bytes),
        );
    }
    if let Some(evidence) = result.evidence.as_ref().filter(|e| !e.complete) {
        let _ = writeln!(
            text,
            "- **the evidence is incomplete**: {}",
            incomplete(evidence).join("; ")
        );
    }
    let _ = writeln!(
        text,
        "- before the start, {} things that must fail were tried from inside, and failed",
        result.probes
    );
}

fn incomplete(evidence: &Attribution) -> Vec<String> {
    let mut why = Vec::new();
    if evidence.unexplained_count > 0 {
        let paths = count(evidence.unexplained_count, "changed path");
        why.push(format!("no write was observed that explains {paths}"));
    }
    if evidence.unplaced_count > 0 {
        let writes = count(evidence.unplaced_count, "write");
        why.push(format!("where {writes} went cannot be told"));
    }
    why
}

fn unexplained(result: &RunResult) -> Vec<String> {
    let paths = result.evidence.iter().flat_map(|e| &e.unexplained);
    paths.map(code).collect()
}

/// How it ended, with what the guest said of a program that could not be started.
fn ending(result: &RunResult) -> String {
    match &result.not_started {
        Some(why) => format!("was not started: {}", code(why)),
        None => result.ending(),
    }
}

/// `2 serious, 1 warning`.
fn tally(flags: &[Flag]) -> String {
    let of = |severity| {
        flags
            .iter()
            .filter(|flag| flag.severity == severity)
            .count() as u64
    };
    let mut parts = Vec::new();
    if of(Severity::Serious) > 0 {
        parts.push(format!("**{} serious**", of(Severity::Serious)));
    }
    if of(Severity::Warning) > 0 {
        parts.push(count(of(Severity::Warning), "warning"));
    }
    if of(Severity::Info) > 0 {
        parts.push(format!("{} to know", of(Severity::Info)));
    }
    if parts.is_empty() {
        return "none".to_owned();
    }
    parts.join(", ")
}

fn flags(flags: &[Flag], text: &mut String) {
    let (runs, others): (Vec<&Flag>, Vec<&Flag>) = flags
        .iter()
        .partition(|flag| flag.kind == FlagKind::RunsOnReview && flag.severity > Severity::Info);
    for (title, flags, few) in [
        ("Flags", others, FEW),
        ("Will run on your machine", runs, LISTED),
    ] {
        if flags.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n## {title}\n");
        for flag in flags {
            let (severity, kind) = (flag.severity.as_str(), flag.kind.as_str());
            let _ = writeln!(text, "- **{severity}** `{kind}`: {}", flag.message);
            for evidence in flag.evidence.iter().take(few) {
                let _ = writeln!(text, "  - {}", rests_on(evidence));
            }
            let more = flag.evidence.len().saturating_sub(few) as u64 + flag.more;
            if more > 0 {
                let _ = writeln!(text, "  - … and {more} more");
            }
        }
    }
}

/// Who was asked, and what was denied.
fn network(result: &RunResult) -> Vec<String> {
    let seen = &result.observed.network;
    let asked = seen.most_asked.iter();
    let asked = asked.map(|asked| format!("{} × {}", asked.count, code(&asked.host)));
    let denied = seen.most_denied.iter().map(|denied| {
        let allow = match &denied.allow {
            Some(line) => format!("; {} would allow it", code(line)),
            None => String::new(),
        };
        let (host, reason) = (code(&denied.host), denied.reason.as_str());
        format!("denied: {} × {host}, by {reason}{allow}", denied.count)
    });
    asked.chain(denied).collect()
}

/// One piece of evidence in one line.
fn rests_on(evidence: &Evidence) -> String {
    let with = |text: String, detail: &Option<String>| match detail {
        Some(detail) => format!("{text}, {}", plain(detail)),
        None => text,
    };
    match evidence {
        Evidence::Exec { exec, argv, detail } => {
            with(format!("exec {exec}: {}", words(argv)), detail)
        }
        Evidence::Path { path, detail } => with(code(path), detail),
        Evidence::Check { command, detail } => format!("{}: {detail}", code(command)),
        Evidence::Line {
            path,
            line,
            patch_line,
            detail,
        } => with(
            format!(
                "{}, line {line} (line {patch_line} of the patch)",
                code(path)
            ),
            detail,
        ),
        Evidence::Claim { field, value } => match value {
            Some(value) => format!("claim, `{field}`: {}", code(value)),
            None => format!("claim, `{field}`"),
        },
        Evidence::Network {
            host,
            port,
            method,
            path,
            times,
            detail,
        } => {
            let method = method.as_deref().map(|method| format!("{method} "));
            let port = match port {
                0 => String::new(),
                port => format!(":{port}"),
            };
            let path = path.as_ref().map(ByteText::to_text).unwrap_or_default();
            let asked = format!(
                "{}{}{port}{path}",
                method.unwrap_or_default(),
                host.to_text()
            );
            with(format!("{} × {}", times, code(&asked)), detail)
        }
    }
}

/// What the agent says next to what was seen.
fn claimed(result: &RunResult, text: &mut String) {
    let Some(claim) = &result.claimed else {
        return;
    };
    let _ = writeln!(text, "\n## What the agent says, and what was seen\n");
    if let Some(status) = claim.status {
        let _ = writeln!(
            text,
            "- says it ended with {}; the command {}",
            status.as_str(),
            ending(result)
        );
    }
    tests_claimed(claim, &result.observed.tests, text);
    if let Some(files) = &claim.changed_files {
        let _ = writeln!(
            text,
            "- says it changed {}; {} changed",
            count(files.len() as u64, "file"),
            result.changed_files.len()
        );
    }
    if let Some(commands) = &claim.commands {
        let _ = writeln!(
            text,
            "- says it ran {}; {} seen",
            count(commands.len() as u64, "command"),
            count(result.observed.execs, "exec")
        );
    }
    for (title, words) in [("summary", &claim.summary), ("notes", &claim.notes)] {
        let Some(words) = words else { continue };
        let _ = writeln!(text, "- its {title}:");
        let mut lines = words.lines().filter(|line| !line.trim().is_empty());
        for line in lines.by_ref().take(FEW) {
            let _ = writeln!(text, "  - {}", code(line));
        }
        let more = lines.count();
        if more > 0 {
            let _ = writeln!(text, "  - … and {more} more lines");
        }
    }
}

fn tests_claimed(claim: &Claim, seen: &[TestSeen], text: &mut String) {
    let Some(tests) = &claim.tests else { return };
    let status = tests.status.map_or("nothing", |status| status.as_str());
    let mut says = format!("- says of tests: {status}");
    for (number, word) in [(tests.passed, "passed"), (tests.failed, "failed")] {
        if let Some(number) = number {
            let _ = write!(says, ", {number} {word}");
        }
    }
    if let Some(command) = &tests.command {
        let _ = write!(says, ", by {}", code(command));
    }
    let last = match seen.last() {
        None => "no test command was seen".to_owned(),
        Some(test) => format!("the last one seen {}", in_words(test)),
    };
    let _ = writeln!(text, "{says}; {last}");
}

fn test(test: &TestSeen) -> String {
    let time = test.duration_ms.map(|ms| format!(" after {}", Seconds(ms)));
    format!(
        "exec {}: {} {}{}",
        test.exec,
        words(&test.argv),
        in_words(test),
        time.unwrap_or_default()
    )
}

fn in_words(test: &TestSeen) -> String {
    match (test.result, test.code, test.signal) {
        (TestResult::Passed, ..) => "passed".to_owned(),
        (_, Some(code), _) => format!("**failed** with {code}"),
        (_, _, Some(signal)) => format!("**died** by signal {signal}"),
        _ => "did not end, or nobody saw how".to_owned(),
    }
}

fn changes(result: &RunResult) -> Vec<String> {
    let lines = |at: usize| match result.line_counts.get(at) {
        Some((0, 0)) | None => String::new(),
        Some((added, removed)) => format!(" (+{added} −{removed})"),
    };
    result
        .changes
        .iter()
        .enumerate()
        .map(|(at, change)| format!("{}{}", change_line(change), lines(at)))
        .collect()
}

/// One change in one line.
fn change_line(change: &Change) -> String {
    let path = code(&change.path);
    let binary = if change.binary { ", binary" } else { "" };
    match &change.kind {
        ChangeKind::Added => format!("added {path}{binary}"),
        ChangeKind::Modified => format!("modified {path}{binary}"),
        ChangeKind::Deleted => format!("deleted {path}{binary}"),
        ChangeKind::Renamed { from } => format!("renamed {} to {path}{binary}", code(from)),
    }
}

/// Which commands show more.
fn next(result: &RunResult, text: &mut String) {
    let run = result.run;
    let _ = writeln!(text, "\n## Where to look next\n");
    for (command, shows) in [
        (format!("ringfence review {run}"), "the patch, and decide"),
        (
            format!("ringfence apply {run}"),
            "puts it into the folder, all of it or nothing",
        ),
        (format!("ringfence logs {run}"), "what the command printed"),
        (
            format!("ringfence show {run} --json"),
            "everything on this page, whole",
        ),
        (format!("ringfence audit {run}"), "every program that ran"),
    ] {
        let _ = writeln!(text, "- `{command}`: {shows}");
    }
    if result.observed.network.denied > 0 {
        let _ = writeln!(
            text,
            "- `ringfence denials {run}`: what was denied, and the rules that would allow it"
        );
    }
}

fn section(text: &mut String, title: &str, lines: Vec<String>) {
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n## {title}\n");
    let count = lines.len();
    for line in lines.into_iter().take(LISTED) {
        let _ = writeln!(text, "- {line}");
    }
    if count > LISTED {
        let _ = writeln!(text, "- … and {} more", count - LISTED);
    }
}

fn words(argv: &[ByteText]) -> String {
    let words: Vec<String> = argv.iter().map(ByteText::to_text).collect();
    code(words.join(" "))
}

/// Words as they are where they are nothing but words, else a code span.
fn plain(text: &str) -> String {
    let harmless = |c: char| c.is_ascii_alphanumeric() || " ,+".contains(c);
    if text.chars().all(harmless) && text.len() < WIDTH {
        text.to_owned()
    } else {
        code(text)
    }
}

/// A code span that holds a text and nothing but it, on one line.
fn code(text: impl Display) -> String {
    let mut inner = String::new();
    for (at, c) in text.to_string().chars().enumerate() {
        if at == WIDTH {
            inner.push('…');
            break;
        }
        if c.is_control() || hides(c) {
            inner.extend(c.escape_unicode());
        } else {
            inner.push(c);
        }
    }
    let longest = inner
        .split(|c| c != '`')
        .map(str::len)
        .max()
        .unwrap_or_default();
    let fence = "`".repeat(longest + 1);
    // A space on both sides is taken off again by the reader; one is needed beside a backtick, and
    // where there is nothing else.
    let room = inner.is_empty() || longest > 0 || inner.starts_with(' ') || inner.ends_with(' ');
    let room = if room { " " } else { "" };
    format!("{fence}{room}{inner}{room}{fence}")
}

fn count(number: u64, word: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {word}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_text_stays_in_its_span() {
        for (text, expected) in [
            ("plain", "`plain`"),
            ("a`b", "`` a`b ``"),
            ("```", "```` ``` ````"),
            ("x\n# Forged", "`x\\u{a}# Forged`"),
            ("\u{202e}x", "`\\u{202e}x`"),
            ("", "`  `"),
            (" ", "`   `"),
            ("![a](b)<img>", "`![a](b)<img>`"),
        ] {
            assert_eq!(code(text), expected);
        }
        assert!(code("x".repeat(1000)).chars().count() < WIDTH + 5);
    }

    /// The page of a run that has something of everything. To write it anew, run this test with
    /// `RINGFENCE_BLESS=1`.
    #[test]
    fn r28_the_page_is_what_it_was() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        let json = fs_err(std::fs::read_to_string(path.join("result.json")));
        let result: RunResult = serde_json::from_str(&json).unwrap();
        let page = write(&result);
        if std::env::var_os("RINGFENCE_BLESS").is_some() {
            fs_err(std::fs::write(path.join("summary.md"), &page));
        }
        let golden = fs_err(std::fs::read_to_string(path.join("summary.md")));
        assert_eq!(page, golden);
        // Nothing that the agent chose begins a heading, whatever it holds.
        let headings: Vec<&str> = page.lines().filter(|line| line.starts_with('#')).collect();
        assert!(
            headings.iter().all(|line| !line.contains("Forged")),
            "{headings:?}"
        );
    }

    fn fs_err<T>(result: std::io::Result<T>) -> T {
        result.expect("the golden files are there")
    }
}
