//! Single characters and bracket expressions of git's patterns, in the words of the `ignore` crate.
//!
//! That crate's classes know no escapes and no POSIX names, and a negated one matches `/`.

/// Writes a character that means itself.
pub(super) fn literal(byte: u8, out: &mut Vec<u8>) {
    match byte {
        // In a class, or the end of the line would be trimmed.
        b' ' | b'\t' | 0x0b | 0x0c | b'\r' => out.extend_from_slice(&[b'[', byte, b']']),
        b'?' | b'*' | b'[' | b']' | b'{' | b'}' | b'\\' | b'!' | b'#' | b',' => {
            out.extend_from_slice(&[b'\\', byte]);
        }
        _ => out.push(byte),
    }
}

/// Rewrites the bracket expression at `start`; gives where it ends, or `None` if it matches
/// nothing or is not closed.
pub(super) fn class(glob: &[u8], start: usize, out: &mut Vec<u8>) -> Option<usize> {
    let mut at = start + 1;
    let negated = matches!(glob.get(at)?, b'!' | b'^');
    if negated {
        at += 1;
    }
    let mut set = [false; 256];
    // Bytes beyond ASCII in their order: whole characters, if all is well.
    let mut high = Vec::new();
    let mut previous: Option<u8> = None;
    let mut first = true;
    loop {
        let byte = *glob.get(at)?;
        match byte {
            b']' if !first => break,
            b'-' if previous.is_some() && glob.get(at + 1).is_some_and(|&b| b != b']') => {
                at += 1;
                if glob[at] == b'\\' {
                    at += 1;
                }
                let (from, to) = (previous?, *glob.get(at)?);
                for byte in from..=to {
                    set[usize::from(byte)] = true;
                }
                previous = None;
            }
            b'[' if glob.get(at + 1) == Some(&b':') => {
                let close = at + 2 + glob[at + 2..].iter().position(|&b| b == b']')?;
                if close > at + 2 && glob[close - 1] == b':' {
                    let test = posix(&glob[at + 2..close - 1])?;
                    for byte in 0..=127u8 {
                        set[usize::from(byte)] |= test(&byte);
                    }
                    at = close;
                    previous = None;
                } else {
                    set[usize::from(b'[')] = true;
                    previous = Some(b'[');
                }
            }
            b'\\' => {
                at += 1;
                let byte = *glob.get(at)?;
                set[usize::from(byte)] = true;
                previous = Some(byte);
            }
            _ => {
                if !byte.is_ascii() {
                    high.push(byte);
                }
                set[usize::from(byte)] = true;
                previous = Some(byte);
            }
        }
        first = false;
        at += 1;
    }
    write_class(&set, &high, negated, out)?;
    Some(at + 1)
}

fn posix(name: &[u8]) -> Option<fn(&u8) -> bool> {
    Some(match name {
        b"alnum" => u8::is_ascii_alphanumeric,
        b"alpha" => u8::is_ascii_alphabetic,
        b"blank" => |b| matches!(b, b' ' | b'\t'),
        b"cntrl" => u8::is_ascii_control,
        b"digit" => u8::is_ascii_digit,
        b"graph" => u8::is_ascii_graphic,
        b"lower" => u8::is_ascii_lowercase,
        b"print" => |b| (0x20..0x7f).contains(b),
        b"punct" => u8::is_ascii_punctuation,
        b"space" => |b| matches!(b, b' ' | 0x09..=0x0d),
        b"upper" => u8::is_ascii_uppercase,
        b"xdigit" => u8::is_ascii_hexdigit,
        _ => return None,
    })
}

/// Writes a class whose special members stand where they mean themselves: `]` first, `-` last.
/// Bytes beyond ASCII are taken as whole characters, of which the crate matches the bytes, as git
/// does; where they are none they are left out.
fn write_class(set: &[bool; 256], high: &[u8], negated: bool, out: &mut Vec<u8>) -> Option<()> {
    let has = |byte: u8| set[usize::from(byte)];
    let mut plain: Vec<u8> = (1..128)
        .filter(|&b| has(b) && !b"]-!^/\n".contains(&b))
        .collect();
    plain.extend([b'!', b'^'].into_iter().filter(|&b| has(b)));
    if std::str::from_utf8(high).is_ok() {
        // Before `!` and `^`, which must not come first.
        plain.splice(0..0, high.iter().copied());
    }
    let ends = (has(b']'), has(b'-'));
    if negated {
        // A class never matches the separator.
        out.extend_from_slice(b"[!");
        if ends.0 {
            out.push(b']');
        }
        out.push(b'/');
    } else {
        match (&plain[..], ends) {
            ([], (false, false)) => return None,
            ([one], (false, false)) if one.is_ascii() => {
                literal(*one, out);
                return Some(());
            }
            ([b'!', b'^'], (false, false)) => {
                out.extend_from_slice(b"{\\!,\\^}");
                return Some(());
            }
            ([], (true, false)) => {
                literal(b']', out);
                return Some(());
            }
            _ => {}
        }
        out.push(b'[');
        if ends.0 {
            out.push(b']');
        } else if ends.1 && matches!(plain[..], [] | [b'!' | b'^', ..]) {
            out.push(b'-');
        }
    }
    out.extend_from_slice(&plain);
    if ends.1 {
        out.push(b'-');
    }
    out.push(b']');
    Some(())
}
