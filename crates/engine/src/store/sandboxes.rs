//! Sandboxes in the store: one row each, from the moment that something is about to happen.
//!
//! What is being done to a sandbox is in its `intent`, set before the effect and cleared with the
//! result in one commit. Whoever finds an intent that nobody works on rolls it forward or back.

use ringfence_model::ByteText;
use ringfence_model::limits::Limits;
use ringfence_model::policy::Effective;
use ringfence_model::policy::network::Rules;
use ringfence_model::sandbox::{EndReason, SandboxState};
use rusqlite::{OptionalExtension, Row, Transaction, TransactionBehavior, params};
use serde::{Deserialize, Serialize};

use super::find::MIN_PREFIX;
use super::runs::{bad_column, check_name, from_json, is_unique_violation, json};
use super::{Driver, Store, StoreError};
use crate::backend::NATIVE;
use crate::clock::now_us;
use crate::ids::{BaseId, LayerId, SandboxId, may_begin_id};
use crate::workspace::Ignored;

/// All that the store knows of a sandbox.
#[derive(Clone, Debug)]
pub struct SandboxRecord {
    pub id: SandboxId,
    pub name: Option<String>,
    pub tag: Option<String>,
    pub state: SandboxState,
    pub base: BaseId,
    /// The topmost sealed layer; absent where it lies on the base.
    pub head: Option<LayerId>,
    pub incarnation: u64,
    pub pinned: bool,
    pub created_us: i64,
    pub used_us: i64,
    pub expires_us: Option<i64>,
    /// Its keeper, or while it is being made its maker.
    pub keeper: Option<Driver>,
    pub intent: Option<Intent>,
    pub detail: SandboxDetail,
}

/// What has no column of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SandboxDetail {
    /// What holds its executions.
    #[serde(default = "native", skip_serializing_if = "is_native")]
    pub backend: String,
    /// What was asked for as its base, for a person.
    pub source: String,
    pub limits: Limits,
    pub env: Vec<(ByteText, ByteText)>,
    #[serde(default)]
    pub ignored: Ignored,
    /// What it is held to; of this, limits and variables are above as well.
    #[serde(default)]
    pub policy: Effective,
    /// Other names of files that are hidden in the folder that it was copied from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<ByteText>,
    /// What a setup made for it, and caches: directories of the home.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stands_on: Vec<String>,
    pub idle_seconds: Option<u64>,
    pub auto_checkpoint: AutoCheckpoint,
    #[serde(default)]
    pub forked_from: Option<SandboxId>,
    /// How the last execution ended.
    #[serde(default)]
    pub ended: Option<Ended>,
    /// The layers under the running execution, topmost first.
    #[serde(default)]
    pub mounted: Vec<LayerId>,
}

fn native() -> String {
    NATIVE.to_owned()
}

fn is_native(backend: &String) -> bool {
    backend == NATIVE
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AutoCheckpoint {
    #[default]
    Never,
    EachExec,
}

/// How an execution ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    pub reason: EndReason,
    /// How many processes ended with it.
    pub processes: u64,
    pub at_us: i64,
    /// The hash of its journal's last line; absent where that could not be kept.
    #[serde(default)]
    pub journal_head: Option<String>,
}

/// What is being done to a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Intent {
    /// The top becomes a sealed layer.
    Seal {
        layer: LayerId,
        how: SealHow,
        checkpoint: Option<String>,
    },
    /// The top is thrown away and the head is another one.
    Rollback {
        head: Option<LayerId>,
    },
    /// Forks of a sealed copy are about to be made.
    Fork {
        layer: LayerId,
    },
    Remove,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SealHow {
    /// The top itself is moved away; the sandbox goes on above it.
    Swap,
    /// A copy; the top stays where it is.
    Copy,
}

/// What is known when a sandbox is about to be made.
#[derive(Clone, Debug)]
pub struct NewSandbox {
    pub id: SandboxId,
    pub name: Option<String>,
    pub tag: Option<String>,
    pub base: BaseId,
    pub head: Option<LayerId>,
    pub expires_us: Option<i64>,
    pub detail: SandboxDetail,
}

macro_rules! select_sandboxes {
    ($rest:literal) => {
        concat!(
            "SELECT id, name, tag, state, base, head, incarnation, pinned, created_us, used_us, ",
            "expires_us, pid, pid_start, intent, detail FROM sandboxes ",
            $rest
        )
    };
}

const INSERT: &str = "
    INSERT INTO sandboxes (id, name, tag, state, base, head, incarnation, pinned, created_us,
        used_us, expires_us, pid, pid_start, detail)
    VALUES (?1, ?2, ?3, 'making', ?4, ?5, 0, 0, ?6, ?6, ?7, ?8, ?9, ?10)";

impl Store {
    /// Records that sandboxes are about to be made: all or none.
    pub fn insert_sandboxes(&self, new: &[NewSandbox]) -> Result<(), StoreError> {
        let maker = Driver::current();
        for name in new.iter().filter_map(|sandbox| sandbox.name.as_ref()) {
            check_name(name)?;
        }
        let insert = || -> Result<(), rusqlite::Error> {
            let connection = self.intent()?;
            let transaction =
                Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
            for sandbox in new {
                transaction.prepare_cached(INSERT)?.execute(params![
                    sandbox.id,
                    sandbox.name,
                    sandbox.tag,
                    sandbox.base,
                    sandbox.head,
                    now_us(),
                    sandbox.expires_us,
                    maker.pid,
                    maker.start_ticks.cast_signed(),
                    json(&sandbox.detail),
                ])?;
            }
            transaction.commit()
        };
        insert().map_err(|e| {
            let name = new.iter().find_map(|sandbox| sandbox.name.clone());
            match (name, is_unique_violation(&e)) {
                (Some(name), true) => StoreError::NameTaken { name },
                _ => self.write_failed("make", new.first().map(|sandbox| sandbox.id), e),
            }
        })
    }

    /// Refuses a name that cannot be one, or that is taken.
    pub fn check_sandbox_name(&self, name: &str) -> Result<(), StoreError> {
        check_name(name)?;
        match self.one_sandbox(select_sandboxes!("WHERE name = ?1"), name)? {
            Some(_) => Err(StoreError::NameTaken {
                name: name.to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// Records that they are there; on the disk when this returns.
    pub fn sandboxes_made(&self, ids: &[SandboxId]) -> Result<(), StoreError> {
        let update = || -> Result<(), rusqlite::Error> {
            let connection = self.acknowledgement()?;
            let transaction =
                Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
            for id in ids {
                transaction
                    .prepare_cached(
                        "UPDATE sandboxes SET state = 'ready', pid = NULL, pid_start = NULL
                         WHERE id = ?1 AND state = 'making'",
                    )?
                    .execute([id])?;
            }
            transaction.commit()
        };
        update().map_err(|e| self.write_failed("make", ids.first().copied(), e))
    }

    /// One sandbox; `NoSandbox` where there is none.
    pub fn sandbox(&self, id: SandboxId) -> Result<SandboxRecord, StoreError> {
        self.one_sandbox(select_sandboxes!("WHERE id = ?1"), id.as_str())?
            .ok_or_else(|| no_sandbox(id.as_str()))
    }

    /// The sandbox that is meant by a full id, a name, the beginning of an id, or `last`.
    pub fn find_sandbox(&self, text: &str) -> Result<SandboxRecord, StoreError> {
        if text == "last" || text == "@" {
            let newest =
                select_sandboxes!("WHERE ?1 != '' ORDER BY created_us DESC, id DESC LIMIT 1");
            return self
                .one_sandbox(newest, text)?
                .ok_or_else(|| no_sandbox(text));
        }
        if let Ok(id) = text.parse() {
            return self.sandbox(id);
        }
        if let Some(found) = self.one_sandbox(select_sandboxes!("WHERE name = ?1"), text)? {
            return Ok(found);
        }
        if text.len() < MIN_PREFIX || !may_begin_id(text) {
            return Err(no_sandbox(text));
        }
        let beginning = select_sandboxes!("WHERE id >= ?1 AND id < ?1 || '{' ORDER BY id LIMIT 9");
        let mut found = self.some_sandboxes(beginning, params![text])?;
        match (found.pop(), found.is_empty()) {
            (None, _) => Err(no_sandbox(text)),
            (Some(one), true) => Ok(one),
            (Some(last), false) => Err(StoreError::AmbiguousSandbox {
                text: text.to_owned(),
                candidates: found
                    .iter()
                    .chain([&last])
                    .map(|sandbox| sandbox.id)
                    .collect(),
            }),
        }
    }

    /// All sandboxes, newest first.
    pub fn sandboxes(&self) -> Result<Vec<SandboxRecord>, StoreError> {
        self.some_sandboxes(select_sandboxes!("ORDER BY created_us DESC, id DESC"), [])
    }

    pub fn sandboxes_tagged(&self, tag: &str) -> Result<Vec<SandboxRecord>, StoreError> {
        self.some_sandboxes(select_sandboxes!("WHERE tag = ?1 ORDER BY id"), [tag])
    }

    /// Those that a dead process may have left half done: being made, with an intent, or running.
    pub fn unsettled_sandboxes(&self) -> Result<Vec<SandboxRecord>, StoreError> {
        self.some_sandboxes(
            select_sandboxes!("WHERE state IN ('making', 'running') OR intent IS NOT NULL"),
            [],
        )
    }

    /// Records what is about to be done. Synced: an effect that is on the disk without the word
    /// what it was for would be half of something.
    pub fn set_intent(&self, id: SandboxId, intent: &Intent) -> Result<(), StoreError> {
        let update = || {
            self.acknowledgement()?
                .prepare_cached("UPDATE sandboxes SET intent = ?2 WHERE id = ?1")?
                .execute(params![id, json(intent)])
        };
        self.one_row("prepare", id, update())
    }

    /// Nothing is being done any more.
    pub fn clear_intent(&self, id: SandboxId) -> Result<(), StoreError> {
        let update = || {
            self.intent()?
                .prepare_cached("UPDATE sandboxes SET intent = NULL WHERE id = ?1")?
                .execute([id])
        };
        self.one_row("settle", id, update())
    }

    /// Records that the head is another one; on the disk when this returns.
    pub fn rolled_back(&self, id: SandboxId, head: Option<LayerId>) -> Result<(), StoreError> {
        let update = || {
            self.acknowledgement()?
                .prepare_cached(
                    "UPDATE sandboxes SET head = ?2, intent = NULL, used_us = ?3 WHERE id = ?1",
                )?
                .execute(params![id, head, now_us()])
        };
        self.one_row("roll back", id, update())
    }

    /// Records an execution, by the keeper itself.
    pub fn execution_started(
        &self,
        id: SandboxId,
        incarnation: u64,
        mounted: &[LayerId],
    ) -> Result<(), StoreError> {
        let keeper = Driver::current();
        let update = || {
            self.intent()?
                .prepare_cached(
                    "UPDATE sandboxes SET state = 'running', incarnation = ?2, pid = ?3,
                         pid_start = ?4, used_us = ?5,
                         detail = json_set(detail, '$.mounted', json(?6))
                     WHERE id = ?1",
                )?
                .execute(params![
                    id,
                    incarnation.cast_signed(),
                    keeper.pid,
                    keeper.start_ticks.cast_signed(),
                    now_us(),
                    json(mounted)
                ])
        };
        self.one_row("start", id, update())
    }

    /// Records what a sandbox may reach; on the disk when this returns.
    pub fn set_network(&self, id: SandboxId, rules: &Rules) -> Result<(), StoreError> {
        let update = || {
            self.acknowledgement()?
                .prepare_cached(
                    "UPDATE sandboxes SET detail = json_set(detail, '$.policy.network.rules', json(?2))
                     WHERE id = ?1",
                )?
                .execute(params![id, json(rules)])
        };
        self.one_row("change the network of", id, update())
    }

    /// Records what holds the next execution of a sandbox; on the disk when this returns.
    pub fn set_held(&self, id: SandboxId, detail: &SandboxDetail) -> Result<(), StoreError> {
        let image = &detail.policy.environment.image;
        let update = || {
            self.acknowledgement()?
                .prepare_cached(
                    "UPDATE sandboxes SET detail = json_set(detail, '$.backend', ?2,
                         '$.stands_on', json(?3), '$.env', json(?4),
                         '$.policy.environment.image', json(?5))
                     WHERE id = ?1",
                )?
                .execute(params![
                    id,
                    detail.backend,
                    json(&detail.stands_on),
                    json(&detail.env),
                    json(image)
                ])
        };
        self.one_row("move", id, update())
    }

    /// Records the end of an execution; on the disk when this returns.
    pub fn execution_ended(
        &self,
        id: SandboxId,
        incarnation: u64,
        state: SandboxState,
        ended: Ended,
    ) -> Result<bool, StoreError> {
        let update = || {
            self.acknowledgement()?
                .prepare_cached(
                    "UPDATE sandboxes SET state = ?3, pid = NULL, pid_start = NULL,
                         detail = json_set(detail, '$.ended', json(?4), '$.mounted', json('[]'))
                     WHERE id = ?1 AND incarnation = ?2 AND state = 'running'",
                )?
                .execute(params![
                    id,
                    incarnation.cast_signed(),
                    state.as_str(),
                    json(ended)
                ])
        };
        let rows = update().map_err(|e| self.write_failed("end", Some(id), e))?;
        Ok(rows == 1)
    }

    /// Records that an execution did not come up, or that its keeper is gone; false where it does
    /// not claim to run.
    pub fn execution_gone(
        &self,
        id: SandboxId,
        incarnation: u64,
        state: SandboxState,
    ) -> Result<bool, StoreError> {
        let update = || {
            self.intent()?
                .prepare_cached(
                    "UPDATE sandboxes SET state = ?3, pid = NULL, pid_start = NULL,
                         detail = json_set(detail, '$.mounted', json('[]'))
                     WHERE id = ?1 AND incarnation = ?2 AND state = 'running'",
                )?
                .execute(params![id, incarnation.cast_signed(), state.as_str()])
        };
        let rows = update().map_err(|e| self.write_failed("settle", Some(id), e))?;
        Ok(rows == 1)
    }

    /// Sets a state that follows from what is seen, such as `lost` or `expired`.
    pub fn set_state(
        &self,
        id: SandboxId,
        from: SandboxState,
        to: SandboxState,
    ) -> Result<bool, StoreError> {
        let update = || {
            self.intent()?
                .prepare_cached("UPDATE sandboxes SET state = ?3 WHERE id = ?1 AND state = ?2")?
                .execute(params![id, from.as_str(), to.as_str()])
        };
        let rows = update().map_err(|e| self.write_failed("settle", Some(id), e))?;
        Ok(rows == 1)
    }

    pub fn touch_sandbox(&self, id: SandboxId) -> Result<(), StoreError> {
        let update = || {
            self.intent()?
                .prepare_cached("UPDATE sandboxes SET used_us = ?2 WHERE id = ?1")?
                .execute(params![id, now_us()])
        };
        self.one_row("touch", id, update())
    }

    pub fn pin_sandbox(&self, id: SandboxId, pin: Pin) -> Result<(), StoreError> {
        let update = || {
            self.acknowledgement()?
                .prepare_cached("UPDATE sandboxes SET pinned = ?2 WHERE id = ?1")?
                .execute(params![id, pin.number()])
        };
        self.one_row("pin", id, update())
    }

    /// Forgets a sandbox with its checkpoints and calls; on the disk when this returns.
    pub fn remove_sandbox(&self, id: SandboxId) -> Result<bool, StoreError> {
        let delete = || {
            self.acknowledgement()?
                .prepare_cached("DELETE FROM sandboxes WHERE id = ?1")?
                .execute([id])
        };
        let rows = delete().map_err(|e| self.write_failed("remove", Some(id), e))?;
        Ok(rows == 1)
    }

    fn one_sandbox(&self, sql: &str, key: &str) -> Result<Option<SandboxRecord>, StoreError> {
        let read = || {
            self.connection
                .prepare_cached(sql)?
                .query_row([key], decode)
                .optional()
        };
        read().map_err(|e| self.read_failed(key, e))
    }

    fn some_sandboxes(
        &self,
        sql: &str,
        parameters: impl rusqlite::Params,
    ) -> Result<Vec<SandboxRecord>, StoreError> {
        let read = || -> Result<Vec<SandboxRecord>, rusqlite::Error> {
            self.connection
                .prepare_cached(sql)?
                .query_map(parameters, decode)?
                .collect()
        };
        read().map_err(|e| self.read_failed("list", e))
    }

    pub(super) fn one_row(
        &self,
        what: &'static str,
        id: SandboxId,
        rows: Result<usize, rusqlite::Error>,
    ) -> Result<(), StoreError> {
        match rows {
            Ok(0) => Err(no_sandbox(id.as_str())),
            Ok(_) => Ok(()),
            Err(e) => Err(self.write_failed(what, Some(id), e)),
        }
    }

    pub(super) fn write_failed(
        &self,
        what: &'static str,
        id: Option<SandboxId>,
        source: rusqlite::Error,
    ) -> StoreError {
        let sandbox = id.map(|id| id.to_string()).unwrap_or_default();
        self.failed(source, |source| StoreError::WriteSandbox {
            what,
            sandbox,
            source,
        })
    }

    pub(super) fn read_failed(&self, subject: &str, source: rusqlite::Error) -> StoreError {
        self.failed(source, |source| StoreError::ReadSandbox {
            subject: subject.chars().take(64).collect(),
            source,
        })
    }
}

/// Whether `gc` may ever take something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    Keep,
    Release,
}

impl Pin {
    pub(super) fn number(self) -> i64 {
        match self {
            Self::Keep => 1,
            Self::Release => 0,
        }
    }
}

fn no_sandbox(text: &str) -> StoreError {
    StoreError::NoSandbox {
        subject: text.chars().take(64).collect(),
    }
}

fn decode(row: &Row<'_>) -> Result<SandboxRecord, rusqlite::Error> {
    let state: String = row.get(3)?;
    let pid: Option<u32> = row.get(11)?;
    let intent: Option<String> = row.get(13)?;
    Ok(SandboxRecord {
        id: row.get(0)?,
        name: row.get(1)?,
        tag: row.get(2)?,
        state: SandboxState::parse(&state)
            .ok_or_else(|| bad_column(3, format!("unknown state `{state}`")))?,
        base: row.get(4)?,
        head: row.get(5)?,
        incarnation: row.get::<_, i64>(6)?.cast_unsigned(),
        pinned: row.get::<_, i64>(7)? != 0,
        created_us: row.get(8)?,
        used_us: row.get(9)?,
        expires_us: row.get(10)?,
        keeper: pid
            .map(|pid| -> Result<Driver, rusqlite::Error> {
                Ok(Driver {
                    pid,
                    start_ticks: row.get::<_, i64>(12)?.cast_unsigned(),
                })
            })
            .transpose()?,
        intent: intent
            .map(|text| serde_json::from_str(&text).map_err(|e| bad_column(13, e)))
            .transpose()?,
        detail: from_json(row, 14)?,
    })
}
