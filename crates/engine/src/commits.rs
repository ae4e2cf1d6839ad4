//! The commits that an agent made in its private repository, kept beside the log of a run.
//!
//! ```text
//! logs/<run>/commits     ringfence-commits 1 <head>⏎   then, for each loose object:
//!                        <id> <length>⏎ <its file, as it is>
//! ```
//!
//! A run only copies: the objects are not understood here, and whoever wants to have the commits
//! checks them ([`crate::apply`]). The hash of the file is in the result of the run, and so in what
//! is signed and approved.
//!
//! HOSTILE: all of it. Nothing but `HEAD`, one ref and loose objects is opened, by descriptor and
//! through no link, and no git runs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd};

use flate2::read::ZlibDecoder;
use ringfence_model::bundle::{Base, sha256_hex};
use ringfence_model::changes::ObjectHash;
use ringfence_model::hex;
use serde::{Deserialize, Serialize};

use crate::base::object_id;
use crate::changes::handle::{self, Access};
use crate::durable::{self, Existing};
use crate::git::{RefTarget, parse_ref};
use crate::guard::Guard;
use crate::home::Home;
use crate::ids::RunId;
use crate::journal::load_file;
use crate::patch::hash_of;

/// Its name in the directory of a run's log.
const FILE: &str = "commits";
const MAGIC: &str = "ringfence-commits 1 ";
/// BOUND: git packs what is more than a few thousand.
const OBJECTS: usize = 50_000;
/// BOUND: all of them, deflated.
const KEPT_BYTES: u64 = 64 << 20;
/// BOUND: what one inflates to; a patch carries no larger file.
const OBJECT_BYTES: u64 = 64 << 20;
/// BOUND: what all inflate to, so that small files cannot stand for endless work.
const INFLATED_BYTES: u64 = 1 << 30;
/// BOUND: a ref is one line.
const LINE_BYTES: u64 = 16 << 10;

/// What was kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptCommits {
    /// The id of the last commit.
    pub head: String,
    pub objects: u64,
    /// Of the file.
    pub sha256: String,
}

/// Keeps what an agent committed, where the run began from a commit; says why it cannot.
pub(crate) fn keep(
    home: &Home,
    run: RunId,
    base: &Base,
    guard: &Guard,
) -> Result<Option<KeptCommits>, String> {
    let Base::Commit { commit, prefix, .. } = base else {
        return Ok(None);
    };
    let open = |layer| File::open(layer).ok().and_then(|top| git_directory(&top));
    // The private repository of a part of another one has other commits.
    let (true, Some(upper)) = (prefix.as_bytes().is_empty(), open(home.upper(run))) else {
        return Ok(None);
    };
    let mask = open(home.mask(run));
    let hash = hash_of(commit);
    let head = head(upper.as_fd(), mask.as_ref().map(File::as_fd), hash);
    let Some(head) = head.filter(|head| head != commit) else {
        return Ok(None);
    };
    let (text, objects) = gather(upper.as_fd(), &head, hash, guard)?;
    let path = home.log(run).join(FILE);
    durable::write_synced(&path, &text, Existing::Replace).map_err(|error| error.to_string())?;
    Ok(Some(KeptCommits {
        head,
        objects,
        sha256: sha256_hex(&text),
    }))
}

fn git_directory(top: &File) -> Option<File> {
    let opened = handle::open_directory(top.as_fd(), b".git", Access::AsItIs);
    opened.ok().map(|opened| opened.fd.into())
}

/// The commit of `HEAD`, where the agent moved it or its branch.
fn head(upper: BorrowedFd<'_>, mask: Option<BorrowedFd<'_>>, hash: ObjectHash) -> Option<String> {
    let line = read(upper, b"HEAD", LINE_BYTES);
    let line = line.or_else(|| read(mask?, b"HEAD", LINE_BYTES))?;
    let id = match parse_ref(&line, hash)? {
        RefTarget::Id(id) => id,
        RefTarget::Ref(name) => match parse_ref(&read(upper, &name, LINE_BYTES)?, hash)? {
            RefTarget::Id(id) => id,
            RefTarget::Ref(_) => return None,
        },
    };
    String::from_utf8(id).ok().map(|id| id.to_ascii_lowercase())
}

/// A regular file below a directory, if it is no larger than that.
fn read(top: BorrowedFd<'_>, path: &[u8], most: u64) -> Option<Vec<u8>> {
    let (dir, name) = handle::hold_parent(top, path, Access::AsItIs).ok()?;
    let file = handle::open_file(dir.as_fd(), name, Access::AsItIs).ok()?;
    let mut bytes = Vec::new();
    file.file.take(most + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= most).then_some(bytes)
}

fn gather(
    git: BorrowedFd<'_>,
    head: &str,
    hash: ObjectHash,
    guard: &Guard,
) -> Result<(Vec<u8>, u64), String> {
    let gone = || "its objects cannot be read".to_owned();
    let names = |path: &[u8]| {
        let (dir, name) = handle::hold_parent(git, path, Access::AsItIs).ok()?;
        let opened = handle::open_directory(dir.as_fd(), name, Access::AsItIs).ok()?;
        handle::names(opened.fd.as_fd(), OBJECTS + 1).ok()
    };
    let packs = names(b"objects/pack").unwrap_or_default();
    if packs.iter().any(|name| name.ends_with(b".pack")) {
        return Err("some of their objects are in a pack".to_owned());
    }
    let is_hex = |name: &Vec<u8>, count: usize| {
        name.len() == count
            && name
                .iter()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(b))
    };
    let mut text = format!("{MAGIC}{head}\n").into_bytes();
    let (mut count, mut inflated) = (0, 0);
    for first in names(b"objects").ok_or_else(gone)? {
        if !is_hex(&first, 2) {
            continue;
        }
        let directory = [b"objects/", &first[..]].concat();
        for rest in names(&directory).unwrap_or_default() {
            if !is_hex(&rest, hash.bytes() * 2 - 2) {
                continue;
            }
            let left = KEPT_BYTES.saturating_sub(text.len() as u64);
            let file = read(git, &[&directory[..], b"/", &rest].concat(), left);
            let file = file.ok_or_else(|| format!("they take more than {KEPT_BYTES} bytes"))?;
            if guard.has_secrets() {
                let (_, bytes) = inflate(&file, &mut inflated).ok_or_else(gone)?;
                if guard.finds(&bytes) {
                    return Err("they hold the value of a secret".to_owned());
                }
            }
            count += 1;
            if count > OBJECTS {
                return Err(format!("they are more than {OBJECTS} objects"));
            }
            text.extend_from_slice(&first);
            text.extend_from_slice(&rest);
            text.extend_from_slice(format!(" {}\n", file.len()).as_bytes());
            text.extend_from_slice(&file);
        }
    }
    Ok((text, count as u64))
}

/// The kind and the content of a loose object.
fn inflate(file: &[u8], inflated: &mut u64) -> Option<(String, Vec<u8>)> {
    let mut whole = Vec::new();
    let most = OBJECT_BYTES.min(INFLATED_BYTES.saturating_sub(*inflated));
    let read = ZlibDecoder::new(file)
        .take(most + 1)
        .read_to_end(&mut whole);
    let end = whole.iter().position(|&byte| byte == 0)?;
    *inflated += whole.len() as u64;
    if read.is_err() || whole.len() as u64 > most {
        return None;
    }
    let header = std::str::from_utf8(&whole[..end]).ok()?;
    let (kind, length) = header.split_once(' ')?;
    if length != (whole.len() - end - 1).to_string() {
        return None;
    }
    let kind = kind.to_owned();
    Some((kind, whole.split_off(end + 1)))
}

/// The objects that were kept of a run, to be asked for by id.
#[derive(Debug)]
pub(crate) struct Stock {
    text: Vec<u8>,
    objects: BTreeMap<String, Range<usize>>,
    hash: ObjectHash,
    inflated: u64,
}

impl Stock {
    /// Opens what a result says was kept; `None` where that is not there, or not the same.
    pub(crate) fn open(
        home: &Home,
        run: RunId,
        kept: &KeptCommits,
        hash: ObjectHash,
    ) -> Option<Self> {
        let most = KEPT_BYTES + (OBJECTS as u64 + 1) * 128;
        let text = load_file(&home.log(run).join(FILE), most).ok()?;
        if sha256_hex(&text) != kept.sha256 {
            return None;
        }
        let mut at = line(&text, 0)?.end + 1;
        if &text[..at] != format!("{MAGIC}{}\n", kept.head).as_bytes() {
            return None;
        }
        let mut objects = BTreeMap::new();
        while at < text.len() {
            let head = line(&text, at)?;
            let start = head.end + 1;
            let head = std::str::from_utf8(&text[head]).ok()?;
            let (id, length) = head.split_once(' ')?;
            let end = start.checked_add(length.parse().ok()?)?;
            if end > text.len() || !hash.is_oid(id.as_bytes()) {
                return None;
            }
            objects.insert(id.to_owned(), start..end);
            at = end;
        }
        Some(Self {
            text,
            objects,
            hash,
            inflated: 0,
        })
    }

    pub(crate) fn has(&self, oid: &str) -> bool {
        self.objects.contains_key(oid)
    }

    /// An object of a kind, held against its id.
    pub(crate) fn object(&mut self, kind: &str, oid: &str) -> Option<Vec<u8>> {
        let file = &self.text[self.objects.get(oid)?.clone()];
        let (found, bytes) = inflate(file, &mut self.inflated)?;
        let id = hex(&object_id(kind, &bytes, self.hash));
        (found == kind && id == oid).then_some(bytes)
    }
}

fn line(text: &[u8], from: usize) -> Option<Range<usize>> {
    let length = memchr::memchr(b'\n', text.get(from..)?)?;
    Some(from..from + length)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;

    use super::*;

    fn deflated(text: &[u8]) -> Vec<u8> {
        let mut out = ZlibEncoder::new(Vec::new(), Compression::fast());
        out.write_all(text).unwrap();
        out.finish().unwrap()
    }

    #[test]
    fn an_object_says_how_long_it_is_and_is_not_endless() {
        for (text, kind) in [
            (&b"blob 3\0abc"[..], Some("blob")),
            (b"blob 0\0", Some("blob")),
            (b"blob 03\0abc", None),
            (b"blob 4\0abc", None),
            (b"blob 2\0abc", None),
            (b"blob\0abc", None),
            (b"", None),
        ] {
            let found = inflate(&deflated(text), &mut 0).map(|(kind, _)| kind);
            assert_eq!(found.as_deref(), kind, "{text:?}");
        }
        assert!(inflate(b"no zlib", &mut 0).is_none());
        // git-025: a small file that inflates to more than is taken.
        let bomb = deflated(&vec![0; OBJECT_BYTES as usize + 2]);
        assert!(bomb.len() < 1 << 20);
        assert!(inflate(&bomb, &mut 0).is_none());
        let mut spent = INFLATED_BYTES - 3;
        assert!(inflate(&deflated(b"blob 3\0abc"), &mut spent).is_none());
    }
}
