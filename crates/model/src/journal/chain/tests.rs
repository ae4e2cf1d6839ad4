//! What a chain must find, and what must come through it.

use proptest::prelude::*;

use super::*;
use crate::ByteText;
use crate::gate::{Happened, Traffic, Via};
use crate::limits::Limit;
use crate::observed::{Cut, Exec, ExecFailed, Exit, Program, Refused, Write, Wrote};
use crate::outcome::{Outcome, RunStatus};
use crate::policy::network::Protocol;

/// The lines and the head, or where it breaks.
fn follow(journal: &[u8]) -> Result<(Vec<Line>, String), ChainError> {
    let mut lines = Lines::new(journal);
    let found = lines.by_ref().collect::<Result<_, _>>()?;
    Ok((found, lines.head().to_owned()))
}

fn written(events: &[Event]) -> (String, String) {
    let mut chain = Chain::default();
    let mut text = String::new();
    for (number, event) in events.iter().enumerate() {
        text.push_str(&chain.append(number as i64, event.clone()).unwrap());
    }
    (text, chain.head().to_owned())
}

fn command(argument: &[u8]) -> Event {
    Event::Command {
        argv: vec![argument.into()],
    }
}

fn few() -> Vec<Event> {
    vec![
        command(b"a\nb"),
        command(b"\xff{\"kind\":\"end\"}"),
        Event::Write(Write {
            exec: Some(3),
            pid: 4,
            path: "a".into(),
            what: Wrote::Renamed { from: "b".into() },
        }),
        Event::End {
            status: RunStatus::Done,
        },
    ]
}

#[test]
fn a_line_is_a_line_whatever_the_agent_writes() {
    let (text, head) = written(&few());
    assert_eq!(text.lines().count(), 4);
    let (lines, found) = follow(text.as_bytes()).unwrap();
    assert_eq!(found, head);
    assert!(lines.into_iter().map(|line| line.event).eq(few()));
}

#[test]
fn any_flipped_bit_is_found() {
    let (text, head) = written(&few());
    for at in 0..text.len() {
        for bit in 0..8 {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1 << bit;
            let found = follow(&bytes).map_or(true, |(_, found)| found != head);
            assert!(found, "bit {bit} of byte {at}");
        }
    }
}

#[test]
fn any_added_or_dropped_byte_is_found() {
    let (text, head) = written(&few());
    let is_found = |bytes: &[u8]| follow(bytes).map_or(true, |(_, found)| found != head);
    for at in 0..=text.len() {
        for byte in [b' ', b'\n', b'\r', b'\t', b'0', b'"', b'}', b'\\', 0, 0xff] {
            let mut bytes = text.clone().into_bytes();
            bytes.insert(at, byte);
            assert!(is_found(&bytes), "{byte:#x} before byte {at}");
        }
        assert!(
            at == text.len() || is_found(&text.as_bytes()[..at]),
            "cut at {at}"
        );
    }
}

#[test]
fn dropped_added_and_swapped_lines_are_found() {
    let (text, _) = written(&few());
    let lines: Vec<&str> = text.lines().collect();
    let mix =
        |order: &[usize]| -> String { order.iter().map(|&i| format!("{}\n", lines[i])).collect() };
    for (order, at) in [
        (&[1, 2, 3][..], 1),
        (&[0, 2, 3], 2),
        (&[0, 0, 1, 2], 2),
        (&[1, 0, 2, 3], 1),
        (&[0, 1, 2, 3, 3], 5),
        (&[0, 1, 3, 2], 3),
    ] {
        let error = follow(mix(order).as_bytes()).unwrap_err();
        assert!(
            matches!(error, ChainError::OutOfOrder { line, .. } if line == at),
            "{order:?}: {error}"
        );
    }
}

#[test]
fn a_line_that_was_numbered_anew_does_not_follow() {
    let (text, _) = written(&few());
    let dropped: String = text
        .lines()
        .filter(|line| !line.contains("\"sequence\":1,"))
        .map(|line| line.replace("\"sequence\":2,", "\"sequence\":1,") + "\n")
        .collect();
    let error = follow(dropped.as_bytes()).unwrap_err();
    assert!(matches!(error, ChainError::Broken { line: 2 }), "{error}");
}

#[test]
fn a_last_line_in_another_spelling_is_found_without_a_head() {
    let (text, _) = written(&[command(b"one"), command(b"two")]);
    for (from, to) in [
        ("\"kind\":\"command\"", "\"kind\": \"command\""),
        ("\"kind\":\"command\"", "\"kind\":\"com\\u006dand\""),
        ("\"argv\":[\"two\"]", "\"argv\":[\"\\\"two\\\"\"]"),
        ("\"argv\":[\"two\"]", "\"argv\":[\"two\"],\"cwd\":\"/\""),
        (
            "\"kind\":\"command\",\"argv\":[\"two\"]",
            "\"argv\":[\"two\"],\"kind\":\"command\"",
        ),
        ("\"time_us\":1,", "\"time_us\":1,\"time_us\":1,"),
        ("\"time_us\":1,", "\"time_us\":1.0,"),
    ] {
        let at = text.find('\n').unwrap();
        let (first, last) = text.split_at(at);
        let changed = format!("{first}{}", last.replacen(from, to, 1));
        assert_ne!(changed, text, "{from}");
        let error = follow(changed.as_bytes()).unwrap_err();
        assert!(
            matches!(
                error,
                ChainError::Respelled { line: 2 } | ChainError::ParseLine { line: 2, .. }
            ),
            "{to}: {error}"
        );
    }
    let unknown = text.replace("\"time_us\":1,", "\"time_us\":1,\"more\":1,");
    let error = follow(unknown.as_bytes()).unwrap_err();
    let ChainError::ParseLine { line: 2, source } = error else {
        panic!("{error}");
    };
    assert!(source.to_string().contains("unknown field `more`"));
}

#[test]
fn a_cut_line_is_told_from_a_changed_one() {
    let (text, _) = written(&few());
    let last = text.trim_end().rfind('\n').unwrap() + 1;
    for end in last + 1..text.len() {
        let mut lines = Lines::new(&text.as_bytes()[..end]);
        assert_eq!(lines.by_ref().take(3).filter(Result::is_ok).count(), 3);
        assert!(matches!(
            lines.next(),
            Some(Err(ChainError::CutOff { line: 4 }))
        ));
        assert!(lines.next().is_none());
    }
    assert!(follow(b"").unwrap().0.is_empty());
}

/// Bytes as an agent would choose them: what ends lines, moves cursors, hides, quotes, and lies.
fn hostile() -> impl Strategy<Value = ByteText> {
    let piece = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..12),
        any::<String>().prop_map(String::into_bytes),
        proptest::sample::select(
            &[
                "\"",
                "\\",
                "\\\"",
                "\n",
                "\r\n",
                "\0",
                "\u{7f}",
                "\u{85}",
                "\u{2028}",
                "\u{2029}",
                "\u{1b}[2J",
                "\u{9b}31m",
                "\u{202e}",
                "\u{feff}",
                "\u{e0041}",
                "\"\\377\"",
                "\"a\\nb\"",
                "\\u000a",
                "\\n",
                "\"}}\n{\"sequence\":0",
                "é",
                "\u{fffd}",
            ][..]
        )
        .prop_map(|text: &str| text.as_bytes().to_vec()),
        Just(b"\xff\xfe\xc3".to_vec()),
        Just(b"\xed\xa0\x80".to_vec()),
    ];
    proptest::collection::vec(piece, 0..6).prop_map(|pieces| ByteText(pieces.concat()))
}

fn hostile_list() -> impl Strategy<Value = Vec<ByteText>> {
    proptest::collection::vec(hostile(), 0..4)
}

fn cut() -> impl Strategy<Value = Option<Cut>> {
    proptest::option::of(any::<u64>().prop_map(|bytes| Cut {
        bytes,
        sha256: "0".repeat(64),
    }))
}

fn wrote() -> impl Strategy<Value = Wrote> {
    prop_oneof![
        proptest::sample::select(vec![
            Wrote::Opened,
            Wrote::Created,
            Wrote::Truncated,
            Wrote::Symlinked,
            Wrote::Removed,
            Wrote::Mode,
            Wrote::MadeNode,
            Wrote::Unplaced,
        ]),
        hostile().prop_map(|from| Wrote::Renamed { from }),
        hostile().prop_map(|with| Wrote::Exchanged { with }),
        hostile().prop_map(|to| Wrote::Linked { to }),
    ]
}

fn exec() -> impl Strategy<Value = Event> {
    (
        (any::<u64>(), any::<i32>(), any::<u64>(), any::<i32>()),
        (any::<Option<u64>>(), any::<Option<u64>>(), any::<u32>()),
        (hostile(), proptest::option::of(hostile()), hostile()),
        (hostile_list(), cut(), any::<bool>()),
    )
        .prop_map(|(ids, from, paths, rest)| {
            Event::Exec(Exec {
                exec: ids.0,
                pid: ids.1,
                started: ids.2,
                parent: from.0,
                parent_pid: ids.3,
                replaces: from.1,
                program: from.2,
                exe: paths.0,
                asked: paths.1,
                argv: rest.0,
                argv_cut: rest.1,
                cwd: paths.2,
                verified: rest.2,
            })
        })
}

fn failed() -> impl Strategy<Value = Event> {
    (
        (any::<Option<u64>>(), any::<i32>(), any::<i32>()),
        (hostile(), hostile_list(), cut(), hostile()),
    )
        .prop_map(|((by, pid, errno), (asked, argv, argv_cut, cwd))| {
            Event::ExecFailed(ExecFailed {
                by,
                pid,
                asked,
                argv,
                argv_cut,
                cwd,
                errno,
            })
        })
}

/// Every event that can hold something an agent chose.
fn event() -> impl Strategy<Value = Event> {
    let exit = (any::<u64>(), any::<Option<i32>>(), any::<Option<i32>>());
    prop_oneof![
        exec(),
        failed(),
        (exit, any::<u64>(), any::<Option<u64>>()).prop_map(
            |((exec, code, signal), duration_us, cpu_us)| Event::Exit(Exit {
                exec,
                code,
                signal,
                duration_us,
                cpu_us,
            })
        ),
        (any::<Option<u64>>(), any::<i32>(), hostile(), wrote()).prop_map(
            |(exec, pid, path, what)| Event::Write(Write {
                exec,
                pid,
                path,
                what
            })
        ),
        (any::<u32>(), hostile(), any::<u64>()).prop_map(|(program, path, size)| {
            Event::Program(Program {
                program,
                path,
                size,
                sha256: None,
            })
        }),
        (hostile_list(), hostile(), any::<String>()).prop_map(|(argv, folder, version)| {
            Event::Task {
                run: "r".to_owned(),
                argv,
                folder,
                version,
            }
        }),
        hostile_list().prop_map(|argv| Event::Command { argv }),
        (any::<i32>(), any::<String>(), any::<String>()).prop_map(|(pid, operation, reason)| {
            Event::Denial(Refused {
                pid,
                operation,
                reason,
            })
        }),
        (hostile(), any::<u16>(), 1..9u64, any::<String>()).prop_map(
            |(host, port, times, detail)| {
                Event::Network(Traffic {
                    via: Via::Proxy,
                    path: (port > 9).then(|| host.clone()),
                    method: (port > 99).then(|| detail.clone()),
                    host,
                    port,
                    protocol: Protocol::Web,
                    address: None,
                    result: Happened::Failed { detail },
                    rule: None,
                    from: None,
                    times,
                })
            }
        ),
        any::<String>().prop_map(|detail| Event::GateLost { detail }),
        any::<String>().prop_map(|detail| Event::Limit {
            limit: Limit::Disk,
            detail,
        }),
        (any::<Option<i32>>(), any::<u64>(), any::<Option<u64>>()).prop_map(
            |(code, leftovers, cpu_ms)| Event::CommandEnded {
                outcome: Outcome::Exited,
                code,
                signal: None,
                duration_ms: leftovers,
                leftovers,
                cpu_ms,
                peak_bytes: cpu_ms,
            }
        ),
    ]
}

proptest! {
    /// One line each in any reader's eyes, nothing but text, and the same when read again.
    #[test]
    fn every_event_survives_as_one_line(events in proptest::collection::vec(event(), 1..5)) {
        let (text, head) = written(&events);
        prop_assert_eq!(text.matches('\n').count(), events.len());
        prop_assert!(!text.chars().any(|c| misleads(c) && c != '\n'), "{}", text);
        let (lines, found) = follow(text.as_bytes()).unwrap();
        prop_assert_eq!(found, head);
        let back: Vec<Event> = lines.into_iter().map(|line| line.event).collect();
        prop_assert_eq!(back, events);
    }

    /// Any edit at any place is found where the head is known.
    #[test]
    fn every_edit_is_found(
        events in proptest::collection::vec(event(), 1..5),
        place in any::<proptest::sample::Index>(),
        removed in 0usize..3,
        added in proptest::collection::vec(any::<u8>(), 0..3),
    ) {
        let (text, head) = written(&events);
        let mut bytes = text.clone().into_bytes();
        let at = place.index(bytes.len());
        let end = (at + removed).min(bytes.len());
        bytes.splice(at..end, added);
        if bytes != text.as_bytes() {
            let found = follow(&bytes).map_or(true, |(_, found)| found != head);
            prop_assert!(found);
        }
    }
}
