//! Secrets on the host: where their values come from, and what the sandbox has instead.
//!
//! INVARIANT: a value is in a [`SecretValue`] from the moment it is read. It is sent to the gate and
//! to nobody else, and no error or record has a part of it.

use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use ringfence_model::gate::{BoundSecret, MAX_SECRET, SecretValue};
use ringfence_model::policy::{SecretRule, SecretSource};
use zeroize::{Zeroize as _, Zeroizing};

/// BOUND: fewer random characters could be there by chance.
const LEAST_RANDOM: usize = 16;
/// BOUND: how much of the beginning can be a prefix that clients look for: `sk-ant-`, `ghp_`.
const PREFIX: usize = 12;

/// Why a secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("secret {name}: the variable {variable} is not set")]
    NoVariable { name: String, variable: String },
    #[error("secret {name}: cannot read `{path}`")]
    ReadFile {
        name: String,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("secret {name}: cannot run its command")]
    RunCommand {
        name: String,
        #[source]
        source: io::Error,
    },
    #[error("secret {name}: its command ended with {status}")]
    CommandFailed {
        name: String,
        status: std::process::ExitStatus,
    },
    #[error("secret {name}: its value is {what}")]
    Value { name: String, what: &'static str },
    #[error("cannot make a placeholder")]
    Random(#[source] io::Error),
}

/// Gets the value of each secret, and makes a placeholder for it.
pub fn load(rules: &[SecretRule]) -> Result<Vec<(BoundSecret, SecretValue)>, SecretError> {
    rules
        .iter()
        .map(|rule| {
            let value = value(&rule.name, &rule.source)?;
            let bound = BoundSecret {
                name: rule.name.clone(),
                placeholder: placeholder(&value)?,
                hosts: rule.hosts.clone(),
                methods: rule.methods.clone(),
                path: rule.path.clone(),
                header: rule.header.clone(),
            };
            Ok((bound, value))
        })
        .collect()
}

/// The value of one secret; `name` is what it is called in an error.
pub(crate) fn value(name: &str, source: &SecretSource) -> Result<SecretValue, SecretError> {
    check(name, read(name, source)?)
}

fn read(called: &str, source: &SecretSource) -> Result<Vec<u8>, SecretError> {
    let name = || called.to_owned();
    match source {
        SecretSource::Env(variable) => std::env::var_os(variable)
            .map(OsStringExt::into_vec)
            .ok_or_else(|| SecretError::NoVariable {
                name: name(),
                variable: variable.clone(),
            }),
        SecretSource::File(path) => std::fs::File::open(path)
            .and_then(bounded)
            .map_err(|source| SecretError::ReadFile {
                name: name(),
                path: path.clone(),
                source,
            }),
        SecretSource::Command(line) => run(line.as_ref(), called),
    }
}

/// Reads one byte more than a value may have, so that a longer one is noticed.
fn bounded(from: impl io::Read) -> io::Result<Vec<u8>> {
    // Never grown: what is left behind by a move would not be wiped.
    let mut bytes = Vec::with_capacity(MAX_SECRET + 2);
    from.take(MAX_SECRET as u64 + 2).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Runs the user's own command line, as the user would.
fn run(line: &OsStr, name: &str) -> Result<Vec<u8>, SecretError> {
    let fail = |source| SecretError::RunCommand {
        name: name.to_owned(),
        source,
    };
    let mut child = Command::new("/bin/sh")
        .arg("-c")
        .arg(line)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(fail)?;
    let out = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe);
    let mut bytes = out
        .map_err(io::Error::from)
        .and_then(bounded)
        .map_err(fail)?;
    let status = child.wait().map_err(fail)?;
    if status.success() {
        return Ok(bytes);
    }
    bytes.zeroize();
    Err(SecretError::CommandFailed {
        name: name.to_owned(),
        status,
    })
}

/// A value can stand in a header. The line end that files and commands leave is not part of it.
fn check(name: &str, mut bytes: Vec<u8>) -> Result<SecretValue, SecretError> {
    let end = bytes
        .iter()
        .rposition(|byte| !matches!(byte, b'\n' | b'\r'));
    let length = end.map_or(0, |last| last + 1);
    bytes[length..].zeroize();
    bytes.truncate(length);
    let value = SecretValue::new(bytes);
    let bytes = value.expose();
    let what = if bytes.is_empty() {
        "empty"
    } else if bytes.len() > MAX_SECRET {
        "longer than 64 KiB"
    } else if !bytes.iter().all(|byte| (0x20..0x7f).contains(byte)) {
        "no line of plain characters"
    } else if bytes.len() < 8 {
        "shorter than 8 characters: it could not be told from other text"
    } else {
        return Ok(value);
    };
    Err(SecretError::Value {
        name: name.to_owned(),
        what,
    })
}

/// Random characters of the same kinds, behind the prefix that clients look for.
fn placeholder(value: &SecretValue) -> Result<String, SecretError> {
    let bytes = value.expose();
    let separator = |byte: &u8| matches!(byte, b'_' | b'-' | b'.');
    let beginning = &bytes[..bytes.len().min(PREFIX)];
    let kept = beginning.iter().rposition(separator).map_or(0, |at| at + 1);
    let changes = |byte: &&u8| byte.is_ascii_alphanumeric();
    let kept = match bytes[kept..].iter().filter(changes).count() {
        enough if enough >= LEAST_RANDOM => kept,
        _ => 0,
    };
    let mut made = String::new();
    for byte in bytes {
        made.push(char::from(match byte {
            byte if made.len() < kept => *byte,
            b'0'..=b'9' => b'0' + below(10)?,
            b'a'..=b'z' => b'a' + below(26)?,
            b'A'..=b'Z' => b'A' + below(26)?,
            byte => *byte,
        }));
    }
    // A short value has a longer placeholder: it must not be found by chance.
    let random = bytes[kept..].iter().filter(changes).count();
    for _ in random..LEAST_RANDOM {
        made.push(char::from(b'a' + below(26)?));
    }
    Ok(made)
}

/// A random number below a bound, each as likely.
fn below(bound: u8) -> Result<u8, SecretError> {
    let most = u8::MAX - u8::MAX % bound;
    loop {
        let mut byte = Zeroizing::new([0]);
        rustix::rand::getrandom(byte.as_mut_slice(), rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| SecretError::Random(errno.into()))?;
        if byte[0] < most {
            return Ok(byte[0] % bound);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_model::policy::network::Origin;

    fn rule(source: SecretSource) -> SecretRule {
        SecretRule {
            name: "TOKEN".to_owned(),
            source,
            hosts: Vec::new(),
            methods: Vec::new(),
            path: None,
            header: "Authorization: Bearer {}".to_owned(),
            from: Origin::default(),
        }
    }

    #[test]
    fn a_placeholder_has_the_shape_and_nothing_else_of_the_value() {
        for (value, prefix) in [
            ("ghp_16CharactersOrMore0123456789abcd", "ghp_"),
            ("sk-ant-api03-abcdefghijklmnopqrstuvwxyz", "sk-ant-"),
            ("abcdefghijklmnopqrstuvwxyz012345", ""),
            ("sk-short", ""),
            ("hunter2hunter2", ""),
        ] {
            let secret = SecretValue::new(value.as_bytes().to_vec());
            let made = placeholder(&secret).expect("there is randomness");
            assert!(made.starts_with(prefix), "{made}");
            assert!(made.len() >= LEAST_RANDOM && made.len() >= value.len());
            let same = made.bytes().zip(value.bytes()).filter(|(a, b)| a == b);
            let fixed = value.bytes().filter(|byte| !byte.is_ascii_alphanumeric());
            assert!(
                same.count() < prefix.len() + fixed.count() + 10,
                "{made} {value}"
            );
            assert_ne!(made, placeholder(&secret).expect("there is randomness"));
        }
    }

    #[test]
    fn values_come_from_files_and_commands() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        std::fs::write(&path, "from-a-file-0123456789\n").expect("written");
        let loaded = |source| load(&[rule(source)]).map(|mut all| all.remove(0));
        let (bound, value) = loaded(SecretSource::File(path.clone())).expect("a value");
        assert_eq!(value.expose(), b"from-a-file-0123456789");
        assert_ne!(bound.placeholder.as_bytes(), value.expose());
        let line = "printf 'from a command\\r\\n'".to_owned();
        let (_, value) = loaded(SecretSource::Command(line)).expect("a value");
        assert_eq!(value.expose(), b"from a command");
    }

    #[test]
    fn what_is_no_value_is_refused_without_showing_it() {
        let folder = tempfile::tempdir().expect("a folder");
        for (content, what) in [
            (&b""[..], "empty"),
            (b"\n\n", "empty"),
            (b"two\nlines-of-it", "no line"),
            (b"nul\0in-the-middle", "no line"),
            (b"short", "shorter"),
        ] {
            let path = folder.path().join("token");
            std::fs::write(&path, content).expect("written");
            let error = load(&[rule(SecretSource::File(path))]).expect_err("refused");
            let text = format!("{error:?} {error}");
            assert!(text.contains(what), "{text}");
            assert!(!text.contains("lines-of-it") && !text.contains("middle"));
        }
        let path = folder.path().join("long");
        std::fs::write(&path, vec![b'x'; MAX_SECRET + 1]).expect("written");
        for source in [
            SecretSource::File(path),
            SecretSource::Env("RINGFENCE_NO_SUCH_VARIABLE".to_owned()),
            SecretSource::Command("echo value-that-is-long; exit 3".to_owned()),
            SecretSource::File(folder.path().join("absent")),
        ] {
            let error = load(&[rule(source)]).expect_err("refused");
            assert!(!format!("{error:?}").contains("value-that-is-long"));
        }
    }
}
