//! Both sides of a hunk beside each other, for wide terminals.

use ringfence_engine::patch::Fate;

use super::glyphs::{Cell, wrap};
use super::page::{Line, Piece, Row, Style, style};

/// Columns for the number of a line, with its sign.
const NUMBER: usize = 8;

/// Pairs what goes with what comes in its place.
pub fn rows(lines: &[Line], columns: usize, out: &mut Vec<Row>) {
    let side = (columns - 3) / 2;
    let mut rest = lines;
    while let Some(first) = rest.first() {
        if first.fate == Fate::Stays {
            pair(Some(first), Some(first), side, out);
            rest = &rest[1..];
            continue;
        }
        let goes = count(rest, Fate::Goes);
        let comes = count(&rest[goes..], Fate::Comes);
        for at in 0..goes.max(comes) {
            let left = rest[..goes].get(at);
            let right = rest[goes..goes + comes].get(at);
            pair(left, right, side, out);
        }
        rest = &rest[goes + comes..];
    }
}

fn count(lines: &[Line], fate: Fate) -> usize {
    lines.iter().take_while(|line| line.fate == fate).count()
}

fn pair(left: Option<&Line>, right: Option<&Line>, side: usize, out: &mut Vec<Row>) {
    let halves = |line: Option<&Line>, number: fn(&Line) -> u64| -> Vec<Piece> {
        let Some(line) = line else {
            return Vec::new();
        };
        let sign = match line.fate {
            Fate::Stays => ' ',
            Fate::Goes => '-',
            Fate::Comes => '+',
        };
        let parts = wrap(&line.cells, side - NUMBER);
        let head = |at: usize| match at {
            0 => format!("{:>6} {sign}", number(line) % 1_000_000),
            _ => format!("{:>8}", "↪"),
        };
        let pieces = parts.into_iter().enumerate().map(|(at, part)| {
            let mut cells: Vec<Cell> = head(at).chars().map(narrow).collect();
            cells.extend_from_slice(part);
            fill(&mut cells, side);
            let style = style(line.fate);
            Piece { style, cells }
        });
        pieces.collect()
    };
    let left = halves(left, |line| line.old);
    let right = halves(right, |line| line.new);
    for at in 0..left.len().max(right.len()) {
        let blank = || {
            let mut cells = Vec::new();
            fill(&mut cells, side);
            let style = Style::Plain;
            Piece { style, cells }
        };
        let bar = Piece {
            style: Style::Faint,
            cells: " │ ".chars().map(narrow).collect(),
        };
        let left = left.get(at).cloned().unwrap_or_else(blank);
        let right = right.get(at).cloned().unwrap_or_else(blank);
        out.push(Row(vec![left, bar, right]));
    }
}

fn narrow(c: char) -> Cell {
    Cell {
        c,
        columns: 1,
        odd: false,
    }
}

fn fill(cells: &mut Vec<Cell>, columns: usize) {
    let used: usize = cells.iter().map(|cell| cell.columns).sum();
    cells.extend((used..columns).map(|_| narrow(' ')));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::review::glyphs::cells;

    #[test]
    fn sides_stand_beside_each_other() {
        let line = |fate, old, new, text: &str| Line {
            fate,
            old,
            new,
            cells: cells(text.as_bytes()),
        };
        let lines = [
            line(Fate::Stays, 1, 1, "same"),
            line(Fate::Goes, 2, 2, "one"),
            line(Fate::Goes, 3, 2, "two"),
            line(Fate::Comes, 4, 2, &"x".repeat(100)),
            line(Fate::Stays, 4, 3, "end"),
        ];
        let mut out = Vec::new();
        rows(&lines, 163, &mut out);
        let texts: Vec<String> = out.iter().map(Row::text).collect();
        assert!(texts[0].starts_with("     1  same ") && texts[0].contains("│      1  same"));
        assert!(texts[1].starts_with("     2 -one ") && texts[1].contains("│      2 +xxx"));
        assert!(
            texts[2].starts_with("        ") && texts[2].contains("↪xx"),
            "{texts:#?}"
        );
        assert!(texts[3].starts_with("     3 -two "));
        assert!(texts[4].contains("end"));
        for text in texts {
            assert_eq!(text.chars().count(), 163);
        }
    }
}
