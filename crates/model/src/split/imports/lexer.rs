//! Words, signs and strings of a source text; comments are gone.

/// A piece of source text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Word(String),
    /// What is in a string, as it is written.
    Text(String),
    Sign(u8),
    Newline,
}

impl Token {
    pub fn is_word(&self, word: &str) -> bool {
        matches!(self, Self::Word(own) if own == word)
    }

    pub fn is_sign(&self, sign: u8) -> bool {
        *self == Self::Sign(sign)
    }
}

/// What differs between languages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Python,
    Script,
    Rust,
    Go,
}

struct Lexer<'a> {
    bytes: &'a [u8],
    at: usize,
    dialect: Dialect,
    tokens: Vec<Token>,
    /// Braces that are open within each `${` of a template.
    templates: Vec<usize>,
}

pub(super) fn tokens(bytes: &[u8], dialect: Dialect) -> Vec<Token> {
    let mut lexer = Lexer {
        bytes,
        at: 0,
        dialect,
        tokens: Vec::new(),
        templates: Vec::new(),
    };
    while lexer.at < bytes.len() {
        lexer.step();
    }
    lexer.tokens
}

impl Lexer<'_> {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.at.min(self.bytes.len())..]
    }

    fn step(&mut self) {
        let byte = self.bytes[self.at];
        let rest = self.rest();
        let slashes = self.dialect != Dialect::Python;
        match byte {
            b'\n' => {
                self.tokens.push(Token::Newline);
                self.at += 1;
            }
            b'#' if self.dialect == Dialect::Python => self.skip_line(),
            b'/' if slashes && rest.starts_with(b"//") => self.skip_line(),
            b'/' if slashes && rest.starts_with(b"/*") => self.block_comment(),
            b'/' if self.dialect == Dialect::Script && self.regex_may_follow() => self.regex(),
            b'\\' if rest.starts_with(b"\\\n") => self.at += 2,
            b'\\' if rest.starts_with(b"\\\r\n") => self.at += 3,
            b'"' | b'\'' => self.quoted(byte),
            b'`' if matches!(self.dialect, Dialect::Script) => {
                self.at += 1;
                self.template();
            }
            b'`' if self.dialect == Dialect::Go => self.until(b"`", 1),
            b'{' | b'}' if !self.templates.is_empty() => self.brace(byte),
            _ if is_word(byte) => self.word(),
            _ if byte.is_ascii_whitespace() => self.at += 1,
            _ => {
                self.tokens.push(Token::Sign(byte));
                self.at += 1;
            }
        }
    }

    fn skip_line(&mut self) {
        let end = self.rest().iter().position(|byte| *byte == b'\n');
        self.at = end.map_or(self.bytes.len(), |end| self.at + end);
    }

    fn block_comment(&mut self) {
        let mut depth = 0usize;
        while self.at < self.bytes.len() {
            if self.rest().starts_with(b"/*") && (depth == 0 || self.dialect == Dialect::Rust) {
                depth += 1;
                self.at += 2;
            } else if self.rest().starts_with(b"*/") {
                depth -= 1;
                self.at += 2;
                if depth == 0 {
                    return;
                }
            } else {
                self.at += 1;
            }
        }
    }

    fn quoted(&mut self, quote: u8) {
        let triple = [quote; 3];
        match self.dialect {
            Dialect::Python if self.rest().starts_with(&triple) => {
                self.at += 3;
                self.text_until(&triple);
            }
            Dialect::Rust if quote == b'\'' => self.char_or_lifetime(),
            _ => {
                self.at += 1;
                self.text_until(&[quote]);
            }
        }
    }

    /// To the end of a string in which `\` takes the next byte along. One that never ends does so at
    /// the end of its line, where its language says so.
    fn text_until(&mut self, end: &[u8]) {
        let start = self.at;
        let one_line = end.len() == 1 && self.dialect != Dialect::Rust;
        while self.at < self.bytes.len() {
            let rest = self.rest();
            if rest.starts_with(end) {
                let text = String::from_utf8_lossy(&self.bytes[start..self.at]).into_owned();
                self.tokens.push(Token::Text(text));
                self.at += end.len();
                return;
            }
            match rest[0] {
                b'\\' => self.at += 2,
                b'\n' if one_line => return,
                _ => self.at += 1,
            }
        }
    }

    /// To the end of a string in which nothing is escaped.
    fn until(&mut self, end: &[u8], skip: usize) {
        let start = (self.at + skip).min(self.bytes.len());
        let found = memchr_of(&self.bytes[start..], end);
        let stop = found.map_or(self.bytes.len(), |at| start + at);
        let text = String::from_utf8_lossy(&self.bytes[start..stop]).into_owned();
        self.tokens.push(Token::Text(text));
        self.at = stop + end.len();
    }

    /// `'a'` and `'\n'` are characters, `'a` is a lifetime.
    fn char_or_lifetime(&mut self) {
        let rest = &self.rest()[1..];
        let width = match rest.first() {
            Some(b'\\') => {
                let end = rest[1..].iter().skip(1).position(|byte| *byte == b'\'');
                end.filter(|end| *end < 12).map(|end| end + 3)
            }
            Some(_) => {
                let ends = |n: &usize| rest.get(*n) == Some(&b'\'');
                (1..5)
                    .find(ends)
                    .filter(|n| *n == 1 || !rest[0].is_ascii())
                    .map(|n| n + 1)
            }
            None => None,
        };
        self.at += 1 + width.unwrap_or(0);
    }

    /// Within a template, to its end or to `${`.
    fn template(&mut self) {
        while self.at < self.bytes.len() {
            match self.rest() {
                [b'\\', ..] => self.at += 2,
                [b'`', ..] => {
                    self.at += 1;
                    // A string, so that what follows is no expression of its own.
                    self.tokens.push(Token::Sign(b'`'));
                    return;
                }
                [b'$', b'{', ..] => {
                    self.at += 2;
                    self.tokens.push(Token::Sign(b'{'));
                    self.templates.push(0);
                    return;
                }
                _ => self.at += 1,
            }
        }
    }

    fn brace(&mut self, byte: u8) {
        self.at += 1;
        self.tokens.push(Token::Sign(byte));
        let Some(open) = self.templates.last_mut() else {
            return;
        };
        match (byte, *open) {
            (b'{', _) => *open += 1,
            (_, 0) => {
                self.templates.pop();
                self.template();
            }
            _ => *open -= 1,
        }
    }

    /// Whether a `/` here begins an expression rather than divides.
    fn regex_may_follow(&self) -> bool {
        let before = self
            .tokens
            .iter()
            .rev()
            .find(|token| **token != Token::Newline);
        match before {
            None => true,
            Some(Token::Sign(sign)) => !matches!(sign, b')' | b']' | b'}' | b'`'),
            Some(Token::Word(word)) => matches!(
                word.as_str(),
                "return" | "typeof" | "case" | "in" | "of" | "delete" | "void" | "throw" | "await"
            ),
            _ => false,
        }
    }

    fn regex(&mut self) {
        self.at += 1;
        let mut class = false;
        while self.at < self.bytes.len() {
            match self.bytes[self.at] {
                b'\\' => self.at += 1,
                b'[' => class = true,
                b']' => class = false,
                b'\n' => return,
                b'/' if !class => {
                    self.at += 1;
                    self.tokens.push(Token::Sign(b')'));
                    return;
                }
                _ => {}
            }
            self.at += 1;
        }
    }

    fn word(&mut self) {
        let rest = self.rest();
        let end = rest.iter().position(|byte| !is_word(*byte));
        let word = &rest[..end.unwrap_or(rest.len())];
        let after = &rest[word.len()..];
        match self.dialect {
            // A prefix of a string.
            Dialect::Python
                if word.len() <= 2
                    && matches!(after.first(), Some(b'"' | b'\''))
                    && word.iter().all(|b| b"rRbBuUfFtT".contains(b)) =>
            {
                self.at += word.len();
            }
            Dialect::Rust if matches!(word, b"r" | b"br" | b"cr") => {
                let hashes = after.iter().take_while(|byte| **byte == b'#').count();
                if after.get(hashes) == Some(&b'"') {
                    let skip = word.len() + hashes + 1;
                    let end = [&b"\""[..], &b"#".repeat(hashes)].concat();
                    self.until(&end, skip);
                } else {
                    self.plain_word();
                }
            }
            Dialect::Rust if matches!(word, b"b" | b"c") && after.first() == Some(&b'"') => {
                self.at += word.len();
            }
            _ => self.plain_word(),
        }
    }

    fn plain_word(&mut self) {
        let rest = self.rest();
        let end = rest.iter().position(|byte| !is_word(*byte));
        let word = &rest[..end.unwrap_or(rest.len())];
        let text = String::from_utf8_lossy(word).into_owned();
        self.at += word.len();
        self.tokens.push(Token::Word(text));
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// Where a short text begins in a long one.
fn memchr_of(bytes: &[u8], text: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|byte| *byte == text[0]) {
        if bytes[from + at..].starts_with(text) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}
