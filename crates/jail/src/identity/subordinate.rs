//! More ids of a caller who is not root: those that the machine's administrator has set aside, mapped
//! by the programs that may.

use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};

/// A range of each kind, which are the ids from 1 on inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subordinate {
    first_uid: u32,
    uids: u32,
    first_gid: u32,
    gids: u32,
}

/// BOUND: ids that an image can name, besides root.
const MOST: u32 = 65_535;
/// BOUND: fewer do not hold the users of a distribution, `nobody` excepted.
const LEAST: u32 = 1000;
/// BOUND: a line for each user of a large machine.
const FILE_BYTES: u64 = 4 << 20;

const PROGRAMS: [&str; 2] = ["newuidmap", "newgidmap"];

impl Subordinate {
    /// What the machine gives this user; `None` where that is nothing, or cannot be mapped.
    pub(super) fn of_caller(uid: u32) -> Option<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        if !PROGRAMS.iter().all(|program| is_in(&path, program)) {
            return None;
        }
        // The programs do nothing for who has no name.
        let name = name_of(&read("/etc/passwd")?, uid)?;
        let (first_uid, uids) = range(&read("/etc/subuid")?, uid, &name)?;
        let (first_gid, gids) = range(&read("/etc/subgid")?, uid, &name)?;
        Some(Self {
            first_uid,
            uids,
            first_gid,
            gids,
        })
    }

    /// By the programs that are allowed to: they look at the same files once more.
    pub(super) fn write_maps(&self, pid: i32, uid: u32, gid: u32) -> io::Result<()> {
        for (program, own, first, count) in [
            (PROGRAMS[1], gid, self.first_gid, self.gids),
            (PROGRAMS[0], uid, self.first_uid, self.uids),
        ] {
            let said = Command::new(program)
                .arg(pid.to_string())
                .args(["0", &own.to_string(), "1"])
                .args(["1", &first.to_string(), &count.to_string()])
                .stdin(Stdio::null())
                .output()?;
            if !said.status.success() {
                let why = String::from_utf8_lossy(&said.stderr);
                let why: String = why.chars().take(200).collect();
                return Err(io::Error::other(format!("{program}: {}", why.trim())));
            }
        }
        Ok(())
    }
}

fn is_in(path: &OsStr, program: &str) -> bool {
    std::env::split_paths(path).any(|directory| directory.join(program).is_file())
}

fn read(path: &str) -> Option<String> {
    let file = std::fs::File::open(Path::new(path)).ok()?;
    let mut text = String::new();
    file.take(FILE_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

fn name_of(passwd: &str, uid: u32) -> Option<String> {
    let uid = uid.to_string();
    passwd.lines().find_map(|line| {
        let mut parts = line.split(':');
        let name = parts.next()?;
        (parts.nth(1) == Some(&uid)).then(|| name.to_owned())
    })
}

/// The first range of a user, by name or number, that is large enough.
fn range(text: &str, uid: u32, name: &str) -> Option<(u32, u32)> {
    let uid = uid.to_string();
    text.lines().find_map(|line| {
        let mut parts = line.split(':');
        let who = parts.next()?;
        let first: u32 = parts.next()?.parse().ok()?;
        let count: u32 = parts.next()?.trim().parse().ok()?;
        let is_meant = who == uid || who == name;
        let is_sane = first > 0 && first.checked_add(count).is_some();
        (is_meant && is_sane && count >= LEAST).then(|| (first, count.min(MOST)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_found_by_name_or_number() {
        let passwd = "root:x:0:0::/:/bin/sh\nsomeone:x:1234:1234::/:/bin/sh\n";
        let name = name_of(passwd, 1234);
        assert_eq!(name.as_deref(), Some("someone"));
        assert_eq!(name_of(passwd, 12), None);
        for (text, expected) in [
            ("someone:100000:65536\n", Some((100_000, 65_535))),
            ("other:5:65536\n1234:200000:2000\n", Some((200_000, 2000))),
            ("someone:100000:10\n", None),
            ("someone:0:65536\n", None),
            ("someone:4294967295:65536\n", None),
            ("someone:x:65536\nsomeone\n", None),
            ("", None),
        ] {
            assert_eq!(range(text, 1234, "someone"), expected, "{text}");
        }
    }
}
