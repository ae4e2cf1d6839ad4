//! Typed ids.
//!
//! An id is short enough to be typed and read aloud: base32 in lower case, without the letters
//! that look like digits or each other (`i`, `l`, `o`, `u`). The words `last` and `@` can
//! therefore never be the beginning of an id.

use std::fmt;
use std::str::FromStr;

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// BOUND: 60 random bits; a million runs on one host meet with a chance of one in two million.
const LENGTH: usize = 12;
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Why there is no id.
#[derive(Debug, thiserror::Error)]
pub enum IdError {
    #[error("cannot draw a random id")]
    Draw {
        #[source]
        source: std::io::Error,
    },
    #[error("`{text}` is not a {what} id (12 characters of `0-9a-z` without `i`, `l`, `o`, `u`)")]
    Parse { what: &'static str, text: String },
}

/// Whether an id could begin with this text, or be it.
pub fn may_begin_id(text: &str) -> bool {
    text.len() <= LENGTH && text.bytes().all(|byte| ALPHABET.contains(&byte))
}

/// 60 random bits and four more.
fn draw() -> Result<u64, IdError> {
    let mut bytes = [0u8; 8];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty()).map_err(|errno| {
            IdError::Draw {
                source: errno.into(),
            }
        })?;
    }
    Ok(u64::from_le_bytes(bytes))
}

/// The text of the lower 60 bits.
fn spell(bits: u64) -> [u8; LENGTH] {
    let mut text = [0; LENGTH];
    for (index, character) in text.iter_mut().enumerate() {
        *character = ALPHABET[(bits >> (5 * index)) as usize & 31];
    }
    text
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name([u8; LENGTH]);

        impl $name {
            /// Draws a fresh one.
            pub fn random() -> Result<Self, IdError> {
                Ok(Self::from_bits(draw()?))
            }

            /// The id of the lower 60 bits.
            pub(crate) fn from_bits(bits: u64) -> Self {
                Self(spell(bits))
            }

            /// The id as text.
            pub fn as_str(&self) -> &str {
                std::str::from_utf8(&self.0).expect("the alphabet is ASCII")
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                match <[u8; LENGTH]>::try_from(text.as_bytes()) {
                    Ok(bytes) if may_begin_id(text) => Ok(Self(bytes)),
                    _ => Err(IdError::Parse {
                        what: $what,
                        text: text.chars().take(64).collect(),
                    }),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.as_str())
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?
                    .parse()
                    .map_err(de::Error::custom)
            }
        }

        impl ToSql for $name {
            fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
                Ok(self.as_str().into())
            }
        }

        impl FromSql for $name {
            fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
                value
                    .as_str()?
                    .parse()
                    .map_err(|e: IdError| FromSqlError::Other(Box::new(e)))
            }
        }
    };
}

id!(
    /// The id of one run.
    RunId,
    "run"
);
id!(
    /// The id of one sandbox: its workspace and whatever executes on it.
    SandboxId,
    "sandbox"
);
id!(
    /// The id of one sealed layer.
    LayerId,
    "layer"
);
id!(
    /// The id of one base.
    BaseId,
    "base"
);
id!(
    /// The id of one mirror: made from its source's name, so that a source has one.
    MirrorId,
    "mirror"
);
id!(
    /// The id of one campaign; its name may be given again when it is gone.
    CampaignId,
    "campaign"
);

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn only_exact_ids_are_read() {
        for (text, good) in [
            ("0123456789ab", true),
            ("zzzzzzzzzzzz", true),
            ("0123456789a", false),
            ("0123456789abc", false),
            ("0123456789AB", false),
            ("0123456789ai", false),
            ("0123456789al", false),
            ("0123456789ao", false),
            ("0123456789au", false),
            ("0123456789a ", false),
            ("../../../etc", false),
            ("", false),
            ("ééééééa", false),
        ] {
            assert_eq!(text.parse::<RunId>().is_ok(), good, "{text}");
        }
    }

    #[test]
    fn every_bit_counts_and_is_written_once() {
        let mut seen = HashSet::from([RunId::from_bits(0)]);
        for bit in 0..60 {
            assert!(seen.insert(RunId::from_bits(1 << bit)), "bit {bit}");
        }
        assert_eq!(RunId::from_bits(0).as_str(), "000000000000");
        assert_eq!(RunId::from_bits(u64::MAX).as_str(), "zzzzzzzzzzzz");
    }

    #[test]
    fn fresh_ids_differ_and_survive_text_and_json() {
        let ids: HashSet<RunId> = (0..1000).map(|_| RunId::random().unwrap()).collect();
        assert_eq!(ids.len(), 1000);
        for id in ids {
            assert_eq!(id.to_string().parse::<RunId>().unwrap(), id);
            let json = serde_json::to_string(&id).unwrap();
            assert_eq!(serde_json::from_str::<RunId>(&json).unwrap(), id);
        }
        assert!(serde_json::from_str::<RunId>("\"last\"").is_err());
    }
}
