//! A hundred thousand runs cost no more to look at than a hundred.
//!
//! Counted in steps of SQLite's machine, not in time, so that a loaded host changes nothing.

use rusqlite::{Params, StatementStatus, params};

use super::super::find::BY_PREFIX;
use super::super::recover::RUNNING;
use super::super::runs::{BY_ID, BY_NAME, LIST, LIST_STATUS, NEWEST};
use super::*;

/// Fills the store to this many runs.
fn fill(store: &Store, count: i64) {
    store
        .connection
        .execute(
            "WITH RECURSIVE n (n) AS (
                 SELECT (SELECT count(*) FROM runs) UNION ALL SELECT n + 1 FROM n WHERE n + 1 < ?1)
             INSERT INTO runs (id, status, folder, argv, created_us, pid, pid_start, detail)
             SELECT printf('%012d', n * 7919 % 1000003), iif(n % 3, 'done', 'failed'), x'2f',
                 '[\"true\"]', n, 1, 1, '{}'
             FROM n",
            [count],
        )
        .unwrap();
}

fn steps(store: &Store, sql: &str, parameters: impl Params) -> i32 {
    let mut statement = store.connection.prepare(sql).unwrap();
    let mut rows = statement.query(parameters).unwrap();
    while rows.next().unwrap().is_some() {}
    drop(rows);
    assert_eq!(
        statement.get_status(StatementStatus::FullscanStep),
        0,
        "{sql}"
    );
    assert_eq!(statement.get_status(StatementStatus::Sort), 0, "{sql}");
    statement.get_status(StatementStatus::VmStep)
}

fn all_steps(store: &Store) -> Vec<(&'static str, i32)> {
    let (latest, beyond) = (i64::MAX, "~");
    vec![
        ("list", steps(store, LIST, params![latest, beyond, 20])),
        (
            "list from the middle",
            steps(store, LIST, params![50, "5", 20]),
        ),
        (
            "list failed",
            steps(store, LIST_STATUS, params![latest, beyond, 20, "failed"]),
        ),
        (
            "list lost",
            steps(store, LIST_STATUS, params![latest, beyond, 20, "lost"]),
        ),
        ("newest", steps(store, NEWEST, [])),
        ("by id", steps(store, BY_ID, ["000000000000"])),
        ("by name", steps(store, BY_NAME, ["x"])),
        ("by prefix", steps(store, BY_PREFIX, params!["00000", 9])),
        ("recover", steps(store, RUNNING, [])),
    ]
}

#[test]
fn the_cost_of_a_look_does_not_follow_the_number_of_runs() {
    let (_directory, home) = home();
    let store = Store::open(&home).unwrap();
    fill(&store, 100);
    let few = all_steps(&store);
    fill(&store, 100_000);
    let many = all_steps(&store);
    for ((what, few), (_, many)) in few.into_iter().zip(many) {
        let ratio = f64::from(many) / f64::from(few);
        println!("{what}: {few} steps with 100 runs, {many} with 100,000, ratio {ratio:.2}");
        // BOUND: one more seek or two as the tree gets deeper.
        assert!(ratio < 1.5, "{what}: {ratio}");
    }
}

#[test]
fn every_look_goes_by_an_index() {
    let (_directory, home) = home();
    let store = Store::open(&home).unwrap();
    fill(&store, 1000);
    for (sql, index) in [
        (LIST, "USING INDEX runs_by_creation"),
        (
            LIST_STATUS,
            "USING INDEX runs_by_status (status=? AND (created_us,id)<(?,?))",
        ),
        (NEWEST, "USING INDEX runs_by_creation"),
        (BY_NAME, "USING INDEX runs_by_name"),
        (BY_ID, "USING INDEX sqlite_autoindex_runs_1"),
        (
            BY_PREFIX,
            "USING COVERING INDEX sqlite_autoindex_runs_1 (id>? AND id<?)",
        ),
        (RUNNING, "USING COVERING INDEX runs_by_status (status=?)"),
    ] {
        let mut statement = store
            .connection
            .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
            .unwrap();
        let plan: Vec<String> = statement
            .raw_query()
            .mapped(|row| row.get(3))
            .collect::<Result<_, _>>()
            .unwrap();
        assert_eq!(plan.len(), 1, "{plan:?}");
        assert!(plan[0].contains(index), "{plan:?}");
    }
}
