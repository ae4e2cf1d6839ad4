//! Where a path leads, and that it stays beneath the root.
//!
//! The walk goes name by name: each is opened relative to the directory before it and never
//! followed as a link; links are read and their names walked in turn; `..` goes one name back and
//! never above the root. So no moment of the walk is outside, whatever is moved meanwhile.
//! `openat2` with `RESOLVE_BENEATH` would do the same, but refuses absolute links that lead back
//! beneath the root, and is not to be had on every backend.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use ringfence_model::ByteText;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::failure::{Failure, Hint as _, Outcome, denied, invalid, not_found, refused, shown};

/// BOUND: the kernel's own for links in one path.
const MAX_LINKS: usize = 40;
/// BOUND: the kernel's own for a path.
const MAX_PATH: usize = 4096;

const DIRECTORY: OFlags = OFlags::PATH
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// The directory that no path leaves.
#[derive(Debug)]
pub struct Root {
    path: PathBuf,
    fd: OwnedFd,
}

/// What to do with a link at the end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    Follow,
    Keep,
}

/// What to do with directories that are missing on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parents {
    Existing,
    Make,
}

/// A name in a directory beneath the root; there may be nothing there.
#[derive(Debug)]
pub struct Place {
    directory: OwnedFd,
    /// `.` for the root itself.
    name: OsString,
    /// Relative to the root, no links in it.
    pub path: PathBuf,
}

impl Root {
    pub fn open(path: &Path) -> Outcome<Self> {
        if !path.is_absolute() {
            return Err(invalid(format!("ROOT `{}` is not absolute", shown(path))));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|errno| refused("open the root", path, errno))?;
        let path = path.to_owned();
        Ok(Self { path, fd })
    }

    /// The full path of a place, for walks. The name may change hands on the way; a walk that
    /// follows no links can then only see what the agent could have walked itself.
    pub fn full(&self, place: &Place) -> PathBuf {
        if place.path.as_os_str().is_empty() {
            self.path.clone()
        } else {
            self.path.join(&place.path)
        }
    }

    /// A full path, relative to the root.
    pub fn relative(&self, full: &Path) -> ByteText {
        shown(full.strip_prefix(&self.path).unwrap_or(full))
    }

    /// Takes ROOT off an absolute path; `None` where it leads elsewhere.
    pub fn beneath<'a>(&self, path: &'a Path) -> Option<&'a Path> {
        if path.is_absolute() {
            path.strip_prefix(&self.path).ok()
        } else {
            Some(path)
        }
    }

    /// HOSTILE: an agent or a model chose this path, and the agent made the links on its way.
    pub fn find(&self, path: &ByteText, last: Last, parents: Parents) -> Outcome<Place> {
        let asked = Path::new(OsStr::from_bytes(path.as_bytes()));
        if path.as_bytes().is_empty() {
            return Err(invalid("the path is empty".to_owned()));
        }
        if path.as_bytes().contains(&0) {
            return Err(invalid("the path has a zero byte in it".to_owned()));
        }
        if path.as_bytes().len() > MAX_PATH {
            return Err(invalid(format!(
                "the path is over its bound of {MAX_PATH} bytes"
            )));
        }
        let mut walk = Walk {
            root: self,
            asked,
            names: Vec::new(),
            current: self.duplicate(asked)?,
        };
        walk.go(last, parents)
    }

    fn duplicate(&self, asked: &Path) -> Outcome<OwnedFd> {
        self.fd
            .try_clone()
            .map_err(|error| crate::failure::refused_io("open", asked, &error))
    }
}

/// A walk under way: `current` is the directory that `names` lead to.
struct Walk<'a> {
    root: &'a Root,
    asked: &'a Path,
    names: Vec<OsString>,
    current: OwnedFd,
}

impl Walk<'_> {
    fn go(&mut self, last: Last, parents: Parents) -> Outcome<Place> {
        let mut left = self.parts(self.asked)?;
        let mut links = 0;
        while let Some(name) = left.pop_front() {
            if name == ".." {
                self.back()?;
                continue;
            }
            let found = match rustix::fs::statat(&self.current, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => Some(FileType::from_raw_mode(stat.st_mode)),
                Err(Errno::NOENT) => None,
                Err(errno) => return Err(refused("look at", self.asked, errno)),
            };
            match found {
                Some(FileType::Symlink) if !left.is_empty() || last == Last::Follow => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(refused("follow", self.asked, Errno::LOOP));
                    }
                    for part in self.link(&name)?.into_iter().rev() {
                        left.push_front(part);
                    }
                }
                _ if left.is_empty() => return self.place(Some(name)),
                Some(FileType::Directory) => self.enter(name)?,
                Some(_) => {
                    let path = self.join(&name);
                    return Err(invalid(format!("`{}` is not a directory", shown(&path))));
                }
                None if parents == Parents::Make => {
                    match rustix::fs::mkdirat(&self.current, &name, Mode::from_raw_mode(0o777)) {
                        // Somebody else made it meanwhile; `enter` sees what it is.
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(errno) => return Err(refused("make", &self.join(&name), errno)),
                    }
                    self.enter(name)?;
                }
                None => {
                    let path = self.join(&name);
                    return Err(not_found(format!("there is no `{}`", shown(&path))));
                }
            }
        }
        // The path ended in a directory that was entered, or in the root.
        let name = self.names.pop();
        if name.is_some() {
            self.reopen()?;
        }
        self.place(name)
    }

    /// The names of a path, from the root if it is absolute.
    fn parts(&self, path: &Path) -> Outcome<VecDeque<OsString>> {
        let beneath = self.root.beneath(path).ok_or_else(|| self.leaves())?;
        Ok(beneath
            .components()
            .filter_map(|component| match component {
                Component::Normal(name) => Some(name.to_owned()),
                Component::ParentDir => Some(OsString::from("..")),
                Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
            })
            .collect())
    }

    /// The names that a link stands for; an absolute one starts again at the root.
    fn link(&mut self, name: &OsStr) -> Outcome<VecDeque<OsString>> {
        let target = rustix::fs::readlinkat(&self.current, name, Vec::new())
            .map_err(|errno| refused("follow", &self.join(name), errno))?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        let parts = self.parts(&target)?;
        if target.is_absolute() {
            self.names.clear();
            self.reopen()?;
        }
        Ok(parts)
    }

    fn enter(&mut self, name: OsString) -> Outcome<()> {
        self.current = rustix::fs::openat(&self.current, &name, DIRECTORY, Mode::empty())
            .map_err(|errno| refused("enter", &self.join(&name), errno))?;
        self.names.push(name);
        Ok(())
    }

    fn back(&mut self) -> Outcome<()> {
        if self.names.pop().is_none() {
            return Err(self.leaves());
        }
        self.reopen()
    }

    /// Opens what `names` lead to again, from the root. The kernel's `..` is not used: it would
    /// lead wherever the directory has been moved to.
    fn reopen(&mut self) -> Outcome<()> {
        self.current = self.root.duplicate(self.asked)?;
        for name in std::mem::take(&mut self.names) {
            self.enter(name)?;
        }
        Ok(())
    }

    fn join(&self, name: &OsStr) -> PathBuf {
        let mut path: PathBuf = self.names.iter().collect();
        path.push(name);
        path
    }

    fn place(&self, name: Option<OsString>) -> Outcome<Place> {
        let path = match &name {
            Some(name) => self.join(name),
            None => PathBuf::new(),
        };
        Ok(Place {
            directory: self
                .current
                .try_clone()
                .map_err(|error| crate::failure::refused_io("open", self.asked, &error))?,
            name: name.unwrap_or_else(|| OsString::from(".")),
            path,
        })
    }

    fn leaves(&self) -> Failure {
        denied(format!(
            "`{}` leads out of `{}`",
            shown(self.asked),
            shown(&self.root.path)
        ))
        .hint("the tools reach only what lies beneath the root")
    }
}

impl Place {
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    pub fn name(&self) -> &OsStr {
        &self.name
    }

    pub fn is_root(&self) -> bool {
        self.path.as_os_str().is_empty()
    }

    /// As answers and messages show it.
    pub fn shown(&self) -> ByteText {
        shown(&self.path)
    }

    /// What is there, if anything is; links are not followed.
    pub fn stat(&self) -> Outcome<Option<Stat>> {
        match rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(refused("look at", &self.path, errno)),
        }
    }

    /// What is there; nothing is a failure.
    pub fn must_stat(&self) -> Outcome<Stat> {
        self.stat()?
            .ok_or_else(|| not_found(format!("there is no `{}`", self.shown())))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use ringfence_model::tools::FailureKind;

    use super::*;
    use crate::testing::Bench;

    fn found(bench: &Bench, path: &str) -> Result<String, FailureKind> {
        bench
            .root
            .find(&ByteText::from(path), Last::Follow, Parents::Existing)
            .map(|place| place.shown().to_text())
            .map_err(|failure| failure.kind)
    }

    #[test]
    fn paths_stay_beneath_the_root() {
        let bench = Bench::new();
        bench.file("a/b/c.txt", "x");
        fs::write(bench.outside("secret"), "s").unwrap();
        let absolute = bench.path("a/b/c.txt");
        for (link, target) in [
            ("in", "a/b"),
            ("back", "a/../a/b"),
            ("absolute", bench.path("a").to_str().unwrap()),
            ("out", "../outside/secret"),
            ("etc", "/etc"),
            ("up", ".."),
            ("a/rootward", "../a/../.."),
            ("loop", "loop"),
            ("dangling", "a/new"),
            (
                "prefix",
                &format!("{}-other", bench.path("a").parent().unwrap().display()),
            ),
        ] {
            symlink(target, bench.path(link)).unwrap();
        }
        let denied = Err(FailureKind::Denied);
        for (path, expected) in [
            ("a/b/c.txt", Ok("a/b/c.txt".to_owned())),
            (absolute.to_str().unwrap(), Ok("a/b/c.txt".to_owned())),
            ("./a//b/./c.txt/", Ok("a/b/c.txt".to_owned())),
            ("a/../a/b", Ok("a/b".to_owned())),
            ("a/b/..", Ok("a".to_owned())),
            ("a/..", Ok(".".to_owned())),
            (".", Ok(".".to_owned())),
            ("in/c.txt", Ok("a/b/c.txt".to_owned())),
            ("back/c.txt", Ok("a/b/c.txt".to_owned())),
            ("absolute/b", Ok("a/b".to_owned())),
            ("dangling", Ok("a/new".to_owned())),
            ("nothing", Ok("nothing".to_owned())),
            ("nothing/x", Err(FailureKind::NotFound)),
            ("a/b/c.txt/x", Err(FailureKind::Invalid)),
            ("..", denied.clone()),
            ("a/../../root/a", denied.clone()),
            ("/etc/passwd", denied.clone()),
            ("/", denied.clone()),
            ("out", denied.clone()),
            ("etc/passwd", denied.clone()),
            ("up/outside", denied.clone()),
            ("a/rootward", denied.clone()),
            ("prefix", denied.clone()),
            ("loop", Err(FailureKind::Invalid)),
            ("", Err(FailureKind::Invalid)),
            ("a\0b", Err(FailureKind::Invalid)),
        ] {
            assert_eq!(found(&bench, path), expected, "{path:?}");
        }
    }

    #[test]
    fn a_deep_path_needs_few_descriptors() {
        let bench = Bench::new();
        let deep = vec!["d"; 1500].join("/");
        let path = ByteText::from(deep.as_str());
        bench
            .root
            .find(&path, Last::Follow, Parents::Make)
            .expect("directories are made");
        assert_eq!(found(&bench, &deep), Ok(deep.clone()));
    }
}
