//! `docs/promises.md`: each row names the test or bench that keeps it.

use super::code::{blank, has_word};
use super::{Finding, Tree};

const FILE: &str = "docs/promises.md";

/// The last column of each table is `kept by` and holds `path::test_name` or `bench name`,
/// several of them parted by commas.
pub fn promises_are_kept(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text(FILE) else {
        return vec![Finding::new(FILE, 1, "there is no such page")];
    };
    let mut findings = Vec::new();
    for (line, cells) in table_rows(text) {
        let keepers = cells.last().map(String::as_str).unwrap_or_default();
        if keepers.trim().is_empty() {
            findings.push(Finding::new(FILE, line, "nothing keeps this promise"));
            continue;
        }
        for keeper in keepers.split(',') {
            let keeper = keeper.trim().trim_matches('`');
            if let Err(message) = find_keeper(tree, keeper) {
                findings.push(Finding::new(FILE, line, message));
            }
        }
    }
    findings
}

/// A requirement that the page claims (`R61`) has a test that is called after it (`r61_…`).
pub fn requirements_have_tests(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text(FILE) else {
        return Vec::new();
    };
    let sources: Vec<String> = tree
        .with_extension("rs")
        .map(|(_, text)| blank(text))
        .collect();
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for number in requirements(line) {
            let tested = sources
                .iter()
                .flat_map(|source| source.lines())
                .filter_map(function_name)
                .any(|name| name.split('_').any(|part| part == format!("r{number}")));
            if !tested {
                findings.push(Finding::new(
                    FILE,
                    index + 1,
                    format!("no test is called after R{number}"),
                ));
            }
        }
    }
    findings
}

fn find_keeper(tree: &Tree, keeper: &str) -> Result<(), String> {
    if let Some(name) = keeper.strip_prefix("bench ") {
        let file = format!("benches/{name}.rs");
        let entry = format!("name = \"{name}\"");
        let found = tree.texts().any(|(path, text)| {
            path == file
                || path.ends_with(&format!("/{file}"))
                || (path.ends_with("Cargo.toml")
                    && text.split("[[bench]]").skip(1).any(|table| {
                        let end = table.find("\n[").unwrap_or(table.len());
                        table[..end].lines().any(|line| line.trim() == entry)
                    }))
        });
        return found
            .then_some(())
            .ok_or_else(|| format!("there is no bench `{name}`"));
    }
    let Some((path, name)) = keeper.rsplit_once("::") else {
        return Err(format!(
            "`{keeper}` is neither `path::test_name` nor `bench name`"
        ));
    };
    let Some(text) = tree.text(path) else {
        return Err(format!("there is no file `{path}`"));
    };
    if !is_test(&blank(text), name) {
        return Err(format!("`{path}` has no test `{name}`"));
    }
    Ok(())
}

/// True where a function of this name has `#[test]` among the attributes above it.
fn is_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().collect();
    lines.iter().enumerate().any(|(index, line)| {
        function_name(line) == Some(name)
            && lines[..index]
                .iter()
                .rev()
                .take_while(|above| {
                    let above = above.trim();
                    above.starts_with("#[") || above.is_empty() || above.ends_with(")]")
                })
                .any(|above| above.contains("#[test]") || above.contains("::test]"))
    })
}

fn function_name(line: &str) -> Option<&str> {
    if !has_word(line, "fn") {
        return None;
    }
    let (_, tail) = line.split_once("fn ")?;
    let end = tail
        .find(|c: char| !(c.is_alphanumeric() || c == '_'))
        .unwrap_or(tail.len());
    (end > 0).then_some(&tail[..end])
}

/// Rows of the tables whose last column is `kept by`, with their lines.
fn table_rows(text: &str) -> Vec<(usize, Vec<String>)> {
    let mut rows = Vec::new();
    let mut ours = false;
    for (index, line) in text.lines().enumerate() {
        let Some(inner) = line.trim().strip_prefix('|') else {
            ours = false;
            continue;
        };
        let inner = inner.strip_suffix('|').unwrap_or(inner);
        // `\|` is a bar within a cell.
        let cells: Vec<String> = inner
            .replace("\\|", "\u{0}")
            .split('|')
            .map(|cell| cell.trim().replace('\u{0}', "|"))
            .collect();
        let ruler = cells
            .iter()
            .all(|cell| !cell.is_empty() && cell.chars().all(|c| matches!(c, '-' | ':')));
        if cells.last().is_some_and(|cell| cell == "kept by") {
            ours = true;
        } else if ours && !ruler {
            rows.push((index + 1, cells));
        }
    }
    rows
}

fn requirements(line: &str) -> Vec<u32> {
    line.split(|c: char| !c.is_ascii_alphanumeric())
        .filter_map(|word| word.strip_prefix('R')?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    const HEAD: &str = "| promise | figure seen | command | kept by |\n| --- | --- | --- | --- |\n";

    fn promises(row: &str) -> Vec<Finding> {
        let page = format!("{HEAD}{row}\n");
        let source = "//! x\n#[test]\nfn holds() {}\n\n#[test]\n#[ignore = \"slow\"]\nfn slow() {}\nfn plain() {}\n// #[test]\nfn told() {}\n";
        let tree = Tree::of(&[
            (FILE, &page),
            ("crates/cli/tests/a.rs", source),
            ("crates/engine/benches/start.rs", ""),
            ("crates/jail/Cargo.toml", "[[bench]]\nname = \"exec\"\n"),
        ]);
        promises_are_kept(&tree)
    }

    #[test]
    fn each_row_names_what_keeps_it() {
        for (keeper, fine) in [
            ("`crates/cli/tests/a.rs::holds`", true),
            ("crates/cli/tests/a.rs::slow", true),
            ("crates/cli/tests/a.rs::plain", false),
            ("crates/cli/tests/a.rs::told", false),
            ("crates/cli/tests/a.rs::gone", false),
            ("crates/cli/tests/b.rs::holds", false),
            ("`bench start`", true),
            ("`bench exec`, `crates/cli/tests/a.rs::holds`", true),
            ("`bench stop`", false),
            ("a person", false),
            ("", false),
        ] {
            let row = format!("| a \\| b | 1 | `x` | {keeper} |");
            assert_eq!(promises(&row).is_empty(), fine, "{keeper}");
        }
    }

    #[test]
    fn only_the_table_of_promises_counts() {
        let page = format!("| a | b |\n| --- | --- |\n| 1 | 2 |\n\n{HEAD}| p | 1 | x | gone |\n");
        let tree = Tree::of(&[(FILE, &page)]);
        assert_eq!(places(&promises_are_kept(&tree)), ["docs/promises.md:7"]);
    }

    #[test]
    fn a_claimed_requirement_has_a_test() {
        for (claim, source, fine) in [
            ("R61 holds", "fn r61_reads_are_listed() {}", true),
            ("R61 holds", "fn attacks_r61_r66() {}", true),
            ("R6 holds", "fn r61_reads() {}", false),
            ("R61", "// fn r61_reads() {}", false),
            ("RUN and R2D2", "", true),
        ] {
            let tree = Tree::of(&[(FILE, claim), ("tests/a.rs", source)]);
            assert_eq!(
                requirements_have_tests(&tree).is_empty(),
                fine,
                "{claim}: {source}"
            );
        }
    }
}
