//! What an engine tells of a container while it is there: that the kernel ended something of it for its
//! memory, that somebody paused it, and that it is over.

use std::io::Read as _;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ringfence_jail::cgroup::Foreign;
use serde_json::{Value, json};

use super::api::{Engine, VERSION};
use super::container::percent;
use super::streams;
use crate::backend::BackendError;

/// BOUND: an event has some hundred bytes, and the labels of its image.
const MOST_BYTES: usize = 1 << 20;
/// BOUND: the engine hears of it within moments.
const TOLD_WITHIN: Duration = Duration::from_millis(150);
/// BOUND: and of an end, and of what was before it, in any order.
const OVER_WITHIN: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// BOUND: a cgroup is there for so long after the last process in it was killed.
const COUNT_EVERY: Duration = Duration::from_millis(10);

/// A connection on which the engine tells.
#[derive(Debug)]
pub struct Told {
    way: UnixStream,
    heard: Arc<Heard>,
}

#[derive(Debug, Default)]
struct Heard {
    memory_kills: AtomicU64,
    paused: AtomicBool,
    over: AtomicBool,
}

impl Told {
    /// From before the container is made.
    pub fn listen(engine: &Engine, name: &str) -> Result<Self, BackendError> {
        let filters =
            json!({ "container": [name], "event": ["oom", "pause", "unpause", "die", "destroy"] });
        let filters = percent(&filters.to_string());
        let ask =
            format!("GET /{VERSION}/events?filters={filters} HTTP/1.1\r\nHost: engine\r\n\r\n");
        let mut way = streams::ask(engine, &ask)?;
        let heard = Arc::new(Heard::default());
        let (own, hearing) = (way.try_clone(), heard.clone());
        std::thread::spawn(move || hearing.hear(&mut way));
        let own = own.map_err(|source| BackendError::Streams {
            engine: engine.name,
            source,
        })?;
        Ok(Self { way: own, heard })
    }

    /// Looks at what the kernel counts as long as it does, where an engine does not hear of it.
    pub fn count(&self, foreign: Foreign) {
        let heard = Arc::downgrade(&self.heard);
        std::thread::spawn(move || {
            while let Some(heard) = heard.upgrade()
                && !foreign.is_gone()
            {
                let kills = foreign.events().memory_kills;
                heard.memory_kills.fetch_max(kills, Ordering::AcqRel);
                drop(heard);
                std::thread::sleep(COUNT_EVERY);
            }
        });
    }

    /// Whether somebody paused it, and nobody let it go on.
    pub fn is_paused(&self) -> bool {
        self.heard.paused.load(Ordering::Acquire)
    }

    /// How often the kernel ended something for its memory. What happened a moment ago is waited for.
    pub fn memory_kills(&self, is_gone: bool) -> u64 {
        let began = Instant::now();
        loop {
            let kills = self.heard.memory_kills.load(Ordering::Acquire);
            // One that is gone will be told to be over.
            let within = if is_gone && !self.heard.over.load(Ordering::Acquire) {
                OVER_WITHIN
            } else {
                TOLD_WITHIN
            };
            if kills > 0 || began.elapsed() > within {
                return kills;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl Heard {
    fn hear(&self, way: &mut UnixStream) {
        let mut line = Vec::new();
        let mut chunk = [0; 4096];
        while let Ok(count @ 1..) = way.read(&mut chunk) {
            for part in chunk[..count].split_inclusive(|byte| *byte == b'\n') {
                // What is longer is none that we could use; its end is waited for.
                if line.len() < MOST_BYTES {
                    line.extend_from_slice(part);
                }
                if part.ends_with(b"\n") {
                    self.take(&line);
                    line.clear();
                }
            }
        }
    }

    /// One line: an event, or what the engine puts between them.
    ///
    /// HOSTILE: labels of the image are in it, with names and values of its maker's.
    fn take(&self, line: &[u8]) {
        let Ok(event) = serde_json::from_slice::<Value>(line) else {
            return;
        };
        match event["status"].as_str().unwrap_or_default() {
            // It tells more than once of one.
            "oom" => drop(self.memory_kills.fetch_max(1, Ordering::AcqRel)),
            "pause" => self.paused.store(true, Ordering::Release),
            "unpause" => self.paused.store(false, Ordering::Release),
            "die" | "destroy" => {
                self.paused.store(false, Ordering::Release);
                self.over.store(true, Ordering::Release);
            }
            _ => {}
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.way.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn an_event_is_what_the_engine_says_and_not_a_label() {
        let (mut engine, mut way) = UnixStream::pair().expect("a pair");
        let heard = Arc::new(Heard::default());
        let hearing = heard.clone();
        let thread = std::thread::spawn(move || hearing.hear(&mut way));
        let event = |status: &str, label: &str| {
            let attributes = json!({ "status": label, "x": "\"status\":\"oom\"" });
            let event = json!({ "status": status, "Actor": { "Attributes": attributes } });
            let event = format!("{event}\n");
            format!("{:x}\r\n{event}\r\n", event.len())
        };
        let long = format!("{{\"status\":\"die\",\"x\":\"{}\"}}\n", "x".repeat(2 << 20));
        let all = [
            event("create", "oom"),
            long,
            event("pause", "unpause"),
            event("start", "unpause"),
        ];
        engine.write_all(all.concat().as_bytes()).expect("written");
        drop(engine);
        thread.join().expect("heard");
        assert!(heard.paused.load(Ordering::Acquire));
        assert!(!heard.over.load(Ordering::Acquire));
        assert_eq!(heard.memory_kills.load(Ordering::Acquire), 0);
        for (status, paused) in [("unpause", false), ("pause", true), ("die", false)] {
            heard.take(format!("{{\"status\":\"{status}\"}}\r\n").as_bytes());
            assert_eq!(heard.paused.load(Ordering::Acquire), paused, "{status}");
        }
        heard.take(b"{\"status\":\"oom\"}\n");
        assert_eq!(heard.memory_kills.load(Ordering::Acquire), 1);
        assert!(heard.over.load(Ordering::Acquire));
    }
}
