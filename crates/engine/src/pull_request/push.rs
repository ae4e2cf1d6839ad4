//! The push: from a bare repository of ours that has nothing but a list of where objects are.
//!
//! HOSTILE: the folder's repository is the user's, but hooks and settings in it may come from
//! anywhere; none is heard. The user's own global settings are, because credentials are there.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use ringfence_model::changes::ObjectHash;

use super::{Publishing, PullRequestError};
use crate::git;
use crate::home::Home;
use crate::mirror::{Git, Progress};
use crate::source::{self, Source, Typed};

/// BOUND: a path component of a file system is no longer either.
const NAME: usize = 200;

/// Looks at the name of a work branch.
pub fn branch_name(name: &str) -> Result<(), PullRequestError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    let part = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['.', '-'])
            && !part.ends_with('.')
            && !part.ends_with(".lock")
    };
    let why = if name.is_empty() || name.len() > NAME {
        "it has 1 to 200 characters"
    } else if !name.bytes().all(plain) {
        "it has other characters than letters, digits, `-`, `_`, `.` and `/`"
    } else if name.contains("..") || !name.split('/').all(part) {
        "each part of it begins with a letter or digit and ends so"
    } else if name == "HEAD" || name.starts_with("refs/") {
        "git means something else by it"
    } else {
        return Ok(());
    };
    Err(PullRequestError::BranchName {
        name: name.chars().take(NAME).collect(),
        why,
    })
}

/// Where the folder's repository pushes to, by the name of its remote.
pub fn remote(folder: &Path, name: &str) -> Result<Typed, PullRequestError> {
    let none = || PullRequestError::NoRemote {
        name: name.to_owned(),
    };
    let repository = git::discover(folder).map_err(PullRequestError::Repository)?;
    let repository = repository.ok_or_else(none)?;
    let value = |wanted: &[u8]| {
        let settings = repository.config.named("remote");
        let own = settings.filter(|(of, key, _)| *of == name.as_bytes() && *key == wanted);
        own.map(|(_, _, value)| value.to_vec()).last()
    };
    let url = value(b"pushurl")
        .or_else(|| value(b"url"))
        .ok_or_else(none)?;
    let url = String::from_utf8_lossy(&url).into_owned();
    // A path in a repository's settings counts from its top.
    let path = repository.top.join(OsStr::from_bytes(url.as_bytes()));
    let url = if !url.contains(':') && path.is_dir() {
        path.to_string_lossy().into_owned()
    } else {
        url
    };
    source::parse(&url).map_err(|source| PullRequestError::RemoteAddress {
        name: name.to_owned(),
        source,
    })
}

/// What the remote has.
pub(super) struct Remote {
    /// The name of its default branch.
    pub default: String,
    /// Where the work branch is, if there is one.
    pub tip: Option<String>,
}

pub(super) struct Pushing<'a> {
    pub home: &'a Home,
    pub publishing: &'a Publishing<'a>,
    /// Where this run has put the branch before.
    pub ours: Vec<String>,
}

impl Pushing<'_> {
    fn remote(&self) -> String {
        self.publishing.remote.source.text()
    }

    fn full(&self) -> String {
        format!("refs/heads/{}", self.publishing.branch)
    }

    /// Asks the remote; refuses the default branch, and a branch of somebody else.
    pub fn ask(&self) -> Result<Remote, PullRequestError> {
        let scratch = Scratch::make(self.home, self.publishing)?;
        let output = Git::network(&self.publishing.remote)
            .at(&scratch.0)
            .args(["ls-remote", "--symref", "--"])
            .arg(address(&self.publishing.remote.source))
            .args(["HEAD", &self.full()])
            .quiet()
            .map_err(|source| PullRequestError::Ask {
                remote: self.remote(),
                source,
            })?;
        let remote = self.read(&String::from_utf8_lossy(&output))?;
        if remote.default == self.publishing.branch {
            return Err(PullRequestError::DefaultBranch {
                branch: remote.default,
                remote: self.remote(),
            });
        }
        match &remote.tip {
            Some(tip) if tip != &self.publishing.commit && !self.ours.contains(tip) => {
                Err(PullRequestError::ForeignBranch {
                    branch: self.publishing.branch.clone(),
                    remote: self.remote(),
                    tip: tip.clone(),
                })
            }
            _ => Ok(remote),
        }
    }

    /// HOSTILE: the remote chose each line.
    fn read(&self, output: &str) -> Result<Remote, PullRequestError> {
        let mut default = None;
        let mut tip = None;
        let full = self.full();
        for line in output.lines() {
            let Some((left, name)) = line.split_once('\t') else {
                continue;
            };
            if let Some(target) = left.strip_prefix("ref: ") {
                if let (Some(branch), "HEAD") = (target.strip_prefix("refs/heads/"), name) {
                    default = Some(branch.to_owned());
                }
            } else if name == full && self.publishing.hash.is_oid(left.as_bytes()) {
                tip = Some(left.to_owned());
            }
        }
        let remote = self.remote();
        let default = default.ok_or(PullRequestError::NoDefault { remote })?;
        Ok(Remote { default, tip })
    }

    /// Pushes the commit, if the branch is still where it was when it was asked for.
    pub fn push(
        &self,
        remote: &Remote,
        progress: &mut dyn Progress,
    ) -> Result<(), PullRequestError> {
        let scratch = Scratch::make(self.home, self.publishing)?;
        let full = self.full();
        let lease = remote.tip.as_deref().unwrap_or_default();
        Git::network(&self.publishing.remote)
            .setting("push.followTags", "false")
            .setting("push.recurseSubmodules", "no")
            .setting("push.pushOption", "")
            .at(&scratch.0)
            .args(["push", "--no-verify", "--progress", "--porcelain"])
            .arg(format!("--force-with-lease={full}:{lease}"))
            .arg("--")
            .arg(address(&self.publishing.remote.source))
            .arg(format!("{}:{full}", self.publishing.commit))
            .run(progress)
            .map(|_| ())
            .map_err(|source| PullRequestError::Push {
                branch: self.publishing.branch.clone(),
                remote: self.remote(),
                source,
            })
    }
}

fn address(source: &Source) -> PathBuf {
    match source {
        Source::Url(url) => PathBuf::from(url),
        Source::Path(path) => path.clone(),
    }
}

/// A bare repository without an object, a ref, a hook or a setting of its own; gone with its value.
struct Scratch(PathBuf);

impl Scratch {
    fn make(home: &Home, publishing: &Publishing<'_>) -> Result<Self, PullRequestError> {
        let path = home.root().join(format!("push-{}", publishing.run.id));
        // What a killed process left.
        let _ = fs::remove_dir_all(&path);
        let scratch = Self(path);
        scratch
            .fill(publishing)
            .map_err(PullRequestError::Scratch)?;
        Ok(scratch)
    }

    fn fill(&self, publishing: &Publishing<'_>) -> io::Result<()> {
        let private = |below: &str| {
            let mut builder = fs::DirBuilder::new();
            builder
                .mode(0o700)
                .recursive(true)
                .create(self.0.join(below))
        };
        private("objects/info")?;
        private("refs/heads")?;
        let write = |name: &str, content: &[u8]| -> io::Result<()> {
            let mut options = fs::OpenOptions::new();
            let options = options.write(true).create_new(true).mode(0o600);
            options.open(self.0.join(name))?.write_all(content)
        };
        write("HEAD", b"ref: refs/heads/nothing\n")?;
        let config = match publishing.hash {
            ObjectHash::Sha1 => "[core]\n\trepositoryformatversion = 0\n\tbare = true\n",
            ObjectHash::Sha256 => {
                "[core]\n\trepositoryformatversion = 1\n\tbare = true\n[extensions]\n\tobjectFormat = sha256\n"
            }
        };
        write("config", config.as_bytes())?;
        let mut alternates = Vec::new();
        for objects in &publishing.objects {
            let bytes = objects.as_os_str().as_bytes();
            // A line of it is a path; `"` and `#` mean something else at its beginning.
            if !objects.is_absolute() || bytes.contains(&b'\n') {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            alternates.extend_from_slice(bytes);
            alternates.push(b'\n');
        }
        write("objects/info/alternates", &alternates)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The next one begins with removing it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_branches_are_plain_names() {
        for good in ["ringfence/abc", "fix/x", "a", "v1.2", "A_b-c/d.e"] {
            assert!(branch_name(good).is_ok(), "{good}");
        }
        let long = "x".repeat(NAME + 1);
        for bad in [
            "",
            "-x",
            "a/-x",
            ".x",
            "a..b",
            "a//b",
            "/a",
            "a/",
            "a.lock",
            "a.lock/b",
            "a b",
            "a:b",
            "a~1",
            "a^",
            "a\\b",
            "a?",
            "a*",
            "a[",
            "@{u}",
            "HEAD",
            "refs/heads/x",
            "ü",
            "a\n",
            "+a",
            "a.",
            &long,
        ] {
            assert!(branch_name(bad).is_err(), "{bad:?}");
        }
    }
}
