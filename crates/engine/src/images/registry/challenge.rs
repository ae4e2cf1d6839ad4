//! What a registry asks for in `WWW-Authenticate`, and forms for whoever gives tokens.
//!
//! HOSTILE: a registry writes it. What does not read as one list of challenges is none.

/// BOUND: parameters that are kept.
const PARAMETERS: usize = 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Challenge {
    /// In small letters.
    pub scheme: String,
    parameters: Vec<(String, String)>,
}

impl Challenge {
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.parameters.iter().find(|(its, _)| its == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// `Bearer realm="…",service="…", Basic realm="…"`.
pub(super) fn read(text: &str) -> Vec<Challenge> {
    let mut challenges: Vec<Challenge> = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (word, after) = word(rest);
        if word.is_empty() {
            return challenges;
        }
        match after.strip_prefix('=') {
            Some(after) => {
                let Some((value, after)) = value(after) else {
                    return challenges;
                };
                let Some(challenge) = challenges.last_mut() else {
                    return challenges;
                };
                if challenge.parameters.len() < PARAMETERS {
                    challenge
                        .parameters
                        .push((word.to_ascii_lowercase(), value));
                }
                rest = after;
            }
            None => {
                challenges.push(Challenge {
                    scheme: word.to_ascii_lowercase(),
                    parameters: Vec::new(),
                });
                rest = after;
            }
        }
        rest = rest.trim_start_matches([' ', '\t', ',']);
    }
    challenges
}

fn word(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !"!#$%&'*+-.^_`|~".contains(c));
    text.split_at(end.unwrap_or(text.len()))
}

/// A word, or a text in quotation marks.
fn value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let (word, rest) = word(text);
        return (!word.is_empty()).then(|| (word.to_owned(), rest));
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '"' => return Some((value, &quoted[at + 1..])),
            '\\' => value.push(characters.next()?.1),
            c => value.push(c),
        }
    }
    None
}

/// Pairs as forms and queries have them.
pub(super) fn form(pairs: &[(&str, &str)]) -> String {
    let encode = |text: &str| -> String {
        text.bytes()
            .map(|byte| match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                    char::from(byte).to_string()
                }
                byte => format!("%{byte:02X}"),
            })
            .collect()
    };
    let pairs: Vec<String> = pairs
        .iter()
        .map(|(name, value)| format!("{}={}", encode(name), encode(value)))
        .collect();
    pairs.join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read() {
        let text = r#"Bearer realm="https://auth.example/token",service="a \"b\"" ,scope="x:y,z:pull", BASIC realm=plain"#;
        let found = read(text);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].scheme, "bearer");
        assert_eq!(found[0].get("realm"), Some("https://auth.example/token"));
        assert_eq!(found[0].get("service"), Some("a \"b\""));
        assert_eq!(found[0].get("scope"), Some("x:y,z:pull"));
        assert_eq!(found[1].scheme, "basic");
        assert_eq!(found[1].get("realm"), Some("plain"));
        for (bad, count) in [
            ("", 0),
            ("=", 0),
            ("realm=\"x\"", 0),
            ("Bearer realm=\"unended", 1),
            ("Bearer realm=", 1),
            ("Bearer \u{e9}", 1),
            ("\"", 0),
        ] {
            let found = read(bad);
            assert_eq!(found.len(), count, "{bad}");
            assert!(found.iter().all(|c| c.get("realm").is_none()), "{bad}");
        }
    }

    #[test]
    fn forms_keep_everything_in_its_place() {
        assert_eq!(
            form(&[("a", "b&c=d e/\u{e9}"), ("f", "g~")]),
            "a=b%26c%3Dd%20e%2F%C3%A9&f=g~"
        );
    }
}
