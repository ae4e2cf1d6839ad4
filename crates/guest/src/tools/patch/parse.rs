//! Reads a unified diff, in git's form or the plain one.
//!
//! What stands between the files (a commit message, say) is passed over, as `git apply` does.

use ringfence_model::ByteText;

use crate::failure::{Hint as _, Outcome, invalid};

/// One file of a patch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilePatch<'a> {
    /// Names without the leading directories; `None` for `/dev/null`.
    pub old: Option<Vec<u8>>,
    pub new: Option<Vec<u8>>,
    pub kind: Kind,
    /// Mode of the file afterwards, where the patch says it.
    pub mode: Option<u32>,
    pub hunks: Vec<Hunk<'a>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    #[default]
    Modify,
    Create,
    Delete,
    Rename,
    Copy,
}

/// One piece of a file: what must be there, and what is there afterwards. Lines with their ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hunk<'a> {
    /// Where the header says that it is, counted from 1.
    pub line: usize,
    pub old: Vec<&'a [u8]>,
    pub new: Vec<&'a [u8]>,
}

/// HOSTILE: a model or an agent wrote this text. Its last line must have an end.
pub fn parse(text: &[u8], strip: usize) -> Outcome<Vec<FilePatch<'_>>> {
    let mut parser = Parser {
        lines: text.split_inclusive(|byte| *byte == b'\n').collect(),
        at: 0,
        strip,
    };
    let mut files = Vec::new();
    while let Some(line) = parser.peek() {
        if let Some(names) = line.strip_prefix(b"diff --git ") {
            parser.at += 1;
            files.push(parser.git_file(names)?);
        } else if line.starts_with(b"--- ")
            && parser
                .lines
                .get(parser.at + 1)
                .is_some_and(|next| next.starts_with(b"+++ "))
        {
            let mut file = FilePatch::default();
            parser.names(&mut file)?;
            file.kind = match (&file.old, &file.new) {
                (None, Some(_)) => Kind::Create,
                (Some(_), None) => Kind::Delete,
                (Some(_), Some(_)) => Kind::Modify,
                (None, None) => return Err(parser.broken("a file without a name")),
            };
            if file.kind == Kind::Modify {
                // `f.orig` and `f`, say: the second is what the file is called.
                file.old.clone_from(&file.new);
            }
            parser.hunks(&mut file)?;
            files.push(file);
        } else if line.starts_with(b"@@ -") {
            return Err(parser.broken("a hunk without the name of its file"));
        } else {
            parser.at += 1;
        }
    }
    if files.is_empty() {
        return Err(invalid("there is no file in the patch".to_owned())
            .hint("a unified diff has `--- a/FILE`, `+++ b/FILE` and `@@ -1,2 +1,2 @@`"));
    }
    Ok(files)
}

struct Parser<'a> {
    lines: Vec<&'a [u8]>,
    at: usize,
    strip: usize,
}

impl<'a> Parser<'a> {
    /// The line at hand, without its end.
    fn peek(&self) -> Option<&'a [u8]> {
        let line = self.lines.get(self.at)?;
        Some(line.strip_suffix(b"\n").unwrap_or(line))
    }

    fn broken(&self, what: &str) -> crate::failure::Failure {
        invalid(format!("line {} of the patch: {what}", self.at + 1))
    }

    /// The header lines behind `diff --git`, and the hunks.
    fn git_file(&mut self, names: &[u8]) -> Outcome<FilePatch<'a>> {
        let mut file = FilePatch::default();
        let mut named = false;
        while let Some(line) = self.peek() {
            // Names of renames have no `a/`, so one directory less is taken off.
            let strip = self.strip.saturating_sub(1);
            if let Some(mode) = line.strip_prefix(b"new file mode ") {
                file.kind = Kind::Create;
                file.mode = Some(self.mode(mode)?);
            } else if let Some(mode) = line.strip_prefix(b"deleted file mode ") {
                file.kind = Kind::Delete;
                self.mode(mode)?;
            } else if let Some(mode) = line.strip_prefix(b"old mode ") {
                self.mode(mode)?;
            } else if let Some(mode) = line.strip_prefix(b"new mode ") {
                file.mode = Some(self.mode(mode)?);
            } else if let Some(name) = line.strip_prefix(b"rename from ") {
                file.kind = Kind::Rename;
                file.old = self.name(name, strip)?;
            } else if let Some(name) = line.strip_prefix(b"copy from ") {
                file.kind = Kind::Copy;
                file.old = self.name(name, strip)?;
            } else if let Some(name) = line
                .strip_prefix(b"rename to ")
                .or_else(|| line.strip_prefix(b"copy to "))
            {
                file.new = self.name(name, strip)?;
            } else if line.starts_with(b"GIT binary patch") || line.starts_with(b"Binary files ") {
                return Err(self
                    .broken("a binary patch cannot be applied")
                    .hint("use `write` with `bytes`"));
            } else if line.starts_with(b"--- ") {
                let mut said = FilePatch::default();
                self.names(&mut said)?;
                self.agree(&mut file, said)?;
                named = true;
                self.hunks(&mut file)?;
                break;
            } else if !is_header(line) {
                break;
            }
            self.at += 1;
        }
        let both_ends = matches!(file.kind, Kind::Rename | Kind::Copy);
        if both_ends && (file.old.is_none() || file.new.is_none()) {
            return Err(self.broken("a rename or copy needs both names"));
        }
        if !named && !both_ends {
            let name = self.same_name(names)?;
            file.old = (file.kind != Kind::Create).then(|| name.clone());
            file.new = (file.kind != Kind::Delete).then_some(name);
        }
        Ok(file)
    }

    /// Brings together what `---` and `+++` say with what the header lines said.
    fn agree(&self, file: &mut FilePatch<'_>, said: FilePatch<'_>) -> Outcome<()> {
        let agrees = match file.kind {
            Kind::Rename | Kind::Copy => said.old == file.old && said.new == file.new,
            Kind::Create => said.old.is_none() && said.new.is_some(),
            Kind::Delete => said.old.is_some() && said.new.is_none(),
            // Some tools leave out the line that says so.
            Kind::Modify if said.old.is_none() || said.new.is_none() => {
                file.kind = if said.old.is_none() {
                    Kind::Create
                } else {
                    Kind::Delete
                };
                said.old.is_some() || said.new.is_some()
            }
            Kind::Modify => said.old == said.new,
        };
        if !agrees {
            return Err(self.broken("the names of this file do not agree"));
        }
        (file.old, file.new) = (said.old, said.new);
        Ok(())
    }

    /// HOSTILE: links and submodules are not files.
    fn mode(&self, text: &[u8]) -> Outcome<u32> {
        match text.trim_ascii_end() {
            b"100644" | b"100664" => Ok(0o644),
            b"100755" | b"100775" => Ok(0o755),
            b"120000" => Err(self.broken("a link cannot be patched")),
            b"160000" => Err(self.broken("a submodule cannot be patched")),
            _ => Err(self.broken("an unknown mode")),
        }
    }

    /// `--- OLD` and `+++ NEW`; afterwards at the line behind them.
    fn names(&mut self, file: &mut FilePatch<'_>) -> Outcome<()> {
        for (prefix, name) in [(b"--- ", &mut file.old), (b"+++ ", &mut file.new)] {
            let Some(text) = self.peek().and_then(|line| line.strip_prefix(prefix)) else {
                return Err(self.broken("`--- OLD` needs `+++ NEW` behind it"));
            };
            // Plain diffs have a tab and a time behind the name.
            let text = text.strip_suffix(b"\r").unwrap_or(text);
            let end = memchr::memchr(b'\t', text).unwrap_or(text.len());
            *name = self.name(&text[..end], self.strip)?;
            self.at += 1;
        }
        Ok(())
    }

    /// A name without its leading directories; `None` for `/dev/null`.
    fn name(&self, text: &[u8], strip: usize) -> Outcome<Option<Vec<u8>>> {
        if text == b"/dev/null" {
            return Ok(None);
        }
        let name = self.unquoted(text)?;
        match stripped(&name, strip) {
            Some(name) => Ok(Some(name.to_vec())),
            None => Err(self
                .broken("a name with too few directories")
                .hint("set `strip` to 0 if names do not begin with `a/` and `b/`")),
        }
    }

    fn unquoted(&self, text: &[u8]) -> Outcome<Vec<u8>> {
        if !text.starts_with(b"\"") {
            return Ok(text.to_vec());
        }
        std::str::from_utf8(text)
            .ok()
            .and_then(ByteText::from_text)
            .map(|name| name.0)
            .ok_or_else(|| self.broken("a name with broken quoting"))
    }

    /// The one name in `a/NAME b/NAME`; NAME may have spaces.
    fn same_name(&self, names: &[u8]) -> Outcome<Vec<u8>> {
        for at in memchr::memchr_iter(b' ', names) {
            let (Ok(old), Ok(new)) = (self.unquoted(&names[..at]), self.unquoted(&names[at + 1..]))
            else {
                continue;
            };
            if let (Some(old), Some(new)) = (stripped(&old, self.strip), stripped(&new, self.strip))
                && old == new
            {
                return Ok(old.to_vec());
            }
        }
        Err(self.broken("the names of this file cannot be told apart"))
    }

    fn hunks(&mut self, file: &mut FilePatch<'a>) -> Outcome<()> {
        while let Some(line) = self.peek() {
            let Some(header) = line.strip_prefix(b"@@ -") else {
                break;
            };
            let Some((line, old, new)) = ranges(header) else {
                return Err(self.broken("a hunk header that cannot be read"));
            };
            self.at += 1;
            let hunk = self.hunk(line, old, new)?;
            file.hunks.push(hunk);
        }
        if file.hunks.is_empty() {
            return Err(self.broken("a file with names but no hunk"));
        }
        Ok(())
    }

    /// As many lines as the header says.
    fn hunk(&mut self, line: usize, mut old: usize, mut new: usize) -> Outcome<Hunk<'a>> {
        let mut hunk = Hunk {
            line,
            ..Hunk::default()
        };
        while old > 0 || new > 0 {
            let Some(text) = self.lines.get(self.at) else {
                return Err(self.cut_off());
            };
            let (sign, mut rest): (u8, &[u8]) = match text {
                // Some programs take the blank off a line that has nothing else.
                [b'\n'] | [b'\r', b'\n'] => (b' ', text),
                [sign, rest @ ..] => (*sign, rest),
                [] => return Err(self.cut_off()),
            };
            self.at += 1;
            if self.peek().is_some_and(|next| next.starts_with(b"\\ ")) {
                rest = rest.strip_suffix(b"\n").unwrap_or(rest);
                self.at += 1;
            }
            let counts = match sign {
                b' ' => old.checked_sub(1).zip(new.checked_sub(1)),
                b'-' => old.checked_sub(1).zip(Some(new)),
                b'+' => Some(old).zip(new.checked_sub(1)),
                _ => None,
            };
            let Some(counts) = counts else {
                self.at -= 1;
                return Err(self.cut_off());
            };
            (old, new) = counts;
            if sign == b' ' {
                hunk.old.push(rest);
                hunk.new.push(rest);
            } else if sign == b'-' {
                hunk.old.push(rest);
            } else {
                hunk.new.push(rest);
            }
        }
        Ok(hunk)
    }

    fn cut_off(&self) -> crate::failure::Failure {
        self.broken("the hunk has other lines than its header says")
            .hint("the numbers in `@@ -LINE,COUNT +LINE,COUNT @@` must be right")
    }
}

/// Lines of git's header that say nothing that is needed.
fn is_header(line: &[u8]) -> bool {
    [
        &b"index "[..],
        b"similarity index ",
        b"dissimilarity index ",
    ]
    .iter()
    .any(|prefix| line.starts_with(prefix))
}

/// `LINE[,COUNT] +LINE[,COUNT] @@…`: the first line, and both counts.
fn ranges(header: &[u8]) -> Option<(usize, usize, usize)> {
    let header = std::str::from_utf8(header.get(..memchr::memmem::find(header, b" @@")?)?).ok()?;
    let (old, new) = header.split_once(" +")?;
    let range = |text: &str| {
        let (line, count) = text.split_once(',').unwrap_or((text, "1"));
        Some((line.parse().ok()?, count.parse().ok()?))
    };
    let ((line, old), (_, new)): ((usize, usize), (usize, usize)) = (range(old)?, range(new)?);
    (old > 0 || new > 0).then_some((line, old, new))
}

fn stripped(name: &[u8], strip: usize) -> Option<&[u8]> {
    let mut name = name;
    for _ in 0..strip {
        let at = memchr::memchr(b'/', name)?;
        name = &name[at + 1..];
    }
    (!name.is_empty()).then_some(name)
}
