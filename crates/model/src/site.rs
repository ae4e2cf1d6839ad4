//! Whether two hosts belong to one owner, by the public suffix list.
//!
//! The list is compiled in (`psl`), so that the answer needs no network and is the same everywhere. It
//! knows where strangers have names side by side: `a.github.io` and `b.github.io`, `a.co.uk` and
//! `b.co.uk`. A suffix that it does not know (`internal`, `corp`) tells nothing of who owns what.

use crate::host::Host;

/// Whether both are the same host, or names below one domain that somebody has registered.
pub fn is_same_site(one: &Host, other: &Host) -> bool {
    if one == other {
        return true;
    }
    match (registrable(one), registrable(other)) {
        (Some(one), Some(other)) => one == other,
        _ => false,
    }
}

/// The domain that somebody has registered, for a name below a public suffix that is known.
fn registrable(host: &Host) -> Option<&str> {
    let Host::Name(name) = host else {
        return None;
    };
    psl::domain_str(name).filter(|_| {
        let suffix = psl::suffix(name.as_bytes());
        suffix.is_some_and(|suffix| suffix.is_known())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_one_owner_are_one_site() {
        for (one, other, same) in [
            ("a.example.com", "a.example.com", true),
            ("A.Example.com.", "a.example.com", true),
            ("registry.example.com", "auth.example.com", true),
            ("registry.example.com", "example.com", true),
            ("example.com", "a.b.example.com", true),
            ("registry.example.co.uk", "auth.example.co.uk", true),
            // Strangers below one public suffix.
            ("a.co.uk", "b.co.uk", false),
            ("a.github.io", "b.github.io", false),
            ("a.github.io", "github.io", false),
            ("a.com", "b.com", false),
            ("example.com", "com", false),
            ("evil.example", "registry.example", false),
            ("a.s3.amazonaws.com", "b.s3.amazonaws.com", false),
            // Names that only look alike.
            ("example.com", "notexample.com", false),
            ("example.com", "example.com.evil.org", false),
            ("example.com", "example.org", false),
            // A suffix that nobody knows.
            ("a.corp.internal", "b.corp.internal", false),
            ("a.corp.internal", "a.corp.internal", true),
            ("a.cluster.local", "b.cluster.local", false),
            ("localhost", "localhost", true),
            ("localhost", "a.localhost", false),
            // Addresses.
            ("10.0.0.1", "10.0.0.1", true),
            ("::ffff:10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "11.0.0.1", false),
            ("10.0.0.1", "localhost", false),
            ("[::1]", "127.0.0.1", false),
        ] {
            let read = |text: &str| Host::parse(text).expect(text);
            let (one, other) = (read(one), read(other));
            assert_eq!(is_same_site(&one, &other), same, "{one} {other}");
            assert_eq!(is_same_site(&other, &one), same, "{other} {one}");
        }
    }
}
