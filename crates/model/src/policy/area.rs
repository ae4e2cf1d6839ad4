//! Areas of the workspace that the kernel can hold: a path, and all that is below it.
//!
//! Two areas are one inside the other or have nothing in common, so what two lists of them allow
//! together is a list of them again.

use std::fmt;

/// A path of the workspace with all below it; no name at all is the whole workspace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Area(Vec<String>);

/// What is no area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AreaError {
    #[error(
        "the kernel cannot hold this pattern: write a path or `dir/**`; `export` takes any pattern, and is checked when the changes come out"
    )]
    Pattern,
    #[error("a path of the workspace is meant, from its top, without `..`")]
    Path,
}

impl Area {
    /// Reads `path`, `dir/` or `dir/**`; `**` is the whole workspace.
    pub fn parse(text: &str) -> Result<Self, AreaError> {
        let path = match text {
            "**" | "." | "./" => return Ok(Self(Vec::new())),
            text => text.strip_suffix("/**").unwrap_or(text),
        };
        let path = path.strip_prefix("./").unwrap_or(path);
        let path = path.strip_suffix('/').unwrap_or(path);
        if path.contains(['*', '?', '[', ']', '{', '}', '\\']) {
            return Err(AreaError::Pattern);
        }
        let names: Vec<String> = path.split('/').map(str::to_owned).collect();
        let odd = |name: &String| matches!(name.as_str(), "" | "." | "..");
        if names.iter().any(odd) {
            Err(AreaError::Path)
        } else {
            Ok(Self(names))
        }
    }

    /// Whether all of the other one is in this one.
    pub fn holds(&self, other: &Self) -> bool {
        other.0.starts_with(&self.0)
    }

    /// The same where case does not matter.
    pub fn holds_folded(&self, other: &Self) -> bool {
        let fold = |name: &String| name.to_lowercase();
        self.0.len() <= other.0.len()
            && self
                .0
                .iter()
                .map(fold)
                .eq(other.0[..self.0.len()].iter().map(fold))
    }

    /// The names on the way to it; none for the whole workspace.
    pub fn names(&self) -> &[String] {
        &self.0
    }

    /// How many names it has: the most of them is the most specific.
    pub fn depth(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            f.write_str("**")
        } else {
            f.write_str(&self.0.join("/"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_paths_and_what_is_below() {
        for (text, shown) in [
            ("src/**", "src"),
            ("src", "src"),
            ("src/", "src"),
            ("./src/a b/**", "src/a b"),
            ("**", "**"),
            (".", "**"),
        ] {
            assert_eq!(Area::parse(text).unwrap().to_string(), shown, "{text}");
        }
        for (text, error) in [
            ("**/*.py", AreaError::Pattern),
            ("src/*", AreaError::Pattern),
            ("a?", AreaError::Pattern),
            ("a/**/b", AreaError::Pattern),
            ("{a,b}", AreaError::Pattern),
            ("", AreaError::Path),
            ("/src", AreaError::Path),
            ("/", AreaError::Path),
            ("a//b", AreaError::Path),
            ("../a", AreaError::Path),
            ("a/../b", AreaError::Path),
        ] {
            assert_eq!(Area::parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn one_is_inside_the_other_or_not() {
        let area = |text| Area::parse(text).unwrap();
        assert!(area("src").holds(&area("src/a")));
        assert!(area("**").holds(&area("src")));
        assert!(!area("src/a").holds(&area("src")));
        assert!(!area("src").holds(&area("srcs")));
        assert!(!area("src").holds(&area("SRC/a")));
        assert!(area("src").holds_folded(&area("SRC/a")));
        assert!(!area("src/a").holds_folded(&area("SRC")));
    }
}
