//! A patch as a commit on a new branch: no checkout, no hook, no index, no git program on the
//! folder. Objects are written, synced, and then one file names the commit.
//!
//! INVARIANT: only a ref that was not there before is made. Who dies before that leaves objects
//! that nothing names, which git clears up in its own time.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use ringfence_model::ByteText;
use ringfence_model::bundle::{Base, Step, TreeIdentity};
use ringfence_model::changes::{FileMode, ObjectHash};
use serde::Serialize;

use super::commit::{Person, message};
use super::kept::{self, Chain, Ground};
use super::objects::{Objects, write_error};
use super::target::Target;
use super::{
    Allowed, ApplyError, Bundle, Conflict, Extent, OuterLinks, git_directories, links, sound,
};
use crate::base::{ChangedError, grown_tree};
use crate::clock::now_us;
use crate::commits::Stock;
use crate::git::{
    Lookup, LookupError, NewBranch, Repository, Scratch, branch_commit, head_commit, new_branch,
};
use crate::home::Home;
use crate::patch::Patch;

/// BOUND: paths that are named as not fitting; each costs a walk.
pub(super) const NAMED: usize = 20;

/// Where objects come from, by kind and id.
pub(super) type Read<'a> = dyn FnMut(&str, &str) -> Result<Vec<u8>, LookupError> + 'a;

/// How a commit is to be made.
#[derive(Clone, Debug, Default)]
pub struct Branching {
    pub name: String,
    /// Links that lead out of the tree.
    pub links: OuterLinks,
    /// A commit's id, a branch, or `HEAD`; the run's own base if not said.
    pub base: Option<String>,
    pub message: Option<String>,
    /// The user's own git settings if not said.
    pub author: Option<Person>,
    pub co_authors: Vec<Person>,
    pub commits: AgentCommits,
}

/// What becomes of the commits that the agent made itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AgentCommits {
    /// The patch is one commit.
    #[default]
    Left,
    /// They are kept as they are, and joined by a merge of ours.
    Kept,
}

/// A commit that was made, or would be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Commit {
    pub repository: PathBuf,
    /// Its full name.
    pub branch: String,
    /// Absent where nothing was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    pub tree: String,
    pub parent: String,
    /// Those of the agent that are kept, from the oldest on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<String>,
}

/// Makes a commit of a bundle's patch on a new branch.
pub fn to_branch(
    home: &Home,
    bundle: &Bundle,
    into: Option<&Path>,
    branching: &Branching,
    extent: Extent,
    allowed: &Allowed<'_>,
) -> Result<Commit, ApplyError> {
    let target = Target::of_bundle(bundle, into)?;
    let Some(repository) = &target.repository else {
        return Err(ApplyError::NoRepository(target.top));
    };
    if let Some(why) = &repository.unsupported {
        let (path, why) = (target.top.clone(), why.clone());
        return Err(ApplyError::Unsupported { path, why });
    }
    let full = free(repository, &branching.name)?;
    let author = author(repository, branching.author.as_ref())?;
    let text = message(bundle, branching.message.as_deref(), &branching.co_authors)?;
    let scratch = Scratch::make().map_err(|source| write_error(&repository.common_dir, source))?;
    let mut lookup = Lookup::begin(repository, scratch.path())?;
    let parent = parent(bundle, repository, branching.base.as_deref())?;
    let patch = bundle.patch()?;
    let base_tree = lookup
        .tree_of(&parent)
        .map_err(|_| ApplyError::NoSuchCommit {
            name: parent.clone(),
            path: repository.top.clone(),
        })?;
    let hash = repository.hash;
    let mut read = |kind: &str, oid: &str| lookup.object(kind, oid);
    check_links(&patch, (&mut read, hash), &base_tree, branching.links)?;
    let mut tree = |oid: &str| lookup.object("tree", oid);
    git_directories::check_tree(&patch, &base_tree, hash, &mut tree)?;
    let mut trees = Vec::new();
    let tree = grow(&base_tree, &patch, &mut lookup, &mut trees)?;
    let recorded = match (&bundle.manifest.base, &bundle.manifest.tree) {
        (Base::Commit { commit, .. }, TreeIdentity::GitTree { id }) if *commit == parent => {
            Some(id)
        }
        _ => None,
    };
    if let Some(expected) = recorded.filter(|id| **id != tree) {
        return Err(ApplyError::OtherTree {
            commit: parent,
            found: tree,
            expected: expected.clone(),
        });
    }
    let chain = match branching.commits {
        AgentCommits::Left => None,
        AgentCommits::Kept => {
            if recorded.is_none() {
                let why = match &bundle.manifest.base {
                    Base::Commit { .. } => "they go on top of the commit that the run began from",
                    _ => "the run began from files that are not committed",
                };
                return Err(ApplyError::NoCommits(why.to_owned()));
            }
            let ground = Ground {
                base: (&parent, &base_tree),
                tree: &tree,
                links: branching.links,
            };
            Some(chain(home, bundle, &mut lookup, &ground)?)
        }
    };
    let kept = chain.as_ref().map(|chain| chain.commits.clone());
    let mut made = Commit {
        repository: repository.top.clone(),
        branch: full.clone(),
        commit: None,
        tree,
        parent,
        kept: kept.unwrap_or_default(),
    };
    if extent == Extent::Look {
        return Ok(made);
    }
    let objects = Objects::open(&repository.common_dir, repository.hash)?;
    write_blobs(&patch, &objects, &mut lookup)?;
    for body in trees {
        objects.write("tree", &body)?;
    }
    if let Some(chain) = chain {
        chain.write(&objects)?;
    }
    let seconds = now_us().div_euclid(1_000_000);
    let committer = committer(repository).unwrap_or_else(|| author.clone());
    // The first parent is the base: what it adds there is the patch, whatever lies between.
    let merged = made.kept.last().map(|head| format!("parent {head}\n"));
    let body = format!(
        "tree {}\nparent {}\n{}author {}\ncommitter {}\n\n{text}",
        made.tree,
        made.parent,
        merged.unwrap_or_default(),
        author.at(seconds),
        committer.at(seconds)
    );
    let commit = objects.write("commit", body.as_bytes())?;
    objects.sync()?;
    // Somebody may have rejected it meanwhile; what was written has no name yet.
    allowed()?;
    create_ref(repository, &full, &commit, &committer.at(seconds))?;
    made.commit = Some(commit);
    Ok(made)
}

/// The full name of a branch that can be made.
pub(super) fn free(repository: &Repository, name: &str) -> Result<String, ApplyError> {
    let why = match new_branch(repository, name)? {
        NewBranch::Free(full) => return Ok(full),
        NewBranch::Unsupported => {
            return Err(ApplyError::Unsupported {
                path: repository.top.clone(),
                why: "its refs are kept in a format that we only read".to_owned(),
            });
        }
        NewBranch::BadName => "git does not take such a name".to_owned(),
        NewBranch::Taken => "it is there already".to_owned(),
        NewBranch::InTheWay(other) => format!("`{other}` is in the way"),
        NewBranch::Default => "it is the branch of `HEAD`, or the default branch".to_owned(),
    };
    let name = name.to_owned();
    Err(ApplyError::Branch { name, why })
}

pub(super) fn committer(repository: &Repository) -> Option<Person> {
    let (name, address) = repository.user.person()?;
    Person::new(&name, &address)
}

/// Who it is by: who was named, else the user.
pub(super) fn author(
    repository: &Repository,
    given: Option<&Person>,
) -> Result<Person, ApplyError> {
    let own = given.cloned().or_else(|| committer(repository));
    own.ok_or(ApplyError::NoAuthor)
}

/// The commit that it goes on top of.
pub(super) fn parent(
    bundle: &Bundle,
    repository: &Repository,
    typed: Option<&str>,
) -> Result<String, ApplyError> {
    let no_such = |name: &str| ApplyError::NoSuchCommit {
        name: name.to_owned(),
        path: repository.top.clone(),
    };
    match (typed, &bundle.manifest.base) {
        (Some(id), _) if repository.hash.is_oid(id.as_bytes()) => Ok(id.to_ascii_lowercase()),
        (Some("HEAD"), _) => head_commit(repository).ok_or_else(|| no_such("HEAD")),
        (Some(name), _) => {
            let found = branch_commit(repository, name)?;
            found.ok_or_else(|| no_such(name))
        }
        (None, Base::Commit { commit, .. } | Base::DirtyFolder { commit, .. }) => {
            Ok(commit.clone())
        }
        (None, Base::Folder { why }) => Err(ApplyError::NoCommit { why: why.clone() }),
    }
}

/// The tree that the patch makes; all paths that do not fit are named.
fn grow(
    base_tree: &str,
    patch: &Patch<'_>,
    lookup: &mut Lookup,
    trees: &mut Vec<Vec<u8>>,
) -> Result<String, ApplyError> {
    let hash = lookup.hash();
    let mut steps: BTreeMap<&[u8], Step<'_>> = patch.steps();
    let mut conflicts = Vec::new();
    loop {
        trees.clear();
        let mut read = |oid: &str| lookup.object("tree", oid);
        let mut emit = |_: &[u8], body: &[u8]| trees.push(body.to_vec());
        match grown_tree(base_tree, &steps, hash, &mut read, &mut emit) {
            Ok(tree) if conflicts.is_empty() => return Ok(tree),
            Ok(_) => break,
            Err(ChangedError::Lookup(error)) => return Err(error.into()),
            Err(ChangedError::Differs(path)) => {
                let known = steps.remove(path.as_bytes());
                let why =
                    "the commit has something else there than the run started from".to_owned();
                conflicts.push(Conflict { path, why });
                if known.is_none() || conflicts.len() == NAMED {
                    break;
                }
            }
        }
    }
    conflicts.sort_by(|a, b| a.path.cmp(&b.path));
    Err(ApplyError::Conflicts(conflicts))
}

/// The agent's own commits, checked.
fn chain(
    home: &Home,
    bundle: &Bundle,
    lookup: &mut Lookup,
    ground: &Ground<'_>,
) -> Result<Chain, ApplyError> {
    let none = |why: &str| ApplyError::NoCommits(why.to_owned());
    let kept = bundle.result.commits.as_ref();
    let kept = kept.ok_or_else(|| none("the run kept none; its notes say why, if it made some"))?;
    let stock = Stock::open(home, bundle.run(), kept, lookup.hash());
    let stock = stock.ok_or_else(|| none("they are not there any more, or not as they were"))?;
    kept::check(stock, &kept.head, lookup, ground)
}

/// Refuses links that are none, and those that lead out of the tree that the commit will have.
pub(super) fn check_links(
    patch: &Patch<'_>,
    (read, hash): (&mut Read<'_>, ObjectHash),
    base_tree: &str,
    outer: OuterLinks,
) -> Result<(), ApplyError> {
    // What the patch says of a path counts: the target of a link, or that it is none.
    let mut said: BTreeMap<&[u8], Option<Vec<u8>>> = BTreeMap::new();
    for entry in &patch.entries {
        let new = entry.change.new.as_ref();
        let content = if new.is_some_and(|new| new.mode == FileMode::Symlink) {
            let old = match &entry.change.old {
                Some(side) if !entry.is_self_contained() => Some(read("blob", &side.oid)?),
                _ => None,
            };
            Some(
                entry
                    .content(old.as_deref())?
                    .unwrap_or_default()
                    .into_owned(),
            )
        } else {
            None
        };
        said.insert(entry.path(), content);
    }
    let mut conflicts = Vec::new();
    for (path, target) in &said {
        let Some(target) = target else {
            continue;
        };
        let why = links::why_no_target(target).map(str::to_owned);
        let why = why.or_else(|| match outer {
            OuterLinks::Allowed => None,
            OuterLinks::Refused => {
                let mut link = |at: &[u8]| match said.get(at) {
                    Some(said) => said.clone(),
                    None => link_of((read, hash), base_tree, at),
                };
                let why = links::why_refused_in(path, target, &mut link)?;
                Some(format!("{why}; `--allow-links` lets it be made"))
            }
        });
        conflicts.extend(why.map(|why| Conflict {
            path: ByteText::from(*path),
            why,
        }));
    }
    if conflicts.is_empty() {
        Ok(())
    } else {
        Err(ApplyError::Conflicts(conflicts))
    }
}

/// The target of a path of a tree, where it is a link.
fn link_of((read, hash): (&mut Read<'_>, ObjectHash), tree: &str, path: &[u8]) -> Option<Vec<u8>> {
    let entry = sound::find(tree, path, &mut |tree| {
        let body = read("tree", tree).ok()?;
        sound::entries(&body, hash)
    })?;
    if entry.mode == sound::SYMLINK {
        read("blob", &entry.oid).ok()
    } else {
        None
    }
}

fn write_blobs(
    patch: &Patch<'_>,
    objects: &Objects,
    lookup: &mut Lookup,
) -> Result<(), ApplyError> {
    for entry in &patch.entries {
        let Some(new) = &entry.change.new else {
            continue;
        };
        let same = entry
            .change
            .old
            .as_ref()
            .is_some_and(|old| old.oid == new.oid);
        if same {
            continue;
        }
        let old = match &entry.change.old {
            Some(side) if !entry.is_self_contained() => Some(lookup.object("blob", &side.oid)?),
            _ => None,
        };
        let content = entry.content(old.as_deref())?.unwrap_or_default();
        let id = objects.write("blob", &content)?;
        if id != new.oid {
            let oid = new.oid.clone();
            return Err(LookupError::Missing { oid }.into());
        }
    }
    Ok(())
}

/// Makes a ref that was not there, as git does: a lock beside it, renamed to it.
pub(super) fn create_ref(
    repository: &Repository,
    full: &str,
    commit: &str,
    who: &str,
) -> Result<(), ApplyError> {
    let path = repository.common_dir.join(full);
    let failed = |source| write_error(&path, source);
    let owner = fs::metadata(&repository.common_dir).map_err(failed)?;
    let owner = (owner.uid(), owner.gid());
    make_parents(&repository.common_dir, &path, owner).map_err(failed)?;
    let mut lock = path.clone().into_os_string();
    lock.push(".lock");
    let lock = PathBuf::from(lock);
    let taken = || ApplyError::Branch {
        name: full.trim_start_matches("refs/heads/").to_owned(),
        why: "somebody makes it at this moment, or was killed then and left its `.lock` file"
            .to_owned(),
    };
    let made = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o666)
        .open(&lock);
    let mut file = made.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => taken(),
        _ => write_error(&lock, source),
    })?;
    // INVARIANT: with the lock held nobody else makes it; so it is looked for again.
    let name = full.trim_start_matches("refs/heads/");
    let looked = new_branch(repository, name).map_err(ApplyError::from);
    let result = looked.and_then(|found| match found {
        NewBranch::Free(_) => Ok(()),
        _ => Err(taken()),
    });
    let result = result.and_then(|()| {
        let mut write = || -> io::Result<()> {
            file.write_all(format!("{commit}\n").as_bytes())?;
            give(&lock, owner)?;
            file.sync_all()?;
            fs::rename(&lock, &path)?;
            fs::File::open(path.parent().unwrap_or(&path))?.sync_all()
        };
        write().map_err(failed)
    });
    if let Err(error) = result {
        let _ = fs::remove_file(&lock);
        return Err(error);
    }
    // A branch without a history of its own is one all the same.
    let _ = log_ref(repository, full, commit, who, owner);
    Ok(())
}

fn log_ref(
    repository: &Repository,
    full: &str,
    commit: &str,
    who: &str,
    owner: (u32, u32),
) -> io::Result<()> {
    if repository.config.get_bool("core", "logallrefupdates") == Some(false) {
        return Ok(());
    }
    let path = repository.common_dir.join("logs").join(full);
    make_parents(&repository.common_dir, &path, owner)?;
    let mut log = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o666)
        .open(&path)?;
    let zero = "0".repeat(commit.len());
    log.write_all(
        format!("{zero} {commit} {who}\tbranch: Created by ringfence apply\n").as_bytes(),
    )?;
    give(&path, owner)
}

/// The directories of a file below the git directory, which is there.
fn make_parents(git_dir: &Path, path: &Path, owner: (u32, u32)) -> io::Result<()> {
    let mut missing = Vec::new();
    let mut at = path.parent();
    while let Some(directory) = at.filter(|directory| *directory != git_dir) {
        match directory.symlink_metadata() {
            Ok(meta) if meta.is_dir() => break,
            // HOSTILE: nothing is made through a link.
            Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(directory),
            Err(error) => return Err(error),
        }
        at = directory.parent();
    }
    for directory in missing.into_iter().rev() {
        fs::create_dir(directory)?;
        give(directory, owner)?;
    }
    Ok(())
}

/// What root makes in somebody's repository is theirs.
fn give(path: &Path, (uid, gid): (u32, u32)) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::lchown(path, Some(uid), Some(gid))
    } else {
        Ok(())
    }
}
