//! What the host looks like, as far as the plan of a sandbox depends on it.
//!
//! The plan itself is a pure function; everything that must be looked up is looked up here.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::accounts::Accounts;

/// System directories that the sandbox sees, where the host has them. An allowlist: what is not
/// named here does not exist inside.
const SYSTEM: &[&str] = &[
    "usr",
    "bin",
    "sbin",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "nix/store",
    "gnu/store",
];

/// What programs need of `/etc`. No key, no host name, no machine id, no user list.
const ETC: &[&str] = &[
    "alternatives",
    // Public keys; the rest of apt's settings may hold passwords.
    "apt/keyrings",
    "apt/trusted.gpg.d",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "fonts",
    "gai.conf",
    "host.conf",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "lsb-release",
    "magic",
    "magic.mime",
    "mime.types",
    "os-release",
    "perl",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "protocols",
    "python3",
    "redhat-release",
    "rpc",
    "services",
    "shells",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "vim",
];

/// Where systems keep the certificates that they trust in one file.
const BUNDLES: &[&str] = &[
    "etc/ssl/certs/ca-certificates.crt",
    "etc/ssl/cert.pem",
    "etc/pki/tls/certs/ca-bundle.crt",
    "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
];

/// What stays readable in `/proc` beside the processes: what build tools and language runtimes
/// read. Everything else is masked.
const PROC: &[&str] = &[
    "cpuinfo",
    "filesystems",
    "loadavg",
    "meminfo",
    "mounts",
    "net",
    "self",
    "stat",
    "sys",
    "sysvipc",
    "thread-self",
    "uptime",
    "version",
    "vmstat",
];

/// BOUND: `ld.so.cache` of a large installation has some hundred kilobytes.
const ETC_FILE_BYTES: u64 = 2 << 20;

/// A name below a directory, and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    Directory,
    Symlink(Vec<u8>),
    File(Vec<u8>),
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// Relative to `/`: a directory to be mounted, or a link to be made again.
    pub system: Vec<(String, Item)>,
    /// Relative to `/etc`.
    pub etc: Vec<(String, Item)>,
    /// Entries of `/proc` to be masked, and whether each is a directory.
    pub proc_masks: Vec<(String, MaskType)>,
    /// Files that hold all certificates which are trusted, relative to `/`.
    pub bundles: Vec<String>,
    pub accounts: Accounts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskType {
    File,
    Directory,
}

impl HostFacts {
    /// The certificates that the host trusts, as one text.
    pub fn trusted(&self) -> io::Result<Vec<u8>> {
        match self.bundles.first() {
            Some(path) => fs::read(Path::new("/").join(path)),
            None => Ok(Vec::new()),
        }
    }

    /// Looks at this host, or gives what was seen a moment ago: a burst of sandboxes is planned on
    /// one look.
    pub fn gather() -> io::Result<Arc<Self>> {
        // BOUND: an update of the system is noticed by the next sandbox but those of this moment.
        const FRESH: Duration = Duration::from_secs(1);
        static SEEN: Mutex<Option<(Instant, Arc<HostFacts>)>> = Mutex::new(None);
        let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
        match &*seen {
            Some((at, facts)) if at.elapsed() < FRESH => Ok(Arc::clone(facts)),
            _ => {
                let facts = Arc::new(Self::gather_below(Path::new("/"))?);
                *seen = Some((Instant::now(), Arc::clone(&facts)));
                Ok(facts)
            }
        }
    }

    /// What a sandbox on the layers of an image, topmost first, has of the host and of those: no
    /// system, no `/etc`, and certificates wherever programs look for them.
    pub fn gather_for_image<'a>(lower: impl Iterator<Item = &'a Path> + Clone) -> io::Result<Self> {
        Ok(Self {
            proc_masks: Self::gather()?.proc_masks.clone(),
            bundles: BUNDLES.iter().map(|path| (*path).to_owned()).collect(),
            accounts: Accounts::of_image(lower),
            ..Self::default()
        })
    }

    fn gather_below(root: &Path) -> io::Result<Self> {
        let mut facts = Self::default();
        for name in SYSTEM {
            match describe(&root.join(name), Content::Skip)? {
                Some(item @ (Item::Directory | Item::Symlink(_))) => {
                    facts.system.push(((*name).to_owned(), item));
                }
                Some(Item::File(_)) | None => {}
            }
        }
        let mut etc: Vec<String> = ETC.iter().map(|name| (*name).to_owned()).collect();
        for entry in fs::read_dir(root.join("etc"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            // Versioned run-time configuration: `java-17-openjdk`, `python3.11`.
            if name.starts_with("java-") || name.starts_with("python3.") {
                etc.push(name.into_owned());
            }
        }
        etc.sort();
        for name in etc {
            if let Some(item) = describe(&root.join("etc").join(&name), Content::Read)? {
                if let Item::Symlink(target) = &item
                    && !stays_visible(target)
                {
                    continue;
                }
                facts.etc.push((name, item));
            }
        }
        for entry in fs::read_dir(root.join("proc"))? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.bytes().all(|b| b.is_ascii_digit()) || PROC.contains(&name) {
                continue;
            }
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            if kind.is_symlink() {
                continue;
            }
            // What only the machine's root may read, nobody inside can: no id inside is his.
            let closed = |m: fs::Metadata| m.uid() == 0 && m.permissions().mode() & 0o077 == 0;
            if entry.metadata().is_ok_and(closed) {
                continue;
            }
            let mask = if kind.is_dir() {
                MaskType::Directory
            } else {
                MaskType::File
            };
            facts.proc_masks.push((name.to_owned(), mask));
        }
        facts.proc_masks.sort_by(|a, b| a.0.cmp(&b.0));
        let is_file =
            |path: &&&str| fs::symlink_metadata(root.join(path)).is_ok_and(|found| found.is_file());
        facts.bundles = BUNDLES
            .iter()
            .filter(is_file)
            .map(|path| (*path).to_owned())
            .collect();
        Ok(facts)
    }
}

/// Whether a link in `/etc` leads to something that is there inside.
fn stays_visible(target: &[u8]) -> bool {
    target.starts_with(b"/usr/") || target.starts_with(b"../usr/") || !target.contains(&b'/')
}

#[derive(Clone, Copy, PartialEq)]
enum Content {
    Read,
    Skip,
}

/// What a path is; `None` where it is absent, unreadable or something odd.
fn describe(path: &Path, content: Content) -> io::Result<Option<Item>> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(_) => return Ok(None),
    };
    if metadata.is_symlink() {
        let target = fs::read_link(path)?.into_os_string().into_vec();
        return Ok(Some(Item::Symlink(target)));
    }
    if metadata.is_dir() {
        // A directory that the caller may not enter is of no use inside.
        return Ok(fs::read_dir(path).is_ok().then_some(Item::Directory));
    }
    if !metadata.is_file() || metadata.len() > ETC_FILE_BYTES {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    if content == Content::Read {
        // One more than it has, so that its end is seen without growing.
        bytes.reserve_exact(metadata.len() as usize + 1);
        let file = fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(path);
        let Ok(file) = file else { return Ok(None) };
        file.take(ETC_FILE_BYTES).read_to_end(&mut bytes)?;
    }
    Ok(Some(Item::File(bytes)))
}

/// The last component of a path as bytes; used by messages.
pub fn file_name(path: &Path) -> &[u8] {
    path.file_name().unwrap_or(OsStr::new("")).as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_the_allowlist_is_seen() {
        let root = tempfile::tempdir().unwrap();
        for dir in [
            "usr/bin",
            "etc/ssl/certs",
            "etc/ssl/private",
            "home/u",
            "root",
            "opt",
            "var/run",
            "proc/acpi",
            "proc/1",
        ] {
            fs::create_dir_all(root.path().join(dir)).unwrap();
        }
        for file in [
            "etc/shadow",
            "etc/machine-id",
            "etc/hostname",
            "etc/environment",
            "etc/services",
            "proc/kcore",
            "proc/meminfo",
        ] {
            fs::write(root.path().join(file), "x").unwrap();
        }
        std::os::unix::fs::symlink("usr/bin", root.path().join("bin")).unwrap();
        std::os::unix::fs::symlink("/run/secrets/x", root.path().join("etc/localtime")).unwrap();
        let facts = HostFacts::gather_below(root.path()).unwrap();
        let system: Vec<&str> = facts.system.iter().map(|(n, _)| n.as_str()).collect();
        let etc: Vec<&str> = facts.etc.iter().map(|(n, _)| n.as_str()).collect();
        let masks: Vec<&str> = facts.proc_masks.iter().map(|(n, _)| n.as_str()).collect();
        assert_eq!(system, ["usr", "bin"]);
        assert_eq!(etc, ["services", "ssl/certs"]);
        assert_eq!(masks, ["acpi", "kcore"]);
    }
}
