//! Jest, Vitest and Mocha.

use super::{Tally, Text, counted, number};

/// Adds up `1 failed`, `2 passed` and the like; `None` where a part is something else.
fn parts<'a>(parts: impl Iterator<Item = &'a str>) -> Option<(u64, u64, u64)> {
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for part in parts {
        match counted(part)? {
            (count, "passed") => passed += count,
            (count, "failed") => failed += count,
            (count, "skipped" | "todo" | "pending") => skipped += count,
            (_, "total" | "obsolete" | "expected fail") => {}
            _ => return None,
        }
    }
    Some((passed, failed, skipped))
}

/// `Tests:       1 failed, 2 passed, 3 total`.
pub(super) fn jest(text: &Text<'_>) -> Option<Tally> {
    let mut tally = Tally::default();
    for (at, line) in text.lines.iter().enumerate() {
        if let Some(name) = line.strip_prefix("  ● ") {
            tally.name(name);
        }
        let counts = line.strip_prefix("Tests: ").map(str::trim);
        let counts = counts.filter(|counts| counts.ends_with(" total"));
        if let Some((passed, failed, skipped)) = counts.and_then(|c| parts(c.split(", "))) {
            tally.add(at, passed, failed, skipped);
        }
    }
    tally.found()
}

/// `      Tests  1 failed | 2 passed (3)`.
pub(super) fn vitest(text: &Text<'_>) -> Option<Tally> {
    let mut tally = Tally::default();
    for (at, line) in text.lines.iter().enumerate() {
        if let Some(name) = line.trim_start().strip_prefix("× ") {
            // `× name 22ms`.
            let timed = name
                .rsplit_once(' ')
                .filter(|(_, last)| last.ends_with("ms"));
            tally.name(timed.map_or(name, |(name, _)| name));
        }
        let Some(rest) = line.trim_start().strip_prefix("Tests  ") else {
            continue;
        };
        let Some((counts, total)) = rest.rsplit_once(" (") else {
            continue;
        };
        if total
            .trim_end()
            .strip_suffix(')')
            .and_then(number)
            .is_none()
        {
            continue;
        }
        if let Some((passed, failed, skipped)) = parts(counts.split(" | ")) {
            tally.add(at, passed, failed, skipped);
        }
    }
    tally.found()
}

/// `  2 passing (5ms)`, and below it `  1 pending` and `  1 failing`.
pub(super) fn mocha(text: &Text<'_>) -> Option<Tally> {
    let mut tally = Tally::default();
    let mut failures = false;
    let mut waiting: Option<String> = None;
    for (at, line) in text.lines.iter().enumerate() {
        let inner = line.trim();
        match counted(inner) {
            Some((count, word)) if word.starts_with("passing (") => {
                tally.add(at, count, 0, 0);
                failures = false;
                continue;
            }
            Some((count, "failing")) if tally.summaries > 0 => {
                tally.failed = tally.failed.saturating_add(count);
                tally.last = at;
                failures = true;
                continue;
            }
            Some((count, "pending")) if tally.summaries > 0 => {
                tally.skipped = tally.skipped.saturating_add(count);
                tally.last = at;
                continue;
            }
            _ => {}
        }
        // `  1) suite` and, on the lines below it, the name, which ends with a colon.
        let begins = inner.split_once(") ").filter(|(n, _)| number(n).is_some());
        match (begins, waiting.take()) {
            (Some((_, suite)), _) if failures => waiting = Some(suite.to_owned()),
            (None, Some(so_far)) if so_far.len() < super::LINE_BYTES => {
                waiting = Some(format!("{so_far} {inner}"));
            }
            _ => {}
        }
        if let Some(name) = waiting.as_ref().and_then(|name| name.strip_suffix(':')) {
            tally.name(name);
            waiting = None;
        }
    }
    tally.found()
}
