//! Who is known inside by name: `/etc/passwd` and `/etc/group`.
//!
//! HOSTILE: those of an image are read as data, layer by layer and by descriptor, because a path of
//! an image may lead anywhere. What is not a plain file of a sane size is not there.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::identity::AGENT_ID;

/// The text of both files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accounts {
    pub passwd: Vec<u8>,
    pub group: Vec<u8>,
}

/// BOUND: the lists of the largest distributions have some kilobytes.
const FILE_BYTES: u64 = 1 << 20;
/// BOUND: a name of the longest that tools make, with a long list of members.
const LINE_BYTES: usize = 4096;

const ROOT: &str = "root:x:0:0:root:/:/usr/sbin/nologin";
const NOBODY: &str = "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin";

impl Default for Accounts {
    /// Ours alone.
    fn default() -> Self {
        Self::with_agent(&[], &[], (AGENT_ID, AGENT_ID))
    }
}

impl Accounts {
    /// Those of an image, topmost layer first, and the agent.
    pub fn of_image<'a>(lower: impl Iterator<Item = &'a Path> + Clone) -> Self {
        let passwd = read(lower.clone(), "passwd").unwrap_or_default();
        let group = read(lower, "group").unwrap_or_default();
        Self::with_agent(&passwd, &group, (AGENT_ID, AGENT_ID))
    }

    /// The agent comes first: another one with its number is known by name, and not by number.
    pub fn with_agent(passwd: &[u8], group: &[u8], (uid, gid): (u32, u32)) -> Self {
        let agent = format!("agent:x:{uid}:{gid}:agent:/home/agent:/bin/sh");
        Self {
            passwd: join(&[ROOT, &agent, NOBODY], passwd, 7),
            group: join(
                &["root:x:0:", &format!("agent:x:{gid}:"), "nogroup:x:65534:"],
                group,
                4,
            ),
        }
    }
}

/// Our lines, but where theirs has the name; the agent is ours in any case.
fn join(ours: &[&str], theirs: &[u8], fields: usize) -> Vec<u8> {
    let theirs: Vec<&[u8]> = theirs
        .split(|&byte| byte == b'\n')
        .filter(|line| is_entry(line, fields))
        .collect();
    let named = |line: &[u8]| line.split(|&byte| byte == b':').next().map(<[u8]>::to_vec);
    let known: BTreeSet<_> = theirs.iter().filter_map(|line| named(line)).collect();
    let is_kept = |line: &str| {
        let name = named(line.as_bytes()).unwrap_or_default();
        name == b"agent" || !known.contains(&name)
    };
    let mut text = Vec::new();
    let ours = ours.iter().filter(|line| is_kept(line));
    let theirs = theirs
        .iter()
        .filter(|line| !line.starts_with(b"agent:"))
        .copied();
    for line in ours.map(|line| line.as_bytes()).chain(theirs) {
        text.extend_from_slice(line);
        text.push(b'\n');
    }
    text
}

/// Whether a line is what programs take for an entry.
fn is_entry(line: &[u8], fields: usize) -> bool {
    let parts: Vec<&[u8]> = line.split(|&byte| byte == b':').collect();
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.$".contains(byte);
    let is_number = |part: &[u8]| {
        let text = std::str::from_utf8(part).ok();
        text.is_some_and(|text| text.parse::<u32>().is_ok())
    };
    line.len() <= LINE_BYTES
        && parts.len() == fields
        && !parts[0].is_empty()
        && parts[0].iter().all(is_plain)
        && is_number(parts[2])
        && !line.iter().any(u8::is_ascii_control)
}

/// A file of `/etc`, as the layers show it.
fn read<'a>(lower: impl Iterator<Item = &'a Path>, name: &str) -> Option<Vec<u8>> {
    for layer in lower {
        let layer = rustix::fs::open(layer, DIRECTORY, Mode::empty()).ok()?;
        // A layer without `/etc` shows those below; with something else there, it hides them.
        let etc = match open(layer.as_fd(), "etc", DIRECTORY) {
            Err(Errno::NOENT) => continue,
            etc => etc.ok()?,
        };
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        match open(etc.as_fd(), name, flags | OFlags::CLOEXEC) {
            Err(Errno::NOENT) if !is_opaque(etc.as_fd()) => {}
            Err(_) => return None,
            Ok(file) => return content(file),
        }
    }
    None
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

fn open(at: BorrowedFd<'_>, name: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(at, name, flags | OFlags::NOFOLLOW, Mode::empty())
}

fn is_opaque(directory: BorrowedFd<'_>) -> bool {
    let mut value = [0_u8; 8];
    let found = rustix::fs::fgetxattr(directory, "user.overlay.opaque", &mut value);
    found.is_ok_and(|length| &value[..length] == b"y")
}

fn content(file: OwnedFd) -> Option<Vec<u8>> {
    let stat = rustix::fs::fstat(&file).ok()?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !is_file || u64::try_from(stat.st_size).ok()? > FILE_BYTES {
        return None;
    }
    let mut bytes = Vec::new();
    let read = std::fs::File::from(file)
        .take(FILE_BYTES)
        .read_to_end(&mut bytes);
    read.ok().map(|_| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    fn layer(dir: &Path, name: &str, passwd: Option<&str>) -> PathBuf {
        let layer = dir.join(name);
        fs::create_dir_all(layer.join("etc")).unwrap();
        if let Some(text) = passwd {
            fs::write(layer.join("etc/passwd"), text).unwrap();
        }
        layer
    }

    fn names(layers: &[&PathBuf]) -> Vec<String> {
        let accounts = Accounts::of_image(layers.iter().map(|path| path.as_path()));
        let text = String::from_utf8(accounts.passwd).unwrap();
        text.lines()
            .map(|line| line.split(':').next().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn the_image_knows_its_users_and_the_agent_is_ours() {
        let text = "root:x:0:0:root:/root:/bin/bash\nnode:x:1000:1000::/srv/node:/bin/sh\n\
                    agent:x:0:0:evil:/:/bin/sh\nbad line\nx:y\nover:x:99999999999:0::/:/\n";
        let dir = tempfile::tempdir().unwrap();
        let below = layer(dir.path(), "below", Some(text));
        let above = layer(dir.path(), "above", None);
        let expected = ["agent", "nobody", "root", "node"];
        assert_eq!(names(&[&above, &below]), expected);
        let accounts = Accounts::of_image([below.as_path()].into_iter());
        let passwd = String::from_utf8(accounts.passwd).unwrap();
        assert!(passwd.contains("root:x:0:0:root:/root:/bin/bash\n"));
        assert!(passwd.starts_with("agent:x:1000:1000:"), "{passwd}");
        assert!(!passwd.contains("evil"));
    }

    #[test]
    fn what_is_no_plain_file_of_the_image_is_not_read() {
        let ours = ["root", "agent", "nobody"];
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("secret"), "spy:x:7:7::/:/bin/sh\n").unwrap();
        let good = layer(dir.path(), "good", Some("user:x:7:7::/:/bin/sh\n"));
        assert!(names(&[&good]).contains(&"user".to_owned()));
        let link = layer(dir.path(), "link", None);
        symlink(dir.path().join("secret"), link.join("etc/passwd")).unwrap();
        let climbing = dir.path().join("climbing");
        fs::create_dir(&climbing).unwrap();
        fs::create_dir(dir.path().join("etc")).unwrap();
        fs::copy(dir.path().join("secret"), dir.path().join("etc/passwd")).unwrap();
        symlink("../etc", climbing.join("etc")).unwrap();
        let pipe = layer(dir.path(), "pipe", None);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            pipe.join("etc/passwd"),
            FileType::Fifo,
            Mode::RWXU,
            0,
        )
        .unwrap();
        let huge = layer(dir.path(), "huge", Some("user:x:7:7::/:/bin/sh\n"));
        let file = fs::File::options()
            .write(true)
            .open(huge.join("etc/passwd"));
        file.unwrap().set_len(1 << 30).unwrap();
        for odd in [&link, &climbing, &pipe, &huge] {
            assert_eq!(names(&[odd, &good]), ours, "{}", odd.display());
        }
        let closed = layer(dir.path(), "closed", None);
        let opaque = rustix::fs::setxattr(
            closed.join("etc"),
            "user.overlay.opaque",
            b"y",
            rustix::fs::XattrFlags::empty(),
        );
        opaque.unwrap();
        assert_eq!(names(&[&closed, &good]), ours);
    }
}
