//! Calls that change files below the workspace: who, what, where.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;

use ringfence_jail::observe::{Asked, At};
use ringfence_model::ByteText;
use ringfence_model::observed::{Observed, Version, Write, Wrote};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::paths::{Named, Nowhere, Place};
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
    /// The last name that led nowhere that can be told, and whose it was.
    unplaced: Option<(Option<u64>, Vec<u8>)>,
}

/// Where a name of a call leads: nothing of what is gone, the name as it was asked for where that
/// cannot be told.
type Led = Option<Result<Place, Vec<u8>>>;

impl Writes {
    pub fn below(workspace: &str) -> Self {
        Self {
            workspace: workspace.as_bytes().to_vec(),
            last: BTreeMap::new(),
            moves: 0,
            versions: 0,
            unplaced: None,
        }
    }

    /// What there is to say about a call, or what it must fail with.
    pub fn look(
        &mut self,
        thread: i32,
        asked: Asked,
        table: &Table,
    ) -> Result<Vec<Observed>, Errno> {
        let led = |at: At| -> Result<Led, Errno> {
            let named = Named::read(thread, at)?;
            Ok(match named.place() {
                Ok(place) => Some(Ok(place)),
                Err(Nowhere::Gone) => None,
                Err(Nowhere::Unknown) => Some(Err(named.name)),
            })
        };
        let is_file = |place: &Place| {
            matches!(
                place.what,
                Some(FileType::RegularFile | FileType::Symlink) | None
            )
        };
        // What is not there now may be there when the kernel looks: everything is told.
        let (at, wrote) = match asked {
            Asked::Open { how, .. } if how.nameless => return Ok(Vec::new()),
            Asked::Open { at, how } => {
                let led = led(at)?;
                let created = matches!(&led, Some(Ok(place)) if place.what.is_none());
                let wrote = if created && how.creates {
                    Wrote::Created
                } else {
                    Wrote::Opened
                };
                let led = led.filter(|led| led.as_ref().map_or(true, is_file));
                return Ok(self.tell_led(thread, led, wrote, table));
            }
            Asked::Mode(at) => {
                let led = led(at)?.filter(|led| led.as_ref().map_or(true, is_file));
                return Ok(self.tell_led(thread, led, Wrote::Mode, table));
            }
            Asked::Link { from, to } => {
                // What had no name before is new.
                let wrote = match led(from)? {
                    Some(Ok(old)) => Wrote::Linked {
                        to: self.name(&old.path),
                    },
                    _ => Wrote::Created,
                };
                (to, wrote)
            }
            Asked::Rename { from, to, exchange } => {
                let (from, to) = (led(from)?, led(to)?);
                return Ok(self.rename(thread, from, to, exchange, table));
            }
            Asked::Truncate(at) => (at, Wrote::Truncated),
            Asked::Remove(at) => (at, Wrote::Removed),
            Asked::Symlink(at) => (at, Wrote::Symlinked),
            Asked::Node(at) => (at, Wrote::MadeNode),
            Asked::Exec { .. } | Asked::Begin | Asked::RemoveDirectory | Asked::Unknown => {
                return Ok(Vec::new());
            }
        };
        Ok(self.tell_led(thread, led(at)?, wrote, table))
    }

    fn tell_led(&mut self, thread: i32, led: Led, wrote: Wrote, table: &Table) -> Vec<Observed> {
        match led {
            Some(Ok(place)) => self.tell(thread, &place, wrote, table),
            Some(Err(name)) => self.unplaced(thread, name, table),
            None => Vec::new(),
        }
    }

    fn rename(
        &mut self,
        thread: i32,
        from: Led,
        to: Led,
        exchange: bool,
        table: &Table,
    ) -> Vec<Observed> {
        let is_directory =
            |led: &Led| matches!(led, Some(Ok(place)) if place.what == Some(FileType::Directory));
        if is_directory(&from) || is_directory(&to) {
            self.moves += 1;
        }
        match (from, to) {
            (Some(Ok(from)), Some(Ok(to))) => {
                let name = self.name(&from.path);
                self.last.remove(name.as_bytes());
                let wrote = if exchange {
                    Wrote::Exchanged { with: name }
                } else {
                    Wrote::Renamed { from: name }
                };
                self.tell(thread, &to, wrote, table)
            }
            (None, _) | (_, None) => Vec::new(),
            // Of the one that is known, something went or came.
            (from, to) => {
                let left = if exchange {
                    Wrote::Created
                } else {
                    Wrote::Removed
                };
                let mut facts = self.tell_led(thread, from, left, table);
                facts.extend(self.tell_led(thread, to, Wrote::Created, table));
                facts
            }
        }
    }

    /// Something was written, and where cannot be told.
    pub fn unplaced(&mut self, thread: i32, name: Vec<u8>, table: &Table) -> Vec<Observed> {
        let said = (table.exec_of(thread), name);
        if self.unplaced.as_ref() == Some(&said) {
            return Vec::new();
        }
        let write = Write {
            exec: said.0,
            pid: thread,
            path: ByteText::from(said.1.as_slice()),
            what: Wrote::Unplaced,
        };
        self.unplaced = Some(said);
        vec![Observed::Write(write)]
    }

    fn tell(&mut self, thread: i32, place: &Place, wrote: Wrote, table: &Table) -> Vec<Observed> {
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

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::fd::AsRawFd as _;

    use ringfence_jail::observe::{Directory, Opening};

    use super::*;

    /// What this thread asks for, as if it were inside.
    struct Asking {
        writes: Writes,
        table: Table,
        workspace: String,
        _dir: tempfile::TempDir,
    }

    fn asking() -> Asking {
        let dir = tempfile::tempdir().unwrap();
        let workspace = dir.path().canonicalize().unwrap();
        let workspace = workspace.to_str().unwrap().to_owned();
        Asking {
            writes: Writes::below(&workspace),
            table: Table::new().unwrap(),
            workspace,
            _dir: dir,
        }
    }

    impl Asking {
        fn look(&mut self, asked: Asked) -> Result<Vec<(String, Wrote)>, Errno> {
            let thread = rustix::thread::gettid().as_raw_nonzero().get();
            let facts = self.writes.look(thread, asked, &self.table)?;
            let told = facts.into_iter().map(|fact| match fact {
                Observed::Write(write) => (write.path.to_text(), write.what),
                other => panic!("{other:?}"),
            });
            Ok(told.collect())
        }

        /// A path in the workspace, below directories that are not there.
        fn below(&self, missing: usize) -> CString {
            let path = format!("{}/{}x", self.workspace, "m/".repeat(missing));
            CString::new(path).unwrap()
        }
    }

    fn at(name: &CString) -> At {
        At {
            directory: Directory::Working,
            name: name.as_ptr() as u64,
            follows: true,
        }
    }

    const CREATE: Opening = Opening {
        creates: true,
        nameless: false,
    };

    #[test]
    fn a_write_that_cannot_be_placed_is_told_with_its_name() {
        let mut asking = asking();
        let (near, far) = (asking.below(11), asking.below(40));
        let open = |at| Asked::Open { at, how: CREATE };
        let placed = (format!("{}x", "m/".repeat(11)), Wrote::Created);
        assert_eq!(asking.look(open(at(&near))), Ok(vec![placed]));

        let unplaced = (far.to_str().unwrap().to_owned(), Wrote::Unplaced);
        assert_eq!(asking.look(open(at(&far))), Ok(vec![unplaced.clone()]));
        assert_eq!(asking.look(open(at(&far))), Ok(vec![]), "told already");
        for asked in [
            Asked::Truncate(at(&far)),
            Asked::Remove(at(&far)),
            Asked::Symlink(at(&far)),
            Asked::Node(at(&far)),
            Asked::Mode(at(&far)),
            Asked::Link {
                from: at(&near),
                to: at(&far),
            },
        ] {
            asking.writes.unplaced = None;
            assert_eq!(asking.look(asked), Ok(vec![unplaced.clone()]), "{asked:?}");
        }

        // Where one of two names is known, something happens to that one.
        let here = asking.below(0);
        let rename = |from, to, exchange| Asked::Rename {
            from: at(from),
            to: at(to),
            exchange,
        };
        let x = |what| ("x".to_owned(), what);
        for (asked, expected) in [
            (
                rename(&here, &far, false),
                vec![x(Wrote::Removed), unplaced.clone()],
            ),
            (
                rename(&far, &here, false),
                vec![unplaced.clone(), x(Wrote::Created)],
            ),
            (
                rename(&here, &far, true),
                vec![x(Wrote::Created), unplaced.clone()],
            ),
        ] {
            asking.writes.unplaced = None;
            asking.writes.last.clear();
            assert_eq!(asking.look(asked), Ok(expected), "{asked:?}");
        }
    }

    #[test]
    fn what_is_gone_is_not_told_and_what_cannot_be_read_fails() {
        let mut asking = asking();
        let file = tempfile::tempfile_in(&asking.workspace).unwrap();
        let descriptor = |fd| At {
            directory: Directory::Descriptor(fd),
            name: 0,
            follows: true,
        };
        let deleted = Asked::Mode(descriptor(file.as_raw_fd()));
        assert_eq!(asking.look(deleted), Ok(vec![]));
        assert_eq!(asking.look(Asked::Mode(descriptor(1 << 20))), Ok(vec![]));

        let wild = At {
            name: 8,
            ..descriptor(file.as_raw_fd())
        };
        assert_eq!(asking.look(Asked::Remove(wild)), Err(Errno::FAULT));
        let long = CString::new("x".repeat(4096)).unwrap();
        let refused = asking.look(Asked::Remove(at(&long)));
        assert_eq!(refused, Err(Errno::NAMETOOLONG));
    }
}
