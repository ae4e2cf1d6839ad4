//! All that goes into a setup, and the key that it comes to.
//!
//! INVARIANT: two setups share a layer only if every line here is equal. A setup sees the whole
//! folder and not only the files that decide, so whose folder it is counts as well: nobody can make
//! a layer for somebody else's folder by having the same lock file.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use ringfence_jail::identity::Identity;
use ringfence_model::environment::CacheKind;
use ringfence_model::policy::{Effective, Mount};
use ringfence_model::{ByteText, hex};
use rustix::fs::{AtFlags, StatxFlags};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::EnvironmentError;
use crate::changes::handle::{self, Access};
use crate::run::PATH;

/// What a change of how layers are made counts up.
const FORMAT: u32 = 1;
/// BOUND: a lock file of a large repository has some megabytes.
const KEY_FILE_BYTES: u64 = 256 << 20;
/// Programs whose being another one makes a setup another one, where there is no image.
const TOOLCHAIN: [&str; 14] = [
    "sh", "bash", "python3", "pip3", "uv", "node", "npm", "cargo", "rustc", "go", "gcc", "clang",
    "ruby", "java",
];

/// The inputs of a setup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inputs {
    format: u32,
    architecture: String,
    /// Whose folder it is.
    pub scope: String,
    /// The digest of the image. `None`: the host's own toolchain.
    pub image: Option<String>,
    pub setup: String,
    /// Root of its own image.
    pub root: bool,
    /// The files that decide, and what they hold.
    pub key: Vec<KeyFile>,
    pub caches: Vec<CacheKind>,
    /// Where the folder is inside.
    inside: ByteText,
    identity: String,
    /// What the setup can see and reach.
    hide: Vec<String>,
    mounts: Vec<String>,
    network: Vec<String>,
    /// Names, and the hash of each value.
    variables: Vec<(String, String)>,
    /// Directories that are put into `PATH`.
    #[serde(default)]
    path: Vec<String>,
    toolchain: Vec<String>,
}

/// A file of the base that decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyFile {
    pub path: String,
    pub sha256: String,
}

/// What is looked at.
#[derive(Debug)]
pub(super) struct Seen<'a> {
    pub policy: &'a Effective,
    pub setup: &'a str,
    pub image: Option<String>,
    pub scope: String,
    pub folder: BorrowedFd<'a>,
    pub inside: &'a Path,
    pub identity: &'a Identity,
}

impl Inputs {
    pub(super) fn of(seen: Seen<'_>) -> Result<Self, EnvironmentError> {
        let environment = &seen.policy.environment;
        let files = &seen.policy.files;
        let mut key = Vec::new();
        for path in environment.key_paths() {
            let sha256 = hash_file(seen.folder, path)?;
            let path = path.to_owned();
            key.push(KeyFile { path, sha256 });
        }
        let variables = environment.env.iter().chain(&environment.setup_env);
        let hashed = variables.map(|(name, variable)| {
            let value = variable.value.as_deref().unwrap_or_default();
            (name.clone(), hex(&Sha256::digest(value)))
        });
        let mount = |mount: &Mount| {
            let (host, inside) = (mount.host.display(), mount.inside.display());
            format!("{host} at {inside}")
        };
        let rules = &environment.network.rules.0;
        Ok(Self {
            format: FORMAT,
            architecture: std::env::consts::ARCH.to_owned(),
            scope: seen.scope,
            toolchain: match seen.image {
                Some(_) => Vec::new(),
                None => toolchain(seen.policy),
            },
            image: seen.image,
            setup: seen.setup.to_owned(),
            root: environment.root.is_some(),
            key,
            caches: environment.caches().collect(),
            inside: ByteText::from(seen.inside.as_os_str().as_bytes()),
            identity: format!("{:?}", seen.identity),
            hide: files.hide.iter().map(|line| line.text.clone()).collect(),
            mounts: files.mounts.iter().map(mount).collect(),
            network: rules.iter().map(ToString::to_string).collect(),
            variables: hashed.collect(),
            path: environment
                .path
                .iter()
                .map(|line| line.text.clone())
                .collect(),
        })
    }

    /// One hash over all of it.
    pub fn key(&self) -> String {
        let text = serde_json::to_vec(self).expect("plain data is JSON");
        hex(&Sha256::digest(text))
    }

    /// Whose caches a setup may fill, and a sandbox read.
    pub(super) fn cache_scope(scope: &str, image: Option<&str>) -> String {
        let text = format!("{FORMAT}\0{scope}\0{}", image.unwrap_or_default());
        hex(&Sha256::digest(text))[..32].to_owned()
    }
}

/// Whose folder it is: its path, and which directory that is. Another one that is put there later
/// is another folder.
pub fn scope_of(folder: &Path, opened: BorrowedFd<'_>) -> Result<String, EnvironmentError> {
    let want = StatxFlags::INO | StatxFlags::BTIME;
    let stat = rustix::fs::statx(opened, "", AtFlags::EMPTY_PATH, want).map_err(|errno| {
        EnvironmentError::Folder {
            path: folder.to_owned(),
            source: errno.into(),
        }
    })?;
    let born = stat.stx_btime;
    Ok(format!(
        "folder {} {} {}.{}",
        folder.display(),
        stat.stx_ino,
        born.tv_sec,
        born.tv_nsec
    ))
}

/// HOSTILE: the folder may be anybody's: no link is followed, and only a regular file is read.
fn hash_file(folder: BorrowedFd<'_>, path: &str) -> Result<String, EnvironmentError> {
    let failed = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::NotFound => EnvironmentError::NoKeyFile(path.to_owned()),
        _ => EnvironmentError::ReadKeyFile {
            path: path.to_owned(),
            source,
        },
    };
    let (parent, name) =
        handle::hold_parent(folder, path.as_bytes(), Access::AsItIs).map_err(failed)?;
    let opened = handle::open_file(parent.as_fd(), name, Access::AsItIs).map_err(failed)?;
    if opened.meta.size > KEY_FILE_BYTES {
        return Err(failed(std::io::ErrorKind::FileTooLarge.into()));
    }
    let mut content = opened.file.take(KEY_FILE_BYTES);
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match content.read(&mut buffer).map_err(failed)? {
            0 => return Ok(hex(&hash.finalize())),
            read => hash.update(&buffer[..read]),
        }
    }
}

/// The programs of the host that a setup may use: each by what it is on the disk.
fn toolchain(policy: &Effective) -> Vec<String> {
    let granted = policy.environment.path.iter().filter_map(|line| {
        let mut mounts = policy.files.mounts.iter();
        mounts.find_map(|mount| {
            let rest = Path::new(&line.text).strip_prefix(&mount.inside).ok()?;
            Some(mount.host.join(rest))
        })
    });
    let directories: Vec<PathBuf> = granted.chain(PATH.split(':').map(PathBuf::from)).collect();
    let mut found = Vec::new();
    for name in TOOLCHAIN {
        let places = directories.iter().map(|directory| directory.join(name));
        let Some(path) = places.into_iter().find(|path| path.exists()) else {
            continue;
        };
        let real: PathBuf = std::fs::canonicalize(&path).unwrap_or(path);
        if let Ok(metadata) = File::open(&real).and_then(|file| file.metadata()) {
            let (size, time) = (metadata.size(), metadata.mtime());
            found.push(format!("{name} {} {size} {time}", real.display()));
        }
    }
    found
}
