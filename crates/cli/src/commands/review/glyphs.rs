//! Text of the sandbox as cells of a screen: each takes one or two columns and is seen for what it
//! is.
//!
//! HOSTILE: every byte. What a terminal would obey, hide, reorder or draw over something else is
//! shown as an escape, and so are bytes that are no text. So every line of a patch has one look, and
//! two lines that differ look different, but for letters of other scripts, which are flagged.

use ringfence_model::text::misleads;
use unicode_width::UnicodeWidthChar as _;

/// What one column or two of a screen show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pub c: char,
    pub columns: usize,
    /// It stands for something that cannot be shown as it is.
    pub odd: bool,
}

/// Where tabs stop.
const TAB: usize = 8;

/// One line, without its end.
pub fn cells(line: &[u8]) -> Vec<Cell> {
    let mut out = Vec::with_capacity(line.len());
    let mut column = 0;
    for chunk in line.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '\t' {
                let width = TAB - column % TAB;
                out.push(cell('→', 1, true));
                out.extend((1..width).map(|_| cell(' ', 1, true)));
                column += width;
                continue;
            }
            match c.width() {
                Some(columns @ 1..) if !misleads(c) => {
                    out.push(cell(c, columns, false));
                    column += columns;
                }
                // Controls, what hides or reorders, and marks that are drawn over others.
                _ => column += escape(&mut out, c.escape_unicode()),
            }
        }
        for byte in chunk.invalid() {
            column += escape(&mut out, format!("\\x{byte:02x}").chars());
        }
    }
    // A blank at the end is not seen otherwise.
    for blank in out
        .iter_mut()
        .rev()
        .take_while(|cell| cell.c == ' ' && !cell.odd)
    {
        *blank = cell('·', 1, true);
    }
    out
}

fn cell(c: char, columns: usize, odd: bool) -> Cell {
    Cell { c, columns, odd }
}

fn escape(out: &mut Vec<Cell>, escaped: impl Iterator<Item = char>) -> usize {
    let before = out.len();
    out.extend(escaped.map(|c| cell(c, 1, true)));
    out.len() - before
}

/// Cells in rows of at most so many columns; at least one row.
pub fn wrap(cells: &[Cell], columns: usize) -> Vec<&[Cell]> {
    rows(cells, columns, |row| row.len())
}

/// The same, broken between words where there are some: for text of ours.
pub fn wrap_words(cells: &[Cell], columns: usize) -> Vec<&[Cell]> {
    // HOSTILE: a word may be as long as a line; then it is broken where the row ends.
    rows(cells, columns, |row| {
        let blank = row.iter().rposition(|cell| cell.c == ' ' && !cell.odd);
        blank.map_or(row.len(), |blank| blank + 1)
    })
}

/// Rows that fit; `end` says where one that is followed by another ends.
fn rows(cells: &[Cell], columns: usize, end: impl Fn(&[Cell]) -> usize) -> Vec<&[Cell]> {
    let columns = columns.max(2);
    let mut rows = Vec::new();
    let mut rest = cells;
    loop {
        let mut used = 0;
        let over = rest.iter().position(|cell| {
            used += cell.columns;
            used > columns
        });
        let Some(over) = over else {
            rows.push(rest);
            return rows;
        };
        let (row, after) = rest.split_at(end(&rest[..over]));
        rows.push(row);
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(cells: &[Cell]) -> String {
        cells.iter().map(|cell| cell.c).collect()
    }

    #[test]
    fn nothing_is_drawn_over_or_left_out() {
        for (line, expected) in [
            (&b"plain"[..], "plain"),
            (b"\x1b[2Jx\x07", "\\u{1b}[2Jx\\u{7}"),
            ("a\u{202e}b\u{200b}c".as_bytes(), "a\\u{202e}b\\u{200b}c"),
            ("e\u{301}".as_bytes(), "e\\u{301}"),
            ("x\u{fe0f}".as_bytes(), "x\\u{fe0f}"),
            (b"a\xff\xc3(", "a\\xff\\xc3("),
            (b"a\rb\r", "a\\u{d}b\\u{d}"),
            (b"\tx", "→       x"),
            (b"abc\tx", "abc→    x"),
            (b"end  ", "end··"),
            (b"  ", "··"),
            ("\u{9b}31m".as_bytes(), "\\u{9b}31m"),
        ] {
            assert_eq!(text(&cells(line)), expected, "{line:?}");
        }
    }

    #[test]
    fn rows_fit_the_screen() {
        let wide = cells("宽宽宽abc".as_bytes());
        let rows = wrap(&wide, 5);
        assert_eq!(
            rows.iter().map(|row| text(row)).collect::<Vec<_>>(),
            ["宽宽", "宽abc"]
        );
        for row in rows {
            assert!(row.iter().map(|cell| cell.columns).sum::<usize>() <= 5);
        }
        assert_eq!(wrap(&[], 10).len(), 1);
        for (line, expected) in [
            ("one two three", vec!["one two ", "three"]),
            ("one", vec!["one"]),
            ("", vec![""]),
            ("onetwothree", vec!["onetwoth", "ree"]),
            ("a onetwothree", vec!["a ", "onetwoth", "ree"]),
        ] {
            let cells = cells(line.as_bytes());
            let rows = wrap_words(&cells, 8);
            let rows: Vec<String> = rows.iter().map(|row| text(row)).collect();
            assert_eq!(rows, expected, "{line}");
        }
    }
}
