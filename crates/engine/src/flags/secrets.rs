//! Secrets in added lines, by the shapes that they are known to have, and the canary of this host.
//!
//! A value is never repeated: evidence has the place and the first digits of its hash, by which two
//! places with the same value can be told to have it.

use aho_corasick::AhoCorasick;
use memchr::memmem;
use ringfence_model::flag::{FlagKind, Severity};
use sha2::{Digest as _, Sha256};

use super::scan::{Line, Sign};
use super::{Found, line_of, paths};

/// Which bytes follow a prefix.
#[derive(Clone, Copy)]
enum Of {
    Upper,
    Alnum,
    Word,
    Dotted,
    Hex,
}

impl Of {
    fn has(self, byte: u8) -> bool {
        match self {
            Self::Upper => byte.is_ascii_uppercase() || byte.is_ascii_digit(),
            Self::Alnum => byte.is_ascii_alphanumeric(),
            Self::Word => byte.is_ascii_alphanumeric() || b"_-".contains(&byte),
            Self::Dotted => byte.is_ascii_alphanumeric() || b"_-.".contains(&byte),
            Self::Hex => byte.is_ascii_hexdigit(),
        }
    }
}

/// The characters of most tokens.
pub(crate) const ALPHANUMERIC: &[u8] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The longest well-known prefix that a token begins with, and characters that may follow it.
pub(crate) fn known_prefix(token: &[u8]) -> Option<(&'static str, &'static [u8])> {
    let begins = SHAPES
        .iter()
        .filter(|shape| token.starts_with(shape.0.as_bytes()));
    let (prefix, of, ..) = begins.max_by_key(|shape| shape.0.len())?;
    let characters = match of {
        Of::Upper => &ALPHANUMERIC[..36],
        Of::Hex => b"0123456789abcdef",
        Of::Alnum | Of::Word | Of::Dotted => ALPHANUMERIC,
    };
    Some((*prefix, characters))
}

/// Prefix, what follows, how many of it at least and at most, what it is.
type Shape = (&'static str, Of, usize, usize, &'static str);

#[rustfmt::skip]
const SHAPES: &[Shape] = &[
    ("AKIA", Of::Upper, 16, 16, "access key id of AWS"),
    ("ASIA", Of::Upper, 16, 16, "access key id of AWS"),
    ("ghp_", Of::Alnum, 36, 255, "token of GitHub"),
    ("gho_", Of::Alnum, 36, 255, "token of GitHub"),
    ("ghu_", Of::Alnum, 36, 255, "token of GitHub"),
    ("ghs_", Of::Alnum, 36, 255, "token of GitHub"),
    ("ghr_", Of::Alnum, 36, 255, "token of GitHub"),
    ("github_pat_", Of::Word, 60, 255, "token of GitHub"),
    ("glpat-", Of::Dotted, 20, 80, "token of GitLab"),
    ("glrt-", Of::Dotted, 20, 80, "token of GitLab"),
    ("gldt-", Of::Dotted, 20, 80, "token of GitLab"),
    ("glptt-", Of::Dotted, 40, 80, "token of GitLab"),
    ("xoxb-", Of::Word, 20, 255, "token of Slack"),
    ("xoxp-", Of::Word, 20, 255, "token of Slack"),
    ("xoxa-", Of::Word, 20, 255, "token of Slack"),
    ("xoxr-", Of::Word, 20, 255, "token of Slack"),
    ("xoxs-", Of::Word, 20, 255, "token of Slack"),
    ("xapp-", Of::Word, 20, 255, "token of Slack"),
    ("sk_live_", Of::Alnum, 20, 255, "secret key of Stripe"),
    ("rk_live_", Of::Alnum, 20, 255, "secret key of Stripe"),
    ("sk-ant-", Of::Word, 24, 255, "key of Anthropic"),
    ("sk-proj-", Of::Word, 24, 255, "key of OpenAI"),
    ("sk-svcacct-", Of::Word, 24, 255, "key of OpenAI"),
    ("sk-", Of::Alnum, 48, 48, "key of OpenAI"),
    ("AIza", Of::Word, 35, 35, "key of Google"),
    ("ya29.", Of::Word, 40, 255, "token of Google"),
    ("GOCSPX-", Of::Word, 28, 28, "client secret of Google"),
    ("npm_", Of::Alnum, 36, 36, "token of npm"),
    ("pypi-AgE", Of::Word, 50, 255, "token of PyPI"),
    ("hf_", Of::Alnum, 34, 40, "token of Hugging Face"),
    ("SG.", Of::Dotted, 60, 70, "key of SendGrid"),
    ("dop_v1_", Of::Hex, 64, 64, "token of DigitalOcean"),
    ("shpat_", Of::Hex, 32, 32, "token of Shopify"),
    ("dckr_pat_", Of::Word, 20, 60, "token of Docker"),
    ("hvs.", Of::Word, 24, 255, "token of Vault"),
    ("lin_api_", Of::Alnum, 32, 60, "key of Linear"),
    ("dapi", Of::Hex, 32, 34, "token of Databricks"),
    ("AGE-SECRET-KEY-1", Of::Upper, 58, 58, "secret key of age"),
];

/// Found by themselves, after the shapes.
const KEY_BLOCK: &str = "-----BEGIN ";
const JWT: &str = "eyJ";

/// Names of what should not be written down, in lower case.
const NAMES: &[&str] = &[
    "password",
    "passwd",
    "secret",
    "api_key",
    "apikey",
    "api-key",
    "access_key",
    "auth_token",
    "access_token",
    "private_key",
    "client_secret",
];

#[derive(Debug)]
pub struct Secrets {
    prefixes: AhoCorasick,
    names: AhoCorasick,
    canary: Option<Vec<u8>>,
}

impl Secrets {
    pub fn new(canary: Option<&[u8]>) -> Self {
        let prefixes = SHAPES.iter().map(|shape| shape.0).chain([KEY_BLOCK, JWT]);
        Self {
            prefixes: AhoCorasick::new(prefixes).expect("the table is small"),
            names: AhoCorasick::builder()
                .ascii_case_insensitive(true)
                .build(NAMES)
                .expect("the table is small"),
            canary: canary.map(<[u8]>::to_vec),
        }
    }

    pub(super) fn line(&self, line: &Line<'_>, found: &mut Found) {
        if line.sign != Sign::Added {
            return;
        }
        if let Some(canary) = &self.canary
            && memmem::find(line.text, canary).is_some()
        {
            found.add(
                FlagKind::CanaryAdded,
                Severity::Serious,
                "the patch holds a text of this host that no sandbox can read",
                line_of(line, None),
            );
        }
        let mut seen = false;
        for at in self.prefixes.find_overlapping_iter(line.text) {
            let index = at.pattern().as_usize();
            let start = at.start();
            let before = start.checked_sub(1).map(|before| line.text[before]);
            let found_here = match SHAPES.get(index) {
                // The letters before would belong to it.
                Some(_) if before.is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_') => None,
                Some(shape) => shaped(&line.text[start..], shape),
                None if index == SHAPES.len() => key_block(&line.text[start..]),
                // Begun within what could be one: looked at already.
                None if before.is_some_and(|b| Of::Dotted.has(b)) => None,
                None => jwt(&line.text[start..]),
            };
            if let Some((what, severity, value)) = found_here {
                seen = true;
                let article = if what.starts_with(['a', 'e', 'i', 'o']) {
                    "an"
                } else {
                    "a"
                };
                let message = format!("an added line holds what looks like {article} {what}");
                found.add(
                    FlagKind::SecretAdded,
                    severity,
                    message,
                    line_of(line, Some(hash(value))),
                );
            }
        }
        let path = line.change.path.as_bytes();
        if !seen && !paths::is_generated(path) {
            let mut names = self.names.find_iter(line.text);
            let quoted = names.find_map(|at| assigned(&line.text[at.end()..]));
            let value = if paths::is_environment(path) {
                quoted.or_else(|| variable(line.text))
            } else {
                quoted
            };
            if let Some(value) = value {
                found.add(
                    FlagKind::SecretAdded,
                    Severity::Warning,
                    "an added line gives something that is called a secret a value that looks random",
                    line_of(line, Some(hash(value))),
                );
            }
        }
    }
}

/// What it is, how bad, and the value itself.
type Secret<'a> = (&'static str, Severity, &'a [u8]);

fn shaped<'a>(text: &'a [u8], shape: &Shape) -> Option<Secret<'a>> {
    let (prefix, of, least, most, what) = *shape;
    let rest = &text[prefix.len()..];
    // HOSTILE: one prefix after the other; no more is read of each than it may have.
    let length = rest
        .iter()
        .take(most + 1)
        .take_while(|b| of.has(**b))
        .count();
    let value = &text[..prefix.len() + length];
    let fits = (least..=most).contains(&length) && is_varied(&rest[..length]);
    fits.then_some((what, Severity::Serious, value))
}

fn key_block(text: &[u8]) -> Option<Secret<'_>> {
    let head = &text[..text.len().min(80)];
    let end = b"PRIVATE KEY";
    let at = head.windows(end.len()).position(|part| part == end)?;
    let kind = &head[KEY_BLOCK.len()..at];
    let named = kind
        .iter()
        .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || *b == b' ');
    let closed = head[at + end.len()..].starts_with(b"-----")
        || head[at + end.len()..].starts_with(b" BLOCK-----");
    (named && closed).then_some(("private key", Severity::Serious, &head[..at + end.len()]))
}

/// Three parts, the first two of which are JSON.
fn jwt(text: &[u8]) -> Option<Secret<'_>> {
    let length = text
        .iter()
        .position(|&b| !Of::Dotted.has(b))
        .unwrap_or(text.len());
    let value = &text[..length];
    let parts: Vec<&[u8]> = value.split(|&b| b == b'.').collect();
    let [head, body, signature] = parts.as_slice() else {
        return None;
    };
    let fits = head.len() >= 16 && body.starts_with(JWT.as_bytes()) && signature.len() >= 20;
    fits.then_some(("token (JWT)", Severity::Warning, value))
}

/// BOUND: of a value that a person would put into a line.
const MOST: usize = 200;

/// `= "…"`, `: '…'`: a quoted value that looks random.
fn assigned(rest: &[u8]) -> Option<&[u8]> {
    /// BOUND: the end of the name, spaces, the sign.
    const BETWEEN: usize = 24;
    let sign = rest.iter().take(BETWEEN).position(|b| b"=:".contains(b))?;
    if !rest[..sign]
        .iter()
        .all(|b| b.is_ascii_alphanumeric() || b"_-\"' ]".contains(b))
    {
        return None;
    }
    let value = rest[sign + 1..].trim_ascii_start();
    let value = value
        .strip_prefix(b"=")
        .map_or(value, |v| v.trim_ascii_start());
    let (quote, value) = value.split_first()?;
    if !b"\"'".contains(quote) {
        return None;
    }
    let value = &value[..value.iter().take(MOST + 1).position(|b| b == quote)?];
    let plain = value
        .iter()
        .all(|b| b.is_ascii_alphanumeric() || b"+/=_-.".contains(b));
    let class = |is: fn(&u8) -> bool| value.iter().any(is);
    let mixed =
        class(u8::is_ascii_digit) && class(u8::is_ascii_lowercase) && class(u8::is_ascii_uppercase);
    let random = (20..=MOST).contains(&value.len()) && plain && mixed && is_varied(value);
    (random && entropy(value) >= 4.0).then_some(value)
}

/// `NAME=value` of a file of variables: no quotes are needed, and keys and tokens are what it is for.
fn variable(line: &[u8]) -> Option<&[u8]> {
    const CALLED: &[&[u8]] = &[
        b"KEY",
        b"TOKEN",
        b"SECRET",
        b"PASS",
        b"PWD",
        b"CREDENTIAL",
        b"AUTH",
    ];
    let line = line.trim_ascii();
    let line = line.strip_prefix(b"export ").unwrap_or(line);
    let sign = line.iter().position(|&b| b == b'=')?;
    let (name, value) = (line[..sign].trim_ascii(), line[sign + 1..].trim_ascii());
    let upper = name.to_ascii_uppercase();
    let called = CALLED
        .iter()
        .any(|word| upper.windows(word.len()).any(|part| part == *word));
    let end = value.iter().position(u8::is_ascii_whitespace);
    let value = &value[..end.unwrap_or(value.len())];
    let plain = value
        .iter()
        .all(|b| b.is_ascii_alphanumeric() || b"+/=_-.".contains(b));
    let mixed = value.iter().any(u8::is_ascii_digit) && value.iter().any(u8::is_ascii_alphabetic);
    let random = (20..=MOST).contains(&value.len()) && plain && mixed && is_varied(value);
    (called && random && entropy(value) >= 3.5).then_some(value)
}

/// False for examples and placeholders.
fn is_varied(value: &[u8]) -> bool {
    let mut seen = [false; 256];
    for byte in value {
        seen[usize::from(*byte)] = true;
    }
    let upper = value.to_ascii_uppercase();
    let holds = |mark: &[u8]| upper.windows(mark.len()).any(|part| part == mark);
    let placeholder = [
        &b"EXAMPLE"[..],
        b"PLACEHOLDER",
        b"XXXX",
        b"YOUR",
        b"DUMMY",
        b"REDACTED",
        b"0123456789",
        b"1234567890",
        b"ABCDEFGH",
    ];
    seen.iter().filter(|seen| **seen).count() >= 8 && !placeholder.iter().any(|mark| holds(mark))
}

/// Bits for each byte.
fn entropy(value: &[u8]) -> f64 {
    let mut counts = [0_u32; 256];
    for byte in value {
        counts[usize::from(*byte)] += 1;
    }
    let length = value.len() as f64;
    let share = |count: &u32| f64::from(*count) / length;
    let used = counts.iter().filter(|count| **count > 0);
    -used
        .map(|count| share(count) * share(count).log2())
        .sum::<f64>()
}

fn hash(value: &[u8]) -> String {
    let hash = ringfence_model::hex(&Sha256::digest(value));
    format!("sha256 begins with {}", &hash[..8])
}

#[cfg(test)]
mod tests {
    use super::super::tests::World;

    /// Put together here, so that nobody takes this file for one that holds secrets.
    fn varied(length: usize) -> String {
        let letters = "q7Wm2ZtR9bXc4VnK6dLs8GhJ3fPy5TaQ1eUoi0";
        letters.chars().cycle().take(length).collect()
    }

    fn kinds(path: &str, line: &str) -> Vec<String> {
        World::of(&[(path, "modified")]).kinds(&[line])
    }

    #[test]
    fn shapes_are_found_and_values_are_not_repeated() {
        let upper = varied(16).to_uppercase();
        let hex = "0a1b2c3d4e5f6789".repeat(4);
        for value in [
            format!("AK{}{upper}", "IA"),
            format!("gh{}{}", "p_", varied(36)),
            format!("github{}{}", "_pat_", varied(82)),
            format!("gl{}{}", "pat-", varied(20)),
            format!("xo{}{}", "xb-", varied(40)),
            format!("sk{}{}", "_live_", varied(24)),
            format!("sk{}{}", "-ant-api03-", varied(60)),
            format!("sk{}{}", "-proj-", varied(60)),
            format!("AI{}{}", "za", varied(35)),
            format!("np{}{}", "m_", varied(36)),
            format!("py{}{}", "pi-AgE", varied(80)),
            format!("dop{}{hex}", "_v1_"),
            format!("-----BEGIN {} KEY-----", "RSA PRIVATE"),
            format!("-----BEGIN {} KEY-----", "PRIVATE"),
        ] {
            for line in [format!("+{value}"), format!("+key = \"{value}\",")] {
                let flags = World::of(&[("a.py", "modified")]).flags(&[&line]);
                assert_eq!(flags.len(), 1, "{line}: {flags:?}");
                let text = serde_json::to_string(&flags).unwrap();
                assert!(
                    text.contains("serious") && text.contains("sha256 begins"),
                    "{text}"
                );
                assert!(
                    !text.contains(&value[value.len() - 12..]) || value.ends_with("-----"),
                    "{text}"
                );
            }
            assert_eq!(
                kinds("a.py", &format!("-{value}")),
                [""; 0],
                "removed: {value}"
            );
        }
        let jwt = format!("+{0}{1}.{0}{1}.{1}", "eyJ", varied(30));
        assert_eq!(kinds("a.py", &jwt), ["warning secret_added"]);
    }

    #[test]
    fn what_only_looks_like_one_is_left_alone() {
        for line in [
            format!("+AK{}IOSFODNN7EXAMPLE", "IA"),
            format!("+gh{}{}", "p_", "x".repeat(36)),
            format!("+XAK{}{}", "IA", varied(16).to_uppercase()),
            format!("+AK{}{}", "IA", varied(30).to_uppercase()),
            "+task-scheduler sk-learn npm_config_registry hf_transfer".to_owned(),
            "+-----BEGIN CERTIFICATE-----".to_owned(),
            "+-----BEGIN PUBLIC KEY-----".to_owned(),
            "+eyJust a word".to_owned(),
        ] {
            assert_eq!(kinds("a.py", &line), [""; 0], "{line}");
        }
    }

    #[test]
    fn random_values_of_secrets_are_told_with_care() {
        let value = varied(32);
        for (path, line, told) in [
            ("a.py", format!("+PASSWORD = \"{value}\""), true),
            ("a.yaml", format!("+  client_secret: '{value}'"), true),
            ("a.json", format!("+  \"api_key\": \"{value}\","), true),
            (
                "a.py",
                "+password = \"correct horse battery staple\"".to_owned(),
                false,
            ),
            (
                "a.py",
                "+password = os.environ[\"PASSWORD_OF_THE_DATABASE_1\"]".to_owned(),
                false,
            ),
            (
                "a.py",
                "+password = get_password(\"Some1Name2OfAService3X\")".to_owned(),
                false,
            ),
            ("a.py", format!("+hash = \"{value}\""), false),
            (
                "a.py",
                "+secret = \"your-secret-goes-here-1234A\"".to_owned(),
                false,
            ),
            (
                "package-lock.json",
                format!("+\"api_key\": \"{value}\""),
                false,
            ),
        ] {
            let expected: &[&str] = if told { &["warning secret_added"] } else { &[] };
            assert_eq!(kinds(path, &line), expected, "{line}");
        }
    }

    #[test]
    fn variables_need_no_quotes() {
        let value = varied(32);
        let lower = format!("sk-{}", value.to_lowercase());
        for (path, line, told) in [
            (".env", format!("+KEY={lower}"), true),
            (
                "app/.env.local",
                format!("+export OPENAI_API_KEY={value}"),
                true,
            ),
            ("prod.env", format!("+DB_PASSWORD = {value} # x"), true),
            (".env", format!("+COMMIT={value}"), false),
            (
                ".env",
                "+API_KEY=your-key-goes-here-1234A".to_owned(),
                false,
            ),
            (
                ".env",
                "+TOKEN_URL=https://auth.example/oauth2/token".to_owned(),
                false,
            ),
            (".env", "+API_KEY=".to_owned(), false),
            (
                ".env",
                "+API_KEY=${OTHER_VARIABLE_OF_THE_SHELL_1}".to_owned(),
                false,
            ),
            ("a.py", format!("+KEY={value}"), false),
            ("environment.rs", format!("+KEY={value}"), false),
        ] {
            let expected: &[&str] = if told { &["warning secret_added"] } else { &[] };
            assert_eq!(kinds(path, &line), expected, "{path} {line}");
        }
    }

    #[test]
    fn the_canary_is_found() {
        let mut world = World::of(&[("a", "modified")]);
        world.canary = Some(b"the-canary".to_vec());
        assert_eq!(world.kinds(&["+x the-canary y"]), ["serious canary_added"]);
        assert_eq!(world.kinds(&["+x the canary y", "-the-canary"]), [""; 0]);
    }
}
