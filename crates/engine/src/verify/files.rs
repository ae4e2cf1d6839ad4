//! The files of a bundle from anywhere: exactly the six, each a plain file within its bound.
//!
//! HOSTILE: whoever made the directory. It is opened once, everything in it by name relative to it,
//! without following a link or waiting for anybody; what was read is what is checked and used.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use ringfence_model::ByteText;
use ringfence_model::bundle::{ATTESTATION, FILES, MANIFEST, most_bytes, sha256_hex};
use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

use crate::error::Error;

/// BOUND: names that are listed before it is clear that this is something else.
const ENTRIES: usize = 64;

/// The contents of a bundle, by name: what was read once, and cannot be exchanged any more.
#[derive(Debug)]
pub struct Contents(BTreeMap<&'static str, Vec<u8>>);

impl Contents {
    /// One of [`FILES`].
    pub fn of(&self, name: &str) -> &[u8] {
        self.0.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// SHA-256 (hex) of the manifest, which binds all else: what a verdict is about.
    pub fn manifest_sha256(&self) -> String {
        sha256_hex(self.of(MANIFEST))
    }
}

pub(super) fn open(path: &Path) -> Result<OwnedFd, Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::NOENT | Errno::NOTDIR => Error::NoBundle(path.to_owned()),
        errno => Error::ReadFile {
            path: path.to_owned(),
            source: errno.into(),
        },
    })?;
    // A directory that has neither never was one. With one of them it is a bundle, and broken.
    let lacks = |name: &str| {
        let looked = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW);
        looked.err() == Some(Errno::NOENT)
    };
    if lacks(MANIFEST) && lacks(ATTESTATION) {
        Err(Error::NoBundle(path.to_owned()))
    } else {
        Ok(directory)
    }
}

/// Reads everything; the inner error says why this is no bundle.
pub(super) fn read(directory: &OwnedFd) -> io::Result<Result<Contents, String>> {
    let mut missing: Vec<&str> = FILES.to_vec();
    for (count, entry) in Dir::read_from(directory)?.enumerate() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        if count > ENTRIES {
            return Ok(Err("there are many other files".to_owned()));
        }
        let Some(at) = missing.iter().position(|known| known.as_bytes() == name) else {
            let name = ByteText::from(name);
            return Ok(Err(format!("`{name}` does not belong there")));
        };
        missing.remove(at);
    }
    if let Some(name) = missing.first() {
        return Ok(Err(format!("`{name}` is missing")));
    }
    let mut contents = BTreeMap::new();
    for name in FILES {
        match read_file(directory, name)? {
            Ok(bytes) => contents.insert(name, bytes),
            Err(why) => return Ok(Err(why)),
        };
    }
    Ok(Ok(Contents(contents)))
}

fn read_file(directory: &OwnedFd, name: &'static str) -> io::Result<Result<Vec<u8>, String>> {
    let special = || Ok(Err(format!("`{name}` is not a plain file")));
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(directory, name, flags | OFlags::NOCTTY, Mode::empty()) {
        Ok(fd) => File::from(fd),
        // A link, a socket, a device without a driver.
        Err(Errno::LOOP | Errno::NXIO | Errno::NODEV) => return special(),
        Err(errno) => return Err(errno.into()),
    };
    if !file.metadata()?.is_file() {
        return special();
    }
    let most = most_bytes(name);
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        Ok(Err(format!("`{name}` has more than {most} bytes")))
    } else {
        Ok(Ok(bytes))
    }
}
