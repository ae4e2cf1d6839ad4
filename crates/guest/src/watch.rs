//! Notices of what changes directly in a directory.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use ringfence_model::ByteText;
use ringfence_model::wire::{Changed, Notice, Reply};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use crate::connection::Connection;
use crate::failure;

/// BOUND: watches of one sandbox; each holds kernel memory.
const WATCHES: usize = 256;

/// All watches, by stream.
#[derive(Debug, Default)]
pub struct Watches {
    source: Option<OwnedFd>,
    streams: BTreeMap<i32, u32>,
}

impl Watches {
    pub fn add(&mut self, stream: u32, path: &ByteText) -> Reply {
        match self.try_add(stream, path) {
            Ok(()) => Reply::Done,
            Err(errno) => Reply::Failed(failure("watch", path.as_bytes(), errno)),
        }
    }

    fn try_add(&mut self, stream: u32, path: &ByteText) -> Result<(), Errno> {
        if self.streams.len() >= WATCHES {
            return Err(Errno::NOSPC);
        }
        if self.source.is_none() {
            self.source = Some(inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?);
        }
        let source = self.source.as_ref().expect("made above");
        let interest = WatchFlags::CREATE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::ONLYDIR;
        let number = inotify::add_watch(source, path.as_bytes(), interest)?;
        self.streams.insert(number, stream);
        Ok(())
    }

    pub fn remove(&mut self, stream: u32) -> Reply {
        let number = self
            .streams
            .iter()
            .find(|(_, s)| **s == stream)
            .map(|(number, _)| *number);
        match (number, &self.source) {
            (Some(number), Some(source)) => {
                self.streams.remove(&number);
                // The directory may be gone, and its watch with it.
                let _ = inotify::remove_watch(source, number);
                Reply::Done
            }
            _ => Reply::Failed(failure("find", b"watch", Errno::NOENT)),
        }
    }

    pub fn interests<'a>(&'a self, waits: &mut Vec<PollFd<'a>>) {
        if let Some(source) = &self.source {
            waits.push(PollFd::new(source, PollFlags::IN));
        }
    }

    pub fn advance(&mut self, connection: &mut Connection) {
        let Some(source) = &self.source else { return };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(source, &mut buffer);
        while connection.has_room() {
            let Ok(event) = reader.next() else { return };
            let flags = event.events();
            let name = ByteText::from(event.file_name().map_or(&b""[..], |name| name.to_bytes()));
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                for &stream in self.streams.values() {
                    connection.notice(
                        stream,
                        &Notice::Changed {
                            name: name.clone(),
                            what: Changed::Overflow,
                        },
                    );
                }
                continue;
            }
            let what = if flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
                Changed::Created
            } else if flags.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
                Changed::Removed
            } else {
                Changed::Modified
            };
            if let Some(&stream) = self.streams.get(&event.wd()) {
                connection.notice(stream, &Notice::Changed { name, what });
            }
        }
    }
}
