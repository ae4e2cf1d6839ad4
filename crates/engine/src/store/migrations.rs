//! How a store comes to its current shape.
//!
//! `PRAGMA user_version` counts the migrations that a store has had. Each is one synced
//! transaction. What has been released is never edited: a change of shape is one more entry.
//!
//! Words such as statuses have no CHECK, because adding one would mean to rewrite the table; the
//! types in Rust are the gate.

use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};

use super::{BUSY_TIMEOUT, Store, StoreError, events};

/// `rfnc` in ASCII: tells a store from any other SQLite file.
const APPLICATION_ID: i64 = 0x7266_6e63;

const MIGRATIONS: &[&str] = &[
    "
    CREATE TABLE runs (
        id            TEXT    NOT NULL PRIMARY KEY,
        name          TEXT,
        status        TEXT    NOT NULL,
        outcome       TEXT,
        exit_code     INTEGER,
        signal        INTEGER,
        folder        BLOB    NOT NULL,
        argv          TEXT    NOT NULL,  -- JSON: a list of byte strings
        created_us    INTEGER NOT NULL,
        started_us    INTEGER,
        ended_us      INTEGER,
        duration_ms   INTEGER,
        changed_files INTEGER,
        insertions    INTEGER,
        deletions     INTEGER,
        bundle        BLOB,              -- path, relative to the home
        pid           INTEGER NOT NULL,  -- of the process that drives it
        pid_start     INTEGER NOT NULL,  -- its start, in clock ticks since boot
        detail        TEXT    NOT NULL   -- JSON: an object with the rest
    ) STRICT;
    CREATE INDEX runs_by_creation ON runs (created_us, id);
    CREATE INDEX runs_by_status ON runs (status, created_us, id);
    CREATE UNIQUE INDEX runs_by_name ON runs (name) WHERE name IS NOT NULL;

    CREATE TABLE steps (
        run      TEXT    NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        sequence INTEGER NOT NULL,
        step     TEXT    NOT NULL,
        state    TEXT    NOT NULL,       -- intent, done or undone
        time_us  INTEGER NOT NULL,
        detail   TEXT,                   -- JSON
        PRIMARY KEY (run, sequence)
    ) STRICT, WITHOUT ROWID;
",
    "
    CREATE TABLE mirrors (
        id         TEXT    NOT NULL PRIMARY KEY,
        source     TEXT    NOT NULL UNIQUE,  -- a URL without credentials, or an absolute path
        state      TEXT    NOT NULL,         -- making, ready
        created_us INTEGER NOT NULL,
        fetched_us INTEGER,
        used_us    INTEGER NOT NULL,
        detail     TEXT    NOT NULL          -- JSON: an object with the rest
    ) STRICT;

    CREATE TABLE bases (
        id         TEXT    NOT NULL PRIMARY KEY,
        key        TEXT    NOT NULL UNIQUE,  -- what it was made of, so that it is made once
        kind       TEXT    NOT NULL,         -- commit, snapshot, stage, empty
        state      TEXT    NOT NULL,         -- making, ready
        mirror     TEXT    REFERENCES mirrors (id),
        commit_id  TEXT,
        tree       TEXT,                     -- git tree id, verified
        created_us INTEGER NOT NULL,
        used_us    INTEGER NOT NULL,
        detail     TEXT    NOT NULL
    ) STRICT;
    CREATE INDEX bases_by_mirror ON bases (mirror);

    CREATE TABLE layers (
        id         TEXT    NOT NULL PRIMARY KEY,
        base       TEXT    NOT NULL REFERENCES bases (id),
        parent     TEXT    REFERENCES layers (id),  -- absent: it lies on the base
        state      TEXT    NOT NULL,         -- making, sealed
        durable    INTEGER NOT NULL,         -- 1: synced
        created_us INTEGER NOT NULL,
        detail     TEXT    NOT NULL
    ) STRICT;
    CREATE INDEX layers_by_parent ON layers (parent);
    CREATE INDEX layers_by_base ON layers (base);

    CREATE TABLE sandboxes (
        id          TEXT    NOT NULL PRIMARY KEY,
        name        TEXT,
        tag         TEXT,
        state       TEXT    NOT NULL,
        base        TEXT    NOT NULL REFERENCES bases (id),
        head        TEXT    REFERENCES layers (id),  -- absent: it lies on the base
        incarnation INTEGER NOT NULL,        -- counts executions
        pinned      INTEGER NOT NULL,
        created_us  INTEGER NOT NULL,
        used_us     INTEGER NOT NULL,
        expires_us  INTEGER,
        pid         INTEGER,                 -- of its keeper
        pid_start   INTEGER,
        intent      TEXT,                    -- JSON: what is being done to it
        detail      TEXT    NOT NULL
    ) STRICT;
    CREATE INDEX sandboxes_by_creation ON sandboxes (created_us, id);
    CREATE INDEX sandboxes_by_state ON sandboxes (state);
    CREATE INDEX sandboxes_by_head ON sandboxes (head);
    CREATE INDEX sandboxes_by_base ON sandboxes (base);
    CREATE INDEX sandboxes_by_tag ON sandboxes (tag) WHERE tag IS NOT NULL;
    CREATE INDEX sandboxes_with_intent ON sandboxes (id) WHERE intent IS NOT NULL;
    CREATE UNIQUE INDEX sandboxes_by_name ON sandboxes (name) WHERE name IS NOT NULL;

    CREATE TABLE checkpoints (
        sandbox    TEXT    NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
        name       TEXT    NOT NULL,
        layer      TEXT    REFERENCES layers (id),   -- absent: the base as it is
        pinned     INTEGER NOT NULL,
        created_us INTEGER NOT NULL,
        PRIMARY KEY (sandbox, name)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX checkpoints_by_layer ON checkpoints (layer);

    CREATE TABLE calls (
        sandbox     TEXT    NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
        sequence    INTEGER NOT NULL,
        incarnation INTEGER NOT NULL,
        session     TEXT,
        argv        TEXT    NOT NULL,        -- JSON: a list of byte strings
        began_us    INTEGER NOT NULL,
        ended_us    INTEGER,
        outcome     TEXT,
        exit_code   INTEGER,
        signal      INTEGER,
        PRIMARY KEY (sandbox, sequence)
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE evictions (
        sequence INTEGER PRIMARY KEY,
        time_us  INTEGER NOT NULL,
        action   TEXT    NOT NULL,
        subject  TEXT    NOT NULL,
        why      TEXT    NOT NULL
    ) STRICT;
",
    "
    CREATE TABLE programs (
        folder   BLOB    NOT NULL,
        path     BLOB    NOT NULL,           -- as the inside names it
        first_us INTEGER NOT NULL,
        used_us  INTEGER NOT NULL,
        PRIMARY KEY (folder, path)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX programs_by_use ON programs (used_us);
",
    "
    CREATE TABLE verdicts (
        sequence INTEGER NOT NULL PRIMARY KEY,  -- the line of the log
        run      TEXT    NOT NULL,              -- may be gone; verdicts stay
        decision TEXT    NOT NULL,
        head     TEXT    NOT NULL,              -- hash of that line
        length   INTEGER NOT NULL,              -- of the log, with that line
        verdict  TEXT    NOT NULL               -- JSON: all of it
    ) STRICT;
    CREATE INDEX verdicts_by_run ON verdicts (run, sequence);

    CREATE TABLE pull_requests (
        run        TEXT    NOT NULL,
        remote     TEXT    NOT NULL,            -- a URL without credentials
        branch     TEXT    NOT NULL,
        state      TEXT    NOT NULL,            -- pushing, pushed, open
        commit_id  TEXT    NOT NULL,
        updated_us INTEGER NOT NULL,
        detail     TEXT    NOT NULL,            -- JSON: an object with the rest
        PRIMARY KEY (run, remote, branch)
    ) STRICT, WITHOUT ROWID;
",
    "
    CREATE TABLE environments (
        key        TEXT    NOT NULL PRIMARY KEY,  -- the hash of all that it was made of
        scope      TEXT    NOT NULL,              -- whose folder
        created_us INTEGER NOT NULL,
        used_us    INTEGER NOT NULL,
        bytes      INTEGER NOT NULL,
        detail     TEXT    NOT NULL               -- JSON: inputs, digests, programs
    ) STRICT;
",
    "
    CREATE TABLE images (
        digest     TEXT    NOT NULL PRIMARY KEY,
        layers     TEXT    NOT NULL,         -- JSON: diff ids, the lowest first
        documents  TEXT    NOT NULL,         -- JSON: digests of what is kept as it came
        config     TEXT    NOT NULL,         -- JSON: what runs in it are told
        created_us INTEGER NOT NULL,
        used_us    INTEGER NOT NULL
    ) STRICT;

    CREATE TABLE image_names (
        reference  TEXT    NOT NULL PRIMARY KEY,   -- whole
        digest     TEXT    NOT NULL REFERENCES images (digest) ON DELETE CASCADE
    ) STRICT;
    CREATE INDEX image_names_by_digest ON image_names (digest);

    CREATE TABLE image_layers (
        diff       TEXT    NOT NULL PRIMARY KEY,
        list       TEXT    NOT NULL,         -- digest of the list of what is in it
        entries    INTEGER NOT NULL,
        bytes      INTEGER NOT NULL,
        created_us INTEGER NOT NULL
    ) STRICT;

    CREATE TABLE image_uses (
        digest     TEXT    NOT NULL REFERENCES images (digest),
        user       TEXT    NOT NULL,         -- what stands on it, such as `sandbox ID`
        PRIMARY KEY (digest, user)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX image_uses_by_user ON image_uses (user);
",
    "
    -- Who stands on an image is in the rows of sandboxes and environments.
    DROP TABLE image_uses;
",
    events::SCHEMA,
    "
    CREATE TABLE campaigns (
        id         TEXT    NOT NULL PRIMARY KEY,
        name       TEXT    NOT NULL UNIQUE,
        folder     BLOB    NOT NULL,
        plan       TEXT    NOT NULL,         -- as it was written
        base       TEXT    NOT NULL,         -- JSON
        brief      TEXT    NOT NULL,         -- JSON, once for all tasks
        settings   TEXT    NOT NULL,         -- JSON
        created_us INTEGER NOT NULL,
        driven_ms  INTEGER NOT NULL,
        stop_us    INTEGER                   -- somebody asks the driver to stop
    ) STRICT;

    CREATE TABLE campaign_tasks (
        campaign   TEXT    NOT NULL REFERENCES campaigns (id) ON DELETE CASCADE,
        task       TEXT    NOT NULL,
        number     INTEGER NOT NULL,
        occasion   TEXT    NOT NULL,         -- JSON: first, between or last
        document   TEXT    NOT NULL,         -- JSON, without the text of the brief
        state      TEXT    NOT NULL,
        turn       INTEGER NOT NULL,
        tries      INTEGER NOT NULL,
        run        TEXT,                     -- the one that counts
        why        TEXT,
        files      INTEGER NOT NULL,
        figures    TEXT    NOT NULL,         -- JSON
        seen       TEXT    NOT NULL,         -- of the contents of its files
        updated_us INTEGER NOT NULL,
        PRIMARY KEY (campaign, task)
    ) STRICT, WITHOUT ROWID;

    CREATE INDEX runs_by_campaign ON runs (json_extract(detail, '$.campaign.id'), created_us, id)
        WHERE json_extract(detail, '$.campaign.id') IS NOT NULL;

    CREATE TRIGGER campaign_began AFTER INSERT ON campaigns BEGIN
        INSERT INTO events (what, subject, detail)
        VALUES ('campaign.began', NEW.id, json_object('name', NEW.name));
    END;
    CREATE TRIGGER campaign_removed AFTER DELETE ON campaigns BEGIN
        INSERT INTO events (what, subject, detail)
        VALUES ('campaign.removed', OLD.id, json_object('name', OLD.name));
    END;
    CREATE TRIGGER task_state AFTER UPDATE OF state ON campaign_tasks
    WHEN OLD.state <> NEW.state BEGIN
        INSERT INTO events (what, subject, detail) VALUES ('task.' || NEW.state, NEW.task,
            json_object('campaign', (SELECT name FROM campaigns WHERE id = NEW.campaign),
                        'number', NEW.number, 'run', NEW.run, 'why', NEW.why));
    END;
",
];

/// The schema that this program knows.
pub(super) const CURRENT: i64 = MIGRATIONS.len() as i64;

/// Brings a store to the current schema; reads two numbers where it is there already.
pub(super) fn bring_up(store: &Store) -> Result<(), StoreError> {
    let current = || -> Result<bool, rusqlite::Error> {
        Ok(pragma(&store.connection, "user_version")? == CURRENT
            && pragma(&store.connection, "application_id")? == APPLICATION_ID)
    };
    if current().map_err(|e| failed(store, e))? {
        return Ok(());
    }
    check(store)?;
    turn_on_log(store)?;
    for (index, sql) in MIGRATIONS.iter().enumerate() {
        migrate(store, index as i64 + 1, sql)?;
    }
    Ok(())
}

/// Refuses what is not ours to change.
fn check(store: &Store) -> Result<(), StoreError> {
    let read = || -> Result<(i64, i64, i64), rusqlite::Error> {
        // One look at all three, as another process may be making the store right now.
        let transaction = store.connection.unchecked_transaction()?;
        let tables = "SELECT count(*) FROM sqlite_schema";
        Ok((
            transaction.query_row(tables, [], |row| row.get(0))?,
            pragma(&transaction, "application_id")?,
            pragma(&transaction, "user_version")?,
        ))
    };
    let path = store.path.clone();
    match read().map_err(|e| failed(store, e))? {
        // A file that was cut before its first migration.
        (0, 0, 0) => Ok(()),
        (_, APPLICATION_ID, 0..=CURRENT) => Ok(()),
        (_, APPLICATION_ID, found) if found > CURRENT => Err(StoreError::Newer {
            path,
            found,
            known: CURRENT,
        }),
        _ => Err(StoreError::Foreign { path }),
    }
}

/// Switches to the write-ahead log, which the file then remembers. SQLite does not wait by itself
/// where two processes do this at once.
fn turn_on_log(store: &Store) -> Result<(), StoreError> {
    let deadline = Instant::now() + BUSY_TIMEOUT;
    loop {
        let result: Result<String, _> =
            store
                .connection
                .query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0));
        match result {
            Ok(_) => return Ok(()),
            Err(e)
                if e.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && Instant::now() < deadline =>
            {
                thread::sleep(Duration::from_millis(5));
            }
            Err(e) => return Err(failed(store, e)),
        }
    }
}

fn migrate(store: &Store, version: i64, sql: &str) -> Result<(), StoreError> {
    let run = || -> Result<(), rusqlite::Error> {
        let connection = store.acknowledgement()?;
        let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
        // Looked at again under the lock: another process may have been faster.
        if pragma(&transaction, "user_version")? >= version {
            return transaction.rollback();
        }
        transaction.execute_batch(sql)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", version)?;
        transaction.commit()
    };
    run().map_err(|e| {
        store.failed(e, |source| StoreError::Migrate {
            path: store.path.clone(),
            version,
            source,
        })
    })
}

fn pragma(connection: &Connection, name: &str) -> Result<i64, rusqlite::Error> {
    connection.pragma_query_value(None, name, |row| row.get(0))
}

fn failed(store: &Store, source: rusqlite::Error) -> StoreError {
    store.failed(source, |source| super::open_failed(&store.path, source))
}
