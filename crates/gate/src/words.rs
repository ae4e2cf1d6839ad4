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

    pub(crate) async fn tell(&self, traffic: Traffic) {
        if matches!(traffic.result, Happened::Denied { .. }) && self.count(&traffic) {
            return;
        }
        self.say(Word::Seen(traffic)).await;
    }

    /// Whether this was said a moment ago; then it is counted instead.
    fn count(&self, traffic: &Traffic) -> bool {
        let key = format!("{traffic:?}");
        let mut counted = self.counted.borrow_mut();
        if let Some((_, times)) = counted.get_mut(&key) {
            *times += 1;
            return true;
        }
        if counted.len() < MAX_COUNTED {
            counted.insert(key, (traffic.clone(), 0));
        }
        false
    }

    /// Says what was counted, again and again.
    pub(crate) async fn keep_counting(&self) {
        loop {
            tokio::time::sleep(COUNT_TIME).await;
            self.say_counted().await;
        }
    }

    /// Says what was counted.
    pub(crate) async fn say_counted(&self) {
        let counted = std::mem::take(&mut *self.counted.borrow_mut());
        for (mut traffic, times) in counted.into_values() {
            if times > 0 {
                traffic.times = times;
                self.say(Word::Seen(traffic)).await;
            }
        }
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
