//! What happened, in one order for all runs and sandboxes of a home.
//!
//! Triggers write it, in the same commit as what it tells of: nothing that the store took is
//! missing here, and nothing is here that the store did not take. It is for watching; the tables
//! themselves are the truth.

use rusqlite::{Row, params};
use serde::Serialize;
use serde_json::{Map, Value};

use super::runs::from_json;
use super::{Store, StoreError};
use crate::ids::CampaignId;

/// The table and its triggers, as a migration.
///
/// BOUND: the newest hundred thousand are kept.
pub(super) const SCHEMA: &str = "
    CREATE TABLE events (
        sequence INTEGER PRIMARY KEY AUTOINCREMENT,
        time_us  INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER) * 1000),
        what     TEXT    NOT NULL,
        subject  TEXT    NOT NULL,           -- the id of a run or sandbox
        detail   TEXT    NOT NULL            -- JSON: an object with the rest
    ) STRICT;
    CREATE INDEX events_by_subject ON events (subject, sequence);
    CREATE TRIGGER events_bound AFTER INSERT ON events WHEN NEW.sequence % 1000 = 0 BEGIN
        DELETE FROM events WHERE sequence <= NEW.sequence - 100000;
    END;

    CREATE TRIGGER run_began AFTER INSERT ON runs BEGIN
        INSERT INTO events (what, subject, detail) VALUES ('run.began', NEW.id,
            json_object('name', NEW.name,
                        'campaign', json_extract(NEW.detail, '$.campaign.name'),
                        'task', json_extract(NEW.detail, '$.campaign.task')));
    END;
    CREATE TRIGGER run_step AFTER INSERT ON steps WHEN NEW.state = 'intent' BEGIN
        INSERT INTO events (what, subject, detail)
        VALUES ('run.step', NEW.run, json_object('step', NEW.step));
    END;
    CREATE TRIGGER run_ended AFTER UPDATE OF status ON runs WHEN OLD.status <> NEW.status BEGIN
        INSERT INTO events (what, subject, detail) VALUES ('run.ended', NEW.id,
            json_object('status', NEW.status, 'outcome', NEW.outcome,
                        'exit_code', NEW.exit_code, 'signal', NEW.signal,
                        'duration_ms', NEW.duration_ms, 'changed_files', NEW.changed_files,
                        'insertions', NEW.insertions, 'deletions', NEW.deletions));
    END;
    CREATE TRIGGER run_removed AFTER DELETE ON runs BEGIN
        INSERT INTO events (what, subject, detail)
        VALUES ('run.removed', OLD.id, json_object('name', OLD.name));
    END;
    CREATE TRIGGER run_decided AFTER INSERT ON verdicts BEGIN
        INSERT INTO events (what, subject, detail)
        VALUES ('run.decided', NEW.run, json_object('decision', NEW.decision));
    END;
    CREATE TRIGGER run_published AFTER INSERT ON pull_requests BEGIN
        INSERT INTO events (what, subject, detail) VALUES ('run.pull_request', NEW.run,
            json_object('state', NEW.state, 'branch', NEW.branch));
    END;
    CREATE TRIGGER run_published_on AFTER UPDATE OF state ON pull_requests
    WHEN OLD.state <> NEW.state BEGIN
        INSERT INTO events (what, subject, detail) VALUES ('run.pull_request', NEW.run,
            json_object('state', NEW.state, 'branch', NEW.branch));
    END;

    CREATE TRIGGER sandbox_created AFTER INSERT ON sandboxes BEGIN
        INSERT INTO events (what, subject, detail) VALUES ('sandbox.created', NEW.id,
            json_object('name', NEW.name, 'tag', NEW.tag, 'state', NEW.state));
    END;
    CREATE TRIGGER sandbox_state AFTER UPDATE OF state ON sandboxes WHEN OLD.state <> NEW.state BEGIN
        INSERT INTO events (what, subject, detail)
        VALUES ('sandbox.state', NEW.id, json_object('state', NEW.state));
    END;
    CREATE TRIGGER sandbox_removed AFTER DELETE ON sandboxes BEGIN
        INSERT INTO events (what, subject, detail) VALUES ('sandbox.removed', OLD.id,
            json_object('name', OLD.name, 'tag', OLD.tag));
    END;
    CREATE TRIGGER sandbox_checkpoint AFTER INSERT ON checkpoints BEGIN
        INSERT INTO events (what, subject, detail)
        VALUES ('sandbox.checkpoint', NEW.sandbox, json_object('name', NEW.name));
    END;
    CREATE TRIGGER sandbox_exec AFTER INSERT ON calls BEGIN
        INSERT INTO events (what, subject, detail)
        VALUES ('sandbox.exec', NEW.sandbox, json_object('exec', NEW.sequence));
    END;
    CREATE TRIGGER sandbox_exec_ended AFTER UPDATE OF ended_us ON calls
    WHEN OLD.ended_us IS NULL AND NEW.ended_us IS NOT NULL BEGIN
        INSERT INTO events (what, subject, detail) VALUES ('sandbox.exec_ended', NEW.sandbox,
            json_object('exec', NEW.sequence, 'outcome', NEW.outcome,
                        'exit_code', NEW.exit_code, 'signal', NEW.signal));
    END;
    CREATE TRIGGER evicted AFTER INSERT ON evictions BEGIN
        INSERT INTO events (what, subject, detail)
        VALUES ('gc', NEW.subject, json_object('action', NEW.action, 'why', NEW.why));
    END;
";

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EventRecord {
    pub sequence: i64,
    pub time_us: i64,
    pub what: String,
    /// The id of what it happened to.
    pub subject: String,
    /// The rest; what is not known is left out.
    pub detail: Map<String, Value>,
}

/// Which events.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    /// Only those after this one.
    pub after: i64,
    /// Only those since.
    pub since_us: i64,
    /// Only those of one thing.
    pub subject: Option<String>,
    /// Only those of a campaign, its tasks and its runs: id and name.
    pub campaign: Option<(CampaignId, String)>,
}

impl Store {
    /// The oldest events that a filter lets through, in order, and at most `most`.
    pub fn events(
        &self,
        filter: &EventFilter,
        most: usize,
    ) -> Result<Vec<EventRecord>, StoreError> {
        let order = "ORDER BY sequence LIMIT ?4";
        self.select_events(filter, most, order)
    }

    /// The same of the newest ones, in order as well.
    pub fn last_events(
        &self,
        filter: &EventFilter,
        most: usize,
    ) -> Result<Vec<EventRecord>, StoreError> {
        let order = "ORDER BY sequence DESC LIMIT ?4";
        let mut events = self.select_events(filter, most, order)?;
        events.reverse();
        Ok(events)
    }

    fn select_events(
        &self,
        filter: &EventFilter,
        most: usize,
        order: &str,
    ) -> Result<Vec<EventRecord>, StoreError> {
        let read = || -> Result<Vec<EventRecord>, rusqlite::Error> {
            self.connection
                .prepare_cached(&format!(
                    "SELECT sequence, time_us, what, subject, detail FROM events
                     WHERE sequence > ?1 AND time_us >= ?2 AND (?3 IS NULL OR subject = ?3)
                     AND (?5 IS NULL OR subject = ?5 OR json_extract(detail, '$.campaign') = ?6
                          OR subject IN (SELECT id FROM runs
                                         WHERE json_extract(detail, '$.campaign.id') = ?5))
                     {order}"
                ))?
                .query_map(
                    params![
                        filter.after,
                        filter.since_us,
                        filter.subject,
                        most as i64,
                        filter.campaign.as_ref().map(|(id, _)| *id),
                        filter.campaign.as_ref().map(|(_, name)| name),
                    ],
                    decode,
                )?
                .collect()
        };
        read().map_err(|e| self.read_failed("events", e))
    }
}

fn decode(row: &Row<'_>) -> Result<EventRecord, rusqlite::Error> {
    let mut detail: Map<String, Value> = from_json(row, 4)?;
    detail.retain(|_, value| !value.is_null());
    Ok(EventRecord {
        sequence: row.get(0)?,
        time_us: row.get(1)?,
        what: row.get(2)?,
        subject: row.get(3)?,
        detail,
    })
}
