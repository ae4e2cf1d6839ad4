//! Branches, tags and the like, copied into a private git directory.
//!
//! Loose refs go into one `packed-refs` file: one write instead of thousands. Only a ref that
//! points to another ref (`refs/remotes/origin/HEAD`) needs a file of its own.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::directory::Directory;
use super::files;
use super::{GitError, ObjectHash, Repository};

/// BOUND: about a million packed refs.
const PACKED_BYTES: u64 = 128 << 20;
/// BOUND: loose refs; git packs them long before.
const LOOSE: usize = 100_000;
/// BOUND: a ref file is one object id or one name.
const LINE_BYTES: u64 = 16 << 10;
/// BOUND: directories within `refs`.
const DEPTH: usize = 32;
/// BOUND: all tables of the reftable format together.
const REFTABLE_BYTES: u64 = 256 << 20;
const REFTABLES: usize = 1024;

/// The namespaces that are carried over. A stash, a bisection and what a forge keeps for itself
/// are the user's business.
const CARRIED: [&[u8]; 5] = [
    b"refs/heads/",
    b"refs/tags/",
    b"refs/remotes/",
    b"refs/notes/",
    b"refs/replace/",
];

/// What `HEAD` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Head {
    Branch(Vec<u8>),
    Detached(Vec<u8>),
}

/// A repository's refs, as read from its files.
#[derive(Debug)]
pub(super) struct Refs {
    pub head: Head,
    /// Object id in hexadecimal by full name; what a tag peels to, where it is known.
    ids: BTreeMap<Vec<u8>, Id>,
    symbolic: BTreeMap<Vec<u8>, Vec<u8>>,
    /// What the packed file says of itself still holds with the loose ones among them.
    traits: Vec<u8>,
}

#[derive(Debug)]
struct Id {
    hex: Vec<u8>,
    peeled: Option<Vec<u8>>,
}

impl Refs {
    /// Reads `HEAD`, packed and loose refs; `None` if `HEAD` makes no sense.
    pub(super) fn read(repo: &Repository) -> Result<Option<Self>, GitError> {
        let Some(line) = repo.git.read(Path::new("HEAD"), LINE_BYTES)? else {
            return Ok(None);
        };
        let head = match parse_ref(&line.bytes, repo.hash) {
            Some(RefTarget::Ref(name)) => Head::Branch(name),
            Some(RefTarget::Id(hex)) => Head::Detached(hex),
            None => return Ok(None),
        };
        let mut refs = Self {
            head,
            ids: BTreeMap::new(),
            symbolic: BTreeMap::new(),
            traits: Vec::new(),
        };
        refs.read_packed(&repo.common, repo.hash)?;
        refs.read_loose(&repo.common, repo.hash)?;
        Ok(Some(refs))
    }

    /// The commit that `HEAD` stands for; `None` before the first one.
    pub(super) fn head_id(&self) -> Option<&[u8]> {
        match &self.head {
            Head::Detached(hex) => Some(hex),
            Head::Branch(name) => self.ids.get(name).map(|id| &id.hex[..]),
        }
    }

    /// Writes them into a private git directory.
    pub(super) fn write(&self, private: &Path) -> Result<(), GitError> {
        files::write(&private.join("HEAD"), &self.head.text())?;
        files::create_dirs(&private.join("refs/heads"))?;
        files::create_dirs(&private.join("refs/tags"))?;
        if !self.ids.is_empty() {
            files::write(&private.join("packed-refs"), &self.packed_text())?;
        }
        for (name, target) in &self.symbolic {
            let path = private.join(OsStr::from_bytes(name));
            if let Some(parent) = path.parent() {
                files::create_dirs(parent)?;
            }
            files::write(&path, &[b"ref: ", &target[..], b"\n"].concat())?;
        }
        Ok(())
    }

    fn packed_text(&self) -> Vec<u8> {
        let mut out = b"# pack-refs with:".to_vec();
        out.extend_from_slice(&self.traits);
        out.extend_from_slice(b" sorted \n");
        for (name, id) in &self.ids {
            out.extend_from_slice(&id.hex);
            out.push(b' ');
            out.extend_from_slice(name);
            out.push(b'\n');
            if let Some(peeled) = &id.peeled {
                out.push(b'^');
                out.extend_from_slice(peeled);
                out.push(b'\n');
            }
        }
        out
    }

    fn read_packed(&mut self, common: &Directory, hash: ObjectHash) -> Result<(), GitError> {
        let Some(contents) = common.read(Path::new("packed-refs"), PACKED_BYTES)? else {
            self.traits = b" peeled fully-peeled".to_vec();
            return Ok(());
        };
        let mut last: Option<Vec<u8>> = None;
        for line in contents.bytes.split(|&b| b == b'\n') {
            if let Some(header) = line.strip_prefix(b"# pack-refs with:") {
                for word in header.split(|&b| b == b' ') {
                    if matches!(word, b"peeled" | b"fully-peeled") {
                        self.traits.push(b' ');
                        self.traits.extend_from_slice(word);
                    }
                }
            } else if let Some(peeled) = line.strip_prefix(b"^") {
                if let Some(id) = last.as_ref().and_then(|name| self.ids.get_mut(name))
                    && hash.is_oid(peeled)
                {
                    id.peeled = Some(peeled.to_vec());
                }
            } else if let Some((hex, name)) = line.split_at_checked(hash.bytes() * 2)
                && let Some(name) = name.strip_prefix(b" ")
                && hash.is_oid(hex)
                && is_carried(name)
            {
                self.ids.insert(
                    name.to_vec(),
                    Id {
                        hex: hex.to_vec(),
                        peeled: None,
                    },
                );
                last = Some(name.to_vec());
            } else {
                last = None;
            }
        }
        Ok(())
    }

    fn read_loose(&mut self, common: &Directory, hash: ObjectHash) -> Result<(), GitError> {
        let mut pending: Vec<(Vec<u8>, usize)> = CARRIED
            .iter()
            .map(|prefix| (prefix[..prefix.len() - 1].to_vec(), 0))
            .collect();
        let mut seen = 0;
        while let Some((dir, depth)) = pending.pop() {
            let at = Path::new(OsStr::from_bytes(&dir));
            let entries = match common.list(at, LOOSE - seen) {
                Err(error @ GitError::ListTooLong { .. }) => return Err(error),
                entries => entries.unwrap_or_default(),
            };
            seen += entries.len();
            for (entry, kind) in entries {
                let name = [&dir[..], b"/", entry.as_bytes()].concat();
                match kind {
                    FileType::Directory if depth < DEPTH => pending.push((name, depth + 1)),
                    FileType::RegularFile if is_carried(&name) => self.read_one(common, name, hash),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// A loose ref wins over a packed one of its name.
    fn read_one(&mut self, common: &Directory, name: Vec<u8>, hash: ObjectHash) {
        let path = Path::new(OsStr::from_bytes(&name));
        let Some(line) = common.read_if_usable(path, LINE_BYTES) else {
            return;
        };
        match parse_ref(&line, hash) {
            Some(RefTarget::Ref(target)) => {
                self.ids.remove(&name);
                self.symbolic.insert(name, target);
            }
            Some(RefTarget::Id(hex)) => {
                // Whether it is an annotated tag is not known without its object, and the header
                // would claim that it is not. A branch is a commit by its nature.
                if !name.starts_with(b"refs/heads/") && !name.starts_with(b"refs/remotes/") {
                    self.traits.clear();
                }
                self.ids.insert(name, Id { hex, peeled: None });
            }
            None => {}
        }
    }
}

/// The commit that `HEAD` stands for, by reading as little as that takes; `None` before the first
/// one, and where it makes no sense to us.
pub(crate) fn head_commit(repo: &Repository) -> Option<String> {
    if repo.reftable {
        return None;
    }
    let (mut directory, mut path) = (&repo.git, PathBuf::from("HEAD"));
    // BOUND: git itself follows five in a row.
    for _ in 0..5 {
        let line = directory.read_if_usable(&path, LINE_BYTES)?;
        let name = match parse_ref(&line, repo.hash)? {
            RefTarget::Id(hex) => return String::from_utf8(hex).ok(),
            RefTarget::Ref(name) => name,
        };
        (directory, path) = (&repo.common, PathBuf::from(OsStr::from_bytes(&name)));
        if matches!(directory.look(&path), Ok(None)) {
            let text = directory.read_if_usable(Path::new("packed-refs"), PACKED_BYTES)?;
            let hex = text.split(|&b| b == b'\n').find_map(|line| {
                let (hex, rest) = line.split_at_checked(repo.hash.bytes() * 2)?;
                (rest.strip_prefix(b" ") == Some(&name) && repo.hash.is_oid(hex)).then_some(hex)
            })?;
            return String::from_utf8(hex.to_vec()).ok();
        }
    }
    None
}

/// The commit that a branch names; `None` where there is no such branch.
pub(crate) fn branch_commit(repo: &Repository, name: &str) -> Result<Option<String>, GitError> {
    let refs = if repo.reftable {
        None
    } else {
        Refs::read(repo)?
    };
    let full = format!("refs/heads/{name}").into_bytes();
    let id = refs.as_ref().and_then(|refs| refs.ids.get(&full));
    Ok(id.map(|id| String::from_utf8_lossy(&id.hex).into_owned()))
}

/// Whether a branch can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NewBranch {
    /// Its full name.
    Free(String),
    BadName,
    Taken,
    /// Another one has a name that this one needs for a directory, or the reverse.
    InTheWay(String),
    /// What `HEAD` names, or the remote's.
    Default,
    /// The repository keeps its refs in a way that we do not write.
    Unsupported,
}

/// Looks whether a branch of this name can be made, by git's own rules.
pub(crate) fn new_branch(repo: &Repository, name: &str) -> Result<NewBranch, GitError> {
    let full = format!("refs/heads/{name}");
    // Who types `refs/heads/x` means `x`, and would get `refs/heads/refs/heads/x`.
    let plain = !name.starts_with('-') && !matches!(name, "@" | "HEAD");
    let plain = plain && !name.starts_with("refs/");
    if !plain || !is_ref_name(full.as_bytes()) {
        return Ok(NewBranch::BadName);
    }
    if repo.reftable {
        return Ok(NewBranch::Unsupported);
    }
    let Some(refs) = Refs::read(repo)? else {
        return Ok(NewBranch::Unsupported);
    };
    let of_remote = refs.symbolic.get(&b"refs/remotes/origin/HEAD"[..]);
    let of_remote = of_remote.and_then(|target| target.strip_prefix(b"refs/remotes/origin/"));
    let chosen = repo.user.config.get("init", "defaultbranch");
    let is_head = refs.head == Head::Branch(full.clone().into_bytes());
    if is_head || [of_remote, chosen].contains(&Some(name.as_bytes())) {
        return Ok(NewBranch::Default);
    }
    let taken = |other: &[u8]| other == full.as_bytes();
    let names = || refs.ids.keys().chain(refs.symbolic.keys());
    if names().any(|other| taken(other)) {
        return Ok(NewBranch::Taken);
    }
    let below = |long: &[u8], short: &[u8]| {
        let rest = long.strip_prefix(short);
        rest.is_some_and(|rest| rest.starts_with(b"/"))
    };
    let in_the_way =
        |other: &&Vec<u8>| below(other, full.as_bytes()) || below(full.as_bytes(), other);
    Ok(match names().find(in_the_way) {
        Some(other) => NewBranch::InTheWay(String::from_utf8_lossy(other).into_owned()),
        None => NewBranch::Free(full),
    })
}

impl Head {
    pub(super) fn text(&self) -> Vec<u8> {
        match self {
            Self::Branch(name) => [b"ref: ", &name[..], b"\n"].concat(),
            Self::Detached(hex) => [&hex[..], b"\n"].concat(),
        }
    }
}

/// What a ref holds.
pub(crate) enum RefTarget {
    Id(Vec<u8>),
    Ref(Vec<u8>),
}

/// The one line of a ref.
pub(crate) fn parse_ref(line: &[u8], hash: ObjectHash) -> Option<RefTarget> {
    let line = line.trim_ascii();
    if let Some(name) = line.strip_prefix(b"ref:") {
        let name = name.trim_ascii();
        return is_ref_name(name).then(|| RefTarget::Ref(name.to_vec()));
    }
    hash.is_oid(line).then(|| RefTarget::Id(line.to_vec()))
}

fn is_carried(name: &[u8]) -> bool {
    CARRIED.iter().any(|prefix| name.starts_with(prefix)) && is_ref_name(name)
}

/// Git's rules for the names of refs, which also make them safe as paths.
fn is_ref_name(name: &[u8]) -> bool {
    name.starts_with(b"refs/")
        && name.len() < 1024
        && !name.windows(2).any(|pair| pair == b".." || pair == b"@{")
        && !name
            .iter()
            .any(|b| b.is_ascii_control() || b" ~^:?*[\\".contains(b))
        && name.split(|&b| b == b'/').all(|part| {
            !part.is_empty()
                && part[0] != b'.'
                && !part.ends_with(b".lock")
                && !part.ends_with(b".")
        })
}

/// Copies refs of the reftable format, which hold `HEAD` too; `None` if there is no such table.
pub(super) fn copy_reftable(repo: &Repository, private: &Path) -> Result<Option<()>, GitError> {
    let from = Path::new("reftable");
    let list = from.join("tables.list");
    let Some(list) = repo.common.read(&list, LINE_BYTES * 64)? else {
        return Ok(None);
    };
    let to = private.join("reftable");
    files::create_dirs(&to)?;
    let mut left = REFTABLE_BYTES;
    let names = list
        .bytes
        .split(|&b| b == b'\n')
        .filter(|name| !name.is_empty());
    for (count, name) in names.enumerate() {
        if count == REFTABLES {
            return Err(GitError::ListTooLong {
                path: repo.common_dir.join(from),
                limit: REFTABLES,
            });
        }
        let plain = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        if name.starts_with(b".") || !name.iter().all(plain) {
            return Ok(None);
        }
        let name = OsStr::from_bytes(name);
        let Some(table) = repo.common.read(&from.join(name), left)? else {
            return Ok(None);
        };
        left -= table.bytes.len() as u64;
        files::write(&to.join(name), &table.bytes)?;
    }
    files::write(&to.join("tables.list"), &list.bytes)?;
    files::create_dirs(&private.join("refs"))?;
    files::write(&private.join("HEAD"), b"ref: refs/heads/.invalid\n")?;
    files::write(
        &private.join("refs/heads"),
        b"this repository uses the reftable format\n",
    )?;
    Ok(Some(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_refs_are_checked() {
        for (name, good) in [
            ("refs/heads/main", true),
            ("refs/heads/a/b-c.d", true),
            ("refs/heads/Grüße", true),
            ("refs/heads/../../config", false),
            ("refs/heads/.hidden", false),
            ("refs/heads/a.lock", false),
            ("refs/heads//a", false),
            ("refs/heads/a\nb", false),
            ("HEAD", false),
        ] {
            assert_eq!(is_ref_name(name.as_bytes()), good, "{name}");
        }
    }
}
