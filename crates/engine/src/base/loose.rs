//! Loose objects of a git directory of our own.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use ringfence_model::changes::ObjectHash;
use ringfence_model::hex;

use super::files;
use super::tree::object_id;
use super::{BaseError, error::access};

/// Writes an object that is at hand; gives its id.
pub(super) fn write(
    git_dir: &Path,
    kind: &str,
    bytes: &[u8],
    hash: ObjectHash,
) -> Result<Vec<u8>, BaseError> {
    let id = object_id(kind, bytes, hash);
    put(git_dir, &id, kind, bytes.len() as u64, &mut { bytes })?;
    Ok(id)
}

/// Writes what a file holds as a blob; gives its id.
pub(super) fn write_file(
    git_dir: &Path,
    file: &mut File,
    path: &Path,
    hash: ObjectHash,
) -> Result<Vec<u8>, BaseError> {
    let failed = |source| access("read", path)(source);
    let id = files::blob_id(file, hash).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    io::Seek::rewind(file).map_err(failed)?;
    put(git_dir, &id, "blob", length, file)?;
    Ok(id)
}

fn put(
    git_dir: &Path,
    id: &[u8],
    kind: &str,
    length: u64,
    bytes: &mut dyn Read,
) -> Result<(), BaseError> {
    let name = hex(id);
    let directory = PathBuf::from("objects").join(&name[..2]);
    let path = files::make_directories(git_dir, &directory)?.join(&name[2..]);
    if path.exists() {
        return Ok(());
    }
    let mut write = || -> io::Result<()> {
        let mut out = ZlibEncoder::new(File::create(&path)?, Compression::fast());
        out.write_all(format!("{kind} {length}\0").as_bytes())?;
        io::copy(bytes, &mut out)?;
        let file = out.finish()?;
        rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(0o444))?;
        Ok(())
    };
    write().map_err(access("write", &path))
}
