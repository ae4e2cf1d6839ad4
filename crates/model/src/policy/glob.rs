//! Patterns of paths, as in a gitignore: one without a slash matches at any depth, case does not
//! matter, and what a pattern matches goes with all that is below it.

use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// What is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GlobError {
    #[error("`{0}` names nothing in a folder")]
    Nothing(String),
    #[error("`{0}`: nothing can be taken out again with `!`; write patterns that do not match it")]
    Negated(String),
    #[error("`{0}` has a name without letters in it, and matches nothing: write one `/`")]
    Gap(String),
    #[error("`{pattern}` is not a pattern")]
    Parse {
        pattern: String,
        #[source]
        source: globset::Error,
    },
}

/// Some patterns, ready to be matched.
#[derive(Clone, Debug)]
pub struct Globs {
    set: GlobSet,
    case: Case,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Folded,
    Exact,
}

impl Globs {
    /// No pattern at all.
    pub fn none() -> Self {
        Self {
            set: GlobSet::empty(),
            case: Case::Exact,
        }
    }

    pub fn parse<T: AsRef<str>>(list: &[T]) -> Result<Self, GlobError> {
        Self::build(list, Case::Folded)
    }

    /// Patterns that select: case matters.
    pub fn exact<T: AsRef<str>>(list: &[T]) -> Result<Self, GlobError> {
        Self::build(list, Case::Exact)
    }

    fn build<T: AsRef<str>>(list: &[T], case: Case) -> Result<Self, GlobError> {
        let mut set = GlobSetBuilder::new();
        for pattern in list {
            let pattern = pattern.as_ref();
            let fail = |source| GlobError::Parse {
                pattern: pattern.to_owned(),
                source,
            };
            // Both sides are folded here: the pattern language would fold the letters of ASCII only,
            // and compile each plain name to an automaton for it.
            let whole = match case {
                Case::Folded => plain(&pattern.to_lowercase())?,
                Case::Exact => plain(pattern)?,
            };
            // `dir/**` is what is in it; the directory itself goes with it.
            for form in [whole.strip_suffix("/**"), Some(&whole)]
                .into_iter()
                .flatten()
            {
                let glob = GlobBuilder::new(form).literal_separator(true).build();
                set.add(glob.map_err(fail)?);
            }
        }
        let fail = |source| GlobError::Parse {
            pattern: String::new(),
            source,
        };
        let set = set.build().map_err(fail)?;
        Ok(Self { set, case })
    }

    pub fn is_empty(&self) -> bool {
        self.set.is_empty()
    }

    /// Whether a path, or a directory above it, is matched.
    pub fn matches(&self, path: &Path) -> bool {
        if self.set.is_empty() {
            return false;
        }
        // A name that is no text has no letters but those of ASCII.
        let folded = match path.to_str() {
            _ if self.case == Case::Exact => path.to_owned(),
            Some(text) => PathBuf::from(text.to_lowercase()),
            None => PathBuf::from(path.as_os_str().to_ascii_lowercase()),
        };
        folded
            .ancestors()
            .filter(|part| !part.as_os_str().is_empty())
            .any(|part| self.set.is_match(part))
    }
}

/// The pattern from the top of the folder.
fn plain(pattern: &str) -> Result<String, GlobError> {
    if pattern.starts_with('!') {
        return Err(GlobError::Negated(pattern.to_owned()));
    }
    if pattern.contains("//") {
        return Err(GlobError::Gap(pattern.to_owned()));
    }
    let bare = pattern.trim_start_matches("./").trim_end_matches('/');
    if bare.is_empty() || bare.split('/').any(|part| part == "..") {
        return Err(GlobError::Nothing(pattern.to_owned()));
    }
    Ok(if bare.contains('/') {
        bare.strip_prefix('/').unwrap_or(bare).to_owned()
    } else {
        format!("**/{bare}")
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn a_pattern_means_what_a_person_means() {
        let patterns = [".env*", "**/*.pem", "secrets/**", "/conf/key", "Clé[A-C]"];
        let globs = Globs::parse(&patterns).unwrap();
        for (path, expected) in [
            (".env", true),
            (".env.local", true),
            ("sub/.ENV", true),
            ("a/b/c.pem", true),
            ("c.pem", true),
            ("secrets", true),
            ("secrets/a/b", true),
            ("sub/secrets/a", false),
            ("conf/key", true),
            ("sub/conf/key", false),
            ("env", false),
            ("cLÉb", true),
            ("cléd", false),
            ("src/main.rs", false),
        ] {
            assert_eq!(globs.matches(Path::new(path)), expected, "{path}");
        }
        let odd = std::ffi::OsStr::from_bytes(b"\xff/K.PEM");
        assert!(globs.matches(Path::new(odd)));
        let exact = Globs::exact(&["src/**/*.py", "Lib", "*.RS"]).unwrap();
        for (path, expected) in [
            ("src/a.py", true),
            ("src/a/b.py", true),
            ("src/a.PY", false),
            ("Lib/x", true),
            ("lib/x", false),
            ("a/b.RS", true),
            ("a/b.rs", false),
        ] {
            assert_eq!(exact.matches(Path::new(path)), expected, "{path}");
        }
        assert!(Globs::parse(&["a["]).is_err());
        assert!(Globs::parse(&["../a"]).is_err());
        assert!(Globs::parse(&["/"]).is_err());
        for gap in ["foo//bar", "//foo", "foo//", "a//**"] {
            let error = Globs::parse(&[gap]).unwrap_err();
            assert_eq!(error, GlobError::Gap(gap.to_owned()));
        }
        for negated in ["!x", "!/a/b"] {
            let error = Globs::parse(&[negated]).unwrap_err();
            assert_eq!(error, GlobError::Negated(negated.to_owned()));
        }
        let inner = Globs::parse(&["a!", "[!b]c"]).unwrap();
        assert!(inner.matches(Path::new("a!")) && inner.matches(Path::new("xc")));
    }
}
