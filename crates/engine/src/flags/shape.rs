//! The shape of a change: binaries, size, links, modes.

use ringfence_model::ByteText;
use ringfence_model::changes::{Change, ChangeKind, FileMode};
use ringfence_model::flag::{FlagKind, Severity};

use super::{Facts, Found, path, path_with, paths};

/// BOUND: more than a person reads in one sitting.
const MANY_FILES: usize = 200;
const MANY_LINES: u64 = 5000;
/// BOUND: a file that is large for a repository.
const LARGE_BYTES: u64 = 5 << 20;

/// Binary files that run nothing by themselves.
const MEDIA: &[&str] = &[
    "png", "jpg", "jpeg", "gif", "ico", "webp", "avif", "bmp", "tiff", "icns", "woff", "woff2",
    "ttf", "otf", "eot", "mp3", "ogg", "wav", "flac", "mp4", "webm", "mov", "pdf", "psd",
];

pub(super) fn look(facts: &Facts<'_>, found: &mut Found) {
    size(facts, found);
    for change in facts.changes {
        let Some(new) = &change.new else { continue };
        if change.binary {
            binary(change, found);
        }
        if new.size > LARGE_BYTES {
            found.add(
                FlagKind::OversizedChange,
                Severity::Info,
                format!("a file of more than {} MiB", LARGE_BYTES >> 20),
                path_with(&change.path, format!("{} bytes", new.size)),
            );
        }
        match new.mode {
            FileMode::Symlink => {
                if let Some(target) = facts.gathered.links.get(&change.path) {
                    link(facts, &change.path, target, found);
                }
            }
            FileMode::Executable => match &change.old {
                Some(old) if old.mode == FileMode::Executable => {}
                Some(_) => found.add(
                    FlagKind::MadeExecutable,
                    Severity::Warning,
                    "a file that was there became executable",
                    path(&change.path),
                ),
                None => found.add(
                    FlagKind::MadeExecutable,
                    Severity::Info,
                    "a new file is executable",
                    path(&change.path),
                ),
            },
            FileMode::Regular => {}
        }
    }
}

fn size(facts: &Facts<'_>, found: &mut Found) {
    let files = facts.changes.len();
    if files > MANY_FILES {
        found.add(
            FlagKind::OversizedChange,
            Severity::Warning,
            format!("more than {MANY_FILES} files change: {files}"),
            None,
        );
    }
    let lines = facts.insertions + facts.deletions;
    if lines > MANY_LINES {
        found.add(
            FlagKind::OversizedChange,
            Severity::Warning,
            format!("more than {MANY_LINES} lines change: {lines}"),
            None,
        );
    }
}

fn binary(change: &Change, found: &mut Found) {
    let media = MEDIA.contains(&paths::extension(change.path.as_bytes()).as_str());
    let severity = if media {
        Severity::Info
    } else {
        Severity::Warning
    };
    let message = match (&change.kind, media) {
        (ChangeKind::Added, true) => "a picture, font, sound or document was added",
        (_, true) => "a picture, font, sound or document changed",
        (ChangeKind::Added, false) => "a binary file was added; its content was not looked at",
        (_, false) => "a binary file changed; its content was not looked at",
    };
    found.add(
        FlagKind::BinaryChanged,
        severity,
        message,
        path(&change.path),
    );
}

/// HOSTILE: a link is text here and is never followed.
fn link(facts: &Facts<'_>, from: &ByteText, target: &[u8], found: &mut Found) {
    let shown = ByteText::from(&target[..target.len().min(200)]);
    let mut add = |severity, message: &str| {
        let evidence = path_with(from, format!("leads to {shown}"));
        found.add(FlagKind::LinkLeavesTree, severity, message, evidence);
    };
    if target.starts_with(b"/") {
        if facts.in_repository(target).is_some() {
            add(
                Severity::Warning,
                "a link is absolute, and leads nowhere outside the sandbox",
            );
        } else {
            add(
                Severity::Serious,
                "a link leads out of the tree, to an absolute path",
            );
        }
        return;
    }
    let mut depth = from.as_bytes().iter().filter(|b| **b == b'/').count();
    for component in target.split(|&b| b == b'/') {
        match component {
            b"" | b"." => {}
            b".." if depth == 0 => {
                add(Severity::Serious, "a link leads out of the tree");
                return;
            }
            b".." => depth -= 1,
            name if name.eq_ignore_ascii_case(b".git") => {
                add(Severity::Serious, "a link leads into the directory of git");
                return;
            }
            _ => depth += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::World;
    use super::*;

    #[test]
    fn links_that_leave_are_told() {
        for (from, target, expected) in [
            ("l", "/etc/passwd", Some("serious link_leaves_tree")),
            ("l", "../x", Some("serious link_leaves_tree")),
            ("a/l", "../../x", Some("serious link_leaves_tree")),
            ("a/l", "b/../../../x", Some("serious link_leaves_tree")),
            ("l", ".git/config", Some("serious link_leaves_tree")),
            ("l", "/workspace/a", Some("warning link_leaves_tree")),
            ("a/l", "../x", None),
            ("l", "a/../b", None),
            ("l", "...", None),
        ] {
            let mut world = World::of(&[(from, "added")]);
            world.changes[0].new.as_mut().unwrap().mode = FileMode::Symlink;
            world
                .gathered
                .links
                .insert(from.into(), target.as_bytes().to_vec());
            assert_eq!(
                world.kinds(&[]),
                expected.into_iter().collect::<Vec<_>>(),
                "{target}"
            );
        }
    }

    #[test]
    fn binaries_modes_and_sizes_are_told() {
        let one = |path: &str, how: &str, change: fn(&mut Change)| {
            let mut world = World::of(&[(path, how)]);
            change(&mut world.changes[0]);
            world.kinds(&[])
        };
        let executable = |c: &mut Change| c.new.as_mut().unwrap().mode = FileMode::Executable;
        assert_eq!(
            one("a.bin", "added", |c| c.binary = true),
            ["warning binary_changed"]
        );
        assert_eq!(
            one("a.png", "added", |c| c.binary = true),
            ["info binary_changed"]
        );
        assert_eq!(one("a.bin", "deleted", |c| c.binary = true), [""; 0]);
        assert_eq!(
            one("run", "modified", executable),
            ["warning made_executable"]
        );
        assert_eq!(one("run", "added", executable), ["info made_executable"]);
        assert_eq!(one("run", "modified", |_| {}), [""; 0]);
        let large = |c: &mut Change| c.new.as_mut().unwrap().size = LARGE_BYTES + 1;
        assert_eq!(one("a", "added", large), ["info oversized_change"]);
        let world = World {
            lines: (MANY_LINES, 1),
            ..World::of(&[("a", "modified")])
        };
        assert_eq!(world.kinds(&[]), ["warning oversized_change"]);
        let names: Vec<String> = (0..=MANY_FILES).map(|n| format!("f{n}")).collect();
        let changes: Vec<(&str, &str)> = names.iter().map(|n| (n.as_str(), "modified")).collect();
        assert_eq!(World::of(&changes).kinds(&[]), ["warning oversized_change"]);
        assert_eq!(World::of(&changes[1..]).kinds(&[]), [""; 0]);
    }
}
