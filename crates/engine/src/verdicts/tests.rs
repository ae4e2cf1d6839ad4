//! Verdicts on the golden bundle, and what becomes of them when something is changed or cut.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ringfence_model::outcome::Outcome;
use serde_json::{Map, json};

use super::*;
use crate::lock::RunLock;
use crate::store::{Decided, Driver, FinishedRun, NewRun, RunFilter, bundle_path};

/// A home in which the golden run has just ended.
pub(crate) struct Bench {
    pub directory: tempfile::TempDir,
    pub home: Home,
    pub store: Store,
    pub run: RunId,
}

impl Bench {
    pub(crate) fn new(status: RunStatus, held: &[Hold]) -> Self {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats/golden");
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(Some(directory.path().join("home"))).unwrap();
        let key = home.keys().join("signing.pem");
        fs::copy(golden.join("signing.pem"), &key).unwrap();
        fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
        let manifest = fs::read(golden.join("bundle").join(MANIFEST)).unwrap();
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
        let run: RunId = manifest["run"].as_str().unwrap().parse().unwrap();
        fs::create_dir(home.bundle(run)).unwrap();
        for file in ringfence_model::bundle::FILES {
            fs::copy(
                golden.join("bundle").join(file),
                home.bundle(run).join(file),
            )
            .unwrap();
        }
        let store = Store::open(&home).unwrap();
        let lock = RunLock::create(&home, run).unwrap();
        let new = NewRun {
            name: None,
            folder: "/nowhere".into(),
            argv: vec!["true".into()],
            created_us: 1,
            driver: Driver::current(),
            detail: Map::new(),
        };
        store.insert_run(&lock, &new).unwrap();
        let end = FinishedRun {
            status,
            outcome: Some(Outcome::Exited),
            exit_code: Some(0),
            signal: None,
            ended_us: 2,
            duration_ms: 1,
            changed_files: 1,
            insertions: 1,
            deletions: 0,
            bundle: Some(bundle_path(run)),
            detail: Map::from_iter([(HELD.to_owned(), json!(held))]),
        };
        store.finish_run(run, &end).unwrap();
        Self {
            directory,
            home,
            store,
            run,
        }
    }

    pub(crate) fn row(&self) -> RunRecord {
        self.store.run(self.run).unwrap()
    }

    pub(crate) fn decide(&self, decision: Decision, anyway: Anyway) -> Result<Verdict, Error> {
        let deciding = Deciding {
            decision,
            by: person(Some("Ada".to_owned())),
            why: Some("seen".to_owned()),
            seen_sha256: None,
            shown: None,
            anyway,
        };
        record(&self.home, &self.store, &self.row(), deciding)
    }

    fn standing(&self) -> Result<Standing, Error> {
        standing(&self.store, &self.home, &self.row())
    }

    fn log(&self) -> std::path::PathBuf {
        self.home.root().join("verdicts.jsonl")
    }

    fn listed(&self, decided: Decided) -> usize {
        let filter = RunFilter {
            decided: Some(decided),
            ..RunFilter::default()
        };
        self.store.runs(filter, 10).unwrap().len()
    }
}

fn held(kind: HoldKind) -> Vec<Hold> {
    let detail = "because".to_owned();
    vec![Hold { kind, detail }]
}

#[test]
fn the_last_verdict_counts_and_all_are_kept() {
    let bench = Bench::new(RunStatus::Done, &held(HoldKind::NotReviewed));
    assert_eq!(
        bench.standing().unwrap(),
        Standing::Held(held(HoldKind::NotReviewed))
    );
    assert_eq!(
        (bench.listed(Decided::Held), bench.listed(Decided::Approved)),
        (1, 0)
    );
    let first = bench.decide(Decision::Approved, Anyway::No).unwrap();
    assert_eq!(bench.standing().unwrap(), Standing::Approved(first.clone()));
    assert_eq!(
        (bench.listed(Decided::Held), bench.listed(Decided::Approved)),
        (0, 1)
    );
    let second = bench.decide(Decision::Rejected, Anyway::No).unwrap();
    assert_eq!(
        bench.standing().unwrap(),
        Standing::Rejected(second.clone())
    );
    assert_eq!(
        (
            bench.listed(Decided::Approved),
            bench.listed(Decided::Rejected)
        ),
        (0, 1)
    );
    let all = history(&bench.home, &bench.store, bench.run.as_str()).unwrap();
    assert_eq!(all, [first, second]);
    let text = fs::read_to_string(bench.log()).unwrap();
    assert_eq!(text.lines().count(), 2);
    assert!(
        text.contains("\"name\":\"Ada\"") && text.contains(&account()),
        "{text}"
    );
}

#[test]
fn a_rejection_needs_a_reason_and_words_are_words() {
    let bench = Bench::new(RunStatus::Done, &[]);
    let by = || person(None);
    let deciding = |decision, by, why: Option<&str>| Deciding {
        decision,
        by,
        why: why.map(str::to_owned),
        seen_sha256: None,
        shown: None,
        anyway: Anyway::No,
    };
    let long = "x".repeat(MAX_WHY + 1);
    let odd = person(Some("Ada\u{1b}[2J".to_owned()));
    for bad in [
        deciding(Decision::Rejected, by(), None),
        deciding(Decision::Rejected, by(), Some(" \n")),
        deciding(Decision::Approved, by(), Some("fine\u{202e}")),
        deciding(Decision::Approved, by(), Some(&long)),
        deciding(Decision::Approved, odd, None),
        deciding(Decision::Approved, person(Some(" ".to_owned())), None),
    ] {
        let shown = format!("{bad:?}");
        let error = record(&bench.home, &bench.store, &bench.row(), bad).expect_err(&shown);
        assert_eq!(error.kind().exit_code(), 2, "{shown}: {error}");
    }
    assert!(!bench.log().exists());
}

#[test]
fn what_failed_is_approved_by_name_only() {
    for kind in [HoldKind::Failed, HoldKind::BaseMoved, HoldKind::TooLarge] {
        let bench = Bench::new(RunStatus::Failed, &held(kind));
        let error = bench.decide(Decision::Approved, Anyway::No).unwrap_err();
        assert_eq!(error.kind().exit_code(), 3, "{error}");
        assert!(error.hint().unwrap().contains("--anyway"));
        let verdict = bench.decide(Decision::Approved, Anyway::Yes).unwrap();
        assert_eq!(verdict.despite.len(), 1);
    }
    // A row of an earlier version says nothing, and the status does.
    let bench = Bench::new(RunStatus::BaseMoved, &[]);
    assert!(bench.decide(Decision::Approved, Anyway::No).is_err());
}

#[test]
fn a_changed_bundle_is_not_approved_and_its_approval_is_void() {
    let bench = Bench::new(RunStatus::Done, &[]);
    let verdict = bench.decide(Decision::Approved, Anyway::No).unwrap();
    let manifest = bench.home.bundle(bench.run).join(MANIFEST);
    let was = fs::read_to_string(&manifest).unwrap();
    fs::write(
        &manifest,
        was.replacen("\"schema\": 1", "\"schema\":  1", 1),
    )
    .unwrap();
    assert_ne!(was, fs::read_to_string(&manifest).unwrap());
    assert_eq!(
        bench.standing().unwrap(),
        Standing::Changed(verdict.clone())
    );
    let error = bench.decide(Decision::Approved, Anyway::Yes).unwrap_err();
    assert!(error.to_string().contains("not what was packed"), "{error}");
    // It can still be rejected, and comes back with its bytes.
    fs::write(&manifest, &was).unwrap();
    assert_eq!(bench.standing().unwrap(), Standing::Approved(verdict));
    // A patch that was changed alone: the manifest is the approved one, and nothing is approved.
    let patch = bench
        .home
        .bundle(bench.run)
        .join(ringfence_model::bundle::PATCH);
    let mut bytes = fs::read(&patch).unwrap();
    bytes.push(b'\n');
    fs::write(&patch, bytes).unwrap();
    let error = bench.decide(Decision::Approved, Anyway::Yes).unwrap_err();
    assert_eq!(error.kind().exit_code(), 3, "{error}");
    bench.decide(Decision::Rejected, Anyway::No).unwrap();
}

#[test]
fn what_was_shown_is_what_is_approved() {
    let bench = Bench::new(RunStatus::Done, &[]);
    let deciding = Deciding {
        decision: Decision::Approved,
        by: person(None),
        why: None,
        seen_sha256: Some("0".repeat(64)),
        shown: None,
        anyway: Anyway::No,
    };
    let error = record(&bench.home, &bench.store, &bench.row(), deciding).unwrap_err();
    assert!(
        error.to_string().contains("not the one that was shown"),
        "{error}"
    );
    assert!(!bench.log().exists());
}

#[test]
fn another_runs_bundle_is_not_approved() {
    let bench = Bench::new(RunStatus::Done, &[]);
    let other: RunId = "0123456789ab".parse().unwrap();
    let contents = verify::read(&bench.home.bundle(bench.run))
        .unwrap()
        .unwrap();
    let bundle = bench.home.bundle(bench.run);
    let error = check_bundle(&bench.home, other, &bundle, &contents).unwrap_err();
    assert!(error.to_string().contains("another run"), "{error}");
    // Signed well, by somebody whom nobody trusts.
    fs::remove_file(bench.home.keys().join("signing.pem")).unwrap();
    keys::own(&bench.home).unwrap();
    let error = bench.decide(Decision::Approved, Anyway::Yes).unwrap_err();
    assert!(error.to_string().contains("not what was packed"), "{error}");
}

#[test]
fn killed_between_log_and_store_it_goes_forward() {
    let bench = Bench::new(RunStatus::Done, &[]);
    bench.decide(Decision::Rejected, Anyway::No).unwrap();
    let mut verdict = bench.decide(Decision::Approved, Anyway::No).unwrap();
    verdict.decision = Decision::Rejected;
    verdict.why = Some("the last word".to_owned());
    // The line is there and the row is not, as after `kill -9`.
    let mut log = log::Log::open(&bench.home, &bench.store).unwrap();
    log.append(&verdict).unwrap();
    assert_eq!(
        bench.standing().unwrap(),
        Standing::Rejected(verdict.clone())
    );
    // Half a line is none, and the next one follows the last whole one.
    let whole = fs::read(bench.log()).unwrap();
    let mut cut = whole.clone();
    cut.extend_from_slice(b"{\"sequence\":3,\"time_us\":");
    fs::write(bench.log(), cut).unwrap();
    assert_eq!(bench.standing().unwrap(), Standing::Rejected(verdict));
    assert_eq!(fs::read(bench.log()).unwrap(), whole);
    bench.decide(Decision::Approved, Anyway::No).unwrap();
    let all = history(&bench.home, &bench.store, bench.run.as_str()).unwrap();
    assert_eq!(all.len(), 4);
}

#[test]
fn neither_log_nor_store_can_be_changed_alone() {
    let bench = Bench::new(RunStatus::Done, &[]);
    bench.decide(Decision::Rejected, Anyway::No).unwrap();
    bench.decide(Decision::Rejected, Anyway::No).unwrap();
    let text = fs::read_to_string(bench.log()).unwrap();
    let first = text.lines().next().unwrap();
    for (what, changed) in [
        ("a line less", Some(format!("{first}\n"))),
        ("another word", Some(text.replace("rejected", "approved"))),
        ("nothing in it", Some(String::new())),
        ("nothing there", None),
    ] {
        match &changed {
            Some(changed) => fs::write(bench.log(), changed).unwrap(),
            None => fs::remove_file(bench.log()).unwrap(),
        }
        let decided = bench.decide(Decision::Approved, Anyway::No);
        let error = decided.expect_err(what);
        assert_eq!(error.kind().exit_code(), 4, "{what}: {error}");
        assert!(error.hint().is_some(), "{what}");
        fs::write(bench.log(), &text).unwrap();
        bench.standing().unwrap();
    }
}

#[test]
fn a_row_of_the_store_alone_is_no_verdict() {
    let bench = Bench::new(RunStatus::Done, &[]);
    let sql = |text: &str| {
        let store = rusqlite::Connection::open(bench.home.store()).unwrap();
        store.execute_batch(text).unwrap();
    };
    let proven = || proven(&bench.store, &bench.home, &bench.row());
    let disagree = |what: &str| {
        let error = proven().expect_err(what);
        assert_eq!(error.kind().exit_code(), 4, "{what}: {error}");
        assert!(error.hint().is_some(), "{what}");
    };
    let verdict = Verdict {
        run: bench.run.to_string(),
        decision: Decision::Approved,
        by: person(Some("Mallory".to_owned())),
        at_us: 1,
        why: None,
        bundle_sha256: manifest_sha256(&bench.home, bench.run).unwrap(),
        despite: Vec::new(),
        shown: None,
    };
    let forged = serde_json::to_string(&verdict).unwrap().replace('\'', "''");
    let insert = |sequence: i64, length: u64| {
        sql(&format!(
            "INSERT INTO verdicts (sequence, run, decision, head, length, verdict)
             VALUES ({sequence}, '{}', 'approved', '{}', {length}, '{forged}')",
            bench.run,
            "0".repeat(64)
        ));
    };
    // Nobody has decided anything, and a row says so.
    insert(0, 0);
    disagree("a row, and no log");
    sql("DELETE FROM verdicts");
    assert_eq!(proven().unwrap().as_str(), "held");
    // Somebody said no. A row of another number, and the row itself with another word.
    let rejected = bench.decide(Decision::Rejected, Anyway::No).unwrap();
    let length = fs::metadata(bench.log()).unwrap().len();
    insert(1, length);
    disagree("a row after the last");
    sql("DELETE FROM verdicts WHERE sequence = 1");
    sql(&format!(
        "UPDATE verdicts SET decision = 'approved', verdict = '{forged}'"
    ));
    assert_eq!(bench.standing().unwrap().as_str(), "approved");
    disagree("the same row with another word");
    // The row is gone: what the log says counts all the same.
    sql("DELETE FROM verdicts");
    assert_eq!(proven().unwrap(), Standing::Rejected(rejected));
    // A number before all others, of a run that nobody has decided about.
    let other = Bench::new(RunStatus::Done, &[]);
    let store = rusqlite::Connection::open(other.home.store()).unwrap();
    let early = format!(
        "INSERT INTO verdicts (sequence, run, decision, head, length, verdict)
         VALUES (-1, '{}', 'approved', '', 0, '{forged}')",
        other.run
    );
    store.execute_batch(&early).unwrap();
    assert!(super::proven(&other.store, &other.home, &other.row()).is_err());
}
