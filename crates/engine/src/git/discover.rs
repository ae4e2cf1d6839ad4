//! Finding the repository that holds a folder, as git finds it, by looking upwards.
//!
//! A `.git` directory or gitfile counts; a directory that is itself a git directory (bare) ends
//! the search without a repository, and so does the edge of the file system. Environment
//! variables such as `GIT_DIR` are not heard: the folder alone decides.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::config::Config;
use super::directory::{Directory, Expected};
use super::files::{self, Links};
use super::refusal::{Reason, Refusal};
use super::{GitError, ObjectHash, place};

/// BOUND: a gitfile, `commondir` or `HEAD` is one short line.
pub(super) const LINE_BYTES: u64 = 16 << 10;

/// The repository that holds a folder.
#[derive(Clone, Debug)]
pub struct Repository {
    /// The top of the work tree, its real path.
    pub top: PathBuf,
    /// `HEAD` and the index are here; of one's own in a linked worktree.
    pub git_dir: PathBuf,
    /// Objects, refs and configuration are here.
    pub common_dir: PathBuf,
    /// The folder relative to `top`, empty if equal.
    pub prefix: Vec<u8>,
    pub hash: ObjectHash,
    /// Why we cannot build on this repository, though git might.
    pub unsupported: Option<String>,
    /// Where refs are kept: `reftable` has its own files.
    pub reftable: bool,
    /// The repository's own settings: its file, then its worktree's.
    pub config: Config,
    /// The user's own settings and ignore rules.
    pub user: UserFiles,
    /// `top`, `git_dir` and `common_dir` as they were when they were looked at. What is read of them
    /// is read by these.
    pub(super) tree: Directory,
    pub(super) git: Directory,
    pub(super) common: Directory,
    /// Where objects may be borrowed from.
    pub(super) roots: Vec<PathBuf>,
}

impl Repository {
    /// The folder that the search began from.
    pub fn folder(&self) -> PathBuf {
        if self.prefix.is_empty() {
            self.top.clone()
        } else {
            self.top.join(OsStr::from_bytes(&self.prefix))
        }
    }

    /// True for a linked worktree, whose `HEAD` and index are apart from refs and objects.
    pub fn is_linked(&self) -> bool {
        self.git_dir != self.common_dir
    }
}

/// The user's git settings outside of any repository, as far as we heed them.
#[derive(Clone, Debug, Default)]
pub struct UserFiles {
    home: Option<PathBuf>,
    config_home: Option<PathBuf>,
    pub(super) config: Config,
}

impl UserFiles {
    /// From `HOME` and `XDG_CONFIG_HOME` of this process.
    pub fn from_env() -> Self {
        let of = |name| {
            std::env::var_os(name)
                .map(PathBuf::from)
                .filter(|p| p.is_absolute())
        };
        Self::at(of("HOME"), of("XDG_CONFIG_HOME"))
    }

    /// From given directories; a file that cannot be read counts as absent.
    pub fn at(home: Option<PathBuf>, config_home: Option<PathBuf>) -> Self {
        let config_home = config_home.or_else(|| home.as_ref().map(|home| home.join(".config")));
        let mut config = Config::default();
        let files = [
            config_home.as_ref().map(|dir| dir.join("git/config")),
            home.as_ref().map(|dir| dir.join(".gitconfig")),
        ];
        for path in files.into_iter().flatten() {
            config.overlay(Config::read(&path).unwrap_or_default());
        }
        Self {
            home,
            config_home,
            config,
        }
    }

    /// The user's name and address, as they gave them to git.
    pub(crate) fn person(&self) -> Option<(String, String)> {
        let text = |key| {
            let value = self.config.get("user", key)?;
            Some(String::from_utf8_lossy(value).into_owned())
        };
        Some((text("name")?, text("email")?))
    }

    /// The ignore file that the user's settings name, or git's default for it.
    pub(super) fn excludes_file(&self) -> Option<PathBuf> {
        match self.config.get("core", "excludesfile") {
            Some(value) => self.expand(value),
            None => self.config_home.as_ref().map(|dir| dir.join("git/ignore")),
        }
    }

    /// A path from a setting: `~/` is the home, relative ones are not heeded.
    pub(super) fn expand(&self, value: &[u8]) -> Option<PathBuf> {
        let path = match value.strip_prefix(b"~/") {
            Some(rest) => self.home.as_ref()?.join(OsStr::from_bytes(rest)),
            None => PathBuf::from(OsStr::from_bytes(value)),
        };
        path.is_absolute().then_some(path)
    }
}

/// What holds a folder.
#[derive(Clone, Debug)]
pub enum Found {
    Nothing,
    Repository(Box<Repository>),
    /// There is one, and it is not to be read.
    Refused(Refusal),
}

impl Found {
    /// The repository, if it may be read.
    pub fn usable(self) -> Option<Repository> {
        match self {
            Self::Repository(repository) => Some(*repository),
            Self::Nothing | Self::Refused(_) => None,
        }
    }
}

/// The repository that holds a folder, found by looking upwards. One that is refused counts as none.
pub fn discover(folder: &Path) -> Result<Option<Repository>, GitError> {
    discover_for(folder, UserFiles::from_env())
}

/// Like [`discover`], with the user's files given.
pub fn discover_for(folder: &Path, user: UserFiles) -> Result<Option<Repository>, GitError> {
    find_for(folder, user).map(Found::usable)
}

/// Like [`discover`], and says why a repository is refused.
pub fn find(folder: &Path) -> Result<Found, GitError> {
    find_for(folder, UserFiles::from_env())
}

/// Like [`find`], with the user's files given.
pub fn find_for(folder: &Path, user: UserFiles) -> Result<Found, GitError> {
    let folder = files::canonical(folder)?;
    let device = device_of(&folder)?;
    for top in folder.ancestors() {
        if top != folder && device_of(top).ok() != Some(device) {
            return Ok(Found::Nothing);
        }
        let tree = open_directory(top, owner_of(&folder)?)?;
        match resolve_dot_git(&tree) {
            DotGit::Directory(git) => {
                let prefix = folder.strip_prefix(top).unwrap_or(Path::new(""));
                let prefix = prefix.as_os_str().as_bytes().to_vec();
                let roots = vec![top.to_owned()];
                return open(Site { tree, git, roots }, prefix, user);
            }
            // Git gives up here too; the folder is one without a repository.
            DotGit::Broken => return Ok(Found::Nothing),
            DotGit::Refused(refusal) => return Ok(Found::Refused(refusal)),
            DotGit::Absent => {}
        }
        if is_git_dir(top) {
            return Ok(Found::Nothing);
        }
    }
    Ok(Found::Nothing)
}

/// A bare repository at exactly this path.
pub fn find_bare(path: &Path) -> Result<Found, GitError> {
    let path = files::canonical(path)?;
    if !is_git_dir(&path) {
        return Ok(Found::Nothing);
    }
    let git = open_directory(&path, owner_of(&path)?)?;
    let site = Site {
        tree: git.clone(),
        git,
        roots: vec![path],
    };
    match vetted(&site) {
        Ok((common, config)) => Ok(Found::Repository(Box::new(repository(
            site,
            common,
            config,
            Vec::new(),
            UserFiles::default(),
        )))),
        Err(refusal) => Ok(Found::Refused(refusal)),
    }
}

fn open_directory(path: &Path, owner: u32) -> Result<Directory, GitError> {
    Directory::open(path, owner).map_err(|errno| GitError::Read {
        path: path.to_owned(),
        source: errno.into(),
    })
}

fn device_of(path: &Path) -> Result<u64, GitError> {
    metadata(path).map(|metadata| metadata.dev())
}

fn owner_of(path: &Path) -> Result<u32, GitError> {
    metadata(path).map(|metadata| metadata.uid())
}

fn metadata(path: &Path) -> Result<std::fs::Metadata, GitError> {
    std::fs::metadata(path).map_err(|source| GitError::Read {
        path: path.to_owned(),
        source,
    })
}

/// What stands at `<folder>/.git`.
#[derive(Debug)]
pub(super) enum DotGit {
    /// The git directory itself, or the one that a gitfile or link names.
    Directory(Directory),
    /// A gitfile that leads nowhere.
    Broken,
    Refused(Refusal),
    Absent,
}

/// Looks at `<folder>/.git`; a directory that is no git directory counts as absent, as in git.
/// Whether it may be used is for the caller to find out.
pub(super) fn resolve_dot_git(tree: &Directory) -> DotGit {
    let name = Path::new(".git");
    let path = tree.path().join(name);
    let target = match tree.look(name) {
        Ok(None) => return DotGit::Absent,
        Ok(Some(stat)) => match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => path.clone(),
            FileType::Symlink => match path.canonicalize() {
                Ok(target) => target,
                Err(_) => return DotGit::Absent,
            },
            FileType::RegularFile => {
                if let Err(refusal) = tree.vet(name, Expected::File) {
                    return DotGit::Refused(refusal);
                }
                let line = tree.read_if_usable(name, LINE_BYTES);
                let Some(target) = line.as_deref().and_then(gitfile_target) else {
                    return DotGit::Broken;
                };
                match tree.path().join(target).canonicalize() {
                    Ok(target) => target,
                    Err(_) => return DotGit::Broken,
                }
            }
            _ => return DotGit::Refused(Refusal::new(path, Reason::Special)),
        },
        Err(errno) => return DotGit::Refused(Refusal::new(path, Reason::Unreadable(errno))),
    };
    if !is_git_dir(&target) {
        let is_directory = std::fs::metadata(&path).is_ok_and(|metadata| metadata.is_dir());
        return if is_directory {
            DotGit::Absent
        } else {
            DotGit::Broken
        };
    }
    match Directory::open(&target, tree.owner()) {
        Ok(directory) => DotGit::Directory(directory),
        Err(errno) => DotGit::Refused(Refusal::new(path, Reason::Unreadable(errno))),
    }
}

/// The path in a gitfile, `gitdir: <path>`.
pub(super) fn gitfile_target(line: &[u8]) -> Option<&Path> {
    let target = line.strip_prefix(b"gitdir: ")?;
    let end = target
        .iter()
        .rposition(|b| !matches!(b, b'\n' | b'\r'))
        .map_or(0, |at| at + 1);
    (end > 0 && !target[..end].contains(&0)).then(|| Path::new(OsStr::from_bytes(&target[..end])))
}

/// Whether git would take a directory for a git directory. Only names are looked at.
fn is_git_dir(path: &Path) -> bool {
    let Some(common) = common_path(path) else {
        return false;
    };
    std::fs::symlink_metadata(path.join("HEAD")).is_ok()
        && common.join("objects").is_dir()
        // In a repository of reftable format `refs` is there too, by design.
        && common.join("refs").is_dir()
}

fn common_path(git_dir: &Path) -> Option<PathBuf> {
    let path = git_dir.join("commondir");
    match files::read(&path, LINE_BYTES, Links::Refuse) {
        // What is no file is refused later, with a reason.
        Ok(None) | Err(_) => Some(git_dir.to_owned()),
        Ok(Some(line)) => {
            let line = line.bytes.trim_ascii_end();
            git_dir.join(OsStr::from_bytes(line)).canonicalize().ok()
        }
    }
}

/// Where a repository was found, before anything of it is believed.
#[derive(Debug)]
pub(super) struct Site {
    /// The top of the work tree.
    pub tree: Directory,
    pub git: Directory,
    /// Everything of git's must lie below one of these, or point back.
    pub roots: Vec<PathBuf>,
}

/// Reads what there is to know of a repository whose places are known; nothing if it is bare.
pub(super) fn open(site: Site, prefix: Vec<u8>, user: UserFiles) -> Result<Found, GitError> {
    let (common, config) = match vetted(&site) {
        Ok(vetted) => vetted,
        Err(refusal) => return Ok(Found::Refused(refusal)),
    };
    // A linked worktree has a work tree whatever the main repository says of its own.
    let linked = site.git.path() != common.path();
    if !linked && config.get_bool("core", "bare") == Some(true) {
        return Ok(Found::Nothing);
    }
    if let Err(refusal) = place::check(&site, &common, &config) {
        return Ok(Found::Refused(refusal));
    }
    let found = repository(site, common, config, prefix, user);
    Ok(Found::Repository(Box::new(found)))
}

/// The common directory and the settings, if what is read of both is as git lays it out.
fn vetted(site: &Site) -> Result<(Directory, Config), Refusal> {
    place::check_owner(&site.tree)?;
    place::check_owner(&site.git)?;
    let common = place::common(&site.git)?;
    place::check_layout(&site.git, &common)?;
    let unreadable = |directory: &Directory, error: GitError| {
        let path = directory.path().join("config");
        Refusal::new(path, Reason::of(&error))
    };
    let mut config =
        Config::read_in(&common, Path::new("config")).map_err(|e| unreadable(&common, e))?;
    if config.get_bool("extensions", "worktreeconfig") == Some(true) {
        let own = Config::read_in(&site.git, Path::new("config.worktree"));
        config.overlay(own.map_err(|error| unreadable(&site.git, error))?);
    }
    Ok((common, config))
}

fn repository(
    site: Site,
    common: Directory,
    config: Config,
    prefix: Vec<u8>,
    user: UserFiles,
) -> Repository {
    let mut unsupported = None;
    let hash = match config.get("extensions", "objectformat") {
        None => ObjectHash::Sha1,
        Some(name) if name.eq_ignore_ascii_case(b"sha1") => ObjectHash::Sha1,
        Some(name) if name.eq_ignore_ascii_case(b"sha256") => ObjectHash::Sha256,
        Some(_) => {
            unsupported = Some("its object format is not known".to_owned());
            ObjectHash::Sha1
        }
    };
    let reftable = match config.get("extensions", "refstorage") {
        None => false,
        Some(name) if name.eq_ignore_ascii_case(b"files") => false,
        Some(name) if name.eq_ignore_ascii_case(b"reftable") => true,
        Some(_) => {
            unsupported = Some("its ref storage is not known".to_owned());
            false
        }
    };
    if !matches!(
        config.get("core", "repositoryformatversion"),
        None | Some(b"0" | b"1")
    ) {
        unsupported = Some("its format version is not known".to_owned());
    }
    let mut roots = site.roots;
    roots.push(common.path().to_owned());
    Repository {
        top: site.tree.path().to_owned(),
        git_dir: site.git.path().to_owned(),
        common_dir: common.path().to_owned(),
        prefix,
        hash,
        unsupported,
        reftable,
        config,
        user,
        tree: site.tree,
        git: site.git,
        common,
        roots,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gitfiles_are_one_line() {
        for (line, target) in [
            (
                &b"gitdir: ../.git/modules/x\n"[..],
                Some("../.git/modules/x"),
            ),
            (b"gitdir: /a b\r\n", Some("/a b")),
            (b"gitdir: \n", None),
            (b"gitdir:/a\n", None),
            (b"", None),
            (b"gitdir: a\0b\n", None),
        ] {
            assert_eq!(gitfile_target(line), target.map(Path::new));
        }
    }
}
