//! Which forge a remote is on, and how it is spoken to.
//!
//! ```toml
//! [forge."git.example"]
//! kind = "gitea"                       # or "github", "gitlab"
//! api = "https://git.example/api/v1"   # the usual place if not said
//! token = "env:GITEA_TOKEN"            # or "file:PATH", "command:LINE"
//! timeout = "30s"                      # how long it may be silent
//! ```
//!
//! INVARIANT: a token goes to the host of its own settings. A host that is only guessed by its name
//! gets none of the well-known variables.

use std::io::Read as _;
use std::time::{Duration, Instant};

use http::Method;
use ringfence_model::gate::SecretValue;
use ringfence_model::policy::SecretSource;
use serde_json::Value;

use super::error::ForgeError;
use super::kinds::{Kind, Opened};
use super::{Publishing, PullRequestError};
use crate::config;
use crate::home::Home;
use crate::secrets;
use crate::source::Source;
use crate::web::{Address, Client, PlainHttp, Request, Settings, WebError};

/// BOUND: a page of 100 requests, each with a long text.
const ANSWER_BYTES: usize = 16 << 20;
/// BOUND: how long one answer may take in all, however lively it drips.
const ANSWER: Duration = Duration::from_secs(120);
/// BOUND: silence of a forge, where the settings say nothing.
const SILENCE_SECONDS: u64 = 30;
/// BOUND: pages of open requests that are looked through for ours.
const PAGES: usize = 20;
/// BOUND: characters of what a forge says.
const SAID: usize = 300;

/// A forge, and the project on it.
#[derive(Debug)]
pub struct Forge {
    pub host: String,
    pub kind: Kind,
    /// Without a slash at its end.
    pub api: String,
    /// `owner/name`, or a longer path.
    pub project: String,
    token: SecretSource,
    silence: Duration,
}

impl Forge {
    /// The forge that a remote is on, by the settings of the home or by its name.
    pub fn of(home: &Home, source: &Source) -> Result<Self, PullRequestError> {
        let none = || PullRequestError::NotAForge {
            remote: source.text(),
        };
        let Source::Url(url) = source else {
            return Err(none());
        };
        let (host, path) = split(url).ok_or_else(none)?;
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        let bad = |why: String| PullRequestError::Settings {
            host: host.to_owned(),
            why,
        };
        let settings = config::forges(home).map_err(|error| bad(error.to_string()))?;
        let own = settings.get(host).or_else(|| settings.get(name));
        let guessed = Kind::of_host(name);
        let kind = match own.and_then(|own| own.kind.as_deref()) {
            Some(word) => {
                Kind::parse(word).ok_or_else(|| bad(format!("`{word}` is no kind of forge")))?
            }
            None => guessed.map(|(kind, _)| kind).ok_or_else(|| {
                let host = host.to_owned();
                PullRequestError::UnknownForge { host }
            })?,
        };
        let api = own.and_then(|own| own.api.clone());
        let api = api.unwrap_or_else(|| kind.api(name));
        let token = match own.and_then(|own| own.token.as_deref()) {
            Some(text) => {
                SecretSource::parse(text, std::env::home_dir().as_deref()).map_err(bad)?
            }
            None => match guessed {
                Some((_, Some(variable))) => SecretSource::Env(variable.to_owned()),
                _ => return Err(bad("it has no `token`".to_owned())),
            },
        };
        let timeout = own.and_then(|own| own.timeout.as_deref());
        let timeout = timeout.map(config::parse_span).transpose();
        let timeout = timeout.map_err(|error| bad(error.to_string()))?;
        let project = path.trim_matches('/');
        let project = project.strip_suffix(".git").unwrap_or(project);
        if !kind.is_project(project) {
            return Err(none());
        }
        Ok(Self {
            host: host.to_owned(),
            kind,
            api: api.trim_end_matches('/').to_owned(),
            project: project.to_owned(),
            token,
            silence: Duration::from_secs(timeout.flatten().unwrap_or(SILENCE_SECONDS).max(1)),
        })
    }

    /// The token, read from where the settings say.
    pub(super) fn token(&self) -> Result<SecretValue, PullRequestError> {
        let name = format!("the token of {}", self.host);
        secrets::value(&name, &self.token).map_err(|source| PullRequestError::Token {
            host: self.host.clone(),
            source,
        })
    }

    /// Opens a request for the branch, or finds the one that is open.
    pub(super) fn open(
        &self,
        token: &SecretValue,
        publishing: &Publishing<'_>,
        base: &str,
    ) -> Result<Opened, ForgeError> {
        let api = Address::parse(&self.api, PlainHttp::LoopbackOnly).map_err(WebError::from)?;
        let line = Line {
            forge: self,
            client: Client::open(Settings {
                silence: self.silence,
                // The user's own remote or settings name it.
                named: Some(api.host()),
                ..Settings::default()
            })?,
            token: String::from_utf8_lossy(token.expose()).into_owned().into(),
        };
        if let Some(found) = line.find(&publishing.branch)? {
            return Ok(found);
        }
        let (url, body) = self.kind.to_open(self, publishing, base);
        let (status, answer) = line.ask(Method::POST, &url, Some(body))?;
        match status {
            200..300 => Opened::read(self.kind, &answer, false),
            // Somebody was faster, or the answer of an earlier try was lost.
            409 | 422 => match line.find(&publishing.branch)? {
                Some(found) => Ok(found),
                None => Err(self.refused(status, &answer)),
            },
            _ => Err(self.refused(status, &answer)),
        }
    }

    fn refused(&self, status: u16, answer: &Value) -> ForgeError {
        match status {
            401 | 403 => ForgeError::Token { status },
            404 => ForgeError::NoProject {
                project: self.project.clone(),
            },
            429 | 500.. => ForgeError::Trouble { status },
            _ => ForgeError::Refused {
                status,
                said: said(answer),
            },
        }
    }
}

/// A connection to a forge, with the token.
struct Line<'a> {
    forge: &'a Forge,
    client: Client,
    token: zeroize::Zeroizing<String>,
}

impl Line<'_> {
    /// The open request for a branch.
    fn find(&self, branch: &str) -> Result<Option<Opened>, ForgeError> {
        let kind = self.forge.kind;
        for page in 1..=PAGES {
            let url = kind.to_find(self.forge, branch, page);
            let (status, answer) = self.ask(Method::GET, &url, None)?;
            if !(200..300).contains(&status) {
                return Err(self.forge.refused(status, &answer));
            }
            let list = answer.as_array().ok_or(ForgeError::Answer {
                what: "list of requests",
            })?;
            let own = |item: &&Value| kind.is_of(item, &self.forge.project, branch);
            if let Some(item) = list.iter().find(own) {
                return Opened::read(kind, item, true).map(Some);
            }
            if list.len() < kind.page_length() {
                break;
            }
        }
        Ok(None)
    }

    fn ask(
        &self,
        method: Method,
        url: &str,
        body: Option<Value>,
    ) -> Result<(u16, Value), ForgeError> {
        let kind = self.forge.kind;
        let (name, value) = kind.authorisation(&self.token);
        let mut request = Request::new(method, url)
            .header("accept", kind.accepts())?
            .secret(name, &value)?;
        if let Some(body) = body {
            request = request.body("application/json", body.to_string().into_bytes())?;
        }
        let began = Instant::now();
        let answer = self.client.send(&request)?;
        let status = answer.status;
        let from = answer.from.clone();
        let mut reader = answer.reader();
        let mut bytes = Vec::new();
        let mut chunk = vec![0; 64 << 10];
        // HOSTILE: bounded in bytes and in time.
        loop {
            if began.elapsed() > ANSWER {
                let seconds = ANSWER.as_secs();
                return Err(ForgeError::TooSlow { seconds });
            }
            match reader.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => bytes.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(source) => return Err(crate::web::WebError::BrokeOff { from, source }.into()),
            }
            if bytes.len() > ANSWER_BYTES {
                let most = ANSWER_BYTES as u64;
                return Err(crate::web::WebError::TooLarge { from, most }.into());
            }
        }
        // An error page need not be JSON; what should be is looked at by whoever asked.
        let text = || Value::String(String::from_utf8_lossy(&bytes).into_owned());
        let value = serde_json::from_slice(&bytes).unwrap_or_else(|_| text());
        Ok((status, value))
    }
}

/// Host, with its port, and path of an address.
fn split(url: &str) -> Option<(&str, &str)> {
    let (authority, path) = match url.split_once("://") {
        Some(("file", _)) => return None,
        Some((_, rest)) => rest.split_once('/')?,
        None => url.split_once(':')?,
    };
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    (!host.is_empty() && !path.is_empty()).then_some((host, path))
}

/// HOSTILE: what a forge says, for a person.
fn said(answer: &Value) -> String {
    let mut parts = Vec::new();
    match answer {
        Value::String(text) => parts.push(text.clone()),
        answer => {
            for key in ["message", "error", "errors"] {
                gather(&answer[key], &mut parts);
            }
        }
    }
    let text = parts.join("; ");
    let text: String = text.chars().take(SAID).collect();
    text.replace(ringfence_model::text::misleads, " ")
}

fn gather(value: &Value, parts: &mut Vec<String>) {
    match value {
        Value::String(text) => parts.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| gather(item, parts)),
        Value::Object(fields) => gather(fields.get("message").unwrap_or(&Value::Null), parts),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_a_project() {
        for (url, expected) in [
            ("https://a.example/o/n.git", Some(("a.example", "o/n.git"))),
            ("http://127.0.0.1:80/o/n", Some(("127.0.0.1:80", "o/n"))),
            ("ssh://git@a.example:22/o/n", Some(("a.example:22", "o/n"))),
            ("git@a.example:o/n.git", Some(("a.example", "o/n.git"))),
            ("file:///o/n", None),
            ("https://a.example", None),
        ] {
            assert_eq!(split(url), expected, "{url}");
        }
    }

    #[test]
    fn settings_win_and_a_guess_gets_no_token() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(Some(directory.path().join("home"))).unwrap();
        let url = |url: &str| Source::Url(url.to_owned());
        let known = Forge::of(&home, &url("https://github.com/o/n.git")).unwrap();
        assert_eq!(
            (known.kind, &known.api[..]),
            (Kind::GitHub, "https://api.github.com")
        );
        for (guess, word) in [
            ("https://github.evil.example/o/n", "no `token`"),
            ("https://gitlab.evil.example/o/n", "no `token`"),
            ("https://git.example/o/n", "kind of forge"),
            ("https://github.com/n", "no project"),
            ("https://github.com/o/n/x", "no project"),
            ("https://github.com/o/..", "no project"),
            ("https://github.com/o/n%2f", "no project"),
        ] {
            let error = Forge::of(&home, &url(guess)).unwrap_err().to_string();
            assert!(error.contains(word), "{guess}: {error}");
        }
        let path = home.root().join("config.toml");
        let text = "[forge.\"git.example\"]\nkind = \"gitea\"\ntoken = \"env:T\"\ntimeout = \"2s\"\n\
                    [forge.\"git.example:444\"]\nkind = \"gitlab\"\napi = \"https://x.example/v4/\"\ntoken = \"file:/t\"\n";
        std::fs::write(&path, text).unwrap();
        let gitea = Forge::of(&home, &url("git@git.example:o/n.git")).unwrap();
        assert_eq!(gitea.api, "https://git.example/api/v1");
        assert_eq!(gitea.silence, Duration::from_secs(2));
        let gitlab = Forge::of(&home, &url("https://git.example:444/a/b/c.git")).unwrap();
        assert_eq!(
            (&gitlab.api[..], &gitlab.project[..]),
            ("https://x.example/v4", "a/b/c")
        );
        for bad in [
            "kind = \"svn\"",
            "token = \"plain\"",
            "api = 3",
            "toke = \"env:T\"",
        ] {
            std::fs::write(&path, format!("[forge.\"git.example\"]\n{bad}\n")).unwrap();
            assert!(
                Forge::of(&home, &url("https://git.example/o/n")).is_err(),
                "{bad}"
            );
        }
    }

    #[test]
    fn what_a_forge_says_is_bounded_and_plain() {
        let answer = serde_json::json!({
            "message": "Validation Failed\u{1b}[2J",
            "errors": [{"message": "no commits"}, "x".repeat(1000)],
        });
        let said = said(&answer);
        assert!(
            said.starts_with("Validation Failed [2J; no commits; xxx"),
            "{said}"
        );
        assert_eq!(said.chars().count(), SAID);
    }
}
