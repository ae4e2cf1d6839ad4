//! `list`: what is in a directory, and in those within it.

use std::os::unix::fs::MetadataExt as _;

use ringfence_model::tools::{
    ListAnswer, ListRequest, MAX_DEPTH, MAX_ENTRIES, ToolEntry, ToolEntryKind,
};

use crate::failure::{Outcome, invalid};
use crate::measure::{Fit, Room};
use crate::place::{Last, Parents, Root};
use crate::walk::walk;

#[allow(
    clippy::needless_pass_by_value,
    reason = "each tool takes its request by value: some use it up"
)]
pub fn list(root: &Root, request: ListRequest) -> Outcome<ListAnswer> {
    let depth = request.depth.unwrap_or(1);
    if depth == 0 || depth > MAX_DEPTH {
        return Err(invalid(format!(
            "a depth of {depth} is not between 1 and {MAX_DEPTH}"
        )));
    }
    let place = root.find(&request.path, Last::Follow, Parents::Existing)?;
    if !rustix::fs::FileType::from_raw_mode(place.must_stat()?.st_mode).is_dir() {
        return Err(invalid(format!("`{}` is not a directory", place.shown())));
    }
    let mut answer = ListAnswer::default();
    let mut room = Room::new();
    let start = root.full(&place);
    let (mut walk, odd) = walk(root, &start, request.hidden.into(), request.ignored)?;
    walk.max_depth(Some(depth as usize));
    // What cannot be read, or is gone meanwhile, is left out.
    for found in walk.build().flatten().filter(|found| found.depth() > 0) {
        let Ok(metadata) = found.path().symlink_metadata() else {
            continue;
        };
        let kind = match metadata.file_type() {
            kind if kind.is_file() => ToolEntryKind::File,
            kind if kind.is_dir() => ToolEntryKind::Directory,
            kind if kind.is_symlink() => ToolEntryKind::Link,
            _ => ToolEntryKind::Other,
        };
        let entry = ToolEntry {
            path: root.relative(found.path()),
            kind,
            size: metadata.size(),
            mode: metadata.mode() & 0o7777,
            modified_seconds: metadata.mtime(),
            target: None,
        };
        if answer.entries.len() == MAX_ENTRIES || room.take(&entry) == Fit::Full {
            answer.truncated = true;
            break;
        }
        answer.entries.push(entry);
    }
    odd.check(root)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use ringfence_model::tools::FailureKind;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::Bench;

    fn paths(bench: &Bench, request: Value) -> Vec<String> {
        let answer = bench.call(list, request).unwrap();
        let paths = answer.entries.iter().map(|entry| entry.path.to_text());
        paths.collect()
    }

    #[test]
    fn names_come_in_order_to_the_depth_asked_for() {
        let bench = Bench::new();
        for name in ["b/c/d", "a.txt", ".hidden", "target/x", ".git/HEAD", "a\nb"] {
            bench.file(name, "");
        }
        bench.file(".gitignore", "target\n");
        symlink("/etc", bench.path("etc")).unwrap();
        assert_eq!(
            paths(&bench, json!({})),
            [
                ".git",
                ".gitignore",
                ".hidden",
                "\"a\\nb\"",
                "a.txt",
                "b",
                "etc",
                "target"
            ]
        );
        let request = json!({"path": ".", "depth": 3, "hidden": false, "ignored": "skip"});
        assert_eq!(
            paths(&bench, request),
            ["\"a\\nb\"", "a.txt", "b", "b/c", "b/c/d", "etc"]
        );
        assert_eq!(paths(&bench, json!({"path": "b/c"})), ["b/c/d"]);
        for (request, kind) in [
            (json!({"path": "a.txt"}), FailureKind::Invalid),
            (json!({"path": "etc"}), FailureKind::Denied),
            (json!({"path": "no"}), FailureKind::NotFound),
            (json!({"path": ".", "depth": 33}), FailureKind::Invalid),
        ] {
            assert_eq!(bench.call(list, request).unwrap_err().kind, kind);
        }
    }

    #[test]
    fn a_listing_has_a_bound() {
        let bench = Bench::new();
        for number in 0..=MAX_ENTRIES {
            fs::write(bench.path(&format!("{number:05}")), "").unwrap();
        }
        let answer = bench.call(list, json!({"path": "."})).unwrap();
        assert_eq!(answer.entries.len(), MAX_ENTRIES);
        assert!(answer.truncated);
    }

    #[test]
    fn long_names_end_a_listing_before_its_answer_is_over_its_bound() {
        let bench = Bench::new();
        for number in 0..5_000 {
            let name = format!("{number:04}{}", "\u{1}".repeat(250));
            fs::write(bench.path(&name), "").unwrap();
        }
        let answer = bench.call(list, json!({"path": "."})).unwrap();
        assert!(answer.truncated);
        assert!(serde_json::to_vec(&answer).unwrap().len() < ringfence_model::tools::MAX_RESPONSE);
    }
}
