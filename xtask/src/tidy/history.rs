//! Commits after the one in `xtask/history-start`: linear, small, and each says why.

use super::{Finding, Tree};

/// BOUND: what a reviewer reads in one sitting; aim at 200.
const MAX_CHANGED_LINES: usize = 600;
/// The trailer of a commit whose lines nobody has to read one by one: a rename, or generated files.
const MECHANICAL: &str = "Mechanical:";
/// The file that names the commit after which all are checked.
const START: &str = "xtask/history-start";
/// Files that a tool writes; their lines are not counted.
const GENERATED: &[&str] = &["Cargo.lock"];

/// A commit, as `git log` tells of it.
#[derive(Debug, Default)]
pub struct Commit {
    pub id: String,
    pub parents: usize,
    /// Subject, body and trailers.
    pub message: String,
    /// Added and removed lines of each file. A rename without an edit has none.
    pub files: Vec<(String, usize)>,
}

/// The format of `git log` that [`parse_log`] reads, together with `--numstat`. No message holds a NUL.
pub const LOG_FORMAT: &str = "--format=%x00%H%x00%P%x00%B%x00";

/// Reads what `git log --numstat` prints with [`LOG_FORMAT`].
pub fn parse_log(text: &str) -> Vec<Commit> {
    let parts: Vec<&str> = text.split('\0').skip(1).collect();
    parts.chunks_exact(4).map(parse_commit).collect()
}

fn parse_commit(parts: &[&str]) -> Commit {
    let files = parts[3].lines().filter_map(|line| {
        let mut columns = line.splitn(3, '\t');
        let (added, removed) = (columns.next()?, columns.next()?);
        // A file that git takes for binary has `-` in both columns: nobody can read it line by line.
        let number = |text: &str| text.parse().unwrap_or(MAX_CHANGED_LINES + 1);
        Some((columns.next()?.to_owned(), number(added) + number(removed)))
    });
    Commit {
        id: parts[0].trim().to_owned(),
        parents: parts[1].split_whitespace().count(),
        message: parts[2].trim().to_owned(),
        files: files.collect(),
    }
}

/// No merge commits, a body in each, and at most [`MAX_CHANGED_LINES`] changed lines.
pub fn commits_are_small_and_say_why(tree: &Tree) -> Vec<Finding> {
    let all = tree.commits.iter();
    all.flat_map(|commit| {
        let subject = commit.message.lines().next().unwrap_or_default();
        let id = &commit.id[..commit.id.len().min(10)];
        problems(commit)
            .into_iter()
            .map(move |problem| Finding::new("commit", 0, format!("{id} \"{subject}\": {problem}")))
    })
    .collect()
}

fn problems(commit: &Commit) -> Vec<String> {
    let mut problems = Vec::new();
    if commit.parents > 1 {
        problems.push("is a merge commit: rebase instead".to_owned());
        return problems;
    }
    let (body, trailers) = body_and_trailers(&commit.message);
    if body.is_empty() {
        problems.push("has no body: say why in 2 to 8 lines".to_owned());
    }
    if commit
        .files
        .iter()
        .any(|(path, lines)| path == START && *lines > 1)
    {
        problems.push(format!("moves `{START}`, and with it what is checked"));
    }
    let counted = commit.files.iter().filter(|(path, _)| !is_generated(path));
    let lines: usize = counted.map(|(_, lines)| lines).sum();
    if lines > MAX_CHANGED_LINES && !is_mechanical(&trailers) {
        problems.push(format!(
            "changes {lines} lines, {MAX_CHANGED_LINES} is the limit: split it, or say with a \
             `{MECHANICAL}` trailer which tool or rename made them"
        ));
    }
    problems
}

fn is_generated(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    GENERATED.contains(&name)
}

fn is_mechanical(trailers: &[&str]) -> bool {
    trailers.iter().any(|line| {
        line.strip_prefix(MECHANICAL)
            .is_some_and(|reason| !reason.trim().is_empty())
    })
}

/// The lines of the body, and those of the trailers: the last paragraph, where each line of it is one or goes on with
/// one. The subject ends with an empty line, as git has it.
fn body_and_trailers(message: &str) -> (Vec<&str>, Vec<&str>) {
    let mut paragraphs: Vec<&str> = message.split("\n\n").skip(1).collect();
    let is_of_trailers = |text: &&str| {
        let mut lines = text.trim().lines();
        lines.next().is_some_and(is_trailer)
            && lines.all(|line| is_trailer(line) || line.starts_with(' '))
    };
    let trailers = paragraphs.pop_if(|last| is_of_trailers(&&**last));
    let body = paragraphs.into_iter().flat_map(str::lines);
    let is_text = |line: &&str| {
        let line = line.trim();
        !line.is_empty() && !is_trailer(line) && !line.starts_with("(cherry picked")
    };
    let trailers = trailers.unwrap_or_default().trim().lines();
    (body.filter(is_text).collect(), trailers.collect())
}

/// `Word-word: text`, as `Signed-off-by:`, with or without the blank.
fn is_trailer(line: &str) -> bool {
    line.split_once(':').is_some_and(|(key, _)| {
        key.starts_with(|c: char| c.is_ascii_uppercase())
            && key.chars().all(|c| c.is_ascii_alphabetic() || c == '-')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_are_checked() {
        for (name, parents, message, lines, expected) in [
            ("good", 1, "a: b\n\nBecause it was slow.", 600, 0),
            ("first", 0, "a: b\n\nBecause it was slow.", 1, 0),
            ("merge", 2, "Merge branch 'main'", 0, 1),
            ("no body", 1, "a: b", 1, 1),
            ("empty body", 1, "a: b\n\n  \n", 1, 1),
            ("trailers only", 1, "a: b\n\nSigned-off-by: me", 1, 1),
            ("large", 1, "a: b\n\nBecause.", 601, 1),
            (
                "rename",
                1,
                "a: b\n\nOld word.\n\nMechanical: sed s/a/b/",
                9000,
                0,
            ),
            ("no reason", 1, "a: b\n\nOld word.\n\nMechanical: ", 9000, 1),
            (
                "in the body",
                1,
                "a: b\n\nMechanical: x\n\nOld word.",
                9000,
                1,
            ),
            ("trailer as body", 1, "a: b\n\nMechanical:x", 9000, 1),
            ("long subject", 1, "a: b\nc d", 1, 1),
            ("picked", 1, "a: b\n\n(cherry picked from commit 1)", 1, 1),
            ("large, no body", 1, "a: b", 601, 2),
        ] {
            let commit = Commit {
                id: "0123456789abcdef".to_owned(),
                parents,
                message: message.to_owned(),
                files: vec![("src/a.rs".to_owned(), lines)],
            };
            assert_eq!(problems(&commit).len(), expected, "{name}");
        }
    }

    #[test]
    fn log_is_parsed() {
        let log = "\0aa\0bb cc\0subject \u{1}\n\nbody\n\0\n\n\0dd\0ee\0second\n\0\n\n\
                   3\t4\tsrc/a.rs\n900\t1\tCargo.lock\n0\t0\t{a => b}/c.rs\n\0ff\0gg\0third\n\nbody\n\0\n\n\
                   -\t-\tlogo.png\n1\t1\txtask/history-start\n";
        let commits = parse_log(log);
        assert_eq!(commits.len(), 3);
        assert_eq!(
            (commits[0].parents, commits[0].message.as_str()),
            (2, "subject \u{1}\n\nbody")
        );
        assert_eq!(
            commits[1].files,
            [
                ("src/a.rs".to_owned(), 7),
                ("Cargo.lock".to_owned(), 901),
                ("{a => b}/c.rs".to_owned(), 0),
            ]
        );
        // A body is missing, and the lock file is not counted.
        assert_eq!(problems(&commits[1]).len(), 1);
        // A binary file, and a commit that moves the start.
        assert_eq!(problems(&commits[2]).len(), 2);
    }
}
