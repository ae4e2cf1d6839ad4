//! What is on the screen: a place in the blocks of a page, and the line that says where that is.

use std::collections::HashMap;
use std::rc::Rc;

use super::keys::Key;
use super::page::{Block, Page, Row, Style};
use super::plain::paint;
use super::screen::cells;
use crate::console::window_size;

/// BOUND: blocks whose rows are kept.
const KEPT: usize = 32;

/// Where this is, and what can be done, as much of it as fits. How to get out always does.
fn state_line(title: &str, name: &str, hunk: &str, columns: usize) -> String {
    const KEYS: [&str; 3] = [
        "a approve  r reject  s skip  n next  ? keys  q quit",
        "a approve  r reject  ? keys  q quit",
        "? keys  q quit",
    ];
    let width = |text: &str| cells(text).iter().map(|cell| cell.columns).sum::<usize>();
    let line = |name: &str, keys: &str| {
        if name.is_empty() {
            format!("{title} │ {hunk} │ {keys}")
        } else {
            format!("{title} │ {name} │ {hunk} │ {keys}")
        }
    };
    let fits = |line: &String| width(line) <= columns;
    if let Some(whole) = KEYS.iter().map(|keys| line(name, keys)).find(fits) {
        return whole;
    }
    // Of a long path the end tells most.
    let mut end = name.chars();
    while end.next().is_some() {
        let cut = line(&format!("…{}", end.as_str()), KEYS[2]);
        if fits(&cut) {
            return cut;
        }
    }
    KEYS[2].to_owned()
}

/// What is on the screen: a place in the blocks of a page.
pub struct View<'p> {
    pub page: Page<'p>,
    title: String,
    /// The block at the top of the screen, and the row of it.
    block: usize,
    row: usize,
    pub columns: usize,
    /// Without the line of state.
    pub height: usize,
    pub message: String,
    sought: String,
    kept: HashMap<usize, Rc<Vec<Row>>>,
}

impl<'p> View<'p> {
    pub fn new(page: Page<'p>, title: &str) -> Self {
        Self {
            page,
            title: title.to_owned(),
            block: 0,
            row: 0,
            columns: 0,
            height: 0,
            message: String::new(),
            sought: String::new(),
            kept: HashMap::new(),
        }
    }

    pub fn resize(&mut self) {
        let (columns, rows) = window_size().map_or((80, 24), |size| {
            (usize::from(size.columns), usize::from(size.rows))
        });
        if columns != self.columns {
            self.kept.clear();
            self.columns = columns;
        }
        self.height = rows.saturating_sub(1).max(1);
        let last = self.rows(self.block).len().saturating_sub(1);
        self.row = self.row.min(last);
    }

    pub fn current(&self) -> Block {
        self.page.blocks[self.block]
    }

    pub fn folded(&self) -> Option<String> {
        let (folded, all) = (self.page.folded(), self.page.hunks());
        (folded > 0).then(|| format!("{folded} of {all} hunks were folded and not shown whole"))
    }

    fn rows(&mut self, block: usize) -> Rc<Vec<Row>> {
        if let Some(rows) = self.kept.get(&block) {
            return Rc::clone(rows);
        }
        if self.kept.len() >= KEPT {
            self.kept.clear();
        }
        let rows = Rc::new(self.page.rows(self.page.blocks[block], self.columns));
        self.kept.insert(block, Rc::clone(&rows));
        rows
    }

    /// As many rows as asked for, from the top of the screen on.
    fn visible(&mut self, most: usize) -> Vec<Row> {
        let mut out = Vec::new();
        let mut skip = self.row;
        for block in self.block..self.page.blocks.len() {
            let rows = self.rows(block);
            out.extend(rows.iter().skip(skip).take(most - out.len()).cloned());
            skip = 0;
            if out.len() >= most {
                break;
            }
        }
        out
    }

    pub fn screen(&mut self, colour: bool) -> Vec<String> {
        let rows = self.visible(self.height);
        let mut out: Vec<String> = rows.iter().map(|row| paint(row, colour)).collect();
        out.resize(self.height, String::new());
        out.push(self.state(colour));
        out
    }

    /// The last line: a question or a message, else where this is and what can be done.
    fn state(&self, colour: bool) -> String {
        let (mut hunk, mut hunks) = (0, 0);
        for (at, block) in self.page.blocks.iter().enumerate() {
            if matches!(block, Block::Hunk(..)) {
                hunks += 1;
                hunk += usize::from(at <= self.block);
            }
        }
        let text = if !self.message.is_empty() {
            self.message.clone()
        } else {
            let name = self.page.name(self.current()).unwrap_or_default();
            state_line(
                &self.title,
                &name,
                &format!("hunk {hunk}/{hunks}"),
                self.columns,
            )
        };
        let cells = cells(&text);
        // Of a long question the end is what is being typed.
        let mut used = 0;
        let fits = cells.iter().rev().take_while(|cell| {
            used += cell.columns;
            used <= self.columns
        });
        let from = if self.message.is_empty() {
            0
        } else {
            cells.len() - fits.count()
        };
        let shown = super::glyphs::wrap(&cells[from..], self.columns)[0];
        if colour {
            format!("\x1b[1m{}", paint(&Row::of(Style::Plain, shown), colour))
        } else {
            paint(&Row::of(Style::Plain, shown), colour)
        }
    }

    pub fn step(&mut self, key: Key) {
        let page = self.height.saturating_sub(1).max(1);
        match key {
            Key::Down | Key::Enter | Key::Char('j') => self.down(1),
            Key::Up | Key::Char('k') => self.up(1),
            Key::PageDown | Key::Char(' ' | 'd') => self.down(page),
            Key::PageUp => self.up(page),
            Key::Home | Key::Char('g') => (self.block, self.row) = (0, 0),
            Key::End | Key::Char('G') => {
                self.block = self.page.blocks.len() - 1;
                self.row = 0;
                self.up(page);
            }
            Key::Char('n') => self.next("hunk", |block| matches!(block, Block::Hunk(..))),
            Key::Char('p') => self.previous("hunk", |block| matches!(block, Block::Hunk(..))),
            Key::Char('N') => self.next("file", |block| matches!(block, Block::File(_))),
            Key::Char('P') => self.previous("file", |block| matches!(block, Block::File(_))),
            Key::Char('u') => match self.folded_here() {
                Some(block) => {
                    self.page.unfold(block);
                    self.kept.clear();
                }
                None => self.message = "nothing on this screen is folded".to_owned(),
            },
            Key::Char('U') => {
                self.page.unfold_all();
                self.kept.clear();
            }
            Key::Char('f') => {
                let rows = self.rows(0);
                let titles = ["## Flags", "## Will run on your machine"];
                let is_flags = |row: &Row| titles.contains(&row.text().as_str());
                match rows.iter().position(is_flags) {
                    Some(row) => (self.block, self.row) = (0, row),
                    None => self.message = "no flags".to_owned(),
                }
            }
            _ => {}
        }
    }

    /// The first folded hunk that is on the screen.
    fn folded_here(&mut self) -> Option<Block> {
        let (mut used, mut skip) = (0, self.row);
        for at in self.block..self.page.blocks.len() {
            let block = self.page.blocks[at];
            if self.page.is_folded(block) {
                return Some(block);
            }
            used += self.rows(at).len() - skip;
            skip = 0;
            if used >= self.height {
                break;
            }
        }
        None
    }

    fn down(&mut self, by: usize) {
        for _ in 0..by {
            // The end stays at the bottom of the screen.
            if self.visible(self.height + 1).len() <= self.height {
                return;
            }
            self.row += 1;
            if self.row >= self.rows(self.block).len() {
                (self.block, self.row) = (self.block + 1, 0);
            }
        }
    }

    fn up(&mut self, by: usize) {
        for _ in 0..by {
            if self.row > 0 {
                self.row -= 1;
            } else if self.block > 0 {
                self.block -= 1;
                self.row = self.rows(self.block).len().saturating_sub(1);
            }
        }
    }

    fn next(&mut self, what: &str, wanted: impl Fn(&Block) -> bool) {
        let after = self.page.blocks.iter().skip(self.block + 1);
        match after.clone().position(wanted) {
            Some(at) => (self.block, self.row) = (self.block + 1 + at, 0),
            None => self.message = format!("no {what} after this"),
        }
    }

    fn previous(&mut self, what: &str, wanted: impl Fn(&Block) -> bool) {
        match self.page.blocks[..self.block].iter().rposition(wanted) {
            Some(at) => (self.block, self.row) = (at, 0),
            None => self.message = format!("no {what} before this"),
        }
    }

    /// Goes to the next row that has this; nothing typed: what was sought before.
    pub fn search(&mut self, text: &str) {
        if !text.is_empty() {
            text.clone_into(&mut self.sought);
        }
        let sought = self.sought.to_lowercase();
        if sought.is_empty() {
            return;
        }
        for block in self.block..self.page.blocks.len() {
            let from = if block == self.block { self.row + 1 } else { 0 };
            let rows = self.rows(block);
            let has = |row: &Row| row.text().to_lowercase().contains(&sought);
            if let Some(at) = rows.iter().skip(from).position(has) {
                (self.block, self.row) = (block, from + at);
                return;
            }
        }
        self.message = "not found after this".to_owned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_out_is_always_on_the_screen() {
        let long = format!("src/{}/宽.rs", "deep/".repeat(60));
        for name in ["", "README.md", &long] {
            for columns in [14, 20, 40, 60, 80, 91, 120, 200] {
                let line = state_line("run 0198c2d4e5f6", name, "hunk 12/345", columns);
                let width: usize = cells(&line).iter().map(|cell| cell.columns).sum();
                assert!(width <= columns, "{columns}: {line}");
                assert!(line.ends_with("? keys  q quit"), "{columns}: {line}");
            }
        }
        let line = state_line("run 0198c2d4e5f6", "README.md", "hunk 1/2", 80);
        assert!(line.contains("README.md │ hunk 1/2 │ a approve"), "{line}");
    }
}
