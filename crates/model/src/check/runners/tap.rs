//! TAP, and the summary of `node --test`.

use super::{Tally, Text, number};

/// `ok 1 - name` and `not ok 2 - name # SKIP why`; a line of its own says how many there are.
pub(super) fn tap(text: &Text<'_>) -> Option<Tally> {
    let mut tally = Tally::default();
    let (mut passed, mut failed, mut skipped) = (0u64, 0u64, 0u64);
    let (mut planned, mut last) = (0, 0);
    // What node says itself: it counts tests within tests as well.
    let mut told: [Option<u64>; 4] = [None; 4];
    let mut files = Files::default();
    for (at, line) in text.lines.iter().enumerate() {
        for (slot, word) in ["pass ", "fail ", "skipped ", "todo "].iter().enumerate() {
            let own = line.strip_prefix("# ").or(line.strip_prefix("ℹ "));
            if let Some(count) = own.and_then(|own| number(own.strip_prefix(word)?.trim())) {
                told[slot] = Some(count);
                last = at;
            }
        }
        files.look(line);
        if line.strip_prefix("1..").is_some_and(is_plan) {
            planned += 1;
            last = at;
        }
        if let Some(name) = line.trim_start().strip_prefix("✖ ") {
            // `✖ name (1.2ms)`; the heading of the list has no time.
            if let Some((name, _)) = name.rsplit_once(" (") {
                tally.name(name);
            }
        }
        let (good, rest) = match line.strip_prefix("not ok") {
            Some(rest) => (false, rest),
            None => match line.strip_prefix("ok") {
                Some(rest) => (true, rest),
                None => continue,
            },
        };
        let Some(rest) = rest.strip_prefix(' ') else {
            continue;
        };
        let (count, name) = rest.split_once(' ').unwrap_or((rest, ""));
        if number(count).is_none() {
            continue;
        }
        let directive = name.rsplit_once("# ").map(|(_, word)| word.to_lowercase());
        let is = |word: &str| directive.as_ref().is_some_and(|own| own.starts_with(word));
        if is("skip") || is("todo") {
            skipped += 1;
        } else if good {
            passed += 1;
        } else {
            failed += 1;
            tally.name(name.trim_start_matches("- "));
        }
    }
    match told {
        [Some(passed), Some(failed), told, todo] => {
            let more = told.unwrap_or(skipped).saturating_add(todo.unwrap_or(0));
            tally.add(last, passed.saturating_sub(files.0), failed, more);
        }
        // Without a plan it is something else that begins with `ok`.
        _ if planned > 0 => {
            tally.add(last, passed, failed, skipped);
            tally.summaries = planned;
        }
        _ => {}
    }
    tally.found()
}

/// Files that node tells of as if they were tests: those that ended well and ran none.
///
/// HOSTILE: what is under test can end the program before its first test.
#[derive(Default)]
struct Files(u64, Within);

/// Whether the file that is told of has told of a test.
#[derive(Default, PartialEq, Eq)]
enum Within {
    #[default]
    Nothing,
    Tests,
}

impl Files {
    fn look(&mut self, line: &str) {
        let is_result = |line: &str| line.starts_with("ok ") || line.starts_with("not ok ");
        if line.starts_with("# Subtest: ") {
            self.1 = Within::Nothing;
        } else if line.starts_with(' ') && is_result(line.trim_start()) {
            self.1 = Within::Tests;
        }
        let name = match line.strip_prefix("ok ") {
            Some(rest) => rest.split_once(" - ").map(|(_, name)| name),
            None => line
                .strip_prefix("✔ ")
                .and_then(|rest| rest.rsplit_once(" ("))
                .map(|(name, _)| name),
        };
        let ends = |name: &str| {
            let ends = [".js", ".cjs", ".mjs", ".ts", ".cts", ".mts"];
            ends.iter().any(|end| name.ends_with(end))
        };
        if name.is_some_and(ends) && self.1 == Within::Nothing {
            self.0 += 1;
        }
    }
}

/// `1..3`, or `1..0 # SKIP why`.
fn is_plan(rest: &str) -> bool {
    number(rest.split(' ').next().unwrap_or(rest)).is_some()
}
