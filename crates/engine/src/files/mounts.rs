//! Paths of the host that a policy shows inside: which may be, and which never are.
//!
//! Each is opened once without following any link, looked at by that descriptor, and mounted only
//! if it is still the same file then.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Component, Path, PathBuf};

use ringfence_jail::plan::{Access, Area, HostMount, may_show_at};
use ringfence_model::journal::{FilesHeld, MountHeld};
use ringfence_model::policy::Mount;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::FilesError;
use crate::home::Home;

/// BOUND: each takes a slot of the launcher.
const MOST: usize = 32;
/// BOUND: entries of a directory that is to be written, looked at in a second or two.
const MOST_ENTRIES: u64 = 1_000_000;

/// File systems that are the kernel's own face. Their numbers are in `statfs(2)`.
const KERNEL_FILE_SYSTEMS: &[u64] = &[
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x1cd1,      // devpts
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x7363_6673, // securityfs
    0xcafe_4a11, // bpf
    0x6e73_6673, // namespaces
    0x1980_0202, // message queues
    0xde5e_81e4, // efivarfs
];

/// Looks at all mounts of a policy, and says what to mount.
///
/// `own` are folders that must not be seen but through the sandbox's own view, and `workspace` is
/// where that is inside.
pub(crate) fn check_mounts(
    mounts: &[Mount],
    home: &Home,
    own: &[&Path],
    workspace: &Path,
) -> Result<Vec<HostMount>, FilesError> {
    if mounts.len() > MOST {
        return Err(FilesError::TooManyMounts {
            count: mounts.len(),
            most: MOST,
        });
    }
    let mut checked: Vec<HostMount> = Vec::new();
    for mount in mounts {
        let one = check(mount, home, own, workspace)?;
        let meets = |other: &&HostMount| {
            one.inside.starts_with(&other.inside) || other.inside.starts_with(&one.inside)
        };
        if let Some(other) = checked.iter().find(meets) {
            let (first, second) = (other.inside.clone(), one.inside.clone());
            return Err(FilesError::MountsMeet(first, second));
        }
        checked.push(one);
    }
    Ok(checked)
}

fn check(
    mount: &Mount,
    home: &Home,
    own: &[&Path],
    workspace: &Path,
) -> Result<HostMount, FilesError> {
    let (host, inside) = check_places(mount, home, own, workspace)?;
    let forbidden = |what: &str| forbidden(&host, what);
    let fd = open(&host)?;
    let failed = |errno: Errno| FilesError::OpenMount {
        path: host.clone(),
        source: errno.into(),
    };
    let stat = rustix::fs::fstat(&fd).map_err(failed)?;
    let system = rustix::fs::fstatfs(&fd).map_err(failed)?;
    if KERNEL_FILE_SYSTEMS.contains(&(system.f_type as u64)) {
        return Err(forbidden("a face of the kernel"));
    }
    let is_directory = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => true,
        FileType::RegularFile => false,
        FileType::Socket => return Err(forbidden("a socket")),
        FileType::Fifo => return Err(forbidden("a pipe")),
        _ => return Err(forbidden("a device")),
    };
    if let Some(below) = mounted_below(&host).map_err(|source| FilesError::OpenMount {
        path: host.clone(),
        source,
    })? {
        return Err(FilesError::MountInMount { path: host, below });
    }
    if is_directory && mount.writable {
        no_specials(&host)?;
    }
    Ok(HostMount {
        identity: (stat.st_dev, stat.st_ino),
        owner: (stat.st_uid, stat.st_gid),
        host,
        is_directory,
        inside,
        access: if mount.writable {
            Access::Write
        } else {
            Access::ReadOnly
        },
    })
}

/// The places of a mount, outside and inside, if it can be there at all. Nothing is opened.
pub(crate) fn check_places(
    mount: &Mount,
    home: &Home,
    own: &[&Path],
    workspace: &Path,
) -> Result<(PathBuf, PathBuf), FilesError> {
    let host = plain(&mount.host).ok_or_else(|| FilesError::OddMount(mount.host.clone()))?;
    let inside = plain(&mount.inside)
        .filter(|inside| may_show_at(inside, workspace))
        .ok_or_else(|| FilesError::OccupiedPlace(mount.inside.clone()))?;
    match forbidden_place(&host, home, own) {
        Some(what) => Err(forbidden(&host, what)),
        None => Ok((host, inside)),
    }
}

fn forbidden(host: &Path, what: &str) -> FilesError {
    FilesError::ForbiddenMount {
        path: host.to_owned(),
        what: what.to_owned(),
    }
}

/// A path from the root with plain names only.
fn plain(path: &Path) -> Option<PathBuf> {
    let mut components = path.components();
    if components.next() != Some(Component::RootDir) || path.as_os_str().as_bytes().contains(&0) {
        return None;
    }
    let names = components.clone();
    names
        .into_iter()
        .all(|part| matches!(part, Component::Normal(_)))
        .then(|| Path::new("/").join(components.as_path()))
}

/// What is never shown, by its place.
fn forbidden_place(host: &Path, home: &Home, own: &[&Path]) -> Option<&'static str> {
    let meets = |other: &Path| host.starts_with(other) || other.starts_with(host);
    if host == Path::new("/") {
        return Some("the whole host");
    }
    if ["/proc", "/sys", "/dev"]
        .iter()
        .any(|kernel| meets(Path::new(kernel)))
    {
        return Some("a face of the kernel");
    }
    if meets(home.root()) {
        return Some("the place of Ringfence itself, or holds it");
    }
    if own.iter().any(|folder| meets(folder)) {
        return Some("the folder that is worked on, or overlaps with it");
    }
    if host.parent() == Some(Path::new("/home"))
        || homes().iter().any(|home| home.starts_with(host))
    {
        return Some("a whole home directory, or holds one");
    }
    None
}

/// Home directories, of everybody: root can mount what belongs to others.
fn homes() -> Vec<PathBuf> {
    let table = fs::read("/etc/passwd").unwrap_or_default();
    let mut homes: Vec<PathBuf> = table
        .split(|&byte| byte == b'\n')
        .filter_map(home_of_person)
        .chain(std::env::home_dir())
        .chain(["/home", "/root"].map(PathBuf::from))
        .filter(|home| home.is_absolute())
        .collect();
    let real: Vec<PathBuf> = homes
        .iter()
        .filter_map(|home| fs::canonicalize(home).ok())
        .collect();
    homes.extend(real);
    homes
}

/// The home in a line of passwd(5), of one who is no service.
fn home_of_person(line: &[u8]) -> Option<PathBuf> {
    /// Where the ids of people begin.
    const FIRST: u32 = 1000;
    let fields: Vec<&[u8]> = line.split(|&byte| byte == b':').collect();
    let id: u32 = std::str::from_utf8(fields.get(2)?).ok()?.parse().ok()?;
    let home = fields.get(5).filter(|_| id >= FIRST)?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(home)))
}

fn open(host: &Path) -> Result<OwnedFd, FilesError> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(CWD, host, flags, Mode::empty(), resolve) {
        Ok(fd) => Ok(fd),
        Err(Errno::LOOP) => Err(FilesError::LinkInMount(host.to_owned())),
        Err(errno) => Err(FilesError::OpenMount {
            path: host.to_owned(),
            source: errno.into(),
        }),
    }
}

/// A mount point below a path: it would not come along, and what it covers would be seen.
fn mounted_below(host: &Path) -> io::Result<Option<PathBuf>> {
    let table = fs::read("/proc/self/mountinfo")?;
    let points = table
        .split(|&byte| byte == b'\n')
        .filter_map(|line| line.split(|&byte| byte == b' ').nth(4))
        .map(|point| PathBuf::from(std::ffi::OsString::from_vec(unescaped(point))));
    Ok(points
        .into_iter()
        .find(|point| point != host && point.starts_with(host)))
}

/// Mount tables write blanks and backslashes as three octal digits.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let octal = after
            .get(..3)
            .filter(|_| first == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(byte) => {
                out.push(byte);
                rest = &after[3..];
            }
            None => {
                out.push(first);
                rest = after;
            }
        }
    }
    out
}

/// A socket or pipe in what is written leads to whoever listens on the host.
fn no_specials(host: &Path) -> Result<(), FilesError> {
    let mut open = vec![host.to_owned()];
    let mut seen = 0;
    while let Some(directory) = open.pop() {
        let failed = |source| FilesError::OpenMount {
            path: directory.clone(),
            source,
        };
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            // What the caller cannot list, the agent cannot either.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => continue,
            Err(error) => return Err(failed(error)),
        };
        for entry in entries {
            let entry = entry.map_err(failed)?;
            seen += 1;
            if seen > MOST_ENTRIES {
                return Err(FilesError::LargeMount {
                    path: host.to_owned(),
                    most: MOST_ENTRIES,
                });
            }
            let kind = entry.file_type().map_err(failed)?;
            if kind.is_dir() {
                open.push(entry.path());
            } else if kind.is_socket() || kind.is_fifo() || is_device(kind) {
                return Err(FilesError::SpecialInMount {
                    path: host.to_owned(),
                    found: entry.path(),
                });
            }
        }
    }
    Ok(())
}

fn is_device(kind: fs::FileType) -> bool {
    kind.is_char_device() || kind.is_block_device()
}

/// What is held of the files, for the journal and the bundle.
pub(crate) fn held(areas: &[Area], mounts: &[HostMount]) -> FilesHeld {
    let paths = |access: Access| {
        areas
            .iter()
            .filter(|area| area.access == access)
            .map(|area| match area.path.as_os_str().as_bytes() {
                b"" => b".".as_slice().into(),
                path => path.into(),
            })
            .collect()
    };
    FilesHeld {
        writable: paths(Access::Write),
        read_only: paths(Access::ReadOnly),
        mounts: mounts
            .iter()
            .map(|mount| MountHeld {
                host: mount.host.as_os_str().as_bytes().into(),
                inside: mount.inside.as_os_str().as_bytes().into(),
                writable: mount.access == Access::Write,
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_have_homes_and_services_do_not() {
        for (line, expected) in [
            (
                "ann:x:1000:1000:Ann,,,:/srv/people/ann:/bin/sh",
                Some("/srv/people/ann"),
            ),
            ("far:x:70000:70000::/h/far:/bin/sh", Some("/h/far")),
            ("www:x:33:33:www:/var/www:/usr/sbin/nologin", None),
            ("odd:x:one:1::/h/odd:/bin/sh", None),
            ("short:x:1001", None),
            ("", None),
        ] {
            let home = home_of_person(line.as_bytes());
            assert_eq!(home, expected.map(PathBuf::from), "{line}");
        }
    }
}
