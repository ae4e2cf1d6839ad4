//! Sealed layers and the names that hold them: checkpoints.

use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};

use super::runs::json;
use super::sandboxes::{Intent, Pin};
use super::{Store, StoreError};
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
    /// It shows what the stack of this one showed, which may be gone.
    pub squashed: Option<LayerId>,
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
    detail ->> 'squashed' FROM layers";

impl Store {
    /// In one commit: a layer is about to be made of a sandbox's top.
    pub fn seal_begins(
        &self,
        sandbox: SandboxId,
        (base, parent): (BaseId, Option<LayerId>),
        layer: LayerId,
        intent: &Intent,
    ) -> Result<(), StoreError> {
        self.in_one(sandbox, "seal", Store::intent, |transaction| {
            insert_layer(transaction, layer, base, parent)?;
            transaction
                .prepare_cached("UPDATE sandboxes SET intent = ?2 WHERE id = ?1")?
                .execute(params![sandbox, json(intent)])?;
            Ok(())
        })
    }

    /// In one synced commit: the layer is sealed, the head is said, the checkpoint has its name.
    pub fn sealed(
        &self,
        sandbox: SandboxId,
        layer: LayerId,
        head: Option<LayerId>,
        checkpoint: Option<&str>,
    ) -> Result<(), StoreError> {
        self.in_one(sandbox, "seal", Store::acknowledgement, |transaction| {
            transaction
                .prepare_cached("UPDATE layers SET state = 'sealed' WHERE id = ?1")?
                .execute([layer])?;
            transaction
                .prepare_cached(
                    "UPDATE sandboxes SET head = ?2, intent = NULL, used_us = ?3 WHERE id = ?1",
                )?
                .execute(params![sandbox, head, now_us()])?;
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
    /// A layer that will show what the stack of another one shows.
    pub fn insert_squashed(&self, layer: LayerId, head: &LayerRecord) -> Result<(), StoreError> {
        let insert = || -> Result<(), rusqlite::Error> {
            let connection = self.intent()?;
            insert_layer(connection, layer, head.base, None)?;
            connection
                .prepare_cached(
                    "UPDATE layers SET detail = json_set(detail, '$.squashed', ?2) WHERE id = ?1",
                )?
                .execute(params![layer, head.id])?;
            Ok(())
        };
        insert().map_err(|e| self.write_failed("squash", None, e))
    }

    pub fn layer_made(&self, layer: LayerId) -> Result<(), StoreError> {
        let update = || {
            self.intent()?
                .prepare_cached("UPDATE layers SET state = 'sealed' WHERE id = ?1")?
                .execute([layer])
        };
        update()
            .map(drop)
            .map_err(|e| self.write_failed("seal", None, e))
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

    /// All layers that a state came from, topmost first: its stack, and behind each layer that was
    /// squashed the stack that it stands for, as far as that is still there.
    pub fn lineage(&self, head: Option<LayerId>) -> Result<Vec<LayerRecord>, StoreError> {
        let mut line: Vec<LayerRecord> = Vec::new();
        let mut open: Vec<LayerId> = head.into_iter().collect();
        while let Some(id) = open.pop() {
            if line.iter().any(|known| known.id == id) {
                continue;
            }
            if let Some(layer) = self.layer(id)? {
                open.extend(layer.parent);
                open.extend(layer.squashed);
                line.push(layer);
            }
        }
        Ok(line)
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

    pub fn layer_durable(&self, id: LayerId) -> Result<(), StoreError> {
        let update = || {
            self.acknowledgement()?
                .prepare_cached("UPDATE layers SET durable = 1 WHERE id = ?1")?
                .execute([id])
        };
        update()
            .map(drop)
            .map_err(|e| self.write_failed("sync", None, e))
    }

    /// Forgets a layer that nothing stands on; false where something does.
    pub fn remove_layer(&self, id: LayerId) -> Result<bool, StoreError> {
        let delete = || {
            self.acknowledgement()?
                .prepare_cached(
                    "DELETE FROM layers WHERE id = ?1
                     AND NOT EXISTS (SELECT 1 FROM layers WHERE parent = ?1)
                     AND NOT EXISTS (SELECT 1 FROM sandboxes WHERE head = ?1)
                     AND NOT EXISTS (SELECT 1 FROM checkpoints WHERE layer = ?1)",
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

    pub fn remove_checkpoint(&self, sandbox: SandboxId, name: &str) -> Result<bool, StoreError> {
        let delete = || {
            self.acknowledgement()?
                .prepare_cached("DELETE FROM checkpoints WHERE sandbox = ?1 AND name = ?2")?
                .execute(params![sandbox, name])
        };
        let rows = delete().map_err(|e| self.write_failed("remove", Some(sandbox), e))?;
        Ok(rows == 1)
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
    connection
        .prepare_cached(
            "INSERT INTO layers (id, base, parent, state, durable, created_us, detail)
             VALUES (?1, ?2, ?3, 'making', 0, ?4, '{}')",
        )?
        .execute(params![layer, base, parent, now_us()])?;
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
    Ok(LayerRecord {
        id: row.get(0)?,
        base: row.get(1)?,
        parent: row.get(2)?,
        sealed: row.get::<_, i64>(3)? != 0,
        durable: row.get::<_, i64>(4)? != 0,
        created_us: row.get(5)?,
        squashed: row.get(6)?,
    })
}
