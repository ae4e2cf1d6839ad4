//! `stat`, `mkdir`, `remove` and `move`: the small ones. Links are acted on, not followed.

use std::path::Path;

use ringfence_model::ByteText;
use ringfence_model::tools::{
    MkdirAnswer, MkdirRequest, MoveAnswer, MoveRequest, RemoveAnswer, RemoveRequest, StatRequest,
    ToolEntry, ToolEntryKind,
};
use rustix::fs::{AtFlags, FileType, Mode, RenameFlags, Stat};
use rustix::io::Errno;

use crate::failure::{Hint as _, Outcome, conflict, invalid, refused, refused_io};
use crate::place::{Last, Parents, Place, Root};

#[allow(
    clippy::needless_pass_by_value,
    reason = "each tool takes its request by value: some use it up"
)]
pub fn stat(root: &Root, request: StatRequest) -> Outcome<ToolEntry> {
    let place = root.find(&request.path, Last::Keep, Parents::Existing)?;
    let stat = place.must_stat()?;
    let mut entry = entry(place.shown(), &stat);
    if entry.kind == ToolEntryKind::Link {
        let target = rustix::fs::readlinkat(place.directory(), place.name(), Vec::new())
            .map_err(|errno| refused("read", &place.path, errno))?;
        entry.target = Some(ByteText(target.into_bytes()));
    }
    Ok(entry)
}

/// What the kernel says of a name, as answers give it.
pub fn entry(path: ByteText, stat: &Stat) -> ToolEntry {
    ToolEntry {
        path,
        kind: kind(stat.st_mode),
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o7777,
        modified_seconds: stat.st_mtime,
        target: None,
    }
}

fn kind(mode: u32) -> ToolEntryKind {
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => ToolEntryKind::File,
        FileType::Directory => ToolEntryKind::Directory,
        FileType::Symlink => ToolEntryKind::Link,
        _ => ToolEntryKind::Other,
    }
}

#[allow(
    clippy::needless_pass_by_value,
    reason = "each tool takes its request by value: some use it up"
)]
pub fn mkdir(root: &Root, request: MkdirRequest) -> Outcome<MkdirAnswer> {
    let place = root.find(&request.path, Last::Follow, Parents::Make)?;
    let mode = Mode::from_raw_mode(0o777);
    let created = match rustix::fs::mkdirat(place.directory(), place.name(), mode) {
        Ok(()) => true,
        Err(Errno::EXIST) if kind(place.must_stat()?.st_mode) == ToolEntryKind::Directory => false,
        Err(errno) => return Err(refused("make", &place.path, errno)),
    };
    Ok(MkdirAnswer {
        path: place.shown(),
        created,
    })
}

#[allow(
    clippy::needless_pass_by_value,
    reason = "each tool takes its request by value: some use it up"
)]
pub fn remove(root: &Root, request: RemoveRequest) -> Outcome<RemoveAnswer> {
    let place = root.find(&request.path, Last::Keep, Parents::Existing)?;
    not_the_root(&place, "remove")?;
    let kind = kind(place.must_stat()?.st_mode);
    let (directory, name) = (place.directory(), place.name());
    match (kind, request.recursive) {
        (ToolEntryKind::Directory, true) => {
            // Follows no links on its way down.
            std::fs::remove_dir_all(root.full(&place))
                .map_err(|error| refused_io("remove", &place.path, &error))?;
        }
        (ToolEntryKind::Directory, false) => {
            rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR).map_err(|errno| {
                refused("remove", &place.path, errno).hint("use `recursive` for a full directory")
            })?;
        }
        _ => rustix::fs::unlinkat(directory, name, AtFlags::empty())
            .map_err(|errno| refused("remove", &place.path, errno))?,
    }
    Ok(RemoveAnswer {
        path: place.shown(),
        kind,
    })
}

#[allow(
    clippy::needless_pass_by_value,
    reason = "each tool takes its request by value: some use it up"
)]
pub fn rename(root: &Root, request: MoveRequest) -> Outcome<MoveAnswer> {
    let from = root.find(&request.from, Last::Keep, Parents::Existing)?;
    not_the_root(&from, "move")?;
    from.must_stat()?;
    let to = root.find(&request.to, Last::Keep, Parents::Make)?;
    not_the_root(&to, "replace")?;
    let there = to.stat()?;
    if there.is_some() && !request.overwrite {
        return Err(conflict(format!("`{}` is there already", to.shown())).hint("use `overwrite`"));
    }
    let flags = if request.overwrite {
        RenameFlags::empty()
    } else {
        RenameFlags::NOREPLACE
    };
    let (old, new) = (from.directory(), to.directory());
    let renamed = match rustix::fs::renameat_with(old, from.name(), new, to.name(), flags) {
        // Not every file system knows the flag; that nothing is there was seen above.
        Err(Errno::INVAL | Errno::NOSYS) if !within(&to.path, &from.path) => {
            rustix::fs::renameat(old, from.name(), new, to.name())
        }
        renamed => renamed,
    };
    renamed.map_err(|errno| refused("move", &from.path, errno))?;
    Ok(MoveAnswer {
        from: from.shown(),
        to: to.shown(),
    })
}

fn within(path: &Path, directory: &Path) -> bool {
    path.starts_with(directory)
}

fn not_the_root(place: &Place, operation: &str) -> Outcome<()> {
    if place.is_root() {
        return Err(invalid(format!("the root itself is not to {operation}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use ringfence_model::tools::FailureKind;
    use serde_json::json;

    use super::*;
    use crate::testing::Bench;

    #[test]
    fn a_link_is_looked_at_itself() {
        let bench = Bench::new();
        bench.file("f", "abc");
        symlink("/etc/passwd", bench.path("out")).unwrap();
        let file = bench.call(stat, json!({"path": "f"})).unwrap();
        assert_eq!((file.kind, file.size), (ToolEntryKind::File, 3));
        let link = bench.call(stat, json!({"path": "out"})).unwrap();
        assert_eq!(link.kind, ToolEntryKind::Link);
        assert_eq!(link.target, Some(ByteText::from("/etc/passwd")));
        let root = bench.call(stat, json!({"path": "."})).unwrap();
        assert_eq!(root.kind, ToolEntryKind::Directory);
        let failure = bench.call(stat, json!({"path": "no"})).unwrap_err();
        assert_eq!(failure.kind, FailureKind::NotFound);
    }

    #[test]
    fn directories_are_made_with_their_parents() {
        let bench = Bench::new();
        bench.file("f", "");
        assert!(bench.call(mkdir, json!({"path": "a/b"})).unwrap().created);
        assert!(!bench.call(mkdir, json!({"path": "a/b"})).unwrap().created);
        let failure = bench.call(mkdir, json!({"path": "f"})).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Conflict);
        let failure = bench.call(mkdir, json!({"path": "../x"})).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Denied);
    }

    #[test]
    fn a_removed_link_leaves_what_it_leads_to() {
        let bench = Bench::new();
        bench.file("d/e/f", "");
        fs::write(bench.outside("f"), "theirs").unwrap();
        symlink("../../outside", bench.path("d/out")).unwrap();
        symlink("../outside", bench.path("out")).unwrap();
        let failure = bench.call(remove, json!({"path": "d"})).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Conflict);
        bench
            .call(remove, json!({"path": "d", "recursive": true}))
            .unwrap();
        bench.call(remove, json!({"path": "out"})).unwrap();
        assert!(bench.names(".").is_empty());
        assert!(bench.outside("f").exists());
        for path in [".", "./"] {
            let request = json!({"path": path, "recursive": true});
            let failure = bench.call(remove, request).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Invalid);
        }
    }

    #[test]
    fn a_move_replaces_only_on_request() {
        let bench = Bench::new();
        bench.file("a", "a");
        bench.file("b", "b");
        let failure = bench
            .call(rename, json!({"from": "a", "to": "b"}))
            .unwrap_err();
        assert_eq!(failure.kind, FailureKind::Conflict);
        bench
            .call(rename, json!({"from": "a", "to": "b", "overwrite": true}))
            .unwrap();
        bench
            .call(rename, json!({"from": "b", "to": "n/m/c"}))
            .unwrap();
        assert_eq!(bench.content("n/m/c"), "a");
        for (to, kind) in [
            ("../outside/c", FailureKind::Denied),
            ("n/m/c/d", FailureKind::Invalid),
        ] {
            let failure = bench
                .call(rename, json!({"from": "n/m/c", "to": to}))
                .unwrap_err();
            assert_eq!(failure.kind, kind, "{to}");
        }
        let failure = bench
            .call(rename, json!({"from": "n", "to": "n/x"}))
            .unwrap_err();
        assert_eq!(failure.kind, FailureKind::Invalid);
    }
}
