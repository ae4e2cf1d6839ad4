//! The host's own settings: `config.toml` in the home, all of it optional.
//!
//! ```toml
//! [gc]
//! idle = "1h"          # an execution that was asked nothing for so long is stopped
//! age = "30d"          # a sandbox that was not used for so long is removed
//! cache_age = "30d"    # the same for bases and mirrors that nothing stands on
//! free = "5G"          # below this much free disk, age does not matter any more
//!
//! backend = "docker"   # what holds sandboxes where nobody says otherwise; before all tables
//!
//! [forge."git.example"]  # how pull requests are opened there (pull_request/forge.rs)
//! ```

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use ringfence_model::limits::{QuantityError, parse_duration_seconds, parse_size};
use serde::Deserialize;

use crate::home::Home;

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read `{path}`")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("`{path}` cannot be understood")]
    Parse {
        path: PathBuf,
        #[source]
        source: Box<toml::de::Error>,
    },
    #[error("`{path}` has a bad value for `gc.{key}`")]
    Quantity {
        path: PathBuf,
        key: &'static str,
        #[source]
        source: QuantityError,
    },
}

/// As typed.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    backend: Option<String>,
    gc: GcFile,
    forge: BTreeMap<String, ForgeFile>,
}

/// A forge, as typed; see [`crate::pull_request`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ForgeFile {
    pub kind: Option<String>,
    pub api: Option<String>,
    pub token: Option<String>,
    pub timeout: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct GcFile {
    idle: Option<String>,
    age: Option<String>,
    cache_age: Option<String>,
    free: Option<String>,
}

/// When things are removed; `None` is never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcSettings {
    pub idle_seconds: Option<u64>,
    pub age_seconds: Option<u64>,
    pub cache_age_seconds: Option<u64>,
    pub free_bytes: Option<u64>,
}

impl Default for GcSettings {
    fn default() -> Self {
        const DAY: u64 = 24 * 3600;
        Self {
            // BOUND: long enough for a meal.
            idle_seconds: Some(3600),
            // BOUND: who comes back after a month starts anew.
            age_seconds: Some(30 * DAY),
            cache_age_seconds: Some(30 * DAY),
            // BOUND: what a build may need in one go.
            free_bytes: Some(5 << 30),
        }
    }
}

fn path(home: &Home) -> PathBuf {
    home.root().join("config.toml")
}

fn read(home: &Home) -> Result<File, ConfigError> {
    let path = path(home);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(File::default()),
        Err(source) => return Err(ConfigError::Read { path, source }),
    };
    toml::from_str(&text).map_err(|source| ConfigError::Parse {
        path,
        source: Box::new(source),
    })
}

/// What holds sandboxes where nobody says otherwise.
pub(crate) fn backend(home: &Home) -> Result<Option<String>, ConfigError> {
    Ok(read(home)?.backend)
}

/// The forges of a home, by host.
pub(crate) fn forges(home: &Home) -> Result<BTreeMap<String, ForgeFile>, ConfigError> {
    Ok(read(home)?.forge)
}

/// Reads the settings of a home.
pub fn gc_settings(home: &Home) -> Result<GcSettings, ConfigError> {
    let path = path(home);
    let file = read(home)?;
    let plain = GcSettings::default();
    let quantity = |key, text: &Option<String>, plain, parse: fn(&str) -> Parsed| match text {
        None => Ok(plain),
        Some(text) => parse(text).map_err(|source| ConfigError::Quantity {
            path: path.clone(),
            key,
            source,
        }),
    };
    Ok(GcSettings {
        idle_seconds: quantity("idle", &file.gc.idle, plain.idle_seconds, parse_span)?,
        age_seconds: quantity("age", &file.gc.age, plain.age_seconds, parse_span)?,
        cache_age_seconds: quantity(
            "cache_age",
            &file.gc.cache_age,
            plain.cache_age_seconds,
            parse_span,
        )?,
        free_bytes: quantity("free", &file.gc.free, plain.free_bytes, parse_size)?,
    })
}

pub(crate) type Parsed = Result<Option<u64>, QuantityError>;

/// Days as well, which no limit of a command needs.
pub(crate) fn parse_span(text: &str) -> Parsed {
    match text.strip_suffix('d') {
        Some(days) => Ok(parse_duration_seconds(&format!("{days}h"))?.map(|hours| hours * 24)),
        None => parse_duration_seconds(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_or_refused() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(Some(directory.path().join("home"))).unwrap();
        assert_eq!(gc_settings(&home).unwrap(), GcSettings::default());
        let path = home.root().join("config.toml");
        let with = |text: &str| {
            std::fs::write(&path, text).unwrap();
            gc_settings(&home)
        };
        let read = with("[gc]\nage = \"2d\"\nidle = \"90s\"\nfree = \"none\"\n").unwrap();
        assert_eq!(read.age_seconds, Some(2 * 24 * 3600));
        assert_eq!(read.idle_seconds, Some(90));
        assert_eq!(read.free_bytes, None);
        assert_eq!(
            read.cache_age_seconds,
            GcSettings::default().cache_age_seconds
        );
        for bad in [
            "[gc]\nages = \"2d\"",
            "[gc]\nage = 3",
            "[gc]\nage = \"x\"",
            "]",
        ] {
            assert!(with(bad).is_err(), "{bad}");
        }
    }
}
