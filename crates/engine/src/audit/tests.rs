//! Stories that are told right, and journals that are told from forged ones.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use ringfence_model::journal::{Event, Line};
use ringfence_model::limits::Limit;
use ringfence_model::observed::{Exec, ExecFailed, Exit, Refused, Write, Wrote};
use ringfence_model::outcome::RunStatus;

use super::*;
use crate::journal::JournalFile;

/// An exec of a process of its own.
fn exec(number: u64, parent: Option<u64>, words: &str) -> Exec {
    let argv: Vec<_> = words.split(' ').map(Into::into).collect();
    Exec {
        exec: number,
        pid: 100 + number as i32,
        started: number,
        parent,
        parent_pid: 1,
        replaces: None,
        program: 1,
        exe: format!("/usr/bin/{}", argv[0]).as_str().into(),
        asked: None,
        argv,
        argv_cut: None,
        cwd: "/workspace".into(),
        verified: true,
    }
}

fn replacing(before: u64, exec: Exec) -> Event {
    Event::Exec(Exec {
        replaces: Some(before),
        ..exec
    })
}

fn exit(exec: u64, code: Option<i32>, signal: Option<i32>) -> Event {
    Event::Exit(Exit {
        exec,
        code,
        signal,
        duration_us: 5000,
        cpu_us: None,
    })
}

fn failed(by: u64, asked: &str) -> Event {
    Event::ExecFailed(ExecFailed {
        by: Some(by),
        pid: 9,
        asked: asked.into(),
        argv: vec![asked.into()],
        argv_cut: None,
        cwd: "/workspace".into(),
        errno: 2,
    })
}

fn write(exec: u64, path: &str, what: Wrote) -> Event {
    Event::Write(Write {
        exec: Some(exec),
        pid: 9,
        path: path.into(),
        what,
    })
}

fn denial(pid: i32) -> Event {
    Event::Denial(Refused {
        pid,
        operation: "execveat".to_owned(),
        reason: "no path".to_owned(),
    })
}

fn story(events: Vec<Event>) -> Story {
    let line = |(number, event)| Line {
        sequence: number as u64,
        time_us: number as i64 * 1000,
        previous: String::new(),
        event,
    };
    let lines = events.into_iter().enumerate().map(line).collect();
    Story::of(lines, Life::Over)
}

/// A shell that starts make, which fails, and then becomes git.
fn usual() -> Story {
    story(vec![
        Event::Command {
            argv: vec!["sh".into()],
        },
        Event::Exec(exec(1, None, "sh -c all")),
        Event::Exec(exec(2, Some(1), "make test")),
        failed(2, "/usr/local/bin/cc"),
        Event::Exec(exec(3, Some(2), "cc -c a.c")),
        write(3, "a.o", Wrote::Created),
        exit(3, Some(0), None),
        denial(102),
        exit(2, Some(2), None),
        replacing(1, exec(4, None, "git commit")),
        write(4, "b", Wrote::Renamed { from: "a".into() }),
        Event::Exec(exec(5, Some(4), "cat x")),
        exit(5, None, Some(9)),
        Event::Limit {
            limit: Limit::Memory,
            detail: "2 GiB".to_owned(),
        },
        Event::End {
            status: RunStatus::Done,
        },
    ])
}

#[test]
fn every_program_has_an_end_and_a_starter() {
    let story = usual();
    for (number, ending, took, starter) in [
        (1, Ending::Became(4), Some(8000), None),
        (2, Ending::Exited(2), Some(5000), Some(1)),
        (3, Ending::Exited(0), Some(5000), Some(2)),
        (4, Ending::Unseen, None, Some(1)),
        (5, Ending::Signal(9), Some(5000), Some(4)),
    ] {
        let ran = story.exec(number).unwrap();
        assert_eq!(story.ending(ran), (ending, took), "{number}");
        let by = story.starter(&ran.exec).map(|before| before.exec.exec);
        assert_eq!(by, starter, "{number}");
    }
    let running = Story::of(story.lines, Life::Running);
    assert_eq!(running.ending_of(4), Some(Ending::Running));
    assert_eq!(running.ending_of(77), None);
    assert_eq!(running.programs()[0].runs, 5);
}

/// The places in the journal of what a filter wants.
fn wanted(story: &Story, filter: &Filter) -> Vec<u64> {
    story
        .lines
        .iter()
        .filter(|line| filter.wants(story, &line.event))
        .map(|line| line.sequence)
        .collect()
}

#[test]
fn filters_narrow_and_combine() {
    let story = usual();
    let only = |pattern: &str, failed, writes| {
        let mut filter = Filter::matching(pattern).unwrap();
        filter.failed = failed;
        filter.writes = writes;
        wanted(&story, &filter)
    };
    let all: Vec<u64> = (0..story.lines.len() as u64).collect();
    assert_eq!(wanted(&story, &Filter::default()), all);
    assert_eq!(only("", true, false), [2, 3, 7, 8, 11, 12, 13]);
    assert_eq!(only("", false, true), [5, 10]);
    // What the words, the file or a path hold; an exit goes with its exec.
    assert_eq!(only("^make test$", false, false), [2, 8]);
    assert_eq!(only("/bin/cc$", false, false), [3, 4, 5, 6]);
    assert_eq!(only("^a$", false, false), [10]);
    assert_eq!(only("no path", false, false), [7]);
    assert_eq!(only("cc", true, false), [3]);
    assert_eq!(only("git", false, true), [10]);
    assert_eq!(only("nonesuch", false, false), [] as [u64; 0]);
    assert!(matches!(
        Filter::matching("("),
        Err(AuditError::ParsePattern { .. })
    ));
    assert!(Filter::matching(&"(a{1000}){1000}".repeat(9)).is_err());
}

/// The tree in few words, two spaces for each level.
fn drawn(story: &Story, filter: &Filter) -> Vec<String> {
    let mut drawn = Vec::new();
    let walked: Result<(), ()> = Tree::of(story, filter).walk(|branch| {
        let text = match branch.twig {
            Twig::Ran(ran) => ran.exec.exec.to_string(),
            Twig::Failed(failed) => format!("failed {}", failed.asked),
            Twig::Refused(_) => "refused".to_owned(),
            Twig::Wrote(write) => format!("wrote {}", write.path),
        };
        let more = if *branch.rails.last().unwrap() {
            "+"
        } else {
            ""
        };
        drawn.push("  ".repeat(branch.rails.len() - 1) + &text + more);
        Ok(())
    });
    walked.unwrap();
    drawn
}

#[test]
fn a_tree_shows_who_did_what_in_order() {
    let story = usual();
    assert_eq!(
        drawn(&story, &Filter::default()),
        [
            "1",
            "  2+",
            "    failed /usr/local/bin/cc+",
            "    3+",
            "    refused",
            "  4",
            "    5",
        ]
    );
    let mut writes = Filter::matching("").unwrap();
    writes.writes = true;
    assert_eq!(
        drawn(&story, &writes),
        [
            "1",
            "  2+",
            "    3",
            "      wrote a.o",
            "  4",
            "    wrote b"
        ]
    );
    // What is wanted, and what led to it.
    let matching = Filter::matching("cat").unwrap();
    assert_eq!(drawn(&story, &matching), ["1", "  4", "    5"]);
    assert!(drawn(&story, &Filter::matching("nonesuch").unwrap()).is_empty());
}

#[test]
fn a_chain_of_a_hundred_thousand_is_walked_on_a_small_stack() {
    const DEEP: u64 = 100_000;
    let forked = (1..=DEEP).map(|n| Event::Exec(exec(n, n.checked_sub(1), "sh")));
    let replaced = (1..=DEEP).map(|n| match n {
        1 => Event::Exec(exec(1, None, "sh")),
        n => replacing(n - 1, exec(n, None, "sh")),
    });
    for events in [forked.collect::<Vec<_>>(), replaced.collect()] {
        let deepest = std::thread::Builder::new()
            .stack_size(64 << 10)
            .spawn(move || {
                let story = story(events);
                let (mut rows, mut deepest) = (0, 0);
                let walked: Result<(), ()> = Tree::of(&story, &Filter::default()).walk(|branch| {
                    rows += 1;
                    deepest = deepest.max(branch.rails.len());
                    Ok(())
                });
                walked.unwrap();
                (rows, deepest)
            })
            .unwrap()
            .join()
            .unwrap();
        assert_eq!(deepest, (DEEP, DEEP as usize));
    }
}

proptest! {
    /// HOSTILE: whatever a journal says of parents, each exec is in the tree once.
    #[test]
    fn every_exec_is_in_the_tree_once(
        links in proptest::collection::vec((any::<Option<u8>>(), any::<Option<u8>>()), 1..40)
    ) {
        let events = links.iter().enumerate().map(|(number, (parent, replaces))| {
            Event::Exec(Exec {
                replaces: replaces.map(u64::from),
                ..exec(number as u64, parent.map(u64::from), "x")
            })
        });
        let story = story(events.collect());
        let mut seen = Vec::new();
        let walked: Result<(), ()> = Tree::of(&story, &Filter::default()).walk(|branch| {
            if let Twig::Ran(ran) = branch.twig {
                seen.push(ran.exec.exec);
            }
            Ok(())
        });
        walked.unwrap();
        seen.sort_unstable();
        prop_assert!(seen.into_iter().eq(0..links.len() as u64));
    }
}

/// A journal of three lines, with a result beside it that names its head.
fn bundle(directory: &Path) -> String {
    let mut journal = JournalFile::create(&directory.join("audit.jsonl")).unwrap();
    for event in [
        Event::Exec(exec(1, None, "sh")),
        exit(1, Some(0), None),
        Event::End {
            status: RunStatus::Done,
        },
    ] {
        journal.append(event).unwrap();
    }
    let result = format!("{{\"journal_head\":\"{}\",\"more\":[1]}}", journal.head());
    fs::write(directory.join("result.json"), result).unwrap();
    journal.head().to_owned()
}

fn only(found: Found) -> Kept {
    let [kept] = <[Kept; 1]>::try_from(found.journals).unwrap();
    kept
}

#[test]
fn a_bundle_is_found_by_its_directory_and_by_its_journal() {
    let home = tempfile::tempdir().unwrap();
    let head = bundle(home.path());
    let link = home.path().join("link");
    std::os::unix::fs::symlink(home.path(), &link).unwrap();
    for path in [home.path(), &home.path().join("audit.jsonl"), &link] {
        let kept = only(at_path(path).unwrap());
        assert_eq!(kept.heads.len(), 1);
        assert_eq!(kept.heads[0].hash, head);
        let followed = follow(&kept, drop).unwrap();
        assert!(followed.fault.is_none() && followed.is_ended);
        assert_eq!((followed.lines, followed.head), (3, head.clone()));
    }
}

#[test]
fn what_only_the_head_shows_is_found() {
    let home = tempfile::tempdir().unwrap();
    bundle(home.path());
    let path = home.path().join("audit.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let fault = |content: &str| {
        fs::write(&path, content).unwrap();
        let kept = only(at_path(home.path()).unwrap());
        follow(&kept, drop).unwrap().fault
    };
    let other = |line| move |fault: Option<Fault>| matches!(fault, Some(Fault::OtherHead { line: at, .. }) if at == line);
    assert!(other(3)(fault(&text.replace("\"done\"", "\"lost\""))));
    assert!(other(2)(fault(&lines[..2].concat())));
    assert!(matches!(fault(""), Some(Fault::Empty)));
    let mut chain = ringfence_model::journal::Chain::default();
    let mut longer = String::new();
    for line in text.lines() {
        let line: Line = serde_json::from_str(line).unwrap();
        longer.push_str(&chain.append(line.time_us, line.event).unwrap());
    }
    assert_eq!(longer, text);
    longer.push_str(&chain.append(9, denial(1)).unwrap());
    let fault = fault(&longer).unwrap();
    assert!(matches!(fault, Fault::Added { line: 3, .. }), "{fault}");
    assert_eq!(fault.line(), 4);
}

#[test]
fn a_line_that_is_being_written_is_no_fault_of_what_runs() {
    let home = tempfile::tempdir().unwrap();
    bundle(home.path());
    let path = home.path().join("audit.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, &text[..text.len() - 4]).unwrap();
    let mut kept = only(at_path(&path).unwrap());
    kept.heads.clear();
    kept.life = Life::Lost;
    let lost = follow(&kept, drop).unwrap();
    assert_eq!((lost.lines, lost.fault.unwrap().line()), (2, 3));
    kept.life = Life::Running;
    let running = follow(&kept, drop).unwrap();
    assert!(running.fault.is_none() && running.is_being_written && !running.is_ended);
}

#[test]
fn executions_are_found_in_order() {
    let home = tempfile::tempdir().unwrap();
    for name in [
        "audit-10.jsonl",
        "audit-2.jsonl",
        "audit-x.jsonl",
        "audit-1.jsonl",
        "keeper.log",
    ] {
        fs::write(home.path().join(name), "").unwrap();
    }
    let found = at_path(home.path()).unwrap();
    let numbers: Vec<_> = found.journals.iter().map(|kept| kept.execution).collect();
    assert_eq!(numbers, [Some(1), Some(2), Some(10)]);
}

#[test]
fn what_is_no_journal_is_named() {
    let home = tempfile::tempdir().unwrap();
    let absent = home.path().join("absent");
    assert!(matches!(at_path(&absent), Err(AuditError::NoFile(_))));
    assert!(matches!(
        at_path(home.path()),
        Err(AuditError::NoJournal(_))
    ));
    bundle(home.path());
    // What lies beside it is looked at with distrust, and is no reason to stop.
    for name in ["manifest.json", "result.json"] {
        let path = home.path().join(name);
        let _ = fs::remove_file(&path);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
    }
    let found = at_path(home.path()).unwrap();
    assert_eq!(found.doubts.len(), 2, "{:?}", found.doubts);
    assert!(only(found).heads.is_empty());
}
