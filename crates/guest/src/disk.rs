//! What the workspace grew by, where the host cannot see it: on an engine's disk elsewhere.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use ringfence_model::wire::{Bound, DiskWatch, Hello};
use rustix::fs::FileType;

use crate::tree::{self, Manner};

/// BOUND: how often it is looked, and how much of the time that may take.
const EVERY: Duration = Duration::from_millis(100);
const SHARE: u32 = 10;

/// What a tree has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Size {
    bytes: u64,
    inodes: u64,
}

/// Looks again and again.
#[derive(Debug, Default)]
pub struct Disk {
    before: Option<Size>,
    next: Option<Instant>,
}

impl Disk {
    /// What is there before any command.
    pub fn begin(&mut self, hello: &Hello) {
        self.before = hello
            .disk
            .is_some()
            .then(|| measure(Path::new(&hello.workspace)));
    }

    /// The bound that is met, and by how much.
    pub fn look(&mut self, hello: &Hello) -> Option<(Bound, String)> {
        let (watch, before) = (hello.disk.as_ref()?, self.before?);
        let began = Instant::now();
        if self.next.is_some_and(|next| began < next) {
            return None;
        }
        let now = measure(Path::new(&hello.workspace));
        self.next = Some(Instant::now() + EVERY.max(began.elapsed() * SHARE));
        over(watch, before, now).map(|detail| (Bound::Disk, detail))
    }
}

fn over(watch: &DiskWatch, before: Size, now: Size) -> Option<String> {
    let bytes = now.bytes.saturating_sub(before.bytes);
    let inodes = now.inodes.saturating_sub(before.inodes);
    if let Some(most) = watch.bytes.filter(|most| bytes > *most) {
        return Some(format!("{bytes} bytes more, {most} allowed"));
    }
    let most = watch.inodes.filter(|most| inodes > *most)?;
    Some(format!("{inodes} files more, {most} allowed"))
}

/// HOSTILE: the agent changes it meanwhile. What is too deep to be looked at is as good as full.
fn measure(root: &Path) -> Size {
    let mut size = Size::default();
    let mut linked = BTreeSet::new();
    let walked = tree::walk(root, Manner::Moving, &mut |entry| {
        let stat = &entry.stat;
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if !is_directory && stat.st_nlink > 1 && !linked.insert((stat.st_dev, stat.st_ino)) {
            return Ok(());
        }
        size.bytes += stat.st_blocks as u64 * 512;
        size.inodes += 1;
        if entry.depth + 2 >= tree::DEPTH {
            size.bytes = u64::MAX / 2;
        }
        Ok(())
    });
    // A root that is gone has nothing in it.
    let _ = walked;
    size
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    /// No path leads to what is deeper than a path can be long.
    #[test]
    fn what_no_path_leads_to_is_counted() {
        use rustix::fs::{Mode, OFlags};
        let place = tempfile::tempdir().expect("a directory");
        let before = measure(place.path());
        let flags = tree::OPEN | OFlags::DIRECTORY;
        let mut deep = rustix::fs::open(place.path(), flags, Mode::empty()).expect("opened");
        let name = [b'n'; 200];
        for _ in 0..24 {
            rustix::fs::mkdirat(&deep, &name[..], Mode::RWXU).expect("made");
            deep = rustix::fs::openat(&deep, &name[..], flags, Mode::empty()).expect("opened");
        }
        let flags = tree::OPEN | OFlags::WRONLY | OFlags::CREATE;
        let file = rustix::fs::openat(&deep, "x", flags, Mode::RUSR).expect("made");
        rustix::io::write(&file, &[1; 900_000]).expect("written");
        let grown = measure(place.path()).bytes - before.bytes;
        assert!(grown > 800_000, "{grown}");
        let removed = std::process::Command::new("rm")
            .arg("-rf")
            .arg(place.path().join("n".repeat(200)))
            .status();
        assert!(removed.expect("rm").success());
    }

    #[test]
    fn growth_is_counted_once_and_everywhere() {
        let place = tempfile::tempdir().expect("a directory");
        let root = place.path();
        fs::write(root.join("before"), [1; 9000]).expect("written");
        let before = measure(root);
        assert_eq!(before.inodes, 1);
        fs::create_dir_all(root.join("a/b")).expect("made");
        fs::write(root.join("a/b/new"), [1; 70_000]).expect("written");
        fs::hard_link(root.join("a/b/new"), root.join("same")).expect("linked");
        std::os::unix::fs::symlink("/usr", root.join("link")).expect("linked");
        fs::set_permissions(root.join("a"), fs::Permissions::from_mode(0o300)).expect("closed");
        let now = measure(root);
        let mode = fs::metadata(root.join("a")).expect("there").mode() & 0o777;
        assert_eq!(mode, 0o300);
        assert_eq!(now.inodes - before.inodes, 4);
        let grown = now.bytes - before.bytes;
        assert!((70_000..140_000).contains(&grown), "{grown}");
        let watch = |bytes, inodes| DiskWatch { bytes, inodes };
        for (watch, is_over) in [
            (watch(None, None), false),
            (watch(Some(60_000), None), true),
            (watch(Some(200_000), None), false),
            (watch(None, Some(3)), true),
            (watch(None, Some(4)), false),
        ] {
            assert_eq!(over(&watch, before, now).is_some(), is_over, "{watch:?}");
        }
    }
}
