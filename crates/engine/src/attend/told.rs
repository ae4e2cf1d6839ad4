//! What a command is told by us on its standard input, and how it says that its turn is over.
//!
//! A command that stays reads a line for each turn, and ends the turn by printing a word of ours as a
//! line of its own.

use std::collections::VecDeque;

/// BOUND: sent at once.
const CHUNK: usize = 16384;

/// Bytes for the standard input of a command.
#[derive(Debug)]
pub(crate) struct Told {
    queue: VecDeque<u8>,
    ended: bool,
    turns: Option<Turns>,
}

/// What is sent next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Bytes(Vec<u8>),
    End,
}

#[derive(Debug)]
struct Turns {
    /// The line that ends a turn.
    word: Vec<u8>,
    /// The beginning of the line that is being printed, never longer than the word and a bit.
    line: Vec<u8>,
    over: bool,
}

impl Told {
    /// These bytes, and then the end.
    pub(crate) fn whole(bytes: Vec<u8>) -> Self {
        Self {
            queue: bytes.into(),
            ended: false,
            turns: None,
        }
    }

    /// A line for each turn, and no end. `word` is what ends a turn.
    pub(crate) fn turns(word: &str, first: &[u8]) -> Self {
        let mut told = Self {
            queue: VecDeque::new(),
            ended: false,
            turns: Some(Turns {
                word: word.as_bytes().to_vec(),
                line: Vec::new(),
                over: false,
            }),
        };
        told.tell(first);
        told
    }

    pub(super) fn tell(&mut self, line: &[u8]) {
        self.queue.extend(line);
        self.queue.push_back(b'\n');
    }

    /// What is to be sent now; `None` where there is nothing.
    pub(super) fn next(&mut self) -> Option<Next> {
        let count = self.queue.len().min(CHUNK);
        if count > 0 {
            return Some(Next::Bytes(self.queue.drain(..count).collect()));
        }
        let ends = self.turns.is_none() && !self.ended;
        self.ended |= ends;
        ends.then_some(Next::End)
    }

    /// HOSTILE: whatever it prints, no more than the length of the word is kept of it.
    pub(super) fn hear(&mut self, bytes: &[u8]) {
        let Some(turns) = &mut self.turns else {
            return;
        };
        // BOUND: the word, a carriage return, and one byte that tells that it is more than that.
        let most = turns.word.len() + 2;
        for (at, part) in bytes.split(|byte| *byte == b'\n').enumerate() {
            if at > 0 {
                let line = turns.line.strip_suffix(b"\r").unwrap_or(&turns.line);
                turns.over |= line == turns.word;
                turns.line.clear();
            }
            let room = most.saturating_sub(turns.line.len());
            turns.line.extend_from_slice(&part[..part.len().min(room)]);
        }
    }

    /// Whether the turn is over; asked again, it is about the next one.
    pub(super) fn take_turn_over(&mut self) -> bool {
        let over = self.turns.as_mut().map(|turns| &mut turns.over);
        over.is_some_and(std::mem::take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_over_when_the_word_is_a_line_of_its_own() {
        for (printed, over) in [
            (&["word\n"][..], true),
            (&["text\nwo", "rd", "\r\n"], true),
            (&["word"], false),
            (&["a word\n"], false),
            (&["words\n"], false),
            (&["word", "word\n"], false),
            (&["word\n", "more\n"], true),
            (&["\n\n"], false),
        ] {
            let mut told = Told::turns("word", b"first");
            for part in printed {
                told.hear(part.as_bytes());
            }
            assert_eq!(told.take_turn_over(), over, "{printed:?}");
            assert!(!told.take_turn_over());
        }
    }

    #[test]
    fn endless_lines_are_not_kept() {
        let mut told = Told::turns("word", b"");
        told.hear(&vec![b'x'; 1 << 20]);
        let kept = told.turns.as_ref().map(|turns| turns.line.len());
        assert_eq!(kept, Some(6));
        told.hear(b"\nword\n");
        assert!(told.take_turn_over());
    }

    #[test]
    fn what_is_told_ends_once_or_never() {
        let mut told = Told::whole(vec![b'x'; CHUNK + 1]);
        assert_eq!(told.next(), Some(Next::Bytes(vec![b'x'; CHUNK])));
        assert_eq!(told.next(), Some(Next::Bytes(vec![b'x'])));
        assert_eq!(told.next(), Some(Next::End));
        assert_eq!(told.next(), None);
        let mut told = Told::turns("word", b"path");
        assert_eq!(told.next(), Some(Next::Bytes(b"path\n".to_vec())));
        assert_eq!(told.next(), None);
    }
}
