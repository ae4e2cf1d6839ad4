//! Getting a blob: from where the last try ended, until all of it is here and is what was asked for.
//!
//! The bytes go to `partial/<digest>`, which stays when a pull is killed or fails, so that the next
//! one goes on from there. They mean nothing before their digest was taken.

use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use ringfence_model::image::{Digest, Reference};
use rustix::fs::{Mode, OFlags};
use sha2::{Digest as _, Sha256};

use super::ImageError;
use super::manifest::Descriptor;
use super::registry::{OnRetry, Registry};
use crate::web::{self, WebError};

/// BOUND: tries in a row that brought nothing.
const FRUITLESS: u32 = 5;
const BUFFER: usize = 256 << 10;
/// BOUND: how often somebody is told how far it is.
const STEP: u64 = 1 << 20;

/// Who wants a blob, and what they want to know.
pub(super) struct Wanted<'a> {
    pub registry: &'a Registry,
    pub reference: &'a Reference,
    pub descriptor: &'a Descriptor,
    /// Set where another part of the same pull failed.
    pub stop: &'a AtomicBool,
    pub on_bytes: &'a dyn Fn(u64),
    pub on_retry: OnRetry<'a>,
}

/// Downloads to a file and gives it, read from its start. `None` where it was told to stop.
pub(super) fn download(wanted: &Wanted<'_>, to: &Path) -> Result<Option<File>, ImageError> {
    let failed = |source| ImageError::Access {
        what: "write",
        path: to.to_owned(),
        source,
    };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = rustix::fs::open(to, flags, Mode::RUSR | Mode::WUSR)
        .map(File::from)
        .map_err(|errno| failed(errno.into()))?;
    let size = wanted.descriptor.size;
    let mut furthest = 0;
    let mut fruitless = 0;
    // What an earlier process left may be damaged by a power cut: then all is got once more.
    let mut from_before = true;
    loop {
        let mut hash = Sha256::new();
        let mut have = hash_prefix(&mut file, size, &mut hash).map_err(failed)?;
        from_before &= have > 0;
        (wanted.on_bytes)(have);
        while have < size {
            if wanted.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let why = match more(wanted, &mut file, &mut hash, &mut have) {
                Ok(()) => continue,
                Err(Failed::ToWrite(source)) => return Err(failed(source)),
                Err(Failed::ForGood(error)) => return Err(error),
                Err(Failed::OnTheWay(error)) => error,
            };
            if have > furthest {
                (furthest, fruitless) = (have, 0);
            }
            fruitless += 1;
            if fruitless >= FRUITLESS {
                return Err(match why {
                    Some(error) => error.into(),
                    None => ImageError::WrongSize {
                        what: "a blob",
                        reference: wanted.reference.familiar(),
                        expected: size,
                        found: have,
                    },
                });
            }
            let text = why.map_or_else(|| "half a blob came".to_owned(), |why| why.to_string());
            (wanted.on_retry)(text, 0);
        }
        let found = Digest::from_bytes(hash.finalize().into());
        if found == wanted.descriptor.digest {
            file.seek(SeekFrom::Start(0)).map_err(failed)?;
            return Ok(Some(file));
        }
        // INVARIANT: what is not what was asked for does not stay.
        file.set_len(0).map_err(failed)?;
        if !from_before {
            let _ = std::fs::remove_file(to);
            return Err(ImageError::WrongDigest {
                what: "a blob",
                reference: wanted.reference.familiar(),
                expected: wanted.descriptor.digest,
                found,
            });
        }
        from_before = false;
    }
}

enum Failed {
    ToWrite(io::Error),
    /// Trying again is of no use.
    ForGood(ImageError),
    /// The connection ended too early; why, where that is known.
    OnTheWay(Option<WebError>),
}

/// One request for what is missing.
fn more(
    wanted: &Wanted<'_>,
    file: &mut File,
    hash: &mut Sha256,
    have: &mut u64,
) -> Result<(), Failed> {
    let path = format!("blobs/{}", wanted.descriptor.digest);
    let range = format!("bytes={have}-");
    let headers: &[(&str, &str)] = match *have {
        0 => &[],
        _ => &[("range", &range)],
    };
    let answer = wanted.registry.get(&path, headers, wanted.on_retry);
    let answer = answer.map_err(Failed::ForGood)?;
    let goes_on = answer.status == 206
        && answer
            .header("content-range")
            .is_some_and(|text| text.starts_with(&format!("bytes {have}-")));
    let again = |file: &mut File, hash: &mut Sha256, have: &mut u64| -> io::Result<()> {
        file.set_len(0)?;
        file.seek(SeekFrom::Start(0))?;
        *hash = Sha256::new();
        *have = 0;
        Ok(())
    };
    if *have > 0 && !goes_on {
        // It does not know ranges and begins anew.
        again(file, hash, have).map_err(Failed::ToWrite)?;
        if answer.status != 200 {
            return Err(Failed::OnTheWay(None));
        }
    }
    let from = answer.from.clone();
    let size = wanted.descriptor.size;
    // One byte more than there should be shows that there are more.
    let mut body = answer.reader().take(size - *have + 1);
    let mut buffer = vec![0; BUFFER];
    let mut told = *have;
    loop {
        if wanted.stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let length = match body.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Failed::OnTheWay(Some(web::broke_off(&from, error)))),
        };
        if *have + length as u64 > size {
            file.set_len(0).map_err(Failed::ToWrite)?;
            return Err(Failed::ForGood(ImageError::WrongSize {
                what: "a blob",
                reference: wanted.reference.familiar(),
                expected: size,
                found: *have + length as u64,
            }));
        }
        hash.update(&buffer[..length]);
        file.write_all(&buffer[..length]).map_err(Failed::ToWrite)?;
        *have += length as u64;
        if *have - told >= STEP || *have == size {
            told = *have;
            (wanted.on_bytes)(told);
        }
    }
    if *have == size {
        Ok(())
    } else {
        Err(Failed::OnTheWay(None))
    }
}

/// Digests what is there already; a file that is too long is begun anew.
fn hash_prefix(file: &mut File, size: u64, hash: &mut Sha256) -> io::Result<u64> {
    if file.metadata()?.len() > size {
        file.set_len(0)?;
    }
    file.seek(SeekFrom::Start(0))?;
    let mut buffer = vec![0; BUFFER];
    let mut have = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(have),
            length => {
                hash.update(&buffer[..length]);
                have += length as u64;
            }
        }
    }
}
