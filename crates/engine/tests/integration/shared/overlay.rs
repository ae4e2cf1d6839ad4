//! A folder, an agent's work on it through a real overlay, and the patch that must carry it.

#![allow(dead_code, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use ringfence_engine::apply::{OuterLinks, patch_to_tree};
use ringfence_engine::changes::{
    Bounds, ChangesError, Crossing, EntryType, PatchStats, Sources, Started, compute, render,
};
use ringfence_engine::home::Home;
use ringfence_engine::ids::RunId;
use ringfence_engine::patch::{Patch, layer};
use ringfence_model::ByteText;
use ringfence_model::changes::ObjectHash;
use ringfence_model::changes::{ChangeKind, ChangeSet, WhyOmitted};

pub struct Everything;

impl Crossing for Everything {
    fn crosses(&mut self, _: &[u8], _: EntryType) -> Result<(), WhyOmitted> {
        Ok(())
    }
}

/// The scene of one test: `base`, `upper`, and `after`, which is what the agent saw at the end.
pub struct Scene {
    pub dir: tempfile::TempDir,
    pub started: Started,
    pub prefix: Vec<u8>,
    pub hash: ObjectHash,
    pub bounds: Bounds,
}

/// A file, by what git can say about it.
#[derive(Clone, PartialEq, Eq)]
pub enum Seen {
    File { executable: bool, bytes: Vec<u8> },
    Link(Vec<u8>),
    Special,
    Huge(u64),
}

impl std::fmt::Debug for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File { executable, bytes } => {
                let head = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]);
                write!(f, "file x={executable} {} bytes {head:?}", bytes.len())
            }
            Self::Link(to) => write!(f, "link to {:?}", String::from_utf8_lossy(to)),
            Self::Special => write!(f, "special"),
            Self::Huge(size) => write!(f, "huge {size}"),
        }
    }
}

pub type Tree = BTreeMap<Vec<u8>, Seen>;

impl Scene {
    /// Makes the folder by one script and has another change it through an overlay.
    pub fn new(base: &str, work: &str) -> Self {
        let scene = Self::prepare(base);
        scene.work(work, Snapshot::Taken);
        scene
    }

    pub fn prepare(base: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["base", "upper", "work", "merged", "after"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        run(&mut shell(base, &dir.path().join("base")));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let started = Started {
            seconds: i64::try_from(now.as_secs()).unwrap(),
            nanoseconds: now.subsec_nanos(),
        };
        let (prefix, hash) = (Vec::new(), ObjectHash::Sha1);
        Self {
            dir,
            started,
            prefix,
            hash,
            bounds: Bounds::default(),
        }
    }

    pub fn work(&self, work: &str, snapshot: Snapshot) {
        let options = "userxattr,lowerdir=base,upperdir=upper,workdir=work";
        let mut script =
            format!("mount -t overlay overlay -o {options} merged\n(cd merged\n{work}\n)\n");
        if snapshot == Snapshot::Taken {
            script += "cp -a --sparse=always merged/. after/\n\
                find after -type d -exec chmod u+rwx {} +\n\
                find after -type f -exec chmod u+rw {} +\n";
        }
        let inside = format!("set -eu\n{script}");
        let mut command = Command::new("unshare");
        command
            .args(["-Urm", "bash", "-c", &inside])
            .current_dir(self.path(""));
        run(&mut command);
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn sources(&self) -> Sources {
        Sources {
            upper: self.open("upper"),
            base: self.open("base"),
            started: self.started,
            prefix: self.prefix.clone(),
            hash: self.hash,
        }
    }

    pub fn open(&self, name: &str) -> OwnedFd {
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY;
        let mode = rustix::fs::Mode::empty();
        rustix::fs::open(self.path(name), flags, mode).unwrap()
    }

    pub fn compute(&self) -> ChangeSet {
        self.compute_with(&mut Everything).unwrap()
    }

    pub fn compute_with(&self, crossing: &mut dyn Crossing) -> Result<ChangeSet, ChangesError> {
        compute(&self.sources(), crossing, &self.bounds)
    }

    pub fn render(&self, set: &ChangeSet) -> (Vec<u8>, PatchStats) {
        let mut patch = Vec::new();
        let stats = render(&self.sources(), set, &mut patch).unwrap();
        assert_eq!(stats.bytes, patch.len() as u64);
        assert_eq!(stats.files, set.changes.len() as u64);
        (patch, stats)
    }

    /// Applies the patch of a change set to a pristine copy, and back again.
    pub fn check(&self, set: &ChangeSet) {
        let patch = self.check_forward(set);
        if !patch.is_empty() {
            self.git_apply(&["-R"]);
            let (back, base) = (tree(&self.path("applied")), tree(&self.path("base")));
            assert_trees_equal(&contents(back), &contents(base), &patch);
        }
    }

    /// Applies the patch of a change set to a pristine copy.
    pub fn check_forward(&self, set: &ChangeSet) -> Vec<u8> {
        let (patch, _) = self.render(set);
        if patch.is_empty() {
            assert!(set.changes.is_empty());
        } else {
            self.apply(&patch);
        }
        let copy = if patch.is_empty() { "base" } else { "applied" };
        let mut applied = tree(&self.path(copy));
        let mut after = tree(&self.path("after"));
        for omitted in &set.omitted {
            let path = self.in_folder(omitted.path.as_bytes());
            let below = [path, b"/"].concat();
            for tree in [&mut applied, &mut after] {
                tree.retain(|name, _| name != path && !name.starts_with(&below));
            }
        }
        assert_trees_equal(&applied, &after, &patch);
        self.check_layer(set, &patch);
        self.check_tree(set, &patch);
        patch
    }

    /// Our own hand applies the patch as git does.
    fn check_tree(&self, set: &ChangeSet, patch: &[u8]) {
        let top = self.path("ours");
        run(Command::new("cp")
            .args(["-a", "base", "ours"])
            .current_dir(self.path("")));
        let home = Home::open(Some(self.path("home"))).unwrap();
        let stripped = without_prefix(set, &self.prefix);
        let text = render_without_prefix(self, &stripped);
        let text = if self.prefix.is_empty() { patch } else { &text };
        let read = Patch::read(text, &stripped.changes).unwrap();
        let run_id = RunId::random().unwrap();
        let links = OuterLinks::Allowed;
        let applied = patch_to_tree(&home, run_id, &read, &top, links).unwrap();
        assert_eq!(applied.already, []);
        let copy = if patch.is_empty() { "base" } else { "applied" };
        assert_trees_equal(&tree(&top), &tree(&self.path(copy)), patch);
        // Twice is once.
        let again = patch_to_tree(&home, run_id, &read, &top, links).unwrap();
        assert_eq!((again.written, again.removed), (Vec::new(), Vec::new()));
        assert_eq!(
            fs::read_dir(home.applying())
                .unwrap()
                .filter(is_intent)
                .count(),
            0
        );
        let parent: OwnedFd = File::open(self.dir.path()).unwrap().into();
        ringfence_engine::changes::remove_tree(parent.as_fd(), b"ours").unwrap();
    }

    /// A layer that our own reader makes of the patch has the same changes.
    fn check_layer(&self, set: &ChangeSet, patch: &[u8]) {
        let layered = self.path("layered");
        fs::create_dir(&layered).unwrap();
        let read = Patch::read(patch, &set.changes).unwrap();
        let (base, upper) = (self.open("base"), self.open("layered"));
        let came_to = layer(&read.entries, base.as_fd(), &self.prefix, upper.as_fd()).unwrap();
        let added = set.changes.iter().filter(|change| change.new.is_some());
        assert_eq!(came_to.files, added.count() as u64);
        let sources = Sources {
            upper,
            ..self.sources()
        };
        let again = compute(&sources, &mut Everything, &self.bounds).unwrap();
        assert_eq!(again.changes, set.changes);
        assert_eq!(again.omitted, []);
        fs::remove_dir_all(layered).unwrap();
    }

    fn in_folder<'p>(&self, path: &'p [u8]) -> &'p [u8] {
        if self.prefix.is_empty() {
            return path;
        }
        path.strip_prefix(self.prefix.as_slice())
            .unwrap()
            .strip_prefix(b"/")
            .unwrap()
    }

    pub fn apply(&self, patch: &[u8]) {
        fs::write(self.path("patch"), patch).unwrap();
        run(Command::new("cp")
            .args(["-a", "base", "applied"])
            .current_dir(self.path("")));
        self.git_apply(&["--check"]);
        self.git_apply(&[]);
    }

    fn git_apply(&self, arguments: &[&str]) {
        let strip = 1 + self
            .prefix
            .split(|&byte| byte == b'/')
            .filter(|c| !c.is_empty())
            .count();
        let mut git = Command::new("git");
        git.args(["-c", "core.autocrlf=false", "apply", "--whitespace=nowarn"])
            .arg(format!("-p{strip}"))
            .args(arguments)
            .arg("../patch")
            .env("GIT_CEILING_DIRECTORIES", self.dir.path())
            .current_dir(self.path("applied"));
        run(&mut git);
    }
}

/// The same changes, of a folder that is a top itself.
fn without_prefix(set: &ChangeSet, prefix: &[u8]) -> ChangeSet {
    let strip = |path: &ByteText| {
        if prefix.is_empty() {
            path.clone()
        } else {
            ByteText::from(&path.as_bytes()[prefix.len() + 1..])
        }
    };
    let mut set = set.clone();
    for change in &mut set.changes {
        change.path = strip(&change.path);
        if let ChangeKind::Renamed { from } = &mut change.kind {
            *from = strip(from);
        }
    }
    set
}

fn render_without_prefix(scene: &Scene, set: &ChangeSet) -> Vec<u8> {
    let mut patch = Vec::new();
    let sources = Sources {
        prefix: Vec::new(),
        ..scene.sources()
    };
    render(&sources, set, &mut patch).unwrap();
    patch
}

fn is_intent(entry: &std::io::Result<fs::DirEntry>) -> bool {
    let name = entry.as_ref().unwrap().file_name();
    name.as_bytes().ends_with(b".json")
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Snapshot {
    Taken,
    Skipped,
}

impl Drop for Scene {
    fn drop(&mut self) {
        let parent: OwnedFd = File::open(self.dir.path()).unwrap().into();
        for name in ["base", "upper", "work", "after", "applied"] {
            ringfence_engine::changes::remove_tree(parent.as_fd(), name.as_bytes()).unwrap();
        }
    }
}

/// One line for each change and each omission, sorted as they come.
pub fn summary(set: &ChangeSet) -> String {
    let mut out = String::new();
    for change in &set.changes {
        let modes = match (&change.old, &change.new) {
            (Some(old), Some(new)) if old.mode != new.mode => " mode",
            _ => "",
        };
        let binary = if change.binary { " bin" } else { "" };
        let path = change.path.to_text();
        let line = match &change.kind {
            ChangeKind::Added => format!("A {path}"),
            ChangeKind::Modified => format!("M {path}"),
            ChangeKind::Deleted => format!("D {path}"),
            ChangeKind::Renamed { from } => format!("R {} -> {path}", from.to_text()),
        };
        write!(out, "{line}{modes}{binary}, ").unwrap();
    }
    for omitted in &set.omitted {
        write!(out, "- {} {:?}, ", omitted.path, omitted.why).unwrap();
    }
    out.trim_end_matches(", ").to_owned()
}

/// A tree without types and modes: git 2.47 forgets those of a deletion that it takes back.
fn contents(mut tree: Tree) -> Tree {
    for seen in tree.values_mut() {
        match seen {
            Seen::File { executable, .. } => *executable = false,
            Seen::Link(to) => {
                *seen = Seen::File {
                    executable: false,
                    bytes: to.clone(),
                }
            }
            Seen::Special | Seen::Huge(_) => {}
        }
    }
    tree
}

fn assert_trees_equal(left: &Tree, right: &Tree, patch: &[u8]) {
    for name in left.keys().chain(right.keys()) {
        assert_eq!(
            left.get(name),
            right.get(name),
            "{:?} differs; the patch is\n{}",
            String::from_utf8_lossy(name),
            String::from_utf8_lossy(&patch[..patch.len().min(4000)])
        );
    }
}

/// All files below a directory but those of its own `.git`.
pub fn tree(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut queue = vec![(root.to_owned(), Vec::new())];
    while let Some((dir, path)) = queue.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_vec();
            if path.is_empty() && name == b".git" {
                continue;
            }
            let below = if path.is_empty() {
                name
            } else {
                [path.as_slice(), b"/", &name].concat()
            };
            let meta = entry.metadata().unwrap();
            let kind = meta.file_type();
            let seen = if kind.is_dir() {
                queue.push((entry.path(), below));
                continue;
            } else if kind.is_symlink() {
                Seen::Link(
                    fs::read_link(entry.path())
                        .unwrap()
                        .into_os_string()
                        .into_vec(),
                )
            } else if kind.is_fifo() || kind.is_socket() || kind.is_char_device() {
                Seen::Special
            } else if meta.len() > 1 << 30 {
                Seen::Huge(meta.len())
            } else {
                let executable = meta.permissions().mode() & 0o100 != 0;
                Seen::File {
                    executable,
                    bytes: fs::read(entry.path()).unwrap(),
                }
            };
            tree.insert(below, seen);
        }
    }
    tree
}

pub fn shell(script: &str, dir: &Path) -> Command {
    let mut command = Command::new("bash");
    command
        .args(["-c", &format!("set -eu\n{script}")])
        .current_dir(dir);
    for (key, value) in [
        ("GIT_AUTHOR_NAME", "t"),
        ("GIT_AUTHOR_EMAIL", "t@t"),
        ("GIT_COMMITTER_NAME", "t"),
        ("GIT_COMMITTER_EMAIL", "t@t"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ] {
        command.env(key, value);
    }
    command
}

pub fn run(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

pub fn name(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}
