//! Mirrors and bases as the store knows them.
//!
//! ```text
//! (nothing) ──▶ making ──▶ ready          a killed maker leaves `making`; the next one goes on
//! ```
//!
//! INVARIANT: `making` is there before the directory, `ready` only after its content is synced.

use rusqlite::{OptionalExtension, Params, Row, params};
use serde_json::{Map, Value};

use super::runs::{bad_column, json};
use super::{Store, StoreError};
use crate::clock::now_us;
use crate::ids::{BaseId, MirrorId};

/// How far the making of a mirror or a base is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceState {
    Making,
    Ready,
}

impl SourceState {
    /// The word used in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Making => "making",
            Self::Ready => "ready",
        }
    }
}

/// What a base was made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseKind {
    /// A commit of a mirror.
    Commit,
    /// A folder as it was.
    Snapshot,
    /// Some files of another base.
    Stage,
    /// Nothing.
    Empty,
}

impl BaseKind {
    /// The word used in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Snapshot => "snapshot",
            Self::Stage => "stage",
            Self::Empty => "empty",
        }
    }

    /// Reads the stored word back.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Commit, Self::Snapshot, Self::Stage, Self::Empty]
            .into_iter()
            .find(|kind| kind.as_str() == word)
    }
}

/// All that the store knows of a mirror.
#[derive(Clone, Debug, PartialEq)]
pub struct MirrorRecord {
    pub id: MirrorId,
    /// A URL without credentials, or an absolute path.
    pub source: String,
    pub state: SourceState,
    pub created_us: i64,
    /// When all branches and tags were last fetched.
    pub fetched_us: Option<i64>,
    pub used_us: i64,
    pub detail: Map<String, Value>,
}

/// All that the store knows of a base.
#[derive(Clone, Debug, PartialEq)]
pub struct BaseRecord {
    pub id: BaseId,
    /// What it was made of, so that it is made once.
    pub key: String,
    pub kind: BaseKind,
    pub state: SourceState,
    pub mirror: Option<MirrorId>,
    pub commit: Option<String>,
    /// Git tree id of the workspace as it was checked out, verified.
    pub tree: Option<String>,
    pub created_us: i64,
    pub used_us: i64,
    pub detail: Map<String, Value>,
}

/// A base that is about to be made.
#[derive(Clone, Debug)]
pub struct NewBase {
    pub id: BaseId,
    pub key: String,
    pub kind: BaseKind,
    pub mirror: Option<MirrorId>,
}

/// What a finished base turned out to be.
#[derive(Clone, Debug, Default)]
pub struct FinishedBase {
    pub commit: Option<String>,
    pub tree: Option<String>,
    pub detail: Map<String, Value>,
}

const SELECT_MIRRORS: &str =
    "SELECT id, source, state, created_us, fetched_us, used_us, detail FROM mirrors";
const SELECT_BASES: &str = "SELECT id, key, kind, state, mirror, commit_id, tree, created_us,
    used_us, detail FROM bases";
/// A killed maker's row is taken over; what it says of its content is void.
const INSERT_BASE: &str = "
    INSERT INTO bases (id, key, kind, state, mirror, created_us, used_us, detail)
    VALUES (?1, ?2, ?3, 'making', ?4, ?5, ?5, '{}')
    ON CONFLICT (id) DO UPDATE SET state = 'making', commit_id = NULL, tree = NULL,
        detail = '{}'
        WHERE key = excluded.key";

/// Bases that refer to a mirror: their own, and those that their submodules are read from.
const MIRROR_USERS: &str = "
    SELECT id FROM bases WHERE mirror = ?1
        OR EXISTS (SELECT 1 FROM json_each(bases.detail, '$.objects') WHERE value = ?1)
    ORDER BY id";
/// One statement, so that nobody can begin to use it in between.
const REMOVE_MIRROR: &str = "
    DELETE FROM mirrors WHERE id = ?1 AND NOT EXISTS (
        SELECT 1 FROM bases, json_each(bases.detail, '$.objects') WHERE value = ?1)";
/// A staged base needs the whole one to know what it conceals.
const REMOVE_BASE: &str = "
    DELETE FROM bases WHERE id = ?1 AND NOT EXISTS (
        SELECT 1 FROM bases WHERE key LIKE 'stage ' || ?1 || ' %')";

impl Store {
    /// Records that a mirror is about to be made; one that is being made is left as it is.
    pub fn insert_mirror(&self, id: MirrorId, source: &str) -> Result<(), StoreError> {
        let insert = || {
            self.intent()?
                .prepare_cached(
                    "INSERT INTO mirrors (id, source, state, created_us, used_us, detail)
                     VALUES (?1, ?2, 'making', ?3, ?3, '{}') ON CONFLICT (id) DO NOTHING",
                )?
                .execute(params![id, source, now_us()])
        };
        insert().map_err(|e| self.record_failed(e, "mirror", id.as_str()))?;
        Ok(())
    }

    /// Records that everything was fetched. It is on the disk when this returns.
    pub fn finish_mirror(&self, id: MirrorId, fetched_us: i64) -> Result<(), StoreError> {
        let update = || {
            self.acknowledgement()?
                .prepare_cached(
                    "UPDATE mirrors SET state = 'ready', fetched_us = ?2, used_us = max(used_us, ?2)
                     WHERE id = ?1",
                )?
                .execute(params![id, fetched_us])
        };
        let rows = update().map_err(|e| self.record_failed(e, "mirror", id.as_str()))?;
        there(rows, "mirror", id.as_str())
    }

    /// Records that a mirror was used just now.
    pub fn touch_mirror(&self, id: MirrorId) -> Result<(), StoreError> {
        self.touch("UPDATE mirrors SET used_us = ?2 WHERE id = ?1", id.as_str())
            .map_err(|e| self.record_failed(e, "mirror", id.as_str()))
    }

    /// One mirror, if it is known.
    pub fn mirror(&self, id: MirrorId) -> Result<Option<MirrorRecord>, StoreError> {
        let sql = format!("{SELECT_MIRRORS} WHERE id = ?1");
        self.read_source(&sql, [id], decode_mirror)
            .map_err(|e| self.source_failed(e, "mirror", id.as_str()))
    }

    /// All mirrors, the least recently used first.
    pub fn mirrors(&self) -> Result<Vec<MirrorRecord>, StoreError> {
        let sql = format!("{SELECT_MIRRORS} ORDER BY used_us, id");
        self.list_sources(&sql, decode_mirror)
            .map_err(|e| self.source_failed(e, "mirror", "*"))
    }

    /// The bases that refer to a mirror, by `mirror` or by `objects` in their detail.
    pub fn mirror_users(&self, id: MirrorId) -> Result<Vec<BaseId>, StoreError> {
        let list = || {
            self.connection
                .prepare_cached(MIRROR_USERS)?
                .query_map([id], |row| row.get(0))?
                .collect::<Result<Vec<_>, _>>()
        };
        list().map_err(|e| self.source_failed(e, "mirror", id.as_str()))
    }

    /// Forgets a mirror, for good when it returns; false where there is none. One that a base
    /// refers to is in use.
    pub fn remove_mirror(&self, id: MirrorId) -> Result<bool, StoreError> {
        let removed = self.delete(REMOVE_MIRROR, "mirror", id.as_str())?;
        if !removed && self.mirror(id)?.is_some() {
            return Err(in_use("mirror", id.as_str()));
        }
        Ok(removed)
    }

    /// Records that a base is about to be made, or made again.
    pub fn insert_base(&self, new: &NewBase) -> Result<(), StoreError> {
        let id = new.id;
        let insert = || {
            self.intent()?.prepare_cached(INSERT_BASE)?.execute(params![
                id,
                new.key,
                new.kind.as_str(),
                new.mirror,
                now_us()
            ])
        };
        let rows = insert().map_err(|e| self.record_failed(e, "base", id.as_str()))?;
        there(rows, "base", id.as_str())
    }

    /// Records what a base is. It is on the disk when this returns.
    pub fn finish_base(&self, id: BaseId, end: &FinishedBase) -> Result<(), StoreError> {
        let update = || {
            self.acknowledgement()?
                .prepare_cached(
                    "UPDATE bases SET state = 'ready', commit_id = ?2, tree = ?3, detail = ?4
                     WHERE id = ?1 AND state = 'making'",
                )?
                .execute(params![id, end.commit, end.tree, json(&end.detail)])
        };
        let rows = update().map_err(|e| self.record_failed(e, "base", id.as_str()))?;
        there(rows, "base", id.as_str())
    }

    /// Records that a base was used just now.
    pub fn touch_base(&self, id: BaseId) -> Result<(), StoreError> {
        self.touch("UPDATE bases SET used_us = ?2 WHERE id = ?1", id.as_str())
            .map_err(|e| self.record_failed(e, "base", id.as_str()))
    }

    /// One base, if it is known.
    pub fn base(&self, id: BaseId) -> Result<Option<BaseRecord>, StoreError> {
        let sql = format!("{SELECT_BASES} WHERE id = ?1");
        self.read_source(&sql, [id], decode_base)
            .map_err(|e| self.source_failed(e, "base", id.as_str()))
    }

    /// A whole base of a commit, whatever branch it was asked for by.
    pub fn base_of_commit(
        &self,
        mirror: MirrorId,
        commit: &str,
    ) -> Result<Option<BaseRecord>, StoreError> {
        let sql = format!(
            "{SELECT_BASES} WHERE mirror = ?1 AND commit_id = ?2 AND kind = 'commit'
             AND state = 'ready' AND detail ->> 'missing' IS NULL
             AND key NOT LIKE '%without submodules%' ORDER BY used_us DESC LIMIT 1"
        );
        self.read_source(&sql, params![mirror, commit], decode_base)
            .map_err(|e| self.source_failed(e, "base", commit))
    }

    /// All bases, the least recently used first.
    pub fn bases(&self) -> Result<Vec<BaseRecord>, StoreError> {
        let sql = format!("{SELECT_BASES} ORDER BY used_us, id");
        self.list_sources(&sql, decode_base)
            .map_err(|e| self.source_failed(e, "base", "*"))
    }

    /// Says of a base that is being made which mirrors it reads, so that they stay.
    pub fn base_reads(&self, id: BaseId, objects: &[MirrorId]) -> Result<(), StoreError> {
        let ids: Vec<&str> = objects.iter().map(MirrorId::as_str).collect();
        let detail = Map::from_iter([("objects".to_owned(), Value::from(ids))]);
        let update = || {
            self.intent()?
                .prepare_cached("UPDATE bases SET detail = ?2 WHERE id = ?1 AND state = 'making'")?
                .execute(params![id, json(&detail)])
        };
        let rows = update().map_err(|e| self.record_failed(e, "base", id.as_str()))?;
        there(rows, "base", id.as_str())
    }

    /// Forgets a base, for good when it returns; false where there is none. One that a layer, a
    /// sandbox or a staged base refers to is in use.
    pub fn remove_base(&self, id: BaseId) -> Result<bool, StoreError> {
        let removed = self.delete(REMOVE_BASE, "base", id.as_str())?;
        if !removed && self.base(id)?.is_some() {
            return Err(in_use("base", id.as_str()));
        }
        Ok(removed)
    }

    fn touch(&self, sql: &str, id: &str) -> Result<(), rusqlite::Error> {
        self.intent()?
            .prepare_cached(sql)?
            .execute(params![id, now_us()])?;
        Ok(())
    }

    fn delete(&self, sql: &str, what: &'static str, id: &str) -> Result<bool, StoreError> {
        let delete = || self.acknowledgement()?.prepare_cached(sql)?.execute([id]);
        match delete() {
            Ok(rows) => Ok(rows == 1),
            // Another row refers to it.
            Err(error)
                if error.sqlite_error_code() == Some(rusqlite::ErrorCode::ConstraintViolation) =>
            {
                Err(in_use(what, id))
            }
            Err(error) => Err(self.record_failed(error, what, id)),
        }
    }

    fn read_source<T>(
        &self,
        sql: &str,
        parameters: impl Params,
        decode: fn(&Row<'_>) -> Result<T, rusqlite::Error>,
    ) -> Result<Option<T>, rusqlite::Error> {
        self.connection
            .prepare_cached(sql)?
            .query_row(parameters, decode)
            .optional()
    }

    fn list_sources<T>(
        &self,
        sql: &str,
        decode: fn(&Row<'_>) -> Result<T, rusqlite::Error>,
    ) -> Result<Vec<T>, rusqlite::Error> {
        self.connection
            .prepare_cached(sql)?
            .query_map([], decode)?
            .collect()
    }

    fn record_failed(&self, source: rusqlite::Error, what: &'static str, id: &str) -> StoreError {
        self.failed(source, |source| StoreError::RecordSource {
            what,
            id: id.to_owned(),
            source,
        })
    }

    fn source_failed(&self, source: rusqlite::Error, what: &'static str, id: &str) -> StoreError {
        self.failed(source, |source| StoreError::ReadSource {
            what,
            id: id.to_owned(),
            source,
        })
    }
}

fn in_use(what: &'static str, id: &str) -> StoreError {
    StoreError::SourceInUse {
        what,
        id: id.to_owned(),
    }
}

fn there(rows: usize, what: &'static str, id: &str) -> Result<(), StoreError> {
    match rows {
        0 => Err(StoreError::SourceGone {
            what,
            id: id.to_owned(),
        }),
        _ => Ok(()),
    }
}

fn decode_mirror(row: &Row<'_>) -> Result<MirrorRecord, rusqlite::Error> {
    Ok(MirrorRecord {
        id: row.get(0)?,
        source: row.get(1)?,
        state: state(row, 2)?,
        created_us: row.get(3)?,
        fetched_us: row.get(4)?,
        used_us: row.get(5)?,
        detail: detail(row, 6)?,
    })
}

fn decode_base(row: &Row<'_>) -> Result<BaseRecord, rusqlite::Error> {
    let kind: String = row.get(2)?;
    Ok(BaseRecord {
        id: row.get(0)?,
        key: row.get(1)?,
        kind: BaseKind::parse(&kind)
            .ok_or_else(|| bad_column(2, format!("unknown kind `{kind}`")))?,
        state: state(row, 3)?,
        mirror: row.get(4)?,
        commit: row.get(5)?,
        tree: row.get(6)?,
        created_us: row.get(7)?,
        used_us: row.get(8)?,
        detail: detail(row, 9)?,
    })
}

fn state(row: &Row<'_>, index: usize) -> Result<SourceState, rusqlite::Error> {
    match row.get::<_, String>(index)?.as_str() {
        "making" => Ok(SourceState::Making),
        "ready" => Ok(SourceState::Ready),
        word => Err(bad_column(index, format!("unknown state `{word}`"))),
    }
}

fn detail(row: &Row<'_>, index: usize) -> Result<Map<String, Value>, rusqlite::Error> {
    let text: String = row.get(index)?;
    serde_json::from_str(&text).map_err(|e| bad_column(index, e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::home::Home;

    #[test]
    fn mirrors_and_bases_are_made_used_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(Some(directory.path().join("home"))).unwrap();
        let store = Store::open(&home).unwrap();
        let mirror = MirrorId::random().unwrap();
        assert_eq!(store.mirror(mirror).unwrap(), None);
        assert!(store.finish_mirror(mirror, 1).is_err());
        store
            .insert_mirror(mirror, "https://example.org/a")
            .unwrap();
        store
            .insert_mirror(mirror, "https://example.org/a")
            .unwrap();
        let record = store.mirror(mirror).unwrap().unwrap();
        assert_eq!(record.state, SourceState::Making);
        assert_eq!(record.fetched_us, None);
        store.finish_mirror(mirror, 77).unwrap();
        store
            .insert_mirror(mirror, "https://example.org/a")
            .unwrap();
        let record = store.mirror(mirror).unwrap().unwrap();
        assert_eq!(record.state, SourceState::Ready);
        assert_eq!(record.fetched_us, Some(77));

        let new = NewBase {
            id: BaseId::random().unwrap(),
            key: "commit x y".to_owned(),
            kind: BaseKind::Commit,
            mirror: Some(mirror),
        };
        store.insert_base(&new).unwrap();
        let end = FinishedBase {
            commit: Some("c".to_owned()),
            tree: Some("t".to_owned()),
            detail: Map::from_iter([("a".to_owned(), Value::from(1))]),
        };
        store.finish_base(new.id, &end).unwrap();
        assert!(store.finish_base(new.id, &end).is_err());
        let record = store.base(new.id).unwrap().unwrap();
        assert_eq!(record.state, SourceState::Ready);
        assert_eq!(record.detail, end.detail);
        assert_eq!(record.mirror, Some(mirror));
        // Its directory was lost: it is made again.
        store.insert_base(&new).unwrap();
        let record = store.base(new.id).unwrap().unwrap();
        assert_eq!((record.state, record.tree), (SourceState::Making, None));
        // Another key of the same id is not taken over.
        let other = NewBase {
            key: "commit x z".to_owned(),
            ..new.clone()
        };
        assert!(store.insert_base(&other).is_err());

        store.touch_base(new.id).unwrap();
        store.touch_mirror(mirror).unwrap();
        assert_eq!(store.bases().unwrap().len(), 1);
        assert_eq!(store.mirror_users(mirror).unwrap(), [new.id]);
        let refused = |error| matches!(error, StoreError::SourceInUse { what: "mirror", .. });
        assert!(refused(store.remove_mirror(mirror).unwrap_err()));
        // A mirror that only a submodule is read from.
        let lib = MirrorId::random().unwrap();
        store.insert_mirror(lib, "https://example.org/lib").unwrap();
        assert_eq!(store.mirror_users(lib).unwrap(), []);
        store.base_reads(new.id, &[mirror, lib]).unwrap();
        assert_eq!(store.mirror_users(lib).unwrap(), [new.id]);
        assert!(refused(store.remove_mirror(lib).unwrap_err()));
        let stage = NewBase {
            id: BaseId::random().unwrap(),
            key: format!("stage {} x", new.id),
            kind: BaseKind::Stage,
            mirror: None,
        };
        store.insert_base(&stage).unwrap();
        let error = store.remove_base(new.id).unwrap_err();
        assert!(matches!(
            error,
            StoreError::SourceInUse { what: "base", .. }
        ));
        assert!(store.remove_base(stage.id).unwrap());
        assert!(store.remove_base(new.id).unwrap());
        assert!(store.remove_mirror(lib).unwrap());
        assert!(!store.remove_base(new.id).unwrap());
        assert!(store.remove_mirror(mirror).unwrap());
        assert!(store.mirrors().unwrap().is_empty());
    }
}
