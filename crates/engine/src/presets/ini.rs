//! Settings in sections with `key = value`: pip's and npm's files, with the line of each.

/// One key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Empty before the first section.
    pub section: String,
    pub key: String,
    /// Lines that were indented below follow, each after a newline.
    pub value: String,
    /// From 1.
    pub line: u32,
}

/// How a value may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Continued {
    /// What is indented belongs to the key above, as Python reads it.
    ByIndent,
    /// Each line is its own.
    Never,
}

/// Reads what can be read; a line that is none of it is passed over, as the clients do.
pub(super) fn entries(text: &str, continued: Continued) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut section = String::new();
    let mut open = false;
    for (number, line) in (1..).zip(text.lines()) {
        let words = line.trim();
        if words.is_empty() || words.starts_with(['#', ';']) {
            continue;
        }
        let indented = continued == Continued::ByIndent && line.starts_with([' ', '\t']);
        if let (true, true, Some(last)) = (indented, open, entries.last_mut()) {
            last.value.push('\n');
            last.value.push_str(words);
            continue;
        }
        open = false;
        if let Some(name) = words.strip_prefix('[').and_then(|w| w.strip_suffix(']')) {
            section = name.trim().to_owned();
            continue;
        }
        let at = match continued {
            Continued::ByIndent => words.find(['=', ':']),
            // A key of npm may have colons of its own.
            Continued::Never => words.find('='),
        };
        let Some(at) = at else {
            continue;
        };
        let value = words[at + 1..].trim();
        entries.push(Entry {
            section: section.clone(),
            key: words[..at].trim().to_owned(),
            value: value.trim_matches(['"', '\'']).to_owned(),
            line: number,
        });
        open = true;
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, continued: Continued) -> Vec<(String, String, String, u32)> {
        entries(text, continued)
            .into_iter()
            .map(|entry| (entry.section, entry.key, entry.value, entry.line))
            .collect()
    }

    #[test]
    fn sections_keys_and_what_follows() {
        let text = "; note\n[global]\nindex-url = https://a/\nextra-index-url =\n  https://b/\n\n  # no\n  https://c/\n[install]\nx: 1\nnonsense\n  more\n";
        let own = |section: &str, key: &str, value: &str, line| {
            (section.to_owned(), key.to_owned(), value.to_owned(), line)
        };
        assert_eq!(
            read(text, Continued::ByIndent),
            [
                own("global", "index-url", "https://a/", 3),
                own("global", "extra-index-url", "\nhttps://b/\nhttps://c/", 4),
                own("install", "x", "1", 10),
            ]
        );
        assert_eq!(
            read(
                "@s:registry=https://a/\n  //h/:_authToken=\"x\"\n",
                Continued::Never
            ),
            [
                own("", "@s:registry", "https://a/", 1),
                own("", "//h/:_authToken", "x", 2),
            ]
        );
    }
}
