//! What may cross back: patterns of files.
//!
//! They allow, so they are taken at their word: case matters, and a directory whose name fits a
//! pattern lends nothing to what is in it. Else `**/*.py` would let out `evil.py/anything`.

use std::path::Path;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// What is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    #[error("`{0}` names nothing in a folder")]
    Nothing(String),
    #[error("`{pattern}` is not a pattern")]
    Parse {
        pattern: String,
        #[source]
        source: globset::Error,
    },
}

/// Patterns of files that may cross back.
#[derive(Clone, Debug)]
pub struct Export(GlobSet);

impl Export {
    /// Reads patterns as in a gitignore: one without a slash matches at any depth. One without
    /// stars and brackets is a file, or a directory with all that is below it.
    pub fn parse<T: AsRef<str>>(list: &[T]) -> Result<Self, ExportError> {
        let mut set = GlobSetBuilder::new();
        let fail = |pattern: &str| {
            let pattern = pattern.to_owned();
            move |source| ExportError::Parse { pattern, source }
        };
        for pattern in list {
            let pattern = pattern.as_ref();
            for form in forms(pattern)? {
                let glob = GlobBuilder::new(&form).literal_separator(true).build();
                set.add(glob.map_err(fail(pattern))?);
            }
        }
        set.build().map(Self).map_err(fail(""))
    }

    /// Whether a file at this path may cross.
    pub fn matches(&self, path: &Path) -> bool {
        self.0.is_match(path)
    }
}

/// The patterns, from the top of the folder, that one stands for.
fn forms(pattern: &str) -> Result<Vec<String>, ExportError> {
    let bare = pattern.trim_start_matches("./");
    let plain = bare.trim_end_matches('/');
    if plain.is_empty() || plain.split('/').any(|part| matches!(part, "." | "..")) {
        return Err(ExportError::Nothing(pattern.to_owned()));
    }
    let whole = if plain.contains('/') {
        plain.strip_prefix('/').unwrap_or(plain).to_owned()
    } else {
        format!("**/{plain}")
    };
    let is_directory = plain.len() < bare.len();
    let is_pattern = plain.contains(['*', '?', '[', ']', '{', '}', '\\']);
    let below = format!("{whole}/**");
    Ok(match (is_directory, is_pattern) {
        (true, _) => vec![below],
        (false, true) => vec![whole],
        (false, false) => vec![whole, below],
    })
}

/// Whether all that the inner pattern lets cross is surely let by the outer one.
///
/// `false` says nothing: patterns with more than stars are only compared letter by letter.
pub fn covers(outer: &str, inner: &str) -> bool {
    let (Ok(outer), Ok(inner)) = (forms(outer), forms(inner)) else {
        return false;
    };
    inner
        .iter()
        .all(|inner| outer.iter().any(|outer| covers_form(outer, inner)))
}

fn covers_form(outer: &str, inner: &str) -> bool {
    let richer = |text: &str| text.contains(['?', '[', ']', '{', '}', '\\', '!']);
    // What is in a directory has at least one name more than the directory.
    let below = |text: &str| {
        if text.ends_with("/**") {
            format!("{text}/*")
        } else {
            text.to_owned()
        }
    };
    outer == inner
        || !richer(outer)
            && !richer(inner)
            && super::network::covers_segments(&below(outer), &below(inner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_pattern_covers_another() {
        for (outer, inner, expected) in [
            ("**/*.py", "src/**/*.py", true),
            ("*.py", "a*.py", true),
            ("src/**", "src/a/b.py", true),
            ("src/**", "src/a/**", true),
            ("src/**", "src/**", true),
            ("docs", "docs/*.md", true),
            ("docs/", "docs/x/", true),
            ("src/*", "src/a*", true),
            ("**", "x/y", true),
            ("**", "src", true),
            ("a[b]", "a[b]", true),
            // A file of that name, or below that name, is more.
            ("src/**", "src", false),
            ("src/*", "src/a", false),
            ("*.d", "a.d/x", false),
            ("*.py", "src/**/*.PY", false),
            ("src/*", "src/**", false),
            ("*.py", "*.p*", false),
            ("src/**/*.py", "**/*.py", false),
            ("*]x", "[a]x", false),
            ("{a,b}", "a", false),
        ] {
            assert_eq!(covers(outer, inner), expected, "{outer} {inner}");
        }
    }

    proptest! {
        #[test]
        fn what_covers_matches_all_of_it(
            outer in "[ab*]{1,3}(/[ab*]{1,3}){0,3}/?",
            inner in "[ab*]{1,3}(/[ab*]{1,3}){0,3}/?",
            path in "[ab]{1,3}(/[ab]{1,3}){0,3}",
        ) {
            if covers(&outer, &inner)
                && let (Ok(outer), Ok(inner)) = (Export::parse(&[&outer]), Export::parse(&[&inner]))
                && inner.matches(Path::new(&path))
            {
                prop_assert!(outer.matches(Path::new(&path)));
            }
        }
    }

    #[test]
    fn what_crosses_is_what_a_pattern_says_and_no_more() {
        for (pattern, path, expected) in [
            ("**/*.py", "a.py", true),
            ("**/*.py", "a/b/c.py", true),
            ("*.py", "a/b/c.py", true),
            ("*.py", "evil.py/run.sh", false),
            ("*.py", "A.PY", false),
            ("*.py", "a.pyc", false),
            ("src/**", "src/a/b", true),
            ("src/**", "src", false),
            ("src/**", "sub/src/a", false),
            ("src/**", "srcs/a", false),
            ("/src/*.c", "src/a.c", true),
            ("src/*.c", "src/a/b.c", false),
            ("docs", "docs/a/b", true),
            ("docs", "sub/docs/a", true),
            ("docs/", "docs/a", true),
            ("docs/", "docs", false),
            ("Makefile", "sub/Makefile", true),
            ("./a/b", "a/b", true),
            ("a/{b,c}", "a/c", true),
            ("**", "anything/at/all", true),
        ] {
            let export = Export::parse(&[pattern]).unwrap();
            assert_eq!(
                export.matches(Path::new(path)),
                expected,
                "{pattern} {path}"
            );
        }
        for pattern in ["", "/", "../a", "a/../b", "a["] {
            assert!(Export::parse(&[pattern]).is_err(), "{pattern}");
        }
        let nothing = Export::parse::<&str>(&[]).unwrap();
        assert!(!nothing.matches(Path::new("a")));
    }
}
