//! Walks through directories, as ripgrep does them: no links followed, in the order of names.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use ignore::WalkBuilder;
use ringfence_model::tools::Ignored;

use crate::failure::{Failure, Hint as _, Outcome, invalid};
use crate::place::Root;

/// The files that say what is ignored.
const RULES: [&str; 2] = [".gitignore", ".ignore"];
/// BOUND: rules are compiled; what is larger was not written by a person.
const MAX_RULES: u64 = 1 << 20;

/// What becomes of names that begin with a dot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hidden {
    Show,
    Skip,
}

/// As requests say it.
impl From<bool> for Hidden {
    fn from(shown: bool) -> Self {
        if shown { Self::Show } else { Self::Skip }
    }
}

/// The first file of rules that could not be used, if a walk met one.
#[derive(Clone, Debug, Default)]
pub struct OddRules(Arc<OnceLock<PathBuf>>);

impl OddRules {
    /// To be asked when the walk is over: rules that were not used make its answer wrong.
    pub fn check(&self, root: &Root) -> Outcome<()> {
        match self.0.get() {
            Some(path) => Err(refused_rules(root, path)),
            None => Ok(()),
        }
    }
}

fn refused_rules(root: &Root, path: &Path) -> Failure {
    invalid(format!(
        "`{}` is not a regular file of at most {MAX_RULES} bytes",
        root.relative(path)
    ))
    .hint("set `ignored` to `show`")
}

/// A walk that goes the same way every time: rules come from the tree itself, and hold whether
/// or not a `.git` is there to see; settings of git have no say.
pub fn walk(
    root: &Root,
    start: &Path,
    hidden: Hidden,
    ignored: Ignored,
) -> Outcome<(WalkBuilder, OddRules)> {
    let rules = ignored == Ignored::Skip;
    let mut builder = WalkBuilder::new(start);
    builder
        .hidden(hidden == Hidden::Skip)
        .parents(rules)
        .ignore(rules)
        .git_ignore(rules)
        .git_exclude(false)
        .git_global(false)
        .require_git(false)
        .follow_links(false)
        .sort_by_file_name(std::ffi::OsStr::cmp);
    let odd = OddRules::default();
    if rules {
        for directory in start.ancestors() {
            if let Some(path) = odd_rules(directory) {
                return Err(refused_rules(root, &path));
            }
        }
        let seen = odd.clone();
        builder.filter_entry(move |entry| {
            let is_directory = entry.file_type().is_some_and(|kind| kind.is_dir());
            if !is_directory || entry.depth() == 0 {
                return true;
            }
            if entry.file_name() == ".git" {
                return false;
            }
            match odd_rules(entry.path()) {
                Some(path) => {
                    // Only the first is named.
                    let _ = seen.0.set(path);
                    false
                }
                None => true,
            }
        });
    }
    Ok((builder, odd))
}

/// HOSTILE: a FIFO called `.gitignore` would be waited for, a link to `/dev/zero` never ends.
/// Who changes it between this look and its reading only keeps itself waiting.
fn odd_rules(directory: &Path) -> Option<PathBuf> {
    RULES
        .map(|name| directory.join(name))
        .into_iter()
        .find(|path| {
            fs::metadata(path)
                .is_ok_and(|metadata| !metadata.is_file() || metadata.len() > MAX_RULES)
        })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use ringfence_model::tools::FailureKind;
    use serde_json::json;

    use crate::testing::Bench;
    use crate::{glob, list, search};

    #[test]
    fn rules_that_cannot_be_read_are_not_waited_for() {
        for place in [".gitignore", "d/.ignore", "d/e/.gitignore"] {
            for target in ["fifo", "/dev/zero"] {
                let bench = Bench::new();
                bench.file("d/e/f", "x\n");
                if target == "fifo" {
                    let mode = rustix::fs::Mode::from_raw_mode(0o600);
                    let fifo = rustix::fs::FileType::Fifo;
                    rustix::fs::mknodat(rustix::fs::CWD, bench.path(place), fifo, mode, 0).unwrap();
                } else {
                    symlink(target, bench.path(place)).unwrap();
                }
                let searched = bench.call(search::search, json!({"pattern": "x"}));
                assert_eq!(searched.unwrap_err().kind, FailureKind::Invalid);
                let globbed = bench.call(glob::glob, json!({"pattern": "**", "path": "d/e"}));
                assert_eq!(globbed.unwrap_err().kind, FailureKind::Invalid);
                let request = json!({"depth": 9, "ignored": "skip"});
                let listed = bench.call(list::list, request);
                assert_eq!(listed.unwrap_err().kind, FailureKind::Invalid);
                let request = json!({"pattern": "x", "ignored": "show"});
                let searched = bench.call(search::search, request).unwrap();
                assert_eq!(searched.matches.len(), 1);
            }
        }
    }
}
