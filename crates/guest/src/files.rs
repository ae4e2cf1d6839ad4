//! File requests: read, write, list, stat, remove, rename, make directories.
//!
//! The guest reaches files as the agent, inside the agent's own root: a link leads nowhere that
//! the agent could not go itself. Nothing here waits: only regular files are read and written.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use ringfence_jail::reach::Reach;
use ringfence_model::ByteText;
use ringfence_model::wire::{
    Depth, Entry, EntryType, Failure, Kind, MAX_PAYLOAD, Parents, Reply, Request, WriteHow,
};
use rustix::io::Errno;

use crate::connection::Connection;

/// O_NONBLOCK | O_NOCTTY: opening a FIFO or a terminal by mistake waits for nobody.
const CAREFUL: i32 = 0o4000 | 0o400;

/// Reads and writes that are under way, by stream.
#[derive(Debug)]
pub struct Files {
    pub reach: Reach,
    reads: BTreeMap<u32, Reading>,
    writes: BTreeMap<u32, Writing>,
}

#[derive(Debug)]
struct Reading {
    file: File,
    left: u64,
}

#[derive(Debug)]
struct Writing {
    path: PathBuf,
    file: Option<File>,
    /// What is renamed into place at the end.
    temporary: Option<PathBuf>,
    failed: Option<Failure>,
}

impl Default for Files {
    /// Nothing is reached before the guest has locked itself down.
    fn default() -> Self {
        Self {
            reach: Reach::Always,
            reads: BTreeMap::new(),
            writes: BTreeMap::new(),
        }
    }
}

impl Files {
    pub fn has_work(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Answers a file request, now or when its content has come.
    pub fn answer(&mut self, stream: u32, request: Request) -> Option<Reply> {
        self.reach.as_agent(|| self.act(stream, request))
    }

    fn act(&mut self, stream: u32, request: Request) -> Option<Reply> {
        Some(match request {
            Request::ReadFile {
                path,
                offset,
                length,
            } => {
                let opened = open_regular(to_path(&path)).and_then(|(mut file, size)| {
                    file.seek(io::SeekFrom::Start(offset))?;
                    Ok((file, size))
                });
                match opened {
                    Ok((file, size)) => {
                        let left = length.min(size.saturating_sub(offset));
                        self.reads.insert(stream, Reading { file, left });
                        Reply::File { size }
                    }
                    Err(error) => failed("read", &path, &error),
                }
            }
            Request::WriteFile { path, mode, how } => {
                self.writes.insert(stream, Writing::begin(&path, mode, how));
                return None;
            }
            Request::List { path } => {
                list(&path).unwrap_or_else(|error| failed("list", &path, &error))
            }
            Request::Stat { path } => match fs::symlink_metadata(to_path(&path)) {
                Ok(metadata) => Reply::Entry(entry(path.as_bytes(), &metadata)),
                Err(error) => failed("stat", &path, &error),
            },
            Request::Remove { path, depth } => done("remove", &path, remove(to_path(&path), depth)),
            Request::Rename { from, to } => {
                done("rename", &from, fs::rename(to_path(&from), to_path(&to)))
            }
            Request::MakeDirectory { path, parents } => done(
                "make",
                &path,
                match parents {
                    Parents::Existing => fs::create_dir(to_path(&path)),
                    Parents::Make => fs::create_dir_all(to_path(&path)),
                },
            ),
            _ => Reply::Failed(crate::failure("answer", b"request", Errno::NOSYS)),
        })
    }

    /// Content of a file that is written; false if the stream is none of ours.
    pub fn input(&mut self, stream: u32, bytes: &[u8]) -> bool {
        let Some(writing) = self.writes.get_mut(&stream) else {
            return false;
        };
        if let Some(file) = &mut writing.file
            && let Err(error) = file.write_all(bytes)
        {
            self.reach.as_agent(|| writing.fail("write", &error));
        }
        true
    }

    pub fn end_input(&mut self, stream: u32, connection: &mut Connection) -> bool {
        let Some(writing) = self.writes.remove(&stream) else {
            return false;
        };
        connection.reply(stream, &self.reach.as_agent(|| writing.finish()));
        true
    }

    /// Sends more of what is read, as long as there is room.
    pub fn advance(&mut self, connection: &mut Connection) {
        let mut chunk = [0u8; 65536];
        self.reads.retain(|&stream, reading| {
            if !connection.has_room() {
                return true;
            }
            let wanted = reading.left.min(chunk.len() as u64) as usize;
            let count = if wanted == 0 {
                0
            } else {
                reading.file.read(&mut chunk[..wanted]).unwrap_or(0)
            };
            if count > 0 {
                connection.data(Kind::Output, stream, &chunk[..count]);
                reading.left -= count as u64;
                return true;
            }
            connection.end_of_data(stream);
            false
        });
    }
}

impl Writing {
    fn begin(path: &ByteText, mode: u32, how: WriteHow) -> Self {
        let target = to_path(path).to_owned();
        let mut writing = Self {
            path: target.clone(),
            file: None,
            temporary: None,
            failed: None,
        };
        let mut options = OpenOptions::new();
        options.mode(mode & 0o777).custom_flags(CAREFUL);
        let opened = match how {
            WriteHow::Replace => {
                let mut name = target.as_os_str().as_bytes().to_vec();
                name.extend_from_slice(format!(".ringfence-{}", std::process::id()).as_bytes());
                let temporary = PathBuf::from(OsStr::from_bytes(&name));
                let opened = options.write(true).create_new(true).open(&temporary);
                writing.temporary = Some(temporary);
                opened
            }
            WriteHow::Append => options.append(true).create(true).open(&target),
            WriteHow::CreateOnly => options.write(true).create_new(true).open(&target),
        };
        let checked = opened.and_then(|file| {
            if file.metadata()?.is_file() {
                Ok(file)
            } else {
                Err(Errno::INVAL.into())
            }
        });
        match checked {
            Ok(file) => writing.file = Some(file),
            Err(error) => writing.fail("write", &error),
        }
        writing
    }

    fn fail(&mut self, operation: &str, error: &io::Error) {
        let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
        self.failed = Some(crate::failure(
            operation,
            self.path.as_os_str().as_bytes(),
            errno,
        ));
        self.file = None;
        if let Some(temporary) = self.temporary.take() {
            // Nothing was promised about it.
            let _ = fs::remove_file(temporary);
        }
    }

    fn finish(mut self) -> Reply {
        if let Some(temporary) = self.temporary.clone()
            && let Err(error) = fs::rename(&temporary, &self.path)
        {
            self.fail("write", &error);
        }
        match self.failed {
            Some(failure) => Reply::Failed(failure),
            None => Reply::Done,
        }
    }
}

fn to_path(path: &ByteText) -> &Path {
    Path::new(OsStr::from_bytes(path.as_bytes()))
}

fn failed(operation: &str, path: &ByteText, error: &io::Error) -> Reply {
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
    Reply::Failed(crate::failure(operation, path.as_bytes(), errno))
}

fn done(operation: &str, path: &ByteText, result: io::Result<()>) -> Reply {
    match result {
        Ok(()) => Reply::Done,
        Err(error) => failed(operation, path, &error),
    }
}

fn open_regular(path: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(CAREFUL)
        .open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(Errno::ISDIR.into());
    }
    if !metadata.is_file() {
        return Err(Errno::INVAL.into());
    }
    Ok((file, metadata.len()))
}

fn entry(name: &[u8], metadata: &Metadata) -> Entry {
    let kind = metadata.file_type();
    Entry {
        name: ByteText::from(name),
        what: if kind.is_dir() {
            EntryType::Directory
        } else if kind.is_file() {
            EntryType::File
        } else if kind.is_symlink() {
            EntryType::Symlink
        } else {
            EntryType::Special
        },
        mode: metadata.permissions().mode() & 0o7777,
        size: metadata.len(),
        modified_seconds: metadata.mtime(),
    }
}

fn list(path: &ByteText) -> io::Result<Reply> {
    let mut entries = Vec::new();
    // BOUND: an entry takes at most some 1,400 bytes of JSON, a name of 255 odd bytes included.
    let mut room = MAX_PAYLOAD / 4;
    let mut truncated = false;
    for item in fs::read_dir(to_path(path))? {
        let item = item?;
        let Ok(metadata) = item.metadata() else {
            continue;
        };
        let entry = entry(item.file_name().as_bytes(), &metadata);
        let cost = entry.name.to_text().len() * 2 + 128;
        if cost > room {
            truncated = true;
            break;
        }
        room -= cost;
        entries.push(entry);
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Reply::Listing { entries, truncated })
}

fn remove(path: &Path, depth: Depth) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    match (metadata.is_dir(), depth) {
        (false, _) => fs::remove_file(path),
        (true, Depth::Entry) => fs::remove_dir(path),
        (true, Depth::Tree) => fs::remove_dir_all(path),
    }
}
