//! The forms in which bytes come back: as they are, and in the codings that programs use.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use zeroize::Zeroizing;

/// BOUND: a form with fewer bytes than this is found everywhere by chance. What is searched as it
/// is has no such bound.
const MIN_CODED: usize = 6;

/// One way to write a needle, and what stands there instead.
pub struct Form {
    pub name: &'static str,
    pub bytes: Zeroizing<Vec<u8>>,
    pub instead: Vec<u8>,
}

/// All forms of a needle, with the same form of what replaces it.
pub fn forms(needle: &[u8], instead: &[u8]) -> Vec<Form> {
    let mut all: Vec<Form> = Vec::new();
    if needle.is_empty() {
        return all;
    }
    let mut add = |name, bytes: Vec<u8>, instead: Vec<u8>| {
        let bytes = Zeroizing::new(bytes);
        let known = all.iter().any(|form| form.bytes == bytes);
        if !known && (bytes.len() >= MIN_CODED || name == "plain") {
            all.push(Form {
                name,
                bytes,
                instead,
            });
        }
    };
    let mut both = |name, code: &dyn Fn(&[u8]) -> Vec<u8>| add(name, code(needle), code(instead));
    both("plain", &<[u8]>::to_vec);
    both("hex", &|bytes| hex(bytes, b"0123456789abcdef"));
    both("hex", &|bytes| hex(bytes, b"0123456789ABCDEF"));
    both("hex", &|bytes| hex_with_colons(bytes, b"0123456789abcdef"));
    both("hex", &|bytes| hex_with_colons(bytes, b"0123456789ABCDEF"));
    for escapes in HTML {
        both("html", &|bytes| html(bytes, escapes));
    }
    for keep in [
        unreserved as fn(u8) -> bool,
        in_path,
        component,
        segment,
        plus_form,
        nothing,
    ] {
        both("percent", &|bytes| {
            percent(bytes, b"0123456789ABCDEF", keep)
        });
        both("percent", &|bytes| {
            percent(bytes, b"0123456789abcdef", keep)
        });
    }
    both("json", &|bytes| json(bytes, b"\"\\"));
    both("json", &|bytes| json(bytes, b"\"\\/"));
    for digits in [b"0123456789abcdef", b"0123456789ABCDEF"] {
        both("json", &|bytes| escaped(bytes, digits, |_| true));
        // What encoders escape so that the text can stand in a page: Go, .NET and others that take
        // the quotation mark for one of these, or not.
        for some in [&b"<>&"[..], b"+<>&'", b"+<>&'`\""] {
            both("json", &|bytes| {
                escaped(bytes, digits, |byte| some.contains(&byte))
            });
        }
    }
    // What replaces it has the same length, so that what follows keeps its place.
    let fitted: Vec<u8> = match instead {
        [] => vec![b'x'; needle.len()],
        _ => instead.iter().copied().cycle().take(needle.len()).collect(),
    };
    for shift in 0..3 {
        for engine in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
            let code = |bytes: &[u8]| base64_at(bytes, shift, engine);
            add("base64", code(needle), code(&fitted));
        }
    }
    all
}

fn unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// What Python leaves as it is where it is told nothing else.
fn in_path(byte: u8) -> bool {
    unreserved(byte) || byte == b'/'
}

/// What browsers leave as it is in a component.
fn component(byte: u8) -> bool {
    unreserved(byte) || b"!*'()".contains(&byte)
}

/// What may stand in a part of a path, by RFC 3986.
fn segment(byte: u8) -> bool {
    unreserved(byte) || b"!$&'()*+,;=:@".contains(&byte)
}

/// What forms leave as it is.
fn plus_form(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._*".contains(&byte)
}

fn nothing(_: u8) -> bool {
    false
}

fn hex(bytes: &[u8], digits: &[u8; 16]) -> Vec<u8> {
    bytes.iter().flat_map(|byte| pair(*byte, digits)).collect()
}

fn hex_with_colons(bytes: &[u8], digits: &[u8; 16]) -> Vec<u8> {
    let pairs: Vec<[u8; 2]> = bytes.iter().map(|byte| pair(*byte, digits)).collect();
    pairs.join(&b':')
}

/// The characters that encoders escape in a page, beside `&`, `<` and `>`: those of Python, of others, of Go, of Jinja,
/// and of Mustache.
const HTML: [&[(u8, &str)]; 5] = [
    &[(b'"', "&quot;"), (b'\'', "&#x27;")],
    &[(b'"', "&quot;"), (b'\'', "&#39;")],
    &[(b'"', "&#34;"), (b'\'', "&#39;"), (b'+', "&#43;")],
    &[(b'"', "&#34;"), (b'\'', "&#39;")],
    &[
        (b'"', "&quot;"),
        (b'\'', "&#39;"),
        (b'/', "&#x2F;"),
        (b'`', "&#x60;"),
        (b'=', "&#x3D;"),
    ],
];

fn html(bytes: &[u8], escapes: &[(u8, &str)]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'&' => out.extend(b"&amp;"),
            b'<' => out.extend(b"&lt;"),
            b'>' => out.extend(b"&gt;"),
            byte => match escapes.iter().find(|(own, _)| own == byte) {
                Some((_, escape)) => out.extend(escape.bytes()),
                None => out.push(*byte),
            },
        }
    }
    out
}

fn pair(byte: u8, digits: &[u8; 16]) -> [u8; 2] {
    [
        digits[usize::from(byte >> 4)],
        digits[usize::from(byte & 15)],
    ]
}

fn percent(bytes: &[u8], digits: &[u8; 16], keep: fn(u8) -> bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() * 3);
    for byte in bytes {
        if keep(*byte) {
            out.push(*byte);
        } else {
            out.push(b'%');
            out.extend(pair(*byte, digits));
        }
    }
    out
}

fn json(bytes: &[u8], with_backslash: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() * 2);
    for byte in bytes {
        match byte {
            b'\n' => out.extend(b"\\n"),
            b'\r' => out.extend(b"\\r"),
            b'\t' => out.extend(b"\\t"),
            0..0x20 => {
                out.extend(b"\\u00");
                out.extend(pair(*byte, b"0123456789abcdef"));
            }
            byte if with_backslash.contains(byte) => out.extend([b'\\', *byte]),
            byte => out.push(*byte),
        }
    }
    out
}

/// These bytes as `\u00XX`, and the others as JSON has them.
fn escaped(bytes: &[u8], digits: &[u8; 16], those: impl Fn(u8) -> bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() * 6);
    for byte in bytes {
        if those(*byte) {
            out.extend(b"\\u00");
            out.extend(pair(*byte, digits));
        } else {
            out.extend(json(&[*byte], b"\"\\"));
        }
    }
    out
}

/// The characters that only these bytes decide when `shift` bytes come before them.
fn base64_at(
    bytes: &[u8],
    shift: usize,
    engine: &base64::engine::general_purpose::GeneralPurpose,
) -> Vec<u8> {
    let mut shifted = Zeroizing::new(vec![0; shift]);
    shifted.extend_from_slice(bytes);
    let text = Zeroizing::new(engine.encode(&*shifted));
    // Six bits a character: the first that has no bit of what came before, to the last whole one.
    let first = (shift * 8).div_ceil(6);
    let last = shifted.len() * 8 / 6;
    text.as_bytes()
        .get(first..last)
        .unwrap_or_default()
        .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoders_escape_some_characters_only() {
        let value = b"key/a+b<c>&'d\"e\\f";
        let all = forms(value, b"");
        for (who, form) in [
            ("Python", "key/a%2Bb%3Cc%3E%26%27d%22e%5Cf"),
            ("Go", r#"key/a+b\u003cc\u003e\u0026'd\"e\\f"#),
            (".NET", r"key/a\u002Bb\u003Cc\u003E\u0026\u0027d\u0022e\\f"),
            ("Go, a path", "key%2Fa+b%3Cc%3E&'d%22e%5Cf"),
            ("Go, a page", r"key/a&#43;b&lt;c&gt;&amp;&#39;d&#34;e\f"),
            ("Mustache", r"key&#x2F;a+b&lt;c&gt;&amp;&#39;d&quot;e\f"),
            ("others", r#"key/a\u002bb\u003cc\u003e\u0026\u0027d\"e\\f"#),
        ] {
            let found = all
                .iter()
                .any(|own| own.bytes.as_slice() == form.as_bytes());
            assert!(found, "{who}: {form}");
        }
    }
}
