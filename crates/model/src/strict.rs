//! JSON from anywhere, read without leniency: no key twice, no field that is not known, nothing
//! after the end. What two readers could understand differently is refused.
//!
//! The rule for later versions: a field that is added has a default, so that an older file is still
//! read; a field that an older reader does not know makes it refuse the file.

use serde::de::{DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Why a text is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum StrictError {
    #[error("it is not JSON, or says a key twice")]
    Parse(#[source] serde_json::Error),
    #[error("it does not have the fields that it should have")]
    Shape(#[source] serde_json::Error),
    #[error("`{0}` is not known here, or not written as we write it")]
    Unknown(String),
}

/// Reads a whole text as one value.
pub fn parse<T: Serialize + DeserializeOwned>(text: &[u8]) -> Result<T, StrictError> {
    let Unique(value) = serde_json::from_slice(text).map_err(StrictError::Parse)?;
    let parsed = T::deserialize(&value).map_err(StrictError::Shape)?;
    let again = serde_json::to_value(&parsed).map_err(StrictError::Shape)?;
    match first_unknown(&value, &again) {
        None => Ok(parsed),
        Some(path) => Err(StrictError::Unknown(path)),
    }
}

/// Reads a whole text whose shape nobody promised.
pub fn value(text: &[u8]) -> Result<Value, StrictError> {
    let Unique(value) = serde_json::from_slice(text).map_err(StrictError::Parse)?;
    Ok(value)
}

/// The same value whatever the order of its keys was: sorted by key, without white space.
pub fn canonical(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(canonical).collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            let pairs: Vec<String> = keys
                .iter()
                .map(|key| {
                    let name = Value::String((*key).clone());
                    format!("{name}:{}", canonical(&map[*key]))
                })
                .collect();
            format!("{{{}}}", pairs.join(","))
        }
        scalar => scalar.to_string(),
    }
}

/// Where `text` says something that is not in what was understood; what has a default may be absent.
fn first_unknown(text: &Value, understood: &Value) -> Option<String> {
    match (text, understood) {
        (Value::Object(text), Value::Object(understood)) => text.iter().find_map(|(key, value)| {
            // HOSTILE: a key can be as long as the file.
            let name: String = key.chars().take(40).collect();
            match understood.get(key) {
                None => Some(name),
                Some(other) => first_unknown(value, other).map(|rest| format!("{name}.{rest}")),
            }
        }),
        (Value::Array(text), Value::Array(understood)) if text.len() == understood.len() => text
            .iter()
            .zip(understood)
            .enumerate()
            .find_map(|(at, (a, b))| first_unknown(a, b).map(|rest| format!("{at}.{rest}"))),
        (text, understood) if text == understood => None,
        _ => Some("value".to_owned()),
    }
}

/// A JSON value in which no object has a key twice.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueVisitor).map(Self)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Unique(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = pairs.next_key::<String>()? {
            let Unique(value) = pairs.next_value()?;
            if map.insert(key, value).is_some() {
                return Err(serde::de::Error::custom("a key stands there twice"));
            }
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Sample {
        number: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        inner: Inner,
        #[serde(default)]
        added_later: Vec<u8>,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Inner {
        list: Vec<Pair>,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Pair {
        a: bool,
    }

    #[test]
    fn only_what_is_known_is_read() {
        for (text, good) in [
            (r#"{"number":1,"inner":{"list":[]}}"#, true),
            (r#" { "inner" : {"list":[{"a":true}]}, "number":1 } "#, true),
            (
                r#"{"number":1,"name":"x","inner":{"list":[]},"added_later":[1]}"#,
                true,
            ),
            (r#"{"number":1,"inner":{"list":[]},"more":0}"#, false),
            (r#"{"number":1,"inner":{"list":[],"more":0}}"#, false),
            (r#"{"number":1,"inner":{"list":[{"a":true,"b":1}]}}"#, false),
            (r#"{"number":1,"number":1,"inner":{"list":[]}}"#, false),
            (
                r#"{"number":1,"inner":{"list":[{"a":true,"a":true}]}}"#,
                false,
            ),
            (r#"{"number":1,"name":null,"inner":{"list":[]}}"#, false),
            (r#"{"number":1.0,"inner":{"list":[]}}"#, false),
            (r#"{"number":1e400,"inner":{"list":[]}}"#, false),
            (
                r#"{"number":18446744073709551616,"inner":{"list":[]}}"#,
                false,
            ),
            (r#"{"number":1,"inner":{"list":[]}}x"#, false),
            (r#"{"number":1,"inner":{"list":[]}"#, false),
            (r#"{"number":1}"#, false),
            ("", false),
        ] {
            assert_eq!(parse::<Sample>(text.as_bytes()).is_ok(), good, "{text}");
        }
        let deep = "[".repeat(100_000);
        assert!(parse::<Sample>(deep.as_bytes()).is_err());
    }

    #[test]
    fn the_order_of_keys_does_not_matter() {
        let one: Value = serde_json::from_str(r#"{"b":[1,{"d":"\n","c":null}],"a":-1}"#).unwrap();
        let other: Value = serde_json::from_str(r#"{"a":-1,"b":[1,{"c":null,"d":"\n"}]}"#).unwrap();
        assert_eq!(canonical(&one), canonical(&other));
        assert_eq!(canonical(&one), r#"{"a":-1,"b":[1,{"c":null,"d":"\n"}]}"#);
    }
}
