//! The text of a commit: who, and in which words.
//!
//! HOSTILE: an agent may have chosen the words of the subject. They are one line of what can be
//! seen, and the trailers that this program vouches for come last, in a paragraph of their own.

use ringfence_model::text::misleads;

use super::{ApplyError, Bundle};

/// BOUND: characters of a subject that was not typed.
const SUBJECT: usize = 72;

/// A name and an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Person {
    name: String,
    address: String,
}

impl Person {
    /// From `Name <address>`.
    pub fn parse(text: &str) -> Result<Self, ApplyError> {
        let parsed = || {
            let (name, rest) = text.trim().split_once('<')?;
            let address = rest.strip_suffix('>')?;
            Self::new(name, address)
        };
        parsed().ok_or_else(|| ApplyError::BadPerson(text.to_owned()))
    }

    pub fn new(name: &str, address: &str) -> Option<Self> {
        let (name, address) = (name.trim(), address.trim());
        let bad = |c: char| misleads(c) || matches!(c, '<' | '>' | '\n');
        let long = name.len() > 500 || address.len() > 500;
        let empty = name.is_empty() || address.is_empty();
        let odd = name.chars().any(bad) || address.chars().any(|c| bad(c) || c == ' ');
        (!long && !empty && !odd).then(|| Self {
            name: name.to_owned(),
            address: address.to_owned(),
        })
    }

    /// As it stands in a commit.
    pub(super) fn at(&self, seconds: i64) -> String {
        format!("{self} {seconds} +0000")
    }
}

impl std::fmt::Display for Person {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} <{}>", self.name, self.address)
    }
}

/// The whole message: what was given, or a line of our own; then the trailers.
pub(crate) fn message(
    bundle: &Bundle,
    given: Option<&str>,
    with: &[Person],
) -> Result<String, ApplyError> {
    let words = match given {
        Some(given) if given.contains('\0') || given.trim().is_empty() => {
            return Err(ApplyError::BadMessage);
        }
        Some(given) => given.trim_end().to_owned(),
        None => subject(bundle),
    };
    let mut text = format!(
        "{words}\n\nRingfence-Run: {}\nRingfence-Bundle: sha256:{}\n",
        bundle.run(),
        bundle.sha256()
    );
    for person in with {
        text.push_str(&format!("Co-authored-by: {person}\n"));
    }
    Ok(text)
}

fn subject(bundle: &Bundle) -> String {
    let claimed = bundle
        .result
        .claimed
        .as_ref()
        .and_then(|claim| claim.summary.as_deref());
    let claimed = claimed.map(line).filter(|line| !line.is_empty());
    claimed.unwrap_or_else(|| {
        let words: Vec<String> = bundle
            .result
            .argv
            .iter()
            .map(|word| word.to_text())
            .collect();
        let command = line(&words.join(" "));
        if command.is_empty() {
            format!("Changes of run {}", bundle.run())
        } else {
            command
        }
    })
}

/// The first line that says something, as far as it can be seen.
fn line(text: &str) -> String {
    let seen = |line: &str| -> String {
        let kept = line.chars().filter(|&c| !misleads(c) || c == '\t');
        let words: String = kept.map(|c| if c == '\t' { ' ' } else { c }).collect();
        words.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let first = text.lines().map(seen).find(|line| !line.is_empty());
    let first = first.unwrap_or_default();
    if first.chars().count() > SUBJECT {
        first.chars().take(SUBJECT - 1).chain(['…']).collect()
    } else {
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_one_line_that_can_be_seen() {
        for (text, expected) in [
            ("fix it", "fix it"),
            ("\n\n  fix\tit  \n\nRingfence-Run: forged\n", "fix it"),
            ("a\x1b[31mb\u{202e}c\0", "a[31mbc"),
            ("", ""),
            (" \n\t\n", ""),
        ] {
            assert_eq!(line(text), expected, "{text:?}");
        }
        assert_eq!(line(&"x".repeat(200)).chars().count(), SUBJECT);
    }

    #[test]
    fn a_person_cannot_forge_a_line() {
        assert_eq!(
            Person::parse("Ada L. <ada@example.org>")
                .unwrap()
                .to_string(),
            "Ada L. <ada@example.org>"
        );
        for bad in [
            "",
            "Ada",
            "<a@b>",
            "Ada <>",
            "Ada <a@b> x",
            "Ada\nparent 0 <a@b>",
            "A <a\n@b>",
            "A <a <b>",
            "A <a b>",
            "A\0 <a@b>",
        ] {
            assert!(Person::parse(bad).is_err(), "{bad:?}");
        }
    }
}
