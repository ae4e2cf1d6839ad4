//! What there is to read of a run, as blocks: summary, files, hunks. Each becomes rows for a width
//! when it is looked at, so that a large patch costs no more than what is on the screen.

use std::collections::BTreeSet;

use ringfence_engine::patch::{Entry, Fate, Patch, Shown, ShownHunk};
use ringfence_engine::review::Opened;
use ringfence_model::changes::Change;

use super::glyphs::{Cell, cells, wrap, wrap_words};
use super::wide;
use crate::commands::blame::page;

/// BOUND: lines of a hunk, and columns of a line, that are shown before they are asked for.
const LINES: usize = 200;
const COLUMNS: usize = 2000;
/// BOUND: lines on who made a hunk that stand below it; `b` shows all.
const WRITERS: usize = 2;
/// From here on, both sides of a hunk stand beside each other.
pub const WIDE: usize = 160;

/// How a row looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Plain,
    Title,
    Faint,
    Removed,
    Added,
    Hunk,
    File,
    Serious,
    Warning,
}

/// A piece of a row.
#[derive(Clone, Debug)]
pub struct Piece {
    pub style: Style,
    pub cells: Vec<Cell>,
}

/// A row of the screen.
#[derive(Clone, Debug, Default)]
pub struct Row(pub Vec<Piece>);

impl Row {
    pub fn of(style: Style, cells: impl Into<Vec<Cell>>) -> Self {
        let cells = cells.into();
        Self(vec![Piece { style, cells }])
    }

    /// What can be searched.
    pub fn text(&self) -> String {
        let cells = self.0.iter().flat_map(|piece| &piece.cells);
        cells.map(|cell| cell.c).collect()
    }
}

/// Something to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Block {
    Summary,
    /// A file by its number in the patch.
    File(usize),
    /// A hunk of a file.
    Hunk(usize, usize),
    End,
}

/// Whether long hunks are shown whole.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Folding {
    AsItIs,
    Nothing,
}

/// All of it.
pub struct Page<'a> {
    opened: &'a Opened,
    patch: &'a Patch<'a>,
    pub blocks: Vec<Block>,
    standing: Vec<String>,
    /// Hunks that are shown whole though they are long.
    unfolded: BTreeSet<(usize, usize)>,
    /// Long hunks.
    long: BTreeSet<(usize, usize)>,
}

impl<'a> Page<'a> {
    pub fn new(opened: &'a Opened, patch: &'a Patch<'a>, standing: Vec<String>) -> Self {
        let mut blocks = vec![Block::Summary];
        let mut long = BTreeSet::new();
        for (file, entry) in patch.entries.iter().enumerate() {
            blocks.push(Block::File(file));
            if let Shown::Text(hunks) = entry.shown() {
                for (at, hunk) in hunks.iter().enumerate() {
                    blocks.push(Block::Hunk(file, at));
                    let longest = hunk.lines().map(|(_, text)| text.len()).max();
                    if hunk.lines().count() > LINES || longest > Some(COLUMNS) {
                        long.insert((file, at));
                    }
                }
            }
        }
        blocks.push(Block::End);
        Self {
            opened,
            patch,
            blocks,
            standing,
            unfolded: BTreeSet::new(),
            long,
        }
    }

    /// Long hunks of which only the beginning was ever shown.
    pub fn folded(&self) -> usize {
        self.long.difference(&self.unfolded).count()
    }

    /// Whether only the beginning of a hunk is shown.
    pub fn is_folded(&self, block: Block) -> bool {
        match block {
            Block::Hunk(file, hunk) => {
                let at = (file, hunk);
                self.long.contains(&at) && !self.unfolded.contains(&at)
            }
            Block::Summary | Block::File(_) | Block::End => false,
        }
    }

    /// How many hunks there are.
    pub fn hunks(&self) -> usize {
        let hunks = self.blocks.iter();
        hunks
            .filter(|block| matches!(block, Block::Hunk(..)))
            .count()
    }

    /// Shows a long hunk whole.
    pub fn unfold(&mut self, block: Block) {
        if let Block::Hunk(file, hunk) = block {
            self.unfolded.insert((file, hunk));
        }
    }

    pub fn unfold_all(&mut self) {
        self.unfolded = self.long.clone();
    }

    /// The rows of a block.
    pub fn rows(&self, block: Block, columns: usize) -> Vec<Row> {
        self.rows_of(block, columns, Folding::AsItIs)
    }

    /// All rows of a block, however wide.
    pub fn whole(&self, block: Block) -> Vec<Row> {
        self.rows_of(block, usize::MAX, Folding::Nothing)
    }

    fn rows_of(&self, block: Block, columns: usize, folding: Folding) -> Vec<Row> {
        match block {
            Block::Summary => self.summary(columns),
            Block::File(file) => self.file(file, columns),
            Block::Hunk(file, hunk) => self.hunk(file, hunk, columns, folding),
            Block::End => vec![Row::of(Style::Faint, cells("── end ──".as_bytes()))],
        }
    }

    /// The name of the file that a block belongs to.
    pub fn name(&self, block: Block) -> Option<String> {
        match block {
            Block::File(file) | Block::Hunk(file, _) => Some(page::path(self.change(file))),
            Block::Summary | Block::End => None,
        }
    }

    /// Who made a hunk or a file.
    pub fn writers(&self, block: Block) -> Vec<String> {
        let Some(blame) = &self.opened.blame else {
            return vec!["this bundle does not say who made what".to_owned()];
        };
        match block {
            Block::File(file) => page::of_hunk(blame, file, None),
            Block::Hunk(file, hunk) => page::of_hunk(blame, file, Some(hunk)),
            Block::Summary | Block::End => vec!["go to a hunk first: `n`".to_owned()],
        }
    }

    fn change(&self, file: usize) -> &Change {
        self.patch.entries[file].change
    }

    fn summary(&self, columns: usize) -> Vec<Row> {
        let mut rows = Vec::new();
        for line in &self.standing {
            rows.extend(plain(Style::Warning, line, columns));
        }
        rows.push(Row::default());
        // Where to look next is here.
        let summary = self.opened.result.summary();
        let end = summary
            .find("\n## Where to look next")
            .unwrap_or(summary.len());
        for line in summary[..end].lines() {
            let style = match line {
                line if line.starts_with('#') => Style::Title,
                line if line.starts_with("- **serious**") => Style::Serious,
                line if line.starts_with("- **warning**") => Style::Warning,
                line if line.starts_with("- **the evidence") => Style::Serious,
                _ => Style::Plain,
            };
            rows.extend(plain(style, line, columns));
        }
        rows.push(Row::default());
        rows
    }

    fn file(&self, file: usize, columns: usize) -> Vec<Row> {
        let entry = &self.patch.entries[file];
        let change = entry.change;
        let counts = self.opened.result.line_counts.get(file);
        let counts = counts.map(|(added, removed)| format!("  +{added} -{removed}"));
        let head = format!(
            "━━ {} {}{}",
            page::letter(change),
            page::path(change),
            counts.unwrap_or_default()
        );
        let mut rows = plain(Style::File, &head, columns);
        let mode = |side: &Option<ringfence_model::changes::Side>| {
            side.as_ref().map(|side| side.mode.octal())
        };
        match (mode(&change.old), mode(&change.new)) {
            (Some(old), Some(new)) if old != new => {
                let line = format!("   mode {old} → {new}");
                rows.extend(plain(Style::Warning, &line, columns));
            }
            (None, Some(new)) if new != "100644" => {
                rows.extend(plain(Style::Warning, &format!("   mode {new}"), columns));
            }
            _ => {}
        }
        if let Some(what) = without_lines(entry) {
            rows.extend(plain(Style::Plain, &what, columns));
            self.made_by(Block::File(file), columns, &mut rows);
        }
        rows
    }

    fn hunk(&self, file: usize, at: usize, columns: usize, folding: Folding) -> Vec<Row> {
        let entry = &self.patch.entries[file];
        let Shown::Text(hunks) = entry.shown() else {
            return Vec::new();
        };
        let Some(hunk) = hunks.get(at) else {
            return Vec::new();
        };
        let (old, new) = hunk.counts();
        let (from, to) = (hunk.old_start, hunk.new_start);
        let head = format!("@@ -{from},{old} +{to},{new} @@");
        let mut rows = plain(Style::Hunk, &head, columns);
        let is_long = folding == Folding::AsItIs && self.is_folded(Block::Hunk(file, at));
        let most = if is_long {
            (LINES / 2, COLUMNS / 4)
        } else {
            (usize::MAX, usize::MAX)
        };
        let (lines, folded) = lines(hunk, most);
        // Without a width it is a document, for programs and pagers as well.
        if (WIDE..usize::MAX).contains(&columns) {
            wide::rows(&lines, columns, &mut rows)
        } else {
            narrow(&lines, columns, &mut rows)
        }
        if let Some(folded) = folded {
            let line = format!("┄┄ folded: {folded}; `u` shows all of it");
            rows.extend(plain(Style::Warning, &line, columns));
        }
        self.made_by(Block::Hunk(file, at), columns, &mut rows);
        rows
    }

    fn made_by(&self, block: Block, columns: usize, rows: &mut Vec<Row>) {
        if self.opened.blame.is_some() {
            for line in self.writers(block).iter().take(WRITERS) {
                rows.extend(plain(Style::Faint, line, columns));
            }
        }
        rows.push(Row::default());
    }
}

/// What a change without lines is.
fn without_lines(entry: &Entry<'_>) -> Option<String> {
    match entry.shown() {
        Shown::Text(_) => None,
        Shown::Nothing => Some("   no lines: a mode, a name or an empty file".to_owned()),
        Shown::Binary { old, new } => Some(format!(
            "   binary: {old} bytes before, {new} after; nothing of it can be shown"
        )),
    }
}

/// Text of ours, in rows. What the sandbox chose of it is harmless already, or becomes so here.
pub fn plain(style: Style, line: &str, columns: usize) -> Vec<Row> {
    let all = cells(line.as_bytes());
    let whole: usize = all.iter().map(|cell| cell.columns).sum();
    if whole <= columns {
        return vec![Row::of(style, all)];
    }
    // HOSTILE: a name that is longer than a row does not begin one that looks like ours.
    let rows = wrap_words(&all, columns.saturating_sub(2));
    let mark = |at: usize| match at {
        0 => Vec::new(),
        _ => cells("↪ ".as_bytes()),
    };
    let rows = rows.into_iter().enumerate();
    rows.map(|(at, row)| Row::of(style, [&mark(at), row].concat()))
        .collect()
}

/// A line of a hunk.
pub struct Line {
    pub fate: Fate,
    pub old: u64,
    pub new: u64,
    pub cells: Vec<Cell>,
}

/// The lines of a hunk within bounds, and what was left out.
fn lines(hunk: &ShownHunk<'_>, (most, columns): (usize, usize)) -> (Vec<Line>, Option<String>) {
    let (mut old, mut new) = (hunk.old_start, hunk.new_start);
    let mut out = Vec::new();
    let (mut left_out, mut cut) = (0u64, 0u64);
    for (fate, text) in hunk.lines() {
        if out.len() >= most {
            left_out += 1;
            continue;
        }
        let (body, ends) = match text.strip_suffix(b"\n") {
            Some(body) => (body, true),
            None => (text, false),
        };
        let mut shown = cells(&body[..body.len().min(columns.saturating_mul(4))]);
        if shown.len() > columns || body.len() > columns.saturating_mul(4) {
            cut += 1;
            shown.truncate(columns);
            shown.extend(note(&format!("… {} bytes in all", body.len())));
        }
        if !ends {
            shown.extend(note(" (no newline at the end of the file)"));
        }
        out.push(Line {
            fate,
            old,
            new,
            cells: shown,
        });
        old += u64::from(fate != Fate::Comes);
        new += u64::from(fate != Fate::Goes);
    }
    let folded = (left_out + cut > 0).then(|| match (left_out, cut) {
        (0, cut) => format!("the ends of {cut} long lines"),
        (lines, 0) => format!("{lines} more lines"),
        (lines, cut) => format!("{lines} more lines, and the ends of {cut} long lines"),
    });
    (out, folded)
}

fn note(text: &str) -> Vec<Cell> {
    let odd = |cell: Cell| Cell { odd: true, ..cell };
    cells(text.as_bytes()).into_iter().map(odd).collect()
}

pub fn style(fate: Fate) -> Style {
    match fate {
        Fate::Stays => Style::Plain,
        Fate::Goes => Style::Removed,
        Fate::Comes => Style::Added,
    }
}

fn narrow(lines: &[Line], columns: usize, rows: &mut Vec<Row>) {
    for line in lines {
        let sign = match line.fate {
            Fate::Stays => ' ',
            Fate::Goes => '-',
            Fate::Comes => '+',
        };
        let style = style(line.fate);
        for (at, part) in wrap(&line.cells, columns.saturating_sub(1))
            .iter()
            .enumerate()
        {
            // A sign is before each line, so that none can be taken for one of ours.
            let c = if at == 0 { sign } else { '↪' };
            let mut whole = vec![Cell {
                c,
                columns: 1,
                odd: false,
            }];
            whole.extend_from_slice(part);
            rows.push(Row::of(style, whole));
        }
    }
}
