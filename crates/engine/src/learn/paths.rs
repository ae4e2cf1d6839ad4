//! Paths of requests that differ only in a number, a hash or an id are one pattern.

use std::collections::BTreeSet;

use ringfence_model::policy::network::{PathPattern, RequestPath};

/// BOUND: patterns of one host and method; more are drawn together.
const MAX_PATTERNS: usize = 8;

/// Patterns that match all of these paths, as few and as narrow as is sensible.
pub fn generalise<'a>(paths: impl IntoIterator<Item = &'a RequestPath>) -> Vec<String> {
    let paths: Vec<&RequestPath> = paths.into_iter().collect();
    let by = |shape: &dyn Fn(&str) -> String| -> BTreeSet<String> {
        paths
            .iter()
            .map(|path| {
                let pattern = shape(path.as_str());
                // INVARIANT: a pattern that does not match what it was made of is not used.
                let fits = |pattern: PathPattern| pattern.matches(path);
                if PathPattern::parse(&pattern).is_ok_and(fits) {
                    pattern
                } else {
                    "/**".to_owned()
                }
            })
            .collect()
    };
    let steps: [&dyn Fn(&str) -> String; 3] = [
        &|path| each_segment(path),
        &|path| beginning(path, 2),
        &|path| beginning(path, 1),
    ];
    for shape in steps {
        let patterns = by(shape);
        if patterns.len() <= MAX_PATTERNS {
            return patterns.into_iter().collect();
        }
    }
    vec!["/**".to_owned()]
}

fn each_segment(path: &str) -> String {
    let segments: Vec<&str> = path
        .split('/')
        .map(|segment| if is_variable(segment) { "*" } else { segment })
        .collect();
    segments.join("/")
}

/// Some segments, and all that is below.
fn beginning(path: &str, segments: usize) -> String {
    let all: Vec<&str> = path.split('/').skip(1).collect();
    if all.len() <= segments {
        return each_segment(path);
    }
    format!(
        "{}/**",
        each_segment(&format!("/{}", all[..segments].join("/")))
    )
}

/// Whether a segment is a number, a hash, an id or a token rather than a word.
fn is_variable(segment: &str) -> bool {
    let bytes = segment.as_bytes();
    let digits = bytes.iter().filter(|byte| byte.is_ascii_digit()).count();
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let number = digits > 0 && digits == bytes.len();
    let hexadecimal = |byte: &u8| byte.is_ascii_hexdigit() || *byte == b'-';
    // Seven is what git shows of a hash.
    let hash = bytes.len() >= 7 && digits > 0 && bytes.iter().all(hexadecimal);
    let token = bytes.len() >= 20 && digits >= 4 && bytes.iter().all(plain);
    number || hash || token
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(paths: &[&str]) -> Vec<String> {
        let paths: Vec<RequestPath> = paths
            .iter()
            .map(|path| RequestPath::parse(path).expect("a path"))
            .collect();
        generalise(&paths)
    }

    #[test]
    fn numbers_hashes_and_ids_are_one_pattern() {
        for (paths, expected) in [
            (
                &["/repos/a/b/issues/1", "/repos/a/b/issues/23"][..],
                &["/repos/a/b/issues/*"][..],
            ),
            (
                &["/c/0a1b2c3", "/c/2fd4e1c67a2d28fced849ee1bb76e7391b93eb12"],
                &["/c/*"],
            ),
            (&["/u/6f1c2a34-0b1d-4c5e-8f90-a1b2c3d4e5f6/x"], &["/u/*/x"]),
            (&["/v1/chat", "/v2/chat"], &["/v1/chat", "/v2/chat"]),
            (&["/decade", "/facade"], &["/decade", "/facade"]),
            (&["/"], &["/"]),
            (&["/@a%2fb"], &["/@a%2Fb"]),
            (&["/a*b"], &["/a%2Ab"]),
        ] {
            assert_eq!(patterns(paths), expected, "{paths:?}");
        }
    }

    #[test]
    fn many_paths_are_drawn_together() {
        let many: Vec<String> = (b'a'..=b'z')
            .map(|c| format!("/simple/x/{}", char::from(c)))
            .collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(patterns(&many), ["/simple/x/**"]);
        let many: Vec<String> = (b'a'..=b'z')
            .map(|c| format!("/{}/x", char::from(c)))
            .collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(patterns(&many), ["/**"]);
    }
}
