//! Messages of the name service (RFC 1035, 6891, 8914): as much as a gate asks and answers.
//!
//! HOSTILE: questions come from the agent, answers from a name server that anyone may run. Names
//! are read strictly, pointers only lead backwards, and everything has an end.

use std::net::IpAddr;

/// BOUND: a name with its lengths, as RFC 1035 has it.
const MAX_NAME: usize = 255;
/// BOUND: what fits an answer over UDP when the question does not say more.
pub(crate) const PLAIN_BYTES: usize = 512;
/// BOUND: text beside a refusal.
const MAX_TEXT: usize = 400;
const HEADER_BYTES: usize = 12;

pub(crate) const A: u16 = 1;
const CNAME: u16 = 5;
pub(crate) const PTR: u16 = 12;
pub(crate) const AAAA: u16 = 28;
const OPT: u16 = 41;
const INTERNET: u16 = 1;
const EXTENDED_ERROR: u16 = 15;
/// RFC 8914: what was asked is not answered because the operator's rules say so.
const BLOCKED: u16 = 15;

/// How an answer turned out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    Fine = 0,
    Malformed = 1,
    Failed = 2,
    NoSuchName = 3,
    NotDone = 4,
}

/// A question, as it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) id: u16,
    wants_recursion: bool,
    /// Labels with dots between; `None` where a label has a byte that no text shows apart.
    pub(crate) name: Option<String>,
    /// The name as it stood there, with its lengths.
    raw_name: Vec<u8>,
    pub(crate) kind: u16,
    /// How long an answer may be, where the question has the extension that says it.
    extended: Option<usize>,
}

/// Why a message is no question. An answer is possible where its number is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadQuestion {
    pub(crate) id: Option<u16>,
    pub(crate) code: Code,
}

/// Takes parts from a message, front to back.
struct Parts<'a> {
    message: &'a [u8],
    at: usize,
}

impl<'a> Parts<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let part = self.message.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(part)
    }

    fn number(&mut self) -> Option<u16> {
        let part = self.take(2)?;
        Some(u16::from_be_bytes([part[0], part[1]]))
    }

    /// A name with its lengths and without pointers; they are followed only backwards.
    fn name(&mut self, pointers: Pointers) -> Option<Vec<u8>> {
        let mut name = Vec::new();
        let mut at = self.at;
        let mut behind = None;
        loop {
            let length = *self.message.get(at)?;
            match length {
                0 => {
                    name.push(0);
                    self.at = behind.unwrap_or(at + 1);
                    return (name.len() <= MAX_NAME).then_some(name);
                }
                1..64 => {
                    let end = at + 1 + usize::from(length);
                    name.extend_from_slice(self.message.get(at..end)?);
                    if name.len() > MAX_NAME {
                        return None;
                    }
                    at = end;
                }
                192.. if pointers == Pointers::Followed => {
                    let low = *self.message.get(at + 1)?;
                    let to = usize::from(u16::from_be_bytes([length & 63, low]));
                    behind.get_or_insert(at + 2);
                    // Each is before the last, so there is an end.
                    if to >= at {
                        return None;
                    }
                    at = to;
                }
                _ => return None,
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pointers {
    Followed,
    /// A question stands first; there is nothing to point at.
    None,
}

impl Question {
    /// Reads a question as clients send it: one, of the internet, and nothing else but EDNS.
    pub(crate) fn read(message: &[u8]) -> Result<Self, BadQuestion> {
        let id = match message {
            [high, low, ..] if message.len() >= HEADER_BYTES => {
                Some(u16::from_be_bytes([*high, *low]))
            }
            _ => None,
        };
        let bad = |code| BadQuestion { id, code };
        let Some(id) = id else {
            return Err(bad(Code::Malformed));
        };
        // An answer is never answered: two services would talk for ever.
        if message[2] & 0x80 != 0 {
            return Err(BadQuestion {
                id: None,
                code: Code::Malformed,
            });
        }
        if message[2] & 0x78 != 0 {
            return Err(bad(Code::NotDone));
        }
        Self::read_rest(id, message).ok_or_else(|| bad(Code::Malformed))
    }

    fn read_rest(id: u16, message: &[u8]) -> Option<Self> {
        let mut parts = Parts { message, at: 4 };
        let counts = [
            parts.number()?,
            parts.number()?,
            parts.number()?,
            parts.number()?,
        ];
        let [1, 0, 0, additional @ 0..=1] = counts else {
            return None;
        };
        let raw_name = parts.name(Pointers::None)?;
        let kind = parts.number()?;
        let class = parts.number()?;
        if class != INTERNET {
            return None;
        }
        let mut extended = None;
        if additional == 1 {
            let root = parts.take(1)?;
            let record = parts.number()?;
            let bytes = parts.number()?;
            let _flags = parts.take(4)?;
            let length = parts.number()?;
            parts.take(usize::from(length))?;
            if root != [0] || record != OPT {
                return None;
            }
            extended = Some(usize::from(bytes).clamp(PLAIN_BYTES, 4096));
        }
        if parts.at != message.len() {
            return None;
        }
        Some(Self {
            id,
            wants_recursion: message[2] & 1 != 0,
            name: text_of(&raw_name),
            raw_name,
            kind,
            extended,
        })
    }

    /// The labels as bytes, for a journal.
    pub(crate) fn shown(&self) -> Vec<u8> {
        labels(&self.raw_name).collect::<Vec<_>>().join(&b'.')
    }

    fn head(&self, code: Code, answers: u16) -> Vec<u8> {
        let recursion = if self.wants_recursion { 1 } else { 0 };
        let mut message = Vec::with_capacity(PLAIN_BYTES);
        message.extend_from_slice(&self.id.to_be_bytes());
        message.extend_from_slice(&[0x80 | recursion, 0x80 | code as u8]);
        let extended = u16::from(self.extended.is_some());
        for count in [1, answers, 0, extended] {
            message.extend_from_slice(&count.to_be_bytes());
        }
        message.extend_from_slice(&self.raw_name);
        message.extend_from_slice(&self.kind.to_be_bytes());
        message.extend_from_slice(&INTERNET.to_be_bytes());
        message
    }

    /// An answer with at most one record; without one, the name is there and has nothing of the kind.
    pub(crate) fn answer(&self, record: Option<Record>) -> Vec<u8> {
        let mut message = self.head(Code::Fine, u16::from(record.is_some()));
        if let Some(record) = record {
            let (kind, data) = match record {
                Record::Address(IpAddr::V4(address)) => (A, address.octets().to_vec()),
                Record::Address(IpAddr::V6(address)) => (AAAA, address.octets().to_vec()),
                Record::Name(name) => (PTR, raw_of(&name)),
            };
            // The name of the record is the one in the question.
            message.extend_from_slice(&[0xc0, HEADER_BYTES as u8]);
            message.extend_from_slice(&kind.to_be_bytes());
            message.extend_from_slice(&INTERNET.to_be_bytes());
            message.extend_from_slice(&LIFETIME_SECONDS.to_be_bytes());
            message.extend_from_slice(&(data.len() as u16).to_be_bytes());
            message.extend_from_slice(&data);
        }
        self.extend(&mut message, None);
        message
    }

    /// A refusal. Where the question has the extension for it, it says why.
    pub(crate) fn refusal(&self, code: Code, why: &str) -> Vec<u8> {
        let mut message = self.head(code, 0);
        self.extend(&mut message, Some(why));
        message
    }

    fn extend(&self, message: &mut Vec<u8>, why: Option<&str>) {
        let Some(most) = self.extended else {
            return;
        };
        message.push(0);
        message.extend_from_slice(&OPT.to_be_bytes());
        message.extend_from_slice(&4096_u16.to_be_bytes());
        message.extend_from_slice(&[0; 4]);
        // What is left behind the length of the record, the option's head and the code.
        let room = most.saturating_sub(message.len() + 2 + 4 + 2);
        match why.map(|why| cut(why, room.min(MAX_TEXT))) {
            Some(why) if room > 0 => {
                let option = why.len() as u16 + 2;
                message.extend_from_slice(&(option + 4).to_be_bytes());
                message.extend_from_slice(&EXTENDED_ERROR.to_be_bytes());
                message.extend_from_slice(&option.to_be_bytes());
                message.extend_from_slice(&BLOCKED.to_be_bytes());
                message.extend_from_slice(why.as_bytes());
            }
            _ => message.extend_from_slice(&[0, 0]),
        }
    }
}

/// How long an answer may be remembered: rules may change while a sandbox runs.
const LIFETIME_SECONDS: u32 = 5;

/// What an answer has.
pub(crate) enum Record {
    Address(IpAddr),
    Name(String),
}

impl BadQuestion {
    /// The answer, where there is one to give.
    pub(crate) fn answer(self) -> Option<Vec<u8>> {
        let [high, low] = self.id?.to_be_bytes();
        let mut message = vec![high, low, 0x80, 0x80 | self.code as u8];
        message.resize(HEADER_BYTES, 0);
        Some(message)
    }
}

fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

fn labels(raw: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = raw;
    std::iter::from_fn(move || {
        let [length, tail @ ..] = rest else {
            return None;
        };
        let (label, tail) = tail.split_at_checked(usize::from(*length))?;
        rest = tail;
        (!label.is_empty()).then_some(label)
    })
}

fn text_of(raw: &[u8]) -> Option<String> {
    let clear =
        |label: &[u8]| label.iter().all(|byte| byte.is_ascii_graphic()) && !label.contains(&b'.');
    if !labels(raw).all(clear) {
        return None;
    }
    let joined = labels(raw).collect::<Vec<_>>().join(&b'.');
    String::from_utf8(joined).ok()
}

fn raw_of(name: &str) -> Vec<u8> {
    let mut raw = Vec::with_capacity(name.len() + 2);
    for label in name.split('.') {
        raw.push(label.len() as u8);
        raw.extend_from_slice(label.as_bytes());
    }
    raw.push(0);
    raw
}

/// A question to a name server. `name` is a canonical one.
pub(crate) fn ask(id: u16, name: &str, kind: u16) -> Vec<u8> {
    let mut message = id.to_be_bytes().to_vec();
    message.extend_from_slice(&[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    message.extend_from_slice(&raw_of(name));
    message.extend_from_slice(&kind.to_be_bytes());
    message.extend_from_slice(&INTERNET.to_be_bytes());
    message
}

/// What a name server answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    Addresses(Vec<IpAddr>),
    /// It did not fit; ask over TCP.
    Cut,
    NoSuchName,
    Failed,
}

/// Reads the answer to [`ask`]. `None`: this is not it.
pub(crate) fn read_answer(message: &[u8], id: u16, name: &str, kind: u16) -> Option<Answered> {
    let mut parts = Parts { message, at: 4 };
    let flags = [*message.get(2)?, *message.get(3)?];
    let [questions, answers, _, _] = [
        parts.number()?,
        parts.number()?,
        parts.number()?,
        parts.number()?,
    ];
    let same = message.get(..2)? == id.to_be_bytes() && flags[0] & 0xf8 == 0x80 && questions == 1;
    let asked = raw_of(name);
    let question = parts.name(Pointers::None)?;
    if !same
        || !question.eq_ignore_ascii_case(&asked)
        || parts.number()? != kind
        || parts.number()? != INTERNET
    {
        return None;
    }
    if flags[0] & 2 != 0 {
        return Some(Answered::Cut);
    }
    match flags[1] & 15 {
        0 => {}
        3 => return Some(Answered::NoSuchName),
        _ => return Some(Answered::Failed),
    }
    // The owner of the addresses is the name, or what it is another name of.
    let mut owner = asked;
    let mut addresses = Vec::new();
    for _ in 0..answers {
        let name = parts.name(Pointers::Followed)?;
        let record = parts.number()?;
        let class = parts.number()?;
        let _lifetime = parts.take(4)?;
        let length = usize::from(parts.number()?);
        let begin = parts.at;
        let data = parts.take(length)?;
        if class != INTERNET || !name.eq_ignore_ascii_case(&owner) {
            continue;
        }
        if record == CNAME {
            let mut inner = Parts { message, at: begin };
            owner = inner.name(Pointers::Followed)?;
        } else if record == kind {
            addresses.push(match kind {
                A => IpAddr::from(<[u8; 4]>::try_from(data).ok()?),
                _ => IpAddr::from(<[u8; 16]>::try_from(data).ok()?),
            });
        }
    }
    Some(Answered::Addresses(addresses))
}

#[cfg(test)]
mod tests;
