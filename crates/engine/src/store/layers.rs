//! Sealed layers and the names that hold them: checkpoints.

use ringfence_model::limits::Limits;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};

use super::runs::{from_json, json};
use super::sandboxes::{Intent, Pin};
use super::{Driver, Store, StoreError};
use crate::clock::now_us;
use crate::ids::{BaseId, LayerId, SandboxId};

/// A sealed layer, or one that is being made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerRecord {
    pub id: LayerId,
    pub base: BaseId,
    pub parent: Option<LayerId>,
    pub sealed: bool,
    /// Synced: it survives a power cut.
    pub durable: bool,
    pub created_us: i64,
    /// What it takes of the disk; nothing until it was counted.
    pub bytes: u64,
    pub inodes: u64,
    /// The layers that it was made of, topmost first, and those that they were made of.
    pub covers: Vec<LayerId>,
    /// Who made it, or makes it.
    pub maker: Option<Driver>,
}

impl LayerRecord {
    /// What of the disk bounds sealed layers leave.
    pub fn left(stack: &[Self], limits: &Limits) -> Limits {
        let mut left = limits.clone();
        for layer in stack {
            left.disk_bytes = left.disk_bytes.map(|n| n.saturating_sub(layer.bytes));
            left.disk_inodes = left.disk_inodes.map(|n| n.saturating_sub(layer.inodes));
        }
        left
    }
}

/// A state of a workspace that has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointRecord {
    pub sandbox: SandboxId,
    pub name: String,
    /// Absent: the base as it is.
    pub layer: Option<LayerId>,
    pub pinned: bool,
    pub created_us: i64,
    pub durable: bool,
}

const LAYER: &str = "SELECT id, base, parent, state = 'sealed', durable, created_us,
    coalesce(detail ->> 'bytes', 0), coalesce(detail ->> 'inodes', 0),
    coalesce(detail -> 'covers', '[]'), detail ->> 'pid', detail ->> 'start' FROM layers";

/// Whether a sandbox lies on more layers than `?2`, or it or a checkpoint of it on one that is not
/// synced.
const NEEDS_SETTLING: &str = "
    WITH RECURSIVE
    stack (id) AS (
        SELECT head FROM sandboxes WHERE id = ?1 AND head IS NOT NULL
        UNION
        SELECT parent FROM layers JOIN stack USING (id) WHERE parent IS NOT NULL
    ),
    named (id) AS (
        SELECT layer FROM checkpoints WHERE sandbox = ?1 AND layer IS NOT NULL
        UNION
        SELECT parent FROM layers JOIN named USING (id) WHERE parent IS NOT NULL
    )
    SELECT (SELECT count(*) FROM stack) > ?2 OR EXISTS (
        SELECT 1 FROM (SELECT id FROM stack UNION ALL SELECT id FROM named)
        JOIN layers USING (id) WHERE state = 'sealed' AND durable = 0
    )";

impl Store {
    /// In one commit: a layer is about to be made of a sandbox's top. Synced: what is moved away is
    /// found again by this alone.
    pub fn seal_begins(
        &self,
        sandbox: SandboxId,
        (base, parent): (BaseId, Option<LayerId>),
        layer: LayerId,
        intent: &Intent,
    ) -> Result<(), StoreError> {
        self.in_one(sandbox, "seal", Store::acknowledgement, |transaction| {
            insert_layer(transaction, layer, base, parent)?;
            transaction
                .prepare_cached("UPDATE sandboxes SET intent = ?2 WHERE id = ?1")?
                .execute(params![sandbox, json(intent)])?;
            Ok(())
        })
    }

    /// In one commit: the layer is sealed, the head is said, the checkpoint has its name, and what is
    /// next to be done is recorded. On the disk when this returns where there is a checkpoint; without
    /// one nobody was promised anything yet, and the next acknowledgement (that of a fork) takes it
    /// along.
    pub fn sealed(
        &self,
        sandbox: SandboxId,
        layer: LayerId,
        head: Option<LayerId>,
        checkpoint: Option<&str>,
        next: Option<&Intent>,
    ) -> Result<(), StoreError> {
        let commit = match checkpoint {
            Some(_) => Store::acknowledgement,
            None => Store::intent,
        };
        self.in_one(sandbox, "seal", commit, |transaction| {
            transaction
                .prepare_cached("UPDATE layers SET state = 'sealed' WHERE id = ?1")?
                .execute([layer])?;
            transaction
                .prepare_cached(
                    "UPDATE sandboxes SET head = ?2, intent = ?4, used_us = ?3 WHERE id = ?1",
                )?
                .execute(params![sandbox, head, now_us(), next.map(json)])?;
            match checkpoint {
                Some(name) => name_checkpoint(transaction, sandbox, name, Some(layer)),
                None => Ok(()),
            }
        })
    }

    /// Takes back what `seal_begins` recorded.
    pub fn seal_undone(&self, sandbox: SandboxId, layer: LayerId) -> Result<(), StoreError> {
        self.in_one(sandbox, "undo", Store::intent, |transaction| {
            transaction
                .prepare_cached("UPDATE sandboxes SET intent = NULL WHERE id = ?1")?
                .execute([sandbox])?;
            transaction
                .prepare_cached("DELETE FROM layers WHERE id = ?1 AND state = 'making'")?
                .execute([layer])?;
            Ok(())
        })
    }

    /// Names a state that is sealed already; on the disk when this returns.
    pub fn insert_checkpoint(
        &self,
        sandbox: SandboxId,
        name: &str,
        layer: Option<LayerId>,
    ) -> Result<(), StoreError> {
        self.in_one(
            sandbox,
            "checkpoint",
            Store::acknowledgement,
            |transaction| name_checkpoint(transaction, sandbox, name, layer),
        )
    }

    /// A layer made of others, which stands for them.
    pub fn insert_squashed(
        &self,
        layer: LayerId,
        base: BaseId,
        covers: &[LayerId],
    ) -> Result<(), StoreError> {
        let insert = || -> Result<(), rusqlite::Error> {
            insert_layer(self.intent()?, layer, base, None)?;
            self.connection
                .prepare_cached(
                    "UPDATE layers SET detail = json_set(detail, '$.covers', json(?2))
                     WHERE id = ?1",
                )?
                .execute(params![layer, json(covers)])?;
            Ok(())
        };
        insert().map_err(|e| self.write_failed("squash", None, e))
    }

    /// In one synced commit: the layer is whole and on the disk, and the sandbox lies on it. False,
    /// and the layer is forgotten, where the head moved on meanwhile.
    pub fn squashed(
        &self,
        sandbox: SandboxId,
        from: LayerId,
        to: LayerId,
        (bytes, inodes): (u64, u64),
    ) -> Result<bool, StoreError> {
        let mut replaced = false;
        self.in_one(sandbox, "squash", Store::acknowledgement, |transaction| {
            let rows = transaction
                .prepare_cached(
                    "UPDATE sandboxes SET head = ?3
                     WHERE id = ?1 AND head = ?2 AND intent IS NULL",
                )?
                .execute(params![sandbox, from, to])?;
            replaced = rows == 1;
            if replaced {
                transaction
                    .prepare_cached(
                        "UPDATE layers SET state = 'sealed', durable = 1,
                             detail = json_set(detail, '$.bytes', ?2, '$.inodes', ?3)
                         WHERE id = ?1",
                    )?
                    .execute(params![to, bytes.cast_signed(), inodes.cast_signed()])?;
            } else {
                transaction
                    .prepare_cached("DELETE FROM layers WHERE id = ?1")?
                    .execute([to])?;
            }
            Ok(())
        })?;
        Ok(replaced)
    }

    /// Layers from a head down to the base, topmost first.
    pub fn stack(&self, head: Option<LayerId>) -> Result<Vec<LayerRecord>, StoreError> {
        let mut stack = Vec::new();
        let mut next = head;
        while let Some(id) = next {
            let layer = self.layer(id)?.ok_or_else(|| StoreError::NoLayer {
                layer: id.to_string(),
            })?;
            next = layer.parent;
            stack.push(layer);
        }
        Ok(stack)
    }

    /// All layers that a state came from, topmost first, also those that were squashed since.
    pub fn lineage(&self, head: Option<LayerId>) -> Result<Vec<LayerId>, StoreError> {
        let stack = self.stack(head)?;
        let with_covered = |layer: LayerRecord| [layer.id].into_iter().chain(layer.covers);
        Ok(stack.into_iter().flat_map(with_covered).collect())
    }

    /// Whether layers of a sandbox are not synced yet, or it lies on more of them than is good.
    pub fn needs_settling(&self, sandbox: SandboxId, deep: usize) -> Result<bool, StoreError> {
        let read = || {
            self.connection
                .prepare_cached(NEEDS_SETTLING)?
                .query_row(params![sandbox, deep as i64], |row| row.get(0))
        };
        read().map_err(|e| self.read_failed(sandbox.as_str(), e))
    }

    pub fn layer(&self, id: LayerId) -> Result<Option<LayerRecord>, StoreError> {
        let read = || {
            self.connection
                .prepare_cached(&format!("{LAYER} WHERE id = ?1"))?
                .query_row([id], decode_layer)
                .optional()
        };
        read().map_err(|e| self.read_failed(id.as_str(), e))
    }

    pub fn layers(&self) -> Result<Vec<LayerRecord>, StoreError> {
        let read = || -> Result<Vec<LayerRecord>, rusqlite::Error> {
            self.connection
                .prepare_cached(&format!("{LAYER} ORDER BY created_us, id"))?
                .query_map([], decode_layer)?
                .collect()
        };
        read().map_err(|e| self.read_failed("layers", e))
    }

    /// It is synced, and takes so much of the disk.
    pub fn layer_durable(&self, id: LayerId, bytes: u64, inodes: u64) -> Result<(), StoreError> {
        let update = || {
            self.acknowledgement()?
                .prepare_cached(
                    "UPDATE layers SET durable = 1,
                         detail = json_set(detail, '$.bytes', ?2, '$.inodes', ?3)
                     WHERE id = ?1",
                )?
                .execute(params![id, bytes.cast_signed(), inodes.cast_signed()])
        };
        update()
            .map(drop)
            .map_err(|e| self.write_failed("sync", None, e))
    }

    /// Forgets a layer that nothing stands on; false where something does. Looked at in the same
    /// statement: whoever plans to remove it may have looked long ago.
    pub fn remove_layer(&self, id: LayerId) -> Result<bool, StoreError> {
        let delete = || {
            self.acknowledgement()?
                .prepare_cached(
                    "DELETE FROM layers WHERE id = ?1
                     AND NOT EXISTS (SELECT 1 FROM layers WHERE parent = ?1)
                     AND NOT EXISTS (SELECT 1 FROM sandboxes WHERE head = ?1)
                     AND NOT EXISTS (SELECT 1 FROM checkpoints WHERE layer = ?1)
                     AND NOT EXISTS (SELECT 1 FROM sandboxes
                         WHERE intent IS NOT NULL AND instr(intent, ?1) > 0)
                     AND NOT EXISTS (SELECT 1 FROM sandboxes
                         WHERE state = 'running' AND instr(detail, ?1) > 0)",
                )?
                .execute([id])
        };
        let rows = delete().map_err(|e| self.write_failed("remove", None, e))?;
        Ok(rows == 1)
    }

    /// The checkpoints of a sandbox, in the order in which they were made.
    pub fn checkpoints(&self, sandbox: SandboxId) -> Result<Vec<CheckpointRecord>, StoreError> {
        let read = || -> Result<Vec<CheckpointRecord>, rusqlite::Error> {
            self.connection
                .prepare_cached(
                    "SELECT c.sandbox, c.name, c.layer, c.pinned, c.created_us,
                         coalesce(l.durable, 1)
                     FROM checkpoints c LEFT JOIN layers l ON l.id = c.layer
                     WHERE c.sandbox = ?1 ORDER BY c.created_us, c.name",
                )?
                .query_map([sandbox], |row| {
                    Ok(CheckpointRecord {
                        sandbox: row.get(0)?,
                        name: row.get(1)?,
                        layer: row.get(2)?,
                        pinned: row.get::<_, i64>(3)? != 0,
                        created_us: row.get(4)?,
                        durable: row.get::<_, i64>(5)? != 0,
                    })
                })?
                .collect()
        };
        read().map_err(|e| self.read_failed(sandbox.as_str(), e))
    }

    pub fn checkpoint(
        &self,
        sandbox: SandboxId,
        name: &str,
    ) -> Result<CheckpointRecord, StoreError> {
        let found = self.checkpoints(sandbox)?;
        found
            .into_iter()
            .find(|checkpoint| checkpoint.name == name)
            .ok_or_else(|| StoreError::NoCheckpoint {
                sandbox: sandbox.to_string(),
                name: name.chars().take(64).collect(),
            })
    }

    pub fn pin_checkpoint(
        &self,
        sandbox: SandboxId,
        name: &str,
        pin: Pin,
    ) -> Result<(), StoreError> {
        let update = || {
            self.acknowledgement()?
                .prepare_cached(
                    "UPDATE checkpoints SET pinned = ?3 WHERE sandbox = ?1 AND name = ?2",
                )?
                .execute(params![sandbox, name, pin.number()])
        };
        self.one_row("pin", sandbox, update())
    }

    fn in_one(
        &self,
        sandbox: SandboxId,
        what: &'static str,
        commit: fn(&Self) -> Result<&Connection, rusqlite::Error>,
        work: impl FnOnce(&Transaction<'_>) -> Result<(), rusqlite::Error>,
    ) -> Result<(), StoreError> {
        let run = || -> Result<(), rusqlite::Error> {
            let transaction =
                Transaction::new_unchecked(commit(self)?, TransactionBehavior::Immediate)?;
            work(&transaction)?;
            transaction.commit()
        };
        run().map_err(|e| self.write_failed(what, Some(sandbox), e))
    }
}

fn insert_layer(
    connection: &Connection,
    layer: LayerId,
    base: BaseId,
    parent: Option<LayerId>,
) -> Result<(), rusqlite::Error> {
    let maker = Driver::current();
    connection
        .prepare_cached(
            "INSERT INTO layers (id, base, parent, state, durable, created_us, detail)
             VALUES (?1, ?2, ?3, 'making', 0, ?4, json_object('pid', ?5, 'start', ?6))",
        )?
        .execute(params![
            layer,
            base,
            parent,
            now_us(),
            maker.pid,
            maker.start_ticks.cast_signed()
        ])?;
    Ok(())
}

/// A name that is taken moves to the newer state.
fn name_checkpoint(
    connection: &Connection,
    sandbox: SandboxId,
    name: &str,
    layer: Option<LayerId>,
) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached(
            "INSERT INTO checkpoints (sandbox, name, layer, pinned, created_us)
             VALUES (?1, ?2, ?3, 0, ?4)",
        )?
        .execute(params![sandbox, name, layer, now_us()])?;
    Ok(())
}

fn decode_layer(row: &Row<'_>) -> Result<LayerRecord, rusqlite::Error> {
    let (pid, start): (Option<u32>, Option<i64>) = (row.get(9)?, row.get(10)?);
    Ok(LayerRecord {
        id: row.get(0)?,
        base: row.get(1)?,
        parent: row.get(2)?,
        sealed: row.get::<_, i64>(3)? != 0,
        durable: row.get::<_, i64>(4)? != 0,
        created_us: row.get(5)?,
        bytes: row.get::<_, i64>(6)?.cast_unsigned(),
        inodes: row.get::<_, i64>(7)?.cast_unsigned(),
        covers: from_json(row, 8)?,
        maker: pid.zip(start).map(|(pid, start)| Driver {
            pid,
            start_ticks: start.cast_unsigned(),
        }),
    })
}
