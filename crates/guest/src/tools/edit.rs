//! `edit`: exact text replaced by other text.
//!
//! `old` must be there exactly once, unless the caller says `all` or how often. Where it is not
//! there, the failure says what nearly matches: usually white space was remembered wrongly.

use std::collections::HashMap;

use memchr::memmem;
use ringfence_model::tools::{Edit, EditAnswer, EditRequest, MAX_LINES_GIVEN};

use crate::content::{self, Executable, Existing, MAX_EDITED, Staged};
use crate::failure::{Failure, Hint as _, Outcome, conflict, invalid, not_found, too_large};
use crate::place::{Last, Parents, Root};

/// BOUND: places that a failure names.
const NAMED: usize = 5;
/// BOUND: lines compared when looking for what nearly matches; beyond, nothing is said.
const MAX_COMPARED: usize = 100_000_000;

pub fn edit(root: &Root, request: EditRequest) -> Outcome<EditAnswer> {
    let path = request.path.clone();
    let edits = edits(request)?;
    let place = root.find(&path, Last::Follow, Parents::Existing)?;
    place.must_stat()?;
    let mode = content::replaceable(&place)?;
    let mut content = content::read_whole(&place)?;
    let mut replaced = 0;
    let mut lines = Vec::new();
    for (index, edit) in edits.iter().enumerate() {
        let about = match edits.len() {
            1 => format!("`old` in `{}`", place.shown()),
            _ => format!("`old` of edit {} in `{}`", index + 1, place.shown()),
        };
        let found = find_all(&content, edit.old.as_bytes());
        check_count(&content, edit, &found, &about)?;
        replaced += found.len();
        let room = MAX_LINES_GIVEN.saturating_sub(lines.len());
        lines.extend(line_numbers(&content, &found).take(room));
        content = replace(&content, edit, &found)?;
    }
    Staged::new(&place, &content, mode, Executable::Keep)?.publish(Existing::Replace)?;
    Ok(EditAnswer {
        path: place.shown(),
        replaced,
        lines,
    })
}

/// The edits that were meant, from either way to say them.
fn edits(request: EditRequest) -> Outcome<Vec<Edit>> {
    let EditRequest {
        all, expect, edits, ..
    } = request;
    let edits = match (request.old, request.new) {
        (Some(old), Some(new)) if edits.is_empty() => vec![Edit {
            old,
            new,
            all,
            expect,
        }],
        (None, None) if !edits.is_empty() && !all && expect.is_none() => edits,
        _ => {
            return Err(invalid(
                "needs either `old` and `new`, or `edits`".to_owned(),
            ));
        }
    };
    for edit in &edits {
        if edit.old.is_empty() {
            return Err(invalid("`old` is empty".to_owned()).hint("use `write` for a whole file"));
        }
        if edit.old == edit.new {
            return Err(invalid("`old` and `new` are the same".to_owned()));
        }
    }
    Ok(edits)
}

/// Where `old` begins, each time; matches do not overlap.
fn find_all(content: &[u8], old: &[u8]) -> Vec<usize> {
    memmem::find_iter(content, old).collect()
}

fn check_count(content: &[u8], edit: &Edit, found: &[usize], about: &str) -> Outcome<()> {
    let count = found.len();
    if count == 0 {
        return Err(nothing_found(content, &edit.old, about));
    }
    match edit.expect {
        Some(expect) if expect == count => Ok(()),
        None if count == 1 || edit.all => Ok(()),
        expect => {
            let lines = numbers(line_numbers(content, found));
            let message = match expect {
                Some(expect) => format!("{about} is there {count} times, not {expect}: {lines}"),
                None => format!("{about} is there {count} times: {lines}"),
            };
            Err(conflict(message).hint("give more of the text around it, or `all`"))
        }
    }
}

/// The lines on which these positions lie, counted from 1.
fn line_numbers<'a>(content: &'a [u8], found: &'a [usize]) -> impl Iterator<Item = u64> + 'a {
    let mut line = 1;
    let mut counted = 0;
    found.iter().map(move |position| {
        line += memchr::memchr_iter(b'\n', &content[counted..*position]).count() as u64;
        counted = *position;
        line
    })
}

/// `line 3` or `lines 3, 9, …`.
fn numbers(mut lines: impl Iterator<Item = u64>) -> String {
    let named: Vec<String> = lines
        .by_ref()
        .take(NAMED)
        .map(|line| line.to_string())
        .collect();
    let more = if lines.next().is_some() { ", …" } else { "" };
    let noun = if named.len() == 1 { "line" } else { "lines" };
    format!("{noun} {}{more}", named.join(", "))
}

fn replace(content: &[u8], edit: &Edit, found: &[usize]) -> Outcome<Vec<u8>> {
    let (old, new) = (edit.old.as_bytes(), edit.new.as_bytes());
    let size = (content.len() - found.len() * old.len())
        .saturating_add(found.len().saturating_mul(new.len()));
    if size as u64 > MAX_EDITED {
        return Err(too_large(format!(
            "the file would be over the bound of {MAX_EDITED} bytes"
        )));
    }
    let mut replaced = Vec::with_capacity(size);
    let mut taken = 0;
    for position in found {
        replaced.extend(&content[taken..*position]);
        replaced.extend(new);
        taken = position + old.len();
    }
    replaced.extend(&content[taken..]);
    Ok(replaced)
}

/// Says what is there instead.
fn nothing_found(content: &[u8], old: &str, about: &str) -> Failure {
    let there: Vec<Vec<u8>> = lines_of(content);
    let wanted = lines_of(old.as_bytes());
    if wanted.iter().all(Vec::is_empty) || there.len().saturating_mul(wanted.len()) > MAX_COMPARED {
        return not_found(format!("{about} is not there"));
    }
    let near: Vec<u64> = (1..)
        .zip(there.windows(wanted.len()))
        .filter(|(_, window)| *window == wanted)
        .map(|(line, _)| line)
        .collect();
    if !near.is_empty() {
        let count = near.len();
        let lines = numbers(near.into_iter());
        let what = if content.contains(&b'\r') && !old.contains('\r') {
            "the file has lines that end in CR LF"
        } else {
            "read these lines again and copy them exactly"
        };
        return not_found(format!(
            "{about} is not there; {count} nearly match, with other white space: {lines}"
        ))
        .hint(what);
    }
    let mut first_at: HashMap<&[u8], u64> = HashMap::new();
    for (line, text) in (1..).zip(&there) {
        first_at.entry(text).or_insert(line);
    }
    let asked = wanted.iter().filter(|line| !line.is_empty());
    let total = asked.clone().count();
    let at: Vec<u64> = asked
        .filter_map(|line| first_at.get(line.as_slice()).copied())
        .collect();
    if at.is_empty() {
        return not_found(format!("{about} is not there, nor any of its lines"));
    }
    not_found(format!(
        "{about} is not there; {} of its {total} lines are, at {}",
        at.len(),
        numbers(at.into_iter())
    ))
    .hint("read these lines again: the file may have changed")
}

/// Lines with their white space brought to one form.
fn lines_of(text: &[u8]) -> Vec<Vec<u8>> {
    text.trim_ascii()
        .split(|byte| *byte == b'\n')
        .map(|line| {
            line.split(u8::is_ascii_whitespace)
                .filter(|word| !word.is_empty())
                .collect::<Vec<_>>()
                .join(&b' ')
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use ringfence_model::tools::FailureKind;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::Bench;

    fn failure(bench: &Bench, request: Value) -> (FailureKind, String) {
        let failure = bench.call(edit, request).unwrap_err();
        (failure.kind, failure.message)
    }

    #[test]
    fn one_match_is_replaced() {
        let bench = Bench::new();
        bench.file("f", "one\r\ntwo\nthree");
        let answer = bench
            .call(edit, json!({"path": "f", "old": "two\nth", "new": "2\n"}))
            .unwrap();
        assert_eq!((answer.replaced, answer.lines), (1, vec![2]));
        assert_eq!(bench.content("f"), "one\r\n2\nree");
        assert_eq!(bench.names("."), ["f"]);
    }

    #[test]
    fn several_matches_need_a_word_of_consent() {
        let bench = Bench::new();
        bench.file("f", "x\ny\nx x\n");
        let (kind, message) = failure(&bench, json!({"path": "f", "old": "x", "new": "z"}));
        assert_eq!(kind, FailureKind::Conflict);
        assert!(message.ends_with("3 times: lines 1, 3, 3"), "{message}");
        let request = json!({"path": "f", "old": "x", "new": "z", "expect": 2});
        assert_eq!(failure(&bench, request).0, FailureKind::Conflict);
        let request = json!({"path": "f", "old": "x", "new": "z", "expect": 3});
        assert_eq!(bench.call(edit, request).unwrap().lines, [1, 3, 3]);
        let request = json!({"path": "f", "old": "z", "new": "zz", "all": true});
        bench.call(edit, request).unwrap();
        assert_eq!(bench.content("f"), "zz\ny\nzz zz\n");
    }

    #[test]
    fn edits_are_done_in_order_all_or_none() {
        let bench = Bench::new();
        bench.file("f", "a b c");
        let good = json!([{"old": "a", "new": "b"}, {"old": "b b", "new": "d"}]);
        let answer = bench
            .call(edit, json!({"path": "f", "edits": good}))
            .unwrap();
        assert_eq!(answer.replaced, 2);
        assert_eq!(bench.content("f"), "d c");
        let bad = json!([{"old": "d", "new": "e"}, {"old": "q", "new": ""}]);
        let (kind, message) = failure(&bench, json!({"path": "f", "edits": bad}));
        assert_eq!(kind, FailureKind::NotFound);
        assert!(message.contains("edit 2"), "{message}");
        assert_eq!(bench.content("f"), "d c");
    }

    #[test]
    fn a_miss_says_what_nearly_matches() {
        let bench = Bench::new();
        bench.file("f", "fn a() {\r\n\tb();\r\n}\r\nlast\r\n");
        for (old, expected) in [
            (
                "fn a() {\n    b();\n}",
                "1 nearly match, with other white space: line 1",
            ),
            ("gone\nlast\nnever", "1 of its 3 lines are, at line 4"),
            ("nothing", "nor any of its lines"),
        ] {
            let (kind, message) = failure(&bench, json!({"path": "f", "old": old, "new": ""}));
            assert_eq!(kind, FailureKind::NotFound);
            assert!(message.ends_with(expected), "{message}");
        }
    }

    #[test]
    fn odd_requests_and_files_are_refused() {
        let bench = Bench::new();
        bench.file("f", "x");
        for request in [
            json!({"path": "f"}),
            json!({"path": "f", "old": "", "new": "y"}),
            json!({"path": "f", "old": "x", "new": "x"}),
            json!({"path": "f", "old": "x"}),
            json!({"path": ".", "old": "x", "new": "y"}),
        ] {
            assert_eq!(failure(&bench, request).0, FailureKind::Invalid);
        }
        let nowhere = json!({"path": "n", "old": "x", "new": "y"});
        assert_eq!(failure(&bench, nowhere).0, FailureKind::NotFound);
        std::fs::File::create(bench.path("huge"))
            .unwrap()
            .set_len(MAX_EDITED + 1)
            .unwrap();
        let huge = json!({"path": "huge", "old": "x", "new": "y"});
        assert_eq!(failure(&bench, huge).0, FailureKind::TooLarge);
        bench.file("bomb", vec![b'x'; 1 << 20]);
        let bomb = json!({"path": "bomb", "old": "x", "new": "y".repeat(1000), "all": true});
        assert_eq!(failure(&bench, bomb).0, FailureKind::TooLarge);
    }

    #[test]
    fn what_is_not_text_stays_as_it_is() {
        let bench = Bench::new();
        bench.file("f", b"\xff old \0");
        bench
            .call(edit, json!({"path": "f", "old": "old", "new": "new"}))
            .unwrap();
        assert_eq!(std::fs::read(bench.path("f")).unwrap(), b"\xff new \0");
    }
}
