//! What a name in the tar of a layer means.
//!
//! HOSTILE: names are bytes that somebody chose to be read in another way than they are written.

/// BOUND: the kernel's own for a path, and a name in it.
pub(super) const PATH_BYTES: usize = 4095;
const NAME_BYTES: usize = 255;

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
const AUFS: &[u8] = b".wh..wh.";

/// Paths are relative to the layer, without `.` and doubled slashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// The layer itself.
    Root,
    Plain(Vec<u8>),
    /// What is not there any more.
    Whiteout(Vec<u8>),
    /// The directory that shows nothing of what is below it.
    Opaque(Vec<u8>),
    /// What an old storage driver kept for itself.
    OfAufs,
}

pub(super) fn read(name: &[u8]) -> Result<Name, &'static str> {
    if name.starts_with(b"/") {
        return Err("its name starts at `/`");
    }
    if name.contains(&0) {
        return Err("its name has a zero byte");
    }
    let mut path: Vec<u8> = Vec::with_capacity(name.len());
    for part in name.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => continue,
            b".." => return Err("its name climbs with `..`"),
            part if part.len() > NAME_BYTES => return Err("its name is too long"),
            part => {
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(part);
            }
        }
    }
    if path.is_empty() {
        return Ok(Name::Root);
    }
    if path.len() > PATH_BYTES {
        return Err("its name is too long");
    }
    let (above, last) = split(&path);
    // A directory that is called like a whiteout would be one to others and none to us.
    if above
        .split(|&byte| byte == b'/')
        .any(|part| part.starts_with(WHITEOUT))
    {
        return if above
            .split(|&byte| byte == b'/')
            .any(|part| part.starts_with(AUFS))
        {
            Ok(Name::OfAufs)
        } else {
            Err("it goes through a whiteout")
        };
    }
    if last == OPAQUE {
        return Ok(Name::Opaque(above.to_vec()));
    }
    if last.starts_with(AUFS) {
        return Ok(Name::OfAufs);
    }
    match last.strip_prefix(WHITEOUT) {
        Some(b"" | b"." | b"..") => Err("it is a whiteout of nothing"),
        Some(hidden) => {
            let hidden = hidden.to_vec();
            let path = match above {
                b"" => hidden,
                above => [above, b"/", &hidden].concat(),
            };
            Ok(Name::Whiteout(path))
        }
        None => Ok(Name::Plain(path)),
    }
}

/// The directory of a path, and the name in it.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_mean_what_the_specification_says() {
        let plain = |text: &str| Ok(Name::Plain(text.into()));
        for (name, meaning) in [
            ("a", plain("a")),
            ("./a//b/./c/", plain("a/b/c")),
            ("", Ok(Name::Root)),
            ("./", Ok(Name::Root)),
            ("a/.wh.b", Ok(Name::Whiteout("a/b".into()))),
            (".wh.b", Ok(Name::Whiteout("b".into()))),
            ("a/.wh..wh..opq", Ok(Name::Opaque("a".into()))),
            (".wh..wh..opq", Ok(Name::Opaque("".into()))),
            (".wh..wh.plnk/12.34", Ok(Name::OfAufs)),
            (".wh..wh.aufs", Ok(Name::OfAufs)),
            ("/a", Err("its name starts at `/`")),
            ("//", Err("its name starts at `/`")),
            ("a/../b", Err("its name climbs with `..`")),
            ("..", Err("its name climbs with `..`")),
            ("a/.wh...", Err("it is a whiteout of nothing")),
            ("a/.wh..", Err("it is a whiteout of nothing")),
            ("a/.wh.", Err("it is a whiteout of nothing")),
            (".wh.a/b", Err("it goes through a whiteout")),
            ("a\0b", Err("its name has a zero byte")),
            ("...", plain("...")),
            ("a\u{1b}b", plain("a\u{1b}b")),
        ] {
            assert_eq!(read(name.as_bytes()), meaning, "{name:?}");
        }
        assert!(read(&[b'a'; 256]).is_err());
        assert!(read(&b"ab/".repeat(2000)).is_err());
    }
}
