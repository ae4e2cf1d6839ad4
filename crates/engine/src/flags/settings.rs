//! Settings of git and of editors that name nothing to be run.
//!
//! HOSTILE: only what is known to be harmless is; anything else may run something.

use serde_json::{Map, Value};

use super::gather::Sides;
use super::paths;

/// Attributes that choose among what git does by itself.
const ATTRIBUTES: &[&str] = &[
    "text",
    "eol",
    "crlf",
    "binary",
    "diff",
    "whitespace",
    "encoding",
    "working-tree-encoding",
    "export-ignore",
    "export-subst",
    "conflict-marker-size",
    "delta",
    "ident",
];

/// Kinds of files for which git has a way to show differences.
const DIFFS: &[&str] = &[
    "ada", "bash", "bibtex", "cpp", "csharp", "css", "dts", "elixir", "fortran", "fountain",
    "golang", "html", "java", "kotlin", "markdown", "matlab", "objc", "pascal", "perl", "php",
    "python", "ruby", "rust", "scheme", "tex",
];

/// How settings of an editor begin that are about text and windows only.
const EDITOR: &[&str] = &["editor.", "diffEditor.", "files.", "search.", "explorer."];

/// True for a file of which it is worth to know what it says.
pub(super) fn is_settings(path: &[u8]) -> bool {
    is_attributes(path) || is_editors(path)
}

fn is_attributes(path: &[u8]) -> bool {
    paths::name(path) == ".gitattributes"
}

fn is_editors(path: &[u8]) -> bool {
    let whole = String::from_utf8_lossy(path).to_lowercase();
    whole == ".vscode/settings.json" || whole.ends_with("/.vscode/settings.json")
}

/// Whether what is new in it runs nothing.
pub(super) fn is_harmless(path: &[u8], sides: &Sides) -> bool {
    let Some(new) = &sides.new else {
        return false;
    };
    if is_attributes(path) {
        return std::str::from_utf8(new).is_ok_and(|text| text.lines().all(is_plain_attribute));
    }
    let parse = |text: &[u8]| serde_json::from_slice::<Map<String, Value>>(text).ok();
    let old = sides.old.as_deref().map_or(Some(Map::new()), parse);
    let (Some(old), Some(new)) = (old, parse(new)) else {
        return false;
    };
    is_editors(path) && are_plain(&old, &new)
}

fn is_plain_attribute(line: &str) -> bool {
    let line = line.trim();
    // A macro, or a name in quotes, which may hold anything.
    if line.starts_with('[') || line.starts_with('"') {
        return false;
    }
    let plain = |word: &str| {
        let word = word.trim_start_matches(['-', '!']);
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        match name {
            "diff" => value.is_empty() || DIFFS.contains(&value),
            _ => ATTRIBUTES.contains(&name) || name.starts_with("linguist-"),
        }
    };
    line.starts_with('#') || line.split_whitespace().skip(1).all(plain)
}

/// What differs is about text only; `[rust]` holds such settings for one language.
fn are_plain(old: &Map<String, Value>, new: &Map<String, Value>) -> bool {
    let mut changed = new
        .iter()
        .filter(|(key, value)| old.get(*key) != Some(*value));
    changed.all(|(key, value)| match value {
        Value::Object(inner) if key.starts_with('[') => are_plain(&Map::new(), inner),
        _ => EDITOR.iter().any(|begin| key.starts_with(begin)),
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::World;
    use super::*;

    fn severity(path: &str, old: Option<&str>, new: &str) -> Vec<String> {
        let mut world = World::of(&[(path, "modified")]);
        let sides = Sides {
            old: old.map(Into::into),
            new: Some(new.into()),
        };
        world.gathered.sides.insert(path.into(), sides);
        world.kinds(&[])
    }

    #[test]
    fn attributes_that_run_nothing_are_good_to_know() {
        for (text, expected) in [
            ("* text=auto eol=lf\n# x\n\n*.png binary\n", "info"),
            (
                "*.rs diff=rust linguist-language=Rust\n*.lock -diff",
                "info",
            ),
            ("*.c filter=evil", "serious"),
            ("*.c diff=evil", "serious"),
            ("*.c merge=evil", "serious"),
            ("[attr]x filter=evil", "serious"),
            ("\"a b\" filter=evil", "serious"),
            ("*.c text\n*.h -text filter=lfs", "serious"),
        ] {
            let found = severity("sub/.gitattributes", None, text);
            assert_eq!(found, [format!("{expected} runs_on_review")], "{text}");
        }
        // What was not read may say anything.
        let world = World::of(&[(".gitattributes", "modified")]);
        assert_eq!(world.kinds(&[]), ["serious runs_on_review"]);
    }

    #[test]
    fn settings_about_text_are_good_to_know() {
        let path = ".vscode/settings.json";
        for (old, new, expected) in [
            (
                None,
                r#"{"editor.tabSize": 2, "[rust]": {"editor.rulers": [100]}}"#,
                "info",
            ),
            (
                Some(r#"{"python.defaultInterpreterPath": "x"}"#),
                r#"{"python.defaultInterpreterPath": "x", "files.eol": "\n"}"#,
                "info",
            ),
            (
                None,
                r#"{"python.defaultInterpreterPath": "./x"}"#,
                "serious",
            ),
            (
                None,
                r#"{"editor.tabSize": 2, "git.path": "./x"}"#,
                "serious",
            ),
            (
                None,
                r#"{"[rust]": {"rust-analyzer.server.path": "./x"}}"#,
                "serious",
            ),
            (None, "{ // a comment\n}", "serious"),
        ] {
            let found = severity(path, old, new);
            assert_eq!(found, [format!("{expected} runs_on_review")], "{new}");
        }
        let found = severity(".vscode/tasks.json", None, "{}");
        assert_eq!(found, ["serious runs_on_review"]);
    }
}
