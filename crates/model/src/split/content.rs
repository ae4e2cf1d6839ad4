//! Files by what is in them: an expression that is searched in linear time.

use regex::bytes::{Regex, RegexBuilder};

/// BOUND: bytes of an expression, and of what it is compiled to.
const MAX_EXPRESSION: usize = 4096;
const MAX_COMPILED: usize = 8 << 20;

/// Why a text is no expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    #[error("an empty expression is in every file")]
    Empty,
    #[error("an expression has at most {MAX_EXPRESSION} bytes")]
    TooLong,
    #[error("it is no regular expression: {0}")]
    Parse(String),
    #[error("it grows too large when it is compiled; bound its repetitions")]
    TooLarge,
}

/// An expression. `^` and `$` are the ends of a line.
#[derive(Clone, Debug)]
pub struct Pattern(Regex);

impl Pattern {
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        if text.is_empty() {
            return Err(PatternError::Empty);
        }
        if text.len() > MAX_EXPRESSION {
            return Err(PatternError::TooLong);
        }
        let built = RegexBuilder::new(text)
            .multi_line(true)
            .size_limit(MAX_COMPILED)
            .build();
        built.map(Self).map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => PatternError::TooLarge,
            // The last line says what; those before show where, as we do ourselves.
            error => {
                let text = error.to_string();
                let last = text.lines().last().unwrap_or_default();
                PatternError::Parse(last.trim_start_matches("error: ").to_owned())
            }
        })
    }

    /// Whether it is somewhere in a text.
    pub fn is_in(&self, bytes: &[u8]) -> bool {
        self.0.is_match(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_found_or_refused() {
        let pattern = Pattern::parse(r"^\s*openai\.ChatCompletion").unwrap();
        assert!(pattern.is_in(b"x\n  openai.ChatCompletion.create()\xff"));
        assert!(!pattern.is_in(b"# openai.ChatCompletion"));
        assert_eq!(Pattern::parse("").unwrap_err(), PatternError::Empty);
        assert_eq!(
            Pattern::parse("((a{1000}){1000})").unwrap_err(),
            PatternError::TooLarge
        );
        assert!(matches!(
            Pattern::parse("a(").unwrap_err(),
            PatternError::Parse(_)
        ));
        // Nothing that goes back and tries again.
        assert!(Pattern::parse(r"(a)\1").is_err());
    }
}
