//! Commits, trees and blobs of a repository. Loose ones are read here; for those in packs the git
//! program is asked, in a directory of ours that borrows the repository's objects. It is started
//! when it is first needed, and no file of the repository but its objects is named to it.
//!
//! HOSTILE: an object is believed only where it has the id that was asked for, within a bound of
//! size and of time.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout};
use std::time::{Duration, Instant};

use flate2::read::ZlibDecoder;
use ringfence_model::changes::ObjectHash;
use ringfence_model::hex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::directory::Directory;
use super::objects::ObjectMounts;
use super::{GitError, Refusal, Repository, files};
use crate::base::object_id;
use crate::mirror::{Git, ProcessError};

/// BOUND: one object is read from the disk in far less.
const OBJECT_SECONDS: u64 = 30;
/// BOUND: what a patch can carry is smaller, and so is a tree that anybody works with.
const OBJECT_BYTES: u64 = 128 << 20;
/// BOUND: an id, a kind and a length.
const HEADER_BYTES: u64 = 256;

/// Why an object could not be had.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    #[error("the repository's objects are not read: {refusal}")]
    Unusable { refusal: Refusal },
    #[error(transparent)]
    Prepare(#[from] GitError),
    #[error(transparent)]
    Start(#[from] ProcessError),
    #[error("git did not answer")]
    Silent,
    #[error("object `{oid}` is not there, or not what its id says")]
    Missing { oid: String },
}

/// A repository whose objects can be asked for.
#[derive(Debug)]
pub(crate) struct Lookup {
    mounts: ObjectMounts,
    places: Vec<usize>,
    hash: ObjectHash,
    scratch: PathBuf,
    git: Option<Running>,
}

impl Lookup {
    /// Looks into the objects of a repository and what it borrows from. `scratch` becomes a git
    /// directory of our own where one is needed.
    pub(crate) fn begin(repo: &Repository, scratch: &Path) -> Result<Self, LookupError> {
        let mut mounts = ObjectMounts::new("");
        let places = mounts.add(repo, &mut Vec::new());
        let places = places.map_err(|refusal| LookupError::Unusable { refusal })?;
        Ok(Self {
            mounts,
            places,
            hash: repo.hash,
            scratch: scratch.to_owned(),
            git: None,
        })
    }

    pub(crate) fn hash(&self) -> ObjectHash {
        self.hash
    }

    /// The tree of a commit.
    pub(crate) fn tree_of(&mut self, commit: &str) -> Result<String, LookupError> {
        let bytes = self.object("commit", commit)?;
        let line = bytes.split(|&b| b == b'\n').next().unwrap_or_default();
        let tree = line.strip_prefix(b"tree ");
        match tree.filter(|tree| self.hash.is_oid(tree)) {
            Some(tree) => Ok(String::from_utf8_lossy(tree).into_owned()),
            None => Err(missing(commit)),
        }
    }

    /// What an object of a kind holds.
    pub(crate) fn object(&mut self, kind: &str, oid: &str) -> Result<Vec<u8>, LookupError> {
        if !self.hash.is_oid(oid.as_bytes()) {
            return Err(missing(oid));
        }
        let mut directories = self.places.iter().map(|&at| &self.mounts.directories[at]);
        let (found, bytes) = match directories.find_map(|host| loose(host, oid)) {
            Some(found) => found,
            None => self.git()?.object(oid)?,
        };
        let id = hex(&object_id(kind, &bytes, self.hash));
        if found == kind && id == oid {
            Ok(bytes)
        } else {
            Err(missing(oid))
        }
    }

    fn git(&mut self) -> Result<&mut Running, LookupError> {
        if self.git.is_none() {
            self.git = Some(self.start()?);
        }
        self.git.as_mut().ok_or(LookupError::Silent)
    }

    fn start(&self) -> Result<Running, LookupError> {
        let scratch = &self.scratch;
        for directory in ["objects/info", "refs"] {
            files::create_dirs(&scratch.join(directory))?;
        }
        let format = format!(
            "[core]\n\trepositoryformatversion = 1\n\tbare = true\n\
             [extensions]\n\tobjectFormat = {}\n",
            self.hash.name()
        );
        files::write(&scratch.join("config"), format.as_bytes())?;
        files::write(&scratch.join("HEAD"), b"ref: refs/heads/none\n")?;
        let alternates = self.mounts.host_text(&self.places);
        files::write(&scratch.join("objects/info/alternates"), &alternates)?;
        let mut child = Git::local()
            .at(scratch)
            .args(["cat-file", "--batch"])
            .converse()?;
        let (ask, answer) = (child.stdin.take(), child.stdout.take());
        Ok(Running {
            answer: BufReader::new(answer.ok_or(LookupError::Silent)?),
            ask,
            child,
        })
    }
}

/// An object in a file of its own: its kind and what it holds.
fn loose(objects: &Directory, oid: &str) -> Option<(String, Vec<u8>)> {
    let path = Path::new(&oid[..2]).join(&oid[2..]);
    let deflated = objects.read_if_usable(&path, OBJECT_BYTES)?;
    let mut whole = Vec::new();
    let inflater = ZlibDecoder::new(&deflated[..]);
    let read = inflater.take(OBJECT_BYTES).read_to_end(&mut whole);
    read.ok()?;
    let end = whole.iter().position(|&b| b == 0)?;
    let header = std::str::from_utf8(&whole[..end]).ok()?;
    // Its length is part of what has the id.
    let kind = header.split(' ').next()?.to_owned();
    Some((kind, whole.split_off(end + 1)))
}

/// A git that answers.
#[derive(Debug)]
struct Running {
    child: Child,
    ask: Option<ChildStdin>,
    answer: BufReader<ChildStdout>,
}

impl Running {
    fn object(&mut self, oid: &str) -> Result<(String, Vec<u8>), LookupError> {
        let deadline = Instant::now() + Duration::from_secs(OBJECT_SECONDS);
        let ask = self.ask.as_mut().ok_or(LookupError::Silent)?;
        let asked = ask.write_all(format!("{oid}\n").as_bytes());
        asked.map_err(|_| LookupError::Silent)?;
        let header = self.line(deadline)?;
        let mut words = header.split(' ');
        let found = (words.next(), words.next(), words.next());
        let (Some(_), Some(found), Some(length)) = found else {
            return Err(missing(oid));
        };
        let Some(length) = length.parse().ok().filter(|&n: &u64| n <= OBJECT_BYTES) else {
            // What comes now is not read, so that nothing can be asked any more.
            self.ask = None;
            return Err(missing(oid));
        };
        let bytes = self.bytes(length, deadline)?;
        // Its newline.
        self.bytes(1, deadline)?;
        Ok((found.to_owned(), bytes))
    }

    fn line(&mut self, deadline: Instant) -> Result<String, LookupError> {
        let mut line = Vec::new();
        loop {
            self.wait(deadline)?;
            let buffer = self.answer.fill_buf().map_err(|_| LookupError::Silent)?;
            let end = buffer.iter().position(|&b| b == b'\n');
            let taken = end.unwrap_or(buffer.len());
            line.extend_from_slice(&buffer[..taken]);
            let empty = buffer.is_empty();
            self.answer.consume(taken + usize::from(end.is_some()));
            if end.is_some() {
                return String::from_utf8(line).map_err(|_| LookupError::Silent);
            }
            if empty || line.len() as u64 > HEADER_BYTES {
                return Err(LookupError::Silent);
            }
        }
    }

    fn bytes(&mut self, length: u64, deadline: Instant) -> Result<Vec<u8>, LookupError> {
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < length {
            self.wait(deadline)?;
            let left = length - bytes.len() as u64;
            let mut chunk = vec![0; left.min(64 << 10) as usize];
            match self.answer.read(&mut chunk) {
                Ok(0) | Err(_) => return Err(LookupError::Silent),
                Ok(count) => bytes.extend_from_slice(&chunk[..count]),
            }
        }
        Ok(bytes)
    }

    /// Until there is something to read.
    fn wait(&self, deadline: Instant) -> Result<(), LookupError> {
        while self.answer.buffer().is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec {
                tv_sec: left.as_secs() as _,
                tv_nsec: left.subsec_nanos().into(),
            };
            let stdout = self.answer.get_ref();
            match poll(
                &mut [PollFd::new(&stdout.as_fd(), PollFlags::IN)],
                Some(&left),
            ) {
                Ok(0) => return Err(LookupError::Silent),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return Err(LookupError::Silent),
                Ok(_) => return Ok(()),
            }
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // With its input closed it ends by itself, unless something holds it up.
        self.ask = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn missing(oid: &str) -> LookupError {
    LookupError::Missing {
        oid: oid.chars().take(64).collect(),
    }
}
