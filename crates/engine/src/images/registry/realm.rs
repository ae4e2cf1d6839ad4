//! Where a registry may send us for a token, and what may be taken for one.
//!
//! HOSTILE: a registry writes the address, and gets the token that is found there. So an address of
//! somebody else would carry that somebody's answer to the registry.

use ringfence_model::host::Host;
use ringfence_model::site::is_same_site;
use serde_json::{Map, Value};
use zeroize::Zeroizing;

use crate::web::Address;

/// BOUND: tokens with a hundred scopes in them have some 8 KiB.
const TOKEN: usize = 16 << 10;

/// Where the registry itself is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// On the open network.
    Open,
    /// On this machine or a private network, by the user's own wish.
    Private,
}

/// Why no token is asked for there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Everybody on the way would read the credentials.
    Plain(&'static str),
    /// It is another's server, unless the user says that it is the registry's.
    Elsewhere(&'static str),
}

/// Whether a token may be asked for there.
pub(super) fn refusal(registry: &Address, realm: &Address, place: Place) -> Option<Refusal> {
    if registry.is_secure() && !realm.is_secure() {
        return Some(Refusal::Plain("it is not `https`"));
    }
    if realm.same_origin(registry) {
        return None;
    }
    if place == Place::Private {
        // Other services of that network are nobody's to name but the user's.
        return Some(Refusal::Elsewhere(
            "the registry is on this machine or a private network, and this is another server",
        ));
    }
    match (Host::parse(registry.host()), Host::parse(realm.host())) {
        (Ok(one), Ok(other)) if is_same_site(&one, &other) => None,
        _ => Some(Refusal::Elsewhere("it is not on the registry's own site")),
    }
}

/// The token in what a server of tokens answers, if it is one as RFC 6750 has it: nothing else can be
/// sent on.
pub(super) fn token(answer: &Map<String, Value>) -> Option<Zeroizing<String>> {
    let text = |key: &str| answer.get(key)?.as_str().filter(|text| !text.is_empty());
    let token = text("token").or_else(|| text("access_token"))?;
    let body = token.trim_end_matches('=');
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/".contains(&byte);
    let good = !body.is_empty() && token.len() <= TOKEN && body.bytes().all(plain);
    good.then(|| Zeroizing::new(token.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::web::PlainHttp;

    #[test]
    fn a_realm_is_on_the_site_of_its_registry() {
        use Place::{Open, Private};
        for (registry, realm, place, good) in [
            (
                "https://reg.example.com",
                "https://reg.example.com/token",
                Open,
                true,
            ),
            (
                "https://reg.example.com",
                "https://REG.example.com:443/token",
                Open,
                true,
            ),
            (
                "https://reg.example.com:5000",
                "https://reg.example.com/token",
                Open,
                true,
            ),
            (
                "https://reg-1.docker.io",
                "https://auth.docker.io/token",
                Open,
                true,
            ),
            (
                "https://registry.gitlab.com",
                "https://gitlab.com/jwt/auth",
                Open,
                true,
            ),
            (
                "https://public.ecr.aws",
                "https://public.ecr.aws/token/",
                Open,
                true,
            ),
            (
                "http://reg.example.com",
                "http://reg.example.com/token",
                Open,
                true,
            ),
            (
                "http://reg.example.com",
                "https://auth.example.com/token",
                Open,
                true,
            ),
            (
                "https://reg.example.com",
                "http://reg.example.com/token",
                Open,
                false,
            ),
            (
                "https://reg.example.com",
                "https://other.org/token",
                Open,
                false,
            ),
            (
                "https://reg.example.com",
                "https://example.com.evil.org/token",
                Open,
                false,
            ),
            (
                "https://evil.github.io",
                "https://other.github.io/token",
                Open,
                false,
            ),
            (
                "https://evil.co.uk",
                "https://other.co.uk/token",
                Open,
                false,
            ),
            (
                "https://reg.example.com",
                "https://127.0.0.1/token",
                Open,
                false,
            ),
            (
                "https://reg.example.com",
                "https://[::1]/token",
                Open,
                false,
            ),
            (
                "https://reg.example.com",
                "https://169.254.169.254/token",
                Open,
                false,
            ),
            (
                "https://reg.example.com",
                "https://localhost/token",
                Open,
                false,
            ),
            (
                "https://reg.example.com",
                "https://2130706433/token",
                Open,
                false,
            ),
            (
                "https://a.corp.internal",
                "https://b.corp.internal/token",
                Open,
                false,
            ),
            (
                "http://127.0.0.1:5000",
                "http://127.0.0.1:5000/token",
                Private,
                true,
            ),
            (
                "http://127.0.0.1:5000",
                "http://127.0.0.1:9/token",
                Private,
                false,
            ),
            (
                "http://127.0.0.1:5000",
                "http://localhost:5000/token",
                Private,
                false,
            ),
            (
                "http://localhost:5000",
                "http://127.0.0.1:5000/token",
                Private,
                false,
            ),
            (
                "http://127.0.0.1:5000",
                "https://reg.example.com/token",
                Private,
                false,
            ),
            (
                "https://reg.example.com",
                "https://vault.example.com/token",
                Private,
                false,
            ),
        ] {
            let read = |text: &str| Address::parse(text, PlainHttp::Allowed).expect(text);
            let refusal = refusal(&read(registry), &read(realm), place);
            assert_eq!(refusal.is_none(), good, "{registry} {realm} {refusal:?}");
        }
    }

    #[test]
    fn only_what_can_be_a_token_is_one() {
        let long = format!(r#"{{"token":"{}"}}"#, "a".repeat(TOKEN + 1));
        for (answer, token) in [
            (r#"{"token":"a.b-c_d~e+f/g=="}"#, Some("a.b-c_d~e+f/g==")),
            (r#"{"access_token":"x","expires_in":300}"#, Some("x")),
            (r#"{"token":"","access_token":"x"}"#, Some("x")),
            (r#"{"token":"a","access_token":"b"}"#, Some("a")),
            (r#"{"token":"a b"}"#, None),
            (r#"{"token":"a\r\nx: y"}"#, None),
            (r#"{"token":"{\"db\":\"password\"}"}"#, None),
            (r#"{"token":"user:password"}"#, None),
            (r#"{"token":"=="}"#, None),
            (r#"{"token":"a=b"}"#, None),
            (r#"{"token":"ä"}"#, None),
            (r#"{"token":{"a":"b"}}"#, None),
            (r#"{"token":["a"]}"#, None),
            (r#"{"secret":"a"}"#, None),
            (r#"["a", "b"]"#, None),
            (r#""a""#, None),
            ("a", None),
            (long.as_str(), None),
        ] {
            let read = serde_json::from_str(answer).ok();
            let read = read.and_then(|answer| super::token(&answer));
            assert_eq!(read.as_ref().map(|token| token.as_str()), token, "{answer}");
        }
    }
}
