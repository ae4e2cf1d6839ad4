//! What clients said of themselves, kept for a while: to ask one takes half a second.
//!
//! Settings of the user are read anew each time; a client is only asked what it does without any.
//! Its answer is kept by the program's file, the question and all variables that it was given, so
//! that another version or another environment is asked anew.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use ringfence_model::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::clock::now_us;
use crate::durable::{self, Existing};
use crate::home::Home;

/// BOUND: what is not seen in the program's own file, such as a manager that starts another version,
/// holds so long.
const KEPT_US: i64 = 60 * 60 * 1_000_000;
/// BOUND: the help of a client has 30 KB.
const ANSWER_BYTES: usize = 64 << 10;
/// BOUND: the newest ones stay.
const ANSWERS: usize = 32;
const FILE_BYTES: u64 = 8 << 20;

/// Where they are kept.
#[derive(Clone, Debug)]
pub(super) struct Answers(PathBuf);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Answer {
    at_us: i64,
    text: String,
}

impl Answers {
    pub fn of(home: &Home) -> Self {
        Self(home.root().join("answers.json"))
    }

    /// What was said to the same question, if that is not long ago.
    pub fn get(&self, key: &str) -> Option<String> {
        let answer = self.read().remove(key)?;
        answer.is_fresh().then_some(answer.text)
    }

    /// Keeps an answer. Where it cannot be kept, the client is asked again.
    ///
    /// INVARIANT: no password is written. An address that has one is in no answer that is kept.
    pub fn put(&self, key: String, text: &str) {
        if text.len() > ANSWER_BYTES || has_credentials(text) {
            return;
        }
        let mut all = self.read();
        all.retain(|_, answer| answer.is_fresh());
        while all.len() >= ANSWERS {
            let oldest = all.iter().min_by_key(|(_, answer)| answer.at_us);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else {
                break;
            };
            all.remove(&oldest);
        }
        let text = text.to_owned();
        let at_us = now_us();
        all.insert(key, Answer { at_us, text });
        if let Ok(json) = serde_json::to_vec(&all) {
            let _ = durable::write_file(&self.0, &json, Existing::Replace);
        }
    }

    fn read(&self) -> BTreeMap<String, Answer> {
        let read = || {
            let mut bytes = Vec::new();
            let file = fs::File::open(&self.0).ok()?;
            file.take(FILE_BYTES).read_to_end(&mut bytes).ok()?;
            serde_json::from_slice(&bytes).ok()
        };
        read().unwrap_or_default()
    }
}

impl Answer {
    fn is_fresh(&self) -> bool {
        (0..KEPT_US).contains(&(now_us() - self.at_us))
    }
}

fn has_credentials(text: &str) -> bool {
    let addresses = text.split("://").skip(1);
    addresses
        .map(|rest| rest.split([' ', '\n', '/', ')', '>', '"', '\'']).next())
        .any(|host| host.is_some_and(|host| host.contains('@')))
}

/// What a question is known by; `None` where the program cannot be looked at.
pub(super) fn key<'a>(
    program: &Path,
    arguments: &[&str],
    variables: impl Iterator<Item = (&'a str, &'a str)>,
) -> Option<String> {
    let real = program.canonicalize().ok()?;
    let file = fs::metadata(&real).ok()?;
    let mut hash = Sha256::new();
    let mut field = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    for path in [program, &real] {
        field(path.as_os_str().as_encoded_bytes());
    }
    for number in [file.dev(), file.ino(), file.size()] {
        field(&number.to_le_bytes());
    }
    for number in [
        file.mtime(),
        file.mtime_nsec(),
        file.ctime(),
        file.ctime_nsec(),
    ] {
        field(&number.to_le_bytes());
    }
    for word in arguments {
        field(word.as_bytes());
    }
    for (name, value) in variables {
        field(name.as_bytes());
        field(value.as_bytes());
    }
    Some(hex(&hash.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_kept_and_a_password_is_not() {
        let place = tempfile::tempdir().expect("a place");
        let answers = Answers(place.path().join("answers.json"));
        answers.put("one".to_owned(), "the index is https://index.example/a@b");
        let secret = "(default https://me:word@index.example/)";
        answers.put("two".to_owned(), secret);
        assert!(answers.get("one").is_some() && answers.get("two").is_none());
        assert!(
            !fs::read_to_string(&answers.0)
                .expect("a file")
                .contains("word")
        );
        for number in 0..2 * ANSWERS {
            answers.put(number.to_string(), "x");
        }
        assert_eq!(answers.read().len(), ANSWERS);
        assert!(answers.get("one").is_none() && answers.get("63").is_some());
        // What somebody wrote there is no answer.
        fs::write(&answers.0, "[").expect("a file");
        assert!(answers.get("63").is_none());
    }

    #[test]
    fn another_program_or_variable_is_another_question() {
        let place = tempfile::tempdir().expect("a place");
        let program = place.path().join("pip");
        fs::write(&program, "1").expect("a file");
        let of = |value: &'static str| key(&program, &["help"], [("HOME", value)].into_iter());
        let before = of("/a");
        assert_eq!(before, of("/a"));
        assert_ne!(before, of("/b"));
        fs::write(&program, "22").expect("a file");
        assert_ne!(before, of("/a"));
    }
}
