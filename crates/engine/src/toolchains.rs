//! Toolchains that the user has outside of the system's own directories: what of them a sandbox
//! would need to see, and nothing more.
//!
//! Without an image, programs of `/usr` work inside as they are. What a manager of versions has
//! put below the home does not exist inside, until the user grants it. This finds such toolchains
//! by looking: variables and the usual places. No program is started, and nothing is taken from the
//! folder that a run works on.
//!
//! A toolchain is shown at the path that it has on the host, because scripts and libraries have
//! that path in them. Homes of managers hold credentials beside their programs (`credentials.toml`
//! of cargo and uv, `npmrc` of a node, `pip.conf` of a python, `settings.xml` of a maven). A mount
//! shows all that it holds, so a directory with such a file is never granted as a whole.

mod select;
mod versions;
mod whole;

#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};

use ringfence_jail::plan::may_show_at;
use ringfence_model::policy::Effective;
use serde::Serialize;

use crate::keeper::INSIDE;
use crate::presets::Surroundings;
use crate::run::PATH;

pub use select::{Choice, Chosen, choose};

/// BOUND: programs of a directory that are listed.
const MOST_PROGRAMS: usize = 2048;
/// BOUND: versions of one program that are looked at, and entries of a directory that is granted in
/// parts.
const MOST_ENTRIES: usize = 256;
/// BOUND: parts of one directory; each is a mount.
const MOST_PARTS: usize = 8;

/// A toolchain of this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Toolchain {
    /// Who put it there.
    pub manager: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Why this version of those that are there.
    pub why: String,
    /// The programs that are wanted of it.
    #[serde(skip)]
    pub programs: Vec<String>,
    pub mounts: Vec<Shown>,
    /// Directories for `PATH`, inside.
    pub path: Vec<PathBuf>,
    /// Variables without which it does not work there.
    pub set: Vec<(&'static str, String)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A path of the host, to be read only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shown {
    pub host: PathBuf,
    pub inside: PathBuf,
}

/// How far a policy lets a sandbox have a toolchain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Granted {
    Yes,
    /// It is visible, and `PATH` does not lead to it.
    NotOnPath,
    /// A part of it is visible.
    Partly,
    No,
}

/// A version that somebody wants of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pinned {
    pub program: String,
    pub version: String,
    /// Where that stands.
    pub place: String,
}

/// All toolchains of the user, each manager's in the version that is pinned, else in the one that
/// the user has chosen, else in the newest.
pub fn find(around: &Surroundings, pins: &[Pinned]) -> Vec<Toolchain> {
    let may_show = |path: &Path| may_show_at(path, Path::new(INSIDE));
    find_on(&Host { around, may_show }, pins)
}

fn find_on(host: &Host<'_>, pins: &[Pinned]) -> Vec<Toolchain> {
    let mut found = whole::all(host, pins);
    found.extend(versions::all(host, pins));
    found.retain(|toolchain| !toolchain.mounts.is_empty());
    found
}

impl Toolchain {
    /// What a policy makes of it.
    pub fn granted(&self, policy: &Effective) -> Granted {
        let shown = |own: &&Shown| {
            let mut mounts = policy.files.mounts.iter();
            mounts.any(|mount| {
                let rest = own.host.strip_prefix(&mount.host);
                rest.is_ok_and(|rest| mount.inside.join(rest) == own.inside)
            })
        };
        let count = self.mounts.iter().filter(shown).count();
        match count {
            0 => Granted::No,
            count if count < self.mounts.len() => Granted::Partly,
            _ if self.path.iter().all(|own| is_on_path(policy, own)) => Granted::Yes,
            _ => Granted::NotOnPath,
        }
    }

    /// For a person: `nvm 22.3.0`.
    pub fn title(&self) -> String {
        match &self.version {
            Some(version) => format!("{} {version}", self.manager),
            None => self.manager.to_owned(),
        }
    }

    fn brings(&self, program: &str) -> bool {
        self.programs.iter().any(|own| own == program)
    }
}

/// Whether a policy puts this directory into `PATH`, for setups as well.
pub(crate) fn is_on_path(policy: &Effective, directory: &Path) -> bool {
    let mut path = policy.environment.path.iter();
    path.any(|line| Path::new(&line.text) == directory)
        // A whole `PATH` that the user set counts more.
        && policy.env.set.get("PATH").is_none_or(|set| {
            let set = set.value.as_deref().unwrap_or_default();
            std::env::split_paths(set).any(|entry| entry == directory)
        })
}

/// Whether every sandbox without an image has this program from the system.
pub fn is_in_the_system(program: &str) -> bool {
    std::env::split_paths(PATH).any(|directory| is_program(&directory.join(program)))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Where toolchains are looked for.
struct Host<'a> {
    around: &'a Surroundings,
    /// Whether a sandbox has nothing of its own at a path.
    may_show: fn(&Path) -> bool,
}

impl Host<'_> {
    /// The first of these directories that is there: of a variable, else below the home. The text
    /// says which it was.
    fn base(&self, variables: &[&str], homes: &[&str]) -> Option<(PathBuf, String)> {
        let named = variables.iter().filter_map(|name| {
            let directory = self.around.directory(name)?;
            Some((directory, format!("${name}")))
        });
        let usual = homes
            .iter()
            .filter_map(|path| Some((self.around.home(path)?, format!("~/{path}"))));
        named.chain(usual).find(|(path, _)| path.is_dir())
    }

    /// A path to be shown, if it is there and may be.
    fn shown(&self, path: &Path) -> Option<Shown> {
        // A mount has no link in it; inside, the path is the one that scripts know.
        let host = fs::canonicalize(path).ok()?;
        let is_plain = |path: &Path| {
            let text = path.to_str();
            text.is_some_and(|text| !text.chars().any(ringfence_model::text::misleads))
        };
        let may = is_plain(&host)
            && is_plain(path)
            && (self.may_show)(path)
            && !self.around.is_in_the_folder(path)
            // It is there already.
            && !is_of_the_system(&host);
        may.then(|| Shown {
            host,
            inside: path.to_owned(),
        })
    }

    /// A directory to be shown, in parts where one of these names in it may hold a credential.
    fn without(&self, directory: &Path, never: &[&str]) -> Vec<Shown> {
        let holds = |name: &&str| directory.join(name).symlink_metadata().is_ok();
        if !never.iter().any(holds) {
            return self.shown(directory).into_iter().collect();
        }
        let Ok(entries) = fs::read_dir(directory) else {
            return Vec::new();
        };
        let first = |name: &str| name.split('/').next().unwrap_or(name).to_owned();
        let mut parts: Vec<PathBuf> = entries
            .take(MOST_ENTRIES)
            .filter_map(|entry| entry.ok())
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter(|entry| {
                let name = entry.file_name();
                !never
                    .iter()
                    .any(|never| name.to_str() == Some(&first(never)))
            })
            .map(|entry| entry.path())
            .collect();
        parts.sort();
        if parts.len() <= MOST_PARTS {
            parts.iter().filter_map(|part| self.shown(part)).collect()
        } else {
            Vec::new()
        }
    }
}

/// Names of the programs in a directory.
fn programs(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let mut names: Vec<String> = entries
        .take(MOST_PROGRAMS)
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| is_program(&directory.join(name)))
        .collect();
    names.sort();
    names
}

/// Whether a path is in what every sandbox without an image sees.
pub(crate) fn is_of_the_system(path: &Path) -> bool {
    let system = [
        "/usr",
        "/bin",
        "/sbin",
        "/lib",
        "/lib64",
        "/nix/store",
        "/gnu/store",
    ];
    system.iter().any(|own| path.starts_with(own))
}
