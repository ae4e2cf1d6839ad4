//! A stack of layers, each written through a real overlay over those before it.

#![allow(dead_code, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ringfence_engine::changes::remove_tree;
use ringfence_engine::layers::{self, Copied};
use ringfence_jail::view::merged_view;

pub type Digest = [u8; 32];

/// `base`, and layers `0`, `1`, … above it.
pub struct Stack {
    pub dir: tempfile::TempDir,
    pub count: usize,
    /// What was seen through each mount while it was there.
    pub live: Vec<Digest>,
}

impl Stack {
    pub fn new(base: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let stack = Self {
            dir,
            count: 0,
            live: Vec::new(),
        };
        fs::create_dir(stack.path("base")).unwrap();
        let mut command = Command::new("unshare");
        command
            .args(["-Ur", "bash", "-c", &format!("set -eu\n{base}")])
            .current_dir(stack.path("base"));
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{base}\n{said}");
        stack
    }

    /// Writes one more layer by a script.
    pub fn generation(&mut self, work: &str) {
        let upper = self.count.to_string();
        for name in [&upper, &"work".to_owned(), &"mount".to_owned()] {
            fs::create_dir_all(self.path(name)).unwrap();
        }
        let mut lower = self.names(0..self.count).join(":");
        lower += if lower.is_empty() { "base" } else { ":base" };
        let options = format!("userxattr,lowerdir={lower},upperdir={upper},workdir=work");
        let script = format!(
            "set -eu\nmount -t overlay overlay -o {options} mount\n(cd mount\n{work}\n) >&2\n\
             echo there\nread line"
        );
        let mut child = Command::new("unshare")
            .args(["-Urm", "bash", "-c", &script])
            .current_dir(self.dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        if line == "there\n" {
            let inside = format!("/proc/{}/root{}", child.id(), self.path("mount").display());
            let live = layers::digest(open(Path::new(&inside)).as_fd()).unwrap();
            self.live.push(live);
            child.stdin.take().unwrap().write_all(b"\n").unwrap();
        }
        let mut said = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert!(child.wait().unwrap().success(), "{work}\n{said}");
        let parent = open(self.dir.path());
        remove_tree(parent.as_fd(), b"work").unwrap();
        self.count += 1;
    }

    /// The names of some layers, topmost first.
    pub fn names(&self, range: std::ops::Range<usize>) -> Vec<String> {
        range.rev().map(|number| number.to_string()).collect()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn open(&self, name: &str) -> OwnedFd {
        open(&self.path(name))
    }

    /// What the named layers show on top of the base.
    pub fn view(&self, names: &[String]) -> OwnedFd {
        let mut paths: Vec<_> = names.iter().map(|name| self.path(name)).collect();
        paths.push(self.path("base"));
        let paths: Vec<_> = paths.iter().map(PathBuf::as_path).collect();
        merged_view(&paths).unwrap()
    }

    pub fn digest(&self, name: &str) -> Digest {
        layers::digest(self.open(name).as_fd()).unwrap()
    }

    /// Merges a range into a new layer.
    pub fn merge(&self, range: std::ops::Range<usize>, to: &str) -> Copied {
        let below = self.view(&self.names(0..range.start));
        self.merge_over(range, Some(below.as_fd()), to)
    }

    pub fn merge_over(
        &self,
        range: std::ops::Range<usize>,
        below: Option<BorrowedFd<'_>>,
        to: &str,
    ) -> Copied {
        let names = self.names(range);
        let fds: Vec<_> = names.iter().map(|name| self.open(name)).collect();
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        let parent = open(self.dir.path());
        layers::merge(&fds, below, parent.as_fd(), to.as_bytes()).unwrap()
    }

    pub fn copy(&self, from: &str, to: &str) -> Copied {
        let parent = open(self.dir.path());
        layers::copy(self.open(from).as_fd(), parent.as_fd(), to.as_bytes()).unwrap()
    }

    /// Merges a range, and checks that the whole stack shows the same with the result in its place,
    /// and that no layer changed.
    pub fn check_merge(&self, range: std::ops::Range<usize>) {
        let before: Vec<_> = (0..self.count)
            .map(|n| self.digest(&n.to_string()))
            .collect();
        let to = format!("merged-{}-{}", range.start, range.end);
        self.merge(range.clone(), &to);
        let mut names = self.names(range.end..self.count);
        names.push(to.clone());
        names.extend(self.names(0..range.start));
        let (all, merged) = (self.view(&self.names(0..self.count)), self.view(&names));
        assert_eq!(seen(&all), seen(&merged), "layers {range:?}");
        assert_eq!(
            layers::digest(merged.as_fd()).unwrap(),
            self.live[self.count - 1]
        );
        for (number, before) in before.iter().enumerate() {
            assert_eq!(*before, self.digest(&number.to_string()));
        }
        assert!(!self.path(&format!("{to}.links")).exists());
        let parent = open(self.dir.path());
        remove_tree(parent.as_fd(), to.as_bytes()).unwrap();
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        let parent = open(self.dir.path());
        for entry in fs::read_dir(self.dir.path()).unwrap() {
            let name = entry.unwrap().file_name().into_vec();
            remove_tree(parent.as_fd(), &name).unwrap();
        }
    }
}

pub fn open(path: &Path) -> OwnedFd {
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY;
    let fd = rustix::fs::open(path, flags, rustix::fs::Mode::empty());
    fd.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What the digest leaves out: owner and time of each path. A name that is listed and not there
/// panics: the kernel lists whiteouts of a directory that is not merged.
pub fn seen(view: &OwnedFd) -> BTreeMap<Vec<u8>, (u32, i64, i64, u32, u64)> {
    let mut all = BTreeMap::new();
    let root = PathBuf::from(format!("/proc/self/fd/{}", view.as_raw_fd()));
    let mut queue = vec![(root, Vec::new())];
    while let Some((dir, path)) = queue.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            let below = [&path, b"/".as_slice(), &entry.file_name().into_vec()].concat();
            let meta = fs::symlink_metadata(entry.path()).unwrap_or_else(|error| {
                panic!("ghost {:?}: {error}", String::from_utf8_lossy(&below))
            });
            let size = if meta.is_dir() { 0 } else { meta.size() };
            let what = (
                meta.mode(),
                meta.mtime(),
                meta.mtime_nsec(),
                meta.uid(),
                size,
            );
            if meta.is_dir() {
                queue.push((entry.path(), below.clone()));
            }
            all.insert(below, what);
        }
    }
    all
}

/// Writes a file with a hole of almost all its size.
pub fn sparse(path: &Path, size: u64) {
    use std::os::unix::fs::FileExt as _;
    let file = File::create(path).unwrap();
    file.set_len(size).unwrap();
    file.write_all_at(b"data", size / 2).unwrap();
}
