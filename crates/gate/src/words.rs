//! What a gate says to the engine, in order and bounded.
//!
//! Where the engine does not keep up, whoever has something to say waits. The same denial, again and
//! again, is said once and then counted.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::time::Duration;

use ringfence_model::gate::{Happened, Traffic, Word};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

/// BOUND: words that wait for the engine; then connections wait.
const MAX_WAITING: usize = 256;
/// BOUND: different denials whose repetitions are counted at a time; more are said one by one.
const MAX_COUNTED: usize = 1024;
/// BOUND: what is said of one text that the inside or a host chose. Many long ones would fill the
/// journal of a run.
const MAX_TEXT: usize = 1 << 10;
/// Stands at the end of a text that was cut.
const CUT: &str = "…";
/// How long repetitions of a denial are counted before they are said.
const COUNT_TIME: Duration = Duration::from_secs(1);

pub(crate) struct Words {
    queue: mpsc::Sender<Word>,
    /// Denials that were said lately, and how often they happened since.
    counted: RefCell<HashMap<String, (Traffic, u64)>>,
}

/// The other end of [`Words`].
pub(crate) struct Queue(mpsc::Receiver<Word>);

pub(crate) fn queue() -> (Words, Queue) {
    let (sender, receiver) = mpsc::channel(MAX_WAITING);
    let words = Words {
        queue: sender,
        counted: RefCell::default(),
    };
    (words, Queue(receiver))
}

impl Words {
    pub(crate) async fn say(&self, word: Word) {
        // The engine is gone: then the gate ends too, and nobody hears this.
        self.queue.send(word).await.ok();
    }

    /// Who stops waiting for this has said nothing.
    pub(crate) async fn tell(&self, mut traffic: Traffic) {
        bound(&mut traffic);
        if !matches!(traffic.result, Happened::Denied { .. }) {
            return self.say(Word::Seen(traffic)).await;
        }
        let key = format!("{traffic:?}");
        if self.count(&key) {
            return;
        }
        let Ok(place) = self.queue.reserve().await else {
            return;
        };
        // Another may have said it meanwhile.
        if self.count(&key) {
            return;
        }
        let mut counted = self.counted.borrow_mut();
        if counted.len() < MAX_COUNTED {
            counted.insert(key, (traffic.clone(), 0));
        }
        place.send(Word::Seen(traffic));
    }

    /// Whether this was said a moment ago; then it is counted instead.
    fn count(&self, key: &str) -> bool {
        let mut counted = self.counted.borrow_mut();
        let Some((_, times)) = counted.get_mut(key) else {
            return false;
        };
        *times += 1;
        true
    }

    /// Says what was counted, again and again.
    pub(crate) async fn keep_counting(&self) {
        loop {
            tokio::time::sleep(COUNT_TIME).await;
            self.say_counted().await;
        }
    }

    /// Says what was counted. Who stops this in the middle loses nothing.
    pub(crate) async fn say_counted(&self) {
        let keys: Vec<String> = self.counted.borrow().keys().cloned().collect();
        for key in keys {
            let Some((mut traffic, times)) = self.counted.borrow().get(&key).cloned() else {
                continue;
            };
            if times > 0 {
                traffic.times = times;
                self.say(Word::Seen(traffic)).await;
            }
            let mut counted = self.counted.borrow_mut();
            if let Some((_, since)) = counted.get_mut(&key) {
                *since -= times;
                if *since == 0 {
                    counted.remove(&key);
                }
            }
        }
    }
}

/// HOSTILE: cuts what is too long.
fn bound(traffic: &mut Traffic) {
    cut_bytes(&mut traffic.host.0);
    if let Some(path) = &mut traffic.path {
        cut_bytes(&mut path.0);
    }
    if let Some(method) = &mut traffic.method {
        cut(method);
    }
    match &mut traffic.result {
        Happened::Denied { detail, allow, .. } => {
            cut(detail);
            // Half a rule allows something else.
            *allow = allow.take().filter(|line| line.len() <= MAX_TEXT);
        }
        Happened::Failed { detail } => cut(detail),
        Happened::Stripped { field } => cut(field),
        Happened::Allowed { .. } | Happened::Scrubbed { .. } | Happened::Learned { .. } => {}
    }
}

fn cut(text: &mut String) {
    if text.len() > MAX_TEXT {
        text.truncate(text.floor_char_boundary(MAX_TEXT));
        text.push_str(CUT);
    }
}

fn cut_bytes(bytes: &mut Vec<u8>) {
    if bytes.len() > MAX_TEXT {
        // Not inside a character, where it is text.
        let inside = |at: &usize| bytes[*at] & 0xc0 == 0x80;
        let back = (1..4).map(|back| MAX_TEXT - back).find(|at| !inside(at));
        let at = if inside(&MAX_TEXT) { back } else { None };
        bytes.truncate(at.unwrap_or(MAX_TEXT));
        bytes.extend_from_slice(CUT.as_bytes());
    }
}

impl Queue {
    /// Writes words until there are no more, or the last one was said.
    pub(crate) async fn write_to(mut self, mut engine: impl AsyncWrite + Unpin) -> io::Result<()> {
        while let Some(word) = self.0.recv().await {
            let mut line = serde_json::to_vec(&word)?;
            line.push(b'\n');
            engine.write_all(&line).await?;
            if word == Word::Ended {
                break;
            }
        }
        engine.flush().await
    }
}

#[cfg(test)]
mod tests {
    use ringfence_model::ByteText;
    use ringfence_model::gate::Via;
    use ringfence_model::policy::network::{Protocol, Reason};
    use tokio::time::timeout;

    use super::*;
    use crate::state::Denial;

    fn denial(host: &str) -> Traffic {
        Denial::plain(Reason::Host, "no").of_unread(Via::Name, host.as_bytes())
    }

    fn passage(host: &str) -> Traffic {
        Traffic {
            host: ByteText(host.as_bytes().to_vec()),
            protocol: Protocol::Tcp,
            result: Happened::Failed {
                detail: String::new(),
            },
            ..denial(host)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_speaks_waits_for_an_engine_that_does_not_read() {
        let (words, mut queue) = queue();
        for _ in 0..MAX_WAITING {
            words.tell(passage("a")).await;
        }
        let hour = Duration::from_secs(3600);
        assert!(timeout(hour, words.tell(passage("b"))).await.is_err());
        assert!(timeout(hour, words.tell(denial("c"))).await.is_err());
        queue.0.recv().await.unwrap();
        // It was not said, so it is not taken for said.
        assert!(timeout(hour, words.tell(denial("c"))).await.is_ok());
        assert_eq!(queue.0.len(), MAX_WAITING);
        // What is only counted needs no place.
        assert!(timeout(hour, words.tell(denial("c"))).await.is_ok());
        assert!(timeout(hour, words.tell(denial("d"))).await.is_err());
    }

    #[tokio::test]
    async fn long_texts_are_cut() {
        let (words, mut queue) = queue();
        let long = "ü/".repeat(20_000);
        let mut traffic = denial("a");
        traffic.path = Some(ByteText(long.clone().into_bytes()));
        traffic.method = Some("M".repeat(20_000));
        traffic.result = Happened::Denied {
            reason: Reason::Path,
            detail: long.clone(),
            allow: Some(long),
        };
        words.tell(traffic).await;
        let Some(Word::Seen(said)) = queue.0.recv().await else {
            panic!("it was told");
        };
        assert!(said.path.as_ref().unwrap().0.ends_with(CUT.as_bytes()));
        let Happened::Denied { detail, allow, .. } = &said.result else {
            panic!("it is a denial");
        };
        assert!(detail.ends_with(CUT) && allow.is_none());
        assert!(serde_json::to_vec(&said).unwrap().len() < 5 * MAX_TEXT);
    }

    #[tokio::test]
    async fn the_same_denial_is_counted_and_another_is_said() {
        let (words, queue) = queue();
        for host in ["a", "a", "b", "a"] {
            words.tell(denial(host)).await;
        }
        // What is no denial is said each time.
        words.tell(passage("a")).await;
        words.tell(passage("a")).await;
        words.say_counted().await;
        // It was said, and nothing is left of it.
        words.say_counted().await;
        words.tell(denial("a")).await;
        words.say(Word::Ended).await;
        let mut bytes = Vec::new();
        queue.write_to(&mut bytes).await.unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let said: Vec<(String, u64)> = text
            .lines()
            .filter_map(|line| match serde_json::from_str(line).unwrap() {
                Word::Seen(traffic) => Some(traffic),
                _ => None,
            })
            .map(|traffic| (String::from_utf8(traffic.host.0).unwrap(), traffic.times))
            .collect();
        let expected = [("a", 1), ("b", 1), ("a", 1), ("a", 1), ("a", 2), ("a", 1)];
        assert_eq!(said, expected.map(|(host, times)| (host.to_owned(), times)));
    }
}
