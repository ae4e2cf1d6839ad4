//! What a base lacks because it could not be fetched, and trying again.
//!
//! A base never changes, so one that lacks something stays as it is for those who stand on it. The
//! next request first tries to fetch what is missing. If some of it is there now, another base is
//! made, whose key has the number of the attempt; if not, the same one is given again.

use serde_json::{Value, json};

use super::submodules::reach;
use super::{BaseError, Submodules, id_of, lfs};
use crate::home::Home;
use crate::mirror::{self, Mirror, Progress, Resolved};
use crate::source::{self, Credentials, Dial, Source, Typed};
use crate::store::{BaseRecord, SourceState, Store};

/// Something that may be there another time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Missing {
    pub what: Lack,
    /// Where it is fetched from, without credentials.
    pub source: String,
    pub commit: String,
    pub login: Login,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    Submodule,
    LargeFiles,
}

impl Lack {
    fn word(self) -> &'static str {
        match self {
            Self::Submodule => "submodule",
            Self::LargeFiles => "large_files",
        }
    }
}

/// Whether the credentials of the repository are good for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Login {
    None,
    OfRepository,
}

impl Login {
    pub fn of(credentials: Option<&Credentials>) -> Self {
        match credentials {
            Some(_) => Self::OfRepository,
            None => Self::None,
        }
    }
}

/// For the detail of a base.
pub(super) fn to_value(missing: &[Missing]) -> Value {
    let one = |missing: &Missing| {
        json!({
            "what": missing.what.word(),
            "source": missing.source,
            "commit": missing.commit,
            "login": missing.login == Login::OfRepository,
        })
    };
    missing.iter().map(one).collect()
}

fn from_record(record: &BaseRecord) -> Vec<Missing> {
    let list = record.detail.get("missing").and_then(Value::as_array);
    let one = |value: &Value| {
        let text = |name: &str| Some(value.get(name)?.as_str()?.to_owned());
        let what = text("what")?;
        Some(Missing {
            what: [Lack::Submodule, Lack::LargeFiles]
                .into_iter()
                .find(|lack| lack.word() == what)?,
            source: text("source")?,
            commit: text("commit")?,
            login: if value.get("login")?.as_bool()? {
                Login::OfRepository
            } else {
                Login::None
            },
        })
    };
    list.into_iter().flatten().filter_map(one).collect()
}

/// The key of the base that is to be found or made: the given one, or that of a later attempt.
pub(super) fn attempt(
    home: &Home,
    store: &Store,
    resolved: &Resolved,
    (key, submodules): (&str, Submodules<'_>),
    progress: &mut dyn Progress,
) -> Result<String, BaseError> {
    let ready = |key: &str| -> Result<Option<BaseRecord>, BaseError> {
        let record = store.base(id_of(key))?;
        Ok(record.filter(|record| record.state == SourceState::Ready))
    };
    let mut current = key.to_owned();
    // Every turn is a base that is there.
    for number in 2_u64.. {
        let missing = match ready(&current)? {
            Some(record) => from_record(&record),
            None => break,
        };
        let next = format!("{key} attempt {number}");
        if missing.is_empty() {
            break;
        }
        if ready(&next)?.is_none() {
            let mut had = false;
            for missing in &missing {
                had |= missing.fetch(home, store, resolved, submodules, progress);
            }
            if !had {
                break;
            }
        }
        current = next;
    }
    Ok(current)
}

impl Missing {
    /// Whether it is there now.
    fn fetch(
        &self,
        home: &Home,
        store: &Store,
        top: &Resolved,
        submodules: Submodules<'_>,
        progress: &mut dyn Progress,
    ) -> bool {
        let Some(mut typed) = typed(&self.source) else {
            return false;
        };
        // HOSTILE: a repository chose where a submodule is.
        if typed.source != top.mirror.source {
            let Submodules::Fetch(sources) = submodules else {
                return false;
            };
            match reach::checked(&top.mirror.source, sources, typed) {
                Ok(checked) => typed = checked,
                Err(_) => return false,
            }
        }
        let origin = typed.source.http_origin();
        let same = typed.source == top.mirror.source
            || origin.is_some() && origin == top.mirror.source.http_origin();
        if self.login == Login::OfRepository && same {
            typed.credentials = top.credentials.clone();
        }
        match self.what {
            Lack::Submodule => {
                mirror::ensure(home, store, &typed, Some(&self.commit), progress).is_ok()
            }
            Lack::LargeFiles => {
                let id = mirror::id_of(&typed.source);
                let resolved = Resolved {
                    mirror: Mirror {
                        id,
                        path: home.mirror(id),
                        source: typed.source,
                    },
                    commit: self.commit.clone(),
                    branch: None,
                    notes: Vec::new(),
                    credentials: typed.credentials,
                };
                lfs::fetch(&resolved, progress).is_ok()
            }
        }
    }
}

fn typed(text: &str) -> Option<Typed> {
    if text.starts_with('/') {
        Some(Typed {
            source: Source::Path(std::path::Path::new(text).canonicalize().ok()?),
            credentials: None,
            dial: Dial::AsTyped,
        })
    } else {
        source::parse_address(text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::BaseId;
    use crate::store::BaseKind;
    use serde_json::Map;

    #[test]
    fn what_is_missing_is_read_back() {
        let missing = [
            (Lack::Submodule, Login::None),
            (Lack::LargeFiles, Login::OfRepository),
        ]
        .map(|(what, login)| Missing {
            what,
            source: "https://example.org/a".to_owned(),
            commit: "0".repeat(40),
            login,
        });
        let record = BaseRecord {
            id: BaseId::from_bits(1),
            key: String::new(),
            kind: BaseKind::Commit,
            state: SourceState::Ready,
            mirror: None,
            commit: None,
            tree: None,
            created_us: 0,
            used_us: 0,
            detail: Map::from_iter([("missing".to_owned(), to_value(&missing))]),
        };
        assert_eq!(from_record(&record), missing);
    }
}
