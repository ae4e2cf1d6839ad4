//! Calls that change files below the workspace: who, what, where.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;

use ringfence_jail::observe::{Asked, At};
use ringfence_model::ByteText;
use ringfence_model::observed::{Observed, Version, Write, Wrote};
use rustix::fs::{FileType, Mode, OFlags};

use super::paths::{Named, Place};
use super::table::Table;

/// BOUND: a larger file is not kept between two writers.
const VERSION: u64 = 256 << 10;
/// BOUND: kept of all files together.
const VERSIONS: u64 = 16 << 20;
/// BOUND: files whose last writer is remembered.
const REMEMBERED: usize = 500_000;

#[derive(Debug)]
pub struct Writes {
    workspace: Vec<u8>,
    /// The last thing that was said of each file, and after how many moves of directories.
    last: BTreeMap<Vec<u8>, (Option<u64>, Wrote, u64)>,
    /// Directories that moved: what is below them has other names since.
    moves: u64,
    versions: u64,
}

impl Writes {
    pub fn below(workspace: &str) -> Self {
        Self {
            workspace: workspace.as_bytes().to_vec(),
            last: BTreeMap::new(),
            moves: 0,
            versions: 0,
        }
    }

    /// What there is to say about a call.
    pub fn look(&mut self, thread: i32, asked: Asked, table: &Table) -> Vec<Observed> {
        let place = |at: At| Named::read(thread, at).and_then(|named| named.place());
        let is_file = |place: &Place| {
            matches!(
                place.what,
                Some(FileType::RegularFile | FileType::Symlink) | None
            )
        };
        // What is not there now may be there when the kernel looks: everything is told.
        let seen = match asked {
            Asked::Open { how, .. } if how.nameless => None,
            Asked::Open { at, how } => place(at).filter(is_file).map(|place| {
                let wrote = match place.what {
                    None if how.creates => Wrote::Created,
                    _ => Wrote::Opened,
                };
                (place, wrote)
            }),
            Asked::Truncate(at) => place(at).map(|place| (place, Wrote::Truncated)),
            Asked::Remove(at) => place(at).map(|place| (place, Wrote::Removed)),
            Asked::Mode(at) => place(at).filter(is_file).map(|place| (place, Wrote::Mode)),
            Asked::Symlink(at) => place(at).map(|place| (place, Wrote::Symlinked)),
            Asked::Node(at) => place(at).map(|place| (place, Wrote::MadeNode)),
            Asked::Link { from, to } => place(to).map(|new| {
                // What had no name before is new.
                let wrote = place(from).map_or(Wrote::Created, |old| Wrote::Linked {
                    to: self.name(&old.path),
                });
                (new, wrote)
            }),
            Asked::Rename { from, to, exchange } => place(from).zip(place(to)).map(|(from, to)| {
                if from.what == Some(FileType::Directory) || to.what == Some(FileType::Directory) {
                    self.moves += 1;
                }
                let name = self.name(&from.path);
                self.last.remove(name.as_bytes());
                if exchange {
                    (to, Wrote::Exchanged { with: name })
                } else {
                    (to, Wrote::Renamed { from: name })
                }
            }),
            Asked::Exec { .. } | Asked::RemoveDirectory | Asked::Unknown => None,
        };
        match seen {
            Some((place, wrote)) => self.tell(thread, place, wrote, table),
            None => Vec::new(),
        }
    }

    fn tell(&mut self, thread: i32, place: Place, wrote: Wrote, table: &Table) -> Vec<Observed> {
        let moved_out = match &wrote {
            Wrote::Renamed { from } | Wrote::Exchanged { with: from } => {
                !from.as_bytes().starts_with(b"/")
            }
            _ => false,
        };
        let inside = self.inside(&place.path).map(<[u8]>::to_vec);
        // What leaves the workspace is a change of it as well.
        let path = match inside {
            Some(path) => path,
            None if moved_out => place.path.clone(),
            None => return Vec::new(),
        };
        let exec = table.exec_of(thread);
        let before = self.last.get(&path);
        let said = (exec, wrote.clone(), self.moves);
        if before == Some(&said)
            && !matches!(wrote, Wrote::Renamed { .. } | Wrote::Exchanged { .. })
        {
            return Vec::new();
        }
        let mut facts = Vec::new();
        if let Some((writer, ..)) = before
            && *writer != exec
            && place.what == Some(FileType::RegularFile)
            && !matches!(wrote, Wrote::Mode | Wrote::Linked { .. })
        {
            let writer = *writer;
            facts.extend(self.version(&place.path, &path, writer));
        }
        if self.last.len() < REMEMBERED || self.last.contains_key(&path) {
            self.last.insert(path.clone(), said);
        }
        facts.push(Observed::Write(Write {
            exec,
            pid: thread,
            path: ByteText(path),
            what: wrote,
        }));
        facts
    }

    /// What a file holds now, which somebody else has written.
    fn version(&mut self, absolute: &[u8], path: &[u8], writer: Option<u64>) -> Option<Observed> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(absolute, flags, Mode::empty()).ok()?;
        let file = File::from(file);
        let metadata = file.metadata().ok()?;
        if !metadata.is_file() || metadata.len() > VERSION || self.versions > VERSIONS {
            return None;
        }
        let mut content = Vec::with_capacity(metadata.len() as usize);
        file.take(VERSION).read_to_end(&mut content).ok()?;
        self.versions += content.len() as u64;
        (!content.contains(&0)).then(|| {
            Observed::Version(Version {
                path: ByteText::from(path),
                exec: writer,
                content: ByteText(content),
            })
        })
    }

    /// A path relative to the workspace, or absolute where it is outside.
    fn name(&self, path: &[u8]) -> ByteText {
        ByteText::from(self.inside(path).unwrap_or(path))
    }

    /// What is below the workspace, but for the private `.git`, which never crosses back.
    fn inside<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        let rest = path.strip_prefix(self.workspace.as_slice())?;
        let rest = rest.strip_prefix(b"/")?;
        let private = rest == b".git" || rest.starts_with(b".git/");
        (!private && !rest.is_empty()).then_some(rest)
    }
}
