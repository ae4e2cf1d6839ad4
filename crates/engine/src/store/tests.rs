//! The store as a whole: shapes, words, damage and scale. Dying processes are in `processes`.

mod processes;
mod scale;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use ringfence_model::ByteText;
use ringfence_model::limits::Limits;
use ringfence_model::outcome::{Outcome, RunStatus};
use ringfence_model::policy::Effective;
use serde_json::{Map, json};

use super::migrations::CURRENT;
use super::*;
use crate::clock::now_us;
use crate::ids::{BaseId, LayerId};
use crate::lock::RunLock;
use crate::workspace::Ignored;

fn home() -> (tempfile::TempDir, Home) {
    let directory = tempfile::tempdir().unwrap();
    let home = Home::open(Some(directory.path().join("home"))).unwrap();
    (directory, home)
}

fn new_run(name: Option<&str>) -> NewRun {
    NewRun {
        name: name.map(str::to_owned),
        folder: PathBuf::from("/some/folder"),
        argv: vec!["make".into(), "test".into()],
        created_us: now_us(),
        driver: Driver::current(),
        detail: Map::new(),
    }
}

fn finished() -> FinishedRun {
    FinishedRun {
        status: RunStatus::Done,
        outcome: Some(Outcome::Exited),
        exit_code: Some(0),
        signal: None,
        ended_us: now_us(),
        duration_ms: 12,
        changed_files: 3,
        insertions: 20,
        deletions: 4,
        bundle: None,
        detail: Map::new(),
    }
}

/// A run in the store, driven by the test until the lock is dropped.
fn begin(store: &Store, home: &Home, new: &NewRun) -> RunLock {
    let lock = RunLock::create(home, RunId::random().unwrap()).unwrap();
    store.insert_run(&lock, new).unwrap();
    lock
}

/// A run with an id and an age of the test's choice.
fn place(store: &Store, home: &Home, id: &str, name: Option<&str>, created_us: i64) {
    let lock = RunLock::create(home, id.parse().unwrap()).unwrap();
    let new = NewRun {
        created_us,
        ..new_run(name)
    };
    store.insert_run(&lock, &new).unwrap();
}

fn ids(runs: &[RunRecord]) -> Vec<&str> {
    runs.iter().map(|run| run.id.as_str()).collect()
}

#[test]
fn a_store_is_made_once_and_is_private() {
    use std::os::unix::fs::MetadataExt;
    let (_directory, home) = home();
    for _ in 0..2 {
        let store = Store::open(&home).unwrap();
        let version: i64 = store
            .connection
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .unwrap();
        assert_eq!(version, CURRENT);
        for (pragma, expected) in [("foreign_keys", "1"), ("journal_mode", "wal")] {
            let value: rusqlite::types::Value = store
                .connection
                .pragma_query_value(None, pragma, |row| row.get(0))
                .unwrap();
            let text = match value {
                rusqlite::types::Value::Integer(number) => number.to_string(),
                rusqlite::types::Value::Text(text) => text,
                other => panic!("{other:?}"),
            };
            assert_eq!(text, expected, "{pragma}");
        }
        drop(begin(&store, &home, &new_run(None)));
    }
    for file in ["store.db", "store.db-wal", "store.db-shm"] {
        let mode = std::fs::metadata(home.root().join(file)).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o600, "{file}");
    }
}

#[test]
fn a_run_is_read_back_as_it_was_written() {
    let (_directory, home) = home();
    let store = Store::open(&home).unwrap();
    let new = NewRun {
        folder: PathBuf::from(OsStr::from_bytes(b"/od\xffd\nfolder")),
        argv: vec![ByteText(b"a\xff".to_vec()), "b \"c\"".into()],
        detail: Map::from_iter([("a".into(), json!(1)), ("b".into(), json!(2))]),
        ..new_run(Some("first"))
    };
    let lock = begin(&store, &home, &new);
    let id = lock.run();
    let run = store.run(id).unwrap();
    assert_eq!(run.status, RunStatus::Running);
    assert_eq!((&run.folder, &run.argv), (&new.folder, &new.argv));
    assert_eq!((run.driver, run.created_us), (new.driver, new.created_us));
    assert_eq!(
        (run.started_us, run.ended_us, run.changed_files),
        (None, None, None)
    );

    store.start_run(id, 77).unwrap();
    let end = FinishedRun {
        bundle: Some(bundle_path(id)),
        signal: Some(9),
        detail: Map::from_iter([("b".into(), json!("x")), ("c".into(), json!([1]))]),
        ..finished()
    };
    store.finish_run(id, &end).unwrap();
    let run = store.run(id).unwrap();
    assert_eq!(run.status, RunStatus::Done);
    assert_eq!(run.outcome, Some(Outcome::Exited));
    assert_eq!((run.exit_code, run.signal), (Some(0), Some(9)));
    assert_eq!(
        (run.started_us, run.ended_us),
        (Some(77), Some(end.ended_us))
    );
    assert_eq!((run.insertions, run.deletions), (Some(20), Some(4)));
    assert_eq!(run.bundle, Some(bundle_path(id)));
    assert_eq!(json!(run.detail), json!({"a": 1, "b": "x", "c": [1]}));
}

#[test]
fn a_run_ends_once() {
    let (_directory, home) = home();
    let store = Store::open(&home).unwrap();
    let done = begin(&store, &home, &new_run(None)).run();
    store.finish_run(done, &finished()).unwrap();
    assert!(!store.mark_lost(done).unwrap());
    let lost = begin(&store, &home, &new_run(None)).run();
    assert!(store.mark_lost(lost).unwrap());
    assert!(!store.mark_lost(lost).unwrap());
    for run in [done, lost, RunId::random().unwrap()] {
        let error = store.finish_run(run, &finished()).unwrap_err();
        assert!(matches!(error, StoreError::NotRunning { .. }), "{error:?}");
        let error = store.start_run(run, 1).unwrap_err();
        assert!(matches!(error, StoreError::NotRunning { .. }), "{error:?}");
    }
    let lost = store.run(lost).unwrap();
    assert_eq!(
        (lost.status, lost.outcome),
        (RunStatus::Lost, Some(Outcome::RuntimeLost))
    );
}

#[test]
fn a_name_is_given_once_and_is_free_again_after_removal() {
    let (_directory, home) = home();
    let store = Store::open(&home).unwrap();
    let first = begin(&store, &home, &new_run(Some("fix"))).run();
    store.step_intent(first, "base").unwrap();
    let lock = RunLock::create(&home, RunId::random().unwrap()).unwrap();
    let error = store.insert_run(&lock, &new_run(Some("fix"))).unwrap_err();
    assert_eq!(error.to_string(), "there is one named `fix` already");
    let error = store.insert_run(&lock, &new_run(Some("last"))).unwrap_err();
    assert!(matches!(error, StoreError::CheckName { .. }), "{error:?}");
    assert!(store.remove_run(first).unwrap());
    assert!(!store.remove_run(first).unwrap());
    assert!(store.steps(first).unwrap().is_empty());
    store.insert_run(&lock, &new_run(Some("fix"))).unwrap();
    let error = store.insert_run(&lock, &new_run(None)).unwrap_err();
    assert!(matches!(error, StoreError::InsertRun { .. }), "{error:?}");
}

#[test]
fn steps_go_from_intent_to_result() {
    let (_directory, home) = home();
    let store = Store::open(&home).unwrap();
    let run = begin(&store, &home, &new_run(None)).run();
    let not_open = |result: Result<(), StoreError>| {
        let error = result.unwrap_err();
        assert!(matches!(error, StoreError::StepNotOpen { .. }), "{error:?}");
    };
    not_open(store.step_done(run, "base"));
    store.step_intent(run, "base").unwrap();
    store.step_done(run, "base").unwrap();
    not_open(store.step_done(run, "base"));
    store
        .step_intent_with(run, "fork", Some(&json!({"layer": "upper"})))
        .unwrap();
    store.step_intent(run, "start").unwrap();
    let open = store.open_steps(run).unwrap();
    let names: Vec<&str> = open.iter().map(|record| &*record.step).collect();
    assert_eq!(names, ["start", "fork"]);
    assert_eq!(open[1].detail, Some(json!({"layer": "upper"})));
    store.step_undone(run, "start").unwrap();
    store.step_intent(run, "start").unwrap();
    store.step_done(run, "start").unwrap();
    store.step_undone(run, "fork").unwrap();
    assert!(store.open_steps(run).unwrap().is_empty());
    let states: Vec<_> = store
        .steps(run)
        .unwrap()
        .into_iter()
        .map(|record| (record.sequence, record.step, record.state.as_str()))
        .collect();
    assert_eq!(states.len(), 8);
    assert_eq!(states[4], (4, "start".to_owned(), "undone"));
    store.step_intent(run, "seal").unwrap();
    store.step_next(run, "seal", "pack").unwrap();
    assert_eq!(store.open_steps(run).unwrap()[0].step, "pack");
    not_open(store.step_next(run, "seal", "hold"));
    assert_eq!(store.steps(run).unwrap().len(), 11);
    // A step of a run that is not there is refused by its reference.
    let error = store
        .step_intent(RunId::random().unwrap(), "base")
        .unwrap_err();
    assert!(matches!(error, StoreError::RecordStep { .. }), "{error:?}");
}

#[test]
fn runs_are_found_by_what_people_type() {
    let (_directory, home) = home();
    let store = Store::open(&home).unwrap();
    assert_eq!(
        store.find("last").unwrap_err().to_string(),
        "there is no run yet"
    );
    place(&store, &home, "abc000000000", None, 1);
    place(&store, &home, "abc111111111", Some("fix"), 3);
    place(&store, &home, "abd000000000", Some("abc1"), 2);
    place(&store, &home, "zzz000000000", None, 0);
    for (text, expected) in [
        ("last", Ok("abc111111111")),
        ("@", Ok("abc111111111")),
        ("abc000000000", Ok("abc000000000")),
        ("fix", Ok("abc111111111")),
        ("abc0", Ok("abc000000000")),
        ("zzz", Ok("zzz000000000")),
        ("abd", Ok("abd000000000")),
        // A name goes before the beginning of an id.
        ("abc1", Ok("abd000000000")),
        (
            "abc",
            Err("`abc` stands for several runs: abc000000000, abc111111111"),
        ),
        ("ab", Err("there is no run `ab`")),
        ("", Err("there is no run ``")),
        ("ABC0", Err("there is no run `ABC0`")),
        ("%%%", Err("there is no run `%%%`")),
        ("abc%", Err("there is no run `abc%`")),
        ("abc000000001", Err("there is no run `abc000000001`")),
        ("abc0000000000", Err("there is no run `abc0000000000`")),
        ("' OR 1=1 --", Err("there is no run `' OR 1=1 --`")),
    ] {
        let found = store.find(text).map(|run| run.id.to_string());
        let found = found.as_deref().map_err(|e| e.to_string());
        assert_eq!(found, expected.map_err(str::to_owned), "{text}");
    }
    for n in 0..20 {
        place(&store, &home, &format!("ccc0000000{n:02}"), None, 1);
    }
    let error = store.find("ccc").unwrap_err();
    let StoreError::Ambiguous {
        candidates, more, ..
    } = &error
    else {
        panic!("{error:?}");
    };
    assert_eq!((candidates.len(), *more), (8, true));
    assert!(error.to_string().ends_with("ccc000000007, …"), "{error}");
}

#[test]
fn lists_are_paged_newest_first() {
    let (_directory, home) = home();
    let store = Store::open(&home).unwrap();
    // Two of the same microsecond, to be told apart by their ids.
    for (id, created_us) in [("a", 5), ("b", 9), ("c", 7), ("d", 7), ("e", 1)] {
        place(&store, &home, &id.repeat(12), None, created_us);
    }
    let all = store.runs(RunFilter::default(), 100).unwrap();
    let order: Vec<&str> = ids(&all).iter().map(|id| &id[..1]).collect();
    assert_eq!(order, ["b", "d", "c", "a", "e"]);
    let mut paged = Vec::new();
    let mut filter = RunFilter::default();
    loop {
        let page = store.runs(filter, 2).unwrap();
        let Some(last) = page.last() else { break };
        filter.after = Some(last.position());
        paged.extend(page);
    }
    assert_eq!(paged, all);
    store.mark_lost(all[1].id).unwrap();
    let lost = RunFilter {
        status: Some(RunStatus::Lost),
        ..RunFilter::default()
    };
    assert_eq!(ids(&store.runs(lost, 10).unwrap()), [all[1].id.as_str()]);
    assert!(store.runs(lost, 0).unwrap().is_empty());
}

#[test]
fn what_is_not_a_sound_store_is_named_and_left_as_it_is() {
    let foreign = |sql: &str| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        std::fs::read(path).unwrap()
    };
    let newer =
        foreign("PRAGMA application_id = 0x72666e63; PRAGMA user_version = 99; CREATE TABLE t (x)");
    let too_new = format!("made by a newer ringfence (schema 99, this one knows {CURRENT})");
    for (content, expected) in [
        (
            b"this is not a database, but it is long enough ".repeat(100),
            "is damaged; it was left",
        ),
        (newer, too_new.as_str()),
        (foreign("CREATE TABLE t (x)"), "not a ringfence store"),
        (foreign("PRAGMA user_version = 7"), "not a ringfence store"),
    ] {
        let (_directory, home) = home();
        std::fs::write(home.store(), &content).unwrap();
        let error = Store::open(&home).unwrap_err();
        let message = error.to_string();
        assert!(message.contains(expected), "{message}: {error:?}");
        assert!(
            message.contains(home.store().to_str().unwrap()),
            "{message}"
        );
        assert_eq!(std::fs::read(home.store()).unwrap(), content);
        assert!(!home.root().join("store.db-wal").exists());
    }
}

#[test]
fn a_foreign_store_of_our_schema_number_is_refused() {
    let (_directory, home) = home();
    Connection::open(home.store())
        .unwrap()
        .execute_batch("PRAGMA user_version = 1; CREATE TABLE t (x)")
        .unwrap();
    let error = Store::open(&home).unwrap_err();
    assert!(matches!(error, StoreError::Foreign { .. }), "{error:?}");
}

#[test]
fn a_damaged_page_is_named_when_it_is_met() {
    let (_directory, home) = home();
    let store = Store::open(&home).unwrap();
    place(&store, &home, "abc000000000", None, 1);
    store
        .connection
        .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
        .unwrap();
    drop(store);
    let mut bytes = std::fs::read(home.store()).unwrap();
    bytes[4096..].fill(0xa5);
    std::fs::write(home.store(), &bytes).unwrap();
    let store = Store::open(&home).unwrap();
    let errors = [
        store.find("last").unwrap_err(),
        store.runs(RunFilter::default(), 10).unwrap_err(),
        store
            .step_intent("abc000000000".parse().unwrap(), "x")
            .unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}");
    }
    assert_eq!(std::fs::read(home.store()).unwrap(), bytes);
}

#[test]
fn a_log_without_its_main_file_is_not_thrown_away() {
    let (_directory, home) = home();
    drop(begin(&Store::open(&home).unwrap(), &home, &new_run(None)));
    let log = home.root().join("store.db-wal");
    let bytes = std::fs::read(&log).unwrap();
    assert!(!bytes.is_empty());
    std::fs::remove_file(home.store()).unwrap();
    for _ in 0..2 {
        let error = Store::open(&home).unwrap_err();
        assert!(
            matches!(error, StoreError::MainFileLost { .. }),
            "{error:?}"
        );
        assert_eq!(std::fs::read(&log).unwrap(), bytes);
        // The same where the file is there and empty.
        std::fs::write(home.store(), "").unwrap();
    }
}

#[test]
fn a_directory_in_the_place_of_the_store_is_named() {
    let (_directory, home) = home();
    std::fs::create_dir(home.store()).unwrap();
    let error = Store::open(&home).unwrap_err();
    assert!(matches!(error, StoreError::Open { .. }), "{error:?}");
    assert!(std::error::Error::source(&error).is_some());
}

#[test]
fn what_is_not_synced_or_too_deep_needs_settling() {
    let (_directory, home) = home();
    let store = Store::open(&home).unwrap();
    let base = NewBase {
        id: BaseId::from_bits(1),
        key: "empty".to_owned(),
        kind: BaseKind::Empty,
        mirror: None,
    };
    store.insert_base(&base).unwrap();
    let id = SandboxId::random().unwrap();
    let new = NewSandbox {
        id,
        name: None,
        tag: None,
        base: base.id,
        head: None,
        expires_us: None,
        detail: SandboxDetail {
            source: String::new(),
            limits: Limits::for_host(1 << 30),
            env: Vec::new(),
            policy: Effective::default(),
            ignored: Ignored::default(),
            aliases: Vec::new(),
            backend: crate::backend::NATIVE.to_owned(),
            stands_on: Vec::new(),
            idle_seconds: None,
            auto_checkpoint: AutoCheckpoint::Never,
            forked_from: None,
            ended: None,
            mounted: Vec::new(),
        },
    };
    store.insert_sandboxes(&[new]).unwrap();
    store.insert_checkpoint(id, "base", None).unwrap();
    assert!(!store.needs_settling(id, 2).unwrap());
    let seal = |parent, checkpoint: Option<&str>| {
        let layer = LayerId::random().unwrap();
        let intent = Intent::Seal {
            layer,
            how: SealHow::Swap,
            checkpoint: None,
        };
        let under = (base.id, parent);
        store.seal_begins(id, under, layer, &intent).unwrap();
        store
            .sealed(id, layer, Some(layer), checkpoint, None)
            .unwrap();
        layer
    };
    let first = seal(None, None);
    assert!(store.needs_settling(id, 2).unwrap());
    let second = seal(Some(first), Some("two"));
    store.layer_durable(second, 0, 0).unwrap();
    assert!(store.needs_settling(id, 2).unwrap(), "the one below is not");
    store.rolled_back(id, None).unwrap();
    assert!(store.needs_settling(id, 2).unwrap(), "a checkpoint has it");
    store.layer_durable(first, 0, 0).unwrap();
    assert!(!store.needs_settling(id, 2).unwrap());
    store.rolled_back(id, Some(second)).unwrap();
    assert!(!store.needs_settling(id, 2).unwrap());
    assert!(store.needs_settling(id, 1).unwrap(), "two are too many");
}
