//! `cargo test`, and `cargo nextest`.

use super::{Tally, Text, counted, number};

/// `test result: ok. 3 passed; 0 failed; 1 ignored; …`, once for each test program.
pub(super) fn cargo(text: &Text<'_>) -> Option<Tally> {
    let mut tally = Tally::default();
    for (at, line) in text.lines.iter().enumerate() {
        if let Some(name) = line.strip_prefix("test ") {
            if let Some(name) = name.strip_suffix(" ... FAILED") {
                tally.name(name);
            }
            let Some(rest) = name.strip_prefix("result: ") else {
                continue;
            };
            let Some((_, counts)) = rest.split_once(". ") else {
                continue;
            };
            let mut parts = counts.split("; ").map_while(counted);
            let mut take = |word| parts.next().filter(|(_, own)| *own == word);
            let found = (take("passed"), take("failed"), take("ignored"));
            if let (Some((passed, _)), Some((failed, _)), Some((ignored, _))) = found {
                tally.add(at, passed, failed, ignored);
            }
        }
    }
    tally.found()
}

/// `Summary [   0.010s] 3 tests run: 2 passed, 1 failed, 1 skipped`.
pub(super) fn nextest(text: &Text<'_>) -> Option<Tally> {
    let mut tally = Tally::default();
    for (at, line) in text.lines.iter().enumerate() {
        let line = line.trim_start();
        let failing = ["FAIL [", "TIMEOUT [", "SIGABRT [", "SIGSEGV ["];
        if let Some(rest) = failing.iter().find_map(|word| line.strip_prefix(word)) {
            let name = rest.split_once("] ").map_or("", |(_, name)| name.trim());
            // `(1/3) ` before it, in later versions.
            let counted = name.starts_with('(').then(|| name.split_once(") "));
            tally.name(counted.flatten().map_or(name, |(_, name)| name));
        }
        let Some(rest) = line.strip_prefix("Summary [") else {
            continue;
        };
        let Some((_, rest)) = rest.split_once("] ") else {
            continue;
        };
        let Some((run, counts)) = rest.split_once(" run: ") else {
            continue;
        };
        // `2/3 tests` where it stopped early.
        let known = run.strip_suffix(" tests").or(run.strip_suffix(" test"));
        let is_number = |text: &str| text.split('/').all(|part| number(part).is_some());
        if !known.is_some_and(is_number) {
            continue;
        }
        let (mut passed, mut failed, mut skipped) = (0, 0, 0);
        for part in counts.split(", ") {
            match counted(part) {
                Some((count, word)) if word.starts_with("passed") => passed += count,
                Some((count, word)) if word.starts_with("skipped") => skipped += count,
                Some((count, word)) if word.starts_with("failed") => failed += count,
                Some((count, "timed out" | "exec failed")) => failed += count,
                _ => {}
            }
        }
        tally.add(at, passed, failed, skipped);
    }
    tally.found()
}
