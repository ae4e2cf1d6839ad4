//! Some files of a base and nothing else, with a history of one commit.
//!
//! The files are links to the other base's. The objects of the one commit are in the base's own git
//! directory and none are borrowed: what was not selected cannot be read inside, not even by its id.

use std::collections::BTreeSet;
use std::path::Path;

use globset::{GlobBuilder, GlobMatcher};
use ringfence_model::hex;
use rustix::fs::{AtFlags, CWD, FileType};
use sha2::{Digest, Sha256};

use super::error::access;
use super::files::{self, Found, relative};
use super::private::{config_start, start, write_index};
use super::tree::{EXECUTABLE, Entry, REGULAR, SYMLINK, tree_id};
use super::{Base, BaseError, BaseKind, Built, id_of, loose, made};
use crate::clock::now_us;
use crate::home::Home;
use crate::mirror::Silent;
use crate::store::{NewBase, Store};

/// Who made the one commit, and when: always the same, so that the same files make the same id.
const IDENTITY: &str = "agent <agent@ringfence.invalid> 1000000000 +0000";
const BRANCH: &str = "refs/heads/main";

/// A base of the files that the patterns select: a path, a directory, or a glob in which `*` does
/// not cross `/`.
pub fn staged(
    home: &Home,
    store: &Store,
    of: &Base,
    patterns: &[String],
) -> Result<Base, BaseError> {
    let sorted: BTreeSet<&str> = patterns.iter().map(String::as_str).collect();
    let mut hasher = Sha256::new();
    for pattern in &sorted {
        hasher.update((pattern.len() as u64).to_be_bytes());
        hasher.update(pattern.as_bytes());
    }
    let key = format!("stage {} {}", of.id, hex(&hasher.finalize()));
    let new = NewBase {
        id: id_of(&key),
        key,
        kind: BaseKind::Stage,
        mirror: None,
    };
    made(home, store, &new, &mut Silent, |site, _| {
        let selected = select(&of.workspace(), &sorted)?;
        build(of, &selected, &site.workspace())
    })
}

/// Files and links that a pattern selects; an error names the patterns that select none.
fn select(workspace: &Path, patterns: &BTreeSet<&str>) -> Result<Vec<Found>, BaseError> {
    let found = files::list(workspace, |_| false)?;
    let mut rules = Vec::new();
    for pattern in patterns {
        let rule = Rule::new(pattern)?;
        // All of nothing is nothing, and no mistake.
        let used = rule.path.is_empty();
        rules.push((*pattern, rule, used));
    }
    let mut selected = Vec::new();
    for found in found {
        if !matches!(found.kind(), FileType::RegularFile | FileType::Symlink) {
            continue;
        }
        let mut any = false;
        for (_, rule, used) in &mut rules {
            if rule.selects(&found.path) {
                *used = true;
                any = true;
            }
        }
        if any {
            selected.push(found);
        }
    }
    let unused: Vec<String> = rules
        .iter()
        .filter(|(_, _, used)| !used)
        .map(|(pattern, ..)| (*pattern).to_owned())
        .collect();
    if unused.is_empty() && !patterns.is_empty() {
        Ok(selected)
    } else {
        Err(BaseError::MatchNothing { patterns: unused })
    }
}

struct Rule {
    /// A path without `/` at its ends; empty for the whole workspace.
    path: Vec<u8>,
    glob: GlobMatcher,
}

impl Rule {
    fn new(pattern: &str) -> Result<Self, BaseError> {
        let plain = pattern.strip_prefix("./").unwrap_or(pattern);
        let plain = if plain == "." { "" } else { plain };
        let plain = plain.trim_end_matches('/');
        let glob = GlobBuilder::new(plain)
            .literal_separator(true)
            .build()
            .map_err(|source| BaseError::ParsePattern {
                pattern: pattern.to_owned(),
                source,
            })?;
        Ok(Self {
            path: plain.as_bytes().to_vec(),
            glob: glob.compile_matcher(),
        })
    }

    fn selects(&self, path: &[u8]) -> bool {
        let named = self.path.is_empty()
            || path
                .strip_prefix(&self.path[..])
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"));
        // A glob that names a directory selects what is below it.
        named
            || relative(path)
                .ancestors()
                .any(|part| !part.as_os_str().is_empty() && self.glob.is_match(part))
    }
}

fn build(of: &Base, selected: &[Found], workspace: &Path) -> Result<Built, BaseError> {
    let from = of.workspace();
    let root = files::open_directory(&from)?;
    let git_dir = workspace.join(".git");
    start(&git_dir)?;
    let hash = of.hash;
    let now = now_us() / 1_000_000;
    let mut entries = Vec::with_capacity(selected.len());
    for found in selected {
        let at = relative(&found.path);
        let target = workspace.join(at);
        if let Some(parent) = at.parent() {
            files::make_directories(workspace, parent)?;
        }
        let source = from.join(at);
        let (mode, oid) = match found.kind() {
            FileType::Symlink => {
                let link = rustix::fs::readlinkat(&root, at, Vec::new())
                    .map_err(|errno| access("read", &source)(errno.into()))?;
                (
                    SYMLINK,
                    loose::write(&git_dir, "blob", link.as_bytes(), hash)?,
                )
            }
            _ => {
                let mut file =
                    files::open_file(&root, &found.path).map_err(access("read", &source))?;
                let executes = found.stat.st_mode & 0o100 != 0;
                let mode = if executes { EXECUTABLE } else { REGULAR };
                (mode, loose::write_file(&git_dir, &mut file, &source, hash)?)
            }
        };
        // Of a link too: the link itself gets a second name.
        rustix::fs::linkat(&root, at, CWD, &target, AtFlags::empty())
            .map_err(|errno| access("link to", &target)(errno.into()))?;
        let (seconds, size) = (found.stat.st_mtime, found.stat.st_size as u64);
        entries.push(Entry {
            path: found.path.clone(),
            mode,
            oid,
            clean: (seconds < now - 1).then_some((seconds, size)),
        });
    }
    let mut trees = Vec::new();
    let tree = tree_id(&entries, hash, &mut |_, body| trees.push(body.to_vec()));
    for body in trees {
        loose::write(&git_dir, "tree", &body, hash)?;
    }
    let tree = hex(&tree);
    let text =
        format!("tree {tree}\nauthor {IDENTITY}\ncommitter {IDENTITY}\n\nBase of the workspace\n");
    let commit = hex(&loose::write(&git_dir, "commit", text.as_bytes(), hash)?);
    files::write(&git_dir.join("config"), &config_start(hash, None))?;
    files::write(&git_dir.join("HEAD"), format!("ref: {BRANCH}\n").as_bytes())?;
    files::write(&git_dir.join(BRANCH), format!("{commit}\n").as_bytes())?;
    write_index(&git_dir, &entries, hash, now)?;
    Ok(Built {
        commit: Some(commit),
        tree: Some(tree),
        hash,
        objects: Vec::new(),
        notes: Vec::new(),
        missing: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_select_paths_directories_and_globs() {
        for (pattern, path, expected) in [
            ("a", "a", true),
            ("a", "a/b", true),
            ("a/", "a/b", true),
            ("./a", "a", true),
            ("a", "ab", false),
            (".", "x/y", true),
            ("*.rs", "a.rs", true),
            ("*.rs", "b/a.rs", false),
            ("**/*.rs", "b/c/a.rs", true),
            ("src/*", "src/a/b", true),
            ("b?", "bc/d", true),
            ("../x", "x", false),
        ] {
            let rule = Rule::new(pattern).unwrap();
            assert_eq!(rule.selects(path.as_bytes()), expected, "{pattern} {path}");
        }
        assert!(Rule::new("a[").is_err());
    }
}
