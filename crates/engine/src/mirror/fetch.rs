//! Filling a mirror, and finding a commit in it.

use std::path::Path;

use ringfence_model::changes::ObjectHash;

use super::clear::clear;
use super::process::{Git, ProcessError};
use super::{Mirror, MirrorError, Progress, Revision};
use crate::fail;
use crate::home::Home;
use crate::lock::FileLock;
use crate::source::{Source, Typed};

/// A file is checked out as the bytes that the repository holds, whatever the tree's own
/// attributes say. `info/attributes` wins over them.
const ATTRIBUTES: &str = "* -text -eol -ident -filter -working-tree-encoding\n";
/// Where a `HEAD` that is on no branch is kept.
const DETACHED: &str = "refs/ringfence/HEAD";
/// Where `HEAD` leads if the remote's leads nowhere; never made.
const UNBORN: &str = "refs/ringfence/unborn";
const BRANCHES: &str = "+refs/heads/*:refs/heads/*";
const TAGS: &str = "+refs/tags/*:refs/tags/*";

/// What a remote says of itself.
struct Remote {
    hash: ObjectHash,
    head: RemoteHead,
}

enum RemoteHead {
    Branch(String),
    Detached,
    /// It names a branch that is not there.
    Unborn,
}

/// A mirror that nobody else writes to, and where it is fetched from.
pub(super) struct Held<'a> {
    pub mirror: &'a Mirror,
    pub typed: &'a Typed,
    pub lock: &'a FileLock,
}

impl Held<'_> {
    /// Makes the mirror, or goes on where a killed process stopped.
    pub fn clone(&self, home: &Home, progress: &mut dyn Progress) -> Result<(), MirrorError> {
        let remote = ask(home, self.typed)?;
        self.init(remote.hash)?;
        fail::point("mirror:made");
        self.fetch_all(Some(&remote.head), progress)
    }

    /// Brings the mirror up to date.
    pub fn update(
        &self,
        home: &Home,
        revision: &Revision,
        progress: &mut dyn Progress,
    ) -> Result<(), MirrorError> {
        let remote = match revision {
            Revision::Head => Some(ask(home, self.typed)?),
            _ => None,
        };
        self.fetch_all(remote.as_ref().map(|remote| &remote.head), progress)
    }

    /// Fetches something that is on no branch: a commit by its id, a ref by its whole name.
    pub fn by_name(
        &self,
        revision: &Revision,
        progress: &mut dyn Progress,
    ) -> Result<(), MirrorError> {
        let refspec = match revision {
            Revision::Commit(commit) => format!("+{commit}:refs/ringfence/commits/{commit}"),
            Revision::Name(name) if name.starts_with("refs/") => format!("+{name}:{name}"),
            _ => return Ok(()),
        };
        match self.fetch(&[&refspec], progress) {
            // The remote does not have it, or does not give it; either way it is not to be had.
            Ok(()) | Err(MirrorError::Fetch { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Makes an empty bare repository; one that is there stays.
    fn init(&self, hash: ObjectHash) -> Result<(), MirrorError> {
        let path = &self.mirror.path;
        let made = |what, source| MirrorError::Make {
            what,
            path: path.clone(),
            source,
        };
        std::fs::create_dir_all(path).map_err(|e| made("create", e))?;
        clear(path)?;
        self.local("make a repository", |git| {
            git.nowhere(path)
                .args(["init", "--quiet", "--bare", "--template="])
                .arg("--initial-branch=main")
                .arg(format!("--object-format={}", hash.name()))
                .arg(path)
        })?;
        let write = || {
            std::fs::create_dir_all(path.join("info"))?;
            std::fs::write(path.join("info/attributes"), ATTRIBUTES)
        };
        write().map_err(|e| made("write the attributes of", e))
    }

    fn fetch_all(
        &self,
        head: Option<&RemoteHead>,
        progress: &mut dyn Progress,
    ) -> Result<(), MirrorError> {
        let detached = format!("+HEAD:{DETACHED}");
        let mut refspecs = vec![BRANCHES, TAGS];
        if matches!(head, Some(RemoteHead::Detached)) {
            refspecs.push(&detached);
        }
        self.fetch(&refspecs, progress)?;
        if let Some(head) = head {
            self.local("set HEAD", |git| {
                let git = git.at(&self.mirror.path);
                match head {
                    RemoteHead::Branch(branch) => {
                        git.args(["symbolic-ref", "HEAD", &format!("refs/heads/{branch}")])
                    }
                    RemoteHead::Detached => {
                        git.args(["update-ref", "--no-deref", "HEAD", DETACHED])
                    }
                    RemoteHead::Unborn => git.args(["symbolic-ref", "HEAD", UNBORN]),
                }
            })?;
        }
        // One file instead of one for each branch and tag.
        self.local("pack the refs", |git| {
            git.at(&self.mirror.path).args(["pack-refs", "--all"])
        })
    }

    fn fetch(&self, refspecs: &[&str], progress: &mut dyn Progress) -> Result<(), MirrorError> {
        clear(&self.mirror.path)?;
        let mut git = Git::network(self.typed)
            .at(&self.mirror.path)
            .holding(self.lock)
            .args(["fetch", "--progress", "--no-tags", "--no-write-fetch-head"])
            .args(["--no-auto-gc", "--no-recurse-submodules"])
            // A folder whose history is cut is taken with the cut.
            .arg("--update-shallow");
        if refspecs.len() > 1 {
            git = git.arg("--prune");
        }
        git.args(address(self.typed)?)
            .args(refspecs)
            .run(progress)
            .map_err(|error| fetch_failed(self.typed, error))?;
        Ok(())
    }

    /// A call that writes to the mirror and reaches nobody.
    fn local(&self, what: &'static str, call: impl FnOnce(Git) -> Git) -> Result<(), MirrorError> {
        call(Git::local().holding(self.lock))
            .quiet()
            .map_err(|error| MirrorError::local(what, self.mirror.path.clone(), error))?;
        Ok(())
    }
}

/// The commit that a revision stands for, and the branch if it is one.
pub(super) fn find(
    mirror: &Path,
    revision: &Revision,
) -> Result<Option<(String, Option<String>)>, MirrorError> {
    match revision {
        Revision::Commit(commit) => Ok(parse(mirror, commit)?.map(|commit| (commit, None))),
        Revision::Head => {
            let branch = Git::local()
                .at(mirror)
                .args(["symbolic-ref", "-q", "HEAD"])
                .quiet()
                .ok()
                .and_then(|name| String::from_utf8(name).ok())
                .and_then(|name| Some(name.trim_end().strip_prefix("refs/heads/")?.to_owned()));
            Ok(parse(mirror, "HEAD")?.map(|commit| (commit, branch)))
        }
        Revision::Name(name) => {
            let short = name.strip_prefix("refs/heads/").unwrap_or(name);
            if let Some(commit) = parse(mirror, &format!("refs/heads/{short}"))? {
                return Ok(Some((commit, Some(short.to_owned()))));
            }
            let mut other = vec![format!("refs/tags/{name}")];
            if name.starts_with("refs/") {
                other.push(name.clone());
            }
            // BOUND: a shorter beginning of an id is more likely a mistake.
            if name.len() >= 7 && name.bytes().all(|b| b.is_ascii_hexdigit()) {
                other.push(name.to_ascii_lowercase());
            }
            for name in other {
                if let Some(commit) = parse(mirror, &name)? {
                    return Ok(Some((commit, None)));
                }
            }
            Ok(None)
        }
    }
}

/// Whether a commit is in a mirror.
pub(super) fn has_commit(mirror: &Path, commit: &str) -> Result<bool, MirrorError> {
    Ok(parse(mirror, commit)?.is_some())
}

/// Whether a commit has a file of this name at its top.
pub(crate) fn has_file(mirror: &Path, commit: &str, name: &str) -> bool {
    Git::local()
        .at(mirror)
        .args(["cat-file", "-e", &format!("{commit}:{name}")])
        .quiet()
        .is_ok()
}

fn parse(mirror: &Path, name: &str) -> Result<Option<String>, MirrorError> {
    let output = Git::local()
        .at(mirror)
        .args(["rev-parse", "--verify", "--quiet", "--end-of-options"])
        .arg(format!("{name}^{{commit}}"))
        .quiet();
    match output {
        Ok(output) => Ok(Some(
            String::from_utf8_lossy(output.trim_ascii()).into_owned(),
        )),
        Err(ProcessError::Failed { .. }) => Ok(None),
        Err(source) => Err(MirrorError::local("look", mirror.to_owned(), source)),
    }
}

/// Asks a remote for its `HEAD` and its kind of ids.
fn ask(home: &Home, typed: &Typed) -> Result<Remote, MirrorError> {
    let output = Git::network(typed)
        .nowhere(&home.mirrors())
        .args(["ls-remote", "--symref"])
        .args(address(typed)?)
        .args(["HEAD", "refs/heads/*"])
        .quiet()
        .map_err(|error| fetch_failed(typed, error))?;
    let mut hash = None;
    let mut head = RemoteHead::Unborn;
    for line in output.split(|&b| b == b'\n') {
        let line = String::from_utf8_lossy(line);
        let Some((left, name)) = line.split_once('\t') else {
            continue;
        };
        if let Some(target) = left.strip_prefix("ref: ") {
            if let (Some(branch), "HEAD") = (target.strip_prefix("refs/heads/"), name) {
                head = RemoteHead::Branch(branch.to_owned());
            }
            continue;
        }
        hash = match left.len() {
            40 => Some(ObjectHash::Sha1),
            64 => Some(ObjectHash::Sha256),
            _ => hash,
        };
        if name == "HEAD" && matches!(head, RemoteHead::Unborn) {
            head = RemoteHead::Detached;
        }
    }
    match hash {
        Some(hash) => Ok(Remote { hash, head }),
        None => Err(MirrorError::Empty {
            source_text: typed.source.text(),
        }),
    }
}

/// The address as arguments; none of them can be an option.
fn address(typed: &Typed) -> Result<[std::ffi::OsString; 2], MirrorError> {
    let address = match &typed.source {
        Source::Url(url) => url.into(),
        Source::Path(path) if path.exists() => path.clone().into_os_string(),
        Source::Path(path) => return Err(MirrorError::NoRepository { path: path.clone() }),
    };
    Ok(["--".into(), address])
}

fn fetch_failed(typed: &Typed, error: ProcessError) -> MirrorError {
    match error {
        ProcessError::Start(source) => MirrorError::NoGit { source },
        ProcessError::Stalled { minutes } => MirrorError::Stalled {
            source_text: typed.source.text(),
            minutes,
        },
        ProcessError::Failed { said } => MirrorError::Fetch {
            source_text: typed.source.text(),
            said,
        },
        other => MirrorError::Fetch {
            source_text: typed.source.text(),
            said: other.to_string(),
        },
    }
}
