//! The base of a commit, submodules included, each from a mirror of its own.
//!
//! HOSTILE: the repository chose every name, path and address in `.gitmodules`. A path or name that
//! leaves its place or touches a git directory is refused; so is an address that is an option, that
//! starts a program, or that lies on this host where the parent's does not. A submodule that is
//! refused or cannot be had is a note, and its directory stays empty.

mod address;
pub(super) mod reach;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ringfence_model::policy::sources::Sources;
use ringfence_model::{ByteText, hex};

use super::checkout::{Checked, checkout};
use super::missing::{Lack, Login, Missing};
use super::private::{self, Private};
use super::tree::{Entry, GITLINK};
use super::{BaseError, Built, Site, Submodules, files, lfs};
use crate::clock::now_us;
use crate::git::{Config, is_safe};
use crate::home::Home;
use crate::ids::MirrorId;
use crate::mirror::{self, MirrorError, Progress, Resolved};
use crate::source::{Source, Typed};
use crate::store::Store;
use address::address;

/// BOUND: submodules within submodules.
const DEPTH: usize = 8;
/// BOUND: submodules of one base, at all depths.
const COUNT: usize = 256;
/// BOUND: written by hand.
const GITMODULES_BYTES: u64 = 1 << 20;

/// Fills the workspace of a base with a commit.
pub(super) fn build(
    home: &Home,
    store: &Store,
    resolved: &Resolved,
    submodules: Submodules<'_>,
    site: Site<'_>,
    progress: &mut dyn Progress,
) -> Result<Built, BaseError> {
    let mut maker = Maker {
        home,
        store,
        site,
        progress,
        objects: Vec::new(),
        // What was so when the commit was asked for is not so for the next who asks.
        notes: Vec::new(),
        missing: Vec::new(),
        left: match submodules {
            Submodules::Fetch(_) => COUNT,
            Submodules::Leave => 0,
        },
        submodules,
        top: &resolved.mirror.source,
        index_seconds: now_us() / 1_000_000,
    };
    let checked = maker.place(resolved, Path::new(""), Path::new(".git"), 0)?;
    Ok(Built {
        commit: Some(resolved.commit.clone()),
        tree: Some(checked.tree),
        hash: checked.hash,
        objects: maker.objects,
        notes: maker.notes,
        missing: maker.missing,
    })
}

struct Maker<'a> {
    home: &'a Home,
    store: &'a Store,
    site: Site<'a>,
    progress: &'a mut dyn Progress,
    objects: Vec<MirrorId>,
    notes: Vec<String>,
    missing: Vec<Missing>,
    /// How many more submodules there may be.
    left: usize,
    submodules: Submodules<'a>,
    /// Where the repository is that the user named.
    top: &'a Source,
    index_seconds: i64,
}

/// What `.gitmodules` says of one submodule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Module {
    name: Vec<u8>,
    path: Vec<u8>,
    url: Vec<u8>,
}

impl Maker<'_> {
    /// Checks a commit out at a place below the workspace and gives it its git directory.
    fn place(
        &mut self,
        resolved: &Resolved,
        at: &Path,
        git_dir: &Path,
        depth: usize,
    ) -> Result<Checked, BaseError> {
        let top = self.site.workspace();
        let target = top.join(at);
        // Two seconds ago: a change from now on has another time.
        let mut checked = checkout(resolved, &target, self.site, self.index_seconds - 2)?;
        let lfs = lfs::materialise(resolved, &target, &mut checked.entries, self.progress)?;
        self.notes.extend(lfs.notes);
        self.missing.extend(lfs.missing);
        let place = self.reads(resolved.mirror.id)?;
        let own = files::make_directories(&top, git_dir)?;
        let settings = self.populate(resolved, &checked.entries, at, git_dir, depth)?;
        let worktree = (!at.as_os_str().is_empty())
            .then(|| format!("{}{}", up(git_dir), at.to_string_lossy()));
        Private {
            git_dir: own,
            resolved,
            hash: checked.hash,
            place,
            worktree,
            settings,
            entries: &checked.entries,
            index_seconds: self.index_seconds,
        }
        .write()?;
        Ok(checked)
    }

    /// The number of a mirror's objects. From here on the mirror stays.
    fn reads(&mut self, id: MirrorId) -> Result<usize, BaseError> {
        if let Some(place) = self.objects.iter().position(|other| *other == id) {
            return Ok(place);
        }
        self.objects.push(id);
        self.store.base_reads(self.site.id, &self.objects)?;
        Ok(self.objects.len() - 1)
    }

    /// Checks the submodules of a commit out; gives the settings that they need in its parent.
    fn populate(
        &mut self,
        parent: &Resolved,
        entries: &[Entry],
        at: &Path,
        git_dir: &Path,
        depth: usize,
    ) -> Result<Vec<u8>, BaseError> {
        let mut settings = Vec::new();
        let Submodules::Fetch(sources) = self.submodules else {
            return Ok(settings);
        };
        let links = entries.iter().filter(|entry| entry.mode == GITLINK);
        let links: Vec<&Entry> = links.collect();
        if links.is_empty() {
            return Ok(settings);
        }
        let modules = self.read_modules(at);
        for link in links {
            let module = modules.iter().find(|module| module.path == link.path);
            let done = match module {
                None => Err(Why::Refused("`.gitmodules` does not name it".to_owned())),
                Some(module) => self.one(parent, module, &link.oid, (at, git_dir, depth), sources),
            };
            match (done, module) {
                (Ok(()), Some(module)) => {
                    private::section(&mut settings, "submodule", &module.name);
                    crate::git::line(&mut settings, "active", b"true");
                }
                (Err(why), _) => {
                    let reason = match why {
                        Why::Refused(reason) => reason,
                        Why::Missing(reason, source, login) => {
                            self.missing.push(Missing {
                                what: Lack::Submodule,
                                source,
                                commit: hex(&link.oid),
                                login,
                            });
                            reason
                        }
                    };
                    let path = at.join(OsStr::from_bytes(&link.path));
                    let path = ByteText::from(path.as_os_str().as_bytes());
                    self.notes
                        .push(format!("submodule `{path}` is empty: {reason}"));
                }
                (Ok(()), None) => {}
            }
        }
        Ok(settings)
    }

    fn read_modules(&self, at: &Path) -> Vec<Module> {
        let path = self.site.workspace().join(at).join(".gitmodules");
        // A link is not followed: git does not either.
        let small = std::fs::symlink_metadata(&path)
            .is_ok_and(|metadata| metadata.is_file() && metadata.len() <= GITMODULES_BYTES);
        if small {
            parse_modules(&std::fs::read(&path).unwrap_or_default())
        } else {
            Vec::new()
        }
    }

    /// One submodule; the reason in words where there is none.
    fn one(
        &mut self,
        parent: &Resolved,
        module: &Module,
        oid: &[u8],
        (at, git_dir, depth): (&Path, &Path, usize),
        sources: &Sources,
    ) -> Result<(), Why> {
        let refused = |reason: &str| Err(Why::Refused(reason.to_owned()));
        let text = |bytes: &[u8]| is_safe(bytes) && std::str::from_utf8(bytes).is_ok();
        if !text(&module.path) || !text(&module.name) {
            return refused("its path or name is not acceptable");
        }
        if depth >= DEPTH || self.left == 0 {
            return refused("there are too many submodules");
        }
        self.left -= 1;
        let top = self.site.workspace();
        let at = at.join(OsStr::from_bytes(&module.path));
        let below = git_dir
            .join("modules")
            .join(OsStr::from_bytes(&module.name));
        if std::fs::symlink_metadata(top.join(&below)).is_ok() {
            return refused("its name is taken");
        }
        if !is_plain_directory(&top, &at) {
            return refused("its directory is not there");
        }
        let typed = address(parent, &module.name, &module.url)?;
        // It is tried again: what the user's policy names may be another time.
        let refused_now = |why| Why::Missing(why, typed.source.text(), Login::None);
        let typed = reach::checked(self.top, sources, typed.clone()).map_err(refused_now)?;
        let commit = hex(oid);
        let resolved = self
            .fetched(&typed, &commit)
            .map_err(|error| Why::of(&error, &typed))?;
        let (notes, missing) = (self.notes.len(), self.missing.len());
        self.reads(resolved.mirror.id)
            .map_err(|error| Why::Refused(error.to_string()))?;
        let result = self.place(&resolved, &at, &below, depth + 1).and_then(|_| {
            let gitfile = format!("gitdir: {}{}\n", up(&at), below.to_string_lossy());
            files::write(&top.join(&at).join(".git"), gitfile.as_bytes())
        });
        result.map_err(|error| {
            self.notes.truncate(notes);
            self.missing.truncate(missing);
            // What was written of it goes: a directory is whole or empty.
            let _ = std::fs::remove_dir_all(top.join(&below));
            let _ = std::fs::remove_dir_all(top.join(&at));
            let _ = files::make_directory(&top.join(&at), 0o755);
            Why::Refused(error.to_string())
        })
    }
}

impl Maker<'_> {
    /// Its mirror. Forges redirect a name without `.git` to the one with it, and redirects are not
    /// followed.
    fn fetched(&mut self, typed: &Typed, commit: &str) -> Result<Resolved, MirrorError> {
        let mut fetch = |typed: &Typed| {
            mirror::ensure(self.home, self.store, typed, Some(commit), self.progress)
        };
        match (fetch(typed), &typed.source) {
            (Err(MirrorError::Fetch { said, .. }), Source::Url(url))
                if said.contains("returned error: 30") && !url.ends_with(".git") =>
            {
                fetch(&Typed {
                    source: Source::Url(format!("{}.git", url.trim_end_matches('/'))),
                    ..typed.clone()
                })
            }
            (result, _) => result,
        }
    }
}

/// Why a submodule is empty.
#[derive(Debug)]
enum Why {
    /// It will be the next time too.
    Refused(String),
    /// The reason, what could not be fetched, and whose credentials are good for it.
    Missing(String, String, Login),
}

impl Why {
    fn of(error: &MirrorError, typed: &Typed) -> Self {
        match error {
            MirrorError::Source(_)
            | MirrorError::Revision { .. }
            | MirrorError::Unsupported { .. } => Self::Refused(error.to_string()),
            _ => Self::Missing(
                error.to_string(),
                typed.source.text(),
                Login::of(typed.credentials.as_ref()),
            ),
        }
    }
}

/// As many `../` as lead from a relative path to where it starts.
fn up(path: &Path) -> String {
    "../".repeat(path.components().count())
}

/// Whether every part of a path below a directory is a directory itself, not a link.
fn is_plain_directory(top: &Path, below: &Path) -> bool {
    let mut path = PathBuf::from(top);
    below.iter().all(|part| {
        path.push(part);
        std::fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir())
    })
}

fn parse_modules(text: &[u8]) -> Vec<Module> {
    let mut modules: Vec<Module> = Vec::new();
    for (name, key, value) in Config::parse(text).named("submodule") {
        let known = modules.iter().position(|module| module.name == name);
        let at = known.unwrap_or_else(|| {
            modules.push(Module {
                name: name.to_vec(),
                ..Module::default()
            });
            modules.len() - 1
        });
        let value = value.to_vec();
        match key {
            b"path" => modules[at].path = value,
            b"url" => modules[at].url = value,
            _ => {}
        }
        // BOUND: more are not checked out anyway.
        if modules.len() > COUNT * 4 {
            break;
        }
    }
    modules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_read() {
        let text =
            b"[submodule \"a\"]\n\tpath = lib\n\turl = ../x\n[submodule \"b\"]\n\tpath = ../y\n";
        let modules = parse_modules(text);
        assert_eq!(modules.len(), 2);
        assert_eq!(modules[0].path, b"lib");
        assert_eq!(modules[0].url, b"../x");
        assert_eq!(modules[1].url, b"");
    }
}
