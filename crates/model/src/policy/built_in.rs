//! The policies that have a name everywhere: `offline`, `standard` and `online`.

use super::document::{Document, Source};

/// What a file of the host stands on that does not say.
pub const DEFAULT: &str = "standard";

/// Nothing of the caller's, and no network, whatever stands below.
const OFFLINE: &str = "\
[network]
allow = []
[env]
pass = []
";

/// What most people want: no network, the words that programs need to print well, and nothing of
/// what is a credential by its name. `.env.example` and the like are no credentials.
const STANDARD: &str = r#"
[files]
hide = [
    ".env",
    ".env.local",
    ".env.*.local",
    ".env.development",
    ".env.staging",
    ".env.production",
    ".envrc",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.jks",
    "*.keystore",
    "*.kdbx",
    "id_rsa",
    "id_dsa",
    "id_ecdsa",
    "id_ed25519",
    ".netrc",
    ".pypirc",
    ".git-credentials",
    ".pgpass",
    ".htpasswd",
    "**/.aws/credentials",
    "**/.docker/config.json",
    "**/.kube/config",
    "*.tfstate",
]
[env]
pass = ["LANG", "LC_ALL", "LC_CTYPE", "TERM", "COLORTERM", "NO_COLOR", "TZ"]
"#;

/// The same, with every host of the open web.
const ONLINE: &str = r#"
extends = "standard"
[network]
allow = ["*"]
"#;

/// Their names, and what each is.
pub const ALL: [(&str, &str); 3] = [
    ("offline", "no network, no variables of the caller"),
    (
        "standard",
        "no network; credentials are hidden by name; the caller's language and terminal",
    ),
    ("online", "as standard, with every public host of the web"),
];

/// The policy of a name.
pub fn document(name: &str) -> Option<Document> {
    let text = match name {
        "offline" => OFFLINE,
        "standard" => STANDARD,
        "online" => ONLINE,
        _ => return None,
    };
    let source = Source {
        file: name,
        home: None,
    };
    Some(Document::parse(text.as_bytes(), source).expect("a test parses each of them"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::glob::Globs;

    #[test]
    fn each_has_a_policy() {
        for (name, _) in ALL {
            let document = document(name).expect(name);
            for line in &document.extends {
                assert!(super::document(&line.text).is_some(), "{name}");
            }
        }
        assert!(document("open").is_none());
        assert!(document(DEFAULT).is_some());
    }

    #[test]
    fn credentials_are_hidden_and_examples_are_not() {
        let standard = document("standard").expect("it is one");
        let hide: Vec<&str> = standard
            .hide
            .iter()
            .map(|line| line.text.as_str())
            .collect();
        let hidden = Globs::parse(&hide).expect("patterns");
        for (path, expected) in [
            (".env", true),
            ("app/.ENV", true),
            (".env.production", true),
            (".env.test.local", true),
            ("deploy/id_ed25519", true),
            ("certs/server.pem", true),
            (".env.example", false),
            ("id_ed25519.pub", false),
            ("src/env.rs", false),
            ("keys.py", false),
        ] {
            assert_eq!(hidden.matches(path.as_ref()), expected, "{path}");
        }
    }
}
