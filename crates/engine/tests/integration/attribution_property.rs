//! Random work by several programs in a real directory, with the writes recorded as the guest
//! records them: everything that changed is explained, and by the right one.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use ringfence_engine::attribution::render;
use ringfence_engine::evidence::Evidence;
use ringfence_model::attribution::Attribution;
use ringfence_model::changes::{ChangeKind, ChangeSet, FileMode};
use ringfence_model::observed::{Observed, Version, Write, Wrote};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::shared::cases;
use crate::shared::overlay as changes_overlay;
use crate::shared::within;
use changes_overlay::{Scene, Snapshot, run, summary};
use within::within;

/// Few names, so that things often meet.
const PATHS: [&str; 10] = [
    "a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "f", "f/a", "f/e/b",
];

#[derive(Clone, Copy, Debug)]
enum Verb {
    Append,
    Insert,
    /// Writes another file and moves it here, as editors do.
    Replace,
    Create,
    Rename,
    Exchange,
    Link,
    Symlink,
    Unlink,
    Mkdir,
    Rmdir,
    Mode(u32),
}

#[derive(Clone, Debug)]
struct Step {
    exec: u64,
    verb: Verb,
    one: &'static str,
    two: &'static str,
    at: usize,
}

fn step() -> impl Strategy<Value = Step> {
    let verb = prop_oneof![
        4 => Just(Verb::Append),
        4 => Just(Verb::Insert),
        3 => Just(Verb::Replace),
        3 => Just(Verb::Create),
        4 => Just(Verb::Rename),
        1 => Just(Verb::Exchange),
        2 => Just(Verb::Link),
        1 => Just(Verb::Symlink),
        2 => Just(Verb::Unlink),
        2 => Just(Verb::Mkdir),
        1 => Just(Verb::Rmdir),
        1 => Just(Verb::Mode(0o755)),
        1 => Just(Verb::Mode(0o644)),
    ];
    let path = || (0..PATHS.len()).prop_map(|at| PATHS[at]);
    (1..5_u64, verb, path(), path(), 0..40_usize).prop_map(|(exec, verb, one, two, at)| Step {
        exec,
        verb,
        one,
        two,
        at,
    })
}

/// What is true of the directory, kept by full paths: another way than the one that is tested.
#[derive(Default)]
struct Truth {
    /// When and by whom a path that is there was last written, brought or linked.
    last: BTreeMap<PathBuf, (usize, u64)>,
    mode: BTreeMap<PathBuf, (usize, u64)>,
    /// Who took a path away that is not there.
    gone: BTreeMap<PathBuf, u64>,
}

impl Truth {
    fn remove(&mut self, path: &Path, exec: u64) {
        self.last.remove(path);
        self.mode.remove(path);
        self.gone.insert(path.to_owned(), exec);
    }

    /// Something moved away, with all that is below it. A directory that stands where a file had gone
    /// from before, and only goes along, takes nothing away: nobody is told that it was made.
    fn remove_all(&mut self, paths: &[PathBuf], exec: u64) {
        for (at, path) in paths.iter().enumerate() {
            if at == 0 || !self.gone.contains_key(path) {
                self.remove(path, exec);
            }
        }
    }

    fn bring(&mut self, path: &Path, now: usize, exec: u64) {
        self.last.insert(path.to_owned(), (now, exec));
        self.mode.remove(path);
        self.gone.remove(path);
    }
}

/// The directory, those who work in it, and who watches.
struct Work {
    root: PathBuf,
    now: usize,
    truth: Truth,
    /// What the kernel agreed to, and everything that it was asked.
    done: Evidence,
    asked: Evidence,
    opened: BTreeMap<PathBuf, u64>,
}

impl Work {
    fn new(root: PathBuf) -> Self {
        Self {
            root,
            now: 0,
            truth: Truth::default(),
            done: Evidence::default(),
            asked: Evidence::default(),
            opened: BTreeMap::new(),
        }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// All that is at and below a path, relative to the root.
    fn files(&self, path: &Path) -> Vec<PathBuf> {
        let mut queue = vec![path.to_owned()];
        let mut files = Vec::new();
        while let Some(path) = queue.pop() {
            let real = self.root.join(&path);
            match fs::symlink_metadata(&real) {
                Ok(meta) if meta.is_dir() => {
                    for entry in fs::read_dir(&real).unwrap() {
                        queue.push(path.join(entry.unwrap().file_name()));
                    }
                    files.push(path);
                }
                Ok(_) => files.push(path),
                Err(_) => {}
            }
        }
        files
    }

    /// All names of a file.
    fn names(&self, path: &str) -> Vec<PathBuf> {
        let inode = |path: &Path| fs::symlink_metadata(path).map(|meta| meta.ino()).ok();
        let own = inode(&self.at(path));
        let mut all = self.files(Path::new(""));
        all.retain(|other| inode(&self.root.join(other)) == own);
        all
    }

    fn record(&mut self, exec: u64, path: &str, what: Wrote, result: &io::Result<()>) -> bool {
        let write = Observed::Write(Write {
            exec: Some(exec),
            pid: 1,
            path: path.into(),
            what,
        });
        self.asked.take(0, write.clone(), std::convert::identity);
        if result.is_ok() {
            self.done.take(0, write, std::convert::identity);
        }
        self.now += 1;
        result.is_ok()
    }

    /// Opens for writing; gives what was there.
    fn open(&mut self, exec: u64, path: &str, kept: bool) -> Option<(fs::File, String)> {
        let real = self.at(path);
        let before = fs::read_to_string(&real).ok();
        let is_link = fs::symlink_metadata(&real).is_ok_and(|meta| meta.is_symlink());
        if is_link {
            return None;
        }
        if let Some(content) = before.as_deref().filter(|_| kept) {
            let last = self.opened.get(Path::new(path)).copied();
            if last.is_some_and(|last| last != exec) {
                let version = Observed::Version(Version {
                    path: path.into(),
                    exec: last,
                    content: content.into(),
                });
                self.asked.take(0, version.clone(), std::convert::identity);
                self.done.take(0, version, std::convert::identity);
            }
        }
        let opened = fs::OpenOptions::new().append(true).create(true).open(&real);
        let what = match before {
            Some(_) => Wrote::Opened,
            None => Wrote::Created,
        };
        let (file, result) = match opened {
            Ok(file) => (Some(file), Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.record(exec, path, what, &result);
        let file = file?;
        self.opened.insert(path.into(), exec);
        for name in self.names(path) {
            self.truth.last.insert(name.clone(), (self.now, exec));
            self.truth.gone.remove(&name);
        }
        Some((file, before.unwrap_or_default()))
    }

    fn rename(&mut self, exec: u64, from: &str, to: &str) {
        let moved = self.files(Path::new(from));
        // The kernel does nothing where both are one file, and says that it has.
        if from == to || self.names(from).contains(&PathBuf::from(to)) {
            return;
        }
        let what = Wrote::Renamed { from: from.into() };
        let result = fs::rename(self.at(from), self.at(to));
        if self.record(exec, to, what, &result) {
            self.moved(exec, &moved, from, to);
        }
    }

    fn moved(&mut self, exec: u64, files: &[PathBuf], from: &str, to: &str) {
        self.truth.remove_all(files, exec);
        self.moved_in(exec, files, from, to);
    }

    fn step(&mut self, step: &Step) {
        let Step {
            exec,
            verb,
            one,
            two,
            at,
        } = *step;
        // Each third version is missing.
        let kept = at % 3 != 0;
        let line = format!("by {exec} in {}\n", self.now);
        let insert = |text: &str| {
            let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
            lines.insert(at.min(lines.len()), &line);
            lines.concat()
        };
        match verb {
            Verb::Append => {
                if let Some((mut file, _)) = self.open(exec, one, kept) {
                    file.write_all(line.as_bytes()).unwrap();
                }
            }
            Verb::Insert => {
                if let Some((mut file, before)) = self.open(exec, one, kept) {
                    file.set_len(0).unwrap();
                    file.write_all(insert(&before).as_bytes()).unwrap();
                }
            }
            Verb::Replace => {
                let before = fs::read_to_string(self.at(one)).unwrap_or_default();
                let part = format!("{one}.part");
                if let Some((mut file, _)) = self.open(exec, &part, kept) {
                    file.set_len(0).unwrap();
                    file.write_all(insert(&before).as_bytes()).unwrap();
                    self.rename(exec, &part, one);
                }
            }
            Verb::Create => {
                let result = fs::File::create_new(self.at(one));
                let result = result.and_then(|mut file| file.write_all(line.as_bytes()));
                if self.record(exec, one, Wrote::Created, &result) {
                    self.truth.bring(Path::new(one), self.now, exec);
                    self.opened.insert(one.into(), exec);
                }
            }
            Verb::Rename => self.rename(exec, one, two),
            Verb::Exchange => self.exchange(exec, one, two),
            Verb::Link => {
                let result = fs::hard_link(self.at(one), self.at(two));
                if self.record(exec, two, Wrote::Linked { to: one.into() }, &result) {
                    self.truth.bring(Path::new(two), self.now, exec);
                }
            }
            Verb::Symlink => {
                let result = std::os::unix::fs::symlink("to", self.at(one));
                if self.record(exec, one, Wrote::Symlinked, &result) {
                    self.truth.bring(Path::new(one), self.now, exec);
                }
            }
            Verb::Unlink => {
                let result = fs::remove_file(self.at(one));
                if self.record(exec, one, Wrote::Removed, &result) {
                    self.truth.remove(Path::new(one), exec);
                }
            }
            Verb::Mkdir => {
                let result = fs::create_dir(self.at(one));
                drop(result);
            }
            Verb::Rmdir => {
                let result = fs::remove_dir(self.at(one));
                drop(result);
            }
            Verb::Mode(mode) => {
                let real = self.at(one);
                if !fs::symlink_metadata(&real).is_ok_and(|meta| meta.is_file()) {
                    return;
                }
                let result = fs::set_permissions(&real, fs::Permissions::from_mode(mode));
                self.record(exec, one, Wrote::Mode, &result);
                for name in self.names(one) {
                    self.truth.mode.insert(name, (self.now, exec));
                }
            }
        }
    }

    fn exchange(&mut self, exec: u64, one: &str, two: &str) {
        if one == two || self.names(one).contains(&PathBuf::from(two)) {
            return;
        }
        let (first, second) = (self.files(Path::new(one)), self.files(Path::new(two)));
        let (from, to) = (self.at(one), self.at(two));
        let result = renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE);
        let what = Wrote::Exchanged { with: two.into() };
        if self.record(exec, one, what, &result.map_err(Into::into)) {
            self.truth.remove_all(&first, exec);
            self.truth.remove_all(&second, exec);
            self.moved_in(exec, &first, one, two);
            self.moved_in(exec, &second, two, one);
        }
    }

    fn moved_in(&mut self, exec: u64, files: &[PathBuf], from: &str, to: &str) {
        for path in files {
            let rest = path.strip_prefix(from).unwrap();
            let path = if rest.as_os_str().is_empty() {
                PathBuf::from(to)
            } else {
                Path::new(to).join(rest)
            };
            self.truth.bring(&path, self.now, exec);
        }
    }
}

const BASE: &str = "mkdir d d/e f f/e; for f in a d/a d/e/a f/e/b; do \
    for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do echo base $f $n; done > $f; done";

/// Works on a copy of the base; gives the change set of what came of it.
fn work(steps: &[Step]) -> (Scene, Work, ChangeSet) {
    let scene = Scene::prepare(BASE);
    run(std::process::Command::new("cp")
        .args(["-a", "base/.", "after/"])
        .current_dir(scene.path("")));
    let mut work = Work::new(scene.path("after"));
    for step in steps {
        work.step(step);
    }
    let into_layer = "find . -mindepth 1 -delete; cp -a ../after/. .";
    scene.work(into_layer, Snapshot::Skipped);
    let set = scene.compute();
    (scene, work, set)
}

fn attribute(scene: &Scene, set: &ChangeSet, evidence: &Evidence) -> (Attribution, String) {
    let mut patch = Vec::new();
    let (_, found) = render(&scene.sources(), set, evidence, &mut patch).unwrap();
    (found, String::from_utf8(patch).unwrap())
}

/// The hunks of each change, as they are in the patch.
fn hunks(patch: &str) -> Vec<Vec<String>> {
    let mut files: Vec<Vec<String>> = Vec::new();
    for line in patch.split_inclusive('\n') {
        if line.starts_with("diff --git ") {
            files.push(Vec::new());
        } else if line.starts_with("@@ ") {
            files.last_mut().unwrap().push(line.to_owned());
        } else if let Some(hunk) = files.last_mut().and_then(|hunks| hunks.last_mut()) {
            hunk.push_str(line);
        }
    }
    files
}

/// Who wrote the lines that a hunk adds: they say it themselves.
fn adders(hunk: &str) -> BTreeSet<u64> {
    let words = hunk.lines().filter_map(|line| line.strip_prefix("+by "));
    words
        .map(|line| line.split(' ').next().unwrap().parse().unwrap())
        .collect()
}

/// A file that no write names went with a directory above it. Where several of those went, one within the
/// other, any of them may be told: the names alone do not say which one had it. Empty where a write names it.
fn moved_above(work: &Work, path: &Path) -> BTreeSet<u64> {
    let mut movers = BTreeSet::new();
    for (_, write) in &work.done.writes {
        let other = match &write.what {
            Wrote::Renamed { from } => Some(from.to_text()),
            Wrote::Exchanged { with } => Some(with.to_text()),
            _ => None,
        };
        let own = write.path.to_text();
        let moves = other.is_some();
        for name in [Some(own), other].into_iter().flatten() {
            if Path::new(&name) == path {
                return BTreeSet::new();
            }
            if moves && path.starts_with(&name) {
                movers.extend(write.exec);
            }
        }
    }
    movers
}

fn check(steps: &[Step]) {
    let (scene, work, set) = work(steps);
    let (found, patch) = attribute(&scene, &set, &work.done);
    let about = || format!("{}\n{found:#?}\n{:#?}", summary(&set), work.done.writes);
    assert!(found.complete, "{}", about());
    assert_eq!(found.files.len(), set.changes.len());
    let patches = hunks(&patch);
    for ((change, file), hunks) in set.changes.iter().zip(&found.files).zip(&patches) {
        let path = PathBuf::from(change.path.to_text());
        let mode = |side: &Option<_>| match side {
            Some(ringfence_model::changes::Side { mode, .. }) => *mode,
            None => FileMode::Regular,
        };
        let truth = match change.kind {
            ChangeKind::Deleted => work.truth.gone.get(&path).copied(),
            _ => {
                let last = work.truth.last.get(&path);
                let changed = mode(&change.old) != mode(&change.new);
                let by_mode = work.truth.mode.get(&path).filter(|_| changed);
                last.max(by_mode).map(|(_, exec)| *exec)
            }
        };
        // What is deleted and there has something else in its place.
        if truth.is_some() || change.kind != ChangeKind::Deleted {
            let above = match change.kind {
                ChangeKind::Deleted => moved_above(&work, &path),
                _ => BTreeSet::new(),
            };
            let one_of = |writer: u64| above.len() > 1 && above.contains(&writer);
            if !file.last_writer.is_some_and(one_of) {
                assert_eq!(file.last_writer, truth, "{path:?}\n{}", about());
            }
        }
        assert_eq!(file.hunks.len(), hunks.len(), "{path:?}\n{patch}");
        for (told, text) in file.hunks.iter().zip(hunks) {
            let by: BTreeSet<u64> = told.by.iter().copied().collect();
            let all: BTreeSet<u64> = file.writers.iter().copied().collect();
            let adders = adders(text);
            let about = || format!("{path:?}\n{text}\n{told:?}\n{}", about());
            assert!(adders.is_subset(&by) && by.is_subset(&all), "{}", about());
            let head = text.lines().next().unwrap();
            let start = format!("@@ -{}", told.old_start);
            assert!(head.starts_with(&start), "{}", about());
        }
    }
    // With what the kernel refused among it, everything is explained all the same.
    let (found, _) = attribute(&scene, &set, &work.asked);
    assert!(found.complete, "{}", about());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases::cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn everything_is_explained_and_by_the_right_one(
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        within(120, move || check(&steps));
    }
}

fn one_step(exec: u64, verb: Verb, one: &'static str, two: &'static str) -> Step {
    Step {
        exec,
        verb,
        one,
        two,
        at: 1,
    }
}

/// Where a file had gone, a directory is made, and goes along with the one above it: the file went
/// by the first.
#[test]
fn a_directory_in_the_place_of_a_file_takes_nothing_away() {
    within(120, || {
        check(&[
            one_step(2, Verb::Rename, "f/e/b", "d/a"),
            one_step(1, Verb::Mkdir, "f/e/b", ""),
            one_step(3, Verb::Unlink, "a", ""),
            one_step(4, Verb::Rename, "f", "a"),
        ]);
    });
}

/// A mode that is set to what it was has no part in a file that came with its directory.
#[test]
fn who_sets_a_mode_again_has_not_brought_the_file() {
    within(120, || {
        check(&[
            one_step(1, Verb::Exchange, "d", "f"),
            one_step(2, Verb::Mode(0o644), "f/a", ""),
        ]);
    });
}

/// Two directories, one within the other, go one after the other: either may be told.
#[test]
fn a_file_that_went_with_one_of_two_directories_is_of_one_of_two() {
    within(120, || {
        check(&[
            one_step(1, Verb::Exchange, "f/e/b", "d/e"),
            one_step(2, Verb::Exchange, "d", "f/e/b"),
        ]);
    });
}

/// A write that is missing is a path that nothing explains.
#[test]
fn a_write_that_was_dropped_is_missed() {
    within(120, || {
        let step = |verb, one, two| one_step(1, verb, one, two);
        let steps = [
            step(Verb::Append, "a", ""),
            step(Verb::Create, "b", ""),
            step(Verb::Unlink, "d/a", ""),
            step(Verb::Mode(0o755), "d/e/a", ""),
            step(Verb::Symlink, "d/b", ""),
            step(Verb::Rename, "f", "g"),
        ];
        let (scene, work, set) = work(&steps);
        assert_eq!(work.done.writes.len(), steps.len());
        assert!(attribute(&scene, &set, &work.done).0.complete);
        let expected = ["a", "b", "d/a", "d/e/a", "d/b", "g/e/b"];
        for (dropped, path) in expected.iter().enumerate() {
            let mut evidence = Evidence::default();
            for (at, (_, write)) in work.done.writes.iter().enumerate() {
                if at != dropped {
                    evidence.take(0, Observed::Write(write.clone()), std::convert::identity);
                }
            }
            let (found, _) = attribute(&scene, &set, &evidence);
            assert!(!found.complete);
            assert_eq!(found.unexplained[0], (*path).into(), "{found:?}");
            // A file that moved is missed under both of its names.
            let count = if *path == "g/e/b" { 2 } else { 1 };
            assert_eq!(found.unexplained_count, count, "{found:?}");
        }
    });
}
