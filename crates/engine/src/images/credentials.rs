//! Who asks: credentials as Docker keeps them, in its file or behind helper programs.
//!
//! The file is the caller's own, and so are the helpers that it names; they run on the host, before
//! any sandbox. Secrets are wiped when they are dropped, and are in no message.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ringfence_model::image::{name_for_helpers, usual_name};
use serde::Deserialize;
use zeroize::Zeroizing;

use super::ImageError;

/// BOUND: a file of some hundred entries.
const FILE_BYTES: u64 = 4 << 20;
/// BOUND: what a helper may say.
const ANSWER_BYTES: u64 = 1 << 20;
/// BOUND: a helper may ask a person; longer than this nobody answers.
const HELPER: Duration = Duration::from_secs(120);
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);
/// What helpers write where a user would be, if there is a token for getting tokens.
const TOKEN_USER: &str = "<token>";

/// What is shown to a registry.
pub(super) enum Credentials {
    Password {
        user: String,
        password: Zeroizing<String>,
    },
    /// A token by which other tokens are got.
    Identity(Zeroizing<String>),
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Password { .. } => "Password",
            Self::Identity(_) => "Identity",
        })
    }
}

impl Credentials {
    fn new(user: String, secret: String) -> Self {
        let secret = Zeroizing::new(secret);
        if user == TOKEN_USER {
            Self::Identity(secret)
        } else {
            Self::Password {
                user,
                password: secret,
            }
        }
    }

    /// The value of a header, where this is a user and a password.
    pub fn basic(&self) -> Option<Zeroizing<String>> {
        match self {
            Self::Password { user, password } => {
                let pair = Zeroizing::new(format!("{user}:{}", password.as_str()));
                Some(Zeroizing::new(format!(
                    "Basic {}",
                    STANDARD.encode(pair.as_bytes())
                )))
            }
            Self::Identity(_) => None,
        }
    }
}

#[derive(Default, Deserialize)]
struct File {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
    #[serde(default, rename = "credHelpers")]
    helpers: BTreeMap<String, String>,
    #[serde(default, rename = "credsStore")]
    store: Option<String>,
}

#[derive(Default, Deserialize)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    #[serde(rename = "identitytoken")]
    identity: Option<String>,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "Username")]
    user: String,
    #[serde(rename = "Secret")]
    secret: String,
}

/// What is known for a registry; `None` where nothing is.
pub(super) fn find(host: &str) -> Result<Option<Credentials>, ImageError> {
    let Some(path) = path(|name| std::env::var_os(name)) else {
        return Ok(None);
    };
    let read = || -> io::Result<Option<Vec<u8>>> {
        let file = match std::fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = Vec::new();
        file.take(FILE_BYTES).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    };
    let bytes = read().map_err(|source| ImageError::ReadCredentials {
        path: path.clone(),
        source,
    })?;
    let Some(bytes) = bytes.map(Zeroizing::new) else {
        return Ok(None);
    };
    let bad = || ImageError::ParseCredentials { path: path.clone() };
    let file: File = serde_json::from_slice(&bytes).map_err(|_| bad())?;
    let helper = file
        .helpers
        .iter()
        .find(|(name, _)| is_for(name, host))
        .map(|(_, helper)| helper)
        .or(file.store.as_ref().filter(|store| !store.is_empty()));
    if let Some(helper) = helper {
        return ask(helper, host);
    }
    match file.auths.iter().find(|(name, _)| is_for(name, host)) {
        Some((_, entry)) => of_entry(entry).ok_or_else(bad),
        None => Ok(None),
    }
}

fn path(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name| variable(name).filter(|value| !value.is_empty());
    let directory = match set("DOCKER_CONFIG") {
        Some(directory) => PathBuf::from(directory),
        None => PathBuf::from(set("HOME")?).join(".docker"),
    };
    Some(directory.join("config.json"))
}

/// Whether an entry of the file is for this registry: entries may be addresses.
fn is_for(name: &str, host: &str) -> bool {
    let name = name
        .strip_prefix("https://")
        .or(name.strip_prefix("http://"))
        .unwrap_or(name);
    let name = name.split('/').next().unwrap_or_default();
    usual_name(name) == host
}

/// `None` where it is broken; nothing where it says nothing.
fn of_entry(entry: &Entry) -> Option<Option<Credentials>> {
    if let Some(token) = entry.identity.as_ref().filter(|token| !token.is_empty()) {
        return Some(Some(Credentials::Identity(Zeroizing::new(token.clone()))));
    }
    if let Some(auth) = entry.auth.as_ref().filter(|auth| !auth.is_empty()) {
        let pair = Zeroizing::new(STANDARD.decode(auth.trim()).ok()?);
        let pair = std::str::from_utf8(&pair).ok()?;
        let (user, password) = pair.split_once(':')?;
        let password = password.trim_end_matches('\0');
        return Some(Some(Credentials::new(user.to_owned(), password.to_owned())));
    }
    match (&entry.username, &entry.password) {
        (Some(user), Some(password)) => {
            Some(Some(Credentials::new(user.clone(), password.clone())))
        }
        _ => Some(None),
    }
}

fn ask(helper: &str, host: &str) -> Result<Option<Credentials>, ImageError> {
    let program = format!("docker-credential-{helper}");
    let failed = |why: String| ImageError::Helper {
        program: program.clone(),
        why,
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if !helper.chars().all(plain) {
        return Err(failed("its name is no word".to_owned()));
    }
    let mut child = Command::new(&program)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    if let Some(mut input) = child.stdin.take() {
        // A helper that does not read it says why itself.
        let _ = input.write_all(name_for_helpers(host).as_bytes());
    }
    let output = child.stdout.take();
    let reader = thread::spawn(move || {
        let mut bytes = Zeroizing::new(Vec::new());
        if let Some(output) = output {
            // What could not be read is not there.
            let _ = output.take(ANSWER_BYTES).read_to_end(&mut bytes);
        }
        bytes
    });
    let deadline = Instant::now() + HELPER;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => thread::sleep(BETWEEN_LOOKS),
            Ok(None) => {
                // It is ours and has had its time.
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed("it does not end".to_owned()));
            }
            Err(error) => return Err(failed(error.to_string())),
        }
    };
    let answer = reader.join().map_err(|_| ImageError::Thread)?;
    if !status.success() {
        let text = String::from_utf8_lossy(&answer);
        // The words by which all helpers say that they know nothing.
        if text.contains("credentials not found") {
            return Ok(None);
        }
        return Err(failed(format!("it ended with {status}")));
    }
    let answer: Answer = serde_json::from_slice(&answer)
        .map_err(|_| failed("its answer cannot be understood".to_owned()))?;
    Ok(Some(Credentials::new(answer.user, answer.secret)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_for_the_registry_they_name() {
        let usual = usual_name_of_short();
        for (name, host, is) in [
            ("registry.example:5000", "registry.example:5000", true),
            (
                "https://registry.example:5000/v1/",
                "registry.example:5000",
                true,
            ),
            ("http://registry.example", "registry.example", true),
            ("registry.example", "registry.example:5000", false),
            ("registry.example.evil", "registry.example", false),
            ("evil/registry.example", "registry.example", false),
            (&name_for_helpers(&usual), usual.as_str(), true),
        ] {
            assert_eq!(is_for(name, host), is, "{name} {host}");
        }
    }

    fn usual_name_of_short() -> String {
        let short: ringfence_model::image::Reference = "a".parse().unwrap();
        short.host().to_owned()
    }

    #[test]
    fn the_file_is_where_docker_has_it() {
        let with = |pairs: &'static [(&'static str, &'static str)]| {
            path(move |name| {
                let found = pairs.iter().find(|(its, _)| *its == name);
                found.map(|(_, value)| OsString::from(value))
            })
        };
        let both = with(&[("HOME", "/h"), ("DOCKER_CONFIG", "/d")]);
        assert_eq!(both, Some("/d/config.json".into()));
        let home = with(&[("HOME", "/h"), ("DOCKER_CONFIG", "")]);
        assert_eq!(home, Some("/h/.docker/config.json".into()));
        assert_eq!(with(&[]), None);
    }

    #[test]
    fn what_an_entry_says() {
        let entry = |json: &str| of_entry(&serde_json::from_str(json).unwrap());
        let basic = |json: &str| entry(json).unwrap().unwrap().basic().unwrap().to_string();
        let expected = format!("Basic {}", STANDARD.encode("me:word:x"));
        let auth = STANDARD.encode("me:word:x");
        assert_eq!(basic(&format!(r#"{{"auth":"{auth}"}}"#)), expected);
        assert_eq!(basic(r#"{"username":"me","password":"word:x"}"#), expected);
        for json in [
            r#"{"identitytoken":"t"}"#,
            &format!(r#"{{"auth":"{}"}}"#, STANDARD.encode("<token>:t")),
        ] {
            let found = entry(json).unwrap().unwrap();
            assert!(
                matches!(&found, Credentials::Identity(t) if t.as_str() == "t"),
                "{json}"
            );
            assert!(found.basic().is_none());
            assert!(!format!("{found:?}").contains('t') || format!("{found:?}") == "Identity");
        }
        assert!(entry("{}").unwrap().is_none());
        assert!(entry(r#"{"auth":"%"}"#).is_none());
        assert!(entry(r#"{"auth":"bm9jb2xvbg=="}"#).is_none());
    }
}
