//! Secrets: the sandbox has placeholders; values are put in here, on their way to where they are
//! bound, and taken out of what comes back.
//!
//! INVARIANT: a value is written to a connection only for a host, method and path that it is bound
//! to, in the field that it is bound to, after the host proved who it is.
//! INVARIANT: no value is in an error, an event or the text of `Debug`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ringfence_model::gate::{BoundSecret, SecretValue};
use ringfence_model::host::Host;
use ringfence_model::policy::network::RequestPath;
use zeroize::Zeroizing;

use crate::head::{Fields, is_value_byte};

pub(crate) use ringfence_model::needles::{Detector, Found, Needles, PIECE, Stream};

/// Fields in which clients say who they are.
const CREDENTIALS: [&str; 9] = [
    "authorization",
    "cookie",
    "x-api-key",
    "api-key",
    "x-auth-token",
    "x-goog-api-key",
    "private-token",
    "x-amz-security-token",
    "proxy-authorization",
];

/// All secrets of a sandbox.
pub(crate) struct Secrets {
    all: Vec<Secret>,
    placeholders: Option<Needles>,
    values: Option<Needles>,
}

struct Secret {
    bound: BoundSecret,
    value: SecretValue,
    field: String,
    before: String,
    after: String,
}

/// A setup whose secrets cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecretError {
    #[error("secret `{0}` is bound to no header: write `Name: text {{}}`")]
    Header(String),
    #[error("the value of secret `{0}` has a byte that no header can carry")]
    Value(String),
}

/// What a request asks for, in places where it may.
pub(crate) struct Swaps {
    swaps: Vec<Swap>,
    /// Fields that were taken out.
    pub(crate) stripped: Vec<String>,
}

struct Swap {
    secret: usize,
    /// The value of the field, until the swap.
    written: Vec<u8>,
    kind: Written,
}

/// How the placeholder stands in the field.
enum Written {
    /// As the template says.
    Template,
    /// In the base64 of `user:password`.
    Basic { user: bool, password: bool },
}

/// A placeholder where it must not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Misplaced<'a> {
    pub(crate) secret: &'a str,
    pub(crate) place: &'static str,
}

impl Secrets {
    pub(crate) fn new(
        bound: &[BoundSecret],
        values: Vec<SecretValue>,
    ) -> Result<Self, SecretError> {
        let all = bound
            .iter()
            .zip(values)
            .map(|(bound, value)| Secret::new(bound, value))
            .collect::<Result<Vec<_>, _>>()?;
        let placeholder = |own: &'_ Secret| -> Vec<u8> { own.bound.placeholder.clone().into() };
        let fakes: Vec<Vec<u8>> = all.iter().map(placeholder).collect();
        let placeholders = Needles::new(fakes.iter().map(|fake| (fake.as_slice(), &b""[..])));
        let values = Needles::new(
            all.iter()
                .zip(&fakes)
                .map(|(own, fake)| (own.value.expose(), fake.as_slice())),
        );
        Ok(Self {
            all,
            placeholders,
            values,
        })
    }

    /// Whether some secret may be used with this host.
    pub(crate) fn bound_to(&self, host: &Host) -> bool {
        self.all.iter().any(|own| own.is_for_host(host))
    }

    /// Whether a secret for this host is for some methods only.
    pub(crate) fn minds_method(&self, host: &Host) -> bool {
        self.all
            .iter()
            .any(|own| own.is_for_host(host) && !own.bound.methods.is_empty())
    }

    /// What must not be in the body of a request, but for those that are [for its host](Self::is_for_host).
    pub(crate) fn placeholders(&self) -> Option<&Needles> {
        self.placeholders.as_ref()
    }

    /// Whether the secret whose placeholder was found may be used with this host. It means nothing to the host, and
    /// agents tell their models what they see.
    pub(crate) fn is_for_host(&self, found: Found, host: &Host) -> bool {
        self.all[found.secret].is_for_host(host)
    }

    /// What must not be in an answer of this host.
    pub(crate) fn values_for(&self, host: &Host) -> Option<&Needles> {
        self.values.as_ref().filter(|_| self.bound_to(host))
    }

    /// A text that may have words of a host in it, without values.
    pub(crate) fn scrub(&self, text: String) -> String {
        let values = self.values.as_ref();
        match values.and_then(|own| own.replace(text.as_bytes(), &mut Vec::new())) {
            Some(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            None => text,
        }
    }

    pub(crate) fn name(&self, found: Found) -> &str {
        &self.all[found.secret].bound.name
    }

    /// Reads a request: finds what is to be swapped, takes out other credentials where some are
    /// bound, and finds placeholders in all other places.
    pub(crate) fn prepare(
        &self,
        host: &Host,
        method: &str,
        path: &RequestPath,
        target: &str,
        fields: &mut Fields,
    ) -> Result<Swaps, Misplaced<'_>> {
        let mut swaps = Vec::new();
        let mut stripped = Vec::new();
        if self.all.is_empty() {
            return Ok(Swaps { swaps, stripped });
        }
        self.check(target.as_bytes(), "address")?;
        self.check(&undo_percent(target.as_bytes()), "address")?;
        let bound = self.bound_to(host);
        let mut kept = Fields::default();
        for (name, value) in fields.iter() {
            self.check(name.as_bytes(), "header")?;
            let swap = self.all.iter().enumerate().find_map(|(number, own)| {
                (own.is_for(host, method, path) && own.field.eq_ignore_ascii_case(name))
                    .then(|| own.find(value))
                    .flatten()
                    .map(|kind| Swap {
                        secret: number,
                        written: value.to_vec(),
                        kind,
                    })
            });
            if let Some(swap) = swap {
                swaps.push(swap);
            } else {
                self.check(value, "header")?;
                self.check(&undo_percent(value), "header")?;
                if bound && self.is_credential_for(host, name) {
                    stripped.push(name.to_ascii_lowercase());
                    continue;
                }
            }
            // It was a field before.
            kept.push(name, value);
        }
        *fields = kept;
        Ok(Swaps { swaps, stripped })
    }

    fn is_credential_for(&self, host: &Host, name: &str) -> bool {
        is_credential(name)
            || self
                .all
                .iter()
                .any(|own| own.is_for_host(host) && own.field.eq_ignore_ascii_case(name))
    }

    fn check(&self, text: &[u8], place: &'static str) -> Result<(), Misplaced<'_>> {
        match self.placeholders.as_ref().and_then(|own| own.find(text)) {
            Some(found) => Err(Misplaced {
                secret: self.name(found),
                place,
            }),
            None => Ok(()),
        }
    }

    /// Puts the values in. Answers the names of the secrets that were used.
    pub(crate) fn swap(&self, swaps: &Swaps, fields: &mut Fields) -> Vec<String> {
        let mut used = Vec::new();
        for swap in &swaps.swaps {
            let own = &self.all[swap.secret];
            let real = own.fill(swap);
            for (name, value) in fields.iter_mut() {
                if own.field.eq_ignore_ascii_case(name) && *value == swap.written {
                    *value = real.to_vec();
                    used.push(own.bound.name.clone());
                }
            }
        }
        used.sort();
        used.dedup();
        used
    }
}

impl Swaps {
    pub(crate) fn is_empty(&self) -> bool {
        self.swaps.is_empty()
    }
}

impl Secret {
    fn new(bound: &BoundSecret, value: SecretValue) -> Result<Self, SecretError> {
        let bad = || SecretError::Header(bound.name.clone());
        let (field, template) = bound.header.split_once(':').ok_or_else(bad)?;
        let (before, after) = template.trim().split_once("{}").ok_or_else(bad)?;
        let mut line = Fields::default();
        line.push(field, template.as_bytes())
            .filter(|()| !after.contains("{}"))
            .ok_or_else(bad)?;
        // What ends a line would be a field of its own, and servers cut off blanks around a value.
        let bytes = value.expose();
        if !bytes.iter().all(|byte| is_value_byte(*byte)) || bytes.trim_ascii() != bytes {
            return Err(SecretError::Value(bound.name.clone()));
        }
        Ok(Self {
            bound: bound.clone(),
            value,
            field: field.to_owned(),
            before: before.to_owned(),
            after: after.to_owned(),
        })
    }

    fn is_for_host(&self, host: &Host) -> bool {
        self.bound.hosts.iter().any(|own| own.matches(host))
    }

    fn is_for(&self, host: &Host, method: &str, path: &RequestPath) -> bool {
        let methods = &self.bound.methods;
        self.is_for_host(host)
            && (methods.is_empty() || methods.iter().any(|own| own == method))
            && self.bound.path.as_ref().is_none_or(|own| own.matches(path))
    }

    fn is_basic(&self) -> bool {
        self.before.trim_end().eq_ignore_ascii_case("basic") && self.after.is_empty()
    }

    /// Whether the placeholder stands exactly where the value is to stand.
    fn find(&self, value: &[u8]) -> Option<Written> {
        let (before, after) = (self.before.as_bytes(), self.after.as_bytes());
        let head = value.get(..before.len())?;
        let inner = value[before.len()..].strip_suffix(after)?;
        if !head.eq_ignore_ascii_case(before) {
            return None;
        }
        let fake = self.bound.placeholder.as_bytes();
        if inner == fake {
            return Some(Written::Template);
        }
        if !self.is_basic() {
            return None;
        }
        let pair = STANDARD.decode(inner).ok()?;
        let (user, password) = split_pair(&pair)?;
        let (user, password) = (user == fake, password == fake);
        (user || password).then_some(Written::Basic { user, password })
    }

    fn fill(&self, swap: &Swap) -> Zeroizing<Vec<u8>> {
        let mut out = Zeroizing::new(self.before.clone().into_bytes());
        match swap.kind {
            Written::Template => out.extend_from_slice(self.value.expose()),
            Written::Basic { user, password } => {
                let inner = &swap.written[self.before.len()..];
                let pair = STANDARD.decode(inner).unwrap_or_default();
                let (own_user, own_password) = split_pair(&pair).unwrap_or_default();
                let value = self.value.expose();
                let mut real = Zeroizing::new(Vec::new());
                real.extend_from_slice(if user { value } else { own_user });
                real.push(b':');
                real.extend_from_slice(if password { value } else { own_password });
                let text = Zeroizing::new(STANDARD.encode(&*real));
                out.extend_from_slice(text.as_bytes());
            }
        }
        out.extend_from_slice(self.after.as_bytes());
        out
    }
}

/// Whether clients say in this field who they are.
pub(crate) fn is_credential(name: &str) -> bool {
    CREDENTIALS.iter().any(|own| own.eq_ignore_ascii_case(name))
}

fn split_pair(pair: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = pair.iter().position(|byte| *byte == b':')?;
    Some((&pair[..at], &pair[at + 1..]))
}

/// Undoes `%XX` until nothing changes, twice at most.
fn undo_percent(text: &[u8]) -> Vec<u8> {
    let once = undo_percent_once(text);
    undo_percent_once(&once)
}

fn undo_percent_once(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let code = tail
            .get(..2)
            .filter(|_| *first == b'%')
            .and_then(|two| std::str::from_utf8(two).ok())
            .filter(|two| two.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .and_then(|two| u8::from_str_radix(two, 16).ok());
        match code {
            Some(byte) => {
                out.push(byte);
                rest = &tail[2..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests;
