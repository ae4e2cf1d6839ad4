//! Rust source with comments and literals blanked out, so that a word in them is not code.

/// The same text, line for line, with every comment, string and character literal as spaces.
pub fn blank(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let skip = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if let Some(length) = raw_string(&out, rest) {
            length
        } else if first == '"' {
            quoted(rest, '"')
        } else if first == '\'' {
            character(rest)
        } else {
            0
        };
        if skip == 0 {
            out.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            out.extend(
                rest[..skip]
                    .chars()
                    .map(|c| if c == '\n' { '\n' } else { ' ' }),
            );
            rest = &rest[skip..];
        }
    }
    out
}

/// True where `word` stands in `line` with no letter, digit or underscore beside it.
pub fn has_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(start, _)| {
        !line[..start].ends_with(part) && !line[start + word.len()..].starts_with(part)
    })
}

fn block_comment(rest: &str) -> usize {
    let mut depth = 0usize;
    let mut index = 0;
    while index < rest.len() {
        if rest[index..].starts_with("/*") {
            depth += 1;
            index += 2;
        } else if rest[index..].starts_with("*/") {
            depth -= 1;
            index += 2;
            if depth == 0 {
                return index;
            }
        } else {
            index += rest[index..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// `r"…"`, `r#"…"#`, `br"…"`, `cr"…"`: the length where `rest` starts with one.
fn raw_string(before: &str, rest: &str) -> Option<usize> {
    if before.ends_with(|c: char| c.is_alphanumeric() || c == '_') {
        return None;
    }
    let body = rest
        .strip_prefix("br")
        .or_else(|| rest.strip_prefix("cr"))
        .or_else(|| rest.strip_prefix('r'))?;
    let hashes = body.len() - body.trim_start_matches('#').len();
    let inner = body[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let start = rest.len() - inner.len();
    Some(
        inner
            .find(&end)
            .map_or(rest.len(), |at| start + at + end.len()),
    )
}

fn quoted(rest: &str, mark: char) -> usize {
    let mut escaped = false;
    for (index, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == mark => return index + 1,
            _ => {}
        }
    }
    rest.len()
}

/// A character literal's length, or nothing where the mark begins a lifetime.
fn character(rest: &str) -> usize {
    let mut inside = rest.chars().skip(1);
    match (inside.next(), inside.next()) {
        (Some('\\'), _) => quoted(rest, '\''),
        (Some(c), Some('\'')) => 2 + c.len_utf8(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_is_left() {
        for (source, left) in [
            ("a // unsafe\nb", "a          \nb"),
            ("a /* x /* y */ z */ b", "a                   b"),
            ("f(\"unsafe \\\" x\")", "f(             )"),
            ("r#\"a\"b\"# c", "         c"),
            ("'\"' x", "    x"),
            ("'\\'' x", "     x"),
            ("&'a str", "&'a str"),
            ("bar\"x\"", "bar   "),
        ] {
            assert_eq!(blank(source), left, "{source}");
        }
    }

    #[test]
    fn a_word_has_edges() {
        for (line, found) in [
            ("unsafe {", true),
            ("unsafe_code", false),
            ("not_unsafe", false),
            ("x=unsafe", true),
        ] {
            assert_eq!(has_word(line, "unsafe"), found, "{line}");
        }
    }
}
