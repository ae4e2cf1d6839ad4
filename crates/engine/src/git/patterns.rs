//! Lines of `.gitignore`: taken apart as git does, and put into the words of the `ignore` crate.
//!
//! That crate's globs differ from git's in braces, POSIX classes, escapes within classes, runs of
//! stars and trailing blanks. Each pattern is therefore rewritten so that both mean the same:
//! always anchored by `/` or `**/`, with every special character escaped.

use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::classes::{class, literal};

/// BOUND: longer ones match no path that the kernel takes.
const PATTERN_BYTES: usize = 4096;
/// BOUND: patterns of one file; each may cost a piece of an automaton.
pub(super) const PATTERNS: usize = 5_000;

/// Whether letters differ by case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    Matters,
    /// `core.ignoreCase`.
    Ignored,
}

/// The matcher for the text of one file, for paths relative to the file's directory. Patterns
/// beyond `limit` have no say.
pub(super) fn compile(text: &[u8], case: Case, limit: usize) -> Gitignore {
    let mut builder = GitignoreBuilder::new("");
    // Cannot fail, though the signature says so.
    let _ = builder.case_insensitive(case == Case::Ignored);
    for line in lines(text)
        .map(parse)
        .flat_map(|pattern| pattern.to_globs())
        .take(limit.min(PATTERNS))
    {
        // A pattern that cannot be compiled matches nothing, as in git.
        let _ = builder.add_line(None, &line);
    }
    builder.build().unwrap_or_else(|_| Gitignore::empty())
}

/// The lines of a rules file, without line ends, byte order mark and comments.
pub(super) fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    text.split(|&b| b == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .filter(|line| !line.is_empty() && line[0] != b'#' && line.len() < PATTERN_BYTES)
}

/// One pattern taken apart.
#[derive(Debug, PartialEq, Eq)]
struct Pattern<'a> {
    negated: bool,
    /// It has a slash within, so it is matched from the file's directory.
    anchored: bool,
    only_dirs: bool,
    /// Without `!`, the leading and the trailing slash.
    glob: &'a [u8],
}

fn parse(line: &[u8]) -> Pattern<'_> {
    let line = without_trailing_spaces(line);
    let (negated, line) = match line.strip_prefix(b"!") {
        Some(rest) => (true, rest),
        None => (false, line),
    };
    let (only_dirs, line) = match line.strip_suffix(b"/") {
        Some(rest) => (true, rest),
        None => (false, line),
    };
    let anchored = line.contains(&b'/');
    Pattern {
        negated,
        anchored,
        only_dirs,
        glob: line.strip_prefix(b"/").unwrap_or(line),
    }
}

/// Trailing spaces count only where a backslash says so.
fn without_trailing_spaces(line: &[u8]) -> &[u8] {
    let mut kept = 0;
    let mut at = 0;
    while at < line.len() {
        at += match line[at] {
            b' ' => {
                at += 1;
                continue;
            }
            b'\\' => 2,
            _ => 1,
        };
        kept = at.min(line.len());
    }
    &line[..kept]
}

impl Pattern<'_> {
    /// The same in the words of the `ignore` crate, mostly as one glob.
    ///
    /// Git compares the part before the first special character by itself and matches the rest
    /// alone. Stars that follow that part directly (`ab**/c`) therefore stand at the start of
    /// what is matched, and cross directories though no slash is before them.
    fn to_globs(&self) -> Vec<String> {
        let special = |b: &u8| matches!(b, b'*' | b'?' | b'[' | b'\\');
        let start = self.glob.iter().position(special).unwrap_or(0);
        let (plain, rest) = self.glob.split_at(start);
        let run = rest.iter().take_while(|&&b| b == b'*').count();
        let rest = &rest[run..];
        let odd = self.anchored && run > 1 && !plain.is_empty() && !plain.ends_with(b"/");
        let with = |glob: &[u8]| Pattern { glob, ..*self }.to_glob();
        let globs = match rest.strip_prefix(b"/") {
            Some(rest) if odd => {
                let nearest = [plain, rest].concat();
                let mut globs = vec![with(&[plain, b"*/**/", rest].concat())];
                // BOUND: stars upon stars are for nobody.
                if rest.starts_with(b"**") && self.glob.len() < 64 {
                    let nearest = Pattern {
                        glob: &nearest,
                        ..*self
                    }
                    .to_globs();
                    globs.extend(nearest.into_iter().map(Some));
                } else {
                    globs.push(with(&nearest));
                }
                globs
            }
            None if odd && rest.starts_with(b"\\/") => {
                vec![with(&[plain, b"*/**/", &rest[2..]].concat())]
            }
            None if odd && rest.is_empty() => {
                vec![
                    with(&[plain, b"*"].concat()),
                    with(&[plain, b"*/**"].concat()),
                ]
            }
            _ => vec![self.to_glob()],
        };
        globs.into_iter().flatten().collect()
    }

    /// The same in the words of the `ignore` crate; `None` if it can match nothing, or is not
    /// UTF-8, which that crate cannot express.
    fn to_glob(&self) -> Option<String> {
        let mut out = Vec::with_capacity(self.glob.len() + 8);
        if self.negated {
            out.push(b'!');
        }
        out.extend_from_slice(if self.anchored { b"/" } else { b"**/" });
        let mut at = 0;
        // An empty part before, between or after slashes is in no path.
        let mut is_empty = true;
        while at < self.glob.len() {
            let (escaped, byte) = match self.glob[at] {
                b'\\' => (true, *self.glob.get(at + 1)?),
                byte => (false, byte),
            };
            if is_empty && byte == b'/' {
                return None;
            }
            is_empty = byte == b'/';
            match byte {
                _ if escaped => {
                    literal(byte, &mut out);
                    at += 2;
                }
                b'*' => at = self.stars(at, &mut out),
                b'?' => {
                    out.push(b'?');
                    at += 1;
                }
                b'[' => at = class(self.glob, at, &mut out)?,
                byte => {
                    literal(byte, &mut out);
                    at += 1;
                }
            }
        }
        if is_empty {
            return None;
        }
        keep_last_blank(&mut out);
        if self.only_dirs {
            out.push(b'/');
        }
        String::from_utf8(out).ok()
    }

    /// Two stars or more between slashes cross directories; any other run is one star. Before a slash that is
    /// escaped they stand for one directory at least.
    fn stars(&self, start: usize, out: &mut Vec<u8>) -> usize {
        let run = self.glob[start..]
            .iter()
            .take_while(|&&b| b == b'*')
            .count();
        let end = start + run;
        let open = start == 0 || self.glob[start - 1] == b'/';
        let rest = &self.glob[end..];
        let crosses = run > 1 && self.anchored && open;
        out.extend_from_slice(match rest {
            [] | [b'/', ..] if crosses => b"**",
            [b'\\', b'/', ..] if crosses => b"*/**",
            _ => b"*",
        });
        end
    }
}

/// The crate takes blanks of all of Unicode from the end of a line, git those of ASCII: a choice of one is no
/// blank.
fn keep_last_blank(glob: &mut Vec<u8>) {
    let text = String::from_utf8_lossy(glob);
    let last = text.chars().next_back();
    if let Some(last) = last.filter(|last| last.is_whitespace() && !last.is_ascii()) {
        glob.truncate(glob.len() - last.len_utf8());
        glob.extend_from_slice(format!("{{{last}}}").as_bytes());
    }
}

/// A `.gitignore` line of a directory above, said from a folder that lies `rest` below it; `None`
/// if it cannot match in the folder, or cannot be said.
pub(super) fn rebase_ignore(line: &[u8], rest: &[u8]) -> Option<Vec<u8>> {
    let pattern = parse(line);
    if !pattern.anchored || pattern.glob.starts_with(b"**/") {
        return Some(line.to_vec());
    }
    let below = pattern.glob.strip_prefix(rest)?.strip_prefix(b"/")?;
    let (not, slash) = (
        if pattern.negated { "!" } else { "" },
        if pattern.only_dirs { "/" } else { "" },
    );
    Some([not.as_bytes(), b"/", below, slash.as_bytes()].concat())
}

/// The same for a `.gitattributes` line: a pattern, blanks, attributes.
pub(super) fn rebase_attributes(line: &[u8], rest: &[u8]) -> Option<Vec<u8>> {
    let line = line.trim_ascii_start();
    let end = line.iter().position(|b| matches!(b, b' ' | b'\t'))?;
    let (pattern, attributes) = line.split_at(end);
    // Quoted patterns are rare; an exclamation mark is not allowed; macros are for the top only.
    if matches!(pattern.first()?, b'"' | b'!' | b'#' | b'[') {
        return None;
    }
    Some([&rebase_ignore(pattern, rest)?[..], attributes].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_rewritten_to_mean_the_same() {
        for (line, glob) in [
            ("a", Some("**/a")),
            ("/a", Some("/a")),
            ("!a/", Some("!**/a/")),
            ("a/b", Some("/a/b")),
            ("a{b,c}", Some("**/a\\{b\\,c\\}")),
            ("a  ", Some("**/a")),
            ("a\\ ", Some("**/a[ ]")),
            ("a\\", None),
            ("a[", None),
            ("[]]", Some("**/\\]")),
            ("[!a]", Some("**/[!/a]")),
            ("[\\]-]", Some("**/[]-]")),
            ("[[:digit:]x]", Some("**/[0123456789x]")),
            ("[b-a]", Some("**/b")),
            ("***", Some("**/*")),
            ("a/***/b", Some("/a/**/b")),
            ("a/x**/b", Some("/a/x*/b")),
            ("a/**\\/b", Some("/a/*/**/b")),
            ("a\\//b", None),
            ("[a//]", Some("/a")),
            ("a\u{a0}", Some("**/a{\u{a0}}")),
            ("a\u{3000}/", Some("**/a{\u{3000}}/")),
            ("a\u{a0}b", Some("**/a\u{a0}b")),
            ("\\!a", Some("**/\\!a")),
            ("/", None),
            ("!", None),
        ] {
            let got = parse(line.as_bytes()).to_glob();
            assert_eq!(got.as_deref(), glob, "{line:?}");
        }
    }

    #[test]
    fn stars_after_a_plain_part_begin_what_is_matched() {
        for (line, globs) in [
            ("ab**/c", &["/ab*/**/c", "/abc"][..]),
            ("ab**", &["**/ab*"]),
            ("/ab**", &["/ab*", "/ab*/**"]),
            ("ab**//", &["/ab/"]),
            ("/ab**//*", &["/ab/*"]),
            ("ab***/**//", &["/ab/"]),
            ("ab**\\/c", &["/ab*/**/c"]),
            ("ab//c", &[]),
        ] {
            assert_eq!(parse(line.as_bytes()).to_globs(), globs, "{line}");
        }
    }

    #[test]
    fn rules_of_a_directory_above_are_said_from_below() {
        for (line, rest, said) in [
            ("*.o", "sub", Some("*.o")),
            ("/sub/out/", "sub", Some("/out/")),
            ("!/sub/a/b", "sub/a", Some("!/b")),
            ("/other/x", "sub", None),
            ("sub", "sub", Some("sub")),
            ("/sub", "sub", None),
            ("**/x/y", "sub", Some("**/x/y")),
        ] {
            let got = rebase_ignore(line.as_bytes(), rest.as_bytes());
            assert_eq!(got.as_deref(), said.map(str::as_bytes), "{line}");
        }
        let got = rebase_attributes(b"/sub/*.txt text eol=crlf", b"sub");
        assert_eq!(got.as_deref(), Some(&b"/*.txt text eol=crlf"[..]));
    }
}
