//! A place to try a private git directory: repositories made by the real git, and a sandbox of
//! the same mounts that the launcher makes.
#![allow(dead_code)]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ringfence_engine::git::{self, PrivateGit, Repository, UserFiles};

pub struct Bench {
    pub dir: tempfile::TempDir,
}

impl Bench {
    /// With an `outside` for repositories and a `home` of its own.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "outside", "home", "mask", "upper", "work", "merged", "inside",
        ] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        Self { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    /// Runs a script in `outside` with a plain environment; it must succeed.
    pub fn sh(&self, script: &str) -> String {
        self.sh_in(&self.path("outside"), script)
    }

    pub fn sh_in(&self, at: &Path, script: &str) -> String {
        let output = self
            .command("sh", at)
            .args(["-euc", script])
            .output()
            .unwrap();
        checked(script, &output)
    }

    fn command(&self, program: &str, at: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(at)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.path("home"))
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_OPTIONAL_LOCKS", "0")
            .env("GIT_AUTHOR_NAME", "a")
            .env("GIT_AUTHOR_EMAIL", "a@x")
            .env("GIT_COMMITTER_NAME", "a")
            .env("GIT_COMMITTER_EMAIL", "a@x")
            .env("GIT_CONFIG_COUNT", "3")
            .env("GIT_CONFIG_KEY_0", "protocol.file.allow")
            .env("GIT_CONFIG_VALUE_0", "always")
            .env("GIT_CONFIG_KEY_1", "init.defaultBranch")
            .env("GIT_CONFIG_VALUE_1", "main")
            // `git commit` would start it in the background, where it outlives the test.
            .env("GIT_CONFIG_KEY_2", "maintenance.auto")
            .env("GIT_CONFIG_VALUE_2", "false");
        command
    }

    pub fn discover(&self, folder: &str) -> Option<Repository> {
        let user = UserFiles::at(Some(self.path("home")), None);
        git::discover_for(&self.path("outside").join(folder), user).unwrap()
    }

    pub fn build(&self, folder: &str) -> PrivateGit {
        let repo = self.discover(folder).expect("a repository");
        let inside = self.path("inside");
        git::build_private(&repo, &self.path("mask"), inside.to_str().unwrap()).unwrap()
    }

    /// Runs a script in the merged view, where `outside` is gone; it must succeed.
    pub fn inside(&self, folder: &str, private: &PrivateGit, script: &str) -> String {
        let root = self.dir.path().canonicalize().unwrap();
        let mut setup = String::from("set -eu\ncd \"$ROOT\"\nmount --make-rprivate /\n");
        for mount in &private.object_mounts {
            let (host, inside) = (mount.directory.host.display(), &mount.inside);
            setup += &format!("mkdir -p '{inside}'\nmount --bind '{host}' '{inside}'\n");
            if mount.has_alternates {
                setup += &format!("mount --bind /dev/null '{inside}/info/alternates'\n");
            }
            setup += &format!("mount -o remount,bind,ro '{inside}'\n");
        }
        setup += "mount -t overlay overlay -o userxattr,lowerdir=mask:\"$FOLDER\",upperdir=upper,workdir=work merged\n";
        setup += "mount -t tmpfs none outside\ncd merged\n";
        let folder = if folder.is_empty() {
            "outside".into()
        } else {
            format!("outside/{folder}")
        };
        let output = self
            .command("unshare", &root)
            .args(["-Urm", "sh", "-c", &format!("{setup}\n{script}")])
            .env("ROOT", &root)
            .env("FOLDER", folder)
            .env("HOME", self.path("work"))
            .env_remove("GIT_AUTHOR_NAME")
            .env_remove("GIT_AUTHOR_EMAIL")
            .env_remove("GIT_COMMITTER_NAME")
            .env_remove("GIT_COMMITTER_EMAIL")
            .output()
            .unwrap();
        checked(script, &output)
    }

    /// Every file below a directory with type, mode, time and content.
    pub fn snapshot(&self, dir: &Path) -> Vec<String> {
        let mut all = Vec::new();
        let mut pending = vec![dir.to_owned()];
        while let Some(path) = pending.pop() {
            let metadata = fs::symlink_metadata(&path).unwrap();
            let mut line = format!(
                "{} {:o} {}.{}",
                path.display(),
                metadata.mode(),
                metadata.mtime(),
                metadata.mtime_nsec()
            );
            if metadata.is_file() {
                line += &format!(" {:?}", fs::read(&path).unwrap());
            } else if metadata.is_dir() {
                pending.extend(
                    fs::read_dir(&path)
                        .unwrap()
                        .map(|entry| entry.unwrap().path()),
                );
            }
            all.push(line);
        }
        all.sort();
        all
    }

    /// Files below the mask that contain a text.
    pub fn leaks(&self, text: &str) -> Vec<String> {
        self.snapshot_bytes(&self.path("mask"))
            .into_iter()
            .filter(|(_, bytes)| {
                bytes
                    .windows(text.len())
                    .any(|window| window == text.as_bytes())
            })
            .map(|(path, _)| path.display().to_string())
            .collect()
    }

    fn snapshot_bytes(&self, dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let mut all = Vec::new();
        let mut pending = vec![dir.to_owned()];
        while let Some(path) = pending.pop() {
            let metadata = fs::symlink_metadata(&path).unwrap();
            if metadata.is_dir() {
                pending.extend(
                    fs::read_dir(&path)
                        .unwrap()
                        .map(|entry| entry.unwrap().path()),
                );
            } else if metadata.is_file() {
                all.push((path.clone(), fs::read(&path).unwrap()));
            }
        }
        all
    }
}

fn checked(script: &str, output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{script}\n--- stdout\n{text}\n--- stderr\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        !errors.contains("error:") && !errors.contains("fatal:"),
        "{script}\n{errors}"
    );
    text
}
