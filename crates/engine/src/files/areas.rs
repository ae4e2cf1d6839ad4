//! Areas: parts of the workspace that may be written, or may not.
//!
//! The most specific area decides, and of two equal ones the one that denies. What denies is
//! compared without case, what allows is taken at its word.
//!
//! Each area becomes a mount of its own. A mount needs something to be mounted on: what is missing
//! is made in the mask, which is a layer of ours, never in the user's folder. All that is above an
//! area is in a layer below the one that is written, and holds a mount: so nothing above it can be
//! moved or removed inside.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use ringfence_jail::plan::{self, Access};
use ringfence_model::policy::area::Area;
use ringfence_model::policy::{Files, Line};

use super::FilesError;

/// BOUND: each area is a mount; this many start within a millisecond.
const MOST: usize = 128;

/// Where git works inside. It is private, and nothing of it crosses back.
const GIT: &str = ".git";

#[derive(Clone, Debug)]
pub(crate) struct Areas {
    /// Outer before inner. The first one is the whole workspace.
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    names: Vec<String>,
    access: Access,
    missing: Missing,
}

/// What to do where there is nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    /// A directory is made.
    Directory,
    /// A file is made where that denies; else it is an error.
    File,
    /// Nothing to hold.
    Skip,
}

/// What a path is, before anything runs.
enum Found {
    Directory,
    File,
    Link,
    Hidden,
    Nothing,
}

impl Areas {
    pub fn of(files: &Files) -> Result<Self, FilesError> {
        let mut rules = read("read_only", &files.read_only, Access::ReadOnly)?;
        rules.push(Rule {
            names: Vec::new(),
            access: match files.write {
                None => Access::Write,
                Some(_) => Access::ReadOnly,
            },
            missing: Missing::Skip,
        });
        if let Some(write) = &files.write {
            let write = read("write", write, Access::Write)?;
            // Who allows all of it takes the place of the rule that denies what is not said.
            if write.iter().any(|rule| rule.names.is_empty()) {
                rules.retain(|rule| !rule.names.is_empty() || rule.missing != Missing::Skip);
            }
            rules.extend(write);
            rules.push(Rule {
                names: vec![GIT.to_owned()],
                access: Access::Write,
                missing: Missing::Skip,
            });
        }
        if rules.len() > MOST {
            return Err(FilesError::TooManyAreas {
                count: rules.len(),
                most: MOST,
            });
        }
        rules.sort_by(|a, b| {
            let key = |rule: &Rule| (rule.names.len(), rule.names.clone(), rule.access);
            key(a).cmp(&key(b))
        });
        // Of two equal ones the one that denies comes first.
        rules.dedup_by(|later, first| later.names == first.names);
        Ok(Self { rules })
    }

    /// Whether all of the workspace may be written.
    pub fn is_plain(&self) -> bool {
        self.rules.iter().all(|rule| rule.access == Access::Write)
    }

    /// Whether a path may change.
    pub fn may_write(&self, path: &[u8]) -> bool {
        self.around(path, usize::MAX) == Access::Write
    }

    /// Whether the directory of a path may change, and the path be another thing tomorrow.
    fn may_write_around(&self, path: &[u8]) -> bool {
        let depth = path.split(|&byte| byte == b'/').count();
        self.around(path, depth) == Access::Write
    }

    /// What the most specific rule of less than `below` names says.
    fn around(&self, path: &[u8], below: usize) -> Access {
        let path: Vec<&[u8]> = path.split(|&byte| byte == b'/').collect();
        let mut best: Option<&Rule> = None;
        for rule in &self.rules {
            let is_closer = best.is_none_or(|best| {
                (rule.names.len(), best.access) > (best.names.len(), rule.access)
            });
            if rule.names.len() < below && is_closer && rule.holds(&path) {
                best = Some(rule);
            }
        }
        best.map_or(Access::ReadOnly, |rule| rule.access)
    }

    /// The areas that have to be mounted over `tree`, with `mask` above it, and what is missing of
    /// them made in the mask.
    pub fn lay(&self, tree: &Path, mask: &Path) -> Result<Vec<plan::Area>, FilesError> {
        let mut laid = Vec::new();
        if self.is_plain() {
            return Ok(laid);
        }
        for rule in &self.rules {
            let around = match rule.names.len() {
                // The tree itself is mounted to be written.
                0 => Access::Write,
                depth => self.around(rule.text().as_bytes(), depth),
            };
            let ground = Ground { tree, mask, rule };
            let places = match rule.access {
                _ if rule.names.is_empty() && rule.access == around => Vec::new(),
                _ if rule.names.is_empty() => vec![PathBuf::new()],
                Access::ReadOnly => ground.spellings(self, around)?,
                // Allowed already, or denied by another spelling.
                _ if around == Access::Write || !self.may_write(rule.text().as_bytes()) => {
                    Vec::new()
                }
                Access::Write => ground.exact()?,
            };
            laid.extend(places.into_iter().map(|path| plan::Area {
                path,
                access: rule.access,
            }));
            if laid.len() > MOST {
                return Err(FilesError::TooManyAreas {
                    count: laid.len(),
                    most: MOST,
                });
            }
        }
        Ok(laid)
    }
}

fn read(list: &'static str, lines: &[Line], access: Access) -> Result<Vec<Rule>, FilesError> {
    let mut rules = Vec::new();
    for Line { text, .. } in lines {
        let area = Area::parse(text).map_err(|source| FilesError::Area {
            list,
            text: text.clone(),
            source,
        })?;
        rules.push(Rule {
            names: area.names().to_vec(),
            access,
            missing: if text.ends_with("/**") || text.ends_with('/') {
                Missing::Directory
            } else {
                Missing::File
            },
        });
    }
    Ok(rules)
}

impl Rule {
    /// Whether a path is at or below it.
    fn holds(&self, path: &[&[u8]]) -> bool {
        self.names.len() <= path.len()
            && self
                .names
                .iter()
                .zip(path)
                .all(|(own, name)| match self.access {
                    Access::Write => own.as_bytes() == *name,
                    Access::ReadOnly => is_spelling(name, own),
                })
    }

    fn text(&self) -> String {
        self.names.join("/")
    }
}

/// Whether two names are the same but for case.
fn is_spelling(name: &[u8], of: &str) -> bool {
    name == of.as_bytes()
        || std::str::from_utf8(name).is_ok_and(|name| name.to_lowercase() == of.to_lowercase())
}

/// Where a rule is looked for.
struct Ground<'a> {
    tree: &'a Path,
    mask: &'a Path,
    rule: &'a Rule,
}

impl Ground<'_> {
    /// The place of a rule that allows.
    fn exact(&self) -> Result<Vec<PathBuf>, FilesError> {
        let mut at = PathBuf::new();
        for (number, name) in self.rule.names.iter().enumerate() {
            at.push(name);
            let is_last = number + 1 == self.rule.names.len();
            match self.look(&at)? {
                Found::Directory => {}
                Found::File if is_last => {}
                Found::File => return Err(self.file_in_the_way(at)),
                Found::Link => return Err(self.link_in_the_way(at)),
                _ if self.rule.missing == Missing::Skip => return Ok(Vec::new()),
                Found::Hidden => return Err(FilesError::WrittenAndHidden(self.rule.text())),
                Found::Nothing if self.rule.missing == Missing::File => {
                    return Err(FilesError::NothingToWrite(self.rule.text()));
                }
                Found::Nothing => self.make(&at, Missing::Directory)?,
            }
        }
        Ok(vec![at])
    }

    /// The places of a rule that denies, however they are spelled, as far as something around them
    /// allows. Where what is around the rule itself allows, it must be there, so that it cannot be
    /// made.
    fn spellings(&self, areas: &Areas, around: Access) -> Result<Vec<PathBuf>, FilesError> {
        use std::os::unix::ffi::OsStrExt as _;
        let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
        let depth = self.rule.names.len();
        let mut places = vec![PathBuf::new()];
        for (number, name) in self.rule.names.iter().enumerate() {
            let is_last = number + 1 == depth;
            let mut next = Vec::new();
            for place in &places {
                for spelled in self.spelled(place, name)? {
                    let at = place.join(spelled);
                    match self.look(&at)? {
                        Found::Directory => next.push(at),
                        Found::File if is_last => next.push(at),
                        // What is in the way stays there where it cannot be written.
                        Found::File | Found::Link if !areas.may_write_around(&bytes(&at)) => {}
                        Found::File => return Err(self.file_in_the_way(at)),
                        Found::Link => return Err(self.link_in_the_way(at)),
                        // What is hidden cannot be seen, and never crosses back.
                        Found::Hidden | Found::Nothing => {}
                    }
                }
            }
            let exact: PathBuf = self.rule.names[..=number].iter().collect();
            let is_open = exact
                .parent()
                .is_some_and(|above| places.iter().any(|p| p == above));
            if around == Access::Write
                && is_open
                && let Found::Nothing = self.look(&exact)?
            {
                let what = if is_last {
                    self.rule.missing
                } else {
                    Missing::Directory
                };
                self.make(&exact, what)?;
                next.push(exact);
            }
            if next.len() > MOST {
                return Err(FilesError::TooManyAreas {
                    count: next.len(),
                    most: MOST,
                });
            }
            places = next;
        }
        places.retain(|place| areas.around(&bytes(place), depth) == Access::Write);
        Ok(places)
    }

    /// The names in a directory that are this one but for case.
    fn spelled(&self, directory: &Path, name: &str) -> Result<Vec<std::ffi::OsString>, FilesError> {
        use std::os::unix::ffi::OsStrExt as _;
        let mut names = std::collections::BTreeSet::new();
        for root in [self.tree, self.mask] {
            let path = root.join(directory);
            let entries = match fs::read_dir(&path) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) if error.kind() == io::ErrorKind::NotADirectory => continue,
                Err(source) => return Err(self.failed("list", path, source)),
            };
            for entry in entries {
                let entry = entry.map_err(|source| self.failed("list", path.clone(), source))?;
                if is_spelling(entry.file_name().as_bytes(), name) {
                    names.insert(entry.file_name());
                }
            }
        }
        Ok(names.into_iter().collect())
    }

    fn look(&self, at: &Path) -> Result<Found, FilesError> {
        for root in [self.mask, self.tree] {
            let path = root.join(at);
            let metadata = match path.symlink_metadata() {
                Ok(metadata) => metadata,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                // Something above it is hidden.
                Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                    return Ok(Found::Hidden);
                }
                Err(source) => return Err(self.failed("look at", path, source)),
            };
            let kind = metadata.file_type();
            return Ok(match () {
                () if kind.is_dir() => Found::Directory,
                () if kind.is_symlink() => Found::Link,
                () if kind.is_char_device() && root == self.mask => Found::Hidden,
                () => Found::File,
            });
        }
        Ok(Found::Nothing)
    }

    /// Makes what is missing, in the mask.
    fn make(&self, at: &Path, what: Missing) -> Result<(), FilesError> {
        let mut above: Vec<&Path> = at.ancestors().skip(1).collect();
        above.reverse();
        for directory in above {
            let target = self.mask.join(directory);
            if target.is_dir() {
                continue;
            }
            // Seen in place of the tree's own.
            let mode = fs::metadata(self.tree.join(directory)).map_or(0o755, |metadata| {
                metadata.permissions().mode() & 0o777 | 0o700
            });
            self.directory(&target, mode)?;
        }
        let target = self.mask.join(at);
        match what {
            Missing::File => fs::File::create_new(&target)
                .map(drop)
                .map_err(|source| self.failed("make", target, source)),
            Missing::Directory | Missing::Skip => self.directory(&target, 0o755),
        }
    }

    fn directory(&self, path: &Path, mode: u32) -> Result<(), FilesError> {
        fs::create_dir(path)
            .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
            .map_err(|source| self.failed("make", path.to_owned(), source))
    }

    fn failed(&self, what: &'static str, path: PathBuf, source: io::Error) -> FilesError {
        FilesError::Hold {
            area: self.rule.text(),
            what,
            path,
            source,
        }
    }

    fn link_in_the_way(&self, link: PathBuf) -> FilesError {
        FilesError::LinkInTheWay {
            area: self.rule.text(),
            link,
        }
    }

    fn file_in_the_way(&self, found: PathBuf) -> FilesError {
        FilesError::FileInTheWay {
            area: self.rule.text(),
            found,
        }
    }
}
