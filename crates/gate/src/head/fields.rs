//! The fields of a head.

/// Names and values, in order. Names compare without case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(Vec<(String, Vec<u8>)>);

impl Fields {
    /// Adds a field; `None` where it could not be written on a line of its own.
    pub fn push(&mut self, name: &str, value: &[u8]) -> Option<()> {
        (is_token(name.as_bytes()) && value.iter().all(|byte| is_value_byte(*byte)))
            .then(|| self.0.push((name.to_owned(), trim(value).to_vec())))
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_slice()))
    }

    /// The values, for whoever changes them in place; what is put in must be a value again.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut Vec<u8>)> {
        self.0
            .iter_mut()
            .map(|(name, value)| (name.as_str(), value))
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.iter()
            .filter(move |(own, _)| own.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// The value of a field that is there exactly once.
    pub fn once<'a>(&'a self, name: &'a str) -> Option<&'a [u8]> {
        let mut all = self.all(name);
        all.next().filter(|_| all.next().is_none())
    }

    pub fn has(&self, name: &str) -> bool {
        self.all(name).next().is_some()
    }

    /// Whether a comma-separated field has this word.
    pub fn has_word(&self, name: &str, word: &str) -> bool {
        self.all(name)
            .flat_map(|value| value.split(|byte| *byte == b','))
            .any(|own| trim(own).eq_ignore_ascii_case(word.as_bytes()))
    }

    /// Takes fields out; says whether there were any.
    pub fn remove(&mut self, name: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|(own, _)| !own.eq_ignore_ascii_case(name));
        self.0.len() < before
    }

    pub fn set(&mut self, name: &str, value: &[u8]) -> Option<()> {
        self.remove(name);
        self.push(name, value)
    }

    /// Takes out what is said from one end of a connection to the other and not beyond, and what
    /// frames a body: whoever writes the head says these anew.
    pub fn strip_hop_by_hop(&mut self) {
        let named: Vec<String> = self
            .all("connection")
            .flat_map(|value| value.split(|byte| *byte == b','))
            .map(|word| String::from_utf8_lossy(trim(word)).to_ascii_lowercase())
            .collect();
        self.0.retain(|(name, _)| {
            let name = name.to_ascii_lowercase();
            let own = matches!(
                name.as_str(),
                "connection"
                    | "keep-alive"
                    | "proxy-connection"
                    | "proxy-authorization"
                    | "proxy-authenticate"
                    | "te"
                    | "trailer"
                    | "transfer-encoding"
                    | "content-length"
                    | "upgrade"
                    | "http2-settings"
            );
            // A client cannot have `Host` or a type of content taken away from under a rule.
            !own && (!named.contains(&name) || matches!(name.as_str(), "host" | "content-type"))
        });
    }

    /// Overwrites all values: one of them was a secret.
    pub fn wipe(&mut self) {
        for (_, value) in &mut self.0 {
            zeroize::Zeroize::zeroize(value);
        }
    }

    pub fn write(&self, out: &mut Vec<u8>) {
        for (name, value) in &self.0 {
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
    }
}

pub fn is_token(name: &[u8]) -> bool {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !name.is_empty() && name.iter().all(plain)
}

/// Whether a byte may stand in a value: visible, a blank, or beyond ASCII.
pub fn is_value_byte(byte: u8) -> bool {
    byte == b'\t' || (byte >= 0x20 && byte != 0x7f)
}

pub fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}
