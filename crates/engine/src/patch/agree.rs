//! Whether the headers of a patch say what the result of a run says.

use ringfence_model::ByteText;
use ringfence_model::changes::{Change, ChangeKind, FileMode, Side};

use super::read::{Body, FilePatch, Kind};

/// Holds the header of one path against the change that it stands for.
pub(super) fn check(file: &FilePatch<'_>, change: &Change) -> Result<(), String> {
    match disagreement(file, change) {
        None => Ok(()),
        Some(what) => {
            let path = ByteText::from(&file.path[..]);
            Err(format!("{what} of `{path}` is not what the result says"))
        }
    }
}

fn disagreement(file: &FilePatch<'_>, change: &Change) -> Option<&'static str> {
    let (old, new) = (change.old.as_ref(), change.new.as_ref());
    let (kind, from) = match &change.kind {
        ChangeKind::Added => (Kind::Added, &change.path),
        ChangeKind::Deleted => (Kind::Deleted, &change.path),
        ChangeKind::Modified => (Kind::Modified, &change.path),
        ChangeKind::Renamed { from } => (Kind::Renamed, from),
    };
    if file.path != change.path.as_bytes() || file.old_path != from.as_bytes() {
        return Some("the path");
    }
    let sides = (old.is_some(), new.is_some());
    let expected = (kind != Kind::Added, kind != Kind::Deleted);
    if file.kind != kind || sides != expected {
        return Some("the kind");
    }
    let mode = |side: Option<&Side>| side.map(|side| side.mode);
    let stays = old.is_some() && mode(old) == mode(new);
    let modes = if stays {
        (None, None)
    } else {
        (mode(old), mode(new))
    };
    if file.modes != modes {
        return Some("the mode");
    }
    // What becomes a link, or was one, goes and comes.
    let is_link = |side: Option<&Side>| mode(side) == Some(FileMode::Symlink);
    if old.is_some() && new.is_some() && is_link(old) != is_link(new) {
        return Some("the mode");
    }
    let same = old.is_some() && old.map(|side| &side.oid) == new.map(|side| &side.oid);
    let Some(index) = &file.index else {
        let sizes = old.map(|side| side.size) == new.map(|side| side.size);
        let nothing = file.body == Body::None && same && sizes;
        return (!nothing).then_some("the content");
    };
    let is = |side: Option<&Side>, oid: &str| match side {
        Some(side) => side.oid == oid,
        None => !oid.is_empty() && oid.bytes().all(|b| b == b'0'),
    };
    let index_mode: Option<FileMode> = mode(new).filter(|_| stays);
    if same || !is(old, index.old) || !is(new, index.new) || index.mode != index_mode {
        return Some("the content");
    }
    let size = |side: Option<&Side>| side.map_or(0, |side| side.size);
    let agrees = match &file.body {
        Body::None => !change.binary && size(old) == 0 && size(new) == 0,
        Body::Text(_) => !change.binary,
        Body::Binary { new: a, old: b } => {
            change.binary && a.size == size(new) && b.size == size(old)
        }
    };
    (!agrees).then_some("the content")
}
