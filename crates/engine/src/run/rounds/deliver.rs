//! How brief and feedback reach an agent: files outside of the workspace, words of its command, and its
//! standard input.
//!
//! HOSTILE: the files lie where the agent can write. They are written by the guest as the agent, whole or
//! not at all, so that a link there is replaced and not followed, and what cannot be replaced is moved
//! out of the way.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};

use ringfence_model::ByteText;
use ringfence_model::rounds::feedback::{self, END_BYTES, Failing};
use ringfence_model::rounds::{AgentLife, Rounds};
use ringfence_model::wire::{Request, WriteHow};

use super::{Ended, InLoop, Left, Parts};
use crate::checks;
use crate::client::{Client, ClientError, Stream};
use crate::error::Error;
use crate::ids::RunId;
use crate::run::RunRequest;

/// Beside the workspace, where every sandbox can write.
pub(super) const BRIEF: &str = "/home/agent/ringfence-brief.md";
pub(super) const FEEDBACK: &str = "/home/agent/ringfence-feedback.md";

/// What stands for the feedback in a word of the agent's command.
const IN_WORDS: &str = "{feedback}";
/// BOUND: bytes of one word of a command line; the kernel takes 128 KiB.
const MAX_WORD: usize = 100 << 10;

/// Where feedback is besides its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placed {
    InWords,
    Nowhere,
}

/// The words that start the agent. Where none asks for the feedback, it stands after the brief if that
/// is in a word.
pub(super) fn words(
    argv: &[ByteText],
    brief: Option<&[u8]>,
    feedback: Option<&[u8]>,
) -> (Vec<ByteText>, Placed) {
    let told = String::from_utf8_lossy(feedback.unwrap_or_default());
    let texts = || argv.iter().map(|word| std::str::from_utf8(word.as_bytes()));
    if texts().any(|text| text.is_ok_and(|text| text.contains(IN_WORDS))) {
        let fill = |word: &ByteText| match std::str::from_utf8(word.as_bytes()) {
            Ok(text) => put(text, IN_WORDS, "", &told),
            Err(_) => word.clone(),
        };
        return (argv.iter().map(fill).collect(), Placed::InWords);
    }
    let brief = brief.and_then(|brief| std::str::from_utf8(brief).ok());
    let brief = brief.filter(|brief| !brief.is_empty() && feedback.is_some());
    let mut words = argv.to_vec();
    let holds = |word: &ByteText, brief: &str| {
        let text = std::str::from_utf8(word.as_bytes());
        text.is_ok_and(|text| text.contains(brief))
    };
    if let Some(brief) = brief
        && let Some(at) = words.iter().rposition(|word| holds(word, brief))
        && let Ok(text) = std::str::from_utf8(argv[at].as_bytes())
    {
        words[at] = put(text, brief, &format!("{brief}\n\n"), &told);
        return (words, Placed::InWords);
    }
    (words, Placed::Nowhere)
}

/// A word with the feedback in each place, cut so that the word is not too long.
fn put(text: &str, place: &str, before: &str, told: &str) -> ByteText {
    let times = text.matches(place).count().max(1);
    let mut most = MAX_WORD.saturating_sub(text.len()) / times;
    most = most.min(told.len());
    while !told.is_char_boundary(most) {
        most -= 1;
    }
    ByteText::from(&*text.replace(place, &format!("{before}{}", &told[..most])))
}

/// The word that ends a turn of an agent that stays. Nothing prints it by chance.
pub(super) fn turn_word() -> Result<String, Error> {
    Ok(format!("ringfence-turn-{}", RunId::random()?))
}

/// What tells the agent where things are.
pub(super) fn variables(
    env: &mut Vec<(ByteText, ByteText)>,
    request: &RunRequest,
    rounds: &Rounds,
    number: u32,
    word: &str,
) {
    let mut own = vec![
        ("RINGFENCE_FEEDBACK", FEEDBACK.to_owned()),
        ("RINGFENCE_ITERATION", number.to_string()),
        ("RINGFENCE_ITERATIONS", rounds.iterations.to_string()),
    ];
    if request.brief.is_some() {
        own.push(("RINGFENCE_BRIEF", BRIEF.to_owned()));
    }
    if rounds.agent == AgentLife::Stays {
        own.push(("RINGFENCE_TURN", word.to_owned()));
    }
    for (name, value) in own {
        let name = ByteText::from(name);
        env.retain(|(key, _)| *key != name);
        env.push((name, ByteText::from(&*value)));
    }
}

/// Writes a file inside.
pub(super) fn file(
    client: &mut Client,
    path: &str,
    content: &[u8],
    number: u32,
) -> Result<(), ClientError> {
    match replace(client, path, content) {
        Err(ClientError::Failed(_)) => {}
        done => return done,
    }
    // A directory is there, say.
    client.call(&Request::Rename {
        from: path.into(),
        to: ByteText::from(&*format!("{path}.moved-{number}")),
    })?;
    replace(client, path, content)
}

fn replace(client: &mut Client, path: &str, content: &[u8]) -> Result<(), ClientError> {
    let stream = client.send(&Request::WriteFile {
        path: path.into(),
        mode: 0o644,
        how: WriteHow::Replace,
    })?;
    client.input(stream, content)?;
    client.end_input(stream)?;
    client.answer_to(stream).map(drop)
}

impl Parts<'_, '_> {
    /// What the agent is told of an iteration.
    pub(super) fn feedback(
        &self,
        ended: &Ended,
        rounds: &Rounds,
        left: &Left,
        own: &InLoop,
    ) -> Vec<u8> {
        let checked = own.checked.as_ref();
        let reports = checked.map(|checked| checked.checks.reports.as_slice());
        let failing = reports.unwrap_or_default().iter().enumerate();
        let failing = failing.filter(|(_, report)| !report.holds());
        let failing: Vec<Failing<'_>> = failing
            .map(|(number, report)| {
                let end = |stream: Stream| {
                    let (tree, ran) = feedback::shown(report)?;
                    let logs = &checked?.logs;
                    let found = checks::log_in(self.home, logs, number + 1, tree, stream, ran);
                    Some(found.and_then(last_bytes).unwrap_or_else(|| {
                        let tail = match stream {
                            Stream::Stdout => &ran.stdout_tail,
                            Stream::Stderr => &ran.stderr_tail,
                        };
                        tail.clone().into_bytes()
                    }))
                };
                Failing {
                    report,
                    stdout: end(Stream::Stdout).unwrap_or_default(),
                    stderr: end(Stream::Stderr).unwrap_or_default(),
                }
            })
            .collect();
        let notes = checked.map(|checked| checked.checks.notes.as_slice());
        let ended = feedback::Ended {
            iteration: ended.number,
            most: rounds.iterations,
            outcome: ended.outcome,
            code: ended.code,
            signal: ended.signal,
            changed_files: super::super::changed_files(&left.set).len() as u64,
            notes: notes.unwrap_or_default(),
        };
        let text = feedback::write(&ended, &failing);
        // What checks print goes where the agent reads it: no value of a secret is in it.
        self.recorder.guard.clean(text.into_bytes())
    }
}

/// The end of a log, with a bit more than is told of it.
fn last_bytes(mut file: File) -> Option<Vec<u8>> {
    let length = file.metadata().ok()?.len();
    let most = END_BYTES as u64 + 1;
    file.seek(SeekFrom::Start(length.saturating_sub(most)))
        .ok()?;
    let mut end = Vec::new();
    file.take(most).read_to_end(&mut end).ok()?;
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feedback_stands_where_a_word_asks_for_it() {
        let argv = |words: &[&str]| -> Vec<ByteText> {
            words.iter().map(|word| ByteText::from(*word)).collect()
        };
        let bad = Some(&b"bad"[..]);
        let (found, placed) = words(&argv(&["a", "-p", "fix:\n{feedback}"]), None, bad);
        assert_eq!(found, argv(&["a", "-p", "fix:\nbad"]));
        assert_eq!(placed, Placed::InWords);
        let (found, placed) = words(&argv(&["a", "{feed"]), None, bad);
        assert_eq!((found, placed), (argv(&["a", "{feed"]), Placed::Nowhere));
        // The first start has none.
        let (found, _) = words(&argv(&["a", "{feedback}"]), None, None);
        assert_eq!(found, argv(&["a", ""]));
        // After the brief, where that is in a word.
        let brief = Some(&b"do it"[..]);
        let (found, placed) = words(&argv(&["a", "do it", "-p=do it!"]), brief, bad);
        assert_eq!(found, argv(&["a", "do it", "-p=do it\n\nbad!"]));
        assert_eq!(placed, Placed::InWords);
        let (found, _) = words(&argv(&["a", "do it"]), brief, None);
        assert_eq!(found, argv(&["a", "do it"]));
        // What is put in is not looked at again.
        let (found, _) = words(&argv(&["{feedback}"]), None, Some(b"{feedback}"));
        assert_eq!(found, argv(&["{feedback}"]));
        let long = "ä".repeat(MAX_WORD);
        let twice = argv(&["x{feedback}{feedback}"]);
        let (found, _) = words(&twice, None, Some(long.as_bytes()));
        let length = found[0].as_bytes().len();
        assert!((MAX_WORD - 40..=MAX_WORD).contains(&length), "{length}");
    }
}
