//! The rules of attribution as tables. A write is written as `exec verb path…`, a change as its
//! letter and its path, and what comes out as `path: last of all`.

use ringfence_model::attribution::Attribution;
use ringfence_model::changes::{Change, ChangeKind, ChangeSet, FileMode, Side};
use ringfence_model::observed::{Version, Write, Wrote};

use super::*;
use crate::changes::hunks::Comparison;

fn writes(lines: &[&str]) -> Evidence {
    let mut evidence = Evidence::default();
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        let (path, what) = match (words[1], words[2]) {
            ("open", path) => (path, Wrote::Opened),
            ("create", path) => (path, Wrote::Created),
            ("truncate", path) => (path, Wrote::Truncated),
            ("symlink", path) => (path, Wrote::Symlinked),
            ("rm", path) => (path, Wrote::Removed),
            ("chmod", path) => (path, Wrote::Mode),
            ("mknod", path) => (path, Wrote::MadeNode),
            ("somewhere", path) => (path, Wrote::Unplaced),
            ("mv", from) => (words[3], Wrote::Renamed { from: from.into() }),
            ("swap", with) => (words[3], Wrote::Exchanged { with: with.into() }),
            ("ln", to) => (words[3], Wrote::Linked { to: to.into() }),
            ("version", path) => {
                let version = Version {
                    path: path.into(),
                    exec: None,
                    content: words[3].replace('|', "\n").as_str().into(),
                };
                evidence.versions.push((evidence.writes.len(), version));
                continue;
            }
            _ => panic!("{line}"),
        };
        let write = Write {
            exec: words[0].parse().ok().filter(|&exec| exec != 0),
            pid: 7,
            path: path.into(),
            what,
        };
        evidence.writes.push((0, write));
    }
    evidence
}

fn changes(lines: &[&str]) -> ChangeSet {
    let side = |oid: &str, mode| {
        Some(Side {
            mode,
            oid: oid.to_owned(),
            size: 1,
        })
    };
    let (file, link) = (FileMode::Regular, FileMode::Symlink);
    let changes = lines.iter().map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let path = words[words.len() - 1];
        let (kind, old, new) = match words[0] {
            "A" => (ChangeKind::Added, None, side("b", file)),
            "M" => (ChangeKind::Modified, side("a", file), side("b", file)),
            "D" => (ChangeKind::Deleted, side("a", file), None),
            "R" => {
                let from = words[1].into();
                let kind = ChangeKind::Renamed { from };
                (kind, side("a", file), side("b", file))
            }
            "L" => (ChangeKind::Added, None, side("b", link)),
            "X" => {
                let new = side("a", FileMode::Executable);
                (ChangeKind::Modified, side("a", file), new)
            }
            _ => panic!("{line}"),
        };
        Change {
            path: path.into(),
            kind,
            old,
            new,
            binary: false,
        }
    });
    ChangeSet {
        changes: changes.collect(),
        ..ChangeSet::default()
    }
}

fn join(prefix: &str, evidence: &Evidence, set: &ChangeSet) -> Attribution {
    Join::new(prefix.as_bytes(), set, evidence).result
}

#[track_caller]
fn check(lines: &[&str], changed: &[&str], expected: &[&str]) {
    let found = join("", &writes(lines), &changes(changed));
    let said: Vec<String> = found
        .files
        .iter()
        .map(|file| {
            let all: Vec<String> = file.writers.iter().map(u64::to_string).collect();
            let last = file.last_writer.map_or("?".to_owned(), |l| l.to_string());
            let explained = if found.unexplained.contains(&file.path) {
                " unexplained"
            } else {
                ""
            };
            format!("{}: {last} of {}{explained}", file.path, all.join(" "))
        })
        .collect();
    assert_eq!(said, expected, "{lines:?}");
    assert_eq!(found.complete, found.unexplained_count == 0);
    assert_eq!(found.unexplained_count, found.unexplained.len() as u64);
}

#[test]
fn who_opens_makes_truncates_or_links_wrote() {
    check(&["3 open a"], &["M a"], &["a: 3 of 3"]);
    check(&["3 create a"], &["A a"], &["a: 3 of 3"]);
    check(&["3 truncate a"], &["M a"], &["a: 3 of 3"]);
    check(&["3 symlink a"], &["L a"], &["a: 3 of 3"]);
    check(&["3 chmod a"], &["X a"], &["a: 3 of 3"]);
    check(&["3 rm a"], &["D a"], &["a: 3 of 3"]);
    // A regular file can be made as a node.
    check(&["3 mknod a"], &["A a"], &["a: 3 of 3"]);
    check(
        &["1 open a", "2 open a", "1 open a", "3 open b"],
        &["M a", "M b"],
        &["a: 1 of 1 2", "b: 3 of 3"],
    );
    // A write whose exec is not known explains, and names nobody.
    check(&["0 open a"], &["M a"], &["a: ? of "]);
}

#[test]
fn a_write_without_a_place_explains_nothing_and_leaves_a_doubt() {
    let set = changes(&["M a"]);
    let found = join("", &writes(&["3 open a", "4 somewhere a"]), &set);
    assert_eq!((found.complete, found.unplaced_count), (false, 1));
    assert_eq!(found.unexplained_count, 0);
    assert_eq!(found.files[0].writers, [3]);
    let found = join("", &writes(&["4 somewhere a"]), &set);
    assert_eq!(found.unexplained, ["a".into()]);
}

#[test]
fn what_starts_anew_keeps_its_writers() {
    check(
        &["1 create a", "2 rm a", "3 create a"],
        &["A a"],
        &["a: 3 of 1 2 3"],
    );
    check(
        &["1 open a", "2 truncate a", "3 rm a"],
        &["D a"],
        &["a: 3 of 1 2 3"],
    );
    // Tried on what was gone, or refused: what counts is what can have led here.
    check(
        &["1 rm a", "2 open a", "3 chmod a"],
        &["D a"],
        &["a: 1 of 1 2 3"],
    );
    check(&["1 open a", "2 rm a"], &["M a"], &["a: 1 of 1 2"]);
    check(&["1 open a", "2 chmod a"], &["M a"], &["a: 1 of 1 2"]);
}

#[test]
fn a_kind_that_cannot_have_done_it_explains_nothing() {
    for (write, change) in [
        ("1 chmod a", "M a"),
        ("1 open a", "D a"),
        ("1 rm a", "M a"),
        ("1 open a", "L a"),
        ("1 symlink a", "A a"),
        ("1 rm a/b", "D a"),
        ("1 open ab", "M a"),
        ("1 mv a b", "M a"),
        ("1 mv b a", "D a"),
        ("1 ln a b", "D a"),
    ] {
        let found = join("", &writes(&[write]), &changes(&[change]));
        assert!(!found.complete, "{write}, {change}");
        assert_eq!(found.unexplained, ["a".into()], "{write}, {change}");
    }
    check(&[], &["M a"], &["a: ? of  unexplained"]);
}

#[test]
fn a_rename_carries_the_writers() {
    check(&["1 create t", "2 mv t a"], &["A a"], &["a: 2 of 1 2"]);
    check(
        &["1 open a", "2 create t", "3 mv t a"],
        &["M a"],
        &["a: 3 of 1 2 3"],
    );
    check(
        &["1 open a", "2 mv a b", "3 open b"],
        &["R a b"],
        &["b: 3 of 1 2 3"],
    );
    check(
        &["1 open a", "2 mv a b"],
        &["D a", "A b"],
        &["a: 2 of 1 2", "b: 2 of 1 2"],
    );
    // What comes to the old name later is not of the new one.
    check(
        &["1 create a", "2 mv a b", "3 create a"],
        &["A a", "A b"],
        &["a: 3 of 1 2 3", "b: 2 of 1 2"],
    );
    // From and to places outside.
    check(
        &["1 mv /tmp/x a", "2 open b", "3 mv b /tmp/y"],
        &["A a", "D b"],
        &["a: 1 of 1", "b: 3 of 2 3"],
    );
    // The old name of a rename is explained by itself.
    let found = join("", &writes(&["1 create b"]), &changes(&["R a b"]));
    assert_eq!(found.unexplained, ["a".into()]);
    let found = join("", &writes(&["1 create b", "2 rm a"]), &changes(&["R a b"]));
    assert!(found.complete);
}

#[test]
fn a_directory_that_moves_carries_all_below_it() {
    check(
        &["1 create d/x/a", "1 create d/b", "2 mv d e", "3 open e/b"],
        &["A e/b", "A e/x/a"],
        &["e/b: 3 of 1 2 3", "e/x/a: 2 of 1 2"],
    );
    // Files that nobody wrote to go with it.
    check(
        &["2 mv d e"],
        &["R d/a e/a", "D d/b"],
        &["e/a: 2 of 2", "d/b: 2 of 2"],
    );
    check(
        &["1 open d/a", "2 mv d e"],
        &["D d/a", "A e/a"],
        &["d/a: 2 of 1 2", "e/a: 2 of 1 2"],
    );
    // There and back, and on.
    check(
        &["1 create d/a", "2 mv d e", "3 mv e d", "4 mv d/a d/b"],
        &["A d/b"],
        &["d/b: 4 of 1 2 3 4"],
    );
    // What is made there later is nobody's but its maker's.
    check(
        &["1 create d/a", "2 mv d e", "4 create d/a"],
        &["A d/a", "A e/a"],
        &["d/a: 4 of 1 2 4", "e/a: 2 of 1 2"],
    );
    // Removed before: it is not carried.
    check(
        &["1 create d/a", "2 rm d/a", "3 mv d e", "4 create e/a"],
        &["A e/a"],
        &["e/a: 4 of 4"],
    );
    // Into itself, or over what holds it: no kernel does that.
    check(&["1 open d/a", "2 mv d d/e"], &["M d/a"], &["d/a: 1 of 1"]);
    check(&["1 open d/a", "2 mv d/e d"], &["M d/a"], &["d/a: 1 of 1"]);
}

/// Overlays refuse to move a directory of the base; `mv` then copies and removes.
#[test]
fn a_move_that_was_refused_loses_nobody() {
    check(
        &["1 open d/a", "2 mv d e", "2 create e/a", "2 rm d/a"],
        &["D d/a", "A e/a"],
        &["d/a: 2 of 1 2", "e/a: 2 of 1 2"],
    );
    check(&["1 open a", "2 mv a b"], &["M a"], &["a: 1 of 1 2"]);
    check(&["1 open d/a", "2 mv d e"], &["M d/a"], &["d/a: 1 of 1 2"]);
    check(
        &["1 open a", "2 mv a b", "3 open a"],
        &["M a"],
        &["a: 3 of 1 2 3"],
    );
}

#[test]
fn an_exchange_swaps() {
    check(
        &["1 open a", "2 open b", "3 swap a b", "4 open a"],
        &["M a", "M b"],
        &["a: 4 of 1 2 3 4", "b: 3 of 1 2 3"],
    );
    check(
        &["1 create d/x", "2 open e/y", "3 swap d e"],
        &["A d/y", "D e/y", "A e/x"],
        &["d/y: 3 of 2 3", "e/y: 3 of 2 3", "e/x: 3 of 1 3"],
    );
    check(&["3 swap d e"], &["M d/x"], &["d/x: 3 of 3"]);
    check(
        &["1 open d/a", "3 swap d d/e"],
        &["M d/a"],
        &["d/a: 1 of 1"],
    );
}

#[test]
fn a_link_shares_what_is_written_later() {
    check(
        &["1 open a", "2 ln a b", "3 open b"],
        &["M a", "A b"],
        &["a: 3 of 1 2 3", "b: 3 of 1 2 3"],
    );
    check(&["2 ln a b", "3 chmod b"], &["X a"], &["a: 3 of 2 3"]);
    // Only the names that are left of it share.
    check(
        &["1 open a", "2 ln a b", "3 rm b", "4 create b"],
        &["M a", "A b"],
        &["a: 1 of 1 2", "b: 4 of 1 2 3 4"],
    );
    check(
        &["2 ln a b", "3 mv b c", "4 open c", "5 mv t a", "6 open c"],
        &["M a", "A c"],
        &["a: 5 of 2 4 5", "c: 6 of 2 3 4 6"],
    );
    // With the directory that it is in.
    check(
        &["1 open a", "2 ln a d/b", "3 mv d e", "4 open e/b"],
        &["M a", "A e/b"],
        &["a: 4 of 1 2 4", "e/b: 4 of 1 2 3 4"],
    );
    // A file without a name gets one.
    check(&["1 ln /proc/self/fd/3 a"], &["A a"], &["a: 1 of 1"]);
}

#[test]
fn a_type_that_changes_is_explained_by_what_replaced_it() {
    check(
        &["1 symlink t", "2 mv t a"],
        &["D a", "L a"],
        &["a: 2 of 1 2", "a: 2 of 1 2"],
    );
    check(
        &["1 rm a", "3 create a/b"],
        &["D a", "A a/b"],
        &["a: 1 of 1", "a/b: 3 of 3"],
    );
}

#[test]
fn paths_of_a_sub_folder_are_those_of_its_repository() {
    let set = changes(&["M sub/dir/a", "R sub/dir/b sub/dir/d/c"]);
    let found = join("sub/dir", &writes(&["1 open a", "2 mv b d/c"]), &set);
    assert!(found.complete, "{found:?}");
    assert_eq!(found.files[0].path, "sub/dir/a".into());
    assert_eq!(found.files[0].last_writer, Some(1));
    assert_eq!(found.files[1].last_writer, Some(2));
    // The same path from the top is another file.
    let found = join(
        "sub/dir",
        &writes(&["1 open sub/dir/a"]),
        &changes(&["M sub/dir/a"]),
    );
    assert!(!found.complete, "{found:?}");
}

/// Who made the hunks of `a`: the texts have `|` for the ends of their lines.
fn hunks(lines: &[&str], change: &str, old: &str, new: &str) -> String {
    let (evidence, set) = (writes(lines), changes(&[change]));
    let (old, new) = (old.replace('|', "\n"), new.replace('|', "\n"));
    let mut join = Join::new(b"", &set, &evidence);
    let compared = Comparison::new(old.as_bytes(), new.as_bytes(), &mut Effort::default());
    join.compared(0, old.as_bytes(), new.as_bytes(), &compared.hunks);
    let said = join.result.files[0].hunks.iter().map(|hunk| {
        let by: Vec<String> = hunk.by.iter().map(u64::to_string).collect();
        let told = if hunk.told { "" } else { "?" };
        format!("{}{told}", by.join("+"))
    });
    said.collect::<Vec<_>>().join(" ")
}

#[test]
fn hunks_belong_to_who_made_their_lines() {
    let base = "1|2|3|4|5|6|7|8|9|10|11|12|13|14|";
    let one = "one|2|3|4|5|6|7|8|9|10|11|12|13|14|";
    let both = "one|2|3|4|5|6|7|8|9|10|11|12|13|end|";
    let version = format!("0 version a {one}");
    for (lines, change, expected) in [
        // One writer needs no versions, however often it wrote.
        (&["1 open a", "1 open a"][..], "M a", "1 1"),
        (&["1 open a", &version, "2 open a"], "M a", "1 2"),
        // Without versions everybody may have been it.
        (&["1 open a", "2 open a"], "M a", "1+2? 1+2?"),
        // A version before both tells nothing.
        (&[&version, "1 open a", "2 open a"], "M a", "1+2? 1+2?"),
        // The third of three is told, the others are not.
        (
            &["1 open a", "2 open a", &version, "3 open a"],
            "M a",
            "1+2+3? 3",
        ),
        // Who moves wrote no line; who replaces did.
        (&["1 create t", "2 mv t a"], "M a", "1 1"),
        (
            &["1 open a", "2 create t", &version, "3 mv t a"],
            "M a",
            "1 2",
        ),
        // A name that is used again and again for the same purpose.
        (
            &["1 create t", "1 mv t a", "2 create t", &version, "2 mv t a"],
            "M a",
            "1 2",
        ),
        // Nobody wrote what was moved: it came with who moved it.
        (&["2 mv t a"], "M a", "2 2"),
        (&["1 open t", "2 mv t a"], "M a", "1+2? 1+2?"),
        // Under its earlier name.
        (
            &["1 open b", "0 version b x", "2 mv b a", "3 open a"],
            "R b a",
            "1+2+3? 1+2+3?",
        ),
        (
            &["1 open b", "2 mv b a", &version, "3 open a"],
            "R b a",
            "1 3",
        ),
        (&["1 open b", "2 mv b a"], "R b a", "1 1"),
        // Somebody unknown among them.
        (&["1 open a", &version, "0 open a"], "M a", "1 1?"),
        (&["0 open a"], "M a", "? ?"),
    ] {
        let found = hunks(lines, change, base, both);
        assert_eq!(found, expected, "{lines:?} {change}");
    }
    assert_eq!(hunks(&["1 create a", "2 rm a"], "D a", base, ""), "2");
    assert_eq!(
        hunks(&["1 create a", "2 rm a", "3 symlink a"], "L a", "", "to"),
        "3"
    );
    assert_eq!(hunks(&["2 mv d e"], "A e/a", "", "x|"), "2");
    // A new file that two wrote.
    let version = "0 version a x|";
    let found = hunks(&["1 create a", version, "2 open a"], "A a", "", "x|y|");
    assert_eq!(found, "1+2");
    // A file of the base that was linked, and written under its other name.
    let lines = ["2 ln b a", "0 version a x|", "1 open a"];
    assert_eq!(hunks(&lines, "A a", "", "x|y|"), "1+2");
    // A file of the base that was moved and written: its own lines are who moved it.
    let found = hunks(&["1 open b", "2 mv b a"], "A a", "", "x|");
    assert_eq!(found, "1+2?");
}

/// Numbers at which anything worse than linear would show.
#[test]
fn many_paths_and_writes_take_no_time() {
    let mut lines: Vec<String> = Vec::new();
    let mut changed: Vec<String> = Vec::new();
    for n in 0..20_000 {
        lines.push(format!("{} create d/{}/f{n}", n % 7 + 1, n % 50));
        changed.push(format!("A e/{}/f{n}", n % 50));
    }
    lines.push("8 mv d e".to_owned());
    // Directories that move for ever, and a file with a thousand names and writers.
    for n in 0..10_000 {
        lines.push("1 mv e x".to_owned());
        lines.push("2 mv x e".to_owned());
        lines.push(format!("{} open many", n % 900 + 1));
        lines.push(format!("3 ln many l{n}"));
        changed.push(format!("A l{n}"));
    }
    changed.sort();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let changed: Vec<&str> = changed.iter().map(String::as_str).collect();
    let found = join("", &writes(&lines), &changes(&changed));
    assert!(found.complete, "{:?}", found.unexplained);
    assert!(found.files.iter().all(|file| file.writers.len() <= 66));
    assert!(found.files[0].writers_truncated);
    assert_eq!(found.files[0].last_writer, Some(2));
}

#[test]
fn lists_are_cut_and_say_so() {
    let changed: Vec<String> = (0..FILES + 1).map(|n| format!("A f{n:06}")).collect();
    let changed: Vec<&str> = changed.iter().map(String::as_str).collect();
    let found = join("", &Evidence::default(), &changes(&changed));
    assert!(found.files_truncated && found.files.len() == FILES);
    assert_eq!(found.unexplained.len(), UNEXPLAINED);
    assert_eq!(found.unexplained_count, FILES as u64 + 1);
}

#[test]
fn a_path_as_deep_as_one_likes_is_no_matter() {
    let deep = "d/".repeat(100_000) + "f";
    let lines = [format!("1 create {deep}"), "2 mv d/d e".to_owned()];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let moved = format!("A {}", deep.replacen("d/d/", "e/", 1));
    let found = join("", &writes(&lines), &changes(&[&moved]));
    assert_eq!(found.files[0].writers, [1, 2]);
}
