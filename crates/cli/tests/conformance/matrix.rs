//! The table of what was seen, and the one that is checked in: between two comments of a document.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::columns::{COLUMNS, Root};

/// Cells by row and column, in the order in which they are shown.
#[derive(Debug, Default)]
pub struct Table {
    pub columns: Vec<String>,
    /// Area and title.
    pub rows: Vec<(String, String)>,
    pub cells: BTreeMap<(String, String, String), String>,
    /// What was met where a cell has less than was wanted.
    reasons: BTreeMap<(String, String, String), String>,
}

/// What stands where nothing was ever tried.
const UNTRIED: &str = "not tried";

impl Table {
    pub fn set(&mut self, (area, title): (&str, &str), column: &str, cell: String) {
        let key = (area.to_owned(), title.to_owned());
        if !self.rows.contains(&key) {
            self.rows.push(key);
        }
        if !self.columns.iter().any(|name| name == column) {
            self.columns.push(column.to_owned());
        }
        let (area, title) = (area.to_owned(), title.to_owned());
        self.cells.insert((area, title, column.to_owned()), cell);
    }

    /// Why a cell is what it is, for whoever reads that it is not what is said.
    pub fn explain(&mut self, (area, title): (&str, &str), column: &str, why: String) {
        let key = (area.to_owned(), title.to_owned(), column.to_owned());
        self.reasons.insert(key, why);
    }

    fn cell(&self, (area, title): &(String, String), column: &str) -> Option<&String> {
        self.cells
            .get(&(area.clone(), title.clone(), column.to_owned()))
    }

    pub fn get(&self, area: &str, title: &str, column: &str) -> Option<String> {
        self.cell(&(area.to_owned(), title.to_owned()), column)
            .cloned()
    }

    pub fn markdown(&self) -> String {
        let mut text = format!("| | | {} |\n", self.columns.join(" | "));
        text += &format!("|{}\n", " --- |".repeat(self.columns.len() + 2));
        let mut last = "";
        for row in &self.rows {
            let (area, title) = row;
            let cells = self.columns.iter().map(|column| {
                let cell = self.cell(row, column);
                cell.map_or(UNTRIED, String::as_str)
            });
            let area = if area == last { "" } else { area };
            let cells: Vec<&str> = cells.collect();
            text += &format!("| {area} | {title} | {} |\n", cells.join(" | "));
            last = &row.0;
        }
        text
    }

    pub fn json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            let cells = self.columns.iter().map(|column| {
                let cell = self.cell(row, column).cloned();
                (column.clone(), Value::from(cell))
            });
            let cells: serde_json::Map<String, Value> = cells.collect();
            json!({ "area": row.0, "what": row.1, "backends": cells })
        });
        Value::Array(rows.collect())
    }

    /// As a document has it.
    fn parse(text: &str) -> Self {
        let mut table = Self::default();
        let mut lines = text.lines().filter(|line| line.starts_with('|'));
        let words = |line: &str| -> Vec<String> {
            let line = line.trim().trim_matches('|');
            line.split('|').map(|cell| cell.trim().to_owned()).collect()
        };
        table.columns = lines.next().map(words).unwrap_or_default();
        table.columns.drain(..table.columns.len().min(2));
        let mut area = String::new();
        for line in lines.skip(1) {
            let mut cells = words(line);
            if cells.len() < 2 {
                continue;
            }
            let (first, title) = (cells.remove(0), cells.remove(0));
            if !first.is_empty() {
                area = first;
            }
            for (column, cell) in table.columns.clone().iter().zip(cells) {
                if cell != UNTRIED {
                    table.set((&area, &title), column, cell);
                }
            }
        }
        table
    }

    /// What differs from the one that is checked in, as far as it was tried.
    pub fn differences(&self, checked_in: &Self) -> Vec<String> {
        let mut found = Vec::new();
        for (key, seen) in &self.cells {
            let (area, title, column) = key;
            let said = checked_in.cells.get(key).map_or(UNTRIED, String::as_str);
            if seen != said {
                println!(
                    "conformance: {column}: {area}: {title}: `{said}` is said, `{seen}` was seen"
                );
            }
            if differs(seen, said, is_in_image(column)) {
                let why = self.reasons.get(key).map(|why| format!(": {why}"));
                found.push(format!(
                    "{area}, {title}, {column}: it says `{said}`, and this was seen: `{seen}`{}",
                    why.unwrap_or_default()
                ));
            }
        }
        for row in &checked_in.rows {
            if !self.rows.contains(row) {
                found.push(format!("{}, {}: no such row is tried", row.0, row.1));
            }
        }
        found
    }

    /// With the cells of another for what was not tried here.
    fn completed(&self, by: &Self) -> Self {
        let mut all = Self {
            columns: self.columns.clone(),
            rows: self.rows.clone(),
            cells: self.cells.clone(),
            reasons: BTreeMap::new(),
        };
        for ((area, title, column), cell) in &by.cells {
            let is_row = self
                .rows
                .iter()
                .any(|row| row.0 == *area && row.1 == *title);
            let is_tried = self.columns.contains(column);
            if is_row && !is_tried {
                all.set((area, title), column, cell.clone());
            }
        }
        all
    }
}

/// Whether less was seen than is said: a false claim. More is none, and is told. `in_image`: what an attack
/// needs may not be in the image, which is made of this machine's programs.
pub fn differs(seen: &str, said: &str, in_image: bool) -> bool {
    // How firmly a bound holds is also the machine's: whether there are cgroups for the caller.
    let grades = ["hard", "watched"];
    match (attacks(seen), attacks(said)) {
        (Some((tried, work)), Some((known, known_to_work))) => {
            let others = work.iter().any(|name| !known_to_work.contains(name));
            let fewest = if in_image { known * 9 / 10 } else { known };
            others || tried < fewest
        }
        _ if seen == said => false,
        // Of others it is told how many fail. Some look for what is on the machine.
        _ if let (Some((failed, tried)), Some((known, all))) = (counted(seen), counted(said)) => {
            tried != all || failed.abs_diff(known) > (all / 10).max(1)
        }
        _ if grades.contains(&seen) && grades.contains(&said) => false,
        _ => said != NO && !(seen == "yes" && said.starts_with("yes, but")),
    }
}

fn is_in_image(column: &str) -> bool {
    let mut all = COLUMNS.iter();
    all.any(|known| known.name == column && known.root == Root::Image)
}

/// What a cell has where something does not hold.
const NO: &str = "**no**";

/// How many attacks a cell tells of, and which of them work.
fn attacks(cell: &str) -> Option<(usize, Vec<&str>)> {
    let cell = cell.trim_matches('*');
    if let Some(rest) = cell.strip_prefix("all ") {
        let tried = rest.strip_suffix(" fail")?.parse().ok()?;
        return Some((tried, Vec::new()));
    }
    let (numbers, names) = cell.split_once(" fail; not ")?;
    let tried = numbers.split(" of ").nth(1)?.parse().ok()?;
    Some((tried, names.split(", ").collect()))
}

/// How many attacks fail, and of how many, where a cell names none of them.
fn counted(cell: &str) -> Option<(usize, usize)> {
    let numbers = cell.trim_matches('*').strip_suffix(" fail")?;
    let (failed, tried) = numbers.split_once(" of ")?;
    Some((failed.parse().ok()?, tried.parse().ok()?))
}

#[test]
fn less_than_is_said_is_a_difference_and_more_is_none() {
    for (seen, said, differ) in [
        ("yes", "**no**", false),
        ("**no**", "yes", true),
        ("hard", "watched", false),
        ("**no**", "hard", true),
        ("all 3 fail", "**2 of 3 fail; not a-1**", false),
        (
            "**2 of 3 fail; not a-1**",
            "**1 of 3 fail; not a-1, a-2**",
            false,
        ),
        (
            "**2 of 3 fail; not a-3**",
            "**1 of 3 fail; not a-1, a-2**",
            true,
        ),
        ("**2 of 3 fail; not a-1**", "all 3 fail", true),
        ("all 60 fail", "all 63 fail", true),
        ("all 64 fail", "all 63 fail", false),
        ("**37 of 48 fail**", "**36 of 48 fail**", false),
        ("**42 of 48 fail**", "**37 of 48 fail**", true),
        ("**31 of 48 fail**", "**36 of 48 fail**", true),
        ("**36 of 47 fail**", "**36 of 48 fail**", true),
        ("all 48 fail", "**47 of 48 fail**", true),
        ("yes, but", "yes", true),
        ("yes", "yes, but", false),
        ("yes", "–", true),
        ("–", "yes", true),
    ] {
        assert_eq!(differs(seen, said, false), differ, "{seen} for {said}");
    }
    assert!(!differs("all 60 fail", "all 63 fail", true));
    assert!(differs("all 50 fail", "all 63 fail", true));
}

/// The part of a document between `<!-- NAME -->` and `<!-- /NAME -->`.
#[derive(Debug)]
pub struct Document {
    path: PathBuf,
    before: String,
    inner: String,
    after: String,
}

impl Document {
    pub fn read(name: &str) -> Result<Self> {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/backends.md");
        let text = fs::read_to_string(&path).context("cannot read `docs/backends.md`")?;
        let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
        let marks = text.split_once(&begin).and_then(|(before, rest)| {
            let (inner, after) = rest.split_once(&end)?;
            Some((before, inner, after))
        });
        let (before, inner, after) = marks.with_context(|| format!("there is no `{begin}`"))?;
        Ok(Self {
            before: format!("{before}{begin}"),
            inner: inner.to_owned(),
            after: format!("{end}{after}"),
            path,
        })
    }

    pub fn table(&self) -> Table {
        Table::parse(&self.inner)
    }

    /// What stands before the table.
    pub fn head(&self) -> &str {
        self.inner.split('|').next().unwrap_or_default().trim()
    }

    pub fn write(&self, head: &str, table: &Table) -> Result<()> {
        let table = table.completed(&self.table()).markdown();
        let head = match head {
            "" => String::new(),
            head => format!("{head}\n\n"),
        };
        let text = format!("{}\n{head}{table}\n{}", self.before, self.after);
        Ok(fs::write(&self.path, text)?)
    }
}

#[test]
fn a_table_is_read_as_it_was_written() {
    let mut table = Table::default();
    table.set(("a", "one"), "x", "yes".to_owned());
    table.set(("a", "two"), "x", "**no**".to_owned());
    table.set(("b", "one"), "x", "all 3 fail".to_owned());
    table.set(("b", "one"), "y", "yes".to_owned());
    let read = Table::parse(&table.markdown());
    assert_eq!(read.cells, table.cells);
    assert_eq!(read.differences(&table), Vec::<String>::new());
    let mut other = Table::default();
    other.set(("a", "one"), "x", "**no**".to_owned());
    let found = other.differences(&table);
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found[0].contains("it says `yes`"), "{found:?}");
    let all = other.completed(&table);
    assert_eq!(all.columns, ["x"]);
}
