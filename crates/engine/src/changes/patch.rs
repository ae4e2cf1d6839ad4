//! A change set written as git writes a patch.

use std::io::{self, BufWriter, Write};

use ringfence_model::ByteText;
use ringfence_model::changes::{Change, ChangeKind, Side};

use super::binary;
use super::hunks::{self, Comparison, Effort, Hunk};
use super::rename;
use super::source::{self, Tree};
use super::{ChangesError, PatchStats, Sources, prefixed};

/// Is shown each pair of texts that a patch compares, with the hunks that it has for them.
pub(crate) trait Texts {
    /// `change` is the place in the list of changes.
    fn compared(&mut self, change: usize, old: &[u8], new: &[u8], hunks: &[Hunk]);
}

/// Writes all changes, whose paths have the folder's prefix.
pub(super) fn write(
    sources: &Sources,
    changes: &[Change],
    out: &mut dyn Write,
    texts: &mut dyn Texts,
) -> Result<PatchStats, ChangesError> {
    let mut stats = PatchStats::default();
    let mut out = Counted {
        out: BufWriter::with_capacity(64 << 10, out),
        bytes: 0,
    };
    let mut effort = Effort::default();
    for (index, change) in changes.iter().enumerate() {
        let change = in_folder(sources, change)?;
        let mut show = |old: &[u8], new: &[u8], hunks: &[Hunk]| {
            texts.compared(index, old, new, hunks);
        };
        let lines = write_change(sources, &change, &mut effort, &mut out, &mut show)?;
        stats.files += 1;
        stats.insertions += lines.insertions;
        stats.deletions += lines.deletions;
    }
    out.flush().map_err(ChangesError::WritePatch)?;
    stats.bytes = out.bytes;
    Ok(stats)
}

/// Who is shown the texts of a change and their hunks.
pub(super) type Show<'a> = &'a mut dyn FnMut(&[u8], &[u8], &[Hunk]);

/// Writes one change, whose paths are relative to the folder.
pub(super) fn write_change(
    sources: &Sources,
    change: &Change,
    effort: &mut Effort,
    out: &mut dyn Write,
    show: Show<'_>,
) -> Result<hunks::Lines, ChangesError> {
    write_header(sources, change, out).map_err(ChangesError::WritePatch)?;
    let (old, new) = (change.old.as_ref(), change.new.as_ref());
    let same = matches!((old, new), (Some(old), Some(new)) if old.oid == new.oid);
    let old_path = old_path(change).as_bytes();
    let path = change.path.as_bytes();
    if same {
        write_rename(sources, change, 100, out).map_err(ChangesError::WritePatch)?;
        check(sources, Tree::Base, old_path, old)?;
        check(sources, Tree::Layer, path, new)?;
        return Ok(hunks::Lines::default());
    }
    if change.binary {
        write_rename(sources, change, rename::LEAST_PERCENT, out)
            .map_err(ChangesError::WritePatch)?;
        write_index(sources, change, out).map_err(ChangesError::WritePatch)?;
        write_line(out, b"GIT binary patch")?;
        write_literal(sources, Tree::Layer, path, new, out)?;
        write_literal(sources, Tree::Base, old_path, old, out)?;
        return Ok(hunks::Lines::default());
    }
    let old_bytes = side_bytes(sources, Tree::Base, old_path, old)?;
    let new_bytes = side_bytes(sources, Tree::Layer, path, new)?;
    let sides = (old_bytes.as_slice(), new_bytes.as_slice());
    let compared = Comparison::new(sides.0, sides.1, effort);
    show(sides.0, sides.1, &compared.hunks);
    write_text(sources, change, sides, &compared, out).map_err(ChangesError::WritePatch)
}

fn write_text(
    sources: &Sources,
    change: &Change,
    (old, new): (&[u8], &[u8]),
    compared: &Comparison<'_>,
    out: &mut dyn Write,
) -> io::Result<hunks::Lines> {
    if matches!(change.kind, ChangeKind::Renamed { .. }) {
        write_rename(sources, change, rename::similarity(old, new).min(99), out)?;
    }
    write_index(sources, change, out)?;
    if old.is_empty() && new.is_empty() {
        return Ok(hunks::Lines::default());
    }
    write_name_line(
        b"--- ",
        b"a/",
        sources,
        change.old.as_ref(),
        old_path(change),
        out,
    )?;
    write_name_line(
        b"+++ ",
        b"b/",
        sources,
        change.new.as_ref(),
        &change.path,
        out,
    )?;
    compared.write(out)
}

fn write_header(sources: &Sources, change: &Change, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(b"diff --git ")?;
    out.write_all(&name(b"a/", sources, old_path(change)))?;
    out.write_all(b" ")?;
    out.write_all(&name(b"b/", sources, &change.path))?;
    out.write_all(b"\n")?;
    match (&change.old, &change.new) {
        (None, Some(new)) => writeln!(out, "new file mode {}", new.mode.octal()),
        (Some(old), None) => writeln!(out, "deleted file mode {}", old.mode.octal()),
        (Some(old), Some(new)) if old.mode != new.mode => {
            writeln!(
                out,
                "old mode {}\nnew mode {}",
                old.mode.octal(),
                new.mode.octal()
            )
        }
        _ => Ok(()),
    }
}

fn write_rename(
    sources: &Sources,
    change: &Change,
    percent: u8,
    out: &mut dyn Write,
) -> io::Result<()> {
    let ChangeKind::Renamed { from } = &change.kind else {
        return Ok(());
    };
    write!(out, "similarity index {percent}%\nrename from ")?;
    out.write_all(&name(b"", sources, from))?;
    out.write_all(b"\nrename to ")?;
    out.write_all(&name(b"", sources, &change.path))?;
    out.write_all(b"\n")
}

fn write_index(sources: &Sources, change: &Change, out: &mut dyn Write) -> io::Result<()> {
    let zero = super::oid::zero(sources.hash);
    let oid = |side: &Option<Side>| side.as_ref().map_or(zero.clone(), |side| side.oid.clone());
    write!(out, "index {}..{}", oid(&change.old), oid(&change.new))?;
    match (&change.old, &change.new) {
        (Some(old), Some(new)) if old.mode == new.mode => writeln!(out, " {}", new.mode.octal()),
        _ => out.write_all(b"\n"),
    }
}

fn write_name_line(
    sign: &[u8],
    side_prefix: &[u8],
    sources: &Sources,
    side: Option<&Side>,
    path: &ByteText,
    out: &mut dyn Write,
) -> io::Result<()> {
    out.write_all(sign)?;
    if side.is_none() {
        return out.write_all(b"/dev/null\n");
    }
    let name = name(side_prefix, sources, path);
    out.write_all(&name)?;
    // So that a reader does not take what follows the space for a date.
    out.write_all(if name.contains(&b' ') { b"\t\n" } else { b"\n" })
}

fn write_line(out: &mut dyn Write, line: &[u8]) -> Result<(), ChangesError> {
    out.write_all(line)
        .and_then(|()| out.write_all(b"\n"))
        .map_err(ChangesError::WritePatch)
}

fn write_literal(
    sources: &Sources,
    tree: Tree,
    path: &[u8],
    side: Option<&Side>,
    out: &mut dyn Write,
) -> Result<(), ChangesError> {
    let size = side.map_or(0, |side| side.size);
    binary::write_literal(size, out, |to| match side {
        Some(side) => source::pass(sources, tree, path, side, to),
        None => Ok(()),
    })
}

fn side_bytes(
    sources: &Sources,
    tree: Tree,
    path: &[u8],
    side: Option<&Side>,
) -> Result<Vec<u8>, ChangesError> {
    side.map_or(Ok(Vec::new()), |side| {
        source::bytes(sources, tree, path, side)
    })
}

fn check(
    sources: &Sources,
    tree: Tree,
    path: &[u8],
    side: Option<&Side>,
) -> Result<(), ChangesError> {
    let Some(side) = side else {
        return Ok(());
    };
    source::pass(sources, tree, path, side, &mut |_| Ok(()))
}

fn old_path(change: &Change) -> &ByteText {
    match &change.kind {
        ChangeKind::Renamed { from } => from,
        _ => &change.path,
    }
}

/// A name as git writes it: quoted only where it must be.
fn name(side_prefix: &[u8], sources: &Sources, path: &ByteText) -> Vec<u8> {
    let path = prefixed(&sources.prefix, path.as_bytes());
    quoted(side_prefix, path.as_bytes())
}

/// A name of a patch: `a/` or `b/`, and the path.
pub(crate) fn quoted(side_prefix: &[u8], path: &[u8]) -> Vec<u8> {
    let name = [side_prefix, path].concat();
    let plain = |byte: &u8| matches!(byte, 0x20..=0x7e) && *byte != b'"' && *byte != b'\\';
    if name.iter().all(plain) {
        name
    } else {
        ringfence_model::bytes::quote(&name).into_bytes()
    }
}

/// The change with its paths relative to the folder.
fn in_folder(sources: &Sources, change: &Change) -> Result<Change, ChangesError> {
    let strip = |path: &ByteText| {
        let inside = sources.in_folder(path.as_bytes());
        inside
            .map(ByteText::from)
            .ok_or_else(|| ChangesError::OutsideFolder { path: path.clone() })
    };
    let mut change = change.clone();
    change.path = strip(&change.path)?;
    if let ChangeKind::Renamed { from } = &mut change.kind {
        *from = strip(from)?;
    }
    Ok(change)
}

/// Counts what passes.
struct Counted<W> {
    out: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
