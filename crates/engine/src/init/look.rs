//! The files of a folder that a proposal is made of.

use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use ringfence_model::init::{Files, Seen, Wanted, what_to_read};
use rustix::fs::{CWD, Mode, OFlags};

use super::InitError;
use crate::changes::handle::{Access, Kind, look as look_at, names, open_directory, open_file};

/// BOUND: folders below folders; lock files of real projects are at the top or two below.
const MAX_DEPTH: usize = 3;
/// BOUND: entries of one folder, and folders that are looked into.
const MAX_NAMES: usize = 5000;
const MAX_FOLDERS: usize = 500;
/// BOUND: files that are taken.
const MAX_FILES: usize = 400;
/// BOUND: a file that a person writes.
const WHOLE: u64 = 1 << 20;
/// BOUND: the beginning of a lock file, which says what kind it is.
const BEGINNING: u64 = 4 << 10;

/// Folders that hold what was installed or built, or projects that are not this one.
const PASSED_OVER: &[&str] = &[
    "node_modules",
    "bower_components",
    "vendor",
    "third_party",
    "target",
    "dist",
    "build",
    "out",
    "venv",
    "env",
    "site-packages",
    "__pycache__",
    "test",
    "tests",
    "testdata",
    "fixtures",
    "__fixtures__",
    "__tests__",
    "example",
    "examples",
    "doc",
    "docs",
];

/// Reads what is wanted of a folder.
pub fn look(folder: &Path) -> Result<Files, InitError> {
    let failed = |source: io::Error| InitError::OpenFolder {
        path: folder.to_owned(),
        source,
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = rustix::fs::openat(CWD, folder, flags, Mode::empty())
        .map_err(|errno| failed(errno.into()))?;
    let mut files = Files::new();
    let mut open: Vec<(String, usize, OwnedFd)> = Vec::new();
    let mut looked_into = 0;
    let mut here = Some((String::new(), 0, top));
    while let Some((path, depth, directory)) = here {
        looked_into += 1;
        let names = names(directory.as_fd(), MAX_NAMES);
        // The top must be readable; what is not below it is passed over.
        let names = match depth {
            0 => names.map_err(failed)?,
            _ => names.unwrap_or_default(),
        };
        for name in names {
            // HOSTILE: what is not text is none of the names that are known.
            let Ok(name) = String::from_utf8(name) else {
                continue;
            };
            let below = match path.as_str() {
                "" => name.clone(),
                path => format!("{path}/{name}"),
            };
            let Ok(Some(meta)) = look_at(directory.as_fd(), name.as_bytes()) else {
                continue;
            };
            if let Some(wanted) = what_to_read(&below)
                && meta.kind != Kind::Directory
                && files.len() < MAX_FILES
            {
                let seen = read(directory.as_fd(), &name, meta.kind, wanted);
                files.insert(below, seen);
                continue;
            }
            let enters = name == ".devcontainer"
                || !(name.starts_with('.') || PASSED_OVER.contains(&name.as_str()));
            if meta.kind == Kind::Directory
                && enters
                && depth < MAX_DEPTH
                && looked_into + open.len() < MAX_FOLDERS
                && let Ok(opened) =
                    open_directory(directory.as_fd(), name.as_bytes(), Access::AsItIs)
            {
                open.push((below, depth + 1, opened.fd));
            }
        }
        here = open.pop();
    }
    Ok(files)
}

fn read(directory: BorrowedFd<'_>, name: &str, kind: Kind, wanted: Wanted) -> Seen {
    match kind {
        Kind::File => {}
        Kind::Symlink => return Seen::Odd("it is a link"),
        _ => return Seen::Odd("it is no file"),
    }
    let Ok(opened) = open_file(directory, name.as_bytes(), Access::AsItIs) else {
        return Seen::Odd("it cannot be read");
    };
    let most = match wanted {
        Wanted::Whole => WHOLE,
        Wanted::Beginning => BEGINNING,
    };
    let mut bytes = Vec::new();
    match opened.file.take(most + 1).read_to_end(&mut bytes) {
        Err(_) => Seen::Odd("it cannot be read"),
        Ok(_) if bytes.len() as u64 <= most => Seen::Bytes(bytes),
        Ok(_) if wanted == Wanted::Beginning => {
            bytes.truncate(beginning(&bytes));
            Seen::Bytes(bytes)
        }
        Ok(_) => Seen::Odd("it is too large"),
    }
}

/// The bytes up to the last whole line.
fn beginning(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte == b'\n').unwrap_or(0)
}
