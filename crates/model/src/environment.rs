//! What a sandbox stands on besides the folder: an image, what a setup made on top of it, caches,
//! and areas in memory.
//!
//! A setup runs once, in a sandbox of its own, and what it made is kept by the hash of all that went
//! into it. A repository may name everything here but what opens something: the network of a setup
//! and its being root are the user's to give.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::policy::network::Origin;
use crate::policy::{Line, Network, SecretRule, Variable};

/// `image = "host"`: the host's own toolchain, whatever a repository names.
pub const HOST_IMAGE: &str = "host";
/// The home of the agent inside.
pub const HOME: &str = "/home/agent";

/// The environment of one sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Line>,
    /// Not in what is kept: a policy that is read back names no image in the name of the user.
    #[serde(skip)]
    pub image_by: NamedBy,
    /// A line or more of shell. Empty: none, whatever a repository names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup: Option<Line>,
    /// Files of the base whose content decides whether a setup is still good.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key: Vec<Line>,
    /// The setup is root of its own image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<Origin>,
    /// What the setup may reach.
    #[serde(default, skip_serializing_if = "is_closed")]
    pub network: Network,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretRule>,
    /// Variables of the setup alone: those of `[env.set]`, and what clients of its presets need.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub setup_env: BTreeMap<String, Variable>,
    /// Variables of setup and agent. Whatever else sets one of them counts more.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Variable>,
    /// Directories inside for `PATH`; see [`Environment::path`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<Line>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub caches: BTreeMap<CacheKind, Switch>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tmpfs: Vec<Scratch>,
}

/// Who named an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NamedBy {
    /// HOSTILE: a repository, or the row of an evaluation.
    #[default]
    Others,
    User,
}

/// Something that is on or off, and who says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switch {
    pub on: bool,
    pub from: Origin,
}

/// An area in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scratch {
    /// Absolute, and none of the sandbox's own places.
    pub inside: PathBuf,
    pub bytes: u64,
    pub from: Origin,
}

fn is_closed(network: &Network) -> bool {
    *network == Network::default()
}

impl Environment {
    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Another image than before.
    pub fn set_image(&mut self, line: Line, by: NamedBy) {
        self.image = Some(line);
        self.image_by = by;
    }

    /// The image, where there is one.
    pub fn image(&self) -> Option<&str> {
        let image = self.image.as_ref().map(|line| line.text.as_str());
        image.filter(|image| *image != HOST_IMAGE)
    }

    /// What the setup runs, where there is one.
    pub fn setup(&self) -> Option<&str> {
        let setup = self.setup.as_ref().map(|line| line.text.as_str());
        setup.filter(|setup| !setup.trim().is_empty())
    }

    /// The caches that are on.
    pub fn caches(&self) -> impl Iterator<Item = CacheKind> + '_ {
        let on = self.caches.iter().filter(|(_, switch)| switch.on);
        on.map(|(kind, _)| *kind)
    }

    /// `PATH` inside, over the one that there is otherwise. Directories of the folder and of the home
    /// come first: what was installed there is meant. Others come first as well, but after those of
    /// an image, whose own programs are meant.
    pub fn path(&self, standing: &str, inside: &Path) -> String {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for line in &self.path {
            let directory = place_inside(&line.text, inside);
            if directory.is_absolute_name && self.image().is_some() {
                after.push(directory.text)
            } else {
                before.push(directory.text)
            }
        }
        before.push(standing.to_owned());
        before.extend(after);
        before.join(":")
    }

    /// The setup's own policy has this name for the files of the base that decide.
    pub fn key_paths(&self) -> impl Iterator<Item = &str> {
        self.key.iter().map(|line| line.text.as_str())
    }
}

/// A directory of `path`.
struct PlaceInside {
    text: String,
    /// It was written from `/`.
    is_absolute_name: bool,
}

/// `~/x` is below the home inside, `x` below the folder.
fn place_inside(text: &str, inside: &Path) -> PlaceInside {
    let is_absolute_name = text.starts_with('/');
    let text = match text.strip_prefix("~/") {
        Some(rest) => format!("{HOME}/{rest}"),
        None => inside.join(text).to_string_lossy().into_owned(),
    };
    PlaceInside {
        text,
        is_absolute_name,
    }
}

/// Whose cache a directory of the home is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheKind {
    Pip,
    Npm,
    Pnpm,
    Yarn,
    Bun,
    Cargo,
    CargoTarget,
    Go,
    Uv,
    Ccache,
    Sccache,
}

/// How far what is in a cache can be checked without its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// Archives whose name and checksum the client's own index has beside them.
    CargoRegistry,
    /// Files that are named after the hash of their content.
    Cacache,
    /// Nothing but its client can tell: what was made by a setup is believed as the setup is.
    Opaque,
}

/// One row of the table of caches.
#[derive(Debug)]
pub struct Cache {
    pub kind: CacheKind,
    /// As it is written in a policy.
    pub name: &'static str,
    /// Below the home.
    pub directory: &'static str,
    /// Variables that lead its client there; `{}` is the directory.
    pub variables: &'static [(&'static str, &'static str)],
    pub checked: Checked,
}

/// All caches.
pub const CACHES: [Cache; 11] = [
    Cache {
        kind: CacheKind::Pip,
        name: "pip",
        directory: ".cache/pip",
        variables: &[("PIP_CACHE_DIR", "{}")],
        checked: Checked::Opaque,
    },
    Cache {
        kind: CacheKind::Npm,
        name: "npm",
        directory: ".cache/npm",
        variables: &[("npm_config_cache", "{}")],
        checked: Checked::Cacache,
    },
    Cache {
        kind: CacheKind::Pnpm,
        name: "pnpm",
        directory: ".cache/pnpm",
        // Its store would be in the folder where links do not reach the home. The second name is
        // that of version 11.
        variables: &[
            ("npm_config_store_dir", "{}/store"),
            ("pnpm_config_store_dir", "{}/store"),
        ],
        checked: Checked::Opaque,
    },
    Cache {
        kind: CacheKind::Yarn,
        name: "yarn",
        // Where version 1 has it anyway. Later ones must keep `YARN_CACHE_FOLDER` free: it would
        // take the place of a cache that is part of the repository.
        directory: ".cache/yarn",
        variables: &[("YARN_GLOBAL_FOLDER", "{}/berry")],
        checked: Checked::Opaque,
    },
    Cache {
        kind: CacheKind::Bun,
        name: "bun",
        directory: ".cache/bun",
        variables: &[("BUN_INSTALL_CACHE_DIR", "{}")],
        checked: Checked::Opaque,
    },
    Cache {
        kind: CacheKind::Cargo,
        name: "cargo",
        directory: ".cargo/registry",
        variables: &[],
        checked: Checked::CargoRegistry,
    },
    Cache {
        kind: CacheKind::CargoTarget,
        name: "cargo-target",
        directory: ".cache/cargo-target",
        variables: &[("CARGO_TARGET_DIR", "{}")],
        checked: Checked::Opaque,
    },
    Cache {
        kind: CacheKind::Go,
        name: "go",
        directory: ".cache/go",
        variables: &[("GOCACHE", "{}/build"), ("GOMODCACHE", "{}/mod")],
        checked: Checked::Opaque,
    },
    Cache {
        kind: CacheKind::Uv,
        name: "uv",
        directory: ".cache/uv",
        // The cache is a file system of its own: uv would warn that links do not reach across.
        variables: &[("UV_CACHE_DIR", "{}"), ("UV_LINK_MODE", "copy")],
        checked: Checked::Opaque,
    },
    Cache {
        kind: CacheKind::Ccache,
        name: "ccache",
        directory: ".cache/ccache",
        variables: &[("CCACHE_DIR", "{}")],
        checked: Checked::Opaque,
    },
    Cache {
        kind: CacheKind::Sccache,
        name: "sccache",
        directory: ".cache/sccache",
        variables: &[("SCCACHE_DIR", "{}")],
        checked: Checked::Opaque,
    },
];

impl CacheKind {
    /// Its row.
    pub fn row(self) -> &'static Cache {
        let row = CACHES.iter().find(|row| row.kind == self);
        row.expect("a test finds each of them")
    }

    /// The kind of a name.
    pub fn named(name: &str) -> Option<Self> {
        let row = CACHES.iter().find(|row| row.name == name);
        row.map(|row| row.kind)
    }
}

impl Cache {
    /// Where it is inside.
    pub fn inside(&self) -> PathBuf {
        PathBuf::from(HOME).join(self.directory)
    }

    /// The variables that lead its client there.
    pub fn environment(&self) -> impl Iterator<Item = (&'static str, String)> + '_ {
        let inside = format!("{HOME}/{}", self.directory);
        let value = move |text: &str| text.replace("{}", &inside);
        let variables = self.variables.iter();
        variables.map(move |(name, text)| (*name, value(text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_one_row_and_a_place_of_its_own() {
        for row in &CACHES {
            assert_eq!(row.kind.row().name, row.name);
            assert_eq!(CacheKind::named(row.name), Some(row.kind));
            let json = serde_json::to_string(&row.kind).expect("json");
            assert_eq!(json, format!("\"{}\"", row.name));
            let others = CACHES.iter().filter(|other| other.kind != row.kind);
            for other in others {
                assert!(!other.inside().starts_with(row.inside()), "{}", row.name);
            }
        }
        assert_eq!(CacheKind::named("maven"), None);
    }

    #[test]
    fn directories_are_before_path_and_after_that_of_an_image() {
        let line = |text: &str| Line {
            text: text.to_owned(),
            from: Origin::default(),
        };
        let mut own = Environment {
            path: [".venv/bin", "/opt/x/bin", "~/.local/bin"]
                .map(line)
                .to_vec(),
            ..Environment::default()
        };
        let inside = Path::new("/workspace");
        assert_eq!(
            own.path("/bin", inside),
            "/workspace/.venv/bin:/opt/x/bin:/home/agent/.local/bin:/bin"
        );
        own.image = Some(line("a"));
        assert_eq!(
            own.path("/bin", inside),
            "/workspace/.venv/bin:/home/agent/.local/bin:/bin:/opt/x/bin"
        );
        own.image = Some(line(HOST_IMAGE));
        assert!(own.path("/bin", inside).ends_with(":/bin"));
    }

    #[test]
    fn variables_lead_into_the_home() {
        let go: Vec<_> = CacheKind::Go.row().environment().collect();
        assert_eq!(go[0], ("GOCACHE", "/home/agent/.cache/go/build".to_owned()));
        assert_eq!(go[1].1, "/home/agent/.cache/go/mod");
    }
}
