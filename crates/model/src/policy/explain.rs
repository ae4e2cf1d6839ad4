//! What a policy says of a path or a host, and which line of which file says so.

use std::net::SocketAddr;
use std::path::{Component, Path};

use serde::Serialize;

use super::area::Area;
use super::export::Export;
use super::glob::Globs;
use super::network::{NetworkRule, Origin, Protocol, Reason, RequestPath, Rules, Verdict};
use super::{Effective, Line};
use crate::host::Host;

/// What is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// A path of the workspace.
    Path(String),
    Request {
        host: Host,
        port: u16,
        method: String,
        path: RequestPath,
    },
    /// A connection, whatever is in it.
    Connection { host: Host, port: u16 },
}

/// What is no question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuestionError {
    #[error(
        "ask for a path of the workspace, a URL (with or without a method), or `tcp HOST:PORT`"
    )]
    Shape,
    #[error("a path of the workspace is meant, from its top, without `..`")]
    Path,
    #[error("the host or port of this URL cannot be read in one way only")]
    Host,
    #[error("the path of this URL cannot be read in one way only")]
    Target,
}

impl Question {
    /// Reads `src/a.rs`, `https://a.example/x`, `POST https://a.example/x`, `tcp a.example:5432`.
    pub fn parse(text: &str) -> Result<Self, QuestionError> {
        if let Some(place) = text.strip_prefix("tcp ") {
            let (host, port) = place_of(place.trim(), None)?;
            return Ok(Self::Connection { host, port });
        }
        let Some(at) = text.find("://") else {
            let path = text.strip_prefix("./").unwrap_or(text);
            let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
            return if !path.is_empty() && Path::new(path).components().all(plain) {
                Ok(Self::Path(path.trim_end_matches('/').to_owned()))
            } else {
                Err(QuestionError::Path)
            };
        };
        let (method, scheme) = match text[..at].rsplit_once(' ') {
            Some((method, scheme)) => (method.trim(), scheme),
            None => ("GET", &text[..at]),
        };
        let usual = match scheme {
            "http" => 80,
            "https" => 443,
            _ => return Err(QuestionError::Shape),
        };
        if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_uppercase()) {
            return Err(QuestionError::Shape);
        }
        let rest = &text[at + 3..];
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (host, port) = place_of(&rest[..end], Some(usual))?;
        let target = if rest[end..].starts_with('/') {
            rest[end..].to_owned()
        } else {
            format!("/{}", &rest[end..])
        };
        Ok(Self::Request {
            host,
            port,
            method: method.to_owned(),
            path: RequestPath::parse(&target).ok_or(QuestionError::Target)?,
        })
    }
}

/// A host and a port, as they stand in a URL.
fn place_of(text: &str, usual: Option<u16>) -> Result<(Host, u16), QuestionError> {
    let error = QuestionError::Host;
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            let port = port.parse().ok().filter(|port| *port != 0).ok_or(error)?;
            (host, port)
        }
        _ => (text, usual.ok_or(error)?),
    };
    Ok((Host::parse(host).map_err(|_| error)?, port))
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "about", rename_all = "snake_case")]
pub enum Explanation {
    Path {
        path: String,
        /// By this pattern it is absent inside.
        hidden: Option<Line>,
        write: Said,
        export: Said,
    },
    Network {
        host: Host,
        port: u16,
        #[serde(skip_serializing_if = "Option::is_none")]
        method: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        path: Option<String>,
        allowed: bool,
        /// A double on the host that answers instead.
        #[serde(skip_serializing_if = "Option::is_none")]
        double: Option<SocketAddr>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<Reason>,
        /// The rule that decides.
        #[serde(skip_serializing_if = "Option::is_none")]
        rule: Option<Line>,
        /// The line that would allow it.
        #[serde(skip_serializing_if = "Option::is_none")]
        would_allow: Option<String>,
    },
}

/// Yes or no, and the line that says so; where no line does, it is always so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Said {
    pub yes: bool,
    pub by: Option<Line>,
}

impl Effective {
    /// What this policy says.
    pub fn explain(&self, question: &Question) -> Explanation {
        match question {
            Question::Path(path) => Explanation::Path {
                path: path.clone(),
                hidden: matching(&self.files.hide, path).cloned(),
                write: self.writable(path),
                export: match &self.files.export {
                    None => Said {
                        yes: true,
                        by: None,
                    },
                    Some(lines) => {
                        let exports = |line: &&Line| {
                            Export::parse(&[&line.text])
                                .is_ok_and(|export| export.matches(Path::new(path)))
                        };
                        let by = lines.iter().find(exports).cloned();
                        Said {
                            yes: by.is_some(),
                            by,
                        }
                    }
                },
            },
            Question::Connection { host, port } => {
                let verdict = self.network.rules.connection(host, *port);
                let opaque = match verdict {
                    // Bytes that are no requests need a rule that takes any.
                    Verdict::Allow(rule) if rule.protocol == Protocol::Web => Verdict::Deny {
                        reason: Reason::Protocol,
                        rule: Some(rule),
                    },
                    verdict => verdict,
                };
                let line = Rules::line_for(host, *port, Protocol::Tcp);
                self.network_answer(host, *port, None, opaque, line)
            }
            Question::Request {
                host,
                port,
                method,
                path,
            } => {
                let verdict = match self.network.rules.connection(host, *port) {
                    // Whatever goes through such a connection is not looked at.
                    Verdict::Allow(rule) if rule.protocol == Protocol::Tcp => Verdict::Allow(rule),
                    // No request comes so far.
                    verdict @ Verdict::Deny { rule: Some(_), .. } => verdict,
                    _ => self.network.rules.request(host, *port, method, path),
                };
                let line = Rules::line_for_request(host, *port, method, path);
                self.network_answer(host, *port, Some((method, path)), verdict, line)
            }
        }
    }

    /// The most specific area decides; of two that are equal, the one that denies.
    pub(super) fn writable(&self, path: &str) -> Said {
        let Ok(asked) = Area::parse(path) else {
            // A name that no area can have is in those above it.
            return Said {
                yes: self.files.write.is_none(),
                by: None,
            };
        };
        let deepest = |lines: &[Line], folded: bool| {
            let areas = lines.iter().filter_map(|line| {
                let area = Area::parse(&line.text).ok()?;
                let holds = if folded {
                    area.holds_folded(&asked)
                } else {
                    area.holds(&asked)
                };
                holds.then(|| (area.depth(), line.clone()))
            });
            areas.max_by_key(|(depth, _)| *depth)
        };
        // What is denied is denied in every spelling.
        let denied = deepest(&self.files.read_only, true);
        let given = match &self.files.write {
            None => Some((0, None)),
            Some(lines) => deepest(lines, false).map(|(depth, line)| (depth, Some(line))),
        };
        match (given, denied) {
            (Some((depth, by)), Some((deeper, _))) if depth > deeper => Said { yes: true, by },
            (_, Some((_, line))) => Said {
                yes: false,
                by: Some(line),
            },
            (Some((_, by)), None) => Said { yes: true, by },
            (None, None) => Said {
                yes: false,
                by: None,
            },
        }
    }

    fn network_answer(
        &self,
        host: &Host,
        port: u16,
        request: Option<(&String, &RequestPath)>,
        verdict: Verdict<'_>,
        line: String,
    ) -> Explanation {
        let double = self.network.mocks.iter().find(|mock| mock.host == *host);
        let double = double.filter(|_| request.is_some()).map(|mock| mock.to);
        let (allowed, reason, rule) = match verdict {
            Verdict::Allow(rule) => (true, None, Some(rule)),
            Verdict::Deny { reason, rule } => (false, Some(reason), rule),
        };
        let double = double.filter(|_| allowed);
        Explanation::Network {
            host: host.clone(),
            port,
            method: request.map(|(method, _)| method.clone()),
            path: request.map(|(_, path)| path.as_str().to_owned()),
            allowed,
            double,
            reason: reason.filter(|_| !allowed),
            rule: rule.map(line_of),
            would_allow: (!allowed && reason != Some(Reason::Rule)).then_some(line),
        }
    }
}

/// A rule as it would be written, and where it was.
pub fn line_of(rule: &NetworkRule) -> Line {
    Line {
        text: rule.to_string(),
        from: Origin::clone(&rule.from),
    }
}

fn matching<'l>(lines: &'l [Line], path: &str) -> Option<&'l Line> {
    lines
        .iter()
        .find(|line| Globs::parse(&[&line.text]).is_ok_and(|globs| globs.matches(Path::new(path))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::document::{Document, Source};

    fn policy(text: &str) -> Effective {
        let source = Source {
            file: "p.toml",
            home: None,
        };
        let document = Document::parse(text.as_bytes(), source).expect(text);
        document.resolve::<()>(&mut |_| Err(())).expect("no preset")
    }

    #[test]
    fn the_most_specific_path_wins_and_denial_wins_ties() {
        let policy = policy(
            "[files]\nhide = ['.env*']\nwrite = ['src/**', 'a/b/c', 'tie']\n\
             read_only = ['src/gen/**', 'a/b', 'tie']\nexport = ['*.py', 'src/**']",
        );
        for (path, hidden, write, export) in [
            ("src/x.rs", false, true, true),
            ("src/gen/x.rs", false, false, true),
            ("SRC/gen", false, false, false),
            ("src/GEN/x", false, false, true),
            ("a/b/c/d", false, true, false),
            ("a/b/x", false, false, false),
            ("tie", false, false, false),
            ("other.py", false, false, true),
            ("src/.env", true, true, true),
        ] {
            let question = Question::parse(path).expect(path);
            let Explanation::Path {
                hidden: h,
                write: w,
                export: e,
                ..
            } = policy.explain(&question)
            else {
                panic!("{path}")
            };
            assert_eq!(
                (h.is_some(), w.yes, e.yes),
                (hidden, write, export),
                "{path}"
            );
        }
        let nothing = self::policy("[files]\nwrite = []\nexport = []");
        let question = Question::Path("a".to_owned());
        let Explanation::Path { write, export, .. } = nothing.explain(&question) else {
            panic!()
        };
        assert!(!write.yes && !export.yes);
    }

    #[test]
    fn hosts_are_explained_by_their_rule() {
        let policy = policy(
            "[network]\nallow = ['GET a.example/repos/**', 'tcp db.example:5432', 'b.example']\n\
             deny = ['b.example/admin/**', 'tcp b.example:443']\n[network.mock]\n'm.example' = 'http://127.0.0.1:9000'",
        );
        for (text, allowed, line, would) in [
            ("https://a.example/repos/x?q=1", true, Some(2), None),
            (
                "POST https://a.example/repos/x",
                false,
                None,
                Some("POST a.example/repos/x"),
            ),
            ("tcp db.example:5432", true, Some(2), None),
            ("tcp b.example:80", false, Some(2), Some("tcp b.example:80")),
            ("http://b.example", true, Some(2), None),
            ("http://b.example/admin/x", false, Some(3), None),
            ("https://b.example/", false, Some(3), None),
            (
                "https://other.example/",
                false,
                None,
                Some("GET other.example/"),
            ),
            ("http://m.example/x", true, Some(5), None),
        ] {
            let question = Question::parse(text).expect(text);
            let Explanation::Network {
                allowed: is,
                rule,
                would_allow,
                ..
            } = policy.explain(&question)
            else {
                panic!("{text}")
            };
            assert_eq!(is, allowed, "{text}");
            assert_eq!(rule.map(|rule| rule.from.line), line, "{text}");
            assert_eq!(would_allow.as_deref(), would, "{text}");
        }
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_no_question() {
        for text in [
            "",
            "/etc/passwd",
            "../a",
            "ftp://a.example/",
            "https://a.example:0/",
            "https://127.1/",
            "https://user@a.example/",
            "https://a.example/%2e%2e/x",
            "get https://a.example/",
            "tcp a.example",
        ] {
            assert!(Question::parse(text).is_err(), "{text}");
        }
    }
}
