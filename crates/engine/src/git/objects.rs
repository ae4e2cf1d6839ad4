//! Which object directories of the host a private repository needs, and where they appear inside.
//!
//! HOSTILE: `objects` may be a link and `info/alternates` may name any directory of the host. Nothing
//! is mounted or given to git but a directory below those that the repository was accepted with, that
//! belongs to the folder's owner, and that has in it what git puts there and no link, at any depth.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ringfence_jail::plan::KnownDirectory;
use ringfence_model::ByteText;
use rustix::fs::FileType;

use super::directory::{Directory, Expected, is_own_file};
use super::refusal::{Reason, Refusal};
use super::{Repository, place};

/// BOUND: git itself follows five alternates in a row.
const DEPTH: usize = 5;
/// BOUND: object directories of one sandbox, submodules included.
const DIRECTORIES: usize = 256;
/// BOUND: 256 fan-out directories, `info`, `pack` and what was left lying about.
const ENTRIES: usize = 4096;
/// BOUND: files in one directory of them. Git packs loose objects when there are some 7,000 in all.
const FILES: usize = 1 << 20;
const ALTERNATES_BYTES: u64 = 1 << 20;

/// An object directory of the host, to be mounted read-only inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectMount {
    pub directory: KnownDirectory,
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
    /// Each as it was looked at.
    pub directories: Vec<Directory>,
}

impl ObjectMounts {
    pub(super) fn new(inside: &str) -> Self {
        Self {
            inside: inside.to_owned(),
            mounts: Vec::new(),
            directories: Vec::new(),
        }
    }

    /// Adds the object directory of a repository and all that it borrows from; gives their places in
    /// `mounts`. A note for each borrowed one.
    pub(super) fn add(
        &mut self,
        repo: &Repository,
        notes: &mut Vec<String>,
    ) -> Result<Vec<usize>, Refusal> {
        let before = self.mounts.len();
        self.add_all(repo, notes)
            .inspect_err(|_| self.truncate(before))
    }

    /// Takes back what was added since there were so many.
    pub(super) fn truncate(&mut self, count: usize) {
        self.mounts.truncate(count);
        self.directories.truncate(count);
    }

    fn add_all(
        &mut self,
        repo: &Repository,
        notes: &mut Vec<String>,
    ) -> Result<Vec<usize>, Refusal> {
        let own = repo.common.below(Path::new("objects"));
        let own = own.map_err(|errno| {
            let path = repo.common_dir.join("objects");
            Refusal::new(path, Reason::Unreadable(errno))
        })?;
        let mut places = Vec::new();
        let mut queue = vec![(own, 0)];
        while let Some((directory, depth)) = queue.pop() {
            let listed = check(&directory)?;
            let place = self.place(&directory, listed.is_some())?;
            if places.contains(&place) {
                continue;
            }
            places.push(place);
            if depth > 0 {
                let name = ByteText::from(directory.path().as_os_str().as_bytes());
                notes.push(format!("borrowed objects at `{name}` are readable inside"));
            }
            // Reversed, so that the queue gives them back in the order of the file.
            for path in listed.unwrap_or_default().into_iter().rev() {
                let from = borrowed(repo, &directory, &path)?;
                if depth < DEPTH {
                    queue.push((from, depth + 1));
                }
            }
        }
        Ok(places)
    }

    fn place(&mut self, directory: &Directory, has_alternates: bool) -> Result<usize, Refusal> {
        let refused = |reason| Refusal::new(directory.path().to_owned(), reason);
        let stat = directory.stat();
        let stat = stat.map_err(|errno| refused(Reason::Unreadable(errno)))?;
        let known = KnownDirectory {
            host: directory.path().to_owned(),
            identity: (stat.st_dev, stat.st_ino),
            owner: (stat.st_uid, stat.st_gid),
        };
        if let Some(at) = self.mounts.iter().position(|m| m.directory == known) {
            return Ok(at);
        }
        if self.mounts.len() == DIRECTORIES {
            return Err(refused(Reason::Layout));
        }
        let inside = format!("{}/{}", self.inside, self.mounts.len());
        self.mounts.push(ObjectMount {
            directory: known,
            inside,
            has_alternates,
        });
        self.directories.push(directory.clone());
        Ok(self.mounts.len() - 1)
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
                let path = ByteText::from(self.mounts[at].directory.host.as_os_str().as_bytes());
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

/// Whether git may be let loose on the objects of a repository: nothing in them leads out of it.
pub(crate) fn check_objects(repo: &Repository) -> Result<(), Refusal> {
    ObjectMounts::new("").add(repo, &mut Vec::new()).map(drop)
}

/// Opens a directory that objects are borrowed from, if that is one of the repository's own.
fn borrowed(repo: &Repository, by: &Directory, path: &Path) -> Result<Directory, Refusal> {
    let list = by.path().join("info/alternates");
    let refused = || Refusal::new(list.clone(), Reason::Borrows(path.to_owned()));
    // What is not there yet may be made at any time.
    let real = path.canonicalize().map_err(|_| refused())?;
    if !repo.roots.iter().any(|root| real.starts_with(root)) {
        return Err(refused());
    }
    let directory = Directory::open(&real, by.owner()).map_err(|_| refused())?;
    place::check_owner(&directory)?;
    Ok(directory)
}

/// Looks through an object directory; gives those that it borrows from, `None` if it has no such list.
fn check(objects: &Directory) -> Result<Option<Vec<PathBuf>>, Refusal> {
    place::check_owner(objects)?;
    objects.vet(Path::new("info/alternates"), Expected::File)?;
    let refused = |name: &Path, reason| Refusal::new(objects.path().join(name), reason);
    let listed = |name: &Path, limit| {
        let names = objects.list(name, limit);
        names.map_err(|error| refused(name, Reason::of(&error)))
    };
    let mut marked = false;
    for (name, kind) in listed(Path::new("."), ENTRIES)? {
        let path = Path::new(&name);
        match kind {
            FileType::Symlink => return Err(refused(path, Reason::Link)),
            FileType::Directory if is_directory_of_git(name.as_bytes()) => {
                marked |= matches!(name.as_bytes(), b"info" | b"pack");
                check_files(objects, path, listed(path, FILES)?)?;
            }
            FileType::RegularFile if is_file_of_git(name.as_bytes()) => {}
            _ => return Err(refused(path, Reason::Layout)),
        }
    }
    if !marked {
        return Err(refused(Path::new(""), Reason::Layout));
    }
    alternates(objects)
}

/// What is in a directory of an object directory: no link and no special file, and no second name of
/// a file that is not the owner's.
fn check_files(
    objects: &Directory,
    at: &Path,
    entries: Vec<(std::ffi::OsString, FileType)>,
) -> Result<(), Refusal> {
    // Whoever is not root reads nothing that way that it could not read by its first name.
    let is_root = rustix::process::geteuid().is_root();
    for (name, kind) in entries {
        let path = at.join(name);
        let refused = |reason| Err(Refusal::new(objects.path().join(&path), reason));
        match kind {
            FileType::Symlink => return refused(Reason::Link),
            FileType::RegularFile if is_root => match objects.look(&path) {
                Ok(Some(stat)) if !is_own_file(&stat, objects.owner()) => {
                    return refused(Reason::Foreign {
                        uid: stat.st_uid,
                        owner: objects.owner(),
                    });
                }
                // Git removes them at any time.
                Ok(_) => {}
                Err(errno) => return refused(Reason::Unreadable(errno)),
            },
            FileType::RegularFile => {}
            // `info/commit-graphs`, and fan-out directories of what is being received.
            FileType::Directory if at.components().count() < 3 => {
                let below = objects.list(&path, FILES);
                let below = below.map_err(|error| {
                    Refusal::new(objects.path().join(&path), Reason::of(&error))
                })?;
                check_files(objects, &path, below)?;
            }
            _ => return refused(Reason::Layout),
        }
    }
    Ok(())
}

/// The directories that an object directory borrows from; `None` if there is no such file. A line that
/// makes no sense to us may make sense to git.
fn alternates(objects: &Directory) -> Result<Option<Vec<PathBuf>>, Refusal> {
    let name = Path::new("info/alternates");
    let refused = |reason| Refusal::new(objects.path().join(name), reason);
    let text = objects.read(name, ALTERNATES_BYTES);
    let Some(text) = text.map_err(|error| refused(Reason::of(&error)))? else {
        return Ok(None);
    };
    let mut paths = Vec::new();
    for line in text.bytes.split(|&b| b == b'\n') {
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let path = match line {
            [b'"', ..] => std::str::from_utf8(line)
                .ok()
                .and_then(ByteText::from_text)
                .map(|path| path.0),
            line => Some(line.to_vec()),
        };
        let path = path.filter(|path| !path.contains(&0) && paths.len() < DIRECTORIES);
        let path = path.ok_or_else(|| refused(Reason::Layout))?;
        paths.push(objects.path().join(OsStr::from_bytes(&path)));
    }
    Ok(Some(paths))
}

fn is_directory_of_git(name: &[u8]) -> bool {
    matches!(name, b"info" | b"pack")
        || (name.len() == 2 && name.iter().all(u8::is_ascii_hexdigit))
        || name.starts_with(b"tmp_objdir-")
        || name.starts_with(b"incoming-")
}

fn is_file_of_git(name: &[u8]) -> bool {
    name.starts_with(b"tmp_")
        || name.starts_with(b".nfs")
        || name.ends_with(b".lock")
        || name == b"loose-object-idx"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repository made by hand, with these directories and files, and lists of what it borrows.
    fn repository(names: &[&str], borrows: &[(&str, &str)]) -> (tempfile::TempDir, Repository) {
        let dir = tempfile::tempdir().unwrap();
        let git = dir.path().join(".git");
        for name in ["objects/info", "objects/pack", "refs"].iter().chain(names) {
            let path = git.join(name);
            if path.extension().is_some() {
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, "x").unwrap();
            } else {
                std::fs::create_dir_all(path).unwrap();
            }
        }
        std::fs::write(git.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        for (objects, text) in borrows {
            let info = dir.path().join(objects).join("info");
            std::fs::create_dir_all(&info).unwrap();
            std::fs::write(info.join("alternates"), text).unwrap();
        }
        let user = super::super::UserFiles::default();
        let repo = super::super::discover_for(dir.path(), user).unwrap();
        (dir, repo.expect("a repository"))
    }

    #[test]
    fn object_directory_with_anything_else_in_it_is_refused() {
        for (name, usable) in [
            ("objects/0a", true),
            ("objects/0a/0000.object", true),
            ("objects/info/commit-graphs/graph-1.graph", true),
            ("objects/tmp_objdir-incoming-x/pack", true),
            ("objects/pack/pack-1.pack", true),
            ("objects/Documents", false),
            ("objects/.ssh", false),
            ("objects/id_rsa.pem", false),
            ("objects/pack/a/b/c", false),
        ] {
            let (_dir, repo) = repository(&[name], &[]);
            let added = ObjectMounts::new("/in").add(&repo, &mut Vec::new());
            assert_eq!(added.is_ok(), usable, "{name}: {added:?}");
        }
    }

    #[test]
    fn link_at_any_depth_of_objects_is_refused() {
        for (name, target) in [
            ("objects/0a", "/etc"),
            ("objects/0a/00", "/etc/passwd"),
            ("objects/pack/pack-1.pack", "../../HEAD"),
            ("objects/info/commit-graph", "/etc/passwd"),
            ("objects/info/commit-graphs/graph-1.graph", "/etc/passwd"),
            ("objects/info/alternates", "/etc/passwd"),
        ] {
            let (dir, repo) = repository(&["objects/info/commit-graphs"], &[]);
            let path = dir.path().join(".git").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(target, path).unwrap();
            let refused = ObjectMounts::new("/in").add(&repo, &mut Vec::new());
            let said = refused.expect_err(name).to_string();
            assert!(said.contains("symbolic link"), "{said}");
        }
    }

    #[test]
    fn objects_are_borrowed_only_from_below_the_folder() {
        let elsewhere = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(elsewhere.path().join("info")).unwrap();
        let elsewhere = elsewhere.path().to_str().unwrap();
        let out = format!("{elsewhere}\n");
        let quoted = format!("\"{elsewhere}\"\n");
        for (lists, usable) in [
            (&[][..], Some(1)),
            (&[(".git/objects", "# nothing\n\n")], Some(1)),
            (&[(".git/objects", "../../b\n"), ("b", "")], Some(2)),
            // In a ring.
            (
                &[(".git/objects", "../../b\n"), ("b", "../.git/objects\n")],
                Some(2),
            ),
            (&[(".git/objects", &out)], None),
            (&[(".git/objects", &quoted)], None),
            (&[(".git/objects", "/\n")], None),
            (&[(".git/objects", "../../../..\n")], None),
            (&[(".git/objects", "/nowhere\n")], None),
            (&[(".git/objects", "../../missing\n")], None),
            (&[(".git/objects", "\"broken\n")], None),
            (&[(".git/objects", "../../b\0c\n"), ("b", "")], None),
            // By way of one that may be used.
            (&[(".git/objects", "../../b\n"), ("b", &out)], None),
        ] {
            let (_dir, repo) = repository(&[], lists);
            let mut mounts = ObjectMounts::new("/in");
            let added = mounts.add(&repo, &mut Vec::new());
            assert_eq!(
                added.as_ref().map(Vec::len).ok(),
                usable,
                "{lists:?} {added:?}"
            );
        }
    }
}
