//! `xtask/exceptions.txt`: what may break a rule, with its reason.

use super::{Finding, Tree, sources};

pub const FILE: &str = "xtask/exceptions.txt";

/// One line: rule, path, how far, and why.
#[derive(Debug, PartialEq, Eq)]
pub struct Exception<'a> {
    pub rule: &'a str,
    pub path: &'a str,
    pub detail: &'a str,
    line: usize,
    reasoned: bool,
}

/// All of them; a tree without the file has none.
pub fn read(tree: &Tree) -> Vec<Exception<'_>> {
    let text = tree.text(FILE).unwrap_or_default();
    text.lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'))
        .map(|(index, line)| {
            let mut words = line.split_whitespace();
            Exception {
                rule: words.next().unwrap_or_default(),
                path: words.next().unwrap_or_default(),
                detail: words.next().unwrap_or_default(),
                line: index + 1,
                reasoned: words.next().is_some(),
            }
        })
        .collect()
}

/// An exception is well formed, has a reason, and something still needs it.
pub fn exceptions_are_needed(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for exception in read(tree) {
        let text = tree.text(exception.path);
        let complaint = match (exception.rule, text) {
            _ if !exception.reasoned => Some("an exception is RULE PATH DETAIL REASON"),
            (_, None) => Some("there is no such file"),
            ("length", Some(text)) => match exception.detail.parse::<usize>() {
                Err(_) => Some("the third word is a number of lines"),
                Ok(_) if text.lines().count() <= sources::MAX_LINES => {
                    Some("the file is short enough without it")
                }
                Ok(_) => None,
            },
            ("machine-path", Some(text)) => (!text.contains(exception.detail))
                .then_some("the file does not hold this text any more"),
            _ => Some("there is no such rule; use `length` or `machine-path`"),
        };
        findings.extend(complaint.map(|message| Finding::new(FILE, exception.line, message)));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn only_needed_exceptions_stand() {
        let long = "x\n".repeat(sources::MAX_LINES + 1);
        for (line, fine) in [
            ("length long.rs 700 it is one table", true),
            ("length long.rs 700", false),
            ("length long.rs many it is one table", false),
            ("length short.rs 700 it is one table", false),
            ("length gone.rs 700 it is one table", false),
            ("width long.rs 700 it is one table", false),
            ("machine-path short.rs needle it is data", true),
            ("machine-path short.rs other it is data", false),
            ("# length gone.rs", true),
        ] {
            let tree = Tree::of(&[(FILE, line), ("long.rs", &long), ("short.rs", "needle")]);
            assert_eq!(exceptions_are_needed(&tree).is_empty(), fine, "{line}");
        }
    }

    #[test]
    fn the_line_is_named() {
        let tree = Tree::of(&[(FILE, "# head\n\nlength gone.rs 9 x")]);
        assert_eq!(
            places(&exceptions_are_needed(&tree)),
            ["xtask/exceptions.txt:3"]
        );
    }
}
