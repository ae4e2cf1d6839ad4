//! Which object directories of the host a private repository needs, and where they appear inside.
//!
//! HOSTILE: `objects` may be a link and `info/alternates` may name any directory of the host. What
//! does not look like an object directory through and through is never mounted.

use std::ffi::OsStr;
use std::fs::DirEntry;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ringfence_model::ByteText;

use super::GitError;
use super::discover::owner;
use super::files::{self, Links};

/// BOUND: git itself follows five alternates in a row.
const DEPTH: usize = 5;
/// BOUND: object directories of one sandbox, submodules included.
const DIRECTORIES: usize = 256;
/// BOUND: 256 fan-out directories, `info`, `pack` and what was left lying about.
const ENTRIES: usize = 4096;
const ALTERNATES_BYTES: u64 = 1 << 20;

/// An object directory of the host, to be mounted read-only inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectMount {
    pub host: PathBuf,
    pub inside: String,
    /// It has an `info/alternates` of its own, which names host paths. Everything in it is
    /// mounted already; the launcher masks the file.
    pub has_alternates: bool,
}

/// The object directories collected so far.
#[derive(Debug)]
pub(super) struct ObjectMounts {
    inside: String,
    pub mounts: Vec<ObjectMount>,
}

impl ObjectMounts {
    pub(super) fn new(inside: &str) -> Self {
        Self {
            inside: inside.to_owned(),
            mounts: Vec::new(),
        }
    }

    /// Adds an object directory and all that it borrows from; gives their places in `mounts`.
    /// `None` if the first one is none at all; a note for each borrowed one that is left out.
    pub(super) fn add(
        &mut self,
        objects: &Path,
        notes: &mut Vec<String>,
    ) -> Result<Option<Vec<usize>>, GitError> {
        let mut places = Vec::new();
        let mut queue = vec![(objects.to_owned(), 0)];
        while let Some((path, depth)) = queue.pop() {
            let usable = match path.canonicalize() {
                Ok(real) => is_object_directory(&real).then_some(real),
                Err(_) => None,
            };
            // HOSTILE: who wrote the list of alternates may not own what it names.
            let ours = |host: &PathBuf| depth == 0 || owner(host) == owner(objects);
            let Some(host) = usable.filter(|host| self.mounts.len() < DIRECTORIES && ours(host))
            else {
                if depth == 0 {
                    return Ok(None);
                }
                let name = ByteText::from(path.as_os_str().as_bytes());
                notes.push(format!(
                    "borrowed objects at `{name}` are not available inside"
                ));
                continue;
            };
            let name = ByteText::from(host.as_os_str().as_bytes());
            let listed = alternates(&host)?;
            let place = self.place(host, listed.is_some());
            if places.contains(&place) {
                continue;
            }
            places.push(place);
            if depth > 0 {
                notes.push(format!("borrowed objects at `{name}` are readable inside"));
            }
            if depth < DEPTH {
                // Reversed, so that the queue gives them back in the order of the file.
                let listed = listed.unwrap_or_default().into_iter().rev();
                queue.extend(listed.map(|path| (path, depth + 1)));
            }
        }
        Ok(Some(places))
    }

    fn place(&mut self, host: PathBuf, has_alternates: bool) -> usize {
        if let Some(known) = self.mounts.iter().position(|mount| mount.host == host) {
            return known;
        }
        let inside = format!("{}/{}", self.inside, self.mounts.len());
        self.mounts.push(ObjectMount {
            host,
            inside,
            has_alternates,
        });
        self.mounts.len() - 1
    }

    /// The text of `info/alternates` with the paths inside.
    pub(super) fn inside_text(&self, places: &[usize]) -> Vec<u8> {
        places
            .iter()
            .flat_map(|&at| format!("{}\n", self.mounts[at].inside).into_bytes())
            .collect()
    }

    /// The same with the paths of the host, quoted as git wants it.
    pub(super) fn host_text(&self, places: &[usize]) -> Vec<u8> {
        places
            .iter()
            .flat_map(|&at| {
                let path = ByteText::from(self.mounts[at].host.as_os_str().as_bytes());
                let raw = path.as_bytes();
                let plain = !raw.starts_with(b"\"") && !raw.contains(&b'\n');
                let mut line = if plain {
                    raw.to_vec()
                } else {
                    ringfence_model::bytes::quote(raw).into_bytes()
                };
                line.push(b'\n');
                line
            })
            .collect()
    }
}

/// The directories that an object directory borrows from; `None` if there is no such file.
fn alternates(objects: &Path) -> Result<Option<Vec<PathBuf>>, GitError> {
    let path = objects.join("info/alternates");
    let Some(contents) = files::read(&path, ALTERNATES_BYTES, Links::Refuse)? else {
        return Ok(None);
    };
    let lines = contents.bytes.split(|&b| b == b'\n');
    let paths = lines
        .filter(|line| !line.is_empty() && !line.starts_with(b"#"))
        .take(DIRECTORIES)
        .filter_map(|line| {
            let path = if line.starts_with(b"\"") {
                ByteText::from_text(std::str::from_utf8(line).ok()?)?.0
            } else {
                line.to_vec()
            };
            (!path.contains(&0)).then(|| objects.join(OsStr::from_bytes(&path)))
        });
    Ok(Some(paths.collect()))
}

/// True if a directory holds what git puts there and nothing else.
fn is_object_directory(path: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(path) else {
        return false;
    };
    let mut marked = false;
    for (count, entry) in entries.enumerate() {
        let Ok(entry) = entry else { return false };
        if count == ENTRIES || !belongs(&entry) {
            return false;
        }
        marked |= matches!(entry.file_name().as_bytes(), b"info" | b"pack");
    }
    marked
}

fn belongs(entry: &DirEntry) -> bool {
    let name = entry.file_name();
    let name = name.as_bytes();
    let Ok(kind) = entry.file_type() else {
        return false;
    };
    if kind.is_dir() {
        return matches!(name, b"info" | b"pack")
            || (name.len() == 2 && name.iter().all(u8::is_ascii_hexdigit))
            || name.starts_with(b"tmp_objdir-")
            || name.starts_with(b"incoming-");
    }
    kind.is_file()
        && (name.starts_with(b"tmp_")
            || name.starts_with(b".nfs")
            || name.ends_with(b".lock")
            || name == b"loose-object-idx")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_object_directories_are_mounted() {
        let dir = tempfile::tempdir().unwrap();
        for (names, usable) in [
            (&["info", "pack", "0a"][..], true),
            (&["pack"], true),
            (&["0a"], false),
            (&["info", "pack", "Documents"], false),
            (&["info", ".ssh"], false),
            (&[], false),
        ] {
            let path = dir.path().join(names.join("-") + "x");
            std::fs::create_dir(&path).unwrap();
            for name in names {
                std::fs::create_dir(path.join(name)).unwrap();
            }
            assert_eq!(is_object_directory(&path), usable, "{names:?}");
        }
        let path = dir.path().join("file");
        std::fs::create_dir_all(path.join("info")).unwrap();
        std::fs::write(path.join("id_rsa"), "x").unwrap();
        assert!(!is_object_directory(&path));
    }

    #[test]
    fn borrowing_in_a_ring_ends() {
        let dir = tempfile::tempdir().unwrap();
        for (name, other) in [("a", "b"), ("b", "a")] {
            let info = dir.path().join(name).join("info");
            std::fs::create_dir_all(&info).unwrap();
            std::fs::write(info.join("alternates"), format!("# c\n../{other}\n/\n")).unwrap();
        }
        let mut mounts = ObjectMounts::new("/in");
        let mut notes = Vec::new();
        let places = mounts.add(&dir.path().join("a"), &mut notes).unwrap();
        assert_eq!(places, Some(vec![0, 1]));
        assert_eq!(mounts.inside_text(&[0, 1]), b"/in/0\n/in/1\n");
        assert!(mounts.mounts.iter().all(|mount| mount.has_alternates));
        // The root twice, which is none, and the other one.
        assert_eq!(notes.len(), 3);
    }
}
