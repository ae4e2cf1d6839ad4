//! Images as the store knows them: names, what they are made of, and what stands on them.

use ringfence_model::image::{Digest, Reference};
use rusqlite::types::Type;
use rusqlite::{OptionalExtension, Row, Transaction, TransactionBehavior, params};

use super::{Store, StoreError};
use crate::clock::now_us;
use crate::images::ImageConfig;

/// All that the store knows of an image.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageRecord {
    pub digest: Digest,
    /// Diff ids, the lowest first.
    pub layers: Vec<Digest>,
    /// Manifests and configuration, kept as they came.
    pub documents: Vec<Digest>,
    pub config: ImageConfig,
    pub created_us: i64,
    pub used_us: i64,
    /// Whole references, sorted.
    pub names: Vec<String>,
}

/// A layer of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageLayerRecord {
    pub diff: Digest,
    /// The digest of its list.
    pub list: Digest,
    pub entries: u64,
    /// Of the content of its files.
    pub bytes: u64,
}

const SELECT: &str = "SELECT digest, layers, documents, config, created_us, used_us,
    (SELECT json_group_array(reference) FROM
        (SELECT reference FROM image_names WHERE digest = images.digest ORDER BY reference))
    FROM images";

/// A name that was another image's is this one's now.
const NAME: &str = "INSERT INTO image_names (reference, digest) VALUES (?1, ?2)
    ON CONFLICT (reference) DO UPDATE SET digest = excluded.digest";

impl Store {
    /// Records an image whose layers are on the disk, with one or more names. It is there for good
    /// when this returns.
    pub fn insert_image(
        &self,
        record: &ImageRecord,
        layers: &[ImageLayerRecord],
    ) -> Result<(), StoreError> {
        let digest = record.digest.to_string();
        let insert = || -> Result<(), rusqlite::Error> {
            let connection = self.acknowledgement()?;
            let transaction =
                Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
            for layer in layers {
                transaction
                    .prepare_cached(
                        "INSERT INTO image_layers (diff, list, entries, bytes, created_us)
                         VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (diff) DO UPDATE
                         SET list = excluded.list, entries = excluded.entries,
                             bytes = excluded.bytes",
                    )?
                    .execute(params![
                        layer.diff.to_string(),
                        layer.list.to_string(),
                        layer.entries.cast_signed(),
                        layer.bytes.cast_signed(),
                        now_us()
                    ])?;
            }
            transaction
                .prepare_cached(
                    "INSERT INTO images (digest, layers, documents, config, created_us, used_us)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?5)
                     ON CONFLICT (digest) DO UPDATE SET used_us = excluded.used_us",
                )?
                .execute(params![
                    digest,
                    to_json(&record.layers)?,
                    to_json(&record.documents)?,
                    to_json(&record.config)?,
                    now_us()
                ])?;
            for name in &record.names {
                transaction.prepare_cached(NAME)?.execute([name, &digest])?;
            }
            transaction.commit()
        };
        insert().map_err(|e| self.image_not_recorded(e, &digest))
    }

    /// The image of this name.
    pub fn image_named(&self, reference: &Reference) -> Result<Option<ImageRecord>, StoreError> {
        let sql = format!(
            "{SELECT} WHERE digest = (SELECT digest FROM image_names WHERE reference = ?1)"
        );
        let name = reference.to_string();
        self.one_image(&sql, &name)
            .map_err(|e| self.image_not_read(e, &name))
    }

    /// The image of this digest.
    pub fn image(&self, digest: Digest) -> Result<Option<ImageRecord>, StoreError> {
        let digest = digest.to_string();
        self.one_image(&format!("{SELECT} WHERE digest = ?1"), &digest)
            .map_err(|e| self.image_not_read(e, &digest))
    }

    /// All images, the least recently used first.
    pub fn images(&self) -> Result<Vec<ImageRecord>, StoreError> {
        let read = || -> Result<Vec<ImageRecord>, rusqlite::Error> {
            self.connection
                .prepare_cached(&format!("{SELECT} ORDER BY used_us, digest"))?
                .query_map([], decode)?
                .collect()
        };
        read().map_err(|e| self.image_not_read(e, "*"))
    }

    /// Records that an image was used just now.
    pub fn touch_image(&self, digest: Digest) -> Result<(), StoreError> {
        let digest = digest.to_string();
        let touch = || {
            self.intent()?
                .prepare_cached("UPDATE images SET used_us = ?2 WHERE digest = ?1")?
                .execute(params![digest, now_us()])
        };
        touch().map_err(|e| self.image_not_recorded(e, &digest))?;
        Ok(())
    }

    /// Forgets a name; the image stays. False where it is no image's.
    pub fn remove_image_name(&self, reference: &Reference) -> Result<bool, StoreError> {
        let name = reference.to_string();
        let delete = || {
            self.acknowledgement()?
                .prepare_cached("DELETE FROM image_names WHERE reference = ?1")?
                .execute([&name])
        };
        let rows = delete().map_err(|e| self.image_not_recorded(e, &name))?;
        Ok(rows > 0)
    }

    /// Forgets an image with its names, unless something stands on it.
    pub fn remove_image(&self, digest: Digest) -> Result<bool, StoreError> {
        let digest = digest.to_string();
        let delete = || {
            self.acknowledgement()?
                .prepare_cached("DELETE FROM images WHERE digest = ?1")?
                .execute([&digest])
        };
        let rows = delete().map_err(|e| self.image_not_recorded(e, &digest))?;
        Ok(rows == 1)
    }

    /// What is known of a layer.
    pub fn image_layer(&self, diff: Digest) -> Result<Option<ImageLayerRecord>, StoreError> {
        let diff = diff.to_string();
        let read = || {
            self.connection
                .prepare_cached(
                    "SELECT diff, list, entries, bytes FROM image_layers WHERE diff = ?1",
                )?
                .query_row([&diff], |row| {
                    Ok(ImageLayerRecord {
                        diff: digest(row, 0)?,
                        list: digest(row, 1)?,
                        entries: row.get::<_, i64>(2)?.cast_unsigned(),
                        bytes: row.get::<_, i64>(3)?.cast_unsigned(),
                    })
                })
                .optional()
        };
        read().map_err(|e| self.image_not_read(e, &diff))
    }

    /// Forgets layers that no image has.
    pub fn forget_unused_image_layers(&self) -> Result<(), StoreError> {
        let delete = || {
            self.intent()?
                .prepare_cached(
                    "DELETE FROM image_layers WHERE NOT EXISTS
                     (SELECT 1 FROM images, json_each(images.layers) WHERE value = diff)",
                )?
                .execute([])
        };
        delete().map_err(|e| self.image_not_recorded(e, "*"))?;
        Ok(())
    }

    /// What stands on an image: sandboxes, and environments whose setup ran on it.
    pub fn image_uses(&self, image: Digest) -> Result<Vec<String>, StoreError> {
        let image = image.to_string();
        let read = || -> Result<Vec<String>, rusqlite::Error> {
            self.connection
                .prepare_cached(
                    "SELECT 'sandbox ' || sandboxes.id
                         FROM sandboxes, json_each(sandboxes.detail, '$.stands_on')
                         WHERE value = 'images/' || ?1
                     UNION SELECT 'environment ' || substr(key, 1, 12) FROM environments
                         WHERE json_extract(detail, '$.inputs.image') = ?1
                     ORDER BY 1",
                )?
                .query_map([&image], |row| row.get(0))?
                .collect()
        };
        read().map_err(|e| self.image_not_read(e, &image))
    }

    fn one_image(&self, sql: &str, key: &str) -> Result<Option<ImageRecord>, rusqlite::Error> {
        self.connection
            .prepare_cached(sql)?
            .query_row([key], decode)
            .optional()
    }

    fn image_not_recorded(&self, source: rusqlite::Error, id: &str) -> StoreError {
        self.failed(source, |source| StoreError::RecordSource {
            what: "image",
            id: id.to_owned(),
            source,
        })
    }

    fn image_not_read(&self, source: rusqlite::Error, id: &str) -> StoreError {
        self.failed(source, |source| StoreError::ReadSource {
            what: "image",
            id: id.to_owned(),
            source,
        })
    }
}

fn decode(row: &Row<'_>) -> Result<ImageRecord, rusqlite::Error> {
    Ok(ImageRecord {
        digest: digest(row, 0)?,
        layers: from_json(row, 1)?,
        documents: from_json(row, 2)?,
        config: from_json(row, 3)?,
        created_us: row.get(4)?,
        used_us: row.get(5)?,
        names: from_json(row, 6)?,
    })
}

fn digest(row: &Row<'_>, column: usize) -> Result<Digest, rusqlite::Error> {
    let text: String = row.get(column)?;
    text.parse()
        .map_err(|e| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(e)))
}

fn to_json(value: &impl serde::Serialize) -> Result<String, rusqlite::Error> {
    serde_json::to_string(value).map_err(|e| rusqlite::Error::ToSqlConversionFailure(Box::new(e)))
}

fn from_json<T: serde::de::DeserializeOwned>(
    row: &Row<'_>,
    column: usize,
) -> Result<T, rusqlite::Error> {
    let text: String = row.get(column)?;
    serde_json::from_str(&text)
        .map_err(|e| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(e)))
}
