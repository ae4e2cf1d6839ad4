//! Results that are kept, so that the same check on the same files is not done again.
//!
//! ```text
//! checks/<key>/   result.json, stdout, stderr      `<key>.<id>.partial` until all of it is there
//! ```
//!
//! A key is a hash of everything that a check can see: files, command, programs of the host,
//! variables, policy, bounds. What is not surely the same is another key.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ringfence_jail::plan::HostMount;
use ringfence_model::bundle::sha256_hex;
use ringfence_model::check::Ran;
use ringfence_model::limits::Limits;
use serde::{Deserialize, Serialize};

use super::{Subject, state};
use crate::error::Error;
use crate::home::{Home, PARTIAL};
use crate::sandbox::canary_text;

/// BOUND: a result has two ends of output and some names.
const RESULT_BYTES: u64 = 1 << 20;
/// BOUND: results that are kept, and for how long: programs of the host change.
const KEPT: usize = 500;
const KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

const RESULT: &str = "result.json";

/// What a result is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Key {
    pub tree: String,
    pub command: String,
    pub environment: String,
    pub limits: Limits,
}

impl Key {
    fn name(&self) -> String {
        let json = serde_json::to_string(self).expect("plain data always serialises");
        sha256_hex(json.as_bytes())
    }
}

/// A result with the files that hold what was printed.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub ran: Ran,
    pub stdout: PathBuf,
    pub stderr: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    key: Key,
    ran: Ran,
}

/// What else than files a check sees, as one hash.
pub(super) fn environment(subject: &Subject<'_>) -> String {
    let request = subject.request;
    let system = [
        "/usr/bin",
        "/usr/sbin",
        "/usr/lib",
        "/usr/local/bin",
        "/usr/local/lib",
        "/etc",
        "/nix/store",
    ];
    let stamp = |path: &str| {
        let stat = fs::metadata(path).ok()?;
        Some((stat.ino(), stat.ctime(), stat.ctime_nsec()))
    };
    let seen = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "backend": request.backend.name(),
        "identity": subject.workspace.identity().as_str(),
        "inside": subject.workspace.spec().inside,
        "files": request.policy.files,
        "network": request.policy.review.network,
        "env": request.env,
        "environment": subject.standing.facts,
        "system": system.map(stamp),
        "kernel": rustix::system::uname().release().to_string_lossy(),
        // Values of variables are in it and may be secret: nobody can try them out without this.
        "mounts": shown(subject).unwrap_or_default(),
        "salt": canary_text(&subject.home.canary()),
    });
    sha256_hex(seen.to_string().as_bytes())
}

/// Whether a result may be kept: nothing is seen but what the key is made of.
pub(super) fn may_keep(subject: &Subject<'_>) -> bool {
    subject.review().network.0.is_empty() && shown(subject).is_some()
}

/// What the policy shows of the host, as it is now.
fn shown(subject: &Subject<'_>) -> Option<Vec<String>> {
    let mounts = subject.workspace.mounts().iter();
    let seen = |mount: &HostMount| {
        if mount.is_directory {
            state::of(&mount.host)
        } else {
            let stat = fs::metadata(&mount.host).ok()?;
            Some(format!(
                "{} {} {}",
                stat.ino(),
                stat.ctime(),
                stat.ctime_nsec()
            ))
        }
    };
    mounts.map(seen).collect()
}

/// A result that is kept.
pub(super) fn find(home: &Home, key: &Key) -> Option<Ran> {
    let directory = home.checks().join(key.name());
    let file = fs::File::open(directory.join(RESULT)).ok()?;
    let made = file.metadata().ok()?.modified().ok()?;
    if made.elapsed().map_or(true, |age| age > KEPT_FOR) {
        return None;
    }
    let mut text = Vec::new();
    file.take(RESULT_BYTES).read_to_end(&mut text).ok()?;
    let stored: Stored = serde_json::from_slice(&text).ok()?;
    (stored.key == *key).then_some(Ran {
        cached: true,
        ..stored.ran
    })
}

/// Keeps a result.
pub(super) fn keep(home: &Home, key: &Key, kept: &Kept) -> Result<(), Error> {
    let name = key.name();
    // Several may keep the same right now, each in a place of its own.
    let own = crate::ids::RunId::random()?;
    let partial = home.checks().join(format!("{name}.{own}{PARTIAL}"));
    let failed = |source| Error::WriteFile {
        path: partial.clone(),
        source,
    };
    fs::create_dir(&partial).map_err(failed)?;
    let stored = Stored {
        key: key.clone(),
        ran: kept.ran.clone(),
    };
    let json = serde_json::to_vec(&stored).expect("plain data always serialises");
    let fill = || -> io::Result<()> {
        for (from, name) in [(&kept.stdout, "stdout"), (&kept.stderr, "stderr")] {
            let to = partial.join(name);
            fs::hard_link(from, &to).or_else(|_| fs::copy(from, &to).map(drop))?;
        }
        fs::write(partial.join(RESULT), json)?;
        let whole = home.checks().join(&name);
        let _ = fs::remove_dir_all(&whole);
        match fs::rename(&partial, whole) {
            // Somebody else has just kept the same.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                fs::remove_dir_all(&partial)
            }
            renamed => renamed,
        }
    };
    fill().map_err(|source| {
        let _ = fs::remove_dir_all(&partial);
        failed(source)
    })
}

/// Nobody shall be told of it any more.
pub(super) fn forget(home: &Home, key: &Key) {
    let _ = fs::remove_dir_all(home.checks().join(key.name()));
}

/// What a check printed whose result was kept: by the hash of it.
pub(super) fn log(home: &Home, log_sha256: &str, name: &str) -> Option<fs::File> {
    for entry in fs::read_dir(home.checks()).ok()?.flatten() {
        let file = fs::File::open(entry.path().join(RESULT));
        let mut text = Vec::new();
        let read = file.and_then(|file| file.take(RESULT_BYTES).read_to_end(&mut text));
        let stored = read.ok().and_then(|_| serde_json::from_slice(&text).ok());
        if stored.is_some_and(|stored: Stored| stored.ran.log_sha256 == log_sha256) {
            return fs::File::open(entry.path().join(name)).ok();
        }
    }
    None
}

/// Removes what is old, and the oldest of what is too much. Nothing but time is lost with it.
pub(super) fn sweep(home: &Home) {
    let age = |path: &Path| -> Option<SystemTime> {
        fs::symlink_metadata(path.join(RESULT))
            .or_else(|_| fs::symlink_metadata(path))
            .ok()?
            .modified()
            .ok()
    };
    let entries = fs::read_dir(home.checks()).into_iter().flatten().flatten();
    let mut all: Vec<(SystemTime, PathBuf)> = entries
        .filter_map(|entry| Some((age(&entry.path())?, entry.path())))
        .collect();
    all.sort_unstable();
    let extra = all.len().saturating_sub(KEPT);
    for (at, (made, path)) in all.iter().enumerate() {
        let old = made.elapsed().is_ok_and(|age| age > KEPT_FOR);
        if at < extra || old {
            let _ = fs::remove_dir_all(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_model::outcome::Outcome;

    #[test]
    fn several_keep_the_same_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(Some(directory.path().join("home"))).unwrap();
        let printed = directory.path().join("printed");
        fs::write(&printed, "words").unwrap();
        let key = Key {
            tree: "t".to_owned(),
            command: "make test".to_owned(),
            environment: "e".to_owned(),
            limits: Limits::for_host(1 << 30),
        };
        let kept = Kept {
            ran: Ran {
                outcome: Outcome::Exited,
                exit_code: Some(0),
                signal: None,
                duration_ms: 1,
                output_bytes: 5,
                log_sha256: "h".to_owned(),
                stdout_tail: String::new(),
                stderr_tail: String::new(),
                counts: None,
                leftovers: 0,
                cached: false,
            },
            stdout: printed.clone(),
            stderr: printed,
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        keep(&home, &key, &kept).unwrap();
                    }
                });
            }
        });
        assert!(find(&home, &key).is_some());
        let left = fs::read_dir(home.checks()).unwrap().count();
        assert_eq!(left, 1, "what was under way is left");
    }
}
