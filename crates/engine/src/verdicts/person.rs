//! Who is at the keyboard, as far as the host can tell.

use std::io::Read as _;

use ringfence_model::verdict::By;

/// BOUND: bytes of the list of users that are looked at.
const PASSWD_BYTES: u64 = 1 << 20;

/// The caller, under the name that was given or the account's own.
pub fn person(name: Option<String>) -> By {
    let account = account();
    By::Person {
        name: name.unwrap_or_else(|| account.clone()),
        account,
    }
}

/// `user@host`, of the process's real user: what the environment says anybody can set.
pub fn account() -> String {
    let uid = rustix::process::getuid().as_raw();
    let mut text = Vec::new();
    let users = std::fs::File::open("/etc/passwd")
        .and_then(|file| file.take(PASSWD_BYTES).read_to_end(&mut text))
        .map(|_| String::from_utf8_lossy(&text).into_owned())
        .unwrap_or_default();
    let user = name_of(&users, uid).unwrap_or_else(|| format!("uid-{uid}"));
    let host = rustix::system::uname();
    let host: String = plain(&host.nodename().to_string_lossy());
    format!("{user}@{host}")
}

fn name_of(users: &str, uid: u32) -> Option<String> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let number = fields.nth(1)?;
        (number.parse() == Ok(uid)).then(|| plain(name))
    })
}

/// HOSTILE: a container's owner chose both.
fn plain(text: &str) -> String {
    let odd = |c: char| !(c.is_alphanumeric() || "-_.$".contains(c));
    text.chars()
        .take(40)
        .map(|c| if odd(c) { '?' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_number() {
        let users =
            "root:x:0:0:r:/root:/bin/sh\n# odd\nada:x:1000:1000::/h:/s\nb\u{1b}d:x:7:7::/:/\n";
        for (uid, name) in [
            (0, Some("root")),
            (1000, Some("ada")),
            (7, Some("b?d")),
            (8, None),
        ] {
            assert_eq!(name_of(users, uid).as_deref(), name);
        }
        let own = account();
        assert!(own.contains('@') && !own.contains(' '), "{own}");
    }
}
