//! Which changed paths stay behind: ignored by the repository's rules, and not tracked.
//!
//! Git's order: the `.gitignore` of the path's own directory first, then those upwards to the top
//! of the work tree, then `info/exclude`, then the user's file. The first with an opinion decides.
//! A directory that is ignored takes everything below it along; no rule brings that back. A
//! submodule is a world of its own: the rules and the index of its parent end at its folder.
//!
//! Rules of the workspace are read from the merged view, where an agent may have edited them;
//! what it tracks in its own private index counts for nothing.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use ignore::Match;
use ignore::gitignore::Gitignore;

use super::files::{self, Links};
use super::index::Index;
use super::layers::Layers;
use super::patterns::{self, Case};
use super::private::{RULES_BYTES, path_of};
use super::{GitError, Repository, submodules};

/// BOUND: all `.gitignore` files that are read for one change set. An agent may write any number
/// of them; beyond this they have no say, and their directories' files cross back.
const ALL_RULES_BYTES: u64 = 16 << 20;
/// BOUND: patterns of all `.gitignore` files of one change set, for the same reason: compiling
/// these takes about a second at worst.
const ALL_PATTERNS: usize = 20_000;

/// The ignore rules and the tracked paths of a workspace. Without a repository nothing is ignored
/// and nothing is tracked.
#[derive(Debug)]
pub struct IgnoreRules {
    /// The repository of the folder, then those of submodules that were asked about.
    scopes: Vec<Scope>,
    submodules: HashMap<Vec<u8>, usize>,
    layers: Layers,
    left_bytes: u64,
    left_patterns: usize,
    edited: bool,
}

/// One repository's rules. Paths within it are relative to the top of its work tree.
#[derive(Debug)]
struct Scope {
    repo: Option<Repository>,
    index: Option<Index>,
    /// Its work tree relative to the folder; empty for the first.
    at: Vec<u8>,
    /// The folder relative to its work tree; empty but for a sub-folder.
    prefix: Vec<u8>,
    case: Case,
    /// `info/exclude`, then the user's.
    outermost: Vec<Gitignore>,
    by_dir: HashMap<Vec<u8>, Arc<Gitignore>>,
    excluded_dirs: HashMap<Vec<u8>, bool>,
}

impl IgnoreRules {
    /// Reads the index and the rules that hold everywhere; `.gitignore` files follow as needed.
    pub fn load(
        repo: Option<&Repository>,
        upper: BorrowedFd<'_>,
        base: BorrowedFd<'_>,
    ) -> Result<Self, GitError> {
        let layers = Layers::new(upper, base).map_err(|source| GitError::OpenLayers { source })?;
        let scopes = match repo {
            None => Vec::new(),
            Some(repo) => vec![Scope::load(repo, Vec::new())?],
        };
        Ok(Self {
            scopes,
            submodules: HashMap::new(),
            layers,
            left_bytes: ALL_RULES_BYTES,
            left_patterns: ALL_PATTERNS,
            edited: false,
        })
    }

    /// Whether rules that were asked so far are others than those of the base.
    pub fn are_edited(&self) -> bool {
        self.edited
    }

    /// True if a path (relative to the folder) is ignored and not tracked; a directory with
    /// anything tracked below it is not.
    pub fn is_ignored(&mut self, path: &[u8], is_dir: bool) -> bool {
        let Some((scope, path)) = self.locate(path) else {
            return false;
        };
        if self.scopes[scope].is_tracked(&path)
            || (is_dir && self.scopes[scope].has_tracked_below(&path))
        {
            return false;
        }
        self.is_excluded(scope, &path, is_dir)
    }

    /// True if a path (relative to the folder) is in the index.
    pub fn is_tracked(&mut self, path: &[u8]) -> bool {
        match self.locate(path) {
            Some((scope, path)) => self.scopes[scope].is_tracked(&path),
            None => false,
        }
    }

    /// True if anything below a directory (relative to the folder) is in the index.
    pub fn has_tracked_below(&mut self, dir: &[u8]) -> bool {
        // The directory may itself be a submodule: then its own index is asked.
        let inner = if dir.is_empty() {
            b"x".to_vec()
        } else {
            [dir, b"/x"].concat()
        };
        let Some((scope, path)) = self.locate(&inner) else {
            return false;
        };
        let end = path.iter().rposition(|&b| b == b'/').unwrap_or(0);
        self.scopes[scope].has_tracked_below(&path[..end])
    }

    /// The repository that a path of the folder belongs to, and the path within its work tree.
    fn locate(&mut self, path: &[u8]) -> Option<(usize, Vec<u8>)> {
        let first = self.scopes.first()?;
        let mut full = joined(&first.prefix, path);
        let mut at = 0;
        let mut from = if first.prefix.is_empty() {
            0
        } else {
            first.prefix.len() + 1
        };
        while let Some(slash) = full.get(from..)?.iter().position(|&b| b == b'/') {
            let dir = &full[..from + slash];
            if self.scopes[at].is_gitlink(dir) {
                at = self.submodule(at, dir);
                full.drain(..=from + slash);
                from = 0;
            } else {
                from += slash + 1;
            }
        }
        Some((at, full))
    }

    fn submodule(&mut self, parent: usize, path: &[u8]) -> usize {
        let outer = &self.scopes[parent];
        let below = path.get(outer.skip()..).unwrap_or_default();
        let at = joined(&outer.at, below);
        if let Some(&known) = self.submodules.get(&at) {
            return known;
        }
        let repo = outer
            .repo
            .as_ref()
            .filter(|_| submodules::is_safe(path))
            .and_then(|repo| submodules::repository(repo, &repo.top.join(path_of(path))).usable());
        let scope = repo
            .and_then(|repo| Scope::load(&repo, at.clone()).ok())
            .unwrap_or_else(|| Scope::unknown(at.clone()));
        self.scopes.push(scope);
        self.submodules.insert(at, self.scopes.len() - 1);
        self.scopes.len() - 1
    }

    fn is_excluded(&mut self, scope: usize, path: &[u8], is_dir: bool) -> bool {
        for (slash, _) in path.iter().enumerate().filter(|&(_, &b)| b == b'/') {
            let dir = &path[..slash];
            let excluded = match self.scopes[scope].excluded_dirs.get(dir) {
                Some(&known) => known,
                None => {
                    let excluded = self.decide(scope, dir, true);
                    self.scopes[scope]
                        .excluded_dirs
                        .insert(dir.to_vec(), excluded);
                    excluded
                }
            };
            if excluded {
                return true;
            }
        }
        self.decide(scope, path, is_dir)
    }

    /// What the rules say of a path whose directories are not ignored.
    fn decide(&mut self, scope: usize, path: &[u8], is_dir: bool) -> bool {
        let mut end = path.iter().rposition(|&b| b == b'/');
        loop {
            let (dir, name) = match end {
                Some(end) => (&path[..end], &path[end + 1..]),
                None => (&path[..0], path),
            };
            let rules = self.rules(scope, dir);
            match matched(&rules, name, is_dir) {
                Some(ignored) => return ignored,
                None if dir.is_empty() => break,
                None => end = dir.iter().rposition(|&b| b == b'/'),
            }
        }
        let outermost = &self.scopes[scope].outermost;
        outermost
            .iter()
            .find_map(|rules| matched(rules, path, is_dir))
            .unwrap_or(false)
    }

    /// The compiled `.gitignore` of a directory of a work tree.
    fn rules(&mut self, scope: usize, dir: &[u8]) -> Arc<Gitignore> {
        let outer = &self.scopes[scope];
        if let Some(known) = outer.by_dir.get(dir) {
            return Arc::clone(known);
        }
        let limit = RULES_BYTES.min(self.left_bytes);
        let (text, is_base) = if outer.is_above_folder(dir) {
            let text = outer.repo.as_ref().and_then(|repo| {
                repo.tree
                    .read_if_usable(&path_of(dir).join(".gitignore"), limit)
            });
            (text, true)
        } else {
            let below = dir.get(outer.skip()..).unwrap_or_default();
            self.layers
                .read(&joined(&outer.at, below), ".gitignore", limit)
        };
        self.edited |= !is_base;
        let text = text.unwrap_or_default();
        self.left_bytes = self.left_bytes.saturating_sub(text.len() as u64);
        let scope = &mut self.scopes[scope];
        let rules = Arc::new(patterns::compile(&text, scope.case, self.left_patterns));
        self.left_patterns = self.left_patterns.saturating_sub(rules.len());
        scope.by_dir.insert(dir.to_vec(), Arc::clone(&rules));
        rules
    }
}

impl Scope {
    fn load(repo: &Repository, at: Vec<u8>) -> Result<Self, GitError> {
        let index = Index::read(repo)?.map(|(index, _)| index);
        let case = match repo.config.get_bool("core", "ignorecase") {
            Some(true) => Case::Ignored,
            _ => Case::Matters,
        };
        // HOSTILE: the file that the *repository's* settings name could be any of the host.
        let user = repo.user.excludes_file();
        let user = user.map(|path| files::read_if_usable(&path, RULES_BYTES, Links::Follow));
        let own = Path::new("info/exclude");
        let own = repo.common.read_if_usable(own, RULES_BYTES);
        let outermost = [Some(own), user]
            .into_iter()
            .flatten()
            .map(|text| patterns::compile(&text.unwrap_or_default(), case, patterns::PATTERNS));
        let outermost = outermost.collect();
        Ok(Self {
            repo: Some(repo.clone()),
            index,
            at,
            prefix: repo.prefix.clone(),
            case,
            outermost,
            by_dir: HashMap::new(),
            excluded_dirs: HashMap::new(),
        })
    }

    /// A submodule whose repository cannot be read: its `.gitignore` files alone decide.
    fn unknown(at: Vec<u8>) -> Self {
        Self {
            repo: None,
            index: None,
            at,
            prefix: Vec::new(),
            case: Case::Matters,
            outermost: Vec::new(),
            by_dir: HashMap::new(),
            excluded_dirs: HashMap::new(),
        }
    }

    fn is_tracked(&self, path: &[u8]) -> bool {
        self.index
            .as_ref()
            .is_some_and(|index| index.is_tracked(path))
    }

    fn has_tracked_below(&self, dir: &[u8]) -> bool {
        self.index
            .as_ref()
            .is_some_and(|index| index.has_tracked_below(dir))
    }

    fn is_gitlink(&self, path: &[u8]) -> bool {
        self.index
            .as_ref()
            .and_then(|index| index.get(path))
            .is_some_and(|e| e.is_gitlink())
    }

    /// How many bytes of a path lead to the folder.
    fn skip(&self) -> usize {
        if self.prefix.is_empty() {
            0
        } else {
            self.prefix.len() + 1
        }
    }

    /// True for a directory that holds the folder: it is not in the workspace.
    fn is_above_folder(&self, dir: &[u8]) -> bool {
        !self.prefix.is_empty()
            && (dir.is_empty()
                || self
                    .prefix
                    .strip_prefix(dir)
                    .is_some_and(|rest| rest.starts_with(b"/")))
    }
}

fn matched(rules: &Gitignore, path: &[u8], is_dir: bool) -> Option<bool> {
    match rules.matched(OsStr::from_bytes(path), is_dir) {
        Match::None => None,
        Match::Ignore(_) => Some(true),
        Match::Whitelist(_) => Some(false),
    }
}

fn joined(dir: &[u8], path: &[u8]) -> Vec<u8> {
    match (dir, path) {
        ([], path) => path.to_vec(),
        (dir, []) => dir.to_vec(),
        (dir, path) => [dir, b"/", path].concat(),
    }
}
