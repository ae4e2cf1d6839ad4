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

use crate::flags::secrets::{ALPHANUMERIC, known_prefix};

/// BOUND: fewer random characters could be there by chance.
const LEAST_RANDOM: usize = 16;

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

/// A value can stand in a header. Blanks and line ends around it, which files and commands leave, are not part of it:
/// servers cut them off, and an answer that repeats the value without them would not be recognised.
fn check(name: &str, mut bytes: Vec<u8>) -> Result<SecretValue, SecretError> {
    let blanks = bytes.len() - bytes.trim_ascii_start().len();
    // Moved in place: what a copy leaves behind would not be wiped.
    bytes.rotate_left(blanks);
    let length = bytes[..bytes.len() - blanks].trim_ascii_end().len();
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

/// A text that stands for a value inside: a well-known prefix such as `sk-ant-`, which some clients look for, then
/// random characters.
///
/// INVARIANT: only the length and the well-known prefix come from the value. Earlier versions also kept the class of
/// each character and all separators: of a hexadecimal value that told one bit for each digit.
fn placeholder(value: &SecretValue) -> Result<String, SecretError> {
    let bytes = value.expose();
    let (prefix, alphabet) = known_prefix(bytes).unwrap_or(("", ALPHANUMERIC));
    let length = bytes.len().max(prefix.len() + LEAST_RANDOM);
    let mut made = String::with_capacity(length);
    made.push_str(prefix);
    while made.len() < length {
        made.push(char::from(alphabet[random_below(alphabet.len())?]));
    }
    Ok(made)
}

/// A random number below a bound of at most 256, each as likely.
fn random_below(bound: usize) -> Result<usize, SecretError> {
    let multiple = 256 - 256 % bound;
    loop {
        let mut byte = Zeroizing::new([0]);
        rustix::rand::getrandom(byte.as_mut_slice(), rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| SecretError::Random(errno.into()))?;
        let random = usize::from(byte[0]);
        if random < multiple {
            return Ok(random % bound);
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

    fn placeholder_of(value: &str) -> String {
        placeholder(&SecretValue::new(value.as_bytes().to_vec())).expect("there is randomness")
    }

    #[test]
    fn placeholder_has_the_length_and_a_known_prefix_of_the_value() {
        for (value, prefix, length) in [
            ("ghp_16CharactersOrMore0123456789abcd", "ghp_", 36),
            ("sk-ant-api03-abcdefghijklmnopqrstuvwxyz", "sk-ant-", 39),
            ("abcdefghijklmnopqrstuvwxyz012345", "", 32),
            ("npm_short", "npm_", 4 + LEAST_RANDOM),
            ("hunter2hunter2", "", LEAST_RANDOM),
        ] {
            let made = placeholder_of(value);
            assert!(made.starts_with(prefix), "{made}");
            assert_eq!(made.len(), length, "{made}");
            assert_ne!(made, placeholder_of(value));
        }
    }

    /// Values of one length, with other characters at each place, have placeholders of the same distribution.
    #[test]
    fn placeholder_does_not_depend_on_the_characters_of_the_value() {
        for value in [
            "0123456789012345678901234567",
            "abcdefabcdefabcdefabcdefabcd",
            "AB_-CD.ef-gh_ij/kl+mn=op qr!",
            "----------------------------",
        ] {
            let mut digits = 0;
            for _ in 0..200 {
                let made = placeholder_of(value);
                assert!(made.bytes().all(|byte| byte.is_ascii_alphanumeric()));
                digits += made.bytes().filter(u8::is_ascii_digit).count();
            }
            // 10 of 62 characters are digits: 903 of 5,600 on average, with a standard deviation of 28.
            assert!((700..1100).contains(&digits), "{value}: {digits}");
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
        let line = "printf ' \\t from a command \\r\\n'".to_owned();
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
