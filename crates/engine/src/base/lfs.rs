//! Large files: where a tree holds pointers of Git LFS, what they point to.
//!
//! The objects are fetched by the `git-lfs` program into the mirror and copied from there, hash and
//! size checked. Without that program the pointers stay, with a note.
//!
//! HOSTILE: a pointer is a file of the repository. It is taken for one only if it reads exactly so,
//! and nothing in it but 64 hexadecimal digits comes near a path.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ringfence_model::hex;
use rustix::fs::{AtFlags, Mode, OFlags};
use sha2::{Digest, Sha256};

use super::error::access;
use super::files::{self, relative};
use super::missing::{Lack, Login, Missing};
use super::tree::{EXECUTABLE, Entry, REGULAR};
use super::{BaseError, copy};
use crate::mirror::{Git, Progress, Resolved};
use crate::source::{Dial, Source, Typed};

/// BOUND: the format's own limit for a pointer.
const POINTER_BYTES: u64 = 1024;
/// BOUND: an attributes file that is looked at.
const ATTRIBUTES_BYTES: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pointer {
    sha256: String,
    size: u64,
}

/// What there is to say of large files.
#[derive(Debug, Default)]
pub(super) struct Filled {
    pub notes: Vec<String>,
    pub missing: Option<Missing>,
}

/// Puts large files in the place of their pointers; says of how many it could not.
pub(super) fn materialise(
    resolved: &Resolved,
    workspace: &Path,
    entries: &mut [Entry],
    progress: &mut dyn Progress,
) -> Result<Filled, BaseError> {
    let root = files::open_directory(workspace)?;
    if !entries.iter().any(|entry| names_lfs(&root, entry)) {
        return Ok(Filled::default());
    }
    let pointers: Vec<(usize, Pointer)> = entries
        .iter()
        .enumerate()
        .filter_map(|(at, entry)| Some((at, pointer_at(&root, entry)?)))
        .collect();
    if pointers.is_empty() {
        return Ok(Filled::default());
    }
    let mut left = 0;
    let fetched = fetch(resolved, progress);
    for (at, pointer) in &pointers {
        let entry = &mut entries[*at];
        match put(resolved, &root, entry, pointer) {
            Ok(true) => entry.clean = entry.clean.map(|(seconds, _)| (seconds, pointer.size)),
            Ok(false) => left += 1,
            Err(error) => {
                return Err(access("write", workspace.join(relative(&entry.path)))(
                    error,
                ));
            }
        }
    }
    let mut filled = Filled::default();
    if left > 0 {
        let why = match fetched {
            Ok(()) => String::new(),
            Err(reason) => {
                filled.missing = Some(Missing {
                    what: Lack::LargeFiles,
                    source: resolved.mirror.source.text(),
                    commit: resolved.commit.clone(),
                    login: Login::of(resolved.credentials.as_ref()),
                });
                format!(" ({reason})")
            }
        };
        filled
            .notes
            .push(format!("{left} files are LFS pointers{why}"));
    }
    Ok(filled)
}

/// Where the large files of a source are.
///
/// HOSTILE: `.lfsconfig` in a repository may name another server, or a path of this host. Git's own
/// settings win over that file, so the address that git-lfs would derive by itself is given as one.
fn server(source: &Source) -> String {
    let url = match source {
        Source::Path(path) => return format!("file://{}", path.display()),
        Source::Url(url) => url,
    };
    let below = |url: &str| match url.trim_end_matches('/') {
        url if url.ends_with(".git") => format!("{url}/info/lfs"),
        url => format!("{url}.git/info/lfs"),
    };
    if source.http_origin().is_some() {
        return below(url);
    }
    match url.strip_prefix("git://") {
        Some(rest) => below(&format!("https://{rest}")),
        None => url.clone(),
    }
}

/// Fetches the large files of a commit into its mirror.
pub(super) fn fetch(resolved: &Resolved, progress: &mut dyn Progress) -> Result<(), String> {
    let typed = Typed {
        source: resolved.mirror.source.clone(),
        credentials: resolved.credentials.clone(),
        dial: Dial::AsTyped,
    };
    let git = || Git::network(&typed).at(&resolved.mirror.path);
    if git().args(["lfs", "version"]).quiet().is_err() {
        return Err("`git-lfs` is not installed".to_owned());
    }
    git()
        .setting("remote.origin.url", &typed.source.text())
        .setting("lfs.url", &server(&typed.source))
        // It is given up for stuck if it says nothing.
        .env("GIT_LFS_FORCE_PROGRESS", "1")
        .args(["lfs", "fetch", "origin", &resolved.commit])
        .run(progress)
        .map(|_| ())
        .map_err(|error| error.to_string())
}

/// False where the object is not in the mirror or not what the pointer says.
fn put(resolved: &Resolved, root: impl AsFd, entry: &Entry, pointer: &Pointer) -> io::Result<bool> {
    let name = &pointer.sha256;
    let object = resolved.mirror.path.join("lfs/objects");
    let object = object.join(&name[..2]).join(&name[2..4]).join(name);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(fd) = rustix::fs::open(&object, flags, Mode::empty()) else {
        return Ok(false);
    };
    let mut file = File::from(fd);
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() != pointer.size || sha256(&mut file)? != *name {
        return Ok(false);
    }
    let mode = if entry.mode == EXECUTABLE {
        0o755
    } else {
        0o644
    };
    let path = relative(&entry.path);
    let parent = files::open_parent(&root, path)?;
    let file_name = path.file_name().unwrap_or_default().as_bytes();
    rustix::fs::unlinkat(&parent, file_name, AtFlags::empty())?;
    let seconds = entry.clean.map_or(0, |(seconds, _)| seconds);
    let file = File::open(&object)?;
    copy::write_copy(&file, &parent, file_name, mode, (seconds, 0))?;
    Ok(true)
}

fn sha256(file: &mut File) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&hasher.finalize())),
            length => hasher.update(&buffer[..length]),
        }
    }
}

fn names_lfs(root: impl AsFd, entry: &Entry) -> bool {
    let is_attributes = entry.path == b".gitattributes" || entry.path.ends_with(b"/.gitattributes");
    is_attributes
        && entry.mode == REGULAR
        && read_small(root, entry, ATTRIBUTES_BYTES)
            .is_some_and(|text| text.windows(10).any(|window| window == b"filter=lfs"))
}

fn pointer_at(root: impl AsFd, entry: &Entry) -> Option<Pointer> {
    let file = matches!(entry.mode, REGULAR | EXECUTABLE);
    let small = entry.clean.is_some_and(|(_, size)| size < POINTER_BYTES);
    if file && small {
        parse(&read_small(root, entry, POINTER_BYTES)?)
    } else {
        None
    }
}

fn read_small(root: impl AsFd, entry: &Entry, limit: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = files::open_file(root, &entry.path).ok()?;
    file.take(limit).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn parse(text: &[u8]) -> Option<Pointer> {
    let text = std::str::from_utf8(text).ok()?;
    let mut lines = text.lines();
    if lines.next()? != "version https://git-lfs.github.com/spec/v1" {
        return None;
    }
    let (mut sha256, mut size) = (None, None);
    for line in lines {
        let (key, value) = line.split_once(' ')?;
        match key {
            "oid" => sha256 = Some(value.strip_prefix("sha256:")?),
            "size" => size = value.parse().ok(),
            _ => {}
        }
    }
    let sha256 = sha256?;
    let digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    (sha256.len() == 64 && sha256.bytes().all(digit)).then_some(Pointer {
        sha256: sha256.to_owned(),
        size: size?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_files_are_fetched_from_where_the_repository_is() {
        for (source, expected) in [
            ("https://h/a", "https://h/a.git/info/lfs"),
            ("https://h:1/a.git/", "https://h:1/a.git/info/lfs"),
            ("git://h/a.git", "https://h/a.git/info/lfs"),
            ("ssh://git@h/a.git", "ssh://git@h/a.git"),
            ("git@h:a.git", "git@h:a.git"),
            ("file:///srv/a", "file:///srv/a"),
        ] {
            assert_eq!(server(&Source::Url(source.to_owned())), expected);
        }
        assert_eq!(server(&Source::Path("/srv/a".into())), "file:///srv/a");
    }

    #[test]
    fn only_exact_pointers_are_read() {
        let oid = "0123456789abcdef".repeat(4);
        let version = "version https://git-lfs.github.com/spec/v1\n";
        let good = format!("{version}oid sha256:{oid}\nsize 5\n");
        assert_eq!(parse(good.as_bytes()).unwrap().size, 5);
        for bad in [
            String::new(),
            version.to_owned(),
            format!("{version}oid sha256:{oid}\n"),
            format!("{version}oid sha256:../../{}\nsize 5\n", &oid[6..]),
            format!("{version}oid sha256:{}\nsize 5\n", oid.to_uppercase()),
            format!("{version}oid sha256:{oid}\nsize -5\n"),
            format!("{version}oid md5:{oid}\nsize 5\n"),
            good.replace("spec/v1", "spec/v9"),
        ] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
