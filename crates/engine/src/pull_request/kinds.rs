//! The three kinds of forges, and what each calls the same thing.
//!
//! | | GitHub | GitLab | Gitea, Forgejo |
//! | --- | --- | --- | --- |
//! | request | `pulls` | `merge_requests` | `pulls` |
//! | number, page | `number`, `html_url` | `iid`, `web_url` | `number`, `html_url` |
//! | token | `Authorization: Bearer` | `PRIVATE-TOKEN` | `Authorization: token` |
//! | not ready | `draft` | `Draft: ` before the title | `WIP: ` before the title |
//! | open already | 422 | 409 | 409 |

use serde_json::{Value, json};

use super::error::ForgeError;
use super::forge::Forge;
use super::{Draft, Publishing};

/// What a forge runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    GitHub,
    GitLab,
    Gitea,
}

/// A request that is open.
#[derive(Debug)]
pub(super) struct Opened {
    pub number: u64,
    pub url: String,
    pub found: bool,
}

impl Opened {
    /// HOSTILE: the page is shown to a person, who may follow it.
    pub fn read(kind: Kind, answer: &Value, found: bool) -> Result<Self, ForgeError> {
        let (number, url) = match kind {
            Kind::GitLab => ("iid", "web_url"),
            Kind::GitHub | Kind::Gitea => ("number", "html_url"),
        };
        let lacks = |what| ForgeError::Answer { what };
        let plain = |url: &&str| {
            let scheme = url.starts_with("https://") || url.starts_with("http://");
            scheme && url.len() <= 2000 && url.bytes().all(|byte| byte.is_ascii_graphic())
        };
        let url = answer[url].as_str().filter(plain);
        Ok(Self {
            number: answer[number].as_u64().ok_or(lacks("number"))?,
            url: url.ok_or(lacks("address of a page"))?.to_owned(),
            found,
        })
    }
}

impl Kind {
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "github" => Some(Self::GitHub),
            "gitlab" => Some(Self::GitLab),
            "gitea" | "forgejo" => Some(Self::Gitea),
            _ => None,
        }
    }

    /// The kind of a host, and the variable with its token where the host is well known.
    pub fn of_host(host: &str) -> Option<(Self, Option<&'static str>)> {
        match host {
            "github.com" => Some((Self::GitHub, Some("GITHUB_TOKEN"))),
            "gitlab.com" => Some((Self::GitLab, Some("GITLAB_TOKEN"))),
            "codeberg.org" => Some((Self::Gitea, Some("CODEBERG_TOKEN"))),
            host if host.starts_with("github.") => Some((Self::GitHub, None)),
            host if host.starts_with("gitlab.") => Some((Self::GitLab, None)),
            host if host.starts_with("gitea.") || host.starts_with("forgejo.") => {
                Some((Self::Gitea, None))
            }
            _ => None,
        }
    }

    /// Where the API usually is.
    pub fn api(self, host: &str) -> String {
        match (self, host) {
            (Self::GitHub, "github.com") => "https://api.github.com".to_owned(),
            (Self::GitHub, host) => format!("https://{host}/api/v3"),
            (Self::GitLab, host) => format!("https://{host}/api/v4"),
            (Self::Gitea, host) => format!("https://{host}/api/v1"),
        }
    }

    /// Whether a path can be that of a project. It becomes a part of addresses as it is.
    pub fn is_project(self, path: &str) -> bool {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let part =
            |part: &str| !part.is_empty() && part.bytes().all(plain) && part != "." && part != "..";
        let parts = path.split('/').count();
        let deep = match self {
            Self::GitLab => (2..=20).contains(&parts),
            Self::GitHub | Self::Gitea => parts == 2,
        };
        deep && path.len() <= 500 && path.split('/').all(part)
    }

    pub(super) fn accepts(self) -> &'static str {
        match self {
            Self::GitHub => "application/vnd.github+json",
            Self::GitLab | Self::Gitea => "application/json",
        }
    }

    /// The header with the token.
    pub(super) fn authorisation(self, token: &str) -> (&'static str, zeroize::Zeroizing<String>) {
        let (name, value) = match self {
            Self::GitHub => ("authorization", format!("Bearer {token}")),
            Self::GitLab => ("private-token", token.to_owned()),
            Self::Gitea => ("authorization", format!("token {token}")),
        };
        (name, value.into())
    }

    /// Requests on a full page.
    pub(super) fn page_length(self) -> usize {
        match self {
            Self::GitHub | Self::GitLab => 100,
            Self::Gitea => 50,
        }
    }

    fn requests(self, forge: &Forge) -> String {
        let api = &forge.api;
        let project = &forge.project;
        match self {
            Self::GitHub | Self::Gitea => format!("{api}/repos/{project}/pulls"),
            Self::GitLab => {
                let project = project.replace('/', "%2F");
                format!("{api}/projects/{project}/merge_requests")
            }
        }
    }

    /// Where open requests for a branch are listed. A work branch is a plain name.
    pub(super) fn to_find(self, forge: &Forge, branch: &str, page: usize) -> String {
        let requests = self.requests(forge);
        let owner = forge.project.split('/').next().unwrap_or_default();
        match self {
            Self::GitHub => {
                format!("{requests}?state=open&head={owner}:{branch}&per_page=100&page={page}")
            }
            Self::GitLab => {
                format!("{requests}?state=opened&source_branch={branch}&per_page=100&page={page}")
            }
            Self::Gitea => format!("{requests}?state=open&limit=50&page={page}"),
        }
    }

    /// Whether a listed request is for this branch of the project itself, not of a copy of it.
    pub(super) fn is_of(self, item: &Value, project: &str, branch: &str) -> bool {
        match self {
            Self::GitLab => {
                item["source_branch"] == branch
                    && item["source_project_id"] == item["target_project_id"]
            }
            Self::GitHub | Self::Gitea => {
                let from = item["head"]["repo"]["full_name"].as_str();
                item["head"]["ref"] == branch
                    && from.is_some_and(|from| from.eq_ignore_ascii_case(project))
            }
        }
    }

    /// Where a request is opened, and what is said.
    pub(super) fn to_open(
        self,
        forge: &Forge,
        publishing: &Publishing<'_>,
        base: &str,
    ) -> (String, Value) {
        let draft = publishing.draft == Draft::Yes;
        let title = |mark: &str| {
            if draft {
                format!("{mark}{}", publishing.title)
            } else {
                publishing.title.clone()
            }
        };
        let (branch, body) = (&publishing.branch, &publishing.body);
        let value = match self {
            Self::GitHub => json!({
                "title": publishing.title, "head": branch, "base": base, "body": body,
                "draft": draft,
            }),
            Self::GitLab => json!({
                "title": title("Draft: "), "source_branch": branch, "target_branch": base,
                "description": body,
            }),
            Self::Gitea => json!({
                "title": title("WIP: "), "head": branch, "base": base, "body": body,
            }),
        };
        (self.requests(forge), value)
    }
}
