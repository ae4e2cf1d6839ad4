//! `pytest`, and `python -m unittest`.

use super::{Tally, Text, counted, number};

/// `=== 1 failed, 2 passed, 1 skipped in 0.02s ===`, with `-q` without its frame.
pub(super) fn pytest(text: &Text<'_>) -> Option<Tally> {
    let mut tally = Tally::default();
    for (at, line) in text.lines.iter().enumerate() {
        for word in ["FAILED ", "ERROR "] {
            if let Some(rest) = line.strip_prefix(word) {
                let name = rest.split(" - ").next().unwrap_or(rest);
                // A path, so that a line of a log is not taken for one.
                if name.contains("::") || name.ends_with(".py") {
                    tally.name(name);
                }
            }
        }
        let inner = line.trim_matches(['=', ' ']);
        let Some((counts, time)) = inner.rsplit_once(" in ") else {
            continue;
        };
        let seconds = time.split(' ').next().unwrap_or(time).strip_suffix('s');
        let is_time = |text: &str| text.split('.').all(|part| number(part).is_some());
        if !seconds.is_some_and(is_time) {
            continue;
        }
        if counts == "no tests ran" {
            tally.add(at, 0, 0, 0);
            continue;
        }
        let (mut passed, mut failed, mut skipped) = (0, 0, 0);
        let all = counts.split(", ").all(|part| match counted(part) {
            Some((count, "passed" | "xpassed")) => {
                passed += count;
                true
            }
            Some((count, "failed" | "error" | "errors")) => {
                failed += count;
                true
            }
            Some((count, "skipped" | "xfailed")) => {
                skipped += count;
                true
            }
            Some((_, "deselected" | "warning" | "warnings" | "rerun")) => true,
            _ => false,
        });
        if all {
            tally.add(at, passed, failed, skipped);
        }
    }
    tally.found()
}

/// `Ran 5 tests in 0.001s`, and below it `OK (skipped=1)` or `FAILED (failures=1, errors=1)`.
pub(super) fn unittest(text: &Text<'_>) -> Option<Tally> {
    let mut tally = Tally::default();
    let mut ran = None;
    for (at, line) in text.lines.iter().enumerate() {
        if let Some(name) = line.strip_prefix("FAIL: ").or(line.strip_prefix("ERROR: ")) {
            tally.name(name);
        }
        if let Some(rest) = line.strip_prefix("Ran ") {
            ran = rest
                .split_once(" test")
                .and_then(|(count, _)| number(count))
                .or(ran);
        }
        let end = ["OK", "FAILED", "NO TESTS RAN"]
            .into_iter()
            .find_map(|word| line.strip_prefix(word));
        let (Some(total), Some(rest)) = (ran, end) else {
            continue;
        };
        let rest = rest.trim().trim_start_matches('(').trim_end_matches(')');
        let (mut failed, mut skipped) = (0u64, 0u64);
        let known = rest.is_empty()
            || rest.split(", ").all(|part| {
                let Some((word, count)) = part.split_once('=') else {
                    return false;
                };
                let Some(count) = number(count) else {
                    return false;
                };
                match word {
                    "failures" | "errors" | "unexpected successes" => failed += count,
                    "skipped" | "expected failures" => skipped += count,
                    _ => return false,
                }
                true
            });
        if known {
            let passed = total.saturating_sub(failed).saturating_sub(skipped);
            tally.add(at, passed, failed, skipped);
            ran = None;
        }
    }
    tally.found()
}
